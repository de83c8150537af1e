//! Introduces this node to the other nodes of the store, and applies what they write there.

use std::{
    collections::BTreeSet,
    net::SocketAddr,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use metrics::gauge;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::acceptances::{self, AcceptanceChange};
use countersign_config::{Config, UpstreamTarget};
use countersign_domain::changes::{audit::AuditEntry, digest::PartHasher};
use countersign_http::tls::ServerCertificate;
use countersign_reload::{
    Reloader,
    pending::{ACCEPTED_EVENT, REFUSED_EVENT},
};
use countersign_review::{Changes, ESCALATED_EVENT};
use countersign_routing::table::{PublishedTable, RouteTable};
use countersign_rulings::{
    standing_rules::StandingRuleService,
    tool_acceptance::{AcceptanceAction, RouteRebuilder, acceptance_event},
};
use countersign_session::lifetimes::SessionLifetimes;
use countersign_store::{
    AuditSearch, Nodes, PinStore, Store, StoreError,
    nodes::{Introduction, ServerStates},
};
use countersign_telemetry::metrics as telemetry;
use countersign_upstream::server::Phase;

/// The interval at which this node's configuration, servers and lease are checked.
const POLL_INTERVAL: Duration = Duration::from_millis(250);
/// The maximum number of audit entries that are read at a time.
const PAGE_SIZE: usize = 50;

/// Returns a hash of the configuration that must be the same on all nodes: without addresses, directories, transports,
/// logs and secrets.
fn configuration_fingerprint(config: &Config) -> String {
    let defaults = Config::default();
    let shared = Config {
        listen: defaults.listen,
        // The default depends on the home directory of this machine's user.
        data: PathBuf::new(),
        store: None,
        key_file: None,
        token_key: None,
        tls: None,
        transports: defaults.transports,
        log: defaults.log,
        ..config.clone()
    };
    let mut hasher = PartHasher::new("countersign.configuration.1");
    hasher.add_part(format!("{shared:?}").as_bytes());
    hasher.finish()
}

/// Returns the URL at which the other nodes reach this one: the configured URL, or else a URL with the bound address.
/// An unspecified address (`0.0.0.0` or `::`) is replaced by the one from which this machine reaches the store.
pub fn node_url(config: &Config, bound: SocketAddr, nodes: &dyn Nodes) -> String {
    if let Some(url) = config.node_url() {
        return url.trim_end_matches('/').to_owned();
    }
    let mut address = bound;
    match nodes.outward_address() {
        Some(ip) if bound.ip().is_unspecified() => address.set_ip(ip),
        Some(ip) if bound.ip().is_loopback() && !ip.is_loopback() => tracing::warn!(
            %bound,
            "gateways on other machines cannot forward requests to this one, because it listens on loopback only; set \
             listen, or store.node_url"
        ),
        _ => {}
    }
    config.local_url(address)
}

/// Returns the servers that this node reaches, those that it does not reach, and the open circuit breakers.
fn server_states(table: &RouteTable) -> ServerStates {
    let mut states = ServerStates::default();
    for upstream in table.providers().iter().filter_map(|provider| provider.upstream()) {
        let name = &upstream.config.name;
        match upstream.phase() {
            Phase::Up => states.up.push(name.clone()),
            Phase::Down(_) => states.down.push(name.clone()),
            // A server that reconnects keeps its last state until the new state is known.
            Phase::Connecting if upstream.was_reached() => states.up.push(name.clone()),
            // Accounts are the same at all nodes, so a missing consent says nothing about this node.
            Phase::Connecting | Phase::ConsentNeeded(_) => {}
        }
        // Each node starts its own child processes, so their failures do not concern other nodes.
        if let UpstreamTarget::Url { .. } = upstream.config.target {
            states.open.extend(upstream.open_breakers().into_iter().map(|address| (name.clone(), address)));
        }
    }
    states
}

/// Returns the entries of the audit trail after `last` and up to `end` that a node applies, oldest first.
async fn read_entries(store: &dyn Store, last: u64, end: u64) -> Result<Vec<AuditEntry>, StoreError> {
    let events = [ACCEPTED_EVENT, REFUSED_EVENT, ESCALATED_EVENT].map(str::to_owned).to_vec();
    let search = AuditSearch { events, ..AuditSearch::default() };
    let (mut entries, mut before) = (Vec::new(), Some(end + 1));
    while let Some(top) = before.filter(|top| *top > last + 1) {
        let page = store.search_audit(search.clone(), Some(top), PAGE_SIZE).await?;
        entries.extend(page.entries.into_iter().map(|found_entry| found_entry.entry).filter(|entry| entry.seq > last));
        before = page.next;
    }
    entries.reverse();
    Ok(entries)
}

/// Returns `true` if the entry records that a reviewer accepted a pending configuration.
fn is_consent(entry: &AuditEntry) -> bool {
    entry.event == ACCEPTED_EVENT
}

/// Returns the digest of the pending configuration that a reviewer decided on.
fn decided_digest(entry: &AuditEntry) -> String {
    let details = entry.details.get().parse::<Value>().unwrap_or_default();
    details["digest"].as_str().unwrap_or_default().to_owned()
}

/// Returns the decisions on the pending configuration with this digest after the audit entry `last`, oldest first: `true`
/// for consent.
pub async fn decisions_after(store: &dyn Store, last: u64, digest: &str) -> Result<Vec<bool>, StoreError> {
    let end = store.heads().await?.audit.seq;
    let entries = read_entries(store, last, end).await?;
    let is_decision = |entry: &&AuditEntry| entry.event != ESCALATED_EVENT && decided_digest(entry) == digest;
    Ok(entries.iter().filter(is_decision).map(is_consent).collect())
}

/// Publishes the state of this node, and applies what the other nodes write to the store.
pub struct NodeSync {
    pub nodes: Arc<dyn Nodes>,
    pub store: Arc<dyn Store>,
    pub routes: Arc<PublishedTable>,
    pub pins: Arc<PinStore>,
    pub standing_rules: Arc<StandingRuleService>,
    pub rebuild_routes: RouteRebuilder,
    pub changes: Changes,
    pub reloader: Arc<Reloader>,
    pub url: String,
    /// The TLS certificate that this node presents at `url`; `None` without TLS.
    pub certificate: Option<Arc<ServerCertificate>>,
    /// The number of the last audit entry that was read and applied. At the start, it is the last entry from before this
    /// node read the policies of the store, because they include all earlier decisions.
    pub last_read_entry: Arc<AtomicU64>,
    pub lifetimes: Arc<SessionLifetimes>,
}

impl NodeSync {
    /// Publishes the address of this node, and returns once other nodes can read it.
    ///
    /// # Errors
    /// Errors of the store.
    pub async fn introduce(&self) -> Result<(), StoreError> {
        self.nodes.introduce(self.introduction(&self.reloader.config(), self.certificate_fingerprint()));
        self.nodes.refresh().await
    }

    /// Runs until the gateway shuts down.
    pub async fn run(self, shutdown: CancellationToken) {
        tokio::join!(self.follow_store(&shutdown), self.watch_lease(&shutdown));
    }

    /// Ends sessions and suspends standing rules as soon as the lease is lost, even if the store does not answer.
    async fn watch_lease(&self, shutdown: &CancellationToken) {
        loop {
            let holds_lease = self.nodes.holds_claim(None);
            if self.standing_rules.cache().set_cut_off(!holds_lease) {
                if holds_lease {
                    tracing::info!("this node holds its lease again, so standing rules allow calls again");
                } else {
                    tracing::warn!(
                        "this node lost its lease, so standing rules allow no calls until it holds the lease again"
                    );
                }
                (self.rebuild_routes)().await;
            }
            self.lifetimes.end_lapsed_epoch();
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = tokio::time::sleep(POLL_INTERVAL) => {}
            }
        }
    }

    /// Publishes the state of this node, and applies what other nodes have written.
    async fn follow_store(&self, shutdown: &CancellationToken) {
        let mut updates = self.nodes.subscribe_updates();
        // All records count as new, because other nodes may have written some since the start read acceptances and rules.
        let mut applied_records = 0;
        let mut introduced: Option<(Arc<Config>, String)> = None;
        let (mut published_states, mut breakers_open_at_peers) = (None, BTreeSet::new());
        loop {
            let (config, certificate) = (self.reloader.config(), self.certificate_fingerprint());
            let is_current =
                |introduced: &(Arc<Config>, String)| Arc::ptr_eq(&introduced.0, &config) && introduced.1 == certificate;
            if !introduced.as_ref().is_some_and(is_current) {
                self.nodes.introduce(self.introduction(&config, certificate.clone()));
                introduced = Some((config, certificate));
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
                changed = updates.changed() => if changed.is_err() {
                    return;
                }
            }
            let states = server_states(&self.routes.load());
            if published_states.as_ref() != Some(&states) {
                self.nodes.set_server_states(states.clone());
                published_states = Some(states);
            }
            self.require_trial_calls(&mut breakers_open_at_peers);
            let records = updates.borrow_and_update().records;
            if records != applied_records || self.pins.is_behind() || self.standing_rules.is_behind() {
                let apply = async {
                    self.reload_rulings().await?;
                    self.apply_audit_entries().await
                };
                match apply.await {
                    Ok(()) => applied_records = records,
                    Err(StoreError::Closed) => return,
                    Err(error) => tracing::warn!(%error, "the decisions of other nodes cannot be read; trying again"),
                }
            }
        }
    }

    /// Requires a single trial call at each address whose breaker another node has opened since the last check.
    fn require_trial_calls(&self, open_before: &mut BTreeSet<(String, usize)>) {
        let open: BTreeSet<(String, usize)> =
            self.nodes.peer_server_states().into_iter().flat_map(|states| states.open).collect();
        for (server, address) in open.difference(open_before) {
            let table = self.routes.load();
            if let Some(upstream) = table.provider(server).and_then(|provider| provider.upstream()) {
                tracing::info!(
                    server,
                    "another node does not reach this server; a single trial call is made before further calls"
                );
                upstream.require_trial_call(*address);
            }
        }
        *open_before = open;
    }

    /// Applies decisions of reviewers at other nodes on configurations that are pending here too, and announces the escalations
    /// that the leading node recorded. After an error, the next call continues with the first entry that was not applied.
    async fn apply_audit_entries(&self) -> Result<(), StoreError> {
        let (end, last) = (self.store.heads().await?.audit.seq, self.last_read_entry.load(Ordering::Acquire));
        for entry in read_entries(&*self.store, last, end).await? {
            if entry.event == ESCALATED_EVENT {
                // The leading node announced it when it recorded it.
                if !self.nodes.is_leader() {
                    self.changes.announce_escalation(&entry.change_id).await?;
                }
            } else {
                self.reloader.apply_remote_decision(&decided_digest(&entry), is_consent(&entry), &entry.actor).await;
            }
            self.last_read_entry.store(entry.seq, Ordering::Release);
        }
        self.last_read_entry.store(end, Ordering::Release);
        Ok(())
    }

    /// Returns the data by which other nodes reach this one and recognize a different configuration.
    fn introduction(&self, config: &Config, certificate: String) -> Introduction {
        Introduction {
            url: self.url.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            configuration: configuration_fingerprint(config),
            certificate,
        }
    }

    /// Returns the fingerprint of the certificate in use, or an empty text without TLS.
    fn certificate_fingerprint(&self) -> String {
        self.certificate.as_ref().map(|certificate| certificate.fingerprint()).unwrap_or_default()
    }

    /// Reloads pins and standing rules from the store, and publishes to the feed what was decided at other nodes.
    async fn reload_rulings(&self) -> Result<(), StoreError> {
        let (before, after) = self.pins.reload().await?;
        if before.servers != after.servers {
            (self.rebuild_routes)().await;
            for AcceptanceChange { server, accepted_by, tools } in acceptances::compare_pins(&before, &after) {
                let (action, by) = match accepted_by {
                    Some(by) => (AcceptanceAction::Accepted, Some(by)),
                    None => (AcceptanceAction::Revoked, acceptances::last_revoker(&*self.store, &server).await),
                };
                let tools: Vec<&str> = tools.iter().map(String::as_str).collect();
                self.changes.feed().publish_live(&acceptance_event(&server, action, &tools, by.as_deref()));
            }
        }
        self.standing_rules.reload().await
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;
    use tokio::{
        sync::watch,
        time::{sleep, timeout},
    };

    use super::*;
    use countersign_config::{Environment, Flags, load};
    use countersign_domain::policy::pins::{Definition, PinSource as _};
    use countersign_reload::{ConfigSource, InitialConfig, testing::UnchangingGateway};
    use countersign_rulings::standing_rules::{StandingRuleCache, StandingRuleServiceDeps};
    use countersign_session::testing::Gateway;
    use countersign_store::{
        StoreFuture, StoreLocation,
        nodes::{Node, StoreUpdates},
    };

    /// The nodes of a store to which another node has written one record.
    struct SharedNodes(watch::Sender<StoreUpdates>);

    impl Nodes for SharedNodes {
        fn subscribe_updates(&self) -> watch::Receiver<StoreUpdates> {
            self.0.subscribe()
        }
        fn introduce(&self, _: Introduction) {}
        fn set_server_states(&self, _: ServerStates) {}
        fn list(&self) -> StoreFuture<Vec<Node>> {
            Box::pin(async { Ok(Vec::new()) })
        }
    }

    #[actix::test]
    async fn records_of_others_during_the_start_are_applied() {
        let gateway = Gateway::new("").await;
        let (data, changes) = (&gateway.config.data, gateway.server.reviews.changes.clone());
        let store: Arc<dyn Store> = StoreLocation::directory(data).open().unwrap();
        let routes = Arc::clone(&gateway.server.routing.routes);
        let pins = Arc::new(PinStore::open(Arc::clone(&store)).await.unwrap());
        let standing_rules = StandingRuleService::new(StandingRuleServiceDeps {
            store: Arc::clone(&store),
            cache: StandingRuleCache::open(&store).await.unwrap(),
            reviewers: Arc::default(),
            routes: Arc::clone(&routes),
            rebuild: Box::new(|| async {}.boxed()),
            feed: changes.feed().clone(),
        });
        let last_read_entry = Arc::new(AtomicU64::new(store.heads().await.unwrap().audit.seq));
        // Another node accepts a tool before this node follows the others.
        let tool = Definition { name: "read".into(), hash: "h".into(), text: "{}".into() };
        let other = PinStore::open(Arc::clone(&store)).await.unwrap();
        other.accept(("fs", "target"), &[tool], None, "alice").await.unwrap();
        let flags = Flags { data: Some(data.clone()), ..Flags::default() };
        let loaded = load(&flags, &Environment::new(data, &[])).unwrap();
        let initial = InitialConfig::for_empty_store(loaded, [0; 16]);
        let reloader =
            Reloader::new(ConfigSource::default(), initial, Box::new(UnchangingGateway), Box::new(|_: &Value| ()));
        let sync = NodeSync {
            nodes: Arc::new(SharedNodes(watch::channel(StoreUpdates { records: 1, ..StoreUpdates::default() }).0)),
            store,
            routes,
            pins: Arc::clone(&pins),
            standing_rules: Arc::new(standing_rules),
            rebuild_routes: Box::new(|| async {}.boxed()),
            changes,
            reloader: Arc::new(reloader),
            url: String::new(),
            certificate: None,
            last_read_entry,
            lifetimes: Arc::clone(&gateway.sessions.lifetimes),
        };
        let applied = async {
            while !pins.pins().has_server("fs") {
                sleep(Duration::from_millis(10)).await;
            }
        };
        let shutdown = CancellationToken::new();
        tokio::select! {
            () = sync.follow_store(&shutdown) => panic!("the node follows the others until it shuts down"),
            applied = timeout(Duration::from_secs(10), applied) => applied.expect("the acceptance is applied"),
        }
    }
}
