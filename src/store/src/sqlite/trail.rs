//! The audit trail in SQLite: its next entry, and the rows that its entries tell of.

use jiff::Timestamp;
use rusqlite::{Connection, OptionalExtension as _, Row, params};

use super::{retention::fact, rows::heads};
use crate::{
    StoreError,
    covered::{ANCHORED, FACT, KeyRow, NEWEST_POLICY, PinRow, Rows, anchored, of_key, policy_hash, rule_hash},
    policy_snapshots::NEWEST,
    rows::signed,
};
use countersign_domain::changes::{
    audit::{AuditHead, EntryContent},
    machine::SYSTEM,
};

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

/// In the order in which [`key_row`] reads them.
pub(crate) const KEY_COLUMNS: &str = "id, name, role, owner, hash, created_at, revoked_at";

/// A key's row as the trail knows it.
///
/// # Errors
/// Those of columns of another type.
pub(crate) fn key_row<'a>(row: &'a Row<'_>) -> rusqlite::Result<KeyRow<'a>> {
    Ok(KeyRow {
        id: text(row, 0)?.unwrap_or_default(),
        name: text(row, 1)?.unwrap_or_default(),
        role: text(row, 2)?.unwrap_or_default(),
        owner: text(row, 3)?,
        secret: row.get_ref(4)?.as_blob()?,
        created_at: text(row, 5)?.unwrap_or_default(),
        revoked_at: text(row, 6)?,
    })
}

fn text<'a>(row: &'a Row<'_>, at: usize) -> rusqlite::Result<Option<&'a str>> {
    Ok(row.get_ref(at)?.as_str_or_null()?)
}

pub(crate) fn rows(conn: &Connection) -> rusqlite::Result<Rows> {
    let mut found = Rows::default();
    let mut statement = conn.prepare(&format!("SELECT {} FROM api_keys", KEY_COLUMNS))?;
    let mut keys = statement.query([])?;
    while let Some(row) = keys.next()? {
        let key = key_row(row)?;
        found.keys.insert(key.id.to_owned(), key.hash());
    }
    let mut statement = conn.prepare(
        "SELECT server, tool, seen, accepted, accepted_by, accepted_at, definition, accepted_target FROM tool_pins",
    )?;
    let mut pins = statement.query([])?;
    while let Some(row) = pins.next()? {
        let pin = PinRow {
            server: text(row, 0)?.unwrap_or_default(),
            tool: text(row, 1)?.unwrap_or_default(),
            seen: text(row, 2)?,
            accepted: text(row, 3)?,
            by: text(row, 4)?,
            at: text(row, 5)?,
            definition: text(row, 6)?,
            target: text(row, 7)?,
        };
        found.pins.insert((pin.server.to_owned(), pin.tool.to_owned()), pin.hash());
    }
    let mut statement = conn.prepare("SELECT server FROM pinned_servers")?;
    let mut servers = statement.query([])?;
    while let Some(row) = servers.next()? {
        found.servers.insert(row.get(0)?);
    }
    let mut statement = conn.prepare("SELECT id, over, body, json_extract(body, '$.verdict') FROM standing_rules")?;
    let mut rules = statement.query([])?;
    while let Some(row) = rules.next()? {
        let (hash, allows) = (rule_hash(row.get_ref(2)?.as_str()?), text(row, 3)? == Some("allow"));
        found.rules.insert(row.get(0)?, (hash, allows, row.get(1)?));
    }
    if let Some(policy) = fact(conn, NEWEST)? {
        found.policies.insert(NEWEST_POLICY.to_owned(), policy_hash(&policy));
    }
    Ok(found)
}

/// Within the transaction of a migration: the entry of what is there already, where the trail did not tell of it.
pub(crate) fn anchor(conn: &Connection) -> Result<(), StoreError> {
    let pending: Option<String> =
        conn.query_row("SELECT value FROM facts WHERE name = ?1", [FACT], |row| row.get(0)).optional()?;
    if pending.as_deref() != Some("pending") {
        return Ok(());
    }
    let found = rows(conn)?;
    if found != Rows::default() {
        tell(conn, ANCHORED, SYSTEM, &anchored(&found))?;
    }
    conn.execute("UPDATE facts SET value = 'yes' WHERE name = ?1", [FACT])?;
    Ok(())
}

/// What became of a key, within the transaction that alters its row.
pub(crate) fn key(conn: &Connection, event: &'static str, actor: &str, key: &KeyRow<'_>) -> Result<(), StoreError> {
    tell(conn, event, actor, &of_key(key))
}

/// The next entry, about no change, within the caller's transaction.
pub(crate) fn tell(conn: &Connection, event: &'static str, actor: &str, details: &str) -> Result<(), StoreError> {
    let at = Timestamp::now().to_string();
    let head = heads(conn)?.audit;
    let content = EntryContent { seq: head.seq + 1, at: &at, change_id: "", event, from: None, to: "", actor, details };
    append(conn, head, content)?;
    Ok(())
}
