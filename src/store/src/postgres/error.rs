//! Classifies the errors of PostgreSQL.

use tokio_postgres::error::{Severity, SqlState};

use crate::StoreError;
pub(super) use crate::error::no_answer;

impl From<tokio_postgres::Error> for StoreError {
    fn from(error: tokio_postgres::Error) -> Self {
        let is_one_of = |codes: &[SqlState]| error.code().is_some_and(|code| codes.contains(code));
        if is_one_of(&[SqlState::DISK_FULL]) {
            Self::DiskFull
        } else if is_one_of(&[SqlState::LOCK_NOT_AVAILABLE, SqlState::QUERY_CANCELED, SqlState::T_R_DEADLOCK_DETECTED])
        {
            Self::Locked
        } else if is_one_of(&[SqlState::DATA_CORRUPTED, SqlState::INDEX_CORRUPTED]) {
            Self::Damaged(describe(&error))
        } else if ends_connection(&error) {
            Self::Unreachable(describe(&error))
        } else {
            Self::Database(describe(&error).into())
        }
    }
}

/// Returns `true` if the connection is lost: the server reported that it closes the connection, or did not answer.
pub(super) fn ends_connection(error: &tokio_postgres::Error) -> bool {
    error.as_db_error().is_none_or(|reported| !matches!(reported.parsed_severity(), Some(Severity::Error)))
}

/// Returns `true` if a request that failed with this error may have been committed. A session that the server ended
/// because of an idle transaction was rolled back.
pub(super) fn may_be_committed(error: &tokio_postgres::Error) -> bool {
    ends_connection(error) && error.code() != Some(&SqlState::IDLE_IN_TRANSACTION_SESSION_TIMEOUT)
}

/// Converts the error of a write that was sent. If the connection was lost, the outcome is unknown.
pub(super) fn write_error(error: tokio_postgres::Error) -> StoreError {
    if may_be_committed(&error) {
        tracing::warn!(error = describe(&error), "the connection ended before a write was answered");
        return StoreError::OutcomeUnknown;
    }
    error.into()
}

/// Returns the error for a write that the server did not answer.
pub(super) fn unknown_outcome() -> StoreError {
    StoreError::OutcomeUnknown
}

/// Returns the text of the error and its causes, which contain no password.
fn describe(error: &tokio_postgres::Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}
