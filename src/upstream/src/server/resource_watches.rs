//! Counts the clients that watch each resource, and the upstream's notifications about them.
//!
//! A client with its own connection is subscribed there as well, so most servers announce a change more than once. An
//! update on the gateway's own subscription is forwarded at once. An update from another connection is delayed and then
//! forwarded unless the same one arrived meanwhile, because some servers announce a session's resources only in that
//! session.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{sync::watch, time::Instant};

/// The period within which updates on two connections count as one change.
pub const DUPLICATE_WINDOW: Duration = Duration::from_millis(250);

/// The resources of one upstream that clients watch.
#[derive(Debug, Default)]
pub struct ResourceWatches {
    watches: Mutex<BTreeMap<String, ResourceWatch>>,
    /// Incremented when the set of URIs changes.
    pub version: watch::Sender<u64>,
    /// The URIs that the upstream has accepted (`true`) or refused.
    pub answers: watch::Sender<BTreeMap<String, bool>>,
}

#[derive(Debug)]
struct ResourceWatch {
    count: usize,
    added_at: Instant,
    /// The time of the latest update on the gateway's own subscription.
    last_update: Option<Instant>,
    /// `true` while an update from another connection is delayed.
    is_delayed: bool,
}

/// The treatment of an update from another connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpdateAction {
    /// Forward it.
    Forward,
    /// Ignore it, because it is a duplicate or a delayed update covers it.
    Ignore,
    /// Check again after [`DUPLICATE_WINDOW`] with [`ResourceWatches::take_delayed_update`].
    Delay,
}

impl ResourceWatches {
    /// Adds a watching client.
    pub fn add(&self, uri: &str) {
        let mut watches = self.watches.lock();
        match watches.get_mut(uri) {
            Some(entry) => entry.count += 1,
            None => {
                let watch = ResourceWatch { count: 1, added_at: Instant::now(), last_update: None, is_delayed: false };
                watches.insert(uri.to_owned(), watch);
                self.answers.send_if_modified(|answers| answers.remove(uri).is_some());
                self.version.send_modify(|version| *version += 1);
            }
        }
    }

    /// Returns the time since which clients watch a resource, or the current time if none does.
    pub fn watched_since(&self, uri: &str) -> Instant {
        self.watches.lock().get(uri).map_or_else(Instant::now, |entry| entry.added_at)
    }

    /// Removes a watching client.
    pub fn remove(&self, uri: &str) {
        let mut watches = self.watches.lock();
        let Some(entry) = watches.get_mut(uri) else { return };
        entry.count -= 1;
        if entry.count == 0 {
            watches.remove(uri);
            self.version.send_modify(|version| *version += 1);
        }
    }

    /// Records an update on the gateway's own subscription.
    pub fn record_update(&self, uri: &str) {
        if let Some(entry) = self.watches.lock().get_mut(uri) {
            entry.last_update = Some(Instant::now());
        }
    }

    /// Decides what to do with an update from another connection.
    #[must_use]
    pub fn classify_update_from_other_connection(&self, uri: &str) -> UpdateAction {
        if self.answers.borrow().get(uri) != Some(&true) {
            return UpdateAction::Forward;
        }
        match self.watches.lock().get_mut(uri) {
            None => UpdateAction::Forward,
            Some(entry)
                if entry.is_delayed
                    || entry.last_update.is_some_and(|last_update| last_update.elapsed() < DUPLICATE_WINDOW) =>
            {
                UpdateAction::Ignore
            }
            Some(entry) => {
                entry.is_delayed = true;
                UpdateAction::Delay
            }
        }
    }

    /// Ends the delay of an update. Returns `true` if it must be forwarded, because the gateway's own subscription did
    /// not announce it.
    #[must_use]
    pub fn take_delayed_update(&self, uri: &str) -> bool {
        self.watches.lock().get_mut(uri).is_some_and(|entry| {
            entry.is_delayed = false;
            entry.last_update.is_none_or(|last_update| last_update.elapsed() > DUPLICATE_WINDOW)
        })
    }

    /// Publishes which URIs the upstream has accepted and refused.
    pub fn publish_answers(&self, accepted: &BTreeSet<String>, refused: &BTreeSet<String>) {
        let answers = |uris: &BTreeSet<String>, is_accepted| {
            uris.iter().cloned().map(move |uri| (uri, is_accepted)).collect::<Vec<_>>()
        };
        self.answers.send_replace([answers(accepted, true), answers(refused, false)].concat().into_iter().collect());
    }

    /// Returns the URIs that clients watch.
    #[must_use]
    pub fn uris(&self) -> BTreeSet<String> {
        self.watches.lock().keys().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_changes_with_first_and_last_watch() {
        let watches = ResourceWatches::default();
        let version = || *watches.version.borrow();
        watches.add("a");
        watches.add("a");
        watches.add("b");
        assert_eq!((version(), watches.uris().len()), (2, 2));
        watches.remove("a");
        watches.remove("never");
        assert_eq!((version(), watches.uris().len()), (2, 2));
        watches.remove("a");
        watches.remove("a");
        assert_eq!((version(), watches.uris()), (3, BTreeSet::from(["b".to_owned()])));
    }
}
