//! Reads the proposals among which bundles are found. Every statement reads a bounded number of rows by an index.

use jiff::{SignedDuration, Timestamp};

use crate::{
    StoreError, StoredProposal,
    rows::parse_state,
    sql::{Row, Sql},
    values,
};

/// The maximum number of proposals that are read, the newest ones.
const MAX_PROPOSALS: usize = 20_000;
/// The time before the oldest waiting proposal from which proposals are read, so that a bundle keeps its first change
/// after that was decided.
const LOOK_BACK: SignedDuration = SignedDuration::from_hours(24);

/// Reads the proposals since one day before the oldest that waits for a decision, oldest first, without the steps of plans.
pub async fn proposals<S: Sql>(db: &S) -> Result<Vec<StoredProposal>, StoreError> {
    let sql = "SELECT s.created_ms FROM changes c JOIN change_search s ON s.no = c.no
               WHERE c.state IN ('pending', 'stale') AND c.plan_id IS NULL ORDER BY c.no LIMIT 1";
    let oldest = db.rows(sql, &[]).await?;
    let Some(oldest) = oldest.first() else { return Ok(Vec::new()) };
    let since = oldest.get::<Timestamp>(0)? - LOOK_BACK;
    let sql = format!(
        "SELECT c.id, c.state, c.principal, s.provider, s.tool, s.created_ms
         FROM change_search s JOIN changes c ON c.no = s.no
         WHERE {} AND c.plan_id IS NULL ORDER BY s.no DESC LIMIT ?2",
        S::DIALECT.created_since
    );
    let read = |row: &Row| -> Result<StoredProposal, StoreError> {
        Ok(StoredProposal {
            id: row.get(0)?,
            state: parse_state(row.get(1)?)?,
            principal: row.get(2)?,
            provider: row.get(3)?,
            tool: row.get(4)?,
            at: row.get(5)?,
        })
    };
    let rows = db.rows(&sql, values![since.as_millisecond(), MAX_PROPOSALS]).await?;
    rows.iter().rev().map(read).collect()
}
