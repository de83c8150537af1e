//! The handshake era on HTTP: sessions by `Mcp-Session-Id`, a stream for messages that belong to no request, and resumption
//! (2025-11-25/basic/transports, "Streamable HTTP").
//!
//! A client that disconnects has not cancelled anything: its request runs on, and the answer waits in the request's stream.

use std::{
    future::{self, poll_fn},
    sync::Arc,
    task::{Context, Poll},
};

use actix_web::{
    HttpRequest, HttpResponse,
    http::{
        StatusCode,
        header::{HeaderName, HeaderValue},
    },
    web,
};
use bytes::Bytes;

use super::{
    event_streams::EventStreamRequest,
    names,
    post::{LargeRequest, Post, forwarded_headers, request_id, session_id},
    refuse, refuse_message,
};
use crate::endpoint::McpEndpoint;
use countersign_domain::principal::Identity;
use countersign_exchange::{
    context::WireResponse,
    outbox::{OutboxLimits, ResumeError},
    reply::{PostStream, RelatedChannel},
    state::{Channel, SessionState},
    streams::{EventId, GET_STREAM, Streams},
};
use countersign_http::{answer, connections::Connection, framing::sse};
use countersign_protocol::{ErrorKind, McpError, Method, Revision, envelope::Message};
use countersign_routing::RouteTable;
use countersign_runtime::background;
use countersign_session::{
    Session,
    actor::{EndSession, close},
    inbound::{self, AnswerFuture, MessageSource},
    owned_messages::OwnedRequest,
};
use countersign_telemetry::metrics::Transport;

/// Answers a message of a handshake-era client.
pub async fn answer_message(
    mut post: Post<'_>,
    table: Arc<RouteTable>,
    message: &Message<'_>,
    large: Option<LargeRequest>,
) -> HttpResponse {
    let assumed_revision = match header_revision(post.request) {
        Ok(assumed_revision) => assumed_revision,
        Err(error) => {
            return refuse_message(error.kind.status(), request_id(message), &error, Revision::NEWEST_LEGACY);
        }
    };
    let session = match find_session(&post, message, assumed_revision) {
        Ok(session) => session,
        Err(error) => return refuse_message(error.kind.status(), request_id(message), &error, assumed_revision),
    };
    session.touch();
    let stream = Arc::new(PostStream::new(Arc::clone(&session)));
    let source = build_message_source(&post, table, &stream, assumed_revision);
    let request = match message {
        Message::Notification(notification) => {
            source.handle_notification(notification);
            return HttpResponse::Accepted().finish();
        }
        Message::Response(response) => {
            session.questions.deliver_answer(response);
            return HttpResponse::Accepted().finish();
        }
        Message::Request(request) => request,
    };
    let reservation = post.reservation.take();
    let work = match (source.into_scope(request), large) {
        (Ok(scope), None) => inbound::answer_owned(scope, OwnedRequest::from_request(request), reservation),
        (Ok(scope), Some(large)) => inbound::answer_large(scope, large.request, reservation),
        (Err((error, revision)), _) => {
            Box::pin(future::ready(Some(WireResponse::error(Some(&request.id), &error, revision))))
        }
    };
    let was_initialized = session.legacy_revision().is_some();
    let mut response = respond(&post, &stream, work).await;
    if request.method == "initialize" && !was_initialized && session.legacy_revision().is_some() {
        Session::open(&post.endpoint.sessions, Arc::clone(&session), None);
        if let Ok(id) = HeaderValue::from_str(&session.id) {
            response.headers_mut().insert(names::SESSION_ID.clone(), id);
        }
    }
    response
}

/// Answers a batch, in the revisions that have batches.
pub async fn answer_batch(mut post: Post<'_>, table: Arc<RouteTable>, body: Bytes) -> HttpResponse {
    let revision_and_session = header_revision(post.request).and_then(|assumed_revision| {
        let session = match post.session_id {
            Some(id) => find_named_session(&post, id)?,
            None => create_temporary_session(&post),
        };
        Ok((assumed_revision, session))
    });
    let (assumed_revision, session) = match revision_and_session {
        Ok(found) => found,
        Err(error) => return refuse(&error, Revision::V2025_03_26),
    };
    session.touch();
    let revision = session.legacy_revision().unwrap_or(assumed_revision);
    if !revision.rules().batches {
        let error = McpError::new(ErrorKind::InvalidRequest, "this protocol revision has no batches");
        return refuse(&error, revision);
    }
    let stream = Arc::new(PostStream::new(Arc::clone(&session)));
    let source = build_message_source(&post, table, &stream, assumed_revision);
    let work = source.answer_batch_body(body, post.reservation.take());
    respond(&post, &stream, work).await
}

fn build_message_source(
    post: &Post<'_>,
    table: Arc<RouteTable>,
    stream: &Arc<PostStream>,
    assumed_revision: Revision,
) -> MessageSource {
    let related = if post.accepts.sse { RelatedChannel::Stream(Arc::clone(stream)) } else { RelatedChannel::None };
    MessageSource {
        server: Arc::clone(&post.endpoint.server),
        session: Arc::clone(&stream.session),
        identity: post.identity.clone(),
        transport: Transport::Http,
        related,
        assumed_revision,
        headers: forwarded_headers(&table, post.request),
        table,
    }
}

/// The work of a request while its client waits for the answer. If the client disconnects, the work continues as a task, and the
/// answer waits in the request's stream. A call that is answered as JSON needs neither a task nor a stream.
struct RunningRequest {
    work: Option<AnswerFuture>,
    stream: Arc<PostStream>,
}

impl RunningRequest {
    /// Returns the answer, or `None` as soon as there is a stream to read it from.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Option<WireResponse>>> {
        let Some(work) = &mut self.work else { return Poll::Ready(None) };
        if let Poll::Ready(answer) = work.as_mut().poll(cx) {
            self.work = None;
            return Poll::Ready(Some(answer));
        }
        // The stream is watched before it is checked, so that its opening cannot be missed.
        self.stream.watch(cx);
        if self.stream.number().is_some() { Poll::Ready(None) } else { Poll::Pending }
    }
}

impl Drop for RunningRequest {
    fn drop(&mut self) {
        // A session without streams cannot keep the answer, so the work is dropped.
        if let Some(work) = self.work.take()
            && let Some(number) = self.stream.open()
        {
            let session = Arc::clone(&self.stream.session);
            if let Channel::Streams(streams) = &session.channel {
                streams.detach(number);
            }
            background::spawn(async move { push_answer(&session, number, work.await) });
        }
    }
}

/// Adds the answer to the stream of its request, and ends the stream.
fn push_answer(session: &SessionState, number: u32, answer: Option<WireResponse>) {
    if let Channel::Streams(streams) = &session.channel {
        streams.push_last(number, answer.map(|a| a.bytes));
    }
}

/// Runs the work of a request. Answers with JSON if the answer is its only message, and with a stream otherwise.
async fn respond(post: &Post<'_>, stream: &Arc<PostStream>, work: AnswerFuture) -> HttpResponse {
    let session = Arc::clone(&stream.session);
    let mut running = RunningRequest { work: Some(work), stream: Arc::clone(stream) };
    let mut has_waited = false;
    let outcome = poll_fn(|cx| {
        let polled = running.poll(cx);
        if polled.is_pending() && !has_waited {
            has_waited = true;
            // Without JSON, the answer comes on a stream in any case, and a numbered stream can be resumed.
            if !post.accepts.json && stream.open().is_some() {
                return Poll::Ready(None);
            }
        }
        polled
    })
    .await;
    // The session was deleted, and the request has ended with it.
    let refuse_ended = || refuse(&session_not_found(), session.legacy_revision().unwrap_or(Revision::NEWEST_LEGACY));
    let Some(number) = stream.number_or_close() else {
        return match outcome.flatten() {
            Some(answer) if post.accepts.json => answer::response_for(status(&answer), answer),
            Some(answer) => sse::complete_response(Vec::new(), answer.bytes),
            None if has_waited && session.ended.is_cancelled() => refuse_ended(),
            // The request was cancelled. A client would try to resume a stream that ends without an answer.
            None => HttpResponse::Accepted().finish(),
        };
    };
    // The stream keeps its messages until its reader is attached.
    let hold = match &session.channel {
        Channel::Streams(streams) => streams.hold(number),
        Channel::Outbox(_) | Channel::None => None,
    };
    if let Some(answer) = outcome {
        push_answer(&session, number, answer);
    }
    drop(running);
    if post.accepts.json
        && let Some(answer) = wait_for_sole_answer(&session, number).await
    {
        return answer::json(StatusCode::OK, answer);
    }
    if session.ended.is_cancelled() {
        return refuse_ended();
    }
    bind_session(post.request, &session);
    let events = EventStreamRequest {
        endpoint: post.endpoint,
        session: &session,
        identity: &post.identity,
        stream: number,
        after: Some(0),
        slot: None,
    };
    let response = events.respond();
    drop(hold);
    response.unwrap_or_else(|_| HttpResponse::Accepted().finish())
}

/// Waits for the answer of a stream. Returns `None` as soon as the stream has other messages.
async fn wait_for_sole_answer(session: &SessionState, number: u32) -> Option<Bytes> {
    let Channel::Streams(streams) = &session.channel else { return None };
    let mut reader = streams.attach(number)?;
    // Another reader may supersede this one: the reader that streams the events attaches later.
    while streams.is_untouched(number) {
        tokio::select! {
            changed = reader.changed.changed() => changed.ok()?,
            () = session.ended.cancelled() => return None,
        }
    }
    let answer = streams.sole_answer(number)?;
    streams.forget(number);
    Some(answer)
}

/// Returns the status of an answer. A 404 would mean that the session is gone (2025-11-25/basic/transports), so no other error
/// has it.
fn status(answer: &WireResponse) -> StatusCode {
    match answer.error {
        Some(ErrorKind::Unauthorized) => StatusCode::UNAUTHORIZED,
        Some(ErrorKind::Forbidden) => StatusCode::FORBIDDEN,
        Some(ErrorKind::RateLimited) => StatusCode::TOO_MANY_REQUESTS,
        Some(ErrorKind::NotInitialized) => StatusCode::BAD_REQUEST,
        _ => StatusCode::OK,
    }
}

/// Returns the revision in the header of a handshake-era request, or without the header the oldest revision that has this
/// endpoint.
///
/// # Errors
/// `-32600` for a revision that does not exist (2025-11-25/basic/transports#protocol-version-header: 400).
fn header_revision(request: &HttpRequest) -> Result<Revision, McpError> {
    let Some(value) = request.headers().get(&names::PROTOCOL_VERSION) else { return Ok(Revision::V2025_03_26) };
    value.to_str().ok().map(str::trim).and_then(Revision::parse).ok_or_else(|| {
        McpError::new(ErrorKind::InvalidRequest, "unsupported MCP-Protocol-Version")
            .with("supported", Revision::ALL.map(Revision::as_str).to_vec())
    })
}

/// Returns the session of a message: the one that its header names, a new one for `initialize`, or a temporary one for a method
/// that needs none.
fn find_session(
    post: &Post<'_>,
    message: &Message<'_>,
    assumed_revision: Revision,
) -> Result<Arc<SessionState>, McpError> {
    let method = match message {
        Message::Request(request) => Some(request.method.as_ref()),
        Message::Notification(_) | Message::Response(_) => None,
    };
    match (post.session_id, method) {
        (Some(id), _) => find_named_session(post, id),
        (None, Some("initialize")) => open_session(post),
        // An unknown method is refused without a session, too.
        (None, Some(method)) if !Method::parse(method).is_some_and(Method::needs_session) => {
            Ok(create_temporary_session(post))
        }
        (None, method) => {
            // A notification or a response in a newer revision comes from a client that has initialized a session.
            let text = if assumed_revision.rules().batches || method.is_some() {
                "send `initialize` first and then its Mcp-Session-Id"
            } else {
                "the Mcp-Session-Id header is missing"
            };
            Err(McpError::new(ErrorKind::NotInitialized, text))
        }
    }
}

fn session_not_found() -> McpError {
    McpError::new(ErrorKind::SessionNotFound, "no such session; send `initialize` again")
}

fn find_named_session(post: &Post<'_>, id: &str) -> Result<Arc<SessionState>, McpError> {
    post.endpoint.sessions.find(&post.identity, Transport::Http, id).ok_or_else(session_not_found)
}

fn open_session(post: &Post<'_>) -> Result<Arc<SessionState>, McpError> {
    let endpoint = post.endpoint;
    endpoint.sessions.check_lease_and_make_room(&post.identity.principal)?;
    // A session on HTTP keeps as many events for a client that reconnects as one on a WebSocket keeps frames.
    let websocket = &endpoint.transports.websocket;
    let share = endpoint.server.memory.share(&post.identity.principal.name);
    let limits = OutboxLimits {
        replay_frames: websocket.replay_frames,
        replay_bytes: websocket.replay_bytes,
        ..endpoint.sessions.limits.outbox
    };
    let channel = Channel::Streams(Streams::with_share(limits, share));
    let lifetimes = &endpoint.sessions.lifetimes;
    let session = SessionState::new(Transport::Http, post.identity.clone(), channel, &lifetimes.lease_token());
    Ok(Arc::new(session.with_node_prefix(lifetimes.node().as_deref())))
}

fn create_temporary_session(post: &Post<'_>) -> Arc<SessionState> {
    post.endpoint.sessions.create_stateless_session(Transport::Http, post.identity.clone())
}

/// Binds the connection to the session whose stream it carries.
fn bind_session(request: &HttpRequest, session: &Arc<SessionState>) {
    if let Some(connection) = Connection::for_request(request) {
        connection.bind_session(session);
    }
}

/// `GET /mcp`: opens the session's stream, or resumes one of its streams.
pub fn open_stream(request: &HttpRequest, endpoint: &web::Data<McpEndpoint>, identity: &Identity) -> HttpResponse {
    let Some(id) = session_id(request) else { return refuse_missing_session_id() };
    if !answer::AcceptedMedia::from_request(request).sse {
        let error = McpError::new(ErrorKind::InvalidRequest, "the client must accept text/event-stream");
        return refuse_message(406, None, &error, Revision::NEWEST_LEGACY);
    }
    let Some(session) = endpoint.sessions.find(identity, Transport::Http, id) else {
        return refuse(&session_not_found(), Revision::NEWEST_LEGACY);
    };
    try_open_stream(request, endpoint, identity, &session)
        .unwrap_or_else(|error| refuse(&error, session.legacy_revision().unwrap_or(Revision::NEWEST_LEGACY)))
}

fn try_open_stream(
    request: &HttpRequest,
    endpoint: &web::Data<McpEndpoint>,
    identity: &Identity,
    session: &Arc<SessionState>,
) -> Result<HttpResponse, McpError> {
    let invalid = |reason| McpError::new(ErrorKind::InvalidRequest, reason);
    header_revision(request)?;
    let end = session.ended.child_token();
    let stream = session.evictable(end.clone());
    let slot = endpoint.server.long_requests.slots.take_evictable(&identity.principal.name, stream)?;
    bind_session(request, session);
    session.touch();
    let (stream, after) = match last_event_id(request).map(EventId::parse) {
        None => (GET_STREAM, None),
        Some(Some(last)) => (last.stream, Some(last.event)),
        Some(None) => return Err(invalid("Last-Event-ID is not an event of this session")),
    };
    let events = EventStreamRequest { endpoint, session, identity, stream, after, slot: Some((slot, end)) };
    events.respond().map_err(|fault| match fault {
        ResumeError::TooLate => {
            McpError::new(ErrorKind::ResumeTooLate, "the gateway no longer holds the events of that stream")
        }
        ResumeError::Ahead => invalid("Last-Event-ID names an event that this session has not sent yet"),
    })
}

/// Returns the `Last-Event-ID` header of a client that resumes a stream, or `Some("")` if it is not text.
fn last_event_id(request: &HttpRequest) -> Option<&str> {
    request.headers().get(HeaderName::from_static("last-event-id")).map(|v| v.to_str().unwrap_or_default())
}

/// `DELETE /mcp`: ends the session.
pub async fn end_session(
    request: &HttpRequest,
    endpoint: &web::Data<McpEndpoint>,
    identity: &Identity,
) -> HttpResponse {
    let Some(id) = session_id(request) else { return refuse_missing_session_id() };
    let Some(session) = endpoint.sessions.find(identity, Transport::Http, id) else {
        return refuse(&session_not_found(), Revision::NEWEST_LEGACY);
    };
    session.end();
    if let Some(found) = endpoint.sessions.find_actor(session) {
        let _ = found.actor.send(EndSession { code: close::GOING_AWAY, reason: "deleted by its client" }).await;
    }
    HttpResponse::NoContent().finish()
}

/// Refuses GET and DELETE without a session id. The stateless era has no sessions (2026-07-28/basic/transports/streamable-http).
fn refuse_missing_session_id() -> HttpResponse {
    answer::method_not_allowed("a request without a session id must be a POST", "POST")
}

#[cfg(test)]
mod tests;
