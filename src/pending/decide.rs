//! What people do with a change: decide, withdraw, settle.

use std::sync::{Arc, atomic::Ordering};

use tokio::sync::oneshot;

use super::{
    Changes, DecideChange, DecideError, MAX_COMMENT,
    commit::StepError,
    recheck::{Recheck, moved_fault},
    start::Inner,
    store_error,
};
use crate::{
    auth::Principal,
    changes::{
        Change, ChangeState, Decision, Verdict,
        machine::{ChangeEvent, IllegalTransition},
    },
    protocol::{ErrorKind, McpError},
    store::crash::crash_point,
};

type Decided = Result<Arc<Change>, DecideError>;

/// Runs on the Executor's thread, so that a door that goes away leaves nothing half done, and so that providers are
/// never called on the threads that serve connections.
pub(super) async fn decide(changes: &Changes, decision: DecideChange) -> Decided {
    check_door(&changes.inner, &decision.reviewer, decision.comment.as_deref())?;
    let (reply, answer) = oneshot::channel();
    let inner = Arc::clone(&changes.inner);
    changes.inner.executor.spawn(async move {
        let _ = reply.send(decide_now(&inner, decision).await);
    });
    answer.await.unwrap_or_else(|_| Err(shutting_down().into()))
}

async fn decide_now(inner: &Inner, decision: DecideChange) -> Decided {
    let DecideChange { id, reviewer, verdict, comment, version, digest } = decision;
    let change = load(inner, &id).await?;
    if verdict == Verdict::Approve && is_proposer(&reviewer, &change) {
        return Err(self_approval(&change));
    }
    if !matches!(change.state, ChangeState::Pending | ChangeState::Stale) {
        return Err(conflict(change));
    }
    if change.version != version || digest.is_some_and(|digest| digest != change.digest) {
        return Err(version_conflict(change));
    }
    if inner.expired(&change) {
        return Err(expire(inner, change).await);
    }
    if verdict == Verdict::Approve {
        check_target(inner, &change).await?;
    }
    let event = ChangeEvent::Decide(Decision {
        reviewer: reviewer.name.clone(),
        owner: reviewer.owner.clone(),
        verdict,
        comment,
        at: inner.now(),
        version,
    });
    crash_point("before_approve");
    let decided = inner.step_for_door(&change, event, reviewer.key_id.as_deref()).await;
    crash_point("after_approve");
    finish(inner, &change, decided).await
}

/// Refuses an approval of what is no longer as it was shown, and records that.
async fn check_target(inner: &Inner, change: &Arc<Change>) -> Result<(), DecideError> {
    let stale = change.state == ChangeState::Stale;
    match inner.recheck(change).await {
        Recheck::Same(_) if !stale => Ok(()),
        Recheck::Same(_) => {
            // What made it stale is over, but what was shown then said that it cannot be approved.
            Err(refresh_same(inner, change).await)
        }
        Recheck::Moved(preview) => {
            let marked = if stale {
                Ok(Arc::clone(change))
            } else {
                inner.step_for_door(change, ChangeEvent::MarkStale { fault: moved_fault() }, None).await
            };
            let refreshed = match marked {
                Ok(marked) => inner.step_for_door(&marked, ChangeEvent::Refresh { preview: *preview }, None).await,
                failed => failed,
            };
            Err(refused_as_stale(inner, change, refreshed).await)
        }
        Recheck::Impossible(_) if stale => Err(conflict(Arc::clone(change))),
        Recheck::Impossible(fault) => {
            let marked = inner.step_for_door(change, ChangeEvent::MarkStale { fault }, None).await;
            Err(refused_as_stale(inner, change, marked).await)
        }
        Recheck::Unavailable(error) => Err(DecideError { error, current: Some(Arc::clone(change)) }),
    }
}

async fn refresh_same(inner: &Inner, change: &Arc<Change>) -> DecideError {
    let preview = crate::changes::Preview {
        note: change.preview.clone(),
        operation: change.operation,
        target: change.target.clone(),
        summary: change.summary.clone(),
        diff: change.diff.clone(),
        fingerprint: change.fingerprint.clone(),
    };
    let refreshed = inner.step_for_door(change, ChangeEvent::Refresh { preview }, None).await;
    refused_as_stale(inner, change, refreshed).await
}

async fn refused_as_stale(inner: &Inner, change: &Arc<Change>, step: Result<Arc<Change>, StepError>) -> DecideError {
    match finish(inner, change, step).await {
        Ok(current) => DecideError {
            error: about(
                ErrorKind::ChangeStale,
                "The target has moved since the diff was made; look at the change as it is now, and decide anew",
                &current,
            ),
            current: Some(current),
        },
        Err(error) => error,
    }
}

pub(super) async fn withdraw(inner: &Inner, id: &str, principal: &Principal) -> Decided {
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
    let step = inner.step_for_door(&change, event, principal.key_id.as_deref()).await;
    finish(inner, &change, step).await
}

pub(super) async fn settle(
    inner: &Inner,
    id: &str,
    reviewer: &Principal,
    applied: bool,
    comment: Option<String>,
    version: u64,
) -> Decided {
    check_door(inner, reviewer, comment.as_deref())?;
    let change = load(inner, id).await?;
    if change.state != ChangeState::OutcomeUnknown {
        let error = about(ErrorKind::ChangeNotPending, "The outcome of this change is not unknown", &change);
        return Err(DecideError { error, current: Some(change) });
    }
    if change.version != version {
        return Err(version_conflict(change));
    }
    let event = ChangeEvent::Settle { by: reviewer.name.clone(), applied, comment };
    let step = inner.step_for_door(&change, event, reviewer.key_id.as_deref()).await;
    finish(inner, &change, step).await
}

fn check_door(inner: &Inner, reviewer: &Principal, comment: Option<&str>) -> Result<(), DecideError> {
    if inner.closing.load(Ordering::Acquire) {
        return Err(shutting_down().into());
    }
    if !reviewer.role.may_decide() {
        return Err(McpError::new(ErrorKind::Forbidden, "Only a reviewer may decide on changes").into());
    }
    if comment.is_some_and(|c| c.len() > MAX_COMMENT) {
        return Err(
            McpError::new(ErrorKind::InvalidParams, format!("A comment has at most {MAX_COMMENT} bytes")).into()
        );
    }
    Ok(())
}

fn is_proposer(reviewer: &Principal, change: &Change) -> bool {
    reviewer.name == change.proposer.principal
        || (reviewer.key_id.is_some() && reviewer.key_id == change.proposer.key_id)
}

async fn load(inner: &Inner, id: &str) -> Result<Arc<Change>, DecideError> {
    if id.len() > 64 {
        return Err(not_found().into());
    }
    inner.store.get(id).await.map_err(|e| store_error(&e))?.ok_or_else(|| not_found().into())
}

/// The answer to a step, with the state as it is now where somebody else was quicker.
async fn finish(inner: &Inner, change: &Arc<Change>, step: Result<Arc<Change>, StepError>) -> Decided {
    match step {
        Ok(change) => Ok(change),
        Err(StepError::Conflict) => {
            let current = load(inner, &change.id).await?;
            Err(conflict(current))
        }
        Err(StepError::Illegal(IllegalTransition::SelfApproval)) => Err(self_approval(change)),
        Err(StepError::Illegal(IllegalTransition::Version { .. })) => Err(version_conflict(Arc::clone(change))),
        Err(StepError::Illegal(IllegalTransition::State { .. })) => Err(conflict(Arc::clone(change))),
        Err(StepError::Illegal(other)) => {
            let error = about(ErrorKind::ChangeNotPending, other.to_string(), change);
            Err(DecideError { error, current: Some(Arc::clone(change)) })
        }
        Err(StepError::Refused(error)) => Err(error.into()),
        Err(StepError::Store(error)) => Err(store_error(&error).into()),
        Err(StepError::Duplicate) => Err(McpError::new(ErrorKind::Internal, "The change could not be stored").into()),
    }
}

/// The error for a change that is not in the state that was needed.
fn conflict(current: Arc<Change>) -> DecideError {
    let (kind, message) = match current.state {
        ChangeState::Pending => return version_conflict(current),
        ChangeState::Expired => (ErrorKind::ChangeExpired, "The change has expired".to_owned()),
        ChangeState::Stale => (
            ErrorKind::ChangeStale,
            current.fault.as_ref().map_or_else(|| "The change is stale".to_owned(), |f| f.message.clone()),
        ),
        state => (
            ErrorKind::ChangeNotPending,
            format!("The change is not waiting for this: it is {}", state.as_str().replace('_', " ")),
        ),
    };
    DecideError { error: about(kind, message, &current), current: Some(current) }
}

fn version_conflict(current: Arc<Change>) -> DecideError {
    let error = about(
        ErrorKind::VersionConflict,
        "The change is no longer as it was shown; look at it as it is now, and decide anew",
        &current,
    );
    DecideError { error, current: Some(current) }
}

fn self_approval(change: &Arc<Change>) -> DecideError {
    let error = about(ErrorKind::SelfApproval, "Whoever proposed a change cannot approve it", change);
    DecideError { error, current: Some(Arc::clone(change)) }
}

async fn expire(inner: &Inner, change: Arc<Change>) -> DecideError {
    let step = inner.step_for_door(&change, super::expiry::event(&change), None).await;
    match finish(inner, &change, step).await {
        Ok(expired) => conflict(expired),
        Err(error) => error,
    }
}

fn about(kind: ErrorKind, message: impl Into<std::borrow::Cow<'static, str>>, change: &Change) -> McpError {
    McpError::new(kind, message)
        .with("changeId", change.id.as_str())
        .with("state", change.state.as_str())
        .with("version", change.version)
}

fn not_found() -> McpError {
    McpError::new(ErrorKind::ChangeNotFound, "There is no such change")
}

fn shutting_down() -> McpError {
    McpError::new(ErrorKind::ShuttingDown, "The gateway is shutting down")
}
