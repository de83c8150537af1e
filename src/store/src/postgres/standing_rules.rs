//! Standing rules in PostgreSQL: written with the record that tells of them, read as a whole.

use deadpool_postgres::ClientWrapper;
use serde_json::Value;

use super::rows::{execute, one, query};
use crate::{StoreError, standing_rules};
use countersign_domain::{
    changes::machine::SYSTEM,
    policy::{Says, StandingRule},
};

/// Within the writer's transaction. Answers what the trail is told of each row; `None` where another node has ended a rule
/// that is not over here yet. Where `uses` alone are written, the rest is as the last node has written it.
pub(super) async fn store(
    client: &ClientWrapper,
    rules: &[StandingRule],
    uses: bool,
) -> Result<Option<Vec<Value>>, StoreError> {
    let mut told = Vec::with_capacity(rules.len());
    for rule in rules {
        let sql = "SELECT id, body FROM standing_rules WHERE id = $1 FOR UPDATE";
        let known = one(client, sql, &[&rule.id]).await?.as_ref().map(parsed).transpose()?;
        if !uses && !rule.is_over() && known.as_ref().is_some_and(StandingRule::is_over) {
            return Ok(None);
        }
        let merged = known.filter(|_| uses).inspect(|known| known.uses.raise(rule.uses.get()));
        let rule = merged.as_ref().unwrap_or(rule);
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
    Ok(Some(told))
}

/// Oldest first.
pub(super) async fn load(client: &ClientWrapper) -> Result<Vec<StandingRule>, StoreError> {
    let rows = query(client, "SELECT id, body FROM standing_rules ORDER BY no", &[]).await?;
    rows.iter().map(parsed).collect()
}

/// Of its id and its body.
fn parsed(row: &tokio_postgres::Row) -> Result<StandingRule, StoreError> {
    let (id, body): (&str, &str) = (row.get(0), row.get(1));
    serde_json::from_str(body).map_err(|e| StoreError::BadRecord(format!("{id}: {e}")))
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
