//! Connections of HTTP/2 (RFC 9113). actix-http has a server of it that says nothing of how many streams a client may open, and
//! that does not notice a stream which its client has given up while nothing is sent on it: a stream of events would be kept
//! for nobody.
//!
//! Requests go to the same application as those of HTTP/1. Of a stream that is reset, and of a connection that ends, they are
//! dropped, as those of HTTP/1 are.

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
use futures_util::Stream;
use h2::{
    Ping, PingPong, Reason, RecvStream, SendStream,
    server::{Builder, SendResponse},
};
use tokio::time::{sleep, timeout};

use crate::{
    connections::Connection,
    idle_frames::{FAREWELL, Metered},
    io::Io,
};
use countersign_config::HttpConfig;

/// What clients ask for in the TLS handshake.
pub const ALPN: &[u8] = b"h2";

/// Bytes of bodies that a client may send before they were read: on one stream, and on one connection.
pub const STREAM_WINDOW: u32 = 64 << 10;
pub const CONNECTION_WINDOW: u32 = 128 << 10;

/// Streams that another gateway may have given up before they were looked at; others may have 20.
const RESETS_OF_PEER: usize = 256;

/// Bytes of the headers of one request.
const MAX_HEADERS: u32 = 64 << 10;

/// Bytes of an answer that are given to the connection at a time.
const CHUNK: usize = 16 << 10;

/// Headers that HTTP/2 does not have (RFC 9113, 8.2.2).
pub const OF_HTTP1: [HeaderName; 5] = [
    CONNECTION,
    TRANSFER_ENCODING,
    UPGRADE,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
];

/// Serves a connection until it ends. Once `ends` does, it takes no more requests.
pub async fn serve<S, B>(
    io: Io,
    connection: Rc<Connection>,
    app: Rc<S>,
    (http, has_peers): (&HttpConfig, bool),
    ends: impl Future<Output = ()>,
) where
    S: Service<Request, Response = ServiceResponse<B>, Error = HttpResponse> + 'static,
    B: MessageBody + 'static,
{
    let (io, flood) = Metered::new(io, &connection);
    let mut builder = Builder::new();
    if has_peers {
        // Another gateway gives up what many clients do, at a time.
        builder.max_pending_accept_reset_streams(RESETS_OF_PEER);
    }
    let handshake = builder
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_concurrent_streams(http.max_concurrent_streams)
        .max_header_list_size(MAX_HEADERS)
        .handshake::<_, Bytes>(io);
    let mut h2 = match timeout(http.header_timeout, handshake).await {
        Ok(Ok(h2)) => h2,
        Ok(Err(error)) => return tracing::debug!(%error, "a connection of HTTP/2 did not come about"),
        Err(_) => return,
    };
    let ping_pong = h2.ping_pong();
    let mut gone = pin!(gone(ping_pong, http.keep_alive));
    let mut ends = pin!(ends);
    let (mut ending, mut widened) = (false, false);
    loop {
        if connection.is_peers() && !std::mem::replace(&mut widened, true) {
            // Each stream of it is somebody else's, and one that is not read holds up none of the others.
            h2.set_target_window_size(STREAM_WINDOW.saturating_mul(http.max_concurrent_streams).min(i32::MAX as u32));
        }
        let accepted = tokio::select! {
            accepted = h2.accept() => accepted,
            () = &mut gone => return,
            () = flood.notified() => {
                tracing::warn!(peer = ?connection.peer, "a client of HTTP/2 floods its connection, which ends");
                h2.abrupt_shutdown(Reason::ENHANCE_YOUR_CALM);
                let _ = timeout(FAREWELL, poll_fn(|cx| h2.poll_closed(cx))).await;
                return;
            }
            () = &mut ends, if !ending => {
                ending = true;
                h2.graceful_shutdown();
                continue;
            }
        };
        match accepted {
            Some(Ok((request, respond))) => {
                let request = translate(request, &connection);
                tokio::task::spawn_local(answer(Rc::clone(&app), request, respond));
            }
            Some(Err(error)) => return tracing::debug!(%error, "a connection of HTTP/2 broke off"),
            None => return,
        }
    }
}

/// Until the other end does not answer any more when it is asked whether it is there.
pub async fn gone(ping_pong: Option<PingPong>, every: Duration) {
    let Some(mut ping_pong) = ping_pong else { return std::future::pending().await };
    loop {
        sleep(every).await;
        if !matches!(timeout(every, ping_pong.ping(Ping::opaque())).await, Ok(Ok(_))) {
            return;
        }
    }
}

fn translate(request: http::Request<RecvStream>, connection: &Rc<Connection>) -> Request {
    let (parts, body) = request.into_parts();
    let mut request = Request::new();
    if !body.is_end_stream() {
        *request.payload() = Payload::Stream { payload: Box::pin(Incoming(body)) };
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

/// The body of a request.
struct Incoming(RecvStream);

impl Stream for Incoming {
    type Item = Result<Bytes, PayloadError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let read = ready!(self.0.poll_data(cx));
        Poll::Ready(read.map(|read| {
            let bytes = read.map_err(PayloadError::Http2Payload)?;
            self.0.flow_control().release_capacity(bytes.len()).map_err(PayloadError::Http2Payload)?;
            Ok(bytes)
        }))
    }
}

/// Answers a request, unless its client gives it up.
async fn answer<S, B>(app: Rc<S>, request: Request, mut respond: SendResponse<Bytes>)
where
    S: Service<Request, Response = ServiceResponse<B>, Error = HttpResponse>,
    B: MessageBody,
{
    let bodiless = request.head().method == Method::HEAD;
    let answer = tokio::select! {
        biased;
        answer = app.call(request) => answer,
        _ = poll_fn(|cx| respond.poll_reset(cx)) => return,
    };
    match answer {
        Ok(answer) => send(answer.into(), respond, bodiless).await,
        Err(error) => send(error.into(), respond, bodiless).await,
    }
}

async fn send<B: MessageBody>(response: Response<B>, mut respond: SendResponse<Bytes>, bodiless: bool) {
    let size = response.body().size();
    let bodiless = bodiless || size.is_eof();
    let Ok(stream) = respond.send_response(head(response.head(), size), bodiless) else { return };
    if !bodiless && let Err(error) = send_body(response.into_body(), stream).await {
        tracing::debug!(error, "an answer over HTTP/2 broke off");
    }
}

fn head(head: &ResponseHead, size: BodySize) -> http::Response<()> {
    let mut response = http::Response::new(());
    *response.status_mut() = head.status;
    let headers = response.headers_mut();
    for (name, value) in head.headers.iter().filter(|(name, _)| !OF_HTTP1.contains(name) && *name != CONTENT_LENGTH) {
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

/// Whole, or what went wrong with it. A stream that its client gave up is no fault.
async fn send_body(body: impl MessageBody, mut stream: SendStream<Bytes>) -> Result<(), String> {
    let mut body = pin!(body);
    loop {
        let piece = poll_fn(|cx| match stream.poll_reset(cx) {
            Poll::Ready(_) => Poll::Ready(Piece::GivenUp),
            Poll::Pending => body.as_mut().poll_next(cx).map(Piece::Next),
        });
        let mut piece = match piece.await {
            Piece::GivenUp => return Ok(()),
            Piece::Next(None) => return stream.send_data(Bytes::new(), true).map_err(|error| error.to_string()),
            Piece::Next(Some(Ok(piece))) => piece,
            Piece::Next(Some(Err(error))) => {
                stream.send_reset(Reason::INTERNAL_ERROR);
                return Err(error.into().to_string());
            }
        };
        while !piece.is_empty() {
            stream.reserve_capacity(piece.len().min(CHUNK));
            match poll_fn(|cx| stream.poll_capacity(cx)).await {
                None => return Ok(()),
                Some(room) => {
                    let room = room.map_err(|error| error.to_string())?;
                    let part = piece.split_to(room.min(piece.len()));
                    stream.send_data(part, false).map_err(|error| error.to_string())?;
                }
            }
        }
    }
}

/// Of an answer's body.
enum Piece<T> {
    Next(T),
    GivenUp,
}
