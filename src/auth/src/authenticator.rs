//! Authenticates requests: turns an `Authorization` header and a peer address into an [`Identity`].
//!
//! Shared by all endpoints and threads. A key created by another process works at once, and a revoked key stops working
//! within [`MAX_KEY_AGE`]. Never logs or returns a secret.

use std::{
    collections::HashSet,
    net::IpAddr,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use actix_web::http::header::{AUTHORIZATION, HeaderMap, HeaderValue};
use dashmap::DashMap;
use jiff::Timestamp;

use super::{
    attempts::{AttemptSource, FailedAttempts},
    keys::{KEY_PREFIX, KeyStore},
    tokens::{MAX_TOKEN_BYTES, TokenVerifier},
};
use countersign_config::{AuthMode, Config};
use countersign_domain::principal::{Credential, Identity, Principal, SecretHash};
use countersign_protocol::{ErrorKind, McpError};
use countersign_runtime::secret;
use countersign_telemetry::metrics::{Cache, CacheMetrics};

/// The time for which a cached key is valid without asking the store, and within which a revocation takes effect.
pub const MAX_KEY_AGE: Duration = Duration::from_millis(750);
/// The interval at which the credentials of open streams are verified again.
pub const RECHECK_INTERVAL: Duration = Duration::from_secs(1);
/// The maximum number of cached keys. The use of any other key costs a look-up.
const MAX_CACHED_KEYS: usize = 10_000;
/// The maximum number of wrong keys in each of the two generations of [`WrongKeys`].
const MAX_WRONG_KEYS: usize = 2048;
/// The maximum number of bytes of an `Authorization` header if only keys are accepted. A key has 47 characters.
const MAX_KEY_HEADER_BYTES: usize = 512;
/// The maximum number of bytes of an `Authorization` header with an access token.
const MAX_TOKEN_HEADER_BYTES: usize = MAX_TOKEN_BYTES + 64;

struct CachedKey {
    principal: Arc<Principal>,
    checked_at: Instant,
}

/// Hashes of recently refused keys. The older generation is dropped when the current one is full.
#[derive(Default)]
struct WrongKeys {
    current: HashSet<SecretHash>,
    previous: HashSet<SecretHash>,
}

/// The result of checking an access token before its issuer is asked.
pub enum TokenCheck<'a> {
    /// The token is valid, and [`Authenticator::identify`] would return this identity.
    Identified(Identity),
    /// The issuer must be asked about this token before [`Authenticator::identify`] can decide.
    NeedsIssuer(&'a str),
}

/// Authenticates requests by API key, by access token and, in `auth.mode: local`, by a loopback address.
pub struct Authenticator {
    mode: AuthMode,
    /// Set if a peer on loopback needs no key.
    admits_loopback: bool,
    is_behind_tls_proxy: bool,
    store: Arc<dyn KeyStore>,
    cache: DashMap<SecretHash, CachedKey>,
    wrong_keys: Mutex<WrongKeys>,
    /// Counts requests with a wrong key or token.
    attempts: FailedAttempts,
    /// Counts unknown opaque tokens that their issuer refused, on every path.
    refused_tokens: FailedAttempts,
    local_agent: Arc<Principal>,
    tokens: TokenVerifier,
}

impl Authenticator {
    /// Creates an authenticator. With `behind_tls_proxy`, every peer may look like loopback, so that even `auth.mode:
    /// local` requires a key.
    pub fn new(config: &Config, store: Arc<dyn KeyStore>) -> Self {
        Self {
            mode: config.auth.mode,
            admits_loopback: config.auth.mode == AuthMode::Local && !config.behind_tls_proxy,
            is_behind_tls_proxy: config.behind_tls_proxy,
            store,
            cache: DashMap::default(),
            wrong_keys: Mutex::default(),
            attempts: FailedAttempts::default(),
            refused_tokens: FailedAttempts::default(),
            local_agent: Arc::new(Principal::local_agent()),
            tokens: TokenVerifier::new(&config.auth.tokens, config.resource().as_deref()),
        }
    }

    /// Returns `true` if all requests come from a TLS proxy, which reports the addresses of the clients.
    pub const fn is_behind_tls_proxy(&self) -> bool {
        self.is_behind_tls_proxy
    }

    pub fn tokens(&self) -> &TokenVerifier {
        &self.tokens
    }

    /// Checks the access token in an `Authorization` header without asking its issuer. Returns `None` for a key, and
    /// for a token that [`Self::identify`] refuses.
    pub fn check_token<'a>(&self, authorization: &'a [u8]) -> Option<TokenCheck<'a>> {
        let token = self.parse_header(authorization).ok().filter(|token| self.is_access_token(token))?;
        let Some(outcome) = self.tokens.identify_without_issuer(token, Timestamp::now()) else {
            return Some(TokenCheck::NeedsIssuer(token));
        };
        let identity = outcome.ok()?;
        self.check_person(&identity.principal).ok()?;
        Some(TokenCheck::Identified(identity))
    }

    /// Checks that the issuer of a token may be asked about it for a client at this address.
    ///
    /// # Errors
    /// `RATE_LIMITED` for an unknown opaque token, if its issuer has refused too many such tokens from the address.
    pub fn check_issuer_limit(&self, token: &str, peer: Option<IpAddr>) -> Result<(), McpError> {
        if !self.tokens.is_unknown_opaque_token(token) {
            return Ok(());
        }
        self.refused_tokens.check(AttemptSource::for_peer(peer), Instant::now())
    }

    /// Asks the issuer of a token ([`TokenVerifier::ask_issuer`]), and counts an unknown opaque token that it refuses.
    pub async fn ask_issuer(&self, token: &str, peer: Option<IpAddr>) {
        let is_unknown = self.tokens.is_unknown_opaque_token(token);
        self.tokens.ask_issuer(token, Timestamp::now()).await;
        if !is_unknown {
            return;
        }
        if let Err(refusal) = self.tokens.identify(token, Timestamp::now())
            && refusal.is_failed_attempt()
        {
            // The returned error is not needed: the request itself will be refused.
            let _ = self.refused_tokens.record_failure(AttemptSource::for_peer(peer), Instant::now(), refusal.into());
        }
    }

    fn is_access_token(&self, text: &str) -> bool {
        !text.starts_with(KEY_PREFIX) && self.tokens.is_enabled()
    }

    /// Returns the key or the token in an `Authorization` header. Only tokens may be long.
    fn parse_header<'a>(&self, authorization: &'a [u8]) -> Result<&'a str, McpError> {
        if authorization.len() <= MAX_KEY_HEADER_BYTES {
            return parse_token(authorization);
        }
        let error = McpError::new(ErrorKind::Unauthorized, "the Authorization header is too long");
        match self.tokens.is_enabled() {
            true if authorization.len() <= MAX_TOKEN_HEADER_BYTES => parse_token(authorization),
            true => Err(error.with("tokenError", "invalid_token")),
            false => Err(error),
        }
    }

    /// Returns the principal and the credential of a request. [`Self::check`] verifies the credential again later.
    /// `authorization` is the value of the only `Authorization` header ([`authorization_header`]), and `peer` is the
    /// address under which its failures are counted. Without the header, `peer` must be the address of the socket, where `None`
    /// does not count as loopback.
    ///
    /// # Errors
    /// `UNAUTHORIZED` for a missing, malformed, unknown or revoked key or an invalid token; `FORBIDDEN` for a token
    /// that grants nothing here; `RATE_LIMITED` after too many failures; `STORE_UNAVAILABLE` if the key could not be
    /// looked up, and `UPSTREAM_UNAVAILABLE` if the token's issuer did not answer.
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
            Some(value) => match self.parse_header(value)? {
                token if self.is_access_token(token) => {
                    let identity = self.tokens.identify(token, Timestamp::now()).map_err(|refusal| {
                        let is_failed_attempt = refusal.is_failed_attempt();
                        let error = McpError::from(refusal);
                        if !is_failed_attempt {
                            return error;
                        }
                        self.attempts.record_failure(AttemptSource::for_peer(peer), now(), error)
                    })?;
                    self.check_person(&identity.principal)?;
                    Ok(identity)
                }
                key => self.identify_key_at(key, peer, now()),
            },
            None if self.admits_loopback && peer.is_some_and(|ip| ip.to_canonical().is_loopback()) => {
                Ok(Identity { principal: Arc::clone(&self.local_agent), credential: Credential::Loopback })
            }
            None => Err(McpError::new(ErrorKind::Unauthorized, "a key is needed: Authorization: Bearer <key>")),
        }
    }

    /// Checks that the person of an access token was not revoked.
    fn check_person(&self, principal: &Principal) -> Result<(), McpError> {
        if self.store.is_person_revoked(principal.person_name())? {
            return Err(McpError::new(ErrorKind::Unauthorized, "the person's access to this gateway was revoked")
                .with("tokenError", "invalid_token"));
        }
        Ok(())
    }

    /// Returns the identity of a local process without a key: the parent on stdin, or a process on the Unix socket,
    /// which only this user can open.
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
        let cached_principal = self.cache.get(&hash).map(|hit| (Arc::clone(&hit.principal), hit.checked_at));
        if let Some((principal, checked_at)) = &cached_principal
            && now.saturating_duration_since(*checked_at) < MAX_KEY_AGE
        {
            CacheMetrics::for_cache(Cache::Keys).hit();
            return Ok(Identity { principal: Arc::clone(principal), credential: Credential::Key(hash) });
        }
        let refused = || McpError::new(ErrorKind::Unauthorized, "the key is unknown or revoked");
        // A key that was looked up a moment ago and did not exist is not looked up again. It cannot have been created
        // since then, because new keys are random.
        if cached_principal.is_none() && self.is_known_wrong_key(&hash) {
            return Err(self.attempts.record_failure(
                AttemptSource::for_wrong_key(peer, hash_prefix(&hash)),
                now,
                refused(),
            ));
        }
        // All other keys are looked up: a valid key is never held back by failures of others.
        let found = if secret::is_well_formed(KEY_PREFIX, key) { self.look_up(&hash)? } else { None };
        if let Some(principal) = found {
            self.cache_key(hash, &principal, now);
            return Ok(Identity { principal, credential: Credential::Key(hash) });
        }
        self.cache.remove(&hash);
        self.remember_wrong_key(hash);
        Err(self.attempts.record_failure(AttemptSource::for_peer(peer), now, refused()))
    }

    /// Returns the principal of a key, if it is still valid. For streams and sign-ins, which outlive a request.
    ///
    /// # Errors
    /// `UNAUTHORIZED` if it was revoked; `STORE_UNAVAILABLE` if that cannot be determined.
    pub fn recheck_key(&self, key: &SecretHash) -> Result<Arc<Principal>, McpError> {
        self.recheck_key_at(key, Instant::now())
    }

    fn recheck_key_at(&self, key: &SecretHash, now: Instant) -> Result<Arc<Principal>, McpError> {
        if let Some(hit) = self.cache.get(key)
            && now.saturating_duration_since(hit.checked_at) < MAX_KEY_AGE
        {
            CacheMetrics::for_cache(Cache::Keys).hit();
            return Ok(Arc::clone(&hit.principal));
        }
        if let Some(principal) = self.look_up(key)? {
            self.cache_key(*key, &principal, now);
            return Ok(principal);
        }
        self.cache.remove(key);
        Err(McpError::new(ErrorKind::Unauthorized, "the key was revoked"))
    }

    /// Checks, without asking an issuer, that the credential of a client is still valid. Sign-ins always pass, because
    /// [`DashboardSignIns::check_credential`](crate::DashboardSignIns::check_credential) checks them.
    ///
    /// # Errors
    /// `UNAUTHORIZED` if it was revoked or has expired; `STORE_UNAVAILABLE` if that cannot be determined.
    pub fn check(&self, identity: &Identity) -> Result<(), McpError> {
        match &identity.credential {
            Credential::Key(hash) => self.recheck_key(hash).map(drop),
            Credential::Token(token) => {
                self.check_person(&identity.principal)?;
                Ok(self.tokens.check(token, Timestamp::now())?)
            }
            Credential::Loopback | Credential::SignIn(_) => Ok(()),
        }
    }

    /// Waits until the key or the token of a client is no longer valid, because it was revoked or has expired. Returns the
    /// error for the client's open streams. It never returns for other credentials.
    pub async fn wait_until_invalid(&self, identity: &Identity) -> McpError {
        if matches!(identity.credential, Credential::Loopback | Credential::SignIn(_)) {
            return std::future::pending().await;
        }
        self.wait_until_newest_invalid(|| identity.clone()).await
    }

    /// Waits like [`Self::wait_until_invalid`] for a client that may present newer credentials meanwhile. `newest` returns its
    /// identity with the newest one, and only that one counts.
    pub async fn wait_until_newest_invalid(&self, newest: impl Fn() -> Identity) -> McpError {
        loop {
            tokio::time::sleep(RECHECK_INTERVAL).await;
            let identity = newest();
            let checked = match &identity.credential {
                Credential::Token(token) => match self.check_person(&identity.principal) {
                    Ok(()) => self.tokens.check_with_issuer(token, Timestamp::now()).await.map_err(McpError::from),
                    refused => refused,
                },
                _ => self.check(&identity),
            };
            match checked {
                Err(error) if error.kind == ErrorKind::Unauthorized && newest().credential == identity.credential => {
                    return error;
                }
                _ => {}
            }
        }
    }

    /// Waits until the access of a client is revoked. A token that has expired does not count. After that, this returns if the
    /// person's access is revoked or the issuer's configuration changes.
    pub async fn wait_until_access_revoked(&self, identity: &Identity) -> McpError {
        loop {
            let refused = self.wait_until_invalid(identity).await;
            let Credential::Token(token) = &identity.credential else { return refused };
            let is_revoked = |error: McpError| error.kind == ErrorKind::Unauthorized;
            if !self.tokens.has_expired(token, Timestamp::now())
                || self.check_person(&identity.principal).is_err_and(is_revoked)
            {
                return refused;
            }
        }
    }

    /// Waits like [`Self::wait_until_invalid`] for a token, whose revocation only its issuer may know. For
    /// other credentials, which callers verify with [`Self::check`], the future never ends.
    pub fn wait_until_token_invalid(self: &Arc<Self>, identity: &Identity) -> Pin<Box<dyn Future<Output = McpError>>> {
        if !matches!(identity.credential, Credential::Token(_)) {
            return Box::pin(std::future::pending());
        }
        let (authenticator, identity) = (Arc::clone(self), identity.clone());
        Box::pin(async move { authenticator.wait_until_invalid(&identity).await })
    }

    /// Caches a valid key. If the cache is full even without outdated keys, a new key is not cached.
    fn cache_key(&self, hash: SecretHash, principal: &Arc<Principal>, now: Instant) {
        if self.cache.len() >= MAX_CACHED_KEYS {
            self.cache.retain(|_, hit| now.saturating_duration_since(hit.checked_at) < MAX_KEY_AGE);
        }
        if self.cache.len() < MAX_CACHED_KEYS || self.cache.contains_key(&hash) {
            self.cache.insert(hash, CachedKey { principal: Arc::clone(principal), checked_at: now });
        }
    }

    /// Removes a key from the cache, so that its next use asks the store.
    #[cfg(any(test, feature = "testing"))]
    pub fn forget_key(&self, key: &SecretHash) {
        self.cache.remove(key);
    }

    fn look_up(&self, hash: &SecretHash) -> Result<Option<Arc<Principal>>, McpError> {
        CacheMetrics::for_cache(Cache::Keys).miss();
        let found = self.store.find_key(hash)?;
        // The index has compared the hashes, but not in constant time.
        let valid = found.filter(|(key, stored)| key.revoked_at.is_none() && secret::is_same_hash(stored, hash));
        Ok(valid.map(|(key, _)| Arc::new(key.principal())))
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

/// Returns the only `Authorization` header of a request, if any.
///
/// # Errors
/// `UNAUTHORIZED` for several headers, since different readers might pick different ones.
pub fn authorization_header(headers: &HeaderMap) -> Result<Option<&[u8]>, McpError> {
    let mut all = headers.get_all(AUTHORIZATION);
    let first = all.next();
    if all.next().is_some() {
        return Err(McpError::new(ErrorKind::Unauthorized, "more than one Authorization header"));
    }
    Ok(first.map(HeaderValue::as_bytes))
}

/// Returns the token in the value of an `Authorization` header: scheme `Bearer` in any case, and one token (RFC 6750,
/// RFC 9110).
///
/// # Errors
/// `UNAUTHORIZED` for another scheme, or for anything but one token.
fn parse_token(value: &[u8]) -> Result<&str, McpError> {
    let refuse = |reason| McpError::new(ErrorKind::Unauthorized, reason);
    let text = std::str::from_utf8(value).map_err(|_| refuse("the Authorization header is not text"))?;
    let (scheme, rest) = text.split_once(' ').unwrap_or((text, ""));
    if !scheme.eq_ignore_ascii_case("bearer") {
        return Err(refuse("the Authorization header must be `Bearer <key>`"));
    }
    // RFC 9110, section 11.4: one or more spaces precede the token, and trailing whitespace never belongs to a value.
    let token = rest.trim_start_matches(' ').trim_end_matches([' ', '\t']);
    let is_token_char = |b: u8| b.is_ascii_alphanumeric() || b"-._~+/=".contains(&b);
    if token.is_empty() || !token.bytes().all(is_token_char) {
        return Err(refuse("the Authorization header must be `Bearer <key>`"));
    }
    Ok(token)
}

#[cfg(test)]
pub(crate) mod tests;
