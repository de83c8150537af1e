//! Introduces this gateway to the others on the same store, and follows what they write there.

use std::{collections::BTreeSet, net::SocketAddr, sync::Arc, time::Duration};

use metrics::gauge;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::acceptances::{self, AcceptanceChange};
use countersign_config::Config;
use countersign_config::UpstreamTarget;
use countersign_domain::changes::digest::PartHasher;
use countersign_feed::Feed;
use countersign_reload::Reloader;
use countersign_routing::table::{PublishedTable, RouteTable};
use countersign_rulings::{
    standing_rules::StandingRules,
    tool_acceptance::{self, RebuildRoutes},
};
use countersign_store::{
    AuditSearch, Nodes, PinStore, Store, StoreError,
    nodes::{Introduction, ServerStates},
};
use countersign_telemetry::metrics as telemetry;
use countersign_upstream::server::Phase;

/// The interval at which the configuration in force, the servers and the lease are checked.
const POLL_INTERVAL: Duration = Duration::from_millis(250);
/// The audit events of a reviewer's decision on a pending configuration: accepted or refused.
const DECISION_EVENTS: [&str; 2] = ["configuration_accepted", "configuration_refused"];
/// Decisions that are read at a time.
const PAGE_SIZE: usize = 50;

/// Returns a hash of everything that must be the same on all nodes. It leaves out addresses, directories, logs and secrets.
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
    hasher.add_part(format!("{shared:?}").as_bytes());
    hasher.finish()
}

/// Returns the key that seals the state of requests, which is the same on all nodes.
pub fn state_key(secret: &[u8; 32]) -> [u8; 32] {
    let mut hasher = PartHasher::new("countersign.state.1");
    hasher.add_part(secret);
    hasher.finish_bytes()
}

/// Returns the salt for digests of pending configurations. It is the same on all nodes and after a restart.
pub fn consent_salt(secret: &[u8; 32]) -> [u8; 16] {
    let mut hasher = PartHasher::new("countersign.consent.1");
    hasher.add_part(secret);
    let mut salt = [0; 16];
    salt.copy_from_slice(&hasher.finish_bytes()[..16]);
    salt
}

/// Returns the URL at which the other gateways reach this one: the configured one, or that of the bound address. If that
/// is unspecified, its address is the one from which this machine reaches the store.
pub fn node_url(config: &Config, bound: SocketAddr, nodes: &dyn Nodes) -> String {
    if let Some(url) = config.node_url() {
        return url.trim_end_matches('/').to_owned();
    }
    let outward = nodes.outward_address();
    match outward {
        Some(ip) if bound.ip().is_unspecified() => config.local_url(SocketAddr::new(ip, bound.port())),
        Some(ip) if bound.ip().is_loopback() && !ip.is_loopback() => {
            tracing::warn!(
                %bound,
                "gateways on other machines cannot forward requests to this one, because it listens on loopback only; set \
                 listen, or store.node_url"
            );
            config.local_url(bound)
        }
        _ => config.local_url(bound),
    }
}

/// Returns which servers this gateway reaches.
fn reach_of_servers(table: &RouteTable) -> ServerStates {
    let mut reach = ServerStates::default();
    for upstream in table.providers().iter().filter_map(|provider| provider.upstream()) {
        let name = &upstream.config.name;
        match upstream.phase() {
            Phase::Up => reach.up.push(name.clone()),
            Phase::Down(_) => reach.down.push(name.clone()),
            // It keeps its last state until the new one is known.
            Phase::Connecting if upstream.was_reached() => reach.up.push(name.clone()),
            Phase::Connecting => {}
        }
        // Each gateway starts its own programs, whose failures do not concern other nodes.
        if let UpstreamTarget::Url { .. } = upstream.config.target {
            reach.open.extend(upstream.open_breakers().into_iter().map(|address| (name.clone(), address)));
        }
    }
    reach
}

/// Follows the other nodes on the store.
pub struct Follower {
    pub nodes: Arc<dyn Nodes>,
    pub store: Arc<dyn Store>,
    pub routes: Arc<PublishedTable>,
    pub pins: Arc<PinStore>,
    pub standing: Arc<StandingRules>,
    pub rebuild: RebuildRoutes,
    pub feed: Feed,
    pub reloads: Arc<Reloader>,
    pub url: String,
    /// The fingerprint of the certificate that this node presents there.
    pub certificate: String,
    /// Ends the sessions of this node whose lease has lapsed.
    pub end_lapsed_sessions: Box<dyn Fn()>,
}

impl Follower {
    /// Publishes this node's address, and returns when other nodes can read it.
    ///
    /// # Errors
    /// Errors of the store.
    pub async fn introduce(&self) -> Result<(), StoreError> {
        self.nodes.introduce(self.introduction(&self.reloads.config()));
        self.nodes.refresh().await
    }

    /// Runs until the gateway shuts down.
    pub async fn run(self, shutdown: CancellationToken) {
        tokio::join!(self.follow(&shutdown), self.watch_lease(&shutdown));
    }

    /// Ends sessions and suspends standing rules as soon as the lease is lost, even while the store answers nothing else.
    async fn watch_lease(&self, shutdown: &CancellationToken) {
        loop {
            if self.standing.cache().set_cut_off(!self.nodes.holds_claim(None)) {
                tracing::warn!(
                    holds = self.nodes.holds_claim(None),
                    "standing rules allow as long as this node holds its lease"
                );
                (self.rebuild)().await;
            }
            (self.end_lapsed_sessions)();
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = tokio::time::sleep(POLL_INTERVAL) => {}
            }
        }
    }

    async fn follow(&self, shutdown: &CancellationToken) {
        let mut news = self.nodes.subscribe_updates();
        let mut records = news.borrow_and_update().records;
        let mut introduced: Option<Arc<Config>> = None;
        let (mut published_reach, mut open_elsewhere) = (None, BTreeSet::new());
        // Earlier decisions are already in force.
        let mut last_decision = self.store.heads().await.ok().map(|heads| heads.audit.seq);
        loop {
            let config = self.reloads.config();
            if !introduced.as_ref().is_some_and(|known| Arc::ptr_eq(known, &config)) {
                self.nodes.introduce(self.introduction(&config));
                introduced = Some(config);
            }
            #[allow(clippy::cast_precision_loss, reason = "a gauge")]
            gauge!(telemetry::NODES).set(self.nodes.live_count() as f64);
            gauge!(telemetry::NODE_LEADS).set(if self.nodes.is_leader() { 1.0 } else { 0.0 });
            tokio::select! {
                () = shutdown.cancelled() => {
                    gauge!(telemetry::NODE_LEADS).set(0.0);
                    return;
                }
                () = tokio::time::sleep(POLL_INTERVAL) => {}
                changed = news.changed() => if changed.is_err() {
                    return;
                }
            }
            let reach = reach_of_servers(&self.routes.load());
            if published_reach.as_ref() != Some(&reach) {
                self.nodes.set_server_states(reach.clone());
                published_reach = Some(reach);
            }
            self.require_trial_calls(&mut open_elsewhere);
            let written = news.borrow_and_update().records;
            if written != records || self.pins.is_behind() {
                let reloaded = match self.reload().await {
                    Ok(()) => self.follow_decisions(&mut last_decision).await,
                    Err(error) => Err(error),
                };
                match reloaded {
                    Ok(()) => records = written,
                    Err(StoreError::Closed) => return,
                    Err(error) => tracing::warn!(%error, "the decisions of other nodes cannot be read; trying again"),
                }
            }
        }
    }

    /// Requires a single trial call at each address whose breaker another node has opened since the last check.
    fn require_trial_calls(&self, open_before: &mut BTreeSet<(String, usize)>) {
        let open: BTreeSet<(String, usize)> =
            self.nodes.peer_server_states().into_iter().flat_map(|reach| reach.open).collect();
        for (server, address) in open.difference(open_before) {
            let table = self.routes.load();
            if let Some(upstream) =
                table.providers().iter().find(|one| one.name() == server).and_then(|one| one.upstream())
            {
                tracing::info!(server, "another node does not reach this server; one trial call precedes further ones");
                upstream.require_trial_call(*address);
            }
        }
        *open_before = open;
    }

    /// Applies decisions that reviewers made at other nodes on configurations that are pending here too.
    async fn follow_decisions(&self, last_seen: &mut Option<u64>) -> Result<(), StoreError> {
        let end = self.store.heads().await?.audit.seq;
        let Some(last) = last_seen.replace(end) else { return Ok(()) };
        let search = AuditSearch { events: DECISION_EVENTS.map(str::to_owned).to_vec(), ..AuditSearch::default() };
        let (mut decisions, mut before) = (Vec::new(), Some(end + 1));
        while let Some(top) = before.filter(|top| *top > last + 1) {
            let found = self
                .store
                .search_audit(search.clone(), Some(top), PAGE_SIZE)
                .await
                .inspect_err(|_| *last_seen = Some(last))?;
            decisions.extend(found.entries.into_iter().map(|found| found.entry).filter(|entry| entry.seq > last));
            before = found.next;
        }
        for entry in decisions.iter().rev() {
            let details = serde_json::from_str::<Value>(entry.details.get()).unwrap_or_default();
            let digest = details["digest"].as_str().unwrap_or_default();
            self.reloads.apply_remote_decision(digest, entry.event == DECISION_EVENTS[0], &entry.actor).await;
        }
        Ok(())
    }

    fn introduction(&self, config: &Config) -> Introduction {
        Introduction {
            url: self.url.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            configuration: fingerprint(config),
            certificate: self.certificate.clone(),
        }
    }

    /// Reloads pins and standing rules from the store, and publishes what was decided at other nodes to the feed.
    async fn reload(&self) -> Result<(), StoreError> {
        let (before, after) = self.pins.reload().await?;
        if before.servers != after.servers {
            (self.rebuild)().await;
            for AcceptanceChange { server, accepted_by, tools } in acceptances::compare_pins(&before, &after) {
                let (verb, by) = match accepted_by {
                    Some(by) => ("accepted", Some(by)),
                    None => ("revoked", acceptances::last_revoker(&*self.store, &server).await),
                };
                let tools: Vec<&str> = tools.iter().map(String::as_str).collect();
                self.feed.publish_session(&tool_acceptance::acceptance_event(&server, verb, &tools, by.as_deref()));
            }
        }
        self.standing.reload().await
    }
}
