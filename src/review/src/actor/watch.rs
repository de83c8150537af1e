//! Who waits for which change. Bounded; costs nothing for changes that nobody waits for.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use tokio::sync::watch;

use countersign_domain::changes::Change;

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

    /// Only by `PendingChanges`, after the commit.
    pub(crate) fn announce(&self, change: &Arc<Change>) {
        if let Some(entry) = self.lock().changes.get(&change.id) {
            entry.latest.send_replace(Some(Arc::clone(change)));
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
