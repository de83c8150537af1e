//! Lets requests wait for the next version of a change. Their number is bounded, and a change without watchers costs
//! nothing.

use std::{collections::HashMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::sync::watch;

use countersign_domain::changes::Change;
use countersign_store::{Store, StoreError};

/// The delay before a change that could not be read is read again.
const READ_RETRY_DELAY: Duration = Duration::from_millis(100);

type Latest = Option<Arc<Change>>;

struct WatchedChange {
    latest: watch::Sender<Latest>,
    watchers: usize,
}

pub(crate) struct Watchers {
    limit: usize,
    watched: Mutex<WatchedChanges>,
}

#[derive(Default)]
struct WatchedChanges {
    changes: HashMap<String, WatchedChange>,
    total: usize,
    closed: bool,
}

impl Watchers {
    pub(crate) fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self { limit, watched: Mutex::default() })
    }

    /// Watches the change from now on. Returns `None` if there are too many watchers.
    pub(crate) fn watch(self: &Arc<Self>, id: &str) -> Option<Watch> {
        let mut watched = self.watched.lock();
        if watched.total >= self.limit {
            return None;
        }
        watched.total += 1;
        let closed = watched.closed;
        let entry = watched
            .changes
            .entry(id.to_owned())
            .or_insert_with(|| WatchedChange { latest: watch::Sender::new(None), watchers: 0 });
        entry.watchers += 1;
        let latest = entry.latest.subscribe();
        Some(Watch { watchers: Arc::clone(self), id: id.to_owned(), latest, closed })
    }

    /// Returns `true` if a request waits for the change.
    pub(crate) fn has_watchers(&self, id: &str) -> bool {
        self.watched.lock().changes.contains_key(id)
    }

    /// Passes a committed change to its watchers. Ignores a version that is not newer than the last one, because a change
    /// read from the store may arrive late.
    pub(crate) fn announce(&self, change: &Arc<Change>) {
        if let Some(entry) = self.watched.lock().changes.get(&change.id) {
            entry.latest.send_if_modified(|latest| {
                let is_newer = latest.as_ref().is_none_or(|latest| latest.version < change.version);
                if is_newer {
                    *latest = Some(Arc::clone(change));
                }
                is_newer
            });
        }
    }

    /// Ends all waits; called when the shutdown begins.
    pub(crate) fn close(&self) {
        let mut watched = self.watched.lock();
        watched.closed = true;
        for entry in watched.changes.values_mut() {
            // Dropping the old sender ends its receivers' wait.
            entry.latest = watch::Sender::new(None);
        }
    }
}

/// Reads a change that another node advanced and announces it. Retries while the change has watchers.
pub(crate) async fn announce_from_store(watchers: Arc<Watchers>, store: Arc<dyn Store>, id: String) {
    while watchers.has_watchers(&id) {
        match store.get(&id).await {
            Ok(Some(change)) => return watchers.announce(&change),
            Ok(None) | Err(StoreError::Closed) => return,
            Err(error) => {
                tracing::debug!(%error, change = id, "a watched change cannot be read; trying again");
                tokio::time::sleep(READ_RETRY_DELAY).await;
            }
        }
    }
}

/// A watcher of one change until it is dropped.
pub(crate) struct Watch {
    watchers: Arc<Watchers>,
    id: String,
    latest: watch::Receiver<Latest>,
    closed: bool,
}

impl Watch {
    /// Waits for the next announced version; `None` when the gateway shuts down. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Latest {
        if self.closed || self.latest.changed().await.is_err() {
            return None;
        }
        self.latest.borrow_and_update().clone()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let mut watched = self.watchers.watched.lock();
        watched.total = watched.total.saturating_sub(1);
        if let Some(entry) = watched.changes.get_mut(&self.id) {
            entry.watchers = entry.watchers.saturating_sub(1);
            if entry.watchers == 0 {
                watched.changes.remove(&self.id);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use countersign_domain::changes::{ChangeState, testing::change};

    #[test]
    fn late_read_does_not_replace_a_newer_version() {
        let watchers = Watchers::new(8);
        let watch = watchers.watch("a").unwrap();
        for version in [3, 2, 3] {
            watchers.announce(&Arc::new(change("a", "agent", version, ChangeState::Pending)));
        }
        assert_eq!(watch.latest.borrow().as_ref().unwrap().version, 3);
    }
}
