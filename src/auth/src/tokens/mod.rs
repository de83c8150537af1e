//! Verifies access tokens of the configured issuers: JWTs by their signature (RFC 9068), opaque ones by introspection
//! (RFC 7662). [`oidc`] signs people in with an identity provider, and [`public_client`] signs them in on the command
//! line.
//!
//! Tokens are verified with cached keys and answers, without waiting. Only [`TokenVerifier::ask_issuer`] and
//! [`TokenVerifier::check_with_issuer`] send requests to an issuer. Only opaque tokens are kept in memory, because the
//! issuer is asked about them again.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use arc_swap::ArcSwap;
use dashmap::DashMap;
use futures_util::future::LocalBoxFuture;
use jiff::Timestamp;
use tokio::sync::Mutex;
use url::Url;

use self::{
    cache::{CachedIntrospection, CachedJwt, TokenCache},
    claims::MAX_SKEW,
    issuer::Issuer,
    jwt::UnverifiedJwt,
    public_client::ClientSettings,
};
use countersign_config::{OidcConfig, TokenIssuer};
use countersign_domain::principal::{Credential, Identity, Principal, Scope, SecretHash, TokenCredential};
use countersign_runtime::{background, secret};

mod cache;
mod claims;
pub mod code_flow;
mod introspection;
mod issuer;
mod jwt;
mod key_set;
mod metadata;
pub mod oidc;
mod principal;
pub mod public_client;
mod refusal;
mod requests;

pub use metadata::{quote, well_known_urls};
pub use refusal::TokenRefusal;
pub use requests::{basic_credentials, read_error_code, read_lifetime};

/// The maximum number of bytes of an access token.
pub const MAX_TOKEN_BYTES: usize = 16 * 1024;

/// Verifies access tokens. It is shared by all threads.
pub struct TokenVerifier {
    /// The identifier of this gateway as a protected resource, if it has a public URL.
    resource: Option<String>,
    issuers: ArcSwap<Vec<Arc<Issuer>>>,
    /// The audiences for issuers without configured ones.
    audiences: Vec<String>,
    cache: TokenCache,
    /// The running introspections by the hash of the token, so that an issuer is asked only once at a time about a
    /// token.
    running_introspections: DashMap<SecretHash, Arc<Mutex<()>>>,
    /// The version of the issuer that was created last.
    last_version: AtomicU64,
}

/// The request to an issuer that may change whether a token is accepted.
enum IssuerRequest {
    /// Reads the keys, without which the token cannot be verified.
    ReadKeys(Arc<Issuer>),
    /// Reads the keys again in the background. The old ones are used meanwhile.
    RenewKeys(Arc<Issuer>),
    /// Asks about the opaque token.
    Introspect,
}

impl TokenVerifier {
    /// Creates a verifier. `resource` is the identifier of this gateway ([`countersign_config::Config::resource`]).
    pub fn new(issuers: &[TokenIssuer], resource: Option<&str>) -> Self {
        let verifier = Self {
            resource: resource.map(str::to_owned),
            issuers: ArcSwap::default(),
            audiences: resource.map(default_audiences).unwrap_or_default(),
            cache: TokenCache::default(),
            running_introspections: DashMap::new(),
            last_version: AtomicU64::new(0),
        };
        verifier.set_issuers(issuers);
        verifier
    }

    /// Returns the identifier of this gateway as a protected resource, if it has a public URL.
    pub fn resource(&self) -> Option<&str> {
        self.resource.as_deref()
    }

    /// Returns the identifiers of the issuers.
    pub fn issuers(&self) -> Vec<String> {
        self.issuers.load().iter().map(|issuer| issuer.config.issuer.clone()).collect()
    }

    /// Returns `true` if the scopes of tokens matter for at least one issuer. An issuer with `roles` may know no
    /// scopes.
    pub fn uses_scopes(&self) -> bool {
        self.issuers.load().iter().any(|issuer| issuer.config.roles.is_empty())
    }

    /// Returns the settings with which the command line gets tokens from the identity provider that are accepted here.
    /// Returns `None` if there is no public client, or if the provider is not configured as an issuer of tokens.
    pub fn client_settings(&self, provider: &OidcConfig) -> Option<ClientSettings> {
        let client_id = provider.cli_client()?.to_owned();
        let issuer = self.find_issuer(&provider.issuer)?;
        // Another audience is a resource indicator only if it is an absolute URI (RFC 8707, section 2).
        let resource = self.resource.as_ref().filter(|resource| issuer.audiences.contains(resource));
        let resource = resource.or_else(|| issuer.audiences.iter().find(|audience| Url::parse(audience).is_ok()));
        let mut scopes = provider.scopes.clone();
        if issuer.config.roles.is_empty() {
            scopes.push(Scope::ChangesDecide.as_str().to_owned());
        }
        Some(ClientSettings { issuer: provider.issuer.clone(), client_id, scopes, resource: resource.cloned() })
    }

    /// Replaces the issuers. Tokens of an issuer that was removed are refused, and those of an issuer that is
    /// configured in another way are verified anew. In both cases, their open streams end.
    pub fn set_issuers(&self, issuers: &[TokenIssuer]) {
        let old = self.issuers.load_full();
        let new: Vec<Arc<Issuer>> = issuers
            .iter()
            .map(|config| {
                let unchanged = old.iter().find(|issuer| issuer.config == *config);
                unchanged.cloned().unwrap_or_else(|| Arc::new(self.create_issuer(config)))
            })
            .collect();
        let removed_issuers = old.iter().filter(|issuer| !new.iter().any(|current| Arc::ptr_eq(current, issuer)));
        let removed_issuers: Vec<Arc<Issuer>> = removed_issuers.cloned().collect();
        self.issuers.store(Arc::new(new));
        removed_issuers.iter().for_each(|issuer| issuer.retire());
        self.cache.retain_introspections(|identity| self.is_current(identity));
    }

    fn create_issuer(&self, config: &TokenIssuer) -> Issuer {
        let audiences = if config.audiences.is_empty() { &self.audiences } else { &config.audiences };
        let version = self.last_version.fetch_add(1, Ordering::Relaxed) + 1;
        Issuer::new(config.clone(), audiences.clone(), version)
    }

    /// Returns `true` if any issuer is configured.
    pub fn is_enabled(&self) -> bool {
        !self.issuers.load().is_empty()
    }

    /// Returns the identity of the holder of a token, from the cache or by its signature.
    ///
    /// # Errors
    /// Returns why the token is refused. [`TokenRefusal::IssuerUnavailable`] may mean that the issuer was not asked yet.
    pub fn identify(&self, token: &str, now: Timestamp) -> Result<Identity, TokenRefusal> {
        self.verify(token, now).0
    }

    /// Returns the same as [`Self::identify`], or `None` if [`Self::ask_issuer`] should run first.
    pub fn identify_without_issuer(&self, token: &str, now: Timestamp) -> Option<Result<Identity, TokenRefusal>> {
        let (outcome, request) = self.verify(token, now);
        request.is_none().then_some(outcome)
    }

    /// Verifies a token with the cached keys and answers. Also returns the request that may change the outcome.
    fn verify(&self, token: &str, now: Timestamp) -> (Result<Identity, TokenRefusal>, Option<IssuerRequest>) {
        if token.len() > MAX_TOKEN_BYTES {
            return (Err(TokenRefusal::invalid("the token is too long")), None);
        }
        let hash = secret::hash(token.as_bytes());
        if !jwt::is_jwt(token) {
            return match self.find_introspection(&hash, now) {
                Some(outcome) => (outcome, None),
                None => (Err(TokenRefusal::IssuerUnavailable), Some(IssuerRequest::Introspect)),
            };
        }
        if let Some(identity) = self.cache.jwt(&hash, now) {
            return (Ok(identity), None);
        }
        match self.parse_jwt(token) {
            Ok((token, issuer)) => self.verify_jwt(token, hash, issuer, now),
            Err(refusal) => (Err(refusal), None),
        }
    }

    /// Verifies a JWT that is not in the cache.
    fn verify_jwt(
        &self,
        token: UnverifiedJwt<'_>,
        hash: SecretHash,
        issuer: Arc<Issuer>,
        now: Timestamp,
    ) -> (Result<Identity, TokenRefusal>, Option<IssuerRequest>) {
        let may_read = issuer.may_read(now);
        // The generation is read before the keys, so that the entry is never used if a key disappears in between.
        let generation = issuer.generation();
        let Some(verified) = issuer.verify(token, now) else {
            let has_keys = issuer.snapshot(now).is_some();
            let refusal = if has_keys { TokenRefusal::UnknownKey } else { TokenRefusal::IssuerUnavailable };
            let may_help = may_read || issuer.is_reading();
            return (Err(refusal), may_help.then_some(IssuerRequest::ReadKeys(issuer)));
        };
        let request = (may_read && issuer.is_stale(now)).then(|| IssuerRequest::RenewKeys(Arc::clone(&issuer)));
        let outcome = verified.map(|verified| {
            let identity =
                token_identity(verified.principal, hash, &issuer, Some(verified.signed_by), verified.expires_at);
            if let Some(generation) = generation {
                let valid_until = verified.cached_until;
                let entry = CachedJwt { identity: identity.clone(), valid_until, issuer, generation };
                self.cache.insert_jwt(hash, entry, now);
            }
            identity
        });
        (outcome, request)
    }

    /// Reads the keys of a token's issuer or asks the issuer about the token, if that may change the outcome of
    /// [`Self::identify`]. Simultaneous calls send one request. Must run on a thread of actix.
    pub async fn ask_issuer(&self, token: &str, now: Timestamp) {
        match self.verify(token, now).1 {
            Some(IssuerRequest::ReadKeys(issuer)) => renew_keys(issuer, now).await,
            Some(IssuerRequest::RenewKeys(issuer)) => drop(background::spawn(issuer.renew(now))),
            Some(IssuerRequest::Introspect) => self.introspect_once(token, secret::hash(token.as_bytes()), now).await,
            None => {}
        }
    }

    /// Returns `true` if a token is opaque and not known to have been valid.
    pub fn is_unknown_opaque_token(&self, token: &str) -> bool {
        !jwt::is_jwt(token) && !self.cache.was_valid(&secret::hash(token.as_bytes()))
    }

    fn parse_jwt<'a>(&self, token: &'a str) -> Result<(UnverifiedJwt<'a>, Arc<Issuer>), TokenRefusal> {
        let token = UnverifiedJwt::parse(token)?;
        let name = token.claims.string("iss")?.ok_or_else(|| TokenRefusal::invalid("the token has no `iss`"))?;
        let issuer = self.find_issuer(name);
        let issuer =
            issuer.ok_or_else(|| TokenRefusal::invalid("the token is from an issuer that is not configured"))?;
        Ok((token, issuer))
    }

    fn find_issuer(&self, name: &str) -> Option<Arc<Issuer>> {
        self.issuers.load().iter().find(|issuer| issuer.config.issuer == name).cloned()
    }

    /// Returns the issuer that is asked about opaque tokens. There is at most one, because a token does not name its
    /// issuer.
    fn introspecting_issuer(&self) -> Option<Arc<Issuer>> {
        self.issuers.load().iter().find(|issuer| issuer.config.introspection.is_some()).cloned()
    }

    /// Returns `true` if the issuer of an identity is still configured as it was when it accepted the token.
    fn is_current(&self, identity: &Identity) -> bool {
        matches!(&identity.credential, Credential::Token(token) if self.find_credential_issuer(token).is_ok())
    }

    /// Returns the cached outcome of the introspection of an opaque token, or `None` if an issuer must be asked.
    fn find_introspection(&self, hash: &SecretHash, now: Timestamp) -> Option<Result<Identity, TokenRefusal>> {
        match self.cache.fresh_introspection(hash, now) {
            // The issuer may have been removed while it was asked.
            Some(Ok(identity)) if !self.is_current(&identity) => Some(Err(TokenRefusal::IssuerUnavailable)),
            None if self.introspecting_issuer().is_none() => {
                Some(Err(TokenRefusal::invalid("the token is not a JWT, and no issuer is asked about others")))
            }
            answer => answer,
        }
    }

    /// Asks the issuer about an opaque token, unless another task has just done so. Boxed, so that its code is not compiled
    /// again in each crate that asks an issuer.
    fn introspect_once<'a>(&'a self, token: &'a str, hash: SecretHash, now: Timestamp) -> LocalBoxFuture<'a, ()> {
        Box::pin(async move {
            let introspection = SharedIntrospection::join(&self.running_introspections, hash);
            let _running = introspection.lock.lock().await;
            if self.cache.fresh_introspection(&hash, now).is_none() {
                self.introspect(token, hash, now).await;
            }
        })
    }

    async fn introspect(&self, token: &str, hash: SecretHash, now: Timestamp) {
        let Some(issuer) = self.introspecting_issuer() else { return };
        let was_valid = self.cache.was_valid(&hash);
        if issuer.snapshot(now).is_none() {
            renew_keys(Arc::clone(&issuer), now).await;
        } else if issuer.is_stale(now) && issuer.may_read(now) {
            drop(background::spawn(Arc::clone(&issuer).renew(now)));
        }
        let answer = match issuer.acquire_introspection(was_valid).await {
            Some(_permit) => issuer.introspect(token, now).await,
            None => Err(TokenRefusal::IssuerUnavailable),
        };
        let mut outcome = answer.map(|(principal, end)| token_identity(principal, hash, &issuer, None, end));
        if was_valid && matches!(outcome, Err(TokenRefusal::Invalid(_))) {
            outcome = Err(TokenRefusal::Expired);
        }
        let token = match &outcome {
            Ok(_) => Some(Arc::from(token)),
            // Open streams of the token ask again later.
            Err(TokenRefusal::IssuerUnavailable) => self.cache.opaque_token(&hash),
            Err(_) => None,
        };
        let introspection = CachedIntrospection { outcome, token, asked_at: now.as_millisecond() };
        self.cache.insert_introspection(hash, introspection, now);
    }

    /// Checks that the token of an open stream is still valid, and asks its issuer if that is due. Must run on a thread
    /// of actix.
    ///
    /// # Errors
    /// Those of [`Self::check`]; [`TokenRefusal::IssuerUnavailable`] if the issuer did not answer.
    pub async fn check_with_issuer(&self, credential: &TokenCredential, now: Timestamp) -> Result<(), TokenRefusal> {
        self.check(credential, now)?;
        let issuer = self.find_credential_issuer(credential)?;
        if credential.signed_by.is_some() {
            if issuer.is_stale(now) && issuer.may_read(now) {
                drop(background::spawn(issuer.renew(now)));
            }
            return Ok(());
        }
        if self.cache.fresh_introspection(&credential.hash, now).is_none()
            && let Some(token) = self.cache.opaque_token(&credential.hash)
        {
            self.introspect_once(&token, credential.hash, now).await;
        }
        self.find_introspection(&credential.hash, now).unwrap_or(Err(TokenRefusal::IssuerUnavailable)).map(drop)
    }

    /// Checks, without asking the issuer, that a token is still valid.
    ///
    /// # Errors
    /// Returns why it is refused: it expired, was revoked, or its issuer or key is no longer accepted.
    pub fn check(&self, credential: &TokenCredential, now: Timestamp) -> Result<(), TokenRefusal> {
        if now.as_second() >= credential.expires_at {
            return Err(TokenRefusal::Expired);
        }
        let issuer = self.find_credential_issuer(credential)?;
        let is_valid = match &credential.signed_by {
            Some(key) => issuer.snapshot(now).is_some_and(|snapshot| snapshot.keys.contains(key)),
            None => self.cache.opaque_token(&credential.hash).is_some(),
        };
        if is_valid {
            Ok(())
        } else {
            Err(TokenRefusal::invalid("the token was revoked, or its issuer removed its key"))
        }
    }

    /// Returns `true` if a token that is no longer valid was not revoked, but has reached its end. `expires_at` is [`MAX_SKEW`] after
    /// the end that the issuer set. At that end, the issuer forgets an opaque token, and its clock may be ahead by as much.
    pub(crate) fn has_expired(&self, credential: &TokenCredential, now: Timestamp) -> bool {
        let earliest_end = credential.expires_at.saturating_sub(2 * MAX_SKEW);
        now.as_second() >= earliest_end && self.find_credential_issuer(credential).is_ok()
    }

    /// Returns the issuer of a token if it is still configured as it was when the token was accepted.
    fn find_credential_issuer(&self, credential: &TokenCredential) -> Result<Arc<Issuer>, TokenRefusal> {
        self.find_issuer(&credential.issuer)
            .filter(|issuer| issuer.version == credential.issuer_version)
            .ok_or_else(|| TokenRefusal::invalid("the configuration of the token's issuer has changed"))
    }
}

/// The share of one task in the introspection of an opaque token, for which several tasks wait. The last share that is
/// dropped removes the introspection from the map.
struct SharedIntrospection<'a> {
    introspections: &'a DashMap<SecretHash, Arc<Mutex<()>>>,
    hash: SecretHash,
    /// Held by the task that asks the issuer.
    lock: Arc<Mutex<()>>,
}

impl<'a> SharedIntrospection<'a> {
    fn join(introspections: &'a DashMap<SecretHash, Arc<Mutex<()>>>, hash: SecretHash) -> Self {
        let lock = Arc::clone(&introspections.entry(hash).or_default());
        Self { introspections, hash, lock }
    }
}

impl Drop for SharedIntrospection<'_> {
    fn drop(&mut self) {
        // This task's reference is dropped first, so that the last of several tasks sees only the map's reference.
        self.lock = Arc::default();
        self.introspections.remove_if(&self.hash, |_, lock| Arc::strong_count(lock) == 1);
    }
}

/// Reads the keys of an issuer in a task of its own, so that a client that disconnects does not cancel a read for which
/// others wait.
async fn renew_keys(issuer: Arc<Issuer>, now: Timestamp) {
    if let Err(error) = background::spawn(issuer.renew(now)).await {
        tracing::error!(%error, "reading the keys of an issuer ended early");
    }
}

/// Returns the audiences that denote this gateway: its MCP endpoints, and its address with and without a slash.
fn default_audiences(resource: &str) -> Vec<String> {
    let base = resource.strip_suffix("/mcp").unwrap_or(resource);
    ["/mcp", "/ws", "/sse", "", "/"].iter().map(|path| format!("{base}{path}")).collect()
}

fn token_identity(
    principal: Principal,
    hash: SecretHash,
    issuer: &Issuer,
    signed_by: Option<SecretHash>,
    expires_at: i64,
) -> Identity {
    let (issuer, issuer_version) = (issuer.config.issuer.clone(), issuer.version);
    let credential = TokenCredential { hash, issuer, issuer_version, signed_by, expires_at };
    Identity { principal: Arc::new(principal), credential: Credential::Token(Arc::new(credential)) }
}

#[cfg(test)]
pub(crate) mod tests;
