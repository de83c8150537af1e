//! Signs JSON Web Tokens (RFC 7515) with private keys in PKCS #8.

use base64::{
    Engine as _,
    engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD},
};
use ring::{
    rand::SystemRandom,
    signature::{
        ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair as _, RSA_PKCS1_SHA256, RsaKeyPair,
    },
};
use serde_json::{Value, json};

use super::OAuthError;

const BEGIN: &str = "-----BEGIN PRIVATE KEY-----";
const END: &str = "-----END PRIVATE KEY-----";

/// A private key that signs.
pub(super) enum SigningKey {
    Ecdsa(EcdsaKeyPair),
    Ed25519(Ed25519KeyPair),
    Rsa(RsaKeyPair),
}

impl SigningKey {
    /// Reads a key in PEM.
    pub(super) fn from_pem(pem: &str) -> Result<Self, OAuthError> {
        let body = pem.split_once(BEGIN).and_then(|(_, rest)| rest.split_once(END)).map(|(body, _)| body);
        let body = body.map(|body| body.split_ascii_whitespace().collect::<String>());
        let document = body.and_then(|body| STANDARD.decode(body).ok());
        let document = document.ok_or_else(|| OAuthError::unusable("the private key is not PKCS #8 in PEM"))?;
        EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &document, &SystemRandom::new())
            .map(Self::Ecdsa)
            .or_else(|_| Ed25519KeyPair::from_pkcs8_maybe_unchecked(&document).map(Self::Ed25519))
            .or_else(|_| RsaKeyPair::from_pkcs8(&document).map(Self::Rsa))
            .map_err(|_| OAuthError::unusable("the private key is not one for ES256, EdDSA or RS256"))
    }

    /// Generates a key for ES256, as text in PEM.
    pub(super) fn generate_pem() -> Result<String, OAuthError> {
        let document = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &SystemRandom::new());
        let document = document.map_err(|_| OAuthError::unusable("there is no source of randomness"))?;
        Ok(format!("{BEGIN}\n{}\n{END}\n", STANDARD.encode(document)))
    }

    /// Returns the public key (RFC 7517), or `None` for an algorithm other than ES256.
    pub(super) fn public_ec_key(&self) -> Option<Value> {
        let Self::Ecdsa(pair) = self else { return None };
        // An uncompressed point: the byte 4, and two numbers of 32 bytes.
        let (x, y) = pair.public_key().as_ref().get(1..)?.split_at_checked(32)?;
        Some(json!({ "kty": "EC", "crv": "P-256", "x": encode(x), "y": encode(y) }))
    }

    /// Signs a token with the members of a header and these claims.
    pub(super) fn sign(&self, mut header: Value, claims: &Value) -> Result<String, OAuthError> {
        header["alg"] = match self {
            Self::Ecdsa(_) => "ES256",
            Self::Ed25519(_) => "EdDSA",
            Self::Rsa(_) => "RS256",
        }
        .into();
        let signed = format!("{}.{}", encode(header.to_string()), encode(claims.to_string()));
        let random = SystemRandom::new();
        let failed = |_| OAuthError::unusable("the private key cannot sign");
        let signature = match self {
            Self::Ecdsa(pair) => pair.sign(&random, signed.as_bytes()).map_err(failed)?.as_ref().to_vec(),
            Self::Ed25519(pair) => pair.sign(signed.as_bytes()).as_ref().to_vec(),
            Self::Rsa(pair) => {
                let mut signature = vec![0; pair.public().modulus_len()];
                pair.sign(&RSA_PKCS1_SHA256, &random, signed.as_bytes(), &mut signature).map_err(failed)?;
                signature
            }
        };
        Ok(format!("{signed}.{}", encode(signature)))
    }
}

fn encode(bytes: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}
