//! What is left of a finished change once its contents are old: everything about it, and of its contents the hashes.

use std::sync::Arc;

/// Bytes above which a change may count as large: what the index of such changes has.
pub const LARGE_CHANGE_MIN_BYTES: u64 = 64 << 10;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::{Change, Diff, digest::bytes_hash};

/// Says of a change that its arguments, diffs, answers and result were taken out, and what they hashed to (`sha256:…` of their
/// bytes).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Redaction {
    pub at: Timestamp,
    /// Of the arguments that were decided on.
    pub arguments: String,
    /// Of those that the agent asked for, where a reviewer changed them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proposed_arguments: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<String>,
}

impl Redaction {
    /// Whether the agent asked for exactly these arguments.
    #[must_use]
    pub fn was_proposed_with(&self, arguments: &RawValue) -> bool {
        *self.proposed_arguments.as_ref().unwrap_or(&self.arguments) == bytes_hash(arguments.get())
    }
}

/// The change without its contents. Its version stays: nothing happened to it.
#[must_use]
pub fn redact(change: &Change, at: Timestamp) -> Change {
    let hash = |raw: &Arc<RawValue>| bytes_hash(raw.get());
    let redacted = Redaction {
        at,
        arguments: hash(&change.arguments),
        proposed_arguments: change.proposed_arguments.as_ref().map(hash),
        result: change.result.as_ref().map(hash),
    };
    Change {
        arguments: empty_object(),
        proposed_arguments: None,
        diff: Diff::default(),
        previous_diff: None,
        result: None,
        // The trail has the hash of the whole change after each answer.
        dialogue: None,
        redacted: Some(redacted),
        ..change.clone()
    }
}

/// `{}`: arguments are an object.
fn empty_object() -> Arc<RawValue> {
    serde_json::value::to_raw_value(&serde_json::Map::new())
        .map_or_else(|_| Arc::from(Box::<RawValue>::default()), Arc::from)
}
