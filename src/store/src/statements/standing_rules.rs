//! Standing rules: written with the record that tells of them, read as a whole.

use serde_json::Value;

use crate::{
    StoreError,
    sql::{Row, Sql},
    standing_rules, values,
};
use countersign_domain::{
    changes::machine::SYSTEM,
    policy::{StandingRule, StandingVerdict},
};

/// Writes rules within the writer's transaction. Returns what the trail is told of each row; `None` where another node has
/// ended a rule that is not over here yet. Where `uses` alone are written, the rest is as the last node has written it.
pub async fn store<S: Sql>(db: &S, rules: &[StandingRule], uses: bool) -> Result<Option<Vec<Value>>, StoreError> {
    let mut told = Vec::with_capacity(rules.len());
    for rule in rules {
        let sql = format!("SELECT id, body FROM standing_rules WHERE id = ?1{}", S::DIALECT.for_update);
        let known = db.first(&sql, values![&rule.id]).await?.as_ref().map(parse_rule).transpose()?;
        if !uses && !rule.has_ended() && known.as_ref().is_some_and(StandingRule::has_ended) {
            return Ok(None);
        }
        let merged = known.filter(|_| uses).inspect(|known| known.uses.raise_to(rule.uses.get()));
        let rule = merged.as_ref().unwrap_or(rule);
        let (body, row) = standing_rules::row(rule)?;
        let allows = rule.verdict == StandingVerdict::Allow;
        db.execute(S::DIALECT.store_rule, values![&rule.id, rule.has_ended(), &body, allows]).await?;
        told.push(row);
    }
    if !rules.is_empty() {
        let sql = "DELETE FROM standing_rules WHERE \"over\" = ?1 AND no <=
                   (SELECT no FROM standing_rules WHERE \"over\" = ?1 ORDER BY no DESC LIMIT 1 OFFSET ?2)";
        db.execute(sql, values![true, standing_rules::KEPT]).await?;
    }
    Ok(Some(told))
}

/// Reads all rules, oldest first.
pub async fn load<S: Sql>(db: &S) -> Result<Vec<StandingRule>, StoreError> {
    db.rows("SELECT id, body FROM standing_rules ORDER BY no", &[]).await?.iter().map(parse_rule).collect()
}

/// Parses a row of an id and a body.
fn parse_rule<T: serde::de::DeserializeOwned>(row: &Row) -> Result<T, StoreError> {
    let (id, body): (&str, &str) = (row.get(0)?, row.get(1)?);
    serde_json::from_str(body).map_err(|e| StoreError::BadRecord(format!("{id}: {e}")))
}

/// Ends the rules that allow, because nobody knows which were revoked since the backup.
pub async fn end_allowances<S: Sql>(db: &S, at: jiff::Timestamp) -> Result<(), StoreError> {
    let allows = S::DIALECT.rule_allows;
    let sql = format!("SELECT id, body FROM standing_rules WHERE \"over\" = ?1 AND {allows}");
    for row in &db.rows(&sql, values![false]).await? {
        let mut rule: Value = parse_rule(row)?;
        rule["revokedAt"] = Value::from(at.to_string());
        rule["revokedBy"] = Value::from(SYSTEM);
        let sql = "UPDATE standing_rules SET \"over\" = ?3, body = ?2 WHERE id = ?1";
        db.execute(sql, values![row.get::<&str>(0)?, &rule.to_string(), true]).await?;
    }
    Ok(())
}
