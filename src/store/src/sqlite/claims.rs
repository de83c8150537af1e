//! Which change has which target, written with the transition that takes it or gives it back.

use rusqlite::{Connection, params};

use crate::{Draft, WriteError, rows::signed};
use countersign_domain::changes::{ChangeState, machine::EventKind};

/// Takes the target of a change that is about to run, before anything else of the transition is written.
///
/// # Errors
/// `Busy` where another change has the target; `Conflict` where the change has another version.
pub(super) fn take(conn: &Connection, draft: &Draft) -> Result<(), WriteError> {
    let (EventKind::Executing, Some(expected)) = (draft.kind, draft.expected) else { return Ok(()) };
    let change = &draft.change;
    let sqlite = |e: rusqlite::Error| WriteError::Store(e.into());
    let ready = "SELECT 1 FROM changes WHERE id = ?1 AND version = ?2";
    let taken = conn
        .prepare_cached(&format!(
            "INSERT INTO claims (change_id, target) SELECT ?1, ?3 WHERE EXISTS ({ready})
             ON CONFLICT (target) DO UPDATE SET change_id = excluded.change_id, taken_ms = NULL WHERE taken_ms <= ?4"
        ))
        .and_then(|mut insert| {
            insert.execute(params![change.id, signed(expected), change.target_hash(), draft.at.as_millisecond()])
        })
        .map_err(sqlite)?;
    if taken == 1 {
        return Ok(());
    }
    let mut ready = conn.prepare_cached(ready).map_err(sqlite)?;
    let is_ready = ready.exists(params![change.id, signed(expected)]).map_err(sqlite)?;
    Err(if is_ready { WriteError::Busy } else { WriteError::Conflict })
}

/// Gives the target back where the change has ended, or notes until when it stays taken.
pub(super) fn give_back(conn: &Connection, draft: &Draft) -> rusqlite::Result<()> {
    let change = &draft.change;
    match (draft.from, change.state, change.target_taken_until) {
        (Some(ChangeState::Executing), ChangeState::OutcomeUnknown, Some(until)) => {
            // Of a change that a version before had claimed there is no row.
            let sql = "INSERT INTO claims (change_id, target, taken_ms) VALUES (?1, ?2, ?3)
                       ON CONFLICT (target) DO UPDATE SET taken_ms = excluded.taken_ms
                       WHERE change_id = excluded.change_id";
            let values = params![change.id, change.target_hash(), until.as_millisecond()];
            conn.prepare_cached(sql)?.execute(values).map(drop)
        }
        (Some(ChangeState::Executing), ChangeState::Executing, _) => Ok(()),
        (Some(ChangeState::Executing | ChangeState::OutcomeUnknown), ..) => {
            conn.prepare_cached("DELETE FROM claims WHERE change_id = ?1")?.execute([&change.id]).map(drop)
        }
        _ => Ok(()),
    }
}
