//! Turns a previewed write into a durable pending change.

use std::sync::Arc;

use jiff::SignedDuration;
use serde_json::{json, value::RawValue};

use super::checks::into_client_error;
use crate::{
    Changes, MAX_IDEMPOTENCY_KEY_BYTES, Proposal,
    actor::{TransitionError, TransitionResult, duplicate_calls},
    draft,
    review_core::ReviewCore,
    store_error,
    truncation::{truncate_client_texts, truncate_headlines, truncate_reason},
};
use countersign_domain::changes::{CHANGE_ID_PREFIX, Change, ChangeState, Dialogue, Proposer, arguments};
use countersign_protocol::{ErrorKind, McpError};
use countersign_runtime::crash::crash_point;
use countersign_store::{AuditRecord, TransitionDraft, WriteRequest, write as write_to_store};

impl Changes {
    /// Stores a change durably, then announces it. The same idempotency key by the same principal with the
    /// same tool and arguments returns the same change. Without a key, a duplicate is a change of its own.
    ///
    /// # Errors
    /// `IDEMPOTENCY_CONFLICT`, `INVALID_PARAMS` (duplicate keys in the arguments), `TOO_LARGE`, `RATE_LIMITED` (this
    /// principal has too many open changes or bytes, or proposed too many changes within a minute or more bytes than
    /// `max_bytes_per_day`), `OVERLOADED`, `STORE_UNAVAILABLE`, `SHUTTING_DOWN`.
    pub async fn propose(&self, proposal: Proposal) -> Result<Arc<Change>, McpError> {
        let core = &*self.core;
        core.repository.shutdown.check_open()?;
        crash_point("before_propose");
        if proposal.idempotency_key.is_some() {
            return Box::pin(propose_with_key(core, proposal)).await;
        }
        core.admit_proposals(&proposal.proposer.principal, 1)?;
        // The proposal is consumed here, so that many waiting requests do not keep its preview and arguments in memory
        // twice.
        let draft = draft_change(core, proposal)?;
        write_new_change(core, draft).await.map_err(into_client_error)
    }
}

/// A call, without the principal that makes it.
#[derive(Clone, Copy, Debug)]
pub struct CallIdentity<'a> {
    pub provider: &'a str,
    pub tool: &'a str,
    pub arguments: &'a RawValue,
}

impl<'a> CallIdentity<'a> {
    pub(super) fn from_proposal(proposal: &'a Proposal) -> Self {
        Self { provider: &proposal.provider, tool: &proposal.tool, arguments: &proposal.arguments }
    }

    /// Returns `true` if the change was proposed as this call.
    pub(super) fn is_origin_of(&self, change: &Change) -> bool {
        change.provider == self.provider
            && change.tool == self.tool
            && match &change.redacted {
                Some(redacted) => redacted.was_proposed_with(self.arguments),
                None => arguments::are_equal(change.original_arguments(), self.arguments),
            }
    }
}

impl Changes {
    /// Returns the change that the principal has proposed with this idempotency key. A repeated call is answered with it before
    /// it is previewed, because after it ran, it may be impossible to preview. `plan` is the id of the plan that the call names.
    ///
    /// # Errors
    /// `IDEMPOTENCY_CONFLICT` if it was another call, or one of another plan; the errors of the store.
    pub async fn find_repeated(
        &self,
        principal: &str,
        key: &str,
        call: CallIdentity<'_>,
        plan: Option<&str>,
    ) -> Result<Option<Arc<Change>>, McpError> {
        let existing = find_by_key(&self.core, principal, key).await?;
        existing.map(|existing| answer_repeat(existing, call, plan)).transpose()
    }

    /// Records a call that is returned to its agent because its preview shows that it must fail. It counts toward
    /// `max_proposals_per_minute`. `tool` is the name by which rules refer to the call.
    ///
    /// # Errors
    /// `RATE_LIMITED`, `STORE_UNAVAILABLE`, `SHUTTING_DOWN`.
    pub async fn record_failing_call(
        &self,
        proposer: Proposer,
        provider: &str,
        tool: &str,
        reason: &str,
    ) -> Result<(), McpError> {
        let core = &*self.core;
        core.repository.shutdown.check_open()?;
        core.admit_proposals(&proposer.principal, 1)?;
        let proposer = truncate_client_texts(proposer);
        let details = json!({ "provider": provider, "tool": tool, "comment": reason, "proposer": proposer });
        let record = AuditRecord::new(
            "failing_call_returned",
            core.repository.config.now(),
            &proposer.principal,
            details.to_string(),
        );
        let write_result = write_to_store(&*core.repository.store, WriteRequest::Record(record)).await;
        write_result.map_err(|error| error.to_user_error("the call could not be recorded; nothing was called"))
    }
}

/// Writes a new change, and removes it from the index of duplicates if it is refused. The actor removes a change that the store
/// did not write; after a timeout, the write may still succeed.
pub(super) async fn write_new_change(core: &ReviewCore, draft: TransitionDraft) -> TransitionResult {
    let id = draft.change.id.clone();
    // `draft_change` adds only changes without an idempotency key.
    if let Some(call) = draft.call_hash.as_ref().filter(|_| draft.change.idempotency_key.is_some()) {
        core.repository.indexes.duplicates.add(call, &id);
    }
    let result = core.repository.transitions.write_for_endpoint(draft).await;
    crash_point("after_propose");
    if let Err(TransitionError::Refused(_)) = &result {
        core.repository.indexes.duplicates.remove(&id);
    }
    result
}

async fn propose_with_key(core: &ReviewCore, proposal: Proposal) -> Result<Arc<Change>, McpError> {
    // Existing changes are looked up first, so that a repeat is answered even if a limit is reached.
    if let Some(existing) = find_existing(core, &proposal).await? {
        return answer_repeat(existing, CallIdentity::from_proposal(&proposal), None);
    }
    let draft = draft_change(core, proposal)?;
    let change = Arc::clone(&draft.change);
    core.admit_proposals(&change.proposer.principal, 1)?;
    match write_new_change(core, draft).await {
        // Another proposal with the same key was stored at the same moment.
        Err(TransitionError::Duplicate) => {
            let key = change.idempotency_key.as_deref().unwrap_or_default();
            let existing = find_by_key(core, &change.proposer.principal, key).await?;
            let existing = existing.ok_or_else(|| into_client_error(TransitionError::Duplicate))?;
            let Change { provider, tool, arguments, .. } = &*change;
            answer_repeat(existing, CallIdentity { provider, tool, arguments }, None)
        }
        written => written.map_err(into_client_error),
    }
}

/// Checks a proposal, and drafts its change. A change without an idempotency key is added to the index of duplicates.
pub(super) fn draft_change(core: &ReviewCore, proposal: Proposal) -> Result<TransitionDraft, McpError> {
    check_proposal(core, &proposal)?;
    let mut change = new_change(core, proposal);
    let call =
        duplicate_calls::call_hash(&change.proposer.principal, &change.provider, &change.tool, &change.arguments);
    let id = change.id.clone();
    // With a key, the caller itself says which calls are the same.
    if change.idempotency_key.is_none() {
        change.duplicate_of = core.repository.indexes.duplicates.add(&call, &id);
    }
    let draft = draft::to_draft(draft::first_transition(change)).and_then(|draft| {
        core.repository.transitions.check_size(&draft)?;
        Ok(TransitionDraft { call_hash: Some(call), ..draft })
    });
    draft.inspect_err(|_| core.repository.indexes.duplicates.remove(&id))
}

fn check_proposal(core: &ReviewCore, proposal: &Proposal) -> Result<(), McpError> {
    check_reviewable(&proposal.arguments, core.repository.config.tuning.max_change_bytes, ErrorKind::InvalidParams)?;
    if proposal.idempotency_key.as_ref().is_some_and(|key| key.is_empty() || key.len() > MAX_IDEMPOTENCY_KEY_BYTES) {
        return Err(McpError::new(
            ErrorKind::InvalidParams,
            format!("An idempotency key has 1 to {MAX_IDEMPOTENCY_KEY_BYTES} bytes"),
        ));
    }
    Ok(())
}

/// Checks the size and form of arguments that a reviewer will see; `kind` is the error if they are
/// ambiguous or not an object.
pub(crate) fn check_reviewable(arguments: &RawValue, max: usize, kind: ErrorKind) -> Result<(), McpError> {
    let size = arguments.get().len();
    if size > max {
        return Err(McpError::new(ErrorKind::TooLarge, "The arguments are too large to be reviewed")
            .with("max", max)
            .with("size", size));
    }
    arguments::check(arguments).map_err(|e| McpError::new(kind, format!("The arguments cannot be reviewed: {e}")))
}

fn new_change(core: &ReviewCore, proposal: Proposal) -> Change {
    let preview = truncate_headlines(proposal.preview);
    let now = core.repository.config.now();
    let expire_after = SignedDuration::try_from(proposal.expire_after).unwrap_or(SignedDuration::MAX);
    let mut change = Change {
        id: format!("{CHANGE_ID_PREFIX}{}", nanoid::nanoid!(24, &nanoid::alphabet::SAFE[2..])),
        version: 1,
        state: ChangeState::Pending,
        proposer: truncate_client_texts(proposal.proposer),
        provider: proposal.provider,
        tool: proposal.tool,
        tool_title: proposal.tool_title,
        tool_hash: proposal.tool_hash,
        served_by: proposal.served_by,
        arguments: proposal.arguments,
        proposed_arguments: None,
        edits: Vec::new(),
        preview: preview.note,
        operation: preview.operation,
        target: preview.target,
        summary: preview.summary,
        diff: preview.diff,
        previous_diff: None,
        fingerprint: preview.fingerprint,
        digest: String::new(),
        review: proposal.review,
        idempotency_key: proposal.idempotency_key,
        stated_reason: proposal.stated_reason.and_then(truncate_reason),
        dialogue: proposal.client_capabilities.filter(|_| proposal.terms.questions).map(Dialogue::new),
        terms: proposal.terms,
        duplicate_of: None,
        plan: proposal.plan,
        run_after: None,
        claimed_by: None,
        call_timeout_ms: None,
        target_taken_until: None,
        waits_for: None,
        decisions: Vec::new(),
        created_at: now,
        updated_at: now,
        expires_at: now.saturating_add(expire_after).unwrap_or(jiff::Timestamp::MAX),
        result: None,
        verification: None,
        fault: None,
        redacted: None,
    };
    change.digest = change.review_digest();
    if change.is_allowed_step() {
        change.state = ChangeState::Approved;
    }
    change
}

/// Returns the change that the same principal proposed with the same idempotency key.
pub(super) async fn find_existing(core: &ReviewCore, proposal: &Proposal) -> Result<Option<Arc<Change>>, McpError> {
    let Some(key) = &proposal.idempotency_key else { return Ok(None) };
    find_by_key(core, &proposal.proposer.principal, key).await
}

/// Returns the change that the principal has proposed with this idempotency key.
pub(super) async fn find_by_key(
    core: &ReviewCore,
    principal: &str,
    key: &str,
) -> Result<Option<Arc<Change>>, McpError> {
    core.repository.store.find_by_idempotency_key(principal, key).await.map_err(store_error)
}

/// Answers a repeated proposal with the existing change, if it is the same call of the same plan.
pub(super) fn answer_repeat(
    existing: Arc<Change>,
    repeat: CallIdentity<'_>,
    plan: Option<&str>,
) -> Result<Arc<Change>, McpError> {
    let is_same_plan = existing.plan.as_ref().map(|plan| plan.id.as_str()) == plan;
    if is_same_plan && repeat.is_origin_of(&existing) { Ok(existing) } else { Err(key_conflict_error(&existing)) }
}

pub(super) fn key_conflict_error(existing: &Change) -> McpError {
    McpError::new(ErrorKind::IdempotencyConflict, "This idempotency key was used for another call")
        .with("changeId", existing.id.as_str())
}
