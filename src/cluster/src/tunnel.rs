//! WebSockets of sessions that live at another node: taken up there, and carried as bytes.

use std::time::Duration;

use actix_codec::{AsyncRead, AsyncWrite};
use awc::error::{ConnectError, SendRequestError, WsClientError};
use bytes::{Bytes, BytesMut};
use futures_util::{Stream, StreamExt as _, stream};
use http::{Request, Response, StatusCode};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, ReadHalf};
use tokio_util::sync::CancellationToken;

use crate::{
    forward::{Forward, passes, silent},
    peers::{self, PeerNode},
};
use countersign_net::tls::HTTP_1_1;
use countersign_protocol::{ErrorKind, McpError};
use countersign_session::cluster::{Body, FORWARDED, lost_session};

/// Bounds connecting to the other node.
const CONNECT: Duration = Duration::from_secs(5);
/// How often it is looked whether the other node lives.
const LOOK: Duration = Duration::from_millis(500);

/// Names the session that was taken up.
const SESSION_ID: &str = "mcp-session-id";

/// Bytes of a WebSocket that are read at a time.
const CHUNK: usize = 16 * 1024;

/// Has the other node take a WebSocket up again, and carries its bytes both ways until `ends` does.
///
/// # Errors
/// Why the session cannot be taken up there.
pub async fn open(
    forward: Forward,
    ends: CancellationToken,
    request: Request<Option<Body>>,
    protocols: &[&str],
) -> Result<Response<Body>, McpError> {
    let (request, payload) = request.into_parts();
    let payload = payload.unwrap_or_else(|| stream::empty().boxed_local());
    let path = request.uri.path_and_query().cloned();
    let uri = path.and_then(|path| forward.uri(path)).ok_or_else(lost_session)?;
    let failed = |error: std::io::Error| McpError::new(ErrorKind::Internal, error.to_string());
    let tls = peers::config(&forward.peer.address, &[HTTP_1_1]).map_err(failed)?;
    let client = countersign_net::client(tls);
    let mut onward = client.ws(uri).protocols(protocols);
    for (name, value) in &request.headers {
        if passes(name) && !name.as_str().starts_with("sec-websocket-") {
            onward = onward.header(name.clone(), value.clone());
        }
    }
    let connect = onward.header(FORWARDED, forward.token().clone()).connect();
    let (head, framed) = match tokio::time::timeout(CONNECT, connect).await {
        Ok(connected) => connected.map_err(refused)?,
        Err(_) if forward.peer.is_gone() => return Err(lost_session()),
        Err(_) => return Err(silent()),
    };
    let mut response = Response::new(());
    if let Some(session) = head.headers().get(SESSION_ID) {
        response.headers_mut().insert(SESSION_ID, session.clone());
    }
    let parts = framed.into_parts();
    let (theirs, ours) = tokio::io::split(parts.io);
    tokio::task::spawn_local(carry(payload, ours, ends.clone()));
    tokio::task::spawn_local(watch(forward.peer, ends.clone()));
    let begun = stream::iter((!parts.read_buf.is_empty()).then(|| Ok(parts.read_buf.freeze())));
    Ok(response.map(|()| begun.chain(read(theirs, ends)).boxed_local()))
}

/// Ends a WebSocket that is carried when the other node is gone, and goes when the WebSocket does.
async fn watch(peer: PeerNode, ends: CancellationToken) {
    let gone = async {
        while !peer.is_gone() {
            tokio::time::sleep(LOOK).await;
        }
    };
    tokio::select! {
        () = gone => ends.cancel(),
        () = ends.cancelled() => {}
    }
}

/// Sends what comes from the client to the other node.
async fn carry(mut payload: Body, mut to: impl AsyncWrite + Unpin, shutdown: CancellationToken) {
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
) -> impl Stream<Item = Result<Bytes, Box<dyn std::error::Error>>> {
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

/// Returns why the other node does not take it up.
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
            lost_session()
        }
        other => {
            tracing::warn!(error = %other, "a WebSocket could not be forwarded to the node of its session");
            silent()
        }
    }
}
