//! The statements that read rows of changes, events and the trail. Every statement uses an index.

use std::sync::Arc;

use jiff::Timestamp;
use rusqlite::{Connection, OptionalExtension, Row, params};
use serde_json::value::RawValue;

use crate::{
    Followed, Heads, LiveChange, Proposed, StoreError, StoredEvent,
    rows::{parse_change, parse_hash, parse_state, parse_time, signed, unsigned},
};
use countersign_domain::changes::{
    Change, ChangeState,
    audit::{AuditEntry, AuditHead, GENESIS},
};

pub(super) fn get(conn: &Connection, id: &str) -> Result<Option<Arc<Change>>, StoreError> {
    let mut statement = conn.prepare_cached("SELECT body FROM changes WHERE id = ?1")?;
    let found = statement.query_row([id], |row| Ok(parse_change(row.get_ref(0)?.as_str()?))).optional()?;
    found.transpose()
}

pub(super) fn find_idempotent(
    conn: &Connection,
    principal: &str,
    key: &str,
) -> Result<Option<Arc<Change>>, StoreError> {
    let mut statement = conn.prepare_cached(
        "SELECT body FROM changes WHERE idempotency_key IS NOT NULL AND principal = ?1 AND idempotency_key = ?2",
    )?;
    let found = statement.query_row([principal, key], |row| Ok(parse_change(row.get_ref(0)?.as_str()?))).optional()?;
    found.transpose()
}

pub(super) fn live(conn: &Connection) -> Result<Vec<LiveChange>, StoreError> {
    let mut out = Vec::new();
    for state in ChangeState::ALL.into_iter().filter(|s| !s.is_final()) {
        let mut statement =
            conn.prepare_cached("SELECT c.id, c.principal, c.bytes, c.expires_at, s.call_hash FROM changes c LEFT JOIN change_search s ON s.no = c.no WHERE c.state = ?1 ORDER BY c.no")?;
        let mut rows = statement.query([state.as_str()])?;
        while let Some(row) = rows.next()? {
            out.push(LiveChange {
                id: row.get(0)?,
                state,
                principal: row.get(1)?,
                bytes: unsigned(row.get(2)?)?,
                expires_at: parse_time(&row.get::<_, String>(3)?)?,
                call_hash: row.get(4)?,
            });
        }
    }
    Ok(out)
}

/// The newest first, until they are older than that, and then turned round.
pub(super) fn proposed_since(conn: &Connection, since: Timestamp) -> Result<Vec<Proposed>, StoreError> {
    let mut statement = conn.prepare_cached(
        "SELECT s.created_ms, c.principal, c.bytes FROM change_search s JOIN changes c ON c.no = s.no
         ORDER BY s.no DESC",
    )?;
    let mut rows = statement.query([])?;
    let mut found = Vec::new();
    while let Some(row) = rows.next()? {
        let at: i64 = row.get(0)?;
        if at < since.as_millisecond() {
            break;
        }
        let at = Timestamp::from_millisecond(at).map_err(|e| StoreError::BadRecord(e.to_string()))?;
        found.push(Proposed { principal: row.get(1)?, bytes: unsigned(row.get(2)?)?, at });
    }
    found.reverse();
    Ok(found)
}

pub(super) fn voted(conn: &Connection) -> Result<Vec<String>, StoreError> {
    let mut statement = conn.prepare_cached(
        "SELECT id FROM changes WHERE state IN ('pending', 'approved') AND json_array_length(body, '$.decisions') > 0",
    )?;
    let rows = statement.query_map([], |row| row.get(0))?;
    Ok(rows.collect::<Result<_, _>>()?)
}

pub(super) fn counts(conn: &Connection) -> Result<Vec<(ChangeState, u64)>, StoreError> {
    let mut statement = conn.prepare_cached("SELECT state, count(*) FROM changes GROUP BY state")?;
    let mut rows = statement.query([])?;
    let mut out = Vec::new();
    while let Some(row) = rows.next()? {
        out.push((parse_state(row.get_ref(0)?.as_str().unwrap_or_default())?, unsigned(row.get(1)?)?));
    }
    Ok(out)
}

pub(super) fn events_after(conn: &Connection, after: u64, limit: usize) -> Result<Vec<StoredEvent>, StoreError> {
    let mut statement =
        conn.prepare_cached("SELECT seq, kind, data FROM events WHERE seq > ?1 ORDER BY seq LIMIT ?2")?;
    let mut rows = statement.query(params![signed(after), signed(limit as u64)])?;
    let mut out = Vec::new();
    while let Some(row) = rows.next()? {
        out.push(StoredEvent { seq: unsigned(row.get(0)?)?, kind: row.get(1)?, data: row.get(2)? });
    }
    Ok(out)
}

pub(super) fn followed(conn: &Connection, after: u64, limit: usize) -> Result<Vec<Followed>, StoreError> {
    let mut statement = conn.prepare_cached(
        "SELECT e.seq, e.kind, e.data, c.bytes, s.call_hash FROM events e
         LEFT JOIN changes c ON e.kind = 'change.created' AND c.id = e.change_id
         LEFT JOIN change_search s ON s.no = c.no
         WHERE e.seq > ?1 ORDER BY e.seq LIMIT ?2",
    )?;
    let mut rows = statement.query(params![signed(after), signed(limit as u64)])?;
    let mut out = Vec::new();
    while let Some(row) = rows.next()? {
        let event = StoredEvent { seq: unsigned(row.get(0)?)?, kind: row.get(1)?, data: row.get(2)? };
        let bytes = row.get::<_, Option<i64>>(3)?.map_or(Ok(0), unsigned)?;
        out.push(Followed { event, bytes, call_hash: row.get(4)? });
    }
    Ok(out)
}

/// Changes that are executing, the oldest first.
pub(super) fn executing(conn: &Connection) -> Result<Vec<String>, StoreError> {
    let mut statement = conn.prepare_cached("SELECT id FROM changes WHERE state = 'executing' ORDER BY no")?;
    let ids = statement.query_map([], |row| row.get(0))?;
    Ok(ids.collect::<Result<_, _>>()?)
}

const AUDIT: &str =
    "SELECT seq, at, change_id, event, from_state, to_state, actor, details, prev_hash, hash FROM audit";

pub(super) fn audit_page(
    conn: &Connection,
    change: Option<&str>,
    before: Option<u64>,
    limit: usize,
) -> Result<Vec<AuditEntry>, StoreError> {
    let (before, limit) = (before.map_or(i64::MAX, signed), signed(limit as u64));
    let mut out = Vec::new();
    if let Some(change) = change {
        let mut statement =
            conn.prepare_cached(&format!("{AUDIT} WHERE change_id = ?1 AND seq < ?2 ORDER BY seq DESC LIMIT ?3"))?;
        let mut rows = statement.query(params![change, before, limit])?;
        while let Some(row) = rows.next()? {
            out.push(audit_entry(row)?);
        }
    } else {
        let mut statement = conn.prepare_cached(&format!("{AUDIT} WHERE seq < ?1 ORDER BY seq DESC LIMIT ?2"))?;
        let mut rows = statement.query(params![before, limit])?;
        while let Some(row) = rows.next()? {
            out.push(audit_entry(row)?);
        }
    }
    Ok(out)
}

pub(super) fn audit_entry(row: &Row<'_>) -> Result<AuditEntry, StoreError> {
    let from: Option<String> = row.get(4)?;
    Ok(AuditEntry {
        seq: unsigned(row.get(0)?)?,
        at: parse_time(&row.get::<_, String>(1)?)?,
        change_id: row.get(2)?,
        event: row.get(3)?,
        from: from.as_deref().map(parse_state).transpose()?,
        to: Some(row.get::<_, String>(5)?).filter(|to| !to.is_empty()).as_deref().map(parse_state).transpose()?,
        actor: row.get(6)?,
        details: RawValue::from_string(row.get(7)?)
            .map_err(|e| StoreError::BadRecord(format!("details of an audit entry: {e}")))?,
        prev_hash: parse_hash(&row.get::<_, Vec<u8>>(8)?)?,
        hash: parse_hash(&row.get::<_, Vec<u8>>(9)?)?,
    })
}

pub(super) fn heads(conn: &Connection) -> Result<Heads, StoreError> {
    // One statement, so that both are of one moment.
    let mut statement = conn.prepare_cached(
        "SELECT (SELECT max(seq) FROM events), seq, hash
         FROM (SELECT seq, hash FROM audit UNION ALL SELECT 0, NULL) ORDER BY seq DESC LIMIT 1",
    )?;
    let (event, seq, hash): (Option<i64>, i64, Option<Vec<u8>>) =
        statement.query_row([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
    let hash = hash.as_deref().map_or(Ok(GENESIS), parse_hash)?;
    Ok(Heads { event: unsigned(event.unwrap_or(0))?, audit: AuditHead { seq: unsigned(seq)?, hash } })
}
