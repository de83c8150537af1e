//! Statements on standing rules.

use serde_json::Value;

use crate::{
    StoreError,
    coverage::{RowState, rule_details, rule_hash},
    sql::{Row, Sql},
    values,
};
use countersign_domain::{
    changes::machine::SYSTEM,
    policy::{StandingRule, StandingVerdict, standing_rules::UseCounter},
};

/// The maximum ended rules that are kept for display. The audit trail keeps all rules.
pub const MAX_ENDED_RULES: usize = 1000;

/// The event of recording a rule's use count.
pub const RULE_USED: &str = "standing_rule_used";

/// Writes rules, within the writer's transaction. Returns the description of each row for the audit entry, or `None`
/// if another node has ended one of the rules, or marked it as orphaned, meanwhile. The uses of each rule are added to
/// those that are stored, because all nodes count. If `uses_only` is set, nothing else is updated.
pub async fn store<S: Sql>(db: &S, rules: &[StandingRule], uses_only: bool) -> Result<Option<Vec<Value>>, StoreError> {
    let mut descriptions = Vec::with_capacity(rules.len());
    for rule in rules {
        let sql = format!("SELECT id, body FROM standing_rules WHERE id = ?1{}", S::DIALECT.for_update);
        let stored_rule: Option<StandingRule> =
            db.first(&sql, values![&rule.id]).await?.as_ref().map(parse_rule).transpose()?;
        let is_outdated =
            |stored: &StandingRule| stored.has_ended() || (stored.orphaned_at.is_some() && !rule.has_ended());
        if !uses_only && stored_rule.as_ref().is_some_and(is_outdated) {
            return Ok(None);
        }
        let stored_uses = stored_rule.as_ref().map_or(0, |stored| stored.uses.get());
        let rule = StandingRule {
            uses: UseCounter::new(stored_uses.saturating_add(rule.uses.get())),
            ..stored_rule.filter(|_| uses_only).unwrap_or_else(|| rule.clone())
        };
        let body = serde_json::to_string(&rule).map_err(|e| StoreError::BadRecord(format!("{}: {e}", rule.id)))?;
        let (allows, has_ended) = (rule.verdict == StandingVerdict::Allow, rule.has_ended());
        db.execute(S::DIALECT.store_rule, values![&rule.id, has_ended, &body, allows]).await?;
        descriptions.push(rule_details(&rule.id, &RowState { hash: rule_hash(&body), allows, has_ended }));
    }
    if !rules.is_empty() {
        let sql = "DELETE FROM standing_rules WHERE \"over\" = ?1 AND no <=
                   (SELECT no FROM standing_rules WHERE \"over\" = ?1 ORDER BY no DESC LIMIT 1 OFFSET ?2)";
        db.execute(sql, values![true, MAX_ENDED_RULES]).await?;
    }
    Ok(Some(descriptions))
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
