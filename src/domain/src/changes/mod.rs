//! The domain of changes: their data, states, diffs and audit trail. This module is pure: the clock is passed in.

mod absence;
pub mod arguments;
pub mod audit;
pub mod dialogue;
pub mod diff;
pub mod digest;
mod escalation;
pub mod export;
mod format;
pub mod image;
pub mod machine;
pub mod person;
pub mod plan;
mod preview;
mod proposer;
pub mod proposer_view;
mod reminder;
pub mod retention;
pub mod terms;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod verification;
pub mod visible;

pub use absence::{Absence, AbsentPerson, MAX_ABSENCE};
pub use dialogue::Dialogue;
pub use digest::fingerprint;
pub use escalation::Escalation;
pub use format::FieldFormat;
pub use plan::PlanStep;
pub use preview::{
    COMPARED_FIELD, CertainFailure, MISSING_FIELD_SUFFIX, Preview, PreviewKind, PreviewNote, StateEffect,
    qualified_operation,
};
pub use proposer::Proposer;
pub use terms::{Editing, OnExpiry, OnFailedPreview, OnReview, SignInTerms, Terms};
pub use verification::{Verification, VerificationOutcome};

use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use strum::{EnumString, IntoStaticStr, VariantArray};
use utoipa::ToSchema;

use crate::principal::TokenRights;
use countersign_protocol::ErrorKind;

/// The state of a change.
// The module `machine` defines the transitions between states.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    Hash,
    PartialOrd,
    Ord,
    Serialize,
    Deserialize,
    EnumString,
    IntoStaticStr,
    VariantArray,
    ToSchema,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
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
    pub const VARIANTS: &[Self] = <Self as VariantArray>::VARIANTS;

    /// Returns the name in JSON and in the store.
    pub fn as_str(self) -> &'static str {
        self.into()
    }

    /// Parses the name of a state.
    pub fn parse(name: &str) -> Option<Self> {
        name.parse().ok()
    }

    /// Returns `true` if the outcome is settled. Only a [`Verification`] may follow, which keeps the state.
    pub const fn is_final(self) -> bool {
        matches!(self, Self::Applied | Self::Failed | Self::Rejected | Self::Expired | Self::Withdrawn)
    }

    /// Returns `true` while a reviewer may decide on the change.
    pub const fn awaits_decision(self) -> bool {
        matches!(self, Self::Pending | Self::Stale)
    }
}

/// The effect of a change on its target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, IntoStaticStr, VariantArray, ToSchema)]
#[serde(rename_all = "UPPERCASE")]
#[strum(serialize_all = "UPPERCASE")]
pub enum Operation {
    Create,
    Update,
    Delete,
    /// The effect is unknown: no recipe describes it, so the arguments are shown instead.
    Call,
}

impl Operation {
    pub const VARIANTS: &[Self] = <Self as VariantArray>::VARIANTS;

    /// Returns the name on the wire and in badges.
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// The entity that a change would alter.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Target {
    /// The kind of entity, such as `issue`, `project` or `visible_comment`.
    pub entity_type: String,
    /// The id of the entity; `None` if it does not exist yet.
    #[schema(required)]
    pub id: Option<String>,
    /// The name for people, such as `CORE-12 Fix login`.
    pub label: String,
    /// Changes with the same key run one after another. It is the entity's id, or the provider's name if the entity is
    /// unknown.
    pub lock_key: String,
}

/// One field of a diff.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct FieldDiff {
    /// The field's name in the entity, such as `title`.
    pub field: String,
    /// The label for people.
    pub label: String,
    /// The text of the value before; `None` if there was none.
    #[schema(required)]
    pub before: Option<String>,
    #[schema(required)]
    pub after: Option<String>,
    /// The line-by-line diff of long or multi-line text. Empty for short values.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lines: Vec<DiffLine>,
    /// The format of the value. Displays choose the best form for it.
    #[serde(default, skip_serializing_if = "FieldFormat::is_text")]
    pub format: FieldFormat,
    /// The language of code, such as `rust`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub language: Option<String>,
    /// The field shows live state that the proposer could not read. Reviewers see it, the proposer does not.
    // `Change::for_proposer` hides it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub restricted: bool,
}

/// One line of a line-by-line diff.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct DiffLine {
    pub op: LineOp,
    pub text: String,
}

/// The role of a line in a diff.
// The order of the variants is part of `Change::review_digest`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum LineOp {
    Equal,
    Insert,
    Delete,
    /// Omitted unchanged lines; the text is their number.
    Skip,
    /// A remark, such as a file name.
    Note,
}

/// The values before and after, field by field.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Diff {
    pub fields: Vec<FieldDiff>,
    /// The diff was truncated by its limits, so the change cannot be approved in bulk.
    #[serde(default)]
    #[schema(required)]
    pub truncated: bool,
}

/// The server that runs a provider's calls. Approvals are bound to it; another server of the same name cannot use them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = ServedBy)]
pub struct ServerIdentity {
    /// Fingerprint of the server's command or addresses. Empty for a module, which never changes.
    pub fingerprint: String,
    /// The name for people: the program's file name or the hosts, without possible secrets.
    pub label: String,
}

/// The reason why a call became a change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReviewNote {
    /// The policy rule that decided, unless `policy.default` did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
    /// One clause for people.
    pub reason: String,
    /// `TOOL_NEW` or `TOOL_CHANGED` if the tool's definition is not accepted yet, `OPERATION_UNKNOWN` if its recipe does not
    /// know the operation.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(pattern = "^(TOOL_NEW|TOOL_CHANGED|OPERATION_UNKNOWN)$")]
    pub mark: Option<String>,
}

/// The decision of a reviewer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = DecisionVerdict)]
pub enum ReviewVerdict {
    Approve,
    Reject,
}

/// One decision by one reviewer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Decision)]
pub struct ReviewDecision {
    pub reviewer: String,
    /// The reviewer's name for people, if an identity provider gave one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub display_name: Option<String>,
    /// The owner of the reviewer's key, if that is another person. One owner has one vote.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// The key used for the decision, if any. An approval counts as long as that key is valid.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_id: Option<String>,
    /// The reviewer's names by other claims than `sub`, or those of the people who created the reviewer's key. They forbid a second
    /// vote.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub other_names: Vec<String>,
    /// The rights of the access token used for the decision, if any. An approval counts as long as they would suffice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<TokenRights>,
    /// The absent person in whose place the reviewer decided, as their deputy. Both together have one vote.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deputy_for: Option<AbsentPerson>,
    pub verdict: ReviewVerdict,
    #[schema(required)]
    pub comment: Option<String>,
    pub at: Timestamp,
    /// The version of the change that was decided on.
    pub version: u64,
}

impl ReviewDecision {
    /// Returns the reviewer's name for people.
    pub fn shown_name(&self) -> &str {
        self.display_name.as_deref().unwrap_or(&self.reviewer)
    }
}

/// An edit of the arguments by a reviewer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Edit {
    /// The name of the editor.
    pub by: String,
    /// The editor's name for people, if an identity provider gave one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub display_name: Option<String>,
    /// The owner of the editor's key, if that is another person.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// The id of the editor's key, by which the editor is recognized where editors may not approve.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_id: Option<String>,
    /// The editor's names by other claims than `sub`, or those of the people who created the editor's key.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub other_names: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub comment: Option<String>,
    pub at: Timestamp,
    /// Hash of the arguments before (`sha256:…` of their bytes).
    pub from: String,
    /// Hash of the arguments after.
    pub to: String,
}

/// The node that claimed a change, in one of its epochs. A node whose lease has expired rejoins with the next epoch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Claimant {
    pub node: String,
    pub epoch: u64,
}

/// The change of the same target that an approved change waits for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = WaitsFor)]
pub struct BlockingChange {
    pub change: String,
    /// Set if the outcome of the other change is unknown: this change waits until that time, or until a person has settled
    /// the other one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
}

impl BlockingChange {
    /// Describes for a reviewer what the change waits for and what can be done about it.
    pub fn describe(&self) -> String {
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

/// The reason why a change failed, became stale or expired.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Fault)]
pub struct ChangeFault {
    /// A stable code.
    // One of `countersign_protocol::ErrorKind`.
    pub code: String,
    pub message: String,
}

impl ChangeFault {
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { code: kind.code().into(), message: message.into() }
    }
}

/// The beginning of the id of each change.
pub const CHANGE_ID_PREFIX: &str = "chg_";

/// A proposed write.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Change {
    /// `chg_` and 24 characters of a nanoid.
    pub id: String,
    /// Incremented by every transition. Decisions name the version that they were made against.
    pub version: u64,
    pub state: ChangeState,
    pub proposer: Proposer,
    pub provider: String,
    pub tool: String,
    pub tool_title: String,
    /// Hash of the tool's definition when the change was proposed.
    pub tool_hash: String,
    /// The server behind the provider's name when the diff was made.
    // A record without it counts as one of a module, so a change of a server becomes stale.
    #[serde(default)]
    #[schema(required)]
    pub served_by: ServerIdentity,
    /// The exact bytes of the arguments that will run.
    #[schema(value_type = Object)]
    pub arguments: Arc<RawValue>,
    /// The arguments that the agent proposed, once a reviewer has edited them.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub proposed_arguments: Option<Arc<RawValue>>,
    /// Edits, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub edits: Vec<Edit>,
    pub operation: Operation,
    pub target: Target,
    pub summary: String,
    /// The source of the diff.
    #[serde(default)]
    #[schema(required)]
    pub preview: PreviewNote,
    pub diff: Diff,
    /// The diff before the target changed, if it has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub previous_diff: Option<Diff>,
    /// Hash of the state that the diff was computed against.
    pub fingerprint: String,
    /// Hash of the content shown to a reviewer (arguments, target, diff). A decision may carry it.
    pub digest: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub review: Option<ReviewNote>,
    #[schema(required)]
    pub idempotency_key: Option<String>,
    /// The agent's reason for the call, in its own words, at most 1,000 characters. Nothing checks it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stated_reason: Option<String>,
    /// The terms that the rule sets for the review.
    #[serde(default)]
    #[schema(required)]
    pub terms: Terms,
    /// Another open change with the same principal, tool and arguments, at the time of the proposal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duplicate_of: Option<String>,
    /// The place of the change in a plan, if it is a step of one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<PlanStep>,
    pub decisions: Vec<ReviewDecision>,
    /// The time at which an approved change runs. Until then the approval can be undone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run_after: Option<Timestamp>,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
    pub expires_at: Timestamp,
    /// The node that runs the change or ran it last, if several nodes serve the store. Reports of other nodes about the
    /// call are ignored.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub claimed_by: Option<Claimant>,
    /// The timeout of the call after it is sent, in milliseconds. The claim sets it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub call_timeout_ms: Option<u64>,
    /// The time by which the call of a change of unknown outcome has ended. Until then no other change of the target
    /// runs, unless a person settles this one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_taken_until: Option<Timestamp>,
    /// The change that an approved change waits for. It is never stored, but computed for display.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waits_for: Option<BlockingChange>,
    /// Questions that the tool may ask the proposer's client during the call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dialogue: Option<Dialogue>,
    /// The result of the tool after the call: `content`, and if it returned them, `structuredContent` and `isError`.
    // A `countersign_provider::ToolResult`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub result: Option<Arc<RawValue>>,
    /// The comparison of the target after the run with what was approved. Missing unless the change was applied and its
    /// preview or recipe says what to expect.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verification: Option<Verification>,
    /// The reason why the change failed, is stale, expired or has an unknown outcome.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fault: Option<ChangeFault>,
    /// Hashes of the contents that were removed because of their age.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub redacted: Option<retention::Redaction>,
}

impl Change {
    /// Parses the JSON of a change. Other crates do it with this function, because each copy of the parser is large.
    ///
    /// # Errors
    /// Fails if the text is not a change.
    pub fn from_json(text: &str) -> Result<Self, serde_json::Error> {
        serde_json::from_str(text)
    }

    /// Returns a hash of the target. Changes with the same hash never run at the same time. It includes the provider,
    /// because two providers may use equal keys for different targets.
    pub fn target_hash(&self) -> String {
        let mut hasher = digest::PartHasher::new("countersign.target.1");
        hasher.add_part(self.provider.as_bytes()).add_part(self.target.lock_key.as_bytes());
        hasher.finish()
    }
}
