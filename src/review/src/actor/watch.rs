//! Who waits for which change. Bounded; costs nothing for changes that nobody waits for.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::sync::watch;

use countersign_domain::changes::Change;
use countersign_store::{Store, StoreError};

/// Before a change that could not be read is read again.
const PAUSE: Duration = Duration::from_millis(100);

type Latest = Option<Arc<Change>>;

struct WatchedChange {
    latest: watch::Sender<Latest>,
    watchers: usize,
}

pub(crate) struct Watchers {
    limit: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    changes: HashMap<String, WatchedChange>,
    total: usize,
    closed: bool,
}

impl Watchers {
    pub(crate) fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self { limit, state: Mutex::default() })
    }

    /// Hears of the change from now on; `None` if too many wait already.
    pub(crate) fn watch(self: &Arc<Self>, id: &str) -> Option<Watch> {
        let mut state = self.lock();
        if state.total >= self.limit {
            return None;
        }
        state.total += 1;
        let closed = state.closed;
        let entry = state
            .changes
            .entry(id.to_owned())
            .or_insert_with(|| WatchedChange { latest: watch::Sender::new(None), watchers: 0 });
        entry.watchers += 1;
        let latest = entry.latest.subscribe();
        Some(Watch { watchers: Arc::clone(self), id: id.to_owned(), latest, closed })
    }

    /// Whether anybody waits for the change.
    pub(crate) fn are_there(&self, id: &str) -> bool {
        self.lock().changes.contains_key(id)
    }

    /// After the commit. What was read of another node's steps may come after what came of them: only what is newer counts.
    pub(crate) fn announce(&self, change: &Arc<Change>) {
        if let Some(entry) = self.lock().changes.get(&change.id) {
            entry.latest.send_if_modified(|latest| {
                let newer = latest.as_ref().is_none_or(|latest| latest.version < change.version);
                if newer {
                    *latest = Some(Arc::clone(change));
                }
                newer
            });
        }
    }

    /// Wakes everybody: nothing more will be announced.
    pub(crate) fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        for entry in state.changes.values_mut() {
            // Dropping the old sender ends its receivers' wait.
            entry.latest = watch::Sender::new(None);
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reads a change that another node has taken a step further, for as long as that takes and somebody waits for it.
pub(crate) async fn tell(watchers: Arc<Watchers>, store: Arc<dyn Store>, id: String) {
    while watchers.are_there(&id) {
        match store.get(&id).await {
            Ok(Some(change)) => return watchers.announce(&change),
            Ok(None) | Err(StoreError::Closed) => return,
            Err(error) => {
                tracing::debug!(%error, change = id, "a change that somebody waits for cannot be read; trying again");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

/// Counts as a watcher until it is dropped.
pub(crate) struct Watch {
    watchers: Arc<Watchers>,
    id: String,
    latest: watch::Receiver<Latest>,
    closed: bool,
}

impl Watch {
    /// The next state that is announced; `None` when the gateway is shutting down. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Latest {
        if self.closed || self.latest.changed().await.is_err() {
            return None;
        }
        self.latest.borrow_and_update().clone()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let mut state = self.watchers.lock();
        state.total = state.total.saturating_sub(1);
        if let Some(entry) = state.changes.get_mut(&self.id) {
            entry.watchers = entry.watchers.saturating_sub(1);
            if entry.watchers == 0 {
                state.changes.remove(&self.id);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use countersign_domain::changes::{ChangeState, testing::change};

    #[test]
    fn what_is_read_late_does_not_stand_over_what_came_after_it() {
        let watchers = Watchers::new(8);
        let watch = watchers.watch("a").unwrap();
        for version in [3, 2, 3] {
            watchers.announce(&Arc::new(change("a", "agent", version, ChangeState::Pending)));
        }
        assert_eq!(watch.latest.borrow().as_ref().unwrap().version, 3);
    }
}
