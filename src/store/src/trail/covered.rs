//! What the audit trail covers beside changes: keys, the pins of definitions, and standing rules. Each entry that makes
//! or alters one has a hash of its row, so that a row that was altered, added or removed later is found.
//!
//! Rows from before the trail told of them are in one entry, written when the database was migrated ([`anchor`]): from
//! then on they cannot be altered unseen either, and what became of them before nobody can say.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
};

use jiff::Timestamp;
use rusqlite::{Connection, OptionalExtension as _, Row};
use serde_json::{Value, json};

use crate::{StoreError, rows::heads};
use countersign_domain::changes::{audit::EntryContent, digest::PartHasher, machine::SYSTEM};

/// The entry of what was there when the database was migrated.
pub const ANCHORED: &str = "records_anchored";
pub const KEY_CREATED: &str = "key_created";
pub const KEY_REVOKED: &str = "key_revoked";

/// A gateway has started on a backup; it ends what allows (see `standing_rules::end_allowances`).
pub const RESTORED: &str = "restored";

/// Says whether the trail tells of what was there when the database was migrated: `pending`, `yes`.
pub const FACT: &str = "trail_covers_keys_and_pins";

/// A key's row as the trail knows it. When it was last used is not of it.
pub(crate) struct KeyRow<'a> {
    pub id: &'a str,
    pub name: &'a str,
    pub role: &'a str,
    pub owner: Option<&'a str>,
    pub secret: &'a [u8],
    pub created_at: &'a str,
    pub revoked_at: Option<&'a str>,
}

impl<'a> KeyRow<'a> {
    /// In the order in which [`Self::of`] reads them.
    pub const COLUMNS: &'static str = "id, name, role, owner, hash, created_at, revoked_at";

    /// # Errors
    /// Those of columns of another type.
    pub fn of(row: &'a Row<'_>) -> rusqlite::Result<Self> {
        Ok(Self {
            id: text(row, 0)?.unwrap_or_default(),
            name: text(row, 1)?.unwrap_or_default(),
            role: text(row, 2)?.unwrap_or_default(),
            owner: text(row, 3)?,
            secret: row.get_ref(4)?.as_blob()?,
            created_at: text(row, 5)?.unwrap_or_default(),
            revoked_at: text(row, 6)?,
        })
    }

    pub fn hash(&self) -> String {
        let mut hasher = PartHasher::new("countersign.key.1");
        for text in [self.id, self.name, self.role] {
            hasher.part(text.as_bytes());
        }
        hasher.optional(self.owner).part(self.secret).part(self.created_at.as_bytes()).optional(self.revoked_at);
        hasher.finish()
    }
}

/// A pin's row as the trail knows it.
pub(crate) struct PinRow<'a> {
    pub server: &'a str,
    pub tool: &'a str,
    pub seen: Option<&'a str>,
    pub accepted: Option<&'a str>,
    pub by: Option<&'a str>,
    pub at: Option<&'a str>,
    pub definition: Option<&'a str>,
    pub target: Option<&'a str>,
}

impl PinRow<'_> {
    pub fn hash(&self) -> String {
        let mut hasher = PartHasher::new("countersign.pin.1");
        hasher.part(self.server.as_bytes()).part(self.tool.as_bytes());
        for part in [self.seen, self.accepted, self.by, self.at, self.definition, self.target] {
            hasher.optional(part);
        }
        hasher.finish()
    }
}

/// Rows as they are, by what names them, with their hashes.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Rows {
    pub keys: BTreeMap<String, String>,
    pub pins: BTreeMap<(String, String), String>,
    pub servers: BTreeSet<String>,
    /// Of standing rules: the hash, whether it allows, whether it is over.
    pub rules: BTreeMap<String, (String, bool, bool)>,
}

/// What an entry has of a standing rule's row.
pub(crate) fn rule_row(id: &str, body: &str, allows: bool, over: bool) -> Value {
    rule_with(id, &rule_hash(body), allows, over)
}

fn rule_with(id: &str, hash: &str, allows: bool, over: bool) -> Value {
    json!({ "id": id, "row": hash, "allows": allows, "over": over })
}

fn rule_hash(body: &str) -> String {
    let mut hasher = PartHasher::new("countersign.rule.1");
    hasher.part(body.as_bytes());
    hasher.finish()
}

/// The details of an entry, a JSON object, with what is told of rows.
pub(crate) fn with_rows<'a>(details: &'a str, rows: &[Value]) -> Cow<'a, str> {
    match details.trim_end().strip_suffix('}') {
        Some(open) if !rows.is_empty() => {
            let comma = if open.trim_end().ends_with('{') { "" } else { "," };
            Cow::Owned(format!("{open}{comma}\"rows\":{}}}", Value::from(rows)))
        }
        _ => Cow::Borrowed(details),
    }
}

fn text<'a>(row: &'a Row<'_>, at: usize) -> rusqlite::Result<Option<&'a str>> {
    Ok(row.get_ref(at)?.as_str_or_null()?)
}

pub(crate) fn rows(conn: &Connection) -> rusqlite::Result<Rows> {
    let mut found = Rows::default();
    let mut statement = conn.prepare(&format!("SELECT {} FROM api_keys", KeyRow::COLUMNS))?;
    let mut keys = statement.query([])?;
    while let Some(row) = keys.next()? {
        let key = KeyRow::of(row)?;
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
        let pins: Vec<Value> = found
            .pins
            .iter()
            .map(|((server, tool), hash)| json!({ "server": server, "name": tool, "row": hash }))
            .collect();
        let keys: Vec<Value> = found.keys.iter().map(|(id, hash)| json!({ "id": id, "row": hash })).collect();
        let rules: Vec<Value> =
            found.rules.iter().map(|(id, (hash, allows, over))| rule_with(id, hash, *allows, *over)).collect();
        let details = json!({ "keys": keys, "tools": pins, "servers": found.servers, "rows": rules }).to_string();
        append(conn, ANCHORED, SYSTEM, &details)?;
    }
    conn.execute("UPDATE facts SET value = 'yes' WHERE name = ?1", [FACT])?;
    Ok(())
}

/// What became of a key, within the transaction that alters its row.
pub(crate) fn key(conn: &Connection, event: &'static str, actor: &str, key: &KeyRow<'_>) -> Result<(), StoreError> {
    let details = json!({
        "key": { "id": key.id, "name": key.name, "role": key.role, "owner": key.owner },
        "row": key.hash(),
    });
    append(conn, event, actor, &details.to_string())
}

fn append(conn: &Connection, event: &'static str, actor: &str, details: &str) -> Result<(), StoreError> {
    let at = Timestamp::now().to_string();
    let head = heads(conn)?.audit;
    let content = EntryContent { seq: head.seq + 1, at: &at, change_id: "", event, from: None, to: "", actor, details };
    super::append(conn, head, content)?;
    Ok(())
}
