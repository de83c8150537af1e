//! Finds the node that owns what a request is about: by its headers before the body is read, or else by its message. Each request
//! is looked up once, and not at all if this is the only node.

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
use countersign_session::cluster::{Body, Cluster, FORWARDED, ForwardTarget};
use countersign_telemetry::RequestMetrics;

/// Another node that owns what a request is about.
pub struct RemoteOwner<'a> {
    cluster: &'a dyn Cluster,
    target: ForwardTarget,
}

impl RemoteOwner<'_> {
    /// Has the owner answer, by [`Cluster::forward`].
    pub async fn answer(self, request: &HttpRequest, body: Option<Body>) -> HttpResponse {
        match self.cluster.forward(self.target, to_forward(request, body)).await {
            Ok(answered) => {
                let (head, body) = answered.into_parts();
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
                RequestMetrics::get().error(error.kind);
                let status = if error.kind == ErrorKind::SessionNotFound { 404 } else { 503 };
                answer::with_status(status, None, &error, Revision::NEWEST_LEGACY)
            }
        }
    }

    /// Has the owner take a WebSocket up again, by [`Cluster::tunnel`].
    ///
    /// # Errors
    /// Why the session cannot be taken up there.
    pub async fn tunnel(
        self,
        request: &HttpRequest,
        payload: Payload,
        protocols: &[&str],
    ) -> Result<HttpResponse, McpError> {
        let (head, bytes) =
            self.cluster.tunnel(self.target, to_forward(request, Some(body(payload))), protocols).await?.into_parts();
        let mut response = actix_web_actors::ws::handshake_with_protocols(request, protocols)
            .map_err(|e| McpError::new(ErrorKind::InvalidRequest, e.to_string()))?;
        for (name, value) in &head.headers {
            response.insert_header((name.clone(), value.clone()));
        }
        Ok(response.streaming(bytes))
    }
}

/// Returns the body of a request that was not read yet.
#[must_use]
pub fn body(payload: Payload) -> Body {
    payload.map_err(Into::into).boxed_local()
}

/// Returns a request as a node forwards it.
fn to_forward(request: &HttpRequest, body: Option<Body>) -> http::Request<Option<Body>> {
    let mut forwarded = http::Request::new(body);
    *forwarded.method_mut() = request.method().clone();
    *forwarded.uri_mut() = request.uri().clone();
    for (name, value) in request.headers() {
        forwarded.headers_mut().append(name, value.clone());
    }
    forwarded
}

/// Returns whether another node has forwarded this request to this one, and marks its connection as one of a peer.
fn is_forwarded(cluster: &dyn Cluster, request: &HttpRequest) -> bool {
    let token = request.headers().get(HeaderName::from_static(FORWARDED));
    let is_forwarded = token.is_some_and(|token| cluster.is_peer(token.as_bytes()));
    if is_forwarded && let Some(connection) = Connection::for_request(request) {
        connection.mark_as_peer();
    }
    is_forwarded
}

/// Finds the node that owns a session, if it is another one.
///
/// # Errors
/// Nobody can tell at the moment whether the session lives.
pub async fn owner_of_session<'a>(
    endpoint: &'a McpEndpoint,
    request: &HttpRequest,
    session: Option<&str>,
) -> Result<Option<RemoteOwner<'a>>, McpError> {
    let (Some(cluster), Some(session)) = (endpoint.server.cluster.as_deref(), session) else { return Ok(None) };
    let target = cluster.owner_of_session(session, is_forwarded(cluster, request)).await?;
    Ok(target.map(|target| RemoteOwner { cluster, target }))
}

/// Finds the node that owns what a message names, if it is another one. A message of a session is only forwarded by its session,
/// because two names could send it back and forth.
///
/// # Errors
/// Nobody can tell at the moment which nodes live.
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
