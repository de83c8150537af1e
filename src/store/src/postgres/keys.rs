//! Keys and codes in PostgreSQL, with a copy of the keys in memory: a request is not to wait for a server elsewhere.

use std::{
    collections::HashMap,
    sync::{Arc, PoisonError, RwLock},
    time::{Duration, Instant},
};

use deadpool_postgres::ClientWrapper;
use jiff::Timestamp;
use tokio_postgres::Row;

use super::{
    Ground,
    connect::{LONG, SOON},
    error,
    rows::{self, Value, execute, one, query, stored, take_heads, transaction},
    trail,
};
use crate::{
    StoreError, covered,
    keys::{ApiKey, CodeOutcome, Credentials, SignIn, is_worth_noting, role_of},
    rows::{parse_hash, parse_moment, parse_time},
};
use countersign_domain::principal::{Principal, Role, SecretHash};

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

const COLUMNS: &str = "id, name, role, created_at, last_used_at, revoked_at, owner, hash";

impl Keys {
    pub fn open(ground: Arc<Ground>) -> Self {
        let copy = Arc::new(RwLock::new(Copy::default()));
        let (kept, reading) = (Arc::downgrade(&copy), Arc::downgrade(&ground));
        ground.spawn(async move {
            loop {
                let Some(ground) = reading.upgrade() else { return };
                let began = Instant::now();
                let reading = ground.ask(|client| async move { read_all(&client).await });
                let read = tokio::time::timeout(SOON, reading).await.unwrap_or_else(|_| Err(error::silent()));
                let Some(copy) = kept.upgrade() else { return };
                match read {
                    Ok(keys) => copy.write().unwrap_or_else(PoisonError::into_inner).replace(keys, began),
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
        let (stored_key, secret) = (key.clone(), *hash);
        let inserted = self.ground.write(move |client| async move {
            let key = stored_key;
            let inserting = async {
                execute(
                    &client,
                    "INSERT INTO api_keys (id, name, role, hash, created_at, last_used_at, revoked_at, owner)
                     VALUES ($1, $2, $3, $4, $5, $6, $7, $8)",
                    &[
                        &key.id,
                        &stored(&key.name),
                        &key.role.as_str(),
                        &secret.as_slice(),
                        &key.created_at.to_string(),
                        &key.last_used_at.map(|t| t.to_string()),
                        &key.revoked_at.map(|t| t.to_string()),
                        &key.owner.as_deref().map(stored),
                    ],
                )
                .await?;
                trail::key(&client, covered::KEY_CREATED, &key.id).await
            };
            transaction(&client, inserting).await
        });
        self.looked_up(inserted.map(|()| true), &key.id, None)?;
        self.note(*hash, key.clone());
        Ok(())
    }

    fn list(&self) -> Result<Vec<ApiKey>, StoreError> {
        self.ground.wait(|client| async move {
            let rows = query(&client, &format!("SELECT {COLUMNS} FROM api_keys ORDER BY created_at, id"), &[]).await?;
            rows.iter().map(read_key).collect()
        })
    }

    fn held(&self) -> Result<HashMap<String, Role>, StoreError> {
        let held = |copy: &Copy| {
            let keys = copy.keys.values().filter(|key| key.revoked_at.is_none());
            keys.map(|key| (key.id.clone(), key.role)).collect()
        };
        match self.copied(held)? {
            Some(held) => Ok(held),
            None => self.ground.wait_briefly(|client| async move { held_of(&client).await }),
        }
    }

    fn find(&self, hash: &SecretHash) -> Result<Option<(ApiKey, SecretHash)>, StoreError> {
        let known = self.copied(|copy| copy.keys.get_key_value(hash).map(|(hash, key)| (key.clone(), *hash)))?;
        if let Some(Some(known)) = known {
            return Ok(Some(known));
        }
        // It may have been made a moment ago.
        let wanted = *hash;
        let found = self.ground.wait_briefly(move |client| async move {
            let sql = format!("SELECT {COLUMNS} FROM api_keys WHERE hash = $1");
            let row = one(&client, &sql, &[&wanted.as_slice()]).await?;
            row.map(|row| Ok((read_key(&row)?, parse_hash(row.get(7))?))).transpose()
        })?;
        if let Some((key, hash)) = &found {
            self.note(*hash, key.clone());
        }
        Ok(found)
    }

    fn revoke(&self, id: &str, now: Timestamp) -> Result<bool, StoreError> {
        let (revoked, at) = (id.to_owned(), now.to_string());
        let done = self.ground.write(move |client| async move {
            let revoking = async {
                let sql = "UPDATE api_keys SET revoked_at = $2 WHERE id = $1 AND revoked_at IS NULL";
                let rows = execute(&client, sql, &[&revoked, &at]).await?;
                if rows == 1 {
                    trail::key(&client, covered::KEY_REVOKED, &revoked).await?;
                }
                Ok(rows == 1)
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
        let (id, at) = (key.id.clone(), now.to_string());
        let noting = self.ground.ask_to_write(move |client| async move {
            rows::write(&client, "UPDATE api_keys SET last_used_at = $2 WHERE id = $1", &[&id, &at]).await
        });
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
        let given = Arc::new((sign_in.clone(), blobs(gone)));
        self.ground.write_or_repeat(SOON, move |client| {
            let given = Arc::clone(&given);
            async move {
                let (SignIn { id, cookie, principal, key, last_used }, gone) = &*given;
                let sql = "WITH gone AS (DELETE FROM sign_ins WHERE id = ANY($9))
                           INSERT INTO sign_ins (id, cookie, key, name, role, key_id, owner, last_used_ms)
                           VALUES ($1, $2, $3, $4, $5, $6, $7, $8) ON CONFLICT (id) DO NOTHING";
                let values: &[Value<'_>] = &[
                    &id.as_slice(),
                    &cookie.as_slice(),
                    &key.as_ref().map(<[u8; 32]>::as_slice),
                    &stored(&principal.name),
                    &principal.role.as_str(),
                    &principal.key_id,
                    &principal.owner.as_deref().map(stored),
                    &last_used.as_millisecond(),
                    gone,
                ];
                rows::write(&client, sql, values).await.map(drop)
            }
        })
    }

    fn sign_in(&self, id: &SecretHash) -> Result<Option<SignIn>, StoreError> {
        let id = *id;
        self.ground.wait_briefly(move |client| async move {
            let row = one(&client, &format!("{SIGN_INS} WHERE id = $1"), &[&id.as_slice()]).await?;
            row.as_ref().map(read_sign_in).transpose()
        })
    }

    fn sign_ins(&self) -> Result<Vec<SignIn>, StoreError> {
        self.ground.wait_briefly(|client| async move {
            query(&client, SIGN_INS, &[]).await?.iter().map(read_sign_in).collect()
        })
    }

    fn use_sign_in(&self, id: &SecretHash, at: Timestamp) -> Result<(), StoreError> {
        let (id, at) = (*id, at.as_millisecond());
        self.ground.write(move |client| async move {
            let sql = "UPDATE sign_ins SET last_used_ms = $2 WHERE id = $1";
            rows::write(&client, sql, &[&id.as_slice(), &at]).await.map(drop)
        })
    }

    fn forget_sign_ins(&self, gone: &[SecretHash]) -> Result<(), StoreError> {
        let gone = Arc::new(blobs(gone));
        self.ground.write_or_repeat(SOON, move |client| {
            let gone = Arc::clone(&gone);
            async move { rows::write(&client, "DELETE FROM sign_ins WHERE id = ANY($1)", &[&*gone]).await.map(drop) }
        })
    }

    fn knows_code(&self, hash: &SecretHash) -> Result<bool, StoreError> {
        let hash = *hash;
        self.ground.wait_briefly(move |client| async move {
            Ok(one(&client, "SELECT 1 FROM sign_in_codes WHERE hash = $1", &[&hash.as_slice()]).await?.is_some())
        })
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

const SIGN_INS: &str = "SELECT id, cookie, key, name, role, key_id, owner, last_used_ms FROM sign_ins";

fn blobs(hashes: &[SecretHash]) -> Vec<Vec<u8>> {
    hashes.iter().map(|hash| hash.to_vec()).collect()
}

fn read_sign_in(row: &Row) -> Result<SignIn, StoreError> {
    Ok(SignIn {
        id: parse_hash(row.get(0))?,
        cookie: parse_hash(row.get(1))?,
        key: row.get::<_, Option<&[u8]>>(2).map(parse_hash).transpose()?,
        principal: Arc::new(Principal {
            name: row.get(3),
            role: role_of(row.get(4))?,
            key_id: row.get(5),
            owner: row.get(6),
        }),
        last_used: parse_moment(row.get(7))?,
    })
}

async fn read_all(client: &ClientWrapper) -> Result<HashMap<SecretHash, ApiKey>, StoreError> {
    let rows = query(client, &format!("SELECT {COLUMNS} FROM api_keys"), &[]).await?;
    rows.iter().map(|row| Ok((parse_hash(row.get(7))?, read_key(row)?))).collect()
}

/// See [`Credentials::held`].
pub(super) async fn held_of(client: &ClientWrapper) -> Result<HashMap<String, Role>, StoreError> {
    let rows = query(client, "SELECT id, role FROM api_keys WHERE revoked_at IS NULL", &[]).await?;
    rows.iter().map(|row| Ok((row.get(0), role_of(row.get(1))?))).collect()
}

fn read_key(row: &Row) -> Result<ApiKey, StoreError> {
    let optional = |i: usize| row.get::<_, Option<&str>>(i).map(parse_time).transpose();
    Ok(ApiKey {
        id: row.get(0),
        name: row.get(1),
        role: role_of(row.get(2))?,
        created_at: parse_time(row.get(3))?,
        last_used_at: optional(4)?,
        revoked_at: optional(5)?,
        owner: row.get(6),
    })
}
