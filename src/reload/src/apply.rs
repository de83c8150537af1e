//! What puts a new configuration into force.

use futures_util::future::BoxFuture;

use countersign_config::{RoutesConfig, UpstreamConfig, WebhookConfig};
use countersign_domain::policy::PolicyConfig;
use countersign_store::PolicySnapshot;

/// The parts of a gateway that can be configured anew while it runs. A failure has changed nothing.
pub trait Applies: Send + Sync + 'static {
    /// Policy and further names, from one call to the next.
    fn routing<'a>(&'a self, policy: &'a PolicyConfig, routes: &'a RoutesConfig) -> BoxFuture<'a, Result<(), String>>;
    /// Exactly these servers instead of those before; what is in both keeps its connections.
    fn servers<'a>(
        &'a self,
        before: &'a [UpstreamConfig],
        now: &'a [UpstreamConfig],
    ) -> BoxFuture<'a, Result<(), String>>;
    /// Exactly these webhooks instead of those before; what is in both keeps its place.
    fn webhooks<'a>(&'a self, now: &'a [WebhookConfig]) -> BoxFuture<'a, Result<(), String>>;
    fn log_filter(&self, filter: &str) -> Result<(), String>;
    /// Keeps the policy in force for the next start.
    fn save(&self, snapshot: PolicySnapshot, by_consent: bool) -> BoxFuture<'static, Result<(), String>>;
    /// The digest of what the store has as the newest policy; `None` also where it cannot be read.
    fn newest(&self) -> BoxFuture<'static, Option<String>>;
    /// An entry of the audit trail about somebody's decision; `details` is a JSON object.
    fn record(&self, event: &'static str, by: &str, details: String) -> BoxFuture<'static, Result<(), String>>;
}
