//! The domain of changes: what a change is, its states, its diff, its audit trail. Pure: the clock is passed in.

pub mod arguments;
pub mod audit;
pub mod dialogue;
pub mod diff;
pub mod digest;
pub mod export;
pub mod machine;
pub mod person;
pub mod proposer_view;
pub mod retention;
pub mod terms;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod visible;

pub use dialogue::Dialogue;
pub use digest::fingerprint;
pub use terms::{Editing, OnExpiry, OnReview, Terms};

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
    /// Nobody but the tool knows what it does: no recipe says, and its arguments stand for it.
    Call,
}

impl Operation {
    pub const ALL: [Self; 4] = [Self::Create, Self::Update, Self::Delete, Self::Call];

    /// As it stands on the wire and in badges.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Create => "CREATE",
            Self::Update => "UPDATE",
            Self::Delete => "DELETE",
            Self::Call => "CALL",
        }
    }
}

/// What a change would alter.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Target {
    /// `issue`, `project`, `visible_comment`, …
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
    /// It shows live state that the proposer could not have read: reviewers see it, the proposer does not
    /// ([`Change::for_proposer`]).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub restricted: bool,
}

/// One line of a line-by-line diff.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DiffLine {
    pub op: LineOp,
    pub text: String,
}

/// `equal`, `insert` or `delete`; `skip` stands for unchanged lines left out, whose number is the text; `note` is said of
/// the lines and is none of them, such as the name of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LineOp {
    Equal,
    Insert,
    Delete,
    Skip,
    Note,
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

/// How a preview was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PreviewKind {
    /// By a module of the gateway, against its own data.
    #[default]
    Module,
    /// The tool's own dry run.
    DryRun,
    /// What a read of the target gave, beside what the arguments would make of it.
    BeforeAfter,
    /// Nobody can tell what the call would do: its arguments, field by field.
    Arguments,
}

/// How a preview was made, and whether that worked.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PreviewNote {
    pub kind: PreviewKind,
    /// Why there is no better one: a recipe was there, and it failed. The diff shows the arguments then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
    /// It was made of state that the proposer could not have read: what the proposer sees of it is the same whatever
    /// that state is ([`Change::for_proposer`]).
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub restricted: bool,
}

impl PreviewNote {
    /// Whether it shows what the change would do, and not only what was asked for.
    #[must_use]
    pub const fn is_live(&self) -> bool {
        self.failed.is_none() && !matches!(self.kind, PreviewKind::Arguments)
    }
}

/// What a provider says a write would do.
#[derive(Clone, Debug)]
pub struct Preview {
    pub note: PreviewNote,
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
    /// Who the principal belongs to, where that is somebody else ([`crate::principal::Principal::owner`]).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
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
    /// The protocol revision, or none for the REST endpoint.
    #[serde(default)]
    pub revision: Option<String>,
}

/// What runs the calls of a provider: approvals are given to it and to nothing else that takes its name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServedBy {
    /// Of the server's command or addresses (`countersign_config::UpstreamTarget::fingerprint`); empty for a module, which is
    /// always the same.
    pub fingerprint: String,
    /// What a person knows it by: the program's file name or the hosts, without anything that may be a secret.
    pub label: String,
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
    /// Who the reviewer's key belongs to, where that is somebody else: one owner has one vote.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// The key that it was given with, if any: an approval counts as long as that key holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_id: Option<String>,
    pub verdict: Verdict,
    #[serde(default)]
    pub comment: Option<String>,
    pub at: Timestamp,
    /// The version of the change that was decided on.
    pub version: u64,
}

/// One correction of the arguments by a reviewer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Edit {
    pub by: String,
    /// Whose key it was, where that is somebody else, and which: an editor's own approval may not count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub comment: Option<String>,
    pub at: Timestamp,
    /// Hashes of the arguments before and after (`sha256:…` of their bytes).
    pub from: String,
    pub to: String,
}

/// A node in one of its lives: a lease that ran out begins another one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Claimant {
    pub node: String,
    pub epoch: u64,
}

/// The change that an approved one waits for, since both have one target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitsFor {
    pub change: String,
    /// None while that one runs. Of unknown outcome: it waits until then, or until a person has settled it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
}

impl WaitsFor {
    /// What a reviewer is told: what it waits for, and what can be done about it.
    #[must_use]
    pub fn sentence(&self) -> String {
        let Self { change, until } = self;
        match until {
            None => format!("waits for {change}, which has the same target and is running"),
            Some(until) => {
                let until = until.strftime("%H:%M:%SZ");
                format!(
                    "waits for {change}, which has the same target and may still be running: until {until}, or until \
                     somebody settles its outcome"
                )
            }
        }
    }
}

/// Why a change failed, went stale or expired.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ChangeFault {
    /// One of the stable codes of [`countersign_protocol::ErrorKind`].
    pub code: String,
    pub message: String,
}

/// A proposed write and its life. This is also its JSON on the REST endpoint.
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
    /// What was behind the provider's name when the diff was made. None of changes from before that was noted, which are
    /// stale at their first check.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub served_by: Option<ServedBy>,
    /// The exact argument bytes that will run.
    pub arguments: Arc<RawValue>,
    /// What the agent asked for, once a reviewer has changed it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proposed_arguments: Option<Arc<RawValue>>,
    /// Corrections, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub edits: Vec<Edit>,
    pub operation: Operation,
    pub target: Target,
    pub summary: String,
    /// How the diff was made.
    #[serde(default)]
    pub preview: PreviewNote,
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
    /// What the rule asks of its review.
    #[serde(default)]
    pub terms: Terms,
    /// Another open change of the same principal with the same tool and arguments, when this was proposed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duplicate_of: Option<String>,
    pub decisions: Vec<Decision>,
    /// Once approved: it runs from then on, and the approval may be undone until then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_after: Option<Timestamp>,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
    pub expires_at: Timestamp,
    /// Which node runs it, or ran it last, where several serve the store: what another one says of the call does not count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claimed_by: Option<Claimant>,
    /// How long its call may take once it is sent, in milliseconds. Set by the claim.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call_timeout_ms: Option<u64>,
    /// Of a change of unknown outcome: when its call is over at the latest. Until then no other change of its target runs,
    /// unless a person settles this one before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_taken_until: Option<Timestamp>,
    /// Of an approved change: what it waits for. Never stored: whoever shows the change asks for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waits_for: Option<WaitsFor>,
    /// What its tool may ask the proposer's client while it runs, and what it asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dialogue: Option<Dialogue>,
    /// What the tool answered (a `countersign_provider::ToolResult` as JSON), once it ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Arc<RawValue>>,
    /// Why it is failed, stale, expired or of unknown outcome.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<ChangeFault>,
    /// Its contents were taken out when they were old: what is missing, by hash.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub redacted: Option<retention::Redaction>,
}

impl Change {
    /// Returns a hash of what the change acts on. Changes with the same hash never run at the same time; two providers may
    /// use the same key for different things.
    #[must_use]
    pub fn target_hash(&self) -> String {
        let mut hasher = digest::PartHasher::new("countersign.target.1");
        hasher.add_part(self.provider.as_bytes()).add_part(self.target.lock_key.as_bytes());
        hasher.finish()
    }
}
