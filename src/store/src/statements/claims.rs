//! Reads which changes hold which targets, and states when a step of a plan may be claimed.

use jiff::Timestamp;

use crate::{
    Occupant, StoreError,
    sql::{Parameters, Row, Sql},
};

/// Returns the changes that hold the given targets. A change with an unknown outcome holds its target only until its
/// time is over.
pub async fn occupants<S: Sql>(db: &S, targets: &[String], now: Timestamp) -> Result<Vec<Occupant>, StoreError> {
    if targets.is_empty() {
        return Ok(Vec::new());
    }
    let mut parameters = Parameters::default();
    let taken_until = S::DIALECT.target_taken_ms;
    let sql = format!(
        "SELECT target, change_id, {taken_until} FROM claims
         WHERE target IN {} AND coalesce({taken_until} > {}, true)",
        parameters.add_all(targets),
        parameters.add(now.as_millisecond()),
    );
    let read = |row: &Row| Ok(Occupant { target: row.get(0)?, change: row.get(1)?, until: row.get(2)? });
    db.rows(&sql, &parameters.values()).await?.iter().map(read).collect()
}

/// Returns the condition under which a step of a plan may run:
///
/// - All earlier steps are applied.
/// - The plan is complete.
/// - The step and all later ones are approved for good.
///
/// `steps` is a `FROM` clause with a condition, in which the steps of the plan are called `s`. `index` and `now_ms` are the
/// parameters with the position of the step and the present time in milliseconds.
pub fn plan_condition(steps: &str, index: &str, now_ms: &str) -> String {
    format!(
        "(SELECT count(*) {steps} AND s.plan_index < {index} AND s.state = 'applied') = {index}
         AND (SELECT count(*) {steps}) = (SELECT max(s.plan_index) + 1 {steps} AND s.plan_last)
         AND NOT EXISTS (SELECT 1 {steps} AND s.plan_index >= {index}
                         AND (s.state <> 'approved' OR coalesce(s.run_after_ms, 0) > {now_ms}))"
    )
}
