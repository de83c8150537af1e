//! What the entries of the trail say of keys, pins, standing rules and the policy in force, compared with the rows that are there.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::covered::{ANCHORED, KEY_CREATED, KEY_REVOKED, NEWEST_POLICY, POLICY_RECORDED, RESTORED, Rows};
use countersign_domain::changes::audit::TrailError;

/// Follows the entries of keys and pins, in memory that is bounded by how many of them there are.
#[derive(Debug, Default)]
pub struct Follower {
    /// The hash of each row, and the entry that left it so.
    keys: BTreeMap<String, (String, u64)>,
    pins: BTreeMap<(String, String), (String, u64)>,
    servers: BTreeMap<String, u64>,
    rules: BTreeMap<String, ToldRule>,
    policies: BTreeMap<String, (String, u64)>,
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
    /// Whether the policy in force is one of those that were compared.
    pub policy: bool,
    /// Keys, pins, rules and policies of a database from before the trail told of them, which no newer version has opened.
    pub untold: u64,
}

impl Follower {
    /// The next entry; its place in the trail was checked before.
    pub fn entry(&mut self, seq: u64, event: &str, details: &str) -> Result<(), TrailError> {
        let tells = matches!(event, ANCHORED | KEY_CREATED | KEY_REVOKED | POLICY_RECORDED | RESTORED)
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
            return Err(TrailError::AnchoredAgain { seq });
        }
        match event {
            KEY_CREATED | KEY_REVOKED => {
                if let (Some(id), Some(row)) = (text(&details["key"]["id"]), text(&details["row"])) {
                    self.covers = true;
                    self.keys.insert(id, (row, seq));
                }
                return Ok(());
            }
            POLICY_RECORDED => {
                let newest = (details["newest"] == true).then(|| NEWEST_POLICY.to_owned());
                if let Some(row) = text(&details["row"]) {
                    let names = newest.into_iter().chain(text(&details["node"]));
                    self.policies.extend(names.map(|name| (name, (row.clone(), seq))));
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
    pub fn finish(self, found: &Rows, told: Option<&str>) -> Result<Covered, TrailError> {
        let covered = Covered {
            keys: found.keys.len() as u64,
            pins: found.pins.len() as u64,
            rules: found.rules.len() as u64,
            policy: self.policies.contains_key(NEWEST_POLICY),
            untold: self.compare_policies(found)?,
        };
        if !self.covers && told.is_none() {
            return Ok(Covered { untold: covered.untold + covered.keys + covered.pins + covered.rules, ..covered });
        }
        self.compare_rules(found)?;
        let key = |id: &String| format!("key {}", shown(id));
        compare(&found.keys, &self.keys, key)?;
        let pin = |(server, tool): &(String, String)| {
            format!("the definition of {} that was seen or accepted of {}", shown(tool), shown(server))
        };
        compare(&found.pins, &self.pins, pin)?;
        let server = |name: &String| format!("the note that {} was connected", shown(name));
        // A server of which no tool was ever seen has no entry.
        if let Some((name, seq)) = self.servers.iter().find(|(name, _)| !found.servers.contains(*name)) {
            return Err(TrailError::RecordGone { what: server(name), seq: *seq });
        }
        Ok(covered)
    }
}

impl Follower {
    /// Returns how many policies no entry tells of. That of a node which is gone is forgotten without one.
    fn compare_policies(&self, found: &Rows) -> Result<u64, TrailError> {
        let named = |name: &str| match name {
            NEWEST_POLICY => "the recorded policy in force".to_owned(),
            node => format!("the recorded policy of node {}", shown(node)),
        };
        if let (Some((_, seq)), None) = (self.policies.get(NEWEST_POLICY), found.policies.get(NEWEST_POLICY)) {
            return Err(TrailError::RecordGone { what: named(NEWEST_POLICY), seq: *seq });
        }
        let mut untold = 0;
        for (name, row) in &found.policies {
            match self.policies.get(name) {
                Some((told, _)) if told == row => {}
                Some((_, seq)) => return Err(TrailError::RecordAltered { what: named(name), seq: *seq }),
                None => untold += 1,
            }
        }
        Ok(untold)
    }

    /// Of rules that are over, the oldest are forgotten; what allowed in a backup was ended without an entry of its own.
    fn compare_rules(&self, found: &Rows) -> Result<(), TrailError> {
        let named = |id: &str| format!("standing rule {}", shown(id));
        for (id, (row, _, over)) in &found.rules {
            match self.rules.get(id) {
                None => return Err(TrailError::RecordUnknown { what: named(id) }),
                Some(told) if told.row != *row && !(told.ended && *over) => {
                    return Err(TrailError::RecordAltered { what: named(id), seq: told.seq });
                }
                Some(_) => {}
            }
        }
        let gone = self.rules.iter().find(|(id, told)| !told.over && !told.ended && !found.rules.contains_key(*id));
        match gone {
            Some((id, told)) => Err(TrailError::RecordGone { what: named(id), seq: told.seq }),
            None => Ok(()),
        }
    }
}

fn compare<K: Ord>(
    found: &BTreeMap<K, String>,
    told: &BTreeMap<K, (String, u64)>,
    named: impl Fn(&K) -> String,
) -> Result<(), TrailError> {
    for (name, row) in found {
        match told.get(name) {
            None => return Err(TrailError::RecordUnknown { what: named(name) }),
            Some((right, seq)) if right != row => {
                return Err(TrailError::RecordAltered { what: named(name), seq: *seq });
            }
            Some(_) => {}
        }
    }
    match told.iter().find(|(name, _)| !found.contains_key(*name)) {
        Some((name, (_, seq))) => Err(TrailError::RecordGone { what: named(name), seq: *seq }),
        None => Ok(()),
    }
}

fn shown(name: &str) -> String {
    name.chars().take(100).flat_map(char::escape_debug).collect()
}
