//! Keys, sign-ins and codes.

use std::{slice, sync::Arc};

use jiff::Timestamp;

use super::{
    StoredKeys,
    accounts::remove_accounts_of,
    people::{end_absences_of, forget_sign_ins, list_people, parse_claims},
};
use crate::{
    StoreError,
    coverage::{KEY_CREATED, KEY_REVOKED},
    keys::{ApiKey, CodeOutcome, Credentials, SignIn, StoredCode, is_touch_due, parse_role},
    people::{Holders, ProviderSession},
    sql::{BACKGROUND_TIMEOUT, Database, REQUEST_TIMEOUT, Row, Sql},
    statements::{
        facts::{self, TOKEN_KEY_FACT},
        trail::{EndedRights, key_details},
    },
    values,
};
use countersign_domain::{
    changes::person::names_match,
    principal::{Principal, Role, SecretHash, is_subject_name},
};

const DAY_MS: i64 = 86_400_000;

const SELECT_KEYS: &str =
    "SELECT id, name, role, created_at, last_used_at, revoked_at, owner, hash, created_by FROM api_keys";
/// A sign-in with a session has the role and the claims that its person has now, and is left out if they have no role. One
/// with a key has the creators of that key.
const SELECT_SIGN_INS: &str = "SELECT s.id, s.cookie, s.key, s.name, coalesce(p.role, s.role), s.key_id, s.owner,
    s.last_used_ms, s.session, s.refreshed_ms, p.claims, k.created_by
    FROM sign_ins s LEFT JOIN api_keys k ON k.hash = s.key LEFT JOIN people p ON p.name = s.name AND s.session IS NOT NULL
    WHERE (s.session IS NULL OR (p.role IS NOT NULL AND p.revoked_ms IS NULL))";

fn read_key(row: &Row) -> Result<(ApiKey, SecretHash), StoreError> {
    let key = ApiKey {
        id: row.get(0)?,
        name: row.get(1)?,
        role: parse_role(row.get(2)?)?,
        created_at: row.get(3)?,
        last_used_at: row.get(4)?,
        revoked_at: row.get(5)?,
        owner: row.get(6)?,
        created_by: parse_names(row.get(8)?)?,
    };
    Ok((key, row.get(7)?))
}

/// Parses the names of the creators of a key.
fn parse_names(text: Option<&str>) -> Result<Vec<String>, StoreError> {
    let Some(text) = text else { return Ok(Vec::new()) };
    serde_json::from_str(text).map_err(|error| StoreError::BadRecord(format!("creators: {error}")))
}

fn parse_session(json: &str) -> Result<ProviderSession, StoreError> {
    serde_json::from_str(json).map_err(|error| StoreError::BadRecord(format!("session of a sign-in: {error}")))
}

fn read_sign_in(row: &Row) -> Result<SignIn, StoreError> {
    let mut principal = Principal {
        name: row.get(3)?,
        role: parse_role(row.get(4)?)?,
        key_id: row.get(5)?,
        owner: row.get(6)?,
        claims: row.get::<Option<&str>>(10)?.map(parse_claims).transpose()?,
        key_creators: Vec::new(),
    };
    if principal.role.may_decide() {
        principal.key_creators = parse_names(row.get(11)?)?;
    }
    let session = row.get::<Option<&str>>(8)?.map(parse_session).transpose()?;
    if let Some(session) = &session {
        session.add_authentication_to(&mut principal);
    }
    Ok(SignIn {
        id: row.get(0)?,
        cookie: row.get(1)?,
        key: row.get(2)?,
        principal: Arc::new(principal),
        last_used: row.get(7)?,
        session,
        refreshed_at: row.get(9)?,
    })
}

/// Reads all keys, oldest first.
pub(crate) async fn list_keys<S: Sql>(db: &S) -> Result<Vec<(ApiKey, SecretHash)>, StoreError> {
    db.rows(&format!("{SELECT_KEYS} ORDER BY created_at, id"), &[]).await?.iter().map(read_key).collect()
}

/// Reads the holders of the keys that are not revoked, and the people with a role.
pub(crate) async fn list_holders<S: Sql>(db: &S) -> Result<Holders, StoreError> {
    let rows = db.rows("SELECT id, role FROM api_keys WHERE revoked_at IS NULL", &[]).await?;
    let roles: Vec<(String, Role)> =
        rows.iter().map(|row| Ok((row.get(0)?, parse_role(row.get(1)?)?))).collect::<Result<_, StoreError>>()?;
    Ok(Holders::new(roles.into_iter(), list_people(db).await?.iter()))
}

/// Returns `true` if the key exists and, if given, has the revocation time.
async fn has_key<S: Sql>(db: &S, id: &str, revoked_at: Option<&str>) -> Result<bool, StoreError> {
    let sql = "SELECT 1 FROM api_keys WHERE id = ?1 AND (CAST(?2 AS TEXT) IS NULL OR revoked_at = ?2)";
    Ok(db.first(sql, values![id, revoked_at]).await?.is_some())
}

impl<D: Database> Credentials for StoredKeys<D> {
    fn insert_by(&self, key: &ApiKey, hash: &SecretHash, actor: &str) -> Result<(), StoreError> {
        let sql = "INSERT INTO api_keys (id, name, role, hash, created_at, last_used_at, revoked_at, owner, created_by)
                   VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)";
        let [created, used, revoked] =
            [Some(key.created_at), key.last_used_at, key.revoked_at].map(|at| at.map(|at| at.to_string()));
        let creators = (!key.created_by.is_empty()).then(|| serde_json::to_string(&key.created_by)).transpose()?;
        self.db.confirmed_transaction(
            async |db| {
                let values = values![
                    &key.id,
                    &key.name,
                    key.role.as_str(),
                    hash,
                    created.as_ref(),
                    used.as_ref(),
                    revoked.as_ref(),
                    key.owner.as_ref(),
                    creators.as_ref(),
                ];
                db.execute(sql, values).await?;
                db.append_entry(KEY_CREATED, actor, &key_details(db, &key.id, &EndedRights::default()).await?).await?;
                Ok(true)
            },
            async |db| has_key(db, &key.id, None).await,
        )?;
        self.update_copy(|copy| copy.put_key(*hash, key.clone()));
        Ok(())
    }

    fn list(&self) -> Result<Vec<ApiKey>, StoreError> {
        let keys = self.db.read(BACKGROUND_TIMEOUT, async |db| list_keys(db).await)?;
        Ok(keys.into_iter().map(|(key, _)| key).collect())
    }

    fn holders(&self) -> Result<Holders, StoreError> {
        self.copy.as_ref().map_or_else(|| self.newest_holders(), |copy| copy.holders())
    }

    fn newest_holders(&self) -> Result<Holders, StoreError> {
        self.db.read(REQUEST_TIMEOUT, async |db| list_holders(db).await)
    }

    fn find(&self, hash: &SecretHash) -> Result<Option<(ApiKey, SecretHash)>, StoreError> {
        if let Some(copy) = &self.copy
            && let Some(found) = copy.find_key(hash)?
        {
            return Ok(Some(found));
        }
        let sql = format!("{SELECT_KEYS} WHERE hash = ?1");
        let found = self.db.read(REQUEST_TIMEOUT, async |db| {
            db.first(&sql, values![hash]).await?.as_ref().map(read_key).transpose()
        })?;
        if let Some((key, hash)) = &found {
            self.update_copy(|copy| copy.add_key(*hash, key.clone()));
        }
        Ok(found)
    }

    fn revoke_by(&self, id: &str, now: Timestamp, actor: &str) -> Result<bool, StoreError> {
        let revoked_at = now.to_string();
        let is_revoked = self.db.confirmed_transaction(
            async |db| {
                let Some(ended) = revoke_key(db, id, now).await? else { return Ok(false) };
                db.append_entry(KEY_REVOKED, actor, &key_details(db, id, &ended).await?).await?;
                Ok(true)
            },
            async |db| has_key(db, id, Some(&revoked_at)).await,
        )?;
        if is_revoked {
            self.update_copy(|copy| copy.revoke_key(id, now));
        }
        Ok(is_revoked)
    }

    fn touch(&self, key: &ApiKey, now: Timestamp) -> Result<(), StoreError> {
        if !is_touch_due(key, now) || self.copy.as_ref().is_some_and(|copy| !copy.touch_key(&key.id, now)) {
            return Ok(());
        }
        let sql = "UPDATE api_keys SET last_used_at = ?2 WHERE id = ?1";
        let (id, at) = (key.id.clone(), now.to_string());
        // A thread per key would wait for a server that has stopped answering.
        self.db.write_in_background(async move |db| db.write(sql, values![&id, &at]).await.map(drop))
    }

    fn put_code(
        &self,
        hash: &SecretHash,
        session: Option<&ProviderSession>,
        now: Timestamp,
        expires_at: Timestamp,
    ) -> Result<(), StoreError> {
        let sql = "INSERT INTO sign_in_codes (hash, created_ms, expires_ms, session) VALUES (?1, ?2, ?3, ?4)
                   ON CONFLICT (hash) DO NOTHING";
        let now = now.as_millisecond();
        let session = session.map(serde_json::to_string).transpose()?;
        self.db.repeatable_transaction(BACKGROUND_TIMEOUT, async |db| {
            db.execute("DELETE FROM sign_in_codes WHERE expires_ms < ?1", values![now - DAY_MS]).await?;
            db.execute(sql, values![hash, now, expires_at.as_millisecond(), session.as_ref()]).await.map(drop)
        })
    }

    fn code(&self, hash: &SecretHash) -> Result<Option<StoredCode>, StoreError> {
        let sql = "SELECT session, expires_ms, used_ms FROM sign_in_codes WHERE hash = ?1";
        self.db.read(REQUEST_TIMEOUT, async |db| {
            let Some(row) = db.first(sql, values![hash]).await? else { return Ok(None) };
            Ok(Some(StoredCode {
                session: row.get::<Option<&str>>(0)?.map(parse_session).transpose()?,
                expires_at: row.get(1)?,
                is_used: row.get::<Option<i64>>(2)?.is_some(),
            }))
        })
    }

    fn code_sessions(&self, now: Timestamp) -> Result<Vec<(SecretHash, ProviderSession)>, StoreError> {
        let sql = "SELECT hash, session FROM sign_in_codes
                   WHERE session IS NOT NULL AND used_ms IS NULL AND expires_ms > ?1";
        self.db.read(REQUEST_TIMEOUT, async |db| {
            let rows = db.rows(sql, values![now.as_millisecond()]).await?;
            rows.iter().map(|row| Ok((row.get(0)?, parse_session(row.get(1)?)?))).collect()
        })
    }

    fn put_sign_in(&self, sign_in: &SignIn, ended: &[SecretHash]) -> Result<(), StoreError> {
        let SignIn { id, cookie, principal, key, last_used, session, refreshed_at } = sign_in;
        let sql =
            "INSERT INTO sign_ins (id, cookie, key, name, role, key_id, owner, last_used_ms, session, refreshed_ms)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10) ON CONFLICT (id) DO NOTHING";
        let session = session.as_ref().map(serde_json::to_string).transpose()?;
        self.db.repeatable_transaction(REQUEST_TIMEOUT, async |db| {
            forget_sign_ins(db, ended).await?;
            let values = values![
                id,
                cookie,
                key.as_ref(),
                &principal.name,
                principal.role.as_str(),
                principal.key_id.as_ref(),
                principal.owner.as_ref(),
                last_used.as_millisecond(),
                session.as_ref(),
                refreshed_at.map(Timestamp::as_millisecond),
            ];
            db.execute(sql, values).await.map(drop)
        })?;
        self.update_copy(|copy| copy.remove_sign_ins(ended));
        Ok(())
    }

    fn sign_in(&self, id: &SecretHash) -> Result<Option<SignIn>, StoreError> {
        if let Some(copy) = &self.copy
            && let Some(found) = copy.find_sign_in(id)?
        {
            return Ok(Some(found));
        }
        // A sign-in without a known version may be newer than the last refresh, and is not copied yet.
        let version = self.copy.as_ref().and_then(|copy| copy.sign_in_version(id));
        let sql = format!("{SELECT_SIGN_INS} AND s.id = ?1");
        let found = self.db.read(REQUEST_TIMEOUT, async |db| {
            db.first(&sql, values![id]).await?.as_ref().map(read_sign_in).transpose()
        })?;
        if let (Some(sign_in), Some(version)) = (&found, version) {
            self.update_copy(|copy| copy.add_sign_in(version, sign_in.clone()));
        }
        Ok(found)
    }

    fn sign_ins(&self) -> Result<Vec<SignIn>, StoreError> {
        self.db
            .read(REQUEST_TIMEOUT, async |db| db.rows(SELECT_SIGN_INS, &[]).await?.iter().map(read_sign_in).collect())
    }

    fn use_sign_in(&self, id: &SecretHash, at: Timestamp) -> Result<(), StoreError> {
        let sql = "UPDATE sign_ins SET last_used_ms = ?2 WHERE id = ?1";
        self.db.write(async |db| db.write(sql, values![id, at.as_millisecond()]).await.map(drop))?;
        self.update_copy(|copy| copy.remove_sign_ins(slice::from_ref(id)));
        Ok(())
    }

    fn forget_sign_ins(&self, ended: &[SecretHash]) -> Result<(), StoreError> {
        self.db.repeatable_transaction(REQUEST_TIMEOUT, async |db| forget_sign_ins(db, ended).await)?;
        self.update_copy(|copy| copy.remove_sign_ins(ended));
        Ok(())
    }

    // The row does not record who took the code. After a lost answer the code is used up, and perhaps nobody got it.
    fn take_code(&self, hash: &SecretHash, now: Timestamp) -> Result<CodeOutcome, StoreError> {
        let sql = "UPDATE sign_in_codes SET used_ms = ?2 WHERE hash = ?1 AND used_ms IS NULL AND expires_ms > ?2";
        self.db.write(async |db| {
            if db.write(sql, values![hash, now.as_millisecond()]).await? == 1 {
                return Ok(CodeOutcome::Accepted);
            }
            let row = db.first("SELECT used_ms FROM sign_in_codes WHERE hash = ?1", values![hash]).await?;
            Ok(match row.map(|row| row.get::<Option<i64>>(0)).transpose()? {
                None => CodeOutcome::Unknown,
                Some(Some(_)) => CodeOutcome::AlreadyUsed,
                Some(None) => CodeOutcome::Expired,
            })
        })
    }

    fn ensure_token_key(&self, new: &str) -> Result<String, StoreError> {
        self.db.write(async |db| facts::ensure(db, TOKEN_KEY_FACT, new).await)
    }

    fn replace_token_key(&self, new: &str) -> Result<(), StoreError> {
        self.db.repeatable_transaction(BACKGROUND_TIMEOUT, async |db| facts::set(db, TOKEN_KEY_FACT, Some(new)).await)
    }
}

/// Revokes a key, within the transaction of the audit entry, and ends the absences that it set. If it was the last one of its
/// owner, it also removes their accounts, and ends the absences in which they are the deputy. Returns `None` if there is no active
/// key with the id. People of an identity provider need no key, so these rights stay.
async fn revoke_key<S: Sql>(db: &S, id: &str, at: Timestamp) -> Result<Option<EndedRights>, StoreError> {
    // The rows are locked, so that one of two keys that are revoked at the same time is the last one.
    let sql =
        format!("SELECT coalesce(owner, name), id, revoked_at FROM api_keys ORDER BY id{}", S::DIALECT.for_update);
    let keys = db.rows(&sql, &[]).await?;
    let sql = "UPDATE api_keys SET revoked_at = ?2 WHERE id = ?1 AND revoked_at IS NULL";
    if db.execute(sql, values![id, &at.to_string()]).await? == 0 {
        return Ok(None);
    }
    let (mut owner, mut other_owners) = (None, Vec::new());
    for key in &keys {
        let (name, key_id, revoked_at): (&str, &str, Option<&str>) = (key.get(0)?, key.get(1)?, key.get(2)?);
        if key_id == id {
            owner = Some(name);
        } else if revoked_at.is_none() {
            other_owners.push(name);
        }
    }
    let is_last = |owner: &&str| !other_owners.iter().any(|other| names_match(other, owner));
    let owner = owner.filter(|owner| is_last(owner) && !is_subject_name(owner));
    let accounts = match owner {
        Some(owner) => remove_accounts_of(db, owner).await?,
        None => Vec::new(),
    };
    Ok(Some(EndedRights { accounts, absences: end_absences_of(db, Some(id), owner).await? }))
}
