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
    async fn apply_webhooks(&self, now: &WebhooksConfig) -> Result<(), String>;
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

/// Applies all differences between two configurations. If a step fails, undoes the earlier ones; an undo that fails is
/// logged.
pub(crate) async fn put_in_force(gateway: &dyn Reconfigurable, before: &Config, now: &Config) -> Result<(), String> {
    let mut applied = before.clone();
    let result = apply_changes(gateway, &mut applied, now).await;
    if result.is_err() {
        undo_changes(gateway, &applied, before).await;
    }
    result
}

/// Applies the differences step by step until one fails, and notes in `applied` what must be undone then.
async fn apply_changes(gateway: &dyn Reconfigurable, applied: &mut Config, now: &Config) -> Result<(), String> {
    // The policy comes first, so that it covers new servers.
    if applied.policy != now.policy || applied.routes != now.routes {
        gateway.apply_routing(&now.policy, &now.routes).await?;
        (applied.policy, applied.routes) = (now.policy.clone(), now.routes.clone());
    }
    if applied.auth.tokens != now.auth.tokens {
        gateway.apply_issuers(&now.auth.tokens);
        applied.auth.tokens.clone_from(&now.auth.tokens);
    }
    if applied.auth.oidc != now.auth.oidc {
        gateway.apply_identity_provider(now.auth.oidc.as_ref());
        applied.auth.oidc.clone_from(&now.auth.oidc);
    }
    if applied.upstreams != now.upstreams {
        // The servers are replaced even if the call fails.
        applied.upstreams.clone_from(&now.upstreams);
        gateway.apply_servers(&now.upstreams, true).await?;
    }
    if applied.log.filter != now.log.filter {
        gateway.apply_log_filter(&now.log.filter)?;
        applied.log.filter.clone_from(&now.log.filter);
    }
    // Steps that can be undone without a trace precede those that cannot: a removed webhook loses its position.
    if applied.webhooks != now.webhooks {
        // The webhooks are replaced even if the call fails.
        applied.webhooks.clone_from(&now.webhooks);
        gateway.apply_webhooks(&now.webhooks).await?;
    }
    Ok(())
}

/// Undoes the steps in reverse order, all of them even if one fails.
async fn undo_changes(gateway: &dyn Reconfigurable, applied: &Config, before: &Config) {
    let log_failure = |part, result: Result<(), String>| {
        if let Err(error) = result {
            tracing::error!(part, error, "the old configuration could not be restored");
        }
    };
    if applied.webhooks != before.webhooks {
        log_failure("webhooks", gateway.apply_webhooks(&before.webhooks).await);
    }
    if applied.log.filter != before.log.filter {
        log_failure("log.filter", gateway.apply_log_filter(&before.log.filter));
    }
    if applied.upstreams != before.upstreams {
        log_failure("mcpServers", gateway.apply_servers(&before.upstreams, false).await);
    }
    if applied.auth.oidc != before.auth.oidc {
        gateway.apply_identity_provider(before.auth.oidc.as_ref());
    }
    if applied.auth.tokens != before.auth.tokens {
        gateway.apply_issuers(&before.auth.tokens);
    }
    if applied.policy != before.policy || applied.routes != before.routes {
        log_failure("policy", gateway.apply_routing(&before.policy, &before.routes).await);
    }
}
