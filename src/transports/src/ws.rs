//! WebSocket at `/ws`: subprotocol `mcp`, one JSON-RPC object in each text frame, both eras as on stdio.
//!
//! No MCP revision defines this transport; it follows the convention of the SDKs. A handshake-era client that lost its connection
//! reconnects to any node with `?session=<id>&received=<frames>`, and receives the frames that it missed.

use std::{
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use actix::Addr;
use actix_web::{
    HttpRequest, HttpResponse,
    http::header::{AUTHORIZATION, HeaderName, HeaderValue},
    web,
};
use bytes::Bytes;
use serde::Deserialize;
use tokio::sync::OwnedSemaphorePermit;

use crate::{
    attachment::next_pump_id,
    endpoint::McpEndpoint,
    http::{identify_caller, mcp},
};
use countersign_domain::principal::Identity;
use countersign_exchange::{
    body_budget::Reservation,
    outbox::{DrainedFrames, OutboxLimits, ResumeError, Wake},
    state::{Channel, SessionState},
};
use countersign_http::{
    answer,
    connections::{Connection, ConnectionCutter, cutter},
    framing::pump::{self, Backend, Heartbeat, MessageLimits, MessageOutcome},
};
use countersign_protocol::{ErrorKind, McpError, Revision};
use countersign_runtime::is_large;
use countersign_session::{
    Session,
    actor::{Attach, AttachedConnection, Disconnected, InboundMessage, deliver},
    cluster::lost_session_error,
    sessions::SessionWithActor,
};
use countersign_telemetry::metrics::Transport;

/// The query of a client that resumes its session.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResumeQuery {
    session: Option<String>,
    /// Number of frames that the client has received in this session, over all its connections.
    received: Option<u64>,
}

/// `GET /ws`: opens a WebSocket for a new or a resumed session.
pub async fn upgrade(
    request: HttpRequest,
    query: Result<web::Query<ResumeQuery>, actix_web::Error>,
    payload: web::Payload,
    endpoint: web::Data<McpEndpoint>,
) -> HttpResponse {
    try_upgrade(&request, query, payload, &endpoint.into_inner())
        .await
        .unwrap_or_else(|error| answer::refusal(&error, Revision::NEWEST_LEGACY))
}

async fn try_upgrade(
    request: &HttpRequest,
    query: Result<web::Query<ResumeQuery>, actix_web::Error>,
    payload: web::Payload,
    endpoint: &Arc<McpEndpoint>,
) -> Result<HttpResponse, McpError> {
    endpoint.check_open()?;
    let invalid = |reason: String| McpError::new(ErrorKind::InvalidRequest, reason);
    let identity = identify_caller(endpoint, request)?;
    let query = query.map_err(|_| invalid("the query takes `session` and `received`, and nothing else".into()))?;
    // The handshake is checked before a permit is taken, because a plain GET of /ws needs no permit.
    actix_web_actors::ws::handshake(request).map_err(|e| invalid(format!("this is not a WebSocket handshake: {e}")))?;
    let resumed = query.session.as_deref().filter(|_| query.received.is_some());
    let owner = mcp::owner_of_session(endpoint, request, resumed).await?;
    let connection = Connection::for_request(request);
    if let Some(owner) = owner {
        let permit = web_socket_permit(endpoint, connection.as_deref())?;
        let response = owner.tunnel(request, payload.into_inner(), AgentConnection::SUBPROTOCOLS).await?;
        if let (Some(connection), Some(permit)) = (connection, permit) {
            connection.upgrade(permit);
        }
        return Ok(response);
    }
    let resumed = match (&query.session, query.received) {
        (Some(id), Some(received)) => Some((find_session(endpoint, &identity, id)?, received)),
        (None, None) => {
            endpoint.sessions.check_lease_and_make_room(&identity.principal)?;
            None
        }
        _ => return Err(invalid("give both `session` and `received`, or neither".into())),
    };
    let permit = web_socket_permit(endpoint, connection.as_deref())?;
    // This step comes last, because the session's previous connection receives nothing more after it.
    let (SessionWithActor { session, actor }, generation) = match resumed {
        Some((found, received)) => {
            let generation = rewind(&found.session, received)?;
            found.session.set_authorization(authorization(endpoint, request));
            found.session.set_identity(identity.clone());
            (found, generation)
        }
        None => (open_session(endpoint, identity.clone(), authorization(endpoint, request)), 0),
    };
    if let (Some(connection), Some(permit)) = (&connection, permit) {
        connection.upgrade(permit);
        connection.bind_session(&session);
    }
    let budget = connection.as_ref().map_or_else(|| endpoint.connections.new_budget(), |own| own.budget());
    let max_bytes = endpoint.transports.websocket.max_message_size;
    let limits = MessageLimits { max_bytes, budget: Some(budget) };
    let agent = AgentConnection {
        actor,
        session: Arc::clone(&session),
        identity,
        pump_id: next_pump_id(),
        generation,
        cut: cutter(request),
        is_alive: Arc::default(),
    };
    let mut response = pump::start(request, payload, agent, limits).map_err(|e| {
        session.end();
        invalid(e.to_string())
    })?;
    if let Ok(id) = HeaderValue::from_str(&session.id) {
        response.headers_mut().insert(HeaderName::from_static("mcp-session-id"), id);
    }
    Ok(response)
}

/// Acquires the permit for a WebSocket on the connection.
fn web_socket_permit(
    endpoint: &McpEndpoint,
    connection: Option<&Rc<Connection>>,
) -> Result<Option<OwnedSemaphorePermit>, McpError> {
    let Some(connection) = connection else { return Ok(None) };
    connection.web_socket_permit().map(Some).ok_or_else(|| {
        McpError::new(ErrorKind::Overloaded, "too many WebSocket connections")
            .with("limit", endpoint.transports.websocket.max_connections as u64)
    })
}

/// Returns the credential with which another node identifies the client. Returns `None` if there are no other nodes.
fn authorization(endpoint: &McpEndpoint, request: &HttpRequest) -> Option<Box<str>> {
    endpoint.server.cluster.as_ref()?;
    Some(request.headers().get(AUTHORIZATION)?.to_str().ok()?.into())
}

fn open_session(endpoint: &Arc<McpEndpoint>, identity: Identity, authorization: Option<Box<str>>) -> SessionWithActor {
    let websocket = &endpoint.transports.websocket;
    let (replay_frames, replay_bytes) = (websocket.replay_frames, websocket.replay_bytes);
    let limits = OutboxLimits { replay_frames, replay_bytes, ..endpoint.sessions.limits.outbox };
    let session = Arc::new(endpoint.sessions.create_outbox_session(Transport::WebSocket, identity, limits));
    session.set_authorization(authorization);
    let actor = Session::open(&endpoint.sessions, Arc::clone(&session), Some(websocket.ping_interval));
    SessionWithActor { session, actor }
}

/// Returns the session that a client resumes.
fn find_session(endpoint: &McpEndpoint, identity: &Identity, id: &str) -> Result<SessionWithActor, McpError> {
    let session = endpoint.sessions.find(identity, Transport::WebSocket, id);
    session
        .filter(|session| session.legacy_revision().is_some())
        .and_then(|session| endpoint.sessions.find_actor(session))
        .ok_or_else(|| {
            if endpoint.server.cluster.as_deref().is_some_and(|cluster| cluster.is_session_lost(id)) {
                return lost_session_error();
            }
            McpError::new(ErrorKind::SessionNotFound, "no such session; connect again and initialize")
        })
}

/// Rewinds the outbox to the last frame that the client has received. Returns the generation of the new connection.
fn rewind(session: &SessionState, received: u64) -> Result<u64, McpError> {
    let Channel::Outbox(outbox) = &session.channel else { return Ok(0) };
    outbox.rewind(received).map_err(|fault| match fault {
        ResumeError::TooLate => McpError::new(
            ErrorKind::ResumeTooLate,
            "the gateway no longer holds the frames after the requested number; connect again and initialize",
        ),
        ResumeError::Ahead => McpError::new(
            ErrorKind::InvalidRequest,
            "this session has not sent as many frames as the client claims to have received",
        ),
    })
}

/// A connection of a session. Received messages are passed to the session, and the frames in its outbox are sent.
struct AgentConnection {
    actor: Addr<Session>,
    session: Arc<SessionState>,
    /// The identity of the request that opened the connection, with whose scopes its messages run.
    identity: Identity,
    pump_id: u64,
    /// The number of this connection in the session's outbox.
    generation: u64,
    cut: ConnectionCutter,
    /// [`AttachedConnection::is_alive`].
    is_alive: Arc<AtomicBool>,
}

impl Backend for AgentConnection {
    /// The subprotocol of the SDKs. Node.js refuses a connection whose server does not select it.
    const SUBPROTOCOLS: &'static [&'static str] = &["mcp"];
    const UNSUPPORTED_REASON: &'static str = "text frames only";

    fn on_open(&mut self, wake: Wake) {
        self.actor.do_send(Attach(AttachedConnection {
            id: self.pump_id,
            generation: self.generation,
            wake,
            cut: Arc::clone(&self.cut),
            is_alive: Arc::clone(&self.is_alive),
        }));
    }

    fn drain(&mut self, budget: usize) -> Option<DrainedFrames> {
        let Channel::Outbox(outbox) = &self.session.channel else { return None };
        outbox.drain(self.generation, budget)
    }

    fn on_flushed(&mut self) {
        if let Channel::Outbox(outbox) = &self.session.channel {
            outbox.confirm_taken(self.generation);
        }
    }

    fn on_message(&mut self, text: Bytes, reservation: Option<Reservation>) -> MessageOutcome {
        self.is_alive.store(true, Ordering::Relaxed);
        let message = InboundMessage { identity: self.identity.clone(), frame: text, reservation };
        if !is_large(message.frame.len()) {
            self.actor.do_send(message);
            return MessageOutcome::Accepted;
        }
        let actor = self.actor.clone();
        MessageOutcome::Pending(Box::pin(async move {
            // The result does not matter: a session that has ended also ends this connection.
            let _ = deliver(&actor, message).await;
        }))
    }

    fn heartbeat(&self) -> Heartbeat {
        let is_alive = Arc::clone(&self.is_alive);
        Rc::new(move || is_alive.store(true, Ordering::Relaxed))
    }

    fn on_close(&mut self, closed_by_peer: bool) {
        self.actor.do_send(Disconnected { pump_id: self.pump_id, closed_by_peer });
    }
}
