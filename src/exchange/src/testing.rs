//! Sessions and exchanges for tests, in which the test acts as the client.
#![allow(clippy::unwrap_used, clippy::panic, reason = "it is only built for tests")]

use std::sync::Arc;

use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::{
    bounds::memory::MemoryBudget,
    request::{
        context::Exchange,
        reply::{RelatedChannel, ResponseQueue},
    },
    session::{
        facts::ClientFacts,
        outbox::{Outbox, OutboxLimits},
        state::{Channel, SessionState},
    },
};
use countersign_domain::principal::{Claims, Credential, Identity, Principal, Role, Scope, TokenCredential};
use countersign_protocol::{
    Era, Revision,
    envelope::{self, Incoming, Message, Request},
    params::Implementation,
};
use countersign_telemetry::metrics::Transport;

/// Creates sessions and exchanges of clients.
pub struct TestClients {
    /// The memory of the clients' principals.
    pub memory: Arc<MemoryBudget>,
    /// Cancelled to end all sessions.
    pub ended: CancellationToken,
}

impl Default for TestClients {
    fn default() -> Self {
        Self { memory: MemoryBudget::new(16 << 20, 64 << 20), ended: CancellationToken::new() }
    }
}

impl TestClients {
    /// Creates a session of a principal: with an outbox in the handshake era, for bookkeeping only in the stateless
    /// era.
    pub fn session(&self, principal: &str, era: Era) -> Arc<SessionState> {
        let (transport, channel) = match era {
            Era::Legacy => {
                let limits = OutboxLimits { messages: 1000, bytes: 16 << 20, replay_frames: 0, replay_bytes: 0 };
                let outbox = Outbox::with_share(limits, self.memory.share(principal));
                (Transport::WebSocket, Channel::Outbox(outbox))
            }
            Era::Modern => (Transport::Http, Channel::None),
        };
        Arc::new(SessionState::new(transport, identity(principal, Role::Agent), channel, &self.ended))
    }

    /// Creates a request of the agent `ann`, for a client with a revision and its capabilities.
    pub fn exchange(&self, revision: Revision, capabilities: &str) -> Exchange {
        self.exchange_of("ann", revision, capabilities)
    }

    /// Creates a request of another agent.
    pub fn exchange_of(&self, principal: &str, revision: Revision, capabilities: &str) -> Exchange {
        let session = self.session(principal, revision.era());
        let facts = Arc::new(facts(revision, capabilities));
        let related = match revision.era() {
            Era::Legacy => {
                session.set_facts(Arc::clone(&facts), self.memory.take(principal, facts.size()).unwrap());
                session.mark_initialized();
                RelatedChannel::Outbox(Arc::clone(&session))
            }
            Era::Modern => RelatedChannel::Queue(Arc::new(ResponseQueue::new(100, 1 << 20))),
        };
        Exchange {
            identity: session.identity(),
            transport: session.transport,
            session,
            facts,
            related,
            log_level: None,
            headers: None,
        }
    }
}

/// Returns the identity of a principal that connects over loopback.
pub fn identity(principal: &str, role: Role) -> Identity {
    let principal = Principal::new(principal, role);
    Identity { principal: Arc::new(principal), credential: Credential::Loopback }
}

/// Returns the identity of a principal with an access token that has these scopes. No verifier knows the token.
pub fn token_identity(principal: &str, role: Role, scopes: &[Scope], expires_at: i64) -> Identity {
    let claims = Claims { scopes: Some(scopes.to_vec()), ..Claims::default() };
    let principal = Principal { claims: Some(Arc::new(claims)), ..Principal::new(principal, role) };
    let issuer = "https://id.example".to_owned();
    let token = TokenCredential { hash: [0; 32], issuer, issuer_version: 0, signed_by: None, expires_at };
    Identity { principal: Arc::new(principal), credential: Credential::Token(Arc::new(token)) }
}

/// Returns the facts that a client named `test` states.
pub fn facts(revision: Revision, capabilities: &str) -> ClientFacts {
    ClientFacts {
        revision,
        client: Some(Implementation { name: "test".into(), version: "1".into(), title: None }),
        client_info: Some(r#"{"name":"test","version":"1"}"#.into()),
        capabilities: capabilities.into(),
    }
}

/// Takes the messages that were sent to the client of an exchange.
pub fn take_sent_messages(exchange: &Exchange) -> Vec<Value> {
    let messages = match (&exchange.related, &exchange.session.channel) {
        (RelatedChannel::Queue(queue), _) => queue.take(),
        (_, Channel::Outbox(outbox)) => outbox.drain(0, usize::MAX).map(|drained| drained.frames).unwrap_or_default(),
        _ => Vec::new(),
    };
    messages.iter().map(|message| serde_json::from_slice(message).unwrap()).collect()
}

/// Parses a request.
pub fn request<'a>(text: &'a str) -> Request<'a> {
    let limits = envelope::Limits { max_depth: 64, max_batch: 10 };
    match envelope::parse(text.as_bytes(), &limits) {
        Ok(Incoming::Single(Message::Request(request))) => request,
        _ => panic!("no request: {text}"),
    }
}
