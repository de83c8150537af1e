//! The sessions that live now: each has an actor, [`actor::Session`], which begins and ends it.

pub mod actor;

use std::{ops::Deref, sync::Arc};

use actix::Addr;
use dashmap::DashMap;
use tokio::sync::Semaphore;

use crate::services::SessionServices;
use actor::{EndSession, Session, close};
use countersign_domain::principal::Principal;
use countersign_exchange::shared::{Channel, SessionShared};
use countersign_protocol::{ErrorKind, McpError};

/// A session and the address of its actor.
pub struct RegisteredSession {
    pub shared: Arc<SessionShared>,
    pub addr: Addr<Session>,
}

/// See the module's page.
pub struct Sessions {
    pub services: Arc<SessionServices>,
    /// Of the actors of those that hold state of their own.
    addresses: DashMap<Arc<str>, Addr<Session>, foldhash::fast::RandomState>,
    /// One permit for each WebSocket session that waits for its client to come back: as many as may be connected.
    waiting: Arc<Semaphore>,
}

impl Deref for Sessions {
    type Target = SessionServices;

    fn deref(&self) -> &SessionServices {
        &self.services
    }
}

impl Sessions {
    #[must_use]
    pub fn new(services: SessionServices) -> Self {
        let waiting = Arc::new(Semaphore::new(services.config.transports.websocket.max_connections));
        Self { services: Arc::new(services), addresses: DashMap::default(), waiting }
    }

    fn insert(&self, shared: &Arc<SessionShared>, addr: Addr<Session>) {
        if !matches!(shared.channel, Channel::None) {
            self.addresses.insert(Arc::clone(&shared.id), addr);
        }
        self.registry.insert(Arc::clone(shared));
    }

    fn remove(&self, id: &str) {
        self.registry.remove(id);
        self.addresses.remove(id);
    }

    /// The session with the address of its actor, while that lives.
    #[must_use]
    pub fn registered(&self, shared: Arc<SessionShared>) -> Option<RegisteredSession> {
        let addr = self.addresses.get(&shared.id)?.clone();
        Some(RegisteredSession { shared, addr })
    }

    /// Makes room for one more session of a principal that holds state: beyond `limits.max_sessions` another one ends.
    ///
    /// # Errors
    /// `OVERLOADED` where all of them have calls in flight.
    pub fn room_for_session(&self, principal: &Principal) -> Result<(), McpError> {
        let max = self.config.limits.max_sessions;
        // Few sessions in all are few of anybody's, which spares the counting.
        let room = || self.registry.count_of(&principal.name) < max || self.evict_one_of(&principal.name);
        if self.registry.len() < max || room() {
            return Ok(());
        }
        Err(McpError::new(ErrorKind::Overloaded, "too many sessions (limits.max_sessions)").with("limit", max as u64))
    }

    fn evict_one_of(&self, principal: &str) -> bool {
        let Some(session) = self.registry.evict_one_of(principal) else { return false };
        tracing::debug!(session = %session.short_id(), "its place is taken by another session");
        session.end();
        if let Some(addr) = self.addresses.get(&session.id) {
            addr.do_send(EndSession { code: close::GOING_AWAY, reason: "its place was needed" });
        }
        true
    }
}
