//! Expires changes that nobody decided on or that were not run in time.

use std::sync::Arc;

use jiff::Timestamp;

use super::{BATCH_SIZE, handle_due, wait_for_leadership};
use crate::{actor::TransitionError, change_repository::ChangeRepository};
use countersign_domain::changes::{Change, ChangeState, OnExpiry, machine::ChangeEvent};
use countersign_runtime::crash::crash_point;
use countersign_store::StoreError;

/// Returns the event that expires this change.
pub(crate) fn expire_event(change: &Change) -> ChangeEvent {
    let reason = match change.state {
        ChangeState::Approved => format!("Approved, but not run by {}", change.expires_at),
        _ if change.terms.on_expiry == OnExpiry::Reject => {
            format!("Nobody approved it by {}, and the rule counts that as a rejection", change.expires_at)
        }
        _ => format!("Nobody decided by {}", change.expires_at),
    };
    ChangeEvent::Expire { reason }
}

/// Returns the time at which a change expires. A step that policy allows expires no earlier than the other steps of its plan,
/// because it waits for them.
pub(crate) async fn expiry_time(repository: &ChangeRepository, change: &Change) -> Result<Timestamp, StoreError> {
    let Some(plan) = change.plan.as_ref().filter(|_| change.is_allowed_step()) else { return Ok(change.expires_at) };
    let steps = repository.store.plan(&plan.id).await?;
    Ok(steps.iter().map(|step| step.expires_at).max().unwrap_or(change.expires_at))
}

/// Returns `true` if the change has expired.
pub(crate) async fn is_expired(repository: &ChangeRepository, change: &Change) -> Result<bool, StoreError> {
    let now = repository.config.now();
    Ok(change.expires_at <= now && expiry_time(repository, change).await? <= now)
}

/// Expires due changes until the gateway closes.
pub(crate) async fn run(repository: Arc<ChangeRepository>) {
    while wait_for_leadership(&repository, repository.config.tuning.expiry_interval).await {
        while expire_due(&repository).await == BATCH_SIZE && !repository.shutdown.stop.is_cancelled() {}
    }
}

/// Expires due changes, and returns the number of those that are no longer due. A change that cannot be written stays due.
pub(crate) async fn expire_due(repository: &ChangeRepository) -> usize {
    handle_due(
        &repository.indexes.deadlines,
        repository.config.now(),
        |id| async move { expire_one(repository, &id).await },
    )
    .await
}

/// Expires one change, unless it is no longer open. Returns `true` if it needs no further attempt.
async fn expire_one(repository: &ChangeRepository, id: &str) -> bool {
    let change = match repository.store.get(id).await {
        Ok(Some(change))
            if matches!(change.state, ChangeState::Pending | ChangeState::Approved | ChangeState::Stale) =>
        {
            change
        }
        Ok(_) => {
            repository.indexes.deadlines.remove(id);
            return true;
        }
        Err(error) => {
            tracing::warn!(%error, change = id, "a change that may have expired could not be read");
            return false;
        }
    };
    match expiry_time(repository, &change).await {
        Ok(at) if at > change.expires_at && at > repository.config.now() => {
            repository.indexes.deadlines.insert(id, at, repository.config.now());
            return true;
        }
        Ok(_) => {}
        Err(error) => {
            tracing::warn!(%error, change = id, "the plan of a change that may have expired could not be read");
            return false;
        }
    }
    crash_point("before_expire");
    let transition = repository.transitions.apply_event(&change, expire_event(&change)).await;
    crash_point("after_expire");
    match transition {
        Ok(_) => true,
        // The change was decided or claimed at the last moment, and is checked again in the next round.
        Err(TransitionError::Conflict | TransitionError::Illegal(_)) => false,
        Err(error) => {
            tracing::warn!(?error, change = id, "a change could not be expired yet");
            false
        }
    }
}
