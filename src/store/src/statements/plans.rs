//! Reads the steps of plans, which are changes.

use std::sync::Arc;

use crate::{
    StoreError,
    rows::{parse_change, parse_state},
    sql::{Row, Sql},
    values,
};
use countersign_domain::changes::{Change, plan::StepState};

/// Reads the bodies of the steps. The caller parses them with [`parse_bodies`], possibly on another thread.
pub async fn steps<S: Sql>(db: &S, plan: &str) -> Result<Vec<Row>, StoreError> {
    db.rows("SELECT body FROM changes WHERE plan_id = ?1 ORDER BY plan_index", values![plan]).await
}

pub fn parse_bodies(rows: Vec<Row>) -> Result<Vec<Arc<Change>>, StoreError> {
    rows.iter().map(|row| parse_change(row.get(0)?)).collect()
}

pub async fn step_states<S: Sql>(db: &S, plan: &str) -> Result<Vec<StepState>, StoreError> {
    let sql = "SELECT id, version, state, plan_index, plan_last, run_after_ms FROM changes
               WHERE plan_id = ?1 ORDER BY plan_index";
    let read = |row: &Row| -> Result<StepState, StoreError> {
        Ok(StepState {
            change: row.get(0)?,
            version: row.get(1)?,
            state: parse_state(row.get(2)?)?,
            index: row.get(3)?,
            last: row.get(4)?,
            run_after: row.get(5)?,
        })
    };
    db.rows(sql, values![plan]).await?.iter().map(read).collect()
}

pub async fn list_open<S: Sql>(db: &S) -> Result<Vec<String>, StoreError> {
    let sql = "SELECT DISTINCT plan_id FROM changes
               WHERE state IN ('pending', 'stale', 'approved') AND plan_id IS NOT NULL ORDER BY plan_id";
    db.rows(sql, &[]).await?.iter().map(|row| row.get(0)).collect()
}
