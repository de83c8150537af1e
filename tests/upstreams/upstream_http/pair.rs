//! Tests of the 2024-11-05 pair: a stream by GET, and messages by POST.

use std::{cell::RefCell, rc::Rc, sync::Arc};

use countersign_config::UrlTransport;
use countersign_upstream::{Link, LinkError, OutgoingRequest};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::server::*;

/// Sends one event on the open stream, or ends it with `None`.
pub type StreamSender = Rc<RefCell<Option<mpsc::UnboundedSender<Option<String>>>>>;

/// Starts a server of the pair; a POST to the stream's own URL gets `status`.
pub async fn server(status: &'static str, endpoint: &'static str) -> (Server, StreamSender) {
    let feed = StreamSender::default();
    let own = Rc::clone(&feed);
    let server = Server::start_for_each_request(move |mut conn, request| {
        let feed = Rc::clone(&own);
        async move {
            if request.method == "GET" {
                let (sender, mut events) = mpsc::unbounded_channel();
                *feed.borrow_mut() = Some(sender);
                conn.stream("").await;
                conn.chunk(&format!("event: endpoint\r\ndata: {endpoint}\r\n\r\n")).await;
                while let Some(Some(event)) = events.recv().await {
                    conn.chunk(&event).await;
                }
                conn.end().await;
                return conn;
            }
            if request.path == "/mcp" {
                conn.answer(status, "", "no such thing").await;
                return conn;
            }
            let tell = |message: Value| {
                let feed = feed.borrow();
                let _ = feed.as_ref().unwrap().send(Some(format!("event: message\ndata: {message}\n\n")));
            };
            match request.rpc().as_str() {
                "initialize" => {
                    let result = json!({"protocolVersion": "2024-11-05", "capabilities": {"tools": {}}});
                    tell(json!({"jsonrpc": "2.0", "id": request.id(), "result": result}));
                }
                "tools/call" => tell(json!({"jsonrpc": "2.0", "id": request.id(), "result": {"echo": request.id()}})),
                "refused" => {
                    conn.answer("400 Bad Request", "", "no").await;
                    return conn;
                }
                "gone" => {
                    conn.answer("404 Not Found", "", "no session").await;
                    return conn;
                }
                _ => {}
            }
            conn.accepted().await;
            conn
        }
    })
    .await;
    (server, feed)
}

async fn open(server: &Server, unsolicited: Arc<RecordingListener>) -> Result<Arc<dyn Link>, LinkError> {
    legacy(&*connector(&server.url, &[("x-key", "k")], UrlTransport::Sse), unsolicited).await
}

#[actix::test]
async fn answers_to_posts_come_on_the_stream() {
    let (server, feed) = server("405 No", "messages?s=1").await;
    let rest = RecordingListener::new();
    let link = open(&server, rest.clone()).await.unwrap();
    assert_eq!(text(ask(&link, call(1)).await), r#"{"echo":1}"#);
    let all = server.log.all();
    assert_eq!(server.log.rpcs(), ["GET", "initialize", "notifications/initialized", "tools/call"]);
    assert!(all[1..].iter().all(|r| r.path == "/messages?s=1" && r.header("x-key") == Some("k")));
    assert_eq!((all[0].header("accept"), all[0].header("x-key")), (Some("text/event-stream"), Some("k")));

    // Stray messages, a question, and a dropped request.
    let say = |message: Value| feed.borrow().as_ref().unwrap().send(Some(format!("data: {message}\n\n"))).unwrap();
    say(json!({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}));
    assert_eq!(rest.next_notification().await.method, "notifications/tools/list_changed");
    say(json!({"jsonrpc": "2.0", "id": "q", "method": "roots/list"}));
    rest.next_request().await.reply.answer(Ok(serde_json::from_str("{}").unwrap()));
    assert_eq!(server.log.find(|r| r.id() == "q").await.json()["result"], json!({}));
    {
        let outgoing = OutgoingRequest::new(2, "silent", None);
        let mut request = link.request(&outgoing, RecordingListener::new());
        tokio::select! { answer = &mut request => panic!("{answer:?}"), _ = server.log.find(|r| r.id() == 2) => {} }
    }
    assert_eq!(server.log.find(|r| r.rpc() == "notifications/cancelled").await.json()["params"]["requestId"], 2);
}

#[actix::test]
async fn refused_post_fails_only_its_request() {
    let (server, _feed) = server("405 No", "/messages").await;
    let link = open(&server, RecordingListener::new()).await.unwrap();
    let refused = ask(&link, OutgoingRequest::new(1, "refused", None)).await;
    assert!(matches!(refused, Err(LinkError::Status { status: 400, .. })), "{refused:?}");
    assert_eq!(text(ask(&link, call(2)).await), r#"{"echo":2}"#);
    // A server that no longer knows the session has ended it.
    assert!(ask(&link, OutgoingRequest::new(3, "gone", None)).await.is_err());
    within_max_wait(link.closed().cancelled()).await;
}

#[actix::test]
async fn only_request_without_session_may_be_sent_again() {
    let (server, _feed) = server("405 No", "/messages").await;
    let link = open(&server, RecordingListener::new()).await.unwrap();
    let outgoing = OutgoingRequest::new(1, "silent", None);
    let mut accepted = link.request(&outgoing, RecordingListener::new());
    tokio::select! { answer = &mut accepted => panic!("{answer:?}"), _ = server.log.find(|r| r.id() == 1) => {} }
    let refused = ask(&link, OutgoingRequest::new(2, "gone", None)).await;
    assert!(matches!(refused, Err(LinkError::SessionGone)), "{refused:?}");
    let accepted = within_max_wait(accepted).await;
    assert!(matches!(accepted, Err(LinkError::Lost(_))), "{accepted:?}");
}

#[actix::test]
async fn refused_handshake_keeps_its_status() {
    let (server, _feed) = server("404 Not Found", "/mcp").await;
    let outcome = open(&server, RecordingListener::new()).await.map(|_| ());
    assert!(matches!(outcome, Err(LinkError::Status { status: 404, .. })), "{outcome:?}");
}

#[actix::test]
async fn stream_end_is_link_end() {
    let (server, feed) = server("405 No", "/messages").await;
    let link = open(&server, RecordingListener::new()).await.unwrap();
    let outgoing = OutgoingRequest::new(1, "silent", None);
    let mut request = link.request(&outgoing, RecordingListener::new());
    tokio::select! { answer = &mut request => panic!("{answer:?}"), _ = server.log.find(|r| r.id() == 1) => {} }
    feed.borrow().as_ref().unwrap().send(None).unwrap();
    assert!(matches!(within_max_wait(request).await, Err(LinkError::Lost(_))));
    assert!(link.closed().is_cancelled());
    assert!(matches!(ask(&link, call(2)).await, Err(LinkError::Unreachable(_))));
}

#[actix::test]
async fn foreign_endpoint_is_refused() {
    let other = Server::start_for_each_request(|mut conn, _| async move {
        conn.accepted().await;
        conn
    })
    .await;
    let elsewhere: &'static str = Box::leak(other.url.to_string().into_boxed_str());
    for endpoint in [elsewhere, "//example.com/m", "https://example.com/m"] {
        let (server, _feed) = server("405 No", endpoint).await;
        let outcome = open(&server, RecordingListener::new()).await.map(|_| ());
        assert!(matches!(outcome, Err(LinkError::Protocol(_))), "{endpoint}: {outcome:?}");
    }
    assert_eq!(*other.connections.borrow(), 0);
}

#[actix::test]
async fn non_stream_response_is_refused() {
    for answer in [
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\ndata: {}\n\n",
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 0\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}",
        "HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n",
        "",
    ] {
        let server = Server::start(move |mut conn| async move {
            conn.request().await;
            conn.write(answer).await;
        })
        .await;
        let outcome = open(&server, RecordingListener::new()).await.map(|_| ());
        assert!(outcome.is_err(), "{answer}");
    }
}
