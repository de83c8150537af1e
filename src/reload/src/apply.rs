//! The interface through which a new configuration takes effect, and the steps that put one into force.

use async_trait::async_trait;

use countersign_config::{Config, OidcConfig, RoutesConfig, TokenIssuer, UpstreamConfig, WebhooksConfig};
use countersign_domain::policy::PolicyConfig;
use countersign_store::PolicySnapshot;

/// The parts of a gateway that can be reconfigured while it runs. Except for `apply_servers` and `apply_webhooks`, a failed
/// call has changed nothing.
#[async_trait]
pub trait Reconfigurable: Send + Sync + 'static {
    /// Replaces the policy and the configured names of tools between two calls.
    async fn apply_routing(&self, policy: &PolicyConfig, routes: &RoutesConfig) -> Result<(), String>;
    /// Replaces the servers by exactly these, and returns once calls find them; an unchanged server keeps its connections.
    /// `strict` is `true` if a new conflict of their names is an error. To restore earlier servers, it is `false`.
    async fn apply_servers(&self, servers: &[UpstreamConfig], strict: bool) -> Result<(), String>;
    /// Replaces the webhooks by exactly these; a webhook that remains, even disabled, keeps its position in the feed.
    async fn apply_webhooks(&self, webhooks: &WebhooksConfig) -> Result<(), String>;
    /// Replaces the issuers of access tokens; tokens of others are no longer accepted.
    fn apply_issuers(&self, issuers: &[TokenIssuer]);
    /// Replaces the identity provider with which people sign in.
    fn apply_identity_provider(&self, provider: Option<&OidcConfig>);
    /// Replaces the filter of the log.
    ///
    /// # Errors
    /// An invalid filter.
    fn apply_log_filter(&self, filter: &str) -> Result<(), String>;
    /// Saves the policy in force for the next start; `by_consent` as in [`countersign_store::StoreBackend::save_policy`].
    async fn save_policy(&self, snapshot: PolicySnapshot, by_consent: bool) -> Result<(), String>;
    /// Returns the digest of the newest policy in the store; `None` also if it cannot be read.
    async fn newest_digest(&self) -> Option<String>;
    /// Writes an entry about the configuration or a decision on it to the audit trail; `details` is a JSON object.
    async fn record(&self, event: &'static str, by: &str, details: String) -> Result<(), String>;
    /// Returns the decisions on pending changes with this digest that the audit trail records, but that were not passed
    /// to [`Reloader::apply_remote_decision`] yet: oldest first, and `true` for consent. There are none in a store for a
    /// single gateway.
    ///
    /// [`Reloader::apply_remote_decision`]: crate::Reloader::apply_remote_decision
    async fn unapplied_decisions(&self, digest: &str) -> Result<Vec<bool>, String>;
}

/// The parts of a configuration that can change at run time, in the order in which they are applied. The policy comes first, so
/// that it covers new servers. Parts that can be restored without a trace precede the webhooks, because a removed webhook loses its
/// position.
const PARTS: [Part; 6] =
    [Part::Routing, Part::TokenIssuers, Part::IdentityProvider, Part::Servers, Part::LogFilter, Part::Webhooks];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Routing,
    TokenIssuers,
    IdentityProvider,
    Servers,
    LogFilter,
    Webhooks,
}

impl Part {
    fn differs(self, one: &Config, two: &Config) -> bool {
        match self {
            Self::Routing => one.policy != two.policy || one.routes != two.routes,
            Self::TokenIssuers => one.auth.tokens != two.auth.tokens,
            Self::IdentityProvider => one.auth.oidc != two.auth.oidc,
            Self::Servers => one.upstreams != two.upstreams,
            Self::LogFilter => one.log.filter != two.log.filter,
            Self::Webhooks => one.webhooks != two.webhooks,
        }
    }

    /// Returns the key that logs name.
    const fn key(self) -> &'static str {
        match self {
            Self::Routing => "policy",
            Self::TokenIssuers => "auth.tokens",
            Self::IdentityProvider => "auth.oidc",
            Self::Servers => "mcpServers",
            Self::LogFilter => "log.filter",
            Self::Webhooks => "webhooks",
        }
    }

    /// Returns `true` if a failed call may have replaced the part.
    const fn may_change_on_failure(self) -> bool {
        matches!(self, Self::Servers | Self::Webhooks)
    }

    async fn apply(self, gateway: &dyn Reconfigurable, config: &Config, strict: bool) -> Result<(), String> {
        match self {
            Self::Routing => gateway.apply_routing(&config.policy, &config.routes).await?,
            Self::TokenIssuers => gateway.apply_issuers(&config.auth.tokens),
            Self::IdentityProvider => gateway.apply_identity_provider(config.auth.oidc.as_ref()),
            Self::Servers => gateway.apply_servers(&config.upstreams, strict).await?,
            Self::LogFilter => gateway.apply_log_filter(&config.log.filter)?,
            Self::Webhooks => gateway.apply_webhooks(&config.webhooks).await?,
        }
        Ok(())
    }
}

/// Applies all differences between two configurations. If one cannot be applied, restores the earlier ones in reverse order; a
/// part that cannot be restored is logged.
pub(crate) async fn put_in_force(gateway: &dyn Reconfigurable, before: &Config, now: &Config) -> Result<(), String> {
    let mut applied = Vec::new();
    for part in PARTS.into_iter().filter(|part| part.differs(before, now)) {
        let result = part.apply(gateway, now, true).await;
        if result.is_ok() || part.may_change_on_failure() {
            applied.push(part);
        }
        if result.is_err() {
            for part in applied.into_iter().rev() {
                if let Err(error) = part.apply(gateway, before, false).await {
                    tracing::error!(part = part.key(), error, "the old configuration could not be restored");
                }
            }
            return result;
        }
    }
    Ok(())
}
