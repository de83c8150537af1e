//! Tests of the routes, and of reading bodies within their limits.

use std::time::Duration;

use actix_web::test::TestRequest;
use futures_util::stream;

use super::*;
use crate::testing::TestEndpoint;
use countersign_config::Config;
use countersign_exchange::body_budget::BodyBudget;
use countersign_session::limits;

async fn read_chunks(chunks: &[&'static str], max: usize) -> Result<Bytes, ErrorKind> {
    let mut chunks = stream::iter(chunks.iter().map(|c| Ok::<_, ()>(Bytes::from_static(c.as_bytes()))));
    let read = read_pieces(&mut chunks, max, None, || {
        limits::body_budget(&Config::default().transports).connection_budget().new_reservation()
    })
    .await;
    read.map(|(body, _)| body).map_err(|error| error.kind)
}

#[actix::test]
async fn body_is_read_whole_within_its_limit() {
    assert_eq!(read_chunks(&[], 5).await, Ok(Bytes::new()));
    assert_eq!(read_chunks(&["12345"], 5).await, Ok("12345".into()));
    assert_eq!(read_chunks(&["12", "3", "45"], 5).await, Ok("12345".into()));
    assert_eq!(read_chunks(&["123456"], 5).await, Err(ErrorKind::TooLarge));
    assert_eq!(read_chunks(&["12", "345", "6"], 5).await, Err(ErrorKind::TooLarge));
}

#[actix::test]
async fn interrupted_body_is_refused() {
    let mut chunks = stream::iter([Ok(Bytes::from_static(b"{}")), Err(())]);
    let read = read_pieces(&mut chunks, 5, None, || {
        limits::body_budget(&Config::default().transports).connection_budget().new_reservation()
    })
    .await;
    assert_eq!(read.err().map(|error| error.kind), Some(ErrorKind::InvalidRequest));
}

#[tokio::test(start_paused = true)]
async fn body_in_pieces_holds_its_bytes() {
    let body_budget = BodyBudget::new(1 << 20, 10_000, Duration::from_secs(5));
    let budget = body_budget.connection_budget();
    let read = async |sizes: &[usize], reservation: Option<Reservation>| {
        let mut pieces = stream::iter(sizes.iter().map(|size| Ok::<_, ()>(Bytes::from(vec![b'x'; *size]))));
        let read = read_pieces(&mut pieces, 1 << 20, reservation, || budget.new_reservation()).await;
        read.map(|(_, reservation)| reservation).map_err(|error| error.kind)
    };
    assert!(read(&[6000], None).await.unwrap().is_none());
    // On HTTP/2, a connection may carry many bodies, so each body is counted.
    assert_eq!(read(&[6000], Some(budget.new_reservation())).await.unwrap().unwrap().bytes(), 6000);
    let reservation = read(&[2000, 3000, 1000], None).await.unwrap().unwrap();
    assert_eq!(reservation.bytes(), 6000);
    assert_eq!(
        read(&[2000, 3000], None).await.err(),
        Some(ErrorKind::Overloaded),
        "the first body still holds its bytes"
    );
    drop(reservation);
    assert_eq!(read(&[2000, 3000], None).await.unwrap().unwrap().bytes(), 5000);
}

#[actix::test]
async fn missing_body_times_out() {
    let endpoint = TestEndpoint::open("transports: { http: { request_timeout: 20ms } }").await;
    let (_sender, payload) = actix_http::h1::Payload::create(false);
    let request = TestRequest::default().to_http_request();
    let read = read_body(&request, payload.into(), &endpoint.endpoint).await;
    assert_eq!(read.err().map(|error| error.kind), Some(ErrorKind::Timeout));
}

#[actix::test]
async fn body_with_too_large_announced_length_is_not_awaited() {
    let endpoint = TestEndpoint::open("transports: { http: { max_body: 1KiB } }").await;
    // The server polls a handler before it has read the body, and once more afterwards.
    let second_poll = async |length: &'static str| {
        let (_sender, payload) = actix_http::h1::Payload::create(false);
        let request = TestRequest::default().insert_header(("content-length", length));
        let request = request.to_http_request();
        let mut read = pin!(read_body(&request, payload.into(), &endpoint.endpoint));
        assert!(futures_util::poll!(&mut read).is_pending());
        futures_util::poll!(&mut read)
    };
    assert!(second_poll("1024").await.is_pending());
    for length in ["1025", "99999999999999"] {
        let Poll::Ready(Err(error)) = second_poll(length).await else { panic!("{length}") };
        assert_eq!(error.kind, ErrorKind::TooLarge);
    }
}

#[actix::test]
async fn plain_paths_take_head_and_refuse_other_methods_with_reason() {
    let endpoint = TestEndpoint::open("").await;
    let ask = async |method: Method, path: &str| endpoint.ask(TestRequest::with_uri(path).method(method)).await;
    for path in ["/health", "/info", "/metrics", "/tools"] {
        let (get, head) = (ask(Method::GET, path).await, ask(Method::HEAD, path).await);
        assert_eq!(head.status, get.status, "{path}");
        assert_eq!(head.headers.get("content-type"), get.headers.get("content-type"), "{path}");
    }
    for (method, path, allow) in [
        (Method::POST, "/health", "GET, HEAD"),
        (Method::POST, "/tools", "GET, HEAD"),
        (Method::PUT, "/.well-known/oauth-protected-resource/mcp", "GET, HEAD"),
        (Method::GET, "/tools/list_projects", "POST"),
    ] {
        let refused = ask(method, path).await;
        assert_eq!(
            (refused.status.as_u16(), refused.headers.get("allow").unwrap().as_bytes()),
            (405, allow.as_bytes()),
            "{path}"
        );
        let problem: serde_json::Value = serde_json::from_slice(&refused.body).unwrap();
        assert_eq!(problem["code"], "INVALID_REQUEST", "{path}: {problem}");
    }
}

#[actix::test]
async fn encoded_body_is_refused_with_reason() {
    let endpoint = TestEndpoint::open("").await;
    for path in ["/tools/x", "/mcp", "/messages?sessionId=x"] {
        for (coding, is_encoded) in [("gzip", true), ("identity", false), ("", false)] {
            let request = TestRequest::post().uri(path).insert_header(("content-type", "application/json"));
            let refused = endpoint.ask(request.insert_header(("content-encoding", coding)).set_payload("x")).await;
            assert_eq!(refused.status == 415, is_encoded, "{path} {coding}");
            assert_eq!(String::from_utf8_lossy(&refused.body).contains("Content-Encoding"), is_encoded, "{refused:?}");
        }
    }
}
