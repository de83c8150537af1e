//! All sessions by id: where a request that lands on another thread finds what it needs without a hop.
//!
//! It counts those of each principal, and finds out whose place a new one takes when all are taken.

use std::{collections::HashMap, sync::Arc};

use bytes::Bytes;
use dashmap::DashMap;
use jiff::Timestamp;
use parking_lot::Mutex;
use serde::{Serialize, Serializer};

use countersign_exchange::{
    eviction::{Hold, Queue},
    shared::{Channel, SessionShared, short_session_id},
};
use countersign_routing::subscribers::Clients;

/// Sessions of one principal that hold state of their own (not the bookkeeping of stateless connections).
#[derive(Default)]
struct Own {
    count: usize,
    queue: Queue<Arc<str>>,
}

/// All live sessions.
#[derive(Default)]
pub struct Registry {
    sessions: DashMap<String, Arc<SessionShared>, foldhash::fast::RandomState>,
    by_principal: Mutex<HashMap<String, Own>>,
}

fn counts(shared: &SessionShared) -> bool {
    !matches!(shared.channel, Channel::None)
}

impl Clients for Registry {
    fn broadcast(&self, message: &Bytes) {
        self.for_each(|session| {
            if session.is_initialized()
                && session.legacy_revision().is_some()
                && !matches!(session.channel, Channel::None)
            {
                session.send_unsolicited(message.clone());
            }
        });
    }
}

impl Registry {
    pub fn insert(&self, shared: Arc<SessionShared>) {
        let (id, counted) = (Arc::clone(&shared.id), counts(&shared));
        let principal = Arc::clone(shared.principal());
        self.sessions.insert(shared.id.to_string(), shared);
        if counted {
            let mut by_principal = self.by_principal.lock();
            let own = by_principal.entry(principal.name.clone()).or_default();
            own.count += 1;
            own.queue.joined(id, own.count, |id| self.hold(id));
        }
    }

    fn hold(&self, id: &str) -> Option<Hold> {
        self.sessions.get(id).map(|session| session.hold())
    }

    pub fn get(&self, id: &str) -> Option<Arc<SessionShared>> {
        self.sessions.get(id).map(|session| Arc::clone(&session))
    }

    pub fn remove(&self, id: &str) -> Option<Arc<SessionShared>> {
        let session = self.sessions.remove(id).map(|(_, session)| session)?;
        if counts(&session) {
            let mut by_principal = self.by_principal.lock();
            let name = &session.principal().name;
            if let Some(own) = by_principal.get_mut(name) {
                own.count -= 1;
                if own.count == 0 {
                    by_principal.remove(name);
                }
            }
        }
        Some(session)
    }

    pub fn len(&self) -> usize {
        self.sessions.len()
    }

    pub fn is_empty(&self) -> bool {
        self.sessions.is_empty()
    }

    /// Sessions of one principal that hold state of their own.
    pub fn count_of(&self, principal: &str) -> usize {
        self.by_principal.lock().get(principal).map_or(0, |own| own.count)
    }

    /// Takes out the session of that principal whose place is to be taken; `None` where all have calls in flight. Its place
    /// is free at once, not only when its actor has ended.
    pub fn evict_one_of(&self, principal: &str) -> Option<Arc<SessionShared>> {
        let all = || {
            let own = self.sessions.iter().filter(|session| session.principal().name == principal && counts(session));
            own.map(|session| Arc::clone(&session.id)).collect()
        };
        let next = {
            let mut by_principal = self.by_principal.lock();
            by_principal.get_mut(principal).and_then(|own| own.queue.next(|id| self.hold(id), all))
        };
        next.and_then(|id| self.remove(&id))
    }

    /// Calls `f` with each session; a session that comes or goes meanwhile may be missed.
    pub fn for_each(&self, mut f: impl FnMut(&Arc<SessionShared>)) {
        for entry in &self.sessions {
            f(&entry);
        }
    }

    /// Describes all sessions that live now.
    pub fn infos(&self) -> Vec<SessionInfo> {
        let mut all = Vec::new();
        self.for_each(|session| all.push(SessionInfo::new(session)));
        all
    }
}

/// A live session, as people see it.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SessionInfo {
    /// Only its beginning ever leaves: the whole id lets whoever holds it use the session.
    #[serde(serialize_with = "beginning")]
    pub id: String,
    /// `http`, `websocket`, `stdio` or `sse`.
    pub transport: String,
    pub revision: Option<String>,
    pub client_name: Option<String>,
    pub client_version: Option<String>,
    /// The principal's name.
    pub principal: String,
    pub created_at: Timestamp,
    pub last_active_at: Timestamp,
    /// Its client has a connection open. One that has none may have closed without ending its session, which is kept for
    /// a while for it to come back.
    pub connected: bool,
    /// Requests that are being answered.
    pub in_flight: usize,
}

impl SessionInfo {
    #[must_use]
    pub fn new(session: &SessionShared) -> Self {
        let facts = session.facts();
        let client = facts.as_ref().and_then(|f| f.client.as_ref());
        Self {
            id: session.id.to_string(),
            transport: session.transport.as_str().to_owned(),
            revision: facts.as_ref().map(|f| f.revision.as_str().to_owned()),
            client_name: client.map(|c| c.name.clone()),
            client_version: client.map(|c| c.version.clone()),
            principal: session.principal().name.clone(),
            created_at: session.created,
            last_active_at: session.last_active(),
            connected: session.is_connected(),
            in_flight: session.in_flight(),
        }
    }
}

fn beginning<S: Serializer>(id: &str, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&format_args!("{}…", short_session_id(id)))
}
