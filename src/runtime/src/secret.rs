//! Generates and compares random secrets. Only hashes of secrets are stored.
//!
//! Secrets have 256 bits from the operating system and cannot be guessed, so one round of SHA-256 is enough.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

use countersign_protocol::{ErrorKind, McpError};

/// Generates a secret: `prefix` and 43 characters of base64url (256 bits).
///
/// # Errors
/// `INTERNAL_ERROR` if the operating system provides no randomness.
pub fn generate(prefix: &str) -> Result<String, McpError> {
    let mut bytes = [0_u8; 32];
    getrandom::fill(&mut bytes).map_err(|error| {
        tracing::error!(%error, "the operating system gives no random bytes");
        McpError::new(ErrorKind::Internal, "no source of randomness")
    })?;
    let mut text = String::with_capacity(prefix.len() + 43);
    text.push_str(prefix);
    URL_SAFE_NO_PAD.encode_string(bytes, &mut text);
    Ok(text)
}

/// Returns the hash under which a secret is stored.
pub fn hash(secret: &[u8]) -> [u8; 32] {
    Sha256::digest(secret).into()
}

/// Compares two hashes in constant time.
pub fn is_same_hash(a: &[u8; 32], b: &[u8; 32]) -> bool {
    a.ct_eq(b).into()
}

/// Returns `true` if a text has the format of [`generate`]`(prefix)`, whether or not such a secret was
/// ever issued.
pub fn is_well_formed(prefix: &str, text: &str) -> bool {
    text.strip_prefix(prefix).is_some_and(|rest| {
        rest.len() == 43 && rest.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_well_formed_and_unique() {
        let (a, b) = (generate("csk_").unwrap(), generate("csk_").unwrap());
        assert!(is_well_formed("csk_", &a) && is_well_formed("csk_", &b));
        assert_ne!(a, b);
        assert_eq!(a.len(), 47);
        assert!(!is_well_formed("csc_", &a));
        assert!(!is_well_formed("csk_", &a[..46]));
        assert!(!is_well_formed("csk_", &format!("csk_{}", "ä".repeat(21) + "x")));
    }

    #[test]
    fn hash_is_sha_256() {
        let expected = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        let hex: String = hash(b"abc").iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(hex, expected);
        assert!(is_same_hash(&hash(b"abc"), &hash(b"abc")));
        assert!(!is_same_hash(&hash(b"abc"), &hash(b"abd")));
    }
}
