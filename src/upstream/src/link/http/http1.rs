//! The HTTP/1.1 client on this thread's own kept-alive connections, with TLS and without. Nearly every call to a server
//! over HTTP uses it.
//!
//! A general client builds a map of headers for each request, and passes the request and its answer between the caller
//! and a task of the connection; awc also creates a codec, a timer and a task for each request. Here a connection keeps
//! its buffer, and the common part of the requests of one link is rendered once.
//!
//! That is why the gateway has its own client. By `scripts/bench client`, a request and its answer cost 6,700 to 8,900
//! instructions here, 19,400 with `hyper::client::conn` and a pool of a few lines, 25,900 with awc and 27,500 with the
//! client of `hyper_util`, and 5 µs more CPU with the leanest of them. A whole proxied call costs 66,000 to 71,000
//! instructions (`scripts/bench instructions`), so it would take 17 % more.

use std::{
    cell::RefCell,
    collections::HashMap,
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::{Duration, Instant},
};

use actix_http::header::HeaderMap;
use actix_web::rt::net::TcpStream;
use awc::http::{
    Method, Uri,
    header::{self, HeaderName, HeaderValue},
};
use bytes::{Bytes, BytesMut};
use rustls::pki_types::ServerName;
use tokio::{
    io::{AsyncRead as _, AsyncReadExt as _, AsyncWrite as _, AsyncWriteExt as _, ReadBuf},
    time::timeout,
};
use tokio_rustls::{TlsConnector, client::TlsStream};
use tokio_util::either::Either;

use super::{
    client::{self, ExtraHeaders},
    head::{AnswerHead, Framing},
    trust::Trust,
};
use crate::link::{LinkError, Outgoing};
use countersign_net::{CONNECT_TIMEOUT, LIFETIME, tls::HTTP_2};
use countersign_provider::Permit;

/// A body of at most this many bytes is copied behind its head, so that both leave in one segment.
const MAX_COPIED_BODY: usize = 64 << 10;

/// Minimum capacity of the read buffer, in bytes.
const READ_BYTES: usize = 8 << 10;

/// Time for which an idle connection can be used again. Node and uvicorn close idle connections after 5 s. A request on a
/// connection that is being closed is lost, and must not be repeated if it writes.
const IDLE_TIMEOUT: Duration = Duration::from_secs(4);

/// Time for which an idle TLS connection can be used again. Proxies with TLS close connections later, and a handshake costs
/// more.
const TLS_IDLE_TIMEOUT: Duration = Duration::from_secs(30);

/// The address of requests with the same head, and their common beginning.
pub(super) struct RequestTarget {
    /// The key of interchangeable connections.
    pool: Arc<str>,
    host: Box<str>,
    port: u16,
    tls: Option<(Arc<Trust>, ServerName<'static>)>,
    /// The request line and the common headers, without the empty line after them.
    beginning: Bytes,
}

impl RequestTarget {
    /// Returns `None` if the scheme of the URI is not `http` or `https`.
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
            beginning: render_beginning(method, uri, headers, &[]).freeze(),
        })
    }

    /// Opens a connection; `None` if the server chose HTTP/2 for it.
    async fn connect(&self) -> Result<Option<BoxedConnection>, LinkError> {
        let timeout_error = |_| LinkError::Unreachable(format!("no connection within {} s", CONNECT_TIMEOUT.as_secs()));
        let failed = |error: io::Error| LinkError::Unreachable(error.to_string());
        let connecting = timeout(CONNECT_TIMEOUT, TcpStream::connect((&*self.host, self.port)));
        let tcp = connecting.await.map_err(timeout_error)?.map_err(failed)?;
        // A small message must not wait for the acknowledgement of the one before it.
        let _ = tcp.set_nodelay(true);
        let Some((trust, name)) = &self.tls else { return Ok(Some(Connection::new(Either::Left(tcp), IDLE_TIMEOUT))) };
        let handshake = TlsConnector::from(Arc::clone(&trust.config)).connect(name.clone(), tcp);
        let tls = timeout(CONNECT_TIMEOUT, handshake).await.map_err(timeout_error)?.map_err(failed)?;
        let is_http2 = tls.get_ref().1.alpn_protocol() == Some(HTTP_2);
        Ok((!is_http2).then(|| Connection::new(Either::Right(tls), TLS_IDLE_TIMEOUT)))
    }
}

/// Renders the request line and the headers, except those that `extra` overrides.
fn render_beginning(method: &Method, uri: &Uri, headers: &HeaderMap, extra: &[(HeaderName, HeaderValue)]) -> BytesMut {
    let overrides = |name: &HeaderName| extra.iter().any(|(other, _)| other == name);
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    let mut out = BytesMut::with_capacity(1024);
    out.extend_from_slice(method.as_str().as_bytes());
    out.extend_from_slice(b" ");
    out.extend_from_slice(path.as_bytes());
    out.extend_from_slice(b" HTTP/1.1\r\n");
    if !headers.contains_key(header::HOST) && !overrides(&header::HOST) {
        // The authority without user and password.
        let authority = uri.authority().map_or("", |authority| authority.as_str());
        let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
        put_field(&mut out, b"host", host.as_bytes());
    }
    if !headers.contains_key(header::ACCEPT_ENCODING) && !overrides(&header::ACCEPT_ENCODING) {
        put_field(&mut out, b"accept-encoding", b"identity");
    }
    headers.iter().filter(|(name, _)| !overrides(name)).for_each(|(name, value)| put_header(&mut out, name, value));
    out
}

/// Appends a header, except those that describe the connection and the length of the message.
fn put_header(out: &mut BytesMut, name: &HeaderName, value: &HeaderValue) {
    if ![header::CONTENT_LENGTH, header::TRANSFER_ENCODING, header::CONNECTION].contains(name) {
        put_field(out, name.as_str().as_bytes(), value.as_bytes());
    }
}

fn put_field(out: &mut BytesMut, name: &[u8], value: &[u8]) {
    out.extend_from_slice(name);
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

/// A connection, boxed because each request moves it out of the pool and back.
type BoxedConnection = Box<Connection>;

struct Connection {
    io: Either<TcpStream, TlsStream<TcpStream>>,
    read: BytesMut,
    opened_at: Instant,
    last_used: Instant,
    idle_timeout: Duration,
}

impl Connection {
    fn new(io: Either<TcpStream, TlsStream<TcpStream>>, idle_timeout: Duration) -> BoxedConnection {
        let now = Instant::now();
        let read = BytesMut::with_capacity(READ_BYTES);
        Box::new(Self { io, read, opened_at: now, last_used: now, idle_timeout })
    }

    fn is_fresh(&self, now: Instant) -> bool {
        now - self.last_used < self.idle_timeout && now - self.opened_at < LIFETIME
    }

    /// Returns `true` if nothing has arrived since the last answer, not even the end of the connection.
    fn is_quiet(&mut self) -> bool {
        let mut byte = [0];
        let mut cx = Context::from_waker(Waker::noop());
        self.read.is_empty() && Pin::new(&mut self.io).poll_read(&mut cx, &mut ReadBuf::new(&mut byte)).is_pending()
    }

    /// Reads more input. Returns `false` at the end. Cancel-safe.
    async fn read_more(&mut self) -> io::Result<bool> {
        if self.read.capacity() - self.read.len() < READ_BYTES / 4 {
            self.read.reserve(READ_BYTES);
        }
        Ok(self.io.read_buf(&mut self.read).await? > 0)
    }

    async fn read_head(&mut self) -> Result<AnswerHead, LinkError> {
        loop {
            if let Some(head) = AnswerHead::parse(&mut self.read)? {
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
    /// Idle connections by [`RequestTarget::pool`], the most recently used last.
    static IDLE: RefCell<HashMap<Arc<str>, Vec<BoxedConnection>>> = RefCell::default();
}

/// Takes an idle connection that can be used again.
fn take_idle(target: &RequestTarget) -> Option<BoxedConnection> {
    IDLE.with_borrow_mut(|idle| {
        let all = idle.get_mut(&*target.pool)?;
        let now = Instant::now();
        while let Some(mut connection) = all.pop() {
            if connection.is_fresh(now) && connection.is_quiet() {
                return Some(connection);
            }
        }
        None
    })
}

fn keep_idle(pool: &Arc<str>, mut connection: BoxedConnection) {
    connection.last_used = Instant::now();
    IDLE.with_borrow_mut(|idle| {
        // The sweep ends when there are no connections.
        if idle.is_empty() {
            actix_web::rt::spawn(sweep());
        }
        match idle.get_mut(&**pool) {
            Some(all) => all.push(connection),
            None => _ = idle.insert(Arc::clone(pool), vec![connection]),
        }
    });
}

/// Closes connections that were idle for too long, as long as there are idle connections.
async fn sweep() {
    loop {
        tokio::time::sleep(IDLE_TIMEOUT).await;
        let is_empty = IDLE.with_borrow_mut(|idle| {
            let now = Instant::now();
            idle.retain(|_, all| {
                all.retain(|connection| connection.is_fresh(now));
                !all.is_empty()
            });
            idle.is_empty()
        });
        if is_empty {
            return;
        }
    }
}

/// Sends a request and waits for the head of its answer. The headers of `extra` override those of `head`. Returns `None`
/// if the server chose HTTP/2 for a new connection.
///
/// # Errors
/// [`LinkError::Unreachable`] without a connection, [`LinkError::Lost`] once something may have been sent.
pub(super) async fn send(
    target: &RequestTarget,
    head: &client::RequestHead,
    extra: &ExtraHeaders,
    body: &Bytes,
    permit: Option<&Permit>,
) -> Result<Option<Answer>, LinkError> {
    let mut connection = match take_idle(target) {
        Some(connection) => connection,
        None => match target.connect().await? {
            Some(connection) => connection,
            None => return Ok(None),
        },
    };
    let is_copied = body.len() <= MAX_COPIED_BODY;
    let mut out = if extra.iter().any(|(name, _)| head.headers.contains_key(name)) {
        render_beginning(&head.method, &head.uri, &head.headers, extra)
    } else {
        let copied = if is_copied { body.len() } else { 0 };
        let mut out = BytesMut::with_capacity(target.beginning.len() + 256 + copied);
        out.extend_from_slice(&target.beginning);
        out
    };
    extra.iter().for_each(|(name, value)| put_header(&mut out, name, value));
    if head.method == Method::POST {
        put_field(&mut out, b"content-length", body.len().to_string().as_bytes());
    }
    out.extend_from_slice(b"\r\n");
    if is_copied {
        out.extend_from_slice(body);
    }
    Outgoing::check_permit(permit)?;
    let sending = async {
        connection.io.write_all(&out).await?;
        if !is_copied {
            connection.io.write_all(body).await?;
        }
        connection.io.flush().await
    };
    sending.await.map_err(|error| LinkError::Lost(error.to_string()))?;
    let head = connection.read_head().await?;
    let mut answer = Answer { head, body: Some((connection, Arc::clone(&target.pool))) };
    if answer.head.framing == Framing::Length(0) {
        answer.finish();
    }
    Ok(Some(answer))
}

/// An answer whose body arrives while it is read.
pub struct Answer {
    pub head: AnswerHead,
    /// The connection and its pool; `None` after the end of the body.
    body: Option<(BoxedConnection, Arc<str>)>,
}

impl Answer {
    /// Returns the connection to its pool, if it can be used again.
    fn finish(&mut self) {
        if let Some((connection, pool)) = self.body.take()
            && self.head.keep_alive
            // Input after the answer was not requested.
            && connection.read.is_empty()
        {
            keep_idle(&pool, connection);
        }
    }

    /// Returns the next part of the body, or `None` at its end. Cancel-safe.
    ///
    /// # Errors
    /// Fails if the connection is lost, or the chunks are malformed.
    pub async fn chunk(&mut self) -> io::Result<Option<Bytes>> {
        let Some((connection, _)) = &mut self.body else { return Ok(None) };
        loop {
            match self.head.framing.take(&mut connection.read)? {
                Poll::Ready(Some(chunk)) => return Ok(Some(chunk)),
                Poll::Pending if connection.read_more().await? => {}
                Poll::Pending if self.head.framing != Framing::UntilClose => {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                Poll::Ready(None) | Poll::Pending => {
                    self.finish();
                    return Ok(None);
                }
            }
        }
    }
}
