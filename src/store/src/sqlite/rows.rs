//! Reads executing changes and the heads. Every statement uses an index.

use rusqlite::Connection;

use super::sql::rows;
use crate::{
    Heads, StoreError,
    rows::{parse_hash, unsigned},
};
use countersign_domain::changes::audit::{AuditHead, GENESIS};

/// Returns the ids of executing changes, oldest first.
pub(super) fn executing_changes(conn: &Connection) -> Result<Vec<String>, StoreError> {
    let executing = rows(conn, "SELECT id FROM changes WHERE state = 'executing' ORDER BY no", &[])?;
    executing.iter().map(|row| row.get(0)).collect()
}

pub(super) fn heads(conn: &Connection) -> Result<Heads, StoreError> {
    // A single statement reads both heads from one snapshot.
    let mut statement = conn.prepare_cached(
        "SELECT (SELECT max(seq) FROM events), seq, hash
         FROM (SELECT seq, hash FROM audit UNION ALL SELECT 0, NULL) ORDER BY seq DESC LIMIT 1",
    )?;
    let (event, seq, hash): (Option<i64>, i64, Option<Vec<u8>>) =
        statement.query_row([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
    let hash = hash.as_deref().map_or(Ok(GENESIS), parse_hash)?;
    Ok(Heads { event: unsigned(event.unwrap_or(0))?, audit: AuditHead { seq: unsigned(seq)?, hash } })
}
