//! Nodes: the gateways that serve one store together. Each node renews a lease, which the store's clock measures. A
//! node whose lease has expired counts as gone, and rejoins with the next epoch if it is still alive.

use std::{
    net::IpAddr,
    path::{Path, PathBuf},
    sync::Arc,
};

use futures_util::future::ready;
use jiff::Timestamp;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use super::{StoreError, StoreFuture};
use countersign_domain::changes::Claimant;
use countersign_runtime::{
    data_dir::ensure_data_dir,
    files::{none_if_missing, replace_file},
};

/// The name of the file in the data directory that holds the node's id.
const NODE_ID_FILE: &str = "node";

/// The source of a node's id.
pub(crate) enum NodeIdSource {
    /// The file in a data directory. It is created when the store is opened.
    DataDir(PathBuf),
    Generated(String),
}

impl NodeIdSource {
    /// Returns a source with a new random id.
    pub fn generate() -> Self {
        Self::Generated(new_id())
    }

    /// # Errors
    /// [`StoreError::DataDir`]
    pub fn read(&self) -> Result<String, StoreError> {
        match self {
            Self::DataDir(dir) => load_or_create_id(dir),
            Self::Generated(id) => Ok(id.clone()),
        }
    }
}

/// Returns the id of the node with that data directory. Creates the id if there is none.
fn load_or_create_id(dir: &Path) -> Result<String, StoreError> {
    ensure_data_dir(dir)?;
    let path = dir.join(NODE_ID_FILE);
    let failed = |source: std::io::Error| StoreError::data_dir(&path, source);
    match none_if_missing(std::fs::read_to_string(&path)).map_err(failed)? {
        Some(text) if is_id(text.trim()) => return Ok(text.trim().to_owned()),
        Some(_) => return Err(failed(std::io::Error::other("the content is not the id of a node; remove the file"))),
        None => {}
    }
    let id = new_id();
    replace_file(&path, id.as_bytes(), 0o600).map_err(failed)?;
    Ok(id)
}

fn new_id() -> String {
    nanoid::nanoid!(10, &nanoid::alphabet::SAFE[2..])
}

fn is_id(text: &str) -> bool {
    (1..=64).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-')
}

/// The self-description of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Introduction {
    /// The base URL of the node's endpoints.
    pub url: String,
    pub version: String,
    /// The hash of the configuration that must be the same on all nodes.
    pub configuration: String,
    /// The hash of the node's TLS certificate; empty if the node does not terminate TLS.
    pub certificate: String,
}

/// The address of another node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerAddress {
    pub url: String,
    /// The same as [`Introduction::certificate`].
    pub certificate: String,
}

/// The states of the servers behind a node, as it reports them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ServerStates {
    /// The names of the servers that the node can reach.
    pub up: Vec<String>,
    /// The names of the servers that the node cannot reach.
    pub down: Vec<String>,
    /// The open circuit breakers, as pairs of a server and the index of its address.
    pub open: Vec<(String, usize)>,
}

/// A node that is alive, or was alive within about the last day.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    pub id: String,
    pub epoch: u64,
    pub introduction: Introduction,
    pub server_states: ServerStates,
    pub started_at: Timestamp,
    /// The end of the node's lease; `None` in a store for a single gateway.
    pub lease_until: Option<Timestamp>,
    pub is_alive: bool,
    /// The node is the leader, which does the tasks that only one node may do.
    pub is_leader: bool,
    /// The node is the one that answers this query.
    pub is_self: bool,
    /// The number of changes that the node is running.
    pub running: u64,
}

/// Counters that rise with the writes of any node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreUpdates {
    /// The number of the last feed event that any node wrote.
    pub event: u64,
    /// Rises with each record (pins, standing rules) of any node.
    pub records: u64,
    /// Rises when messages of other nodes may have arrived ([`crate::StoreBackend::receive_messages`]).
    pub messages: u64,
    /// Rises when the reported servers of another node have changed ([`Nodes::peer_server_states`]).
    pub server_states: u64,
}

/// The view that this gateway has of the nodes of its store. Methods that return no future answer from the state of
/// the last renewal.
pub trait Nodes: Send + Sync + 'static {
    /// Returns the time that all nodes share: the time of the store's clock, or of this machine's clock if the store
    /// has none.
    fn now(&self) -> Timestamp {
        Timestamp::now()
    }
    /// Returns the claimant under which this node makes its next claims; `None` in a store for a single gateway.
    fn claimant(&self) -> Option<Claimant> {
        None
    }
    /// Returns `true` if this node holds the claim, so that no other node can consider this node gone yet. Call this
    /// method directly before any action that needs the claim.
    fn holds_claim(&self, _claimant: Option<&Claimant>) -> bool {
        true
    }
    /// Returns `true` if this node is the leader, which does the tasks that only one node may do.
    fn is_leader(&self) -> bool {
        true
    }
    /// Ends the leadership of this node, so that another node can become the leader. This node keeps its running
    /// changes until the store is closed. The gateway of a store for a single gateway remains the leader.
    fn resign(&self) {}
    /// Returns the number of live nodes, including this node.
    fn live_count(&self) -> usize {
        1
    }
    /// Returns the number of other live nodes whose configuration differs from this node's.
    fn differing_count(&self) -> usize {
        0
    }
    /// Returns the address of another node until its lease ends.
    fn peer(&self, _node: &str) -> Option<PeerAddress> {
        None
    }
    /// Renews the lease and reads the other nodes, so that later answers are newer than this call.
    fn refresh(&self) -> StoreFuture<()> {
        Box::pin(ready(Ok(())))
    }
    /// Returns the epoch in which this node's sessions began. A new epoch ends the sessions if other live nodes may
    /// have told clients that they are gone.
    fn sessions_since(&self) -> u64 {
        0
    }
    /// Returns the address from which this machine reaches the store, if known.
    fn outward_address(&self) -> Option<IpAddr> {
        None
    }
    /// Returns the 32-byte secret that all nodes of the store share; `None` in a store for a single gateway.
    fn cluster_secret(&self) -> Option<[u8; 32]> {
        None
    }
    /// Subscribes to writes of other nodes.
    fn subscribe_updates(&self) -> watch::Receiver<StoreUpdates>;
    /// Publishes the self-description of this node.
    fn introduce(&self, introduction: Introduction);
    /// Publishes the states of the servers behind this node.
    fn set_server_states(&self, server_states: ServerStates);
    /// Returns the server states of the other live nodes.
    fn peer_server_states(&self) -> Vec<ServerStates> {
        Vec::new()
    }
    /// Returns all nodes, oldest first, including nodes that left within about the last day.
    fn list(&self) -> StoreFuture<Vec<Node>>;
}

/// The node of a store for a single gateway.
pub(crate) struct SingleNode {
    started_at: Timestamp,
    introduction: Mutex<Introduction>,
    server_states: Mutex<ServerStates>,
    updates: watch::Sender<StoreUpdates>,
}

impl SingleNode {
    pub fn new() -> Arc<Self> {
        let (updates, _) = watch::channel(StoreUpdates::default());
        Arc::new(Self {
            started_at: Timestamp::now(),
            introduction: Mutex::default(),
            server_states: Mutex::default(),
            updates,
        })
    }
}

impl Nodes for SingleNode {
    fn subscribe_updates(&self) -> watch::Receiver<StoreUpdates> {
        self.updates.subscribe()
    }

    fn introduce(&self, introduction: Introduction) {
        *self.introduction.lock() = introduction;
    }

    fn set_server_states(&self, server_states: ServerStates) {
        *self.server_states.lock() = server_states;
    }

    fn list(&self) -> StoreFuture<Vec<Node>> {
        let node = Node {
            id: "only".into(),
            epoch: 1,
            introduction: self.introduction.lock().clone(),
            server_states: self.server_states.lock().clone(),
            started_at: self.started_at,
            lease_until: None,
            is_alive: true,
            is_leader: true,
            is_self: true,
            running: 0,
        };
        Box::pin(ready(Ok(vec![node])))
    }
}
