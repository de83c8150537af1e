//! Looks at the target again because a person asks, or because one is about to approve.

use std::sync::Arc;

use super::answer::{Decided, about, check_endpoint, conflict, expire, finish, load, version_conflict};
use crate::{
    Changes, DecideError,
    commit::StepError,
    inner::Inner,
    recheck::{Moved, Recheck},
};
use countersign_domain::{
    changes::{Change, ChangeState, ServedBy, machine::ChangeEvent},
    principal::Principal,
};
use countersign_protocol::ErrorKind;
use countersign_runtime::crash::crash_point;

pub(crate) async fn refresh(changes: &Changes, id: String, reviewer: Arc<Principal>, version: u64) -> Decided {
    check_endpoint(&changes.inner, &reviewer, None)?;
    let inner = Arc::clone(&changes.inner);
    changes.inner.aside(async move { refresh_now(&inner, &id, version).await }).await
}

async fn refresh_now(inner: &Inner, id: &str, version: u64) -> Decided {
    let change = load(inner, id).await?;
    if !matches!(change.state, ChangeState::Pending | ChangeState::Stale) {
        return Err(conflict(change));
    }
    if change.version != version {
        return Err(version_conflict(change));
    }
    if inner.expired(&change) {
        return Err(expire(inner, change).await);
    }
    match look_again(inner, &change).await? {
        Looked::Same => Ok(change),
        Looked::Moved(step, _) => finish(inner, &change, step).await,
    }
}

/// What a second look recorded.
enum Looked {
    /// Nothing: it may be approved as it was shown.
    Same,
    /// The change is another one now, or should be, and why, where it is pending again.
    Moved(Result<Arc<Change>, StepError>, Option<String>),
}

/// Compares a change that waits for a decision with its target, and records what is found.
async fn look_again(inner: &Inner, change: &Arc<Change>) -> Result<Looked, DecideError> {
    let stale = change.state == ChangeState::Stale;
    Ok(match inner.recheck(change).await {
        Recheck::Same(_) if !stale => Looked::Same,
        // What made it stale is over, but what was shown then said that it cannot be approved.
        Recheck::Same(provider) => Looked::Moved(refresh_same(inner, change, provider.served_by()).await, None),
        Recheck::Moved(moved) => {
            let Moved { preview, served_by, fault } = *moved;
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
            Looked::Moved(refreshed, Some(why))
        }
        Recheck::Impossible(_) if stale => Looked::Moved(Ok(Arc::clone(change)), None),
        Recheck::Impossible(fault) => {
            Looked::Moved(inner.step_for_endpoint(change, ChangeEvent::MarkStale { fault }, None).await, None)
        }
        Recheck::Unavailable(error) => return Err(DecideError { error, current: Some(Arc::clone(change)) }),
    })
}

/// Refuses an approval of what is no longer as it was shown, and records that.
pub(crate) async fn check_target(inner: &Inner, change: &Arc<Change>) -> Result<(), DecideError> {
    match look_again(inner, change).await? {
        Looked::Same => Ok(()),
        Looked::Moved(step, why) => Err(refused_as_stale(inner, change, step, why).await),
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

async fn refused_as_stale(
    inner: &Inner,
    change: &Arc<Change>,
    step: Result<Arc<Change>, StepError>,
    why: Option<String>,
) -> DecideError {
    match finish(inner, change, step).await {
        Ok(current) if current.state == ChangeState::Stale => conflict(current),
        Ok(current) => DecideError {
            error: about(
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
