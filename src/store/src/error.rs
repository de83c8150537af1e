//! Errors of the store. Each error says whether the failed write certainly changed nothing.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use super::WriteError;
use countersign_protocol::{ErrorKind, McpError};
use countersign_runtime::data_dir::DataDirError;

/// An error of the store. Its text is for the log and the terminal; clients get [`StoreError::to_mcp`].
#[derive(Clone, Debug, thiserror::Error)]
pub enum StoreError {
    #[error(transparent)]
    DataDir(#[from] DataDirError),
    #[error("{path} is not a Countersign database (application id {found:#x}); move it away or choose another --data")]
    Foreign { path: PathBuf, found: i64 },
    #[error(
        "{path} was written by a newer Countersign (schema {found}, this one knows up to {known}); \
         run that version, or choose another --data"
    )]
    NewerFile { path: PathBuf, found: i64, known: i64 },
    #[error(
        "{path} was written by an older Countersign (schema {found}, this one needs {known}); start the gateway of this \
         version first, which upgrades it, or run the version that wrote it"
    )]
    OlderFile { path: PathBuf, found: i64, known: i64 },
    #[error(
        "{path} was written by a newer Countersign (format {found}, this one knows up to {known}); \
         run that version, or choose another --data"
    )]
    NewerIdentity { path: PathBuf, found: u32, known: u32 },
    #[error("{path} is damaged ({detail}); stop the gateway and restore it from a backup")]
    Corrupt { path: PathBuf, detail: String },
    #[error(
        "the data directory {dir} belongs to another store: {reason}, or another directory with --data DIR. To use the \
         directory with another store, stop its gateway and remove {file}"
    )]
    OtherStore { dir: PathBuf, reason: String, file: PathBuf },
    #[error(
        "the store ends at audit entry {found}, but {path} says that entry {expected} was written, so later entries are \
         lost. Restore a backup; or remove {path} to continue with the remaining entries, and tell the people concerned"
    )]
    CutOff { path: PathBuf, found: u64, expected: u64 },
    /// Damage that was found while the gateway was running. The operator should stop the gateway.
    #[error("the database is damaged ({0}); stop the gateway and restore it from a backup")]
    Damaged(String),
    /// Writes to the open file would be lost.
    #[error(
        "{0} was deleted or replaced while it was open; stop the gateway, and put the file back or restore a backup"
    )]
    Replaced(PathBuf),
    /// Writes to the open log would be lost.
    #[error("{0} was deleted or replaced while it was open, so writes would be lost; restart this gateway")]
    LogReplaced(PathBuf),
    /// Another gateway may hold the new lock file, and write to the database.
    #[error(
        "{0} was deleted or replaced while this gateway held its lock, so another gateway may use the data directory; restart \
         this gateway"
    )]
    LockReplaced(PathBuf),
    #[error("the disk is full; free some space, and the gateway continues without a restart")]
    DiskFull,
    #[error(
        "the database is locked by another process; stop that process, and the gateway continues without a restart"
    )]
    Locked,
    /// The database server does not answer, or answers in another protocol.
    #[error("the database cannot be reached: {0}")]
    Unreachable(String),
    #[error("another gateway serves this database; stop it, or configure another database for this gateway")]
    AlreadyServed,
    #[error("another gateway has joined with the id of this node; give each gateway its own data directory")]
    Superseded,
    #[error(
        "the database was written by a newer Countersign (schema {found}, this one knows up to {known}); run that version"
    )]
    NewerDatabase { found: i64, known: i64 },
    #[error(
        "the database was written by an older Countersign (schema {found}, this one needs {known}); start a gateway of this \
         version first, which upgrades it, or run the version that wrote it"
    )]
    OlderDatabase { found: i64, known: i64 },
    #[error(
        "the database has lost writes of this gateway: it was restored from a backup, or failed over to a server that \
         lagged behind; restart this gateway"
    )]
    WritesLost,
    #[error("another gateway has become the leader, and does this work now")]
    HandedOver,
    #[error("this store was moved to another one, and its data is outdated (docs/postgresql.md#move-a-store)")]
    Moved,
    #[error("this store is an incomplete copy of another one; run `countersign store copy` again")]
    IncompleteCopy,
    /// An operator marked a restored database with something other than a time.
    #[error(
        "the row 'backup_of' in the table facts must be a time such as 2026-11-23T12:00:00Z, not {0:?}; correct that row"
    )]
    BackupTime(String),
    /// A stored row cannot be parsed.
    #[error("a stored record is unreadable: {0}")]
    BadRecord(String),
    #[error("the store is closed")]
    Closed,
    #[error("the queue of the store is full; try again")]
    QueueFull,
    /// The commit failed, and could not be read back, so it may have taken effect.
    #[error("it is unknown whether this was written; check before you try again")]
    OutcomeUnknown,
    /// Any other error, with the text of the database.
    #[error("{0}")]
    Database(Arc<str>),
}

impl StoreError {
    pub(crate) fn data_dir(path: &Path, source: io::Error) -> Self {
        Self::DataDir(DataDirError { path: path.to_owned(), source: Arc::new(source) })
    }

    /// Returns `true` if a write that failed with this error certainly changed nothing. Otherwise the caller must read
    /// the state again.
    pub const fn is_certainly_aborted(&self) -> bool {
        !matches!(self, Self::OutcomeUnknown)
    }

    /// Returns `true` if a file of the running gateway was deleted or replaced.
    pub(crate) const fn is_about_replaced_file(&self) -> bool {
        matches!(self, Self::Replaced(_) | Self::LogReplaced(_) | Self::LockReplaced(_))
    }

    /// Returns the reason that readiness reports, as one word.
    pub const fn readiness_reason(&self) -> &'static str {
        match self {
            Self::DiskFull => "disk_full",
            Self::Locked | Self::LockReplaced(_) | Self::AlreadyServed | Self::Superseded => "locked",
            Self::Unreachable(_) => "unreachable",
            Self::Damaged(_) | Self::Corrupt { .. } | Self::BadRecord(_) | Self::CutOff { .. } | Self::WritesLost => {
                "damaged"
            }
            _ => "failed",
        }
    }

    /// Returns `true` if the same operation may succeed later.
    pub const fn is_transient(&self) -> bool {
        matches!(
            self,
            Self::DiskFull
                | Self::Locked
                | Self::QueueFull
                | Self::OutcomeUnknown
                | Self::Database(_)
                | Self::Unreachable(_)
        )
    }

    /// Returns the error for a client, without the text of the database.
    pub fn to_mcp(&self) -> McpError {
        let unavailable = |message: &'static str| McpError::new(ErrorKind::StoreUnavailable, message);
        match self {
            Self::QueueFull => McpError::new(ErrorKind::Overloaded, "Too many changes are being written; try again"),
            Self::Closed => McpError::shutting_down(),
            Self::OutcomeUnknown => {
                unavailable("The store failed while writing; check whether it was done").with("outcome", "unknown")
            }
            Self::DiskFull => unavailable("The store's disk is full; nothing was changed"),
            Self::Locked | Self::LockReplaced(_) | Self::AlreadyServed | Self::Superseded => {
                unavailable("Another process holds the store; nothing was changed")
            }
            Self::Damaged(_) | Self::BadRecord(_) => {
                unavailable("The store is damaged; its operator must restore a backup")
            }
            _ => unavailable("The store is not available; nothing was changed"),
        }
    }
}

/// Returns the error for a database server that does not answer.
pub(crate) fn no_answer() -> StoreError {
    StoreError::Unreachable("PostgreSQL does not answer".into())
}

/// Returns the error for a client whose write was committed, but whose result cannot be read. The error of the read would say
/// that nothing was changed.
pub fn unread_result_error() -> McpError {
    McpError::new(
        ErrorKind::StoreUnavailable,
        "This was done, but the store cannot be read at the moment; look at the result later",
    )
}

impl From<StoreError> for McpError {
    fn from(error: StoreError) -> Self {
        error.to_mcp()
    }
}

impl From<serde_json::Error> for StoreError {
    fn from(error: serde_json::Error) -> Self {
        Self::BadRecord(error.to_string())
    }
}

impl WriteError {
    /// Returns the error for a person, with the message `unchanged` unless the outcome is unknown.
    pub fn to_user_error(&self, unchanged: &'static str) -> McpError {
        match self {
            Self::Store(error) if !error.is_certainly_aborted() => error.to_mcp(),
            _ => McpError::new(ErrorKind::StoreUnavailable, unchanged),
        }
    }
}

/// The reason why the audit trail was not read to its end.
#[derive(Debug, thiserror::Error)]
pub enum ReadAuditError {
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The caller could not write an entry.
    #[error(transparent)]
    Output(#[from] io::Error),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_outcome_is_not_reported_as_unchanged() {
        let unknown = WriteError::Store(StoreError::OutcomeUnknown).to_user_error("nothing has changed");
        assert_eq!(unknown.data["outcome"], "unknown");
        assert!(!unknown.message.contains("nothing"), "{}", unknown.message);
        for known in [WriteError::Conflict, WriteError::Store(StoreError::DiskFull)] {
            let error = known.to_user_error("nothing has changed");
            assert_eq!((&*error.message, error.data.get("outcome")), ("nothing has changed", None));
        }
    }
}
