//! Decisions of people: approve, reject, undo, withdraw, settle.

use std::sync::{Arc, atomic::Ordering};

use tokio::sync::oneshot;

use super::{
    answer::{
        StepResult, change_error, check_comment, check_endpoint, check_reviewer, conflict, expire, finish, is_proposer,
        load, not_found, self_approval, shutting_down, version_conflict,
    },
    refresh::require_same_target,
};
use crate::{Changes, DecideChange, DecideError, commit::StepError, inner::Inner, upkeep::votes};
use countersign_domain::{
    changes::{
        Change, ChangeState, Decision, Verdict,
        machine::{self, ChangeEvent},
        visible,
    },
    principal::{Principal, Role},
};
use countersign_protocol::{ErrorKind, McpError};
use countersign_runtime::crash::crash_point;

/// Decides on the Executor's thread, so that a dropped request leaves nothing half done, and so that providers are never
/// called on the threads that serve connections.
pub(crate) async fn decide(changes: &Changes, decision: DecideChange) -> StepResult {
    check_endpoint(&changes.inner, &decision.reviewer, decision.comment.as_deref())?;
    let inner = Arc::clone(&changes.inner);
    changes.inner.run_on_executor(async move { decide_now(&inner, decision).await }).await
}

impl Inner {
    /// Runs an endpoint's work to completion on the Executor's thread.
    pub(crate) async fn run_on_executor(&self, work: impl Future<Output = StepResult> + Send + 'static) -> StepResult {
        let (reply, answer) = oneshot::channel();
        self.executor.spawn(async move {
            let _ = reply.send(work.await);
        });
        answer.await.unwrap_or_else(|_| Err(shutting_down().into()))
    }
}

async fn decide_now(inner: &Inner, decision: DecideChange) -> StepResult {
    let DecideChange { id, reviewer, verdict, comment, version, digest, bulk } = decision;
    let comment = visible::visible_comment(comment);
    let change = load(inner, &id).await?;
    if verdict == Verdict::Approve && is_proposer(&reviewer, &change) {
        return Err(self_approval(&change));
    }
    if !matches!(change.state, ChangeState::Pending | ChangeState::Stale) {
        return Err(conflict(change));
    }
    check_reviewer(inner, &reviewer, &change)?;
    if change.version != version || digest.is_some_and(|digest| digest != change.digest) {
        return Err(version_conflict(change));
    }
    if inner.is_expired(&change) {
        return Err(expire(inner, change).await);
    }
    check_comment(&change, comment.as_deref())?;
    check_terms(&change, verdict, bulk)?;
    if verdict == Verdict::Approve
        && let Some(void) = votes::void_event(inner, &change)?
    {
        // The version that was shown counted a vote that is no longer valid.
        let step = inner.step_for_endpoint(&change, void, None).await;
        return Err(version_conflict(finish(inner, &change, step).await?));
    }
    let event = ChangeEvent::Decide(Decision {
        reviewer: reviewer.name.clone(),
        owner: reviewer.owner.clone(),
        key_id: reviewer.key_id.clone(),
        verdict,
        comment,
        at: inner.now(),
        version,
    });
    crash_point("before_approve");
    if verdict == Verdict::Approve {
        // An illegal decision is refused before the provider is asked for a preview.
        if change.state == ChangeState::Pending
            && let Err(illegal) = machine::apply(&change, event.clone(), inner.now())
        {
            return finish(inner, &change, Err(StepError::Illegal(illegal))).await;
        }
        require_same_target(inner, &change).await?;
    }
    let decided = inner.step_for_endpoint(&change, event, reviewer.key_id.as_deref()).await;
    crash_point("after_approve");
    finish(inner, &change, decided).await
}

/// Checks the rule's conditions for an approval.
fn check_terms(change: &Arc<Change>, verdict: Verdict, bulk: bool) -> Result<(), DecideError> {
    let refuse = |kind, message: &'static str| {
        Err(DecideError { error: change_error(kind, message, change), current: Some(Arc::clone(change)) })
    };
    if verdict == Verdict::Reject {
        return Ok(());
    }
    if change.terms.preview_required && !change.preview.is_live() {
        return refuse(
            ErrorKind::PreviewRequired,
            "The rule for this change asks for a preview of what it would do, and there is none; refresh it, edit it, or \
             reject it",
        );
    }
    if bulk && change.diff.truncated {
        return refuse(
            ErrorKind::Truncated,
            "Not all of this change was shown, so it cannot be approved together with others; approve it alone",
        );
    }
    Ok(())
}

/// Undoes an approval of the reviewer, or all approvals if an admin asks. The rule's reviewers and comment are not
/// required: an undo only takes a permission away, and must not wait.
pub(crate) async fn undo(inner: &Inner, id: &str, reviewer: &Principal, version: u64) -> StepResult {
    check_endpoint(inner, reviewer, None)?;
    let change = load(inner, id).await?;
    if change.state == ChangeState::Pending && change.version == version {
        let error =
            change_error(ErrorKind::VersionConflict, "There is no approval to take back: it waits for one", &change);
        return Err(DecideError { error, current: Some(change) });
    }
    if change.state != ChangeState::Approved {
        return Err(conflict(change));
    }
    if change.version != version {
        return Err(version_conflict(change));
    }
    let event = ChangeEvent::Unapprove {
        by: reviewer.name.clone(),
        owner: reviewer.owner.clone(),
        key_id: reviewer.key_id.clone(),
        all: reviewer.role == Role::Admin,
    };
    crash_point("before_undo");
    let step = inner.step_for_endpoint(&change, event, reviewer.key_id.as_deref()).await;
    crash_point("after_undo");
    finish(inner, &change, step).await
}

pub(crate) async fn withdraw(inner: &Inner, id: &str, principal: &Principal) -> StepResult {
    if inner.closing.load(Ordering::Acquire) {
        return Err(shutting_down().into());
    }
    let change = load(inner, id).await?;
    if change.proposer.principal != principal.name {
        return Err(if principal.role.may_view() {
            McpError::new(ErrorKind::Forbidden, "Only its proposer can withdraw a change; reject it instead").into()
        } else {
            not_found().into()
        });
    }
    let event = ChangeEvent::Withdraw { by: principal.name.clone() };
    crash_point("before_withdraw");
    let step = inner.step_for_endpoint(&change, event, principal.key_id.as_deref()).await;
    crash_point("after_withdraw");
    finish(inner, &change, step).await
}

pub(crate) async fn settle(
    inner: &Inner,
    id: &str,
    reviewer: &Principal,
    applied: bool,
    comment: Option<String>,
    version: u64,
) -> StepResult {
    check_endpoint(inner, reviewer, comment.as_deref())?;
    let comment = visible::visible_comment(comment);
    let change = load(inner, id).await?;
    if is_proposer(reviewer, &change) {
        let error = change_error(
            ErrorKind::SelfApproval,
            "Whoever proposed a change cannot say how it ended; somebody else must",
            &change,
        );
        return Err(DecideError { error, current: Some(change) });
    }
    if change.state != ChangeState::OutcomeUnknown {
        let error = change_error(ErrorKind::ChangeNotPending, "The outcome of this change is known already", &change);
        return Err(DecideError { error, current: Some(change) });
    }
    // The agent relies on the settled outcome, so as much is required as for the approval.
    check_reviewer(inner, reviewer, &change)?;
    if change.version != version {
        return Err(version_conflict(change));
    }
    check_comment(&change, comment.as_deref())?;
    // The store would refuse it too, but here the error can say until when.
    if let Some(until) = inner.store.in_flight_until(id).await.map_err(|e| crate::store_error(&e))? {
        let message = format!(
            "The gateway that ran it is not heard of, and may still be about to make the call; settle it after {until}, \
             or start that gateway anew"
        );
        let error = change_error(ErrorKind::ChangeNotPending, message, &change).with("settleAfter", until.to_string());
        return Err(DecideError { error, current: Some(change) });
    }
    let event = ChangeEvent::Settle { by: reviewer.name.clone(), applied, comment };
    crash_point("before_settle");
    let step = inner.step_for_endpoint(&change, event, reviewer.key_id.as_deref()).await;
    crash_point("after_settle");
    finish(inner, &change, step).await
}
