//! Stores an index in a SQLite file, with one connection that writes and several that read.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use parking_lot::{Mutex, RwLock};
use rusqlite::{Connection, OpenFlags, Transaction, TransactionBehavior};

use super::vectors::Matrix;
use countersign_runtime::files::ensure_private_file;

/// The version, which increases with every change of `schema.sql` or of the splitting of text into terms.
const SCHEMA_VERSION: i32 = 3;
/// The maximum number of idle connections for reads.
const MAX_IDLE_READERS: usize = 4;
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
/// The maximum number of pages of 4 KiB that a connection caches.
const CACHE_PAGES: i32 = 4000;

/// The reason why an operation on an index failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum IndexError {
    #[error("{path}: {source}")]
    Io { path: PathBuf, source: std::io::Error },
    #[error("{path}: {source}")]
    Database { path: PathBuf, source: rusqlite::Error },
}

/// The index of one collection, in one SQLite file.
pub(crate) struct Index {
    path: PathBuf,
    writer: Mutex<Connection>,
    readers: Mutex<Vec<Connection>>,
    /// The vectors, loaded on first use.
    pub(super) matrix: RwLock<Option<Matrix>>,
}

impl Index {
    /// Opens or creates the file, like [`open_derived_data`].
    ///
    /// # Errors
    /// Fails if the file can neither be read nor created.
    pub fn open(path: &Path) -> Result<Self, IndexError> {
        let writer = open_derived_data(path, include_str!("schema.sql"), SCHEMA_VERSION)?;
        Ok(Self {
            path: path.to_owned(),
            writer: Mutex::new(writer),
            readers: Mutex::default(),
            matrix: RwLock::new(None),
        })
    }

    /// Removes an index's files.
    ///
    /// # Errors
    /// Fails if a file cannot be removed.
    pub fn delete(path: &Path) -> Result<(), IndexError> {
        for suffix in ["", "-wal", "-shm"] {
            let mut name = path.as_os_str().to_owned();
            name.push(suffix);
            match fs::remove_file(&name) {
                Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
                    return Err(IndexError::Io { path: name.into(), source });
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn database_error(&self, source: rusqlite::Error) -> IndexError {
        IndexError::Database { path: self.path.clone(), source }
    }

    /// Runs several statements on one snapshot of the file.
    pub(super) fn read<T>(&self, work: impl FnOnce(&Connection) -> rusqlite::Result<T>) -> Result<T, IndexError> {
        let idle = self.readers.lock().pop();
        let conn = idle.map_or_else(|| connect(&self.path, true), Ok).map_err(|error| self.database_error(error))?;
        let result = conn.unchecked_transaction().and_then(|tx| work(&tx));
        let mut readers = self.readers.lock();
        if readers.len() < MAX_IDLE_READERS {
            readers.push(conn);
        }
        result.map_err(|error| self.database_error(error))
    }

    /// Runs one transaction. After the commit and before the next transaction, `after_commit` receives the result of
    /// `work`.
    pub(super) fn write<T, R>(
        &self,
        work: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<T>,
        after_commit: impl FnOnce(&Self, T) -> R,
    ) -> Result<R, IndexError> {
        let mut writer = self.writer.lock();
        let result = writer.transaction_with_behavior(TransactionBehavior::Immediate).and_then(|tx| {
            let value = work(&tx)?;
            tx.commit()?;
            Ok(value)
        });
        let value = result.map_err(|error| self.database_error(error))?;
        Ok(after_commit(self, value))
    }
}

/// Opens a file of data that can be derived again (mode 0600). A file that is missing or damaged, or whose tables have another
/// version, is created with the tables of `schema`.
///
/// # Errors
/// Fails if the file can neither be read nor created.
pub(crate) fn open_derived_data(path: &Path, schema: &str, version: i32) -> Result<Connection, IndexError> {
    let io = |source| IndexError::Io { path: path.to_owned(), source };
    let database = |source| IndexError::Database { path: path.to_owned(), source };
    // The file is created before SQLite opens it, so that other users can never read it. SQLite gives the WAL the same
    // mode.
    ensure_private_file(path).map_err(io)?;
    match open_intact(path, version) {
        Ok(Some(conn)) => return Ok(conn),
        Ok(None) => {}
        Err(error) if is_beyond_repair(&error) => {
            tracing::warn!(path = %path.display(), %error, "a file of the knowledge base cannot be read and is created again");
        }
        Err(error) => return Err(database(error)),
    }
    Index::delete(path)?;
    ensure_private_file(path).map_err(io)?;
    create(path, schema, version).map_err(database)
}

fn is_beyond_repair(error: &rusqlite::Error) -> bool {
    use rusqlite::ErrorCode::{DatabaseCorrupt, NotADatabase, Unknown};
    // Statements on tables of another version fail with `Unknown`.
    matches!(error.sqlite_error_code(), Some(DatabaseCorrupt | NotADatabase | Unknown))
}

/// Opens a file if it has undamaged tables of this version.
fn open_intact(path: &Path, version: i32) -> rusqlite::Result<Option<Connection>> {
    let conn = connect(path, false)?;
    let found: i32 = conn.query_row("PRAGMA user_version", [], |row| row.get(0))?;
    let tables: i64 = conn.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
    if found > version {
        tracing::warn!(
            path = %path.display(), found, known = version,
            "a file of the knowledge base was written by a newer Countersign and is created again"
        );
    }
    if found != version || tables == 0 {
        return Ok(None);
    }
    // Some damage shows only when data is read.
    let check: String = conn.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?;
    if check != "ok" {
        tracing::warn!(path = %path.display(), check, "a file of the knowledge base is damaged and is created again");
        return Ok(None);
    }
    Ok(Some(conn))
}

fn create(path: &Path, schema: &str, version: i32) -> rusqlite::Result<Connection> {
    let mut conn = connect(path, false)?;
    conn.execute_batch("PRAGMA journal_mode = WAL")?;
    let tx = conn.transaction()?;
    tx.execute_batch(schema)?;
    tx.pragma_update(None, "user_version", version)?;
    tx.commit()?;
    Ok(conn)
}

fn connect(path: &Path, read_only: bool) -> rusqlite::Result<Connection> {
    let access = if read_only { OpenFlags::SQLITE_OPEN_READ_ONLY } else { OpenFlags::SQLITE_OPEN_READ_WRITE };
    let conn = Connection::open_with_flags(path, access | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
    conn.busy_timeout(BUSY_TIMEOUT)?;
    conn.pragma_update(None, "cache_size", CACHE_PAGES)?;
    conn.pragma_update(None, "foreign_keys", true)?;
    conn.pragma_update(None, "temp_store", "memory")?;
    // Data lost in a power failure is read from the files again.
    conn.pragma_update(None, "synchronous", "normal")?;
    conn.set_prepared_statement_cache_capacity(64);
    Ok(conn)
}
