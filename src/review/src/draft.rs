//! Serializes a transition for the store and the feed, on the caller's thread.

use jiff::Timestamp;
use serde::Serialize;
use utoipa::ToSchema;

use countersign_domain::changes::{
    AbsentPerson, Change, ChangeFault, ChangeState, Operation, PlanStep, PreviewKind, Proposer, ReviewDecision,
    ReviewVerdict, Target, Terms, Verification, VerificationOutcome,
    digest::{arguments_hash, body_hash},
    machine::{EventKind, SYSTEM, Transition},
};
use countersign_protocol::{ErrorKind, McpError};
use countersign_store::TransitionDraft;

/// The part of a change that the feed carries, enough to show it in a list: no arguments, no diff, and no comment except
/// the event's own. It has at most 100 votes, since no quorum is larger.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ChangeSummary<'a> {
    id: &'a str,
    version: u64,
    state: ChangeState,
    provider: &'a str,
    tool: &'a str,
    tool_title: &'a str,
    operation: Operation,
    summary: &'a str,
    target: &'a Target,
    proposer: &'a Proposer,
    created_at: Timestamp,
    updated_at: Timestamp,
    expires_at: Timestamp,
    /// The digest of the current content.
    digest: &'a str,
    approvals: usize,
    /// The number of required approvals.
    quorum: u32,
    terms: &'a Terms,
    /// The decisions without their comments.
    #[schema(max_items = 100)]
    decisions: Vec<DecisionSummary<'a>>,
    /// The number of edits of the arguments.
    edit_count: usize,
    preview: PreviewSummary<'a>,
    /// The time until which an approval can be undone.
    #[serde(skip_serializing_if = "Option::is_none")]
    run_after: Option<Timestamp>,
    /// An earlier open change for the same call.
    #[serde(skip_serializing_if = "Option::is_none")]
    duplicate_of: Option<&'a str>,
    /// The place of the change in a plan.
    #[serde(skip_serializing_if = "Option::is_none")]
    plan: Option<&'a PlanStep>,
    #[serde(skip_serializing_if = "Option::is_none")]
    fault: Option<&'a ChangeFault>,
    /// The verification without its reason and differences.
    #[serde(skip_serializing_if = "Option::is_none")]
    verification: Option<Verification>,
}

/// A decision without its comment.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Vote)]
struct DecisionSummary<'a> {
    reviewer: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    owner: Option<&'a str>,
    /// The names of the absent person in whose place the reviewer decided.
    #[serde(skip_serializing_if = "Option::is_none")]
    deputy_for: Option<AbsentPerson>,
    verdict: ReviewVerdict,
    at: Timestamp,
    version: u64,
}

#[derive(Serialize, ToSchema)]
struct PreviewSummary<'a> {
    kind: PreviewKind,
    /// The beginning of the reason for a failed preview.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 200)]
    failed: Option<&'a str>,
    /// The operation that the arguments name, if the tool carries many.
    #[serde(rename = "toolOperation", skip_serializing_if = "Option::is_none")]
    tool_operation: Option<&'a str>,
}

/// The maximum number of characters of the reason for a failed preview.
const MAX_REASON_CHARS: usize = 200;

impl<'a> ChangeSummary<'a> {
    fn new(change: &'a Change) -> Self {
        let summary = |decision: &'a ReviewDecision| DecisionSummary {
            reviewer: &decision.reviewer,
            owner: decision.owner.as_deref(),
            deputy_for: decision.deputy_for.as_ref().map(AbsentPerson::names_only),
            verdict: decision.verdict,
            at: decision.at,
            version: decision.version,
        };
        let truncate_reason =
            |text: &'a str| text.char_indices().nth(MAX_REASON_CHARS).map_or(text, |(end, _)| &text[..end]);
        Self {
            id: &change.id,
            version: change.version,
            state: change.state,
            provider: &change.provider,
            tool: &change.tool,
            tool_title: &change.tool_title,
            operation: change.operation,
            summary: &change.summary,
            target: &change.target,
            proposer: &change.proposer,
            created_at: change.created_at,
            updated_at: change.updated_at,
            expires_at: change.expires_at,
            digest: &change.digest,
            approvals: change.approvals(),
            quorum: change.terms.quorum,
            terms: &change.terms,
            decisions: change.decisions.iter().map(summary).collect(),
            edit_count: change.edits.len(),
            preview: PreviewSummary {
                kind: change.preview.kind,
                failed: change.preview.failed.as_deref().map(truncate_reason),
                tool_operation: change.preview.tool_operation.as_deref(),
            },
            run_after: change.run_after,
            duplicate_of: change.duplicate_of.as_deref(),
            plan: change.plan.as_ref(),
            fault: change.fault.as_ref(),
            verification: change.verification.as_ref().map(Verification::without_details),
        }
    }
}

/// An event without its number and type, which the store prepends.
#[derive(Serialize)]
struct EventTail<'a> {
    at: Timestamp,
    actor: &'a str,
    comment: Option<&'a str>,
    change: ChangeSummary<'a>,
}

/// Returns a live event by the system about a change, without a transition.
pub(super) fn live_event(kind: &str, change: &Change, at: Timestamp) -> serde_json::Value {
    serde_json::json!({
        "type": kind, "at": at, "actor": SYSTEM, "comment": null, "change": ChangeSummary::new(change),
    })
}

/// The details of an audit entry.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct AuditDetails<'a> {
    version: u64,
    /// The digest of what was shown at the time.
    digest: &'a str,
    /// The hash of the argument bytes that this transition proposed, approved or ran.
    arguments_hash: &'a str,
    /// Only for an edit: the hash of the arguments before it.
    #[serde(skip_serializing_if = "Option::is_none")]
    previous_arguments_hash: Option<&'a str>,
    /// The hash of the whole change after the transition, so that `audit verify` notices if the change was altered.
    change_hash: &'a str,
    /// Only for a verification: its result.
    #[serde(skip_serializing_if = "Option::is_none")]
    verified: Option<VerificationOutcome>,
    /// Only for a decision by a deputy: the absent person in whose place it was made.
    #[serde(skip_serializing_if = "Option::is_none")]
    deputy_for: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    comment: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    key_id: Option<&'a str>,
}

/// Serializes a transition into a draft.
pub(super) fn to_draft(transition: Transition) -> Result<TransitionDraft, McpError> {
    let Transition { kind, from, actor, key_id, comment, after } = transition;
    let body = serialize(&after, after.estimated_size())?;
    let tail = serialize(
        &EventTail {
            at: after.updated_at,
            actor: &actor,
            comment: comment.as_deref(),
            change: ChangeSummary::new(&after),
        },
        1536 + after.summary.len() + after.target.label.len() + after.target.lock_key.len(),
    )?;
    let arguments_hash = arguments_hash(&after.arguments);
    let edit = after.edits.last().filter(|_| kind == EventKind::Edited);
    let verification = after.verification.as_ref().filter(|_| kind == EventKind::Verified);
    let decision = after.decisions.last().filter(|d| d.version + 1 == after.version && d.reviewer == actor);
    let details = serialize(
        &AuditDetails {
            version: after.version,
            digest: &after.digest,
            arguments_hash: &arguments_hash,
            previous_arguments_hash: edit.map(|edit| edit.from.as_str()),
            change_hash: &body_hash(&body),
            verified: verification.map(|verification| verification.verified),
            deputy_for: decision.and_then(|d| d.deputy_for.as_ref()).map(AbsentPerson::person_name),
            comment: comment.as_deref(),
            key_id: key_id.as_deref(),
        },
        512 + comment.as_ref().map_or(0, String::len),
    )?;
    // The store prepends the opening brace, the type and the number.
    let mut event_tail = tail;
    event_tail.remove(0);
    Ok(TransitionDraft {
        expected: (kind != EventKind::Created).then(|| after.version - 1),
        at: after.updated_at,
        change: std::sync::Arc::new(after),
        body,
        kind,
        from,
        actor,
        details,
        event_tail,
        ends_orphaned_claim: false,
        call_hash: None,
    })
}

/// Returns the first transition of a new change.
pub(super) fn first_transition(change: Change) -> Transition {
    Transition {
        kind: EventKind::Created,
        from: None,
        actor: change.proposer.principal.clone(),
        key_id: change.proposer.key_id.clone(),
        comment: None,
        after: change,
    }
}

/// Serializes into one allocation of about `size` bytes.
fn serialize<T: Serialize>(value: &T, size: usize) -> Result<String, McpError> {
    let to_error = |error: &dyn std::fmt::Display| {
        tracing::error!(%error, "a change could not be serialized");
        McpError::new(ErrorKind::Internal, "The change could not be stored")
    };
    let mut out = Vec::with_capacity(size);
    serde_json::to_writer(&mut out, value).map_err(|e| to_error(&e))?;
    String::from_utf8(out).map_err(|e| to_error(&e))
}
