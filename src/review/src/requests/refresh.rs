//! Compares a change with its target again, because a person asks for it or is about to approve.

use std::sync::Arc;

use super::checks::{
    RequestResult, apply_event, check_decidable, check_request, load, refusal_error, wrong_state_error,
};
use crate::{
    ChangeRequestError, Changes,
    recheck::{Comparison, Divergence, PreviewError},
    review_core::ReviewCore,
    truncation::to_fault,
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
        check_request(&self.core, reviewer, None)?;
        let (core, id) = (Arc::clone(&self.core), id.to_owned());
        let refresh = async move {
            let change = load(&core, &id).await?;
            check_decidable(&core, &change, version).await?;
            if change.state == ChangeState::Stale && core.find_denial(&change).await?.is_some() {
                return Ok(change);
            }
            let difference = recheck_target(&core, &change).await?;
            Ok(difference.map_or(change, |(current, _)| current))
        };
        self.core.run_on_executor(refresh).await
    }
}

/// Compares a change that waits for a decision with its target, and records a difference. Returns `None` if the change may be
/// approved as it was shown; otherwise the change that must be shown, and the reason if the target or the server has changed.
async fn recheck_target(
    core: &ReviewCore,
    change: &Arc<Change>,
) -> Result<Option<(Arc<Change>, Option<String>)>, ChangeRequestError> {
    let is_stale = change.state == ChangeState::Stale;
    Ok(match core.recheck(change).await {
        Ok(Comparison::Same(_)) if !is_stale => None,
        // The change is no longer stale, but reviewers were shown that it cannot be approved.
        Ok(Comparison::Same(same)) => {
            Some((refresh_unchanged(core, change, same.provider.server_identity()).await?, None))
        }
        Ok(Comparison::Moved(moved)) => {
            let Divergence { preview, served_by, fault } = *moved;
            let reason = fault.message.clone();
            crash_point("before_stale");
            let marked = if is_stale {
                Arc::clone(change)
            } else {
                apply_event(core, change, ChangeEvent::MarkStale { fault }).await?
            };
            crash_point("between_stale_and_refresh");
            let refreshed = apply_event(core, &marked, ChangeEvent::Refresh { preview, served_by }).await?;
            crash_point("after_refresh");
            Some((refreshed, Some(reason)))
        }
        Err(PreviewError::Impossible(_)) if is_stale => Some((Arc::clone(change), None)),
        Err(PreviewError::Impossible(error)) => {
            let event = ChangeEvent::MarkStale { fault: to_fault(&error) };
            Some((apply_event(core, change, event).await?, None))
        }
        Err(PreviewError::Unavailable(error)) => {
            return Err(ChangeRequestError { error, current: Some(Arc::clone(change)) });
        }
    })
}

/// Rejects the approval of a change whose target is no longer as shown, and records the difference.
pub(crate) async fn require_same_target(core: &ReviewCore, change: &Arc<Change>) -> Result<(), ChangeRequestError> {
    let Some((current, reason)) = recheck_target(core, change).await? else { return Ok(()) };
    if current.state == ChangeState::Stale {
        return Err(wrong_state_error(&current));
    }
    let reason = reason.as_deref().unwrap_or("The change is no longer stale");
    let message = format!("{reason}; look at the change as it is now and decide again");
    Err(refusal_error(ErrorKind::ChangeStale, message, &current))
}

/// Makes a stale change pending again with the content that it has.
async fn refresh_unchanged(core: &ReviewCore, change: &Arc<Change>, served_by: ServerIdentity) -> RequestResult {
    let preview = Preview {
        note: change.preview.clone(),
        operation: change.operation,
        target: change.target.clone(),
        summary: change.summary.clone(),
        diff: change.diff.clone(),
        fingerprint: change.fingerprint.clone(),
        state_effect: StateEffect::Dependent,
    };
    apply_event(core, change, ChangeEvent::Refresh { preview, served_by }).await
}
