//! Keys and codes in PostgreSQL, with a copy of the keys in memory: a request is not to wait for a server elsewhere.

use std::{
    collections::HashMap,
    sync::{Arc, PoisonError, RwLock},
    time::{Duration, Instant},
};

use jiff::Timestamp;

use super::{
    PgConnector, error,
    rows::{one, take_heads},
};
use crate::{
    StoreError,
    keys::{ApiKey, CodeOutcome, Credentials, SignIn, StoredKeys, is_worth_noting},
    sql::{Database as _, REQUEST_TIMEOUT},
    statements::keys,
};
use countersign_domain::principal::{Role, SecretHash};

/// The interval between refreshes of the copy. A revoked key so ends within a second.
const REFRESH_INTERVAL: Duration = Duration::from_millis(200);
/// The age up to which the copy is used. Nobody can revoke a key in an unreachable database, but perhaps only this
/// gateway cannot reach it.
const MAX_COPY_AGE: Duration = Duration::from_secs(10);

/// The time for which the outcome of a write to a key is looked up.
const MAX_LOOK_UP: Duration = Duration::from_secs(20);

/// The keys and codes of a database, with a copy of the keys.
pub(crate) struct Keys {
    stored: StoredKeys<Arc<PgConnector>>,
    copy: Arc<RwLock<Copy>>,
}

#[derive(Default)]
struct Copy {
    keys: HashMap<SecretHash, ApiKey>,
    /// The start of the last read.
    at: Option<Instant>,
    /// When this process last made or revoked a key.
    changed_at: Option<Instant>,
}

impl Copy {
    /// Replaces the copy by keys whose reading began at `at`.
    fn replace(&mut self, mut keys: HashMap<SecretHash, ApiKey>, at: Instant) {
        if self.changed_at.is_some_and(|changed| changed >= at) {
            // They may be older than a change of this process.
            keys.extend(std::mem::take(&mut self.keys));
        }
        // A use that was noted here may not have been stored when they were read.
        for (hash, key) in &mut keys {
            let noted = self.keys.get(hash).and_then(|known| known.last_used_at);
            key.last_used_at = key.last_used_at.max(noted);
        }
        (self.keys, self.at) = (keys, Some(at));
    }
}

impl Keys {
    pub fn open(connector: Arc<PgConnector>) -> Self {
        let copy = Arc::new(RwLock::new(Copy::default()));
        let (kept, reading) = (Arc::downgrade(&copy), Arc::downgrade(&connector));
        connector.spawn(async move {
            loop {
                let Some(connector) = reading.upgrade() else { return };
                let began = Instant::now();
                let reading = connector.ask(error::no_answer, async |client| keys::list(client).await);
                let read =
                    tokio::time::timeout(REQUEST_TIMEOUT, reading).await.unwrap_or_else(|_| Err(error::no_answer()));
                let Some(copy) = kept.upgrade() else { return };
                match read {
                    Ok(keys) => {
                        let keys = keys.into_iter().map(|(key, hash)| (hash, key)).collect();
                        copy.write().unwrap_or_else(PoisonError::into_inner).replace(keys, began);
                    }
                    Err(error) => {
                        tracing::debug!(%error, "the keys could not be read");
                        // The writer finds out when that is over.
                        connector.health.failed(&error);
                    }
                }
                drop(connector);
                drop(copy);
                tokio::time::sleep(REFRESH_INTERVAL).await;
            }
        });
        Self { stored: StoredKeys(connector), copy }
    }

    /// Looks into the copy; returns `None` if there is none yet.
    ///
    /// # Errors
    /// [`StoreError::Unreachable`] where it is too old: the database, which is asked all the while, is not asked once more.
    fn copied<T>(&self, look: impl FnOnce(&Copy) -> T) -> Result<Option<T>, StoreError> {
        let copy = self.copy.read().unwrap_or_else(PoisonError::into_inner);
        match copy.at {
            None => Ok(None),
            Some(at) if at.elapsed() < MAX_COPY_AGE => Ok(Some(look(&copy))),
            Some(_) => Err(error::no_answer()),
        }
    }

    /// Looks up whether a write to a key was committed if nobody has answered: whether the key exists, with that moment
    /// of revocation, if any. Waits for the heads, which the transaction in question holds until it has ended.
    fn look_up(
        &self,
        altered: Result<bool, StoreError>,
        id: &str,
        revoked_at: Option<String>,
    ) -> Result<bool, StoreError> {
        let Err(StoreError::OutcomeUnknown) = altered else { return altered };
        let end = Instant::now() + MAX_LOOK_UP;
        loop {
            let found = self.stored.0.transaction(async |client| {
                take_heads(client).await?;
                let sql = "SELECT 1 FROM api_keys WHERE id = $1 AND ($2::text IS NULL OR revoked_at = $2)";
                one(client, sql, &[&id, &revoked_at]).await
            });
            match found {
                Ok(Some(_)) => return Ok(true),
                Ok(None) => return Err(StoreError::Unreachable("the connection ended before the commit".into())),
                Err(error) if Instant::now() > end => {
                    tracing::error!(%error, "what became of a key cannot be found out");
                    return Err(StoreError::OutcomeUnknown);
                }
                Err(_) => std::thread::sleep(REFRESH_INTERVAL),
            }
        }
    }
}

impl Credentials for Keys {
    fn insert(&self, key: &ApiKey, hash: &SecretHash) -> Result<(), StoreError> {
        let inserted = self.stored.insert(key, hash);
        self.look_up(inserted.map(|()| true), &key.id, None)?;
        let mut copy = self.copy.write().unwrap_or_else(PoisonError::into_inner);
        copy.changed_at = Some(Instant::now());
        copy.keys.insert(*hash, key.clone());
        Ok(())
    }

    fn list(&self) -> Result<Vec<ApiKey>, StoreError> {
        self.stored.list()
    }

    fn active_roles(&self) -> Result<HashMap<String, Role>, StoreError> {
        let held = |copy: &Copy| {
            let keys = copy.keys.values().filter(|key| key.revoked_at.is_none());
            keys.map(|key| (key.id.clone(), key.role)).collect()
        };
        self.copied(held)?.map_or_else(|| self.stored.active_roles(), Ok)
    }

    fn find(&self, hash: &SecretHash) -> Result<Option<(ApiKey, SecretHash)>, StoreError> {
        let known = self.copied(|copy| copy.keys.get_key_value(hash).map(|(hash, key)| (key.clone(), *hash)))?;
        if let Some(Some(known)) = known {
            return Ok(Some(known));
        }
        // It may have been made a moment ago.
        let found = self.stored.find(hash)?;
        if let Some((key, hash)) = &found {
            self.copy.write().unwrap_or_else(PoisonError::into_inner).keys.insert(*hash, key.clone());
        }
        Ok(found)
    }

    fn revoke(&self, id: &str, now: Timestamp) -> Result<bool, StoreError> {
        let done = self.look_up(self.stored.revoke(id, now), id, Some(now.to_string()))?;
        let mut copy = self.copy.write().unwrap_or_else(PoisonError::into_inner);
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
        let mut copy = self.copy.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = copy.keys.values_mut().find(|known| known.id == key.id) {
            if !is_worth_noting(known, now) {
                return Ok(());
            }
            known.last_used_at = Some(now);
        }
        drop(copy);
        let (id, connector) = (key.id.clone(), &self.stored.0);
        let noting = connector.ask(error::unknown, async move |client| keys::touch(client, &id, now).await);
        // No request waits for it.
        connector.spawn(async move {
            if let Err(error) = noting.await {
                tracing::debug!(%error, "the use of a key could not be noted");
            }
        });
        Ok(())
    }

    fn put_code(&self, hash: &SecretHash, now: Timestamp, expires_at: Timestamp) -> Result<(), StoreError> {
        self.stored.put_code(hash, now, expires_at)
    }

    fn put_sign_in(&self, sign_in: &SignIn, gone: &[SecretHash]) -> Result<(), StoreError> {
        self.stored.put_sign_in(sign_in, gone)
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

    fn forget_sign_ins(&self, gone: &[SecretHash]) -> Result<(), StoreError> {
        self.stored.forget_sign_ins(gone)
    }

    fn knows_code(&self, hash: &SecretHash) -> Result<bool, StoreError> {
        self.stored.knows_code(hash)
    }

    fn take_code(&self, hash: &SecretHash, now: Timestamp) -> Result<CodeOutcome, StoreError> {
        self.stored.take_code(hash, now)
    }
}
