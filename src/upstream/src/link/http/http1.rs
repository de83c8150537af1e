//! Requests of HTTP/1.1, on this thread's own kept-alive connections, with TLS and without: the way of nearly every call to a
//! server over HTTP.
//!
//! A library's client makes a map of headers for each request, and passes the request and its answer between the caller
//! and a task of the connection's own; awc makes a codec, a timer and a task for each request. Here a connection keeps its
//! codec and its buffers, and what requests of one link have in common is rendered once.
//!
//! That is why this client is ours. By `scripts/bench client`, a request and its answer cost 6,700 to 8,900 instructions
//! here, 19,400 with `hyper::client::conn` and a pool of a few lines, 25,900 with awc and 27,500 with `hyper_util`'s client,
//! and with the leanest of them 5 µs more CPU. A whole proxied call costs 66,000 to 71,000 instructions (`scripts/bench
//! instructions`): it would take 17 % more. What HTTP means stays with a library all the same (`actix_http::h1`), which
//! reads every head that is not as nearly all are, and every chunked body.

use std::{
    cell::{Cell, RefCell},
    collections::HashMap,
    future::poll_fn,
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker, ready},
    time::{Duration, Instant},
};

use actix_http::{
    ServiceConfig, Version,
    error::{ParseError, PayloadError},
    h1::{ClientCodec, ClientPayloadCodec, MessageType},
    header::HeaderMap,
};
use actix_web::rt::net::TcpStream;
use awc::http::{
    Method, Uri,
    header::{self, HeaderName, HeaderValue},
};
use bytes::{Buf as _, Bytes, BytesMut};
use futures_util::Stream;
use rustls::pki_types::ServerName;
use tokio::{
    io::{AsyncRead, AsyncWrite as _, AsyncWriteExt as _, ReadBuf},
    time::timeout,
};
use tokio_rustls::{TlsConnector, client::TlsStream};
use tokio_util::{codec::Decoder, either::Either, io::poll_read_buf};

use super::{
    client::{self, Extra},
    head::{self, Beginning, Head},
    trust::Trust,
};
use crate::link::{LinkError, Outgoing};
use countersign_net::{CONNECT_TIMEOUT, LIFETIME, tls::HTTP_2};
use countersign_provider::Permit;

/// A body up to this length is copied behind its head, so that both leave in one segment.
const COPIED: usize = 64 << 10;

/// What is read at a time.
const READ: usize = 8 << 10;

/// How long a connection may be idle and still be used again. Node and uvicorn close theirs after 5 s: a request that
/// meets such an end is lost and must not be repeated if it writes.
const IDLE: Duration = Duration::from_secs(4);

/// The same with TLS. Proxies that speak it close later, and a handshake costs more.
const IDLE_TLS: Duration = Duration::from_secs(30);

/// Where requests go, and what all of them begin with.
pub(super) struct Place {
    /// Identifies connections that can stand for each other.
    pool: Arc<str>,
    host: Box<str>,
    port: u16,
    tls: Option<(Arc<Trust>, ServerName<'static>)>,
    /// The request line and the headers that no request changes; without the empty line at their end.
    begin: Bytes,
    /// Which those headers are.
    names: Box<[HeaderName]>,
}

impl Place {
    /// Returns `None` for URIs that are not of HTTP.
    pub fn new(method: &Method, uri: &Uri, headers: &HeaderMap, trust: &Arc<Trust>) -> Option<Self> {
        let host = uri.host()?.trim_matches(['[', ']']);
        let (default_port, tls) = match uri.scheme_str()? {
            "http" => (80, None),
            "https" => (443, Some((Arc::clone(trust), ServerName::try_from(host.to_owned()).ok()?))),
            _ => return None,
        };
        let port = uri.port_u16().unwrap_or(default_port);
        let trusted = tls.as_ref().map_or_else(String::new, |(trust, _)| format!(" TLS {}", trust.key));
        Some(Self {
            pool: format!("{host}:{port}{trusted}").into(),
            host: host.into(),
            port,
            tls,
            begin: begin(method, uri, headers, &[]).freeze(),
            names: headers.keys().cloned().collect(),
        })
    }

    /// Opens a connection; `None` if the server chose HTTP/2 for it.
    async fn connect(&self) -> Result<Option<Kept>, LinkError> {
        let late = |_| LinkError::Unreachable(format!("no connection within {} s", CONNECT_TIMEOUT.as_secs()));
        let failed = |error: io::Error| LinkError::Unreachable(error.to_string());
        let connecting = timeout(CONNECT_TIMEOUT, TcpStream::connect((&*self.host, self.port)));
        let tcp = connecting.await.map_err(late)?.map_err(failed)?;
        // A small message must not wait for the acknowledgement of the one before it.
        let _ = tcp.set_nodelay(true);
        let Some((trust, name)) = &self.tls else { return Ok(Some(Connection::new(Either::Left(tcp), IDLE))) };
        let handshake = TlsConnector::from(Arc::clone(&trust.config)).connect(name.clone(), tcp);
        let tls = timeout(CONNECT_TIMEOUT, handshake).await.map_err(late)?.map_err(failed)?;
        let is_http2 = tls.get_ref().1.alpn_protocol() == Some(HTTP_2);
        Ok((!is_http2).then(|| Connection::new(Either::Right(tls), IDLE_TLS)))
    }
}

fn begin(method: &Method, uri: &Uri, headers: &HeaderMap, but: &[(HeaderName, HeaderValue)]) -> BytesMut {
    let but = |name: &HeaderName| but.iter().any(|(other, _)| other == name);
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    let mut out = BytesMut::with_capacity(1024);
    out.extend_from_slice(method.as_str().as_bytes());
    out.extend_from_slice(b" ");
    out.extend_from_slice(path.as_bytes());
    out.extend_from_slice(b" HTTP/1.1\r\n");
    if !headers.contains_key(header::HOST) && !but(&header::HOST) {
        // As it stands in the URI; user and password are none of its business.
        let authority = uri.authority().map_or("", |authority| authority.as_str());
        let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
        field(&mut out, b"host", host.as_bytes());
    }
    if !headers.contains_key(header::ACCEPT_ENCODING) && !but(&header::ACCEPT_ENCODING) {
        field(&mut out, b"accept-encoding", b"identity");
    }
    headers.iter().filter(|(name, _)| !but(name)).for_each(|(name, value)| put(&mut out, name, value));
    out
}

/// What says how the message ends is for the connection to say.
fn put(out: &mut BytesMut, name: &HeaderName, value: &HeaderValue) {
    if ![header::CONTENT_LENGTH, header::TRANSFER_ENCODING, header::CONNECTION].contains(name) {
        field(out, name.as_str().as_bytes(), value.as_bytes());
    }
}

fn field(out: &mut BytesMut, name: &[u8], value: &[u8]) {
    out.extend_from_slice(name);
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

enum Codec {
    Head(ClientCodec),
    Body(ClientPayloadCodec),
}

/// Boxed: it is handed from one to the other, and back, with every request.
type Kept = Box<Connection>;

/// One connection.
struct Connection {
    io: Either<TcpStream, TlsStream<TcpStream>>,
    read: BytesMut,
    /// `None` only while it is turned into the other.
    codec: Option<Codec>,
    /// Bytes of a body that have not come, where the codec need not count them.
    left: Option<u64>,
    since: Instant,
    used: Instant,
    /// How long it may be idle.
    idle: Duration,
}

impl Connection {
    fn new(io: Either<TcpStream, TlsStream<TcpStream>>, idle: Duration) -> Kept {
        let now = Instant::now();
        let codec = Some(Codec::Head(ClientCodec::new(config())));
        Box::new(Self { io, read: BytesMut::with_capacity(READ), codec, left: None, since: now, used: now, idle })
    }

    fn is_fresh(&self, now: Instant) -> bool {
        now - self.used < self.idle && now - self.since < LIFETIME
    }

    /// Nothing has come since the last answer, not even its end.
    fn is_quiet(&mut self) -> bool {
        let mut byte = [0];
        let mut cx = Context::from_waker(Waker::noop());
        self.read.is_empty() && Pin::new(&mut self.io).poll_read(&mut cx, &mut ReadBuf::new(&mut byte)).is_pending()
    }

    fn make_room(&mut self) {
        if self.read.capacity() - self.read.len() < READ / 4 {
            self.read.reserve(READ);
        }
    }

    /// Reads more; `false` at the end.
    fn poll_more(&mut self, cx: &mut Context<'_>) -> Poll<std::io::Result<bool>> {
        self.make_room();
        let count = ready!(poll_read_buf(Pin::new(&mut self.io), cx, &mut self.read))?;
        Poll::Ready(Ok(count > 0))
    }

    /// What has come of a body whose length is known.
    fn take_known(&mut self) -> Bytes {
        let left = self.left.unwrap_or_default();
        let count = usize::try_from(left).map_or(self.read.len(), |left| left.min(self.read.len()));
        self.left = Some(left - count as u64);
        self.read.split_to(count).freeze()
    }

    fn poll_head(&mut self, cx: &mut Context<'_>) -> Poll<Result<Head, LinkError>> {
        let lost = || LinkError::Lost("the connection was closed before an answer".to_owned());
        loop {
            if !self.read.is_empty() {
                if let Some(head) = head::plain(&mut self.read) {
                    return Poll::Ready(Ok(Head::Plain(head)));
                }
                match head::beginning(&self.read) {
                    Beginning::Interim(length) => {
                        self.read.advance(length);
                        continue;
                    }
                    Beginning::Endless => head::downgrade(&mut self.read),
                    Beginning::Partial | Beginning::Whole => {}
                }
                let Some(Codec::Head(codec)) = &mut self.codec else { return Poll::Ready(Err(lost())) };
                if let Some(head) = codec.decode(&mut self.read).map_err(|error| unreadable(&error))? {
                    return Poll::Ready(Ok(Head::Whole(head)));
                }
            }
            if !ready!(self.poll_more(cx)).map_err(|error| LinkError::Lost(error.to_string()))? {
                return Poll::Ready(Err(lost()));
            }
        }
    }
}

impl Drop for Connection {
    /// Says goodbye, as far as it goes without waiting (RFC 9112, section 9.8).
    fn drop(&mut self) {
        if let Either::Right(tls) = &mut self.io {
            let _ = Pin::new(tls).poll_shutdown(&mut Context::from_waker(Waker::noop()));
        }
    }
}

/// The codec wants the settings of a server, which keep a clock; one is enough for a thread.
fn config() -> ServiceConfig {
    thread_local!(static CONFIG: ServiceConfig = ServiceConfig::default());
    CONFIG.with(Clone::clone)
}

/// What a broken head was.
pub fn unreadable(error: &ParseError) -> LinkError {
    match error {
        ParseError::Io(_) | ParseError::Incomplete | ParseError::Timeout => LinkError::Lost(error.to_string()),
        _ => LinkError::Protocol(format!("its answer is not HTTP: {error}")),
    }
}

thread_local! {
    /// By [`Place::pool`]; the one used last is the last.
    static IDLING: RefCell<HashMap<Arc<str>, Vec<Kept>>> = RefCell::default();
    static SWEEPING: Cell<bool> = const { Cell::new(false) };
}

/// A kept connection that can be used again.
fn kept(place: &Place) -> Option<Kept> {
    IDLING.with_borrow_mut(|idling| {
        let all = idling.get_mut(&*place.pool)?;
        let now = Instant::now();
        while let Some(mut connection) = all.pop() {
            if connection.is_fresh(now) && connection.is_quiet() {
                return Some(connection);
            }
        }
        None
    })
}

fn keep(pool: &Arc<str>, mut connection: Kept) {
    connection.used = Instant::now();
    IDLING.with_borrow_mut(|idling| match idling.get_mut(&**pool) {
        Some(all) => all.push(connection),
        None => _ = idling.insert(Arc::clone(pool), vec![connection]),
    });
    if !SWEEPING.replace(true) {
        actix_web::rt::spawn(sweep());
    }
}

/// Closes what was idle for too long, as long as there is something to close.
async fn sweep() {
    let _over = Over;
    loop {
        tokio::time::sleep(IDLE).await;
        let empty = IDLING.with_borrow_mut(|idling| {
            let now = Instant::now();
            idling.retain(|_, all| {
                all.retain(|connection| connection.is_fresh(now));
                !all.is_empty()
            });
            idling.is_empty()
        });
        if empty {
            return;
        }
    }
}

/// Also if the thread's tasks are dropped before it.
struct Over;

impl Drop for Over {
    fn drop(&mut self) {
        let _ = SWEEPING.try_with(|sweeping| sweeping.set(false));
    }
}

/// Sends a request and waits for the head of its answer. The headers of `extra` come before those of `head`. Returns `None`
/// if the server chose HTTP/2 for a new connection.
///
/// # Errors
/// [`LinkError::Unreachable`] where there was no connection, [`LinkError::Lost`] once something may have been sent.
pub(super) async fn send(
    place: &Place,
    head: &client::Head,
    extra: &Extra,
    body: &Bytes,
    permit: Option<&Permit>,
) -> Result<Option<Answer>, LinkError> {
    let mut connection = match kept(place) {
        Some(connection) => connection,
        None => match place.connect().await? {
            Some(connection) => connection,
            None => return Ok(None),
        },
    };
    let mut out = if extra.iter().any(|(name, _)| place.names.contains(name)) {
        begin(&head.method, &head.uri, &head.headers, extra)
    } else {
        let mut out =
            BytesMut::with_capacity(place.begin.len() + 256 + if body.len() > COPIED { 0 } else { body.len() });
        out.extend_from_slice(&place.begin);
        out
    };
    extra.iter().for_each(|(name, value)| put(&mut out, name, value));
    if head.method == Method::POST {
        field(&mut out, b"content-length", body.len().to_string().as_bytes());
    }
    out.extend_from_slice(b"\r\n");
    Outgoing::check(permit)?;
    let sending = async {
        if body.len() <= COPIED {
            out.extend_from_slice(body);
            connection.io.write_all(&out).await?;
        } else {
            connection.io.write_all(&out).await?;
            connection.io.write_all(body).await?;
        }
        connection.io.flush().await
    };
    sending.await.map_err(|error| LinkError::Lost(error.to_string()))?;
    let head = poll_fn(|cx| connection.poll_head(cx)).await?;
    Ok(Some(Answer::new(place, head, connection)))
}

/// An answer whose body comes as it is read.
pub struct Answer {
    pub head: Head,
    /// `None` once the body has ended.
    body: Option<Body>,
}

struct Body {
    connection: Kept,
    /// Where the connection is kept afterwards, if it is.
    pool: Option<Arc<str>>,
    /// It ends with the connection.
    endless: bool,
}

impl Answer {
    fn new(place: &Place, head: Head, mut connection: Kept) -> Self {
        let whole = match &head {
            Head::Plain(plain) => {
                connection.left = Some(plain.length);
                let body = Body { connection, pool: Some(Arc::clone(&place.pool)), endless: false };
                return Self { head, body: Some(body) };
            }
            Head::Whole(head) => head,
        };
        let headers = whole.headers();
        let endless = whole.version == Version::HTTP_10
            && !headers.contains_key(header::CONTENT_LENGTH)
            && !headers.contains_key(header::TRANSFER_ENCODING);
        let pool = (whole.keep_alive() && !endless).then(|| Arc::clone(&place.pool));
        let Some(Codec::Head(codec)) = connection.codec.take() else { return Self { head, body: None } };
        let empty = codec.message_type() == MessageType::None;
        connection.codec = Some(if empty { Codec::Head(codec) } else { Codec::Body(codec.into_payload_codec()) });
        let body = Body { connection, pool, endless };
        if empty {
            body.done();
            return Self { head, body: None };
        }
        Self { head, body: Some(body) }
    }
}

impl Body {
    fn done(mut self) {
        let Some(pool) = self.pool.take() else { return };
        self.connection.left = None;
        self.connection.codec = match self.connection.codec.take() {
            Some(Codec::Body(codec)) => Some(Codec::Head(codec.into_message_codec())),
            codec => codec,
        };
        // More than the answer is nothing that anybody asked for.
        if self.connection.read.is_empty() {
            keep(&pool, self.connection);
        }
    }

    /// `None` at the end of the body.
    fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, PayloadError>> {
        let Connection { read, left, .. } = &mut *self.connection;
        if let Some(left) = left {
            if *left == 0 {
                return Poll::Ready(Ok(None));
            }
            if read.is_empty() && !ready!(self.connection.poll_more(cx)).map_err(PayloadError::Io)? {
                self.pool = None;
                return Poll::Ready(Err(PayloadError::Incomplete(None)));
            }
            return Poll::Ready(Ok(Some(self.connection.take_known())));
        }
        loop {
            let Some(Codec::Body(codec)) = &mut self.connection.codec else { return Poll::Ready(Ok(None)) };
            match codec.decode(&mut self.connection.read)? {
                Some(item) => return Poll::Ready(Ok(item)),
                None if ready!(self.connection.poll_more(cx)).map_err(PayloadError::Io)? => {}
                None => {
                    self.pool = None;
                    return Poll::Ready(if self.endless { Ok(None) } else { Err(PayloadError::Incomplete(None)) });
                }
            }
        }
    }
}

impl Stream for Answer {
    type Item = Result<Bytes, PayloadError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Some(body) = &mut self.body else { return Poll::Ready(None) };
        match ready!(body.poll_chunk(cx)) {
            Ok(Some(chunk)) => Poll::Ready(Some(Ok(chunk))),
            Ok(None) => {
                if let Some(body) = self.body.take() {
                    body.done();
                }
                Poll::Ready(None)
            }
            Err(error) => {
                self.body = None;
                Poll::Ready(Some(Err(error)))
            }
        }
    }
}
