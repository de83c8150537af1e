//! The audit trail: its next entry, and all of it from the beginning, read from outside, also while its gateway runs.

use std::path::Path;

use rusqlite::{Connection, params};

use super::{
    StoreError,
    open::open_reader,
    rows::{self, signed},
};
use countersign_domain::changes::audit::{AuditEntry, AuditHead, EntryContent};

/// Entries read at a time.
const PAGE: u32 = 500;

/// Appends an entry after `head`, within the caller's transaction; answers the new head.
pub(super) fn append(conn: &Connection, head: AuditHead, content: EntryContent<'_>) -> rusqlite::Result<AuditHead> {
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

/// Hands every entry to `each`, the oldest first, in one snapshot and in bounded memory.
///
/// # Errors
/// Those of the database, and what `each` answers.
pub fn read_audit<E: From<StoreError>>(
    dir: &Path,
    mut each: impl FnMut(&AuditEntry) -> Result<(), E>,
) -> Result<(), E> {
    let conn = open_reader(dir)?;
    let snapshot = conn.unchecked_transaction().map_err(StoreError::from)?;
    let mut after = 0;
    loop {
        // The trail has no gaps: these are the next ones, the newest first.
        let page = rows::audit_page(&snapshot, None, Some(after + u64::from(PAGE) + 1), PAGE as usize)?;
        let Some(last) = page.first().map(|entry| entry.seq).filter(|seq| *seq > after) else { return Ok(()) };
        page.iter().rev().filter(|entry| entry.seq > after).try_for_each(&mut each)?;
        after = last;
    }
}
