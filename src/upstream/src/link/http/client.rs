//! The HTTP client of each worker thread: kept-alive connections of its own, TLS verified, nothing followed. HTTP/1.1 is spoken by
//! [`http1`], and HTTP/2, which servers choose in the TLS handshake, by the client of `countersign_net`.

use std::{
    cell::{Cell, RefCell},
    collections::HashMap,
    pin::Pin,
    rc::Rc,
    sync::{Arc, atomic::Ordering},
    task::{Context, Poll},
};

use actix_http::body::{BodySize, MessageBody};
use awc::{
    Client, ClientResponse,
    error::{ConnectError, PayloadError, SendRequestError},
    http::{
        Method, StatusCode, Uri, Version,
        header::{self, HeaderMap, HeaderName, HeaderValue},
    },
};
use bytes::Bytes;
use futures_util::Stream;
use smallvec::SmallVec;

use super::{head::Field, http1, trust::Trust};
use crate::link::LinkError;
use countersign_net as net;
use countersign_provider::Permit;

/// Clients of HTTP/2 that one thread keeps: more than that are configured anew now and then, no more.
const MAX_CLIENTS: usize = 64;

/// The common part of several requests: the method, the URI, and the headers that every one of them has.
pub struct Head {
    pub method: Method,
    pub uri: Uri,
    pub headers: HeaderMap,
    trust: Arc<Trust>,
    /// `None` for a URI that is none of HTTP.
    http1: Option<http1::Place>,
}

impl Head {
    /// Creates the head of POSTs.
    pub fn new(uri: Uri, headers: HeaderMap, trust: &Arc<Trust>) -> Arc<Self> {
        Arc::new(Self::with_method(Method::POST, uri, headers, trust))
    }

    fn with_method(method: Method, uri: Uri, headers: HeaderMap, trust: &Arc<Trust>) -> Self {
        let http1 = http1::Place::new(&method, &uri, &headers, trust);
        Self { method, uri, headers, trust: Arc::clone(trust), http1 }
    }
}

/// Returns a client whose requests may be upgraded: WebSocket has no HTTP/2 here.
pub fn upgrading(trust: &Trust) -> Client {
    net::client(Arc::clone(&trust.http1_config))
}

/// Returns this thread's client of HTTP/2 for servers that are trusted so.
fn of_thread(trust: &Trust) -> Client {
    thread_local!(static CLIENTS: RefCell<HashMap<u64, Client>> = RefCell::default());
    CLIENTS.with_borrow_mut(|clients| {
        if clients.len() >= MAX_CLIENTS && !clients.contains_key(&trust.key) {
            clients.clear();
        }
        clients.entry(trust.key).or_insert_with(|| net::client(Arc::clone(&trust.config))).clone()
    })
}

/// An answer in either version of HTTP.
pub enum HttpAnswer {
    Http1(http1::Answer),
    Http2(ClientResponse),
}

impl HttpAnswer {
    pub fn status(&self) -> StatusCode {
        match self {
            Self::Http1(answer) => answer.head.status(),
            Self::Http2(response) => response.status(),
        }
    }

    /// Returns the first header of that kind.
    pub fn field(&self, field: Field) -> Option<&[u8]> {
        match self {
            Self::Http1(answer) => answer.head.field(field),
            Self::Http2(response) => response.headers().get(field.name()).map(HeaderValue::as_bytes),
        }
    }

    /// Returns the value of its `Content-Length`.
    pub fn length(&self) -> Option<u64> {
        match self {
            Self::Http1(answer) => answer.head.length(),
            Self::Http2(response) => response.headers().get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok(),
        }
    }
}

impl Stream for HttpAnswer {
    type Item = Result<Bytes, PayloadError>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        match self.get_mut() {
            Self::Http1(answer) => Pin::new(answer).poll_next(cx),
            Self::Http2(response) => Pin::new(response).poll_next(cx),
        }
    }
}

/// The headers that one request has alone; few.
pub type Extra = SmallVec<[(HeaderName, HeaderValue); 2]>;

/// Sends a request without a body.
///
/// # Errors
/// As [`send`].
pub async fn request(
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    trust: &Arc<Trust>,
) -> Result<HttpAnswer, LinkError> {
    send(&Head::with_method(method, uri, headers, trust), Extra::new(), &Bytes::new(), None).await
}

/// Sends a request with that head and the headers that it has alone, if it still may when its connection stands.
///
/// # Errors
/// As [`failed`]; [`LinkError::Unreachable`] for a URI that is none of HTTP; [`LinkError::Withheld`]
pub async fn send(head: &Head, extra: Extra, body: &Bytes, permit: Option<&Permit>) -> Result<HttpAnswer, LinkError> {
    let Some(place) = &head.http1 else {
        return Err(LinkError::Unreachable("its address is not one of HTTP".to_owned()));
    };
    let is_http2 = &head.trust.is_http2;
    if !is_http2.load(Ordering::Relaxed) {
        if let Some(answer) = http1::send(place, head, &extra, body, permit).await? {
            return Ok(HttpAnswer::Http1(answer));
        }
        is_http2.store(true, Ordering::Relaxed);
    }
    let mut request = of_thread(&head.trust).request(head.method.clone(), &head.uri);
    let headers = request.headers_mut();
    *headers = head.headers.clone();
    extra.iter().for_each(|(name, _)| _ = headers.remove(name));
    extra.into_iter().for_each(|(name, value)| headers.append(name, value));
    let withheld = Rc::new(Cell::new(false));
    let sent = if head.method == Method::POST {
        let body = Permitted { body: body.clone(), permit: permit.cloned(), withheld: Rc::clone(&withheld) };
        request.send_body(body).await
    } else {
        request.send().await
    };
    let response = sent.map_err(|error| if withheld.get() { LinkError::Withheld } else { failed(&error) })?;
    is_http2.store(response.version() == Version::HTTP_2, Ordering::Relaxed);
    Ok(HttpAnswer::Http2(response))
}

/// A body that goes out only if it may at that very moment, which is after the connection was made and the headers were
/// written: without it, they ask for nothing.
struct Permitted {
    body: Bytes,
    permit: Option<Permit>,
    withheld: Rc<Cell<bool>>,
}

impl MessageBody for Permitted {
    type Error = std::io::Error;

    fn size(&self) -> BodySize {
        BodySize::Sized(self.body.len() as u64)
    }

    fn poll_next(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Bytes, Self::Error>>> {
        let this = self.get_mut();
        if this.body.is_empty() {
            return Poll::Ready(None);
        }
        if this.permit.as_ref().is_some_and(|permit| !permit.is_valid()) {
            this.withheld.set(true);
            return Poll::Ready(Some(Err(std::io::Error::other("it may not go out any more"))));
        }
        Poll::Ready(Some(Ok(std::mem::take(&mut this.body))))
    }
}

/// What a failed request was, in terms of what may have been sent.
pub fn failed(error: &SendRequestError) -> LinkError {
    match error {
        // This one comes when a connection ends that the request had been written to.
        SendRequestError::Connect(ConnectError::Disconnected) => {
            LinkError::Lost("the connection was closed before an answer".to_owned())
        }
        SendRequestError::Connect(error) => LinkError::Unreachable(error.to_string()),
        SendRequestError::Url(error) => LinkError::Unreachable(error.to_string()),
        // The server says that it has not looked at it: a refused stream, or one after its orderly goodbye (RFC 9113,
        // sections 6.8 and 8.7).
        SendRequestError::H2(error)
            if match error.reason().map(u32::from) {
                Some(REFUSED_STREAM) => true,
                Some(NO_ERROR) => error.is_go_away() && error.is_remote(),
                _ => false,
            } =>
        {
            LinkError::Unreachable(error.to_string())
        }
        SendRequestError::Response(error) => http1::unreadable(error),
        error => LinkError::Lost(error.to_string()),
    }
}

/// Error codes of HTTP/2 (RFC 9113, section 7).
const NO_ERROR: u32 = 0;
const REFUSED_STREAM: u32 = 7;

/// What a broken body was.
pub fn cut(error: &PayloadError) -> LinkError {
    LinkError::Lost(format!("its answer broke off: {error}"))
}
