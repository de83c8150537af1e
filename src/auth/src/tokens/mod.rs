//! Verifies access tokens of the configured issuers: JWTs by their signature (RFC 9068), others by asking the issuer (RFC 7662).
//! [`oidc`] signs people in with an identity provider.
//!
//! What is in memory decides without waiting. Only [`TokenVerifier::ask_provider`] and [`TokenVerifier::recheck`] speak to an
//! issuer. A token is kept in memory only if it is opaque, since its issuer must be asked about it again.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use actix_web::rt;
use arc_swap::ArcSwap;
use dashmap::DashMap;
use jiff::Timestamp;
use tokio::sync::Mutex;

use self::{
    cache::{Answer, CachedJwt, TokenCache},
    issuer::Issuer,
    jwt::UnverifiedJwt,
};
use countersign_config::TokenIssuer;
use countersign_domain::principal::{Credential, Identity, Principal, SecretHash, TokenCredential};
use countersign_protocol::McpError;
use countersign_runtime::secret;

mod cache;
mod claims;
mod introspection;
mod issuer;
mod jwt;
mod keys;
mod metadata;
pub mod oidc;
mod principal;
mod refusal;
mod requests;

pub use refusal::Refusal;

/// The most bytes of an access token.
pub const MAX_TOKEN_LEN: usize = 16 * 1024;

/// Verifies access tokens. It is shared by all threads.
pub struct TokenVerifier {
    resource: Option<String>,
    issuers: ArcSwap<Vec<Arc<Issuer>>>,
    /// The audiences of an issuer for which none are configured.
    audiences: Vec<String>,
    cache: TokenCache,
    /// The opaque tokens about which an issuer is asked, so that simultaneous questions about one are asked once.
    questions: DashMap<SecretHash, Arc<Mutex<()>>>,
    last_version: AtomicU64,
}

/// A question whose answer is needed to accept or refuse a token.
enum Question {
    /// The keys of the issuer.
    Keys(Arc<Issuer>),
    /// The keys of the issuer, while the old ones are still used.
    NewKeys(Arc<Issuer>),
    OpaqueToken,
}

impl TokenVerifier {
    /// Creates a verifier. `resource` is the identifier of this gateway ([`countersign_config::Config::resource`]).
    #[must_use]
    pub fn new(issuers: &[TokenIssuer], resource: Option<&str>) -> Self {
        let verifier = Self {
            resource: resource.map(str::to_owned),
            issuers: ArcSwap::default(),
            audiences: resource.map(default_audiences).unwrap_or_default(),
            cache: TokenCache::default(),
            questions: DashMap::new(),
            last_version: AtomicU64::new(0),
        };
        verifier.set_issuers(issuers);
        verifier
    }

    /// Returns the identifier of this gateway as a protected resource, if it has a public URL.
    #[must_use]
    pub fn resource(&self) -> Option<&str> {
        self.resource.as_deref()
    }

    /// Returns the identifiers of the issuers.
    #[must_use]
    pub fn issuers(&self) -> Vec<String> {
        self.issuers.load().iter().map(|issuer| issuer.config.issuer.clone()).collect()
    }

    /// Returns `true` if scopes decide what the tokens of some issuer permit. An issuer with roles may know no scopes.
    #[must_use]
    pub fn uses_scopes(&self) -> bool {
        self.issuers.load().iter().any(|issuer| issuer.config.roles.is_empty())
    }

    /// Replaces the issuers. Tokens of an issuer that is removed or configured in another way are no longer accepted or are
    /// verified anew, and their open streams end.
    pub fn set_issuers(&self, issuers: &[TokenIssuer]) {
        let old = self.issuers.load_full();
        let new: Vec<Arc<Issuer>> = issuers
            .iter()
            .map(|config| {
                let unchanged = old.iter().find(|issuer| issuer.config == *config);
                unchanged.cloned().unwrap_or_else(|| Arc::new(self.create_issuer(config)))
            })
            .collect();
        let removed = old.iter().filter(|issuer| !new.iter().any(|kept| Arc::ptr_eq(kept, issuer)));
        let removed: Vec<Arc<Issuer>> = removed.cloned().collect();
        self.issuers.store(Arc::new(new));
        removed.iter().for_each(|issuer| issuer.retire());
        self.cache.retain_answers(|identity| self.is_current(identity));
    }

    fn create_issuer(&self, config: &TokenIssuer) -> Issuer {
        let audiences = if config.audiences.is_empty() { &self.audiences } else { &config.audiences };
        let version = self.last_version.fetch_add(1, Ordering::Relaxed) + 1;
        Issuer::new(config.clone(), audiences.clone(), version)
    }

    /// Returns `true` if any issuer is configured.
    #[must_use]
    pub fn is_enabled(&self) -> bool {
        !self.issuers.load().is_empty()
    }

    /// Returns the identity of the holder of a token, from the cache or by its signature.
    ///
    /// # Errors
    /// Returns why the token is refused. [`Refusal::ProviderUnavailable`] includes that the issuer was not asked yet.
    pub fn identify(&self, token: &str, now: Timestamp) -> Result<Identity, Refusal> {
        let hash = secret::hash(token.as_bytes());
        if !jwt::is_jwt(token) {
            return self.find_answer(&hash, now);
        }
        if let Some(identity) = self.cache.jwt(&hash, now) {
            return Ok(identity);
        }
        let (token, issuer) = self.parse_jwt(token)?;
        // Read before the keys: if a key disappears in between, the entry is never used.
        let generation = issuer.generation();
        let Some(verified) = issuer.verify(token, now) else {
            return Err(match issuer.provider(now) {
                Some(_) => Refusal::UnknownKey,
                None => Refusal::ProviderUnavailable,
            });
        };
        let verified = verified?;
        let identity = identity(verified.principal, hash, &issuer, Some(verified.signed_by), verified.expires_at);
        if let Some(generation) = generation {
            let valid_until = verified.cached_until;
            let entry = CachedJwt { identity: identity.clone(), valid_until, issuer, generation };
            self.cache.insert_jwt(hash, entry, now);
        }
        Ok(identity)
    }

    /// Returns `true` if [`Self::ask_provider`] should run before [`Self::identify`] decides about a token.
    #[must_use]
    pub fn needs_provider(&self, token: &str, now: Timestamp) -> bool {
        self.find_question(token, now).is_some()
    }

    /// Asks the issuer of a token for its keys or about the token, and remembers the answer. Simultaneous questions to an
    /// issuer are asked once. It must run on a thread of actix.
    pub async fn ask_provider(&self, token: &str) {
        self.ask_provider_at(token, Timestamp::now()).await;
    }

    async fn ask_provider_at(&self, token: &str, now: Timestamp) {
        match self.find_question(token, now) {
            Some(Question::Keys(issuer)) => renew_keys(issuer, now).await,
            Some(Question::NewKeys(issuer)) => drop(rt::spawn(issuer.renew(now))),
            Some(Question::OpaqueToken) => self.ask_about(token, secret::hash(token.as_bytes()), now).await,
            None => {}
        }
    }

    /// Returns `true` if a token is opaque and not known to have been valid.
    #[must_use]
    pub fn is_unknown(&self, token: &str) -> bool {
        !jwt::is_jwt(token) && !self.cache.was_valid(&secret::hash(token.as_bytes()))
    }

    fn find_question(&self, token: &str, now: Timestamp) -> Option<Question> {
        if token.len() > MAX_TOKEN_LEN {
            return None;
        }
        let hash = secret::hash(token.as_bytes());
        if !jwt::is_jwt(token) {
            let must_ask = self.has_introspection() && self.cache.fresh_answer(&hash, now).is_none();
            return must_ask.then_some(Question::OpaqueToken);
        }
        if self.cache.jwt(&hash, now).is_some() {
            return None;
        }
        let (token, issuer) = self.parse_jwt(token).ok()?;
        let may_ask = issuer.may_ask(now);
        if !may_ask && !issuer.is_asked() {
            return None;
        }
        let is_stale = issuer.is_stale(now);
        if issuer.verify(token, now).is_none() {
            return Some(Question::Keys(issuer));
        }
        (is_stale && may_ask).then_some(Question::NewKeys(issuer))
    }

    fn parse_jwt<'a>(&self, token: &'a str) -> Result<(UnverifiedJwt<'a>, Arc<Issuer>), Refusal> {
        if token.len() > MAX_TOKEN_LEN {
            return Err(Refusal::invalid("the token is too long"));
        }
        let token = UnverifiedJwt::parse(token)?;
        let name = token.claims.text("iss")?.ok_or_else(|| Refusal::invalid("the token has no `iss`"))?;
        let issuer = self.find_issuer(name);
        let issuer = issuer.ok_or_else(|| Refusal::invalid("the token is from an issuer that is not configured"))?;
        Ok((token, issuer))
    }

    fn find_issuer(&self, name: &str) -> Option<Arc<Issuer>> {
        self.issuers.load().iter().find(|issuer| issuer.config.issuer == name).cloned()
    }

    fn has_introspection(&self) -> bool {
        self.issuers.load().iter().any(|issuer| issuer.config.introspection.is_some())
    }

    /// Returns `true` if the issuer of an identity is still configured as it was when it was asked.
    fn is_current(&self, identity: &Identity) -> bool {
        matches!(&identity.credential, Credential::Token(token) if self.find_credential_issuer(token).is_ok())
    }

    /// Returns what an issuer last said about an opaque token.
    fn find_answer(&self, hash: &SecretHash, now: Timestamp) -> Result<Identity, Refusal> {
        match self.cache.fresh_answer(hash, now) {
            // The issuer may have been removed during the question.
            Some(Ok(identity)) if !self.is_current(&identity) => Err(Refusal::ProviderUnavailable),
            Some(outcome) => outcome,
            None if self.has_introspection() => Err(Refusal::ProviderUnavailable),
            None => Err(Refusal::invalid("the token is not a JWT, and no issuer is asked about others")),
        }
    }

    /// Asks the issuers about an opaque token, unless another task has just done so.
    async fn ask_about(&self, token: &str, hash: SecretHash, now: Timestamp) {
        let running = RunningQuestion::join(&self.questions, hash);
        let _question = running.lock.lock().await;
        if self.cache.fresh_answer(&hash, now).is_none() {
            self.ask_issuers(token, hash, now).await;
        }
    }

    /// Asks the issuers about an opaque token, in their configured order, until one knows it.
    async fn ask_issuers(&self, token: &str, hash: SecretHash, now: Timestamp) {
        let was_valid = self.cache.was_valid(&hash);
        let mut outcome = Err(Refusal::invalid("no issuer knows the token"));
        for issuer in self.issuers.load_full().iter() {
            let Some(client) = &issuer.config.introspection else { continue };
            if issuer.provider(now).is_none() {
                renew_keys(Arc::clone(issuer), now).await;
            } else if issuer.is_stale(now) && issuer.may_ask(now) {
                drop(rt::spawn(Arc::clone(issuer).renew(now)));
            }
            let Some(_turn) = issuer.take_turn(was_valid).await else {
                outcome = Err(Refusal::ProviderUnavailable);
                continue;
            };
            match issuer.introspect(client, token, now).await {
                Ok((principal, expires_at)) => {
                    outcome = Ok(identity(principal, hash, issuer, None, expires_at));
                    break;
                }
                Err(refusal @ (Refusal::NoScope | Refusal::NoGroup)) => {
                    outcome = Err(refusal);
                    break;
                }
                // Another issuer may know the token, but otherwise it is not certain that it is wrong.
                Err(_) if matches!(outcome, Err(Refusal::ProviderUnavailable)) => {}
                Err(refusal) => outcome = Err(refusal),
            }
        }
        if was_valid && matches!(outcome, Err(Refusal::Invalid(_))) {
            outcome = Err(Refusal::Expired);
        }
        let token = match &outcome {
            Ok(_) => Some(Arc::from(token)),
            // Its open streams ask again later.
            Err(Refusal::ProviderUnavailable) => self.cache.opaque_token(&hash),
            Err(_) => None,
        };
        self.cache.insert_answer(hash, Answer { outcome, token, asked_at: now.as_millisecond() }, now);
    }

    /// Checks that the token of an open stream is still valid, and asks its issuer if that is due. It must run on a thread of
    /// actix.
    ///
    /// # Errors
    /// `UNAUTHORIZED` if it expired, was revoked, or its issuer or key is no longer accepted; `UPSTREAM_UNAVAILABLE` if the
    /// issuer did not answer.
    pub async fn recheck(&self, credential: &TokenCredential) -> Result<(), McpError> {
        self.recheck_at(credential, Timestamp::now()).await.map_err(McpError::from)
    }

    async fn recheck_at(&self, credential: &TokenCredential, now: Timestamp) -> Result<(), Refusal> {
        self.check_at(credential, now)?;
        let issuer = self.find_credential_issuer(credential)?;
        if credential.signed_by.is_some() {
            if issuer.is_stale(now) && issuer.may_ask(now) {
                drop(rt::spawn(issuer.renew(now)));
            }
            return Ok(());
        }
        if self.cache.fresh_answer(&credential.hash, now).is_none()
            && let Some(token) = self.cache.opaque_token(&credential.hash)
        {
            self.ask_about(&token, credential.hash, now).await;
        }
        self.find_answer(&credential.hash, now).map(drop)
    }

    /// Checks, without asking the issuer, that a token is still valid.
    ///
    /// # Errors
    /// `UNAUTHORIZED` as for [`Self::recheck`].
    pub fn check(&self, credential: &TokenCredential, now: Timestamp) -> Result<(), McpError> {
        self.check_at(credential, now).map_err(McpError::from)
    }

    fn check_at(&self, credential: &TokenCredential, now: Timestamp) -> Result<(), Refusal> {
        if now.as_second() >= credential.expires_at {
            return Err(Refusal::Expired);
        }
        let issuer = self.find_credential_issuer(credential)?;
        let is_valid = match &credential.signed_by {
            Some(key) => issuer.provider(now).is_some_and(|provider| provider.keys.contains(key)),
            None => self.cache.opaque_token(&credential.hash).is_some(),
        };
        if is_valid { Ok(()) } else { Err(Refusal::invalid("the token was revoked, or its issuer removed its key")) }
    }

    /// Returns the issuer of a token if it is still configured as it was when the token was accepted.
    fn find_credential_issuer(&self, credential: &TokenCredential) -> Result<Arc<Issuer>, Refusal> {
        self.find_issuer(&credential.issuer)
            .filter(|issuer| issuer.version == credential.issuer_version)
            .ok_or_else(|| Refusal::invalid("the configuration of the token's issuer has changed"))
    }
}

/// The part of a task in the question about an opaque token. The question is forgotten when the last part is dropped.
struct RunningQuestion<'a> {
    questions: &'a DashMap<SecretHash, Arc<Mutex<()>>>,
    hash: SecretHash,
    /// Held by the task that asks.
    lock: Arc<Mutex<()>>,
}

impl<'a> RunningQuestion<'a> {
    fn join(questions: &'a DashMap<SecretHash, Arc<Mutex<()>>>, hash: SecretHash) -> Self {
        let lock = Arc::clone(&questions.entry(hash).or_default());
        Self { questions, hash, lock }
    }
}

impl Drop for RunningQuestion<'_> {
    fn drop(&mut self) {
        // Given back first, so that of two tasks that end at once the second one sees only the part of the map.
        self.lock = Arc::default();
        self.questions.remove_if(&self.hash, |_, lock| Arc::strong_count(lock) == 1);
    }
}

/// Reads the keys of an issuer in a task of its own, because a client that disconnects must not cancel what others wait for.
async fn renew_keys(issuer: Arc<Issuer>, now: Timestamp) {
    if let Err(error) = rt::spawn(issuer.renew(now)).await {
        tracing::error!(%error, "reading the keys of an issuer ended early");
    }
}

/// Returns the audiences that mean this gateway: its endpoints for MCP, and its address with and without a slash.
fn default_audiences(resource: &str) -> Vec<String> {
    let base = resource.strip_suffix("/mcp").unwrap_or(resource);
    ["/mcp", "/ws", "/sse", "", "/"].iter().map(|path| format!("{base}{path}")).collect()
}

fn identity(
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
