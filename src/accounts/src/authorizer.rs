//! One account at one server: authorizes requests to the server, and reacts to their refusals.

use std::sync::Arc;

use actix_http::{
    Uri,
    header::{AUTHORIZATION, HeaderName, HeaderValue},
};
use futures_util::future::LocalBoxFuture;
use jiff::Timestamp;
use parking_lot::Mutex;

use super::{
    client::OAuthClient,
    failure::unavailable,
    oauth::{OAuthError, challenge::Challenge, dpop::is_usable_nonce},
    server::AccountServer,
    token_refresher::TokenRefresher,
    token_requester::TokenRequester,
    tokens::Tokens,
};
use countersign_domain::account_holder::AccountHolder;
use countersign_upstream::credentials::{AuthorizationError, AuthorizationHeaders, Credentials, HttpRefusal};

/// The maximum number of attempts to meet the demand for a nonce.
const MAX_NONCE_ATTEMPTS: u32 = 2;
const DPOP: HeaderName = HeaderName::from_static("dpop");

/// Authorizes the requests of a holder at a server.
pub struct AccountAuthorizer {
    server: Arc<AccountServer>,
    source: TokenSource,
    /// The nonce that the server demands in proofs (RFC 9449, section 9).
    nonce: Mutex<Option<String>>,
}

enum TokenSource {
    /// The account was connected by a person, and its tokens are stored.
    Refresher(Arc<TokenRefresher>),
    /// The gateway requests the tokens without a person.
    Requester(Box<TokenRequester>),
}

impl AccountAuthorizer {
    pub fn new(client: &Arc<OAuthClient>, server: &Arc<AccountServer>, holder: AccountHolder) -> Self {
        let (client, server) = (Arc::clone(client), Arc::clone(server));
        let source = if server.requires_consent() {
            TokenSource::Refresher(Arc::new(TokenRefresher::new(client, Arc::clone(&server), holder)))
        } else {
            TokenSource::Requester(Box::new(TokenRequester::new(client, Arc::clone(&server), holder)))
        };
        Self { server, source, nonce: Mutex::default() }
    }

    /// Returns `true` if the account belongs to this server.
    pub fn belongs_to(&self, server: &Arc<AccountServer>) -> bool {
        Arc::ptr_eq(&self.server, server)
    }

    /// Forgets the tokens that were read from the store, so that the next use reads them again.
    pub fn forget_tokens(&self) {
        if let TokenSource::Refresher(refresher) = &self.source {
            refresher.forget_tokens();
        }
    }

    /// Returns `true` if the gateway has obtained a token without a consent.
    pub fn has_obtained_token(&self) -> bool {
        matches!(&self.source, TokenSource::Requester(requester) if requester.has_token())
    }

    /// Returns the tokens for a request, or `None` as long as the server is not known to require any.
    async fn tokens(&self) -> Result<Option<Arc<Tokens>>, AuthorizationError> {
        let cached = match &self.source {
            TokenSource::Refresher(refresher) => refresher.cached_tokens(),
            TokenSource::Requester(requester) => requester.cached_tokens(),
        };
        match (cached, &self.source) {
            (Some(tokens), _) => Ok(tokens),
            // These futures are boxed, so that most requests do not reserve their memory.
            (None, TokenSource::Refresher(refresher)) => Box::pin(refresher.tokens()).await,
            (None, TokenSource::Requester(requester)) => Box::pin(requester.obtain()).await.map(Some),
        }
    }

    /// Returns the headers that authorize a request.
    fn authorization_headers(
        &self,
        tokens: &Tokens,
        method: &str,
        uri: &Uri,
    ) -> Result<AuthorizationHeaders, AuthorizationError> {
        let token = &tokens.access_token;
        let Some(key) = tokens.origin.dpop_key.as_ref().filter(|_| tokens.is_dpop) else {
            return Ok(vec![(AUTHORIZATION, sensitive_value(&format!("Bearer {token}"))?)]);
        };
        let nonce = self.nonce.lock().clone();
        let proof = key.prove(method, &uri.to_string(), Some(token), nonce.as_deref(), Timestamp::now());
        let proof = proof.map_err(|error| unavailable(&error))?;
        Ok(vec![(AUTHORIZATION, sensitive_value(&format!("DPoP {token}"))?), (DPOP, sensitive_value(&proof)?)])
    }

    /// Remembers the nonce for the next proof, if it is usable. Returns `false` if not.
    fn remember_nonce(&self, nonce: &str) -> bool {
        if !is_usable_nonce(nonce) {
            return false;
        }
        *self.nonce.lock() = Some(nonce.to_owned());
        true
    }

    /// Checks after a 401 without a challenge that an account can be connected: the server is known to require a token,
    /// or its authorization server can be discovered. Otherwise the refusal concerns only this request.
    async fn check_can_connect(&self) -> Result<(), AuthorizationError> {
        // A grant without consent is configured explicitly, so the server requires a token.
        if self.server.requires_token() || !self.server.requires_consent() {
            return Ok(());
        }
        self.server.discover().await.map(drop).map_err(|error| match error {
            OAuthError::Unusable(reason) => {
                AuthorizationError::Refused(format!("refuses the request with status 401: {reason}"))
            }
            error => unavailable(&error),
        })
    }

    /// Remembers the demanded nonce or obtains another token after a refusal. After `Ok`, the request may be sent
    /// again. Links limit how often they do so.
    async fn handle_refused_request(
        &self,
        refusal: &HttpRefusal,
        headers: &AuthorizationHeaders,
        attempt: u32,
    ) -> Result<(), AuthorizationError> {
        let has_nonce = refusal.dpop_nonce.as_deref().is_some_and(|nonce| self.remember_nonce(nonce));
        let challenge = Challenge::parse(&refusal.challenges);
        let error = challenge.as_ref().and_then(|challenge| challenge.error.as_deref());
        let token = sent_token(headers);
        match (refusal.status, error, token) {
            (401, Some("use_dpop_nonce"), Some(_)) if has_nonce && attempt <= MAX_NONCE_ATTEMPTS => Ok(()),
            (401, Some("use_dpop_nonce"), Some(_)) => {
                Err(AuthorizationError::Refused("does not accept the proofs of its token".to_owned()))
            }
            (401, _, _) if challenge.is_none() && !refusal.challenges.is_empty() => {
                let text = "asks for a kind of authorization that the gateway does not support";
                Err(AuthorizationError::Refused(text.to_owned()))
            }
            (401, _, Some(token)) => {
                self.server.remember_challenge(challenge.unwrap_or_default());
                match &self.source {
                    TokenSource::Refresher(refresher) => refresher.replace_refused(token).await,
                    TokenSource::Requester(requester) => requester.replace_refused(token).await,
                }
            }
            (401, _, None) | (403, Some("insufficient_scope"), None) => {
                if challenge.is_none() {
                    self.check_can_connect().await?;
                }
                self.server.remember_challenge(challenge.unwrap_or_default());
                match &self.source {
                    TokenSource::Refresher(refresher) => refresher.read_account().await.map(drop),
                    TokenSource::Requester(requester) => requester.obtain().await.map(drop),
                }
            }
            (403, Some("insufficient_scope"), Some(token)) => {
                let scopes = challenge.and_then(|challenge| challenge.scopes).unwrap_or_default();
                match &self.source {
                    TokenSource::Refresher(refresher) => refresher.record_step_up(token, &scopes).await,
                    TokenSource::Requester(requester) => requester.obtain_with_scopes(token, &scopes).await,
                }
            }
            (status, _, _) => Err(AuthorizationError::Refused(format!("refuses the request with status {status}"))),
        }
    }
}

impl Credentials for AccountAuthorizer {
    fn learn_nonce(&self, nonce: &str) {
        self.remember_nonce(nonce);
    }

    fn authorize<'a>(
        &'a self,
        method: &'a str,
        uri: &'a Uri,
    ) -> LocalBoxFuture<'a, Result<AuthorizationHeaders, AuthorizationError>> {
        Box::pin(async move {
            let tokens = self.tokens().await?;
            tokens.map_or(Ok(Vec::new()), |tokens| self.authorization_headers(&tokens, method, uri))
        })
    }

    fn handle_refusal<'a>(
        &'a self,
        refusal: &'a HttpRefusal,
        headers: &'a AuthorizationHeaders,
        attempt: u32,
    ) -> LocalBoxFuture<'a, Result<(), AuthorizationError>> {
        Box::pin(self.handle_refused_request(refusal, headers, attempt))
    }

    fn connected_at(&self) -> Option<Timestamp> {
        match &self.source {
            TokenSource::Refresher(refresher) => refresher.connected_at(),
            TokenSource::Requester(_) => None,
        }
    }

    fn prepare(&self) -> LocalBoxFuture<'_, Result<(), AuthorizationError>> {
        Box::pin(async move {
            match &self.source {
                TokenSource::Refresher(refresher) => refresher.tokens().await.map(drop),
                // An approved change is not sent again after a refusal, so its token is obtained first.
                TokenSource::Requester(requester) => requester.obtain().await.map(drop),
            }
        })
    }
}

/// Returns the value of a header that must not be logged.
fn sensitive_value(text: &str) -> Result<HeaderValue, AuthorizationError> {
    let invalid_token =
        "cannot be used now, because its authorization server issued a token that no header can contain";
    let mut value =
        HeaderValue::from_str(text).map_err(|_| AuthorizationError::Unavailable(invalid_token.to_owned()))?;
    value.set_sensitive(true);
    Ok(value)
}

/// Returns the access token with which a request was sent.
fn sent_token(headers: &AuthorizationHeaders) -> Option<&str> {
    let (_, value) = headers.iter().find(|(name, _)| *name == AUTHORIZATION)?;
    value.to_str().ok()?.split_once(' ').map(|(_, token)| token)
}
