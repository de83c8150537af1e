//! Statements on absences, each within the caller's transaction.

use serde_json::json;

use crate::{
    StoreError,
    coverage::{ABSENCE_ENDED, ABSENCE_STARTED, absence_hash},
    sql::{Row, Sql},
    statements::people::to_json,
    values,
};
use countersign_domain::changes::{
    Absence,
    person::{names_match, person_key},
};

fn parse(row: &Row) -> Result<Absence, StoreError> {
    let absence = serde_json::from_str(row.get(0)?);
    absence.map_err(|error| StoreError::BadRecord(format!("an absence: {error}")))
}

pub async fn list<S: Sql>(db: &S) -> Result<Vec<Absence>, StoreError> {
    db.rows("SELECT body FROM absences ORDER BY person", &[]).await?.iter().map(parse).collect()
}

/// Stores an absence in place of an earlier one of the person, with an audit entry.
pub async fn put<S: Sql>(db: &S, absence: &Absence) -> Result<(), StoreError> {
    let (person, body) = (person_key(absence.person.person_name()), to_json(absence)?);
    let sql =
        "INSERT INTO absences (person, body) VALUES (?1, ?2) ON CONFLICT (person) DO UPDATE SET body = excluded.body";
    db.execute(sql, values![&person, &body]).await?;
    let Absence { deputy, until, .. } = absence;
    let (row, key_id) = (absence_hash(&body), &absence.person.key_id);
    let details = json!({ "person": person, "deputy": deputy, "until": until, "keyId": key_id, "row": row });
    db.append_entry(ABSENCE_STARTED, &absence.person.name, &details.to_string()).await
}

/// Ends the absence of a person, with an audit entry. Returns `false` if there is none.
pub async fn end<S: Sql>(db: &S, person: &str, actor: &str) -> Result<bool, StoreError> {
    let person = person_key(person);
    if db.execute("DELETE FROM absences WHERE person = ?1", values![&person]).await? == 0 {
        return Ok(false);
    }
    db.append_entry(ABSENCE_ENDED, actor, &json!({ "person": person }).to_string()).await?;
    Ok(true)
}

/// Ends the absences that a key set, if one is given, and those of a person and of the people whose deputy the person is. Returns
/// the keys of their rows, for the audit entry of the revocation.
pub async fn end_all_of<S: Sql>(db: &S, key_id: Option<&str>, person: Option<&str>) -> Result<Vec<String>, StoreError> {
    let mut ended_rows = Vec::new();
    for absence in list(db).await? {
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

/// Ends all absences, because nobody knows which were ended since the backup.
pub async fn end_all<S: Sql>(db: &S) -> Result<(), StoreError> {
    db.execute("DELETE FROM absences", &[]).await.map(drop)
}
