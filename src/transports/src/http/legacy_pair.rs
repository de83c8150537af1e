//! The HTTP+SSE pair of 2024-11-05, for old clients. `GET /sse` opens a session and its stream, whose first event names the URL
//! to POST to. All answers come on the stream (2024-11-05/basic/transports).

use std::sync::Arc;

use actix::Addr;
use actix_web::{HttpRequest, HttpResponse, dev::Payload, web};
use bytes::Bytes;
use serde::Deserialize;
use tokio::{sync::Notify, time::Interval};

use super::{
    body_error_status, identify_caller,
    mcp::{owner_of_session, unread_body},
    read_body,
};
use crate::{attachment::attach_only_connection, endpoint::McpEndpoint};
use countersign_exchange::{
    slots::StreamSlot,
    state::{Channel, SessionState},
};
use countersign_http::{
    answer,
    connections::{Connection, cutter},
    framing::sse,
};
use countersign_protocol::{ErrorKind, McpError, Revision};
use countersign_session::{
    Session,
    actor::{Disconnected, InboundMessage, deliver},
};
use countersign_telemetry::metrics::Transport;

const REVISION: Revision = Revision::V2024_11_05;

/// `GET /sse`: opens a session and its stream.
pub async fn stream(request: HttpRequest, endpoint: web::Data<McpEndpoint>) -> HttpResponse {
    try_stream(&request, &endpoint).await.unwrap_or_else(|error| answer::refusal(&error, REVISION))
}

async fn try_stream(request: &HttpRequest, endpoint: &Arc<McpEndpoint>) -> Result<HttpResponse, McpError> {
    let identity = identify_caller(endpoint, request)?;
    endpoint.check_open()?;
    if !answer::AcceptedMedia::from_request(request).sse {
        let error = McpError::new(ErrorKind::InvalidRequest, "the client must accept text/event-stream");
        return Ok(answer::error_with_status(406, None, &error, REVISION));
    }
    endpoint.sessions.check_lease_and_make_room(&identity.principal)?;
    let limits = endpoint.sessions.limits.outbox;
    let session = Arc::new(endpoint.sessions.create_outbox_session(Transport::Sse, identity, limits));
    let stream = session.evictable(session.ended.clone());
    let slot = endpoint.server.long_requests.slots.take_evictable(&session.principal().name, stream)?;
    if let Some(connection) = Connection::for_request(request) {
        connection.bind_session(&session);
    }
    let actor = Session::open(&endpoint.sessions, Arc::clone(&session), None);
    let attached = attach_only_connection(&actor, cutter(request)).await;
    let (pump_id, wake_up) = attached.map_err(|_| McpError::shutting_down())?;
    let url = format!("event: endpoint\ndata: /messages?sessionId={}\n\n", session.id);
    let ticks = sse::interval_from_now(endpoint.transports.http.sse_keep_alive);
    let stream = OutboxStream {
        session,
        actor,
        pump_id,
        wake_up,
        ticks,
        endpoint_event: Some(url.into()),
        is_closed: false,
        _slot: slot,
    };
    Ok(sse::stream_response(stream, OutboxStream::next))
}

/// Moves the messages of the session's outbox into the stream.
struct OutboxStream {
    session: Arc<SessionState>,
    actor: Addr<Session>,
    pump_id: u64,
    wake_up: Arc<Notify>,
    ticks: Interval,
    /// The first event, which names the URL to POST to.
    endpoint_event: Option<Bytes>,
    is_closed: bool,
    _slot: StreamSlot,
}

/// Maximum number of bytes that are passed to the connection at a time.
const DRAIN_BYTES: usize = 64 * 1024;

impl OutboxStream {
    async fn next(&mut self) -> Option<Bytes> {
        if let Some(event) = self.endpoint_event.take() {
            return Some(event);
        }
        let Channel::Outbox(outbox) = &self.session.channel else { return None };
        while !self.is_closed {
            let Some(drained) = outbox.drain(0, DRAIN_BYTES) else {
                tokio::select! {
                    () = self.wake_up.notified() => continue,
                    _ = self.ticks.tick() => return Some(sse::KEEP_ALIVE),
                }
            };
            self.is_closed = drained.close.is_some();
            let mut out = Vec::new();
            drained.frames.iter().for_each(|message| sse::write_event(&mut out, None, message));
            if !out.is_empty() {
                return Some(out.into());
            }
        }
        None
    }
}

impl Drop for OutboxStream {
    fn drop(&mut self) {
        self.actor.do_send(Disconnected { pump_id: self.pump_id, closed_by_peer: false });
    }
}

/// The query of the URL that the `endpoint` event names.
#[derive(Deserialize)]
pub struct MessageQuery {
    #[serde(rename = "sessionId")]
    session: String,
}

/// `POST /messages`: accepts a message, whose answer comes on the stream.
pub async fn message(
    request: HttpRequest,
    query: Option<web::Query<MessageQuery>>,
    payload: web::Payload,
    endpoint: web::Data<McpEndpoint>,
) -> HttpResponse {
    let session = query.as_ref().map(|query| query.session.as_str());
    try_message(&request, session, payload.into_inner(), &endpoint)
        .await
        .unwrap_or_else(|error| answer::error_with_status(body_error_status(&error), None, &error, REVISION))
}

async fn try_message(
    request: &HttpRequest,
    session: Option<&str>,
    payload: Payload,
    endpoint: &McpEndpoint,
) -> Result<HttpResponse, McpError> {
    let identity = identify_caller(endpoint, request)?;
    if !answer::is_json(request) {
        let error = McpError::new(ErrorKind::InvalidRequest, "the Content-Type must be application/json");
        return Ok(answer::error_with_status(415, None, &error, REVISION));
    }
    if answer::is_encoded(request) {
        return Ok(answer::error_with_status(415, None, &answer::unsupported_encoding(), REVISION));
    }
    if let Some(owner) = owner_of_session(endpoint, request, session).await? {
        return Ok(owner.forward(request, Some(unread_body(payload))).await);
    }
    let not_found = || McpError::new(ErrorKind::SessionNotFound, "no such session");
    let target = session
        .and_then(|session| endpoint.sessions.find(&identity, Transport::Sse, session))
        .and_then(|session| endpoint.sessions.find_actor(session))
        .ok_or_else(not_found)?;
    let (frame, reservation) = read_body(request, payload, endpoint).await?;
    deliver(&target.actor, InboundMessage { identity, frame, reservation }).await.map_err(|_| not_found())?;
    Ok(HttpResponse::Accepted().finish())
}
