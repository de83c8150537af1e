//! Standing rules in SQLite: written with the record that tells of them, read as a whole.

use rusqlite::{Connection, params};
use serde_json::Value;

use crate::{StoreError, standing_rules};
use countersign_domain::{changes::machine::SYSTEM, policy::StandingRule};

/// Within the writer's transaction. Answers what the trail is told of each row.
pub(crate) fn store(conn: &Connection, rules: &[StandingRule]) -> Result<Vec<Value>, StoreError> {
    if rules.is_empty() {
        return Ok(Vec::new());
    }
    let mut told = Vec::with_capacity(rules.len());
    let mut statement = conn.prepare_cached(
        "INSERT INTO standing_rules (id, over, body) VALUES (?1, ?2, ?3)
         ON CONFLICT (id) DO UPDATE SET over = excluded.over, body = excluded.body",
    )?;
    for rule in rules {
        let (body, row) = standing_rules::row(rule)?;
        statement.execute(params![rule.id, rule.is_over(), body])?;
        told.push(row);
    }
    conn.prepare_cached(
        "DELETE FROM standing_rules WHERE over = 1 AND no <=
         (SELECT no FROM standing_rules WHERE over = 1 ORDER BY no DESC LIMIT 1 OFFSET ?1)",
    )?
    .execute([standing_rules::KEPT])?;
    Ok(told)
}

/// Oldest first.
pub(crate) fn load(conn: &Connection) -> Result<Vec<StandingRule>, StoreError> {
    let mut statement = conn.prepare("SELECT id, body FROM standing_rules ORDER BY no")?;
    let mut rows = statement.query([])?;
    let mut rules = Vec::new();
    while let Some(row) = rows.next()? {
        let (id, body): (String, String) = (row.get(0)?, row.get(1)?);
        rules.push(serde_json::from_str(&body).map_err(|e| StoreError::BadRecord(format!("{id}: {e}")))?);
    }
    Ok(rules)
}

/// Ends what allows, as in a restored backup, where nobody knows what was revoked since.
pub(crate) fn end_allowances(conn: &Connection, at: jiff::Timestamp) -> Result<(), StoreError> {
    conn.execute(
        "UPDATE standing_rules SET over = 1, body = json_set(body, '$.revokedAt', ?1, '$.revokedBy', ?2)
         WHERE over = 0 AND json_extract(body, '$.verdict') = 'allow'",
        params![at.to_string(), SYSTEM],
    )?;
    Ok(())
}
