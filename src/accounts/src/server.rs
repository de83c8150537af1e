//! A configured server that may require accounts, with its last challenge.

use futures_util::future::LocalBoxFuture;
use parking_lot::Mutex;
use url::Url;

use super::{
    oauth::{
        OAuthError,
        challenge::Challenge,
        discovery::{DiscoveredResource, discover},
        token::TokenRequest,
    },
    tokens::TokenOrigin,
};
use countersign_config::{Authorities, OAuthGrant, UpstreamConfig, UpstreamOAuth, UpstreamTarget};
use countersign_domain::account_holder::AccountHolder;
use countersign_store::accounts::AccountKey;

/// A configured server with a URL and `oauth`.
pub struct AccountServer {
    pub name: String,
    /// The first of its addresses.
    pub url: Url,
    /// The fingerprint of its addresses. An account that was connected at other addresses is not used.
    pub target: String,
    pub oauth: UpstreamOAuth,
    /// Certificate authorities that are trusted in addition to the public ones, at the server and at its authorization
    /// server.
    pub authorities: Option<Authorities>,
    /// The last challenge to a request without a valid token. Once there is one, the server is known to require a
    /// token.
    challenge: Mutex<Option<Challenge>>,
    /// The authorization server to which the configured client is bound ([`Self::bind_client_to_issuer`]).
    client_issuer: Mutex<Option<String>>,
}

impl AccountServer {
    /// Creates the state of a configured server. Returns `None` for a server without a URL or without `oauth`.
    pub fn new(config: &UpstreamConfig) -> Option<Self> {
        let (UpstreamTarget::Url { urls, .. }, Some(oauth)) = (&config.target, &config.oauth) else { return None };
        Some(Self {
            name: config.name.clone(),
            url: urls.first()?.clone(),
            target: config.target.fingerprint(),
            oauth: oauth.clone(),
            authorities: config.authorities.clone(),
            challenge: Mutex::new(None),
            client_issuer: Mutex::new(None),
        })
    }

    /// Names the account of a holder at this server.
    pub fn account_key(&self, holder: AccountHolder) -> AccountKey {
        AccountKey { server: self.name.clone(), holder }
    }

    /// Returns `true` if both accept the same accounts and tokens, and obtain tokens in the same way.
    pub fn has_same_accounts(&self, other: &Self) -> bool {
        (&self.name, &self.url, &self.target) == (&other.name, &other.url, &other.target)
            && (&self.oauth, &self.authorities) == (&other.oauth, &other.authorities)
    }

    /// Finds the authorization server that issues tokens for this server. Boxed, so that its code is compiled in this crate
    /// only.
    ///
    /// # Errors
    /// The errors of [`discover`].
    pub fn discover(&self) -> LocalBoxFuture<'_, Result<DiscoveredResource, OAuthError>> {
        self.discover_after(self.challenge())
    }

    /// Finds the authorization server as [`Self::discover`] does, but after this challenge.
    ///
    /// # Errors
    /// The errors of [`discover`].
    pub fn discover_after(
        &self,
        challenge: Option<Challenge>,
    ) -> LocalBoxFuture<'_, Result<DiscoveredResource, OAuthError>> {
        Box::pin(async move { discover(&self.url, challenge.as_ref(), &self.oauth, self.authorities.as_ref()).await })
    }

    /// Creates the request for tokens of this origin.
    pub fn token_request<'a>(&'a self, origin: &'a TokenOrigin) -> TokenRequest<'a> {
        TokenRequest {
            authorization_server: &origin.discovered.authorization_server,
            trusted: self.authorities.as_ref(),
            registration: &origin.registration,
            private_key: self.oauth.private_key.as_ref(),
            resource: &origin.discovered.resource,
            scopes: &origin.requested_scopes,
            dpop: origin.dpop_key.as_ref(),
        }
    }

    /// Returns `true` if its tokens need the consent of a person in a browser.
    pub fn requires_consent(&self) -> bool {
        self.oauth.grant == OAuthGrant::AuthorizationCode
    }

    /// Returns the last challenge.
    pub fn challenge(&self) -> Option<Challenge> {
        self.challenge.lock().clone()
    }

    /// Remembers a challenge. If it names no URL of metadata, the known URL is kept.
    pub fn remember_challenge(&self, challenge: Challenge) {
        let mut last_challenge = self.challenge.lock();
        let resource_metadata = challenge
            .resource_metadata
            .or_else(|| last_challenge.take().and_then(|last_challenge| last_challenge.resource_metadata));
        *last_challenge = Some(Challenge { resource_metadata, ..challenge });
    }

    /// Binds the configured client to an authorization server if it is not bound yet: to that of the oldest account, or
    /// else to this one. Returns `true` if the client may be used at this one. With `oauth.issuer` or without a
    /// configured client, nothing is bound.
    pub fn bind_client_to_issuer(&self, issuer: &str, issuers_of_accounts: &[String]) -> bool {
        if self.oauth.client_id.is_none() || self.oauth.issuer.is_some() {
            return true;
        }
        let mut client_issuer = self.client_issuer.lock();
        let bound_issuer =
            client_issuer.get_or_insert_with(|| issuers_of_accounts.first().map_or(issuer, String::as_str).to_owned());
        bound_issuer == issuer
    }

    /// Returns `true` unless another authorization server is configured.
    pub fn accepts_issuer(&self, issuer: &str) -> bool {
        let configured = self.oauth.issuer.as_deref();
        configured.is_none_or(|configured| configured.trim_end_matches('/') == issuer.trim_end_matches('/'))
    }

    /// Returns `true` if tokens for the server must be bound to a key, by its configuration or its challenge.
    pub fn requires_dpop(&self) -> bool {
        self.oauth.dpop || self.challenge.lock().as_ref().is_some_and(|challenge| challenge.is_dpop)
    }

    /// Returns `true` if the server refused a request without a token.
    pub fn requires_token(&self) -> bool {
        self.challenge.lock().is_some()
    }
}
