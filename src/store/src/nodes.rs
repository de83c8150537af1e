//! The gateways that serve one store side by side: nodes. Each holds a lease by the store's clock that it renews; whoever's
//! lease has run out is taken to be gone, and begins another life with the next epoch should it be alive nevertheless.

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

/// What a node that opens a store is called.
pub(crate) enum Name {
    /// As its data directory says, which is written to only when the store is opened.
    Of(PathBuf),
    Fresh(String),
}

impl Name {
    /// One that nobody has heard of before.
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

/// The id of the node whose data directory this is: made once.
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

/// What a node says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Introduction {
    /// Where its endpoints are.
    pub url: String,
    pub version: String,
    /// A hash of what has to be the same on all nodes.
    pub configuration: String,
    /// A hash of the certificate that it shows there; empty without TLS of its own.
    pub certificate: String,
}

/// Where another node is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    pub url: String,
    /// As [`Introduction::certificate`].
    pub certificate: String,
}

/// How the servers behind a node are, as it says.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Reach {
    /// Servers that it reaches, by name.
    pub up: Vec<String>,
    /// Servers that it does not.
    pub down: Vec<String>,
    /// Circuit breakers that are open: of which server, and of which of its addresses.
    pub open: Vec<(String, usize)>,
}

/// A node, alive or not long gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    pub id: String,
    pub epoch: u64,
    pub says: Introduction,
    pub reach: Reach,
    pub started_at: Timestamp,
    /// The end of its lease; `None` where only one gateway can serve the store.
    pub lease_until: Option<Timestamp>,
    pub live: bool,
    /// Does what one node does at a time.
    pub leads: bool,
    /// It is the one that was asked.
    pub here: bool,
    /// Changes that it runs.
    pub running: u64,
}

/// How far the store has come, as this node has heard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct News {
    /// Number of the last feed event, whoever wrote it.
    pub event: u64,
    /// Rises with each record (pins, standing rules), whoever wrote it.
    pub records: u64,
    /// Rises when another node may have told this one something ([`crate::Store::heard`]).
    pub words: u64,
    /// Rises when another node has said something else of its servers ([`Nodes::others`]).
    pub reach: u64,
}

/// This gateway among the nodes of its store. What is answered at once is what was heard last.
pub trait Nodes: Send + Sync + 'static {
    /// What time it is for what all nodes have to see alike: by the store's clock where it has one, whatever this machine's
    /// says.
    fn now(&self) -> Timestamp {
        Timestamp::now()
    }
    /// What this node's claims are made with from now on; `None` where only one gateway can serve the store.
    fn claimant(&self) -> Option<Claimant> {
        None
    }
    /// Whether nobody else can take this claim's node for gone at this moment. To be asked just before what must not be done
    /// after.
    fn holds(&self, _claimant: Option<&Claimant>) -> bool {
        true
    }
    /// Whether this node does what one node does at a time.
    fn leads(&self) -> bool {
        true
    }
    /// Leads no more from now on, and has another one lead as soon as there is one; what this node runs stays its own until
    /// the store is closed. The one gateway of a store that takes no other goes on.
    fn resign(&self) {}
    /// How many nodes live, this one among them.
    fn live(&self) -> usize {
        1
    }
    /// How many of the others that live have another configuration than this one.
    fn differing(&self) -> usize {
        0
    }
    /// Where another node that lives is reached; `None` from the end of its lease on.
    fn peer(&self, _node: &str) -> Option<Peer> {
        None
    }
    /// Writes what this node says of itself and reads what the others do, once more: what is answered at once was read after
    /// this call.
    fn refresh(&self) -> StoreFuture<()> {
        Box::pin(ready(Ok(())))
    }
    /// The epoch since which sessions of this node have lived. A new one ends them: the lease had run out, and nodes that live
    /// have told clients that the sessions are gone.
    fn sessions_since(&self) -> u64 {
        0
    }
    /// The address of this machine from which the store is reached; `None` where it cannot be told.
    fn outward(&self) -> Option<IpAddr> {
        None
    }
    /// What all nodes of a store know and nobody else does, 32 bytes; `None` where only one gateway can serve the store.
    fn secret(&self) -> Option<[u8; 32]> {
        None
    }
    /// Hears that others may have written.
    fn news(&self) -> watch::Receiver<News>;
    /// Says from now on who this node is.
    fn introduce(&self, says: Introduction);
    /// Says from now on how the servers behind this node are.
    fn reach(&self, reach: Reach);
    /// How those behind the others that live are.
    fn others(&self) -> Vec<Reach> {
        Vec::new()
    }
    /// All of them, oldest first; those that are gone for about a day.
    fn list(&self) -> StoreFuture<Vec<Node>>;
}

/// The one gateway of a store that takes no other.
pub(crate) struct Alone {
    started_at: Timestamp,
    says: Mutex<Introduction>,
    reach: Mutex<Reach>,
    news: watch::Sender<News>,
}

impl Alone {
    pub fn new() -> Arc<Self> {
        let (news, _) = watch::channel(News::default());
        Arc::new(Self { started_at: Timestamp::now(), says: Mutex::default(), reach: Mutex::default(), news })
    }
}

impl Nodes for Alone {
    fn news(&self) -> watch::Receiver<News> {
        self.news.subscribe()
    }

    fn introduce(&self, says: Introduction) {
        *self.says.lock().unwrap_or_else(PoisonError::into_inner) = says;
    }

    fn reach(&self, reach: Reach) {
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
