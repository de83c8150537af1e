//! Serves connections of HTTP/2 (RFC 9113). The server of actix-http is not used, because it announces no limit of streams, and
//! keeps event streams of clients that have gone: it does not notice the reset of a stream on which nothing is sent.
//!
//! Requests go to the same application as those of HTTP/1. A request is dropped when its stream is reset or its connection
//! ends, as on HTTP/1.

use std::{
    future::poll_fn,
    pin::{Pin, pin},
    rc::Rc,
    task::{Context, Poll, ready},
    time::{Duration, SystemTime},
};

use actix_http::{Request, Response, ResponseHead, header::HttpDate};
use actix_service::Service;
use actix_web::{
    HttpMessage as _, HttpResponse,
    body::{BodySize, MessageBody},
    dev::{Payload, ServiceResponse},
    error::PayloadError,
    http::{
        Method, StatusCode, Version,
        header::{
            CONNECTION, CONTENT_LENGTH, DATE, HeaderName, HeaderValue, TRANSFER_ENCODING, TryIntoHeaderValue, UPGRADE,
        },
    },
};
use bytes::Bytes;
use futures_util::{Stream, TryStreamExt as _};
use h2::{
    Ping, PingPong, Reason, RecvStream, SendStream,
    server::{Builder, SendResponse},
};
use tokio::time::{sleep, timeout};

use crate::{
    connections::{ByteStream, Connection},
    idle_frames::{GOAWAY_TIMEOUT, MeteredIo},
};
use countersign_config::HttpConfig;

/// The protocol name in the TLS handshake.
pub const ALPN: &[u8] = b"h2";

/// Number of bytes of bodies that a client may send before they are read, on one stream and on one connection.
pub const STREAM_WINDOW: u32 = 64 << 10;
pub const CONNECTION_WINDOW: u32 = 128 << 10;

/// Maximum number of streams that another gateway may reset before this node has accepted them. It holds for every client if
/// other gateways share the store; otherwise h2 allows 20.
const MAX_PENDING_RESETS: usize = 256;

/// Maximum size of the headers of one request.
const MAX_HEADER_BYTES: u32 = 64 << 10;

/// Number of bytes of a body that the connection is given at a time.
const CHUNK_BYTES: usize = 16 << 10;

/// Connection-specific headers, which HTTP/2 forbids (RFC 9113, 8.2.2).
pub const CONNECTION_HEADERS: [HeaderName; 5] = [
    CONNECTION,
    TRANSFER_ENCODING,
    UPGRADE,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
];

/// Serves HTTP/2 connections with an application.
pub struct Http2Service<S> {
    pub app: Rc<S>,
    pub http: HttpConfig,
    /// `true` if other gateways serve the same store, whose connections reset the streams of many clients.
    pub has_peers: bool,
}

impl<S, B> Http2Service<S>
where
    S: Service<Request, Response = ServiceResponse<B>, Error = HttpResponse> + 'static,
    B: MessageBody + 'static,
{
    /// Serves a connection until it ends. It accepts no more requests once the future `shutdown` ends.
    pub async fn serve(&self, io: ByteStream, connection: Rc<Connection>, shutdown: impl Future<Output = ()>) {
        let HttpConfig { max_concurrent_streams, header_timeout, keep_alive, .. } = self.http;
        let (io, exceeded) = MeteredIo::new(io, &connection);
        let mut builder = Builder::new();
        if self.has_peers {
            builder.max_pending_accept_reset_streams(MAX_PENDING_RESETS);
        }
        let handshake = builder
            .initial_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_concurrent_streams(max_concurrent_streams)
            .max_header_list_size(MAX_HEADER_BYTES)
            .handshake::<_, Bytes>(io);
        let mut h2 = match timeout(header_timeout, handshake).await {
            Ok(Ok(h2)) => h2,
            Ok(Err(error)) => return tracing::debug!(%error, "an HTTP/2 handshake failed"),
            Err(_) => return,
        };
        let ping_pong = h2.ping_pong();
        let mut unresponsive = pin!(wait_until_unresponsive(ping_pong, keep_alive));
        let mut shutdown = pin!(shutdown);
        let (mut is_shutting_down, mut has_peer_window) = (false, false);
        loop {
            if connection.is_peer() && !std::mem::replace(&mut has_peer_window, true) {
                // The streams belong to different clients, so a stream that is not read must not delay the other streams.
                h2.set_target_window_size(STREAM_WINDOW.saturating_mul(max_concurrent_streams).min(i32::MAX as u32));
            }
            let accepted = tokio::select! {
                accepted = h2.accept() => accepted,
                () = &mut unresponsive => return,
                () = exceeded.notified() => {
                    tracing::warn!(peer = ?connection.peer, "a connection is closed: its client sends too many HTTP/2 frames that do nothing");
                    h2.abrupt_shutdown(Reason::ENHANCE_YOUR_CALM);
                    let _ = timeout(GOAWAY_TIMEOUT, poll_fn(|cx| h2.poll_closed(cx))).await;
                    return;
                }
                () = &mut shutdown, if !is_shutting_down => {
                    is_shutting_down = true;
                    h2.graceful_shutdown();
                    continue;
                }
            };
            match accepted {
                Some(Ok((request, respond))) => {
                    let request = into_actix_request(request, &connection);
                    tokio::task::spawn_local(respond_to(Rc::clone(&self.app), request, respond));
                }
                Some(Err(error)) => return tracing::debug!(%error, "an HTTP/2 connection broke off"),
                None => return,
            }
        }
    }
}

/// Sends a ping at each interval, and returns when the other end leaves one unanswered for an interval.
pub async fn wait_until_unresponsive(ping_pong: Option<PingPong>, interval: Duration) {
    let Some(mut ping_pong) = ping_pong else { return std::future::pending().await };
    loop {
        sleep(interval).await;
        if !matches!(timeout(interval, ping_pong.ping(Ping::opaque())).await, Ok(Ok(_))) {
            return;
        }
    }
}

fn into_actix_request(request: http::Request<RecvStream>, connection: &Rc<Connection>) -> Request {
    let (parts, body) = request.into_parts();
    let mut request = Request::new();
    if !body.is_end_stream() {
        *request.payload() =
            Payload::Stream { payload: Box::pin(ReceivedBody(body).map_err(PayloadError::Http2Payload)) };
    }
    let head = request.head_mut();
    head.uri = parts.uri;
    head.method = parts.method;
    head.version = Version::HTTP_2;
    head.headers = parts.headers.into();
    head.peer_addr = connection.peer;
    request.extensions_mut().insert(Rc::clone(connection));
    request
}

/// The body of a request or a response. Reading it allows the other end to send more.
pub struct ReceivedBody(pub RecvStream);

impl Stream for ReceivedBody {
    type Item = Result<Bytes, h2::Error>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let chunk = ready!(self.0.poll_data(cx));
        Poll::Ready(chunk.map(|chunk| {
            let bytes = chunk?;
            self.0.flow_control().release_capacity(bytes.len())?;
            Ok(bytes)
        }))
    }
}

/// Sends a piece of a body as fast as the other end takes it. Returns `false` if the other end takes no more.
///
/// # Errors
/// The stream or its connection broke off.
pub async fn send_piece(stream: &mut SendStream<Bytes>, mut piece: Bytes) -> Result<bool, h2::Error> {
    while !piece.is_empty() {
        stream.reserve_capacity(piece.len().min(CHUNK_BYTES));
        let Some(capacity) = poll_fn(|cx| stream.poll_capacity(cx)).await else { return Ok(false) };
        let part = piece.split_to(capacity?.min(piece.len()));
        stream.send_data(part, false)?;
    }
    Ok(true)
}

/// Responds to a request, unless its client resets the stream.
async fn respond_to<S, B>(app: Rc<S>, request: Request, mut respond: SendResponse<Bytes>)
where
    S: Service<Request, Response = ServiceResponse<B>, Error = HttpResponse>,
    B: MessageBody,
{
    let has_no_body = request.head().method == Method::HEAD;
    let response = tokio::select! {
        biased;
        response = app.call(request) => response,
        _ = poll_fn(|cx| respond.poll_reset(cx)) => return,
    };
    match response {
        Ok(response) => send_response(response.into(), respond, has_no_body).await,
        Err(error) => send_response(error.into(), respond, has_no_body).await,
    }
}

async fn send_response<B: MessageBody>(response: Response<B>, mut respond: SendResponse<Bytes>, has_no_body: bool) {
    let size = response.body().size();
    let has_no_body = has_no_body || size.is_eof();
    let Ok(stream) = respond.send_response(response_head(response.head(), size), has_no_body) else { return };
    if !has_no_body && let Err(error) = send_body(response.into_body(), stream).await {
        tracing::debug!(error, "an HTTP/2 response broke off");
    }
}

fn response_head(head: &ResponseHead, size: BodySize) -> http::Response<()> {
    let mut response = http::Response::new(());
    *response.status_mut() = head.status;
    let headers = response.headers_mut();
    for (name, value) in
        head.headers.iter().filter(|(name, _)| !CONNECTION_HEADERS.contains(name) && *name != CONTENT_LENGTH)
    {
        headers.append(name, value.clone());
    }
    match size {
        BodySize::Sized(length) if head.status != StatusCode::NO_CONTENT => {
            headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
        }
        BodySize::Sized(_) | BodySize::None | BodySize::Stream => {}
    }
    if !headers.contains_key(DATE)
        && let Ok(date) = HttpDate::from(SystemTime::now()).try_into_value()
    {
        headers.insert(DATE, date);
    }
    response
}

/// Sends a body until its end, or until the client resets the stream.
async fn send_body(body: impl MessageBody, mut stream: SendStream<Bytes>) -> Result<(), String> {
    let mut body = pin!(body);
    loop {
        let next = poll_fn(|cx| match stream.poll_reset(cx) {
            Poll::Ready(_) => Poll::Ready(None),
            Poll::Pending => body.as_mut().poll_next(cx).map(Some),
        });
        let send_result = match next.await {
            None => return Ok(()),
            Some(None) => return stream.send_data(Bytes::new(), true).map_err(|error| error.to_string()),
            Some(Some(Ok(piece))) => send_piece(&mut stream, piece).await,
            Some(Some(Err(error))) => {
                stream.send_reset(Reason::INTERNAL_ERROR);
                return Err(error.into().to_string());
            }
        };
        if !send_result.map_err(|error| error.to_string())? {
            return Ok(());
        }
    }
}
