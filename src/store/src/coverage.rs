//! The rows that the audit trail covers beside changes: keys, pins of definitions, standing rules, recorded policies and
//! absences. Each entry that makes or alters such a row has the row's hash, which detects a row that was altered, added or
//! removed without an entry.
//!
//! The migration of the database writes a single entry for the rows that are older than this coverage.

use std::{borrow::Cow, collections::BTreeMap, fmt};

use serde_json::{Value, json};

use countersign_domain::changes::{audit::TrailError, digest::PartHasher};

/// The event of the entry that covers all rows that existed when the database was migrated.
pub const RECORDS_ANCHORED: &str = "records_anchored";
pub const KEY_CREATED: &str = "key_created";
pub const KEY_REVOKED: &str = "key_revoked";
/// The event of revoking a person.
pub const PERSON_REVOKED: &str = "person_revoked";
/// The events of the beginning of an absence and of its end before its time.
pub const ABSENCE_STARTED: &str = "away";
pub const ABSENCE_ENDED: &str = "back";

/// The event of recording the policy in force, with which the next start compares its own.
pub const POLICY_RECORDED: &str = "policy_recorded";

/// The event of a gateway's start on a restored backup, which ends all absences and all rules that allow calls.
pub const BACKUP_RESTORED: &str = "restored";

/// The fact that says whether the trail covers the rows that are older than the migration: `pending` or `yes`.
pub const COVERAGE_FACT: &str = "trail_covers_keys_and_pins";

/// The name of a row that the trail covers.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum RowName {
    Key(String),
    /// A tool's definition, by server and tool.
    Pin(String, String),
    /// A server whose definitions were recorded.
    Server(String),
    Rule(String),
    NewestPolicy,
    NodePolicy(String),
    /// The absence of a person.
    Absence(String),
}

impl RowName {
    const fn is_policy(&self) -> bool {
        matches!(self, Self::NewestPolicy | Self::NodePolicy(_))
    }
}

impl fmt::Display for RowName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let escape = |name: &str| name.chars().take(100).flat_map(char::escape_debug).collect::<String>();
        match self {
            Self::Key(id) => write!(f, "key {}", escape(id)),
            Self::Pin(server, tool) => {
                write!(f, "the pinned definition of tool {} of server {}", escape(tool), escape(server))
            }
            Self::Server(name) => write!(f, "the record of server {}", escape(name)),
            Self::Rule(id) => write!(f, "standing rule {}", escape(id)),
            Self::NewestPolicy => f.write_str("the recorded policy in force"),
            Self::NodePolicy(node) => write!(f, "the recorded policy of node {}", escape(node)),
            Self::Absence(person) => write!(f, "the absence of {}", escape(person)),
        }
    }
}

/// The content of a covered row.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RowState {
    /// Empty for a server.
    pub hash: String,
    /// Set for standing rules only.
    pub allows: bool,
    pub has_ended: bool,
}

impl RowState {
    pub fn new(hash: String) -> Self {
        Self { hash, ..Self::default() }
    }
}

/// The covered rows of a database.
pub(crate) type CoveredRows = BTreeMap<RowName, RowState>;

/// Returns the hash of a pin's row. `columns` are `seen`, `accepted`, `accepted_by`, `accepted_at`, `definition` and
/// `accepted_target`.
pub(crate) fn pin_hash(server: &str, tool: &str, columns: [Option<&str>; 6]) -> String {
    let mut hasher = PartHasher::new("countersign.pin.1");
    hasher.add_part(server.as_bytes()).add_part(tool.as_bytes());
    for column in columns {
        hasher.add_optional(column);
    }
    hasher.finish()
}

pub(crate) fn policy_hash(text: &str) -> String {
    text_hash("countersign.policy.1", text)
}

pub(crate) fn rule_hash(body: &str) -> String {
    text_hash("countersign.rule.1", body)
}

pub(crate) fn absence_hash(body: &str) -> String {
    text_hash("countersign.absence.1", body)
}

fn text_hash(domain: &str, text: &str) -> String {
    let mut hasher = PartHasher::new(domain);
    hasher.add_part(text.as_bytes());
    hasher.finish()
}

/// Returns the details of the entry for a recorded policy: the policy of a node, the newest policy, or both.
pub(crate) fn policy_details(text: &str, node: Option<&str>, newest: bool) -> String {
    json!({ "row": policy_hash(text), "node": node, "newest": newest }).to_string()
}

/// Returns the description of a standing rule's row for an audit entry.
pub(crate) fn rule_details(id: &str, rule: &RowState) -> Value {
    json!({ "id": id, "row": rule.hash, "allows": rule.allows, "over": rule.has_ended })
}

/// Adds rows to the details of an entry, which are a JSON object.
pub(crate) fn with_rows<'a>(details: &'a str, rows: &[Value]) -> Cow<'a, str> {
    match details.trim_end().strip_suffix('}') {
        Some(open) if !rows.is_empty() => {
            let comma = if open.trim_end().ends_with('{') { "" } else { "," };
            Cow::Owned(format!("{open}{comma}\"rows\":{}}}", Value::from(rows)))
        }
        _ => Cow::Borrowed(details),
    }
}

/// Returns the details of the entry that covers all existing rows.
pub(crate) fn anchor_details(found: &CoveredRows) -> String {
    let (mut keys, mut tools, mut servers, mut rules) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for (name, row) in found {
        match name {
            RowName::Key(id) => keys.push(json!({ "id": id, "row": row.hash })),
            RowName::Pin(server, tool) => tools.push(json!({ "server": server, "name": tool, "row": row.hash })),
            RowName::Server(server) => servers.push(server),
            RowName::Rule(id) => rules.push(rule_details(id, row)),
            // Absences are newer than the coverage.
            RowName::NewestPolicy | RowName::NodePolicy(_) | RowName::Absence(_) => {}
        }
    }
    json!({ "keys": keys, "tools": tools, "servers": servers, "rows": rules }).to_string()
}

/// The covered rows as the last entries of the trail describe them. Its memory is bounded by the number of rows.
#[derive(Debug, Default)]
pub(crate) struct RecordHistory {
    rows: BTreeMap<RowName, RecordedRow>,
    /// Some entry contains the hash of a key, pin or rule, so the trail covers all such rows.
    covers_records: bool,
}

#[derive(Debug)]
struct RecordedRow {
    state: RowState,
    /// The number of the entry.
    seq: u64,
    /// The rule was ended by [`BACKUP_RESTORED`], without an entry of its own.
    ended_by_restore: bool,
}

/// The numbers of rows that were compared with the trail.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CoveredCounts {
    pub keys: u64,
    pub pins: u64,
    pub rules: u64,
    /// The policy in force was compared too.
    pub policy: bool,
    /// Rows that no entry covers, because no version that records them has opened the database yet.
    pub uncovered: u64,
}

impl RecordHistory {
    /// Adds the next entry of the trail. The caller has checked its position in the chain.
    pub fn add_entry(&mut self, seq: u64, event: &str, details: &str) -> Result<(), TrailError> {
        match event {
            BACKUP_RESTORED => {
                let rules = self.rows.values_mut().filter(|row| row.state.allows && !row.state.has_ended);
                rules.for_each(|rule| rule.ended_by_restore = true);
                self.rows.retain(|name, _| !matches!(name, RowName::Absence(_)));
                return Ok(());
            }
            RECORDS_ANCHORED | KEY_CREATED | KEY_REVOKED | POLICY_RECORDED | PERSON_REVOKED | ABSENCE_STARTED
            | ABSENCE_ENDED => {}
            _ if event.starts_with("definitions_") || event.starts_with("standing_rule_") => {}
            _ => return Ok(()),
        }
        let details: Value = details.parse().unwrap_or_default();
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let items = |member: &str| details[member].as_array().into_iter().flatten();
        if event == RECORDS_ANCHORED {
            if std::mem::replace(&mut self.covers_records, true) {
                // An anchor accepts rows without proof, so only the first entry that covers rows may be one.
                return Err(TrailError::AnchoredAgain { seq });
            }
            for key in items("keys") {
                self.record(text(&key["id"]).map(RowName::Key), key, seq);
            }
            for server in items("servers").filter_map(text) {
                self.insert(RowName::Server(server), RowState::default(), seq);
            }
        }
        if matches!(event, KEY_CREATED | KEY_REVOKED) {
            self.record(text(&details["key"]["id"]).map(RowName::Key), &details, seq);
        }
        if event == POLICY_RECORDED {
            self.record((details["newest"] == true).then_some(RowName::NewestPolicy), &details, seq);
            self.record(text(&details["node"]).map(RowName::NodePolicy), &details, seq);
        }
        if event == ABSENCE_STARTED {
            self.record(text(&details["person"]).map(RowName::Absence), &details, seq);
        }
        if event == ABSENCE_ENDED
            && let Some(person) = text(&details["person"])
        {
            self.rows.remove(&RowName::Absence(person));
        }
        // A revocation names the people whose absences it ended.
        for person in items("absences").filter_map(text) {
            self.rows.remove(&RowName::Absence(person));
        }
        for rule in items("rows") {
            self.record(text(&rule["id"]).map(RowName::Rule), rule, seq);
        }
        for tool in items("tools") {
            let server = text(&tool["server"]).or_else(|| text(&details["server"]));
            if let (Some(server), Some(name)) = (server, text(&tool["name"]))
                && self.record(Some(RowName::Pin(server.clone(), name)), tool, seq)
                && !self.rows.contains_key(&RowName::Server(server.clone()))
            {
                self.insert(RowName::Server(server), RowState::default(), seq);
            }
        }
        Ok(())
    }

    /// Records the row that `value` describes. Returns `false` if the name or the hash is missing.
    fn record(&mut self, name: Option<RowName>, value: &Value, seq: u64) -> bool {
        let (Some(name), Some(hash)) = (name, value["row"].as_str()) else { return false };
        self.covers_records |= !name.is_policy();
        let (allows, has_ended) = (value["allows"] == true, value["over"] == true);
        self.insert(name, RowState { hash: hash.to_owned(), allows, has_ended }, seq);
        true
    }

    fn insert(&mut self, name: RowName, state: RowState, seq: u64) {
        self.rows.insert(name, RecordedRow { state, seq, ended_by_restore: false });
    }

    /// Compares the rows of the database with the recorded ones. `covers_old_rows` is set if the database states that the
    /// trail covers all its rows.
    pub fn compare(self, found: &CoveredRows, covers_old_rows: bool) -> Result<CoveredCounts, TrailError> {
        let count = |matches: fn(&RowName) -> bool| found.keys().filter(|name| matches(name)).count() as u64;
        let mut counts = CoveredCounts {
            keys: count(|name| matches!(name, RowName::Key(_))),
            pins: count(|name| matches!(name, RowName::Pin(..))),
            rules: count(|name| matches!(name, RowName::Rule(_))),
            policy: self.rows.contains_key(&RowName::NewestPolicy),
            uncovered: 0,
        };
        for (name, row) in found {
            match self.rows.get(name) {
                // A server that never offered a tool has no entry.
                None if matches!(name, RowName::Server(_)) => {}
                None if name.is_policy() || !(self.covers_records || covers_old_rows) => counts.uncovered += 1,
                None => return Err(TrailError::RecordUnknown { record: name.to_string() }),
                Some(recorded) if recorded.state.hash == row.hash => {}
                Some(recorded) if recorded.ended_by_restore && row.has_ended => {}
                Some(recorded) => {
                    return Err(TrailError::RecordAltered { record: name.to_string(), seq: recorded.seq });
                }
            }
        }
        // The policies of removed nodes and the oldest ended rules are deleted without an entry.
        let is_deletable = |name: &RowName, recorded: &RecordedRow| match name {
            RowName::NodePolicy(_) => true,
            RowName::Rule(_) => recorded.state.has_ended || recorded.ended_by_restore,
            _ => false,
        };
        let missing =
            self.rows.iter().find(|(name, recorded)| !found.contains_key(name) && !is_deletable(name, recorded));
        match missing {
            Some((name, recorded)) => Err(TrailError::RecordGone { record: name.to_string(), seq: recorded.seq }),
            None => Ok(counts),
        }
    }
}
