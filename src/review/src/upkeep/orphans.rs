//! Changes that were running on a node that is gone: their outcome is unknown, and a person must settle them.

use std::sync::Arc;

use jiff::Timestamp;

use super::wait_for_leadership;
use crate::{actor::TransitionError, change_repository::ChangeRepository};
use countersign_domain::changes::{ChangeFault, machine::ChangeEvent};
use countersign_protocol::ErrorKind;
use countersign_store::StoreError;

/// Searches for orphaned changes until the gateway closes.
pub(crate) async fn run(repository: Arc<ChangeRepository>) {
    while wait_for_leadership(&repository, repository.config.tuning.expiry_interval).await {
        if let Err(error) = mark_orphans_unknown(&repository).await
            && !matches!(error, StoreError::Closed)
        {
            tracing::warn!(%error, "the changes of nodes that are gone could not be read; trying again");
        }
    }
}

/// Gives each orphaned change an unknown outcome. A change that cannot be written is found again in the next round.
pub(crate) async fn mark_orphans_unknown(repository: &ChangeRepository) -> Result<(), StoreError> {
    for id in repository.store.orphaned_changes().await? {
        let Some(change) = repository.store.get(&id).await? else { continue };
        let message = "The gateway stopped while the change was running; whether it was applied is unknown";
        let fault = ChangeFault::new(ErrorKind::Internal, message);
        // The last transition was the claim, a question or an answer; the call was sent at most one timeout after it.
        let last = change.updated_at.saturating_add(repository.config.tuning.run_timeout).unwrap_or(Timestamp::MAX);
        let event = ChangeEvent::LoseTrack { fault, last_sent_at: last.min(repository.config.now()) };
        match repository.transitions.apply_event_to_orphan(&change, event).await {
            Ok(_) => {
                let node = change.claimed_by.as_ref().map(|by| by.node.as_str());
                tracing::warn!(change = %id, node, "a change was running when its gateway stopped; a reviewer must settle it");
            }
            // The change ended after all, or another node has already recorded the unknown outcome.
            Err(TransitionError::Conflict | TransitionError::Illegal(_) | TransitionError::Fenced) => {}
            Err(TransitionError::Store(error)) => return Err(error),
            Err(error) => return Err(StoreError::BadRecord(format!("{id}: {error:?}"))),
        }
    }
    Ok(())
}
