//! The MCP endpoint. It checks requests of both eras, and finds the node that owns the session, the call or the task of each.
//!
//! The owner of a session is found by the headers, before the body is read, and the owner of a call or task by the message.
//! There is no search if this is the only node.

use std::sync::Arc;

use actix_web::{
    HttpRequest, HttpResponse,
    body::SizedStream,
    dev::Payload,
    http::{
        ConnectionType,
        header::{CONTENT_LENGTH, HeaderMap, HeaderName},
    },
    web,
};
use bytes::Bytes;
use futures_util::{StreamExt as _, TryStreamExt as _};

use super::{
    HeaderView, body_error_status, identify, identify_caller, modern, names,
    post::{LargeRequest, MirrorCheck, Post, handshake_session_id, request_id, session_id},
    read_body, refuse, refuse_message, session,
};
use crate::endpoint::McpEndpoint;
use countersign_http::{
    answer::{self, AcceptedMedia},
    connections::Connection,
};
use countersign_protocol::{
    ErrorKind, McpError, Revision,
    envelope::{self, EnvelopeError, Incoming, Message},
    headers, params,
};
use countersign_routing::RouteTable;
use countersign_runtime::is_large;
use countersign_session::{
    cluster::{Body, Cluster, FORWARDED_HEADER, ForwardTarget, whole_body},
    owned_messages::OwnedMessage,
};

/// `POST /mcp` (2026-07-28/basic/transports/streamable-http; 2025-11-25/basic/transports).
pub async fn post(request: HttpRequest, payload: web::Payload, endpoint: web::Data<McpEndpoint>) -> HttpResponse {
    let post = match admit(&request, &endpoint) {
        Ok(post) => post,
        Err((status, error)) => return answer::error_with_status(status, None, &error, assumed_revision(&request)),
    };
    answer_post(post, payload).await.unwrap_or_else(|error| {
        let mut response = refuse_message(body_error_status(&error), None, &error, assumed_revision(&request));
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
    let invalid = |reason| McpError::new(ErrorKind::InvalidRequest, reason);
    endpoint.check_open().map_err(|error| (503, error))?;
    let identity = identify(endpoint, request).map_err(|error| (error.kind.status(), error))?;
    if !answer::is_json(request) {
        return Err((415, invalid("the Content-Type must be application/json")));
    }
    let accepts = AcceptedMedia::from_request(request);
    if !accepts.json && !accepts.sse {
        return Err((406, invalid("the client must accept application/json and text/event-stream")));
    }
    Ok(Post { endpoint, request, identity, session_id: handshake_session_id(request), accepts, reservation: None })
}

/// Reads the body and answers its message, or forwards the request to the node that owns its session, call or task.
async fn answer_post(mut post: Post<'_>, payload: web::Payload) -> Result<HttpResponse, McpError> {
    let (endpoint, request) = (post.endpoint, post.request);
    if let Some(owner) = owner_of_session(endpoint, request, post.session_id).await? {
        return Ok(owner.forward(request, Some(unread_body(payload.into_inner()))).await);
    }
    let (body, reservation) = read_body(request, payload.into_inner(), endpoint).await?;
    post.reservation = reservation;
    let routes = &endpoint.server.routing.routes;
    if is_large(body.len()) {
        // Boxed, so that other requests do not reserve its memory.
        return Box::pin(answer_large(post, routes.load_full(), body)).await;
    }
    Ok(match envelope::parse(&body, &endpoint.server.limits.envelope) {
        Ok(Incoming::Single(message)) => match answer_by_owner(&post, &message, &body).await {
            Some(response) => response,
            None => answer_in_era(post, routes.load_full(), &message, None).await,
        },
        Ok(Incoming::Batch(_)) => session::answer_batch(post, routes.load_full(), body).await,
        Err(fault) => refuse_body(&post, &fault),
    })
}

/// Answers a large body, which is parsed on a thread that serves no connections.
async fn answer_large(post: Post<'_>, table: Arc<RouteTable>, body: Bytes) -> Result<HttpResponse, McpError> {
    let (endpoint, text) = (post.endpoint.clone(), body.clone());
    let headers =
        (table.headers.mirror_arguments || !table.was_complete_when_built()).then(|| post.request.headers().clone());
    let large_messages = Arc::clone(&endpoint.server.large_messages);
    let checked_table = Arc::clone(&table);
    let parse = move || async move {
        let Incoming::Single(message) = envelope::parse(&text, &endpoint.server.limits.envelope)? else {
            return Ok::<_, EnvelopeError>(None);
        };
        // The arguments are large, too, so they are compared with the headers here.
        let mirror_check = match (&message, &headers) {
            (Message::Request(request), Some(headers)) => {
                modern::check_param_headers(&checked_table, &HeaderView(headers), request)
            }
            _ => Ok(MirrorCheck::Passed),
        };
        Ok(Some((OwnedMessage::from_message(&message), mirror_check)))
    };
    let (message, mirror_check) = match large_messages.run(&post.identity.principal.name, parse).await? {
        Ok(Some(parsed)) => parsed,
        Ok(None) => return Ok(session::answer_batch(post, table, body).await),
        Err(fault) => return Ok(refuse_body(&post, &fault)),
    };
    if let Some(response) = answer_by_owner(&post, &message.as_message(), &body).await {
        return Ok(response);
    }
    drop(body);
    let large = match &message {
        OwnedMessage::Request(request) => Some(LargeRequest { request: Arc::clone(request), mirror_check }),
        OwnedMessage::Notification { .. } | OwnedMessage::Response { .. } => None,
    };
    Ok(answer_in_era(post, table, &message.as_message(), large).await)
}

/// Refuses a body that is not a message. Only such a body is checked for a `Content-Encoding`, because an encoded one is never
/// JSON.
fn refuse_body(post: &Post<'_>, fault: &EnvelopeError) -> HttpResponse {
    let revision = assumed_revision(post.request);
    if fault.error.kind == ErrorKind::Parse && answer::is_encoded(post.request) {
        return refuse_message(415, None, &answer::unsupported_encoding(), revision);
    }
    refuse_message(400, fault.id.as_ref(), &fault.error, revision)
}

/// Forwards a message to the node that owns the call or task that it names, and returns the response. Returns `None` if this
/// node answers, because no other node is the owner, or because the owner is gone with its calls and tasks.
async fn answer_by_owner(post: &Post<'_>, message: &Message<'_>, body: &Bytes) -> Option<HttpResponse> {
    let outcome = match owner_of_message(post, message).await {
        Ok(owner) => owner?.try_forward(post.request, Some(whole_body(body.clone()))).await,
        Err(error) => Err(error),
    };
    match outcome {
        Ok(response) => Some(response),
        Err(error) if error.kind == ErrorKind::SessionNotFound => None,
        Err(error) => Some(refuse_message(503, request_id(message), &error, assumed_revision(post.request))),
    }
}

/// Answers a message in its era.
async fn answer_in_era(
    post: Post<'_>,
    table: Arc<RouteTable>,
    message: &Message<'_>,
    large: Option<LargeRequest>,
) -> HttpResponse {
    let meta = match message {
        Message::Request(request) => request.meta(),
        message => params::parse_meta(message.params()),
    };
    match meta {
        Ok(meta) if is_modern(post.request.headers(), post.session_id, message, &meta) => {
            modern::serve(post, table, message, &meta, large).await
        }
        Ok(_) => session::answer_message(post, table, message, large).await,
        Err(error) => refuse_message(400, request_id(message), &error, assumed_revision(post.request)),
    }
}

/// Returns `true` for a message of the stateless era. A handshake and a message of a session belong to the handshake era, unless
/// they name a version.
fn is_modern(headers: &HeaderMap, session_id: Option<&str>, message: &Message<'_>, meta: &params::Meta<'_>) -> bool {
    let is_handshake = || {
        matches!(message, Message::Request(request) if request.method == "initialize")
            && !headers.contains_key(&names::PROTOCOL_VERSION)
    };
    if !meta.names_revision() && (session_id.is_some() || is_handshake()) {
        return false;
    }
    headers::is_modern(&HeaderView(headers), meta)
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
    let open_stream = async {
        endpoint.check_open()?;
        let identity = identify_caller(&endpoint, &request)?;
        Ok(match owner_of_session(&endpoint, &request, session_id(&request)).await? {
            Some(owner) => owner.forward(&request, None).await,
            None => session::open_stream(&request, &endpoint, &identity),
        })
    };
    open_stream.await.unwrap_or_else(|error: McpError| refuse(&error, assumed_revision(&request)))
}

/// `DELETE /mcp`: ends a handshake-era session.
pub async fn delete(request: HttpRequest, endpoint: web::Data<McpEndpoint>) -> HttpResponse {
    let end_session = async {
        let identity = identify(&endpoint, &request)?;
        Ok(match owner_of_session(&endpoint, &request, session_id(&request)).await? {
            Some(owner) => owner.forward(&request, None).await,
            None => session::end_session(&request, &endpoint, &identity).await,
        })
    };
    end_session.await.unwrap_or_else(|error: McpError| refuse(&error, assumed_revision(&request)))
}

/// Another node, which owns the session, call or task of a request.
pub struct RemoteOwner<'a> {
    cluster: &'a dyn Cluster,
    target: ForwardTarget,
}

impl RemoteOwner<'_> {
    /// Forwards the request of a session to the owner, and returns the response.
    pub async fn forward(self, request: &HttpRequest, body: Option<Body>) -> HttpResponse {
        self.try_forward(request, body).await.unwrap_or_else(|error| {
            let status = if error.kind == ErrorKind::SessionNotFound { 404 } else { 503 };
            refuse_message(status, None, &error, Revision::NEWEST_LEGACY)
        })
    }

    /// Forwards the request to the owner with [`Cluster::forward`], and returns the response.
    ///
    /// # Errors
    /// Those of [`Cluster::forward`].
    async fn try_forward(self, request: &HttpRequest, body: Option<Body>) -> Result<HttpResponse, McpError> {
        let forwarded = self.cluster.forward(self.target, to_forwarded_request(request, body)).await?;
        let (head, body) = forwarded.into_parts();
        let mut response = HttpResponse::build(head.status);
        let length = head.headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
        for (name, value) in head.headers.iter().filter(|(name, _)| *name != CONTENT_LENGTH) {
            response.append_header((name.clone(), value.clone()));
        }
        Ok(match length {
            Some(length) => response.body(SizedStream::new(length, body)),
            None => response.streaming(body),
        })
    }

    /// Connects a WebSocket to the owner, which resumes the session, with [`Cluster::tunnel`].
    ///
    /// # Errors
    /// Fails if the owner does not resume the session.
    pub async fn tunnel(
        self,
        request: &HttpRequest,
        payload: Payload,
        protocols: &[&str],
    ) -> Result<HttpResponse, McpError> {
        let (head, bytes) = self
            .cluster
            .tunnel(self.target, to_forwarded_request(request, Some(unread_body(payload))), protocols)
            .await?
            .into_parts();
        let mut response = actix_web_actors::ws::handshake_with_protocols(request, protocols)
            .map_err(|e| McpError::new(ErrorKind::InvalidRequest, e.to_string()))?;
        for (name, value) in &head.headers {
            response.insert_header((name.clone(), value.clone()));
        }
        Ok(response.streaming(bytes))
    }
}

/// Returns the unread body of a request.
pub fn unread_body(payload: Payload) -> Body {
    payload.map_err(Into::into).boxed_local()
}

/// Converts a request into the form in which nodes forward it.
fn to_forwarded_request(request: &HttpRequest, body: Option<Body>) -> http::Request<Option<Body>> {
    let mut forwarded = http::Request::new(body);
    *forwarded.method_mut() = request.method().clone();
    *forwarded.uri_mut() = request.uri().clone();
    for (name, value) in request.headers() {
        forwarded.headers_mut().append(name, value.clone());
    }
    forwarded
}

/// Returns `true` if another node has forwarded this request, and marks its connection as that of a peer.
fn is_forwarded(cluster: &dyn Cluster, request: &HttpRequest) -> bool {
    let token = request.headers().get(HeaderName::from_static(FORWARDED_HEADER));
    let is_forwarded = token.is_some_and(|token| cluster.is_valid_forward_token(token.as_bytes()));
    if is_forwarded && let Some(connection) = Connection::for_request(request) {
        connection.mark_as_peer();
    }
    is_forwarded
}

/// Finds the node that owns a session. Returns `None` if this node owns it or no other node does.
///
/// # Errors
/// Fails if it cannot be found out whether the session's node is alive.
pub async fn owner_of_session<'a>(
    endpoint: &'a McpEndpoint,
    request: &HttpRequest,
    session: Option<&str>,
) -> Result<Option<RemoteOwner<'a>>, McpError> {
    let (Some(cluster), Some(session)) = (endpoint.server.cluster.as_deref(), session) else { return Ok(None) };
    let target = cluster.owner_of_session(session, is_forwarded(cluster, request)).await?;
    Ok(target.map(|target| RemoteOwner { cluster, target }))
}

/// Finds the node that owns the call or task that a message names. Returns `None` if no other node owns it, or if the
/// message has a session id: [`owner_of_session`] decides then, because the session and the call could belong to different
/// nodes.
///
/// # Errors
/// Fails if it cannot be found out which nodes are alive.
async fn owner_of_message<'a>(post: &Post<'a>, message: &Message<'_>) -> Result<Option<RemoteOwner<'a>>, McpError> {
    let (Some(cluster), Message::Request(call), None) =
        (post.endpoint.server.cluster.as_deref(), message, post.session_id)
    else {
        return Ok(None);
    };
    if is_forwarded(cluster, post.request) {
        return Ok(None);
    }
    let Some(lookup) = cluster.owner_of_call(call) else { return Ok(None) };
    Ok(lookup.await?.map(|target| RemoteOwner { cluster, target }))
}

#[cfg(test)]
mod tests;
