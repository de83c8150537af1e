//! The other nodes of the same store. Each session, parked call and task of an upstream belongs to one node, to which the
//! requests about them are forwarded.
//!
//! A gateway that is the only one of its store has no [`Cluster`].

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::{future::LocalBoxFuture, stream::LocalBoxStream};

use countersign_exchange::context::{Exchange, WireResponse};
use countersign_protocol::{ErrorKind, McpError, envelope::Request, param_headers::MirroredHeaders};

/// The node that owns the subject of a request.
pub struct ForwardTarget {
    pub node: String,
    /// The URL at which the node is reached.
    pub url: String,
    /// The fingerprint of the node's TLS certificate; empty without TLS.
    pub certificate_fingerprint: String,
}

/// The lookup of the owner. It resolves to `None` if this node is the owner, or if the owner is unknown.
///
/// # Errors
/// Fails if the live nodes cannot be determined at the moment.
pub type OwnerLookup<'a> = LocalBoxFuture<'a, Result<Option<ForwardTarget>, McpError>>;

/// The header by which one node proves to another that it forwards a request.
pub const FORWARDED_HEADER: &str = "countersign-forwarded";

/// The body of an HTTP message as a stream of chunks.
pub type Body = LocalBoxStream<'static, Result<Bytes, Box<dyn std::error::Error>>>;

/// The other nodes of the store.
#[async_trait(?Send)]
pub trait Cluster: Send + Sync {
    /// Returns `true` if a peer made the token in [`FORWARDED_HEADER`] for this node. The caller then answers the
    /// request here, and never forwards it again.
    fn is_valid_forward_token(&self, token: &[u8]) -> bool;

    /// Finds the owner of a session. A request that a peer has forwarded (`is_forwarded`) finds no other node, so it is
    /// never forwarded again.
    ///
    /// # Errors
    /// Those of an [`OwnerLookup`].
    async fn owner_of_session(&self, session: &str, is_forwarded: bool) -> Result<Option<ForwardTarget>, McpError>;

    /// Finds the owner of the parked call or of the tasks that a request names. Returns `None` if the request names
    /// none of them. If the named tasks have several owners, only one of them gets the request, and this node is
    /// preferred.
    fn owner_of_call<'a>(&'a self, request: &Request<'a>) -> Option<OwnerLookup<'a>>;

    /// Returns `true` if the session belonged to another node that is no longer alive.
    fn is_session_lost(&self, session: &str) -> bool;

    /// Forwards an HTTP request to the owner and returns its response. `None` as the body means that the request has no
    /// body.
    ///
    /// # Errors
    /// `SESSION_NOT_FOUND` if the owner is gone, and `UPSTREAM_UNAVAILABLE` if it does not answer.
    async fn forward(
        &self,
        target: ForwardTarget,
        http: http::Request<Option<Body>>,
    ) -> Result<http::Response<Body>, McpError>;

    /// Forwards a client that resumes its WebSocket session to the owner. The bodies carry the bytes of both
    /// directions; the response is that of the owner's handshake.
    ///
    /// # Errors
    /// The reason why the session cannot be resumed there.
    async fn tunnel(
        &self,
        target: ForwardTarget,
        http: http::Request<Option<Body>>,
        protocols: &[&str],
    ) -> Result<http::Response<Body>, McpError>;

    /// Forwards a request that arrived over a connection with an outbox. Messages that belong to the request are sent
    /// to the client before the answer. `mirrored_headers` are those that mirror arguments of a call.
    ///
    /// # Errors
    /// The reason why the owner has not answered.
    async fn call(
        &self,
        target: ForwardTarget,
        exchange: &Exchange,
        mirrored_headers: MirroredHeaders,
        request: &Request<'_>,
    ) -> Result<WireResponse, McpError>;
}

/// Returns the stream for a body that has been read completely.
pub fn whole_body(body: Bytes) -> Body {
    Box::pin(futures_util::stream::iter([Ok(body)]))
}

/// Returns the error for a session whose node is gone. The frames that the node kept for the client are lost, too.
pub fn lost_session_error() -> McpError {
    McpError::new(
        ErrorKind::ResumeTooLate,
        "the gateway that held this session is gone, together with the frames that it kept; connect again and initialize",
    )
}
