//! The hourly counts of rules.

use jiff::Timestamp;

use super::StoredKeys;
use crate::{
    StoreError,
    rule_counts::{HourlyRuleCount, RuleCountStore, VerdictTotals},
    sql::{Database, REQUEST_TIMEOUT, Row, Sql as _},
    values,
};

impl<D: Database> RuleCountStore for StoredKeys<D> {
    // A repetition could count calls twice.
    fn add_rule_counts(&self, counts: &[HourlyRuleCount], oldest: Timestamp) -> Result<(), StoreError> {
        let sql = "INSERT INTO rule_counts (hour_ms, rule, allowed, reviewed, denied) VALUES (?1, ?2, ?3, ?4, ?5)
                   ON CONFLICT (hour_ms, rule) DO UPDATE SET
                       allowed = rule_counts.allowed + excluded.allowed,
                       reviewed = rule_counts.reviewed + excluded.reviewed,
                       denied = rule_counts.denied + excluded.denied";
        self.db.transaction(async |db| {
            for HourlyRuleCount { rule, hour, totals } in counts {
                let VerdictTotals { allowed, reviewed, denied } = *totals;
                db.execute(sql, values![hour.as_millisecond(), rule, allowed, reviewed, denied]).await?;
            }
            db.execute("DELETE FROM rule_counts WHERE hour_ms < ?1", values![oldest.as_millisecond()]).await.map(drop)
        })
    }

    fn rule_counts(&self, since: Timestamp) -> Result<Vec<(String, VerdictTotals)>, StoreError> {
        // The sum of integers has another type in PostgreSQL.
        let sql =
            "SELECT rule, CAST(sum(allowed) AS BIGINT), CAST(sum(reviewed) AS BIGINT), CAST(sum(denied) AS BIGINT)
             FROM rule_counts WHERE hour_ms >= ?1 GROUP BY rule";
        let read = |row: &Row| {
            Ok((row.get(0)?, VerdictTotals { allowed: row.get(1)?, reviewed: row.get(2)?, denied: row.get(3)? }))
        };
        self.db.read(REQUEST_TIMEOUT, async |db| {
            let rows = db.rows(sql, values![since.as_millisecond()]).await?;
            let mut totals = rows.iter().map(read).collect::<Result<Vec<(String, _)>, StoreError>>()?;
            totals.sort_by(|(one, _), (other, _)| one.cmp(other));
            Ok(totals)
        })
    }
}
