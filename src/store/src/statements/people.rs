//! Statements on people of an identity provider and their sessions.

use std::sync::Arc;

use jiff::Timestamp;
use serde_json::json;

use super::{absences, accounts};
use crate::{
    StoreError,
    coverage::PERSON_REVOKED,
    keys::parse_role,
    people::{ProviderSession, StoredPerson},
    sql::{Row, Sql},
    values,
};
use countersign_domain::{
    changes::machine::TERMINAL,
    principal::{Claims, SecretHash},
};

const SELECT: &str = "SELECT name, role, claims, updated_ms, revoked_ms FROM people";

fn read_person(row: &Row) -> Result<StoredPerson, StoreError> {
    Ok(StoredPerson {
        name: row.get(0)?,
        role: row.get::<Option<&str>>(1)?.map(parse_role).transpose()?,
        claims: parse_claims(row.get(2)?)?,
        updated_at: row.get(3)?,
        revoked_at: row.get(4)?,
    })
}

pub fn parse_claims(json: &str) -> Result<Arc<Claims>, StoreError> {
    let claims = serde_json::from_str(json);
    claims.map(Arc::new).map_err(|error| StoreError::BadRecord(format!("claims of a person: {error}")))
}

pub fn parse_session(json: &str) -> Result<ProviderSession, StoreError> {
    serde_json::from_str(json).map_err(|error| StoreError::BadRecord(format!("session of a sign-in: {error}")))
}

pub fn to_json(value: &impl serde::Serialize) -> Result<String, StoreError> {
    serde_json::to_string(value).map_err(|error| StoreError::BadRecord(error.to_string()))
}

pub async fn person<S: Sql>(db: &S, name: &str) -> Result<Option<StoredPerson>, StoreError> {
    db.first(&format!("{SELECT} WHERE name = ?1"), values![name]).await?.as_ref().map(read_person).transpose()
}

pub async fn list<S: Sql>(db: &S) -> Result<Vec<StoredPerson>, StoreError> {
    db.rows(&format!("{SELECT} ORDER BY name"), &[]).await?.iter().map(read_person).collect()
}

/// Stores a person within the caller's transaction. An earlier revocation stays.
pub async fn put<S: Sql>(db: &S, person: &StoredPerson) -> Result<(), StoreError> {
    let sql = "INSERT INTO people (name, role, claims, updated_ms) VALUES (?1, ?2, ?3, ?4)
               ON CONFLICT (name) DO UPDATE SET role = excluded.role, claims = excluded.claims,
                                                updated_ms = excluded.updated_ms";
    let StoredPerson { name, role, claims, updated_at, revoked_at: _ } = person;
    let claims = to_json(&**claims)?;
    let role = role.map(|role| role.as_str());
    db.execute(sql, values![name, role, &claims, updated_at.as_millisecond()]).await.map(drop)
}

/// Stores the renewed session of a sign-in and its person, within the caller's transaction.
pub async fn renew_session<S: Sql>(
    db: &S,
    id: &SecretHash,
    session: &ProviderSession,
    person: Option<&StoredPerson>,
) -> Result<(), StoreError> {
    if let Some(person) = person {
        put(db, person).await?;
        if person.role.is_none() {
            return end_sign_ins(db, &person.name).await.map(drop);
        }
    }
    let session = to_json(session)?;
    db.execute("UPDATE sign_ins SET session = ?2 WHERE id = ?1", values![id, &session]).await.map(drop)
}

/// Deletes the sign-ins of a person within the caller's transaction. Returns their number.
async fn end_sign_ins<S: Sql>(db: &S, name: &str) -> Result<u64, StoreError> {
    db.execute("DELETE FROM sign_ins WHERE name = ?1 AND session IS NOT NULL", values![name]).await
}

pub async fn claim_refresh<S: Sql>(
    db: &S,
    id: &SecretHash,
    last: Timestamp,
    now: Timestamp,
) -> Result<bool, StoreError> {
    let sql = "UPDATE sign_ins SET refreshed_ms = ?3 WHERE id = ?1 AND refreshed_ms = ?2";
    Ok(db.write(sql, values![id, last.as_millisecond(), now.as_millisecond()]).await? == 1)
}

/// Revokes a person, removes their accounts, and ends their absence and those in which they are the deputy, within the caller's
/// transaction. Returns the number of sign-ins that ended.
pub async fn revoke<S: Sql>(db: &S, name: &str, now: Timestamp) -> Result<u64, StoreError> {
    let sql = "INSERT INTO people (name, claims, updated_ms, revoked_ms) VALUES (?1, ?2, ?3, ?3)
               ON CONFLICT (name) DO UPDATE SET revoked_ms = coalesce(people.revoked_ms, excluded.revoked_ms)";
    let nothing = to_json(&Claims { json: "{}".to_owned(), ..Claims::default() })?;
    db.execute(sql, values![name, &nothing, now.as_millisecond()]).await?;
    let ended_count = end_sign_ins(db, name).await?;
    let servers = accounts::remove_all_of(db, name).await?;
    let absences = absences::end_all_of(db, None, Some(name)).await?;
    let details =
        json!({ "person": name, "signIns": ended_count, "accounts": servers, "absences": absences }).to_string();
    db.append_entry(PERSON_REVOKED, TERMINAL, &details).await?;
    Ok(ended_count)
}

/// Records the use of a token within the caller's transaction, and deletes those that have expired.
pub async fn use_token<S: Sql>(
    db: &S,
    hash: &SecretHash,
    now: Timestamp,
    expires_at: Timestamp,
) -> Result<bool, StoreError> {
    db.execute("DELETE FROM used_tokens WHERE expires_ms < ?1", values![now.as_millisecond()]).await?;
    let sql = "INSERT INTO used_tokens (hash, expires_ms) VALUES (?1, ?2) ON CONFLICT (hash) DO NOTHING";
    Ok(db.execute(sql, values![hash, expires_at.as_millisecond()]).await? == 1)
}
