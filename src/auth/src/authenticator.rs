//! Authenticates requests: turns an `Authorization` header and a peer address into a [`Principal`].
//!
//! Shared by all endpoints and threads. A key created by another process works at once, and a revoked key stops working
//! within [`MAX_KEY_AGE`]. Never logs or returns a secret.

use std::{
    collections::HashSet,
    net::IpAddr,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use dashmap::DashMap;

use super::{
    attempts::{FailedAttempts, Subject},
    bearer,
    keys::{KeyStore, PREFIX},
    secret,
};
use countersign_config::{AuthMode, Config};
use countersign_domain::principal::{Credential, Identity, Principal, SecretHash};
use countersign_protocol::{ErrorKind, McpError};
use countersign_telemetry::metrics::{Cache, CacheMetrics};

/// The time for which a cached key is valid without asking the store, and within which a revocation takes effect.
pub const MAX_KEY_AGE: Duration = Duration::from_millis(750);
/// The interval at which the keys of open streams are verified again.
pub const RECHECK: Duration = Duration::from_secs(1);
/// The most cached keys. Further ones cost a look-up each.
const MAX_CACHED_KEYS: usize = 10_000;
/// The most wrong keys in each of the two generations.
const MAX_WRONG_KEYS: usize = 2048;

struct CachedKey {
    principal: Arc<Principal>,
    checked_at: Instant,
}

/// Hashes of recently refused keys, in two generations.
#[derive(Default)]
struct WrongKeys {
    current: HashSet<SecretHash>,
    previous: HashSet<SecretHash>,
}

/// Authenticates requests by API key and, in `auth.mode: local`, by a loopback address.
pub struct Authenticator {
    mode: AuthMode,
    /// Set if a peer on loopback needs no key.
    admits_loopback: bool,
    store: Arc<dyn KeyStore>,
    cache: DashMap<SecretHash, CachedKey>,
    wrong_keys: Mutex<WrongKeys>,
    attempts: FailedAttempts,
    local_agent: Arc<Principal>,
}

impl Authenticator {
    /// Creates an authenticator. With `behind_tls_proxy` every peer may look like loopback, so `auth.mode: local` then
    /// requires a key too.
    #[must_use]
    pub fn new(config: &Config, store: Arc<dyn KeyStore>) -> Self {
        Self {
            mode: config.auth.mode,
            admits_loopback: config.auth.mode == AuthMode::Local && !config.behind_tls_proxy,
            store,
            cache: DashMap::default(),
            wrong_keys: Mutex::default(),
            attempts: FailedAttempts::default(),
            local_agent: Arc::new(Principal::local_agent()),
        }
    }

    /// Returns the principal and the credential of a request, which [`Self::recheck`] verifies later. `authorization` is
    /// the value of the only `Authorization` header ([`bearer::authorization_header`]), and `peer` is the address of the
    /// socket; `None` does not count as loopback.
    ///
    /// # Errors
    /// `UNAUTHORIZED` for a missing, malformed, unknown or revoked key; `RATE_LIMITED` after too many failures;
    /// `STORE_UNAVAILABLE` if the key could not be looked up.
    pub fn identify(&self, authorization: Option<&[u8]>, peer: Option<IpAddr>) -> Result<Identity, McpError> {
        self.identify_at(authorization, peer, Instant::now)
    }

    fn identify_at(
        &self,
        authorization: Option<&[u8]>,
        peer: Option<IpAddr>,
        now: impl FnOnce() -> Instant,
    ) -> Result<Identity, McpError> {
        match authorization {
            Some(value) => self.identify_key_at(bearer::parse_token(value)?, peer, now()),
            None if self.admits_loopback && peer.is_some_and(|ip| ip.to_canonical().is_loopback()) => {
                Ok(Identity { principal: Arc::clone(&self.local_agent), credential: Credential::Loopback })
            }
            None => Err(McpError::new(ErrorKind::Unauthorized, "a key is needed: Authorization: Bearer <key>")),
        }
    }

    /// Returns the identity of a local process without a key: the parent on stdin, or a process on the Unix socket, which
    /// only this user can open.
    ///
    /// # Errors
    /// `UNAUTHORIZED` if `auth.mode` is `keys`.
    pub fn identify_local_process(&self) -> Result<Identity, McpError> {
        match self.mode {
            AuthMode::Local => {
                Ok(Identity { principal: Arc::clone(&self.local_agent), credential: Credential::Loopback })
            }
            AuthMode::Keys => Err(McpError::new(ErrorKind::Unauthorized, "a key is needed: set COUNTERSIGN_AGENT_KEY")),
        }
    }

    /// Returns the identity of the holder of a key from any source, such as a header or the sign-in page.
    ///
    /// # Errors
    /// The same as [`Self::identify`].
    pub fn identify_key(&self, key: &str, peer: Option<IpAddr>) -> Result<Identity, McpError> {
        self.identify_key_at(key, peer, Instant::now())
    }

    fn identify_key_at(&self, key: &str, peer: Option<IpAddr>, now: Instant) -> Result<Identity, McpError> {
        let hash = secret::hash(key.as_bytes());
        let known = self.cache.get(&hash).map(|hit| (Arc::clone(&hit.principal), hit.checked_at));
        if let Some((principal, checked)) = &known
            && now.saturating_duration_since(*checked) < MAX_KEY_AGE
        {
            CacheMetrics::for_cache(Cache::Keys).hit();
            return Ok(Identity { principal: Arc::clone(principal), credential: Credential::Key(hash) });
        }
        let refused = || McpError::new(ErrorKind::Unauthorized, "the key is unknown or revoked");
        // A random key that did not exist a moment ago will not come into existence, so no look-up is needed.
        if known.is_none() && self.is_known_wrong_key(&hash) {
            return Err(self.attempts.record_failure(Subject::for_wrong_key(peer, hash_prefix(&hash)), now, refused()));
        }
        // All other keys are looked up: a valid key is never held back by failures of others.
        let found = if secret::is_well_formed(PREFIX, key) { self.look_up(&hash)? } else { None };
        if let Some(principal) = found {
            if self.cache.len() >= MAX_CACHED_KEYS {
                self.cache.retain(|_, hit| now.saturating_duration_since(hit.checked_at) < MAX_KEY_AGE);
            }
            if self.cache.len() < MAX_CACHED_KEYS || known.is_some() {
                self.cache.insert(hash, CachedKey { principal: Arc::clone(&principal), checked_at: now });
            }
            return Ok(Identity { principal, credential: Credential::Key(hash) });
        }
        self.cache.remove(&hash);
        self.remember_wrong_key(hash);
        Err(self.attempts.record_failure(Subject::for_peer(peer), now, refused()))
    }

    /// Returns the principal of a key that is still valid, for streams and sign-ins that outlive a request.
    ///
    /// # Errors
    /// `UNAUTHORIZED` if it was revoked; `STORE_UNAVAILABLE` if that cannot be determined.
    pub fn recheck(&self, key: &SecretHash) -> Result<Arc<Principal>, McpError> {
        self.recheck_at(key, Instant::now())
    }

    fn recheck_at(&self, key: &SecretHash, now: Instant) -> Result<Arc<Principal>, McpError> {
        if let Some(hit) = self.cache.get(key)
            && now.saturating_duration_since(hit.checked_at) < MAX_KEY_AGE
        {
            CacheMetrics::for_cache(Cache::Keys).hit();
            return Ok(Arc::clone(&hit.principal));
        }
        if let Some(principal) = self.look_up(key)? {
            self.cache.insert(*key, CachedKey { principal: Arc::clone(&principal), checked_at: now });
            return Ok(principal);
        }
        self.cache.remove(key);
        Err(McpError::new(ErrorKind::Unauthorized, "the key was revoked"))
    }

    /// Checks that the credential of a client is still valid.
    ///
    /// # Errors
    /// As [`Self::recheck`].
    pub fn check(&self, identity: &Identity) -> Result<(), McpError> {
        match &identity.credential {
            Credential::Key(hash) => self.recheck(hash).map(drop),
            Credential::Loopback | Credential::SignIn(_) => Ok(()),
        }
    }

    /// Waits until a client's key is revoked, and returns the error that ends what it has open.
    pub async fn wait_until_revoked(&self, identity: &Identity) -> McpError {
        if !matches!(identity.credential, Credential::Key(_)) {
            return std::future::pending().await;
        }
        loop {
            tokio::time::sleep(RECHECK).await;
            match self.check(identity) {
                Err(error) if error.kind == ErrorKind::Unauthorized => return error,
                _ => {}
            }
        }
    }

    /// Removes a key from the cache, so that its next use asks the store.
    pub fn forget_key(&self, key: &SecretHash) {
        self.cache.remove(key);
    }

    fn look_up(&self, hash: &SecretHash) -> Result<Option<Arc<Principal>>, McpError> {
        CacheMetrics::for_cache(Cache::Keys).miss();
        let record = self.store.find_key(hash)?;
        // The index has compared the hashes, but not in constant time.
        let live = record.filter(|record| record.key.revoked_at.is_none() && secret::is_same_hash(&record.hash, hash));
        Ok(live.map(|record| Arc::new(record.principal())))
    }

    fn is_known_wrong_key(&self, hash: &SecretHash) -> bool {
        let wrong = self.wrong_keys.lock().unwrap_or_else(PoisonError::into_inner);
        wrong.current.contains(hash) || wrong.previous.contains(hash)
    }

    fn remember_wrong_key(&self, hash: SecretHash) {
        let mut wrong = self.wrong_keys.lock().unwrap_or_else(PoisonError::into_inner);
        if wrong.current.len() >= MAX_WRONG_KEYS {
            wrong.previous = std::mem::take(&mut wrong.current);
        }
        wrong.current.insert(hash);
    }
}

fn hash_prefix(hash: &SecretHash) -> u64 {
    hash.first_chunk::<8>().map_or(0, |chunk| u64::from_le_bytes(*chunk))
}

#[cfg(test)]
pub(crate) mod tests {
    use std::{
        collections::HashMap,
        sync::atomic::{AtomicUsize, Ordering},
    };

    use jiff::Timestamp;

    use super::*;
    use crate::keys::{self, StoredKey};
    use countersign_domain::principal::Role;

    /// A key store in memory.
    #[derive(Default)]
    pub(crate) struct MemoryKeys {
        pub keys: Mutex<HashMap<SecretHash, StoredKey>>,
        pub lookups: AtomicUsize,
        pub is_broken: std::sync::atomic::AtomicBool,
    }

    impl MemoryKeys {
        pub(crate) fn add(&self, name: &str, role: Role) -> String {
            let new = keys::create(name, role, Timestamp::UNIX_EPOCH).unwrap();
            self.keys.lock().unwrap().insert(new.hash, StoredKey { key: new.key, hash: new.hash });
            new.secret
        }
        pub(crate) fn revoke(&self, secret: &str) {
            let mut keys = self.keys.lock().unwrap();
            keys.get_mut(&secret::hash(secret.as_bytes())).unwrap().key.revoked_at = Some(Timestamp::UNIX_EPOCH);
        }
    }

    impl KeyStore for MemoryKeys {
        fn find_key(&self, hash: &SecretHash) -> Result<Option<StoredKey>, McpError> {
            self.lookups.fetch_add(1, Ordering::Relaxed);
            if self.is_broken.load(Ordering::Relaxed) {
                return Err(McpError::new(ErrorKind::StoreUnavailable, "broken"));
            }
            Ok(self.keys.lock().unwrap().get(hash).cloned())
        }
    }

    const LOOPBACK: Option<IpAddr> = Some(IpAddr::V4(std::net::Ipv4Addr::LOCALHOST));

    fn remote() -> Option<IpAddr> {
        Some(IpAddr::from([203, 0, 113, 9]))
    }

    fn new_authenticator(mode: AuthMode) -> (Authenticator, Arc<MemoryKeys>) {
        let store = Arc::new(MemoryKeys::default());
        let config = Config { auth: countersign_config::AuthConfig { mode }, ..Config::default() };
        (Authenticator::new(&config, Arc::clone(&store) as Arc<dyn KeyStore>), store)
    }

    fn bearer(key: &str) -> Vec<u8> {
        format!("Bearer {key}").into_bytes()
    }

    #[test]
    fn local_mode_admits_loopback_without_key() {
        let (auth, store) = new_authenticator(AuthMode::Local);
        let key = store.add("ci", Role::Agent);
        assert_eq!(*auth.identify(None, LOOPBACK).unwrap().principal, Principal::local_agent());
        assert_eq!(*auth.identify(None, "::1".parse().ok()).unwrap().principal, Principal::local_agent());
        assert_eq!(*auth.identify(None, "::ffff:127.0.0.1".parse().ok()).unwrap().principal, Principal::local_agent());
        assert_eq!(auth.identify(Some(&bearer(&key)), LOOPBACK).unwrap().principal.name, "ci");
        for nobody in [auth.identify(None, remote()), auth.identify(None, None)] {
            assert_eq!(nobody.unwrap_err().kind, ErrorKind::Unauthorized);
        }
    }

    #[test]
    fn wrong_key_is_refused_even_if_none_is_needed() {
        let (auth, _) = new_authenticator(AuthMode::Local);
        for bad in ["Bearer csk_wrong", "Bearer ", "Basic YTpi", ""] {
            let error = auth.identify(Some(bad.as_bytes()), LOOPBACK).unwrap_err();
            assert_eq!(error.kind, ErrorKind::Unauthorized, "{bad:?}");
        }
    }

    #[test]
    fn loopback_needs_key_in_keys_mode_and_behind_proxy() {
        let (auth, store) = new_authenticator(AuthMode::Keys);
        auth.identify(None, LOOPBACK).unwrap_err();
        let key = store.add("ci", Role::Agent);
        auth.identify(Some(&bearer(&key)), remote()).unwrap();
        let config = Config { behind_tls_proxy: true, ..Config::default() };
        let proxied = Authenticator::new(&config, store);
        proxied.identify(None, LOOPBACK).unwrap_err();
        assert_eq!(*proxied.identify_local_process().unwrap().principal, Principal::local_agent());
        assert_eq!(auth.identify_local_process().unwrap_err().kind, ErrorKind::Unauthorized);
    }

    #[test]
    fn cached_key_is_rechecked_after_max_age() {
        let (auth, store) = new_authenticator(AuthMode::Keys);
        let key = store.add("ci", Role::Agent);
        let now = Instant::now();
        let ask = |at: Instant| auth.identify_at(Some(&bearer(&key)), LOOPBACK, || at);
        for _ in 0..100 {
            ask(now).unwrap();
        }
        assert_eq!(store.lookups.load(Ordering::Relaxed), 1);
        store.revoke(&key);
        ask(now + MAX_KEY_AGE / 2).unwrap();
        assert_eq!(ask(now + MAX_KEY_AGE).unwrap_err().kind, ErrorKind::Unauthorized);
        // An earlier cache entry must not make the key valid again.
        assert_eq!(ask(now).unwrap_err().kind, ErrorKind::Unauthorized);
    }

    #[test]
    fn unreadable_store_admits_nobody() {
        let (auth, store) = new_authenticator(AuthMode::Keys);
        let key = store.add("ci", Role::Agent);
        let now = Instant::now();
        auth.identify_at(Some(&bearer(&key)), LOOPBACK, || now).unwrap();
        store.is_broken.store(true, Ordering::Relaxed);
        let late = auth.identify_at(Some(&bearer(&key)), LOOPBACK, || now + MAX_KEY_AGE);
        assert_eq!(late.unwrap_err().kind, ErrorKind::StoreUnavailable);
        store.is_broken.store(false, Ordering::Relaxed);
        auth.identify_at(Some(&bearer(&key)), LOOPBACK, || now + MAX_KEY_AGE).unwrap();
    }

    #[test]
    fn guessing_is_limited_but_valid_keys_still_pass() {
        let (auth, store) = new_authenticator(AuthMode::Keys);
        let known = store.add("alice", Role::Reviewer);
        let now = Instant::now();
        auth.identify_at(Some(&bearer(&known)), remote(), || now).unwrap();
        let mut kinds = Vec::new();
        for n in 0..12 {
            let guess = bearer(&format!("csk_{n:043}"));
            kinds.push(auth.identify_at(Some(&guess), remote(), || now).unwrap_err().kind);
        }
        assert_eq!(kinds[..10], [ErrorKind::Unauthorized; 10]);
        assert_eq!(kinds[10..], [ErrorKind::RateLimited; 2]);
        // An unused key works from the address with all the failures.
        let unused = store.add("bob", Role::Reviewer);
        auth.identify_at(Some(&bearer(&unused)), remote(), || now).unwrap();
        auth.identify_at(Some(&bearer(&known)), remote(), || now + MAX_KEY_AGE).unwrap();
        auth.identify_at(Some(&bearer(&known)), LOOPBACK, || now).unwrap();
    }

    #[test]
    fn stale_key_is_limited_without_affecting_same_host() {
        let (auth, store) = new_authenticator(AuthMode::Local);
        let now = Instant::now();
        let stale = bearer(&format!("csk_{:043}", 7));
        let last = (0..100).map(|_| auth.identify_at(Some(&stale), LOOPBACK, || now).unwrap_err().kind).last();
        assert_eq!(last, Some(ErrorKind::RateLimited));
        assert_eq!(store.lookups.load(Ordering::Relaxed), 1);
        let fresh = store.add("alice", Role::Reviewer);
        auth.identify_at(Some(&bearer(&fresh)), LOOPBACK, || now).unwrap();
    }

    #[test]
    fn recheck_follows_the_store() {
        let (auth, store) = new_authenticator(AuthMode::Keys);
        let key = store.add("alice", Role::Reviewer);
        let now = Instant::now();
        let hash = secret::hash(key.as_bytes());
        assert_eq!(auth.recheck_at(&hash, now).unwrap().name, "alice");
        store.revoke(&key);
        auth.recheck_at(&hash, now).unwrap();
        assert_eq!(auth.recheck_at(&hash, now + MAX_KEY_AGE).unwrap_err().kind, ErrorKind::Unauthorized);
    }
}
