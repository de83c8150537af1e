//! The reasons why a person is not signed in, which the dashboard shows.

use strum::IntoStaticStr;

use super::super::TokenRefusal;

/// The reason why a person is not signed in. The dashboard gets its name, and has a text for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr)]
#[strum(serialize_all = "kebab-case")]
pub enum SignInError {
    /// No identity provider is configured.
    NotConfigured,
    /// The provider does not answer.
    #[strum(serialize = "provider-away")]
    ProviderUnreachable,
    /// The provider's metadata or its answer cannot be used.
    ProviderUnusable,
    /// The provider did not sign the person in, or refuses to renew the session.
    Denied,
    /// The sign-in was begun in another browser, too long ago, or twice at the same time.
    Interrupted,
    /// The person's groups or claims give them no role here.
    #[strum(serialize = "no-entry")]
    NoRole,
    /// The person was revoked at this gateway.
    Revoked,
    /// The provider did not ask the person to authenticate again, or does not say when they did.
    NotRecent,
    /// The provider did not authenticate the person in a way that the rule requires.
    NotStrong,
    /// The gateway could not finish the sign-in.
    Failed,
}

impl SignInError {
    /// Returns the name of the problem in the URL of the dashboard.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.into()
    }

    /// Logs and converts the refusal of a token of the provider.
    pub(super) fn from_refusal(refusal: TokenRefusal) -> Self {
        match refusal {
            TokenRefusal::IssuerUnavailable => Self::ProviderUnreachable,
            refusal => {
                tracing::warn!(?refusal, "a token of the identity provider was refused");
                Self::ProviderUnusable
            }
        }
    }
}
