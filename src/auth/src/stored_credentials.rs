//! Reads and writes the keys, codes, sign-ins and people of the gateway's store.

use std::{path::Path, sync::Arc};

use jiff::Timestamp;

use super::{
    keyring::{Keyring, ValidKeySource},
    keys::KeyStore,
};
use countersign_domain::{changes::Absence, policy::KeyHolders as _, principal::SecretHash};
use countersign_protocol::McpError;
use countersign_runtime::background;
use countersign_store::{
    StoreError, StoreLocation,
    keys::{ApiKey, Credentials, is_touch_due},
    people::Holders,
};

/// Credentials of the store, with two connections so that a look-up never waits for a write.
pub struct StoredCredentials {
    reader: Arc<dyn Credentials>,
    writer: Arc<dyn Credentials>,
    keyring: Arc<Keyring>,
}

impl StoredCredentials {
    /// Opens the credentials of a store.
    ///
    /// # Errors
    /// Errors of opening the database.
    pub fn open(location: &StoreLocation) -> Result<Self, StoreError> {
        let reader: Arc<dyn Credentials> = location.credentials()?;
        let keyring = Arc::new(Keyring::new(Arc::new(StoreKeySource(Arc::clone(&reader)))));
        Ok(Self { reader, writer: location.credentials()?, keyring })
    }

    /// Opens the credentials of the embedded database in a directory.
    ///
    /// # Errors
    /// The same as [`Self::open`].
    pub fn in_directory(dir: &Path) -> Result<Self, StoreError> {
        Self::open(&StoreLocation::directory(dir))
    }

    /// Returns the connection for look-ups.
    pub(crate) fn reader(&self) -> &dyn Credentials {
        &*self.reader
    }

    /// Returns the connection for writes, which also serves listings.
    pub fn writer(&self) -> &dyn Credentials {
        &*self.writer
    }

    /// Returns the keyring, which all users of these credentials share.
    pub fn keyring(&self) -> &Arc<Keyring> {
        &self.keyring
    }

    /// Records a use on another thread without waiting, because it is a durable write.
    pub(crate) fn record_use(&self, write: impl FnOnce(&dyn Credentials) -> Result<(), StoreError> + Send + 'static) {
        if tokio::runtime::Handle::try_current().is_err() {
            return;
        }
        let writer = Arc::clone(&self.writer);
        drop(background::spawn_blocking(move || {
            if let Err(error) = write(&*writer) {
                tracing::debug!(%error, "the use of a credential cannot be recorded");
            }
        }));
    }
}

/// Logs an error of the store, and converts it for the client.
pub(crate) fn report_unavailable(error: StoreError) -> McpError {
    tracing::error!(%error, "the credentials cannot be read or written");
    error.to_mcp()
}

impl KeyStore for StoredCredentials {
    fn find_key(&self, hash: &SecretHash) -> Result<Option<(ApiKey, SecretHash)>, McpError> {
        let key_and_hash = self.reader.find(hash).map_err(report_unavailable)?;
        let now = Timestamp::now();
        if let Some((key, _)) =
            key_and_hash.as_ref().filter(|(key, _)| key.revoked_at.is_none() && is_touch_due(key, now))
        {
            let key = key.clone();
            self.record_use(move |writer| writer.touch(&key, now));
        }
        Ok(key_and_hash)
    }

    fn is_person_revoked(&self, name: &str) -> Result<bool, McpError> {
        self.keyring.is_person_revoked(name)
    }
}

/// Reads the valid keys for the keyring from the store.
struct StoreKeySource(Arc<dyn Credentials>);

impl ValidKeySource for StoreKeySource {
    fn holders(&self) -> Result<Holders, StoreError> {
        self.0.holders()
    }

    fn newest_holders(&self) -> Result<Holders, StoreError> {
        self.0.newest_holders()
    }

    fn absences(&self) -> Result<Vec<Absence>, StoreError> {
        self.0.absences()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Authenticator, codes, keys};
    use countersign_config::Config;
    use countersign_domain::principal::Role;
    use countersign_protocol::ErrorKind;

    #[test]
    fn keys_and_codes_of_another_process_work_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let stored = Arc::new(StoredCredentials::open(&StoreLocation::directory(dir.path())).unwrap());
        let auth = Authenticator::new(&Config::default(), Arc::clone(&stored) as Arc<dyn KeyStore>);
        let other = StoreLocation::directory(dir.path()).credentials().unwrap();
        let new = keys::create("alice", Role::Reviewer, Timestamp::now()).unwrap();
        other.insert(&new.key, &new.hash).unwrap();
        let header = format!("Bearer {}", new.secret);
        let principal = auth.identify(Some(header.as_bytes()), None).unwrap().principal;
        assert_eq!(
            (principal.name.as_str(), principal.role, principal.key_id.as_deref()),
            ("alice", Role::Reviewer, Some(new.key.id.as_str()))
        );

        let now = Timestamp::now();
        let code = codes::create(&*other, now).unwrap();
        let reviewer = codes::redeem(&stored, &code, None, now).unwrap().principal;
        assert_eq!((reviewer.role, &reviewer.key_id), (Role::Reviewer, &None));
        assert_eq!(codes::redeem(&stored, &code, None, now).unwrap_err().kind, ErrorKind::Unauthorized);
    }

    #[tokio::test]
    async fn key_use_is_recorded() {
        let dir = tempfile::tempdir().unwrap();
        let stored = StoredCredentials::open(&StoreLocation::directory(dir.path())).unwrap();
        let new = keys::create("ci", Role::Agent, Timestamp::now()).unwrap();
        stored.writer().insert(&new.key, &new.hash).unwrap();
        stored.find_key(&new.hash).unwrap().unwrap();
        // The background write waits for the same mutex, so poll until it is done.
        while stored.writer().list().unwrap()[0].last_used_at.is_none() {
            tokio::task::yield_now().await;
        }
    }
}
