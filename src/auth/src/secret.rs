//! Random secrets and how they are compared. Only hashes of secrets are ever stored.
//!
//! Secrets are 256 bits from the operating system, so one round of SHA-256 is enough: there is nothing to guess.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

use countersign_domain::principal::SecretHash;
use countersign_protocol::{ErrorKind, McpError};

/// A new secret: `prefix` and 43 characters of base64url (256 bits).
///
/// # Errors
/// `INTERNAL_ERROR` where the operating system has no randomness to give.
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

/// The hash that stands for a secret.
#[must_use]
pub fn hash(secret: &[u8]) -> SecretHash {
    Sha256::digest(secret).into()
}

/// Whether two hashes are the same, in time that does not depend on where they differ.
#[must_use]
pub fn same(a: &SecretHash, b: &SecretHash) -> bool {
    a.ct_eq(b).into()
}

/// Whether a text has the form of [`generate`]`(prefix)`. Says nothing of whether it is known.
#[must_use]
pub fn well_formed(prefix: &str, text: &str) -> bool {
    text.strip_prefix(prefix).is_some_and(|rest| {
        rest.len() == 43 && rest.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_have_their_form_and_differ() {
        let (a, b) = (generate("csk_").unwrap(), generate("csk_").unwrap());
        assert!(well_formed("csk_", &a) && well_formed("csk_", &b));
        assert_ne!(a, b);
        assert_eq!(a.len(), 47);
        assert!(!well_formed("csc_", &a));
        assert!(!well_formed("csk_", &a[..46]));
        assert!(!well_formed("csk_", &format!("csk_{}", "ä".repeat(21) + "x")));
    }

    #[test]
    fn hash_is_sha_256() {
        let expected = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        let hex: String = hash(b"abc").iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(hex, expected);
        assert!(same(&hash(b"abc"), &hash(b"abc")));
        assert!(!same(&hash(b"abc"), &hash(b"abd")));
    }
}
