//! Changes whose clients have answered whether they open the page.

use std::collections::VecDeque;

use parking_lot::Mutex;

/// Maximum number of changes that are remembered.
const MAX: usize = 1000;

/// Changes whose clients have answered, in memory. After a restart clients are asked again.
#[derive(Default)]
pub struct OpenedPages(Mutex<VecDeque<String>>);

impl OpenedPages {
    /// Notes an answer. Beyond [`MAX`] changes, the oldest one is forgotten.
    pub fn insert(&self, id: &str) {
        let mut opened = self.0.lock();
        if !opened.iter().any(|known| known == id) {
            opened.push_back(id.to_owned());
            if opened.len() > MAX {
                opened.pop_front();
            }
        }
    }

    #[must_use]
    pub fn has(&self, id: &str) -> bool {
        self.0.lock().iter().any(|known| known == id)
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
        assert_eq!(opened.0.lock().len(), MAX);
    }
}
