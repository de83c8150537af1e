//! Voids approvals of people who may no longer decide. Until the change runs, a vote counts only while its key is valid: a key is
//! revoked because it leaked or its holder left, so nothing may run because of its vote. A reviewer with another key can vote
//! again. Changes that have run keep their votes.

use std::sync::Arc;

use crate::{actor::TransitionError, change_repository::ChangeRepository, shutdown::pause};
use countersign_domain::changes::{Change, ReviewDecision, ReviewVerdict, machine::ChangeEvent};
use countersign_protocol::McpError;

/// The maximum number of names in a reason.
const MAX_NAMES: usize = 10;

/// Returns the event that removes approvals that are no longer valid, or `None` if all are valid.
pub(crate) fn void_event(repository: &ChangeRepository, change: &Change) -> Result<Option<ChangeEvent>, McpError> {
    let (mut valid, mut void) = (Vec::new(), Vec::new());
    let reviewers = change.terms.reviewers_at(change.created_at, repository.config.now());
    for vote in &change.decisions {
        let is_valid =
            vote.verdict != ReviewVerdict::Approve || repository.config.reviewers.is_vote_valid(&reviewers, vote)?;
        if is_valid { valid.push(vote.clone()) } else { void.push(vote) }
    }
    Ok((!void.is_empty()).then(|| ChangeEvent::Void { reason: describe_void(&void), valid }))
}

/// Describes why these votes no longer count.
fn describe_void(void: &[&ReviewDecision]) -> String {
    let names: Vec<_> = void.iter().take(MAX_NAMES).map(|vote| vote.reviewer.as_str()).collect();
    let others = if void.len() > MAX_NAMES { " and others" } else { "" };
    let names = names.join(", ");
    let cause = "revoked or may no longer decide on this change";
    if void.len() == 1 {
        return format!("The approval by {names} no longer counts: its key or sign-in was {cause}");
    }
    format!("The approvals by {names}{others} no longer count: their keys or sign-ins were {cause}")
}

/// Checks all votes whenever a key was revoked, until the gateway closes.
pub(crate) async fn run(repository: Arc<ChangeRepository>) {
    let mut checked_revocations = None;
    loop {
        // A failed read is repeated; no change runs without this check meanwhile.
        if repository.nodes.is_leader()
            && let Ok(revocations) = repository.config.reviewers.revocations()
            && checked_revocations != Some(revocations)
            && void_invalid_votes(&repository).await
        {
            checked_revocations = Some(revocations);
        }
        if !pause(&repository.shutdown.stop, repository.config.tuning.expiry_interval).await {
            return;
        }
    }
}

/// Voids the invalid votes of all changes. Returns `false` if some votes could not be checked.
pub(crate) async fn void_invalid_votes(repository: &ChangeRepository) -> bool {
    let Ok(ids) = repository.store.changes_with_votes().await else { return false };
    let mut are_all_checked = true;
    for id in ids {
        are_all_checked &= !repository.shutdown.stop.is_cancelled() && void_votes_of_change(repository, &id).await;
    }
    are_all_checked
}

/// Voids the invalid votes of a change. Returns `false` if it must be checked again.
async fn void_votes_of_change(repository: &ChangeRepository, id: &str) -> bool {
    let change = match repository.store.get(id).await {
        Ok(Some(change)) => change,
        found => return found.is_ok(),
    };
    match void_event(repository, &change) {
        Ok(Some(event)) => match repository.transitions.apply_event(&change, event).await {
            Ok(_) => true,
            // The change was altered at the same time, and is checked again soon.
            Err(TransitionError::Conflict | TransitionError::Illegal(_)) => false,
            Err(error) => {
                tracing::warn!(?error, change = id, "an invalid vote could not be removed yet; trying again");
                false
            }
        },
        Ok(None) => true,
        Err(_) => false,
    }
}
