//! Where the tracker's data are: a SQLite file of the data directory, or tables beside the store's in the database of a
//! server, which any number of gateways share.

mod copying;
mod file;
mod server;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use tokio_util::sync::CancellationToken;

use super::{
    db::{Db, Sql},
    uri::Touched,
};
use countersign_protocol::{ErrorKind, McpError};
use countersign_store::{Room, StoreError};

pub use self::copying::move_data;
use self::{file::File, server::Server};

/// The file in the data directory.
const FILE: &str = "tracker.db";

/// Why the tracker could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum TrackerError {
    #[error("{path}: {source}")]
    Io { path: PathBuf, source: std::io::Error },
    #[error("{path}: {source}")]
    Database { path: PathBuf, source: rusqlite::Error },
    #[error("{path} was written by a newer version (schema {found}, this version knows up to {known})")]
    Newer { path: PathBuf, found: usize, known: usize },
    #[error("the tracker's tables were written by a newer version (schema {found}, this version knows up to {known})")]
    NewerTables { found: usize, known: usize },
    #[error("the tracker's tables: {0}")]
    Server(#[from] StoreError),
    #[error("the tracker's data: {0}")]
    Data(String),
    #[error("modules.tracker.workflow: {0}")]
    Workflow(String),
}

/// What others hear of a write once it is durable.
pub(super) type Announce = Box<dyn Fn(Touched) + Send + Sync>;

/// The database. Cheap to copy.
#[derive(Clone)]
pub(super) enum Storage {
    File(Arc<File>),
    Server(Arc<Server>),
}

impl Storage {
    /// Opens it, and creates it where there is none. `fill` is called in the transaction that brings the schema up to date,
    /// and told whether the tracker is new. New tables of a server take over what the data directory's file has.
    ///
    /// # Errors
    /// Files and connections that fail, and schemas of newer versions.
    pub fn open(
        room: &Room,
        announce: Announce,
        fill: impl FnOnce(Db<'_>, bool) -> Sql<()>,
    ) -> Result<Self, TrackerError> {
        match room {
            Room::Directory(dir) => Ok(Self::File(Arc::new(File::open(dir, announce, fill)?))),
            Room::Server { tables, dir } => {
                let old = dir.as_deref().map(|dir| dir.join(FILE));
                Ok(Self::Server(Server::open(Arc::clone(tables), announce, |db, new| match &old {
                    Some(old) if new && old.exists() => take_over(old, db).and_then(|()| fill(db, false)),
                    _ => fill(db, new),
                })?))
            }
        }
    }

    /// A short, indexed read of a single statement, or of several that need not see one state. From a file on this thread.
    pub async fn read<T: Send + 'static>(
        &self,
        f: impl FnOnce(Db<'_>) -> Result<T, McpError> + Send + 'static,
    ) -> Result<T, McpError> {
        match self {
            Self::File(file) => file.read(f),
            Self::Server(server) => server.read(f).await,
        }
    }

    /// As [`Self::read`], of several statements on one state.
    pub async fn read_whole<T: Send + 'static>(
        &self,
        f: impl FnOnce(Db<'_>) -> Result<T, McpError> + Send + 'static,
    ) -> Result<T, McpError> {
        match self {
            Self::File(file) => file.read(|db| file::snapshot(db, f)),
            Self::Server(server) => server.read_whole(f).await,
        }
    }

    /// A read of one state that may take long: a few at a time, ended when it is cancelled or over time.
    pub async fn read_slow<T: Send + 'static>(
        &self,
        cancel: &CancellationToken,
        f: impl FnOnce(Db<'_>) -> Result<T, McpError> + Send + 'static,
    ) -> Result<T, McpError> {
        match self {
            Self::File(file) => file.read_slow(cancel, f).await,
            Self::Server(server) => server.read_slow(cancel, f).await,
        }
    }

    /// One transaction, after all others that write. Once it has begun it runs to its end, also when the caller goes away.
    /// What was touched is announced after the commit and before the next write here can begin.
    pub async fn write<T: Send + 'static>(
        &self,
        f: impl FnOnce(Db<'_>) -> Result<(T, Touched), McpError> + Send + 'static,
    ) -> Result<T, McpError> {
        match self {
            Self::File(file) => file.write(f).await,
            Self::Server(server) => server.write(f).await,
        }
    }
}

/// What a file has, copied into tables that have nothing.
fn take_over(file: &Path, db: Db<'_>) -> Sql<()> {
    let rows = copying::copy(Db::File(&file::connect(file, true)?), db, &mut |_, _| {})?;
    tracing::info!(rows, file = %file.display(), "tracker: what the data directory had is in the database from now on");
    Ok(())
}

fn cancelled() -> McpError {
    McpError::new(ErrorKind::Cancelled, "The request was cancelled.")
}

fn shutting_down() -> McpError {
    McpError::new(ErrorKind::ShuttingDown, "The gateway is shutting down.")
}

fn busy() -> McpError {
    McpError::new(ErrorKind::Overloaded, "The tracker is busy with other searches; try again.")
}

/// Says that nothing was changed where the error's kind leaves that open.
fn certainly_aborted(error: McpError) -> McpError {
    let open = matches!(error.kind, ErrorKind::Internal | ErrorKind::Timeout | ErrorKind::Cancelled);
    if open { error.with("outcome", "not_applied") } else { error }
}

/// Of a commit whose outcome cannot be told.
fn unknown(error: &dyn std::fmt::Display) -> McpError {
    tracing::error!(%error, "tracker: a commit failed; whether it is durable is unknown");
    let message = "The tracker's database failed while it committed; whether the write was made is unknown.";
    McpError::new(ErrorKind::StoreUnavailable, message).with("outcome", "unknown")
}
