//! Signatures of Standard Webhooks (standardwebhooks.com, specification, "Signature scheme"): HMAC-SHA256 over the
//! message id, the timestamp of the attempt and the body.

use std::fmt;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use ring::hmac;

const SECRET_PREFIX: &str = "whsec_";
const KEY_LENGTHS: std::ops::RangeInclusive<usize> = 24..=64;

/// A shared secret, which its `Debug` text does not reveal.
#[derive(Clone, PartialEq, Eq)]
pub struct SigningKey(Vec<u8>);

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[secret]")
    }
}

impl SigningKey {
    /// Parses `whsec_` followed by the Base64 of 24 to 64 bytes.
    pub fn parse(text: &str) -> Option<Self> {
        let bytes = STANDARD.decode(text.strip_prefix(SECRET_PREFIX)?).ok()?;
        KEY_LENGTHS.contains(&bytes.len()).then_some(Self(bytes))
    }

    /// Returns `v1,` followed by the Base64 of the signature.
    fn sign(&self, id: &str, timestamp: i64, body: &[u8]) -> String {
        let mut context = hmac::Context::with_key(&hmac::Key::new(hmac::HMAC_SHA256, &self.0));
        context.update(format!("{id}.{timestamp}.").as_bytes());
        context.update(body);
        format!("v1,{}", STANDARD.encode(context.sign()))
    }
}

/// Returns the value of `webhook-signature` with one signature for each key. `id` must not contain a full stop.
pub fn signature(keys: &[SigningKey], id: &str, timestamp: i64, body: &[u8]) -> String {
    keys.iter().map(|key| key.sign(id, timestamp, body)).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signature_matches_reference_library() {
        // From the tests of the reference implementations.
        let key = SigningKey::parse("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
        let signature = signature(&[key], "msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, br#"{"test": 2432232314}"#);
        assert_eq!(signature, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }

    #[test]
    fn both_keys_sign_during_rotation() {
        let keys = ["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"];
        let keys = keys.map(|text| SigningKey::parse(text).unwrap());
        let signatures = signature(&keys, "a", 1, b"x");
        assert_eq!(signatures.split(' ').collect::<Vec<_>>(), keys.map(|key| key.sign("a", 1, b"x")));
    }

    #[test]
    fn invalid_secrets_are_refused_and_debug_is_masked() {
        for bad in ["", "whsec_", "whsec_c2hvcnQ=", "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_!!!"] {
            assert_eq!(SigningKey::parse(bad), None, "{bad}");
        }
        let key = SigningKey::parse("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
        assert_eq!(format!("{key:?}"), "[secret]");
    }
}
