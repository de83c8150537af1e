//! The database of a data directory as the source or destination of a move.

use std::path::Path;

use rusqlite::Connection;

use super::{
    open::{database_path, open_current, open_writer},
    sql, verify,
};
use crate::{
    StoreError, VerifiedTrail, VerifyError,
    identity::Backend,
    moving::{MoveError, OfflineStore},
    sql::{Row, Value},
};
use countersign_runtime::data_dir::{DataLock, lock_data_dir};

/// The database of a directory that no gateway can serve while this value exists.
pub(crate) struct OfflineDirectory {
    conn: Connection,
    _lock: DataLock,
}

impl OfflineDirectory {
    pub fn take(dir: &Path, create: bool) -> Result<Self, MoveError> {
        let path = database_path(dir);
        if !create && let Err(source) = std::fs::metadata(&path) {
            return Err(StoreError::data_dir(&path, source).into());
        }
        let lock = lock_data_dir(dir)?;
        let conn = if create { open_writer(dir)? } else { open_current(dir)? };
        Ok(Self { conn, _lock: lock })
    }
}

impl OfflineStore for OfflineDirectory {
    fn backend(&self) -> Backend {
        Backend::Sqlite
    }

    fn rows(&self, sql: &str, values: &[Value<'_>]) -> Result<Vec<Row>, StoreError> {
        sql::rows(&self.conn, sql, values)
    }

    fn execute(&self, sql: &str, values: &[Value<'_>]) -> Result<(), StoreError> {
        sql::execute(&self.conn, sql, values).map(drop)
    }

    fn verify(&self) -> Result<VerifiedTrail, VerifyError> {
        verify::verify_connection(&self.conn, None)
    }
}
