//! The PostgreSQL backend: a connection for writes with its own thread, and a pool for reads. No write is answered
//! before its commit.
//!
//! One row holds the heads: the ends of the feed and the trail. Each transaction locks that row last, so that numbers
//! have no gaps and follow the order of the commits. Any number of gateways may serve a database. The table `nodes`
//! says which of them are alive, and the table `claims` says which changes they run.

#[cfg(test)]
mod claim_tests;
mod claims;
mod clock;
mod connect;
mod error;
#[cfg(test)]
mod fault_tests;
mod keys;
mod moving;
#[cfg(test)]
mod multi_node_tests;
mod node_rows;
mod nodes;
mod policies;
mod rows;
pub(crate) mod schema;
mod silence;
#[cfg(test)]
mod silence_tests;
mod sql;
pub mod tables;
mod trail;
mod verify;
mod writer;

use std::{
    collections::BTreeSet,
    io,
    path::{Path, PathBuf},
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use deadpool_postgres::ClientWrapper;
use futures_util::future::ready;
use jiff::Timestamp;
use parking_lot::Mutex;
use tokio_postgres::Config;

pub(crate) use self::connect::PgConnector;
use self::{node_rows::NodeMessage, nodes::Membership, writer::Writer};
use crate::{
    Nodes, PolicySnapshot, PolicySnapshots, ReadAuditError, RemoteEvent, ReviewerRecords, Store, StoreBackend,
    StoreError, StoreFuture, VerifiedTrail, VerifyError,
    delivery_store::DeliveryStore,
    identity::{self, Backend, FoundStore, IDENTITY_FILE, STORE_ID, StoreIdentity},
    keys::Credentials,
    nodes::NodeIdSource,
    queries::Queries,
    queue::WriteQueue,
    sql::{BACKGROUND_TIMEOUT, Database as _},
    statements::{changes, facts},
    stored_keys::StoredKeys,
    webhooks::Deliveries,
};
use countersign_domain::changes::audit::{AuditEntry, AuditHead};

/// The maximum time that a starting gateway waits for a gateway of an older version, or for a move of the store, to
/// end.
const SUCCESSION_TIMEOUT: Duration = Duration::from_secs(10);

/// A PostgreSQL database, and the node that opens it.
pub(crate) struct PostgresDatabase {
    config: Config,
    authorities: Option<PathBuf>,
    /// The source of the opening node's id.
    node: NodeIdSource,
    /// The connector, which all open parts of the store share.
    connector: Mutex<Weak<PgConnector>>,
    /// The keys with their copy, which all users share.
    keys: Mutex<Weak<StoredKeys<Arc<PgConnector>>>>,
}

impl PostgresDatabase {
    /// # Errors
    /// [`StoreError::Unreachable`] if the address is invalid.
    pub fn new(url: &str, authorities: Option<PathBuf>, node: NodeIdSource) -> Result<Self, StoreError> {
        let config = connect::parse(url)?;
        Ok(Self { config, authorities, node, connector: Mutex::default(), keys: Mutex::default() })
    }

    /// Returns `true` if both databases have the same address.
    pub fn has_address_of(&self, other: &Self) -> bool {
        self.config == other.config
    }

    fn connector(&self) -> Result<Arc<PgConnector>, StoreError> {
        let mut shared = self.connector.lock();
        if let Some(connector) = shared.upgrade() {
            return Ok(connector);
        }
        let connector = PgConnector::start(&self.config, self.authorities.as_ref())?;
        *shared = Arc::downgrade(&connector);
        Ok(connector)
    }

    /// Returns the connector after checking that the node's data directory, if any, belongs to this database.
    fn checked_connector(&self) -> Result<Arc<PgConnector>, StoreError> {
        let connector = self.connector()?;
        if let Some(dir) = self.data_dir().filter(|dir| dir.join(IDENTITY_FILE).exists()) {
            let found_store = connector.read(BACKGROUND_TIMEOUT, async |client| {
                Ok(match schema::read_version(client).await? {
                    None => FoundStore::Empty,
                    Some(_) => FoundStore::Store(facts::get(client, STORE_ID).await?),
                })
            });
            identity::check_server(dir, &found_store?)?;
        }
        Ok(connector)
    }

    /// Returns the id of the store. A store without an id gets the id in the data directory, or a new one.
    pub fn store_id(&self) -> Result<String, StoreError> {
        let stored_identity = self.data_dir().map(StoreIdentity::read).transpose()?.flatten();
        let id = stored_identity
            .filter(|identity| identity.backend == Backend::Postgres)
            .map_or_else(identity::new_id, |identity| identity.id);
        self.migrated_connector()?.write(async |client| facts::ensure(client, STORE_ID, &id).await)
    }

    /// Returns the connector after migrating the schema, which happens once.
    fn migrated_connector(&self) -> Result<Arc<PgConnector>, StoreError> {
        let connector = self.checked_connector()?;
        connector.block_on(connector.migrated.get_or_try_init(|| connector.migrate()))?;
        Ok(connector)
    }

    /// Returns the connector after creating the schema if there is none. Refuses an older schema, because only a gateway may
    /// migrate it.
    fn current_connector(&self) -> Result<Arc<PgConnector>, StoreError> {
        let connector = self.checked_connector()?;
        connector.block_on(connector.migrated.get_or_try_init(|| async {
            let client = connector.connect().await?;
            schema::read_current_version(&client).await?;
            connector.migrate().await
        }))?;
        Ok(connector)
    }

    pub fn open(&self) -> Result<Arc<dyn Store>, StoreError> {
        Ok(Arc::new(PostgresStore::begin(self.migrated_connector()?, self.node.read()?, SUCCESSION_TIMEOUT)?))
    }

    pub fn credentials(&self) -> Result<Arc<dyn Credentials>, StoreError> {
        let mut shared = self.keys.lock();
        if let Some(keys) = shared.upgrade() {
            return Ok(keys);
        }
        let keys = Arc::new(keys::open(self.current_connector()?)?);
        *shared = Arc::downgrade(&keys);
        Ok(keys)
    }

    /// Returns the accounts and the counts of rules. [`Self::credentials`] keeps a copy of the keys.
    pub fn stored_keys(&self) -> Result<StoredKeys<Arc<PgConnector>>, StoreError> {
        Ok(StoredKeys::new(self.migrated_connector()?))
    }

    pub fn deliveries(&self) -> Result<Arc<dyn Deliveries>, StoreError> {
        Ok(Arc::new(DeliveryStore::new(self.migrated_connector()?)))
    }

    pub fn verify_audit(&self, expected: Option<AuditHead>) -> Result<VerifiedTrail, VerifyError> {
        let connector = self.checked_connector()?;
        connector.block_on(verify::verify(&connector, expected))
    }

    pub fn read_audit(&self, each: &mut dyn FnMut(&AuditEntry) -> io::Result<()>) -> Result<(), ReadAuditError> {
        verify::read_audit(&*self.checked_connector()?, each)
    }

    /// Returns the connections for a module's own tables.
    pub fn tables(&self) -> Result<tables::Tables, StoreError> {
        tables::Tables::new(self.connector()?)
    }

    /// Returns the data directory of the opening node, if it has one.
    pub fn data_dir(&self) -> Option<&Path> {
        match &self.node {
            NodeIdSource::DataDir(dir) => Some(dir),
            NodeIdSource::Generated(_) => None,
        }
    }

    /// Takes the database offline for a move. Creates or migrates its schema if `create` is set.
    pub fn take_offline(&self, create: bool) -> Result<moving::OfflineServer, StoreError> {
        moving::OfflineServer::take(if create { self.migrated_connector()? } else { self.connector()? })
    }

    pub fn reviewer_records(&self) -> Result<Option<ReviewerRecords>, StoreError> {
        let connector = self.checked_connector()?;
        connector.block_on(async {
            let Some(snapshot) = connector.snapshot().await? else { return Ok(None) };
            schema::read_current_version(&snapshot).await?;
            ReviewerRecords::read(&snapshot).await.map(Some)
        })
    }
}

/// The store of a PostgreSQL database.
pub(crate) struct PostgresStore {
    queue: WriteQueue,
    closing: AtomicBool,
    writer: Mutex<Option<JoinHandle<()>>>,
    membership: Arc<Membership>,
    lease_thread: Mutex<Option<JoinHandle<()>>>,
    connector: Arc<PgConnector>,
    /// The ids of messages that were returned to the caller, but may not be deleted yet.
    returned_messages: Arc<Mutex<BTreeSet<i64>>>,
    /// The digest of the newest policy when this node first read the policies, if the node had no policy of its own.
    initial_policy_digest: Arc<OnceLock<String>>,
}

impl PostgresStore {
    /// Serves the database as this node. Waits at most `patience` for gateways that keep this node out.
    fn begin(connector: Arc<PgConnector>, node: String, patience: Duration) -> Result<Self, StoreError> {
        let (queue, commands) = WriteQueue::new();
        let membership = Membership::new(Arc::clone(&connector), node);
        let writer = Writer {
            connector: Arc::clone(&connector),
            membership: Arc::clone(&membership),
            client: None,
            queue: commands,
        };
        let thread = connect::spawn_runtime("store-write", move |ready| writer.run(patience, ready))?;
        let writer = Mutex::new(Some(thread));
        let store = Self {
            queue,
            closing: AtomicBool::new(false),
            writer,
            membership,
            lease_thread: Mutex::default(),
            connector,
            returned_messages: Arc::default(),
            initial_policy_digest: Arc::default(),
        };
        // If the node cannot join, dropping the store ends the writer.
        let lease_thread = store.membership.start()?;
        *store.lease_thread.lock() = Some(lease_thread);
        Ok(store)
    }

    /// Runs a small write outside the queue. Its outcome is unknown if the server does not answer in time.
    fn write<T: Send + 'static>(
        &self,
        work: impl AsyncFnOnce(&ClientWrapper) -> Result<T, StoreError> + Send + 'static,
    ) -> StoreFuture<T> {
        self.run_async(error::unknown_outcome, work)
    }

    fn run_async<T: Send + 'static>(
        &self,
        timeout_error: fn() -> StoreError,
        work: impl AsyncFnOnce(&ClientWrapper) -> Result<T, StoreError> + Send + 'static,
    ) -> StoreFuture<T> {
        if self.closing.load(Ordering::Acquire) {
            return Box::pin(ready(Err(StoreError::Closed)));
        }
        self.connector.run_async(timeout_error, work)
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
        self.run_async(error::no_answer, query)
    }
}

impl StoreBackend for PostgresStore {
    fn policies(&self) -> StoreFuture<PolicySnapshots> {
        let node = self.membership.id.clone();
        let initial_policy_digest = Arc::clone(&self.initial_policy_digest);
        self.read(async move |client| {
            let snapshots = policies::load(client, &node).await?;
            if let PolicySnapshots { own: None, newest: Some(newest), .. } = &snapshots {
                initial_policy_digest.get_or_init(|| newest.digest.clone());
            }
            Ok(snapshots)
        })
    }

    fn save_policy(&self, snapshot: PolicySnapshot, by_consent: bool) -> StoreFuture<()> {
        let node = self.membership.id.clone();
        let initial_policy_digest = self.initial_policy_digest.get().cloned();
        self.write(async move |client| {
            policies::save(client, &node, &snapshot, by_consent, initial_policy_digest.as_deref()).await
        })
    }

    fn remote_events_after(&self, after: u64, limit: usize) -> StoreFuture<Vec<RemoteEvent>> {
        let node = Arc::clone(&self.membership);
        self.read(async move |client| {
            let events = changes::remote_events_after(client, after, limit).await?;
            if !events.is_empty() {
                node.remember_heads(node.read_heads(client, false).await?);
            }
            Ok(events)
        })
    }

    fn orphaned_changes(&self) -> StoreFuture<Vec<String>> {
        self.read(async |client| claims::orphaned_changes(client).await)
    }

    fn in_flight_until(&self, id: &str) -> StoreFuture<Option<Timestamp>> {
        let id = id.to_owned();
        self.read(async move |client| claims::in_flight_until(client, &id).await)
    }

    fn send_to_node(&self, node: &str, change: &str, body: String) -> StoreFuture<()> {
        let (from, to, change) = (self.membership.id.clone(), node.to_owned(), change.to_owned());
        let message = NodeMessage { from, to, change, body };
        self.write(async move |client| node_rows::send_message(client, &message).await)
    }

    fn receive_messages(&self) -> StoreFuture<Vec<(String, String)>> {
        let (own_id, returned_ids, connector) =
            (self.membership.id.clone(), Arc::clone(&self.returned_messages), Arc::clone(&self.connector));
        let reading = self.read(async move |client| node_rows::read_messages(client, &own_id).await);
        Box::pin(async move {
            let messages = reading.await?;
            if messages.is_empty() {
                return Ok(Vec::new());
            }
            let ids: Vec<i64> = messages.iter().map(|(id, _)| *id).collect();
            let new_messages = {
                let mut returned_ids = returned_ids.lock();
                returned_ids.retain(|id| ids.contains(id));
                messages.into_iter().filter(|(id, _)| returned_ids.insert(*id)).map(|(_, message)| message).collect()
            };
            // The ids are kept, so that no message is returned twice if the deletion fails.
            let deleting = connector
                .run_async(error::no_answer, async move |client| node_rows::delete_messages(client, ids).await);
            if let Err(error) = deleting.await {
                tracing::debug!(%error, "messages of other nodes could not be deleted yet");
            }
            Ok(new_messages)
        })
    }

    fn nodes(&self) -> Arc<dyn Nodes> {
        Arc::clone(&self.membership) as _
    }

    fn current_error(&self) -> Option<StoreError> {
        self.connector.health.last_error()
    }

    fn is_open(&self) -> bool {
        self.queue.is_open()
            && self.membership.stop_reason().is_none()
            && self.writer.lock().as_ref().is_some_and(|t| !t.is_finished())
    }

    fn close(&self) {
        self.queue.close();
        self.closing.store(true, Ordering::Release);
        let writer = self.writer.lock().take();
        if writer.is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the writing thread of the store panicked");
        }
        self.membership.close();
        let lease_thread = self.lease_thread.lock().take();
        if lease_thread.is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the thread that renews this node's lease panicked");
        }
    }
}

impl Drop for PostgresStore {
    fn drop(&mut self) {
        self.close();
    }
}
