//! The SQLite backend: one thread that writes and a few that read. In WAL mode, reads and writes do not wait for each
//! other.

pub mod backup;
mod claims;
mod error;
#[cfg(test)]
mod fault_tests;
pub(crate) mod moving;
pub mod open;
mod policies;
mod reader;
mod rows;
mod search;
mod space;
pub mod sql;
pub(crate) mod trail;
pub(crate) mod verify;
mod witness;
mod writer;

use std::{path::Path, sync::Arc, thread::JoinHandle};

use parking_lot::Mutex;
use rusqlite::Connection;

use self::{
    open::{open_current, open_writer},
    reader::Readers,
    sql::{SharedConnection, run},
    witness::HeadWitness,
    writer::{CommitFn, WatchedFile, Writer, plain_commit},
};
use crate::{
    Nodes, PolicySnapshot, PolicySnapshots, RemoteEvent, ReviewerRecords, StoreBackend, StoreError, StoreFuture,
    delivery_store::DeliveryStore,
    health::Health,
    identity::{STORE_ID, new_id},
    nodes::SingleNode,
    queries::Queries,
    queue::WriteQueue,
    statements::{changes, facts},
    stored_keys::StoredKeys,
};
use countersign_runtime::background;

/// Opens the keys and accounts of a data directory, and creates the database if there is none. Each call blocks for one read
/// (microseconds) or one durable write (milliseconds).
///
/// # Errors
/// See [`open_current`].
pub(crate) fn open_keys(dir: &Path) -> Result<StoredKeys<SharedConnection>, StoreError> {
    let conn = open_current(dir)?;
    run(facts::check_moved(&conn))?;
    Ok(StoredKeys::new(SharedConnection::new(conn)))
}

/// Opens the deliveries of a data directory on a connection of their own.
///
/// # Errors
/// See [`open_writer`].
pub(crate) fn open_deliveries(dir: &Path) -> Result<DeliveryStore<SharedConnection>, StoreError> {
    let conn = open_writer(dir)?;
    // A crash of the machine may undo the last writes. Some deliveries are then sent again, but none are lost.
    conn.pragma_update(None, "synchronous", "NORMAL")?;
    Ok(DeliveryStore::new(SharedConnection::new(conn)))
}

/// Returns the id of the store in the directory. A store without an id gets a new one.
///
/// # Errors
/// See [`open_writer`].
pub(crate) fn store_id(dir: &Path) -> Result<String, StoreError> {
    run(facts::ensure(&open_writer(dir)?, STORE_ID, &new_id()))
}

/// Reads the decisions of reviewers in one snapshot. Returns `None` if there is no database, or an empty one.
///
/// # Errors
/// Those of the database; [`StoreError::OlderFile`].
pub(crate) fn read_reviewer_records(dir: &Path) -> Result<Option<ReviewerRecords>, StoreError> {
    let path = open::database_path(dir);
    if !path.exists() {
        return Ok(None);
    }
    let conn = open::open_reader(dir)?;
    let snapshot = conn.unchecked_transaction()?;
    if open::read_current_version(&snapshot, &path)? == 0 {
        return Ok(None);
    }
    run(ReviewerRecords::read(&*snapshot)).map(Some)
}

/// The number of threads for reads.
const READER_THREADS: usize = 2;

/// The store of a data directory.
pub struct SqliteStore {
    queue: WriteQueue,
    writer: Mutex<Option<JoinHandle<()>>>,
    readers: Readers,
    health: Arc<Health>,
    /// The changes that were executing when the store was opened. Their process has ended.
    orphaned_at_open: Arc<[String]>,
    nodes: Arc<SingleNode>,
    dir: Arc<Path>,
}

impl SqliteStore {
    /// Opens or creates the database of the data directory. Hold [`countersign_runtime::data_dir::lock_data_dir`] while the
    /// store is open.
    ///
    /// # Errors
    /// See [`open_writer`].
    pub fn open(dir: &Path) -> Result<Self, StoreError> {
        Self::open_with(dir, plain_commit())
    }

    pub(super) fn open_with(dir: &Path, commit: CommitFn) -> Result<Self, StoreError> {
        let conn = open_writer(dir)?;
        let files = WatchedFile::all(dir)?;
        run(facts::check_moved(&conn))?;
        check_pages(&conn, dir)?;
        check_writable(&conn, dir)?;
        let heads = rows::heads(&conn)?;
        let orphaned_at_open = rows::executing_changes(&conn)?.into();
        HeadWitness::check(dir, &conn, heads.audit)?;
        let health = Arc::new(Health::default());
        let readers = Readers::start(dir, READER_THREADS, &health)?;
        let (queue, commands) = WriteQueue::new();
        let writer = Writer {
            conn,
            dir: dir.to_owned(),
            files,
            heads,
            data_version: None,
            queue: commands,
            commit,
            health: Arc::clone(&health),
            witness: HeadWitness::new(dir),
        };
        let failed = |source| StoreError::data_dir(dir, source);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().map_err(failed)?;
        let thread = std::thread::Builder::new().name("store-write".into());
        let thread = thread.spawn(move || writer.run(&runtime)).map_err(failed)?;
        Ok(Self {
            queue,
            writer: Mutex::new(Some(thread)),
            readers,
            health,
            orphaned_at_open,
            nodes: SingleNode::new(),
            dir: dir.into(),
        })
    }
}

impl Queries for SqliteStore {
    type Connection = Connection;

    fn write_queue(&self) -> &WriteQueue {
        &self.queue
    }

    fn read<T: Send + 'static>(
        &self,
        query: impl AsyncFnOnce(&Connection) -> Result<T, StoreError> + Send + 'static,
    ) -> StoreFuture<T> {
        self.readers.read(move |conn| run(query(conn)))
    }

    /// Parses on the reader's thread, so that large changes do not block the caller's runtime.
    fn read_and_parse<R: Send + 'static, T: Send + 'static>(
        &self,
        query: impl AsyncFnOnce(&Connection) -> Result<R, StoreError> + Send + 'static,
        parse: fn(R) -> Result<T, StoreError>,
    ) -> StoreFuture<T> {
        self.readers.read(move |conn| parse(run(query(conn))?))
    }
}

impl StoreBackend for SqliteStore {
    fn policies(&self) -> StoreFuture<PolicySnapshots> {
        self.readers.read(policies::load)
    }

    fn save_policy(&self, snapshot: PolicySnapshot, _: bool) -> StoreFuture<()> {
        if !self.queue.is_open() {
            return Box::pin(std::future::ready(Err(StoreError::Closed)));
        }
        let dir = Arc::clone(&self.dir);
        let saving = background::spawn_blocking(move || policies::save(&dir, &snapshot));
        Box::pin(async move { saving.await.unwrap_or(Err(StoreError::Closed)) })
    }

    fn remote_events_after(&self, after: u64, limit: usize) -> StoreFuture<Vec<RemoteEvent>> {
        self.read(async move |db| changes::remote_events_after(db, after, limit).await)
    }

    fn orphaned_changes(&self) -> StoreFuture<Vec<String>> {
        if self.orphaned_at_open.is_empty() {
            return Box::pin(std::future::ready(Ok(Vec::new())));
        }
        let orphaned_at_open = Arc::clone(&self.orphaned_at_open);
        self.readers.read(move |conn| {
            let executing = rows::executing_changes(conn)?;
            Ok(executing.into_iter().filter(|id| orphaned_at_open.contains(id)).collect())
        })
    }

    fn nodes(&self) -> Arc<dyn Nodes> {
        Arc::clone(&self.nodes) as _
    }

    fn current_error(&self) -> Option<StoreError> {
        self.health.last_error()
    }

    fn is_open(&self) -> bool {
        self.queue.is_open() && self.writer.lock().as_ref().is_some_and(|t| !t.is_finished())
    }

    fn close(&self) {
        self.queue.close();
        self.readers.close();
        let writer = self.writer.lock().take();
        if writer.is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the writing thread of the store panicked");
        }
    }
}

impl Drop for SqliteStore {
    fn drop(&mut self) {
        self.close();
    }
}

/// Fails if the database is locked or not writable, so that the gateway notices at its start. Writes nothing.
fn check_writable(conn: &Connection, dir: &Path) -> Result<(), StoreError> {
    let tried = conn.execute_batch("BEGIN IMMEDIATE; ROLLBACK");
    tried.map_err(|error| open::add_path(&open::database_path(dir), error.into()))
}

/// The maximum size of databases whose pages are checked on every opening.
const MAX_CHECKED_BYTES: u64 = 32 << 20;

/// Checks the pages of the database for damage. A database above [`MAX_CHECKED_BYTES`] is checked only if its last
/// process did not close it. Other damage of a large database is found when the page is read.
fn check_pages(conn: &Connection, dir: &Path) -> Result<(), StoreError> {
    let path = open::database_path(dir);
    let size = |path: &Path| std::fs::metadata(path).map_or(0, |m| m.len());
    let is_unclean = size(&open::log_path(dir)) > 0;
    if size(&path) > MAX_CHECKED_BYTES && !is_unclean {
        return Ok(());
    }
    let verdict: String = conn.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?;
    if verdict == "ok" { Ok(()) } else { Err(StoreError::Corrupt { path, detail: verdict }) }
}
