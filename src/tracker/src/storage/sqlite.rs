//! Stores the data in a SQLite file, with one connection that writes and several that read.
//!
//! Readers never wait for the writer, because the file uses a write-ahead log (WAL).

use std::{
    fs,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use rusqlite::{Connection, OpenFlags, TransactionBehavior, config::DbConfig};
use tokio_util::sync::CancellationToken;

use super::{FILE_NAME, SLOW_READ_TIMEOUT, TrackerError, unknown_outcome};
use crate::{
    db::{Db, DbError, DbResult, unwritten_error},
    uri::ChangedResources,
};
use countersign_protocol::McpError;
use countersign_runtime::files::ensure_private_file;

/// Schema changes in order. `user_version` of a file is the number of those that were applied. Never change one that
/// was released.
const MIGRATIONS: &[&str] = &[include_str!("schema_sqlite.sql")];
/// The maximum number of idle connections for reads.
const MAX_IDLE_READERS: usize = 8;
/// The maximum number of concurrent slow reads.
pub(super) const MAX_SLOW_READS: usize = 4;
/// The number of steps of SQLite's virtual machine between two checks of the clock.
const STEPS_PER_CHECK: i32 = 10_000;
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
/// The maximum number of prepared statements of a connection. Listings have one for each combination of filters.
const MAX_CACHED_STATEMENTS: usize = 128;

pub(super) struct SqliteDatabase {
    path: PathBuf,
    writer: Mutex<Connection>,
    readers: Mutex<Vec<Connection>>,
}

impl SqliteDatabase {
    /// Opens or creates the file (mode 0600), and migrates its schema. `fill` runs in the same transaction, and
    /// receives `true` if the file is new.
    pub fn open(dir: &Path, fill: impl FnOnce(Db<'_>, bool) -> DbResult<()>) -> Result<Self, TrackerError> {
        let path = dir.join(FILE_NAME);
        let io = |source| TrackerError::Io { path: path.clone(), source };
        if !dir.exists() {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(io)?;
        }
        // The file is created before SQLite opens it, so that other users can never read it. SQLite gives the WAL the
        // same mode.
        ensure_private_file(&path).map_err(io)?;

        let database = |source| TrackerError::Database { path: path.clone(), source };
        let mut writer = connect(&path, false).map_err(database)?;
        let version = schema_version(&writer).map_err(database)?;
        if version > MIGRATIONS.len() {
            return Err(TrackerError::NewerFile { path, found: version, known: MIGRATIONS.len() });
        }
        migrate(&mut writer, fill)?;
        Ok(Self { path, writer: Mutex::new(writer), readers: Mutex::default() })
    }

    /// Reads in one transaction on this thread. If `stop` is given, the read ends once it is cancelled or
    /// [`SLOW_READ_TIMEOUT`] is over.
    pub fn read<T>(
        &self,
        stop: Option<CancellationToken>,
        read: impl FnOnce(Db<'_>) -> Result<T, McpError>,
    ) -> Result<T, McpError> {
        let idle = self.readers.lock().pop();
        let mut conn = idle.map_or_else(|| connect(&self.path, true), Ok).map_err(DbError::from)?;
        let is_limited = stop.is_some();
        if let Some(stop) = stop {
            let deadline = Instant::now() + SLOW_READ_TIMEOUT;
            let is_over = move || stop.is_cancelled() || Instant::now() > deadline;
            conn.progress_handler(STEPS_PER_CHECK, Some(is_over)).map_err(DbError::from)?;
        }
        let result =
            conn.unchecked_transaction().map_err(|e| DbError::from(e).into()).and_then(|tx| read(Db::Sqlite(&tx)));
        if is_limited {
            conn.progress_handler(0, None::<fn() -> bool>).map_err(DbError::from)?;
        }
        let mut readers = self.readers.lock();
        if readers.len() < MAX_IDLE_READERS {
            readers.push(conn);
        }
        result
    }

    /// Waits for earlier writes, then writes in one transaction on this thread.
    pub fn write<T>(
        &self,
        write: impl FnOnce(Db<'_>) -> Result<(T, ChangedResources), McpError>,
    ) -> Result<(T, ChangedResources), McpError> {
        let mut conn = self.writer.lock();
        let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate).map_err(unwritten_error)?;
        let value = write(Db::Sqlite(&tx))?;
        tx.commit().map_err(commit_error)?;
        Ok(value)
    }

    /// Runs one transaction of [`super::Storage::with_transaction`].
    pub fn with_transaction<T>(&self, run: impl FnOnce(Db<'_>) -> Result<T, TrackerError>) -> Result<T, TrackerError> {
        let failed = |source| TrackerError::Database { path: self.path.clone(), source };
        let mut conn = self.writer.lock();
        let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate).map_err(failed)?;
        let value = run(Db::Sqlite(&tx))?;
        tx.commit().map_err(failed)?;
        Ok(value)
    }
}

pub(super) fn connect(path: &Path, read_only: bool) -> rusqlite::Result<Connection> {
    let access = if read_only { OpenFlags::SQLITE_OPEN_READ_ONLY } else { OpenFlags::SQLITE_OPEN_READ_WRITE };
    let conn = Connection::open_with_flags(path, access | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
    conn.busy_timeout(BUSY_TIMEOUT)?;
    conn.set_prepared_statement_cache_capacity(MAX_CACHED_STATEMENTS);
    if !read_only {
        conn.pragma_update(None, "journal_mode", "wal")?;
        conn.pragma_update(None, "synchronous", "full")?;
    }
    // SQLite is built with STAT4. Without this setting it prepares a statement again whenever a parameter is bound,
    // which costs ten times as much as a short read.
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    conn.pragma_update(None, "foreign_keys", true)?;
    conn.pragma_update(None, "trusted_schema", false)?;
    conn.pragma_update(None, "cache_size", -4_000)?;
    Ok(conn)
}

/// Returns the number of migrations that were applied.
fn schema_version(conn: &Connection) -> rusqlite::Result<usize> {
    let number: i64 = conn.query_row("PRAGMA user_version", [], |row| row.get(0))?;
    Ok(usize::try_from(number).unwrap_or(usize::MAX))
}

fn migrate(conn: &mut Connection, fill: impl FnOnce(Db<'_>, bool) -> DbResult<()>) -> DbResult<()> {
    let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate)?;
    // The version is read again inside the transaction, because another process may have migrated the file.
    let version = schema_version(&tx)?;
    for sql in MIGRATIONS.iter().skip(version) {
        tx.execute_batch(sql)?;
    }
    fill(Db::Sqlite(&tx), version == 0)?;
    tx.pragma_update(None, "user_version", i64::try_from(MIGRATIONS.len()).unwrap_or(i64::MAX))?;
    Ok(tx.commit()?)
}

/// Returns the error of a failed commit. Its outcome is known only if SQLite refused it before it wrote anything.
fn commit_error(error: rusqlite::Error) -> McpError {
    use rusqlite::ErrorCode::{ConstraintViolation, DatabaseBusy, DatabaseLocked, DiskFull};
    match error.sqlite_error_code() {
        Some(DatabaseBusy | DatabaseLocked | DiskFull | ConstraintViolation) => unwritten_error(error),
        _ => unknown_outcome(&error),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use rusqlite::types::Value;

    use super::*;
    use crate::{arguments::EntityRef, rows, workflow::Workflow};
    use countersign_protocol::ErrorKind;

    #[test]
    fn file_is_private_and_its_schema_is_versioned() {
        let dir = tempfile::tempdir().unwrap();
        let mut new_flags = Vec::new();
        for _ in 0..2 {
            let fill = |_: Db<'_>, is_new| {
                new_flags.push(is_new);
                Ok(())
            };
            drop(SqliteDatabase::open(dir.path(), fill).unwrap());
        }
        assert_eq!(new_flags, [true, false]);
        let path = dir.path().join(FILE_NAME);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);

        let file = SqliteDatabase::open(dir.path(), |_, _| Ok(())).unwrap();
        let conn = file.writer.lock();
        let pragma = |name: &str| conn.query_row(&format!("PRAGMA {name}"), [], |row| row.get::<_, Value>(0)).unwrap();
        assert_eq!(pragma("journal_mode"), Value::Text("wal".into()));
        assert_eq!((pragma("synchronous"), pragma("foreign_keys")), (Value::Integer(2), Value::Integer(1)));
        drop(conn);
        drop(file);

        let conn = Connection::open(&path).unwrap();
        conn.pragma_update(None, "user_version", 99).unwrap();
        drop(conn);
        let error = SqliteDatabase::open(dir.path(), |_, _| Ok(())).err().unwrap();
        assert!(matches!(error, TrackerError::NewerFile { found: 99, .. }), "{error}");
    }

    #[test]
    fn failed_first_fill_leaves_nothing_behind() {
        let dir = tempfile::tempdir().unwrap();
        let result =
            SqliteDatabase::open(dir.path(), |db, _| db.execute("INSERT INTO nowhere VALUES (1)", &[]).map(drop));
        assert!(result.is_err());
        let mut is_new = false;
        let fill = |_: Db<'_>, is_new_file| {
            is_new = is_new_file;
            Ok(())
        };
        SqliteDatabase::open(dir.path(), fill).unwrap();
        assert!(is_new);
    }

    #[test]
    fn readers_cannot_write() {
        let dir = tempfile::tempdir().unwrap();
        let file = SqliteDatabase::open(dir.path(), |_, _| Ok(())).unwrap();
        let result = file.read(None, |db| db.execute("DELETE FROM people", &[]).map_err(unwritten_error));
        assert_eq!(result.unwrap_err().kind, ErrorKind::StoreUnavailable);
    }

    #[test]
    fn repeated_read_is_prepared_once() {
        let dir = tempfile::tempdir().unwrap();
        let file = SqliteDatabase::open(dir.path(), |_, _| Ok(())).unwrap();
        let counters = file.read(None, |db| {
            for key in ["CORE-1", "CORE-2", "CORE-3"] {
                assert!(rows::find_issue(db, &Workflow::default(), &EntityRef::Key(key.into())).unwrap().is_none());
            }
            let Db::Sqlite(conn) = db else { unreachable!("it is a file") };
            let statement = conn.prepare_cached(&format!("{} WHERE i.key = ?1", rows::ISSUE_QUERY)).unwrap();
            Ok((
                statement.get_status(rusqlite::StatementStatus::Run),
                statement.get_status(rusqlite::StatementStatus::RePrepare),
            ))
        });
        assert_eq!(counters.unwrap(), (3, 0), "it ran three times and was never prepared again");
    }

    #[test]
    fn slow_read_ends_when_cancelled() {
        let dir = tempfile::tempdir().unwrap();
        let file = SqliteDatabase::open(dir.path(), |_, _| Ok(())).unwrap();
        let cancel = CancellationToken::new();
        let endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT COUNT(*) FROM n";
        let result = file.read(Some(cancel.clone()), |db| {
            cancel.cancel();
            Ok(db.query_one(endless, &[], |row| row.get::<i64>(0))?)
        });
        assert_eq!(result.unwrap_err().kind, ErrorKind::Timeout);
        assert!(file.read(None, |_| Ok(true)).unwrap());
    }
}
