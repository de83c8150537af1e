//! Stores an index in a SQLite file, with one connection that writes and several that read.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use parking_lot::{Mutex, RwLock};
use rusqlite::{Connection, OpenFlags, Transaction, TransactionBehavior, ffi};

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
    /// Opens or creates the file (mode 0600). A file that cannot be read is recreated.
    ///
    /// # Errors
    /// Fails if the file can neither be read nor created.
    pub fn open(path: &Path) -> Result<Self, IndexError> {
        let writer = match open_or_recreate(path) {
            Ok(writer) => writer,
            Err(IndexError::Database { source, .. }) if is_beyond_repair(&source) => {
                tracing::warn!(path = %path.display(), error = %source, "an index of documents cannot be read and is created again");
                Index::delete(path)?;
                open_or_recreate(path)?
            }
            Err(error) => return Err(error),
        };
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

/// Opens a file of data that can be derived again. A file that is damaged is recreated.
///
/// # Errors
/// Fails if the file can neither be read nor created.
pub(crate) fn open_derived_data(path: &Path, schema: &str) -> rusqlite::Result<Connection> {
    let open = || -> rusqlite::Result<Connection> {
        // The file is created before SQLite opens it, so that other users can never read it.
        if let Err(error) = ensure_private_file(path) {
            tracing::warn!(path = %path.display(), %error, "a file of the knowledge base cannot be created");
        }
        let conn = Connection::open(path)?;
        conn.execute_batch("PRAGMA journal_mode = WAL; PRAGMA synchronous = normal;")?;
        conn.execute_batch(schema)?;
        let check: String = conn.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?;
        match check.as_str() {
            "ok" => Ok(conn),
            _ => Err(rusqlite::Error::SqliteFailure(ffi::Error::new(ffi::SQLITE_CORRUPT), Some(check))),
        }
    };
    open().or_else(|error| {
        tracing::warn!(path = %path.display(), %error, "a file of the knowledge base cannot be read and is created again");
        let _ = Index::delete(path);
        open()
    })
}

fn is_beyond_repair(error: &rusqlite::Error) -> bool {
    use rusqlite::ErrorCode::{DatabaseCorrupt, NotADatabase, Unknown};
    // Statements on tables of another version fail with `Unknown`.
    matches!(error.sqlite_error_code(), Some(DatabaseCorrupt | NotADatabase | Unknown))
}

fn open_or_recreate(path: &Path) -> Result<Connection, IndexError> {
    let io = |source| IndexError::Io { path: path.to_owned(), source };
    // The file is created before SQLite opens it, so that other users can never read it. SQLite gives the WAL the same
    // mode.
    ensure_private_file(path).map_err(io)?;
    let database = |source| IndexError::Database { path: path.to_owned(), source };
    let mut writer = connect(path, false).map_err(database)?;
    let version: i32 = writer.query_row("PRAGMA user_version", [], |row| row.get(0)).map_err(database)?;
    let tables: i64 = writer.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0)).map_err(database)?;
    if version == SCHEMA_VERSION && tables > 0 {
        // Some damage shows only when data is read.
        let check: String = writer.query_row("PRAGMA quick_check(1)", [], |row| row.get(0)).map_err(database)?;
        if check == "ok" {
            return Ok(writer);
        }
        tracing::warn!(path = %path.display(), check, "an index of documents is damaged");
    }
    if version > SCHEMA_VERSION {
        tracing::warn!(
            path = %path.display(), found = version, known = SCHEMA_VERSION,
            "an index of documents was written by a newer Countersign and is built again"
        );
    }
    if tables > 0 || version != 0 {
        drop(writer);
        Index::delete(path)?;
        ensure_private_file(path).map_err(io)?;
        writer = connect(path, false).map_err(database)?;
    }
    writer.execute_batch("PRAGMA journal_mode = WAL").map_err(database)?;
    let tx = writer.transaction().map_err(database)?;
    tx.execute_batch(include_str!("schema.sql")).map_err(database)?;
    tx.pragma_update(None, "user_version", SCHEMA_VERSION).map_err(database)?;
    tx.commit().map_err(database)?;
    Ok(writer)
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
