//! Keys and codes in PostgreSQL, with a copy of the keys in memory, so that requests need not wait for a remote
//! server.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use jiff::Timestamp;
use parking_lot::RwLock;

use super::{
    PgConnector, error,
    rows::{query_opt, take_heads},
};
use crate::{
    StoreError,
    keys::{ApiKey, CodeOutcome, Credentials, SignIn, is_worth_noting},
    sql::{BACKGROUND_TIMEOUT, Database as _, REQUEST_TIMEOUT},
    statements::{facts, keys},
    stored_keys::StoredKeys,
};
use countersign_domain::principal::{Role, SecretHash};

/// The interval between refreshes of the copy. A revoked key therefore stops working within a second.
const REFRESH_INTERVAL: Duration = Duration::from_millis(200);
/// The maximum age of a copy in use. If only this gateway cannot reach the database, keys may have been revoked
/// meanwhile.
const MAX_COPY_AGE: Duration = Duration::from_secs(10);

/// The maximum time for finding out the outcome of a write to a key.
const MAX_RESOLVE_TIME: Duration = Duration::from_secs(20);

/// The keys and codes of a database, with a copy of the keys.
pub(crate) struct Keys {
    stored: StoredKeys<Arc<PgConnector>>,
    copy: Arc<RwLock<KeyCopy>>,
}

struct KeyCopy {
    keys: HashMap<SecretHash, ApiKey>,
    /// The start of the last read.
    read_at: Instant,
    /// The time at which this process last created or revoked a key.
    changed_at: Option<Instant>,
}

impl KeyCopy {
    /// Replaces the copy with keys whose read began at `read_at`.
    fn replace(&mut self, mut keys: HashMap<SecretHash, ApiKey>, read_at: Instant) {
        if self.changed_at.is_some_and(|changed| changed >= read_at) {
            // The keys may have been read before a change that this process made.
            keys.extend(std::mem::take(&mut self.keys));
        }
        // A use that was recorded here may not have been stored before the read.
        for (hash, key) in &mut keys {
            let recorded = self.keys.get(hash).and_then(|known| known.last_used_at);
            key.last_used_at = key.last_used_at.max(recorded);
        }
        (self.keys, self.read_at) = (keys, read_at);
    }
}

impl Keys {
    /// Reads the keys and refreshes the copy from then on.
    ///
    /// # Errors
    /// If the keys cannot be read, or the store was moved.
    pub fn open(connector: Arc<PgConnector>) -> Result<Self, StoreError> {
        let read_at = Instant::now();
        let keys = connector.read(BACKGROUND_TIMEOUT, async |client| {
            facts::check_moved(client).await?;
            Ok(by_hash(keys::list(client).await?))
        })?;
        let copy = Arc::new(RwLock::new(KeyCopy { keys, read_at, changed_at: None }));
        let (weak_copy, weak_connector) = (Arc::downgrade(&copy), Arc::downgrade(&connector));
        connector.spawn(async move {
            loop {
                tokio::time::sleep(REFRESH_INTERVAL).await;
                let Some(connector) = weak_connector.upgrade() else { return };
                let began = Instant::now();
                let reading = connector.run_async(error::no_answer, async |client| keys::list(client).await);
                let read =
                    tokio::time::timeout(REQUEST_TIMEOUT, reading).await.unwrap_or_else(|_| Err(error::no_answer()));
                let Some(copy) = weak_copy.upgrade() else { return };
                match read {
                    Ok(keys) => copy.write().replace(by_hash(keys), began),
                    Err(error) => {
                        tracing::debug!(%error, "the keys could not be read");
                        // The writer detects when the database can be reached again.
                        connector.health.record_failure(&error);
                    }
                }
            }
        });
        Ok(Self { stored: StoredKeys(connector), copy })
    }

    /// Reads from the copy.
    ///
    /// # Errors
    /// [`StoreError::Unreachable`] if the copy is too old. The refresh task keeps asking the database, so another
    /// query would not help.
    fn read_copy<T>(&self, read: impl FnOnce(&KeyCopy) -> T) -> Result<T, StoreError> {
        let copy = self.copy.read();
        if copy.read_at.elapsed() < MAX_COPY_AGE { Ok(read(&copy)) } else { Err(error::no_answer()) }
    }

    /// Finds out whether a write to a key with an unknown outcome was committed: whether the key exists and, if given,
    /// has the revocation time. Waits for the lock on the heads, which the transaction of the write holds until it
    /// ends.
    fn resolve_outcome(
        &self,
        written: Result<bool, StoreError>,
        id: &str,
        revoked_at: Option<String>,
    ) -> Result<bool, StoreError> {
        let Err(StoreError::OutcomeUnknown) = written else { return written };
        let end = Instant::now() + MAX_RESOLVE_TIME;
        loop {
            let found = self.stored.0.transaction(async |client| {
                take_heads(client).await?;
                let sql = "SELECT 1 FROM api_keys WHERE id = $1 AND ($2::text IS NULL OR revoked_at = $2)";
                query_opt(client, sql, &[&id, &revoked_at]).await
            });
            match found {
                Ok(Some(_)) => return Ok(true),
                Ok(None) => return Err(StoreError::Unreachable("the connection ended before the commit".into())),
                Err(error) if Instant::now() > end => {
                    tracing::error!(%error, "it cannot be found out whether the write to a key was committed; check with `countersign keys list`");
                    return Err(StoreError::OutcomeUnknown);
                }
                Err(_) => std::thread::sleep(REFRESH_INTERVAL),
            }
        }
    }
}

fn by_hash(keys: Vec<(ApiKey, SecretHash)>) -> HashMap<SecretHash, ApiKey> {
    keys.into_iter().map(|(key, hash)| (hash, key)).collect()
}

impl Credentials for Keys {
    fn insert(&self, key: &ApiKey, hash: &SecretHash) -> Result<(), StoreError> {
        let inserted = self.stored.insert(key, hash);
        self.resolve_outcome(inserted.map(|()| true), &key.id, None)?;
        let mut copy = self.copy.write();
        copy.changed_at = Some(Instant::now());
        copy.keys.insert(*hash, key.clone());
        Ok(())
    }

    fn list(&self) -> Result<Vec<ApiKey>, StoreError> {
        self.stored.list()
    }

    fn active_roles(&self) -> Result<HashMap<String, Role>, StoreError> {
        self.read_copy(|copy| {
            let keys = copy.keys.values().filter(|key| key.revoked_at.is_none());
            keys.map(|key| (key.id.clone(), key.role)).collect()
        })
    }

    fn find(&self, hash: &SecretHash) -> Result<Option<(ApiKey, SecretHash)>, StoreError> {
        let known = self.read_copy(|copy| copy.keys.get_key_value(hash).map(|(hash, key)| (key.clone(), *hash)))?;
        if known.is_some() {
            return Ok(known);
        }
        // The key may have been created after the last refresh.
        let found = self.stored.find(hash)?;
        if let Some((key, hash)) = &found {
            self.copy.write().keys.insert(*hash, key.clone());
        }
        Ok(found)
    }

    fn revoke(&self, id: &str, now: Timestamp) -> Result<bool, StoreError> {
        let done = self.resolve_outcome(self.stored.revoke(id, now), id, Some(now.to_string()))?;
        let mut copy = self.copy.write();
        if done && let Some(key) = copy.keys.values_mut().find(|key| key.id == id) {
            key.revoked_at = Some(now);
            copy.changed_at = Some(Instant::now());
        }
        Ok(done)
    }

    fn touch(&self, key: &ApiKey, now: Timestamp) -> Result<(), StoreError> {
        if !is_worth_noting(key, now) {
            return Ok(());
        }
        let mut copy = self.copy.write();
        if let Some(known) = copy.keys.values_mut().find(|known| known.id == key.id) {
            if !is_worth_noting(known, now) {
                return Ok(());
            }
            known.last_used_at = Some(now);
        }
        drop(copy);
        let (id, connector) = (key.id.clone(), &self.stored.0);
        let recording =
            connector.run_async(error::unknown_outcome, async move |client| keys::touch(client, &id, now).await);
        // The use is recorded in the background, so that no request waits.
        connector.spawn(async move {
            if let Err(error) = recording.await {
                tracing::debug!(%error, "the use of a key could not be recorded");
            }
        });
        Ok(())
    }

    fn put_code(&self, hash: &SecretHash, now: Timestamp, expires_at: Timestamp) -> Result<(), StoreError> {
        self.stored.put_code(hash, now, expires_at)
    }

    fn put_sign_in(&self, sign_in: &SignIn, ended: &[SecretHash]) -> Result<(), StoreError> {
        self.stored.put_sign_in(sign_in, ended)
    }

    fn sign_in(&self, id: &SecretHash) -> Result<Option<SignIn>, StoreError> {
        self.stored.sign_in(id)
    }

    fn sign_ins(&self) -> Result<Vec<SignIn>, StoreError> {
        self.stored.sign_ins()
    }

    fn use_sign_in(&self, id: &SecretHash, at: Timestamp) -> Result<(), StoreError> {
        self.stored.use_sign_in(id, at)
    }

    fn forget_sign_ins(&self, ended: &[SecretHash]) -> Result<(), StoreError> {
        self.stored.forget_sign_ins(ended)
    }

    fn knows_code(&self, hash: &SecretHash) -> Result<bool, StoreError> {
        self.stored.knows_code(hash)
    }

    fn take_code(&self, hash: &SecretHash, now: Timestamp) -> Result<CodeOutcome, StoreError> {
        self.stored.take_code(hash, now)
    }
}
