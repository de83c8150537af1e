//! The PostgreSQL backend: one writing connection with a thread of its own, and a pool for what is read. Nothing is answered
//! before the commit.
//!
//! A row holds where the feed and the trail end; a transaction takes it last, so that numbers have no gaps and their order
//! is that of the commits, whoever writes. Any number of gateways serve a database: `nodes` says which of them live, and the
//! claims of what they run stand beside the changes.

mod claims;
mod clock;
mod connect;
mod error;
#[cfg(test)]
mod faults;
mod keys;
mod moving;
mod node_rows;
mod nodes;
mod policies;
mod rows;
#[cfg(test)]
mod side_by_side;
mod silence;
mod sql;
pub mod tables;
mod trail;
mod verify;
mod writer;

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, OnceLock, PoisonError, Weak,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use deadpool_postgres::ClientWrapper;
use futures_util::future::ready;
use jiff::Timestamp;
use tokio::sync::mpsc::{channel, error::TrySendError};
use tokio_postgres::Config;

pub(crate) use self::connect::PgConnector;
use self::{nodes::Membership, writer::Writer};
use crate::{
    Nodes, PolicySnapshot, PolicySnapshots, RemoteEvent, ReviewerRecords, Store, StoreBackend, StoreError, StoreFuture,
    VerifiedTrail, VerifyError,
    identity::{self, Backend, FoundStore, IDENTITY_FILE, STORE_ID, StoreIdentity},
    keys::Credentials,
    nodes::Name,
    queries::Queries,
    queue::{QUEUE, WriteQueue},
    sql::{BACKGROUND_TIMEOUT, Database as _},
    statements::{changes, facts},
    webhooks::{Deliveries, DeliveryStore},
};
use countersign_domain::changes::audit::{AuditEntry, AuditHead};

/// The time for which a starting gateway waits for an older version, or for a move of the store, to end.
const SUCCESSION_TIMEOUT: Duration = Duration::from_secs(10);

/// A database and the node that opens it, connected or not.
pub(crate) struct Server {
    config: Config,
    authorities: Option<PathBuf>,
    /// The id of the opening node.
    node: Name,
    /// The connector, shared by everything that is open.
    connector: Mutex<Weak<PgConnector>>,
    keys: Mutex<Weak<keys::Keys>>,
}

impl Server {
    /// # Errors
    /// [`StoreError::Unreachable`] where this is no address.
    pub fn new(url: &str, authorities: Option<PathBuf>, node: Name) -> Result<Self, StoreError> {
        let config = connect::parse(url)?;
        Ok(Self { config, authorities, node, connector: Mutex::default(), keys: Mutex::default() })
    }

    fn connector(&self) -> Result<Arc<PgConnector>, StoreError> {
        let mut shared = self.connector.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(connector) = shared.upgrade() {
            return Ok(connector);
        }
        let connector = PgConnector::start(&self.config, self.authorities.as_ref())?;
        *shared = Arc::downgrade(&connector);
        Ok(connector)
    }

    /// Returns the connector, after a check that the node's data directory, if any, belongs to this database.
    fn own(&self) -> Result<Arc<PgConnector>, StoreError> {
        let connector = self.connector()?;
        if let Some(dir) = self.dir().filter(|dir| dir.join(IDENTITY_FILE).exists()) {
            let found = connector.read(BACKGROUND_TIMEOUT, async |client| {
                Ok(match connect::schema(client).await? {
                    None => FoundStore::Empty,
                    Some(_) => FoundStore::Store(facts::get(client, STORE_ID).await?),
                })
            });
            identity::check_server(dir, &found?)?;
        }
        Ok(connector)
    }

    /// Returns the id of the store. A store without one gets that of the data directory, or a new one.
    pub fn store_id(&self) -> Result<String, StoreError> {
        let known = self.dir().map(StoreIdentity::read).transpose()?.flatten();
        let id =
            known.filter(|known| known.backend == Backend::Postgres).map_or_else(identity::new_id, |known| known.id);
        self.migrated()?.write(async |client| facts::ensure_store_id(client, &id).await)
    }

    /// Returns the connector with an up-to-date schema, which is checked once.
    fn migrated(&self) -> Result<Arc<PgConnector>, StoreError> {
        let connector = self.own()?;
        connector.block_on(connector.migrated.get_or_try_init(|| connector.migrate()))?;
        Ok(connector)
    }

    pub fn open(&self) -> Result<Arc<dyn Store>, StoreError> {
        Ok(Arc::new(PostgresStore::begin(self.migrated()?, self.node.read()?, SUCCESSION_TIMEOUT)?))
    }

    pub fn credentials(&self) -> Result<Arc<dyn Credentials>, StoreError> {
        let connector = self.migrated()?;
        connector.read(BACKGROUND_TIMEOUT, async |client| facts::check_moved(client).await)?;
        let mut shared = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(keys) = shared.upgrade() {
            return Ok(keys);
        }
        let keys = Arc::new(keys::Keys::open(connector));
        *shared = Arc::downgrade(&keys);
        Ok(keys)
    }

    pub fn deliveries(&self) -> Result<Arc<dyn Deliveries>, StoreError> {
        Ok(Arc::new(DeliveryStore::new(self.migrated()?)))
    }

    pub fn verify_audit(&self, expected: Option<AuditHead>) -> Result<VerifiedTrail, VerifyError> {
        let connector = self.own()?;
        connector.block_on(verify::verify(&connector, expected))
    }

    pub fn read_audit<E: From<StoreError>>(&self, each: impl FnMut(&AuditEntry) -> Result<(), E>) -> Result<(), E> {
        verify::read_audit(&*self.own()?, each)
    }

    /// Returns the connections for a module's own tables.
    pub fn tables(&self) -> Result<tables::Tables, StoreError> {
        tables::Tables::new(self.connector()?)
    }

    /// Returns the data directory of the opening node, if it has one.
    pub fn dir(&self) -> Option<&Path> {
        match &self.node {
            Name::Of(dir) => Some(dir),
            Name::Fresh(_) => None,
        }
    }

    /// Takes the database offline for a move.
    pub fn take_offline(&self, new: bool) -> Result<moving::OfflineServer, StoreError> {
        moving::OfflineServer::take(if new { self.migrated()? } else { self.connector()? })
    }

    pub fn said(&self) -> Result<Option<ReviewerRecords>, StoreError> {
        let connector = self.own()?;
        connector.block_on(async {
            let Some(snapshot) = connector.snapshot().await? else { return Ok(None) };
            ReviewerRecords::read(&snapshot).await.map(Some)
        })
    }
}

/// The store of a PostgreSQL database.
pub(crate) struct PostgresStore {
    queue: WriteQueue,
    closing: Arc<AtomicBool>,
    writer: Mutex<Option<JoinHandle<()>>>,
    membership: Arc<Membership>,
    node: Mutex<Option<JoinHandle<()>>>,
    connector: Arc<PgConnector>,
    /// The numbers of messages that were handed out, but may not be deleted yet.
    words: Arc<Mutex<BTreeSet<i64>>>,
    /// The digest of the newest policy when this node first looked, if it had no policy of its own.
    began_with: Arc<OnceLock<String>>,
}

impl PostgresStore {
    /// Serves the database as this node, after at most `patience` for gateways that keep it out.
    fn begin(connector: Arc<PgConnector>, node: String, patience: Duration) -> Result<Self, StoreError> {
        let (commands, received) = channel(QUEUE);
        let queue = WriteQueue::new(move |command| {
            commands.try_send(command).err().map(|refused| match refused {
                TrySendError::Full(command) => (StoreError::QueueFull, command),
                TrySendError::Closed(command) => (StoreError::Closed, command),
            })
        });
        let closing = Arc::new(AtomicBool::new(false));
        let membership = Membership::new(Arc::clone(&connector), node);
        let beside = Arc::clone(&membership);
        let writer = Writer::new(Arc::clone(&connector), beside, received, queue.meter(), Arc::clone(&closing));
        let thread = connect::spawn_runtime("store-write", move |ready| writer.run(patience, ready))?;
        let writer = Mutex::new(Some(thread));
        let store = Self {
            queue,
            closing,
            writer,
            membership,
            node: Mutex::default(),
            connector,
            words: Arc::default(),
            began_with: Arc::default(),
        };
        // If it cannot join, dropping the store ends the writer.
        let node = store.membership.start()?;
        *store.node.lock().unwrap_or_else(PoisonError::into_inner) = Some(node);
        Ok(store)
    }

    /// Runs a small write beside the queue. Its outcome is unknown if nobody answers in time.
    fn write<T: Send + 'static>(
        &self,
        work: impl AsyncFnOnce(&ClientWrapper) -> Result<T, StoreError> + Send + 'static,
    ) -> StoreFuture<T> {
        self.ask(error::unknown, work)
    }

    fn ask<T: Send + 'static>(
        &self,
        late: fn() -> StoreError,
        work: impl AsyncFnOnce(&ClientWrapper) -> Result<T, StoreError> + Send + 'static,
    ) -> StoreFuture<T> {
        if self.closing.load(Ordering::Acquire) {
            return Box::pin(ready(Err(StoreError::Closed)));
        }
        self.connector.ask(late, work)
    }
}

impl Queries for PostgresStore {
    type Connection = ClientWrapper;

    fn write_queue(&self) -> &WriteQueue {
        &self.queue
    }

    fn read<T: Send + 'static>(
        &self,
        query: impl AsyncFnOnce(&ClientWrapper) -> Result<T, StoreError> + Send + 'static,
    ) -> StoreFuture<T> {
        self.ask(error::no_answer, query)
    }
}

impl StoreBackend for PostgresStore {
    fn policies(&self) -> StoreFuture<PolicySnapshots> {
        let node = self.membership.id.clone();
        let began_with = Arc::clone(&self.began_with);
        self.read(async move |client| {
            let known = policies::load(client, &node).await?;
            if let PolicySnapshots { here: None, newest: Some(newest), .. } = &known {
                began_with.get_or_init(|| newest.digest.clone());
            }
            Ok(known)
        })
    }

    fn save_policy(&self, snapshot: PolicySnapshot, by_consent: bool) -> StoreFuture<()> {
        let node = self.membership.id.clone();
        let began_with = self.began_with.get().cloned();
        self.write(async move |client| {
            policies::save(client, &node, &snapshot, by_consent, began_with.as_deref()).await
        })
    }

    fn remote_events_after(&self, after: u64, limit: usize) -> StoreFuture<Vec<RemoteEvent>> {
        let node = Arc::clone(&self.membership);
        self.read(async move |client| {
            let events = changes::remote_events_after(client, after, limit).await?;
            if !events.is_empty() {
                node.check_logs(client).await?;
            }
            Ok(events)
        })
    }

    fn orphaned_changes(&self) -> StoreFuture<Vec<String>> {
        self.read(async |client| claims::orphans(client).await)
    }

    fn in_flight_until(&self, id: &str) -> StoreFuture<Option<Timestamp>> {
        let id = id.to_owned();
        self.read(async move |client| claims::in_flight_until(client, &id).await)
    }

    fn send_to_node(&self, node: &str, change: &str, body: String) -> StoreFuture<()> {
        let (node, change, own) = (node.to_owned(), change.to_owned(), self.membership.id.clone());
        self.write(async move |client| node_rows::tell(client, &own, &node, &change, &body).await)
    }

    fn receive_messages(&self) -> StoreFuture<Vec<(String, String)>> {
        let (own, taken, connector) =
            (self.membership.id.clone(), Arc::clone(&self.words), Arc::clone(&self.connector));
        let reading = self.read(async move |client| node_rows::heard(client, &own).await);
        Box::pin(async move {
            let told = reading.await?;
            if told.is_empty() {
                return Ok(Vec::new());
            }
            let ids: Vec<i64> = told.iter().map(|(id, _)| *id).collect();
            let heard = {
                let mut taken = taken.lock().unwrap_or_else(PoisonError::into_inner);
                taken.retain(|id| ids.contains(id));
                told.into_iter().filter(|(id, _)| taken.insert(*id)).map(|(_, word)| word).collect()
            };
            // These messages are remembered, so that nothing is lost if the deletion is not answered.
            let forgetting = connector.ask(error::no_answer, async move |client| node_rows::forget(client, ids).await);
            if let Err(error) = forgetting.await {
                tracing::debug!(%error, "messages of other nodes could not be deleted yet");
            }
            Ok(heard)
        })
    }

    fn nodes(&self) -> Arc<dyn Nodes> {
        Arc::clone(&self.membership) as _
    }

    fn current_error(&self) -> Option<StoreError> {
        self.connector.health.trouble()
    }

    fn is_open(&self) -> bool {
        self.queue.is_open()
            && !self.membership.is_replaced()
            && self.writer.lock().unwrap_or_else(PoisonError::into_inner).as_ref().is_some_and(|t| !t.is_finished())
    }

    fn close(&self) {
        self.queue.close();
        self.closing.store(true, Ordering::Release);
        let writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner).take();
        if writer.is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the writing thread of the store had panicked");
        }
        self.membership.close();
        let node = self.node.lock().unwrap_or_else(PoisonError::into_inner).take();
        if node.is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the thread of this node's lease had panicked");
        }
    }
}

impl Drop for PostgresStore {
    fn drop(&mut self) {
        self.close();
    }
}
