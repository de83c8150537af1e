//! What of a changed configuration loosens policy, and so waits for a reviewer's consent.

use jiff::Timestamp;
use serde::Serialize;

/// One way in which a new configuration lets through what the old one does not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Loosening {
    /// As in the file: `policy.default`, `mcpServers.files.trust_annotations`.
    pub key: String,
    /// For people.
    pub from: String,
    pub to: String,
}

/// What loosens policy and is not in force yet.
#[derive(Clone, Debug, Serialize)]
pub struct Waiting {
    /// What consent is given to; changes with the policy and the servers of the file.
    pub digest: String,
    pub since: Timestamp,
    /// Never empty.
    pub loosens: Vec<Loosening>,
    /// What the values are in force and in the file, of each key that waits.
    pub content: Vec<Content>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Op {
    Same,
    Removed,
    Added,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Line {
    pub op: Op,
    pub text: String,
}

/// What waits of one key: its value in force against that of the file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Content {
    /// A key of the file, such as `policy.rules`.
    pub key: String,
    /// Without any that is removed or added, what differs is a value that is hidden.
    pub lines: Vec<Line>,
    /// There are more lines.
    pub cut: bool,
}
