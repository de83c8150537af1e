//! The middleware that every request passes on its way in and every response on its way out: the guard of hosts and
//! origins ([`guard`]), the limit of connections, the verification of access tokens by their issuers, the memory for
//! responses that clients leave unread, and compression.
//!
//! One middleware does all of this, because each further one would wrap the future of a request and the body of its
//! response once more.
//!
//! The unsent part of a response counts as memory of the requesting principal, until the client has read it. Short
//! responses pass unchanged. Long responses are sent in slices, so that no connection buffers a whole response. If
//! memory runs out, the connections whose clients have not read for the longest time are closed
//! ([`countersign_exchange::memory`]).

use std::{
    future::{Future, Ready},
    pin::Pin,
    rc::Rc,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use actix_http::encoding::Encoder;
use actix_web::{
    Error, HttpRequest, HttpResponse, ResponseError as _,
    body::{BodySize, BoxBody, MessageBody},
    dev::{Service, ServiceRequest, ServiceResponse, Transform},
    http::{
        ConnectionType, StatusCode, Version,
        header::{
            ACCEPT_ENCODING, AcceptEncoding, CONNECTION, CONTENT_TYPE, ContentEncoding, Encoding, Header as _,
            HeaderValue, RETRY_AFTER, VARY,
        },
    },
};

use bytes::Bytes;
use futures_util::future::{Either, LocalBoxFuture};
use parking_lot::Mutex;

use crate::{
    connections::{Connection, ConnectionCutter, OpenRequest},
    framing::{EmbeddedBody, SLICE_BYTES},
    guard::{self, Cors, RequestAuthenticator, identify_agent, refusal_response},
    problem::Problem,
    protected_resource,
};
use countersign_auth::authenticator::{TokenCheck, authorization_header};
use countersign_exchange::{
    eviction::monotonic_ms,
    memory::{EXEMPT_MESSAGE_BYTES, MemoryBudget, MemoryShare, UnreadHolder, WeakHolder},
};
use countersign_protocol::{ErrorKind, McpError};
use countersign_runtime::reclaim;

/// The size in bytes below which a response fits into one packet and is not compressed. Compressing 200 bytes costs
/// more than sending them, and actix-web's own middleware compresses everything.
const MIN_COMPRESSED_BYTES: u64 = 1400;

/// The maximum time for which a request waits for the issuer of its token.
const MAX_ISSUER_WAIT: Duration = Duration::from_secs(10);

/// The middleware, which must be the last (outermost) `wrap` of the application.
#[derive(Clone)]
pub struct Front {
    authentication: Arc<RequestAuthenticator>,
    memory: Arc<MemoryBudget>,
}

impl Front {
    pub const fn new(authentication: Arc<RequestAuthenticator>, memory: Arc<MemoryBudget>) -> Self {
        Self { authentication, memory }
    }
}

impl<S> Transform<S, ServiceRequest> for Front
where
    S: Service<ServiceRequest, Response = ServiceResponse, Error = Error> + 'static,
    S::Future: Unpin,
{
    type Response = ServiceResponse<Encoder<BoxBody>>;
    type Error = Error;
    type Transform = FrontService<S>;
    type InitError = ();
    type Future = Ready<Result<Self::Transform, ()>>;

    fn new_transform(&self, service: S) -> Self::Future {
        std::future::ready(Ok(FrontService { service: Rc::new(service), front: Rc::new(self.clone()) }))
    }
}

/// The application wrapped in [`Front`].
pub struct FrontService<S> {
    service: Rc<S>,
    front: Rc<Front>,
}

impl<S> Service<ServiceRequest> for FrontService<S>
where
    S: Service<ServiceRequest, Response = ServiceResponse, Error = Error> + 'static,
    S::Future: Unpin,
{
    type Response = ServiceResponse<Encoder<BoxBody>>;
    type Error = Error;
    type Future = FrontFuture<S::Future>;

    actix_web::dev::forward_ready!(service);

    fn call(&self, request: ServiceRequest) -> Self::Future {
        let refuse = |request: ServiceRequest, response: HttpResponse, cors| {
            FrontFuture::Refused(Some(Box::new(request.into_response(response))), cors)
        };
        let cors = match guard::admit(&self.front.authentication.origins, &request) {
            Ok(cors) => cors,
            Err(response) => return refuse(request, *response, Cors::No),
        };
        let connection = Connection::for_request(request.request());
        if connection.as_ref().is_some_and(|connection| !self.front.admit_connection(connection, request.request())) {
            drop(connection);
            return refuse(request, too_many_connections(), cors);
        }
        let open = connection.map(|connection| connection.open_request());
        let front = Rc::clone(&self.front);
        let response = match front.check_token(&request) {
            Ok(None) => Either::Left(self.service.call(request)),
            Ok(Some(query)) => Either::Right(call_after_issuer_query(query, Rc::clone(&self.service), request)),
            Err(error) => {
                let response = refusal_response(request.path(), &error);
                return refuse(request, response, cors);
            }
        };
        FrontFuture::Admitted { response, front, cors, _open: open }
    }
}

type ResponseFuture = LocalBoxFuture<'static, Result<ServiceResponse, Error>>;

/// Passes a request on when the issuer of its token has answered the query, or after [`MAX_ISSUER_WAIT`].
fn call_after_issuer_query<S>(
    query: impl Future<Output = ()> + 'static,
    service: Rc<S>,
    request: ServiceRequest,
) -> ResponseFuture
where
    S: Service<ServiceRequest, Response = ServiceResponse, Error = Error> + 'static,
{
    Box::pin(async move {
        // Without an answer the token is refused.
        let _ = tokio::time::timeout(MAX_ISSUER_WAIT, query).await;
        service.call(request).await
    })
}

impl Front {
    /// Verifies the access token of a request once, so that its later authentication need not wait. If the issuer of the
    /// token must be asked first, returns a future that asks it.
    ///
    /// # Errors
    /// `RATE_LIMITED` as [`Authenticator::check_issuer_limit`].
    fn check_token(&self, request: &ServiceRequest) -> Result<Option<impl Future<Output = ()> + 'static>, McpError> {
        let authenticator = &self.authentication.authenticator;
        if !authenticator.tokens().is_enabled() || is_public(request.path()) {
            return Ok(None);
        }
        let Ok(Some(header)) = authorization_header(request.headers()) else { return Ok(None) };
        let token = match authenticator.check_token(header) {
            Some(TokenCheck::NeedsIssuer(token)) => token,
            Some(TokenCheck::Identified(identity)) => {
                guard::set_token_identity(request, identity);
                return Ok(None);
            }
            None => return Ok(None),
        };
        let address = self.authentication.client_address(request.request());
        authenticator.check_issuer_limit(token, address)?;
        let (authenticator, token) = (Arc::clone(authenticator), token.to_owned());
        Ok(Some(async move { authenticator.ask_issuer(&token, address).await }))
    }

    /// Admits the connection of a request if it is within the limit, or reserves one of the places for reviewers for
    /// it. Returns `false` if there is no place.
    fn admit_connection(&self, connection: &Connection, request: &HttpRequest) -> bool {
        !connection.is_refused() || (self.authentication.may_view(request) && connection.reserve_reviewer_place())
    }

    /// Counts the body of a response, or refuses the request if there is no memory for it.
    fn count_response(&self, response: ServiceResponse) -> ServiceResponse {
        let size = response.response().body().size();
        let is_long = match size {
            BodySize::None => false,
            BodySize::Sized(bytes) => bytes > EXEMPT_MESSAGE_BYTES as u64,
            // The outbox of a WebSocket counts its own messages.
            BodySize::Stream => response.status() != StatusCode::SWITCHING_PROTOCOLS,
        };
        if !is_long || is_embedded(&response) {
            return response;
        }
        let Some(share) = self.share_of_requester(response.request()) else { return response };
        let pending = PendingBody::new(share, cutter_if_exclusive(response.request()));
        let (request, response) = response.into_parts();
        let (response, body) = response.into_parts();
        let source = match body.try_into_bytes() {
            Ok(whole) if pending.hold(&whole) => None,
            Ok(_) => return ServiceResponse::new(request.clone(), no_memory_response(&request)),
            Err(pieces) => Some(pieces),
        };
        ServiceResponse::new(request, response.set_body(BoxBody::new(CountedBody { source, size, pending })))
    }

    /// Returns the memory share of the requesting principal. A request whose principal is unknown has none, and its
    /// response is not counted.
    fn share_of_requester(&self, request: &HttpRequest) -> Option<MemoryShare> {
        let authenticator = &self.authentication.authenticator;
        let identity =
            self.authentication.identify(request).or_else(|_| identify_agent(authenticator, request)).ok()?;
        Some(self.memory.share(&identity.principal.name))
    }
}

/// Returns `true` if a path is served without a credential.
fn is_public(path: &str) -> bool {
    matches!(path, "/" | "/health") || path.starts_with("/assets/") || path.starts_with("/.well-known/")
}

fn too_many_connections() -> HttpResponse {
    let mut response = Problem::new(ErrorKind::Overloaded, "too many connections").error_response();
    response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    response.head_mut().set_connection_type(ConnectionType::Close);
    response
}

/// The future of the response to a request.
pub enum FrontFuture<F> {
    /// The refusal. It is `None` after the future has returned it.
    Refused(Option<Box<ServiceResponse>>, Cors),
    Admitted {
        response: Either<F, ResponseFuture>,
        front: Rc<Front>,
        cors: Cors,
        /// Keeps the connection from being evicted while the request is open.
        _open: Option<OpenRequest>,
    },
}

impl<F> Future for FrontFuture<F>
where
    F: Future<Output = Result<ServiceResponse, Error>> + Unpin,
{
    type Output = Result<ServiceResponse<Encoder<BoxBody>>, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let (mut response, cors) = match &mut *self {
            Self::Admitted { response, front, cors, .. } => {
                let mut response = ready!(Pin::new(response).poll(cx))?;
                let status = response.status();
                if matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) {
                    let (tokens, request) = (front.authentication.authenticator.tokens(), response.request().clone());
                    protected_resource::complete_challenge(tokens, request.path(), status, response.headers_mut());
                }
                (front.count_response(response), cors)
            }
            // A refusal is short and needs no memory.
            Self::Refused(response, cors) => match response.take() {
                Some(response) => (*response, cors),
                None => return Poll::Pending,
            },
        };
        cors.add_headers(response.headers_mut());
        Poll::Ready(Ok(compress(response)))
    }
}

/// Compresses a long response if the client accepts gzip. Event streams are never compressed, and embedded bodies already
/// are if they should be.
fn compress(response: ServiceResponse) -> ServiceResponse<Encoder<BoxBody>> {
    let is_long = matches!(response.response().body().size(), BodySize::Sized(n) if n >= MIN_COMPRESSED_BYTES);
    let is_stream =
        || response.headers().get(CONTENT_TYPE).is_some_and(|t| t.as_bytes().starts_with(b"text/event-stream"));
    let is_compressible = is_long && !is_stream() && !is_embedded(&response);
    let encoding = if is_compressible && accepts_gzip(response.request()) {
        ContentEncoding::Gzip
    } else {
        ContentEncoding::Identity
    };
    response.map_body(|head, body| {
        if is_compressible {
            head.headers.append(VARY, HeaderValue::from_static("Accept-Encoding"));
        }
        Encoder::response(encoding, head, body)
    })
}

/// Returns `true` if a client prefers gzip to an uncompressed body, which every client can read.
pub fn accepts_gzip(request: &HttpRequest) -> bool {
    const SUPPORTED_ENCODINGS: [Encoding; 2] = [Encoding::gzip(), Encoding::identity()];
    if !request.headers().contains_key(ACCEPT_ENCODING) {
        return false;
    }
    let accepted = AcceptEncoding::parse(request).ok();
    accepted.and_then(|accepted| accepted.negotiate(SUPPORTED_ENCODINGS.iter())) == Some(Encoding::gzip())
}

fn is_embedded(response: &ServiceResponse) -> bool {
    response.response().extensions().contains::<EmbeddedBody>()
}

/// Returns the cutter of the connection of a request, or `None` if other requests share the connection.
fn cutter_if_exclusive(request: &HttpRequest) -> Option<ConnectionCutter> {
    let connection = Connection::for_request(request)?;
    (request.version() < Version::HTTP_2 && !connection.is_peer()).then(|| connection.cutter())
}

fn no_memory_response(request: &HttpRequest) -> HttpResponse {
    let text = "the request was handled, but the gateway has no memory for its answer (limits.total_memory)";
    refusal_response(request.path(), &McpError::new(ErrorKind::Overloaded, text))
}

/// A body that is sent in slices, and is counted until the connection has taken all of them.
struct CountedBody {
    /// Yields the pieces of the body. `None` if the whole body is pending already.
    source: Option<BoxBody>,
    size: BodySize,
    pending: Arc<PendingBody>,
}

/// The piece of a body that the client has not read yet.
struct PendingBody(Mutex<PendingState>);

struct PendingState {
    rest: Bytes,
    /// The time at which the connection last took a slice, by [`monotonic_ms`].
    since: u64,
    is_closed: bool,
    /// The size of the largest piece. The memory of a large one is returned to the system at the end.
    largest_piece: usize,
    /// Covers the whole piece until its last slice is taken, because the slice keeps all of it.
    share: MemoryShare,
    /// Breaks the connection; `None` if other requests share it.
    cut: Option<ConnectionCutter>,
}

/// Estimates the memory of a long piece, including the values it was serialized from and the buffers of its connection.
/// The factor comes from measurements with `scripts/memory`.
const fn estimate_memory(bytes: usize) -> usize {
    bytes.saturating_add(bytes / 2)
}

impl PendingBody {
    fn new(share: MemoryShare, cut: Option<ConnectionCutter>) -> Arc<Self> {
        let state =
            PendingState { rest: Bytes::new(), since: monotonic_ms(), is_closed: false, largest_piece: 0, share, cut };
        Arc::new(Self(Mutex::new(state)))
    }

    /// Holds a piece for its client. Returns `false` if there is no memory for it.
    fn hold(self: &Arc<Self>, piece: &Bytes) -> bool {
        let mut state = self.0.lock();
        state.since = monotonic_ms();
        let PendingState { share, since, .. } = &mut *state;
        let unread = || Arc::downgrade(self) as WeakHolder;
        if !share.cover_messages(estimate_memory(piece.len()), *since, unread) {
            return false;
        }
        state.rest = piece.clone();
        state.largest_piece = state.largest_piece.max(piece.len());
        // The values that the piece was serialized from are free by now.
        reclaim::collect_if_large(piece.len());
        true
    }
}

impl UnreadHolder for PendingBody {
    fn unread_since(&self) -> Option<u64> {
        let state = self.0.try_lock()?;
        (state.share.bytes() > 0).then_some(state.since)
    }

    fn close(&self) -> bool {
        let Some(mut state) = self.0.try_lock() else { return false };
        tracing::warn!("a connection is closed: its client does not read, and there is no memory for its answer");
        state.is_closed = true;
        state.rest = Bytes::new();
        state.share.shrink_to(0);
        // Another body takes the memory at once.
        reclaim::collect_before_large();
        if let Some(cut) = &state.cut {
            cut();
        }
        true
    }
}

impl Drop for CountedBody {
    fn drop(&mut self) {
        // This drop runs on the thread that created the body, whose memory is collected.
        let largest_piece = self.pending.0.lock().largest_piece;
        reclaim::collect_if_large(largest_piece);
    }
}

impl MessageBody for CountedBody {
    type Error = Box<dyn std::error::Error>;

    fn size(&self) -> BodySize {
        self.size
    }

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Self::Error>>> {
        let body = &mut *self;
        loop {
            let mut state = body.pending.0.lock();
            if state.is_closed {
                return Poll::Ready(Some(Err("the client did not read".into())));
            }
            if !state.rest.is_empty() {
                state.since = monotonic_ms();
                let slice = state.rest.len().min(SLICE_BYTES);
                return Poll::Ready(Some(Ok(state.rest.split_to(slice))));
            }
            state.share.shrink_to(0);
            drop(state);
            let Some(source) = &mut body.source else { return Poll::Ready(None) };
            match ready!(Pin::new(source).poll_next(cx)) {
                Some(Ok(piece)) if piece.len() <= EXEMPT_MESSAGE_BYTES => return Poll::Ready(Some(Ok(piece))),
                Some(Ok(piece)) if body.pending.hold(&piece) => {}
                Some(Ok(_)) => return Poll::Ready(Some(Err("there is no memory for the answer".into()))),
                other => return Poll::Ready(other),
            }
        }
    }
}

#[cfg(test)]
mod tests;
