//! The health, the description and the metrics of the gateway.

use std::{sync::Arc, time::Instant};

use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::gateway::registry::Registry;
use countersign_config::Config;
use countersign_exchange::{body_budget::BodyBudget, state::Channel};
use countersign_protocol::Revision;
use countersign_review::Changes;
use countersign_routing::PublishedTable;
use countersign_telemetry::{
    Metrics, Queue,
    metrics::{body_bytes, queue_length},
};
use countersign_upstream::Upstreams;

/// The sources of the gateway's health, description and metrics.
pub struct GatewayStatus {
    pub started_at: Instant,
    /// Cancelled when the gateway begins to drain.
    pub shutdown: CancellationToken,
    pub changes: Changes,
    pub routes: Arc<PublishedTable>,
    pub upstreams: Arc<Upstreams>,
    pub registry: Arc<Registry>,
    /// The budget of bytes for request bodies.
    pub body_budget: Arc<BodyBudget>,
    pub metrics: Metrics,
    /// Returns the configuration that is in force.
    pub config: Box<dyn Fn() -> Arc<Config> + Send + Sync>,
}

impl GatewayStatus {
    /// Returns the health that `GET /health` serves: whether the gateway is live and able to take work.
    pub fn health(&self) -> Value {
        let nodes = self.changes.nodes();
        let is_draining = self.shutdown.is_cancelled();
        let store = match self.changes.current_store_error() {
            // A gateway that is shutting down closes its store.
            _ if !is_draining && !self.changes.is_healthy() => "failed",
            Some(trouble) => trouble.readiness_reason(),
            // The database has not answered for so long that other nodes count this node as gone.
            None if !is_draining && !nodes.holds_claim(None) => "unreachable",
            None => "ok",
        };
        let table = self.routes.load();
        let listed = |server: &str| table.tools().iter().any(|route| route.provider.name() == server);
        let missing = self.upstreams.missing_required(listed);
        let is_ready = store == "ok" && !is_draining && missing.is_empty() && table.generation > 0;
        let mut health = json!({
            "status": if is_ready { "ok" } else if is_draining { "draining" } else { "unavailable" },
            "live": true,
            "ready": is_ready,
            "checks": {
                // Other values are `disk_full`, `locked`, `damaged`, `failed` and `unreachable`.
                "store": store,
                "draining": is_draining,
                // Only required servers count.
                "upstreams": if missing.is_empty() { json!("ok") } else { json!({ "missing": missing }) },
            },
        });
        // A gateway that is the only one of its store has no other nodes to show.
        if nodes.claimant().is_some() {
            health["checks"]["nodes"] =
                json!({ "live": nodes.live_count(), "otherConfiguration": nodes.differing_count() });
        }
        health
    }

    /// Returns the description that `GET /info` serves. It contains nothing confidential.
    pub fn info(&self) -> Value {
        let table = self.routes.load();
        let policy = &(self.config)().policy;
        json!({
            "name": "countersign",
            "title": "Countersign",
            "version": env!("CARGO_PKG_VERSION"),
            "protocolVersions": Revision::ALL.map(Revision::as_str),
            "transports": {
                "streamableHttp": "/mcp",
                "websocket": "/ws",
                "sse": { "stream": "/sse", "messages": "/messages" },
                "http": "/tools",
                "stdio": "countersign stdio",
            },
            "providers": table.providers().iter().map(|p| p.name()).collect::<Vec<_>>(),
            "tools": table.tools().len(),
            "prompts": table.prompts().len(),
            "policy": policy.default.as_str(),
            "policyMode": policy.mode,
            "uptimeSeconds": self.started_at.elapsed().as_secs(),
        })
    }

    /// Returns the metrics as Prometheus text, after an update of the gauges that are sampled rather than counted.
    pub fn render_metrics(&self) -> String {
        let mut queued = 0;
        self.registry.for_each(|session| {
            if let Channel::Outbox(outbox) = &session.channel {
                queued += outbox.len();
            }
        });
        #[expect(clippy::cast_precision_loss, reason = "a gauge is a float; queues are far below 2^52")]
        queue_length(Queue::Outbox).set(queued as f64);
        #[expect(clippy::cast_precision_loss, reason = "bodies are far below 2^52 bytes, too")]
        body_bytes().set(self.body_budget.reserved_bytes() as f64);
        self.upstreams.update_gauges();
        self.metrics.render()
    }
}
