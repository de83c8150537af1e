//! The state of changes that the actor updates and that all threads read.

use std::sync::Arc;

use jiff::Timestamp;

use super::{
    duplicate_calls::DuplicateCalls,
    ledger::{Counts, Deadlines},
    watch::Watchers,
};
use countersign_domain::changes::ChangeState;

pub(crate) struct SharedChangeState {
    pub watchers: Arc<Watchers>,
    pub counts: Counts,
    pub deadlines: Deadlines,
    /// The times from which further reviewers may decide on undecided changes, until they are recorded.
    pub escalations: Deadlines,
    pub duplicates: DuplicateCalls,
}

impl SharedChangeState {
    pub(crate) fn new(max_waiters: usize, counts: &[(ChangeState, u64)]) -> Arc<Self> {
        Arc::new(Self {
            watchers: Watchers::new(max_waiters),
            counts: Counts::new(counts),
            deadlines: Deadlines::default(),
            escalations: Deadlines::default(),
            duplicates: DuplicateCalls::default(),
        })
    }

    /// Schedules the escalation of a change while it waits for a decision.
    pub(crate) fn schedule_escalation(
        &self,
        id: &str,
        state: ChangeState,
        escalates_at: Option<Timestamp>,
        now: Timestamp,
    ) {
        match escalates_at.filter(|_| matches!(state, ChangeState::Pending | ChangeState::Stale)) {
            Some(at) => self.escalations.insert(id, at, now),
            None => self.escalations.remove(id),
        }
    }

    /// Adds an open change to the deadlines and to the index of duplicates.
    pub(crate) fn add(&self, id: &str, call_hash: Option<&str>, expires_at: Timestamp, now: Timestamp) {
        self.deadlines.insert(id, expires_at, now);
        if let Some(call) = call_hash {
            self.duplicates.add(call, id);
        }
    }
}
