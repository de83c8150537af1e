//! Pruning in SQLite.

use rusqlite::{Connection, params};

use crate::{
    retention::{Deletion, Redaction},
    rows::signed,
};

/// Whether this one was pruned; `false` where it is not as it was looked at.
pub(crate) fn redact(conn: &Connection, redaction: &Redaction) -> rusqlite::Result<bool> {
    let rows = conn
        .prepare_cached(
            "UPDATE changes SET body = ?4, redacted = 1
             WHERE id = ?1 AND version = ?2 AND state = ?3 AND redacted = 0 AND finished_at IS NOT NULL",
        )?
        .execute(params![redaction.id, signed(redaction.version), redaction.state.as_str(), redaction.body])?;
    Ok(rows == 1)
}

pub(crate) fn delete(conn: &Connection, deletion: &Deletion) -> rusqlite::Result<bool> {
    let rows = conn
        .prepare_cached(
            "DELETE FROM changes WHERE id = ?1 AND version = ?2 AND state = ?3 AND finished_at IS NOT NULL",
        )?
        .execute(params![deletion.id, signed(deletion.version), deletion.state.as_str()])?;
    Ok(rows == 1)
}

pub(crate) fn forget_events(conn: &Connection, to: u64) -> rusqlite::Result<usize> {
    conn.prepare_cached("DELETE FROM events WHERE seq <= ?1 AND seq < (SELECT max(seq) FROM events)")?
        .execute([signed(to)])
}
