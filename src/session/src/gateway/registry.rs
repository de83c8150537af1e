//! All sessions by id, so that a request on any thread finds its session without an actor message.
//!
//! The registry also counts the sessions of each principal and chooses which one is evicted when all slots are taken.

use std::{collections::HashMap, sync::Arc};

use bytes::Bytes;
use dashmap::DashMap;
use jiff::Timestamp;
use parking_lot::Mutex;
use serde::{Serialize, Serializer};
use utoipa::ToSchema;

use countersign_domain::principal::Principal;
use countersign_exchange::{
    eviction::{Activity, EvictionQueue},
    state::{SessionState, short_session_id},
};
use countersign_routing::subscribers::Clients;

/// The sessions of one principal that hold state. The sessions of stateless connections do not.
#[derive(Default)]
struct PrincipalSessions {
    count: usize,
    queue: EvictionQueue<Arc<str>>,
}

/// All live sessions.
#[derive(Default)]
pub struct Registry {
    sessions: DashMap<String, Arc<SessionState>, foldhash::fast::RandomState>,
    by_principal: Mutex<HashMap<String, PrincipalSessions>>,
}

impl Clients for Registry {
    fn broadcast(&self, message: &Bytes, is_concerned: &dyn Fn(&Principal) -> bool) {
        self.for_each(|session| {
            let is_open = session.is_initialized() && session.legacy_revision().is_some() && session.holds_state();
            if is_open && is_concerned(session.principal()) {
                session.send_unsolicited(message.clone());
            }
        });
    }
}

impl Registry {
    pub fn insert(&self, session: Arc<SessionState>) {
        self.sessions.insert(session.id.to_string(), Arc::clone(&session));
        if session.holds_state() {
            let mut by_principal = self.by_principal.lock();
            let principal_sessions = by_principal.entry(session.principal().name.clone()).or_default();
            principal_sessions.count += 1;
            principal_sessions.queue.add(Arc::clone(&session.id), principal_sessions.count, |id| self.activity(id));
        }
    }

    fn activity(&self, id: &str) -> Option<Activity> {
        self.sessions.get(id).map(|session| session.activity())
    }

    pub fn get(&self, id: &str) -> Option<Arc<SessionState>> {
        self.sessions.get(id).map(|session| Arc::clone(&session))
    }

    pub fn remove(&self, id: &str) -> Option<Arc<SessionState>> {
        let session = self.sessions.remove(id).map(|(_, session)| session)?;
        if session.holds_state() {
            let mut by_principal = self.by_principal.lock();
            let name = &session.principal().name;
            if let Some(principal_sessions) = by_principal.get_mut(name) {
                principal_sessions.count -= 1;
                if principal_sessions.count == 0 {
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

    /// Returns the number of sessions of one principal that hold state.
    pub fn count_for(&self, principal: &str) -> usize {
        self.by_principal.lock().get(principal).map_or(0, |principal_sessions| principal_sessions.count)
    }

    /// Chooses a session of the principal for eviction, and removes it. Returns `None` if all of its sessions have calls
    /// in flight. The slot is free at once, even before the session's actor has ended.
    pub fn evict_one(&self, principal: &str) -> Option<Arc<SessionState>> {
        let all = || {
            let principal_sessions =
                self.sessions.iter().filter(|session| session.principal().name == principal && session.holds_state());
            principal_sessions.map(|session| Arc::clone(&session.id)).collect()
        };
        let mut by_principal = self.by_principal.lock();
        let next = by_principal.get_mut(principal)?.queue.next(|id| self.activity(id), all);
        drop(by_principal);
        self.remove(&next?)
    }

    /// Calls `f` with each session. It may miss a session that opens or closes meanwhile.
    pub fn for_each(&self, mut f: impl FnMut(&Arc<SessionState>)) {
        for entry in &self.sessions {
            f(&entry);
        }
    }

    /// Describes all live sessions.
    pub fn describe_all(&self) -> Vec<SessionInfo> {
        self.sessions.iter().map(|session| SessionInfo::new(&session)).collect()
    }
}

/// A live session as the API and the dashboard show it.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Session)]
pub struct SessionInfo {
    /// The serialized form is only a prefix, because the complete id lets its holder use the session.
    #[serde(serialize_with = "serialize_id_prefix")]
    pub id: String,
    /// `http`, `websocket`, `stdio` or `sse`.
    pub transport: String,
    #[schema(required)]
    pub revision: Option<String>,
    #[schema(required)]
    pub client_name: Option<String>,
    #[schema(required)]
    pub client_version: Option<String>,
    /// The principal's name.
    pub principal: String,
    pub created_at: Timestamp,
    pub last_active_at: Timestamp,
    /// `true` if the client has a connection open. A client without one may have left without ending its session, which
    /// is kept for a while in case the client comes back.
    pub connected: bool,
    /// The number of requests that are being answered.
    pub in_flight: usize,
}

impl SessionInfo {
    pub fn new(session: &SessionState) -> Self {
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

fn serialize_id_prefix<S: Serializer>(id: &str, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&format_args!("{}…", short_session_id(id)))
}
