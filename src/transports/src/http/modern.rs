//! The stateless era on HTTP: one POST, one answer, and nothing remembered
//! (2026-07-28/basic/transports/streamable-http).

use std::{future::poll_fn, pin::Pin, sync::Arc, task::Poll};

use actix_web::{HttpResponse, http::StatusCode};

use super::{
    View,
    body::Body,
    event_streams::QueueBody,
    large::Large,
    mcp::{Post, forwarded},
};
use countersign_exchange::{
    context::{Exchange, WireResponse, asker_of},
    related::{Related, ResponseQueue},
};
use countersign_http::{answer, connections::Connection, framing::sse};
use countersign_protocol::{
    ErrorKind, McpError, RequestId, Revision, encode,
    envelope::{Message, Request},
    headers,
    json::string,
    method::Method,
    params::Meta,
};
use countersign_routing::RouteTable;
use countersign_session::{
    Handling, Session,
    actor::{EndSession, close},
    extension,
    handlers::upstream_wait,
    inbound,
    owned::OwnedRequest,
};
use countersign_telemetry::{RequestMetrics, metrics::Transport};

/// A request's work, which ends in its answer.
pub type Work = Pin<Box<dyn Future<Output = Option<WireResponse>>>>;

/// Takes one message through the ladder and, if it is a request, to its answer. A large one is answered elsewhere.
pub async fn serve(
    mut post: Post,
    sender: Body,
    message: &Message<'_>,
    meta: &Meta<'_>,
    large: Option<Box<Large>>,
) -> HttpResponse {
    let view = View(post.request.headers());
    let request = match message {
        Message::Request(request) => request,
        Message::Notification(_) | Message::Response(_) => {
            return match headers::check(&view, message, meta) {
                // Nothing that a stateless client may tell concerns the gateway (cancelling is closing the stream).
                Ok(_) => HttpResponse::Accepted().finish(),
                Err(error) => refuse(None, &error),
            };
        }
    };
    let mut table = post.endpoint.server.routing.routes.load_full();
    let mut checked = headers::check_request(&view, request, meta)
        .and_then(|revision| method_known(&post, &table, meta, request, revision))
        .and_then(|()| match &large {
            Some(large) => large.checked.clone(),
            None => check_param_headers(&table, &view, request),
        });
    if let Ok(Headers::Unknown) = checked {
        arrived(&post, request).await;
        table = post.endpoint.server.routing.routes.load_full();
        checked = check_param_headers(&table, &view, request);
    }
    if let Err(error) = checked {
        return refuse(Some(&request.id), &error);
    }
    let limits = &post.endpoint.sessions.limits.outbox;
    let memory = Arc::clone(&post.endpoint.server.memory);
    let principal = Arc::clone(&post.identity.principal);
    let queue = ResponseQueue::counted(limits.messages, limits.bytes, memory, principal);
    let queue = Arc::new(queue);
    let exchange = match exchange(&post, meta, &queue, table) {
        Ok(exchange) => exchange,
        Err(error) => return refuse(Some(&request.id), &error),
    };
    let held = post.held.take();
    let mut work: Work = match large {
        None => {
            let owned = OwnedRequest::from_request(request);
            Box::pin(async move {
                let _held = held;
                let request = owned.as_request();
                tokio::select! {
                    biased;
                    answer = inbound::answer(&exchange, &request) => answer,
                    () = sender.taken_back() => None,
                }
            })
        }
        Some(large) => Box::pin(async move {
            let _held = held;
            tokio::select! {
                biased;
                answer = inbound::answer_aside(exchange, large.request) => answer,
                () = sender.taken_back() => None,
            }
        }),
    };
    let stream_only = !post.accepts.json;
    if !stream_only {
        // SSE only where there is something to stream before the answer.
        let first = poll_fn(|cx| match work.as_mut().poll(cx) {
            Poll::Ready(answer) => Poll::Ready(Some(answer)),
            Poll::Pending => queue.poll_take(cx).map(|messages| {
                queue.put_back(messages);
                None
            }),
        })
        .await;
        if let Some(done) = first {
            let before = queue.take();
            return match done {
                Some(answer) if before.is_empty() || !post.accepts.sse => answer::answered(status(&answer), answer),
                Some(answer) => sse::finished(before, answer.bytes),
                None => HttpResponse::Accepted().finish(),
            };
        }
        if !post.accepts.sse {
            // A client that takes JSON only gets its answer, and nothing before it.
            return match work.await {
                Some(answer) => answer::answered(status(&answer), answer),
                None => HttpResponse::Accepted().finish(),
            };
        }
    }
    let keep_alive = post.endpoint.transports.http.sse_keep_alive;
    sse::answer().streaming(QueueBody::new(work, queue, keep_alive))
}

fn exchange(
    post: &Post,
    meta: &Meta<'_>,
    queue: &Arc<ResponseQueue>,
    table: Arc<RouteTable>,
) -> Result<Handling, McpError> {
    let facts = inbound::modern_facts(meta, post.endpoint.server.limits.facts)?;
    let sessions = &post.endpoint.sessions;
    // Bookkeeping only: nothing of an earlier request on this connection speaks for this one.
    let session = match Connection::of(&post.request).filter(|connection| !connection.is_peers()) {
        Some(connection) => Arc::clone(connection.session(|| {
            let session = sessions.stateless_session(Transport::Http, post.identity.clone());
            sessions.server.show_facts(&session, &facts);
            let addr = Session::open(sessions, Arc::clone(&session), None);
            let ended = Arc::clone(&session);
            let end = move || {
                ended.end();
                addr.do_send(EndSession { code: close::GOING_AWAY, reason: "connection closed" });
            };
            (session, Box::new(end) as _)
        })),
        None => sessions.stateless_session(Transport::Http, post.identity.clone()),
    };
    session.touch();
    let exchange = Exchange {
        session,
        facts,
        identity: post.identity.clone(),
        transport: Transport::Http,
        related: Related::Queue(Arc::clone(queue)),
        log_level: meta.log_level()?,
        headers: forwarded(&table, &post.request),
    };
    Ok(Handling { exchange, server: Arc::clone(&sessions.server), table })
}

/// Step 6 of the ladder: a method that this revision has, or one of an extension that leads somewhere.
fn method_known(
    post: &Post,
    table: &RouteTable,
    meta: &Meta<'_>,
    request: &Request<'_>,
    revision: Revision,
) -> Result<(), McpError> {
    if Method::parse(&request.method).is_none()
        && let Ok(facts) = inbound::modern_facts(meta, post.endpoint.server.limits.facts)
    {
        let asker = asker_of(&post.identity.principal, Transport::Http, &facts);
        return extension::target(table, &facts, &asker, &request.method).map(drop);
    }
    headers::check_method(request, revision).map(drop)
}

/// What can be said of arguments that are mirrored into headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Headers {
    Fine,
    /// The tool may be one of a server that has yet to bring its definition.
    Unknown,
}

/// Step 7 of the ladder: arguments that a tool wants mirrored into headers.
pub fn check_param_headers(table: &RouteTable, view: &View<'_>, request: &Request<'_>) -> Result<Headers, McpError> {
    if request.method != "tools/call" {
        return Ok(Headers::Fine);
    }
    if !table.mirrors_arguments && table.was_built_complete() {
        return Ok(Headers::Fine);
    }
    let params = request.outlined_params().object;
    let Some(name) = params.member("name").and_then(string) else { return Ok(Headers::Fine) };
    match table.find_tool(&name) {
        Some(route) if !route.param_headers.is_empty() => {
            let arguments =
                params.member("arguments").and_then(|raw| serde_json::from_str::<serde_json::Value>(raw).ok());
            let checked =
                countersign_protocol::param_headers::check_params(view, &route.param_headers, arguments.as_ref());
            checked.map(|()| Headers::Fine)
        }
        None if !table.was_built_complete() => Ok(Headers::Unknown),
        _ => Ok(Headers::Fine),
    }
}

/// Waits for the server of a tool, where that is on its way.
async fn arrived(post: &Post, request: &Request<'_>) {
    if let Some(name) = request.outlined_params().object.member("name").and_then(string) {
        let server = &post.endpoint.server;
        upstream_wait::wait_for_tool(&server.routing, &server.long_requests, &post.identity.principal, &name).await;
    }
}

fn refuse(id: Option<&RequestId>, error: &McpError) -> HttpResponse {
    RequestMetrics::get().error(error.kind);
    let status = match headers::http_status(error) {
        // Nothing was handled yet, so nothing is in-band.
        200 => 400,
        status => status,
    };
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::BAD_REQUEST);
    answer::json(status, encode::error(id, error, Revision::MODERN))
}

/// What a handler answers is a `200`, be it an error or not; what stopped it before has its own status.
fn status(answer: &WireResponse) -> StatusCode {
    match answer.error {
        Some(ErrorKind::MethodNotFound) => StatusCode::NOT_FOUND,
        // An upstream's too (2026-07-28/basic/index, "Capabilities": on HTTP the status must be 400).
        Some(ErrorKind::MissingCapability) => StatusCode::BAD_REQUEST,
        Some(ErrorKind::Unauthorized) => StatusCode::UNAUTHORIZED,
        Some(ErrorKind::Forbidden) => StatusCode::FORBIDDEN,
        Some(ErrorKind::RateLimited) => StatusCode::TOO_MANY_REQUESTS,
        _ => StatusCode::OK,
    }
}
