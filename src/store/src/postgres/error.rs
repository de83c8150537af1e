//! Classifies the errors of PostgreSQL.

use tokio_postgres::error::{Severity, SqlState};

use crate::StoreError;

impl From<tokio_postgres::Error> for StoreError {
    fn from(error: tokio_postgres::Error) -> Self {
        let code = error.code();
        if code == Some(&SqlState::DISK_FULL) {
            Self::DiskFull
        } else if [SqlState::LOCK_NOT_AVAILABLE, SqlState::QUERY_CANCELED, SqlState::T_R_DEADLOCK_DETECTED]
            .iter()
            .any(|busy| code == Some(busy))
        {
            Self::Locked
        } else if [SqlState::DATA_CORRUPTED, SqlState::INDEX_CORRUPTED].iter().any(|bad| code == Some(bad)) {
            Self::Damaged(told(&error))
        } else if ends_connection(&error) {
            Self::Unreachable(told(&error))
        } else {
            Self::Database(told(&error).into())
        }
    }
}

/// Returns `true` if the connection is gone: the server says that it ends it, or does not answer.
pub(super) fn ends_connection(error: &tokio_postgres::Error) -> bool {
    error.as_db_error().is_none_or(|told| !matches!(told.parsed_severity(), Some(Severity::Error)))
}

/// Returns `true` if a request that failed with this error may have been committed. If the server ended the session
/// because its transaction was idle, the transaction was rolled back.
pub(super) fn may_be_committed(error: &tokio_postgres::Error) -> bool {
    ends_connection(error) && error.code() != Some(&SqlState::IDLE_IN_TRANSACTION_SESSION_TIMEOUT)
}

/// Returns the error of a write that was sent. If the connection ended with it, the outcome is unknown.
pub(super) fn for_write(error: tokio_postgres::Error) -> StoreError {
    if may_be_committed(&error) {
        tracing::warn!(error = told(&error), "the connection ended before a write was answered");
        return StoreError::OutcomeUnknown;
    }
    error.into()
}

/// Returns the error for a server that does not answer.
pub(super) fn no_answer() -> StoreError {
    StoreError::Unreachable("PostgreSQL does not answer".into())
}

/// Returns the error of a write that nobody answered.
pub(super) fn unknown() -> StoreError {
    StoreError::OutcomeUnknown
}

/// Returns the server's text with its causes, which contain no password.
fn told(error: &tokio_postgres::Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}
