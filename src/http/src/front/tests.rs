use std::{
    future::poll_fn,
    sync::atomic::{AtomicUsize, Ordering},
};

use actix_web::{
    App,
    http::header::{self, ACCESS_CONTROL_ALLOW_ORIGIN, CONTENT_ENCODING},
    middleware::{Next, from_fn},
    test::{self, TestRequest},
    web,
};
use futures_util::FutureExt as _;

use super::*;
use crate::testing::front;
use countersign_config::Config;
use countersign_domain::principal::{Identity, Role, Scope};
use countersign_exchange::testing::token_identity;

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

#[actix::test]
async fn identity_of_verified_token_is_kept_for_handlers() {
    let front = front(&Config::default());
    let request = TestRequest::default().to_srv_request();
    let name = |identity: Result<Identity, McpError>| identity.map(|identity| identity.principal.name.clone());
    assert!(front.authentication.identify(request.request()).is_err());
    guard::set_token_identity(&request, token_identity("ann", Role::Reviewer, &[Scope::ChangesDecide], i64::MAX));
    assert_eq!(name(front.authentication.identify(request.request())).as_deref(), Ok("ann"));
    assert_eq!(name(identify_agent(&front.authentication.authenticator, request.request())).as_deref(), Ok("ann"));
}

#[actix::test]
async fn agents_behind_a_proxy_fail_by_their_own_addresses() {
    let front = front(&Config { behind_tls_proxy: true, ..Config::default() });
    let refusal_of = |authorization: Option<&str>, forwarded: &str| {
        let request = TestRequest::default().peer_addr("127.0.0.1:5".parse().unwrap());
        let request = request.append_header(("x-forwarded-for", forwarded));
        let request =
            authorization.into_iter().fold(request, |r, value| r.append_header((header::AUTHORIZATION, value)));
        identify_agent(&front.authentication.authenticator, &request.to_http_request()).unwrap_err().kind
    };
    let refusals: Vec<_> = (0..11).map(|n| refusal_of(Some(&format!("Bearer csk_{n}")), "192.0.2.1")).collect();
    assert_eq!(refusals.last(), Some(&ErrorKind::RateLimited));
    assert_eq!(refusal_of(Some("Bearer csk_11"), "192.0.2.2"), ErrorKind::Unauthorized);
    assert_eq!(refusal_of(None, "127.0.0.1"), ErrorKind::Unauthorized, "a reported address is not loopback");
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
    assert_eq!(encoding_of(Some("br, gzip"), 5000).await.as_deref(), Some("gzip"));
    assert_eq!(encoding_of(None, 5000).await, None);
    assert_eq!(encoding_of(Some("zstd"), 5000).await, None);
    assert_eq!(encoding_of(Some("gzip"), 100).await, None);
}

#[test]
fn only_pages_and_probes_are_public() {
    for (path, is_served_to_all) in [
        ("/", true),
        ("/health", true),
        ("/assets/app.js", true),
        ("/.well-known/oauth-protected-resource/mcp", true),
        ("/mcp", false),
        ("/healthy", false),
        ("/api/me", false),
    ] {
        assert_eq!(is_public(path), is_served_to_all, "{path}");
    }
}

#[actix::test]
async fn embedded_bodies_are_sent_as_they_are() {
    let handler = || async {
        let mut response = HttpResponse::Ok();
        response.extensions_mut().insert(EmbeddedBody);
        response.body("x".repeat(5000))
    };
    let app = test::init_service(App::new().wrap(from_fn(compressed)).route("/", web::get().to(handler))).await;
    let request = TestRequest::get().uri("/").insert_header((header::ACCEPT_ENCODING, "gzip")).to_request();
    let response = test::call_service(&app, request).await;
    assert!(!response.headers().contains_key(CONTENT_ENCODING) && !response.headers().contains_key(VARY));
    assert_eq!(test::read_body(response).await.len(), 5000);
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

/// Creates a body that streams `pieces`, or a body for which `whole` is pending already.
fn counted(memory: &Arc<MemoryBudget>, whole: Option<&Bytes>, pieces: Vec<Bytes>) -> CountedBody {
    let pending = PendingBody::new(memory.share("ann"), None);
    assert!(whole.is_none_or(|whole| pending.hold(whole)));
    let pieces = futures_util::stream::iter(pieces.into_iter().map(Ok::<_, std::convert::Infallible>));
    let source = whole.is_none().then(|| BoxBody::new(actix_web::body::BodyStream::new(pieces)));
    CountedBody { source, size: BodySize::Stream, pending }
}

async fn next(body: &mut CountedBody) -> Option<Result<Bytes, String>> {
    let piece = poll_fn(|cx| Pin::new(&mut *body).poll_next(cx)).await?;
    Some(piece.map_err(|error| error.to_string()))
}

#[actix::test]
async fn answer_counts_until_its_last_slice_is_taken() {
    let long = Bytes::from(vec![b'x'; 2 * SLICE_BYTES + 1]);
    let memory = MemoryBudget::new(1 << 20, 1 << 20);
    let streamed = vec![Bytes::from_static(b"short"), long.clone()];
    for (mut body, slices) in [
        (counted(&memory, Some(&long), Vec::new()), &[SLICE_BYTES, SLICE_BYTES, 1][..]),
        (counted(&memory, None, streamed), &[5, SLICE_BYTES, SLICE_BYTES, 1]),
    ] {
        for slice in slices {
            assert_eq!(next(&mut body).await.unwrap().unwrap().len(), *slice);
            assert_eq!(memory.used_by("ann") >= long.len(), *slice != 5);
        }
        assert_eq!((next(&mut body).await, memory.used_by("ann")), (None, 0));
    }
}

#[actix::test]
async fn memory_of_closed_answer_goes_to_next_answer() {
    let long = Bytes::from(vec![b'x'; 10 * SLICE_BYTES]);
    let memory = MemoryBudget::new(15 * SLICE_BYTES, 15 * SLICE_BYTES);
    let mut unread = counted(&memory, Some(&long), Vec::new());
    assert!(next(&mut unread).await.is_some());
    // Waits a millisecond, so that the two bodies have been unread for different times.
    let taken = monotonic_ms();
    while monotonic_ms() <= taken {
        std::thread::yield_now();
    }
    let mut read = counted(&memory, Some(&long), Vec::new());
    assert_eq!(next(&mut unread).await, Some(Err("the client did not read".into())));
    assert!(next(&mut read).await.unwrap().is_ok());
    assert_eq!(memory.used_total(), estimate_memory(10 * SLICE_BYTES));
    drop((unread, read));
    assert_eq!(memory.used_total(), 0);
}

#[tokio::test(start_paused = true)]
async fn request_is_handled_after_issuer_answered_or_timed_out() {
    let called = Rc::new(AtomicUsize::new(0));
    let count = Rc::clone(&called);
    let service = Rc::new(actix_service::fn_service(move |request: ServiceRequest| {
        count.fetch_add(1, Ordering::Relaxed);
        std::future::ready(Ok::<_, Error>(request.into_response(HttpResponse::Ok().finish())))
    }));
    let request = || TestRequest::get().to_srv_request();
    let (answer, answered) = tokio::sync::oneshot::channel::<()>();
    let mut response = call_after_issuer_query(async { _ = answered.await }, Rc::clone(&service), request());
    assert!((&mut response).now_or_never().is_none());
    assert_eq!(called.load(Ordering::Relaxed), 0);
    answer.send(()).unwrap();
    assert_eq!(response.await.unwrap().status(), StatusCode::OK);
    assert_eq!(called.load(Ordering::Relaxed), 1);

    let started = tokio::time::Instant::now();
    let late = call_after_issuer_query(std::future::pending(), service, request()).await.unwrap();
    assert_eq!((late.status(), started.elapsed().as_secs()), (StatusCode::OK, MAX_ISSUER_WAIT.as_secs()));
}

#[actix::test]
async fn challenge_names_metadata_if_issuers_are_configured() {
    let issuers = "public_url: https://gw.example\nauth: { tokens: [{ issuer: https://id.example }] }";
    let metadata = r#"resource_metadata="https://gw.example/.well-known/oauth-protected-resource/mcp""#;
    for (config, expected) in [
        (Config::default(), "Bearer".to_owned()),
        (crate::testing::config(issuers), format!(r#"Bearer {metadata}, scope="tools:read tools:propose""#)),
    ] {
        let refuse = || async { Problem::new(ErrorKind::Unauthorized, "who?").error_response() };
        let app = App::new().default_service(web::to(refuse)).wrap(front(&config));
        let request = TestRequest::get().append_header(("host", "localhost:8080")).to_request();
        let response = test::call_service(&test::init_service(app).await, request).await;
        assert_eq!(response.headers().get(header::WWW_AUTHENTICATE).unwrap(), expected.as_str());
    }
}
