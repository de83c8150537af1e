//! Stores the tracker's data in a SQLite file of the data directory, or in the store's PostgreSQL database, which
//! several nodes can share.

mod copying;
mod postgres;
mod sqlite;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use tokio::sync::{Semaphore, broadcast};
use tokio_util::sync::CancellationToken;

use super::{
    db::{Db, DbError, DbResult, internal_error},
    uri::ChangedResources,
};
use countersign_protocol::{ErrorKind, McpError};
use countersign_provider::{List, ProviderEvent};
use countersign_runtime::background;
use countersign_store::{ModuleStorage, StoreError};

pub use self::copying::copy_data;
use self::{postgres::PostgresDatabase, sqlite::SqliteDatabase};

/// The name of the file in the data directory.
const FILE_NAME: &str = "tracker.db";
/// The time limit of a slow read, and of the wait before it starts.
const SLOW_READ_TIMEOUT: Duration = Duration::from_secs(10);

/// The reason why the tracker's data cannot be opened or copied.
#[derive(Debug, thiserror::Error)]
pub enum TrackerError {
    #[error("{path}: {source}")]
    Io { path: PathBuf, source: std::io::Error },
    #[error("{path}: {source}")]
    Database { path: PathBuf, source: rusqlite::Error },
    #[error(
        "{path} was written by a newer Countersign (schema {found}, this one knows up to {known}); \
         run that version, or choose another --data"
    )]
    NewerFile { path: PathBuf, found: usize, known: usize },
    #[error(
        "the tracker's tables were written by a newer Countersign (schema {found}, this one knows up to {known}); \
         run that version"
    )]
    NewerTables { found: usize, known: usize },
    #[error("the tracker's tables: {0}")]
    Store(#[from] StoreError),
    #[error("the tracker's data: {0}")]
    Data(String),
    #[error("modules.tracker.workflow: {0}")]
    Workflow(String),
}

impl From<DbError> for TrackerError {
    fn from(error: DbError) -> Self {
        Self::Data(error.to_string())
    }
}

/// The maximum number of events that are held for a slow receiver. A receiver that misses events reads everything
/// again.
const EVENT_CAPACITY: usize = 1024;

/// Announces the resources that a write changed, once it is durable.
fn announce(events: &broadcast::Sender<ProviderEvent>, ChangedResources { uris, list_changed }: ChangedResources) {
    // Sending fails only if there is no receiver.
    if !uris.is_empty() {
        let _ = events.send(ProviderEvent::ResourcesUpdated(uris));
    }
    if list_changed {
        let _ = events.send(ProviderEvent::ListChanged(List::Resources));
    }
}

/// The kind of a read, which decides where it runs and whether it runs in a transaction.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ReadKind {
    /// A short read whose answer comes from one statement, so that it needs no snapshot on PostgreSQL.
    Statement,
    /// A short read with several statements, which must see the same snapshot of the data.
    Snapshot,
    /// A read that may take long. Its statements see the same snapshot of the data.
    Slow,
}

/// The open database, with the limits of its use.
pub(super) struct Storage {
    database: Database,
    events: broadcast::Sender<ProviderEvent>,
    /// The only permit for writes. Waiting for it occupies no thread of the blocking pool.
    write_permit: Arc<Semaphore>,
    slow_read_permits: Arc<Semaphore>,
}

#[derive(Clone)]
enum Database {
    Sqlite(Arc<SqliteDatabase>),
    Postgres(Arc<PostgresDatabase>),
}

impl Storage {
    /// Opens the database, or creates it. `fill` runs in the transaction that migrates the schema, and receives `true`
    /// if the tracker is new. New tables in PostgreSQL receive the data of the file in the data directory.
    ///
    /// # Errors
    /// Fails if a file or a connection fails, or the schema is of a newer version.
    pub fn open(
        location: &ModuleStorage,
        fill: impl FnOnce(Db<'_>, bool) -> DbResult<()>,
    ) -> Result<Self, TrackerError> {
        let (events, _) = broadcast::channel(EVENT_CAPACITY);
        let (database, slow_reads) = match location {
            ModuleStorage::Directory(dir) => {
                (Database::Sqlite(Arc::new(SqliteDatabase::open(dir, fill)?)), sqlite::MAX_SLOW_READS)
            }
            ModuleStorage::Postgres { tables, dir } => {
                let file = dir.as_deref().map(|dir| dir.join(FILE_NAME));
                let server = PostgresDatabase::open(Arc::clone(tables), events.clone(), |db, is_new| match &file {
                    Some(file) if is_new && file.exists() => import(file, db).and_then(|()| fill(db, false)),
                    _ => fill(db, is_new),
                })?;
                (Database::Postgres(Arc::new(server)), postgres::MAX_SLOW_READS)
            }
        };
        let (write_permit, slow_read_permits) = (Arc::new(Semaphore::new(1)), Arc::new(Semaphore::new(slow_reads)));
        Ok(Self { database, events, write_permit, slow_read_permits })
    }

    /// Subscribes to the announcements of changed resources.
    pub fn events(&self) -> broadcast::Receiver<ProviderEvent> {
        self.events.subscribe()
    }

    /// Runs a read. A short read of a file runs on the caller's thread.
    pub async fn read<T: Send + 'static>(
        &self,
        kind: ReadKind,
        cancel: &CancellationToken,
        read: impl FnOnce(Db<'_>) -> Result<T, McpError> + Send + 'static,
    ) -> Result<T, McpError> {
        match (kind, &self.database) {
            (ReadKind::Slow, _) => self.read_slow(cancel, read).await,
            (_, Database::Sqlite(file)) => file.read(None, read),
            (_, Database::Postgres(server)) => server.read(kind, read).await,
        }
    }

    /// Runs a slow read until it is cancelled or its time is over. Only a few run at a time.
    async fn read_slow<T: Send + 'static>(
        &self,
        cancel: &CancellationToken,
        read: impl FnOnce(Db<'_>) -> Result<T, McpError> + Send + 'static,
    ) -> Result<T, McpError> {
        let permit = tokio::select! {
            // A read that is already cancelled does not begin.
            biased;
            () = cancel.cancelled() => return Err(cancelled_error()),
            permit = Arc::clone(&self.slow_read_permits).acquire_owned() => permit.map_err(|_| McpError::shutting_down())?,
            () = tokio::time::sleep(SLOW_READ_TIMEOUT) => {
                return Err(McpError::new(ErrorKind::Overloaded, "The tracker is busy with other searches; try again."));
            }
        };
        // Stops a query of SQLite soon after this future ends or is dropped. A query of PostgreSQL ends by its time
        // limit.
        let stop = CancellationToken::new();
        let _stop_guard = stop.clone().drop_guard();
        let read = move |db: Db<'_>| {
            let _permit = permit;
            read(db)
        };
        let reading = async {
            match &self.database {
                Database::Postgres(server) => server.read(ReadKind::Slow, read).await,
                Database::Sqlite(file) => {
                    let file = Arc::clone(file);
                    let task = background::spawn_blocking(move || file.read(Some(stop), read));
                    task.await.map_err(|_| internal_error())?
                }
            }
        };
        tokio::select! {
            outcome = reading => outcome,
            () = cancel.cancelled() => Err(cancelled_error()),
        }
    }

    /// Waits for earlier writes, then writes in one transaction. Once it has begun, it runs to its end even if the caller
    /// stops waiting. The changed resources are announced after the commit, and before the next write of this node.
    pub async fn write<T: Send + 'static>(
        &self,
        write: impl FnOnce(Db<'_>) -> Result<(T, ChangedResources), McpError> + Send + 'static,
    ) -> Result<T, McpError> {
        let permit = Arc::clone(&self.write_permit).acquire_owned().await.map_err(|_| McpError::shutting_down())?;
        let (database, events) = (self.database.clone(), self.events.clone());
        let task = background::spawn_blocking(move || {
            let _permit = permit;
            // An error here rolls the transaction back.
            let write = |db: Db<'_>| write(db).map_err(mark_not_applied);
            let (value, changed_resources) = match database {
                Database::Sqlite(file) => file.write(write)?,
                Database::Postgres(server) => server.write(write)?,
            };
            announce(&events, changed_resources);
            Ok(value)
        });
        task.await.map_err(|_| internal_error().with("outcome", "unknown"))?
    }

    /// Runs one transaction on this thread, and announces nothing.
    fn with_transaction<T>(&self, run: impl FnOnce(Db<'_>) -> Result<T, TrackerError>) -> Result<T, TrackerError> {
        match &self.database {
            Database::Sqlite(file) => file.with_transaction(run),
            Database::Postgres(server) => server.with_transaction(run),
        }
    }
}

/// Copies the data of a file into empty tables.
fn import(file: &Path, db: Db<'_>) -> DbResult<()> {
    let rows = copying::copy(Db::Sqlite(&sqlite::connect(file, true)?), db, &mut |_, _| {})?;
    tracing::info!(rows, file = %file.display(), "tracker: copied the file's data into the database; the file is no longer used");
    Ok(())
}

fn cancelled_error() -> McpError {
    McpError::new(ErrorKind::Cancelled, "The request was cancelled.")
}

/// Adds the outcome `not_applied` to an error whose kind does not tell whether anything was changed.
fn mark_not_applied(error: McpError) -> McpError {
    let is_ambiguous = matches!(error.kind, ErrorKind::Internal | ErrorKind::Timeout | ErrorKind::Cancelled);
    if is_ambiguous { error.with("outcome", "not_applied") } else { error }
}

/// Logs and returns the error for a commit with an unknown outcome.
fn unknown_outcome(error: &dyn std::fmt::Display) -> McpError {
    tracing::error!(%error, "tracker: a commit failed, and it is unknown whether it is durable");
    let message = "The tracker's database failed while it committed; whether the write was made is unknown.";
    McpError::new(ErrorKind::StoreUnavailable, message).with("outcome", "unknown")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn slow_read_is_cancelled() {
        let dir = tempfile::tempdir().unwrap();
        let location = ModuleStorage::Directory(dir.path().to_owned());
        let storage = Storage::open(&location, |_, _| Ok(())).unwrap();
        let cancel = CancellationToken::new();
        let (report_start, started) = tokio::sync::oneshot::channel();
        let endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT COUNT(*) FROM n";
        let reading = storage.read(ReadKind::Slow, &cancel, move |db| {
            let _ = report_start.send(());
            Ok(db.query_one(endless, &[], |row| row.get::<i64>(0))?)
        });
        let (result, ()) = tokio::join!(reading, async {
            started.await.unwrap();
            cancel.cancel();
        });
        assert_eq!(result.unwrap_err().kind, ErrorKind::Cancelled);
        assert!(storage.read(ReadKind::Snapshot, &cancel, |_| Ok(true)).await.unwrap());
    }
}
