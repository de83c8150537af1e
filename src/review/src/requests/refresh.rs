//! Compares a change with its target again, because a person asks for it or is about to approve.

use std::sync::Arc;

use super::answer::{StepResult, change_error, check_endpoint, conflict, expire, finish, load, version_conflict};
use crate::{
    Changes, DecideError,
    commit::StepError,
    inner::Inner,
    recheck::{Divergence, Recheck},
};
use countersign_domain::{
    changes::{Change, ChangeState, ServedBy, machine::ChangeEvent},
    principal::Principal,
};
use countersign_protocol::ErrorKind;
use countersign_runtime::crash::crash_point;

pub(crate) async fn refresh(changes: &Changes, id: String, reviewer: Arc<Principal>, version: u64) -> StepResult {
    check_endpoint(&changes.inner, &reviewer, None)?;
    let inner = Arc::clone(&changes.inner);
    changes.inner.run_on_executor(async move { refresh_now(&inner, &id, version).await }).await
}

async fn refresh_now(inner: &Inner, id: &str, version: u64) -> StepResult {
    let change = load(inner, id).await?;
    if !matches!(change.state, ChangeState::Pending | ChangeState::Stale) {
        return Err(conflict(change));
    }
    if change.version != version {
        return Err(version_conflict(change));
    }
    if inner.is_expired(&change) {
        return Err(expire(inner, change).await);
    }
    match recheck_target(inner, &change).await? {
        TargetCheck::Same => Ok(change),
        TargetCheck::Moved(step, _) => finish(inner, &change, step).await,
    }
}

/// The result of comparing a change with its target.
enum TargetCheck {
    /// Nothing moved: the change may be approved as shown.
    Same,
    /// The transition that recorded the difference, and the reason if the change is pending again.
    Moved(Result<Arc<Change>, StepError>, Option<String>),
}

/// Compares a change that waits for a decision with its target, and records a difference.
async fn recheck_target(inner: &Inner, change: &Arc<Change>) -> Result<TargetCheck, DecideError> {
    let stale = change.state == ChangeState::Stale;
    Ok(match inner.recheck(change).await {
        Recheck::Same(_) if !stale => TargetCheck::Same,
        // It is no longer stale, but what reviewers saw said that it could not be approved.
        Recheck::Same(provider) => TargetCheck::Moved(refresh_same(inner, change, provider.served_by()).await, None),
        Recheck::Moved(moved) => {
            let Divergence { preview, served_by, fault } = *moved;
            let why = fault.message.clone();
            crash_point("before_stale");
            let marked = if stale {
                Ok(Arc::clone(change))
            } else {
                inner.step_for_endpoint(change, ChangeEvent::MarkStale { fault }, None).await
            };
            crash_point("between_stale_and_refresh");
            let refreshed = match marked {
                Ok(marked) => inner.step_for_endpoint(&marked, ChangeEvent::Refresh { preview, served_by }, None).await,
                failed => failed,
            };
            crash_point("after_refresh");
            TargetCheck::Moved(refreshed, Some(why))
        }
        Recheck::Impossible(_) if stale => TargetCheck::Moved(Ok(Arc::clone(change)), None),
        Recheck::Impossible(fault) => {
            TargetCheck::Moved(inner.step_for_endpoint(change, ChangeEvent::MarkStale { fault }, None).await, None)
        }
        Recheck::Unavailable(error) => return Err(DecideError { error, current: Some(Arc::clone(change)) }),
    })
}

/// Rejects the approval of a change whose target is no longer as shown, and records the difference.
pub(crate) async fn require_same_target(inner: &Inner, change: &Arc<Change>) -> Result<(), DecideError> {
    match recheck_target(inner, change).await? {
        TargetCheck::Same => Ok(()),
        TargetCheck::Moved(step, why) => Err(stale_error(inner, change, step, why).await),
    }
}

async fn refresh_same(inner: &Inner, change: &Arc<Change>, served_by: ServedBy) -> Result<Arc<Change>, StepError> {
    let preview = countersign_domain::changes::Preview {
        note: change.preview.clone(),
        operation: change.operation,
        target: change.target.clone(),
        summary: change.summary.clone(),
        diff: change.diff.clone(),
        fingerprint: change.fingerprint.clone(),
    };
    inner.step_for_endpoint(change, ChangeEvent::Refresh { preview, served_by }, None).await
}

async fn stale_error(
    inner: &Inner,
    change: &Arc<Change>,
    step: Result<Arc<Change>, StepError>,
    why: Option<String>,
) -> DecideError {
    match finish(inner, change, step).await {
        Ok(current) if current.state == ChangeState::Stale => conflict(current),
        Ok(current) => DecideError {
            error: change_error(
                ErrorKind::ChangeStale,
                format!(
                    "{}; look at the change as it is now, and decide again",
                    why.as_deref().unwrap_or("The target has changed since the diff was made")
                ),
                &current,
            ),
            current: Some(current),
        },
        Err(error) => error,
    }
}
