//! A transition as it is read from the feed: what another node wrote, or what a write of this one was after all.

use jiff::Timestamp;
use serde::Deserialize;

use super::{Approved, order::Which};
use countersign_domain::changes::{ChangeState, Target, Terms, machine::EventKind};
use countersign_feed::{FeedChange, FeedEvent};
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
    pub updated_at: Timestamp,
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
        Ok(Self { seq, event: FeedEvent::from_stored(event, about), change, is_new, bytes, call_hash })
    }

    pub(crate) fn which(&self) -> Which {
        (self.change.id.clone(), self.change.version)
    }

    /// For the Executor: whoever approved it runs it, unless that one is gone by the time that this one looks. It can be
    /// undone for as long as that one's clock said, counted from now: this one's may be ahead of it.
    pub(crate) fn approved(&self) -> Approved {
        let Told { id, version, provider, target, terms, run_after, updated_at, .. } = &self.change;
        Approved::at((id, *version), (provider, target), (*run_after, terms), *updated_at).left_by_others(true)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    use super::*;
    use countersign_store::StoredEvent;

    #[test]
    fn an_approval_elsewhere_can_be_undone_for_as_long_as_was_said_whatever_the_time_is_here() {
        let told = json!({
            "type": "change.approved",
            "seq": 7,
            "change": {
                "id": "a",
                "version": 2,
                "state": "approved",
                "provider": "files",
                "target": countersign_domain::changes::testing::change("a", "agent", 2, ChangeState::Approved).target,
                "proposer": { "principal": "agent" },
                "createdAt": "2001-01-01T00:00:00Z",
                "updatedAt": "2001-01-01T00:01:00Z",
                "expiresAt": "2001-01-02T00:00:00Z",
                "terms": Terms { undo_for: 90, ..Terms::default() },
                "runAfter": "2001-01-01T00:02:30Z",
            },
        });
        let event = StoredEvent { seq: 7, kind: "change.approved".into(), data: told.to_string() };
        let other = Other::read(Followed { event, bytes: 0, call_hash: None }).unwrap();
        assert_eq!(other.approved().grace, Some(Duration::from_secs(90) + Approved::HANDOVER));
    }
}
