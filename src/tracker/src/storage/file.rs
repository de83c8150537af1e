//! A SQLite file of the tracker's own: one connection that writes, a few that read.
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

use rusqlite::{Connection, OpenFlags, TransactionBehavior, config::DbConfig};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::{Announce, FILE, TrackerError, busy, cancelled, certainly_aborted, shutting_down, unknown};
use crate::{
    db::{Db, Sql, failed, internal, not_written},
    uri::Touched,
};
use countersign_protocol::McpError;

/// Schema changes in order; `user_version` is how many have been made. Never alter one that was released.
const MIGRATIONS: &[&str] = &[include_str!("schema_file.sql")];
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

/// See the module.
pub struct File {
    path: PathBuf,
    writer: Arc<Mutex<Connection>>,
    /// Writers wait here, not on a thread of the blocking pool.
    write_turn: Arc<Semaphore>,
    readers: Mutex<Vec<Connection>>,
    slow_turn: Arc<Semaphore>,
    announce: Arc<Announce>,
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

impl File {
    /// Opens or creates the file (mode 0600) and brings its schema up to date. `fill` is called in the same
    /// transaction, and told whether the file is new.
    pub fn open(
        dir: &Path,
        announce: Announce,
        fill: impl FnOnce(Db<'_>, bool) -> Sql<()>,
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
        prepare(&mut writer, fill).map_err(|error| TrackerError::Data(error.to_string()))?;
        Ok(Self {
            path,
            writer: Arc::new(Mutex::new(writer)),
            write_turn: Arc::new(Semaphore::new(1)),
            readers: Mutex::new(Vec::new()),
            slow_turn: Arc::new(Semaphore::new(SLOW_READS)),
            announce: Arc::new(announce),
        })
    }

    /// A short, indexed read on this thread, on one consistent state if it is a single statement
    /// (else see [`snapshot`]).
    pub fn read<T>(&self, f: impl FnOnce(Db<'_>) -> Result<T, McpError>) -> Result<T, McpError> {
        let conn = self.take_reader()?;
        let result = f(Db::File(&conn));
        self.put_reader(conn);
        result
    }

    fn take_reader(&self) -> Result<Connection, McpError> {
        let idle = lock(&self.readers).pop();
        idle.map_or_else(|| connect(&self.path, true).map_err(|e| failed(&e.into())), Ok)
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
        f: impl FnOnce(Db<'_>) -> Result<T, McpError> + Send + 'static,
    ) -> Result<T, McpError> {
        let turn = tokio::select! {
            turn = Arc::clone(&self.slow_turn).acquire_owned() => turn.map_err(|_| shutting_down())?,
            () = cancel.cancelled() => return Err(cancelled()),
            () = tokio::time::sleep(SLOW_LIMIT) => return Err(busy()),
        };
        // Set when this future ends, in whatever way: the query then stops by itself within moments.
        let stop = StopOnDrop(Arc::new(AtomicBool::new(false)));
        let (storage, stopped) = (Arc::clone(self), Arc::clone(&stop.0));
        let task = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            let mut conn = storage.take_reader()?;
            let deadline = Instant::now() + SLOW_LIMIT;
            let over = move || stopped.load(Ordering::Relaxed) || Instant::now() > deadline;
            conn.progress_handler(STEPS, Some(over)).map_err(|e| failed(&e.into()))?;
            let result = snapshot(Db::File(&conn), f);
            conn.progress_handler(0, None::<fn() -> bool>).map_err(|e| failed(&e.into()))?;
            storage.put_reader(conn);
            result
        });
        tokio::select! {
            done = task => done.map_err(|_| internal())?,
            () = cancel.cancelled() => Err(cancelled()),
        }
    }

    /// On the writing connection and the blocking pool.
    pub async fn write<T: Send + 'static>(
        self: &Arc<Self>,
        f: impl FnOnce(Db<'_>) -> Result<(T, Touched), McpError> + Send + 'static,
    ) -> Result<T, McpError> {
        let turn = Arc::clone(&self.write_turn).acquire_owned().await.map_err(|_| shutting_down())?;
        let (writer, announce) = (Arc::clone(&self.writer), Arc::clone(&self.announce));
        let task = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            let mut conn = lock(&writer);
            let tx =
                conn.transaction_with_behavior(TransactionBehavior::Immediate).map_err(|e| not_written(&e.into()))?;
            // Whatever fails in here is rolled back with the transaction.
            let (value, touched) = f(Db::File(&tx)).map_err(certainly_aborted)?;
            tx.commit().map_err(not_committed)?;
            announce(touched);
            Ok(value)
        });
        task.await.map_err(|_| internal().with("outcome", "unknown"))?
    }

    /// As [`Self::write`], on this thread, telling nobody.
    pub fn blocking<T>(&self, f: impl FnOnce(Db<'_>) -> Result<T, TrackerError>) -> Result<T, TrackerError> {
        let failed = |source| TrackerError::Database { path: self.path.clone(), source };
        let mut conn = lock(&self.writer);
        let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate).map_err(failed)?;
        let value = f(Db::File(&tx))?;
        tx.commit().map_err(failed)?;
        Ok(value)
    }
}

/// Several statements on one state of the database.
pub(super) fn snapshot<T>(db: Db<'_>, f: impl FnOnce(Db<'_>) -> Result<T, McpError>) -> Result<T, McpError> {
    let Db::File(conn) = db else { return f(db) };
    let tx = conn.unchecked_transaction().map_err(|e| failed(&e.into()))?;
    f(Db::File(&tx))
}

pub(super) fn connect(path: &Path, read_only: bool) -> rusqlite::Result<Connection> {
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

fn prepare(conn: &mut Connection, fill: impl FnOnce(Db<'_>, bool) -> Sql<()>) -> Sql<()> {
    let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate)?;
    // Read again inside: another process may have been faster.
    let found = version(&tx)?;
    for sql in MIGRATIONS.iter().skip(found) {
        tx.execute_batch(sql)?;
    }
    fill(Db::File(&tx), found == 0)?;
    tx.pragma_update(None, "user_version", i64::try_from(MIGRATIONS.len()).unwrap_or(i64::MAX))?;
    Ok(tx.commit()?)
}

/// A failed commit is certainly undone only where SQLite refused it before it wrote.
fn not_committed(error: rusqlite::Error) -> McpError {
    use rusqlite::ErrorCode::{ConstraintViolation, DatabaseBusy, DatabaseLocked, DiskFull};
    if let Some(DatabaseBusy | DatabaseLocked | DiskFull | ConstraintViolation) = error.sqlite_error_code() {
        return not_written(&error.into());
    }
    unknown(&error)
}

#[cfg(test)]
mod tests {
    use rusqlite::types::Value;

    use super::*;
    use crate::{refs::EntityRef, rows::find_issue};
    use countersign_protocol::ErrorKind;

    fn open(dir: &Path, fill: impl FnOnce(Db<'_>, bool) -> Sql<()>) -> Result<File, TrackerError> {
        File::open(dir, Box::new(|_| {}), fill)
    }

    #[test]
    fn the_file_is_private_and_its_schema_is_versioned() {
        let dir = tempfile::tempdir().unwrap();
        let mut told = Vec::new();
        for _ in 0..2 {
            let fill = |_: Db<'_>, new| {
                told.push(new);
                Ok(())
            };
            drop(open(dir.path(), fill).unwrap());
        }
        assert_eq!(told, [true, false]);
        let path = dir.path().join(FILE);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);

        let file = open(dir.path(), |_, _| Ok(())).unwrap();
        let conn = lock(&file.writer);
        let pragma = |name: &str| conn.query_row(&format!("PRAGMA {name}"), [], |row| row.get::<_, Value>(0)).unwrap();
        assert_eq!(pragma("journal_mode"), Value::Text("wal".into()));
        assert_eq!((pragma("synchronous"), pragma("foreign_keys")), (Value::Integer(2), Value::Integer(1)));
        drop(conn);
        drop(file);

        let conn = Connection::open(&path).unwrap();
        conn.pragma_update(None, "user_version", 99).unwrap();
        drop(conn);
        let error = open(dir.path(), |_, _| Ok(())).err().unwrap();
        assert!(matches!(error, TrackerError::Newer { found: 99, .. }), "{error}");
    }

    #[test]
    fn a_failed_first_fill_leaves_nothing_behind() {
        let dir = tempfile::tempdir().unwrap();
        let broken = open(dir.path(), |db, _| db.execute("INSERT INTO nowhere VALUES (1)", &[]).map(drop));
        assert!(broken.is_err());
        let mut is_new = false;
        let fill = |_: Db<'_>, new| {
            is_new = new;
            Ok(())
        };
        open(dir.path(), fill).unwrap();
        assert!(is_new);
    }

    #[test]
    fn readers_cannot_write() {
        let dir = tempfile::tempdir().unwrap();
        let file = open(dir.path(), |_, _| Ok(())).unwrap();
        let result = file.read(|db| db.execute("DELETE FROM people", &[]).map_err(|e| not_written(&e)));
        assert_eq!(result.unwrap_err().kind, ErrorKind::StoreUnavailable);
    }

    #[test]
    fn a_repeated_read_is_prepared_once() {
        let dir = tempfile::tempdir().unwrap();
        let file = open(dir.path(), |_, _| Ok(())).unwrap();
        let again = file.read(|db| {
            for key in ["CORE-1", "CORE-2", "CORE-3"] {
                assert!(find_issue(db, &EntityRef::Key(key.into())).unwrap().is_none());
            }
            let Db::File(conn) = db else { unreachable!("it is a file") };
            let statement = conn.prepare_cached(crate::rows::ISSUE_BY_KEY).unwrap();
            Ok((
                statement.get_status(rusqlite::StatementStatus::Run),
                statement.get_status(rusqlite::StatementStatus::RePrepare),
            ))
        });
        assert_eq!(again.unwrap(), (3, 0));
    }

    #[tokio::test]
    async fn a_slow_read_ends_when_it_is_cancelled() {
        let dir = tempfile::tempdir().unwrap();
        let file = Arc::new(open(dir.path(), |_, _| Ok(())).unwrap());
        let cancel = CancellationToken::new();
        let endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT COUNT(*) FROM n";
        let token = cancel.clone();
        let (started, begun) = tokio::sync::oneshot::channel();
        let reading = file.read_slow(&token, move |db| {
            let _ = started.send(());
            db.one(endless, &[], |row| row.get::<i64>(0)).map_err(|e| failed(&e))
        });
        let (result, ()) = tokio::join!(reading, async {
            begun.await.unwrap();
            cancel.cancel();
        });
        assert_eq!(result.unwrap_err().kind, ErrorKind::Cancelled);
        assert!(file.read(|_| Ok(true)).unwrap());
    }
}
