//! What the entries of the trail say of keys, pins and standing rules, compared with the rows that are there.

use std::collections::BTreeMap;

use rusqlite::{Connection, OptionalExtension as _};
use serde_json::Value;

use super::VerifyError;
use crate::trail::covered::{ANCHORED, FACT, KEY_CREATED, KEY_REVOKED, RESTORED, Rows, rows};
use countersign_domain::changes::audit::Broken;

/// Follows the entries of keys and pins, in memory that is bounded by how many of them there are.
#[derive(Debug, Default)]
pub struct Follower {
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

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

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
}
