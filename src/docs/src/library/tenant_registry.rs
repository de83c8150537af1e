//! Registers the stored indexes by tenant.

use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use rusqlite::{Connection, params};
use sha2::{Digest as _, Sha256};

use crate::{
    index::{Index, open_derived_data},
    model::Tenant,
};
use countersign_domain::changes::digest::hex;

/// The table lists the tenants. Its name and that of the file, `shelves.db`, are older than the term tenant, and stay
/// because they are stored.
const SCHEMA: &str = "CREATE TABLE IF NOT EXISTS shelves (
    key TEXT PRIMARY KEY, project TEXT NOT NULL, branch TEXT NOT NULL, path_hash TEXT NOT NULL) STRICT;";

/// The list of tenants, and the folder of their indexes.
pub(super) struct TenantRegistry {
    folder: PathBuf,
    connection: Mutex<Connection>,
}

/// Returns the stem of a tenant's index files.
fn file_stem(tenant: &Tenant) -> String {
    let mut hasher = Sha256::new();
    for part in [&tenant.project, &tenant.branch, &tenant.path_hash] {
        hasher.update((part.len() as u64).to_le_bytes());
        hasher.update(part);
    }
    hex(&hasher.finalize()).chars().take(40).collect()
}

impl TenantRegistry {
    /// Opens the registry.
    ///
    /// # Errors
    /// Fails if the list can neither be read nor created.
    pub fn open(folder: &Path) -> rusqlite::Result<Self> {
        // The tenants in use are registered again in a list that is recreated.
        let connection = Mutex::new(open_derived_data(&folder.join("shelves.db"), SCHEMA)?);
        Ok(Self { folder: folder.to_owned(), connection })
    }

    /// Returns the paths of a tenant's index of documents and of its reference documentation.
    pub fn paths(&self, tenant: &Tenant) -> (PathBuf, PathBuf) {
        let key = file_stem(tenant);
        (self.folder.join(format!("{key}.docs.db")), self.folder.join(format!("{key}.external.db")))
    }

    /// Adds a tenant, unless it is registered already.
    pub fn record(&self, tenant: &Tenant) -> rusqlite::Result<()> {
        let connection = self.connection.lock();
        let sql = "INSERT OR IGNORE INTO shelves (key, project, branch, path_hash) VALUES (?1, ?2, ?3, ?4)";
        connection.execute(sql, params![file_stem(tenant), tenant.project, tenant.branch, tenant.path_hash]).map(drop)
    }

    /// Returns all tenants of a project, ordered by branch and root.
    pub fn tenants_of(&self, project: &str) -> rusqlite::Result<Vec<Tenant>> {
        let connection = self.connection.lock();
        let mut statement = connection.prepare_cached(
            "SELECT project, branch, path_hash FROM shelves WHERE project = ?1 ORDER BY branch, path_hash",
        )?;
        let rows = statement.query_map([project], |row| {
            Ok(Tenant { project: row.get(0)?, branch: row.get(1)?, path_hash: row.get(2)? })
        })?;
        rows.collect()
    }

    /// Removes a tenant and its indexes.
    pub fn forget(&self, tenant: &Tenant) -> rusqlite::Result<()> {
        self.connection.lock().execute("DELETE FROM shelves WHERE key = ?1", [file_stem(tenant)])?;
        let (docs, external) = self.paths(tenant);
        for path in [docs, external] {
            if let Err(error) = Index::delete(&path) {
                tracing::warn!(%error, "an unused index of documents cannot be removed");
            }
        }
        Ok(())
    }
}
