//! The handshake era on HTTP: sessions by `Mcp-Session-Id`, a stream for what belongs to no request, resumption
//! (2025-11-25/basic/transports, "Streamable HTTP").
//!
//! A client that disconnects has not cancelled anything: its request runs on, and the answer waits in its stream.

use std::{
    future::poll_fn,
    sync::Arc,
    task::{Context, Poll},
};

use actix_web::{
    HttpRequest, HttpResponse,
    http::{StatusCode, header::HeaderValue},
    web,
};
use bytes::Bytes;

use super::{
    event_streams,
    large::Large,
    mcp::{Post, forwarded, last_event_id, session_id},
    modern::Work,
    names,
};
use crate::endpoint::McpEndpoint;
use countersign_domain::principal::Identity;
use countersign_exchange::{
    context::WireResponse,
    outbox::ResumeFault,
    related::{PostStream, Related},
    shared::{Channel, SessionShared},
    streams::{EventId, GET_STREAM, Streams},
};
use countersign_http::{answer, connections::Connection, framing::sse};
use countersign_protocol::{
    ErrorKind, McpError, Revision, encode,
    envelope::{self, Incoming, Message},
    method::Method,
};
use countersign_runtime::lanes::LARGE_MESSAGE_BYTES;
use countersign_session::{
    Session,
    actor::{EndSession, close},
    inbound::{self, MessageSource},
    owned::OwnedRequest,
};
use countersign_telemetry::{RequestMetrics, metrics::Transport};

/// A message of a handshake-era client. A large request is answered elsewhere.
pub async fn message(mut post: Post, message: &Message<'_>, large: Option<Box<Large>>) -> HttpResponse {
    let assumed = match version(&post.request) {
        Ok(assumed) => assumed,
        Err(error) => return refuse(400, &error, Revision::NEWEST_LEGACY),
    };
    let session = match find(&post, message, assumed) {
        Ok(session) => session,
        Err((status, error)) => {
            let id = if let Message::Request(request) = message { Some(&request.id) } else { None };
            RequestMetrics::get().error(error.kind);
            let status = StatusCode::from_u16(status).unwrap_or(StatusCode::BAD_REQUEST);
            return answer::json(status, encode::error(id, &error, assumed));
        }
    };
    session.touch();
    let stream = Arc::new(PostStream::new(Arc::clone(&session)));
    let source = source(&post, &session, &stream, assumed);
    let request = match message {
        Message::Notification(notification) => {
            source.notification(notification);
            return HttpResponse::Accepted().finish();
        }
        Message::Response(response) => {
            session.questions.answered(response);
            return HttpResponse::Accepted().finish();
        }
        Message::Request(request) => request,
    };
    let opens = request.method == "initialize";
    let held = post.held.take();
    let work: Work = match large {
        None => {
            let owned = OwnedRequest::from_request(request);
            Box::pin(async move {
                let _held = held;
                source.request(&owned.as_request()).await
            })
        }
        Some(large) => Box::pin(async move {
            let _held = held;
            let request = large.request;
            match source.exchange(&request.as_request()) {
                Ok(exchange) => inbound::answer_aside(exchange, request).await,
                Err((error, revision)) => Some(WireResponse::error(Some(&request.as_request().id), &error, revision)),
            }
        }),
    };
    let known = session.legacy_revision().is_some();
    let mut response = respond(&post, &stream, work).await;
    if opens && !known && session.legacy_revision().is_some() {
        Session::open(&post.endpoint.sessions, Arc::clone(&session), None);
        if let Ok(id) = HeaderValue::from_str(&session.id) {
            response.headers_mut().insert(SESSION_ID, id);
        }
    }
    response
}

const SESSION_ID: actix_web::http::header::HeaderName =
    actix_web::http::header::HeaderName::from_static("mcp-session-id");

/// A batch, in the revisions that have it.
pub async fn batch(mut post: Post, body: Bytes) -> HttpResponse {
    let refuse = |status, error: &McpError| refuse(status, error, Revision::V2025_03_26);
    let assumed = match version(&post.request) {
        Ok(assumed) => assumed,
        Err(error) => return refuse(400, &error),
    };
    let session = match session_id(&post.request) {
        Some(id) => match existing(&post, id) {
            Some(session) => session,
            None => return refuse(404, &unknown_session()),
        },
        None => throwaway(&post),
    };
    session.touch();
    if !session.legacy_revision().unwrap_or(assumed).rules().batches {
        let error = McpError::new(ErrorKind::InvalidRequest, "this protocol revision has no batches");
        return self::refuse(400, &error, session.legacy_revision().unwrap_or(assumed));
    }
    let stream = Arc::new(PostStream::new(Arc::clone(&session)));
    let source = source(&post, &session, &stream, assumed);
    let limits = post.endpoint.server.limits.envelope;
    let held = post.held.take();
    let members = move |body: Bytes| async move {
        let _held = held;
        match envelope::parse(&body, &limits) {
            Ok(Incoming::Batch(members)) => source.batch(members).await,
            // It was one a moment ago.
            Ok(Incoming::Single(_)) | Err(_) => None,
        }
    };
    let work: Work = if body.len() > LARGE_MESSAGE_BYTES {
        let (lanes, principal) = (Arc::clone(&post.endpoint.server.lanes), Arc::clone(&post.identity.principal));
        Box::pin(async move { lanes.run(&principal.name, move || members(body)).await.unwrap_or(None) })
    } else {
        Box::pin(members(body))
    };
    respond(&post, &stream, work).await
}

fn source(post: &Post, session: &Arc<SessionShared>, stream: &Arc<PostStream>, assumed: Revision) -> MessageSource {
    let related = if post.accepts.sse { Related::Stream(Arc::clone(stream)) } else { Related::Nowhere };
    let table = post.endpoint.server.routing.routes.load_full();
    MessageSource {
        server: Arc::clone(&post.endpoint.server),
        session: Arc::clone(session),
        identity: post.identity.clone(),
        transport: Transport::Http,
        related,
        assumed,
        headers: forwarded(&table, &post.request),
        table,
    }
}

/// A request's work while its client waits for it. A client that goes away leaves it to a task of its own, whose answer
/// waits in the request's stream; so a call that is answered as JSON needs neither.
struct Running {
    work: Option<Work>,
    stream: Arc<PostStream>,
}

impl Running {
    /// The answer, or nothing as soon as there is a stream to read it from.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Option<WireResponse>>> {
        let Some(work) = &mut self.work else { return Poll::Ready(None) };
        if let Poll::Ready(answer) = work.as_mut().poll(cx) {
            self.work = None;
            return Poll::Ready(Some(answer));
        }
        // In this order, so that no opening is missed.
        self.stream.watch(cx);
        if self.stream.number().is_some() { Poll::Ready(None) } else { Poll::Pending }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Without streams there is nothing that the answer could wait in.
        if let Some(work) = self.work.take()
            && let Some(number) = self.stream.open()
        {
            let session = Arc::clone(&self.stream.session);
            actix::spawn(async move { finish(&session, number, work.await) });
        }
    }
}

fn finish(session: &SessionShared, number: u32, answer: Option<WireResponse>) {
    if let Channel::Streams(streams) = &session.channel {
        streams.push_last(number, answer.map(|a| a.bytes));
    }
}

/// Runs a request's work; answers with JSON if that is all there is, and with a stream otherwise.
async fn respond(post: &Post, stream: &Arc<PostStream>, work: Work) -> HttpResponse {
    let session = Arc::clone(&stream.session);
    let mut running = Running { work: Some(work), stream: Arc::clone(stream) };
    let (done, waited) = match poll_fn(|cx| Poll::Ready(running.poll(cx))).await {
        Poll::Ready(done) => (done, false),
        Poll::Pending => {
            if !post.accepts.json {
                // It is answered with a stream in any case, which can be taken up again.
                stream.open();
            }
            (poll_fn(|cx| running.poll(cx)).await, true)
        }
    };
    let number = match &done {
        // Taken back while it ran, which its stream tells.
        Some(None) if waited => stream.open(),
        _ => stream.number(),
    };
    let Some(number) = number else {
        return match done.flatten() {
            Some(answer) if post.accepts.json => answer::answered(status(&answer), answer),
            Some(answer) => sse::finished(Vec::new(), answer.bytes),
            None => HttpResponse::Accepted().finish(),
        };
    };
    // Until its reader is there, what comes on the stream is kept for it.
    let held = match &session.channel {
        Channel::Streams(streams) => streams.hold(number),
        Channel::Outbox(_) | Channel::None => None,
    };
    if let Some(answer) = done {
        finish(&session, number, answer);
    }
    drop(running);
    if post.accepts.json
        && let Some(answer) = wait_for_sole_answer(&session, number).await
    {
        return answer::json(StatusCode::OK, answer);
    }
    if session.ended.is_cancelled() {
        // Deleted while the request ran, which has ended with it.
        return refuse(404, &unknown_session(), session.legacy_revision().unwrap_or(Revision::NEWEST_LEGACY));
    }
    carries(&post.request, &session);
    let response =
        event_streams::log(&post.endpoint.clone().into_inner(), &session, &post.identity, (number, Some(0)), None);
    drop(held);
    response.unwrap_or_else(|_| HttpResponse::Accepted().finish())
}

/// The answer of a stream if it is the only thing on it; `None` as soon as there is something to stream.
async fn wait_for_sole_answer(session: &SessionShared, number: u32) -> Option<Bytes> {
    let Channel::Streams(streams) = &session.channel else { return None };
    let (_, mut changed, _) = streams.attach(number)?;
    // Being superseded tells nothing: the reader that streams the log comes after this.
    while streams.is_untouched(number) {
        tokio::select! {
            changed = changed.changed() => changed.ok()?,
            () = session.ended.cancelled() => return None,
        }
    }
    let answer = streams.sole_answer(number)?;
    streams.forget(number);
    Some(answer)
}

fn status(answer: &WireResponse) -> StatusCode {
    match answer.error {
        // 404 would mean that the session is gone (2025-11-25/basic/transports), so no other error has it.
        Some(ErrorKind::Unauthorized) => StatusCode::UNAUTHORIZED,
        Some(ErrorKind::Forbidden) => StatusCode::FORBIDDEN,
        Some(ErrorKind::RateLimited) => StatusCode::TOO_MANY_REQUESTS,
        Some(ErrorKind::NotInitialized) => StatusCode::BAD_REQUEST,
        _ => StatusCode::OK,
    }
}

/// The version header of a handshake-era request. Without one the oldest revision that has this endpoint is meant.
///
/// # Errors
/// `-32600` for a version that does not exist (2025-11-25/basic/transports#protocol-version-header: 400).
fn version(request: &HttpRequest) -> Result<Revision, McpError> {
    let Some(value) = request.headers().get(&names::PROTOCOL_VERSION) else { return Ok(Revision::V2025_03_26) };
    value.to_str().ok().map(str::trim).and_then(Revision::parse).ok_or_else(|| {
        McpError::new(ErrorKind::InvalidRequest, "unsupported MCP-Protocol-Version")
            .with("supported", Revision::ALL.map(Revision::as_str).to_vec())
    })
}

/// The session of a message: the one its header names, a new one for `handshake_revision`, none for what needs none.
fn find(post: &Post, message: &Message<'_>, assumed: Revision) -> Result<Arc<SessionShared>, (u16, McpError)> {
    let method = match message {
        Message::Request(request) => Some(request.method.as_ref()),
        _ => None,
    };
    let opens = method == Some("initialize");
    match session_id(&post.request) {
        Some(id) => existing(post, id).ok_or_else(|| (404, unknown_session())),
        None if opens => open(post),
        // An unknown method needs no session to be told so.
        None if method.is_some_and(|m| !Method::parse(m).is_some_and(Method::needs_session)) => Ok(throwaway(post)),
        None => {
            let text = if assumed.rules().batches || method.is_some() {
                "send `initialize` first and then its Mcp-Session-Id"
            } else {
                "the Mcp-Session-Id header is missing"
            };
            Err((400, McpError::new(ErrorKind::NotInitialized, text)))
        }
    }
}

fn unknown_session() -> McpError {
    McpError::new(ErrorKind::SessionNotFound, "no such session; send `initialize` again")
}

fn existing(post: &Post, id: &str) -> Option<Arc<SessionShared>> {
    post.endpoint.sessions.find(&post.identity, Transport::Http, id)
}

fn open(post: &Post) -> Result<Arc<SessionShared>, (u16, McpError)> {
    let endpoint = &post.endpoint;
    endpoint.sessions.admit(&post.identity.principal).map_err(|error| (503, error))?;
    let websocket = &endpoint.transports.websocket;
    let share = endpoint.server.memory.share(&post.identity.principal.name);
    let streams = Streams::counted(websocket.replay_frames, websocket.replay_bytes, share);
    let channel = Channel::Streams(streams);
    let session =
        SessionShared::new(Transport::Http, post.identity.clone(), channel, &endpoint.sessions.lifetimes.of_lease());
    Ok(Arc::new(session.at_node(endpoint.sessions.lifetimes.node().as_deref())))
}

fn throwaway(post: &Post) -> Arc<SessionShared> {
    post.endpoint.sessions.stateless_session(Transport::Http, post.identity.clone())
}

fn refuse(status: u16, error: &McpError, revision: Revision) -> HttpResponse {
    RequestMetrics::get().error(error.kind);
    answer::with_status(status, error, revision)
}

/// From now on the connection is as busy as the session whose stream it carries.
fn carries(request: &HttpRequest, session: &Arc<SessionShared>) {
    if let Some(connection) = Connection::of(request) {
        connection.carries(session);
    }
}

/// `GET /mcp`.
pub fn stream(request: &HttpRequest, endpoint: &web::Data<McpEndpoint>, identity: &Identity) -> HttpResponse {
    let Some(id) = session_id(request) else { return no_session_405() };
    if !answer::Accepts::of(request).sse {
        let error = McpError::new(ErrorKind::InvalidRequest, "the client must accept text/event-stream");
        return refuse(406, &error, Revision::NEWEST_LEGACY);
    }
    let Some(session) = endpoint.sessions.find(identity, Transport::Http, id) else {
        return refuse(404, &unknown_session(), Revision::NEWEST_LEGACY);
    };
    let revision = session.legacy_revision().unwrap_or(Revision::NEWEST_LEGACY);
    if let Err(error) = version(request) {
        return refuse(400, &error, revision);
    }
    let end = session.ended.child_token();
    let slot = match endpoint.server.long_requests.admit_stream(&identity.principal, session.evictable(end.clone())) {
        Ok(slot) => slot,
        Err(error) => return refuse(503, &error, revision),
    };
    carries(request, &session);
    session.touch();
    let (number, after) = match last_event_id(request).map(EventId::parse) {
        None => (GET_STREAM, None),
        Some(Some(last)) => (last.stream, Some(last.event)),
        Some(None) => {
            let error = McpError::new(ErrorKind::InvalidRequest, "Last-Event-ID is not an event of this session");
            return refuse(400, &error, revision);
        }
    };
    let endpoint = endpoint.clone().into_inner();
    event_streams::log(&endpoint, &session, identity, (number, after), Some((slot, end))).unwrap_or_else(|fault| {
        let error = match fault {
            ResumeFault::TooLate => {
                McpError::new(ErrorKind::ResumeTooLate, "the events of that stream are no longer held")
            }
            ResumeFault::Ahead => McpError::new(
                ErrorKind::InvalidRequest,
                "Last-Event-ID names an event that this session has not sent yet",
            ),
        };
        refuse(error.kind.status(), &error, revision)
    })
}

/// `DELETE /mcp`.
pub async fn delete(request: &HttpRequest, endpoint: &web::Data<McpEndpoint>, identity: &Identity) -> HttpResponse {
    let Some(id) = session_id(request) else { return no_session_405() };
    let Some(session) = endpoint.sessions.find(identity, Transport::Http, id) else {
        return refuse(404, &unknown_session(), Revision::NEWEST_LEGACY);
    };
    session.end();
    if let Some(entry) = endpoint.sessions.registered(session) {
        let _ = entry.addr.send(EndSession { code: close::GOING_AWAY, reason: "deleted by its client" }).await;
    }
    HttpResponse::NoContent().finish()
}

/// The stateless era has neither GET nor DELETE (2026-07-28/basic/transports/streamable-http).
fn no_session_405() -> HttpResponse {
    let error = McpError::new(ErrorKind::InvalidRequest, "without a session there is only POST");
    let mut response = answer::with_status(405, &error, Revision::MODERN);
    response.headers_mut().insert(actix_web::http::header::ALLOW, HeaderValue::from_static("POST"));
    response
}

#[cfg(test)]
mod tests {
    use actix_web::{
        http::{
            Method as Verb,
            header::{ALLOW, AUTHORIZATION},
        },
        test::TestRequest,
    };

    use super::*;
    use crate::testing::Served;

    #[test]
    fn a_version_is_one_that_exists_or_is_left_out() {
        let of = |value: &str| {
            version(&TestRequest::default().append_header(("mcp-protocol-version", value)).to_http_request())
        };
        assert_eq!(version(&TestRequest::default().to_http_request()).unwrap(), Revision::V2025_03_26);
        for revision in Revision::ALL {
            assert_eq!(of(revision.as_str()).unwrap(), revision);
        }
        for wrong in ["", "2025-06-19", "latest", "2025-06-18, 2025-11-25"] {
            let error = of(wrong).unwrap_err();
            assert_eq!(error.kind, ErrorKind::InvalidRequest, "{wrong:?}");
            assert_eq!(error.data()["supported"].as_array().map(Vec::len), Some(Revision::ALL.len()));
        }
    }

    #[test]
    fn no_error_of_a_call_has_the_status_of_a_session_that_is_gone() {
        for kind in [ErrorKind::NotFound, ErrorKind::SessionNotFound, ErrorKind::Internal, ErrorKind::InvalidParams] {
            let answer = WireResponse::error(None, &McpError::new(kind, "x"), Revision::NEWEST_LEGACY);
            assert_eq!(status(&answer), StatusCode::OK, "{kind:?}");
        }
        let unauthorized = McpError::new(ErrorKind::Unauthorized, "x");
        assert_eq!(
            status(&WireResponse::error(None, &unauthorized, Revision::NEWEST_LEGACY)),
            StatusCode::UNAUTHORIZED
        );
    }

    const INITIALIZE: &str = concat!(
        r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","#,
        r#""capabilities":{},"clientInfo":{"name":"test","version":"1"}}}"#,
    );

    fn request(verb: Verb, key: &str, headers: &[(&str, &str)]) -> TestRequest {
        let request = TestRequest::with_uri("/mcp").method(verb).append_header((AUTHORIZATION, key));
        let request = request.append_header(("content-type", "application/json"));
        headers.iter().fold(request, |request, header| request.append_header(*header))
    }

    async fn initialize(served: &Served, key: &str) -> String {
        let reply = served.ask(request(Verb::POST, key, &[]).set_payload(INITIALIZE)).await;
        assert_eq!(reply.status, StatusCode::OK, "{reply:?}");
        reply.headers.get(SESSION_ID).unwrap().to_str().unwrap().to_owned()
    }

    #[actix::test]
    async fn a_session_is_known_to_its_own_principal_only_and_until_it_ends() {
        let served = Served::open("").await;
        let (own, stranger) = (served.key("own"), served.key("stranger"));
        let id = initialize(&served, &own).await;
        let ping = r#"{"jsonrpc":"2.0","id":2,"method":"ping"}"#;
        let ask = async |verb: Verb, key: &str| {
            let named = request(verb, key, &[("mcp-session-id", &id), ("accept", "*/*")]);
            served.ask(named.set_payload(ping)).await.status.as_u16()
        };
        for verb in [Verb::POST, Verb::GET, Verb::DELETE] {
            assert_eq!(ask(verb.clone(), &stranger).await, 404, "{verb}");
        }
        assert_eq!(ask(Verb::POST, &own).await, 200);
        assert_eq!(ask(Verb::DELETE, &own).await, 204);
        for verb in [Verb::POST, Verb::GET, Verb::DELETE] {
            assert_eq!(ask(verb.clone(), &own).await, 404, "{verb}");
        }
    }

    #[actix::test]
    async fn a_message_without_a_session_is_told_how_to_get_one_unless_it_needs_none() {
        let served = Served::open("").await;
        let key = served.key("ci");
        for (message, status, code) in [
            (r#"{"jsonrpc":"2.0","id":1,"method":"resources/subscribe"}"#, 400, Some("NOT_INITIALIZED")),
            (r#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#, 200, None),
            (r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#, 400, Some("NOT_INITIALIZED")),
            (r#"{"jsonrpc":"2.0","id":1,"result":{}}"#, 400, Some("NOT_INITIALIZED")),
            (r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#, 200, None),
            (r#"{"jsonrpc":"2.0","id":1,"method":"no/such"}"#, 200, Some("METHOD_NOT_FOUND")),
        ] {
            let reply = served.ask(request(Verb::POST, &key, &[]).set_payload(message)).await;
            assert_eq!((reply.status.as_u16(), reply.code().as_deref()), (status, code), "{message}: {reply:?}");
        }
        assert_eq!(served.endpoint.sessions.registry.len(), 0, "none of them opened a session");
    }

    #[actix::test]
    async fn a_stream_is_refused_for_the_first_thing_that_is_wrong_with_its_request() {
        let served = Served::open("limits: { max_streams: 1 }").await;
        let key = served.key("ci");
        let id = initialize(&served, &key).await;
        let (session, sse) = (("mcp-session-id", id.as_str()), ("accept", "text/event-stream"));
        let (old, last) = (("mcp-protocol-version", "1"), |id| ("last-event-id", id));
        for (headers, status) in [
            (&[sse][..], 405),
            (&[("mcp-session-id", "x"), ("accept", "application/json")], 406),
            (&[("mcp-session-id", "x"), sse, old], 404),
            (&[session, sse, old, last("x")], 400),
            (&[session, sse, last("x")], 400),
            (&[session, sse, last("0-9")], 400),
            (&[session, sse, last("7-0")], 410),
        ] {
            let reply = served.ask(request(Verb::GET, &key, headers)).await;
            assert_eq!(reply.status.as_u16(), status, "{headers:?} {reply:?}");
            assert_eq!(reply.headers.contains_key(ALLOW), status == 405);
        }
        let principal = served.identity(&key).principal;
        let _taken = served.endpoint.server.long_requests.slots.take(&principal.name).unwrap();
        let reply = served.ask(request(Verb::GET, &key, &[session, sse])).await;
        assert_eq!((reply.status.as_u16(), reply.code().as_deref()), (503, Some("OVERLOADED")));
    }
}
