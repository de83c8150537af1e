//! The middleware that every request passes on its way in and every response on its way out: the guard of hosts and
//! origins ([`guard`]), the limit of connections, the memory for responses that clients leave unread ([`unread`]), and
//! compression.
//!
//! One middleware does all of this, because each further one would wrap the future of a request and the body of its response
//! once more.

pub mod unread;

use std::{
    future::{Future, Ready, ready},
    pin::Pin,
    rc::Rc,
    sync::Arc,
    task::{Context, Poll},
};

use actix_http::encoding::Encoder;
use actix_web::{
    Error, HttpRequest, HttpResponse, ResponseError as _,
    body::{BodySize, BoxBody, MessageBody as _},
    dev::{Service, ServiceRequest, ServiceResponse, Transform},
    http::{
        ConnectionType,
        header::{
            ACCEPT_ENCODING, AcceptEncoding, CONNECTION, CONTENT_TYPE, ContentEncoding, Encoding, Header as _,
            HeaderValue, RETRY_AFTER, VARY,
        },
    },
};

use crate::{
    authentication::RequestAuthenticator,
    connections::{Connection, OpenRequest},
    guard::{self, Cors},
    problem::Problem,
};
use countersign_exchange::memory::Memory;
use countersign_protocol::ErrorKind;

/// Size in bytes below which a response fits into one packet and is not compressed. Compressing 200 bytes costs more than
/// sending them, and actix-web's own middleware compresses everything.
const MIN_COMPRESSED_BYTES: u64 = 1400;

/// The middleware, which must be the last (outermost) `wrap` of the application.
#[derive(Clone)]
pub struct Front {
    authentication: Arc<RequestAuthenticator>,
    memory: Arc<Memory>,
}

impl Front {
    #[must_use]
    pub const fn new(authentication: Arc<RequestAuthenticator>, memory: Arc<Memory>) -> Self {
        Self { authentication, memory }
    }
}

impl<S> Transform<S, ServiceRequest> for Front
where
    S: Service<ServiceRequest, Response = ServiceResponse, Error = Error>,
    S::Future: Unpin,
{
    type Response = ServiceResponse<Encoder<BoxBody>>;
    type Error = Error;
    type Transform = FrontService<S>;
    type InitError = ();
    type Future = Ready<Result<Self::Transform, ()>>;

    fn new_transform(&self, service: S) -> Self::Future {
        ready(Ok(FrontService { service, front: Rc::new(self.clone()) }))
    }
}

/// The application wrapped in [`Front`].
pub struct FrontService<S> {
    service: S,
    front: Rc<Front>,
}

impl<S> Service<ServiceRequest> for FrontService<S>
where
    S: Service<ServiceRequest, Response = ServiceResponse, Error = Error>,
    S::Future: Unpin,
{
    type Response = ServiceResponse<Encoder<BoxBody>>;
    type Error = Error;
    type Future = FrontFuture<S::Future>;

    actix_web::dev::forward_ready!(service);

    fn call(&self, request: ServiceRequest) -> Self::Future {
        let refused = |request: ServiceRequest, response: HttpResponse, cors| {
            FrontFuture::Refused(Some(Box::new(request.into_response(response))), cors)
        };
        let cors = match guard::admit(&self.front.authentication.origins, &request) {
            Ok(cors) => cors,
            Err(response) => return refused(request, *response, Cors::No),
        };
        let connection = Connection::for_request(request.request());
        if connection.as_ref().is_some_and(|connection| self.front.exceeds_limit(connection, request.request())) {
            drop(connection);
            return refused(request, too_many_connections(), cors);
        }
        let open = connection.map(|connection| connection.open_request());
        let front = Rc::clone(&self.front);
        FrontFuture::Admitted { response: self.service.call(request), front, cors, _open: open }
    }
}

impl Front {
    /// Returns `true` if the connection of a request exceeds the limit and gets no place reserved for reviewers either.
    fn exceeds_limit(&self, connection: &Connection, request: &HttpRequest) -> bool {
        connection.is_refused() && !(self.authentication.may_view(request) && connection.reserve_reviewer_place())
    }
}

fn too_many_connections() -> HttpResponse {
    let mut response = Problem::new(ErrorKind::Overloaded, "too many connections").error_response();
    response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    response.head_mut().set_connection_type(ConnectionType::Close);
    response
}

/// The response to a request.
pub enum FrontFuture<F> {
    /// The refusal. It is `None` after the future has returned it.
    Refused(Option<Box<ServiceResponse>>, Cors),
    Admitted {
        response: F,
        front: Rc<Front>,
        cors: Cors,
        /// Keeps the connection from being evicted.
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
                let response = std::task::ready!(Pin::new(response).poll(cx))?;
                (unread::count_response(&front.authentication, &front.memory, response), cors)
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

/// Compresses a long response if the client accepts a supported encoding. Event streams are never compressed.
fn compress(response: ServiceResponse) -> ServiceResponse<Encoder<BoxBody>> {
    let is_long = matches!(response.response().body().size(), BodySize::Sized(n) if n >= MIN_COMPRESSED_BYTES);
    let is_stream =
        response.headers().get(CONTENT_TYPE).is_some_and(|t| t.as_bytes().starts_with(b"text/event-stream"));
    let is_compressible = is_long && !is_stream;
    let encoding = if is_compressible { accepted_encoding(response.request()) } else { ContentEncoding::Identity };
    response.map_body(|head, body| {
        if is_compressible {
            head.headers.append(VARY, HeaderValue::from_static("Accept-Encoding"));
        }
        Encoder::response(encoding, head, body)
    })
}

/// Returns the encoding that a client prefers, or identity, which every client can read.
fn accepted_encoding(request: &HttpRequest) -> ContentEncoding {
    const SUPPORTED_ENCODINGS: [Encoding; 3] = [Encoding::brotli(), Encoding::gzip(), Encoding::identity()];
    if !request.headers().contains_key(ACCEPT_ENCODING) {
        return ContentEncoding::Identity;
    }
    match AcceptEncoding::parse(request).ok().and_then(|accept| accept.negotiate(SUPPORTED_ENCODINGS.iter())) {
        Some(Encoding::Known(encoding)) => encoding,
        _ => ContentEncoding::Identity,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use actix_web::{
        App,
        http::header::{self, ACCESS_CONTROL_ALLOW_ORIGIN, CONTENT_ENCODING},
        middleware::{Next, from_fn},
        test::{self, TestRequest},
        web,
    };

    use super::*;
    use crate::testing::front;
    use countersign_config::Config;

    #[actix::test]
    async fn foreign_origins_are_refused_and_responses_get_cors_headers() {
        let mut config = Config::default();
        config.transports.http.cors_origins = vec!["https://app.example".into()];
        let handled_requests = Arc::new(AtomicUsize::new(0));
        let count = web::Data::from(Arc::clone(&handled_requests));
        let handler = |count: web::Data<AtomicUsize>| async move {
            count.fetch_add(1, Ordering::Relaxed);
            HttpResponse::BadRequest().body("x".repeat(5000))
        };
        let app = App::new().app_data(count).default_service(web::to(handler));
        let app = test::init_service(app.wrap(front(&config))).await;
        for (origin, preflight, status, is_handled) in [
            ("https://app.example", false, 400, true),
            ("https://app.example", true, 204, false),
            ("https://evil.example", false, 403, false),
            ("https://evil.example", true, 403, false),
        ] {
            let mut request = TestRequest::get().append_header(("host", "localhost:8080"));
            request = request.append_header(("origin", origin)).append_header(("accept-encoding", "gzip"));
            if preflight {
                request = request.method(actix_web::http::Method::OPTIONS);
                request = request.append_header(("access-control-request-method", "POST"));
            }
            let before = handled_requests.load(Ordering::Relaxed);
            let response = test::call_service(&app, request.to_request()).await;
            assert_eq!(response.status().as_u16(), status, "{origin} {preflight}");
            assert_eq!(handled_requests.load(Ordering::Relaxed) > before, is_handled, "{origin} {preflight}");
            let allowed = response.headers().get(ACCESS_CONTROL_ALLOW_ORIGIN).map(|value| value.as_bytes());
            assert_eq!(allowed, (status != 403).then_some(origin.as_bytes()), "{origin} {preflight}");
            assert_eq!(response.headers().contains_key(CONTENT_ENCODING), is_handled, "{origin} {preflight}");
            let varies = response.headers().get_all(VARY).any(|value| value.as_bytes().starts_with(b"Origin"));
            assert_eq!(varies, status != 403, "{origin} {preflight}");
        }
    }

    async fn compressed(
        request: ServiceRequest,
        next: Next<BoxBody>,
    ) -> Result<ServiceResponse<Encoder<BoxBody>>, actix_web::Error> {
        next.call(request).await.map(compress)
    }

    async fn encoding_of(accept: Option<&str>, len: usize) -> Option<String> {
        let handler = move || async move { HttpResponse::Ok().content_type("application/json").body("x".repeat(len)) };
        let app = test::init_service(App::new().wrap(from_fn(compressed)).route("/", web::get().to(handler))).await;
        let mut request = TestRequest::get().uri("/");
        if let Some(accept) = accept {
            request = request.insert_header((header::ACCEPT_ENCODING, accept));
        }
        let response = test::call_service(&app, request.to_request()).await;
        response.headers().get(header::CONTENT_ENCODING).map(|v| v.to_str().unwrap().to_owned())
    }

    #[actix::test]
    async fn long_responses_are_compressed_if_accepted() {
        assert_eq!(encoding_of(Some("gzip"), 5000).await.as_deref(), Some("gzip"));
        assert_eq!(encoding_of(Some("gzip, br"), 5000).await.as_deref(), Some("br"));
        assert_eq!(encoding_of(None, 5000).await, None);
        assert_eq!(encoding_of(Some("zstd"), 5000).await, None);
        assert_eq!(encoding_of(Some("gzip"), 100).await, None);
    }

    #[actix::test]
    async fn event_streams_are_not_compressed() {
        let handler = || async { crate::framing::sse::event_stream_response().body("data: x\n\n".repeat(1000)) };
        let app = test::init_service(App::new().wrap(from_fn(compressed)).route("/", web::get().to(handler))).await;
        let request = TestRequest::get().uri("/").insert_header((header::ACCEPT_ENCODING, "gzip")).to_request();
        let response = test::call_service(&app, request).await;
        assert_ne!(response.headers().get(header::CONTENT_ENCODING).map(HeaderValue::as_bytes), Some(&b"gzip"[..]));
        assert!(test::read_body(response).await.starts_with(b"data: x"));
    }
}
