//! The reasons and texts of failures, and the pauses after them. Each text continues a sentence that begins with the
//! name of the server.

use std::time::Duration;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::oauth::OAuthError;
use countersign_upstream::credentials::AuthorizationError;

/// The reason why a person must consent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ConsentReason {
    /// There is no account.
    NotConnected,
    /// The token expired, and there is no refresh token.
    Expired,
    /// The authorization server refused the refresh token.
    #[serde(rename = "renewal_refused")]
    RefreshRefused,
    /// A refresh token was sent, but the answer did not arrive or could not be stored.
    AnswerLost,
    /// The server refused the access token, and no other one can be obtained.
    TokenRefused,
    /// The token was issued by another authorization server than the one that the server uses now.
    OtherIssuer,
    /// The server demands scopes that the token lacks.
    MoreScopes,
}

impl ConsentReason {
    /// Returns the text that follows the server's name in a message.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::NotConnected => "must be connected first",
            Self::Expired => "must be connected again, because its token has expired",
            Self::RefreshRefused => {
                "must be connected again, because its authorization server no longer renews the token"
            }
            Self::AnswerLost => "must be connected again, because the answer to its token refresh was lost",
            Self::TokenRefused => "must be connected again, because it no longer accepts its token",
            Self::OtherIssuer => "must be connected again, because it uses another authorization server now",
            Self::MoreScopes => "must be connected again, because the call needs further permissions",
        }
    }
}

impl From<ConsentReason> for AuthorizationError {
    fn from(reason: ConsentReason) -> Self {
        Self::ConsentNeeded(reason.text().to_owned())
    }
}

/// Returns the failure of a step that may succeed later.
pub fn unavailable(error: &OAuthError) -> AuthorizationError {
    AuthorizationError::Unavailable(match error {
        OAuthError::Unusable(reason) => format!("cannot be used now, because there is no token: {reason}"),
        error => format!("cannot be used now, because {error}"),
    })
}

/// Returns the failure for an unavailable store.
pub fn store_unavailable() -> AuthorizationError {
    AuthorizationError::Unavailable("cannot be used now, because the store of the gateway is unavailable".to_owned())
}

/// The pause after a failed step. Until it ends, each call that needs the step gets the same failure at once, instead
/// of waiting for a time limit again.
#[derive(Default)]
pub struct Pause(Mutex<Option<(Instant, AuthorizationError)>>);

impl Pause {
    /// Begins a pause with the failure of a step, unless one is running.
    pub fn begin(&self, length: Duration, failure: &AuthorizationError) {
        let mut pause = self.0.lock();
        if pause.as_ref().is_none_or(|(end, _)| Instant::now() >= *end) {
            *pause = Some((Instant::now() + length, failure.clone()));
        }
    }

    /// Returns the failure of the step while the pause is running.
    pub fn failure(&self) -> Option<AuthorizationError> {
        let pause = self.0.lock();
        pause.as_ref().filter(|(end, _)| Instant::now() < *end).map(|(_, failure)| failure.clone())
    }

    /// Ends the pause early.
    pub fn end(&self) {
        *self.0.lock() = None;
    }
}
