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

/// The maximum number of recent updates that are remembered. Duplicates of further ones are forwarded.
const MAX_RECENT_UPDATES: usize = 1024;
/// The maximum length of the URI of an update that is remembered.
const MAX_URI_BYTES: usize = 4096;

/// The resources of one upstream that clients watch.
#[derive(Debug, Default)]
pub struct ResourceWatches {
    /// The watched resources by URI. Receivers are notified when the set of URIs changes.
    pub watches: watch::Sender<BTreeMap<String, ResourceWatch>>,
    /// The latest updates by URI, which may be that of a part of a watched resource.
    recent_updates: Mutex<BTreeMap<String, RecentUpdate>>,
    /// The URIs that the upstream has accepted (`true`) or refused.
    pub answers: watch::Sender<BTreeMap<String, bool>>,
}

/// The clients that watch one resource.
#[derive(Debug)]
pub struct ResourceWatch {
    count: usize,
    added_at: Instant,
}

/// The latest updates with one URI.
#[derive(Debug, Default)]
struct RecentUpdate {
    /// The time of the latest update on the gateway's own subscription.
    last_update: Option<Instant>,
    /// `true` while an update from another connection is delayed.
    is_delayed: bool,
}

impl RecentUpdate {
    /// Returns `true` if the gateway's own subscription announced the update within [`DUPLICATE_WINDOW`].
    fn is_announced(&self) -> bool {
        self.last_update.is_some_and(|last_update| last_update.elapsed() <= DUPLICATE_WINDOW)
    }
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
        self.watches.send_if_modified(|watches| {
            if let Some(entry) = watches.get_mut(uri) {
                entry.count += 1;
                return false;
            }
            watches.insert(uri.to_owned(), ResourceWatch { count: 1, added_at: Instant::now() });
            self.answers.send_if_modified(|answers| answers.remove(uri).is_some());
            true
        });
    }

    /// Returns the time since which clients watch a resource, or the current time if none does.
    pub fn watched_since(&self, uri: &str) -> Instant {
        self.watches.borrow().get(uri).map_or_else(Instant::now, |entry| entry.added_at)
    }

    /// Removes a watching client.
    pub fn remove(&self, uri: &str) {
        self.watches.send_if_modified(|watches| {
            let Some(entry) = watches.get_mut(uri) else { return false };
            entry.count -= 1;
            entry.count == 0 && watches.remove(uri).is_some()
        });
    }

    /// Records an update on the gateway's own subscription.
    pub fn record_update(&self, uri: &str) {
        let watches = self.watches.borrow();
        if uri_and_containing(uri).any(|uri| watches.contains_key(uri))
            && let Some(update) = find_or_insert(&mut self.recent_updates.lock(), uri)
        {
            update.last_update = Some(Instant::now());
        }
    }

    /// Decides what to do with an update from another connection.
    pub fn classify_update_from_other_connection(&self, uri: &str) -> UpdateAction {
        let is_subscribed = {
            let answers = self.answers.borrow();
            uri_and_containing(uri).any(|uri| answers.get(uri) == Some(&true))
        };
        if !is_subscribed {
            return UpdateAction::Forward;
        }
        match find_or_insert(&mut self.recent_updates.lock(), uri) {
            None => UpdateAction::Forward,
            Some(update) if update.is_delayed || update.is_announced() => UpdateAction::Ignore,
            Some(update) => {
                update.is_delayed = true;
                UpdateAction::Delay
            }
        }
    }

    /// Ends the delay of an update. Returns `true` if it must be forwarded, because the gateway's own subscription did
    /// not announce it.
    pub fn take_delayed_update(&self, uri: &str) -> bool {
        self.recent_updates.lock().get_mut(uri).is_some_and(|update| {
            update.is_delayed = false;
            !update.is_announced()
        })
    }

    /// Publishes which URIs the upstream has accepted and refused.
    pub fn publish_answers(&self, accepted: &BTreeSet<String>, refused: &BTreeSet<String>) {
        let accepted = accepted.iter().map(|uri| (uri.clone(), true));
        let refused = refused.iter().map(|uri| (uri.clone(), false));
        self.answers.send_replace(accepted.chain(refused).collect());
    }

    /// Returns the URIs that clients watch.
    pub fn uris(&self) -> BTreeSet<String> {
        self.watches.borrow().keys().cloned().collect()
    }
}

/// Returns the entry of a URI, which is added if it is missing. Returns `None` if it cannot be added within the limits.
fn find_or_insert<'a>(updates: &'a mut BTreeMap<String, RecentUpdate>, uri: &str) -> Option<&'a mut RecentUpdate> {
    if !updates.contains_key(uri) {
        if updates.len() >= MAX_RECENT_UPDATES {
            updates.retain(|_, update| update.is_delayed || update.is_announced());
        }
        if updates.len() >= MAX_RECENT_UPDATES || uri.len() > MAX_URI_BYTES {
            return None;
        }
        updates.insert(uri.to_owned(), RecentUpdate::default());
    }
    updates.get_mut(uri)
}

/// Returns the URI and those that contain it.
fn uri_and_containing(uri: &str) -> impl Iterator<Item = &str> {
    std::iter::once(uri).chain(containing_uris(uri))
}

/// Returns the URIs that contain this one by path, longest first. Their number is bounded, so that a crafted URI cannot
/// be expensive.
pub fn containing_uris(uri: &str) -> impl Iterator<Item = &str> {
    const MAX_SEPARATORS: usize = 32;
    let separators = uri.char_indices().rev().filter(|(_, c)| matches!(c, '/' | '?' | '#')).take(MAX_SEPARATORS);
    // Each URI is returned with and without its trailing slash.
    separators.flat_map(|(index, c)| {
        let with_slash = (c == '/' && index + 1 < uri.len()).then(|| &uri[..=index]);
        with_slash.into_iter().chain(std::iter::once(&uri[..index]))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_and_last_watch_of_a_resource_are_announced() {
        let watches = ResourceWatches::default();
        let mut changes = watches.watches.subscribe();
        let mut is_announced = |change: &dyn Fn()| {
            change();
            let has_changed = changes.has_changed().unwrap();
            changes.mark_unchanged();
            has_changed
        };
        assert!(is_announced(&|| watches.add("a")));
        assert!(!is_announced(&|| watches.add("a")));
        assert!(is_announced(&|| watches.add("b")));
        assert_eq!(watches.uris().len(), 2);
        assert!(!is_announced(&|| watches.remove("a")));
        assert!(!is_announced(&|| watches.remove("never")));
        assert_eq!(watches.uris().len(), 2);
        assert!(is_announced(&|| watches.remove("a")));
        assert!(!is_announced(&|| watches.remove("a")));
        assert_eq!(watches.uris(), BTreeSet::from(["b".to_owned()]));
    }

    #[test]
    fn recent_updates_are_bounded() {
        let watches = ResourceWatches::default();
        watches.publish_answers(&BTreeSet::from(["a:/b".to_owned()]), &BTreeSet::new());
        let classify = |uri: &str| watches.classify_update_from_other_connection(uri);
        for n in 0..MAX_RECENT_UPDATES {
            assert_eq!(classify(&format!("a:/b/{n}")), UpdateAction::Delay);
        }
        assert_eq!(classify("a:/b/0"), UpdateAction::Ignore);
        assert_eq!(classify("a:/b/more"), UpdateAction::Forward);
        assert!(watches.take_delayed_update("a:/b/0"));
        assert_eq!(classify(&format!("a:/b/{}", "c".repeat(MAX_URI_BYTES))), UpdateAction::Forward);
        assert_eq!(classify("a:/b/more"), UpdateAction::Delay);
        assert_eq!(classify("a:/bb"), UpdateAction::Forward, "it is not part of a watched resource");
    }

    #[test]
    fn containing_uris_are_longest_first_and_bounded() {
        assert_eq!(containing_uris("a:/b/c?d").collect::<Vec<_>>(), ["a:/b/c", "a:/b/", "a:/b", "a:/", "a:"]);
        assert_eq!(containing_uris("a:b/").collect::<Vec<_>>(), ["a:b"]);
        assert!(containing_uris("é").next().is_none());
        assert!(containing_uris(&"/".repeat(100_000)).count() <= 64);
    }
}
