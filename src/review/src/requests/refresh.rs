//! Compares a change with its target again, because a person asks for it or is about to approve.

use std::sync::Arc;

use super::checks::{
    RequestResult, check_decidable, check_request, load, refusal_error, to_request_result, wrong_state_error,
};
use crate::{
    ChangeRequestError, Changes,
    actor::TransitionResult,
    recheck::{Divergence, Recheck},
    review_state::ReviewState,
};
use countersign_domain::{
    changes::{Change, ChangeState, Preview, ServerIdentity, StateEffect, machine::ChangeEvent},
    principal::Principal,
};
use countersign_protocol::ErrorKind;
use countersign_runtime::crash::crash_point;

impl Changes {
    /// Compares the change with its target again. Returns the change as it is if nothing moved, or if policy denies a stale one;
    /// otherwise the change is pending with the new diff, or stale with the reason why there is no diff. Continues if the future
    /// is dropped.
    ///
    /// # Errors
    /// `SHUTTING_DOWN`, `FORBIDDEN`, `CHANGE_NOT_FOUND`, `CHANGE_NOT_PENDING`, `VERSION_CONFLICT`, `CHANGE_STALE`,
    /// `CHANGE_EXPIRED`, `OVERLOADED`, the error of a target that cannot be read now, and the errors of the store.
    pub async fn refresh(&self, id: &str, reviewer: &Principal, version: u64) -> RequestResult {
        check_request(&self.state, reviewer, None)?;
        let (state, id) = (Arc::clone(&self.state), id.to_owned());
        let refresh = async move {
            let change = load(&state, &id).await?;
            check_decidable(&state, &change, version).await?;
            if change.state == ChangeState::Stale && state.find_denial(&change).await?.is_some() {
                return Ok(change);
            }
            match recheck_target(&state, &change).await? {
                TargetCheck::AsShown => Ok(change),
                TargetCheck::NotAsShown(current, _) => to_request_result(&state, &change, current).await,
            }
        };
        self.state.run_on_executor(refresh).await
    }
}

/// The result of comparing a change with its target.
enum TargetCheck {
    /// The change may be approved as it was shown.
    AsShown,
    /// The change must be shown again. Contains its current state, and the reason if the target or the server has changed.
    NotAsShown(TransitionResult, Option<String>),
}

/// Compares a change that waits for a decision with its target, and records a difference.
async fn recheck_target(state: &ReviewState, change: &Arc<Change>) -> Result<TargetCheck, ChangeRequestError> {
    let is_stale = change.state == ChangeState::Stale;
    Ok(match state.recheck(change).await {
        Recheck::Same(..) if !is_stale => TargetCheck::AsShown,
        // The change is no longer stale, but reviewers were shown that it cannot be approved.
        Recheck::Same(same) => {
            TargetCheck::NotAsShown(refresh_unchanged(state, change, same.provider.server_identity()).await, None)
        }
        Recheck::Moved(moved) => {
            let Divergence { preview, served_by, fault } = *moved;
            let reason = fault.message.clone();
            crash_point("before_stale");
            let marked = if is_stale {
                Ok(Arc::clone(change))
            } else {
                state.changes.transitions.apply_event_for_endpoint(change, ChangeEvent::MarkStale { fault }).await
            };
            crash_point("between_stale_and_refresh");
            let refreshed = match marked {
                Ok(marked) => {
                    state
                        .changes
                        .transitions
                        .apply_event_for_endpoint(&marked, ChangeEvent::Refresh { preview, served_by })
                        .await
                }
                failed => failed,
            };
            crash_point("after_refresh");
            TargetCheck::NotAsShown(refreshed, Some(reason))
        }
        Recheck::Impossible(_) if is_stale => TargetCheck::NotAsShown(Ok(Arc::clone(change)), None),
        Recheck::Impossible(fault) => TargetCheck::NotAsShown(
            state.changes.transitions.apply_event_for_endpoint(change, ChangeEvent::MarkStale { fault }).await,
            None,
        ),
        Recheck::Unavailable(error) => return Err(ChangeRequestError { error, current: Some(Arc::clone(change)) }),
    })
}

/// Rejects the approval of a change whose target is no longer as shown, and records the difference.
pub(crate) async fn require_same_target(state: &ReviewState, change: &Arc<Change>) -> Result<(), ChangeRequestError> {
    let TargetCheck::NotAsShown(current, reason) = recheck_target(state, change).await? else { return Ok(()) };
    let current = to_request_result(state, change, current).await?;
    if current.state == ChangeState::Stale {
        return Err(wrong_state_error(&current));
    }
    let reason = reason.as_deref().unwrap_or("The change is no longer stale");
    let message = format!("{reason}; look at the change as it is now and decide again");
    Err(refusal_error(ErrorKind::ChangeStale, message, &current))
}

/// Makes a stale change pending again with the content that it has.
async fn refresh_unchanged(state: &ReviewState, change: &Arc<Change>, served_by: ServerIdentity) -> TransitionResult {
    let preview = Preview {
        note: change.preview.clone(),
        operation: change.operation,
        target: change.target.clone(),
        summary: change.summary.clone(),
        diff: change.diff.clone(),
        fingerprint: change.fingerprint.clone(),
        state_effect: StateEffect::Dependent,
    };
    state.changes.transitions.apply_event_for_endpoint(change, ChangeEvent::Refresh { preview, served_by }).await
}
