//! Changes whose clients have answered the request to open the change's page.

use std::collections::{HashSet, VecDeque};

use parking_lot::Mutex;

/// The maximum number of changes that are remembered.
const MAX_CHANGES: usize = 10_000;

/// Changes whose clients have answered. They are kept in memory only, so clients are asked again after a restart.
#[derive(Default)]
pub struct AnsweredPageRequests(Mutex<(HashSet<String>, VecDeque<String>)>);

impl AnsweredPageRequests {
    /// Stores that the client of a change has answered. Beyond [`MAX_CHANGES`], the oldest change is forgotten.
    pub fn insert(&self, id: &str) {
        let (answered, by_age) = &mut *self.0.lock();
        if answered.insert(id.to_owned()) {
            by_age.push_back(id.to_owned());
            if by_age.len() > MAX_CHANGES
                && let Some(oldest) = by_age.pop_front()
            {
                answered.remove(&oldest);
            }
        }
    }

    /// Returns `true` if the client of a change has answered.
    pub fn contains(&self, id: &str) -> bool {
        self.0.lock().0.contains(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn oldest_change_is_forgotten_beyond_limit() {
        let answered = AnsweredPageRequests::default();
        for n in 0..=MAX_CHANGES {
            answered.insert(&format!("chg_{n}"));
            answered.insert(&format!("chg_{n}"));
        }
        assert!(
            !answered.contains("chg_0")
                && answered.contains("chg_1")
                && answered.contains(&format!("chg_{MAX_CHANGES}"))
        );
        assert_eq!(answered.0.lock().0.len(), MAX_CHANGES);
    }
}
