//! Remembers verified tokens by their hashes, within bounds.

use std::sync::Arc;

use dashmap::DashMap;
use jiff::Timestamp;

use super::{Refusal, issuer::Issuer};
use countersign_domain::principal::{Identity, SecretHash};

/// The most entries of each cache.
const MAX_ENTRIES: usize = 10_000;
/// The time for which an issuer's answer about a token counts, in milliseconds.
pub(super) const ANSWER_AGE: i64 = 10_000;
/// The time after which an issuer that did not answer is asked about the same token again.
const RETRY_AGE: i64 = 2_000;

/// A JWT that was verified, which counts until a time and while its issuer keeps its keys.
pub(super) struct CachedJwt {
    pub identity: Identity,
    /// The time in milliseconds.
    pub valid_until: i64,
    pub issuer: Arc<Issuer>,
    pub generation: u64,
}

impl CachedJwt {
    fn is_valid(&self, now: i64) -> bool {
        now < self.valid_until && self.issuer.generation() == Some(self.generation)
    }
}

/// The last answer of the issuers about an opaque token.
pub(super) struct Answer {
    pub outcome: Result<Identity, Refusal>,
    /// The token, by which its issuer is asked again; `None` if the issuer refused it.
    pub token: Option<Arc<str>>,
    /// The time of the question in milliseconds.
    pub asked_at: i64,
}

impl Answer {
    pub(super) fn is_fresh(&self, now: i64) -> bool {
        let age = if matches!(self.outcome, Err(Refusal::ProviderUnavailable)) { RETRY_AGE } else { ANSWER_AGE };
        // A task that began to wait before the answer came must not ask again.
        now.saturating_sub(self.asked_at).saturating_abs() < age
    }
}

#[derive(Default)]
pub(super) struct TokenCache {
    jwts: DashMap<SecretHash, CachedJwt>,
    answers: DashMap<SecretHash, Answer>,
}

impl TokenCache {
    /// Returns the identity of a JWT that need not be verified again.
    pub(super) fn jwt(&self, hash: &SecretHash, now: Timestamp) -> Option<Identity> {
        let entry = self.jwts.get(hash)?;
        entry.is_valid(now.as_millisecond()).then(|| entry.identity.clone())
    }

    pub(super) fn insert_jwt(&self, hash: SecretHash, entry: CachedJwt, now: Timestamp) {
        evict(&self.jwts, |entry| entry.is_valid(now.as_millisecond()));
        self.jwts.insert(hash, entry);
    }

    /// Returns the last answer about an opaque token if it still counts.
    pub(super) fn fresh_answer(&self, hash: &SecretHash, now: Timestamp) -> Option<Result<Identity, Refusal>> {
        let answer = self.answers.get(hash)?;
        answer.is_fresh(now.as_millisecond()).then(|| answer.outcome.clone())
    }

    /// Returns the text of an opaque token that was valid when its issuer last answered.
    pub(super) fn opaque_token(&self, hash: &SecretHash) -> Option<Arc<str>> {
        self.answers.get(hash)?.token.clone()
    }

    /// Forgets the answers that do not come from the current issuers.
    pub(super) fn retain_answers(&self, is_current: impl Fn(&Identity) -> bool) {
        self.answers.retain(|_, answer| answer.outcome.as_ref().is_ok_and(&is_current));
    }

    pub(super) fn insert_answer(&self, hash: SecretHash, answer: Answer, now: Timestamp) {
        // An open stream has the answer about its token renewed, for which the text of the token is needed.
        evict(&self.answers, |answer| answer.is_fresh(now.as_millisecond()) && answer.token.is_some());
        self.answers.insert(hash, answer);
    }

    #[cfg(test)]
    pub(super) fn jwt_count(&self) -> usize {
        self.jwts.len()
    }
}

/// Removes entries from a full map: those that are not needed, and if that is not enough, every second of the others.
fn evict<V>(map: &DashMap<SecretHash, V>, is_needed: impl Fn(&V) -> bool) {
    if map.len() < MAX_ENTRIES {
        return;
    }
    map.retain(|_, entry| is_needed(entry));
    if map.len() > MAX_ENTRIES / 2 {
        let mut is_kept = false;
        map.retain(|_, _| {
            is_kept = !is_kept;
            is_kept
        });
    }
}
