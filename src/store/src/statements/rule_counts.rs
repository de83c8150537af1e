//! Statements on the hourly counts of rules.

use jiff::Timestamp;

use crate::{
    StoreError,
    rule_counts::{HourlyRuleCount, VerdictTotals},
    sql::Sql,
    values,
};

/// Adds counts within the caller's transaction.
pub async fn add<S: Sql>(db: &S, counts: &[HourlyRuleCount], oldest: Timestamp) -> Result<(), StoreError> {
    let sql = "INSERT INTO rule_counts (hour_ms, rule, allowed, reviewed, denied) VALUES (?1, ?2, ?3, ?4, ?5)
               ON CONFLICT (hour_ms, rule) DO UPDATE SET
                   allowed = rule_counts.allowed + excluded.allowed,
                   reviewed = rule_counts.reviewed + excluded.reviewed,
                   denied = rule_counts.denied + excluded.denied";
    for HourlyRuleCount { rule, hour, totals } in counts {
        let VerdictTotals { allowed, reviewed, denied } = *totals;
        db.execute(sql, values![hour.as_millisecond(), rule, allowed, reviewed, denied]).await?;
    }
    db.execute("DELETE FROM rule_counts WHERE hour_ms < ?1", values![oldest.as_millisecond()]).await?;
    Ok(())
}

pub async fn totals<S: Sql>(db: &S, since: Timestamp) -> Result<Vec<(String, VerdictTotals)>, StoreError> {
    // The sum of integers has another type in PostgreSQL.
    let sql = "SELECT rule, CAST(sum(allowed) AS BIGINT), CAST(sum(reviewed) AS BIGINT), CAST(sum(denied) AS BIGINT)
               FROM rule_counts WHERE hour_ms >= ?1 GROUP BY rule";
    let rows = db.rows(sql, values![since.as_millisecond()]).await?;
    let mut totals = Vec::with_capacity(rows.len());
    for row in &rows {
        let counts = VerdictTotals { allowed: row.get(1)?, reviewed: row.get(2)?, denied: row.get(3)? };
        totals.push((row.get::<String>(0)?, counts));
    }
    totals.sort_by(|(one, _), (other, _)| one.cmp(other));
    Ok(totals)
}
