//! POSTs without TLS, on this thread's own kept-alive connections: the way of nearly every call to a server that runs
//! beside the gateway.
//!
//! A library's client makes a map of headers for each request, and passes the request and its answer between the caller
//! and a task of the connection's own; awc makes a codec, a timer and a task for each request. Here a connection keeps its
//! codec and its buffers, and what requests of one link have in common is rendered once.
//!
//! That is why this client is ours. By `scripts/bench client`, a request and its answer cost 6,800 to 8,300 instructions
//! here, 19,400 with `hyper::client::conn` and a pool of a few lines, 25,900 with awc and 27,500 with `hyper_util`'s client,
//! and with the leanest of them 5 µs more CPU. A whole proxied call costs 66,000 to 71,000 instructions (`scripts/bench
//! instructions`): it would take 17 % more. What HTTP means stays with a library all the same (`actix_http::h1`), which
//! reads every head that is not as nearly all are, and every chunked body.

use std::{
    cell::{Cell, RefCell},
    collections::HashMap,
    future::poll_fn,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Instant,
};

use actix_http::{
    ServiceConfig, Version,
    error::{ParseError, PayloadError},
    h1::{ClientCodec, ClientPayloadCodec, MessageType},
};
use actix_web::rt::net::TcpStream;
use awc::http::{
    Uri,
    header::{self, HeaderMap, HeaderName, HeaderValue},
};
use bytes::{Bytes, BytesMut};
use futures_util::Stream;
use tokio::io::{AsyncRead, AsyncWriteExt, ReadBuf};
use tokio_util::{codec::Decoder, io::poll_read_buf};

use super::{
    client::{Extra, IDLE},
    head::{self, Head},
    io::Io,
};
use crate::link::{LinkError, Outgoing};
use countersign_net::{CONNECT_TIMEOUT, LIFETIME};
use countersign_provider::Permit;

/// A body up to this length is copied behind its head, so that both leave in one segment.
const COPIED: usize = 64 << 10;

/// What is read at a time.
const READ: usize = 8 << 10;

/// Where requests go, and what all of them begin with.
pub(super) struct Place {
    authority: Arc<str>,
    host: Box<str>,
    port: u16,
    /// The request line and the headers that no request changes; without the empty line at their end.
    begin: Bytes,
    /// Which those headers are.
    names: Box<[HeaderName]>,
}

impl Place {
    /// `None` for URIs that are not plain HTTP.
    pub fn new(uri: &Uri, headers: &HeaderMap) -> Option<Self> {
        if uri.scheme_str() != Some("http") {
            return None;
        }
        let authority = uri.authority()?;
        let (host, port) = (authority.host(), authority.port_u16().unwrap_or(80));
        Some(Self {
            authority: format!("{host}:{port}").into(),
            host: host.trim_matches(['[', ']']).into(),
            port,
            begin: begin(uri, headers, &[]).freeze(),
            names: headers.keys().cloned().collect(),
        })
    }

    async fn connect(&self) -> Result<Io, LinkError> {
        match tokio::time::timeout(CONNECT_TIMEOUT, TcpStream::connect((&*self.host, self.port))).await {
            Ok(Ok(tcp)) => Ok(Io::new(tcp)),
            Ok(Err(error)) => Err(LinkError::Unreachable(error.to_string())),
            Err(_) => Err(LinkError::Unreachable(format!("no connection within {} s", CONNECT_TIMEOUT.as_secs()))),
        }
    }
}

fn begin(uri: &Uri, headers: &HeaderMap, but: &[(HeaderName, HeaderValue)]) -> BytesMut {
    let but = |name: &HeaderName| but.iter().any(|(other, _)| other == name);
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    let mut out = BytesMut::with_capacity(1024);
    out.extend_from_slice(b"POST ");
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
    io: Io,
    read: BytesMut,
    /// `None` only while it is turned into the other.
    codec: Option<Codec>,
    /// Bytes of a body that have not come, where the codec need not count them.
    left: Option<u64>,
    since: Instant,
    used: Instant,
}

impl Connection {
    fn new(io: Io) -> Kept {
        let now = Instant::now();
        let codec = Some(Codec::Head(ClientCodec::new(config())));
        Box::new(Self { io, read: BytesMut::with_capacity(READ), codec, left: None, since: now, used: now })
    }

    /// Nothing has come since the last answer, not even its end.
    fn is_quiet(&mut self) -> bool {
        let mut byte = [0];
        let mut cx = Context::from_waker(std::task::Waker::noop());
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
        if self.io.is_at_head() && self.read.is_empty() {
            self.make_room();
            let read = ready!(poll_read_buf(Pin::new(self.io.unseen()), cx, &mut self.read));
            if read.map_err(|error| LinkError::Lost(error.to_string()))? == 0 {
                return Poll::Ready(Err(lost()));
            }
            if let Some(head) = head::plain(&mut self.read) {
                self.io.past_head();
                return Poll::Ready(Ok(Head::Plain(head)));
            }
            // It is not all there, or one that needs a closer look.
            self.io.give_back(&self.read);
            self.read.clear();
        }
        loop {
            let Some(Codec::Head(codec)) = &mut self.codec else { return Poll::Ready(Err(lost())) };
            if !self.read.is_empty() {
                if let Some(head) = head::plain(&mut self.read) {
                    return Poll::Ready(Ok(Head::Plain(head)));
                }
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
    /// By authority; the one used last is the last.
    static IDLING: RefCell<HashMap<Arc<str>, Vec<Kept>>> = RefCell::default();
    static SWEEPING: Cell<bool> = const { Cell::new(false) };
}

/// A kept connection that can be used again.
fn kept(place: &Place) -> Option<Kept> {
    IDLING.with_borrow_mut(|idling| {
        let all = idling.get_mut(&*place.authority)?;
        let now = Instant::now();
        while let Some(mut connection) = all.pop() {
            if now - connection.used < IDLE && now - connection.since < LIFETIME && connection.is_quiet() {
                return Some(connection);
            }
        }
        None
    })
}

fn keep(authority: &Arc<str>, mut connection: Kept) {
    connection.used = Instant::now();
    IDLING.with_borrow_mut(|idling| match idling.get_mut(&**authority) {
        Some(all) => all.push(connection),
        None => _ = idling.insert(Arc::clone(authority), vec![connection]),
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
                all.retain(|connection| now - connection.used < IDLE);
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

/// Sends a POST and waits for the head of its answer. `headers` are those of the link, `extra` those of this request,
/// which come before them.
///
/// # Errors
/// [`LinkError::Unreachable`] where there was no connection, [`LinkError::Lost`] once something may have been sent.
pub(super) async fn post(
    place: &Place,
    (uri, headers): (&Uri, &HeaderMap),
    extra: &Extra,
    body: &Bytes,
    permit: Option<&Permit>,
) -> Result<PlainAnswer, LinkError> {
    let mut connection = match kept(place) {
        Some(connection) => connection,
        None => Connection::new(place.connect().await?),
    };
    let mut out = if extra.iter().any(|(name, _)| place.names.contains(name)) {
        begin(uri, headers, extra)
    } else {
        let mut out =
            BytesMut::with_capacity(place.begin.len() + 256 + if body.len() > COPIED { 0 } else { body.len() });
        out.extend_from_slice(&place.begin);
        out
    };
    extra.iter().for_each(|(name, value)| put(&mut out, name, value));
    field(&mut out, b"content-length", body.len().to_string().as_bytes());
    out.extend_from_slice(b"\r\n");
    Outgoing::check(permit)?;
    let sending = async {
        if body.len() <= COPIED {
            out.extend_from_slice(body);
            return connection.io.write_all(&out).await;
        }
        connection.io.write_all(&out).await?;
        connection.io.write_all(body).await
    };
    sending.await.map_err(|error| LinkError::Lost(error.to_string()))?;
    let head = poll_fn(|cx| connection.poll_head(cx)).await?;
    Ok(PlainAnswer::new(place, head, connection))
}

/// An answer whose body comes as it is read.
pub struct PlainAnswer {
    pub head: Head,
    /// `None` once the body has ended.
    body: Option<Body>,
}

struct Body {
    connection: Kept,
    /// Where the connection is kept afterwards, if it is.
    authority: Option<Arc<str>>,
    /// It ends with the connection.
    endless: bool,
}

impl PlainAnswer {
    fn new(place: &Place, head: Head, mut connection: Kept) -> Self {
        let whole = match &head {
            Head::Plain(plain) => {
                connection.left = Some(plain.length);
                let body = Body { connection, authority: Some(Arc::clone(&place.authority)), endless: false };
                return Self { head, body: Some(body) };
            }
            Head::Whole(head) => head,
        };
        let headers = whole.headers();
        let endless = whole.version == Version::HTTP_10
            && !headers.contains_key(header::CONTENT_LENGTH)
            && !headers.contains_key(header::TRANSFER_ENCODING);
        let authority = (whole.keep_alive() && !endless).then(|| Arc::clone(&place.authority));
        let Some(Codec::Head(codec)) = connection.codec.take() else { return Self { head, body: None } };
        let empty = codec.message_type() == MessageType::None;
        connection.codec = Some(if empty { Codec::Head(codec) } else { Codec::Body(codec.into_payload_codec()) });
        let body = Body { connection, authority, endless };
        if empty {
            body.done();
            return Self { head, body: None };
        }
        Self { head, body: Some(body) }
    }
}

impl Body {
    fn done(mut self) {
        let Some(authority) = self.authority.take() else { return };
        self.connection.left = None;
        self.connection.codec = match self.connection.codec.take() {
            Some(Codec::Body(codec)) => Some(Codec::Head(codec.into_message_codec())),
            codec => codec,
        };
        // More than the answer is nothing that anybody asked for.
        if self.connection.read.is_empty() {
            keep(&authority, self.connection);
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
                self.authority = None;
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
                    self.authority = None;
                    return Poll::Ready(if self.endless { Ok(None) } else { Err(PayloadError::Incomplete(None)) });
                }
            }
        }
    }
}

impl Stream for PlainAnswer {
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
