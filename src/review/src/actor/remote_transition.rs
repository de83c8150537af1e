//! A transition read from the feed: one that another node wrote, or one of this node whose outcome was unknown.

use super::{change_outline::ChangeOutline, order::TransitionId};
use countersign_feed::{FeedChange, FeedEvent, parse_change};
use countersign_store::{RemoteEvent, StoreError};

#[derive(Debug)]
pub(crate) struct RemoteTransition {
    pub seq: u64,
    pub event: FeedEvent,
    pub change: ChangeOutline<'static>,
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
        let change: ChangeOutline<'static> = parse_change(&event)?;
        let feed_change = FeedChange {
            id: change.id.to_string(),
            version: change.version,
            state: change.state,
            proposer: change.proposer.clone(),
        };
        Ok(Self { seq, event: FeedEvent::from_stored(event, feed_change), change, bytes, call_hash })
    }

    pub(crate) fn transition_id(&self) -> TransitionId {
        (self.change.id.to_string(), self.change.version)
    }
}
