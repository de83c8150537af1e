//! This gateway beside others on one store: says who it is, and takes over what they have written that is kept in memory.

use std::{sync::Arc, time::Duration};

use metrics::gauge;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use countersign_config::Config;
use countersign_domain::changes::digest::PartHasher;
use countersign_reload::Reloads;
use countersign_review::Feed;
use countersign_routing::{standing_rules::StandingRules, tool_acceptance::Rebuild};
use countersign_store::{Nodes, PinStore, StoreError, nodes::Introduction};
use countersign_telemetry::metrics as telemetry;

/// How often it is looked whether what is in force is another configuration by now.
const LOOK: Duration = Duration::from_secs(1);

/// What has to be the same on all nodes, as a hash: not where each listens, keeps its files and logs to, nor secrets.
pub fn fingerprint(config: &Config) -> String {
    let defaults = Config::default();
    let shared = Config {
        listen: defaults.listen,
        data: defaults.data,
        store: None,
        tls: None,
        transports: defaults.transports,
        log: defaults.log,
        ..config.clone()
    };
    let mut hasher = PartHasher::new("countersign.configuration.1");
    hasher.part(format!("{shared:?}").as_bytes());
    hasher.finish()
}

/// The key by which states of requests are sealed, at whichever node.
pub fn state_key(secret: &[u8; 32]) -> [u8; 32] {
    let mut hasher = PartHasher::new("countersign.state.1");
    hasher.part(secret);
    hasher.bytes()
}

/// What follows the other nodes.
pub struct Follower {
    pub nodes: Arc<dyn Nodes>,
    pub pins: Arc<PinStore>,
    pub standing: Arc<StandingRules>,
    pub rebuild: Rebuild,
    pub feed: Feed,
    pub reloads: Arc<Reloads>,
    pub url: String,
}

impl Follower {
    /// Until the gateway shuts down.
    pub async fn run(self, shutdown: CancellationToken) {
        let mut news = self.nodes.news();
        let mut records = news.borrow_and_update().records;
        let mut said: Option<Arc<Config>> = None;
        loop {
            let config = self.reloads.config();
            if !said.as_ref().is_some_and(|said| Arc::ptr_eq(said, &config)) {
                self.nodes.introduce(self.introduction(&config));
                said = Some(config);
            }
            #[allow(clippy::cast_precision_loss, reason = "a gauge")]
            gauge!(telemetry::NODES).set(self.nodes.live() as f64);
            gauge!(telemetry::NODE_LEADS).set(if self.nodes.leads() { 1.0 } else { 0.0 });
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = tokio::time::sleep(LOOK) => {}
                changed = news.changed() => if changed.is_err() {
                    return;
                }
            }
            if self.standing.board().set_cut_off(!self.nodes.holds(None)) {
                tracing::warn!(
                    holds = self.nodes.holds(None),
                    "standing rules allow as long as this node holds its lease"
                );
                (self.rebuild)().await;
            }
            let written = news.borrow_and_update().records;
            if written != records {
                match self.reload().await {
                    Ok(()) => records = written,
                    Err(StoreError::Closed) => return,
                    Err(error) => tracing::warn!(%error, "what other nodes have decided cannot be read; trying again"),
                }
            }
        }
    }

    fn introduction(&self, config: &Config) -> Introduction {
        Introduction {
            url: self.url.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            configuration: fingerprint(config),
        }
    }

    /// Pins and standing rules, as they are in the store by now.
    async fn reload(&self) -> Result<(), StoreError> {
        let before = self.pins.snapshot();
        self.pins.reload().await?;
        let after = self.pins.snapshot();
        let pins = before.servers != after.servers;
        let rules = self.standing.reload().await?;
        if !pins && !rules {
            return Ok(());
        }
        (self.rebuild)().await;
        // Dashboards of this node show what was decided at another one.
        let at = jiff::Timestamp::now().to_string();
        if rules {
            self.feed.publish_session(&json!({ "type": "rule.changed", "at": at }));
        }
        for (server, pins) in &after.servers {
            if before.servers.get(server) != Some(pins) {
                self.feed.publish_session(&json!({ "type": "provider.changed", "at": at, "provider": server }));
            }
        }
        Ok(())
    }
}
