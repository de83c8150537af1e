//! The database of a data directory as the source or destination of a move.

use std::path::Path;

use super::{
    open::{database_path, open_current, open_writer},
    sql::SharedConnection,
    verify,
};
use crate::{
    StoreError, VerifiedTrail, VerifyError,
    identity::Backend,
    moving::{MoveError, OfflineStore},
    sql::Database as _,
};
use countersign_runtime::data_dir::{DataLock, lock_data_dir};

/// The database of a directory that no gateway can serve while this value exists.
pub(crate) struct OfflineDirectory {
    conn: SharedConnection,
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
        Ok(Self { conn: SharedConnection::new(conn), _lock: lock })
    }
}

impl OfflineStore for OfflineDirectory {
    type Connection = rusqlite::Connection;
    const BACKEND: Backend = Backend::Sqlite;

    fn run<T>(&self, work: impl AsyncFnOnce(&Self::Connection) -> Result<T, StoreError>) -> Result<T, StoreError> {
        self.conn.write(work)
    }

    fn transaction<T>(
        &self,
        work: impl AsyncFnOnce(&Self::Connection) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        self.conn.transaction(work)
    }

    fn verify(&self) -> Result<VerifiedTrail, VerifyError> {
        verify::verify_connection(&self.conn.lock(), None)
    }
}
