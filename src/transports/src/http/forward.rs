//! Requests of a session that lives at another node of the same store: handed on there as they are, and answered with what
//! comes back, streams included. The session's id names its node.
//!
//! What is handed on carries a token that only nodes of the store can make, bound to the node that it is for: that node answers
//! it, whatever else it names, and never hands it on again. Who asks is authenticated at both.

use std::{borrow::Cow, sync::Arc, time::Duration};

use actix_codec::{AsyncRead, AsyncWrite};
use actix_web::{
    HttpRequest, HttpResponse,
    body::SizedStream,
    dev,
    http::{
        StatusCode, Uri,
        header::{self, HeaderName, HeaderValue},
        uri::PathAndQuery,
    },
};
use awc::{
    Client, Connector,
    error::{ConnectError, SendRequestError, WsClientError},
};
use bytes::{Bytes, BytesMut};
use futures_util::{Stream, StreamExt as _, stream};
use http::HeaderMap;
use serde_json::value::RawValue;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, ReadHalf};
use tokio_util::sync::CancellationToken;

use super::peers::{self, Other};
use crate::services::HttpServices;
use countersign_auth::secret;
use countersign_domain::changes::digest::PartHasher;
use countersign_http::{answer, connections::Connection, http2::OF_HTTP1};
use countersign_protocol::{
    ErrorKind, McpError, Revision,
    envelope::{Message, Request},
    json::{member, string},
};
use countersign_store::Nodes;
use countersign_telemetry::RequestMetrics;

/// Carries [`forward_token`].
static FORWARDED: HeaderName = HeaderName::from_static("countersign-forwarded");

/// For a WebSocket's connection to the other node, until it is one.
const CONNECT: Duration = Duration::from_secs(5);
/// How often it is looked whether that one lives, of which a WebSocket is carried.
const LOOK: Duration = Duration::from_millis(500);

/// Bytes of a WebSocket that are read at a time.
const CHUNK: usize = 16 * 1024;

/// Headers that are of one connection (RFC 9110, 7.6.1), or that each node says by itself. The other node has nobody's page
/// to guard against: that was done here.
const OWN: [HeaderName; 6] =
    [header::HOST, header::ORIGIN, header::CONTENT_LENGTH, header::TE, header::TRAILER, header::EXPECT];

fn passes(name: &HeaderName) -> bool {
    !OWN.contains(name) && !OF_HTTP1.contains(name)
}

/// Another node, where the session lives, or what else is named.
pub struct Elsewhere {
    pub other: Other,
    url: Uri,
    token: HeaderValue,
}

/// Where that session lives, if that is at another node and it can be reached.
///
/// # Errors
/// What is answered where nobody can tell at the moment whether the session lives.
pub async fn elsewhere(
    services: &HttpServices,
    request: &HttpRequest,
    session: Option<&str>,
) -> Result<Option<Elsewhere>, McpError> {
    let nodes = services.changes.nodes();
    let (Some(session), Some(own)) = (session, nodes.claimant()) else { return Ok(None) };
    let was_forwarded = was_forwarded(&**nodes, &own.node, request);
    if node_of(session) == Some(&own.node) {
        // What the loss of a lease has ended is not found any more.
        drop(services.sessions_ended());
        return if nodes.live() > 1 { services.check_lease().map(|()| None) } else { Ok(None) };
    }
    if was_forwarded {
        return Ok(None);
    }
    Elsewhere::find(nodes, services.config.transports.http.max_concurrent_streams, &[session.into()]).await
}

/// The node that the name of a session or task begins with.
fn node_of(name: &str) -> Option<&str> {
    name.split_once('.').map(|(node, _)| node)
}

/// Whether another node has handed this request on to this one.
fn was_forwarded(nodes: &dyn Nodes, own: &str, request: &HttpRequest) -> bool {
    let (Some(shown), Some(token)) = (request.headers().get(&FORWARDED), forward_token(nodes, own)) else {
        return false;
    };
    let is_valid = secret::same(&secret::hash(shown.as_bytes()), &secret::hash(token.as_bytes()));
    if is_valid && let Some(connection) = Connection::of(request) {
        connection.is_of_peer();
    }
    is_valid
}

/// Returns the token that proves to the target node that a peer forwarded the request.
fn forward_token(nodes: &dyn Nodes, target: &str) -> Option<HeaderValue> {
    let mut hasher = PartHasher::new("countersign.forward.2");
    hasher.part(&nodes.secret()?).part(target.as_bytes());
    HeaderValue::from_str(&hasher.finish()).ok()
}

/// Where a request without a session belongs, if that is another node. One that listens for tasks of several nodes hears of
/// those of one.
///
/// # Errors
/// What is answered where nobody can tell at the moment which nodes live.
pub async fn kept(
    services: &HttpServices,
    request: &HttpRequest,
    message: &Message<'_>,
) -> Result<Option<Elsewhere>, McpError> {
    let nodes = services.changes.nodes();
    let (Message::Request(call), Some(own)) = (message, nodes.claimant()) else { return Ok(None) };
    // What names a session went by that: two names could send it back and forth.
    if super::mcp::session_id(request).is_some() || was_forwarded(&**nodes, &own.node, request) {
        return Ok(None);
    }
    Elsewhere::find(nodes, services.config.transports.http.max_concurrent_streams, &named(call)).await
}

/// What a request names that one node keeps: the call that waits there and that it takes up, as the state says that it brings
/// ([`countersign_bridge::parked::ParkedCalls::state`]), or the tasks of servers
/// ([`countersign_bridge::tasks::table::Task::alias`]).
fn named<'a>(call: &Request<'a>) -> Vec<Cow<'a, str>> {
    let Some(params) = call.params.map(RawValue::get) else { return Vec::new() };
    let text = |name| member(params, name).and_then(string);
    if let Some(state) = text("requestState") {
        return vec![state];
    }
    match &*call.method {
        "tasks/get" | "tasks/update" | "tasks/cancel" => text("taskId").into_iter().collect(),
        "subscriptions/listen" => {
            let named = member(params, "notifications").and_then(|notifications| member(notifications, "taskIds"));
            named.and_then(|named| serde_json::from_str(named).ok()).unwrap_or_default()
        }
        _ => Vec::new(),
    }
}

impl Elsewhere {
    fn at(nodes: &Arc<dyn Nodes>, streams: u32, node: &str) -> Option<Self> {
        let peer = nodes.peer(node)?;
        let (url, token) = (peer.url.parse().ok()?, forward_token(&**nodes, node)?);
        Some(Self { other: Other { nodes: Arc::clone(nodes), node: node.to_owned(), peer, streams }, url, token })
    }

    /// Where the first of what has these names is, each of which says its node, and which is not here.
    async fn find(nodes: &Arc<dyn Nodes>, streams: u32, names: &[Cow<'_, str>]) -> Result<Option<Self>, McpError> {
        let Some(own) = nodes.claimant() else { return Ok(None) };
        let others = || names.iter().filter_map(|name| node_of(name)).filter(|node| *node != own.node);
        let known = || others().find_map(|node| Self::at(nodes, streams, node));
        if others().next().is_none() {
            return Ok(None);
        }
        if let Some(found) = known() {
            return Ok(Some(found));
        }
        // Of a node that has just joined this one has not heard yet.
        nodes.refresh().await.map_err(|error| {
            tracing::warn!(%error, "whether the node of a session lives cannot be told");
            silent()
        })?;
        Ok(known())
    }

    /// As [`kept`], of what came in by no HTTP request; `None` for what names nothing that another node may keep.
    #[must_use]
    pub fn keeps<'a>(
        nodes: &'a Arc<dyn Nodes>,
        streams: u32,
        call: &Request<'a>,
    ) -> Option<impl Future<Output = Result<Option<Self>, McpError>> + use<'a>> {
        nodes.secret()?;
        let names = named(call);
        (!names.is_empty()).then_some(async move { Self::find(nodes, streams, &names).await })
    }

    /// Says that it was handed on.
    pub fn prove(&self, headers: &mut HeaderMap) {
        headers.insert(FORWARDED.clone(), self.token.clone());
    }

    /// Has the other node answer.
    pub async fn answer(self, request: &HttpRequest, payload: dev::Payload) -> HttpResponse {
        let Some(onward) = self.onward(request) else { return gone() };
        match peers::ask(&self.other, onward, payload).await {
            Ok((head, body)) => {
                let mut response = HttpResponse::build(head.status);
                for (name, value) in head.headers.iter().filter(|(name, _)| passes(name)) {
                    response.append_header((name.clone(), value.clone()));
                }
                let length =
                    head.headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
                match length {
                    Some(length) => response.body(SizedStream::new(length, body)),
                    None => response.streaming(body),
                }
            }
            // Whether it was done, its client finds out when it initializes anew.
            Err(error) if error.is_refused() || self.other.is_gone() => gone(),
            Err(error) => {
                tracing::warn!(node = self.other.node, %error, "a request could not be handed on to the node of its session");
                let error = silent();
                RequestMetrics::get().error(error.kind);
                answer::with_status(503, &error, Revision::NEWEST_LEGACY)
            }
        }
    }

    /// The request as the other node gets it.
    fn onward(&self, request: &HttpRequest) -> Option<http::Request<()>> {
        let mut onward = http::Request::new(());
        *onward.method_mut() = request.method().clone();
        *onward.uri_mut() = self.uri(request.uri().path_and_query()?.clone())?;
        let headers = onward.headers_mut();
        for (name, value) in request.headers().iter().filter(|(name, _)| passes(name)) {
            headers.append(name, value.clone());
        }
        self.prove(headers);
        Some(onward)
    }

    /// Has the other node take a WebSocket up again, and carries its bytes both ways.
    ///
    /// # Errors
    /// Why the session cannot be taken up there.
    pub async fn tunnel(
        self,
        services: &HttpServices,
        request: &HttpRequest,
        payload: dev::Payload,
        protocols: &[&str],
    ) -> Result<HttpResponse, McpError> {
        let path = request.uri().path_and_query().cloned();
        let uri = path.and_then(|path| self.uri(path)).ok_or_else(left_behind)?;
        let mut connector = Connector::new().timeout(CONNECT).handshake_timeout(CONNECT);
        if uri.scheme_str() == Some("https") {
            let failed = |error: std::io::Error| McpError::new(ErrorKind::Internal, error.to_string());
            connector = connector.rustls_0_23(peers::config(&self.other.peer, &[b"http/1.1"]).map_err(failed)?);
        }
        let client = Client::builder().connector(connector).disable_timeout().disable_redirects().finish();
        let mut onward = client.ws(uri).protocols(protocols);
        for (name, value) in request.headers() {
            if passes(name) && *name != FORWARDED && !name.as_str().starts_with("sec-websocket-") {
                onward = onward.header(name.clone(), value.clone());
            }
        }
        let connect = onward.header(FORWARDED.clone(), self.token.clone()).connect();
        let (head, framed) = match tokio::time::timeout(CONNECT, connect).await {
            Ok(connected) => connected.map_err(refused)?,
            Err(_) if self.other.is_gone() => return Err(left_behind()),
            Err(_) => return Err(silent()),
        };
        let session = head.headers().get("mcp-session-id").cloned();
        let parts = framed.into_parts();
        let (theirs, ours) = tokio::io::split(parts.io);
        // Until this gateway ends, or the other one.
        let ends = services.shutdown.child_token();
        actix_web::rt::spawn(carry(payload, ours, ends.clone()));
        actix_web::rt::spawn(watch(self.other, ends.clone()));
        let mut response = actix_web_actors::ws::handshake_with_protocols(request, protocols)
            .map_err(|e| McpError::new(ErrorKind::InvalidRequest, e.to_string()))?;
        if let Some(session) = session {
            response.insert_header((HeaderName::from_static("mcp-session-id"), session));
        }
        let begun = stream::iter((!parts.read_buf.is_empty()).then(|| Ok(parts.read_buf.freeze())));
        Ok(response.streaming(begun.chain(read(theirs, ends))))
    }

    /// That path there.
    pub fn uri(&self, path: PathAndQuery) -> Option<Uri> {
        let (scheme, authority) = (self.url.scheme_str()?, self.url.authority()?.clone());
        Uri::builder().scheme(scheme).authority(authority).path_and_query(path).build().ok()
    }
}

/// Ends a WebSocket that is carried when the other node is gone, and goes when the WebSocket does.
async fn watch(other: Other, ends: CancellationToken) {
    let gone = async {
        while !other.is_gone() {
            tokio::time::sleep(LOOK).await;
        }
    };
    tokio::select! {
        () = gone => ends.cancel(),
        () = ends.cancelled() => {}
    }
}

/// What comes from the client, to the other node.
async fn carry(mut payload: dev::Payload, mut to: impl AsyncWrite + Unpin, shutdown: CancellationToken) {
    loop {
        let chunk = tokio::select! {
            chunk = payload.next() => chunk,
            () = shutdown.cancelled() => None,
        };
        let Some(Ok(chunk)) = chunk else { break };
        if to.write_all(&chunk).await.is_err() || to.flush().await.is_err() {
            break;
        }
    }
    // The other node hears that its client is away, and holds the session.
    let _ = to.shutdown().await;
    shutdown.cancel();
}

fn read<S: AsyncRead + Unpin>(
    from: ReadHalf<S>,
    shutdown: CancellationToken,
) -> impl Stream<Item = std::io::Result<Bytes>> {
    stream::unfold((from, shutdown), |(mut from, shutdown)| async move {
        let mut chunk = BytesMut::with_capacity(CHUNK);
        let read = tokio::select! {
            read = from.read_buf(&mut chunk) => read,
            () = shutdown.cancelled() => Ok(0),
        };
        match read {
            Ok(0) | Err(_) => None,
            Ok(_) => Some((Ok(chunk.freeze()), (from, shutdown))),
        }
    })
}

/// Of a session whose node is gone: what it held is, too.
pub fn left_behind() -> McpError {
    McpError::new(
        ErrorKind::ResumeTooLate,
        "the gateway that held this session is gone, and its frames with it; connect again and initialize",
    )
}

/// Why the other node takes it up no more.
fn refused(error: WsClientError) -> McpError {
    let says = |kind, text| McpError::new(kind, text);
    match error {
        WsClientError::InvalidResponseStatus(StatusCode::NOT_FOUND) => {
            says(ErrorKind::SessionNotFound, "no such session; connect again and initialize")
        }
        WsClientError::InvalidResponseStatus(StatusCode::GONE) => says(
            ErrorKind::ResumeTooLate,
            "the gateway no longer holds the frames since then; connect again and initialize",
        ),
        WsClientError::InvalidResponseStatus(StatusCode::BAD_REQUEST) => {
            says(ErrorKind::InvalidRequest, "this session has not sent so many frames yet")
        }
        WsClientError::InvalidResponseStatus(StatusCode::SERVICE_UNAVAILABLE) => {
            says(ErrorKind::Overloaded, "the gateway that holds this session takes no more connections; try again")
        }
        WsClientError::SendRequest(SendRequestError::Connect(ConnectError::Io(error)))
            if error.kind() == std::io::ErrorKind::ConnectionRefused =>
        {
            left_behind()
        }
        other => {
            tracing::warn!(error = %other, "a WebSocket could not be handed on to the node of its session");
            silent()
        }
    }
}

/// Of another gateway that ought to be there.
pub fn silent() -> McpError {
    McpError::new(ErrorKind::UpstreamUnavailable, "the gateway that holds this session does not answer; try again")
}

/// Whether that session was another node's, which does not live.
#[must_use]
pub fn is_left_behind(services: &HttpServices, session: &str) -> bool {
    let nodes = services.changes.nodes();
    let (Some(own), Some((node, _))) = (nodes.claimant(), session.split_once('.')) else { return false };
    node != own.node && nodes.peer(node).is_none()
}

/// 2025-11-25/basic/transports, "Session Management": whoever hears this begins a new session.
fn gone() -> HttpResponse {
    let error = McpError::new(ErrorKind::SessionNotFound, "no such session; send `initialize` again");
    RequestMetrics::get().error(error.kind);
    answer::with_status(404, &error, Revision::NEWEST_LEGACY)
}
