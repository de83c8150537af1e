//! Pruning in PostgreSQL.

use std::collections::HashSet;

use deadpool_postgres::ClientWrapper;
use jiff::Timestamp;

use super::rows::{Value, execute, one, query};
use crate::{
    StoreError,
    moving::{self, COMING, GONE},
    retention::{Deletion, MAX_BYTES, MAX_CHANGES, MAX_EVENTS, Old, OldBefore, Redaction},
    rows::{parse_change, parse_state, parse_time, signed, unsigned},
};

/// The oldest of what is old.
pub(super) async fn old(client: &ClientWrapper, before: OldBefore) -> Result<Old, StoreError> {
    let mut old = Old::default();
    let most = signed(MAX_CHANGES as u64);
    if let Some(at) = before.contents {
        let sql = "SELECT no, octet_length(body) FROM changes
                   WHERE NOT redacted AND finished_at IS NOT NULL AND finished_at < $1 ORDER BY finished_at, no LIMIT $2";
        take_contents(client, sql, &[&at.as_second(), &most], &mut old).await?;
    }
    if let Some((at, least)) = before.large {
        // Of what came to nothing. The number is that of the index; it is used only where the text says the same.
        let sql = "SELECT no, octet_length(body) FROM changes
                   WHERE NOT redacted AND finished_at IS NOT NULL AND octet_length(body) > 65536 AND finished_at < $1
                     AND octet_length(body) > $2 AND state IN ('rejected', 'withdrawn', 'expired', 'failed')
                   ORDER BY finished_at, no LIMIT $3";
        let least = i32::try_from(least).unwrap_or(i32::MAX);
        take_contents(client, sql, &[&at.as_second(), &least, &most], &mut old).await?;
    }
    if let Some(at) = before.changes {
        // Once for each value of `redacted`, within its part of the index.
        for redacted in [true, false] {
            let left = signed(MAX_CHANGES.saturating_sub(old.changes.len()) as u64);
            let sql = "SELECT id, version, state FROM changes
                       WHERE redacted = $1 AND finished_at IS NOT NULL AND finished_at < $2 ORDER BY finished_at, no LIMIT $3";
            for row in query(client, sql, &[&redacted, &at.as_second(), &left]).await? {
                old.changes.push((row.get(0), unsigned(row.get(1))?, parse_state(row.get(2))?));
            }
        }
        old.more |= old.changes.len() == MAX_CHANGES;
        // What goes as a whole need not lose its contents first.
        let going: HashSet<&str> = old.changes.iter().map(|(id, ..)| id.as_str()).collect();
        old.contents.retain(|change| !going.contains(change.id.as_str()));
    }
    if let Some(at) = before.events {
        let sql = "SELECT seq, at_ms FROM events WHERE seq < (SELECT event FROM heads) ORDER BY seq LIMIT $1";
        let rows = query(client, sql, &[&signed(MAX_EVENTS as u64)]).await?;
        let gone: Vec<i64> =
            rows.iter().take_while(|row| row.get::<_, i64>(1) < at.as_millisecond()).map(|row| row.get(0)).collect();
        old.events_to = unsigned(gone.last().copied().unwrap_or(0))?;
        old.more |= gone.len() == MAX_EVENTS;
    }
    Ok(old)
}

/// Adds those of at most [`MAX_CHANGES`] rows that are not among them yet, as far as one transaction has room.
async fn take_contents(
    client: &ClientWrapper,
    sql: &str,
    values: &[Value<'_>],
    old: &mut Old,
) -> Result<(), StoreError> {
    let (mut bytes, mut found) = (0, 0);
    for row in query(client, sql, values).await? {
        let (no, len): (i64, i32) = (row.get(0), row.get(1));
        bytes += usize::try_from(len).unwrap_or(0);
        if (bytes > MAX_BYTES || old.contents.len() >= MAX_CHANGES) && !old.contents.is_empty() {
            old.more = true;
            return Ok(());
        }
        found += 1;
        let Some(row) = one(client, "SELECT body FROM changes WHERE no = $1", &[&no]).await? else { continue };
        let change = parse_change(row.get(0))?;
        if !old.contents.iter().any(|known| known.id == change.id) {
            old.contents.push(change);
        }
    }
    old.more |= found == MAX_CHANGES;
    Ok(())
}

/// Whether this one was pruned; `false` where it is not as it was looked at.
pub(super) async fn redact(client: &ClientWrapper, redaction: &Redaction) -> Result<bool, StoreError> {
    let sql = "UPDATE changes SET body = $4, redacted = true
               WHERE id = $1 AND version = $2 AND state = $3 AND NOT redacted AND finished_at IS NOT NULL";
    let Redaction { id, version, state, body, .. } = redaction;
    Ok(execute(client, sql, &[id, &signed(*version), &state.as_str(), body]).await? == 1)
}

pub(super) async fn delete(client: &ClientWrapper, deletion: &Deletion) -> Result<bool, StoreError> {
    let sql = "DELETE FROM changes WHERE id = $1 AND version = $2 AND state = $3 AND finished_at IS NOT NULL";
    let Deletion { id, version, state, .. } = deletion;
    Ok(execute(client, sql, &[id, &signed(*version), &state.as_str()]).await? == 1)
}

pub(super) async fn forget_events(client: &ClientWrapper, to: u64) -> Result<u64, StoreError> {
    let sql = "DELETE FROM events WHERE seq <= $1 AND seq < (SELECT event FROM heads)";
    execute(client, sql, &[&signed(to)]).await
}

/// When the backup was taken that this store was restored from, until a gateway has started on it.
pub(super) async fn backup_of(client: &ClientWrapper) -> Result<Option<Timestamp>, StoreError> {
    fact(client, "backup_of").await?.as_deref().map(parse_time).transpose()
}

/// Refuses a store that was moved, or is not whole yet.
pub(super) async fn check_moved(client: &ClientWrapper) -> Result<(), StoreError> {
    moving::check(fact(client, COMING).await?.as_deref(), fact(client, GONE).await?.as_deref())
}

/// Something that is noted of the store as a whole.
pub(super) async fn fact(client: &ClientWrapper, name: &str) -> Result<Option<String>, StoreError> {
    let found = one(client, "SELECT value FROM facts WHERE name = $1", &[&name]).await?;
    Ok(found.map(|row| row.get(0)))
}
