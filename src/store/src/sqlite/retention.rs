//! Pruning in SQLite.

use jiff::Timestamp;
use rusqlite::{Connection, OptionalExtension as _, Rows, params};

use crate::{
    StoreError,
    moving::{self, COMING, GONE},
    retention::{Deletion, MAX_BYTES, MAX_CHANGES, MAX_EVENTS, Old, OldBefore, Redaction},
    rows::{parse_change, parse_state, parse_time, signed, unsigned},
};

/// The oldest of what is old.
pub(crate) fn old(conn: &Connection, before: OldBefore) -> Result<Old, StoreError> {
    let mut old = Old::default();
    if let Some(at) = before.contents {
        let mut statement = conn.prepare_cached(
            "SELECT body FROM changes
             WHERE redacted = 0 AND finished_at IS NOT NULL AND finished_at < ?1 ORDER BY finished_at LIMIT ?2",
        )?;
        take_contents(statement.query(params![at.as_second(), signed(MAX_CHANGES as u64)])?, &mut old)?;
    }
    if let Some((at, least)) = before.large {
        // Of what came to nothing. The number is that of the index; it is used only where the text says the same.
        let mut statement = conn.prepare_cached(
            "SELECT body FROM changes
             WHERE redacted = 0 AND finished_at IS NOT NULL AND octet_length(body) > 65536 AND finished_at < ?1
               AND octet_length(body) > ?2 AND state IN ('rejected', 'withdrawn', 'expired', 'failed')
             ORDER BY finished_at LIMIT ?3",
        )?;
        let found = params![at.as_second(), signed(least as u64), signed(MAX_CHANGES as u64)];
        take_contents(statement.query(found)?, &mut old)?;
    }
    if let Some(at) = before.changes {
        // Once for each value of `redacted`, within its part of the index.
        for redacted in [1, 0] {
            let left = MAX_CHANGES.saturating_sub(old.changes.len());
            let mut statement = conn.prepare_cached(
                "SELECT id, version, state FROM changes
                 WHERE redacted = ?1 AND finished_at IS NOT NULL AND finished_at < ?2 ORDER BY finished_at LIMIT ?3",
            )?;
            let mut rows = statement.query(params![redacted, at.as_second(), signed(left as u64)])?;
            while let Some(row) = rows.next()? {
                let state = parse_state(row.get_ref(2)?.as_str().unwrap_or_default())?;
                old.changes.push((row.get(0)?, unsigned(row.get(1)?)?, state));
            }
        }
        old.more |= old.changes.len() == MAX_CHANGES;
        // What goes as a whole need not lose its contents first.
        old.contents.retain(|change| !old.changes.iter().any(|(id, ..)| *id == change.id));
    }
    if let Some(at) = before.events {
        let mut statement = conn.prepare_cached(
            "SELECT seq, json_extract(data, '$.at') FROM events
             WHERE seq < (SELECT max(seq) FROM events) ORDER BY seq LIMIT ?1",
        )?;
        let mut rows = statement.query([signed(MAX_EVENTS as u64)])?;
        let mut count = 0;
        while let Some(row) = rows.next()? {
            // An event without a time is as old as the one after it.
            let told: Option<String> = row.get(1)?;
            if told.as_deref().map(parse_time).transpose()?.is_some_and(|told| told >= at) {
                break;
            }
            old.events_to = unsigned(row.get(0)?)?;
            count += 1;
        }
        old.more |= count == MAX_EVENTS;
    }
    Ok(old)
}

/// Adds those of at most [`MAX_CHANGES`] rows that are not among them yet, as far as one transaction has room.
fn take_contents(mut rows: Rows<'_>, old: &mut Old) -> Result<(), StoreError> {
    let (mut bytes, mut found) = (0, 0);
    while let Some(row) = rows.next()? {
        let body = row.get_ref(0)?.as_str().unwrap_or_default();
        bytes += body.len();
        if (bytes > MAX_BYTES || old.contents.len() >= MAX_CHANGES) && !old.contents.is_empty() {
            old.more = true;
            return Ok(());
        }
        let change = parse_change(body)?;
        found += 1;
        if !old.contents.iter().any(|known| known.id == change.id) {
            old.contents.push(change);
        }
    }
    old.more |= found == MAX_CHANGES;
    Ok(())
}

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

/// When the backup was taken that this store was restored from, until a gateway has started on it.
pub(crate) fn backup_of(conn: &Connection) -> Result<Option<Timestamp>, StoreError> {
    fact(conn, "backup_of")?.as_deref().map(parse_time).transpose()
}

/// Refuses a store that was moved, or is not whole yet.
pub(crate) fn check_moved(conn: &Connection) -> Result<(), StoreError> {
    moving::check(fact(conn, COMING)?.as_deref(), fact(conn, GONE)?.as_deref())
}

/// Something that is noted of the store as a whole.
pub(crate) fn fact(conn: &Connection, name: &str) -> rusqlite::Result<Option<String>> {
    let mut statement = conn.prepare_cached("SELECT value FROM facts WHERE name = ?1")?;
    statement.query_row([name], |row| row.get(0)).optional()
}
