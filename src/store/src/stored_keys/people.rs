//! People of an identity provider, their sessions, and the absences of all people.

use std::{slice, sync::Arc};

use jiff::Timestamp;
use serde_json::json;

use super::{StoredKeys, accounts::remove_accounts_of};
use crate::{
    StoreError,
    coverage::{ABSENCE_ENDED, ABSENCE_STARTED, PERSON_REVOKED, absence_hash},
    keys::parse_role,
    people::{People, ProviderSession, StoredPerson},
    sql::{BACKGROUND_TIMEOUT, Database, REQUEST_TIMEOUT, Row, Sql},
    values,
};
use countersign_domain::{
    changes::{
        Absence,
        machine::TERMINAL,
        person::{names_match, person_key},
    },
    principal::{Claims, SecretHash},
};

const SELECT_PEOPLE: &str = "SELECT name, role, claims, updated_ms, revoked_ms FROM people";

fn read_person(row: &Row) -> Result<StoredPerson, StoreError> {
    Ok(StoredPerson {
        name: row.get(0)?,
        role: row.get::<Option<&str>>(1)?.map(parse_role).transpose()?,
        claims: parse_claims(row.get(2)?)?,
        updated_at: row.get(3)?,
        revoked_at: row.get(4)?,
    })
}

pub(super) fn parse_claims(json: &str) -> Result<Arc<Claims>, StoreError> {
    let claims = serde_json::from_str(json);
    claims.map(Arc::new).map_err(|error| StoreError::BadRecord(format!("claims of a person: {error}")))
}

/// Reads all people by name.
pub(crate) async fn list_people<S: Sql>(db: &S) -> Result<Vec<StoredPerson>, StoreError> {
    db.rows(&format!("{SELECT_PEOPLE} ORDER BY name"), &[]).await?.iter().map(read_person).collect()
}

impl<D: Database> People for StoredKeys<D> {
    fn person(&self, name: &str) -> Result<Option<StoredPerson>, StoreError> {
        let sql = format!("{SELECT_PEOPLE} WHERE name = ?1");
        let person = self.db.read(REQUEST_TIMEOUT, async |db| {
            db.first(&sql, values![name]).await?.as_ref().map(read_person).transpose()
        })?;
        if let Some(person) = &person {
            self.update_copy(|copy| copy.put_person(person));
        }
        Ok(person)
    }

    fn people(&self) -> Result<Vec<StoredPerson>, StoreError> {
        self.db.read(BACKGROUND_TIMEOUT, async |db| list_people(db).await)
    }

    fn put_person(&self, person: &StoredPerson) -> Result<(), StoreError> {
        self.db.repeatable_transaction(REQUEST_TIMEOUT, async |db| put_person(db, person).await)?;
        self.update_copy(|copy| copy.put_person(person));
        Ok(())
    }

    fn renew_session(
        &self,
        id: &SecretHash,
        session: &ProviderSession,
        person: Option<&StoredPerson>,
    ) -> Result<(), StoreError> {
        self.db.repeatable_transaction(BACKGROUND_TIMEOUT, async |db| {
            if let Some(person) = person {
                put_person(db, person).await?;
                if person.role.is_none() {
                    return end_sign_ins(db, &person.name).await.map(drop);
                }
            }
            let session = serde_json::to_string(session)?;
            db.execute("UPDATE sign_ins SET session = ?2 WHERE id = ?1", values![id, &session]).await.map(drop)
        })?;
        self.update_copy(|copy| {
            copy.remove_sign_ins(slice::from_ref(id));
            if let Some(person) = person {
                copy.put_person(person);
            }
        });
        Ok(())
    }

    fn claim_refresh(&self, id: &SecretHash, last: Timestamp, now: Timestamp) -> Result<bool, StoreError> {
        let sql = "UPDATE sign_ins SET refreshed_ms = ?3 WHERE id = ?1 AND refreshed_ms = ?2";
        let values = values![id, last.as_millisecond(), now.as_millisecond()];
        let is_claimed = self.db.write(async |db| Ok(db.write(sql, values).await? == 1))?;
        self.update_copy(|copy| copy.remove_sign_ins(slice::from_ref(id)));
        Ok(is_claimed)
    }

    fn revoke_person(&self, name: &str, now: Timestamp) -> Result<u64, StoreError> {
        let sql = "INSERT INTO people (name, claims, updated_ms, revoked_ms) VALUES (?1, ?2, ?3, ?3)
                   ON CONFLICT (name) DO UPDATE SET revoked_ms = coalesce(people.revoked_ms, excluded.revoked_ms)";
        let no_claims = serde_json::to_string(&Claims { json: "{}".to_owned(), ..Claims::default() })?;
        let ended_count = self.db.transaction(async |db| {
            db.execute(sql, values![name, &no_claims, now.as_millisecond()]).await?;
            let ended_count = end_sign_ins(db, name).await?;
            let servers = remove_accounts_of(db, name).await?;
            let absences = end_absences_of(db, None, Some(name)).await?;
            let details = json!({ "person": name, "signIns": ended_count, "accounts": servers, "absences": absences });
            db.append_entry(PERSON_REVOKED, TERMINAL, &details.to_string()).await?;
            Ok(ended_count)
        })?;
        if self.copy.is_some() {
            // Reading the person updates the copy.
            self.person(name)?;
        }
        Ok(ended_count)
    }

    fn absences(&self) -> Result<Vec<Absence>, StoreError> {
        self.db.read(REQUEST_TIMEOUT, async |db| list_absences(db).await)
    }

    fn put_absence(&self, absence: &Absence) -> Result<(), StoreError> {
        let (person, body) = (person_key(absence.person.person_name()), serde_json::to_string(absence)?);
        let sql = "INSERT INTO absences (person, body) VALUES (?1, ?2)
                   ON CONFLICT (person) DO UPDATE SET body = excluded.body";
        let Absence { deputy, until, .. } = absence;
        let (row, key_id) = (absence_hash(&body), &absence.person.key_id);
        let details = json!({ "person": person, "deputy": deputy, "until": until, "keyId": key_id, "row": row });
        self.db.transaction(async |db| {
            db.execute(sql, values![&person, &body]).await?;
            db.append_entry(ABSENCE_STARTED, &absence.person.name, &details.to_string()).await
        })
    }

    fn end_absence(&self, person: &str, actor: &str) -> Result<bool, StoreError> {
        let person = person_key(person);
        self.db.transaction(async |db| {
            if db.execute("DELETE FROM absences WHERE person = ?1", values![&person]).await? == 0 {
                return Ok(false);
            }
            db.append_entry(ABSENCE_ENDED, actor, &json!({ "person": person }).to_string()).await?;
            Ok(true)
        })
    }

    // After a lost answer, the token may count as used. The sign-ins and codes have then ended as well.
    fn use_token(
        &self,
        hash: &SecretHash,
        now: Timestamp,
        expires_at: Timestamp,
        ended: &[SecretHash],
        codes: &[SecretHash],
    ) -> Result<bool, StoreError> {
        let sql = "INSERT INTO used_tokens (hash, expires_ms) VALUES (?1, ?2) ON CONFLICT (hash) DO NOTHING";
        let is_first_use = self.db.transaction(async |db| {
            db.execute("DELETE FROM used_tokens WHERE expires_ms < ?1", values![now.as_millisecond()]).await?;
            let is_first_use = db.execute(sql, values![hash, expires_at.as_millisecond()]).await? == 1;
            if is_first_use {
                forget_sign_ins(db, ended).await?;
                forget_unused_codes(db, codes).await?;
            }
            Ok(is_first_use)
        })?;
        self.update_copy(|copy| copy.remove_sign_ins(ended));
        Ok(is_first_use)
    }
}

/// Stores a person within the caller's transaction. An earlier revocation stays.
async fn put_person<S: Sql>(db: &S, person: &StoredPerson) -> Result<(), StoreError> {
    let sql = "INSERT INTO people (name, role, claims, updated_ms) VALUES (?1, ?2, ?3, ?4)
               ON CONFLICT (name) DO UPDATE SET role = excluded.role, claims = excluded.claims,
                                                updated_ms = excluded.updated_ms";
    let StoredPerson { name, role, claims, updated_at, revoked_at: _ } = person;
    let claims = serde_json::to_string(&**claims)?;
    let role = role.map(|role| role.as_str());
    db.execute(sql, values![name, role, &claims, updated_at.as_millisecond()]).await.map(drop)
}

/// Deletes the sign-ins of a person within the caller's transaction. Returns their number.
async fn end_sign_ins<S: Sql>(db: &S, name: &str) -> Result<u64, StoreError> {
    db.execute("DELETE FROM sign_ins WHERE name = ?1 AND session IS NOT NULL", values![name]).await
}

/// Deletes sign-ins within the caller's transaction.
pub(super) async fn forget_sign_ins<S: Sql>(db: &S, ended: &[SecretHash]) -> Result<(), StoreError> {
    for id in ended {
        db.execute("DELETE FROM sign_ins WHERE id = ?1", values![id]).await?;
    }
    Ok(())
}

/// Deletes those of the codes that were not used, within the caller's transaction. The session of a used one may still be needed.
async fn forget_unused_codes<S: Sql>(db: &S, codes: &[SecretHash]) -> Result<(), StoreError> {
    for hash in codes {
        db.execute("DELETE FROM sign_in_codes WHERE hash = ?1 AND used_ms IS NULL", values![hash]).await?;
    }
    Ok(())
}

async fn list_absences<S: Sql>(db: &S) -> Result<Vec<Absence>, StoreError> {
    let parse = |row: &Row| {
        serde_json::from_str(row.get(0)?).map_err(|error| StoreError::BadRecord(format!("an absence: {error}")))
    };
    db.rows("SELECT body FROM absences ORDER BY person", &[]).await?.iter().map(parse).collect()
}

/// Ends the absences that a key set, if one is given, and those of a person and of the people whose deputy the person is, within the
/// caller's transaction. Returns the keys of their rows, for the audit entry of the revocation.
pub(super) async fn end_absences_of<S: Sql>(
    db: &S,
    key_id: Option<&str>,
    person: Option<&str>,
) -> Result<Vec<String>, StoreError> {
    let mut ended_rows = Vec::new();
    for absence in list_absences(db).await? {
        let of_person =
            |person: &str| names_match(absence.person.person_name(), person) || names_match(&absence.deputy, person);
        if (key_id.is_some() && absence.person.key_id.as_deref() == key_id) || person.is_some_and(of_person) {
            let row = person_key(absence.person.person_name());
            db.execute("DELETE FROM absences WHERE person = ?1", values![&row]).await?;
            ended_rows.push(row);
        }
    }
    Ok(ended_rows)
}
