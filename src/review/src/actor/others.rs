//! A transition as it is read from the feed: what another node wrote, or what a write of this one was after all.

use std::time::Duration;

use jiff::Timestamp;
use serde::Deserialize;

use super::{Approved, order::Which};
use crate::feed::FeedEvent;
use countersign_domain::changes::{ChangeState, Target, Terms, machine::EventKind};
use countersign_store::{Followed, StoreError};

/// What an event tells of its change that others keep account of.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Told {
    pub id: String,
    pub version: u64,
    pub state: ChangeState,
    pub provider: String,
    pub target: Target,
    pub proposer: Who,
    pub created_at: Timestamp,
    pub expires_at: Timestamp,
    pub terms: Terms,
    #[serde(default)]
    pub run_after: Option<Timestamp>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Who {
    pub principal: String,
}

#[derive(Debug)]
pub(crate) struct Other {
    pub seq: u64,
    pub event: FeedEvent,
    pub change: Told,
    pub is_new: bool,
    /// See [`Followed`].
    pub bytes: u64,
    pub call_hash: Option<String>,
}

impl Other {
    /// # Errors
    /// [`StoreError::BadRecord`] of an event that does not read as what was written.
    pub(crate) fn read(followed: Followed) -> Result<Self, StoreError> {
        #[derive(Deserialize)]
        struct Outer {
            change: Told,
        }
        let Followed { event, bytes, call_hash } = followed;
        let seq = event.seq;
        let Outer { change } =
            serde_json::from_str(&event.data).map_err(|e| StoreError::BadRecord(format!("feed event {seq}: {e}")))?;
        let is_new = event.kind == EventKind::Created.feed_type();
        Ok(Self { seq, event: FeedEvent::stored(event)?, change, is_new, bytes, call_hash })
    }

    pub(crate) fn which(&self) -> Which {
        (self.change.id.clone(), self.change.version)
    }

    /// For the Executor: whoever approved it runs it, unless that one is gone by the time that this one looks.
    pub(crate) fn approved(&self, now: Timestamp) -> Approved {
        let change = &self.change;
        let left = change.run_after.and_then(|end| Duration::try_from(end.duration_since(now)).ok());
        let left = left.unwrap_or_default().min(Duration::from_secs(change.terms.undo_for));
        Approved {
            id: change.id.clone(),
            version: change.version,
            lock_key: Approved::lock_key(&change.provider, &change.target),
            grace: Some(left + Approved::HANDOVER),
            handed_over: Some(Approved::HANDOVER),
        }
    }
}
