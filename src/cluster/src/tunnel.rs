//! Forwards WebSockets of sessions that another node owns. The other node resumes the session, and the bytes are copied in both
//! directions.

use std::time::Duration;

use actix_codec::AsyncWrite;
use awc::error::{ConnectError, SendRequestError, WsClientError};
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use http::{Request, Response, StatusCode};
use tokio::io::AsyncWriteExt as _;
use tokio_util::{io::ReaderStream, sync::CancellationToken};

use crate::{
    forward::{Forwarder, is_forwarded_header, peer_unavailable},
    peers::{self, Peer},
};
use countersign_net::tls::HTTP_1_1;
use countersign_protocol::{ErrorKind, McpError};
use countersign_session::cluster::{Body, FORWARDED_HEADER, lost_session_error};

/// Maximum time until the other node accepts the WebSocket and resumes the session.
const RESUME_TIMEOUT: Duration = Duration::from_secs(5);

/// The header with the id of the session.
const SESSION_ID: &str = "mcp-session-id";

/// Number of bytes of a WebSocket that are read at a time.
const CHUNK_BYTES: usize = 16 * 1024;

/// Asks the other node to resume the session of a WebSocket, and copies the bytes in both directions until one side is gone or
/// `shutdown` is cancelled.
///
/// # Errors
/// Fails if the other node does not resume the session.
pub async fn open(
    forwarder: Forwarder,
    shutdown: CancellationToken,
    request: Request<Option<Body>>,
    protocols: &[&str],
) -> Result<Response<Body>, McpError> {
    let (request, payload) = request.into_parts();
    let payload = payload.unwrap_or_else(|| stream::empty().boxed_local());
    let path = request.uri.path_and_query().cloned();
    let uri = path.and_then(|path| forwarder.uri(path)).ok_or_else(lost_session_error)?;
    let internal = |error: std::io::Error| McpError::new(ErrorKind::Internal, error.to_string());
    let tls = peers::tls_config(&forwarder.peer.address, &[HTTP_1_1]).map_err(internal)?;
    let client = countersign_net::client(tls);
    let mut handshake = client.ws(uri).protocols(protocols);
    for (name, value) in &request.headers {
        if is_forwarded_header(name) && !name.as_str().starts_with("sec-websocket-") {
            handshake = handshake.header(name.clone(), value.clone());
        }
    }
    let connect = handshake.header(FORWARDED_HEADER, forwarder.token.clone()).connect();
    let (head, framed) = match tokio::time::timeout(RESUME_TIMEOUT, connect).await {
        Ok(connected) => connected.map_err(to_resume_error)?,
        Err(_) if forwarder.peer.is_gone() => return Err(lost_session_error()),
        Err(_) => return Err(peer_unavailable()),
    };
    let mut response = Response::new(());
    if let Some(session) = head.headers().get(SESSION_ID) {
        response.headers_mut().insert(SESSION_ID, session.clone());
    }
    let parts = framed.into_parts();
    let (from_peer, to_peer) = tokio::io::split(parts.io);
    tokio::task::spawn_local(copy_to_peer(payload, to_peer, forwarder.peer, shutdown.clone()));
    let already_read = stream::iter((!parts.read_buf.is_empty()).then(|| Ok(parts.read_buf.freeze())));
    // A read error ends the stream, like the end of the input.
    let rest = ReaderStream::with_capacity(from_peer, CHUNK_BYTES)
        .take_while(|read| std::future::ready(read.is_ok()))
        .map_err(Into::into);
    Ok(response.map(|()| already_read.chain(rest.take_until(shutdown.cancelled_owned())).boxed_local()))
}

/// Sends the bytes of the client to the other node, until the client or the node is gone or `shutdown` is cancelled.
async fn copy_to_peer(mut payload: Body, mut to: impl AsyncWrite + Unpin, peer: Peer, shutdown: CancellationToken) {
    let copy = async {
        while let Some(Ok(chunk)) = payload.next().await {
            if to.write_all(&chunk).await.is_err() || to.flush().await.is_err() {
                break;
            }
        }
    };
    tokio::select! {
        () = copy => {}
        () = peer.wait_until_gone() => {}
        () = shutdown.cancelled() => {}
    }
    shutdown.cancel();
    // The other node sees that its client has disconnected, and keeps the session.
    let _ = to.shutdown().await;
}

/// Returns the error for the client whose session the other node does not resume.
fn to_resume_error(error: WsClientError) -> McpError {
    match error {
        WsClientError::InvalidResponseStatus(StatusCode::NOT_FOUND) => {
            McpError::new(ErrorKind::SessionNotFound, "no such session; connect again and initialize")
        }
        WsClientError::InvalidResponseStatus(StatusCode::GONE) => McpError::new(
            ErrorKind::ResumeTooLate,
            "the gateway no longer holds the frames after the requested number; connect again and initialize",
        ),
        WsClientError::InvalidResponseStatus(StatusCode::BAD_REQUEST) => McpError::new(
            ErrorKind::InvalidRequest,
            "this session has not sent as many frames as the client claims to have received",
        ),
        WsClientError::InvalidResponseStatus(StatusCode::SERVICE_UNAVAILABLE) => McpError::new(
            ErrorKind::Overloaded,
            "the gateway that holds this session takes no more connections; try again",
        ),
        WsClientError::SendRequest(SendRequestError::Connect(ConnectError::Io(error)))
            if error.kind() == std::io::ErrorKind::ConnectionRefused =>
        {
            lost_session_error()
        }
        other => {
            tracing::warn!(error = %other, "a WebSocket could not be forwarded to the node of its session");
            peer_unavailable()
        }
    }
}
