//! Counts the calls that a rule of the policy or the default decided, by verdict.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use super::Verdict;

/// The counts of a rule, shared by all its copies. They are not part of what the rule says, so all values compare as
/// equal.
#[derive(Clone, Default)]
pub struct VerdictCounts(Arc<[AtomicU64; 3]>);

impl VerdictCounts {
    pub fn increment(&self, verdict: Verdict) {
        let [allowed, reviewed, denied] = &*self.0;
        let count = match verdict {
            Verdict::Allow => allowed,
            Verdict::Review => reviewed,
            Verdict::Deny => denied,
        };
        count.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the numbers of calls that were allowed, reviewed and denied.
    pub fn get(&self) -> [u64; 3] {
        self.0.each_ref().map(|count| count.load(Ordering::Relaxed))
    }

    /// Returns the counts, and sets them to zero.
    pub fn take(&self) -> [u64; 3] {
        self.0.each_ref().map(|count| count.swap(0, Ordering::Relaxed))
    }

    /// Adds counts that were taken and could not be stored.
    pub fn give_back(&self, taken: [u64; 3]) {
        for (count, taken) in self.0.iter().zip(taken) {
            count.fetch_add(taken, Ordering::Relaxed);
        }
    }
}

/// Leaves out the numbers, because the digest of a policy is computed from its `Debug` form.
impl fmt::Debug for VerdictCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VerdictCounts").finish_non_exhaustive()
    }
}

impl PartialEq for VerdictCounts {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for VerdictCounts {}
