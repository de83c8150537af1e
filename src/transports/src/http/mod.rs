//! Streamable HTTP at `/mcp` for both eras, the 2024-11-05 pair, and the plain HTTP endpoints: their routes, and how all of
//! them authenticate a request, read its headers and its body, and refuse it.

pub mod event_streams;
pub mod legacy_pair;
pub mod mcp;
pub mod modern;
pub mod plain;
pub mod post;
pub mod session;
#[cfg(test)]
mod tests;

use std::{
    pin::pin,
    task::{Context, Poll, Waker},
};

use actix_web::{
    FromRequest, Handler, HttpMessage as _, HttpRequest, HttpResponse, Resource, Responder,
    dev::Payload,
    error::PayloadError,
    guard,
    http::{
        Method,
        header::{ContentLength, HeaderMap},
    },
    web,
};
use bytes::{Bytes, BytesMut};
use futures_util::{Stream, StreamExt, future, stream};

use crate::endpoint::McpEndpoint;
use countersign_config::HttpConfig;
use countersign_domain::principal::Identity;
use countersign_exchange::body_budget::Reservation;
use countersign_http::{
    answer,
    connections::Connection,
    guard::identify_agent,
    methods,
    protected_resource::{self, METADATA_PATH},
};
use countersign_protocol::{
    ErrorKind, McpError, RequestId, Revision,
    headers::{HeaderField, Headers},
};
use countersign_runtime::reclaim;
use countersign_session::middleware::check_access;
use countersign_telemetry::RequestMetrics;

/// Adds the endpoints of Streamable HTTP, of the 2024-11-05 pair and of plain HTTP.
pub fn routes(cfg: &mut web::ServiceConfig) {
    cfg.service(
        web::resource("/mcp")
            // `web::post()` would record POST in a map of each request for a 405 response, which is built here without it.
            .route(web::route().guard(guard::fn_guard(|ctx| ctx.head().method == Method::POST)).to(mcp::post))
            .route(web::get().to(mcp::get))
            .route(web::delete().to(mcp::delete))
            .default_service(web::to(|| async {
                answer::method_not_allowed("use POST (or GET and DELETE with a session)", "POST, GET, DELETE")
            })),
    )
    .service(web::resource("/sse").route(web::get().to(legacy_pair::stream)))
    .service(web::resource("/messages").route(web::post().to(legacy_pair::message)))
    .service(read_only_resource("/health", plain::health))
    .service(read_only_resource("/info", plain::info))
    .service(read_only_resource("/metrics", plain::metrics))
    .service(read_only_resource("/tools", plain::tools))
    .service(
        web::resource("/tools/{name}")
            .route(web::post().to(plain::call))
            .default_service(methods::refuse_other_methods("POST")),
    );
    for endpoint in std::iter::once("").chain(protected_resource::ENDPOINTS) {
        cfg.service(read_only_resource(&format!("{METADATA_PATH}{endpoint}"), plain::resource_metadata));
    }
}

/// Returns the resource of a path that can only be read.
fn read_only_resource<F, Args>(path: &str, handler: F) -> Resource
where
    F: Handler<Args, Output: Responder + 'static>,
    Args: FromRequest + 'static,
{
    web::resource(path)
        .route(web::route().guard(methods::get_or_head()).to(handler))
        .default_service(methods::refuse_other_methods(methods::READ_METHODS))
}

/// Authenticates an agent, as [`identify_agent`] does.
///
/// # Errors
/// `UNAUTHORIZED`.
pub fn identify(endpoint: &McpEndpoint, request: &HttpRequest) -> Result<Identity, McpError> {
    identify_agent(&endpoint.sessions.authenticator, request)
}

/// Authenticates an agent, and checks that it may use the MCP endpoints.
///
/// # Errors
/// Those of [`identify`] and [`check_access`].
pub fn identify_caller(endpoint: &McpEndpoint, request: &HttpRequest) -> Result<Identity, McpError> {
    let identity = identify(endpoint, request)?;
    check_access(&identity).map(|()| identity)
}

/// Refuses a request with the status of its error, and counts the error.
fn refuse(error: &McpError, revision: Revision) -> HttpResponse {
    refuse_message(error.kind.status(), None, error, revision)
}

/// Refuses the request with that id, and counts the error.
fn refuse_message(status: u16, id: Option<&RequestId>, error: &McpError, revision: Revision) -> HttpResponse {
    RequestMetrics::get().record_error(error.kind);
    answer::error_with_status(status, id, error, revision)
}

/// The headers of a request, as the protocol layer reads them.
pub struct HeaderView<'a>(pub &'a HeaderMap);

impl Headers for HeaderView<'_> {
    fn field(&self, name: &str) -> HeaderField<'_> {
        let mut all = match names::find_known(name) {
            Some(name) => self.0.get_all(name),
            None => self.0.get_all(name),
        };
        match (all.next(), all.next()) {
            (None, _) => HeaderField::Absent,
            (Some(value), None) => HeaderField::One(value.as_bytes()),
            (Some(_), Some(_)) => HeaderField::Repeated,
        }
    }
}

/// The names of protocol headers that are looked up in every request. Finding a parsed name costs less than parsing it.
pub mod names {
    use actix_web::http::header::HeaderName;

    use countersign_protocol::headers;

    pub static PROTOCOL_VERSION: HeaderName = HeaderName::from_static(headers::PROTOCOL_VERSION);
    pub static SESSION_ID: HeaderName = HeaderName::from_static("mcp-session-id");
    static METHOD: HeaderName = HeaderName::from_static(headers::METHOD);
    static NAME: HeaderName = HeaderName::from_static(headers::NAME);

    /// Returns the parsed form of a name, if it is one of those above.
    pub fn find_known(name: &str) -> Option<&'static HeaderName> {
        [&PROTOCOL_VERSION, &METHOD, &NAME].into_iter().find(|known| known.as_str() == name)
    }
}

/// Reads the whole body of a request, within `transports.http.max_body` and `transports.http.request_timeout`. A longer one is
/// refused before it arrives if its length is announced.
///
/// Also returns the body's reservation in the budget for bodies, which lasts until the request is answered. A body that arrives
/// in one piece on HTTP/1.1 needs no reservation: it fits into the buffers of its connection, which carries no other body.
///
/// # Errors
/// `TOO_LARGE`, `TIMEOUT`, `INVALID_REQUEST` if the body ended early, or `OVERLOADED` if the budget has no room.
pub async fn read_body(
    request: &HttpRequest,
    mut payload: Payload,
    endpoint: &McpEndpoint,
) -> Result<(Bytes, Option<Reservation>), McpError> {
    let HttpConfig { max_body: max, request_timeout, .. } = endpoint.transports.http;
    let connection = Connection::for_request(request);
    let budget = || connection.as_ref().map_or_else(|| endpoint.connections.new_budget(), |own| own.budget());
    let is_http1 = matches!(payload, Payload::H1 { .. });
    let mut reading = pin!(async {
        let first = if is_http1 { poll_first(&mut payload).await } else { None };
        let reservation = (!is_http1).then(|| budget().new_reservation());
        let mut pieces = stream::iter(first).chain(&mut payload);
        read_pieces(&mut pieces, max, reservation, || budget().new_reservation()).await
    });
    // The first poll of `poll_first` comes before the body is read, so it does not tell whether the body has arrived.
    let mut is_waiting = !is_http1;
    let mut awaited = None;
    let reading = future::poll_fn(|cx| {
        let poll = reading.as_mut().poll(cx);
        if poll.is_pending() {
            let is_too_long = || request.get_header::<ContentLength>().is_some_and(|length| length.into_inner() > max);
            if std::mem::replace(&mut is_waiting, true) && is_too_long() {
                return Poll::Ready(Err(too_large(max)));
            }
            if awaited.is_none() {
                awaited = connection.as_ref().map(|connection| connection.await_body());
            }
        }
        poll
    });
    tokio::time::timeout(request_timeout, reading)
        .await
        .unwrap_or_else(|_| Err(McpError::new(ErrorKind::Timeout, "the body did not arrive in time")))
}

/// Returns the HTTP status of an error of a request with a body: a body that comes too late is the fault of the client (408)
/// and not of the gateway (504).
fn body_error_status(error: &McpError) -> u16 {
    if error.kind == ErrorKind::Timeout { 408 } else { error.kind.status() }
}

/// Returns the piece of an HTTP/1.1 body that is available at once.
///
/// The server calls a handler before it has read what follows the head, reads, and calls it again, all in one turn of the
/// connection's task. A waker that is registered the first time would only cost the task a second turn with nothing to do.
async fn poll_first(payload: &mut Payload) -> Option<Result<Bytes, PayloadError>> {
    let mut has_polled = false;
    future::poll_fn(|_| match payload.poll_next_unpin(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(piece) => Poll::Ready(piece),
        Poll::Pending if std::mem::replace(&mut has_polled, true) => Poll::Ready(None),
        Poll::Pending => Poll::Pending,
    })
    .await
}

/// Reads a body to its end. `reservation` is set for a body that is counted even if it arrives in one piece.
async fn read_pieces<S, E>(
    pieces: &mut S,
    max: usize,
    mut reservation: Option<Reservation>,
    new_reservation: impl FnOnce() -> Reservation,
) -> Result<(Bytes, Option<Reservation>), McpError>
where
    S: Stream<Item = Result<Bytes, E>> + Unpin,
{
    let broken = |_| McpError::new(ErrorKind::InvalidRequest, "the body broke off");
    // Most bodies arrive in one piece, which is not copied.
    let first = pieces.next().await.transpose().map_err(broken)?.unwrap_or_default();
    if first.len() > max {
        return Err(too_large(max));
    }
    if let Some(reservation) = &mut reservation {
        reservation.grow(first.len()).await?;
    }
    let Some(second) = pieces.next().await.transpose().map_err(broken)? else { return Ok((first, reservation)) };
    let mut reservation = match reservation {
        Some(reservation) => reservation,
        None => {
            let mut reservation = new_reservation();
            reservation.grow(first.len()).await?;
            reservation
        }
    };
    let mut body = UnfinishedBody(BytesMut::from(first));
    let mut next = Some(second);
    while let Some(piece) = next {
        if body.0.len() + piece.len() > max {
            return Err(too_large(max));
        }
        // Nothing more is read until there is room.
        reservation.grow(piece.len()).await?;
        body.0.extend_from_slice(&piece);
        next = pieces.next().await.transpose().map_err(broken)?;
    }
    Ok((std::mem::take(&mut body.0).freeze(), Some(reservation)))
}

fn too_large(max: usize) -> McpError {
    McpError::new(ErrorKind::TooLarge, "the body is too large").with("limit", max as u64)
}

/// The part of a body that has arrived. If the body never ends, its memory is given back to the system.
struct UnfinishedBody(BytesMut);

impl Drop for UnfinishedBody {
    fn drop(&mut self) {
        reclaim::collect_if_large(self.0.capacity());
    }
}
