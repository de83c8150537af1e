//! Resources that clients watch, counted, and what the upstream was told of them.
//!
//! A client with a connection of its own is subscribed there as well, so most servers tell of one change twice or more
//! often. What the gateway's own subscription tells counts at once. The same from elsewhere waits for it a moment and
//! then counts too, unless it came: some servers tell of a session's own resources in that session only.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{sync::watch, time::Instant};

/// How far apart a server may tell of one change on two connections.
pub const TOGETHER: Duration = Duration::from_millis(250);

/// See the module's page.
#[derive(Debug)]
pub struct Watched {
    counts: Mutex<BTreeMap<String, WatchedResource>>,
    /// Rises when the set of URIs changes.
    pub version: watch::Sender<u64>,
    /// What the upstream has in force.
    pub in_force: watch::Sender<BTreeSet<String>>,
}

#[derive(Debug)]
struct WatchedResource {
    count: usize,
    /// When the gateway's own subscription told of it last.
    told: Option<Instant>,
    /// What was told elsewhere waits.
    waits: bool,
}

/// What is to be done about a word from elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Elsewhere {
    /// Pass it on.
    News,
    /// It is known, or will be passed on with what waits already.
    Known,
    /// Look again after [`TOGETHER`] ([`Watched::still_news`]).
    Wait,
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
            Some(entry) => entry.count += 1,
            None => {
                counts.insert(uri.to_owned(), WatchedResource { count: 1, told: None, waits: false });
                self.version.send_modify(|version| *version += 1);
            }
        }
    }

    /// One fewer watches it.
    pub fn remove(&self, uri: &str) {
        let mut counts = self.counts.lock();
        let Some(entry) = counts.get_mut(uri) else { return };
        entry.count -= 1;
        if entry.count == 0 {
            counts.remove(uri);
            self.version.send_modify(|version| *version += 1);
        }
    }

    /// The gateway's own subscription tells of a change.
    pub fn told(&self, uri: &str) {
        if let Some(entry) = self.counts.lock().get_mut(uri) {
            entry.told = Some(Instant::now());
        }
    }

    /// Another connection tells of a change.
    #[must_use]
    pub fn told_elsewhere(&self, uri: &str) -> Elsewhere {
        if !self.in_force.borrow().contains(uri) {
            return Elsewhere::News;
        }
        match self.counts.lock().get_mut(uri) {
            None => Elsewhere::News,
            Some(entry) if entry.waits || entry.told.is_some_and(|told| told.elapsed() < TOGETHER) => Elsewhere::Known,
            Some(entry) => {
                entry.waits = true;
                Elsewhere::Wait
            }
        }
    }

    /// Whether what has waited is to be passed on: the gateway's own subscription has not told of it meanwhile.
    #[must_use]
    pub fn still_news(&self, uri: &str) -> bool {
        self.counts.lock().get_mut(uri).is_some_and(|entry| {
            entry.waits = false;
            entry.told.is_none_or(|told| told.elapsed() > TOGETHER)
        })
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
