//! The stateless era on HTTP: each POST is answered by itself, and nothing is remembered
//! (2026-07-28/basic/transports/streamable-http).

use std::{future::poll_fn, sync::Arc, task::Poll};

use actix_web::{HttpResponse, http::StatusCode};

use super::{
    HeaderView,
    event_streams::QueueBody,
    post::{LargeRequest, MirrorCheck, Post, forwarded_headers},
    refuse_message,
};
use countersign_exchange::{
    context::{Exchange, WireResponse},
    reply::{RelatedChannel, ResponseQueue},
};
use countersign_http::{answer, connections::Connection, framing::sse};
use countersign_protocol::{
    ErrorKind, McpError, Method, RequestId, Revision,
    envelope::{Message, Request},
    headers,
    json::string,
    param_headers::check_params,
    params::Meta,
};
use countersign_routing::RouteTable;
use countersign_session::{
    RequestScope, Session,
    actor::{EndSession, close},
    handlers::{extension_methods, upstream_wait},
    inbound,
    owned_messages::OwnedRequest,
};
use countersign_telemetry::metrics::Transport;

/// Checks a message and, if it is a request, answers it. All checks and the call use the same route table, unless the
/// request waits for a server that has not connected yet.
pub async fn serve(
    mut post: Post<'_>,
    mut table: Arc<RouteTable>,
    message: &Message<'_>,
    meta: &Meta<'_>,
    large: Option<LargeRequest>,
) -> HttpResponse {
    let view = HeaderView(post.request.headers());
    let request = match message {
        Message::Request(request) => request,
        Message::Notification(_) | Message::Response(_) => {
            return match headers::check(&view, message, meta) {
                // No notification of a stateless client concerns the gateway. A client cancels by closing the stream.
                Ok(_) => HttpResponse::Accepted().finish(),
                Err(error) => refuse(None, &error),
            };
        }
    };
    let mut checked = headers::check_request(&view, request, meta)
        .and_then(|revision| check_method(&post, &table, meta, request, revision))
        .and_then(|()| match &large {
            Some(large) => large.mirror_check.clone(),
            None => check_param_headers(&table, &view, request),
        });
    if let Ok(MirrorCheck::UnknownTool) = checked {
        // Boxed, so that requests that need not wait do not reserve its memory.
        Box::pin(wait_for_tool_server(&post, &mut table, request)).await;
        checked = check_param_headers(&table, &view, request);
    }
    if let Err(error) = checked {
        return refuse(Some(&request.id), &error);
    }
    if request.method == "subscriptions/listen" && !post.accepts.sse {
        // It has no answer before its end, so the client would never receive anything.
        let error = McpError::new(ErrorKind::InvalidRequest, "a client that listens must accept text/event-stream");
        return refuse_message(406, Some(&request.id), &error, Revision::MODERN);
    }
    let limits = &post.endpoint.sessions.limits.outbox;
    let memory = Arc::clone(&post.endpoint.server.memory);
    let principal = Arc::clone(&post.identity.principal);
    let queue = Arc::new(ResponseQueue::with_memory(limits.messages, limits.bytes, memory, principal));
    let scope = match build_scope(&post, meta, &queue, table) {
        Ok(scope) => scope,
        Err(error) => return refuse(Some(&request.id), &error),
    };
    let reservation = post.reservation.take();
    let mut work = match large {
        None => inbound::answer_owned(scope, OwnedRequest::from_request(request), reservation),
        Some(large) => inbound::answer_large(scope, large.request, reservation),
    };
    if post.accepts.json {
        // A stream is only opened if there are messages before the answer.
        let first = poll_fn(|cx| match work.as_mut().poll(cx) {
            Poll::Ready(answer) => Poll::Ready(Some(answer)),
            Poll::Pending => queue.poll_ready(cx).map(|()| None),
        });
        let sole_answer = match first.await {
            // A client that only accepts JSON receives nothing before its answer.
            None if !post.accepts.sse => Some(work.as_mut().await),
            first => first,
        };
        if let Some(answer) = sole_answer {
            let Some(answer) = answer else { return HttpResponse::Accepted().finish() };
            let before = queue.take();
            if before.is_empty() || !post.accepts.sse {
                return answer::response_for(status(&answer), answer);
            }
            return sse::complete_response(before, answer.bytes);
        }
    }
    let keep_alive = post.endpoint.transports.http.sse_keep_alive;
    sse::event_stream_response().streaming(QueueBody::new(work, queue, keep_alive))
}

fn build_scope(
    post: &Post<'_>,
    meta: &Meta<'_>,
    queue: &Arc<ResponseQueue>,
    table: Arc<RouteTable>,
) -> Result<RequestScope, McpError> {
    let facts = inbound::modern_facts(meta, post.endpoint.server.limits.facts)?;
    let sessions = &post.endpoint.sessions;
    // The session is for bookkeeping only: nothing of an earlier request on this connection applies to this one.
    let session = match Connection::for_request(post.request).filter(|connection| !connection.is_peer()) {
        Some(connection) => Arc::clone(connection.stateless_session(|| {
            let session = sessions.create_stateless_session(Transport::Http, post.identity.clone());
            sessions.server.publish_facts(&session, &facts);
            let actor = Session::open(sessions, Arc::clone(&session), None);
            let bound_session = Arc::clone(&session);
            let end = move || {
                bound_session.end();
                actor.do_send(EndSession { code: close::GOING_AWAY, reason: "connection closed" });
            };
            (session, Box::new(end) as _)
        })),
        None => sessions.create_stateless_session(Transport::Http, post.identity.clone()),
    };
    session.touch();
    let exchange = Exchange {
        session,
        facts,
        identity: post.identity.clone(),
        transport: Transport::Http,
        related: RelatedChannel::Queue(Arc::clone(queue)),
        log_level: meta.log_level()?,
        headers: forwarded_headers(&table, post.request),
    };
    Ok(RequestScope { exchange, server: Arc::clone(&sessions.server), table })
}

/// Checks that the revision has the method, or that an extension routes it to a server.
fn check_method(
    post: &Post<'_>,
    table: &RouteTable,
    meta: &Meta<'_>,
    request: &Request<'_>,
    revision: Revision,
) -> Result<(), McpError> {
    if Method::parse(&request.method).is_none()
        && let Ok(facts) = inbound::modern_facts(meta, post.endpoint.server.limits.facts)
    {
        let requester = facts.requester(&post.identity.principal, Transport::Http);
        return extension_methods::find_upstream(table, &facts, &requester, &request.method).map(drop);
    }
    Method::parse_request(&request.method, revision).map(drop)
}

/// Checks the headers that mirror arguments, for the tools that require them.
pub fn check_param_headers(
    table: &RouteTable,
    view: &HeaderView<'_>,
    request: &Request<'_>,
) -> Result<MirrorCheck, McpError> {
    if request.method != "tools/call" || !table.headers.mirror_arguments && table.was_complete_when_built() {
        return Ok(MirrorCheck::Passed);
    }
    let params = request.outlined_params().object;
    let Some(name) = params.member("name").and_then(string) else { return Ok(MirrorCheck::Passed) };
    match table.find_tool(&name) {
        Some(route) if !route.param_headers.is_empty() => {
            let arguments = params.member("arguments").and_then(|raw| raw.parse::<serde_json::Value>().ok());
            check_params(view, &route.param_headers, arguments.as_ref()).map(|()| MirrorCheck::Passed)
        }
        None if !table.was_complete_when_built() => Ok(MirrorCheck::UnknownTool),
        _ => Ok(MirrorCheck::Passed),
    }
}

/// Waits for the server of a tool, if its definitions have not arrived yet, and sets `table` to the one that has them.
async fn wait_for_tool_server(post: &Post<'_>, table: &mut Arc<RouteTable>, request: &Request<'_>) {
    if let Some(name) = request.outlined_params().object.member("name").and_then(string) {
        let routing = &post.endpoint.server.routing;
        upstream_wait::wait_for_tool(routing, &post.identity.principal, table, &name).await;
    }
}

fn refuse(id: Option<&RequestId>, error: &McpError) -> HttpResponse {
    let status = match headers::http_status(error) {
        // No handler has run yet, so the error is not part of a result.
        200 => 400,
        status => status,
    };
    refuse_message(status, id, error, Revision::MODERN)
}

/// Returns the status of an answer. An answer of a handler has status 200 even if it is an error; an error that occurs before the
/// handler has its own status.
fn status(answer: &WireResponse) -> StatusCode {
    match answer.error {
        Some(ErrorKind::MethodNotFound) => StatusCode::NOT_FOUND,
        // This includes an upstream's error (2026-07-28/basic/index, "Capabilities": on HTTP the status must be 400).
        Some(ErrorKind::MissingCapability) => StatusCode::BAD_REQUEST,
        Some(ErrorKind::Unauthorized) => StatusCode::UNAUTHORIZED,
        Some(ErrorKind::Forbidden) => StatusCode::FORBIDDEN,
        Some(ErrorKind::RateLimited) => StatusCode::TOO_MANY_REQUESTS,
        _ => StatusCode::OK,
    }
}
