//! Statements on keys, sign-ins and codes.

use std::sync::Arc;

use jiff::Timestamp;

use super::{
    absences, accounts,
    people::{self, parse_claims, parse_session, to_json},
};
use crate::{
    StoreError,
    keys::{ApiKey, CodeOutcome, SignIn, StoredCode, parse_role},
    people::{Holders, ProviderSession},
    sql::{Row, Sql},
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
        created_by: read_names(row.get(8)?)?,
    };
    Ok((key, row.get(7)?))
}

/// Reads the names of the creators of a key.
fn read_names(text: Option<&str>) -> Result<Vec<String>, StoreError> {
    let read = |text| serde_json::from_str(text).map_err(|error| StoreError::BadRecord(format!("creators: {error}")));
    text.map_or_else(|| Ok(Vec::new()), read)
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
        principal.key_creators = read_names(row.get(11)?)?;
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

/// Inserts a key, within the transaction of the audit entry.
pub async fn insert<S: Sql>(db: &S, key: &ApiKey, hash: &SecretHash) -> Result<(), StoreError> {
    let sql = "INSERT INTO api_keys (id, name, role, hash, created_at, last_used_at, revoked_at, owner, created_by)
               VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)";
    let [created, used, revoked] =
        [Some(key.created_at), key.last_used_at, key.revoked_at].map(|at| at.map(|at| at.to_string()));
    let (role, owner) = (key.role.as_str(), key.owner.as_ref());
    let creators = (!key.created_by.is_empty()).then(|| to_json(&key.created_by)).transpose()?;
    let values = values![
        &key.id,
        &key.name,
        role,
        hash,
        created.as_ref(),
        used.as_ref(),
        revoked.as_ref(),
        owner,
        creators.as_ref(),
    ];
    db.execute(sql, values).await.map(drop)
}

/// The accounts and absences that ended with a key.
#[derive(Debug, Default)]
pub struct EndedRights {
    /// The servers of the removed accounts.
    pub accounts: Vec<String>,
    /// The people whose absences ended.
    pub absences: Vec<String>,
}

/// Revokes a key, within the transaction of the audit entry, and ends the absences that it set. If it was the last one of its
/// owner, it also removes their accounts, and ends the absences in which they are the deputy. Returns `None` if there is no active
/// key with the id. People of an identity provider need no key, so these rights stay.
pub async fn revoke<S: Sql>(db: &S, id: &str, at: Timestamp) -> Result<Option<EndedRights>, StoreError> {
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
        Some(owner) => accounts::remove_all_of(db, owner).await?,
        None => Vec::new(),
    };
    Ok(Some(EndedRights { accounts, absences: absences::end_all_of(db, Some(id), owner).await? }))
}

pub async fn touch<S: Sql>(db: &S, id: &str, at: Timestamp) -> Result<(), StoreError> {
    db.write("UPDATE api_keys SET last_used_at = ?2 WHERE id = ?1", values![id, &at.to_string()]).await.map(drop)
}

/// Reads all keys, oldest first.
pub async fn list<S: Sql>(db: &S) -> Result<Vec<(ApiKey, SecretHash)>, StoreError> {
    db.rows(&format!("{SELECT_KEYS} ORDER BY created_at, id"), &[]).await?.iter().map(read_key).collect()
}

pub async fn find<S: Sql>(db: &S, hash: &SecretHash) -> Result<Option<(ApiKey, SecretHash)>, StoreError> {
    db.first(&format!("{SELECT_KEYS} WHERE hash = ?1"), values![hash]).await?.as_ref().map(read_key).transpose()
}

/// Reads the holders of the keys that are not revoked, and the people with a role.
pub async fn holders<S: Sql>(db: &S) -> Result<Holders, StoreError> {
    let rows = db.rows("SELECT id, role FROM api_keys WHERE revoked_at IS NULL", &[]).await?;
    let roles: Vec<(String, Role)> =
        rows.iter().map(|row| Ok((row.get(0)?, parse_role(row.get(1)?)?))).collect::<Result<_, StoreError>>()?;
    Ok(Holders::new(roles.into_iter(), people::list(db).await?.iter()))
}

/// Stores a sign-in and deletes the `ended` ones, within the caller's transaction.
pub async fn put_sign_in<S: Sql>(db: &S, sign_in: &SignIn, ended: &[SecretHash]) -> Result<(), StoreError> {
    forget_sign_ins(db, ended).await?;
    let SignIn { id, cookie, principal, key, last_used, session, refreshed_at } = sign_in;
    let sql = "INSERT INTO sign_ins (id, cookie, key, name, role, key_id, owner, last_used_ms, session, refreshed_ms)
               VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10) ON CONFLICT (id) DO NOTHING";
    let session = session.as_ref().map(to_json).transpose()?;
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
}

pub async fn sign_in<S: Sql>(db: &S, id: &SecretHash) -> Result<Option<SignIn>, StoreError> {
    db.first(&format!("{SELECT_SIGN_INS} AND s.id = ?1"), values![id]).await?.as_ref().map(read_sign_in).transpose()
}

pub async fn sign_ins<S: Sql>(db: &S) -> Result<Vec<SignIn>, StoreError> {
    db.rows(SELECT_SIGN_INS, &[]).await?.iter().map(read_sign_in).collect()
}

pub async fn use_sign_in<S: Sql>(db: &S, id: &SecretHash, at: Timestamp) -> Result<(), StoreError> {
    let sql = "UPDATE sign_ins SET last_used_ms = ?2 WHERE id = ?1";
    db.write(sql, values![id, at.as_millisecond()]).await.map(drop)
}

/// Deletes sign-ins within the caller's transaction.
pub async fn forget_sign_ins<S: Sql>(db: &S, ended: &[SecretHash]) -> Result<(), StoreError> {
    for id in ended {
        db.execute("DELETE FROM sign_ins WHERE id = ?1", values![id]).await?;
    }
    Ok(())
}

/// Stores a code, and deletes codes that expired more than a day ago.
pub async fn put_code<S: Sql>(
    db: &S,
    hash: &SecretHash,
    session: Option<&ProviderSession>,
    now: Timestamp,
    expires_at: Timestamp,
) -> Result<(), StoreError> {
    let now = now.as_millisecond();
    db.execute("DELETE FROM sign_in_codes WHERE expires_ms < ?1", values![now - DAY_MS]).await?;
    let sql = "INSERT INTO sign_in_codes (hash, created_ms, expires_ms, session) VALUES (?1, ?2, ?3, ?4)
               ON CONFLICT (hash) DO NOTHING";
    let session = session.map(to_json).transpose()?;
    db.execute(sql, values![hash, now, expires_at.as_millisecond(), session.as_ref()]).await.map(drop)
}

pub async fn code<S: Sql>(db: &S, hash: &SecretHash) -> Result<Option<StoredCode>, StoreError> {
    let row = db.first("SELECT session, expires_ms, used_ms FROM sign_in_codes WHERE hash = ?1", values![hash]).await?;
    let parse_code = |row: &Row| -> Result<StoredCode, StoreError> {
        Ok(StoredCode {
            session: row.get::<Option<&str>>(0)?.map(parse_session).transpose()?,
            expires_at: row.get(1)?,
            is_used: row.get::<Option<i64>>(2)?.is_some(),
        })
    };
    row.as_ref().map(parse_code).transpose()
}

/// Reads the sessions of the codes that can still be used.
pub async fn code_sessions<S: Sql>(db: &S, now: Timestamp) -> Result<Vec<(SecretHash, ProviderSession)>, StoreError> {
    let sql = "SELECT hash, session FROM sign_in_codes
               WHERE session IS NOT NULL AND used_ms IS NULL AND expires_ms > ?1";
    let rows = db.rows(sql, values![now.as_millisecond()]).await?;
    rows.iter().map(|row| Ok((row.get(0)?, parse_session(row.get(1)?)?))).collect()
}

/// Deletes those of the codes that were not used, within the caller's transaction. The session of a used one may still be needed.
pub async fn forget_unused_codes<S: Sql>(db: &S, codes: &[SecretHash]) -> Result<(), StoreError> {
    for hash in codes {
        db.execute("DELETE FROM sign_in_codes WHERE hash = ?1 AND used_ms IS NULL", values![hash]).await?;
    }
    Ok(())
}

pub async fn take_code<S: Sql>(db: &S, hash: &SecretHash, now: Timestamp) -> Result<CodeOutcome, StoreError> {
    let sql = "UPDATE sign_in_codes SET used_ms = ?2 WHERE hash = ?1 AND used_ms IS NULL AND expires_ms > ?2";
    if db.write(sql, values![hash, now.as_millisecond()]).await? == 1 {
        return Ok(CodeOutcome::Accepted);
    }
    let row = db.first("SELECT used_ms FROM sign_in_codes WHERE hash = ?1", values![hash]).await?;
    Ok(match row.map(|row| row.get::<Option<i64>>(0)).transpose()? {
        None => CodeOutcome::Unknown,
        Some(Some(_)) => CodeOutcome::AlreadyUsed,
        Some(None) => CodeOutcome::Expired,
    })
}
