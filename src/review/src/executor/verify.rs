//! Verifies an applied change: reads its target again, and records whether it is as approved. It is tried once, and it
//! neither alters the target nor repeats a write.

use std::{panic::AssertUnwindSafe, sync::Arc};

use futures_util::{FutureExt, future::BoxFuture};

use crate::{actor::TransitionError, change_repository::ChangeRepository};
use countersign_domain::changes::{Change, Verification, VerificationOutcome, machine::ChangeEvent};

/// Reads the target within the time limit of a preview, and records the result. If retention has removed the contents
/// meanwhile, the verification stays `not_read`.
pub(super) async fn verify(repository: &ChangeRepository, applied: &Arc<Change>, reading: BoxFuture<'_, Verification>) {
    let reading =
        AssertUnwindSafe(tokio::time::timeout(repository.config.tuning.preview_timeout, reading)).catch_unwind();
    let mut verification = match repository.shutdown.stop.run_until_cancelled(reading).await {
        Some(Ok(Ok(verification))) => verification,
        Some(Ok(Err(_))) => Verification::unreadable("it took too long"),
        Some(Err(_panic)) => {
            tracing::error!(change = %applied.id, provider = %applied.provider, tool = %applied.tool, "a verification panicked");
            Verification::unreadable("the read failed")
        }
        None => Verification::unreadable("the gateway was stopped"),
    };
    if verification.verified == VerificationOutcome::Differs && is_target_taken(repository, applied).await {
        verification = Verification::unreadable("another change of the same target has started since");
    }
    let verified = verification.verified.as_str();
    match repository.transitions.apply_event(applied, ChangeEvent::Verify { verification }).await {
        Ok(_) => tracing::debug!(change = %applied.id, verified, "an applied change was verified"),
        Err(TransitionError::Conflict) => {
            tracing::debug!(change = %applied.id, verified, "the contents of a change were removed before its verification");
        }
        Err(error) => {
            tracing::error!(?error, change = %applied.id, verified, "the verification of a change cannot be recorded");
        }
    }
}

/// Returns `true` if another change has taken the target since. Changes on other nodes do not wait for the verification.
async fn is_target_taken(repository: &ChangeRepository, change: &Change) -> bool {
    let occupants = repository.store.occupants(vec![change.target_hash()], repository.config.now()).await;
    occupants.is_ok_and(|occupants| !occupants.is_empty())
}
