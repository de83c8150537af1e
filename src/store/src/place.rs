//! The location of everything durable, and the only way to open it. Only modules with tables of their own know the
//! backend ([`Room`]).

use std::{
    fmt,
    path::{Path, PathBuf},
    sync::Arc,
};

use super::{
    ReviewerRecords, Store, StoreError, VerifiedTrail, VerifyError,
    identity::{self, Backend, StoreIdentity},
    keys::Credentials,
    moving::{self, MoveError, MoveModules, OfflineStore, Progress},
    nodes,
    postgres::{Server, tables::Tables},
    sqlite,
    sqlite::backup::{BackupError, BackupReport},
    sqlite::moving::OfflineDirectory,
    webhooks::Deliveries,
};
use countersign_domain::changes::audit::{AuditEntry, AuditHead};
use jiff::Timestamp;

/// The location of a store. Cheap to clone.
#[derive(Clone)]
pub struct Place(Kind);

#[derive(Clone)]
enum Kind {
    Directory(PathBuf),
    Server(Arc<Server>),
}

/// The storage of a module, beside the store's data.
#[derive(Clone, Debug)]
pub enum Room {
    /// Files in the data directory.
    Directory(PathBuf),
    /// Tables in the same database, and the data directory of the gateway, if it has one.
    Server { tables: Arc<Tables>, dir: Option<PathBuf> },
}

impl fmt::Debug for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Kind::Directory(dir) => f.debug_tuple("Place").field(dir).finish(),
            // The address may hold a password.
            Kind::Server(_) => f.write_str("Place(postgres)"),
        }
    }
}

impl Place {
    /// Returns the location of the embedded database of a data directory, which is created when it is opened.
    #[must_use]
    pub fn directory(dir: &Path) -> Self {
        Self(Kind::Directory(dir.to_owned()))
    }

    /// Returns the location of a PostgreSQL database, version 12 or newer, by its libpq address (`postgres://…`, also
    /// with several hosts). Does not connect yet. Servers on other machines are reached with TLS unless the address
    /// says otherwise; their certificates are verified with the authorities in the file (PEM), or with the public ones.
    /// The opening node gets a new id.
    ///
    /// # Errors
    /// [`StoreError::Unreachable`] where this is no such address.
    pub fn server(url: &str, authorities: Option<PathBuf>) -> Result<Self, StoreError> {
        Ok(Self(Kind::Server(Arc::new(Server::new(url, authorities, nodes::Name::fresh())?))))
    }

    /// Returns the configured location: a server's database, or else that of the data directory. The directory has the
    /// node's id, so that a restarted node is known. Opening fails with [`StoreError::OtherStore`] if the directory
    /// belongs to another store ([`Self::claim_directory`]).
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

    /// Opens the store for a gateway: that of a directory for one, that of a server for any number. Hold
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

    /// Records in the data directory that it belongs to this open store, and which configuration file has the store's
    /// address.
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

    /// Returns an error for the embedded database of a directory that belongs to another store. Servers are checked
    /// when they are asked.
    fn own(&self) -> Result<&Kind, StoreError> {
        if let Kind::Directory(dir) = &self.0 {
            identity::check_embedded(dir)?;
        }
        Ok(&self.0)
    }

    /// Copies the embedded database to a file (see [`sqlite::backup::backup`]).
    ///
    /// # Errors
    /// See [`BackupError`].
    pub fn backup(&self, to: &Path, replace: bool, now: Timestamp) -> Result<BackupReport, BackupError> {
        match self.own()? {
            Kind::Directory(dir) => sqlite::backup::backup(dir, to, replace, now),
            Kind::Server(_) => Err(BackupError::Server),
        }
    }

    /// Moves everything into another store, which must be empty or hold an earlier attempt, while nobody serves either.
    /// Verifies this store, copies it, verifies the copy, and closes this store for good. Sign-in codes are left out.
    /// `beside` moves the data of modules ([`Self::room`]), first in each attempt.
    ///
    /// # Errors
    /// See [`MoveError`]; then this store is as it was, and the next try goes on.
    pub fn move_to(
        &self,
        other: &Self,
        beside: &mut MoveModules<'_>,
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
        beside: &mut MoveModules<'_>,
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

    /// Opens the keys and codes, also beside a running gateway. A data directory without a store then belongs to its
    /// own, so that keys from before the first start are not lost.
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

    /// Opens the webhooks and deliveries of the gateway.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn deliveries(&self) -> Result<Arc<dyn Deliveries>, StoreError> {
        match self.own()? {
            Kind::Directory(dir) => Ok(Arc::new(sqlite::webhooks::open(dir)?)),
            Kind::Server(server) => server.deliveries(),
        }
    }

    /// Returns the storage of a module.
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

    /// Verifies the audit trail in one snapshot and in bounded memory, also beside a running gateway. Without an
    /// `expected` head that was exported earlier ([`AuditHead::export`]), a trail that was cut at its end or rewritten
    /// as a whole is not detected.
    ///
    /// # Errors
    /// [`VerifyError::Broken`] at the first thing that does not hold.
    pub fn verify_audit(&self, expected: Option<AuditHead>) -> Result<VerifiedTrail, VerifyError> {
        match self.own()? {
            Kind::Directory(dir) => sqlite::verify::verify_audit(dir, expected),
            Kind::Server(server) => server.verify_audit(expected),
        }
    }

    /// Passes every entry of the trail to `each`, oldest first, in one snapshot and in bounded memory, also beside a
    /// running gateway.
    ///
    /// # Errors
    /// Those of the database, and what `each` answers.
    pub fn read_audit<E: From<StoreError>>(&self, each: impl FnMut(&AuditEntry) -> Result<(), E>) -> Result<(), E> {
        match self.own()? {
            Kind::Directory(dir) => sqlite::trail::read_audit(dir, each),
            Kind::Server(server) => server.read_audit(each),
        }
    }

    /// Reads what reviewers have decided in one snapshot, without writing anything, also beside a running gateway.
    /// Returns `None` if there is no store.
    ///
    /// # Errors
    /// Those of the database.
    pub fn said(&self) -> Result<Option<ReviewerRecords>, StoreError> {
        match self.own()? {
            Kind::Directory(dir) => sqlite::read_said(dir),
            Kind::Server(server) => server.said(),
        }
    }
}
