//! WebSocket at `/ws`: subprotocol `mcp`, one JSON-RPC object in each text frame, both eras as on stdio.
//!
//! WebSocket is a transport of no MCP revision; this follows the custom of the SDKs. A handshake-era client that
//! lost its connection comes back with `?session=<id>&received=<frames>` and gets what it missed, at whichever node.

mod agent;

use std::sync::Arc;

use actix_web::{
    HttpRequest, HttpResponse,
    http::header::{AUTHORIZATION, HeaderName, HeaderValue},
    web,
};
use serde::Deserialize;

use self::agent::Agent;
use crate::{
    endpoint::McpEndpoint,
    http::{forward, identify},
};
use countersign_domain::principal::Identity;
use countersign_exchange::{outbox::ResumeFault, shared::Channel};
use countersign_http::{
    answer,
    connections::Connection,
    framing::pump::{self, Backend as _},
    problem::shutting_down,
};
use countersign_protocol::{ErrorKind, McpError, Revision};
use countersign_session::{Session, cluster::lost_session, sessions::RegisteredSession};
use countersign_telemetry::metrics::Transport;

/// How a client that comes back says where it was.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Resume {
    session: Option<String>,
    /// Frames it has received in this session, over all its connections.
    received: Option<u64>,
}

/// `GET /ws`.
pub async fn upgrade(
    request: HttpRequest,
    query: Result<web::Query<Resume>, actix_web::Error>,
    payload: web::Payload,
    endpoint: web::Data<McpEndpoint>,
) -> HttpResponse {
    match try_upgrade(&request, query, payload, &endpoint.into_inner()).await {
        Ok(response) => response,
        Err(error) => answer::refusal(&error, Revision::NEWEST_LEGACY),
    }
}

async fn try_upgrade(
    request: &HttpRequest,
    query: Result<web::Query<Resume>, actix_web::Error>,
    payload: web::Payload,
    endpoint: &Arc<McpEndpoint>,
) -> Result<HttpResponse, McpError> {
    if endpoint.shutdown.is_cancelled() {
        return Err(shutting_down());
    }
    let identity = identify(endpoint, request)?;
    countersign_session::middleware::authorize::role(&identity)?;
    let query = query.map_err(|_| {
        McpError::new(ErrorKind::InvalidRequest, "the query takes `session` and `received`, and nothing else")
    })?;
    // Proved before a place is taken: a plain GET of /ws is only a mistake.
    actix_web_actors::ws::handshake(request)
        .map_err(|e| McpError::new(ErrorKind::InvalidRequest, format!("this is not a WebSocket handshake: {e}")))?;
    let resumes = query.session.as_deref().filter(|_| query.received.is_some());
    let owner = forward::owner_of_session(endpoint, request, resumes).await?;
    let connection = Connection::of(request);
    let connection = connection.as_deref();
    if let Some(owner) = owner {
        place(endpoint, connection)?;
        let tunnel = owner.tunnel(request, payload.into_inner(), Agent::PROTOCOLS).await;
        return tunnel.inspect_err(|_| give_back(connection));
    }
    let resumed = match (&query.session, query.received) {
        (Some(id), Some(received)) => Some((find(endpoint, &identity, id)?, received)),
        (None, None) => {
            endpoint.sessions.admit(&identity.principal)?;
            None
        }
        _ => {
            return Err(McpError::new(ErrorKind::InvalidRequest, "give both `session` and `received`, or neither"));
        }
    };
    place(endpoint, connection)?;
    // Last of all: from here on the connection that served the session before gets nothing more.
    let (entry, turn) = match resumed {
        Some((entry, received)) => {
            let turn = rewind(&entry, received).inspect_err(|_| give_back(connection))?;
            (entry, turn)
        }
        None => (open(endpoint, identity, authorization(endpoint, request)), 0),
    };
    if let Some(connection) = connection {
        connection.carries(&entry.shared);
    }
    let intake = endpoint.connections.intake_of(connection);
    let cut = connection.map_or_else(|| Arc::new(|| ()) as Arc<_>, Connection::cutter);
    let max = endpoint.transports.websocket.max_message_size;
    let agent = Agent::new(&entry, turn, cut);
    let mut response = pump::start(request, payload, agent, max, Some(intake)).map_err(|e| {
        entry.shared.end();
        McpError::new(ErrorKind::InvalidRequest, e.to_string())
    })?;
    if let Ok(id) = HeaderValue::from_str(&entry.shared.id) {
        response.headers_mut().insert(HeaderName::from_static("mcp-session-id"), id);
    }
    Ok(response)
}

fn place(endpoint: &McpEndpoint, connection: Option<&Connection>) -> Result<(), McpError> {
    if connection.is_some_and(|connection| !connection.upgrade()) {
        return Err(McpError::new(ErrorKind::Overloaded, "too many WebSocket connections")
            .with("limit", endpoint.transports.websocket.max_connections as u64));
    }
    Ok(())
}

fn give_back(connection: Option<&Connection>) {
    if let Some(connection) = connection {
        connection.not_upgraded();
    }
}

/// By which another gateway knows the client, too, where there may be others.
fn authorization(endpoint: &McpEndpoint, request: &HttpRequest) -> Option<Box<str>> {
    endpoint.server.cluster.as_ref()?;
    Some(request.headers().get(AUTHORIZATION)?.to_str().ok()?.into())
}

fn open(endpoint: &Arc<McpEndpoint>, identity: Identity, authorization: Option<Box<str>>) -> RegisteredSession {
    let websocket = &endpoint.transports.websocket;
    let replay = (websocket.replay_frames, websocket.replay_bytes);
    let mut session = endpoint.sessions.outbox_session(Transport::WebSocket, identity, replay);
    session.authorization = authorization;
    let shared = Arc::new(session);
    let addr = Session::open(&endpoint.sessions, Arc::clone(&shared), Some(websocket.ping_interval));
    RegisteredSession { shared, addr }
}

/// The session of a client that comes back.
fn find(endpoint: &McpEndpoint, identity: &Identity, id: &str) -> Result<RegisteredSession, McpError> {
    let session = endpoint.sessions.find(identity, Transport::WebSocket, id);
    session
        .filter(|session| session.legacy_revision().is_some())
        .and_then(|session| endpoint.sessions.registered(session))
        .ok_or_else(|| {
            if endpoint.server.cluster.as_deref().is_some_and(|cluster| cluster.has_lost(id)) {
                return lost_session();
            }
            McpError::new(ErrorKind::SessionNotFound, "no such session; connect again and initialize")
        })
}

/// Goes back to where the client is; gives the turn of its new connection.
fn rewind(entry: &RegisteredSession, received: u64) -> Result<u64, McpError> {
    let Channel::Outbox(outbox) = &entry.shared.channel else { return Ok(0) };
    outbox.rewind(received).map_err(|fault| match fault {
        ResumeFault::TooLate => McpError::new(
            ErrorKind::ResumeTooLate,
            "the gateway no longer holds the frames since then; connect again and initialize",
        ),
        ResumeFault::Ahead => McpError::new(ErrorKind::InvalidRequest, "this session has not sent so many frames yet"),
    })
}
