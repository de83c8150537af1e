//! The SQLite backend: one writing thread, a few reading ones, in WAL mode, so that neither waits for the other.

pub mod backup;
mod claims;
mod error;
#[cfg(test)]
mod faults;
pub(crate) mod keys;
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
pub(crate) mod webhooks;
mod witness;
mod writer;

use std::{
    path::Path,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
        mpsc::{TrySendError, sync_channel},
    },
    thread::JoinHandle,
};

use rusqlite::Connection;

use self::{
    open::open_writer,
    reader::Readers,
    sql::run,
    witness::HeadWitness,
    writer::{CommitFn, Writer, plain_commit},
};
use crate::{
    Nodes, PolicySnapshot, PolicySnapshots, RemoteEvent, ReviewerRecords, StoreBackend, StoreError, StoreFuture,
    health::Health,
    identity::new_id,
    nodes::SingleNode,
    queries::Queries,
    queue::{QUEUE, WriteQueue},
    statements::{changes, facts},
};

/// Returns the id of the store in the directory; a store without one gets it now.
///
/// # Errors
/// See [`open_writer`].
pub(crate) fn store_id(dir: &Path) -> Result<String, StoreError> {
    run(facts::ensure_store_id(&open_writer(dir)?, &new_id()))
}

/// Reads what reviewers decided in one snapshot; `None` if there is no database.
///
/// # Errors
/// Those of the database.
pub(crate) fn read_said(dir: &Path) -> Result<Option<ReviewerRecords>, StoreError> {
    if !open::database_path(dir).exists() {
        return Ok(None);
    }
    let conn = open::open_reader(dir)?;
    let snapshot = conn.unchecked_transaction()?;
    run(ReviewerRecords::read(&*snapshot)).map(Some)
}

/// Reading threads.
const READER_THREADS: usize = 2;

/// The store of a data directory.
pub struct SqliteStore {
    queue: WriteQueue,
    closing: Arc<AtomicBool>,
    writer: Mutex<Option<JoinHandle<()>>>,
    readers: Readers,
    health: Arc<Health>,
    /// The changes that were executing when the store was opened, which no node runs any more.
    left: Arc<[String]>,
    nodes: Arc<SingleNode>,
    dir: Arc<Path>,
}

impl SqliteStore {
    /// Opens or creates the database of the data directory. Hold [`crate::lock_data_dir`] while it is open.
    ///
    /// # Errors
    /// See [`open_writer`].
    pub fn open(dir: &Path) -> Result<Self, StoreError> {
        Self::open_with(dir, plain_commit())
    }

    pub(super) fn open_with(dir: &Path, commit: CommitFn) -> Result<Self, StoreError> {
        let conn = open_writer(dir)?;
        run(facts::check_moved(&conn))?;
        check_pages(&conn, dir)?;
        check_writable(&conn, dir)?;
        let heads = rows::heads(&conn)?;
        let left = rows::executing(&conn)?.into();
        HeadWitness::check(dir, &conn, heads.audit)?;
        space::prepare(&conn, dir)?;
        let health = Arc::new(Health::default());
        let readers = Readers::start(dir, READER_THREADS, &health)?;
        let (commands, received) = sync_channel(QUEUE);
        let queue = WriteQueue::new(move |command| {
            commands.try_send(command).err().map(|refused| match refused {
                TrySendError::Full(command) => (StoreError::QueueFull, command),
                TrySendError::Disconnected(command) => (StoreError::Closed, command),
            })
        });
        let closing = Arc::new(AtomicBool::new(false));
        let writer = Writer {
            conn,
            dir: dir.to_owned(),
            heads,
            version: None,
            queue: received,
            meter: queue.meter(),
            closing: Arc::clone(&closing),
            commit,
            health: Arc::clone(&health),
            witness: HeadWitness::new(dir),
        };
        let thread = std::thread::Builder::new()
            .name("store-write".into())
            .spawn(move || writer.run())
            .map_err(|e| StoreError::DataDir { path: dir.to_owned(), source: Arc::new(e) })?;
        Ok(Self {
            queue,
            closing,
            writer: Mutex::new(Some(thread)),
            readers,
            health,
            left,
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

    /// Parses on the thread that reads, which holds nobody else up.
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
        if self.closing.load(Ordering::Acquire) {
            return Box::pin(std::future::ready(Err(StoreError::Closed)));
        }
        policies::save_aside(&self.dir, snapshot)
    }

    fn remote_events_after(&self, after: u64, limit: usize) -> StoreFuture<Vec<RemoteEvent>> {
        self.read(async move |db| changes::remote_events_after(db, after, limit).await)
    }

    fn orphaned_changes(&self) -> StoreFuture<Vec<String>> {
        if self.left.is_empty() {
            return Box::pin(std::future::ready(Ok(Vec::new())));
        }
        let left = Arc::clone(&self.left);
        self.readers.read(move |conn| {
            let executing = rows::executing(conn)?;
            Ok(executing.into_iter().filter(|id| left.contains(id)).collect())
        })
    }

    fn nodes(&self) -> Arc<dyn Nodes> {
        Arc::clone(&self.nodes) as _
    }

    fn current_error(&self) -> Option<StoreError> {
        self.health.trouble()
    }

    fn is_open(&self) -> bool {
        self.queue.is_open()
            && self.writer.lock().unwrap_or_else(PoisonError::into_inner).as_ref().is_some_and(|t| !t.is_finished())
    }

    fn close(&self) {
        self.closing.store(true, Ordering::Release);
        self.queue.close();
        self.readers.close();
        let writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner).take();
        if writer.is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the writing thread of the store had panicked");
        }
    }
}

impl Drop for SqliteStore {
    fn drop(&mut self) {
        self.close();
    }
}

/// Finds out at the start, and not with the first change, that somebody else holds the lock or that nothing can be
/// written. Writes nothing.
fn check_writable(conn: &Connection, dir: &Path) -> Result<(), StoreError> {
    let tried = conn.execute_batch("BEGIN IMMEDIATE; ROLLBACK").map_err(StoreError::from);
    tried.map_err(|error| match error {
        StoreError::Database(error) => {
            let source = Arc::new(std::io::Error::other(error.to_string()));
            StoreError::DataDir { path: open::database_path(dir), source }
        }
        other => other,
    })
}

/// Databases up to this size are checked page by page whenever they are opened.
const MAX_CHECKED_BYTES: u64 = 32 << 20;

/// Finds damage before anything is built on it. A larger database is checked only if its last process did not close
/// it; what is damaged in its depth is found when it is read.
fn check_pages(conn: &Connection, dir: &Path) -> Result<(), StoreError> {
    let path = open::database_path(dir);
    let size = |path: &Path| std::fs::metadata(path).map_or(0, |m| m.len());
    let mut log = path.clone().into_os_string();
    log.push("-wal");
    let unclean = size(Path::new(&log)) > 0;
    if size(&path) > MAX_CHECKED_BYTES && !unclean {
        return Ok(());
    }
    let verdict: String = conn.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?;
    if verdict == "ok" { Ok(()) } else { Err(StoreError::Corrupt { path, detail: verdict }) }
}
