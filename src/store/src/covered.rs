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

use super::{StoreError, VerifyError, pins::PinWrite, trail};
use countersign_domain::changes::{
    audit::{Broken, EntryContent},
    digest::PartHasher,
    machine::SYSTEM,
};

/// The entry of what was there when the database was migrated.
pub const ANCHORED: &str = "records_anchored";
pub const KEY_CREATED: &str = "key_created";
pub const KEY_REVOKED: &str = "key_revoked";

/// A gateway has started on a backup; it ends what allows (see `standing_rules::end_allowances`).
const RESTORED: &str = "restored";

const FACT: &str = "trail_covers_keys_and_pins";

/// A key's row as the trail knows it. When it was last used is not of it.
pub(super) struct KeyRow<'a> {
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

/// The hash of a pin's row, as an entry has it.
pub(super) fn pin_hash(server: &str, write: &PinWrite) -> String {
    let accepted = write.pin.accepted.as_ref();
    let at = accepted.map(|accepted| accepted.at.to_string());
    PinRow {
        server,
        tool: &write.tool,
        seen: write.pin.seen.as_deref(),
        accepted: accepted.map(|accepted| accepted.hash.as_str()),
        by: accepted.map(|accepted| accepted.by.as_str()),
        at: at.as_deref(),
        definition: write.pin.text.as_deref(),
        target: accepted.and_then(|accepted| accepted.target.as_deref()),
    }
    .hash()
}

struct PinRow<'a> {
    server: &'a str,
    tool: &'a str,
    seen: Option<&'a str>,
    accepted: Option<&'a str>,
    by: Option<&'a str>,
    at: Option<&'a str>,
    definition: Option<&'a str>,
    target: Option<&'a str>,
}

impl PinRow<'_> {
    fn hash(&self) -> String {
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
struct Rows {
    keys: BTreeMap<String, String>,
    pins: BTreeMap<(String, String), String>,
    servers: BTreeSet<String>,
    /// Of standing rules: the hash, whether it allows, whether it is over.
    rules: BTreeMap<String, (String, bool, bool)>,
}

/// What an entry has of a standing rule's row.
pub(super) fn rule_row(id: &str, body: &str, allows: bool, over: bool) -> Value {
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
pub(super) fn with_rows<'a>(details: &'a str, rows: &[Value]) -> Cow<'a, str> {
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

fn rows(conn: &Connection) -> rusqlite::Result<Rows> {
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
pub(super) fn anchor(conn: &Connection) -> Result<(), StoreError> {
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
pub(super) fn key(conn: &Connection, event: &'static str, actor: &str, key: &KeyRow<'_>) -> Result<(), StoreError> {
    let details = json!({
        "key": { "id": key.id, "name": key.name, "role": key.role, "owner": key.owner },
        "row": key.hash(),
    });
    append(conn, event, actor, &details.to_string())
}

fn append(conn: &Connection, event: &'static str, actor: &str, details: &str) -> Result<(), StoreError> {
    let at = Timestamp::now().to_string();
    let head = super::rows::heads(conn)?.audit;
    let content = EntryContent { seq: head.seq + 1, at: &at, change_id: "", event, from: None, to: "", actor, details };
    trail::append(conn, head, content)?;
    Ok(())
}

/// Follows the entries of keys and pins, in memory that is bounded by how many of them there are.
#[derive(Debug, Default)]
pub(super) struct Follower {
    /// The hash of each row, and the entry that left it so.
    keys: BTreeMap<String, (String, u64)>,
    pins: BTreeMap<(String, String), (String, u64)>,
    servers: BTreeMap<String, u64>,
    rules: BTreeMap<String, ToldRule>,
    /// Some entry tells of rows by their hashes: all of them are covered from then on.
    covers: bool,
}

#[derive(Debug)]
struct ToldRule {
    row: String,
    seq: u64,
    allows: bool,
    over: bool,
    /// It was ended with all that allow, without an entry of its own.
    ended: bool,
}

/// What was compared, and what the trail cannot tell of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Covered {
    pub keys: u64,
    pub pins: u64,
    pub rules: u64,
    /// Keys, pins and rules of a database from before the trail told of them, which no newer version has opened.
    pub untold: u64,
}

impl Follower {
    /// The next entry; its place in the trail was checked before.
    pub fn entry(&mut self, seq: u64, event: &str, details: &str) -> Result<(), Broken> {
        let tells = matches!(event, ANCHORED | KEY_CREATED | KEY_REVOKED | RESTORED)
            || ["definitions_", "standing_rule_"].iter().any(|of| event.starts_with(of));
        if !tells {
            return Ok(());
        }
        if event == RESTORED {
            self.rules.values_mut().filter(|rule| rule.allows && !rule.over).for_each(|rule| rule.ended = true);
            return Ok(());
        }
        let details: Value = serde_json::from_str(details).unwrap_or_default();
        let text = |value: &Value| value.as_str().map(str::to_owned);
        if event == ANCHORED && std::mem::replace(&mut self.covers, true) {
            // What is there is taken for granted once, before anything else was told of.
            return Err(Broken::AnchoredAgain { seq });
        }
        match event {
            KEY_CREATED | KEY_REVOKED => {
                if let (Some(id), Some(row)) = (text(&details["key"]["id"]), text(&details["row"])) {
                    self.covers = true;
                    self.keys.insert(id, (row, seq));
                }
                return Ok(());
            }
            ANCHORED => {
                for key in details["keys"].as_array().into_iter().flatten() {
                    if let (Some(id), Some(row)) = (text(&key["id"]), text(&key["row"])) {
                        self.keys.insert(id, (row, seq));
                    }
                }
                let servers = details["servers"].as_array().into_iter().flatten().filter_map(text);
                self.servers.extend(servers.map(|server| (server, seq)));
            }
            _ => {}
        }
        for rule in details["rows"].as_array().into_iter().flatten() {
            if let (Some(id), Some(row)) = (text(&rule["id"]), text(&rule["row"])) {
                self.covers = true;
                let (allows, over) = (rule["allows"] == true, rule["over"] == true);
                self.rules.insert(id, ToldRule { row, seq, allows, over, ended: false });
            }
        }
        for tool in details["tools"].as_array().into_iter().flatten() {
            let server = text(&tool["server"]).or_else(|| text(&details["server"]));
            if let (Some(server), Some(name), Some(row)) = (server, text(&tool["name"]), text(&tool["row"])) {
                self.covers = true;
                self.servers.entry(server.clone()).or_insert(seq);
                self.pins.insert((server, name), (row, seq));
            }
        }
        Ok(())
    }

    /// Compares what the entries left with what is there.
    pub fn finish(self, conn: &Connection) -> Result<Covered, VerifyError> {
        let found = rows_of(conn)?;
        let told: Option<String> = fact(conn)?;
        let covered = Covered {
            keys: found.keys.len() as u64,
            pins: found.pins.len() as u64,
            rules: found.rules.len() as u64,
            untold: 0,
        };
        if !self.covers && told.is_none() {
            return Ok(Covered { untold: covered.keys + covered.pins + covered.rules, ..covered });
        }
        self.compare_rules(&found)?;
        let key = |id: &String| format!("key {}", shown(id));
        compare(&found.keys, &self.keys, key)?;
        let pin = |(server, tool): &(String, String)| {
            format!("the definition of {} that was seen or accepted of {}", shown(tool), shown(server))
        };
        compare(&found.pins, &self.pins, pin)?;
        let server = |name: &String| format!("the note that {} was connected", shown(name));
        // A server of which no tool was ever seen has no entry.
        if let Some((name, seq)) = self.servers.iter().find(|(name, _)| !found.servers.contains(*name)) {
            return Err(Broken::RecordGone { what: server(name), seq: *seq }.into());
        }
        Ok(covered)
    }
}

impl Follower {
    /// Of rules that are over, the oldest are forgotten; what allowed in a backup was ended without an entry of its own.
    fn compare_rules(&self, found: &Rows) -> Result<(), Broken> {
        let named = |id: &str| format!("standing rule {}", shown(id));
        for (id, (row, _, over)) in &found.rules {
            match self.rules.get(id) {
                None => return Err(Broken::RecordUnknown { what: named(id) }),
                Some(told) if told.row != *row && !(told.ended && *over) => {
                    return Err(Broken::RecordAltered { what: named(id), seq: told.seq });
                }
                Some(_) => {}
            }
        }
        let gone = self.rules.iter().find(|(id, told)| !told.over && !told.ended && !found.rules.contains_key(*id));
        match gone {
            Some((id, told)) => Err(Broken::RecordGone { what: named(id), seq: told.seq }),
            None => Ok(()),
        }
    }
}

fn compare<K: Ord>(
    found: &BTreeMap<K, String>,
    told: &BTreeMap<K, (String, u64)>,
    named: impl Fn(&K) -> String,
) -> Result<(), Broken> {
    for (name, row) in found {
        match told.get(name) {
            None => return Err(Broken::RecordUnknown { what: named(name) }),
            Some((right, seq)) if right != row => {
                return Err(Broken::RecordAltered { what: named(name), seq: *seq });
            }
            Some(_) => {}
        }
    }
    match told.iter().find(|(name, _)| !found.contains_key(*name)) {
        Some((name, (_, seq))) => Err(Broken::RecordGone { what: named(name), seq: *seq }),
        None => Ok(()),
    }
}

fn shown(name: &str) -> String {
    name.chars().take(100).flat_map(char::escape_debug).collect()
}

/// As [`rows`], of a database that may be older than some of its columns.
fn rows_of(conn: &Connection) -> rusqlite::Result<Rows> {
    let columns: i64 = conn.query_row(
        "SELECT (SELECT count(*) FROM pragma_table_info('api_keys') WHERE name = 'owner')
              + (SELECT count(*) FROM pragma_table_info('tool_pins') WHERE name = 'accepted_target')
              + (SELECT count(*) FROM pragma_table_info('standing_rules') WHERE name = 'body')",
        [],
        |row| row.get(0),
    )?;
    if columns == 3 { rows(conn) } else { Ok(Rows::default()) }
}

fn fact(conn: &Connection) -> rusqlite::Result<Option<String>> {
    let known: i64 = conn.query_row("SELECT count(*) FROM sqlite_schema WHERE name = 'facts'", [], |row| row.get(0))?;
    if known == 0 {
        return Ok(None);
    }
    conn.query_row("SELECT value FROM facts WHERE name = ?1", [FACT], |row| row.get(0)).optional()
}

/// What the columns of a change that queries go by must be: those of its body.
pub(super) fn columns_are_those_of(
    body: &Value,
    principal: &str,
    idempotency_key: Option<&str>,
    expires_at: &str,
) -> bool {
    let same_time = |a: &str, b: &str| match (a.parse::<Timestamp>(), b.parse::<Timestamp>()) {
        (Ok(a), Ok(b)) => a == b,
        _ => a == b,
    };
    body["proposer"]["principal"].as_str() == Some(principal)
        && body["idempotencyKey"].as_str() == idempotency_key
        && body["expiresAt"].as_str().is_some_and(|at| same_time(at, expires_at))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        keys::{ApiKey, Keys},
        open::{older, open_writer},
        verify_audit,
    };
    use countersign_domain::principal::Role;

    fn key(id: &str) -> ApiKey {
        ApiKey {
            id: id.into(),
            name: "alice".into(),
            role: Role::Viewer,
            owner: None,
            created_at: "2027-01-01T00:00:00Z".parse().unwrap(),
            last_used_at: None,
            revoked_at: None,
        }
    }

    fn broken(dir: &std::path::Path) -> String {
        match verify_audit(dir, None) {
            Err(VerifyError::Broken(broken)) => broken.to_string(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_key_that_was_altered_added_or_removed_is_found_and_named() {
        let dir = tempfile::tempdir().unwrap();
        let keys = Keys::open(dir.path()).unwrap();
        keys.insert(&key("k1"), &[1; 32]).unwrap();
        keys.insert(&key("k2"), &[2; 32]).unwrap();
        keys.revoke("k2", Timestamp::now()).unwrap();
        keys.touch(&key("k1"), Timestamp::now()).unwrap();
        assert_eq!(verify_audit(dir.path(), None).unwrap().covered, Covered { keys: 2, ..Covered::default() });
        let conn = open_writer(dir.path()).unwrap();
        for (spoil, mend, told) in [
            (
                "UPDATE api_keys SET role = 'admin' WHERE id = 'k1'",
                "UPDATE api_keys SET role = 'viewer' WHERE id = 'k1'",
                "key k1 is not as audit entry 1 left it",
            ),
            (
                "UPDATE api_keys SET owner = 'bob' WHERE id = 'k1'",
                "UPDATE api_keys SET owner = NULL WHERE id = 'k1'",
                "key k1 is not as audit entry 1 left it",
            ),
            ("UPDATE api_keys SET revoked_at = NULL WHERE id = 'k2'", "", "key k2 is not as audit entry 3 left it"),
        ] {
            let before: Option<String> =
                conn.query_row("SELECT revoked_at FROM api_keys WHERE id = 'k2'", [], |row| row.get(0)).unwrap();
            conn.execute(spoil, []).unwrap();
            assert_eq!(broken(dir.path()), told, "{spoil}");
            if !mend.is_empty() {
                conn.execute(mend, []).unwrap();
            }
            conn.execute("UPDATE api_keys SET revoked_at = ?1 WHERE id = 'k2'", [before]).unwrap();
            assert!(verify_audit(dir.path(), None).is_ok(), "{mend}");
        }
        conn.execute("INSERT INTO api_keys SELECT 'k3', name, role, x'03', created_at, NULL, NULL, owner FROM api_keys WHERE id = 'k1'", []).unwrap();
        assert_eq!(broken(dir.path()), "key k3 has no audit entry");
        conn.execute("DELETE FROM api_keys WHERE id IN ('k1', 'k3')", []).unwrap();
        assert_eq!(broken(dir.path()), "key k1 of audit entry 1 is gone");
    }

    #[test]
    fn what_was_there_before_is_no_tampering_and_stays_as_it_was() {
        let dir = tempfile::tempdir().unwrap();
        let conn = older(dir.path(), 8);
        conn.execute_batch(
            "INSERT INTO api_keys (id, name, role, hash, created_at) VALUES ('old', 'alice', 'admin', x'01', '2026-01-01T00:00:00Z');
             INSERT INTO pinned_servers VALUES ('fs');
             INSERT INTO tool_pins (server, tool, seen) VALUES ('fs', 'read', 'h1')",
        )
        .unwrap();
        drop(conn);
        // Nobody has migrated it yet.
        let verified = verify_audit(dir.path(), None).unwrap();
        assert_eq!(verified.covered, Covered { keys: 1, pins: 1, untold: 2, ..Covered::default() });
        let conn = open_writer(dir.path()).unwrap();
        let verified = verify_audit(dir.path(), None).unwrap();
        assert_eq!((verified.entries, verified.covered), (1, Covered { keys: 1, pins: 1, ..Covered::default() }));
        drop(open_writer(dir.path()).unwrap());
        assert_eq!(verify_audit(dir.path(), None).unwrap().entries, 1, "once");
        conn.execute(
            "UPDATE tool_pins SET accepted = 'h1', accepted_by = 'alice', accepted_at = '2026-01-01T00:00:00Z'",
            [],
        )
        .unwrap();
        assert!(
            broken(dir.path())
                .contains("the definition of read that was seen or accepted of fs is not as audit entry 1")
        );
        conn.execute("DELETE FROM tool_pins", []).unwrap();
        assert!(broken(dir.path()).contains("is gone"));
    }

    #[test]
    fn a_pin_has_one_hash_whether_it_is_written_or_read() {
        use countersign_domain::policy::pins::{Acceptance, Pin};
        let dir = tempfile::tempdir().unwrap();
        let conn = open_writer(dir.path()).unwrap();
        let at = "2027-01-01T00:00:00.5Z".parse().unwrap();
        let accepted = Acceptance { hash: "h2".into(), by: "alice".into(), at, target: Some("t".into()) };
        for accepted in [None, Some(accepted)] {
            let pin = Pin { seen: Some("h1".into()), accepted, text: Some("{}".into()) };
            let write = PinWrite { tool: "read".into(), pin };
            super::super::pins::store(&conn, "fs", std::slice::from_ref(&write)).unwrap();
            let found = rows(&conn).unwrap();
            assert_eq!(found.pins.values().collect::<Vec<_>>(), [&pin_hash("fs", &write)]);
        }
    }
}
