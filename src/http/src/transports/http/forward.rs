//! Requests of a session that lives at another node of the same store: handed on there as they are, and answered with what
//! comes back, streams included. The session's id names its node.
//!
//! What is handed on says so with a word that only nodes of the store can know, bound to its session: it is not handed on
//! again. Who asks is authenticated at both.

use std::time::Duration;

use actix_codec::{AsyncRead, AsyncWrite};
use actix_web::{
    HttpRequest, HttpResponse,
    body::SizedStream,
    dev,
    http::{
        StatusCode, Uri,
        header::{self, HeaderName, HeaderValue},
        uri::{Authority, PathAndQuery},
    },
};
use awc::{Client, Connector, error::WsClientError};
use bytes::{Bytes, BytesMut};
use futures_util::{Stream, StreamExt as _, stream};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, ReadHalf};
use tokio_util::sync::CancellationToken;

use super::answer;
use crate::services::HttpServices;
use countersign_domain::changes::digest::PartHasher;
use countersign_protocol::{
    ErrorKind, McpError, Revision,
    envelope::Message,
    json::{member, string},
};
use countersign_telemetry::RequestMetrics;

/// Says that another node has handed it on.
static FORWARDED: HeaderName = HeaderName::from_static("countersign-forwarded");

/// For a connection to the other node.
const CONNECT: Duration = Duration::from_secs(3);
/// How often it is looked whether that one lives, while it does not answer.
const LOOK: Duration = Duration::from_millis(500);

/// Bytes of a WebSocket that are read at a time.
const CHUNK: usize = 16 * 1024;

/// Headers that are of one connection (RFC 9110, 7.6.1), or that each node says by itself. The other node has nobody's page
/// to guard against: that was done here.
const OWN: [HeaderName; 9] = [
    header::CONNECTION,
    header::HOST,
    header::ORIGIN,
    header::TRANSFER_ENCODING,
    header::CONTENT_LENGTH,
    header::UPGRADE,
    header::TE,
    header::TRAILER,
    header::EXPECT,
];

/// Another node, where the session lives.
pub struct Elsewhere {
    node: String,
    url: Uri,
    word: String,
}

thread_local! {
    /// Of each worker: connections to other nodes are kept alive. A stream has one of its own, so there is no limit.
    static CLIENT: Client = Client::builder()
        .disable_timeout()
        .disable_redirects()
        .connector(Connector::new().limit(0).timeout(CONNECT))
        .finish();
}

/// Where that session lives, if that is at another node and it can be reached.
#[must_use]
pub fn elsewhere(services: &HttpServices, request: &HttpRequest, session: Option<&str>) -> Option<Elsewhere> {
    let session = session?;
    let nodes = services.changes.nodes();
    let own = nodes.claimant()?.node;
    let node = session.split_once('.')?.0;
    if node == own {
        return None;
    }
    let mut hasher = PartHasher::new("countersign.forward.1");
    hasher.part(&nodes.secret()?).part(session.as_bytes());
    let word = hasher.finish();
    if request.headers().get(&FORWARDED).is_some_and(|said| said.as_bytes() == word.as_bytes()) {
        return None;
    }
    Some(Elsewhere { url: nodes.peer(node)?.parse().ok()?, node: node.to_owned(), word })
}

/// Where the call waits that this request takes up, if that is at another node: the state that it brings says so
/// ([`countersign_bridge::parked::ParkedCalls::state`]).
#[must_use]
pub fn parked(services: &HttpServices, request: &HttpRequest, message: &Message<'_>) -> Option<Elsewhere> {
    services.changes.nodes().secret()?;
    let state = member(message.params()?.get(), "requestState").and_then(string)?;
    elsewhere(services, request, Some(&state))
}

impl Elsewhere {
    /// Has the other node answer.
    pub async fn answer(self, services: &HttpServices, request: &HttpRequest, payload: dev::Payload) -> HttpResponse {
        let Some(uri) = self.uri(request) else { return gone() };
        let mut onward = CLIENT.with(|client| client.request(request.method().clone(), uri)).no_decompress();
        for (name, value) in request.headers() {
            if !OWN.contains(name) {
                onward = onward.append_header((name.clone(), value.clone()));
            }
        }
        let word = HeaderValue::from_str(&self.word).unwrap_or(HeaderValue::from_static(""));
        let onward = onward.insert_header((FORWARDED.clone(), word));
        let sent = async {
            if matches!(payload, dev::Payload::None) { onward.send().await } else { onward.send_stream(payload).await }
        };
        let alive = async {
            loop {
                tokio::time::sleep(LOOK).await;
                if services.changes.nodes().peer(&self.node).is_none() {
                    return;
                }
            }
        };
        let back = tokio::select! {
            back = sent => back,
            // Whether it was done, its client finds out when it initializes anew.
            () = alive => return gone(),
        };
        match back {
            Ok(back) => {
                let mut response = HttpResponse::build(back.status());
                for (name, value) in back.headers() {
                    if !OWN.contains(name) {
                        response.append_header((name.clone(), value.clone()));
                    }
                }
                let length =
                    back.headers().get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
                match length {
                    Some(length) => response.body(SizedStream::new(length, back)),
                    None => response.streaming(back),
                }
            }
            Err(error) => {
                tracing::warn!(node = self.node, %error, "a request could not be handed on to the node of its session");
                let error = McpError::new(
                    ErrorKind::UpstreamUnavailable,
                    "the gateway that holds this session does not answer; try again",
                );
                RequestMetrics::get().error(error.kind);
                answer::with_status(503, &error, Revision::NEWEST_LEGACY)
            }
        }
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
        let uri = self.uri(request).ok_or_else(left_behind)?;
        let mut onward = CLIENT.with(|client| client.ws(uri)).protocols(protocols);
        for (name, value) in request.headers() {
            if !OWN.contains(name) && !name.as_str().starts_with("sec-websocket-") {
                onward = onward.header(name.clone(), value.clone());
            }
        }
        let (head, framed) = onward.header(FORWARDED.clone(), self.word).connect().await.map_err(refused)?;
        let session = head.headers().get("mcp-session-id").cloned();
        let parts = framed.into_parts();
        let (theirs, ours) = tokio::io::split(parts.io);
        actix_web::rt::spawn(carry(payload, ours, services.shutdown.clone()));
        let mut response = actix_web_actors::ws::handshake_with_protocols(request, protocols)
            .map_err(|e| McpError::new(ErrorKind::InvalidRequest, e.to_string()))?;
        if let Some(session) = session {
            response.insert_header((HeaderName::from_static("mcp-session-id"), session));
        }
        let begun = stream::iter((!parts.read_buf.is_empty()).then(|| Ok(parts.read_buf.freeze())));
        Ok(response.streaming(begun.chain(read(theirs, services.shutdown.clone()))))
    }

    fn uri(&self, request: &HttpRequest) -> Option<Uri> {
        let path: PathAndQuery = request.uri().path_and_query()?.clone();
        let authority: Authority = self.url.authority()?.clone();
        Uri::builder().scheme(self.url.scheme_str()?).authority(authority).path_and_query(path).build().ok()
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
            says(ErrorKind::UpstreamUnavailable, "the gateway that holds this session does not answer; try again")
        }
    }
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
