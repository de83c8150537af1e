//! This gateway beside others on one store: says who it is, and takes over what they have written that is kept in memory.

use std::{collections::BTreeSet, net::SocketAddr, sync::Arc, time::Duration};

use metrics::gauge;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::acceptances::{self, Moved};
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
    nodes::{Introduction, Reach},
};
use countersign_telemetry::metrics as telemetry;
use countersign_upstream::server::Phase;

/// How often it is looked whether what is in force is another configuration by now, and how the servers are.
const LOOK: Duration = Duration::from_millis(250);
/// A reviewer's word on a configuration that waits, in the audit trail: that it holds, or not.
const DECISIONS: [&str; 2] = ["configuration_accepted", "configuration_refused"];
/// Of them that are read at a time.
const PAGE: usize = 50;

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
    hasher.add_part(format!("{shared:?}").as_bytes());
    hasher.finish()
}

/// The key by which states of requests are sealed, at whichever node.
pub fn state_key(secret: &[u8; 32]) -> [u8; 32] {
    let mut hasher = PartHasher::new("countersign.state.1");
    hasher.add_part(secret);
    hasher.finish_bytes()
}

/// What digests of configurations that wait for consent are salted with, at whichever node and after a restart.
pub fn consent_salt(secret: &[u8; 32]) -> [u8; 16] {
    let mut hasher = PartHasher::new("countersign.consent.1");
    hasher.add_part(secret);
    let mut salt = [0; 16];
    salt.copy_from_slice(&hasher.finish_bytes()[..16]);
    salt
}

/// Where the other gateways reach this one: as the configuration says, or else where it listens. One that listens everywhere is
/// reached at the address from which this machine reaches the store.
pub fn url(config: &Config, listens: SocketAddr, nodes: &dyn Nodes) -> String {
    if let Some(url) = config.node_url() {
        return url.trim_end_matches('/').to_owned();
    }
    let outward = nodes.outward();
    match outward {
        Some(ip) if listens.ip().is_unspecified() => config.local_url(SocketAddr::new(ip, listens.port())),
        Some(ip) if listens.ip().is_loopback() && !ip.is_loopback() => {
            tracing::warn!(
                %listens,
                "gateways on other machines cannot hand requests on to this one, which listens on its own machine only; \
                 set listen, or store.node_url"
            );
            config.local_url(listens)
        }
        _ => config.local_url(listens),
    }
}

/// How the servers behind this gateway are.
fn reach(table: &RouteTable) -> Reach {
    let mut reach = Reach::default();
    for upstream in table.providers().iter().filter_map(|provider| provider.upstream()) {
        let name = &upstream.config.name;
        match upstream.phase() {
            Phase::Up => reach.up.push(name.clone()),
            Phase::Down(_) => reach.down.push(name.clone()),
            // As it was, until it is known.
            Phase::Connecting if upstream.was_reached() => reach.up.push(name.clone()),
            Phase::Connecting => {}
        }
        // A program is each gateway's own, and so is what becomes of it.
        if let UpstreamTarget::Url { .. } = upstream.config.target {
            reach.open.extend(upstream.open_breakers().into_iter().map(|address| (name.clone(), address)));
        }
    }
    reach
}

/// What follows the other nodes.
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
    /// Of the certificate that it shows there.
    pub certificate: String,
    /// Ends the sessions of this node that other nodes count as gone, if any.
    pub end_lapsed_sessions: Box<dyn Fn()>,
}

impl Follower {
    /// Tells the other nodes where this one is; returns once they can know.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn introduce(&self) -> Result<(), StoreError> {
        self.nodes.introduce(self.introduction(&self.reloads.config()));
        self.nodes.refresh().await
    }

    /// Until the gateway shuts down.
    pub async fn run(self, shutdown: CancellationToken) {
        tokio::join!(self.follow(&shutdown), self.watch_lease(&shutdown));
    }

    /// Sessions end with the lease, and so does what standing rules allow, however long the store takes to answer anything else.
    async fn watch_lease(&self, shutdown: &CancellationToken) {
        loop {
            if self.standing.cache().set_cut_off(!self.nodes.holds(None)) {
                tracing::warn!(
                    holds = self.nodes.holds(None),
                    "standing rules allow as long as this node holds its lease"
                );
                (self.rebuild)().await;
            }
            (self.end_lapsed_sessions)();
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = tokio::time::sleep(LOOK) => {}
            }
        }
    }

    async fn follow(&self, shutdown: &CancellationToken) {
        let mut news = self.nodes.news();
        let mut records = news.borrow_and_update().records;
        let mut said: Option<Arc<Config>> = None;
        let (mut reached, mut doubted) = (None, BTreeSet::new());
        // What was decided before is in force, or was, where it waited.
        let mut decided = self.store.heads().await.ok().map(|heads| heads.audit.seq);
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
                () = shutdown.cancelled() => {
                    gauge!(telemetry::NODE_LEADS).set(0.0);
                    return;
                }
                () = tokio::time::sleep(LOOK) => {}
                changed = news.changed() => if changed.is_err() {
                    return;
                }
            }
            let reach = reach(&self.routes.load());
            if reached.as_ref() != Some(&reach) {
                self.nodes.reach(reach.clone());
                reached = Some(reach);
            }
            self.doubt(&mut doubted);
            let written = news.borrow_and_update().records;
            if written != records || self.pins.is_behind() {
                let reloaded = match self.reload().await {
                    Ok(()) => self.follow_decisions(&mut decided).await,
                    Err(error) => Err(error),
                };
                match reloaded {
                    Ok(()) => records = written,
                    Err(StoreError::Closed) => return,
                    Err(error) => tracing::warn!(%error, "what other nodes have decided cannot be read; trying again"),
                }
            }
        }
    }

    /// An address that another node has given up is tried here with a single call before there are more.
    fn doubt(&self, doubted: &mut BTreeSet<(String, usize)>) {
        let open: BTreeSet<(String, usize)> = self.nodes.others().into_iter().flat_map(|reach| reach.open).collect();
        for (server, address) in open.difference(doubted) {
            let table = self.routes.load();
            if let Some(upstream) =
                table.providers().iter().find(|one| one.name() == server).and_then(|one| one.upstream())
            {
                tracing::info!(server, "another node does not reach this server: one call is tried before others");
                upstream.require_trial_call(*address);
            }
        }
        *doubted = open;
    }

    /// A reviewer's word at another node on what waits here, too.
    async fn follow_decisions(&self, seen: &mut Option<u64>) -> Result<(), StoreError> {
        let end = self.store.heads().await?.audit.seq;
        let Some(last) = seen.replace(end) else { return Ok(()) };
        let search = AuditSearch { events: DECISIONS.map(str::to_owned).to_vec(), ..AuditSearch::default() };
        let (mut made, mut before) = (Vec::new(), Some(end + 1));
        while let Some(top) = before.filter(|top| *top > last + 1) {
            let found =
                self.store.search_audit(search.clone(), Some(top), PAGE).await.inspect_err(|_| *seen = Some(last))?;
            made.extend(found.entries.into_iter().map(|found| found.entry).filter(|entry| entry.seq > last));
            before = found.next;
        }
        for entry in made.iter().rev() {
            let details = serde_json::from_str::<Value>(entry.details.get()).unwrap_or_default();
            let digest = details["digest"].as_str().unwrap_or_default();
            self.reloads.apply_remote_decision(digest, entry.event == DECISIONS[0], &entry.actor).await;
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

    /// Pins and standing rules, as they are in the store by now. Dashboards and webhooks of this node hear of what was decided
    /// at another one.
    async fn reload(&self) -> Result<(), StoreError> {
        let (before, after) = self.pins.reload().await?;
        if before.servers != after.servers {
            (self.rebuild)().await;
            for Moved { server, accepted_by, tools } in acceptances::moved(&before, &after) {
                let (what, by) = match accepted_by {
                    Some(by) => ("accepted", Some(by)),
                    None => ("revoked", acceptances::revoked_by(&*self.store, &server).await),
                };
                let tools: Vec<&str> = tools.iter().map(String::as_str).collect();
                self.feed.publish_session(&tool_acceptance::acceptance_event(&server, what, &tools, by.as_deref()));
            }
        }
        self.standing.reload().await
    }
}
