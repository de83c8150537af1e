//! Reads what is verified, within the caller's snapshot and in bounded memory.

use super::trail::ENTRY;
use crate::{
    Verified, VerifyError,
    covered::Rows,
    sql::{Row, Sql},
    values,
    verify::{Entries, FoundChange, LastEntry},
};
use countersign_domain::changes::audit::{AuditHead, EntryContent};

/// Entries and changes that are read at a time.
const ENTRIES: u32 = 500;
const CHANGES: u32 = 16;

/// Reads everything once. `rows` are those that the trail tells of, and `told` is whether it covers all of them.
///
/// # Errors
/// [`VerifyError::Broken`] at the first thing that does not hold.
pub async fn verify<S: Sql>(
    db: &S,
    expected: Option<AuditHead>,
    rows: &Rows,
    told: Option<&str>,
) -> Result<Verified, VerifyError> {
    let mut entries = Entries::new(expected);
    // A row may have been added with whatever number.
    let mut after = Some(i64::MIN);
    while let Some(last) = after {
        let sql = format!("SELECT {ENTRY} FROM audit a WHERE a.seq > ?1 ORDER BY a.seq LIMIT ?2");
        let page = db.rows(&sql, values![last, ENTRIES]).await?;
        page.iter().try_for_each(|row| add_entry(&mut entries, row))?;
        after = page.last().map(|row| row.get(0)).transpose()?;
    }
    let mut changes = entries.finish()?;
    let sql = "SELECT c.no, c.id, c.state, c.version, c.body, c.principal, c.idempotency_key, c.expires_at,
                      a.seq, a.to_state, a.details
               FROM changes c LEFT JOIN audit a ON a.seq = (
                   SELECT seq FROM audit WHERE change_id = c.id AND to_state <> '' ORDER BY seq DESC LIMIT 1)
               WHERE c.no > ?1 ORDER BY c.no LIMIT ?2";
    let mut after = Some(i64::MIN);
    while let Some(last) = after {
        let page = db.rows(sql, values![last, CHANGES]).await?;
        for row in &page {
            let found = FoundChange {
                id: row.get(1)?,
                state: row.get(2)?,
                version: row.get(3)?,
                body: row.get(4)?,
                principal: row.get(5)?,
                idempotency_key: row.get(6)?,
                expires_at: row.get(7)?,
            };
            let entry = match row.get(8)? {
                Some(seq) => Some(LastEntry { seq, to: row.get(9)?, details: row.get(10)? }),
                None => None,
            };
            changes.change(found, entry.as_ref())?;
        }
        after = page.last().map(|row| row.get(0)).transpose()?;
    }
    let gone = "SELECT change_id, seq FROM audit WHERE event = 'created'
         AND NOT EXISTS (SELECT 1 FROM changes WHERE changes.id = audit.change_id)
         AND NOT EXISTS (SELECT 1 FROM audit AS later WHERE later.change_id = audit.change_id AND later.event = 'deleted')
         LIMIT 1";
    let gone = match db.first(gone, &[]).await? {
        Some(row) => Some((row.get(0)?, row.get(1)?)),
        None => None,
    };
    Ok(changes.finish(gone, rows, told)?)
}

fn add_entry(entries: &mut Entries, row: &Row) -> Result<(), VerifyError> {
    let content = EntryContent {
        seq: row.get(0)?,
        at: row.get(1)?,
        change_id: row.get(2)?,
        event: row.get(3)?,
        from: row.get(4)?,
        to: row.get(5)?,
        actor: row.get(6)?,
        details: row.get(7)?,
    };
    Ok(entries.entry(&content, row.get(8)?, row.get(9)?)?)
}
