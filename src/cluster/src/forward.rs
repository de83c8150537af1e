//! Forwards HTTP requests to another node, with a token that proves that they come from a node. Bodies, including streams, are
//! not changed.

use std::sync::Arc;

use futures_util::StreamExt as _;
use http::{
    HeaderMap, Request, Response, Uri,
    header::{self, HeaderName, HeaderValue},
    uri::PathAndQuery,
};
use subtle::ConstantTimeEq as _;

use crate::peers::{self, Peer};
use countersign_domain::changes::digest::PartHasher;
use countersign_http::http2::CONNECTION_HEADERS;
use countersign_protocol::{ErrorKind, McpError};
use countersign_session::cluster::{Body, FORWARDED_HEADER, ForwardTarget};
use countersign_store::{Nodes, nodes::PeerAddress};

/// Headers that are not forwarded, in addition to [`CONNECTION_HEADERS`]: other headers for one connection (RFC 9110,
/// 7.6.1), the length (`Forwarder::send` copies that of a response), and `Host` and `Origin`, which this node has
/// already checked.
const UNFORWARDED_HEADERS: [HeaderName; 6] =
    [header::HOST, header::ORIGIN, header::CONTENT_LENGTH, header::TE, header::TRAILER, header::EXPECT];

/// Returns `true` for a header that is forwarded in requests and responses.
pub fn is_forwarded_header(name: &HeaderName) -> bool {
    !UNFORWARDED_HEADERS.contains(name) && !CONNECTION_HEADERS.contains(name) && *name != FORWARDED_HEADER
}

/// Returns the headers of a request or response that are forwarded.
fn forwarded_headers(headers: &HeaderMap) -> HeaderMap {
    headers
        .iter()
        .filter(|(name, _)| is_forwarded_header(name))
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect()
}

/// Returns `true` if another node of the store created this token for this node.
pub fn is_valid_token(nodes: &dyn Nodes, presented: &[u8]) -> bool {
    let token = nodes.claimant().and_then(|own| forward_token(nodes, &own.node));
    token.is_some_and(|token| presented.ct_eq(token.as_bytes()).into())
}

/// Returns the token that proves to the target node that a peer forwarded the request.
fn forward_token(nodes: &dyn Nodes, target: &str) -> Option<HeaderValue> {
    let mut hasher = PartHasher::new("countersign.forward.2");
    hasher.add_part(&nodes.cluster_secret()?).add_part(target.as_bytes());
    HeaderValue::from_str(&hasher.finish()).ok()
}

/// Sends requests to one other node.
pub struct Forwarder {
    pub peer: Peer,
    /// The value of [`FORWARDED_HEADER`].
    pub token: HeaderValue,
}

impl Forwarder {
    /// Prepares the forwarding of requests to the target. Returns `None` if its URL is invalid or the store has no
    /// cluster secret.
    pub fn new(nodes: &Arc<dyn Nodes>, max_streams: u32, target: ForwardTarget) -> Option<Self> {
        let ForwardTarget { node: node_id, url, certificate_fingerprint } = target;
        let token = forward_token(&**nodes, &node_id)?;
        let (parsed, address) = (url.parse().ok()?, PeerAddress { url, certificate: certificate_fingerprint });
        Some(Self { peer: Peer { nodes: Arc::clone(nodes), node_id, address, url: parsed, max_streams }, token })
    }

    /// Adds the token that proves that a peer forwards the request.
    pub fn add_token(&self, headers: &mut HeaderMap) {
        headers.insert(FORWARDED_HEADER, self.token.clone());
    }

    /// Sends a request to the other node, and returns the response.
    ///
    /// # Errors
    /// `SESSION_NOT_FOUND` if the other node is gone, and `UPSTREAM_UNAVAILABLE` if it does not answer.
    pub async fn send(self, request: Request<Option<Body>>) -> Result<Response<Body>, McpError> {
        let (mut head, body) = request.into_parts();
        head.headers = forwarded_headers(&head.headers);
        let path = head.uri.path_and_query().cloned();
        head.uri = path.and_then(|path| self.uri(path)).ok_or_else(session_not_found)?;
        self.add_token(&mut head.headers);
        match peers::send_request(&self.peer, Request::from_parts(head, ()), body).await {
            Ok((mut head, body)) => {
                let length = head.headers.get(header::CONTENT_LENGTH).cloned();
                head.headers = forwarded_headers(&head.headers);
                head.headers.extend(length.map(|length| (header::CONTENT_LENGTH, length)));
                Ok(Response::from_parts(head, body.map(|piece| piece.map_err(Into::into)).boxed_local()))
            }
            // The client finds out whether the request was handled when it initializes again.
            Err(error) if error.is_connection_refused() || self.peer.is_gone() => Err(session_not_found()),
            Err(error) => {
                tracing::warn!(node = self.peer.node_id, %error, "a request could not be forwarded to the node of its session");
                Err(peer_unavailable())
            }
        }
    }

    /// Returns the URI of a path at the other node.
    pub fn uri(&self, path: PathAndQuery) -> Option<Uri> {
        let (scheme, authority) = (self.peer.url.scheme_str()?, self.peer.url.authority()?.clone());
        Uri::builder().scheme(scheme).authority(authority).path_and_query(path).build().ok()
    }
}

/// Returns the error for a node that is alive but does not answer, or that cannot be found because the store does not
/// answer.
pub fn peer_unavailable() -> McpError {
    McpError::new(
        ErrorKind::UpstreamUnavailable,
        "the gateway to which this request belongs does not answer; try again",
    )
}

/// Returns the error after which a client starts a new session (2025-11-25/basic/transports, "Session Management").
pub fn session_not_found() -> McpError {
    McpError::new(ErrorKind::SessionNotFound, "no such session; send `initialize` again")
}
