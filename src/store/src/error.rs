//! Errors of the store. Each tells whether a failed write certainly did nothing.

use std::{path::PathBuf, sync::Arc};

use super::WriteError;
use countersign_protocol::{ErrorKind, McpError};

/// An error of the store. Its text is for the log and the terminal; clients get [`StoreError::to_mcp`].
#[derive(Clone, Debug, thiserror::Error)]
pub enum StoreError {
    #[error("cannot use the data directory {path}: {source}")]
    DataDir { path: PathBuf, source: Arc<std::io::Error> },
    #[error("{path} is not a Countersign database (application id {found:#x}); move it away or choose another --data")]
    Foreign { path: PathBuf, found: i64 },
    #[error(
        "{path} was written by a newer Countersign (schema {found}, this one knows up to {known}); \
         run that version, or choose another --data"
    )]
    TooNew { path: PathBuf, found: i64, known: i64 },
    #[error("{path} is damaged ({detail}); stop the gateway and restore it from a backup")]
    Corrupt { path: PathBuf, detail: String },
    #[error(
        "the data directory {dir} is not that of this store: {why}, or another directory with --data DIR. To give the \
         directory to another store, end its gateway and remove {file}"
    )]
    OtherStore { dir: PathBuf, why: String, file: PathBuf },
    #[error(
        "the store ends at audit entry {found}, but entry {expected} had been written ({path} says so): what came after \
         is lost. Restore a backup; or, to go on with what is left, remove {path} and settle with the people concerned"
    )]
    CutOff { path: PathBuf, found: u64, expected: u64 },
    /// Damage that was found while running; the gateway should be stopped.
    #[error("the database is damaged ({0}); stop the gateway and restore it from a backup")]
    Damaged(String),
    #[error("the disk is full; make room on it, and the gateway goes on by itself")]
    DiskFull,
    #[error("the database is locked by another process; end that one, and the gateway goes on by itself")]
    Locked,
    /// The database server does not answer, or answers in another protocol.
    #[error("the database cannot be reached: {0}")]
    Unreachable(String),
    #[error("another gateway serves this database; end that one, or give this one another database")]
    Served,
    #[error("another gateway has joined as this node; give each a data directory of its own")]
    Superseded,
    #[error(
        "the database was written by a newer Countersign (schema {found}, this one knows up to {known}); run that version"
    )]
    Newer { found: i64, known: i64 },
    #[error(
        "the database has lost what was written to it: it was restored, or another server took its place that was behind; \
         start this gateway anew"
    )]
    Lost,
    #[error("another gateway does this by now")]
    HandedOver,
    #[error("this store was moved to another one; what is here is old (docs/postgresql.md#move-a-store)")]
    Moved,
    #[error("this store is the copy of another one and not whole yet; run `countersign store copy` again")]
    NotWhole,
    /// A stored row cannot be parsed.
    #[error("a stored record is unreadable: {0}")]
    BadRecord(String),
    #[error("the store is closed")]
    Closed,
    #[error("the store's queue is full")]
    QueueFull,
    /// The commit may have been made although it failed, and could not be read back.
    #[error("whether this was written is unknown; look at it before you try again")]
    OutcomeUnknown,
    /// Any other error, with the text of the database.
    #[error("{0}")]
    Database(Arc<str>),
}

impl StoreError {
    /// Returns `true` if a write that failed with this error certainly changed nothing; otherwise the state must be
    /// read again. If a connection ended after the write was sent, the error is [`Self::OutcomeUnknown`] unless the
    /// write could be read back.
    #[must_use]
    pub const fn certainly_aborted(&self) -> bool {
        !matches!(self, Self::OutcomeUnknown)
    }

    /// Returns the reason that readiness reports, as one word.
    #[must_use]
    pub const fn readiness_reason(&self) -> &'static str {
        match self {
            Self::DiskFull => "disk_full",
            Self::Locked | Self::Served | Self::Superseded => "locked",
            Self::Unreachable(_) => "unreachable",
            Self::Damaged(_) | Self::Corrupt { .. } | Self::BadRecord(_) | Self::CutOff { .. } | Self::Lost => {
                "damaged"
            }
            _ => "failed",
        }
    }

    /// Returns `true` if the same operation may succeed later.
    #[must_use]
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
    #[must_use]
    pub fn to_mcp(&self) -> McpError {
        match self {
            Self::QueueFull => McpError::new(ErrorKind::Overloaded, "Too many changes are being written; try again"),
            Self::Closed => McpError::new(ErrorKind::ShuttingDown, "The gateway is shutting down"),
            Self::OutcomeUnknown => {
                McpError::new(ErrorKind::StoreUnavailable, "The store failed while writing; look whether it was done")
                    .with("outcome", "unknown")
            }
            Self::DiskFull => {
                McpError::new(ErrorKind::StoreUnavailable, "The store's disk is full; nothing was changed")
            }
            Self::Locked | Self::Served | Self::Superseded => {
                McpError::new(ErrorKind::StoreUnavailable, "Another process holds the store; nothing was changed")
            }
            Self::Damaged(_) | Self::BadRecord(_) => {
                McpError::new(ErrorKind::StoreUnavailable, "The store is damaged; its operator must restore a backup")
            }
            _ => McpError::new(ErrorKind::StoreUnavailable, "The store is not available; nothing was changed"),
        }
    }
}

impl From<serde_json::Error> for StoreError {
    fn from(error: serde_json::Error) -> Self {
        Self::BadRecord(error.to_string())
    }
}

impl WriteError {
    /// Returns the error for a person: the text `nothing`, unless the outcome is unknown.
    #[must_use]
    pub fn to_user_error(&self, nothing: &'static str) -> McpError {
        match self {
            Self::Store(error) if !error.certainly_aborted() => error.to_mcp(),
            _ => McpError::new(ErrorKind::StoreUnavailable, nothing),
        }
    }
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
            let told = known.to_user_error("nothing has changed");
            assert_eq!((&*told.message, told.data.get("outcome")), ("nothing has changed", None));
        }
    }
}
