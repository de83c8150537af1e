//! Keys and codes in PostgreSQL, with a copy of the keys in memory: a request is not to wait for a server elsewhere.

use std::{
    collections::HashMap,
    sync::{Arc, PoisonError, RwLock},
    time::{Duration, Instant},
};

use jiff::Timestamp;

use super::{
    Ground,
    connect::{LONG, SOON},
    error,
    rows::{self, one, take_heads, transaction},
    trail,
};
use crate::{
    StoreError, covered,
    keys::{ApiKey, CodeOutcome, Credentials, SignIn, is_worth_noting},
    statements::keys,
};
use countersign_domain::principal::{Role, SecretHash};

/// How often the copy is compared with what is stored. With the time that requests believe it, a revoked key counts no more
/// within a second.
const REFRESHED: Duration = Duration::from_millis(200);
/// The copy is not gone by when it is older: nobody could have revoked a key in a database that answers nobody, but this
/// gateway may be the one that does not reach it.
const GOOD: Duration = Duration::from_secs(10);

/// How long it is tried to find out what became of a key.
const SETTLING: Duration = Duration::from_secs(20);

/// How long a code that expired is known as such.
const DAY_MS: i64 = 86_400_000;

/// Keys and codes of one database.
pub(crate) struct Keys {
    ground: Arc<Ground>,
    copy: Arc<RwLock<Copy>>,
}

#[derive(Default)]
struct Copy {
    keys: HashMap<SecretHash, ApiKey>,
    /// When they were read.
    at: Option<Instant>,
}

impl Copy {
    fn replace(&mut self, mut keys: HashMap<SecretHash, ApiKey>, at: Instant) {
        // A use that was noted here may not have been stored when they were read.
        for (hash, key) in &mut keys {
            let noted = self.keys.get(hash).and_then(|known| known.last_used_at);
            key.last_used_at = key.last_used_at.max(noted);
        }
        (self.keys, self.at) = (keys, Some(at));
    }
}

impl Keys {
    pub fn open(ground: Arc<Ground>) -> Self {
        let copy = Arc::new(RwLock::new(Copy::default()));
        let (kept, reading) = (Arc::downgrade(&copy), Arc::downgrade(&ground));
        ground.spawn(async move {
            loop {
                let Some(ground) = reading.upgrade() else { return };
                let began = Instant::now();
                let reading = ground.ask(|client| async move { keys::list(&**client).await });
                let read = tokio::time::timeout(SOON, reading).await.unwrap_or_else(|_| Err(error::silent()));
                let Some(copy) = kept.upgrade() else { return };
                match read {
                    Ok(keys) => {
                        let keys = keys.into_iter().map(|(key, hash)| (hash, key)).collect();
                        copy.write().unwrap_or_else(PoisonError::into_inner).replace(keys, began);
                    }
                    Err(error) => {
                        tracing::debug!(%error, "the keys could not be read");
                        // The writer finds out when that is over.
                        ground.health.failed(&error);
                    }
                }
                drop(ground);
                drop(copy);
                tokio::time::sleep(REFRESHED).await;
            }
        });
        Self { ground, copy }
    }

    /// What the copy says; `None` as long as there is none.
    ///
    /// # Errors
    /// [`StoreError::Unreachable`] where it is too old: the database, which is asked all the while, is not asked once more.
    fn copied<T>(&self, look: impl FnOnce(&Copy) -> T) -> Result<Option<T>, StoreError> {
        let copy = self.copy.read().unwrap_or_else(PoisonError::into_inner);
        match copy.at {
            None => Ok(None),
            Some(at) if at.elapsed() < GOOD => Ok(Some(look(&copy))),
            Some(_) => Err(error::silent()),
        }
    }

    /// What became of the row of a key, where nobody has told: with that moment of revocation, if any, it is as it was to be.
    /// Whoever altered it holds the heads until that has ended.
    fn looked_up(
        &self,
        altered: Result<bool, StoreError>,
        id: &str,
        revoked_at: Option<String>,
    ) -> Result<bool, StoreError> {
        let Err(StoreError::OutcomeUnknown) = altered else { return altered };
        let (ground, wanted) = (Arc::clone(&self.ground), Arc::new((id.to_owned(), revoked_at)));
        let found = self.ground.block(async move {
            let end = Instant::now() + SETTLING;
            loop {
                let wanted = Arc::clone(&wanted);
                let looking = ground.ask(move |client| async move {
                    let sql = "SELECT 1 FROM api_keys WHERE id = $1 AND ($2::text IS NULL OR revoked_at = $2)";
                    let looking = async {
                        take_heads(&client).await?;
                        one(&client, sql, &[&wanted.0, &wanted.1]).await
                    };
                    transaction(&client, looking).await
                });
                match looking.await {
                    Ok(found) => return Ok(found.is_some()),
                    Err(error) if Instant::now() > end => {
                        tracing::error!(%error, "what became of a key cannot be found out");
                        return Err(StoreError::OutcomeUnknown);
                    }
                    Err(_) => tokio::time::sleep(REFRESHED).await,
                }
            }
        })?;
        if found { Ok(true) } else { Err(StoreError::Unreachable("the connection ended before the commit".into())) }
    }

    fn note(&self, hash: SecretHash, key: ApiKey) {
        self.copy.write().unwrap_or_else(PoisonError::into_inner).keys.insert(hash, key);
    }
}

impl Credentials for Keys {
    fn insert(&self, key: &ApiKey, hash: &SecretHash) -> Result<(), StoreError> {
        let (new, secret) = (key.clone(), *hash);
        let inserted = self.ground.write(move |client| async move {
            let inserting = async {
                keys::insert(&**client, &new, &secret).await?;
                trail::tell_of_key(&client, covered::KEY_CREATED, &new.id).await
            };
            transaction(&client, inserting).await
        });
        self.looked_up(inserted.map(|()| true), &key.id, None)?;
        self.note(*hash, key.clone());
        Ok(())
    }

    fn list(&self) -> Result<Vec<ApiKey>, StoreError> {
        let keys = self.ground.wait(|client| async move { keys::list(&**client).await })?;
        Ok(keys.into_iter().map(|(key, _)| key).collect())
    }

    fn held(&self) -> Result<HashMap<String, Role>, StoreError> {
        let held = |copy: &Copy| {
            let keys = copy.keys.values().filter(|key| key.revoked_at.is_none());
            keys.map(|key| (key.id.clone(), key.role)).collect()
        };
        match self.copied(held)? {
            Some(held) => Ok(held),
            None => self.ground.wait_briefly(|client| async move { keys::active_roles(&**client).await }),
        }
    }

    fn find(&self, hash: &SecretHash) -> Result<Option<(ApiKey, SecretHash)>, StoreError> {
        let known = self.copied(|copy| copy.keys.get_key_value(hash).map(|(hash, key)| (key.clone(), *hash)))?;
        if let Some(Some(known)) = known {
            return Ok(Some(known));
        }
        // It may have been made a moment ago.
        let wanted = *hash;
        let found = self.ground.wait_briefly(move |client| async move { keys::find(&**client, &wanted).await })?;
        if let Some((key, hash)) = &found {
            self.note(*hash, key.clone());
        }
        Ok(found)
    }

    fn revoke(&self, id: &str, now: Timestamp) -> Result<bool, StoreError> {
        let key = id.to_owned();
        let done = self.ground.write(move |client| async move {
            let revoking = async {
                let revoked = keys::revoke(&**client, &key, now).await?;
                if revoked {
                    trail::tell_of_key(&client, covered::KEY_REVOKED, &key).await?;
                }
                Ok(revoked)
            };
            transaction(&client, revoking).await
        });
        let done = self.looked_up(done, id, Some(now.to_string()))?;
        let mut copy = self.copy.write().unwrap_or_else(PoisonError::into_inner);
        if done && let Some(key) = copy.keys.values_mut().find(|key| key.id == id) {
            key.revoked_at = Some(now);
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
        let id = key.id.clone();
        let noting = self.ground.ask_to_write(move |client| async move { keys::touch(&**client, &id, now).await });
        // No request waits for it.
        self.ground.spawn(async move {
            if let Err(error) = noting.await {
                tracing::debug!(%error, "the use of a key could not be noted");
            }
        });
        Ok(())
    }

    fn put_code(&self, hash: &SecretHash, now: Timestamp, expires_at: Timestamp) -> Result<(), StoreError> {
        let hash = *hash;
        let (now, expires) = (now.as_millisecond(), expires_at.as_millisecond());
        self.ground.write_or_repeat(LONG, move |client| async move {
            rows::write(&client, "DELETE FROM sign_in_codes WHERE expires_ms < $1", &[&(now - DAY_MS)]).await?;
            let sql = "INSERT INTO sign_in_codes (hash, created_ms, expires_ms) VALUES ($1, $2, $3)
                       ON CONFLICT (hash) DO NOTHING";
            rows::write(&client, sql, &[&hash.as_slice(), &now, &expires]).await.map(drop)
        })
    }

    fn put_sign_in(&self, sign_in: &SignIn, gone: &[SecretHash]) -> Result<(), StoreError> {
        let given = Arc::new((sign_in.clone(), gone.to_vec()));
        self.ground.write_or_repeat(SOON, move |client| {
            let given = Arc::clone(&given);
            async move { transaction(&client, keys::put_sign_in(&**client, &given.0, &given.1)).await }
        })
    }

    fn sign_in(&self, id: &SecretHash) -> Result<Option<SignIn>, StoreError> {
        let id = *id;
        self.ground.wait_briefly(move |client| async move { keys::sign_in(&**client, &id).await })
    }

    fn sign_ins(&self) -> Result<Vec<SignIn>, StoreError> {
        self.ground.wait_briefly(|client| async move { keys::sign_ins(&**client).await })
    }

    fn use_sign_in(&self, id: &SecretHash, at: Timestamp) -> Result<(), StoreError> {
        let id = *id;
        self.ground.write(move |client| async move { keys::use_sign_in(&**client, &id, at).await })
    }

    fn forget_sign_ins(&self, gone: &[SecretHash]) -> Result<(), StoreError> {
        let gone: Arc<[SecretHash]> = gone.into();
        self.ground.write_or_repeat(SOON, move |client| {
            let gone = Arc::clone(&gone);
            async move { transaction(&client, keys::forget_sign_ins(&**client, &gone)).await }
        })
    }

    fn knows_code(&self, hash: &SecretHash) -> Result<bool, StoreError> {
        let hash = *hash;
        self.ground.wait_briefly(move |client| async move { keys::knows_code(&**client, &hash).await })
    }

    fn take_code(&self, hash: &SecretHash, now: Timestamp) -> Result<CodeOutcome, StoreError> {
        let (hash, now) = (*hash, now.as_millisecond());
        // Whoever took it cannot be told by what is stored: it is not taken twice, and perhaps by nobody.
        self.ground.write(move |client| async move {
            let sql = "UPDATE sign_in_codes SET used_ms = $2 WHERE hash = $1 AND used_ms IS NULL AND expires_ms > $2";
            if rows::write(&client, sql, &[&hash.as_slice(), &now]).await? == 1 {
                return Ok(CodeOutcome::Taken);
            }
            let row = one(&client, "SELECT used_ms FROM sign_in_codes WHERE hash = $1", &[&hash.as_slice()]).await?;
            Ok(match row.map(|row| row.get::<_, Option<i64>>(0)) {
                None => CodeOutcome::Unknown,
                Some(Some(_)) => CodeOutcome::AlreadyUsed,
                Some(None) => CodeOutcome::Expired,
            })
        })
    }
}
