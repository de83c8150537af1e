//! The domain of changes: what a change is, its states, its diff, its audit trail. Pure: the clock is passed in.

pub mod arguments;
pub mod audit;
pub mod diff;
pub mod digest;
pub mod machine;
pub mod visible;

pub use digest::fingerprint;

use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// Where a change stands (DESIGN: "Changes").
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChangeState {
    Pending,
    Approved,
    Executing,
    Applied,
    Failed,
    OutcomeUnknown,
    Rejected,
    Expired,
    Withdrawn,
    Stale,
}

impl ChangeState {
    /// Nothing more will happen to it.
    #[must_use]
    pub const fn is_final(self) -> bool {
        matches!(self, Self::Applied | Self::Failed | Self::Rejected | Self::Expired | Self::Withdrawn)
    }
}

/// What a change does to its target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Operation {
    Create,
    Update,
    Delete,
}

/// What a change would alter.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Target {
    /// `issue`, `project`, `comment`, …
    pub entity_type: String,
    /// The entity's id; `None` for one that does not exist yet.
    pub id: Option<String>,
    /// What a person calls it, such as `CORE-12 Fix login`.
    pub label: String,
    /// Changes with the same key run one after another. An entity's id, or the provider's name where unknown.
    pub lock_key: String,
}

/// One field of a diff.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FieldDiff {
    /// The field's name in the entity, such as `title`.
    pub field: String,
    /// What a person calls it.
    pub label: String,
    /// Text of the value before; `None` where there was none.
    pub before: Option<String>,
    pub after: Option<String>,
    /// For long or multi-line text: line by line. Empty for short values.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lines: Vec<DiffLine>,
}

/// One line of a line-by-line diff.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DiffLine {
    pub op: LineOp,
    pub text: String,
}

/// `equal`, `insert` or `delete`; `skip` stands for unchanged lines left out, whose number is the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LineOp {
    Equal,
    Insert,
    Delete,
    Skip,
}

/// Before and after, field by field.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Diff {
    pub fields: Vec<FieldDiff>,
    /// Something was cut because the diff was over its budget: not wholly shown, so not approvable in bulk.
    #[serde(default)]
    pub truncated: bool,
}

/// What a provider says a write would do.
#[derive(Clone, Debug)]
pub struct Preview {
    pub operation: Operation,
    pub target: Target,
    /// One sentence for people and agents: `Create Task “Fix login” in CORE`.
    pub summary: String,
    pub diff: Diff,
    /// Hash of the live state it was computed against (`sha256:…`); taken again when approved and when run.
    pub fingerprint: String,
}

/// Who proposed a change, and through what.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Proposer {
    /// The principal's name.
    pub principal: String,
    #[serde(default)]
    pub key_id: Option<String>,
    /// What the client says of itself.
    #[serde(default)]
    pub client_name: Option<String>,
    #[serde(default)]
    pub client_version: Option<String>,
    #[serde(default)]
    pub session: Option<String>,
    /// `http`, `websocket`, `stdio`, `sse` or `rest`.
    pub transport: String,
    /// The protocol revision, or none for the REST door.
    #[serde(default)]
    pub revision: Option<String>,
}

/// Why a call became a change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ReviewNote {
    /// The rule of the policy that decided; none where `policy.default` did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
    /// One clause for people.
    pub reason: String,
    /// `TOOL_NEW` or `TOOL_CHANGED` where the tool's definition waits for acceptance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mark: Option<String>,
}

/// What a reviewer said.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    Approve,
    Reject,
}

/// One decision by one reviewer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Decision {
    pub reviewer: String,
    pub verdict: Verdict,
    #[serde(default)]
    pub comment: Option<String>,
    pub at: Timestamp,
    /// The version of the change that was decided on.
    pub version: u64,
}

/// Why a change failed, went stale or expired.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ChangeFault {
    /// One of the stable codes of [`crate::protocol::ErrorKind`].
    pub code: String,
    pub message: String,
}

/// A proposed write and its life. This is also its JSON on the REST door.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Change {
    /// `chg_` and 24 characters of a nanoid.
    pub id: String,
    /// Rises by one with every transition; decisions name the one they were made against.
    pub version: u64,
    pub state: ChangeState,
    pub proposer: Proposer,
    pub provider: String,
    pub tool: String,
    pub tool_title: String,
    /// Hash of the tool's definition when proposed.
    pub tool_hash: String,
    /// The exact argument bytes that will run.
    pub arguments: Arc<RawValue>,
    pub operation: Operation,
    pub target: Target,
    pub summary: String,
    pub diff: Diff,
    /// The diff before the target moved, once it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub previous_diff: Option<Diff>,
    pub fingerprint: String,
    /// Hash of what is shown to a reviewer (arguments, target, diff); a decision may carry it.
    pub digest: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub review: Option<ReviewNote>,
    #[serde(default)]
    pub idempotency_key: Option<String>,
    /// How many approvals it needs.
    pub quorum: u32,
    pub decisions: Vec<Decision>,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
    pub expires_at: Timestamp,
    /// What the tool answered (a [`crate::providers::ToolResult`] as JSON), once it ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Arc<RawValue>>,
    /// Why it is failed, stale, expired or of unknown outcome.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<ChangeFault>,
}
