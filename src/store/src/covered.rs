//! What the audit trail covers beside changes: keys, the pins of definitions, standing rules, and the policy in force. Each entry that makes
//! or alters one has a hash of its row, so that a row that was altered, added or removed later is found.
//!
//! Rows from before the trail told of them are in one entry, written when the database was migrated ([`anchor`]): from
//! then on they cannot be altered unseen either, and what became of them before nobody can say.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
};

use serde_json::{Value, json};

use countersign_domain::changes::digest::PartHasher;

/// The entry of what was there when the database was migrated.
pub const ANCHORED: &str = "records_anchored";
pub const KEY_CREATED: &str = "key_created";
pub const KEY_REVOKED: &str = "key_revoked";

/// The policy in force was kept for the next start.
pub const POLICY_RECORDED: &str = "policy_recorded";

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

impl KeyRow<'_> {
    pub fn hash(&self) -> String {
        let mut hasher = PartHasher::new("countersign.key.1");
        for text in [self.id, self.name, self.role] {
            hasher.add_part(text.as_bytes());
        }
        hasher
            .add_optional(self.owner)
            .add_part(self.secret)
            .add_part(self.created_at.as_bytes())
            .add_optional(self.revoked_at);
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
        hasher.add_part(self.server.as_bytes()).add_part(self.tool.as_bytes());
        for part in [self.seen, self.accepted, self.by, self.at, self.definition, self.target] {
            hasher.add_optional(part);
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
    /// Hashes of policies in force: the newest under an empty name, and those of nodes.
    pub policies: BTreeMap<String, String>,
}

/// The name of the newest policy among [`Rows::policies`].
pub(crate) const NEWEST_POLICY: &str = "";

pub(crate) fn policy_hash(text: &str) -> String {
    let mut hasher = PartHasher::new("countersign.policy.1");
    hasher.add_part(text.as_bytes());
    hasher.finish()
}

/// The details of the entry of a policy that was kept: as that of this node, and as the newest.
pub(crate) fn of_policy(text: &str, node: Option<&str>, newest: bool) -> String {
    json!({ "row": policy_hash(text), "node": node, "newest": newest }).to_string()
}

/// What an entry has of a standing rule's row.
pub(crate) fn rule_row(id: &str, body: &str, allows: bool, over: bool) -> Value {
    rule_with(id, &rule_hash(body), allows, over)
}

pub(crate) fn rule_with(id: &str, hash: &str, allows: bool, over: bool) -> Value {
    json!({ "id": id, "row": hash, "allows": allows, "over": over })
}

pub(crate) fn rule_hash(body: &str) -> String {
    let mut hasher = PartHasher::new("countersign.rule.1");
    hasher.add_part(body.as_bytes());
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

/// The details of the entry of what was there already.
pub(crate) fn anchored(found: &Rows) -> String {
    let pins: Vec<Value> = found
        .pins
        .iter()
        .map(|((server, tool), hash)| json!({ "server": server, "name": tool, "row": hash }))
        .collect();
    let keys: Vec<Value> = found.keys.iter().map(|(id, hash)| json!({ "id": id, "row": hash })).collect();
    let rules: Vec<Value> =
        found.rules.iter().map(|(id, (hash, allows, over))| rule_with(id, hash, *allows, *over)).collect();
    json!({ "keys": keys, "tools": pins, "servers": found.servers, "rows": rules }).to_string()
}

/// The details of an entry of what became of a key.
pub(crate) fn of_key(key: &KeyRow<'_>) -> String {
    let details = json!({
        "key": { "id": key.id, "name": key.name, "role": key.role, "owner": key.owner },
        "row": key.hash(),
    });
    details.to_string()
}
