//! The reasons why a token is refused.

use std::borrow::Cow;

use countersign_domain::principal::AGENT_SCOPES;
use countersign_protocol::{ErrorKind, McpError};

/// The reason why a token is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TokenRefusal {
    /// The token is not valid at this gateway.
    Invalid(Cow<'static, str>),
    /// The token has expired, or was revoked after it was valid here.
    Expired,
    /// The token is signed with a key that its issuer did not have when it was last asked. It may be a new key.
    UnknownKey,
    /// The token is valid, but its scopes grant nothing here.
    NoScope,
    /// The token is valid, but the groups of its holder grant nothing here.
    NoGroup,
    /// The issuer has not answered, so that the token can be neither accepted nor refused for good.
    IssuerUnavailable,
}

impl TokenRefusal {
    /// Creates the refusal of a token that is not valid here.
    pub(super) fn invalid(reason: impl Into<Cow<'static, str>>) -> Self {
        Self::Invalid(reason.into())
    }

    /// Returns `true` if the token counts as a failed attempt to authenticate. Other refusals concern clients that had
    /// a valid token, and may send it a few times before they renew it.
    pub fn is_failed_attempt(&self) -> bool {
        matches!(self, Self::Invalid(_))
    }
}

impl From<TokenRefusal> for McpError {
    fn from(refusal: TokenRefusal) -> Self {
        let unauthorized = |reason| McpError::new(ErrorKind::Unauthorized, reason).with("tokenError", "invalid_token");
        match refusal {
            TokenRefusal::Invalid(reason) => unauthorized(reason),
            TokenRefusal::Expired => unauthorized("the token has expired".into()),
            TokenRefusal::UnknownKey => {
                unauthorized("the token is signed with a key that its issuer does not have".into())
            }
            TokenRefusal::NoScope => McpError::new(ErrorKind::Forbidden, "the token has no scope of this gateway")
                .with("scope", AGENT_SCOPES),
            TokenRefusal::NoGroup => McpError::new(ErrorKind::Forbidden, "your groups grant nothing at this gateway"),
            TokenRefusal::IssuerUnavailable => McpError::new(
                ErrorKind::UpstreamUnavailable,
                "the issuer of the token does not answer; try again later",
            ),
        }
    }
}
