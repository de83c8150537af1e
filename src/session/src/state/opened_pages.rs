//! Changes whose clients have answered whether they open the page.

use std::collections::{HashSet, VecDeque};

use parking_lot::Mutex;

/// Clients of how many changes are remembered to have answered.
const MAX: usize = 10_000;

/// Changes whose clients have answered, in memory: asked again after a restart at worst.
#[derive(Default)]
pub struct OpenedPages(Mutex<(HashSet<String>, VecDeque<String>)>);

impl OpenedPages {
    pub fn insert(&self, id: &str) {
        let mut opened = self.0.lock();
        if opened.0.insert(id.to_owned()) {
            opened.1.push_back(id.to_owned());
            if opened.1.len() > MAX
                && let Some(oldest) = opened.1.pop_front()
            {
                opened.0.remove(&oldest);
            }
        }
    }

    #[must_use]
    pub fn has(&self, id: &str) -> bool {
        self.0.lock().0.contains(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_answered_is_remembered_within_bounds() {
        let opened = OpenedPages::default();
        for n in 0..=MAX {
            opened.insert(&format!("chg_{n}"));
            opened.insert(&format!("chg_{n}"));
        }
        assert!(!opened.has("chg_0") && opened.has("chg_1") && opened.has(&format!("chg_{MAX}")));
        assert_eq!(opened.0.lock().0.len(), MAX);
    }
}
