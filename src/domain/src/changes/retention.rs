//! Removes the contents of old finished changes and keeps their hashes.

use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;

use super::{Change, Diff, PlanStep, Verification, digest::text_hash};

/// The smallest size, in bytes, of a change that may count as large. The index of large changes uses the same limit.
pub const LARGE_CHANGE_MIN_BYTES: u64 = 64 << 10;

/// Records that the arguments, reason, diffs, answers and result of a change were removed, with the hashes of their bytes
/// (`sha256:…`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Redaction {
    pub at: Timestamp,
    /// Hash of the arguments that were decided on.
    pub arguments: String,
    /// Hash of the proposed arguments, if a reviewer edited them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub proposed_arguments: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result: Option<String>,
}

impl Redaction {
    /// Returns `true` if the agent proposed exactly these arguments.
    pub fn was_proposed_with(&self, arguments: &RawValue) -> bool {
        *self.proposed_arguments.as_ref().unwrap_or(&self.arguments) == text_hash(arguments.get())
    }
}

/// Returns the change without its contents. The version stays, because this is not a transition.
pub fn redact(change: &Change, at: Timestamp) -> Change {
    let hash = |raw: &Arc<RawValue>| text_hash(raw.get());
    let redacted = Redaction {
        at,
        arguments: hash(&change.arguments),
        proposed_arguments: change.proposed_arguments.as_ref().map(hash),
        result: change.result.as_ref().map(hash),
    };
    Change {
        // The arguments of a change must be an object.
        arguments: RawValue::from_string("{}".into()).unwrap_or_default().into(),
        proposed_arguments: None,
        stated_reason: None,
        plan: change.plan.clone().map(|plan| PlanStep { reason: None, ..plan }),
        diff: Diff::default(),
        previous_diff: None,
        result: None,
        verification: change.verification.as_ref().map(Verification::without_details),
        // The audit trail still has the hash of the whole change after each answer.
        dialogue: None,
        redacted: Some(redacted),
        ..change.clone()
    }
}
