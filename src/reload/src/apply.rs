//! Puts a new configuration into force.

use std::sync::Arc;

use actix::Addr;
use futures_util::future::BoxFuture;
use jiff::Timestamp;

use countersign_config::{RoutesConfig, UpstreamConfig, WebhookConfig};
use countersign_domain::policy::{People, Policy, PolicyConfig};
use countersign_routing::{
    Router, Target,
    actor::{PublishProviders, Reconfigure},
    table::Aliases,
};
use countersign_store::{PinStore, PolicySnapshot, Record, Store, write_record};
use countersign_telemetry::logs;
use countersign_upstream::Upstreams;
use countersign_webhooks::Webhooks;

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

/// A gateway that serves.
pub struct Live {
    pub router: Addr<Router>,
    /// Providers that are compiled in: they come before the servers.
    pub built_in: Vec<Target>,
    pub upstreams: Arc<Upstreams>,
    pub pins: Arc<PinStore>,
    pub store: Arc<dyn Store>,
    pub people: Arc<People>,
    pub webhooks: Arc<Webhooks>,
}

/// Says which acceptances do not hold for what is behind the names of these servers now.
pub async fn behind(pins: &PinStore, servers: &[UpstreamConfig]) {
    for server in servers {
        let tools = pins.behind(&server.name, &server.target.fingerprint()).await;
        if tools > 0 {
            tracing::warn!(
                server = %server.name,
                tools,
                "tools were accepted of another command or address of this name, and wait to be accepted anew"
            );
        }
    }
}

impl Live {
    const GONE: &'static str = "the router has ended";

    async fn publish(&self, servers: &[UpstreamConfig]) -> Result<(), String> {
        behind(&self.pins, servers).await;
        let mut providers = self.built_in.clone();
        providers.extend(self.upstreams.apply(servers).into_iter().map(Target::Upstream));
        let done = self.router.send(PublishProviders(providers)).await.map_err(|_| Self::GONE.to_owned())?;
        done.map_err(|error| error.to_string())
    }
}

impl Applies for Live {
    fn routing<'a>(&'a self, policy: &'a PolicyConfig, routes: &'a RoutesConfig) -> BoxFuture<'a, Result<(), String>> {
        Box::pin(async move {
            let aliases = Aliases::new(routes).map_err(|error| error.to_string())?;
            let message = Reconfigure { policy: Policy::new(policy), aliases };
            let done = self.router.send(message).await.map_err(|_| Self::GONE.to_owned())?;
            done.map_err(|error| error.to_string())?;
            self.people.set(&policy.groups);
            Ok(())
        })
    }

    fn servers<'a>(
        &'a self,
        before: &'a [UpstreamConfig],
        now: &'a [UpstreamConfig],
    ) -> BoxFuture<'a, Result<(), String>> {
        Box::pin(async move {
            let done = self.publish(now).await;
            if done.is_err()
                && let Err(error) = self.publish(before).await
            {
                tracing::error!(error, "the old servers could not be put back");
            }
            done
        })
    }

    fn webhooks<'a>(&'a self, now: &'a [WebhookConfig]) -> BoxFuture<'a, Result<(), String>> {
        Box::pin(async move { self.webhooks.apply(now).await.map_err(|error| error.to_string()) })
    }

    fn log_filter(&self, filter: &str) -> Result<(), String> {
        logs::set_filter(filter).map_err(|error| error.to_string())
    }

    fn save(&self, snapshot: PolicySnapshot, by_consent: bool) -> BoxFuture<'static, Result<(), String>> {
        let saved = self.store.save_policy(snapshot, by_consent);
        Box::pin(async move { saved.await.map_err(|error| error.to_string()) })
    }

    fn newest(&self) -> BoxFuture<'static, Option<String>> {
        let known = self.store.policies();
        Box::pin(async move { known.await.ok()?.newest.map(|newest| newest.digest) })
    }

    fn record(&self, event: &'static str, by: &str, details: String) -> BoxFuture<'static, Result<(), String>> {
        let record = Record {
            change: String::new(),
            server: String::new(),
            pins: Vec::new(),
            rules: Vec::new(),
            late: None,
            event,
            at: Timestamp::now(),
            actor: by.to_owned(),
            details,
        };
        let written = write_record(&*self.store, record);
        Box::pin(async move { written.await.map_err(|error| error.to_string()) })
    }
}
