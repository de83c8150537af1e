//! Finds the node that owns the session, call or task of a request, by its headers before the body is read, or else by its
//! message. Each request is looked up at most once, and not at all if this is the only node.

use actix_web::{
    HttpRequest, HttpResponse,
    body::SizedStream,
    dev::Payload,
    http::header::{CONTENT_LENGTH, HeaderName},
};
use futures_util::{StreamExt as _, TryStreamExt as _};

use super::mcp::session_id;
use crate::endpoint::McpEndpoint;
use countersign_http::{answer, connections::Connection};
use countersign_protocol::{ErrorKind, McpError, Revision, envelope::Message};
use countersign_session::cluster::{Body, Cluster, FORWARDED_HEADER, ForwardTarget};
use countersign_telemetry::RequestMetrics;

/// Another node, which owns the session, call or task of a request.
pub struct RemoteOwner<'a> {
    cluster: &'a dyn Cluster,
    target: ForwardTarget,
}

impl RemoteOwner<'_> {
    /// Forwards the request to the owner with [`Cluster::forward`], and returns the response.
    pub async fn forward(self, request: &HttpRequest, body: Option<Body>) -> HttpResponse {
        match self.cluster.forward(self.target, to_forwarded_request(request, body)).await {
            Ok(forwarded) => {
                let (head, body) = forwarded.into_parts();
                let mut response = HttpResponse::build(head.status);
                let length = head.headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
                for (name, value) in head.headers.iter().filter(|(name, _)| *name != CONTENT_LENGTH) {
                    response.append_header((name.clone(), value.clone()));
                }
                match length {
                    Some(length) => response.body(SizedStream::new(length, body)),
                    None => response.streaming(body),
                }
            }
            Err(error) => {
                RequestMetrics::get().record_error(error.kind);
                let status = if error.kind == ErrorKind::SessionNotFound { 404 } else { 503 };
                answer::error_with_status(status, None, &error, Revision::NEWEST_LEGACY)
            }
        }
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
            .tunnel(self.target, to_forwarded_request(request, Some(body(payload))), protocols)
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
#[must_use]
pub fn body(payload: Payload) -> Body {
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
    let is_forwarded = token.is_some_and(|token| cluster.is_peer(token.as_bytes()));
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

/// Finds the node that owns the call or task that a message names. Returns `None` if no other node owns it. A message with a
/// session id is forwarded by its session alone, because two names could send it back and forth between nodes.
///
/// # Errors
/// Fails if it cannot be found out which nodes are alive.
pub async fn owner_of_message<'a>(
    endpoint: &'a McpEndpoint,
    request: &HttpRequest,
    message: &Message<'_>,
) -> Result<Option<RemoteOwner<'a>>, McpError> {
    let (Some(cluster), Message::Request(call), None) =
        (endpoint.server.cluster.as_deref(), message, session_id(request))
    else {
        return Ok(None);
    };
    if is_forwarded(cluster, request) {
        return Ok(None);
    }
    let Some(search) = cluster.owner_of_call(call) else { return Ok(None) };
    Ok(search.await?.map(|target| RemoteOwner { cluster, target }))
}
