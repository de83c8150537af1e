//! A transition as it is read from the feed: what another node wrote, or what a write of this one was after all.

use jiff::Timestamp;
use serde::Deserialize;

use super::{Approved, order::Which};
use crate::feed::{FeedChange, FeedEvent};
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
        let about = FeedChange {
            id: change.id.clone(),
            version: change.version,
            state: change.state,
            principal: change.proposer.principal.clone(),
        };
        Ok(Self { seq, event: FeedEvent::of(event, about), change, is_new, bytes, call_hash })
    }

    pub(crate) fn which(&self) -> Which {
        (self.change.id.clone(), self.change.version)
    }

    /// For the Executor: whoever approved it runs it, unless that one is gone by the time that this one looks.
    pub(crate) fn approved(&self, now: Timestamp) -> Approved {
        let Told { id, version, provider, target, terms, run_after, .. } = &self.change;
        Approved::at((id, *version), (provider, target), (*run_after, terms), now).left_by_others(true)
    }
}
