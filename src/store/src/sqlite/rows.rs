//! The statements that read rows of changes, events and the trail. Every statement uses an index.

use jiff::Timestamp;
use rusqlite::{Connection, params};

use crate::{
    Followed, Heads, Proposed, StoreError, StoredEvent,
    rows::{parse_hash, signed, unsigned},
};
use countersign_domain::changes::audit::{AuditHead, GENESIS};

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
