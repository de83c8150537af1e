//! Classifies the errors of SQLite.

use crate::StoreError;

impl From<rusqlite::Error> for StoreError {
    fn from(error: rusqlite::Error) -> Self {
        use rusqlite::ErrorCode as Code;
        match error.sqlite_error_code() {
            Some(Code::DiskFull) => Self::DiskFull,
            Some(Code::DatabaseCorrupt | Code::NotADatabase) => Self::Damaged(error.to_string()),
            Some(Code::DatabaseBusy | Code::DatabaseLocked | Code::OperationInterrupted) => Self::Locked,
            _ => Self::Database(error.to_string().into()),
        }
    }
}
