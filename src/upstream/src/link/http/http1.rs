//! The HTTP/1.1 client on this thread's own kept-alive connections, with TLS and without. Nearly every call to a server
//! over HTTP uses it.
//!
//! A general client builds a map of headers for each request, and passes the request and its answer between the caller
//! and a task of the connection; awc also creates a codec, a timer and a task for each request. Here a connection keeps
//! its buffer, and the common part of the requests of one link is rendered once.
//!
//! That is why the gateway has its own client. By `scripts/bench client`, a request and its answer cost 6,700 to 8,900
//! instructions here, 19,400 with `hyper::client::conn` and a pool of a few lines, 25,900 with awc and 27,500 with the
//! client of `hyper_util`, and 5 µs more CPU with the leanest of them. A whole proxied call costs 55,000 to 60,000
//! instructions (`scripts/bench instructions`), so another client would add about 20 %.

use std::{
    cell::RefCell,
    io,
    mem::MaybeUninit,
    ops::Range,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::{Duration, Instant},
};

use actix_http::StatusCode;
use actix_web::rt::net::TcpStream;
use awc::http::{
    Method,
    header::{self, HeaderName},
};
use bytes::{Buf as _, Bytes, BytesMut};
use httparse::Status;
use tokio::{
    io::{AsyncRead as _, AsyncReadExt as _, AsyncWrite as _, AsyncWriteExt as _, ReadBuf},
    time::timeout,
};
use tokio_rustls::{TlsConnector, client::TlsStream};
use tokio_util::either::Either;

use super::{
    SESSION_HEADER,
    client::{ExtraHeaders, RequestHead, RequestTarget, put_field},
};
use crate::link::{LinkError, OutgoingRequest};
use countersign_net::{CONNECT_TIMEOUT, MAX_CONNECTION_AGE, tls::HTTP_2};
use countersign_provider::Permit;

/// A body of at most this many bytes is copied behind its head, so that both leave in one segment.
const MAX_COPIED_BODY: usize = 64 << 10;

/// The minimum capacity of the read buffer, in bytes.
const READ_BYTES: usize = 8 << 10;

/// The time for which an idle connection can be used again. Node and uvicorn close idle connections after 5 s. A
/// request on a connection that is being closed is lost, and must not be repeated if it writes.
const IDLE_TIMEOUT: Duration = Duration::from_secs(4);

/// The time for which an idle TLS connection can be used again. Proxies with TLS close connections later, and a
/// handshake costs more.
const TLS_IDLE_TIMEOUT: Duration = Duration::from_secs(30);

impl RequestTarget {
    /// Opens a connection; `None` if the server chose HTTP/2 for it.
    async fn connect(&self) -> Result<Option<BoxedConnection>, LinkError> {
        let timeout_error = |_| LinkError::Unreachable(format!("no connection within {} s", CONNECT_TIMEOUT.as_secs()));
        let to_unreachable = |error: io::Error| LinkError::Unreachable(error.to_string());
        let connecting = timeout(CONNECT_TIMEOUT, TcpStream::connect((&*self.host, self.port)));
        let tcp = connecting.await.map_err(timeout_error)?.map_err(to_unreachable)?;
        // A small message must not wait for the acknowledgement of the one before it.
        let _ = tcp.set_nodelay(true);
        let Some((trust, name)) = &self.tls else { return Ok(Some(Connection::new(Either::Left(tcp), IDLE_TIMEOUT))) };
        let handshake = TlsConnector::from(Arc::clone(&trust.config)).connect(name.clone(), tcp);
        let tls = timeout(CONNECT_TIMEOUT, handshake).await.map_err(timeout_error)?.map_err(to_unreachable)?;
        let is_http2 = tls.get_ref().1.alpn_protocol() == Some(HTTP_2);
        Ok((!is_http2).then(|| Connection::new(Either::Right(tls), TLS_IDLE_TIMEOUT)))
    }
}

/// A connection, boxed because each request moves it out of the pool and back.
type BoxedConnection = Box<Connection>;

struct Connection {
    io: Either<TcpStream, TlsStream<TcpStream>>,
    read_buffer: BytesMut,
    idle_timeout: Duration,
    closes_at: Instant,
    /// The time until which the connection can be used again: it is then neither idle for too long nor too old.
    usable_until: Instant,
}

impl Connection {
    fn new(io: Either<TcpStream, TlsStream<TcpStream>>, idle_timeout: Duration) -> BoxedConnection {
        let closes_at = Instant::now() + MAX_CONNECTION_AGE;
        let read_buffer = BytesMut::with_capacity(READ_BYTES);
        Box::new(Self { io, read_buffer, idle_timeout, closes_at, usable_until: closes_at })
    }

    /// Returns `true` if nothing has arrived since the last answer, not even the end of the connection.
    fn is_quiet(&mut self) -> bool {
        let mut byte = [0];
        let mut cx = Context::from_waker(Waker::noop());
        self.read_buffer.is_empty()
            && Pin::new(&mut self.io).poll_read(&mut cx, &mut ReadBuf::new(&mut byte)).is_pending()
    }

    /// Reads more input. Returns `false` at the end. Cancel-safe.
    async fn read_more(&mut self) -> io::Result<bool> {
        if self.read_buffer.capacity() - self.read_buffer.len() < READ_BYTES / 4 {
            self.read_buffer.reserve(READ_BYTES);
        }
        Ok(self.io.read_buf(&mut self.read_buffer).await? > 0)
    }

    /// Reads the head of the answer.
    async fn read_head(&mut self) -> Result<ResponseHead, LinkError> {
        loop {
            if let Some(head) = ResponseHead::parse(&mut self.read_buffer)? {
                return Ok(head);
            }
            if !self.read_more().await.map_err(|error| LinkError::Lost(error.to_string()))? {
                return Err(LinkError::Lost("the connection was closed before an answer".to_owned()));
            }
        }
    }
}

impl Drop for Connection {
    /// Closes TLS in order as far as that needs no waiting (RFC 9112, section 9.8).
    fn drop(&mut self) {
        if let Either::Right(tls) = &mut self.io {
            let _ = Pin::new(tls).poll_shutdown(&mut Context::from_waker(Waker::noop()));
        }
    }
}

thread_local! {
    /// Idle connections by [`RequestTarget::pool_key`], the most recently used last.
    static IDLE: RefCell<foldhash::HashMap<Arc<str>, Vec<BoxedConnection>>> = RefCell::default();
}

/// Takes an idle connection that can be used again.
fn take_idle(target: &RequestTarget) -> Option<BoxedConnection> {
    IDLE.with_borrow_mut(|idle| {
        let all = idle.get_mut(&*target.pool_key)?;
        let now = Instant::now();
        while let Some(mut connection) = all.pop() {
            if now < connection.usable_until && connection.is_quiet() {
                return Some(connection);
            }
        }
        None
    })
}

/// Keeps a connection for later requests.
fn keep_idle(pool_key: &Arc<str>, mut connection: BoxedConnection) {
    connection.usable_until = (Instant::now() + connection.idle_timeout).min(connection.closes_at);
    IDLE.with_borrow_mut(|idle| {
        // The task ends when there are no connections.
        if idle.is_empty() {
            actix_web::rt::spawn(close_expired_connections());
        }
        match idle.get_mut(&**pool_key) {
            Some(all) => all.push(connection),
            None => _ = idle.insert(Arc::clone(pool_key), vec![connection]),
        }
    });
}

/// Closes connections that were idle for too long, as long as there are idle connections.
async fn close_expired_connections() {
    loop {
        tokio::time::sleep(IDLE_TIMEOUT).await;
        let is_empty = IDLE.with_borrow_mut(|idle| {
            let now = Instant::now();
            idle.retain(|_, all| {
                all.retain(|connection| now < connection.usable_until);
                !all.is_empty()
            });
            idle.is_empty()
        });
        if is_empty {
            return;
        }
    }
}

/// Sends a request and waits for the head of its answer. The headers of `extra` override those of `head`. Returns
/// `None` if the server chose HTTP/2 for a new connection.
///
/// # Errors
/// [`LinkError::Unreachable`] without a connection, [`LinkError::Lost`] once something may have been sent.
pub(super) async fn send(
    target: &RequestTarget,
    head: &RequestHead,
    extra: &ExtraHeaders,
    body: &Bytes,
    permit: Option<&Permit>,
) -> Result<Option<ReceivedResponse>, LinkError> {
    let mut connection = match take_idle(target) {
        Some(connection) => connection,
        // Boxed, so that requests on an open connection do not reserve the memory of a TLS handshake.
        None => match Box::pin(target.connect()).await? {
            Some(connection) => connection,
            None => return Ok(None),
        },
    };
    let is_copied = body.len() <= MAX_COPIED_BODY;
    let mut out = if extra.iter().any(|(name, _)| head.headers.contains_key(name)) {
        head.render(extra)
    } else {
        let copied = if is_copied { body.len() } else { 0 };
        let mut out = BytesMut::with_capacity(target.rendered_head.len() + 256 + copied);
        out.extend_from_slice(&target.rendered_head);
        out
    };
    extra.iter().for_each(|(name, value)| put_field(&mut out, name.as_str().as_bytes(), value.as_bytes()));
    if head.method == Method::POST {
        put_field(&mut out, b"content-length", body.len().to_string().as_bytes());
    }
    out.extend_from_slice(b"\r\n");
    if is_copied {
        out.extend_from_slice(body);
    }
    OutgoingRequest::check_permit(permit)?;
    let sending = async {
        connection.io.write_all(&out).await?;
        if !is_copied {
            connection.io.write_all(body).await?;
        }
        connection.io.flush().await
    };
    sending.await.map_err(|error| LinkError::Lost(error.to_string()))?;
    let head = connection.read_head().await?;
    let mut answer = ReceivedResponse { head, source: Some((connection, Arc::clone(&target.pool_key))) };
    if answer.head.framing == Framing::Length(0) {
        answer.release_connection();
    }
    Ok(Some(answer))
}

/// An answer whose body arrives while it is read.
pub struct ReceivedResponse {
    pub head: ResponseHead,
    /// The connection and the key of its pool; `None` after the end of the body.
    source: Option<(BoxedConnection, Arc<str>)>,
}

impl ReceivedResponse {
    /// Returns the connection to its pool, if it can be used again.
    fn release_connection(&mut self) {
        if let Some((connection, pool_key)) = self.source.take()
            && self.head.is_reusable
            // Input after the answer was not requested.
            && connection.read_buffer.is_empty()
        {
            keep_idle(&pool_key, connection);
        }
    }

    /// Returns the next part of the body, or `None` at its end. Cancel-safe.
    ///
    /// # Errors
    /// Fails if the connection is lost, or the chunks are malformed.
    pub async fn chunk(&mut self) -> io::Result<Option<Bytes>> {
        let Some((connection, _)) = &mut self.source else { return Ok(None) };
        loop {
            match self.head.framing.take_chunk(&mut connection.read_buffer)? {
                Poll::Ready(Some(chunk)) => return Ok(Some(chunk)),
                Poll::Pending if connection.read_more().await? => {}
                Poll::Pending if self.head.framing != Framing::UntilClose => {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                Poll::Ready(None) | Poll::Pending => {
                    self.release_connection();
                    return Ok(None);
                }
            }
        }
    }
}

/// The maximum number of headers.
const MAX_HEADERS: usize = 96;
/// The maximum number of bytes of a head, of the line before a chunk, and of the trailers.
const MAX_HEAD_BYTES: usize = 128 << 10;

/// A header that callers read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    ContentType,
    ContentEncoding,
    SessionId,
}

impl Field {
    pub fn name(self) -> &'static HeaderName {
        match self {
            Self::ContentType => &header::CONTENT_TYPE,
            Self::ContentEncoding => &header::CONTENT_ENCODING,
            Self::SessionId => &SESSION_HEADER,
        }
    }
}

/// The head of an answer. `httparse` parses it in place, no map of headers is built, and only the fields that callers
/// read are remembered.
#[derive(Debug)]
pub struct ResponseHead {
    pub status: StatusCode,
    text: Bytes,
    /// The places of the values in `text`, in the order of [`Field`].
    fields: [Option<Range<usize>>; 3],
    pub framing: Framing,
    /// `true` if the connection can be used again after the body.
    pub is_reusable: bool,
}

impl ResponseHead {
    /// Takes a complete head from the beginning of `input`, and skips interim answers (RFC 9110, section 15.2). Returns
    /// `None` if more input is needed.
    ///
    /// # Errors
    /// [`LinkError::Protocol`] if the input is not HTTP.
    pub fn parse(input: &mut BytesMut) -> Result<Option<Self>, LinkError> {
        loop {
            let mut headers = [const { MaybeUninit::uninit() }; MAX_HEADERS];
            let mut response = httparse::Response::new(&mut []);
            let parsed = parser().parse_response_with_uninit_headers(&mut response, input, &mut headers);
            let end = match parsed.map_err(|error| not_http_error(&error.to_string()))? {
                Status::Complete(end) => end,
                Status::Partial if input.len() > MAX_HEAD_BYTES => return Err(not_http_error("its head is too long")),
                Status::Partial => return Ok(None),
            };
            let status = response.code.unwrap_or_default();
            if (100..200).contains(&status) && status != 101 {
                input.advance(end);
                continue;
            }
            let (mut fields, mut length, mut coding) = ([None, None, None], None, None);
            // HTTP/1.0 closes connections by default.
            let (mut is_reusable, mut closes) = (response.version == Some(1), false);
            for header in &*response.headers {
                let has_name = |name: &str| header.name.eq_ignore_ascii_case(name);
                let field = match header.name.len() {
                    10 if has_name("connection") => {
                        for option in header.value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii) {
                            closes |= option.eq_ignore_ascii_case(b"close");
                            is_reusable |= option.eq_ignore_ascii_case(b"keep-alive");
                        }
                        continue;
                    }
                    14 if has_name("content-length") => {
                        let new = parse_number(header.value)
                            .ok_or_else(|| not_http_error("its Content-Length is not a number"))?;
                        if length.replace(new).is_some() {
                            return Err(not_http_error("it has more than one Content-Length"));
                        }
                        continue;
                    }
                    17 if has_name("transfer-encoding") => {
                        if coding.replace(header.value).is_some() {
                            return Err(not_http_error("it has more than one Transfer-Encoding"));
                        }
                        continue;
                    }
                    12 if has_name("content-type") => Field::ContentType,
                    16 if has_name("content-encoding") => Field::ContentEncoding,
                    14 if has_name("mcp-session-id") => Field::SessionId,
                    _ => continue,
                };
                // An empty value may point outside of the input.
                let start = header.value.as_ptr().addr().checked_sub(input.as_ptr().addr());
                let start = start.filter(|_| !header.value.is_empty()).unwrap_or(0);
                fields[field as usize].get_or_insert(start..start + header.value.len());
            }
            let coding = coding.filter(|coding| !coding.eq_ignore_ascii_case(b"identity"));
            // RFC 9112, section 6.3.
            let framing = match (status, coding, length) {
                (204 | 304, ..) => Framing::Length(0),
                (_, Some(coding), _) if coding.eq_ignore_ascii_case(b"chunked") => Framing::ChunkSize,
                (_, Some(_), _) => return Err(not_http_error("its Transfer-Encoding is not `chunked`")),
                (_, None, Some(length)) => Framing::Length(length),
                // An accepted message has no body, and servers that omit the length keep the connection open.
                (202, None, None) if response.version == Some(1) => Framing::Length(0),
                // PHP and several Ruby servers end a body with the connection.
                (_, None, None) => Framing::UntilClose,
            };
            // A connection is not used again if the server may mean another end of the body (RFC 9112, section 6.1).
            let has_clear_end = match (coding, length) {
                (Some(_), length) => length.is_none() && response.version == Some(1) && !matches!(status, 204 | 304),
                (None, length) => status != 204 || length.unwrap_or(0) == 0,
            };
            is_reusable &= !closes && has_clear_end && framing != Framing::UntilClose;
            let status = StatusCode::from_u16(status).map_err(|error| not_http_error(&error.to_string()))?;
            return Ok(Some(Self { status, text: input.split_to(end).freeze(), fields, framing, is_reusable }));
        }
    }

    /// Returns the first header of that kind.
    pub fn header(&self, field: Field) -> Option<&[u8]> {
        self.fields[field as usize].clone().and_then(|range| self.text.get(range))
    }

    /// Returns the values of all headers of that name that are text. The head is parsed again, because few callers need
    /// other headers than [`Field`].
    pub fn header_values(&self, name: &HeaderName) -> Vec<String> {
        let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
        let mut response = httparse::Response::new(&mut headers);
        if parser().parse_response(&mut response, &self.text).is_err() {
            return Vec::new();
        }
        let matching_headers = response.headers.iter().filter(|header| header.name.eq_ignore_ascii_case(name.as_str()));
        matching_headers.filter_map(|header| String::from_utf8(header.value.to_vec()).ok()).collect()
    }
}

/// Returns the parser of heads, which accepts what other clients accept.
fn parser() -> httparse::ParserConfig {
    let mut config = httparse::ParserConfig::default();
    config.allow_spaces_after_header_name_in_responses(true);
    config
}

fn not_http_error(reason: &str) -> LinkError {
    LinkError::Protocol(format!("its answer is not HTTP: {reason}"))
}

/// Parses digits without a sign.
fn parse_number(text: &[u8]) -> Option<u64> {
    std::str::from_utf8(text).ok().filter(|text| !text.starts_with('+'))?.parse().ok()
}

/// The framing of the rest of a body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Framing {
    /// This many bytes are left.
    Length(u64),
    /// The size of the next chunk follows (RFC 9112, section 7.1).
    ChunkSize,
    /// This many bytes of the chunk are left, and a line end follows.
    Chunk(u64),
    /// Trailers follow the last chunk.
    Trailers,
    /// The body ends with the connection.
    UntilClose,
}

impl Framing {
    /// Takes the next part of the body from `input`, or `None` at its end. Returns `Pending` if more input is needed.
    ///
    /// # Errors
    /// Fails if the chunks are malformed.
    pub fn take_chunk(&mut self, input: &mut BytesMut) -> io::Result<Poll<Option<Bytes>>> {
        let malformed = || io::Error::new(io::ErrorKind::InvalidData, "its chunks are malformed");
        loop {
            match self {
                Self::Length(0) => return Ok(Poll::Ready(None)),
                _ if input.is_empty() => return Ok(Poll::Pending),
                Self::Length(left) | Self::Chunk(left @ 1..) => {
                    let count = usize::try_from(*left).map_or(input.len(), |left| left.min(input.len()));
                    *left -= count as u64;
                    return Ok(Poll::Ready(Some(input.split_to(count).freeze())));
                }
                Self::UntilClose => return Ok(Poll::Ready(Some(input.split().freeze()))),
                Self::Chunk(_) if input.len() < 2 => return Ok(Poll::Pending),
                Self::Chunk(_) if input.starts_with(b"\r\n") => {
                    input.advance(2);
                    *self = Self::ChunkSize;
                }
                // The parser accepts a line without a size.
                Self::ChunkSize if !input[0].is_ascii_hexdigit() => return Err(malformed()),
                Self::ChunkSize => match httparse::parse_chunk_size(input) {
                    Ok(Status::Complete((end, size))) => {
                        input.advance(end);
                        *self = if size == 0 { Self::Trailers } else { Self::Chunk(size) };
                    }
                    Ok(Status::Partial) if input.len() <= MAX_HEAD_BYTES => return Ok(Poll::Pending),
                    _ => return Err(malformed()),
                },
                Self::Trailers => match httparse::parse_headers(input, &mut [httparse::EMPTY_HEADER; MAX_HEADERS]) {
                    Ok(Status::Complete((end, _))) => {
                        input.advance(end);
                        *self = Self::Length(0);
                    }
                    Ok(Status::Partial) if input.len() <= MAX_HEAD_BYTES => return Ok(Poll::Pending),
                    _ => return Err(malformed()),
                },
                Self::Chunk(_) => return Err(malformed()),
            }
        }
    }
}

#[cfg(test)]
mod tests;
