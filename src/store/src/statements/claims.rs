//! Reads which changes hold which targets.

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
