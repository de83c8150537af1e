//! The changes of a configuration that loosen policy and therefore wait for a reviewer's consent, as the API shows them.

use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use countersign_config::Config;
use countersign_domain::changes::{LineOp, diff::compare_lines};

/// The audit event of a reviewer who accepts a pending configuration.
pub const ACCEPTED_EVENT: &str = "configuration_accepted";
/// The audit event of a reviewer who refuses a pending configuration.
pub const REFUSED_EVENT: &str = "configuration_refused";

/// A change through which a new configuration lets more calls through than the old one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Loosening {
    /// The key as in the file: `policy.default`, `mcpServers.files.trust_annotations`.
    pub key: String,
    /// The earlier value, described for people.
    pub from: String,
    /// The new value, described for people.
    pub to: String,
}

/// The value of a rule that is not in the list.
pub(crate) const NO_RULE: &str = "no such rule";

impl Loosening {
    pub(crate) fn new(key: impl Into<String>, from: impl Into<String>, to: impl Into<String>) -> Self {
        Self { key: key.into(), from: from.into(), to: to.into() }
    }

    /// Describes the change in one line.
    pub fn describe(&self) -> String {
        let Self { key, from, to } = self;
        match (from.as_str(), to.as_str()) {
            (NO_RULE, to) => format!("{key}: {to} is new"),
            (from, NO_RULE) => format!("{key}: {from} is removed"),
            (from, to) => format!("{key}: {from} → {to}"),
        }
    }
}

/// Returns the keys of the changes for a message.
pub(crate) fn join_keys(loosenings: &[Loosening]) -> String {
    loosenings.iter().map(|loosening| loosening.key.as_str()).collect::<Vec<_>>().join(", ")
}

/// The changes of policy between two configurations.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct PolicyChanges {
    /// Changes that need a reviewer's consent.
    pub loosened: Vec<Loosening>,
    /// Changes that make policy stricter, described for people.
    pub tightened: Vec<String>,
}

impl PolicyChanges {
    pub fn loosen(&mut self, key: impl Into<String>, from: impl Into<String>, to: impl Into<String>) {
        self.loosened.push(Loosening::new(key, from, to));
    }

    pub fn tighten(&mut self, description: impl Into<String>) {
        self.tightened.push(description.into());
    }
}

/// The maximum number of own decisions kept until their audit entries come back. Reviewers make far fewer meanwhile.
const MAX_OWN_DECISIONS: usize = 64;

/// The latest decisions on pending changes made on this node, newest first, whose audit entries have not come back yet:
/// their digests, and `true` for consent.
#[derive(Debug, Default)]
pub(crate) struct OwnDecisions(Vec<(String, bool)>);

impl OwnDecisions {
    pub fn add(&mut self, digest: &str, accept: bool) {
        self.0.insert(0, (digest.to_owned(), accept));
        self.0.truncate(MAX_OWN_DECISIONS);
    }

    /// Removes a decision. Returns `false` if this node did not make it.
    pub fn remove(&mut self, digest: &str, accept: bool) -> bool {
        let index = self.0.iter().position(|(own_digest, own)| own_digest == digest && *own == accept);
        index.map(|index| self.0.remove(index)).is_some()
    }

    /// Returns the first of the recorded decisions on this digest that is none of these own ones.
    pub fn first_other(&self, digest: &str, mut recorded: Vec<bool>) -> Option<bool> {
        for (_, own) in self.0.iter().filter(|(own_digest, _)| own_digest == digest) {
            if let Some(index) = recorded.iter().position(|accept| accept == own) {
                recorded.remove(index);
            }
        }
        recorded.first().copied()
    }
}

/// Changes that loosen policy and are not in force yet.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = ReloadWaiting)]
pub struct PendingPolicy {
    /// The digest that consent is given to; it covers the policy, `dashboard.edit`, the sign-in, the token issuers and the
    /// servers of the file.
    pub digest: String,
    pub since: Timestamp,
    /// The changes; never empty.
    #[serde(rename = "loosens")]
    #[schema(min_items = 1)]
    pub loosenings: Vec<Loosening>,
    /// The values in force and in the file, for each pending key. Empty for viewers.
    pub content: Vec<ValueDiff>,
}

/// Changes that wait for consent, with the configuration that consent puts into force.
#[derive(Clone, Debug)]
pub(crate) struct HeldChanges {
    pub policy: PendingPolicy,
    pub config: Arc<Config>,
}

/// The role of a line in a diff.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum ConfigLineOp {
    Same,
    Removed,
    Added,
}

/// A line of a diff.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = ConfigLine)]
pub struct DiffLine {
    pub op: ConfigLineOp,
    pub text: String,
}

/// Compares two texts line by line. The lines have no line breaks.
pub(crate) fn diff_texts(before: &str, after: &str) -> Vec<DiffLine> {
    // Without a line break at its end, the last line would differ if another line follows it.
    let with_line_break =
        |text: &str| if text.is_empty() || text.ends_with('\n') { text.to_owned() } else { format!("{text}\n") };
    let (before, after) = (with_line_break(before), with_line_break(after));
    let lines = compare_lines(&before, &after).into_iter().map(|(op, line)| {
        let op = match op {
            LineOp::Delete => ConfigLineOp::Removed,
            LineOp::Insert => ConfigLineOp::Added,
            _ => ConfigLineOp::Same,
        };
        DiffLine { op, text: line.trim_end_matches(['\n', '\r']).to_owned() }
    });
    lines.collect()
}

/// The difference between the value in force of a key and its pending value in the file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = ConfigContent)]
pub struct ValueDiff {
    /// A key of the file, such as `policy.rules`.
    pub key: String,
    /// The lines of the diff. If none is added or removed, the difference is in a hidden value.
    pub lines: Vec<DiffLine>,
    /// Set if added or removed lines were left out or shortened.
    #[serde(rename = "cut")]
    pub truncated: bool,
}
