//! Finds old records, and prunes them.

use std::collections::HashSet;

use jiff::Timestamp;

use crate::{
    StoreError,
    retention::{MAX_BYTES, MAX_CHANGES, MAX_EVENTS, PrunableRecords, PrunedChange, PruningCutoffs},
    rows::{parse_change, parse_state},
    sql::{Sql, Value},
    values,
};

/// The condition that no step of the change's plan is open. Until then, later steps need the finished ones: their number, their
/// order and their results.
const HAS_NO_OPEN_PLAN: &str = "(plan_id IS NULL OR NOT EXISTS
    (SELECT 1 FROM changes step WHERE step.plan_id = changes.plan_id AND step.finished_at IS NULL))";

/// Reads the oldest prunable records.
pub async fn find_prunable<S: Sql>(db: &S, before: PruningCutoffs) -> Result<PrunableRecords, StoreError> {
    let mut old = PrunableRecords::default();
    if let Some(at) = before.contents {
        let sql = format!(
            "SELECT no, octet_length(body) FROM changes
             WHERE redacted = ?1 AND finished_at IS NOT NULL AND finished_at < ?2 AND {HAS_NO_OPEN_PLAN}
             ORDER BY finished_at, no LIMIT ?3"
        );
        add_contents(db, &sql, values![false, at.as_second(), MAX_CHANGES], &mut old).await?;
    }
    if let Some((at, min_bytes)) = before.large {
        // Only changes that were not applied. The index is used only if the statement repeats its condition, with the
        // literal 65536.
        let sql = format!(
            "SELECT no, octet_length(body) FROM changes
             WHERE {} AND finished_at IS NOT NULL AND octet_length(body) > 65536 AND finished_at < ?1
               AND octet_length(body) > ?2 AND state IN ('rejected', 'withdrawn', 'expired', 'failed')
             ORDER BY finished_at, no LIMIT ?3",
            S::DIALECT.not_redacted
        );
        let min_bytes = u32::try_from(min_bytes).unwrap_or(u32::MAX).min(i32::MAX.unsigned_abs());
        add_contents(db, &sql, values![at.as_second(), min_bytes, MAX_CHANGES], &mut old).await?;
    }
    if let Some(at) = before.changes {
        // One query for each value of `redacted` makes use of the index.
        for redacted in [true, false] {
            let remaining = MAX_CHANGES.saturating_sub(old.changes.len());
            let sql = format!(
                "SELECT id, version, state FROM changes
                 WHERE redacted = ?1 AND finished_at IS NOT NULL AND finished_at < ?2 AND {HAS_NO_OPEN_PLAN}
                 ORDER BY finished_at, no LIMIT ?3"
            );
            for row in db.rows(&sql, values![redacted, at.as_second(), remaining]).await? {
                let state = parse_state(row.get(2)?)?;
                if state.is_final() {
                    old.changes.push((row.get(0)?, row.get(1)?, state));
                }
            }
        }
        old.more |= old.changes.len() == MAX_CHANGES;
        // A change that will be deleted need not lose its contents first.
        let deleted: HashSet<&str> = old.changes.iter().map(|(id, ..)| id.as_str()).collect();
        old.contents.retain(|change| !deleted.contains(change.id.as_str()));
    }
    if let Some(at) = before.events {
        let sql = format!(
            "SELECT seq, {} FROM events WHERE seq < (SELECT max(seq) FROM events) ORDER BY seq LIMIT ?1",
            S::DIALECT.event_time
        );
        let mut count = 0;
        for row in db.rows(&sql, values![MAX_EVENTS]).await? {
            // An event without a time is as old as the one after it.
            if row.get::<Option<Timestamp>>(1)?.is_some_and(|made_at| made_at >= at) {
                break;
            }
            old.events_to = row.get(0)?;
            count += 1;
        }
        old.more |= count == MAX_EVENTS;
    }
    Ok(old)
}

/// Adds the changes of the statement's rows to `old.contents`, up to the limits of one transaction.
async fn add_contents<S: Sql>(
    db: &S,
    sql: &str,
    values: &[Value<'_>],
    old: &mut PrunableRecords,
) -> Result<(), StoreError> {
    let (mut bytes, mut found) = (0, 0);
    for row in db.rows(sql, values).await? {
        bytes += row.get::<usize>(1)?;
        if (bytes > MAX_BYTES || old.contents.len() >= MAX_CHANGES) && !old.contents.is_empty() {
            old.more = true;
            return Ok(());
        }
        let sql = "SELECT body FROM changes WHERE no = ?1";
        let Some(row) = db.first(sql, values![row.get::<i64>(0)?]).await? else { continue };
        let change = parse_change(row.get(0)?)?;
        // `finished_at` of an open change was altered.
        if !change.state.is_final() {
            continue;
        }
        found += 1;
        if !old.contents.iter().any(|known| known.id == change.id) {
            old.contents.push(change);
        }
    }
    old.more |= found == MAX_CHANGES;
    Ok(())
}

/// Removes the contents of a change, or deletes it. Returns `false` if the change is open, whatever the other columns say, or
/// was modified since it was read.
pub async fn prune<S: Sql>(db: &S, change: &PrunedChange) -> Result<bool, StoreError> {
    let PrunedChange { id, version, state, body, .. } = change;
    if !state.is_final() {
        return Ok(false);
    }
    let is_same = "id = ?1 AND version = ?2 AND state = ?3 AND finished_at IS NOT NULL";
    let written = match body {
        Some(body) => {
            let sql = format!("UPDATE changes SET body = ?4, redacted = ?5 WHERE {is_same} AND redacted <> ?5");
            db.execute(&sql, values![id, *version, state.as_str(), body, true]).await?
        }
        None => {
            let sql = format!("DELETE FROM changes WHERE {is_same}");
            db.execute(&sql, values![id, *version, state.as_str()]).await?
        }
    };
    Ok(written == 1)
}
