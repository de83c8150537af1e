//! Nodes: the gateways that serve one store side by side. Each renews a lease, measured by the store's clock. A node
//! whose lease has run out counts as gone, and rejoins with the next epoch if it is still alive.

use std::{
    net::IpAddr,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use futures_util::future::ready;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use super::{StoreError, StoreFuture, lock::ensure_data_dir};
use countersign_domain::changes::Claimant;

/// The file of the data directory with the node's id.
const FILE: &str = "node";

/// The source of a node's id.
pub(crate) enum Name {
    /// The file in a data directory, which is created when the store is opened.
    Of(PathBuf),
    Fresh(String),
}

impl Name {
    /// Returns an id that no node has had before.
    pub fn fresh() -> Self {
        Self::Fresh(nanoid::nanoid!(10, &nanoid::alphabet::SAFE[2..]))
    }

    /// # Errors
    /// [`StoreError::DataDir`]
    pub fn read(&self) -> Result<String, StoreError> {
        match self {
            Self::Of(dir) => id_of(dir),
            Self::Fresh(id) => Ok(id.clone()),
        }
    }
}

/// Returns the id of the node with that data directory, and creates it once.
fn id_of(dir: &Path) -> Result<String, StoreError> {
    ensure_data_dir(dir)?;
    let path = dir.join(FILE);
    let failed = |source: std::io::Error| StoreError::DataDir { path: path.clone(), source: Arc::new(source) };
    match std::fs::read_to_string(&path) {
        Ok(text) if is_id(text.trim()) => return Ok(text.trim().to_owned()),
        Ok(_) => return Err(failed(std::io::Error::other("this is no node's id; remove the file"))),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => return Err(failed(error)),
    }
    let id = nanoid::nanoid!(10, &nanoid::alphabet::SAFE[2..]);
    std::fs::write(&path, &id).map_err(failed)?;
    Ok(id)
}

fn is_id(text: &str) -> bool {
    (1..=64).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-')
}

/// The self-description of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Introduction {
    /// The address of its endpoints.
    pub url: String,
    pub version: String,
    /// The hash of the configuration that must be the same on all nodes.
    pub configuration: String,
    /// The hash of its TLS certificate; empty without TLS of its own.
    pub certificate: String,
}

/// The address of another node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    pub url: String,
    /// The same as [`Introduction::certificate`].
    pub certificate: String,
}

/// The states of the servers behind a node, as it reports them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ServerStates {
    /// The names of servers that it reaches.
    pub up: Vec<String>,
    /// The names of servers that it does not reach.
    pub down: Vec<String>,
    /// The open circuit breakers: the server, and the index of its address.
    pub open: Vec<(String, usize)>,
}

/// A node that is alive or was until recently.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    pub id: String,
    pub epoch: u64,
    pub says: Introduction,
    pub reach: ServerStates,
    pub started_at: Timestamp,
    /// The end of its lease; `None` in a store that takes only one gateway.
    pub lease_until: Option<Timestamp>,
    pub live: bool,
    /// It is the leader, which does the tasks of one node at a time.
    pub leads: bool,
    /// It is the node that was asked.
    pub here: bool,
    /// The number of changes that it runs.
    pub running: u64,
}

/// Counters of the store's writes that this node knows of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreUpdates {
    /// The number of the last feed event of any node.
    pub event: u64,
    /// Rises with each record (pins, standing rules) of any node.
    pub records: u64,
    /// Rises when messages of other nodes may have arrived ([`crate::StoreBackend::receive_messages`]).
    pub messages: u64,
    /// Rises when the reported servers of another node have changed ([`Nodes::peer_server_states`]).
    pub reach: u64,
}

/// This gateway among the nodes of its store. Answers without a future are those of the last renewal.
pub trait Nodes: Send + Sync + 'static {
    /// Returns the time that all nodes share: that of the store's clock if it has one, whatever this machine's clock
    /// says.
    fn now(&self) -> Timestamp {
        Timestamp::now()
    }
    /// Returns the claimant of this node's next claims; `None` in a store that takes only one gateway.
    fn claimant(&self) -> Option<Claimant> {
        None
    }
    /// Returns `true` if no other node can consider the claim's node as gone now. Call it just before any action that
    /// needs the claim.
    fn holds_claim(&self, _claimant: Option<&Claimant>) -> bool {
        true
    }
    /// Returns `true` if this node is the leader, which does the tasks of one node at a time.
    fn is_leader(&self) -> bool {
        true
    }
    /// Ends the leadership of this node, so that another one leads as soon as there is one. This node keeps its running
    /// changes until the store is closed. The only gateway of a store remains the leader.
    fn resign(&self) {}
    /// Returns the number of live nodes, this one included.
    fn live_count(&self) -> usize {
        1
    }
    /// Returns the number of other live nodes whose configuration differs from this node's.
    fn differing_count(&self) -> usize {
        0
    }
    /// Returns the address of another node until its lease ends.
    fn peer(&self, _node: &str) -> Option<Peer> {
        None
    }
    /// Renews the lease and reads the other nodes. Later answers are newer than this call.
    fn refresh(&self) -> StoreFuture<()> {
        Box::pin(ready(Ok(())))
    }
    /// Returns the epoch in which this node's sessions began. A new epoch ends them, because live nodes have told
    /// clients that the sessions are gone.
    fn sessions_since(&self) -> u64 {
        0
    }
    /// Returns the address of this machine from which it reaches the store, if that is known.
    fn outward_address(&self) -> Option<IpAddr> {
        None
    }
    /// Returns the 32-byte secret of all nodes of the store; `None` in a store that takes only one gateway.
    fn cluster_secret(&self) -> Option<[u8; 32]> {
        None
    }
    /// Subscribes to writes of other nodes.
    fn subscribe_updates(&self) -> watch::Receiver<StoreUpdates>;
    /// Publishes the self-description of this node.
    fn introduce(&self, says: Introduction);
    /// Publishes the states of the servers behind this node.
    fn set_server_states(&self, reach: ServerStates);
    /// Returns the server states of the other live nodes.
    fn peer_server_states(&self) -> Vec<ServerStates> {
        Vec::new()
    }
    /// Returns all nodes, oldest first, and those that are gone for about a day.
    fn list(&self) -> StoreFuture<Vec<Node>>;
}

/// The node of a store that takes only one gateway.
pub(crate) struct SingleNode {
    started_at: Timestamp,
    says: Mutex<Introduction>,
    reach: Mutex<ServerStates>,
    news: watch::Sender<StoreUpdates>,
}

impl SingleNode {
    pub fn new() -> Arc<Self> {
        let (news, _) = watch::channel(StoreUpdates::default());
        Arc::new(Self { started_at: Timestamp::now(), says: Mutex::default(), reach: Mutex::default(), news })
    }
}

impl Nodes for SingleNode {
    fn subscribe_updates(&self) -> watch::Receiver<StoreUpdates> {
        self.news.subscribe()
    }

    fn introduce(&self, says: Introduction) {
        *self.says.lock().unwrap_or_else(PoisonError::into_inner) = says;
    }

    fn set_server_states(&self, reach: ServerStates) {
        *self.reach.lock().unwrap_or_else(PoisonError::into_inner) = reach;
    }

    fn list(&self) -> StoreFuture<Vec<Node>> {
        let node = Node {
            id: "only".into(),
            epoch: 1,
            says: self.says.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            reach: self.reach.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            started_at: self.started_at,
            lease_until: None,
            live: true,
            leads: true,
            here: true,
            running: 0,
        };
        Box::pin(ready(Ok(vec![node])))
    }
}
