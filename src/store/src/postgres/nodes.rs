//! The membership of this gateway among the nodes. The thread of [`lease`] renews the lease each second, which also
//! reads what other nodes wrote, and listens for notifications in between.
//!
//! The database measures the lease by the server's clock. The node measures it by a local clock that also advances
//! while the process is suspended. The local lease begins before the renewal is sent and has a margin, so it always
//! ends first. Actions that need a lease to be over lock the node's row, which excludes a concurrent renewal.

mod lease;

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use deadpool_postgres::ClientWrapper;
use jiff::Timestamp;
use parking_lot::Mutex;
use serde::Deserialize;
use tokio::{
    sync::{Notify, watch},
    time::timeout,
};

use super::{
    PgConnector,
    clock::{ServerClock, time_since_boot},
    connect::spawn_runtime,
    error,
    node_rows::{list, parse_server_states},
    rows::{heads_with_entry, query},
};
use crate::{
    Heads, StoreError, StoreFuture,
    nodes::{Introduction, Node, Nodes, PeerAddress, ServerStates, StoreUpdates},
};
use countersign_domain::changes::{Claimant, audit::EntryHash};

/// The text of the notification that the server states or the leadership of a node have changed.
const SERVERS_CHANGED: &str = "servers";

struct NodeEpoch {
    epoch: u64,
    /// The local end of the lease, by [`time_since_boot`].
    lease_end: Duration,
    /// The epoch in which the sessions began ([`Nodes::sessions_since`]).
    sessions_since: u64,
}

/// The membership of this gateway among the nodes.
pub(super) struct Membership {
    connector: Arc<PgConnector>,
    pub id: String,
    process: String,
    started_at: Timestamp,
    current_epoch: Mutex<NodeEpoch>,
    is_leader: AtomicBool,
    /// This node has resigned, and must not lead any more.
    resigned: AtomicBool,
    live_nodes: AtomicUsize,
    differing_nodes: AtomicUsize,
    /// The addresses of the other live nodes, and the ends of their leases by [`time_since_boot`].
    peers: Mutex<HashMap<String, (PeerAddress, Duration)>>,
    /// The number of the last renewal that began.
    started_renewals: AtomicU64,
    /// The number of the last renewal that succeeded.
    completed_renewals: watch::Sender<u64>,
    secret: OnceLock<[u8; 32]>,
    updates: watch::Sender<StoreUpdates>,
    introduction: Mutex<Introduction>,
    server_states: Mutex<OwnServerStates>,
    /// The server states of the other live nodes, with the number of each report.
    peer_servers: Mutex<HashMap<String, (i64, ServerStates)>>,
    /// Notified when the thread must renew at once, or end.
    wake: Notify,
    closing: AtomicBool,
    /// The reason why this node has stopped serving: another process has joined with its id, or entries that it knows are lost.
    stop_reason: OnceLock<StoreError>,
    /// The last known heads, from this node's last write or the last renewal.
    known_heads: Mutex<Heads>,
    clock: ServerClock,
}

/// The server states of this node.
#[derive(Default)]
struct OwnServerStates {
    states: ServerStates,
    /// The states were written to the database.
    is_published: bool,
}

impl Membership {
    pub fn new(connector: Arc<PgConnector>, id: String) -> Arc<Self> {
        Arc::new(Self {
            connector,
            id,
            process: nanoid::nanoid!(),
            started_at: Timestamp::now(),
            current_epoch: Mutex::new(NodeEpoch { epoch: 0, lease_end: Duration::ZERO, sessions_since: 0 }),
            is_leader: AtomicBool::new(false),
            resigned: AtomicBool::new(false),
            live_nodes: AtomicUsize::new(1),
            differing_nodes: AtomicUsize::new(0),
            peers: Mutex::default(),
            started_renewals: AtomicU64::new(0),
            completed_renewals: watch::channel(0).0,
            secret: OnceLock::new(),
            updates: watch::channel(StoreUpdates::default()).0,
            introduction: Mutex::default(),
            server_states: Mutex::default(),
            peer_servers: Mutex::default(),
            wake: Notify::new(),
            closing: AtomicBool::new(false),
            stop_reason: OnceLock::new(),
            known_heads: Mutex::default(),
            clock: ServerClock::default(),
        })
    }

    /// Joins, and renews the lease until the membership is closed.
    ///
    /// # Errors
    /// The error because of which the node could not join.
    pub fn start(self: &Arc<Self>) -> Result<JoinHandle<()>, StoreError> {
        let node = Arc::clone(self);
        spawn_runtime("store-node", |ready| node.run(ready))
    }

    /// Leaves, so that another node can become the leader at once.
    pub fn close(&self) {
        self.closing.store(true, Ordering::Release);
        self.wake.notify_one();
    }

    pub fn stop_reason(&self) -> Option<&StoreError> {
        self.stop_reason.get()
    }

    /// Remembers newer heads.
    pub fn remember_heads(&self, heads: Heads) {
        let mut known_heads = self.known_heads.lock();
        if heads.audit.seq > known_heads.audit.seq {
            *known_heads = heads;
        }
    }

    /// Reads the heads. `lock` keeps others from writing before the caller's transaction ends.
    ///
    /// # Errors
    /// [`StoreError::WritesLost`] if known entries are missing, even if other nodes have written newer ones.
    pub async fn read_heads(&self, client: &ClientWrapper, lock: bool) -> Result<Heads, StoreError> {
        let known_heads = *self.known_heads.lock();
        let (heads, entry) = heads_with_entry(client, known_heads.audit.seq, lock).await?;
        if is_continuation(known_heads, heads, entry) { Ok(heads) } else { Err(StoreError::WritesLost) }
    }

    /// Handles a notification, which is only a hint, because anybody with access to the database can send one. The
    /// text starts with the id of the sender. Then follow the numbers of the last event and record, or `to` and the
    /// receiver of a message, or [`SERVERS_CHANGED`].
    fn handle_notification(&self, text: &str) {
        match *text.split(' ').collect::<Vec<_>>() {
            [_, "to", node] if node == self.id => raise_counters(&self.updates, 0, 0, true),
            [from, SERVERS_CHANGED] if from != self.id => self.wake.notify_one(),
            [from, event, records] if from != self.id => {
                if let (Ok(event), Ok(records)) = (event.parse(), records.parse()) {
                    raise_counters(&self.updates, event, records, false);
                }
            }
            _ => {}
        }
    }

    /// Reads the server states of nodes whose report number has changed.
    async fn load_peer_servers(&self, client: &ClientWrapper, peers: &[PeerRow]) -> Result<(), StoreError> {
        let changed_nodes: Vec<&str> = {
            let mut peer_servers = self.peer_servers.lock();
            peer_servers.retain(|id, _| peers.iter().any(|peer| peer.id == *id));
            let known_number = |id: &str| peer_servers.get(id).map_or(0, |(number, _)| *number);
            let changed = peers.iter().filter(|peer| known_number(&peer.id) != peer.servers_no);
            changed.map(|peer| peer.id.as_str()).collect()
        };
        if changed_nodes.is_empty() {
            return Ok(());
        }
        let rows =
            query(client, "SELECT id, servers_no, servers FROM nodes WHERE id = ANY($1)", &[&changed_nodes]).await?;
        let mut peer_servers = self.peer_servers.lock();
        for row in rows {
            peer_servers.insert(row.get(0), (row.get(1), parse_server_states(row.get(2))));
        }
        drop(peer_servers);
        self.updates.send_modify(|updates| updates.server_states += 1);
        Ok(())
    }
}

/// Another live node, as a renewal reads it.
#[derive(Deserialize)]
struct PeerRow {
    id: String,
    /// Empty if other nodes cannot reach it.
    url: String,
    certificate: String,
    /// The number of the node's report about its servers.
    servers_no: i64,
    /// The microseconds until its lease ends.
    lease: i64,
}

/// Returns `true` if the feed and the trail that end at `heads` continue those that ended at `known`. `entry` is the hash that
/// the last known entry has now.
fn is_continuation(known: Heads, heads: Heads, entry: Option<EntryHash>) -> bool {
    known.audit.seq == 0
        || (entry == Some(known.audit.hash)
            && heads.event >= known.event
            && (heads.audit.seq > known.audit.seq || heads == known))
}

/// Raises the counters, and wakes subscribers only if a counter has risen.
fn raise_counters(counters: &watch::Sender<StoreUpdates>, event: u64, records: u64, has_messages: bool) {
    counters.send_if_modified(|known| {
        let later = StoreUpdates {
            event: known.event.max(event),
            records: known.records.max(records),
            messages: known.messages + u64::from(has_messages),
            server_states: known.server_states,
        };
        let has_risen = later != *known;
        *known = later;
        has_risen
    });
}

impl Nodes for Membership {
    fn now(&self) -> Timestamp {
        self.clock.now()
    }

    fn claimant(&self) -> Option<Claimant> {
        Some(Claimant { node: self.id.clone(), epoch: self.current_epoch.lock().epoch })
    }

    fn holds_claim(&self, claimant: Option<&Claimant>) -> bool {
        let current = self.current_epoch.lock();
        claimant.is_none_or(|claimant| claimant.node == self.id && claimant.epoch == current.epoch)
            && time_since_boot() < current.lease_end
    }

    fn is_leader(&self) -> bool {
        self.is_leader.load(Ordering::Acquire) && !self.resigned.load(Ordering::Acquire) && self.holds_claim(None)
    }

    fn resign(&self) {
        self.resigned.store(true, Ordering::Release);
        self.wake.notify_one();
    }

    fn live_count(&self) -> usize {
        self.live_nodes.load(Ordering::Acquire)
    }

    fn differing_count(&self) -> usize {
        self.differing_nodes.load(Ordering::Acquire)
    }

    fn peer(&self, node: &str) -> Option<PeerAddress> {
        let peers = self.peers.lock();
        peers.get(node).filter(|(_, until)| time_since_boot() < *until).map(|(peer, _)| peer.clone())
    }

    fn refresh(&self) -> StoreFuture<()> {
        let after = self.started_renewals.load(Ordering::Acquire);
        let mut completed = self.completed_renewals.subscribe();
        self.wake.notify_one();
        Box::pin(async move {
            match timeout(lease::ANSWER_TIMEOUT, completed.wait_for(|number| *number > after)).await {
                Ok(Ok(_)) => Ok(()),
                Ok(Err(_)) => Err(StoreError::Closed),
                Err(_) => Err(error::no_answer()),
            }
        })
    }

    fn sessions_since(&self) -> u64 {
        self.current_epoch.lock().sessions_since
    }

    fn outward_address(&self) -> Option<IpAddr> {
        self.connector.outward_address()
    }

    fn cluster_secret(&self) -> Option<[u8; 32]> {
        self.secret.get().copied()
    }

    fn subscribe_updates(&self) -> watch::Receiver<StoreUpdates> {
        self.updates.subscribe()
    }

    fn introduce(&self, introduction: Introduction) {
        *self.introduction.lock() = introduction;
        self.wake.notify_one();
    }

    fn set_server_states(&self, states: ServerStates) {
        *self.server_states.lock() = OwnServerStates { states, is_published: false };
        self.wake.notify_one();
    }

    fn peer_server_states(&self) -> Vec<ServerStates> {
        let peer_servers = self.peer_servers.lock();
        peer_servers.values().map(|(_, states)| states.clone()).collect()
    }

    fn list(&self) -> StoreFuture<Vec<Node>> {
        let own_id = self.id.clone();
        self.connector.run_async(error::no_answer, async move |client| list(client, &own_id).await)
    }
}
