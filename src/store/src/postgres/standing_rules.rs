//! Standing rules in PostgreSQL: written with the record that tells of them, read as a whole.

use deadpool_postgres::ClientWrapper;
use serde_json::Value;

use super::rows::{execute, query};
use crate::{StoreError, standing_rules};
use countersign_domain::{
    changes::machine::SYSTEM,
    policy::{Says, StandingRule},
};

/// Within the writer's transaction. Answers what the trail is told of each row.
pub(super) async fn store(client: &ClientWrapper, rules: &[StandingRule]) -> Result<Vec<Value>, StoreError> {
    let mut told = Vec::with_capacity(rules.len());
    for rule in rules {
        let (body, row) = standing_rules::row(rule)?;
        execute(
            client,
            "INSERT INTO standing_rules (id, \"over\", allows, body) VALUES ($1, $2, $3, $4)
             ON CONFLICT (id) DO UPDATE SET \"over\" = excluded.\"over\", allows = excluded.allows, body = excluded.body",
            &[&rule.id, &rule.is_over(), &(rule.verdict == Says::Allow), &body],
        )
        .await?;
        told.push(row);
    }
    if !rules.is_empty() {
        execute(
            client,
            "DELETE FROM standing_rules WHERE \"over\" AND no <=
             (SELECT no FROM standing_rules WHERE \"over\" ORDER BY no DESC LIMIT 1 OFFSET $1)",
            &[&standing_rules::KEPT],
        )
        .await?;
    }
    Ok(told)
}

/// Oldest first.
pub(super) async fn load(client: &ClientWrapper) -> Result<Vec<StandingRule>, StoreError> {
    let rows = query(client, "SELECT id, body FROM standing_rules ORDER BY no", &[]).await?;
    let read = |row: &tokio_postgres::Row| {
        let (id, body): (&str, &str) = (row.get(0), row.get(1));
        serde_json::from_str(body).map_err(|e| StoreError::BadRecord(format!("{id}: {e}")))
    };
    rows.iter().map(read).collect()
}

/// Ends what allows, as in a restored backup, where nobody knows what was revoked since.
pub(super) async fn end_allowances(client: &ClientWrapper, at: jiff::Timestamp) -> Result<(), StoreError> {
    let rows = query(client, "SELECT id, body FROM standing_rules WHERE NOT \"over\" AND allows", &[]).await?;
    for row in &rows {
        let (id, body): (&str, &str) = (row.get(0), row.get(1));
        let mut rule: Value = serde_json::from_str(body).map_err(|e| StoreError::BadRecord(format!("{id}: {e}")))?;
        rule["revokedAt"] = Value::from(at.to_string());
        rule["revokedBy"] = Value::from(SYSTEM);
        let sql = "UPDATE standing_rules SET \"over\" = true, body = $2 WHERE id = $1";
        execute(client, sql, &[&id, &rule.to_string()]).await?;
    }
    Ok(())
}
