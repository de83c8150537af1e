use base64::engine::general_purpose::STANDARD;
use ring::{
    rand::SystemRandom,
    signature::{
        ECDSA_P256_SHA256_FIXED, ED25519, Ed25519KeyPair, KeyPair as _, RSA_PKCS1_2048_8192_SHA256, RsaKeyPair,
        UnparsedPublicKey, VerificationAlgorithm,
    },
};

use super::*;
use crate::oauth::{assertion::client_assertion, dpop::DpopKey};
use countersign_config::Secret;

/// The RSA key of all tests, which `openssl genrsa` made.
const RSA_KEY: &[u8] = include_bytes!("rsa-2048.pk8");

fn pem(document: impl AsRef<[u8]>) -> Secret {
    Secret(format!("-----BEGIN PRIVATE KEY-----\r\n{}\r\n-----END PRIVATE KEY-----\r\n", STANDARD.encode(document)))
}

#[track_caller]
fn assert_signed(token: &str, algorithm: &'static dyn VerificationAlgorithm, key: &[u8]) {
    let (signed, signature) = token.rsplit_once('.').unwrap();
    let signature = URL_SAFE_NO_PAD.decode(signature).unwrap();
    UnparsedPublicKey::new(algorithm, key).verify(signed.as_bytes(), &signature).unwrap();
}

/// Returns the point of a key in a header.
fn point(jwk: &Value) -> Vec<u8> {
    let number = |name: &str| URL_SAFE_NO_PAD.decode(jwk[name].as_str().unwrap()).unwrap();
    [vec![4], number("x"), number("y")].concat()
}

#[test]
fn assertion_names_the_client_and_the_issuer() {
    let key = DpopKey::generate().unwrap();
    let assertion = |id| client_assertion(&Secret(key.clone().into()), id, "https://id.example", now()).unwrap();
    let token = assertion("own");
    assert_eq!(decode(&token, 0), json!({ "alg": "ES256", "typ": "JWT" }));
    let claims = decode(&token, 1);
    assert_eq!(
        (&claims["iss"], &claims["sub"], &claims["aud"]),
        (&json!("own"), &json!("own"), &json!("https://id.example"))
    );
    assert_eq!((&claims["iat"], &claims["exp"]), (&json!(1_800_000_000), &json!(1_800_000_060)));
    assert_ne!(claims["jti"], decode(&assertion("own"), 1)["jti"]);
    let proof = key.prove("POST", "https://id.example/", None, None, now()).unwrap();
    assert_signed(&token, &ECDSA_P256_SHA256_FIXED, &point(&decode(&proof, 0)["jwk"]));
}

#[test]
fn assertion_is_signed_with_ed25519_and_rsa_keys() {
    let document = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap();
    let public = Ed25519KeyPair::from_pkcs8(document.as_ref()).unwrap().public_key().as_ref().to_vec();
    let token = client_assertion(&pem(document), "own", "aud", now()).unwrap();
    assert_eq!(decode(&token, 0)["alg"], "EdDSA");
    assert_signed(&token, &ED25519, &public);
    let public = RsaKeyPair::from_pkcs8(RSA_KEY).unwrap().public_key().as_ref().to_vec();
    let token = client_assertion(&pem(RSA_KEY), "own", "aud", now()).unwrap();
    assert_eq!(decode(&token, 0)["alg"], "RS256");
    assert_signed(&token, &RSA_PKCS1_2048_8192_SHA256, &public);
}

#[test]
fn text_that_is_not_a_key_is_refused_and_not_shown() {
    for text in ["", "hunter2", "-----BEGIN PRIVATE KEY-----\nhunter2\n-----END PRIVATE KEY-----"] {
        let error = client_assertion(&Secret(text.to_owned()), "own", "aud", now()).unwrap_err();
        assert!(!error.to_string().contains("hunter2"), "{error}");
        assert!(DpopKey::try_from(text.to_owned()).is_err());
    }
    assert!(DpopKey::try_from(pem(RSA_KEY).0).is_err(), "only ES256");
}

#[test]
fn proof_is_bound_to_the_request_and_the_token() {
    let key = DpopKey::try_from(String::from(DpopKey::generate().unwrap())).unwrap();
    let proof = key.prove("POST", "https://Mcp.example/mcp?a=b#c", Some("token"), Some("n"), now()).unwrap();
    let header = decode(&proof, 0);
    assert_eq!((&header["typ"], &header["alg"]), (&json!("dpop+jwt"), &json!("ES256")));
    assert_eq!(header["jwk"].as_object().unwrap().len(), 4, "no private part: {header}");
    assert_signed(&proof, &ECDSA_P256_SHA256_FIXED, &point(&header["jwk"]));
    let claims = decode(&proof, 1);
    assert_eq!((&claims["htm"], &claims["htu"]), (&json!("POST"), &json!("https://mcp.example/mcp")));
    // The hash of `token`, as `openssl dgst -sha256` computes it.
    assert_eq!(claims["ath"], "PEaenWxYddN6Q_NT1PiOYfz4EsZu7jRXRlpAsNpBU-A");
    assert_eq!((&claims["nonce"], &claims["iat"]), (&json!("n"), &json!(1_800_000_000)));
    let next = decode(&key.prove("GET", "https://mcp.example/mcp", None, None, now()).unwrap(), 1);
    assert_ne!(next["jti"], claims["jti"]);
    assert!(next.get("ath").is_none() && next.get("nonce").is_none());
}
