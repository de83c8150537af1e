//! Expires what nobody decided on, or what was not run, in time: a transition with a reason, announced like others.

use std::sync::Arc;

use futures_util::{StreamExt, stream};

use super::turn;
use crate::{commit::StepError, inner::Inner};
use countersign_domain::changes::{Change, ChangeState, OnExpiry, machine::ChangeEvent};
use countersign_runtime::crash::crash_point;

/// Changes looked at in one round; the rest follows in the next.
const ROUND: usize = 256;

/// The event that ends this change for its time.
pub(crate) fn event(change: &Change) -> ChangeEvent {
    let reason = match change.state {
        ChangeState::Approved => format!("Approved, but not run by {}", change.expires_at),
        _ if change.terms.on_expiry == OnExpiry::Reject => {
            format!("Nobody approved it by {}, and the rule takes that for a no", change.expires_at)
        }
        _ => format!("Nobody decided by {}", change.expires_at),
    };
    ChangeEvent::Expire { reason }
}

/// Looks for expired changes until the gateway closes.
pub(crate) async fn run(inner: Arc<Inner>) {
    while turn(&inner, inner.config.expiry_interval).await {
        while round(&inner).await == ROUND && !inner.stop.is_cancelled() {}
    }
}

/// Expires what is due; returns how many were. What the store refuses stays due.
pub(crate) async fn round(inner: &Inner) -> usize {
    let due = inner.deadlines.due(inner.now(), ROUND);
    let done = stream::iter(due).map(|id| async move { expire_one(inner, &id).await }).buffer_unordered(32);
    done.filter(|done| std::future::ready(*done)).count().await
}

/// Whether this one needs no more looking at.
async fn expire_one(inner: &Inner, id: &str) -> bool {
    let change = match inner.store.get(id).await {
        Ok(Some(change)) => change,
        Ok(None) => {
            inner.deadlines.remove(id);
            return true;
        }
        Err(error) => {
            tracing::warn!(%error, change = id, "a change could not be looked at for expiry");
            return false;
        }
    };
    if !matches!(change.state, ChangeState::Pending | ChangeState::Approved | ChangeState::Stale) {
        inner.deadlines.remove(id);
        return true;
    }
    crash_point("before_expire");
    let step = inner.step(&change, event(&change), None).await;
    crash_point("after_expire");
    match step {
        Ok(_) => true,
        // Somebody decided at the last moment, or the Executor claimed it; looked at again in the next round.
        Err(StepError::Conflict | StepError::Illegal(_)) => false,
        Err(error) => {
            tracing::warn!(?error, change = id, "a change could not be expired yet");
            false
        }
    }
}
