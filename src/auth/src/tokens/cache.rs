//! Caches verified JWTs and introspections of opaque tokens, by the hashes of the tokens and within bounds.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

use dashmap::DashMap;
use jiff::Timestamp;

use super::{TokenRefusal, issuer::Issuer};
use countersign_domain::principal::{Identity, SecretHash};

/// The maximum number of entries of each cache.
const MAX_ENTRIES: usize = 10_000;
/// The estimated number of bytes beyond which each cache removes entries.
const MAX_BYTES: usize = 16 << 20;
/// The estimated number of bytes of an entry without its claims and its token.
const ENTRY_BYTES: usize = 512;
/// The age up to which an issuer's answer about a token is used, in milliseconds.
pub(super) const MAX_INTROSPECTION_AGE_MS: i64 = 10_000;
/// The time after which an issuer that did not answer is asked about the same token again, in milliseconds.
const RETRY_DELAY_MS: i64 = 2_000;

/// A verified JWT. It is valid until a time, and only while its issuer keeps its keys.
pub(super) struct CachedJwt {
    pub identity: Identity,
    /// The end of its validity in milliseconds.
    pub valid_until: i64,
    pub issuer: Arc<Issuer>,
    pub generation: u64,
}

impl CachedJwt {
    fn is_valid(&self, now: i64) -> bool {
        now < self.valid_until && self.issuer.generation() == Some(self.generation)
    }
}

/// The last introspection of an opaque token.
pub(super) struct CachedIntrospection {
    pub outcome: Result<Identity, TokenRefusal>,
    /// The token, for the next request about it. `None` if the issuer refused it.
    pub token: Option<Arc<str>>,
    /// The time of the request in milliseconds.
    pub asked_at: i64,
}

impl CachedIntrospection {
    pub(super) fn is_fresh(&self, now: i64) -> bool {
        let max_age = if matches!(self.outcome, Err(TokenRefusal::IssuerUnavailable)) {
            RETRY_DELAY_MS
        } else {
            MAX_INTROSPECTION_AGE_MS
        };
        // The `now` of a task may be before `asked_at`, if another task asked meanwhile. Such an entry is fresh, too.
        now.saturating_sub(self.asked_at).saturating_abs() < max_age
    }
}

/// An entry that a [`BoundedMap`] can measure and remove.
trait Entry {
    fn bytes(&self) -> usize;
    /// Returns `false` if the entry is removed before others.
    fn is_needed(&self, now: i64) -> bool;
}

impl Entry for CachedJwt {
    fn bytes(&self) -> usize {
        identity_bytes(&self.identity)
    }
    fn is_needed(&self, now: i64) -> bool {
        self.is_valid(now)
    }
}

impl Entry for CachedIntrospection {
    fn bytes(&self) -> usize {
        let token = self.token.as_ref().map_or(0, |token| token.len());
        token + self.outcome.as_ref().map_or(ENTRY_BYTES, identity_bytes)
    }
    // An open stream asks about its token again, for which the token itself is needed.
    fn is_needed(&self, now: i64) -> bool {
        self.is_fresh(now) && self.token.is_some()
    }
}

/// Estimates the number of bytes of an identity. A part of the claims, such as the groups, is held twice.
fn identity_bytes(identity: &Identity) -> usize {
    ENTRY_BYTES + identity.principal.claims.as_ref().map_or(0, |claims| 2 * claims.json.len())
}

/// A map with a maximum number of entries and a maximum size.
struct BoundedMap<V> {
    entries: DashMap<SecretHash, V>,
    bytes: AtomicUsize,
}

impl<V> Default for BoundedMap<V> {
    fn default() -> Self {
        Self { entries: DashMap::new(), bytes: AtomicUsize::new(0) }
    }
}

impl<V: Entry> BoundedMap<V> {
    fn insert(&self, hash: SecretHash, entry: V, now: Timestamp) {
        if self.exceeds(MAX_ENTRIES - 1, MAX_BYTES) {
            self.evict(now.as_millisecond());
        }
        self.bytes.fetch_add(entry.bytes(), Relaxed);
        if let Some(old) = self.entries.insert(hash, entry) {
            self.bytes.fetch_sub(old.bytes(), Relaxed);
        }
    }

    fn exceeds(&self, entries: usize, bytes: usize) -> bool {
        self.entries.len() > entries || self.bytes.load(Relaxed) > bytes
    }

    /// Removes the entries that are not needed, and if that is not enough, half of the remaining ones.
    fn evict(&self, now: i64) {
        self.retain(|entry| entry.is_needed(now));
        if self.exceeds(MAX_ENTRIES / 2, MAX_BYTES / 2) {
            let mut keep = false;
            self.retain(|_| {
                keep = !keep;
                keep
            });
        }
    }

    fn retain(&self, mut is_needed: impl FnMut(&V) -> bool) {
        self.entries.retain(|_, entry| {
            let is_kept = is_needed(entry);
            if !is_kept {
                self.bytes.fetch_sub(entry.bytes(), Relaxed);
            }
            is_kept
        });
    }
}

/// The verified JWTs, and the introspections of opaque tokens.
#[derive(Default)]
pub(super) struct TokenCache {
    jwts: BoundedMap<CachedJwt>,
    introspections: BoundedMap<CachedIntrospection>,
}

impl TokenCache {
    /// Returns the identity of a JWT that need not be verified again.
    pub(super) fn jwt(&self, hash: &SecretHash, now: Timestamp) -> Option<Identity> {
        let entry = self.jwts.entries.get(hash)?;
        entry.is_valid(now.as_millisecond()).then(|| entry.identity.clone())
    }

    pub(super) fn insert_jwt(&self, hash: SecretHash, entry: CachedJwt, now: Timestamp) {
        self.jwts.insert(hash, entry, now);
    }

    /// Returns the outcome of the last introspection of an opaque token if it is fresh.
    pub(super) fn fresh_introspection(
        &self,
        hash: &SecretHash,
        now: Timestamp,
    ) -> Option<Result<Identity, TokenRefusal>> {
        let last = self.introspections.entries.get(hash)?;
        last.is_fresh(now.as_millisecond()).then(|| last.outcome.clone())
    }

    /// Returns the text of an opaque token that was valid when its issuer last answered.
    pub(super) fn opaque_token(&self, hash: &SecretHash) -> Option<Arc<str>> {
        self.introspections.entries.get(hash)?.token.clone()
    }

    /// Returns `true` if the cache knows that an opaque token is or was valid.
    pub(super) fn was_valid(&self, hash: &SecretHash) -> bool {
        let last = self.introspections.entries.get(hash);
        last.is_some_and(|last| last.token.is_some() || matches!(last.outcome, Err(TokenRefusal::Expired)))
    }

    /// Removes all introspections but those with an identity that `is_current`.
    pub(super) fn retain_introspections(&self, is_current: impl Fn(&Identity) -> bool) {
        self.introspections.retain(|introspection| introspection.outcome.as_ref().is_ok_and(&is_current));
    }

    pub(super) fn insert_introspection(&self, hash: SecretHash, entry: CachedIntrospection, now: Timestamp) {
        self.introspections.insert(hash, entry, now);
    }

    #[cfg(test)]
    pub(super) fn jwt_count(&self) -> usize {
        self.jwts.entries.len()
    }

    #[cfg(test)]
    pub(super) fn introspection_bytes(&self) -> usize {
        self.introspections.bytes.load(Relaxed)
    }
}
