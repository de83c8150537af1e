//! Where everything durable is kept, and the one way in: nothing outside this crate names a backend, but modules that keep
//! tables of their own ([`Room`]).

use std::{
    fmt,
    path::{Path, PathBuf},
    sync::Arc,
};

use super::{
    Said, Store, StoreError, VerifiedTrail, VerifyError,
    identity::{self, Backend, StoreIdentity},
    keys::Credentials,
    moving::{self, Beside, MoveError, OfflineStore, Progress},
    nodes,
    postgres::{Server, tables::Tables},
    sqlite,
    sqlite::backup::{BackedUp, BackupError},
    sqlite::moving::OfflineDirectory,
    webhooks::Deliveries,
};
use countersign_domain::changes::audit::{AuditEntry, AuditHead};
use jiff::Timestamp;

/// A store, open or not. Cheap to copy.
#[derive(Clone)]
pub struct Place(Kind);

#[derive(Clone)]
enum Kind {
    Directory(PathBuf),
    Server(Arc<Server>),
}

/// Where a module of the gateway keeps what is its own, beside the store's data.
#[derive(Clone, Debug)]
pub enum Room {
    /// In files of the data directory.
    Directory(PathBuf),
    /// In tables of its own, in the same database; and the data directory of the gateway that opens them, if it is one.
    Server { tables: Arc<Tables>, dir: Option<PathBuf> },
}

impl fmt::Debug for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Kind::Directory(dir) => f.debug_tuple("Place").field(dir).finish(),
            // Its address may hold a password.
            Kind::Server(_) => f.write_str("Place(postgres)"),
        }
    }
}

impl Place {
    /// The embedded database of a data directory, which is created where there is none.
    #[must_use]
    pub fn directory(dir: &Path) -> Self {
        Self(Kind::Directory(dir.to_owned()))
    }

    /// A database of a PostgreSQL server, version 12 or newer: its address as libpq has it (`postgres://…`, several hosts
    /// too). Connects to nothing yet. Servers on other machines are spoken to with TLS where the address does not say
    /// otherwise; their certificates are verified by the file of authorities (PEM), or by those that everybody trusts.
    /// What opens it is a node that nobody has heard of before.
    ///
    /// # Errors
    /// [`StoreError::Unreachable`] where this is no such address.
    pub fn server(url: &str, authorities: Option<PathBuf>) -> Result<Self, StoreError> {
        Ok(Self(Kind::Server(Arc::new(Server::new(url, authorities, nodes::Name::fresh())?))))
    }

    /// As the configuration says: the database of a server, or without one that of the data directory. That directory
    /// tells which node opens the former, so that one that is started anew is known. Whatever is opened is refused with
    /// [`StoreError::OtherStore`] where the directory belongs to another store ([`Self::claim_directory`]).
    ///
    /// # Errors
    /// As [`Self::server`].
    pub fn configured(dir: &Path, server: Option<(&str, Option<&Path>)>) -> Result<Self, StoreError> {
        match server {
            Some((url, authorities)) => {
                let node = nodes::Name::Of(dir.to_owned());
                let server = Server::new(url, authorities.map(Path::to_owned), node)?;
                Ok(Self(Kind::Server(Arc::new(server))))
            }
            None => Ok(Self::directory(dir)),
        }
    }

    /// Opens it for a gateway: that of a directory for one, that of a server for any number side by side. Hold
    /// [`super::lock_data_dir`] while it is open.
    ///
    /// # Errors
    /// Every [`StoreError`] about files, connections, foreign, newer or damaged databases; [`StoreError::Served`] where
    /// one of an older version has it open on a server, or it is being moved.
    pub fn open(&self) -> Result<Arc<dyn Store>, StoreError> {
        match self.own()? {
            Kind::Directory(dir) => Ok(Arc::new(sqlite::SqliteStore::open(dir)?)),
            Kind::Server(server) => server.open(),
        }
    }

    /// Writes into the data directory that it belongs to this store, which must be open; and which configuration file has
    /// the store's address, if one does.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn claim_directory(&self, config: Option<&Path>) -> Result<(), StoreError> {
        let (dir, backend, id) = match &self.0 {
            Kind::Directory(dir) => (Some(dir.as_path()), Backend::Sqlite, sqlite::store_id(dir)?),
            Kind::Server(server) => (server.dir(), Backend::Postgres, server.store_id()?),
        };
        let Some(dir) = dir else { return Ok(()) };
        StoreIdentity { backend, id, config: config.map(Path::to_owned) }.write(dir)
    }

    /// Refuses the embedded database of a directory that belongs to another store. Servers find out when they are asked.
    fn own(&self) -> Result<&Kind, StoreError> {
        if let Kind::Directory(dir) = &self.0 {
            identity::check_embedded(dir)?;
        }
        Ok(&self.0)
    }

    /// Copies the embedded database to a file; see [`sqlite::backup::backup`].
    ///
    /// # Errors
    /// See [`BackupError`].
    pub fn backup(&self, to: &Path, replace: bool, now: Timestamp) -> Result<BackedUp, BackupError> {
        match self.own()? {
            Kind::Directory(dir) => sqlite::backup::backup(dir, to, replace, now),
            Kind::Server(_) => Err(BackupError::Server),
        }
    }

    /// Moves everything into another store, which must be empty or what a try before has left, while nobody serves either:
    /// proves this one, copies it, proves the copy, and closes this one for good. Codes for signing in are left out. What
    /// modules keep ([`Self::room`]) is moved by `beside`, with each try, before anything else.
    ///
    /// # Errors
    /// See [`MoveError`]; then this store is as it was, and the next try goes on.
    pub fn move_to(
        &self,
        other: &Self,
        beside: &mut Beside<'_>,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<VerifiedTrail, MoveError> {
        match &self.0 {
            Kind::Directory(dir) => self.move_from(&OfflineDirectory::take(dir, false)?, other, beside, progress),
            Kind::Server(server) => self.move_from(&server.take_offline(false)?, other, beside, progress),
        }
    }

    fn move_from(
        &self,
        from: &impl OfflineStore,
        other: &Self,
        beside: &mut Beside<'_>,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<VerifiedTrail, MoveError> {
        if let Kind::Directory(dir) = &other.0
            && let Some(known) = StoreIdentity::read(dir)?
            && known.backend != Backend::Sqlite
            && from.fact(identity::STORE_ID)?.as_ref() != Some(&known.id)
        {
            return Err(MoveError::OtherStore(dir.clone()));
        }
        let (backend, moved) = match &other.0 {
            Kind::Directory(dir) => {
                (Backend::Sqlite, moving::move_all(from, &OfflineDirectory::take(dir, true)?, beside, progress)?)
            }
            Kind::Server(server) => {
                (Backend::Postgres, moving::move_all(from, &server.take_offline(true)?, beside, progress)?)
            }
        };
        let id = from.fact(identity::STORE_ID)?.unwrap_or_default();
        for place in [self, other] {
            if let Kind::Directory(dir) = &place.0 {
                StoreIdentity { backend, id: id.clone(), config: None }.write(dir)?;
            }
        }
        Ok(moved)
    }

    /// Keys and codes, also beside the gateway. A data directory that belongs to no store yet belongs to its own from then
    /// on, so that no gateway leaves a key behind that was made before its first start.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn credentials(&self) -> Result<Arc<dyn Credentials>, StoreError> {
        match self.own()? {
            Kind::Directory(dir) => {
                let keys = sqlite::keys::open(dir)?;
                if StoreIdentity::read(dir)?.is_none() {
                    self.claim_directory(None)?;
                }
                Ok(Arc::new(keys))
            }
            Kind::Server(server) => server.credentials(),
        }
    }

    /// Webhooks and their deliveries, of the gateway.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn deliveries(&self) -> Result<Arc<dyn Deliveries>, StoreError> {
        match self.own()? {
            Kind::Directory(dir) => Ok(Arc::new(sqlite::webhooks::open(dir)?)),
            Kind::Server(server) => server.deliveries(),
        }
    }

    /// For what a module keeps of its own.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn room(&self) -> Result<Room, StoreError> {
        Ok(match &self.0 {
            Kind::Directory(dir) => Room::Directory(dir.clone()),
            Kind::Server(server) => {
                Room::Server { tables: Arc::new(server.tables()?), dir: server.dir().map(Path::to_owned) }
            }
        })
    }

    /// Verifies the audit trail, also beside the gateway: everything is read once, in one snapshot and in bounded memory.
    /// `expected` is a head exported earlier ([`AuditHead::export`]): without it, a trail cut at its end or written anew as
    /// a whole cannot be told.
    ///
    /// # Errors
    /// [`VerifyError::Broken`] at the first thing that does not hold.
    pub fn verify_audit(&self, expected: Option<AuditHead>) -> Result<VerifiedTrail, VerifyError> {
        match self.own()? {
            Kind::Directory(dir) => sqlite::verify::verify_audit(dir, expected),
            Kind::Server(server) => server.verify_audit(expected),
        }
    }

    /// Hands every entry of the trail to `each`, the oldest first, in one snapshot and in bounded memory, also beside the
    /// gateway.
    ///
    /// # Errors
    /// Those of the database, and what `each` answers.
    pub fn read_audit<E: From<StoreError>>(&self, each: impl FnMut(&AuditEntry) -> Result<(), E>) -> Result<(), E> {
        match self.own()? {
            Kind::Directory(dir) => sqlite::trail::read_audit(dir, each),
            Kind::Server(server) => server.read_audit(each),
        }
    }

    /// What reviewers said, in one snapshot, also beside the gateway and without writing anything; `None` where there is no
    /// store yet.
    ///
    /// # Errors
    /// Those of the database.
    pub fn said(&self) -> Result<Option<Said>, StoreError> {
        match self.own()? {
            Kind::Directory(dir) => sqlite::read_said(dir),
            Kind::Server(server) => server.said(),
        }
    }
}
