//! The HTTP client of each worker thread: its own pool of kept-alive connections, TLS verified, nothing followed.

use std::{
    cell::{Cell, RefCell},
    collections::HashMap,
    pin::Pin,
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use actix_http::body::{BodySize, MessageBody};
use actix_service::ServiceExt;
use actix_tls::connect::{Connection, Resolver};
use actix_web::rt::net::TcpStream;
use awc::{
    Client, ClientResponse, FrozenClientRequest,
    error::{ConnectError, PayloadError, SendRequestError},
    http::{
        StatusCode, Uri,
        header::{self, HeaderMap, HeaderName, HeaderValue},
    },
};
use bytes::Bytes;
use futures_util::Stream;
use smallvec::SmallVec;

use super::{
    head::Field,
    io::Io,
    plain,
    trust::{self, Trust},
};
use crate::link::LinkError;
use countersign_net as net;
use countersign_provider::Permit;

/// How long a connection may be idle and still be used again. Node and uvicorn close theirs after 5 s: a request that
/// meets such an end is lost and must not be repeated if it writes.
pub(super) const IDLE: Duration = Duration::from_secs(4);

/// Prepared requests that one thread keeps. More links than this are rebuilt now and then, no more.
const KEPT: usize = 4096;

/// Clients for servers with authorities of their own that one thread keeps: more than that are configured anew now and
/// then, no more.
const KEPT_CLIENTS: usize = 64;

/// What requests of one link have in common: one URI and the headers that every one of them has.
pub struct Head {
    /// Unique, for the threads' own copies.
    key: u64,
    uri: Uri,
    headers: HeaderMap,
    trust: Option<Arc<Trust>>,
    /// Of a server without TLS.
    plain: Option<plain::Place>,
}

impl Head {
    pub fn new(uri: Uri, headers: HeaderMap, trust: Option<Arc<Trust>>) -> Arc<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let plain = plain::Place::new(&uri, &headers);
        Arc::new(Self { key: NEXT.fetch_add(1, Ordering::Relaxed), uri, headers, trust, plain })
    }
}

// `HeaderMap` and `Uri` are `Send + Sync`; requests made of them are not, so each thread has its own.
thread_local! {
    static CLIENTS: RefCell<Clients> = RefCell::new(Clients::new());
    static FROZEN: RefCell<HashMap<u64, FrozenClientRequest>> = RefCell::default();
}

struct Clients {
    public: Client,
    /// By [`Trust::key`].
    own: HashMap<u64, Client>,
}

impl Clients {
    fn new() -> Self {
        Self { public: client(trust::config(None, true)), own: HashMap::new() }
    }

    fn trusting(&mut self, trust: &Trust) -> Client {
        if self.own.len() >= KEPT_CLIENTS && !self.own.contains_key(&trust.key) {
            self.own.clear();
        }
        self.own.entry(trust.key).or_insert_with(|| client(trust::config(Some(trust), true))).clone()
    }
}

fn client(tls: Arc<rustls::ClientConfig>) -> Client {
    let tcp = actix_tls::connect::Connector::new(Resolver::default()).service();
    let tcp = tcp.map(|connection: Connection<Uri, TcpStream>| {
        let (tcp, uri) = connection.into_parts();
        Connection::new(uri, Io::new(tcp))
    });
    net::client_over(tcp, tls)
}

/// Sets whom this thread trusts from now on, for tests.
#[cfg(test)]
pub fn trust(roots: rustls::RootCertStore, http2: bool) {
    let protocols: &[&[u8]] = if http2 { &[net::tls::HTTP_2, net::tls::HTTP_1_1] } else { &[net::tls::HTTP_1_1] };
    CLIENTS.with_borrow_mut(|clients| clients.public = client(net::tls::client_config(roots, protocols)));
    FROZEN.with_borrow_mut(HashMap::clear);
}

/// A client whose requests may be upgraded: WebSocket has no HTTP/2 here.
pub fn upgrading(trust: Option<&Arc<Trust>>) -> Client {
    client(trust::config(trust.map(|trust| &**trust), false))
}

/// Returns this thread's client for a server that is trusted so.
pub fn of_thread(trust: Option<&Arc<Trust>>) -> Client {
    CLIENTS.with_borrow_mut(|clients| match trust {
        Some(trust) => clients.trusting(trust),
        None => clients.public.clone(),
    })
}

/// An answer, whichever client has it.
pub enum HttpAnswer {
    Plain(plain::PlainAnswer),
    General(ClientResponse),
}

impl HttpAnswer {
    pub fn status(&self) -> StatusCode {
        match self {
            Self::Plain(answer) => answer.head.status(),
            Self::General(response) => response.status(),
        }
    }

    /// The first header of that kind.
    pub fn field(&self, field: Field) -> Option<&[u8]> {
        match self {
            Self::Plain(answer) => answer.head.field(field),
            Self::General(response) => response.headers().get(field.name()).map(HeaderValue::as_bytes),
        }
    }

    /// What its `Content-Length` says.
    pub fn length(&self) -> Option<u64> {
        match self {
            Self::Plain(answer) => answer.head.length(),
            Self::General(response) => response.headers().get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok(),
        }
    }
}

impl From<ClientResponse> for HttpAnswer {
    fn from(response: ClientResponse) -> Self {
        Self::General(response)
    }
}

impl Stream for HttpAnswer {
    type Item = Result<Bytes, PayloadError>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        match self.get_mut() {
            Self::Plain(answer) => Pin::new(answer).poll_next(cx),
            Self::General(response) => Pin::new(response).poll_next(cx),
        }
    }
}

/// The headers that one request has alone; few.
pub type Extra = SmallVec<[(HeaderName, HeaderValue); 2]>;

/// Sends a POST with that head and the headers that it has alone, if it still may when its connection stands.
///
/// # Errors
/// As [`failed`]; [`LinkError::Unreachable`] for a URI that is none of HTTP; [`LinkError::Withheld`]
pub async fn post(head: &Head, extra: Extra, body: &Bytes, permit: Option<&Permit>) -> Result<HttpAnswer, LinkError> {
    if let Some(place) = &head.plain {
        return plain::post(place, (&head.uri, &head.headers), &extra, body, permit).await.map(HttpAnswer::Plain);
    }
    let request = frozen(head)?;
    if let Some(permit) = permit {
        let request = request.extra_headers(extra.into_iter().collect::<HeaderMap>());
        let withheld = Rc::new(Cell::new(false));
        let body = Permitted { body: body.clone(), permit: permit.clone(), withheld: Rc::clone(&withheld) };
        let sent = request.send_body(body).await.map(HttpAnswer::General);
        return sent.map_err(|error| if withheld.get() { LinkError::Withheld } else { failed(&error) });
    }
    let sent = if extra.is_empty() {
        request.send_body(body.clone()).await
    } else {
        request.extra_headers(extra.into_iter().collect::<HeaderMap>()).send_body(body.clone()).await
    };
    sent.map(HttpAnswer::General).map_err(|error| failed(&error))
}

/// A body that goes out only if it may at that very moment, which is after the connection was made and the headers were
/// written: without it, they ask for nothing.
struct Permitted {
    body: Bytes,
    permit: Permit,
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
        if !this.permit.holds() {
            this.withheld.set(true);
            return Poll::Ready(Some(Err(std::io::Error::other("it may not go out any more"))));
        }
        Poll::Ready(Some(Ok(std::mem::take(&mut this.body))))
    }
}

/// What this thread's general client sends for that head.
fn frozen(head: &Head) -> Result<FrozenClientRequest, LinkError> {
    if let Some(frozen) = FROZEN.with_borrow(|kept| kept.get(&head.key).cloned()) {
        return Ok(frozen);
    }
    let mut request = of_thread(head.trust.as_ref()).post(&head.uri);
    *request.headers_mut() = head.headers.clone();
    let frozen = request.freeze().map_err(|error| LinkError::Unreachable(error.to_string()))?;
    FROZEN.with_borrow_mut(|kept| {
        if kept.len() >= KEPT {
            kept.clear();
        }
        kept.insert(head.key, frozen.clone());
    });
    Ok(frozen)
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
        SendRequestError::Response(error) => plain::unreadable(error),
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
