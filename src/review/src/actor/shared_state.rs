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
    pub duplicates: DuplicateCalls,
}

impl SharedChangeState {
    pub(crate) fn new(max_waiters: usize, counts: &[(ChangeState, u64)]) -> Arc<Self> {
        Arc::new(Self {
            watchers: Watchers::new(max_waiters),
            counts: Counts::new(counts),
            deadlines: Deadlines::default(),
            duplicates: DuplicateCalls::default(),
        })
    }

    /// Adds an open change to the deadlines and to the index of duplicates.
    pub(crate) fn add(&self, id: &str, call_hash: Option<&str>, expires_at: Timestamp, now: Timestamp) {
        self.deadlines.insert(id, expires_at, now);
        if let Some(call) = call_hash {
            self.duplicates.add(call, id);
        }
    }
}
