//! The reasons why approved changes wait for a person before they run. They are shown but not stored: each node that may run
//! a change determines them itself.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;

use countersign_domain::changes::{Change, ChangeFault, ChangeState};

/// The reasons by the id of the change. Their number is bounded by that of the approved changes.
#[derive(Default)]
pub(super) struct WaitingReasons(Mutex<HashMap<String, (u64, ChangeFault)>>);

impl WaitingReasons {
    /// Records the reason of this version of the change, or removes an earlier one.
    pub(super) fn update(&self, change: &Change, reason: Option<ChangeFault>) {
        let mut reasons = self.0.lock();
        match reason {
            Some(reason) => _ = reasons.insert(change.id.clone(), (change.version, reason)),
            None => _ = reasons.remove(&change.id),
        }
    }

    /// Removes the reason of a change that no longer waits.
    pub(super) fn remove(&self, id: &str) {
        self.0.lock().remove(id);
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }

    /// Returns the change as it is shown, with the reason why it does not run yet.
    pub(super) fn add_to(&self, mut change: Arc<Change>) -> Arc<Change> {
        if change.state == ChangeState::Approved {
            let reasons = self.0.lock();
            if let Some((version, reason)) = reasons.get(&change.id)
                && *version == change.version
            {
                Arc::make_mut(&mut change).fault = Some(reason.clone());
            }
        }
        change
    }
}
