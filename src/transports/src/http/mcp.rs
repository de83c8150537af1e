//! The MCP endpoint: what every request has to pass, whichever era it turns out to be of.

use std::sync::Arc;

use actix_web::{HttpRequest, HttpResponse, http::header, web};

use super::{
    View,
    body::Body,
    forward, identify,
    large::{self, Large},
    modern, names, session,
};
use crate::endpoint::McpEndpoint;
use countersign_domain::principal::Identity;
use countersign_exchange::{context::ForwardedHeaders, inflow::Held};
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
use countersign_runtime::lanes::LARGE_MESSAGE_BYTES;
use countersign_session::{cluster::whole_body, owned::OwnedMessage};
use countersign_telemetry::RequestMetrics;

/// A POST on its way to one of the eras.
pub struct Post {
    pub endpoint: web::Data<McpEndpoint>,
    pub request: HttpRequest,
    pub identity: Identity,
    pub accepts: Accepts,
    /// What its body holds of the room for bodies.
    pub held: Option<Held>,
}

/// `POST /mcp` (2026-07-28/basic/transports/streamable-http; 2025-11-25/basic/transports).
pub async fn post(request: HttpRequest, payload: web::Payload, endpoint: web::Data<McpEndpoint>) -> HttpResponse {
    let mut post = match admit(request, &endpoint) {
        Ok(post) => post,
        Err(refused) => return *refused,
    };
    match forward::owner_of_session(&endpoint, &post.request, session_id(&post.request)).await {
        Ok(Some(owner)) => return owner.answer(&post.request, Some(forward::body(payload.into_inner()))).await,
        Ok(None) => {}
        Err(error) => return refuse(&error, assumed_revision(&post.request)),
    }
    let http = &endpoint.transports.http;
    let mut sender = Body::new(payload);
    let body = match sender.read(&post.request, &endpoint, http.max_body, http.request_timeout).await {
        Ok(body) => body,
        Err(error) => return refuse(&error, assumed_revision(&post.request)),
    };
    post.held = sender.held();
    if body.len() > LARGE_MESSAGE_BYTES {
        return match large::read(&post, &body).await {
            Ok(Ok(large::Read::Batch)) => session::batch(post, body).await,
            Ok(Ok(large::Read::Single(message, checked))) => {
                match forward::owner_of_message(&endpoint, &post.request, &message.as_message()).await {
                    Ok(Some(owner)) => return owner.answer(&post.request, Some(whole_body(body))).await,
                    Ok(None) => {}
                    Err(error) => return refuse(&error, assumed_revision(&post.request)),
                }
                drop(body);
                let large = match &*message {
                    OwnedMessage::Request(request) => Some(Box::new(Large { request: Arc::clone(request), checked })),
                    OwnedMessage::Notification { .. } | OwnedMessage::Response { .. } => None,
                };
                handle(post, sender, &message.as_message(), large).await
            }
            Ok(Err(fault)) => no_message(&post, &fault),
            Err(refused) => *refused,
        };
    }
    match envelope::parse(&body, &endpoint.server.limits.envelope) {
        Ok(Incoming::Single(message)) => match forward::owner_of_message(&endpoint, &post.request, &message).await {
            Ok(Some(owner)) => owner.answer(&post.request, Some(whole_body(body.clone()))).await,
            Ok(None) => handle(post, sender, &message, None).await,
            Err(error) => refuse(&error, assumed_revision(&post.request)),
        },
        Ok(Incoming::Batch(_)) => session::batch(post, body).await,
        Err(fault) => no_message(&post, &fault),
    }
}

/// The answer to a body that is no message.
fn no_message(post: &Post, fault: &EnvelopeFault) -> HttpResponse {
    RequestMetrics::get().error(fault.error.kind);
    let revision = assumed_revision(&post.request);
    let bytes = countersign_protocol::encode::error(fault.id.as_ref(), &fault.error, revision);
    answer::json(actix_web::http::StatusCode::BAD_REQUEST, bytes)
}

/// Sends a message to its era.
async fn handle(post: Post, sender: Body, message: &Message<'_>, large: Option<Box<Large>>) -> HttpResponse {
    let meta = match message {
        Message::Request(request) => request.meta(),
        message => params::parse_meta(message.params()),
    };
    match meta {
        Ok(meta) if is_modern(&post.request, message, &meta) => {
            modern::serve(post, sender, message, &meta, large).await
        }
        Ok(_) => session::message(post, message, large).await,
        Err(error) => {
            let id = if let Message::Request(request) = message { Some(&request.id) } else { None };
            let bytes = countersign_protocol::encode::error(id, &error, assumed_revision(&post.request));
            answer::json(actix_web::http::StatusCode::BAD_REQUEST, bytes)
        }
    }
}

/// A handshake, or a message of a session that it opened, stays what it is whatever other headers it carries.
fn is_modern(request: &HttpRequest, message: &Message<'_>, meta: &params::Meta<'_>) -> bool {
    let handshake = matches!(message, Message::Request(r) if r.method == "initialize") || session_id(request).is_some();
    if handshake && meta.protocol_version.is_none() && request.headers().get(&names::PROTOCOL_VERSION).is_none() {
        return false;
    }
    headers::is_modern(&View(request.headers()), meta)
}

/// What does not depend on the body.
fn admit(request: HttpRequest, endpoint: &web::Data<McpEndpoint>) -> Result<Post, Box<HttpResponse>> {
    let refuse = |status, error: McpError| Box::new(answer::with_status(status, &error, assumed_revision(&request)));
    if endpoint.shutdown.is_cancelled() {
        return Err(refuse(503, shutting_down()));
    }
    let identity = identify(endpoint, &request).map_err(|e| refuse(e.kind.status(), e))?;
    if !answer::is_json(&request) {
        return Err(refuse(415, McpError::new(ErrorKind::InvalidRequest, "the Content-Type must be application/json")));
    }
    let accepts = Accepts::of(&request);
    if !accepts.json && !accepts.sse {
        let error =
            McpError::new(ErrorKind::InvalidRequest, "the client must accept application/json and text/event-stream");
        return Err(refuse(406, error));
    }
    Ok(Post { endpoint: endpoint.clone(), request, identity, accepts, held: None })
}

fn refuse(error: &McpError, revision: Revision) -> HttpResponse {
    RequestMetrics::get().error(error.kind);
    let status = if error.kind == ErrorKind::Timeout { 408 } else { error.kind.status() };
    let mut response = answer::with_status(status, error, revision);
    // The rest of the body is not wanted any more.
    response.head_mut().set_connection_type(actix_web::http::ConnectionType::Close);
    response
}

/// In which revision to speak of a body that cannot be read: the header's, or the oldest that has this endpoint.
fn assumed_revision(request: &HttpRequest) -> Revision {
    request
        .headers()
        .get(&names::PROTOCOL_VERSION)
        .and_then(|v| v.to_str().ok())
        .and_then(Revision::parse)
        .unwrap_or(Revision::V2025_03_26)
}

/// `GET /mcp`: the stream of a handshake-era session, or the rest of one that broke off.
pub async fn get(request: HttpRequest, endpoint: web::Data<McpEndpoint>) -> HttpResponse {
    if endpoint.shutdown.is_cancelled() {
        return refuse_head(&request, &shutting_down());
    }
    let identity = match identify(&endpoint, &request) {
        Ok(identity) => identity,
        Err(error) => return refuse_head(&request, &error),
    };
    match forward::owner_of_session(&endpoint, &request, session_id(&request)).await {
        Ok(Some(owner)) => owner.answer(&request, None).await,
        Ok(None) => session::stream(&request, &endpoint, &identity),
        Err(error) => refuse_head(&request, &error),
    }
}

/// `DELETE /mcp`: ends a handshake-era session.
pub async fn delete(request: HttpRequest, endpoint: web::Data<McpEndpoint>) -> HttpResponse {
    let identity = match identify(&endpoint, &request) {
        Ok(identity) => identity,
        Err(error) => return refuse_head(&request, &error),
    };
    match forward::owner_of_session(&endpoint, &request, session_id(&request)).await {
        Ok(Some(owner)) => owner.answer(&request, None).await,
        Ok(None) => session::delete(&request, &endpoint, &identity).await,
        Err(error) => refuse_head(&request, &error),
    }
}

fn refuse_head(request: &HttpRequest, error: &McpError) -> HttpResponse {
    RequestMetrics::get().error(error.kind);
    answer::refusal(error, assumed_revision(request))
}

/// The headers that the configuration of some upstream has passed on; none of them otherwise, whatever they are.
#[must_use]
pub fn forwarded(table: &RouteTable, request: &HttpRequest) -> Option<Arc<ForwardedHeaders>> {
    let names = &table.forwarded_headers;
    if names.is_empty() {
        return None;
    }
    let value = |name: &String| request.headers().get(name.as_str())?.to_str().ok();
    Some(Arc::new(names.iter().filter_map(|name| Some((name.as_str().into(), value(name)?.into()))).collect()))
}

/// The `Mcp-Session-Id` header; `Some("")` for one that is no text.
#[must_use]
pub fn session_id(request: &HttpRequest) -> Option<&str> {
    request.headers().get(&names::SESSION_ID).map(|v| v.to_str().unwrap_or_default())
}

/// Where a stream that broke off goes on.
#[must_use]
pub fn last_event_id(request: &HttpRequest) -> Option<&str> {
    request.headers().get(header::HeaderName::from_static("last-event-id")).map(|v| v.to_str().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use actix_web::{http::header::CONNECTION, test::TestRequest};

    use super::*;
    use crate::testing::Served;

    fn request(headers: &[(&str, &str)]) -> TestRequest {
        headers.iter().fold(TestRequest::post().uri("/mcp"), |request, header| request.append_header(*header))
    }

    #[test]
    fn a_message_is_of_the_era_that_it_says_and_a_handshake_stays_one() {
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
            // A version that nobody serves yet is stateless, and one that is none says nothing.
            ("tools/list", "", &[(VERSION, "2027-01-01")], true),
            ("tools/list", "", &[(VERSION, "soon")], false),
            ("tools/list", "", &[modern, legacy], false),
            // What else a handshake or a session's message carries does not matter, unless it says a version.
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
    fn of_what_cannot_be_read_is_spoken_in_the_revision_of_its_header() {
        let of = |headers: &[(&str, &str)]| assumed_revision(&request(headers).to_http_request());
        assert_eq!(of(&[("mcp-protocol-version", "2026-07-28")]), Revision::MODERN);
        assert_eq!(of(&[("mcp-protocol-version", "2024-11-05")]), Revision::V2024_11_05);
        assert_eq!(of(&[("mcp-protocol-version", "1")]), Revision::V2025_03_26);
        assert_eq!(of(&[]), Revision::V2025_03_26);
    }

    #[actix::test]
    async fn a_post_is_told_the_first_thing_that_is_wrong_with_it() {
        let served = Served::open("transports: { http: { max_body: 1KiB } }").await;
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
            let reply = served.ask(request(headers).set_payload(body.to_owned())).await;
            assert_eq!((reply.status.as_u16(), reply.code().as_deref()), (status, Some(code)), "{headers:?} {reply:?}");
        }
        served.endpoint.shutdown.cancel();
        let reply = served.ask(request(&[stranger, text])).await;
        assert_eq!((reply.status.as_u16(), reply.code().as_deref()), (503, Some("SHUTTING_DOWN")));
        assert!(reply.headers.get(CONNECTION).is_none());
    }
}
