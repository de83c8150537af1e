//! The audit trail from its beginning, read from outside, also while its gateway runs.

use std::path::Path;

use super::{StoreError, open::open_reader, rows};
use crate::changes::audit::AuditEntry;

/// Entries read at a time.
const PAGE: u32 = 500;

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
