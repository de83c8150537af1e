//! Where everything durable is kept, and the one way in: nothing outside this crate names a backend.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use super::{Said, Store, StoreError, Verified, VerifyError, keys::Credentials, sqlite, webhooks::Deliveries};
use countersign_domain::changes::audit::{AuditEntry, AuditHead};

/// A store, open or not. Cheap to copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    dir: PathBuf,
}

impl Place {
    /// The embedded database of a data directory, which is created where there is none.
    #[must_use]
    pub fn directory(dir: &Path) -> Self {
        Self { dir: dir.to_owned() }
    }

    /// Opens it for the one gateway that serves it. Hold [`super::lock_data_dir`] while it is open.
    ///
    /// # Errors
    /// Every [`StoreError`] about files, foreign, newer or damaged databases.
    pub fn open(&self) -> Result<Arc<dyn Store>, StoreError> {
        Ok(Arc::new(sqlite::SqliteStore::open(&self.dir, sqlite::SqliteOptions::default())?))
    }

    /// Keys and codes, also beside the gateway.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn credentials(&self) -> Result<Arc<dyn Credentials>, StoreError> {
        Ok(Arc::new(sqlite::keys::Keys::open(&self.dir)?))
    }

    /// Webhooks and their deliveries, of the gateway.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn deliveries(&self) -> Result<Arc<dyn Deliveries>, StoreError> {
        Ok(Arc::new(sqlite::webhooks::WebhookStore::open(&self.dir)?))
    }

    /// Verifies the audit trail, also beside the gateway: everything is read once, in one snapshot and in bounded memory.
    /// `expected` is a head exported earlier ([`AuditHead::export`]): without it, a trail cut at its end or written anew as
    /// a whole cannot be told.
    ///
    /// # Errors
    /// [`VerifyError::Broken`] at the first thing that does not hold.
    pub fn verify_audit(&self, expected: Option<AuditHead>) -> Result<Verified, VerifyError> {
        sqlite::verify::verify_audit(&self.dir, expected)
    }

    /// Hands every entry of the trail to `each`, the oldest first, in one snapshot and in bounded memory, also beside the
    /// gateway.
    ///
    /// # Errors
    /// Those of the database, and what `each` answers.
    pub fn read_audit<E: From<StoreError>>(&self, each: impl FnMut(&AuditEntry) -> Result<(), E>) -> Result<(), E> {
        sqlite::search::audit::read_audit(&self.dir, each)
    }

    /// What reviewers said, in one snapshot, also beside the gateway and without writing anything; `None` where there is no
    /// store yet.
    ///
    /// # Errors
    /// Those of the database.
    pub fn said(&self) -> Result<Option<Said>, StoreError> {
        sqlite::said::read_said(&self.dir)
    }
}
