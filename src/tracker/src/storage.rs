//! The tracker's own SQLite file: one connection that writes, a few that read.
//!
//! Short indexed reads run on the caller's thread; whatever may take long, and every write, runs on the blocking
//! pool under a bound. A reader never waits for the writer (WAL). No lock is held across an await.

use std::{
    fs,
    io::Write as _,
    os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use rusqlite::{Connection, OpenFlags, Transaction, TransactionBehavior, config::DbConfig};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use countersign_protocol::{ErrorKind, McpError};

/// Schema changes in order; `user_version` is how many have been made. Never alter one that was released.
const MIGRATIONS: &[&str] = &[include_str!("schema.sql")];
const FILE: &str = "tracker.db";
/// Idle reading connections kept.
const IDLE_READERS: usize = 8;
/// Slow reads at a time.
const SLOW_READS: usize = 4;
/// Longest slow read.
const SLOW_LIMIT: Duration = Duration::from_secs(10);
/// Steps of SQLite's machine between two looks at the clock.
const STEPS: i32 = 10_000;
const BUSY: Duration = Duration::from_secs(5);
/// Prepared statements kept by a connection: listings have one for each combination of filters.
const STATEMENTS: usize = 128;

/// Why the tracker could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum TrackerError {
    #[error("{path}: {source}")]
    Io { path: PathBuf, source: std::io::Error },
    #[error("{path}: {source}")]
    Database { path: PathBuf, source: rusqlite::Error },
    #[error("{path} was written by a newer version (schema {found}, this version knows up to {known})")]
    Newer { path: PathBuf, found: usize, known: usize },
    #[error("modules.tracker.workflow: {0}")]
    Workflow(String),
}

/// The database. Cheap to share behind an `Arc`.
pub(super) struct Storage {
    path: PathBuf,
    writer: Arc<Mutex<Connection>>,
    /// Writers wait here, not on a thread of the blocking pool.
    write_turn: Arc<Semaphore>,
    readers: Mutex<Vec<Connection>>,
    slow_turn: Arc<Semaphore>,
}

struct StopOnDrop(Arc<AtomicBool>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A panicking holder left nothing half done: transactions roll back when dropped.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Storage {
    /// Opens or creates the file (mode 0600) and brings its schema up to date. `fill` is called in the same
    /// transaction, and told whether the file is new.
    pub fn open(
        dir: &Path,
        fill: impl FnOnce(&Transaction<'_>, bool) -> rusqlite::Result<()>,
    ) -> Result<Self, TrackerError> {
        let path = dir.join(FILE);
        let io = |source| TrackerError::Io { path: path.clone(), source };
        if !dir.exists() {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(io)?;
        }
        // Made before SQLite does, so that it is never readable by others; its WAL takes the same mode.
        let mut file = fs::OpenOptions::new().create(true).append(true).mode(0o600).open(&path).map_err(io)?;
        file.flush().map_err(io)?;
        file.set_permissions(fs::Permissions::from_mode(0o600)).map_err(io)?;
        drop(file);

        let db = |source| TrackerError::Database { path: path.clone(), source };
        let mut writer = connect(&path, false).map_err(db)?;
        let found = version(&writer).map_err(db)?;
        if found > MIGRATIONS.len() {
            return Err(TrackerError::Newer { path, found, known: MIGRATIONS.len() });
        }
        prepare(&mut writer, fill).map_err(db)?;
        Ok(Self {
            path,
            writer: Arc::new(Mutex::new(writer)),
            write_turn: Arc::new(Semaphore::new(1)),
            readers: Mutex::new(Vec::new()),
            slow_turn: Arc::new(Semaphore::new(SLOW_READS)),
        })
    }

    /// A short, indexed read on this thread, on one consistent state if it is a single statement
    /// (else see [`snapshot`]).
    pub fn read<T>(&self, f: impl FnOnce(&Connection) -> Result<T, McpError>) -> Result<T, McpError> {
        let conn = self.take_reader()?;
        let result = f(&conn);
        self.put_reader(conn);
        result
    }

    fn take_reader(&self) -> Result<Connection, McpError> {
        let idle = lock(&self.readers).pop();
        idle.map_or_else(|| connect(&self.path, true).map_err(|e| failed(&e)), Ok)
    }

    fn put_reader(&self, conn: Connection) {
        let mut readers = lock(&self.readers);
        if readers.len() < IDLE_READERS {
            readers.push(conn);
        }
    }

    /// A read that may take long: on the blocking pool, a few at a time, interrupted when cancelled or over time.
    pub async fn read_slow<T: Send + 'static>(
        self: &Arc<Self>,
        cancel: &CancellationToken,
        f: impl FnOnce(&Connection) -> Result<T, McpError> + Send + 'static,
    ) -> Result<T, McpError> {
        let turn = tokio::select! {
            turn = Arc::clone(&self.slow_turn).acquire_owned() => turn.map_err(|_| shutting_down())?,
            () = cancel.cancelled() => return Err(cancelled()),
            () = tokio::time::sleep(SLOW_LIMIT) => {
                return Err(McpError::new(ErrorKind::Overloaded, "The tracker is busy with other searches; try again."));
            }
        };
        // Set when this future ends, in whatever way: the query then stops by itself within moments.
        let stop = StopOnDrop(Arc::new(AtomicBool::new(false)));
        let (storage, stopped) = (Arc::clone(self), Arc::clone(&stop.0));
        let task = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            let mut conn = storage.take_reader()?;
            let deadline = Instant::now() + SLOW_LIMIT;
            let over = move || stopped.load(Ordering::Relaxed) || Instant::now() > deadline;
            conn.progress_handler(STEPS, Some(over)).map_err(|e| failed(&e))?;
            let result = snapshot(&conn, f);
            conn.progress_handler(0, None::<fn() -> bool>).map_err(|e| failed(&e))?;
            storage.put_reader(conn);
            result
        });
        tokio::select! {
            done = task => done.map_err(|_| internal())?,
            () = cancel.cancelled() => Err(cancelled()),
        }
    }

    /// One transaction on the writing connection, on the blocking pool. Once it has begun it runs to its end, also
    /// when the caller goes away. `committed` is called after the commit and before the next write can begin.
    pub async fn write<T: Send + 'static>(
        self: &Arc<Self>,
        f: impl FnOnce(&Transaction<'_>) -> Result<T, McpError> + Send + 'static,
        committed: impl FnOnce(&T) + Send + 'static,
    ) -> Result<T, McpError> {
        let turn = Arc::clone(&self.write_turn).acquire_owned().await.map_err(|_| shutting_down())?;
        let writer = Arc::clone(&self.writer);
        let task = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            let mut conn = lock(&writer);
            let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate).map_err(|e| not_written(&e))?;
            // Whatever fails in here is rolled back with the transaction.
            let value = f(&tx).map_err(certainly_aborted)?;
            tx.commit().map_err(|e| not_committed(&e))?;
            committed(&value);
            Ok(value)
        });
        task.await.map_err(|_| internal().with("outcome", "unknown"))?
    }
}

/// Several statements on one state of the database.
pub(super) fn snapshot<T>(
    conn: &Connection,
    f: impl FnOnce(&Connection) -> Result<T, McpError>,
) -> Result<T, McpError> {
    let tx = conn.unchecked_transaction().map_err(|e| failed(&e))?;
    f(&tx)
}

fn connect(path: &Path, read_only: bool) -> rusqlite::Result<Connection> {
    let access = if read_only { OpenFlags::SQLITE_OPEN_READ_ONLY } else { OpenFlags::SQLITE_OPEN_READ_WRITE };
    let conn = Connection::open_with_flags(path, access | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
    conn.busy_timeout(BUSY)?;
    conn.set_prepared_statement_cache_capacity(STATEMENTS);
    if !read_only {
        conn.pragma_update(None, "journal_mode", "wal")?;
        conn.pragma_update(None, "synchronous", "full")?;
    }
    // Otherwise SQLite, built with STAT4, prepares a statement anew whenever a parameter is bound: ten times the cost of
    // a short read.
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    conn.pragma_update(None, "foreign_keys", true)?;
    conn.pragma_update(None, "trusted_schema", false)?;
    conn.pragma_update(None, "cache_size", -4_000)?;
    Ok(conn)
}

/// How many migrations have been made.
fn version(conn: &Connection) -> rusqlite::Result<usize> {
    let number: i64 = conn.query_row("PRAGMA user_version", [], |row| row.get(0))?;
    Ok(usize::try_from(number).unwrap_or(usize::MAX))
}

fn prepare(
    conn: &mut Connection,
    fill: impl FnOnce(&Transaction<'_>, bool) -> rusqlite::Result<()>,
) -> rusqlite::Result<()> {
    let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate)?;
    // Read again inside: another process may have been faster.
    let found = version(&tx)?;
    for sql in MIGRATIONS.iter().skip(found) {
        tx.execute_batch(sql)?;
    }
    fill(&tx, found == 0)?;
    tx.pragma_update(None, "user_version", i64::try_from(MIGRATIONS.len()).unwrap_or(i64::MAX))?;
    tx.commit()
}

fn cancelled() -> McpError {
    McpError::new(ErrorKind::Cancelled, "The request was cancelled.")
}

fn shutting_down() -> McpError {
    McpError::new(ErrorKind::ShuttingDown, "The gateway is shutting down.")
}

fn internal() -> McpError {
    McpError::new(ErrorKind::Internal, "The tracker failed; see the gateway's log.")
}

/// A read failed: the log says why, the client does not learn of our files.
pub(super) fn failed(error: &rusqlite::Error) -> McpError {
    if error.sqlite_error_code() == Some(rusqlite::ErrorCode::OperationInterrupted) {
        return McpError::new(ErrorKind::Timeout, "The query took too long; narrow it.");
    }
    tracing::error!(%error, "tracker: the database could not be read");
    internal()
}

/// A write failed before its commit, so nothing was changed.
pub(super) fn not_written(error: &rusqlite::Error) -> McpError {
    tracing::error!(%error, "tracker: the database could not be written");
    McpError::new(ErrorKind::StoreUnavailable, "The tracker's database could not be written; nothing was changed.")
}

/// Says that nothing was changed where the error's kind leaves that open.
fn certainly_aborted(error: McpError) -> McpError {
    let open = matches!(error.kind, ErrorKind::Internal | ErrorKind::Timeout | ErrorKind::Cancelled);
    if open { error.with("outcome", "not_applied") } else { error }
}

/// A failed commit is certainly undone only where SQLite refused it before it wrote.
fn not_committed(error: &rusqlite::Error) -> McpError {
    use rusqlite::ErrorCode::{ConstraintViolation, DatabaseBusy, DatabaseLocked, DiskFull};
    if let Some(DatabaseBusy | DatabaseLocked | DiskFull | ConstraintViolation) = error.sqlite_error_code() {
        return not_written(error);
    }
    tracing::error!(%error, "tracker: a commit failed; whether it is durable is unknown");
    let message = "The tracker's database failed while it committed; whether the write was made is unknown.";
    McpError::new(ErrorKind::StoreUnavailable, message).with("outcome", "unknown")
}

#[cfg(test)]
mod tests {
    use rusqlite::types::Value;

    use super::{
        super::{refs::EntityRef, rows::select_issue},
        *,
    };

    #[test]
    fn the_file_is_private_and_its_schema_is_versioned() {
        let dir = tempfile::tempdir().unwrap();
        let mut told = Vec::new();
        for _ in 0..2 {
            let fill = |_: &Transaction<'_>, new| {
                told.push(new);
                Ok(())
            };
            drop(Storage::open(dir.path(), fill).unwrap());
        }
        assert_eq!(told, [true, false]);
        let path = dir.path().join(FILE);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);

        let storage = Storage::open(dir.path(), |_, _| Ok(())).unwrap();
        let conn = lock(&storage.writer);
        let pragma = |name: &str| conn.query_row(&format!("PRAGMA {name}"), [], |row| row.get::<_, Value>(0)).unwrap();
        assert_eq!(pragma("journal_mode"), Value::Text("wal".into()));
        assert_eq!((pragma("synchronous"), pragma("foreign_keys")), (Value::Integer(2), Value::Integer(1)));
        drop(conn);
        drop(storage);

        let conn = Connection::open(&path).unwrap();
        conn.pragma_update(None, "user_version", 99).unwrap();
        drop(conn);
        let error = Storage::open(dir.path(), |_, _| Ok(())).err().unwrap();
        assert!(matches!(error, TrackerError::Newer { found: 99, .. }), "{error}");
    }

    #[test]
    fn a_failed_first_fill_leaves_nothing_behind() {
        let dir = tempfile::tempdir().unwrap();
        let broken = Storage::open(dir.path(), |tx, _| tx.execute_batch("INSERT INTO nowhere VALUES (1)"));
        assert!(broken.is_err());
        let mut is_new = false;
        let fill = |_: &Transaction<'_>, new| {
            is_new = new;
            Ok(())
        };
        Storage::open(dir.path(), fill).unwrap();
        assert!(is_new);
    }

    #[test]
    fn readers_cannot_write() {
        let dir = tempfile::tempdir().unwrap();
        let storage = Storage::open(dir.path(), |_, _| Ok(())).unwrap();
        let result = storage.read(|conn| conn.execute("DELETE FROM people", []).map_err(|e| not_written(&e)));
        assert_eq!(result.unwrap_err().kind, ErrorKind::StoreUnavailable);
    }

    #[test]
    fn a_repeated_read_is_prepared_once() {
        let dir = tempfile::tempdir().unwrap();
        let storage = Storage::open(dir.path(), |_, _| Ok(())).unwrap();
        let again = storage.read(|conn| {
            for key in ["CORE-1", "CORE-2", "CORE-3"] {
                let mut statement = select_issue(conn, &EntityRef::Key(key.into())).unwrap();
                assert!(!statement.exists([key]).unwrap());
            }
            let statement = select_issue(conn, &EntityRef::Key("CORE-4".into())).unwrap();
            Ok(statement.get_status(rusqlite::StatementStatus::RePrepare))
        });
        assert_eq!(again.unwrap(), 0);
    }

    #[tokio::test]
    async fn a_slow_read_ends_when_it_is_cancelled() {
        let dir = tempfile::tempdir().unwrap();
        let storage = Arc::new(Storage::open(dir.path(), |_, _| Ok(())).unwrap());
        let cancel = CancellationToken::new();
        let endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT COUNT(*) FROM n";
        let token = cancel.clone();
        let (started, begun) = tokio::sync::oneshot::channel();
        let reading = storage.read_slow(&token, move |conn| {
            let _ = started.send(());
            conn.query_row(endless, [], |row| row.get::<_, i64>(0)).map_err(|e| failed(&e))
        });
        let (result, ()) = tokio::join!(reading, async {
            begun.await.unwrap();
            cancel.cancel();
        });
        assert_eq!(result.unwrap_err().kind, ErrorKind::Cancelled);
        assert!(storage.read(|_| Ok(true)).unwrap());
    }
}
