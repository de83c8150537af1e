//! The interface through which a new configuration takes effect.

use futures_util::future::BoxFuture;

use countersign_config::{RoutesConfig, UpstreamConfig, WebhookConfig};
use countersign_domain::policy::PolicyConfig;
use countersign_store::PolicySnapshot;

/// The parts of a gateway that can be reconfigured while it runs. A failed call has changed nothing.
pub trait Reconfigurable: Send + Sync + 'static {
    /// Replaces the policy and the extra names of tools between two calls.
    fn apply_routing<'a>(
        &'a self,
        policy: &'a PolicyConfig,
        routes: &'a RoutesConfig,
    ) -> BoxFuture<'a, Result<(), String>>;
    /// Replaces the servers by exactly these; a server in both lists keeps its connections.
    fn apply_servers<'a>(
        &'a self,
        before: &'a [UpstreamConfig],
        now: &'a [UpstreamConfig],
    ) -> BoxFuture<'a, Result<(), String>>;
    /// Replaces the webhooks by exactly these; a webhook in both lists keeps its position in the feed.
    fn apply_webhooks<'a>(&'a self, now: &'a [WebhookConfig]) -> BoxFuture<'a, Result<(), String>>;
    fn apply_log_filter(&self, filter: &str) -> Result<(), String>;
    /// Saves the policy in force for the next start.
    fn save_policy(&self, snapshot: PolicySnapshot, by_consent: bool) -> BoxFuture<'static, Result<(), String>>;
    /// Returns the digest of the newest policy in the store; `None` also if it cannot be read.
    fn newest_digest(&self) -> BoxFuture<'static, Option<String>>;
    /// Writes an entry about a reviewer's decision to the audit trail; `details` is a JSON object.
    fn record(&self, event: &'static str, by: &str, details: String) -> BoxFuture<'static, Result<(), String>>;
}
