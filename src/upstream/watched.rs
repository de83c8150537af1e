//! Resources that clients watch, counted, and what the upstream was told of them.

use std::collections::{BTreeMap, BTreeSet};

use parking_lot::Mutex;
use tokio::sync::watch;

/// See the module's page.
#[derive(Debug)]
pub struct Watched {
    counts: Mutex<BTreeMap<String, usize>>,
    /// Rises when the set of URIs changes.
    pub version: watch::Sender<u64>,
    /// What the upstream has in force.
    pub in_force: watch::Sender<BTreeSet<String>>,
}

impl Default for Watched {
    fn default() -> Self {
        Self { counts: Mutex::default(), version: watch::Sender::new(0), in_force: watch::Sender::new(BTreeSet::new()) }
    }
}

impl Watched {
    /// One more watches it; whether it is the first.
    pub fn add(&self, uri: &str) {
        let mut counts = self.counts.lock();
        match counts.get_mut(uri) {
            Some(count) => *count += 1,
            None => {
                counts.insert(uri.to_owned(), 1);
                self.version.send_modify(|version| *version += 1);
            }
        }
    }

    /// One fewer watches it.
    pub fn remove(&self, uri: &str) {
        let mut counts = self.counts.lock();
        let Some(count) = counts.get_mut(uri) else { return };
        *count -= 1;
        if *count == 0 {
            counts.remove(uri);
            self.version.send_modify(|version| *version += 1);
        }
    }

    #[must_use]
    pub fn uris(&self) -> BTreeSet<String> {
        self.counts.lock().keys().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_first_and_the_last_move_anything() {
        let watched = Watched::default();
        let version = || *watched.version.borrow();
        watched.add("a");
        watched.add("a");
        watched.add("b");
        assert_eq!((version(), watched.uris().len()), (2, 2));
        watched.remove("a");
        watched.remove("never");
        assert_eq!((version(), watched.uris().len()), (2, 2));
        watched.remove("a");
        watched.remove("a");
        assert_eq!((version(), watched.uris()), (3, BTreeSet::from(["b".to_owned()])));
    }
}
