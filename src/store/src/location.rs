//! The location of a store, and the only way to open it. Callers do not learn the backend, except modules with their
//! own tables ([`ModuleStorage`]).

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use super::{
    ReadAuditError, ReviewerRecords, Store, StoreError, VerifiedTrail, VerifyError,
    accounts::AccountStore,
    identity::{self, Backend, StoreIdentity},
    keys::Credentials,
    moving::{self, MoveError, MoveModules, OfflineStore, Progress},
    nodes::NodeIdSource,
    postgres::{PostgresDatabase, tables::Tables},
    rule_counts::RuleCountStore,
    sqlite,
    sqlite::backup::{BackupError, BackupReport},
    sqlite::moving::OfflineDirectory,
    webhooks::Deliveries,
};
use countersign_domain::changes::audit::{AuditEntry, AuditHead};
use jiff::Timestamp;

/// The location of a store. Cheap to clone. It cannot be printed, because the address may hold a password.
#[derive(Clone)]
pub struct StoreLocation(Kind);

#[derive(Clone)]
enum Kind {
    Directory(PathBuf),
    Postgres(Arc<PostgresDatabase>),
}

/// The storage of a module, beside the store's data.
#[derive(Clone)]
pub enum ModuleStorage {
    /// Files in the data directory.
    Directory(PathBuf),
    /// Tables in the store's database, and the data directory of the gateway, if it has one.
    Postgres { tables: Arc<Tables>, dir: Option<PathBuf> },
}

impl StoreLocation {
    /// Returns the location of the embedded database in a data directory. Opening creates the database.
    pub fn directory(dir: &Path) -> Self {
        Self(Kind::Directory(dir.to_owned()))
    }

    /// Returns the location of a PostgreSQL database, version 12 or newer, without connecting. `url` is a libpq
    /// address (`postgres://…`), which may have several hosts. Servers on other machines are reached with TLS unless
    /// the address says otherwise. `authorities` is a PEM file with the authorities for their certificates; `None`
    /// means the public authorities. The opening node gets a new id.
    ///
    /// # Errors
    /// [`StoreError::Unreachable`] if the address is invalid.
    pub fn server(url: &str, authorities: Option<PathBuf>) -> Result<Self, StoreError> {
        Self::postgres(url, authorities, NodeIdSource::generate())
    }

    fn postgres(url: &str, authorities: Option<PathBuf>, node: NodeIdSource) -> Result<Self, StoreError> {
        Ok(Self(Kind::Postgres(Arc::new(PostgresDatabase::new(url, authorities, node)?))))
    }

    /// Returns the configured location: the database of a server, or else of the data directory. The node's id is kept
    /// in the directory, so that a restarted node keeps its identity. Opening fails with [`StoreError::OtherStore`] if
    /// the directory belongs to another store ([`Self::claim_directory`]).
    ///
    /// # Errors
    /// As [`Self::server`].
    pub fn configured(dir: &Path, server: Option<(&str, Option<&Path>)>) -> Result<Self, StoreError> {
        match server {
            Some((url, authorities)) => {
                Self::postgres(url, authorities.map(Path::to_owned), NodeIdSource::DataDir(dir.to_owned()))
            }
            None => Ok(Self::directory(dir)),
        }
    }

    /// Opens the store for a gateway. A directory serves one gateway, and a server any number of them. Hold
    /// [`countersign_runtime::data_dir::lock_data_dir`] while the store is open.
    ///
    /// # Errors
    /// Every [`StoreError`] about files, connections, or foreign, newer or damaged databases. [`StoreError::AlreadyServed`]
    /// if a gateway of an older version has the server's database open, or the store is being moved.
    pub fn open(&self) -> Result<Arc<dyn Store>, StoreError> {
        match self.checked_kind()? {
            Kind::Directory(dir) => Ok(Arc::new(sqlite::SqliteStore::open(dir)?)),
            Kind::Postgres(server) => server.open(),
        }
    }

    /// Records in the data directory that it belongs to this store, and that the file `config` contains the store's
    /// address.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn claim_directory(&self, config: Option<&Path>) -> Result<(), StoreError> {
        let (dir, backend, id) = match &self.0 {
            Kind::Directory(dir) => (Some(dir.as_path()), Backend::Sqlite, sqlite::store_id(dir)?),
            Kind::Postgres(server) => (server.data_dir(), Backend::Postgres, server.store_id()?),
        };
        let Some(dir) = dir else { return Ok(()) };
        StoreIdentity { backend, id, config: config.map(Path::to_owned) }.write(dir)
    }

    /// Fails if the directory of an embedded database belongs to another store. A server's database is checked on
    /// connecting.
    fn checked_kind(&self) -> Result<&Kind, StoreError> {
        if let Kind::Directory(dir) = &self.0 {
            identity::check_embedded(dir)?;
        }
        Ok(&self.0)
    }

    /// Copies the embedded database to the file `to` (see [`sqlite::backup::backup`]).
    ///
    /// # Errors
    /// See [`BackupError`].
    pub fn backup(&self, to: &Path, replace: bool, now: Timestamp) -> Result<BackupReport, BackupError> {
        match self.checked_kind()? {
            Kind::Directory(dir) => sqlite::backup::backup(dir, to, replace, now),
            Kind::Postgres(_) => Err(BackupError::Server),
        }
    }

    /// Moves everything except sign-in codes into another store, which must be empty or hold an earlier attempt. No
    /// gateway may serve either store. Verifies this store, copies it, verifies the copy, and marks this store as
    /// moved. `move_modules` moves the data of modules ([`Self::module_storage`]), as the first step of each attempt.
    ///
    /// # Errors
    /// See [`MoveError`]. This store is then unchanged, and the next attempt continues where this one ended.
    pub fn move_to(
        &self,
        other: &Self,
        move_modules: &mut MoveModules<'_>,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<VerifiedTrail, MoveError> {
        if self.is_same_store(other) {
            return Err(MoveError::SameStore);
        }
        let from = self.take_offline(false)?;
        if let Kind::Directory(dir) = &other.0
            && let Some(stored_identity) = StoreIdentity::read(dir)?
            && stored_identity.backend != Backend::Sqlite
            && from.fact(identity::STORE_ID)?.as_ref() != Some(&stored_identity.id)
        {
            return Err(MoveError::OtherStore(dir.clone()));
        }
        let to = other.take_offline(true)?;
        let moved = moving::move_all(&*from, &*to, move_modules, progress)?;
        // The new identities are written while both stores are still locked.
        let id = from.fact(identity::STORE_ID)?.unwrap_or_default();
        for location in [self, other] {
            if let Kind::Directory(dir) = &location.0 {
                StoreIdentity { backend: to.backend(), id: id.clone(), config: None }.write(dir)?;
            }
        }
        Ok(moved)
    }

    /// Keeps gateways from serving the store while the returned value exists. Creates or migrates the store if `create` is
    /// set.
    fn take_offline(&self, create: bool) -> Result<Box<dyn OfflineStore>, MoveError> {
        Ok(match &self.0 {
            Kind::Directory(dir) => Box::new(OfflineDirectory::take(dir, create)?),
            Kind::Postgres(server) => Box::new(server.take_offline(create)?),
        })
    }

    /// Returns `true` if both locations have the same directory or the same address. A server's database may have several
    /// addresses.
    fn is_same_store(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Kind::Directory(a), Kind::Directory(b)) => {
                fs::canonicalize(a).is_ok_and(|a| fs::canonicalize(b).is_ok_and(|b| a == b))
            }
            (Kind::Postgres(a), Kind::Postgres(b)) => a.has_address_of(b),
            _ => false,
        }
    }

    /// Opens the keys and codes, even beside a running gateway. A data directory without a store is bound to its
    /// embedded store, so that keys made before the first start are not lost.
    ///
    /// # Errors
    /// As [`Self::open`]. [`StoreError::OlderFile`] and [`StoreError::OlderDatabase`] if no gateway of this version has
    /// migrated the store yet.
    pub fn credentials(&self) -> Result<Arc<dyn Credentials>, StoreError> {
        match self.checked_kind()? {
            Kind::Directory(dir) => {
                let keys = sqlite::open_keys(dir)?;
                if StoreIdentity::read(dir)?.is_none() {
                    self.claim_directory(None)?;
                }
                Ok(Arc::new(keys))
            }
            Kind::Postgres(server) => server.credentials(),
        }
    }

    /// Opens the accounts at servers and the registrations at authorization servers.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn accounts(&self) -> Result<Arc<dyn AccountStore>, StoreError> {
        match self.checked_kind()? {
            Kind::Directory(dir) => Ok(Arc::new(sqlite::open_keys(dir)?)),
            Kind::Postgres(server) => Ok(Arc::new(server.stored_keys()?)),
        }
    }

    /// Opens the counts of the calls that rules decided.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn rule_counts(&self) -> Result<Arc<dyn RuleCountStore>, StoreError> {
        match self.checked_kind()? {
            Kind::Directory(dir) => Ok(Arc::new(sqlite::open_keys(dir)?)),
            Kind::Postgres(server) => Ok(Arc::new(server.stored_keys()?)),
        }
    }

    /// Opens the webhooks and deliveries of the gateway.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn deliveries(&self) -> Result<Arc<dyn Deliveries>, StoreError> {
        match self.checked_kind()? {
            Kind::Directory(dir) => Ok(Arc::new(sqlite::open_deliveries(dir)?)),
            Kind::Postgres(server) => server.deliveries(),
        }
    }

    /// Returns the storage of a module.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn module_storage(&self) -> Result<ModuleStorage, StoreError> {
        Ok(match &self.0 {
            Kind::Directory(dir) => ModuleStorage::Directory(dir.clone()),
            Kind::Postgres(server) => ModuleStorage::Postgres {
                tables: Arc::new(server.tables()?),
                dir: server.data_dir().map(Path::to_owned),
            },
        })
    }

    /// Verifies the audit trail in one snapshot and in bounded memory, even beside a running gateway. Only an
    /// `expected` head that was exported earlier ([`AuditHead::export`]) detects a trail that was rewritten as a whole,
    /// or one in PostgreSQL that was truncated.
    ///
    /// # Errors
    /// [`VerifyError::Broken`] at the first contradiction, [`StoreError::CutOff`] if the last entries are lost.
    pub fn verify_audit(&self, expected: Option<AuditHead>) -> Result<VerifiedTrail, VerifyError> {
        match self.checked_kind()? {
            Kind::Directory(dir) => sqlite::verify::verify_audit(dir, expected),
            Kind::Postgres(server) => server.verify_audit(expected),
        }
    }

    /// Passes every entry of the trail to `each`, oldest first and in bounded memory, even beside a running gateway. Leaves out
    /// entries that are written after the call.
    ///
    /// # Errors
    /// Those of the database, and those of `each`.
    pub fn read_audit(&self, each: &mut dyn FnMut(&AuditEntry) -> io::Result<()>) -> Result<(), ReadAuditError> {
        match self.checked_kind()? {
            Kind::Directory(dir) => sqlite::trail::read_audit(dir, each),
            Kind::Postgres(server) => server.read_audit(each),
        }
    }

    /// Reads the decisions of reviewers in one snapshot, without writing anything, even beside a running gateway.
    /// Returns `None` if there is no store.
    ///
    /// # Errors
    /// Those of the database.
    pub fn reviewer_records(&self) -> Result<Option<ReviewerRecords>, StoreError> {
        match self.checked_kind()? {
            Kind::Directory(dir) => sqlite::read_reviewer_records(dir),
            Kind::Postgres(server) => server.reviewer_records(),
        }
    }
}
