//! Makes the decisions of people: approves, rejects, undoes, withdraws and settles.

use std::sync::Arc;

use super::{
    checks::{
        RequestResult, ReviewerRight, apply_event, check_comment, check_decidable, check_request, check_reviewer,
        check_sign_in, is_proposer, load, not_found_error, refusal_error, to_request_result, version_conflict_error,
        wrong_state_error,
    },
    refresh::require_same_target,
};
use crate::{
    ChangeDecision, ChangeRequestError, ChangeSettlement, Changes, actor::TransitionError, review_core::ReviewCore,
    truncation::truncate_reason, upkeep::votes,
};
use countersign_domain::{
    changes::{
        Change, ChangeState, ReviewDecision, ReviewVerdict,
        machine::{self, ChangeEvent, IllegalTransition},
        person::Person,
        visible,
    },
    principal::{Principal, Role, Scope, TokenRights},
};
use countersign_protocol::{ErrorKind, McpError};
use countersign_runtime::crash::crash_point;

impl Changes {
    /// Approves or rejects. Refuses an approval by the proposer, an old version, a call that policy now denies, and a target
    /// that has changed. In the last case, the change is then pending with a new diff, or stale if it cannot be previewed.
    /// Rejecting an approved step of a plan withdraws the step, which stops the plan.
    ///
    /// Decides on the Executor's thread, so that a dropped future leaves nothing half done, and so that providers are never
    /// called on the threads that serve connections.
    ///
    /// # Errors
    /// `SHUTTING_DOWN`, `FORBIDDEN`, `INVALID_PARAMS` (the comment is too long), `SELF_APPROVAL`, `ALREADY_VOTED`,
    /// `COMMENT_REQUIRED`, `PREVIEW_REQUIRED`, `SIGN_IN_REQUIRED`, `TRUNCATED` (in bulk), `CHANGE_NOT_FOUND`,
    /// `CHANGE_NOT_PENDING`, `VERSION_CONFLICT`, `POLICY_DENIED`, `CHANGE_STALE`, `CHANGE_EXPIRED`, `OVERLOADED`, the provider's
    /// error about the preview, and the errors of the store. All conflicts carry the current change.
    pub async fn decide(&self, decision: ChangeDecision) -> RequestResult {
        check_request(&self.core, &decision.reviewer, decision.comment.as_deref())?;
        let core = Arc::clone(&self.core);
        self.core.run_on_executor(async move { decide_now(&core, decision).await }).await
    }

    /// Undoes the reviewer's own approval, or all approvals if an admin asks, until the change may run
    /// ([`Change::run_after`]). The rule's reviewers and comment are not required: an undo only takes a permission away,
    /// and must not wait.
    ///
    /// # Errors
    /// `SHUTTING_DOWN`, `FORBIDDEN`, `CHANGE_NOT_FOUND`, `CHANGE_NOT_PENDING` (not approved, or too late), `CHANGE_STALE`,
    /// `CHANGE_EXPIRED`, `VERSION_CONFLICT`, `OVERLOADED`; the errors of the store.
    pub async fn undo(&self, id: &str, reviewer: &Principal, version: u64) -> RequestResult {
        let core = &*self.core;
        check_request(core, reviewer, None)?;
        let change = load(core, id).await?;
        if change.state == ChangeState::Pending && change.version == version {
            let message = "There is no approval to undo: the change waits for one";
            return Err(refusal_error(ErrorKind::VersionConflict, message, &change));
        }
        if change.state != ChangeState::Approved {
            return Err(wrong_state_error(&change));
        }
        if change.version != version {
            return Err(version_conflict_error(&change));
        }
        let event = ChangeEvent::Unapprove { reviewer: reviewer.clone(), all: reviewer.role == Role::Admin };
        crash_point("before_undo");
        let undone = apply_event(core, &change, event).await;
        crash_point("after_undo");
        undone
    }

    /// Withdraws a pending or stale change for its proposer, whose token must permit proposals. The audit trail keeps the
    /// reason.
    ///
    /// # Errors
    /// `SHUTTING_DOWN`, `FORBIDDEN`, `CHANGE_NOT_FOUND` (also for someone else's change), `CHANGE_NOT_PENDING`,
    /// `CHANGE_EXPIRED`, `OVERLOADED`; the errors of the store.
    pub async fn withdraw(&self, id: &str, principal: &Principal, reason: Option<String>) -> RequestResult {
        let core = &*self.core;
        core.repository.shutdown.check_open()?;
        principal.require_scope(Scope::ToolsPropose)?;
        let mut change = load(core, id).await?;
        if change.proposer.principal != principal.name {
            return Err(if principal.role.may_view() {
                McpError::new(ErrorKind::Forbidden, "Only its proposer can withdraw a change; reject it instead").into()
            } else {
                not_found_error().into()
            });
        }
        crash_point("before_withdraw");
        let reason = reason.and_then(truncate_reason);
        let transition = loop {
            let event = ChangeEvent::Withdraw { proposer: principal.clone(), reason: reason.clone() };
            match core.repository.transitions.apply_event_for_endpoint(&change, event).await {
                // Another transition came first. The change may still be undecided.
                Err(TransitionError::Conflict) => change = load(core, id).await?,
                transition => break transition,
            }
        };
        crash_point("after_withdraw");
        to_request_result(core, &change, transition).await
    }

    /// Settles an unknown outcome as applied or failed.
    ///
    /// # Errors
    /// `SHUTTING_DOWN`, `FORBIDDEN` (no reviewer, or the rule asks for others), `INVALID_PARAMS` (the comment is too long),
    /// `SELF_APPROVAL`, `COMMENT_REQUIRED`, `SIGN_IN_REQUIRED`, `CHANGE_NOT_FOUND`, `CHANGE_NOT_PENDING` (its outcome is not
    /// unknown, or its call may still be sent), `VERSION_CONFLICT`, `OVERLOADED`; the errors of the store.
    pub async fn settle(&self, settlement: ChangeSettlement) -> RequestResult {
        let core = &*self.core;
        let ChangeSettlement { id, reviewer, applied, comment, version } = settlement;
        check_request(core, &reviewer, comment.as_deref())?;
        let comment = visible::visible_comment(comment);
        let change = load(core, &id).await?;
        if is_proposer(&reviewer, &change) {
            let message = "The proposer of a change cannot settle its outcome; another reviewer must";
            return Err(refusal_error(ErrorKind::SelfApproval, message, &change));
        }
        // The agent relies on the settled outcome, so the requirements are the same as for an approval, in the same order.
        check_reviewer(core, &reviewer, &change)?;
        if change.state != ChangeState::OutcomeUnknown {
            let state = change.state.as_str().replace('_', " ");
            let message = format!("The change has no unknown outcome to settle: it is {state}");
            return Err(refusal_error(ErrorKind::ChangeNotPending, message, &change));
        }
        if change.version != version {
            return Err(version_conflict_error(&change));
        }
        check_comment(&change, comment.as_deref())?;
        check_sign_in(core, &reviewer, &change)?;
        // The store would refuse the transition too, but here the error can name the time.
        if let Some(until) = core.repository.store.in_flight_until(&id).await.map_err(crate::store_error)? {
            let message = format!(
                "The gateway that ran the change does not respond and may still send the call; settle the change after \
                 {until}, or restart that gateway"
            );
            let refusal = refusal_error(ErrorKind::ChangeNotPending, message, &change);
            return Err(refusal.with("settleAfter", until.to_string()));
        }
        let event = ChangeEvent::Settle { reviewer: (*reviewer).clone(), applied, comment };
        crash_point("before_settle");
        let settled = apply_event(core, &change, event).await;
        crash_point("after_settle");
        settled
    }
}

async fn decide_now(core: &ReviewCore, decision: ChangeDecision) -> RequestResult {
    let (change, event) = check_decision(core, decision).await?;
    record_decision(core, &change, event).await
}

/// Checks a decision as far as possible without making it. Returns the change with the event that makes it.
pub(super) async fn check_decision(
    core: &ReviewCore,
    decision: ChangeDecision,
) -> Result<(Arc<Change>, ChangeEvent), ChangeRequestError> {
    let ChangeDecision { id, reviewer, verdict, comment, version, digest, bulk } = decision;
    let comment = visible::visible_comment(comment);
    let change = load(core, &id).await?;
    let approves = verdict == ReviewVerdict::Approve;
    if approves && !change.may_be_approved_by(Person::from_principal(&reviewer)) {
        return refuse(core, &change, IllegalTransition::SelfApproval).await;
    }
    let right = check_reviewer(core, &reviewer, &change)?;
    let stops_plan = !approves && change.is_approved_step();
    if stops_plan && change.version != version {
        return Err(version_conflict_error(&change));
    }
    if !stops_plan {
        check_decidable(core, &change, version).await?;
    }
    if digest.is_some_and(|digest| digest != change.digest) {
        return Err(version_conflict_error(&change));
    }
    check_comment(&change, comment.as_deref())?;
    if stops_plan {
        let comment = comment.map_or_else(String::new, |comment| format!(": “{comment}”"));
        let name = reviewer.display_name().unwrap_or(&reviewer.name);
        let reason = format!("its plan was stopped by {name}{comment}");
        crash_point("before_decide");
        return Ok((change, ChangeEvent::StopPlan { reason, reviewer: Some((*reviewer).clone()) }));
    }
    if approves {
        check_terms(&change, bulk)?;
        check_sign_in(core, &reviewer, &change)?;
        if let Some(void) = votes::void_event(&core.repository, &change)? {
            // The version that was shown counted a vote that is no longer valid.
            return Err(version_conflict_error(&apply_event(core, &change, void).await?));
        }
    }
    let event = ChangeEvent::Decide(ReviewDecision {
        reviewer: reviewer.name.clone(),
        display_name: reviewer.display_name().map(str::to_owned),
        owner: reviewer.owner.clone(),
        key_id: reviewer.key_id.clone(),
        other_names: reviewer.other_names().to_vec(),
        token: TokenRights::from_principal(&reviewer),
        deputy_for: match right {
            ReviewerRight::Own => None,
            ReviewerRight::Deputy(absent) => Some(*absent),
        },
        verdict,
        comment,
        at: core.repository.config.now(),
        version,
    });
    crash_point("before_decide");
    if approves {
        // An illegal decision is refused before the provider is asked for a preview.
        if change.state == ChangeState::Pending
            && let Err(illegal) = machine::apply(&change, event.clone(), core.repository.config.now())
        {
            return refuse(core, &change, illegal).await;
        }
        // Policy may have become stricter since the proposal.
        core.judge(&change, &change.arguments)
            .await
            .map_err(|error| ChangeRequestError { error, current: Some(Arc::clone(&change)) })?;
        require_same_target(core, &change).await?;
    }
    Ok((change, event))
}

/// Makes a decision that was checked.
pub(super) async fn record_decision(core: &ReviewCore, change: &Arc<Change>, event: ChangeEvent) -> RequestResult {
    let decided = apply_event(core, change, event).await;
    crash_point("after_decide");
    decided
}

/// Returns the refusal of a decision that is not legal.
async fn refuse<T>(
    core: &ReviewCore,
    change: &Arc<Change>,
    illegal: IllegalTransition,
) -> Result<T, ChangeRequestError> {
    match to_request_result(core, change, Err(TransitionError::Illegal(illegal))).await {
        Ok(change) => Err(version_conflict_error(&change)),
        Err(refused) => Err(refused),
    }
}

/// Checks the rule's conditions for an approval.
fn check_terms(change: &Arc<Change>, bulk: bool) -> Result<(), ChangeRequestError> {
    if change.terms.preview_required && !change.preview.permits_approval() {
        let message = "The rule for this change asks for a preview of what it would do, and there is none; refresh it, \
                       edit it, or reject it";
        return Err(refusal_error(ErrorKind::PreviewRequired, message, change));
    }
    if bulk && change.diff.truncated {
        let message =
            "This change was not shown completely, so it cannot be approved together with others; approve it alone";
        return Err(refusal_error(ErrorKind::Truncated, message, change));
    }
    Ok(())
}
