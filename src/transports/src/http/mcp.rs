//! The MCP endpoint: the checks that every request passes, whatever its era.

use std::sync::Arc;

use actix_web::{
    HttpRequest, HttpResponse,
    http::{ConnectionType, header},
    web,
};
use bytes::Bytes;

use super::{HeaderView, body, forward, identify, modern, names, refuse, refuse_message, session};
use crate::endpoint::McpEndpoint;
use countersign_domain::principal::Identity;
use countersign_exchange::{context::ForwardedHeaders, inflow::Reservation};
use countersign_http::{
    answer::{self, Accepts},
    problem::shutting_down,
};
use countersign_protocol::{
    ErrorKind, McpError, Revision,
    envelope::{self, EnvelopeFault, Incoming, Message},
    headers, params,
};
use countersign_routing::RouteTable;
use countersign_runtime::large_messages::LARGE_MESSAGE_BYTES;
use countersign_session::{
    cluster::whole_body,
    owned::{OwnedMessage, OwnedRequest},
};

/// A POST request whose headers were checked.
pub struct Post<'a> {
    pub endpoint: &'a web::Data<McpEndpoint>,
    pub request: &'a HttpRequest,
    pub identity: Identity,
    pub accepts: Accepts,
    /// The part of the budget for bodies that its body holds.
    pub held: Option<Reservation>,
}

/// A large request, which is answered on a thread for large messages ([`countersign_runtime::large_messages`]).
pub struct LargeRequest {
    pub request: Arc<OwnedRequest>,
    pub mirrored: Result<modern::MirrorCheck, McpError>,
}

/// `POST /mcp` (2026-07-28/basic/transports/streamable-http; 2025-11-25/basic/transports).
pub async fn post(request: HttpRequest, payload: web::Payload, endpoint: web::Data<McpEndpoint>) -> HttpResponse {
    let post = match admit(&request, &endpoint) {
        Ok(post) => post,
        Err((status, error)) => return answer::error_with_status(status, None, &error, assumed_revision(&request)),
    };
    answer_post(post, payload).await.unwrap_or_else(|error| {
        let status = if error.kind == ErrorKind::Timeout { 408 } else { error.kind.status() };
        let mut response = refuse_message(status, None, &error, assumed_revision(&request));
        // The rest of the body is not read.
        response.head_mut().set_connection_type(ConnectionType::Close);
        response
    })
}

/// Checks everything that does not depend on the body.
///
/// # Errors
/// Returns the error and the HTTP status with which the request is refused.
fn admit<'a>(request: &'a HttpRequest, endpoint: &'a web::Data<McpEndpoint>) -> Result<Post<'a>, (u16, McpError)> {
    let invalid = |why| McpError::new(ErrorKind::InvalidRequest, why);
    if endpoint.shutdown.is_cancelled() {
        return Err((503, shutting_down()));
    }
    let identity = identify(endpoint, request).map_err(|error| (error.kind.status(), error))?;
    if !answer::is_json(request) {
        return Err((415, invalid("the Content-Type must be application/json")));
    }
    let accepts = Accepts::from_request(request);
    if !accepts.json && !accepts.sse {
        return Err((406, invalid("the client must accept application/json and text/event-stream")));
    }
    Ok(Post { endpoint, request, identity, accepts, held: None })
}

/// Reads the body and answers its message, or forwards the request to the node that owns its session, call or task.
async fn answer_post(mut post: Post<'_>, payload: web::Payload) -> Result<HttpResponse, McpError> {
    let (endpoint, request) = (post.endpoint, post.request);
    if let Some(owner) = forward::owner_of_session(endpoint, request, session_id(request)).await? {
        return Ok(owner.forward(request, Some(forward::body(payload.into_inner()))).await);
    }
    let http = &endpoint.transports.http;
    let (body, held) = body::read(request, payload.into_inner(), endpoint, http.max_body, http.request_timeout).await?;
    post.held = held;
    if body.len() > LARGE_MESSAGE_BYTES {
        return answer_large(post, body).await;
    }
    Ok(match envelope::parse(&body, &endpoint.server.limits.envelope) {
        Ok(Incoming::Single(message)) => match forward::owner_of_message(endpoint, request, &message).await? {
            Some(owner) => owner.forward(request, Some(whole_body(body.clone()))).await,
            None => handle(post, &message, None).await,
        },
        Ok(Incoming::Batch(_)) => session::batch(post, body).await,
        Err(fault) => refuse_body(&post, &fault),
    })
}

/// Answers a large body, which is parsed on a thread that serves no connections.
async fn answer_large(post: Post<'_>, body: Bytes) -> Result<HttpResponse, McpError> {
    let (endpoint, text) = (post.endpoint.clone(), body.clone());
    let table = endpoint.server.routing.routes.load_full();
    let headers = (table.mirrors_arguments || !table.was_built_complete()).then(|| post.request.headers().clone());
    let large_messages = Arc::clone(&endpoint.server.large_messages);
    let parse = move || async move {
        let Incoming::Single(message) = envelope::parse(&text, &endpoint.server.limits.envelope)? else {
            return Ok::<_, EnvelopeFault>(None);
        };
        // The arguments are large, too, so they are compared with the headers here.
        let mirrored = match (&message, &headers) {
            (Message::Request(request), Some(headers)) => {
                modern::check_param_headers(&table, &HeaderView(headers), request)
            }
            _ => Ok(modern::MirrorCheck::Passed),
        };
        Ok(Some((OwnedMessage::from_message(&message), mirrored)))
    };
    let (message, mirrored) = match large_messages.run(&post.identity.principal.name, parse).await? {
        Ok(Some(parsed)) => parsed,
        Ok(None) => return Ok(session::batch(post, body).await),
        Err(fault) => return Ok(refuse_body(&post, &fault)),
    };
    if let Some(owner) = forward::owner_of_message(post.endpoint, post.request, &message.as_message()).await? {
        return Ok(owner.forward(post.request, Some(whole_body(body))).await);
    }
    drop(body);
    let large = match &message {
        OwnedMessage::Request(request) => Some(LargeRequest { request: Arc::clone(request), mirrored }),
        OwnedMessage::Notification { .. } | OwnedMessage::Response { .. } => None,
    };
    Ok(handle(post, &message.as_message(), large).await)
}

/// Refuses a body that is not a message.
fn refuse_body(post: &Post<'_>, fault: &EnvelopeFault) -> HttpResponse {
    refuse_message(400, fault.id.as_ref(), &fault.error, assumed_revision(post.request))
}

/// Answers a message in its era.
async fn handle(post: Post<'_>, message: &Message<'_>, large: Option<LargeRequest>) -> HttpResponse {
    let meta = match message {
        Message::Request(request) => request.meta(),
        message => params::parse_meta(message.params()),
    };
    match meta {
        Ok(meta) if is_modern(post.request, message, &meta) => modern::serve(post, message, &meta, large).await,
        Ok(_) => session::message(post, message, large).await,
        Err(error) => refuse_message(400, request_id(message), &error, assumed_revision(post.request)),
    }
}

/// Returns `true` for a message of the stateless era. A handshake and a message with a session id belong to the handshake era,
/// unless they name a version.
fn is_modern(request: &HttpRequest, message: &Message<'_>, meta: &params::Meta<'_>) -> bool {
    let is_handshake =
        matches!(message, Message::Request(r) if r.method == "initialize") || session_id(request).is_some();
    if is_handshake && meta.protocol_version.is_none() && request.headers().get(&names::PROTOCOL_VERSION).is_none() {
        return false;
    }
    headers::is_modern(&HeaderView(request.headers()), meta)
}

/// Returns the revision in which to refuse a body that cannot be read: that of the header, or the oldest one that has this
/// endpoint.
fn assumed_revision(request: &HttpRequest) -> Revision {
    request
        .headers()
        .get(&names::PROTOCOL_VERSION)
        .and_then(|v| v.to_str().ok())
        .and_then(Revision::parse)
        .unwrap_or(Revision::V2025_03_26)
}

/// `GET /mcp`: opens the stream of a handshake-era session, or resumes a stream that broke off.
pub async fn get(request: HttpRequest, endpoint: web::Data<McpEndpoint>) -> HttpResponse {
    let opened = async {
        if endpoint.shutdown.is_cancelled() {
            return Err(shutting_down());
        }
        let identity = identify(&endpoint, &request)?;
        Ok(match forward::owner_of_session(&endpoint, &request, session_id(&request)).await? {
            Some(owner) => owner.forward(&request, None).await,
            None => session::stream(&request, &endpoint, &identity),
        })
    };
    opened.await.unwrap_or_else(|error| refuse(&error, assumed_revision(&request)))
}

/// `DELETE /mcp`: ends a handshake-era session.
pub async fn delete(request: HttpRequest, endpoint: web::Data<McpEndpoint>) -> HttpResponse {
    let deleted = async {
        let identity = identify(&endpoint, &request)?;
        Ok(match forward::owner_of_session(&endpoint, &request, session_id(&request)).await? {
            Some(owner) => owner.forward(&request, None).await,
            None => session::delete(&request, &endpoint, &identity).await,
        })
    };
    deleted.await.unwrap_or_else(|error: McpError| refuse(&error, assumed_revision(&request)))
}

/// Returns the headers of the request that upstreams are configured to receive, or `None` if no upstream is configured so.
#[must_use]
pub fn forwarded_headers(table: &RouteTable, request: &HttpRequest) -> Option<Arc<ForwardedHeaders>> {
    let names = &table.forwarded_headers;
    if names.is_empty() {
        return None;
    }
    let value = |name: &String| request.headers().get(name.as_str())?.to_str().ok();
    Some(Arc::new(names.iter().filter_map(|name| Some((name.as_str().into(), value(name)?.into()))).collect()))
}

/// Returns the `Mcp-Session-Id` header, or `Some("")` if it is not text.
#[must_use]
pub fn session_id(request: &HttpRequest) -> Option<&str> {
    request.headers().get(&names::SESSION_ID).map(|v| v.to_str().unwrap_or_default())
}

/// Returns the `Last-Event-ID` header of a client that resumes a stream, or `Some("")` if it is not text.
#[must_use]
pub fn last_event_id(request: &HttpRequest) -> Option<&str> {
    request.headers().get(header::HeaderName::from_static("last-event-id")).map(|v| v.to_str().unwrap_or_default())
}

/// Returns the id of a request.
#[must_use]
pub const fn request_id<'a>(message: &'a Message<'_>) -> Option<&'a countersign_protocol::RequestId> {
    if let Message::Request(request) = message { Some(&request.id) } else { None }
}

#[cfg(test)]
mod tests {
    use actix_web::{http::header::CONNECTION, test::TestRequest};

    use super::*;
    use crate::testing::TestEndpoint;

    fn request(headers: &[(&str, &str)]) -> TestRequest {
        headers.iter().fold(TestRequest::post().uri("/mcp"), |request, header| request.append_header(*header))
    }

    #[test]
    fn era_follows_version_and_handshake_stays_legacy() {
        const VERSION: &str = "mcp-protocol-version";
        let modern = (VERSION, "2026-07-28");
        let legacy = (VERSION, "2025-06-18");
        let (method, session) = (("mcp-method", "tools/list"), ("mcp-session-id", "x"));
        let meta = r#","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}}"#;
        for (name, params, headers, expected) in [
            ("tools/list", "", &[][..], false),
            ("tools/list", "", &[legacy], false),
            ("tools/list", "", &[legacy, method], false),
            ("tools/list", "", &[modern], true),
            ("tools/list", "", &[method], true),
            ("tools/list", meta, &[], true),
            ("tools/list", meta, &[legacy, session], true),
            // An unknown future version is stateless, and an invalid version is ignored.
            ("tools/list", "", &[(VERSION, "2027-01-01")], true),
            ("tools/list", "", &[(VERSION, "soon")], false),
            ("tools/list", "", &[modern, legacy], false),
            // Other headers of a handshake or of a session's message are ignored, unless one names a version.
            ("initialize", "", &[method], false),
            ("tools/list", "", &[session, method], false),
            ("initialize", "", &[modern], true),
            ("tools/list", "", &[session, modern], true),
            ("initialize", meta, &[], true),
        ] {
            let body = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{name}"{params}}}"#);
            let limits = envelope::Limits { max_depth: 10, max_batch: 10 };
            let Ok(Incoming::Single(message)) = envelope::parse(body.as_bytes(), &limits) else { panic!("{body}") };
            let Message::Request(call) = &message else { panic!("{body}") };
            let request = request(headers).to_http_request();
            assert_eq!(is_modern(&request, &message, &call.meta().unwrap()), expected, "{body} {headers:?}");
        }
    }

    #[test]
    fn unreadable_body_is_refused_in_revision_of_header() {
        let revision_for = |headers: &[(&str, &str)]| assumed_revision(&request(headers).to_http_request());
        assert_eq!(revision_for(&[("mcp-protocol-version", "2026-07-28")]), Revision::MODERN);
        assert_eq!(revision_for(&[("mcp-protocol-version", "2024-11-05")]), Revision::V2024_11_05);
        assert_eq!(revision_for(&[("mcp-protocol-version", "1")]), Revision::V2025_03_26);
        assert_eq!(revision_for(&[]), Revision::V2025_03_26);
    }

    #[actix::test]
    async fn post_is_refused_for_its_first_fault() {
        let endpoint = TestEndpoint::open("transports: { http: { max_body: 1KiB } }").await;
        let stranger = ("authorization", "Bearer csk_unknown");
        let (text, json) = (("content-type", "text/plain"), ("content-type", "application/json; charset=utf-8"));
        let (html, all) = (("accept", "text/html"), ("accept", "*/*"));
        let large = "x".repeat(1025);
        for (headers, body, status, code) in [
            (&[stranger, text, html][..], large.as_str(), 401, "UNAUTHORIZED"),
            (&[text, html], &large, 415, "INVALID_REQUEST"),
            (&[html], &large, 415, "INVALID_REQUEST"),
            (&[json, html], &large, 406, "INVALID_REQUEST"),
            (&[json, all], &large, 413, "TOO_LARGE"),
            (&[json], "{", 400, "PARSE_ERROR"),
            (&[json], "[]", 400, "INVALID_REQUEST"),
            (&[json], r#"{"jsonrpc":"2.0","id":1,"method":"resources/subscribe"}"#, 400, "NOT_INITIALIZED"),
        ] {
            let reply = endpoint.ask(request(headers).set_payload(body.to_owned())).await;
            assert_eq!((reply.status.as_u16(), reply.code().as_deref()), (status, Some(code)), "{headers:?} {reply:?}");
        }
        endpoint.endpoint.shutdown.cancel();
        let reply = endpoint.ask(request(&[stranger, text])).await;
        assert_eq!((reply.status.as_u16(), reply.code().as_deref()), (503, Some("SHUTTING_DOWN")));
        assert!(reply.headers.get(CONNECTION).is_none());
    }
}
