//! Proves that a gateway is the one of a data directory: it answers a challenge with a secret from a file in the directory,
//! which only the directory's user can read.
//!
//! A client sends a key only after the challenge was answered, so another program that has taken over the port never
//! receives one.

use std::fmt;

use ring::hmac;
use serde::{Deserialize, Serialize};

use countersign_runtime::secret;

/// The path at which a gateway answers challenges: `GET /proof?challenge=…`.
pub const PROOF_PATH: &str = "/proof";
/// The prefixes of a secret and of a challenge.
const SECRET_PREFIX: &str = "csp_";
const CHALLENGE_PREFIX: &str = "csq_";
/// Prevents an answer from being used as any other signature with the same secret.
const SIGNATURE_CONTEXT: &[u8] = b"countersign gateway proof 1\n";

/// The secret that one gateway shares with its data directory. Each start creates a new one.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ProofSecret(String);

impl fmt::Debug for ProofSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[secret]")
    }
}

impl ProofSecret {
    /// Generates a secret. Returns `None` if the operating system provides no randomness.
    pub fn new() -> Option<Self> {
        secret::generate(SECRET_PREFIX).ok().map(Self)
    }

    /// Returns the answer to a challenge, or `None` if it is malformed.
    pub fn answer_challenge(&self, challenge: &str) -> Option<String> {
        secret::is_well_formed(CHALLENGE_PREFIX, challenge)
            .then(|| countersign_domain::changes::digest::hex(self.sign(challenge).as_ref()))
    }

    /// Returns `true` if the answer proves knowledge of the secret. A malformed secret proves nothing.
    pub fn is_valid_answer(&self, challenge: &str, answer: &str) -> bool {
        let Some(expected) =
            self.answer_challenge(challenge).filter(|_| secret::is_well_formed(SECRET_PREFIX, &self.0))
        else {
            return false;
        };
        secret::is_same_hash(&secret::hash(expected.as_bytes()), &secret::hash(answer.trim().as_bytes()))
    }

    fn sign(&self, challenge: &str) -> hmac::Tag {
        let mut context = hmac::Context::with_key(&hmac::Key::new(hmac::HMAC_SHA256, self.0.as_bytes()));
        context.update(SIGNATURE_CONTEXT);
        context.update(challenge.as_bytes());
        context.sign()
    }
}

/// Generates a challenge. Returns `None` if the operating system provides no randomness.
pub fn new_challenge() -> Option<String> {
    secret::generate(CHALLENGE_PREFIX).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answer_needs_secret_and_fits_one_challenge() {
        let (ours, theirs) = (ProofSecret::new().unwrap(), ProofSecret::new().unwrap());
        let (first, second) = (new_challenge().unwrap(), new_challenge().unwrap());
        let answer = ours.answer_challenge(&first).unwrap();
        assert!(ours.is_valid_answer(&first, &answer));
        assert!(!ours.is_valid_answer(&second, &answer));
        assert!(!theirs.is_valid_answer(&first, &answer));
        assert!(
            !ours.is_valid_answer(&first, "") && !ours.is_valid_answer("", "") && ours.answer_challenge("x").is_none()
        );
        let empty = ProofSecret(String::new());
        assert!(
            !empty.is_valid_answer(&first, &empty.answer_challenge(&first).unwrap()),
            "a file without a secret proves nothing"
        );
        assert!(!format!("{ours:?}").contains("csp_"));
    }
}
