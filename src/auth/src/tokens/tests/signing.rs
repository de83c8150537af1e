//! Keys that sign the tokens of tests, as issuers do.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use ring::{
    rand::SystemRandom,
    rsa::PublicKeyComponents,
    signature::{self, EcdsaKeyPair, Ed25519KeyPair, KeyPair as _, RsaEncoding, RsaKeyPair},
};
use serde_json::{Value, json};

pub fn encode(bytes: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

enum Signer {
    Ecdsa(EcdsaKeyPair),
    Ed25519(Ed25519KeyPair),
    Rsa(RsaKeyPair, &'static dyn RsaEncoding),
}

pub struct TestKey {
    algorithm: &'static str,
    signer: Signer,
    /// The key as its issuer publishes it.
    pub public: Value,
}

impl TestKey {
    pub fn es256(id: &str) -> Self {
        Self::ecdsa(id, "ES256", "P-256", &signature::ECDSA_P256_SHA256_FIXED_SIGNING)
    }

    pub fn es384(id: &str) -> Self {
        Self::ecdsa(id, "ES384", "P-384", &signature::ECDSA_P384_SHA384_FIXED_SIGNING)
    }

    fn ecdsa(
        id: &str,
        algorithm: &'static str,
        curve: &str,
        signing: &'static signature::EcdsaSigningAlgorithm,
    ) -> Self {
        let random = SystemRandom::new();
        let document = EcdsaKeyPair::generate_pkcs8(signing, &random).unwrap();
        let pair = EcdsaKeyPair::from_pkcs8(signing, document.as_ref(), &random).unwrap();
        let point = &pair.public_key().as_ref()[1..];
        let (x, y) = point.split_at(point.len() / 2);
        let public = json!({ "kty": "EC", "kid": id, "crv": curve, "x": encode(x), "y": encode(y) });
        Self { algorithm, signer: Signer::Ecdsa(pair), public }
    }

    pub fn ed25519(id: &str) -> Self {
        let document = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap();
        let pair = Ed25519KeyPair::from_pkcs8(document.as_ref()).unwrap();
        let public = json!({ "kty": "OKP", "kid": id, "crv": "Ed25519", "x": encode(pair.public_key()) });
        Self { algorithm: "EdDSA", signer: Signer::Ed25519(pair), public }
    }

    /// Returns the RSA key of all tests, which `openssl genrsa` made, for one algorithm.
    pub fn rsa(id: &str, algorithm: &'static str) -> Self {
        let encoding: &'static dyn RsaEncoding = match algorithm {
            "RS256" => &signature::RSA_PKCS1_SHA256,
            "RS384" => &signature::RSA_PKCS1_SHA384,
            "RS512" => &signature::RSA_PKCS1_SHA512,
            "PS256" => &signature::RSA_PSS_SHA256,
            "PS384" => &signature::RSA_PSS_SHA384,
            _ => &signature::RSA_PSS_SHA512,
        };
        let pair = RsaKeyPair::from_pkcs8(include_bytes!("rsa-2048.pk8")).unwrap();
        let PublicKeyComponents::<Vec<u8>> { n, e } = pair.public().into();
        let public = json!({ "kty": "RSA", "kid": id, "n": encode(n), "e": encode(e) });
        Self { algorithm, signer: Signer::Rsa(pair, encoding), public }
    }

    /// Returns the key with other members in its public form.
    pub fn published_with(mut self, changes: Value) -> Self {
        self.public = super::merge(&self.public, changes);
        self
    }

    pub fn header(&self) -> Value {
        json!({ "typ": "at+jwt", "alg": self.algorithm, "kid": self.public["kid"] })
    }

    pub fn sign(&self, header: &Value, claims: &Value) -> String {
        self.sign_text(&header.to_string(), &claims.to_string())
    }

    pub fn sign_text(&self, header: &str, claims: &str) -> String {
        let signed = format!("{}.{}", encode(header), encode(claims));
        let signature = self.signature(signed.as_bytes());
        format!("{signed}.{}", encode(signature))
    }

    fn signature(&self, message: &[u8]) -> Vec<u8> {
        let random = SystemRandom::new();
        match &self.signer {
            Signer::Ecdsa(pair) => pair.sign(&random, message).unwrap().as_ref().to_vec(),
            Signer::Ed25519(pair) => pair.sign(message).as_ref().to_vec(),
            Signer::Rsa(pair, encoding) => {
                let mut signature = vec![0; pair.public().modulus_len()];
                pair.sign(*encoding, &random, message, &mut signature).unwrap();
                signature
            }
        }
    }
}
