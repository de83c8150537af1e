//! How a gateway proves that it is the one that a data directory names: it answers a challenge with a secret that stands
//! in the directory's file, which only the directory's user may read.
//!
//! Whoever finds the port free, because the gateway has ended or another one was meant, gets a challenge and nothing else:
//! no key is sent to who has not answered it.

use std::fmt;

use ring::hmac;
use serde::{Deserialize, Serialize};

use countersign_auth::secret;

/// Where a gateway answers challenges: `GET /proof?challenge=…`.
pub const PATH: &str = "/proof";
/// What a secret begins with, and a challenge.
const SECRET: &str = "csp_";
const CHALLENGE: &str = "csq_";
/// So that no answer can be taken for something else that is made with the same secret.
const PURPOSE: &[u8] = b"countersign gateway proof 1\n";

/// What one gateway and its data directory know; another at each start.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[secret]")
    }
}

impl Secret {
    /// `None` where the operating system gives no randomness.
    #[must_use]
    pub fn new() -> Option<Self> {
        secret::generate(SECRET).ok().map(Self)
    }

    /// The answer to a challenge; `None` for what is none.
    #[must_use]
    pub fn answer(&self, challenge: &str) -> Option<String> {
        secret::well_formed(CHALLENGE, challenge)
            .then(|| countersign_domain::changes::digest::hex(self.sign(challenge).as_ref()))
    }

    /// Whether whoever answered knows the secret. Says nothing if the secret itself has not the form of one.
    #[must_use]
    pub fn is_answered(&self, challenge: &str, answer: &str) -> bool {
        let Some(right) = self.answer(challenge).filter(|_| secret::well_formed(SECRET, &self.0)) else { return false };
        secret::same(&secret::hash(right.as_bytes()), &secret::hash(answer.trim().as_bytes()))
    }

    fn sign(&self, challenge: &str) -> hmac::Tag {
        let mut context = hmac::Context::with_key(&hmac::Key::new(hmac::HMAC_SHA256, self.0.as_bytes()));
        context.update(PURPOSE);
        context.update(challenge.as_bytes());
        context.sign()
    }
}

/// A new challenge. `None` where the operating system gives no randomness.
#[must_use]
pub fn challenge() -> Option<String> {
    secret::generate(CHALLENGE).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_who_has_the_secret_answers_and_an_answer_is_for_one_challenge() {
        let (ours, theirs) = (Secret::new().unwrap(), Secret::new().unwrap());
        let (first, second) = (challenge().unwrap(), challenge().unwrap());
        let answer = ours.answer(&first).unwrap();
        assert!(ours.is_answered(&first, &answer));
        assert!(!ours.is_answered(&second, &answer));
        assert!(!theirs.is_answered(&first, &answer));
        assert!(!ours.is_answered(&first, "") && !ours.is_answered("", "") && ours.answer("x").is_none());
        let empty = Secret(String::new());
        assert!(!empty.is_answered(&first, &empty.answer(&first).unwrap()), "a file without a secret proves nothing");
        assert!(!format!("{ours:?}").contains("csp_"));
    }
}
