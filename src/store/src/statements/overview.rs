//! Reads what the overview shows of the changes. Every statement reads a bounded number of rows by an index.

use jiff::Timestamp;

use crate::{
    OverviewRecords, StoreError, TransitionRecord,
    rows::parse_state,
    sql::{Row, Sql},
    values,
};

/// The maximum number of audit entries that are read.
const MAX_ENTRIES: usize = 20_000;
/// The maximum number of waiting changes that are read.
const MAX_WAITING: usize = 5_000;

/// Reads the transitions since the given time, newest first, and the times since which changes wait, oldest first.
pub async fn overview<S: Sql>(db: &S, since: Timestamp) -> Result<OverviewRecords, StoreError> {
    let sql = "SELECT a.at, a.change_id, a.from_state, a.to_state, c.principal, s.provider, s.tool, s.created_ms
               FROM (SELECT seq, at, change_id, from_state, to_state FROM audit ORDER BY seq DESC LIMIT ?1) a
               LEFT JOIN changes c ON c.id = a.change_id LEFT JOIN change_search s ON s.no = c.no
               ORDER BY a.seq DESC";
    let rows = db.rows(sql, values![MAX_ENTRIES]).await?;
    let mut transitions = Vec::new();
    let mut is_complete = rows.len() < MAX_ENTRIES;
    for row in &rows {
        if row.get::<Timestamp>(0)? < since {
            is_complete = true;
            break;
        }
        // Entries about keys, definitions and rules have no state, and those about pruned changes have no change.
        if row.get::<Option<&str>>(4)?.is_some() && !row.get::<&str>(3)?.is_empty() {
            transitions.push(read_transition(row)?);
        }
    }
    let sql = "SELECT s.created_ms FROM changes c JOIN change_search s ON s.no = c.no
               WHERE c.state IN ('pending', 'stale') ORDER BY c.no LIMIT ?1";
    let waiting = db.rows(sql, values![MAX_WAITING]).await?;
    is_complete &= waiting.len() < MAX_WAITING;
    let waiting_since = waiting.iter().map(|row| row.get(0)).collect::<Result<_, StoreError>>()?;
    Ok(OverviewRecords { transitions, waiting_since, is_complete })
}

fn read_transition(row: &Row) -> Result<TransitionRecord, StoreError> {
    Ok(TransitionRecord {
        at: row.get(0)?,
        change_id: row.get(1)?,
        from: row.get::<Option<&str>>(2)?.map(parse_state).transpose()?,
        to: parse_state(row.get(3)?)?,
        principal: row.get(4)?,
        provider: row.get(5)?,
        tool: row.get(6)?,
        created_at: row.get(7)?,
    })
}
