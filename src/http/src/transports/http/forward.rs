//! Requests of a session that lives at another node of the same store: handed on there as they are, and answered with what
//! comes back, streams included. The session's id names its node.
//!
//! What is handed on says so with a word that only nodes of the store can know, bound to its session: it is not handed on
//! again. Who asks is authenticated at both.

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
use awc::{Client, Connector, error::WsClientError};
use bytes::{Bytes, BytesMut};
use futures_util::{Stream, StreamExt as _, stream};
use http::HeaderMap;
use serde_json::value::RawValue;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, ReadHalf};
use tokio_util::sync::CancellationToken;

use super::{
    answer,
    http2::OF_HTTP1,
    peers::{self, Other},
};
use crate::{connections::Connection, services::HttpServices};
use countersign_domain::changes::digest::PartHasher;
use countersign_protocol::{
    ErrorKind, McpError, Revision,
    envelope::{Message, Request},
    json::{member, string},
};
use countersign_store::Nodes;
use countersign_telemetry::RequestMetrics;

/// Says that another node has handed it on.
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
    word: HeaderValue,
}

/// Where that session lives, if that is at another node and it can be reached.
#[must_use]
pub fn elsewhere(services: &HttpServices, request: &HttpRequest, session: Option<&str>) -> Option<Elsewhere> {
    let (nodes, session) = (services.changes.nodes(), session?);
    if let Some(said) = request.headers().get(&FORWARDED)
        && word(&**nodes, session).as_ref() == Some(said)
    {
        if let Some(connection) = Connection::of(request) {
            connection.is_of_peer();
        }
        return None;
    }
    Elsewhere::of(nodes, services.config.transports.http.max_concurrent_streams, session)
}

/// By which a node knows that another one has handed this on.
fn word(nodes: &dyn Nodes, name: &str) -> Option<HeaderValue> {
    let mut hasher = PartHasher::new("countersign.forward.1");
    hasher.part(&nodes.secret()?).part(name.as_bytes());
    HeaderValue::from_str(&hasher.finish()).ok()
}

/// Where a request without a session belongs, if that is another node. One that listens for tasks of several nodes hears of
/// those of one.
#[must_use]
pub fn kept(services: &HttpServices, request: &HttpRequest, message: &Message<'_>) -> Option<Elsewhere> {
    services.changes.nodes().secret()?;
    let Message::Request(call) = message else { return None };
    // What names a session went by that: two names could send it back and forth.
    if super::mcp::session_id(request).is_some() {
        return None;
    }
    named(call).iter().find_map(|name| elsewhere(services, request, Some(name)))
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
    /// Where what has that name is, which says its node.
    fn of(nodes: &Arc<dyn Nodes>, streams: u32, name: &str) -> Option<Self> {
        let own = nodes.claimant()?.node;
        let node = name.split_once('.')?.0;
        if node == own {
            return None;
        }
        let peer = nodes.peer(node)?;
        let (url, word) = (peer.url.parse().ok()?, word(&**nodes, name)?);
        Some(Self { other: Other { nodes: Arc::clone(nodes), node: node.to_owned(), peer, streams }, url, word })
    }

    /// As [`kept`], of what came in by no HTTP request.
    #[must_use]
    pub fn keeps(nodes: &Arc<dyn Nodes>, streams: u32, call: &Request<'_>) -> Option<Self> {
        nodes.secret()?;
        named(call).iter().find_map(|name| Self::of(nodes, streams, name))
    }

    /// Says that it was handed on.
    pub fn speak(&self, headers: &mut HeaderMap) {
        headers.insert(FORWARDED.clone(), self.word.clone());
    }

    /// Has the other node answer.
    pub async fn answer(self, services: &HttpServices, request: &HttpRequest, payload: dev::Payload) -> HttpResponse {
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
            Err(_) if services.changes.nodes().peer(&self.other.node).is_none() => gone(),
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
        self.speak(headers);
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
        let connect = onward.header(FORWARDED.clone(), self.word.clone()).connect();
        let (head, framed) = match tokio::time::timeout(CONNECT, connect).await {
            Ok(connected) => connected.map_err(refused)?,
            Err(_) if services.changes.nodes().peer(&self.other.node).is_none() => return Err(left_behind()),
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
        while other.nodes.peer(&other.node).as_ref() == Some(&other.peer) {
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
