//! The live sessions. The actor of each session ([`actor::Session`]) starts and ends it.

pub mod actor;
pub mod lifetimes;

use std::sync::Arc;

use actix::Addr;
use dashmap::DashMap;
use jiff::Timestamp;
use serde_json::json;
use tokio::sync::Semaphore;

use crate::gateway::{
    limits::SessionLimits,
    registry::{Registry, SessionInfo},
    server::McpServer,
};
use actor::{EndSession, Session, close};
use countersign_auth::Authenticator;
use countersign_domain::principal::{Identity, Principal};
use countersign_exchange::{
    outbox::{Outbox, OutboxLimits},
    state::{Channel, SessionState},
};
use countersign_feed::Feed;
use countersign_protocol::{ErrorKind, McpError};
use countersign_telemetry::metrics::Transport;
use lifetimes::SessionLifetimes;

/// A session and the address of its actor.
pub struct SessionWithActor {
    pub session: Arc<SessionState>,
    pub actor: Addr<Session>,
}

/// The live sessions and their actors.
pub struct Sessions {
    /// Answers the requests of the sessions.
    pub server: Arc<McpServer>,
    pub registry: Arc<Registry>,
    pub lifetimes: Arc<SessionLifetimes>,
    pub limits: SessionLimits,
    /// Checks the credentials of requests and of sessions.
    pub authenticator: Arc<Authenticator>,
    /// Announces that sessions were opened or closed.
    feed: Feed,
    /// The addresses of the actors of sessions that hold state.
    addresses: DashMap<Arc<str>, Addr<Session>, foldhash::fast::RandomState>,
    /// One permit for each WebSocket session that waits for its client to come back. There are as many permits as there
    /// may be connections.
    waiting_permits: Arc<Semaphore>,
}

impl Sessions {
    pub fn new(
        server: Arc<McpServer>,
        registry: Arc<Registry>,
        lifetimes: Arc<SessionLifetimes>,
        limits: SessionLimits,
    ) -> Self {
        let waiting_permits = Arc::new(Semaphore::new(limits.max_waiting));
        Self {
            authenticator: Arc::clone(&server.long_requests.authenticator),
            feed: server.reviews.changes.feed().clone(),
            server,
            registry,
            lifetimes,
            limits,
            addresses: DashMap::default(),
            waiting_permits,
        }
    }

    /// Creates the session of a connection with an outbox.
    pub fn create_outbox_session(
        &self,
        transport: Transport,
        identity: Identity,
        limits: OutboxLimits,
    ) -> SessionState {
        let outbox = Outbox::with_share(limits, self.server.memory.share(&identity.principal.name));
        // A stdio session is unknown to other nodes, so its end does not depend on the lease.
        let lifetimes = &self.lifetimes;
        let end_token = if transport == Transport::Stdio { lifetimes.ended.clone() } else { lifetimes.lease_token() };
        SessionState::new(transport, identity, Channel::Outbox(outbox), &end_token)
            .with_node_prefix(lifetimes.node().as_deref())
    }

    /// Creates a session for bookkeeping, through which nothing can be sent.
    pub fn create_stateless_session(&self, transport: Transport, identity: Identity) -> Arc<SessionState> {
        Arc::new(SessionState::new(transport, identity, Channel::None, &self.lifetimes.ended))
    }

    /// Finds a session of the transport for its own principal. A stranger cannot tell a wrong id from another principal's
    /// session. From then on the token of this request keeps the session valid, unless it is a WebSocket session.
    pub fn find(&self, identity: &Identity, transport: Transport, id: &str) -> Option<Arc<SessionState>> {
        let session = self.registry.get(id).filter(|session| {
            session.transport == transport
                && session.holds_state()
                && !session.ended.is_cancelled()
                && session.principal().name == identity.principal.name
        })?;
        // The open connection of a WebSocket session must not outlive its own token.
        if transport != Transport::WebSocket {
            session.renew(identity);
        }
        Some(session)
    }

    /// Checks that this node holds its lease, and makes room for one more session that clients reach through any node.
    ///
    /// # Errors
    /// The errors of [`Self::make_room_for_session`]; `STORE_UNAVAILABLE` while other nodes may count this one as gone.
    pub fn check_lease_and_make_room(&self, principal: &Principal) -> Result<(), McpError> {
        self.lifetimes.check_lease()?;
        self.make_room_for_session(principal)
    }

    /// Publishes to the feed that a session was opened or closed.
    fn announce(&self, kind: &'static str, session: &SessionState) {
        if !session.holds_state() && session.facts().is_none() {
            return;
        }
        let event = json!({ "type": kind, "at": Timestamp::now().to_string(), "session": SessionInfo::new(session) });
        self.feed.publish_live(&event);
    }

    fn insert(&self, session: &Arc<SessionState>, actor: Addr<Session>) {
        if session.holds_state() {
            self.addresses.insert(Arc::clone(&session.id), actor);
        }
        self.registry.insert(Arc::clone(session));
    }

    fn remove(&self, id: &str) {
        self.registry.remove(id);
        self.addresses.remove(id);
    }

    /// Returns the session with the address of its actor, or `None` once the actor has ended.
    pub fn find_actor(&self, session: Arc<SessionState>) -> Option<SessionWithActor> {
        let actor = self.addresses.get(&session.id)?.clone();
        Some(SessionWithActor { session, actor })
    }

    /// Makes room for one more session of a principal that holds state. Beyond `limits.max_sessions`, another session
    /// of the principal is evicted.
    ///
    /// # Errors
    /// `OVERLOADED` if all of them have calls in flight.
    pub fn make_room_for_session(&self, principal: &Principal) -> Result<(), McpError> {
        let max = self.limits.max_sessions;
        // If all sessions together are below the limit, those of one principal are too.
        let make_room = || self.registry.count_for(&principal.name) < max || self.evict_one(&principal.name);
        if self.registry.len() < max || make_room() {
            return Ok(());
        }
        Err(McpError::new(ErrorKind::Overloaded, "too many sessions (limits.max_sessions)").with("limit", max as u64))
    }

    fn evict_one(&self, principal: &str) -> bool {
        let Some(session) = self.registry.evict_one(principal) else { return false };
        tracing::debug!(session = %session.short_id(), "the session is evicted to make room for another one");
        session.end();
        if let Some(actor) = self.addresses.get(&session.id) {
            actor.do_send(EndSession { code: close::GOING_AWAY, reason: "its place was needed" });
        }
        true
    }
}
