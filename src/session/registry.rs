//! All sessions by id: where a request that lands on another thread finds what it needs without a hop.

use std::sync::Arc;

use actix::Addr;
use dashmap::DashMap;

use super::{actor::Session, shared::SessionShared};

/// A session and the address of its actor.
#[derive(Clone)]
pub struct Entry {
    pub shared: Arc<SessionShared>,
    pub addr: Addr<Session>,
}

/// See the module's page.
#[derive(Default)]
pub struct Registry {
    sessions: DashMap<String, Entry, foldhash::fast::RandomState>,
}

impl Registry {
    pub fn insert(&self, shared: Arc<SessionShared>, addr: Addr<Session>) {
        self.sessions.insert(shared.id.to_string(), Entry { shared, addr });
    }

    pub fn get(&self, id: &str) -> Option<Entry> {
        self.sessions.get(id).map(|e| e.value().clone())
    }

    /// The session alone, where nothing is sent to its actor.
    pub fn shared(&self, id: &str) -> Option<Arc<SessionShared>> {
        self.sessions.get(id).map(|e| Arc::clone(&e.shared))
    }

    pub fn remove(&self, id: &str) -> Option<Entry> {
        self.sessions.remove(id).map(|(_, e)| e)
    }

    pub fn len(&self) -> usize {
        self.sessions.len()
    }

    pub fn is_empty(&self) -> bool {
        self.sessions.is_empty()
    }

    /// Sessions of one principal that hold state of their own (not the bookkeeping of stateless connections).
    pub fn count_of(&self, principal: &str) -> usize {
        self.sessions
            .iter()
            .filter(|e| e.shared.principal().name == principal && !matches!(e.shared.channel, super::Channel::None))
            .count()
    }

    /// Calls `f` with each session; a session that comes or goes meanwhile may be missed.
    pub fn for_each(&self, mut f: impl FnMut(&Arc<SessionShared>)) {
        for entry in &self.sessions {
            f(&entry.shared);
        }
    }
}
