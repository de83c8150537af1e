//! Indexes of changes in memory, which the actor updates and all threads read.

use std::sync::Arc;

use jiff::Timestamp;

use super::{
    change_outline::ChangeOutline, deadlines::Deadlines, duplicate_calls::DuplicateCalls, state_counts::StateCounts,
    watch::Watchers,
};
use countersign_domain::changes::ChangeState;
use countersign_store::LiveChange;

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

    /// Adds a change that was open before the start. The upkeep reads its terms, and finds out whether it has escalated already.
    pub(crate) fn restore(&self, change: &LiveChange, now: Timestamp) {
        self.counts.record_transition(None, change.state);
        self.deadlines.insert(&change.id, change.expires_at, now);
        if let Some(call_hash) = &change.call_hash {
            self.duplicates.add(call_hash, &change.id);
        }
        if change.state.awaits_decision() {
            self.escalations.insert(&change.id, now, now);
            self.reminders.insert(&change.id, now, now);
        }
    }
}
