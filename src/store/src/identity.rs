//! Binds a data directory to its store with `identity.json`. The gateway writes the file when it serves the store, and
//! so does a command that creates the embedded store.
//!
//! Each store has a random id among its facts, which moves with it. The file contains that id, the backend, and the
//! path of the configuration file with the store's address. It never contains the address, which may include a
//! password.

use std::{
    fs,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use super::StoreError;
use countersign_runtime::files::{none_if_missing, replace_file};

/// The name of the fact that holds the store's id.
pub(crate) const STORE_ID: &str = "store_id";

/// The name of the file in the data directory.
pub const IDENTITY_FILE: &str = "identity.json";

/// The version of the file's format. It increases when an older program must not use the directory any more.
const FORMAT: u32 = 1;

/// The only member that every format has, except the first one.
#[derive(Deserialize)]
struct Format {
    #[serde(default)]
    format: u32,
}

/// Returns a new random id.
pub(crate) fn new_id() -> String {
    nanoid::nanoid!(24)
}

/// The kind of database that holds a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Backend {
    /// The database in the data directory.
    Sqlite,
    Postgres,
}

/// The store that a data directory belongs to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreIdentity {
    pub backend: Backend,
    pub id: String,
    /// The configuration file that contains the address of the store, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<PathBuf>,
}

impl StoreIdentity {
    /// Reads the file of a data directory. Returns `None` if the directory belongs to no store yet.
    ///
    /// # Errors
    /// [`StoreError::DataDir`] if the file cannot be read, [`StoreError::NewerIdentity`] if it has a newer format.
    pub fn read(dir: &Path) -> Result<Option<Self>, StoreError> {
        let path = dir.join(IDENTITY_FILE);
        let failed = |source: std::io::Error| StoreError::data_dir(&path, source);
        let Some(text) = none_if_missing(fs::read(&path)).map_err(failed)? else { return Ok(None) };
        let Format { format } = serde_json::from_slice(&text).map_err(|error| failed(error.into()))?;
        if format > FORMAT {
            return Err(StoreError::NewerIdentity { path, found: format, known: FORMAT });
        }
        serde_json::from_slice(&text).map(Some).map_err(|error| failed(error.into()))
    }

    /// Writes the file, unless it already has the same content.
    pub(crate) fn write(&self, dir: &Path) -> Result<(), StoreError> {
        let path = dir.join(IDENTITY_FILE);
        if matches!(Self::read(dir), Ok(Some(known)) if known == *self) {
            return Ok(());
        }
        let text = serde_json::to_vec_pretty(self).map_err(std::io::Error::from);
        text.and_then(|text| replace_file(&path, &text, 0o600)).map_err(|source| StoreError::data_dir(&path, source))
    }

    /// Returns the error for using this store's data directory with a store on the backend `configured`.
    pub(crate) fn other_store_error(&self, dir: &Path, configured: Backend) -> StoreError {
        let own_store = match self.backend {
            Backend::Sqlite => "the store in its own countersign.db",
            Backend::Postgres => "a store in PostgreSQL",
        };
        let configured = match configured {
            Backend::Sqlite => "no PostgreSQL database",
            Backend::Postgres => "another database in PostgreSQL",
        };
        let remedy = match (&self.config, self.backend) {
            (Some(file), _) => format!("its gateway's configuration with --config {}", file.display()),
            (None, Backend::Postgres) => {
                "its gateway's configuration with --config FILE, or the database with COUNTERSIGN_STORE__URL".to_owned()
            }
            (None, Backend::Sqlite) => "a configuration without `store.url` with --config FILE".to_owned(),
        };
        StoreError::OtherStore {
            dir: dir.to_owned(),
            reason: format!("{own_store}, but the loaded configuration names {configured}. Give {remedy}"),
            file: dir.join(IDENTITY_FILE),
        }
    }
}

/// Refuses the embedded database of a data directory that belongs to another store, before opening creates the
/// database.
pub(crate) fn check_embedded(dir: &Path) -> Result<(), StoreError> {
    match StoreIdentity::read(dir)? {
        Some(known) if known.backend != Backend::Sqlite => Err(known.other_store_error(dir, Backend::Sqlite)),
        _ => Ok(()),
    }
}

/// The identity that was read from a database.
pub(crate) enum FoundStore {
    /// No gateway has written to it.
    Empty,
    /// The store's id; `None` if only older versions have served the store.
    Store(Option<String>),
}

/// Refuses a database server for a data directory that belongs to another store.
pub(crate) fn check_server(dir: &Path, found: &FoundStore) -> Result<(), StoreError> {
    let Some(identity) = StoreIdentity::read(dir)? else { return Ok(()) };
    match found {
        FoundStore::Store(Some(id)) if *id == identity.id => Ok(()),
        // A backup from an older version has no id.
        FoundStore::Store(None) if identity.backend == Backend::Postgres => Ok(()),
        _ => Err(identity.other_store_error(dir, Backend::Postgres)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(backend: Backend) -> StoreIdentity {
        StoreIdentity { backend, id: "a".to_owned(), config: Some("/etc/c.yaml".into()) }
    }

    #[test]
    fn directory_is_refused_to_any_other_store() {
        let dir = tempfile::tempdir().unwrap();
        let server = |found: &FoundStore| check_server(dir.path(), found).is_ok();
        let id = |id: &str| FoundStore::Store(Some(id.to_owned()));
        assert!(
            check_embedded(dir.path()).is_ok() && server(&FoundStore::Empty),
            "the directory belongs to no store yet"
        );
        identity(Backend::Postgres).write(dir.path()).unwrap();
        let error = check_embedded(dir.path()).unwrap_err().to_string();
        assert!(error.contains("--config /etc/c.yaml") && error.contains("identity.json"), "{error}");
        assert!(server(&id("a")) && server(&FoundStore::Store(None)));
        assert!(!server(&id("b")) && !server(&FoundStore::Empty));
        identity(Backend::Sqlite).write(dir.path()).unwrap();
        assert!(check_embedded(dir.path()).is_ok());
        assert!(!server(&id("b")) && !server(&FoundStore::Store(None)) && !server(&FoundStore::Empty));
        assert!(server(&id("a")), "the store was moved to the server");
        fs::write(dir.path().join(IDENTITY_FILE), "{").unwrap();
        assert!(check_embedded(dir.path()).is_err(), "an unreadable file is refused");
        let newer = format!(r#"{{"format": {}, "backend": "sqlite", "id": "a"}}"#, FORMAT + 1);
        fs::write(dir.path().join(IDENTITY_FILE), newer).unwrap();
        let refused = check_embedded(dir.path());
        assert!(matches!(refused, Err(StoreError::NewerIdentity { found: 2, known: 1, .. })), "{refused:?}");
    }
}
