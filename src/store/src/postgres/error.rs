//! What PostgreSQL's errors mean.

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
        } else if ends(&error) {
            Self::Unreachable(told(&error))
        } else {
            Self::Database(told(&error).into())
        }
    }
}

/// Whether the connection is gone with this: the server says that it ends it, or nothing.
pub(super) fn ends(error: &tokio_postgres::Error) -> bool {
    error.as_db_error().is_none_or(|told| !matches!(told.parsed_severity(), Some(Severity::Error)))
}

/// Whether what failed with this, and was sent, may have been done after all. Where the server says that it ended the session
/// since its transaction stood still, that one is taken back, and a commit came too late.
pub(super) fn may_be_made(error: &tokio_postgres::Error) -> bool {
    ends(error) && error.code() != Some(&SqlState::IDLE_IN_TRANSACTION_SESSION_TIMEOUT)
}

/// Of a write that was sent: where the connection ended with it, nobody has said what became of it.
pub(super) fn of_write(error: tokio_postgres::Error) -> StoreError {
    if may_be_made(&error) {
        tracing::warn!(error = told(&error), "the connection ended before a write was answered");
        return StoreError::OutcomeUnknown;
    }
    error.into()
}

/// Of a server that does not answer.
pub(super) fn silent() -> StoreError {
    StoreError::Unreachable("PostgreSQL does not answer".into())
}

/// Returns the error of a write that nobody answered.
pub(super) fn unknown() -> StoreError {
    StoreError::OutcomeUnknown
}

/// The server's words with their cause. They name no password.
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
