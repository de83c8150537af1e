//! Who is behind a request: from an `Authorization` header and a peer address to a [`Principal`].
//!
//! Shared by all endpoints and threads. A key that another process made works at once, and one that it revoked stops
//! within [`FRESH`]. Nothing here ever logs or returns a secret.

use std::{
    collections::HashSet,
    hash::{BuildHasherDefault, Hasher},
    net::IpAddr,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use dashmap::DashMap;

use super::{
    attempts::{Attempts, Subject},
    bearer,
    keys::{KeyStore, PREFIX},
    secret,
};
use countersign_config::{AuthMode, Config};
use countersign_domain::principal::{Credential, Identity, Principal, SecretHash};
use countersign_protocol::{ErrorKind, McpError};
use countersign_telemetry::metrics::{Cache, CacheMetrics};

/// How long a key is believed without asking the store: revocation takes effect within this.
pub const FRESH: Duration = Duration::from_millis(750);
/// How often it is asked whether the key behind something that stays open still holds.
pub const RECHECK: Duration = Duration::from_secs(1);
/// Keys remembered at a time; more only cost a look-up each.
const MAX_CACHED: usize = 10_000;
/// Wrong keys remembered at a time, twice.
const MAX_WRONG: usize = 2048;

struct Cached {
    principal: Arc<Principal>,
    checked: Instant,
}

/// SHA-256 is uniform already: eight of its bytes are a hash.
#[derive(Default)]
struct FirstBytes(u64);
impl Hasher for FirstBytes {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        if let Some(first) = bytes.first_chunk::<8>() {
            self.0 ^= u64::from_le_bytes(*first);
        }
    }
    fn write_usize(&mut self, _: usize) {}
}

#[derive(Default)]
struct Wrong {
    current: HashSet<SecretHash>,
    previous: HashSet<SecretHash>,
}

/// Authenticates requests by API keys and, in `auth.mode: local`, by their coming from loopback.
pub struct Authenticator {
    mode: AuthMode,
    /// Whether a peer on loopback needs no key.
    open_to_loopback: bool,
    store: Arc<dyn KeyStore>,
    cache: DashMap<SecretHash, Cached, BuildHasherDefault<FirstBytes>>,
    wrong: Mutex<Wrong>,
    attempts: Attempts,
    local_agent: Arc<Principal>,
}

impl Authenticator {
    /// Behind a proxy every peer looks like loopback, so `behind_tls_proxy` closes `auth.mode: local` to those
    /// without a key.
    #[must_use]
    pub fn new(config: &Config, store: Arc<dyn KeyStore>) -> Self {
        Self {
            mode: config.auth.mode,
            open_to_loopback: config.auth.mode == AuthMode::Local && !config.behind_tls_proxy,
            store,
            cache: DashMap::default(),
            wrong: Mutex::default(),
            attempts: Attempts::default(),
            local_agent: Arc::new(Principal::local_agent()),
        }
    }

    /// Who asks. `authorization` is the value of the one `Authorization` header ([`bearer::header`]); `peer` the
    /// socket's address, `None` where there is none (which is not loopback).
    ///
    /// # Errors
    /// `UNAUTHORIZED` for no, a malformed, an unknown or a revoked key; `RATE_LIMITED` after too many failures;
    /// `STORE_UNAVAILABLE` where the key could not be looked up.
    pub fn authenticate(&self, authorization: Option<&[u8]>, peer: Option<IpAddr>) -> Result<Arc<Principal>, McpError> {
        self.identify(authorization, peer).map(|identity| identity.principal)
    }

    /// As [`Self::authenticate`], with the credential to ask about later ([`Self::recheck`]).
    ///
    /// # Errors
    /// As [`Self::authenticate`].
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
            Some(value) => self.key_at(bearer::token(value)?, peer, now()),
            None if self.open_to_loopback && peer.is_some_and(|ip| ip.to_canonical().is_loopback()) => {
                Ok(Identity { principal: Arc::clone(&self.local_agent), credential: Credential::Loopback })
            }
            None => Err(McpError::new(ErrorKind::Unauthorized, "a key is needed: Authorization: Bearer <key>")),
        }
    }

    /// Who a process of this user is that has no key: on its own stdin, or on the socket that only this user opens.
    ///
    /// # Errors
    /// `UNAUTHORIZED` in `auth.mode: keys`.
    pub fn same_user(&self) -> Result<Identity, McpError> {
        match self.mode {
            AuthMode::Local => {
                Ok(Identity { principal: Arc::clone(&self.local_agent), credential: Credential::Loopback })
            }
            AuthMode::Keys => Err(McpError::new(ErrorKind::Unauthorized, "a key is needed: set COUNTERSIGN_AGENT_KEY")),
        }
    }

    /// Who holds this key, wherever it came from (a header, the sign-in page).
    ///
    /// # Errors
    /// As [`Self::authenticate`].
    pub fn key(&self, key: &str, peer: Option<IpAddr>) -> Result<Identity, McpError> {
        self.key_at(key, peer, Instant::now())
    }

    fn key_at(&self, key: &str, peer: Option<IpAddr>, now: Instant) -> Result<Identity, McpError> {
        let hash = secret::hash(key.as_bytes());
        let known = self.cache.get(&hash).map(|hit| (Arc::clone(&hit.principal), hit.checked));
        if let Some((principal, checked)) = &known
            && now.saturating_duration_since(*checked) < FRESH
        {
            CacheMetrics::of(Cache::Keys).hit();
            return Ok(Identity { principal: Arc::clone(principal), credential: Credential::Key(hash) });
        }
        let refused = || McpError::new(ErrorKind::Unauthorized, "the key is unknown or revoked");
        // A random secret that was nobody's a moment ago does not become somebody's: that need not be looked up again.
        if known.is_none() && self.is_wrong(&hash) {
            return Err(self.attempts.failed(Subject::repeat(peer, first_bytes(&hash)), now, refused()));
        }
        // Every other one is looked up, whatever others did: who has a right key is never held back by their failures.
        let found = if secret::well_formed(PREFIX, key) { self.look_up(&hash)? } else { None };
        if let Some(principal) = found {
            if self.cache.len() >= MAX_CACHED {
                self.cache.retain(|_, hit| now.saturating_duration_since(hit.checked) < FRESH);
            }
            if self.cache.len() < MAX_CACHED || known.is_some() {
                self.cache.insert(hash, Cached { principal: Arc::clone(&principal), checked: now });
            }
            return Ok(Identity { principal, credential: Credential::Key(hash) });
        }
        self.cache.remove(&hash);
        self.note_wrong(hash);
        Err(self.attempts.failed(Subject::peer(peer), now, refused()))
    }

    /// Whether a key still holds: for what outlives a request, such as streams and sign-ins.
    ///
    /// # Errors
    /// `UNAUTHORIZED` when it was revoked; `STORE_UNAVAILABLE` when that cannot be known.
    pub fn recheck(&self, key: &SecretHash) -> Result<Arc<Principal>, McpError> {
        self.recheck_at(key, Instant::now())
    }

    fn recheck_at(&self, key: &SecretHash, now: Instant) -> Result<Arc<Principal>, McpError> {
        if let Some(hit) = self.cache.get(key)
            && now.saturating_duration_since(hit.checked) < FRESH
        {
            CacheMetrics::of(Cache::Keys).hit();
            return Ok(Arc::clone(&hit.principal));
        }
        if let Some(principal) = self.look_up(key)? {
            self.cache.insert(*key, Cached { principal: Arc::clone(&principal), checked: now });
            return Ok(principal);
        }
        self.cache.remove(key);
        Err(McpError::new(ErrorKind::Unauthorized, "the key was revoked"))
    }

    /// Checks that what a client was authenticated by still holds.
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

    /// Makes the next use of a key ask the store.
    pub fn forget(&self, key: &SecretHash) {
        self.cache.remove(key);
    }

    fn look_up(&self, hash: &SecretHash) -> Result<Option<Arc<Principal>>, McpError> {
        CacheMetrics::of(Cache::Keys).miss();
        let record = self.store.find_key(hash)?;
        // The index compared the hashes too, but not in constant time.
        let live = record.filter(|record| record.key.revoked_at.is_none() && secret::same(&record.hash, hash));
        Ok(live.map(|record| Arc::new(record.principal())))
    }

    fn is_wrong(&self, hash: &SecretHash) -> bool {
        let wrong = self.wrong.lock().unwrap_or_else(PoisonError::into_inner);
        wrong.current.contains(hash) || wrong.previous.contains(hash)
    }

    fn note_wrong(&self, hash: SecretHash) {
        let mut wrong = self.wrong.lock().unwrap_or_else(PoisonError::into_inner);
        if wrong.current.len() >= MAX_WRONG {
            wrong.previous = std::mem::take(&mut wrong.current);
        }
        wrong.current.insert(hash);
    }
}

fn first_bytes(hash: &SecretHash) -> u64 {
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

    /// Keys in memory, as another process would write them.
    #[derive(Default)]
    pub(crate) struct MemoryKeys {
        pub keys: Mutex<HashMap<SecretHash, StoredKey>>,
        pub looked_up: AtomicUsize,
        pub broken: std::sync::atomic::AtomicBool,
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
            self.looked_up.fetch_add(1, Ordering::Relaxed);
            if self.broken.load(Ordering::Relaxed) {
                return Err(McpError::new(ErrorKind::StoreUnavailable, "broken"));
            }
            Ok(self.keys.lock().unwrap().get(hash).cloned())
        }
    }

    const LOOPBACK: Option<IpAddr> = Some(IpAddr::V4(std::net::Ipv4Addr::LOCALHOST));

    fn remote() -> Option<IpAddr> {
        Some(IpAddr::from([203, 0, 113, 9]))
    }

    fn make(mode: AuthMode) -> (Authenticator, Arc<MemoryKeys>) {
        let store = Arc::new(MemoryKeys::default());
        let config = Config { auth: countersign_config::AuthConfig { mode }, ..Config::default() };
        (Authenticator::new(&config, Arc::clone(&store) as Arc<dyn KeyStore>), store)
    }

    fn bearer(key: &str) -> Vec<u8> {
        format!("Bearer {key}").into_bytes()
    }

    #[test]
    fn local_mode_lets_loopback_in_without_a_key_and_tells_keys_apart() {
        let (auth, store) = make(AuthMode::Local);
        let key = store.add("ci", Role::Agent);
        assert_eq!(*auth.authenticate(None, LOOPBACK).unwrap(), Principal::local_agent());
        assert_eq!(*auth.authenticate(None, "::1".parse().ok()).unwrap(), Principal::local_agent());
        assert_eq!(*auth.authenticate(None, "::ffff:127.0.0.1".parse().ok()).unwrap(), Principal::local_agent());
        assert_eq!(auth.authenticate(Some(&bearer(&key)), LOOPBACK).unwrap().name, "ci");
        for nobody in [auth.authenticate(None, remote()), auth.authenticate(None, None)] {
            assert_eq!(nobody.unwrap_err().kind, ErrorKind::Unauthorized);
        }
    }

    #[test]
    fn a_wrong_key_is_refused_even_where_none_is_needed() {
        let (auth, _) = make(AuthMode::Local);
        for bad in ["Bearer csk_wrong", "Bearer ", "Basic YTpi", ""] {
            let error = auth.authenticate(Some(bad.as_bytes()), LOOPBACK).unwrap_err();
            assert_eq!(error.kind, ErrorKind::Unauthorized, "{bad:?}");
        }
    }

    #[test]
    fn keys_mode_needs_a_key_also_on_loopback_and_so_does_local_mode_behind_a_proxy() {
        let (auth, store) = make(AuthMode::Keys);
        auth.authenticate(None, LOOPBACK).unwrap_err();
        let key = store.add("ci", Role::Agent);
        auth.authenticate(Some(&bearer(&key)), remote()).unwrap();
        let config = Config { behind_tls_proxy: true, ..Config::default() };
        let proxied = Authenticator::new(&config, store);
        proxied.authenticate(None, LOOPBACK).unwrap_err();
        assert_eq!(*proxied.same_user().unwrap().principal, Principal::local_agent());
        assert_eq!(auth.same_user().unwrap_err().kind, ErrorKind::Unauthorized);
    }

    #[test]
    fn a_key_is_looked_up_once_while_fresh_and_dies_within_a_second() {
        let (auth, store) = make(AuthMode::Keys);
        let key = store.add("ci", Role::Agent);
        let now = Instant::now();
        let ask = |at: Instant| auth.identify_at(Some(&bearer(&key)), LOOPBACK, || at);
        for _ in 0..100 {
            ask(now).unwrap();
        }
        assert_eq!(store.looked_up.load(Ordering::Relaxed), 1);
        store.revoke(&key);
        ask(now + FRESH / 2).unwrap();
        assert_eq!(ask(now + FRESH).unwrap_err().kind, ErrorKind::Unauthorized);
        // Not even the cache of before brings it back.
        assert_eq!(ask(now).unwrap_err().kind, ErrorKind::Unauthorized);
    }

    #[test]
    fn a_store_that_cannot_be_read_lets_nobody_in() {
        let (auth, store) = make(AuthMode::Keys);
        let key = store.add("ci", Role::Agent);
        let now = Instant::now();
        auth.identify_at(Some(&bearer(&key)), LOOPBACK, || now).unwrap();
        store.broken.store(true, Ordering::Relaxed);
        let late = auth.identify_at(Some(&bearer(&key)), LOOPBACK, || now + FRESH);
        assert_eq!(late.unwrap_err().kind, ErrorKind::StoreUnavailable);
        store.broken.store(false, Ordering::Relaxed);
        auth.identify_at(Some(&bearer(&key)), LOOPBACK, || now + FRESH).unwrap();
    }

    #[test]
    fn guessing_is_limited_and_a_right_key_goes_through_whoever_fails() {
        let (auth, store) = make(AuthMode::Keys);
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
        // One that nobody has used yet, from where all the failures came.
        let unused = store.add("bob", Role::Reviewer);
        auth.identify_at(Some(&bearer(&unused)), remote(), || now).unwrap();
        auth.identify_at(Some(&bearer(&known)), remote(), || now + FRESH).unwrap();
        auth.identify_at(Some(&bearer(&known)), LOOPBACK, || now).unwrap();
    }

    #[test]
    fn a_client_with_an_old_key_is_limited_and_its_neighbours_are_not() {
        let (auth, store) = make(AuthMode::Local);
        let now = Instant::now();
        let stale = bearer(&format!("csk_{:043}", 7));
        let last = (0..100).map(|_| auth.identify_at(Some(&stale), LOOPBACK, || now).unwrap_err().kind).last();
        assert_eq!(last, Some(ErrorKind::RateLimited));
        assert_eq!(store.looked_up.load(Ordering::Relaxed), 1);
        let fresh = store.add("alice", Role::Reviewer);
        auth.identify_at(Some(&bearer(&fresh)), LOOPBACK, || now).unwrap();
    }

    #[test]
    fn recheck_follows_the_store() {
        let (auth, store) = make(AuthMode::Keys);
        let key = store.add("alice", Role::Reviewer);
        let now = Instant::now();
        let hash = secret::hash(key.as_bytes());
        assert_eq!(auth.recheck_at(&hash, now).unwrap().name, "alice");
        store.revoke(&key);
        auth.recheck_at(&hash, now).unwrap();
        assert_eq!(auth.recheck_at(&hash, now + FRESH).unwrap_err().kind, ErrorKind::Unauthorized);
    }
}
