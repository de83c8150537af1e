//! The HTTP client of each worker thread, with its own persistent connections, verified TLS and no redirects. [`http1`] speaks
//! HTTP/1.1, and the client of `countersign_net` speaks HTTP/2, which servers choose in the TLS handshake.

use std::{
    cell::{Cell, RefCell},
    collections::HashMap,
    fmt::Display,
    pin::Pin,
    rc::Rc,
    sync::{Arc, atomic::Ordering},
    task::{Context, Poll},
};

use actix_http::{
    body::{BodySize, MessageBody},
    error::ParseError,
};
use awc::{
    Client, ClientResponse,
    error::{ConnectError, SendRequestError},
    http::{
        Method, StatusCode, Uri, Version,
        header::{self, HeaderMap, HeaderName, HeaderValue},
    },
};
use bytes::{Bytes, BytesMut};
use futures_util::StreamExt as _;
use rustls::pki_types::ServerName;
use smallvec::SmallVec;

use super::{
    authorization::{self, Access, RefusedRequest},
    http1::{self, Field, Framing},
    trust::TlsTrust,
};
use crate::link::LinkError;
use countersign_net as net;
use countersign_provider::Permit;

/// The maximum number of HTTP/2 clients that one thread keeps. When it is reached, all clients are dropped and created
/// again on demand.
const MAX_CLIENTS: usize = 64;

/// The common part of several requests: the method, the URI, and the headers of all of them.
pub struct RequestHead {
    pub method: Method,
    pub uri: Uri,
    pub headers: HeaderMap,
    access: Access,
    /// `None` if the scheme of the URI is not `http` or `https`.
    target: Option<RequestTarget>,
}

impl RequestHead {
    pub fn new(method: Method, uri: Uri, headers: HeaderMap, access: &Access) -> Self {
        let mut head = Self { method, uri, headers, access: access.clone(), target: None };
        head.target = RequestTarget::new(&head);
        head
    }

    /// Creates the head of POST requests that carry messages.
    pub fn for_messages(uri: Uri, mut headers: HeaderMap, access: &Access) -> Self {
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(header::ACCEPT, HeaderValue::from_static("application/json, text/event-stream"));
        Self::new(Method::POST, uri, headers, access)
    }

    /// Renders the request line and the headers, without those that `extra` overrides.
    pub(super) fn render(&self, extra: &[(HeaderName, HeaderValue)]) -> BytesMut {
        let overrides = |name: &HeaderName| extra.iter().any(|(other, _)| other == name);
        let path = self.uri.path_and_query().map_or("/", |path| path.as_str());
        let mut out = BytesMut::with_capacity(1024);
        out.extend_from_slice(self.method.as_str().as_bytes());
        out.extend_from_slice(b" ");
        out.extend_from_slice(path.as_bytes());
        out.extend_from_slice(b" HTTP/1.1\r\n");
        // The authority without user and password.
        let authority = self.uri.authority().map_or("", |authority| authority.as_str());
        let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
        put_field(&mut out, b"host", host.as_bytes());
        put_field(&mut out, b"accept-encoding", b"identity");
        self.headers
            .iter()
            .filter(|(name, _)| !overrides(name))
            .for_each(|(name, value)| put_field(&mut out, name.as_str().as_bytes(), value.as_bytes()));
        out
    }
}

/// The address of requests with the same head, and the rendered common part of that head.
pub(super) struct RequestTarget {
    /// The key of interchangeable connections.
    pub pool_key: Arc<str>,
    pub host: Box<str>,
    pub port: u16,
    pub tls: Option<(Arc<TlsTrust>, ServerName<'static>)>,
    /// The request line and the common headers, without the empty line after them.
    pub rendered_head: Bytes,
}

impl RequestTarget {
    /// Returns `None` if the scheme of the URI is not `http` or `https`.
    fn new(head: &RequestHead) -> Option<Self> {
        let uri = &head.uri;
        let host = uri.host()?.trim_matches(['[', ']']);
        let (default_port, tls) = match uri.scheme_str()? {
            "http" => (80, None),
            "https" => (443, Some((Arc::clone(&head.access.trust), ServerName::try_from(host.to_owned()).ok()?))),
            _ => return None,
        };
        let port = uri.port_u16().unwrap_or(default_port);
        let trust = tls.as_ref().map_or_else(String::new, |(trust, _)| format!(" TLS {}", trust.key));
        Some(Self {
            pool_key: format!("{host}:{port}{trust}").into(),
            host: host.into(),
            port,
            tls,
            rendered_head: head.render(&[]).freeze(),
        })
    }
}

/// Appends a header field.
pub(super) fn put_field(out: &mut BytesMut, name: &[u8], value: &[u8]) {
    out.extend_from_slice(name);
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

/// Returns a client whose requests may be upgraded, which excludes HTTP/2.
pub fn upgrading_client(trust: &TlsTrust) -> Client {
    net::client(trust.http1_config())
}

/// Returns this thread's HTTP/2 client for this TLS trust.
fn thread_client(trust: &TlsTrust) -> Client {
    thread_local!(static CLIENTS: RefCell<HashMap<u64, Client>> = RefCell::default());
    CLIENTS.with_borrow_mut(|clients| {
        if clients.len() >= MAX_CLIENTS && !clients.contains_key(&trust.key) {
            clients.clear();
        }
        clients.entry(trust.key).or_insert_with(|| net::client(Arc::clone(&trust.config))).clone()
    })
}

/// A response in either version of HTTP.
pub enum HttpResponse {
    Http1(http1::ReceivedResponse),
    Http2(ClientResponse),
}

impl HttpResponse {
    pub fn status(&self) -> StatusCode {
        match self {
            Self::Http1(response) => response.head.status,
            Self::Http2(response) => response.status(),
        }
    }

    /// Returns the first header of that kind.
    pub fn header(&self, field: Field) -> Option<&[u8]> {
        match self {
            Self::Http1(response) => response.head.header(field),
            Self::Http2(response) => response.headers().get(field.name()).map(HeaderValue::as_bytes),
        }
    }

    /// Returns the values of all headers of that name that are text. This reads the whole head again.
    pub fn header_values(&self, name: &HeaderName) -> Vec<String> {
        match self {
            Self::Http1(response) => response.head.header_values(name),
            Self::Http2(response) => {
                response.headers().get_all(name).filter_map(|value| Some(value.to_str().ok()?.to_owned())).collect()
            }
        }
    }

    /// Returns the length of the body in bytes before any of it is read, if the response has it.
    pub fn length(&self) -> Option<u64> {
        match self {
            Self::Http1(response) => match response.head.framing {
                Framing::Length(length) => Some(length),
                _ => None,
            },
            Self::Http2(response) => response.headers().get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok(),
        }
    }

    /// Returns the next part of the body, or `None` at its end. Cancel-safe.
    ///
    /// # Errors
    /// [`LinkError::Lost`]
    pub async fn chunk(&mut self) -> Result<Option<Bytes>, LinkError> {
        let lost_error = |error: &dyn Display| LinkError::Lost(format!("its answer broke off: {error}"));
        match self {
            Self::Http1(response) => response.chunk().await.map_err(|error| lost_error(&error)),
            Self::Http2(response) => response.next().await.transpose().map_err(|error| lost_error(&error)),
        }
    }
}

/// The additional headers of one request.
pub type ExtraHeaders = SmallVec<[(HeaderName, HeaderValue); 2]>;

/// Sends a request without a body.
///
/// # Errors
/// As [`send`].
pub async fn request(method: Method, uri: Uri, headers: HeaderMap, access: &Access) -> Result<HttpResponse, LinkError> {
    send(&RequestHead::new(method, uri, headers, access), ExtraHeaders::new(), &Bytes::new(), None).await
}

/// Sends a request with that head and the additional headers, unless the permit has expired when the connection is
/// ready. A server that uses an account gets its token.
///
/// # Errors
/// [`LinkError::Unauthorized`] and those of [`send_once`].
pub async fn send(
    head: &RequestHead,
    mut extra: ExtraHeaders,
    body: &Bytes,
    permit: Option<&Permit>,
) -> Result<HttpResponse, LinkError> {
    let credentials = head.access.credentials.as_deref();
    let headers = match credentials {
        Some(credentials) => authorization::add_token(credentials, head, &mut extra).await?,
        None => Vec::new(),
    };
    let answer = send_once(head, &extra, body, permit).await?;
    let Some(credentials) = credentials else { return Ok(answer) };
    match authorization::check_answer(credentials, &headers, &answer, permit) {
        None => Ok(answer),
        Some(refusal) => {
            drop(answer);
            let refused = RefusedRequest { head, extra, body, permit, headers, refusal };
            // The future is boxed, so that requests that are not refused do not reserve its memory.
            Box::pin(authorization::send_again(credentials, refused)).await
        }
    }
}

/// Sends a request as it is, and returns any answer.
///
/// # Errors
/// [`LinkError::PermitExpired`]; [`LinkError::Unreachable`] if nothing was sent, also for a URI that is not one of
/// HTTP; [`LinkError::Lost`] if it may have been sent; [`LinkError::Protocol`] for an answer that is not HTTP.
pub(super) async fn send_once(
    head: &RequestHead,
    extra: &ExtraHeaders,
    body: &Bytes,
    permit: Option<&Permit>,
) -> Result<HttpResponse, LinkError> {
    let Some(target) = &head.target else {
        return Err(LinkError::Unreachable("its address is not one of HTTP".to_owned()));
    };
    let is_http2 = &head.access.trust.is_http2;
    if !is_http2.load(Ordering::Relaxed) {
        if let Some(answer) = http1::send(target, head, extra, body, permit).await? {
            return Ok(HttpResponse::Http1(answer));
        }
        is_http2.store(true, Ordering::Relaxed);
    }
    // The future is boxed, so that requests over HTTP/1.1 do not reserve its memory.
    Box::pin(send_http2(head, extra, body, permit)).await
}

/// Sends a request like [`send_once`] to a server that chose HTTP/2 in the TLS handshake.
async fn send_http2(
    head: &RequestHead,
    extra: &ExtraHeaders,
    body: &Bytes,
    permit: Option<&Permit>,
) -> Result<HttpResponse, LinkError> {
    let mut request = thread_client(&head.access.trust).request(head.method.clone(), &head.uri);
    let headers = request.headers_mut();
    *headers = head.headers.clone();
    extra.iter().for_each(|(name, _)| _ = headers.remove(name));
    extra.iter().cloned().for_each(|(name, value)| headers.append(name, value));
    let was_withheld = Rc::new(Cell::new(false));
    let result = if head.method == Method::POST {
        let body =
            PermittedBody { body: body.clone(), permit: permit.cloned(), was_withheld: Rc::clone(&was_withheld) };
        request.send_body(body).await
    } else {
        request.send().await
    };
    let response = result
        .map_err(|error| if was_withheld.get() { LinkError::PermitExpired } else { classify_send_error(&error) })?;
    head.access.trust.is_http2.store(response.version() == Version::HTTP_2, Ordering::Relaxed);
    Ok(HttpResponse::Http2(response))
}

/// A body that is sent only if the permit is still valid after the connection was made and the headers were written.
/// The headers alone request nothing.
struct PermittedBody {
    body: Bytes,
    permit: Option<Permit>,
    /// Set to `true` if the body is not sent, because the permit has expired.
    was_withheld: Rc<Cell<bool>>,
}

impl MessageBody for PermittedBody {
    type Error = std::io::Error;

    fn size(&self) -> BodySize {
        BodySize::Sized(self.body.len() as u64)
    }

    fn poll_next(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Bytes, Self::Error>>> {
        let permitted = self.get_mut();
        if permitted.body.is_empty() {
            return Poll::Ready(None);
        }
        if permitted.permit.as_ref().is_some_and(|permit| !permit.is_valid()) {
            permitted.was_withheld.set(true);
            return Poll::Ready(Some(Err(std::io::Error::other("its permit has expired"))));
        }
        Poll::Ready(Some(Ok(std::mem::take(&mut permitted.body))))
    }
}

/// Error codes of HTTP/2 (RFC 9113, section 7).
const NO_ERROR: u32 = 0;
const REFUSED_STREAM: u32 = 7;

/// Classifies the error of a request, depending on whether the request may have been sent.
pub fn classify_send_error(error: &SendRequestError) -> LinkError {
    match error {
        // The connection ended after the request was written to it.
        SendRequestError::Connect(ConnectError::Disconnected) => LinkError::Lost(net::describe_send_error(error)),
        SendRequestError::Connect(error) => LinkError::Unreachable(error.to_string()),
        SendRequestError::Url(error) => LinkError::Unreachable(error.to_string()),
        // The server states that it has not processed the request: it refused the stream, or it had closed the
        // connection in order before (RFC 9113, sections 6.8 and 8.7).
        SendRequestError::H2(error)
            if match error.reason().map(u32::from) {
                Some(REFUSED_STREAM) => true,
                Some(NO_ERROR) => error.is_go_away() && error.is_remote(),
                _ => false,
            } =>
        {
            LinkError::Unreachable(error.to_string())
        }
        SendRequestError::Response(ParseError::Io(_) | ParseError::Incomplete | ParseError::Timeout) => {
            LinkError::Lost(error.to_string())
        }
        SendRequestError::Response(error) => LinkError::Protocol(format!("its answer is not HTTP: {error}")),
        error => LinkError::Lost(error.to_string()),
    }
}
