//! The HTTP+SSE pair of 2024-11-05 for old clients: `GET /sse` opens a session and its stream, whose first event
//! names the URL to POST to; all answers come on the stream (2024-11-05/basic/transports).

use std::sync::Arc;

use actix::Addr;
use actix_web::{HttpRequest, HttpResponse, web};
use bytes::Bytes;
use serde::Deserialize;
use tokio::{sync::Notify, time::Interval};

use super::{body::Body, forward, identify};
use crate::{endpoint::McpEndpoint, next_pump_id};
use countersign_domain::principal::Identity;
use countersign_exchange::{
    shared::{Channel, SessionShared},
    slots::StreamSlot,
};
use countersign_http::{answer, connections::Connection, framing::sse, problem::shutting_down};
use countersign_protocol::{ErrorKind, McpError, Revision};
use countersign_session::{
    Session,
    actor::{Attach, Disconnected, Pump, deliver},
    middleware::authorize,
};
use countersign_telemetry::metrics::Transport;

const REVISION: Revision = Revision::V2024_11_05;

fn caller(endpoint: &McpEndpoint, request: &HttpRequest) -> Result<Identity, McpError> {
    let identity = identify(endpoint, request)?;
    authorize::role(&identity).map(|()| identity)
}

/// `GET /sse`.
pub async fn stream(request: HttpRequest, endpoint: web::Data<McpEndpoint>) -> HttpResponse {
    let identity = match caller(&endpoint, &request) {
        Ok(identity) => identity,
        Err(error) => return answer::refusal(&error, REVISION),
    };
    if endpoint.shutdown.is_cancelled() {
        return answer::refusal(&shutting_down(), REVISION);
    }
    if !answer::Accepts::of(&request).sse {
        let error = McpError::new(ErrorKind::InvalidRequest, "the client must accept text/event-stream");
        return answer::with_status(406, &error, REVISION);
    }
    if let Err(error) = endpoint.sessions.admit(&identity.principal) {
        return answer::refusal(&error, REVISION);
    }
    let endpoint = endpoint.into_inner();
    let shared = Arc::new(endpoint.sessions.outbox_session(Transport::Sse, identity, (0, 0)));
    let stream = shared.evictable(shared.ended.clone());
    let slot = match endpoint.server.long_requests.admit_stream(shared.principal(), stream) {
        Ok(slot) => slot,
        Err(error) => return answer::refusal(&error, REVISION),
    };
    if let Some(connection) = Connection::of(&request) {
        connection.carries(&shared);
    }
    let addr = Session::open(&endpoint.sessions, Arc::clone(&shared), None);
    let woken = Arc::new(Notify::new());
    let id = next_pump_id();
    let wake = {
        let woken = Arc::clone(&woken);
        Arc::new(move || woken.notify_one())
    };
    let cut = Connection::of(&request).map_or_else(|| Arc::new(|| ()) as Arc<_>, |connection| connection.cutter());
    if addr.send(Attach(Pump { id, turn: 0, wake, cut })).await.is_err() {
        return answer::refusal(&McpError::new(ErrorKind::ShuttingDown, "the gateway is shutting down"), REVISION);
    }
    let named = format!("event: endpoint\ndata: /messages?sessionId={}\n\n", shared.id);
    let ticks = sse::ticks(endpoint.transports.http.sse_keep_alive);
    let first = Some(named.into());
    sse::streaming(Pair { shared, addr, id, woken, ticks, first, closed: false, _slot: slot }, Pair::next)
}

/// Pumps the session's outbox into the stream.
struct Pair {
    shared: Arc<SessionShared>,
    addr: Addr<Session>,
    id: u64,
    woken: Arc<Notify>,
    ticks: Interval,
    first: Option<Bytes>,
    closed: bool,
    _slot: StreamSlot,
}

/// Bytes handed to the connection at a time.
const BUDGET: usize = 64 * 1024;

impl Pair {
    async fn next(&mut self) -> Option<Bytes> {
        if let Some(first) = self.first.take() {
            return Some(first);
        }
        let Channel::Outbox(outbox) = &self.shared.channel else { return None };
        while !self.closed {
            let Some(drained) = outbox.drain(0, BUDGET) else {
                tokio::select! {
                    () = self.woken.notified() => continue,
                    _ = self.ticks.tick() => return Some(sse::KEEP_ALIVE),
                }
            };
            self.closed = drained.close.is_some();
            let mut out = Vec::new();
            drained.frames.iter().for_each(|message| sse::event(&mut out, None, message));
            if !out.is_empty() {
                return Some(out.into());
            }
        }
        None
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        self.addr.do_send(Disconnected { pump: self.id, farewell: false });
    }
}

/// The query of the URL that the `endpoint` event names.
#[derive(Deserialize)]
pub struct MessageQuery {
    #[serde(rename = "sessionId")]
    session: String,
}

/// `POST /messages`: taken in, and answered on the stream.
pub async fn message(
    request: HttpRequest,
    query: Option<web::Query<MessageQuery>>,
    payload: web::Payload,
    endpoint: web::Data<McpEndpoint>,
) -> HttpResponse {
    let identity = match caller(&endpoint, &request) {
        Ok(identity) => identity,
        Err(error) => return answer::refusal(&error, REVISION),
    };
    if !answer::is_json(&request) {
        let error = McpError::new(ErrorKind::InvalidRequest, "the Content-Type must be application/json");
        return answer::with_status(415, &error, REVISION);
    }
    let named = query.as_ref().map(|query| query.session.as_str());
    match forward::owner_of_session(&endpoint, &request, named).await {
        Ok(Some(owner)) => return owner.answer(&request, Some(forward::body(payload.into_inner()))).await,
        Ok(None) => {}
        Err(error) => return answer::refusal(&error, REVISION),
    }
    let session = query.and_then(|query| endpoint.sessions.find(&identity, Transport::Sse, &query.session));
    let Some(entry) = session.and_then(|session| endpoint.sessions.registered(session)) else {
        return answer::refusal(&McpError::new(ErrorKind::SessionNotFound, "no such session"), REVISION);
    };
    let http = &endpoint.transports.http;
    let mut sender = Body::new(payload);
    let body = match sender.read(&request, &endpoint, http.max_body, http.request_timeout).await {
        Ok(body) => body,
        Err(error) => return answer::refusal(&error, REVISION),
    };
    match deliver(&entry.addr, body, sender.held()).await {
        Ok(()) => HttpResponse::Accepted().finish(),
        Err(_) => answer::refusal(&McpError::new(ErrorKind::SessionNotFound, "no such session"), REVISION),
    }
}
