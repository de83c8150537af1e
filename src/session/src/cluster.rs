//! What other nodes of the same store own: a session that lives there, a call that waits there for its client, the task of a
//! server. A request about such a thing is answered by its owner.
//!
//! A gateway that is the only one of its store has no [`Cluster`], and asks nobody.

use bytes::Bytes;
use futures_util::{future::LocalBoxFuture, stream::LocalBoxStream};

use countersign_exchange::{
    context::{Exchange, ForwardedHeaders, InFlight, RequestSlots, WireResponse},
    shared::Channel,
};
use countersign_protocol::{ErrorKind, McpError, envelope::Request, json::string, param_headers};
use countersign_routing::RouteTable;

/// The node that owns what a request is about.
pub struct ForwardTarget {
    pub node: String,
    /// The URL at which the node is reached.
    pub url: String,
    /// The fingerprint of the certificate that it shows there; empty without TLS.
    pub certificate: String,
}

/// The search for the owner; `None` where that is this node, or nobody knows it.
///
/// # Errors
/// Nobody can tell at the moment which nodes live.
pub type Search<'a> = LocalBoxFuture<'a, Result<Option<ForwardTarget>, McpError>>;

/// The header by which one node proves to another that it forwards a request.
pub const FORWARDED: &str = "countersign-forwarded";

/// A body, piece by piece.
pub type Body = LocalBoxStream<'static, Result<Bytes, Box<dyn std::error::Error>>>;

/// The other nodes of the store.
pub trait Cluster: Send + Sync {
    /// Returns whether a token in [`FORWARDED`] is one that another node made for this one. What a peer has forwarded is
    /// answered here.
    fn is_peer(&self, token: &[u8]) -> bool;

    /// Finds the owner of a session.
    fn owner_of_session<'a>(&'a self, session: &'a str, is_forwarded: bool) -> Search<'a>;

    /// Finds the owner of the parked call or the tasks that a request names; `None` where it names none. One that listens for
    /// tasks of several nodes hears of those of one.
    fn owner_of_call<'a>(&'a self, request: &Request<'a>) -> Option<Search<'a>>;

    /// Returns whether that session was another node's, which does not live any more.
    fn has_lost(&self, session: &str) -> bool;

    /// Has the owner answer an HTTP request; one without a body has none, rather than an empty one.
    ///
    /// # Errors
    /// `SESSION_NOT_FOUND` where the owner is gone, and `UPSTREAM_UNAVAILABLE` where it does not answer.
    fn forward<'a>(
        &'a self,
        target: ForwardTarget,
        http: http::Request<Option<Body>>,
    ) -> LocalBoxFuture<'a, Result<http::Response<Body>, McpError>>;

    /// Has the owner take a WebSocket up again. The bodies are its bytes in both directions; the answer is that of the owner's
    /// handshake.
    ///
    /// # Errors
    /// Why the session cannot be taken up there.
    fn tunnel<'a>(
        &'a self,
        target: ForwardTarget,
        http: http::Request<Option<Body>>,
        protocols: &'a [&'a str],
    ) -> LocalBoxFuture<'a, Result<http::Response<Body>, McpError>>;

    /// Has the owner answer a request that came by a connection with an outbox. What belongs to the request before its answer
    /// is sent meanwhile. `mirrored` are the headers of [`mirrored_headers`].
    ///
    /// # Errors
    /// Why there is no answer.
    fn call<'a>(
        &'a self,
        target: ForwardTarget,
        exchange: &'a Exchange,
        mirrored: ForwardedHeaders,
        request: &'a Request<'a>,
    ) -> LocalBoxFuture<'a, Result<WireResponse, McpError>>;
}

/// Finds the owner of what a request names that came by a connection with an outbox. One that came by HTTP was forwarded by
/// its transport.
pub fn owner_of<'a>(cluster: &'a dyn Cluster, exchange: &Exchange, request: &Request<'a>) -> Option<Search<'a>> {
    if !exchange.is_modern() || !matches!(exchange.session.channel, Channel::Outbox(_)) {
        return None;
    }
    cluster.owner_of_call(request)
}

/// Returns the headers that mirror arguments of a call, where its tool has some.
#[must_use]
pub fn mirrored_headers(table: &RouteTable, request: &Request<'_>) -> ForwardedHeaders {
    let params = request.outlined_params().object;
    let name = params.member("name").and_then(string).filter(|_| request.method == "tools/call");
    let route = name.and_then(|name| table.find_tool(&name));
    route.map_or_else(Vec::new, |route| param_headers::for_call(&route.param_headers, params.member("arguments")))
}

/// Waits for the owner's answer as for one of this node: until the client takes its request back, or the session ends.
pub async fn answer(
    cluster: &dyn Cluster,
    target: ForwardTarget,
    slots: &RequestSlots,
    exchange: &Exchange,
    mirrored: ForwardedHeaders,
    request: &Request<'_>,
) -> Option<WireResponse> {
    let revision = exchange.revision();
    let error = |error: &McpError| Some(WireResponse::error(Some(&request.id), error, revision));
    let mut in_flight = match InFlight::admit(slots, &exchange.session, &request.id) {
        Ok(in_flight) => in_flight,
        Err(refused) => return error(&refused),
    };
    let answer = tokio::select! {
        biased;
        answer = cluster.call(target, exchange, mirrored, request) => answer,
        () = in_flight.cancel.cancelled() => return None,
    };
    in_flight.is_answered = true;
    answer.map_or_else(|failed| error(&failed), Some)
}

/// Returns a body that was read already.
#[must_use]
pub fn whole_body(body: Bytes) -> Body {
    Box::pin(futures_util::stream::iter([Ok(body)]))
}

/// Returns the error of a session whose node is gone: what it held is, too.
#[must_use]
pub fn lost_session() -> McpError {
    McpError::new(
        ErrorKind::ResumeTooLate,
        "the gateway that held this session is gone, and its frames with it; connect again and initialize",
    )
}
