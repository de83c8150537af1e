//! Claims of targets. Each is written together with the transition that takes or frees the target.

use rusqlite::Connection;

use super::sql::{execute, rows};
use crate::{StoreError, TransitionDraft, WriteError, sql::Value, statements::claims::plan_condition, values};
use countersign_domain::changes::{ChangeState, machine::EventKind};

/// Takes the target of a change that becomes executing. Called before the rest of the transition is written.
///
/// # Errors
/// [`WriteError::Busy`] if another change holds the target, or if the plan of the change does not let it run yet;
/// [`WriteError::Conflict`] if the change has another version.
pub(super) fn take_target(conn: &Connection, draft: &TransitionDraft) -> Result<(), WriteError> {
    let (EventKind::Executing, Some(expected)) = (draft.kind, draft.expected) else { return Ok(()) };
    let change = &draft.change;
    let ready = "SELECT 1 FROM changes WHERE id = ?1 AND version = ?2";
    let target = change.target_hash();
    let mut parameters = values![&change.id, expected, &target, draft.at.as_millisecond()].to_vec();
    let mut plan_allows = String::new();
    if let Some(plan) = &change.plan {
        plan_allows = format!(" AND {}", plan_condition("FROM changes s WHERE s.plan_id = ?5", "?6", "?4"));
        parameters.extend([Value::from(&plan.id), Value::from(plan.index)]);
    }
    let sql = format!(
        "INSERT INTO claims (change_id, target) SELECT ?1, ?3 WHERE EXISTS ({ready}){plan_allows}
         ON CONFLICT (target) DO UPDATE SET change_id = excluded.change_id, taken_ms = NULL WHERE taken_ms <= ?4"
    );
    if execute(conn, &sql, &parameters)? == 1 {
        return Ok(());
    }
    let is_ready = !rows(conn, ready, values![&change.id, expected])?.is_empty();
    Err(if is_ready { WriteError::Busy } else { WriteError::Conflict })
}

/// Checks that no step of the plan runs, if a person undoes the approval of a step. Its grace period may have ended between the
/// request and this transaction, and then the approval has let that step run.
///
/// # Errors
/// [`WriteError::Busy`] if a step runs.
pub(super) fn check_undo(conn: &Connection, draft: &TransitionDraft) -> Result<(), WriteError> {
    let Some(plan) = draft.plan_of_undone_step() else { return Ok(()) };
    let running = "SELECT 1 FROM changes WHERE plan_id = ?1 AND state = 'executing'";
    if rows(conn, running, values![&plan.id])?.is_empty() { Ok(()) } else { Err(WriteError::Busy) }
}

/// Frees the target if the change has ended, or records the time until which the target stays taken.
pub(super) fn release_target(conn: &Connection, draft: &TransitionDraft) -> Result<(), StoreError> {
    let change = &draft.change;
    match (draft.from, change.state, change.target_taken_until) {
        (Some(ChangeState::Executing), ChangeState::OutcomeUnknown, Some(until)) => {
            // A change that an older version claimed has no row.
            let sql = "INSERT INTO claims (change_id, target, taken_ms) VALUES (?1, ?2, ?3)
                       ON CONFLICT (target) DO UPDATE SET taken_ms = excluded.taken_ms
                       WHERE change_id = excluded.change_id";
            execute(conn, sql, values![&change.id, &change.target_hash(), until.as_millisecond()])?;
        }
        (Some(ChangeState::Executing), ChangeState::Executing, _) => {}
        (Some(ChangeState::Executing | ChangeState::OutcomeUnknown), ..) => {
            execute(conn, "DELETE FROM claims WHERE change_id = ?1", values![&change.id])?;
        }
        _ => {}
    }
    Ok(())
}
