//! A transition read from the feed: one that another node wrote, or one of this node whose outcome was unknown.

use jiff::Timestamp;
use serde::Deserialize;

use super::{ApprovedChange, order::TransitionId, queue_key, remaining_grace};
use countersign_domain::changes::{ChangeState, PlanStep, Target, Terms, machine::EventKind};
use countersign_feed::{FeedChange, FeedEvent, FeedProposer, parse_change};
use countersign_store::{RemoteEvent, StoreError};

/// The fields of an event's change that this node needs for its limits, deadlines and Executor.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct RemoteChange {
    pub id: String,
    pub version: u64,
    pub state: ChangeState,
    pub provider: String,
    pub target: Target,
    pub proposer: FeedProposer,
    pub created_at: Timestamp,
    pub expires_at: Timestamp,
    pub terms: Terms,
    #[serde(default)]
    pub run_after: Option<Timestamp>,
    #[serde(default)]
    pub plan: Option<PlanStep>,
}

#[derive(Debug)]
pub(crate) struct RemoteTransition {
    pub seq: u64,
    pub event: FeedEvent,
    pub change: RemoteChange,
    pub is_new: bool,
    /// See [`RemoteEvent::bytes`].
    pub bytes: u64,
    pub call_hash: Option<String>,
}

impl RemoteTransition {
    /// Parses an event of the feed.
    ///
    /// # Errors
    /// [`StoreError::BadRecord`] if the event is not the record of a transition.
    pub(crate) fn parse(remote_event: RemoteEvent) -> Result<Self, StoreError> {
        let RemoteEvent { event, bytes, call_hash } = remote_event;
        let seq = event.seq;
        let change: RemoteChange = parse_change(&event)?;
        let is_new = event.kind == EventKind::Created.feed_type();
        let feed_change = FeedChange {
            id: change.id.clone(),
            version: change.version,
            state: change.state,
            proposer: change.proposer.clone(),
        };
        Ok(Self { seq, event: FeedEvent::from_stored(event, feed_change), change, is_new, bytes, call_hash })
    }

    pub(crate) fn transition_id(&self) -> TransitionId {
        (self.change.id.clone(), self.change.version)
    }

    /// Returns the change for this node's Executor, which runs it only if the approving node does not.
    pub(crate) fn to_approved(&self, now: Timestamp) -> ApprovedChange {
        let change = &self.change;
        let approved = ApprovedChange {
            id: change.id.clone(),
            version: change.version,
            queue_key: queue_key(&change.provider, &change.target),
            delay: remaining_grace(change.run_after, &change.terms, now),
            handover_backoff: None,
        };
        approved.with_handover_delay()
    }
}
