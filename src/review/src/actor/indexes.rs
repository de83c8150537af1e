//! Indexes of changes in memory, which the actor updates and all threads read.

use std::sync::Arc;

use jiff::Timestamp;

use super::{
    change_outline::ChangeOutline, deadlines::Deadlines, duplicate_calls::DuplicateCalls, state_counts::StateCounts,
    watch::Watchers,
};
use countersign_domain::changes::ChangeState;

pub(crate) struct ChangeIndexes {
    pub watchers: Arc<Watchers>,
    pub counts: StateCounts,
    pub deadlines: Deadlines,
    /// The times from which further reviewers may decide on undecided changes, until they are recorded.
    pub escalations: Deadlines,
    /// The times of the next reminders of undecided changes.
    pub reminders: Deadlines,
    pub duplicates: DuplicateCalls,
}

impl ChangeIndexes {
    pub(crate) fn new(max_waiters: usize, counts: &[(ChangeState, u64)]) -> Arc<Self> {
        Arc::new(Self {
            watchers: Watchers::new(max_waiters),
            counts: StateCounts::new(counts),
            deadlines: Deadlines::default(),
            escalations: Deadlines::default(),
            reminders: Deadlines::default(),
            duplicates: DuplicateCalls::default(),
        })
    }

    /// Schedules the escalation and the next reminder of a change while it waits for a decision.
    pub(crate) fn schedule_notices(&self, change: &ChangeOutline<'_>, now: Timestamp) {
        for (deadlines, at) in [
            (&self.escalations, change.terms.escalates_at(change.created_at)),
            (&self.reminders, change.terms.next_reminder(change.created_at, now)),
        ] {
            match at.filter(|_| change.state.awaits_decision()) {
                Some(at) => deadlines.insert(&change.id, at, now),
                None => deadlines.remove(&change.id),
            }
        }
    }

    /// Lets the upkeep read an undecided change whose terms are not known yet.
    pub(crate) fn schedule_check(&self, id: &str, state: ChangeState, now: Timestamp) {
        if state.awaits_decision() {
            self.escalations.insert(id, now, now);
            self.reminders.insert(id, now, now);
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
