//! Access tokens of accounts at servers, as the links of this crate use them. `countersign_accounts` implements the
//! traits.

use std::sync::Arc;

use actix_http::{
    Uri,
    header::{HeaderName, HeaderValue},
};
use futures_util::future::LocalBoxFuture;
use jiff::Timestamp;

use countersign_config::UpstreamConfig;
pub use countersign_domain::account_holder::AccountHolder;
use countersign_domain::principal::Principal;

/// A server's refusal of a request for reasons of authorization (401, or 403 with a challenge).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpRefusal {
    pub status: u16,
    /// The values of `WWW-Authenticate`.
    pub challenges: Vec<String>,
    /// The value of `DPoP-Nonce` (RFC 9449, section 9).
    pub dpop_nonce: Option<String>,
}

/// The reason why a request cannot be authorized. In that case, nothing of the request was executed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AuthorizationError {
    /// A person must consent, for the first time or again. The text continues a sentence that begins with the server's
    /// name.
    #[error("{0}")]
    ConsentNeeded(String),
    /// The authorization server cannot be reached or does not answer as expected. A later attempt may succeed.
    #[error("{0}")]
    Unavailable(String),
    /// No consent of a person would change the refusal.
    #[error("{0}")]
    Refused(String),
}

/// The headers that authorize one request.
pub type AuthorizationHeaders = Vec<(HeaderName, HeaderValue)>;

/// The credentials of one account at one server. They are used on any actix thread, and their futures stay there.
pub trait Credentials: Send + Sync + 'static {
    /// Refreshes the token if it is about to expire, and returns the headers that authorize one request. There are none
    /// while it is not known whether the server requires a token.
    fn authorize<'a>(
        &'a self,
        method: &'a str,
        uri: &'a Uri,
    ) -> LocalBoxFuture<'a, Result<AuthorizationHeaders, AuthorizationError>>;

    /// Learns from a refusal, and obtains a better token if no person is needed for that. `headers` are those of the refused
    /// request, and `attempt` is the number of its refusals so far, beginning with 1. After `Ok`, the request may be
    /// sent again.
    fn handle_refusal<'a>(
        &'a self,
        refusal: &'a HttpRefusal,
        headers: &'a AuthorizationHeaders,
        attempt: u32,
    ) -> LocalBoxFuture<'a, Result<(), AuthorizationError>>;

    /// Learns the nonce for the next proof from the answer to a request (RFC 9449, section 8.2), since the request of
    /// an approved change is not repeated to learn it.
    fn learn_nonce(&self, _nonce: &str) {}

    /// Returns the time at which a person connected the account, as far as this node knows it.
    fn connected_at(&self) -> Option<Timestamp> {
        None
    }

    /// Checks whether a request could be authorized now, and refreshes the token if it is about to expire. An approved
    /// change asks this before it is claimed, since its own request is never repeated.
    fn prepare(&self) -> LocalBoxFuture<'_, Result<(), AuthorizationError>>;
}

/// Provides the credentials of all accounts.
pub trait CredentialSource: Send + Sync + 'static {
    /// Returns the credentials of an account at a server; `None` if the server is used without an account. The same account
    /// always has the same credentials while the configuration of the server stays the same.
    fn credentials(&self, server: &Arc<UpstreamConfig>, holder: &AccountHolder) -> Option<Arc<dyn Credentials>>;

    /// Returns the holder of the account that is used for the calls of a principal.
    fn holder(&self, server: &UpstreamConfig, principal: &Principal) -> AccountHolder;

    /// Returns the holders of the known accounts at a server, with one of which the lists are read. If the grant requires
    /// consent, these are the holders of stored accounts, the oldest first. Otherwise, they are the persons for whom a token
    /// was obtained, or the gateway.
    fn known_holders(&self, server: &UpstreamConfig) -> Vec<AccountHolder>;

    /// Returns the page of the gateway on which a person connects to the server.
    fn connect_url(&self, server: &str) -> String;
}
