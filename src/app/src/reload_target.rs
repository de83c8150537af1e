//! Applies a new configuration while the gateway runs.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use actix::Addr;
use async_trait::async_trait;
use jiff::Timestamp;

use crate::{acceptances::bind_acceptances, nodes};
use countersign_accounts::Accounts;
use countersign_auth::{Authenticator, ProviderSignIns};
use countersign_config::{OidcConfig, RoutesConfig, TokenIssuer, UpstreamConfig, WebhooksConfig};
use countersign_domain::policy::{Policy, PolicyConfig, Reviewers};
use countersign_reload::apply::Reconfigurable;
use countersign_routing::{
    RouteTarget, Router,
    actor::{PublishProviders, Reconfigure},
    table::Aliases,
};
use countersign_store::{AuditRecord, PinStore, PolicySnapshot, Store, WriteRequest, write};
use countersign_telemetry::logs;
use countersign_upstream::Upstreams;
use countersign_webhooks::Webhooks;

const ROUTER_ENDED: &str = "the router has ended";

/// The parts of the gateway that a reload of the configuration changes.
pub struct ReloadTarget {
    pub router: Addr<Router>,
    /// The modules, which precede the servers.
    pub modules: Vec<RouteTarget>,
    pub upstreams: Arc<Upstreams>,
    pub accounts: Arc<Accounts>,
    pub pins: Arc<PinStore>,
    pub store: Arc<dyn Store>,
    /// See [`nodes::NodeSync`].
    pub last_read_entry: Arc<AtomicU64>,
    pub reviewers: Arc<Reviewers>,
    pub webhooks: Arc<Webhooks>,
    pub authenticator: Arc<Authenticator>,
    pub provider_sign_ins: Arc<ProviderSignIns>,
}

#[async_trait]
impl Reconfigurable for ReloadTarget {
    async fn apply_routing(&self, policy: &PolicyConfig, routes: &RoutesConfig) -> Result<(), String> {
        let aliases = Aliases::new(routes).map_err(|error| error.to_string())?;
        let message = Reconfigure { policy: Policy::new(policy), aliases };
        let outcome = self.router.send(message).await.map_err(|_| ROUTER_ENDED.to_owned())?;
        outcome.map_err(|error| error.to_string())?;
        self.reviewers.set_groups(&policy.groups);
        Ok(())
    }

    async fn apply_servers(&self, servers: &[UpstreamConfig], strict: bool) -> Result<(), String> {
        bind_acceptances(&self.pins, servers).await;
        self.accounts.set_servers(servers);
        let mut providers = self.modules.clone();
        providers.extend(self.upstreams.apply(servers).into_iter().map(RouteTarget::Upstream));
        let message = PublishProviders { providers, strict };
        let outcome = self.router.send(message).await.map_err(|_| ROUTER_ENDED.to_owned())?;
        outcome.map_err(|error| error.to_string())
    }

    async fn apply_webhooks(&self, now: &WebhooksConfig) -> Result<(), String> {
        self.webhooks.apply(now).await.map_err(|error| error.to_string())
    }

    fn apply_issuers(&self, issuers: &[TokenIssuer]) {
        self.authenticator.tokens().set_issuers(issuers);
        self.reviewers.set_issuers(issuers.iter().map(|issuer| issuer.issuer.as_str()));
    }

    fn apply_identity_provider(&self, provider: Option<&OidcConfig>) {
        self.provider_sign_ins.client().set_provider(provider);
    }

    fn apply_log_filter(&self, filter: &str) -> Result<(), String> {
        logs::set_filter(filter).map_err(|error| error.to_string())
    }

    async fn save_policy(&self, snapshot: PolicySnapshot, by_consent: bool) -> Result<(), String> {
        self.store.save_policy(snapshot, by_consent).await.map_err(|error| error.to_string())
    }

    async fn newest_digest(&self) -> Option<String> {
        self.store.policies().await.ok()?.newest.map(|newest| newest.digest)
    }

    async fn record(&self, event: &'static str, by: &str, details: String) -> Result<(), String> {
        let record = AuditRecord::new(event, Timestamp::now(), by, details);
        write(&*self.store, WriteRequest::Record(record)).await.map_err(|error| error.to_string())
    }

    async fn unapplied_decisions(&self, digest: &str) -> Result<Vec<bool>, String> {
        if self.store.nodes().claimant().is_none() {
            return Ok(Vec::new());
        }
        let last = self.last_read_entry.load(Ordering::Acquire);
        nodes::decisions_after(&*self.store, last, digest).await.map_err(|error| error.to_string())
    }
}
