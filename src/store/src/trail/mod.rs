//! What is written into the audit trail: its next entry, and what entries tell of rows that are no changes.

pub mod covered;

use rusqlite::{Connection, params};

use crate::rows::signed;
use countersign_domain::changes::audit::{AuditHead, EntryContent};

/// Appends an entry after `head`, within the caller's transaction; answers the new head.
pub(crate) fn append(conn: &Connection, head: AuditHead, content: EntryContent<'_>) -> rusqlite::Result<AuditHead> {
    let hash = content.hash(&head.hash);
    conn.prepare_cached(
        "INSERT INTO audit (seq, at, change_id, event, from_state, to_state, actor, details, prev_hash, hash)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)",
    )?
    .execute(params![
        signed(content.seq),
        content.at,
        content.change_id,
        content.event,
        content.from,
        content.to,
        content.actor,
        content.details,
        head.hash,
        hash,
    ])?;
    Ok(AuditHead { seq: content.seq, hash })
}
