//! Tests of requests and answers when everything goes well.

use countersign_config::UrlTransport;
use countersign_protocol::Revision;
use countersign_upstream::{LinkKind, OutgoingRequest, Response};
use serde_json::json;

use super::server::*;

#[actix::test]
async fn stateless_request_has_headers_and_exact_result() {
    let server = Server::start_for_each_request(|mut conn, request| async move {
        let body = format!(
            "{{ \"jsonrpc\":\"2.0\",\"x\":1, \"id\":{},\n\"result\":{{\"n\":12345678901234567890123,\"b\" : 1.0}}}}",
            request.id()
        );
        conn.answer("200 OK", "content-type: application/json; charset=utf-8\r\nMcp-Session-Id: no\r\n", &body).await;
        conn
    })
    .await;
    let headers = [("X-Api-Key", "secret"), ("accept", "nothing"), ("user-agent", "mine")];
    let connector = connector(&server.url, &headers, UrlTransport::Auto);
    assert_eq!(connector.kind(), LinkKind::Streams);
    let link = connector.connect(RecordingListener::new()).await.unwrap();
    link.complete_handshake(&negotiated(Revision::MODERN));
    let mut outgoing = OutgoingRequest::new(7, "tools/call", Some(r#"{"name":"größe"}"#));
    outgoing.name = Some("größe".into());
    outgoing.headers = vec![("Mcp-Param-Region".into(), "eu".into()), ("Mcp-Param-X".into(), "=?base64?w6Q=?=".into())];
    assert_eq!(text(ask(&link, outgoing.clone()).await), "{\"n\":12345678901234567890123,\"b\" : 1.0}");
    assert_eq!(
        text(ask(&link, OutgoingRequest::new(8, "tools/list", None)).await),
        "{\"n\":12345678901234567890123,\"b\" : 1.0}"
    );

    let all = server.log.all();
    let [first, second] = &all[..] else { panic!("{all:?}") };
    assert_eq!((first.method.as_str(), first.path.as_str()), ("POST", "/mcp"));
    assert_eq!(first.body.as_bytes(), &outgoing.body[..]);
    for (name, value) in [
        ("content-type", Some("application/json")),
        ("accept", Some("application/json, text/event-stream")),
        ("mcp-protocol-version", Some("2026-07-28")),
        ("mcp-method", Some("tools/call")),
        ("mcp-name", Some("=?base64?Z3LDtsOfZQ==?=")),
        ("mcp-param-region", Some("eu")),
        ("mcp-param-x", Some("=?base64?w6Q=?=")),
        ("x-api-key", Some("secret")),
        ("user-agent", Some("mine")),
        ("host", Some(&server.url[url::Position::BeforeHost..url::Position::AfterPort])),
        ("mcp-session-id", None),
        ("cookie", None),
        ("accept-encoding", Some("identity")),
        ("authorization", None),
    ] {
        assert_eq!(first.header(name), value, "{name}");
    }
    assert_eq!((second.header("mcp-method"), second.header("mcp-name")), (Some("tools/list"), None));
    assert_eq!(second.header("mcp-param-region"), None);
    assert_eq!(*server.connections.borrow(), 1);
}

#[actix::test]
async fn stream_messages_precede_the_answer_in_order() {
    let server = Server::start_for_each_request(|mut conn, request| async move {
        conn.stream("").await;
        conn.chunk(": hello\n\n").await;
        for n in 1..=3 {
            let params = json!({"progressToken": request.id(), "progress": n});
            conn.event(&json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": params})).await;
        }
        // Also on the stream of a request, where a stateless server must not ask; that does not end the stream.
        conn.event(&json!({"jsonrpc": "2.0", "id": 1, "method": "roots/list"})).await;
        conn.chunk("event: ping\ndata: what is this\n\n").await;
        conn.event(&json!({"jsonrpc": "2.0", "id": request.id(), "result": {"ok": true}})).await;
        // A second answer with the same id.
        conn.event(&json!({"jsonrpc": "2.0", "id": request.id(), "result": {"ok": false}})).await;
        conn.end().await;
        conn
    })
    .await;
    let link = server.modern().await;
    for id in 1..=3 {
        let listener = RecordingListener::new();
        let answer = within_max_wait(link.request(&call(id), listener.clone())).await;
        assert_eq!(listener.methods(), ["notifications/progress"; 3]);
        assert_eq!(text(answer), r#"{"ok":true}"#);
        // The end of the stream may come a moment after the answer.
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
    }
    assert!(server.log.rpcs().iter().all(|rpc| rpc == "tools/call"), "a forbidden question gets no answer");
}

#[actix::test]
async fn connections_are_reused_after_every_kind_of_answer() {
    let server = Server::start_for_each_request(|mut conn, request| async move {
        match request.id().as_u64().unwrap() % 3 {
            0 => conn.result(&request, json!({})).await,
            1 => {
                // In one write with the end, as most servers do.
                let event = format!("data: {}\n\n", json!({"jsonrpc": "2.0", "id": request.id(), "result": {}}));
                let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
                conn.write(format!("{head}{:x}\r\n{event}\r\n0\r\n\r\n", event.len())).await;
            }
            _ => conn.answer("500 Oops", "", "no").await,
        }
        conn
    })
    .await;
    let link = server.modern().await;
    for id in 0..30 {
        let _ = ask(&link, call(id)).await;
    }
    assert_eq!(server.log.all().len(), 30);
    assert_eq!(*server.connections.borrow(), 1);
}

#[actix::test]
async fn json_rpc_errors_count_with_any_status() {
    for status in ["200 OK", "400 Bad Request", "404 Not Found", "500 Oops", "401 Unauthorized"] {
        for stream in [false, true] {
            for id in ["7", "null", "\"server-error\""] {
                let server = Server::start_for_each_request(move |mut conn, _| async move {
                    let body = format!(
                        r#"{{"jsonrpc":"2.0","id":{id},"error":{{"code":-32022,"message":"no","data":{{"supported":["x"],"n":1.0}}}}}}"#
                    );
                    if stream {
                        let body = format!("data: {body}\n\n");
                        conn.answer(status, "content-type: text/event-stream\r\n", &body).await;
                    } else {
                        conn.answer(status, "content-type: application/json\r\n", &body).await;
                    }
                    conn
                })
                .await;
                let Ok(Response::Error(error)) = ask(&server.modern().await, call(7)).await else { panic!("{status}") };
                assert_eq!(error.code, -32022);
                assert_eq!(error.data.unwrap().get(), r#"{"supported":["x"],"n":1.0}"#);
                assert_eq!(error.status, status[..3].parse().ok());
            }
        }
    }
}

#[actix::test]
async fn dropping_a_stateless_request_closes_its_stream() {
    let (closed, mut is_closed) = tokio::sync::mpsc::unbounded_channel();
    let server = Server::start(move |mut conn| {
        let closed = closed.clone();
        async move {
            let request = conn.request().await.unwrap();
            if request.id() == 2 {
                conn.stream("").await;
                conn.event(&json!({"jsonrpc": "2.0", "method": "notifications/message", "params": {}})).await;
            }
            conn.closed().await;
            closed.send(request.id()).unwrap();
        }
    })
    .await;
    let link = server.modern().await;
    for id in [1, 2] {
        let listener = RecordingListener::new();
        let outgoing = call(id);
        let mut request = link.request(&outgoing, listener.clone());
        if id == 2 {
            tokio::select! { answer = &mut request => panic!("{answer:?}"), _ = listener.next_notification() => {} }
        } else {
            tokio::select! { answer = &mut request => panic!("{answer:?}"), _ = server.log.find(|r| r.id() == 1) => {} }
        }
        drop(request);
        assert_eq!(within_max_wait(is_closed.recv()).await.unwrap(), id);
    }
    assert!(server.log.rpcs().iter().all(|rpc| rpc == "tools/call"), "closing the stream is the only cancellation");
}

#[actix::test]
async fn slow_response_is_accepted() {
    let server = Server::start_for_each_request(|mut conn, request| async move {
        let event = format!(
            "id: 1\r\ndata: {}\r\n\r\n",
            json!({"jsonrpc": "2.0", "id": request.id(), "result": {"slow": "ü"}})
        );
        let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
        let mut bytes = head.as_bytes().to_vec();
        for byte in event.as_bytes() {
            bytes.extend_from_slice(b"1\r\n");
            bytes.push(*byte);
            bytes.extend_from_slice(b"\r\n");
        }
        bytes.extend_from_slice(b"0\r\n\r\n");
        for byte in bytes {
            conn.write([byte]).await;
            tokio::task::yield_now().await;
        }
        conn
    })
    .await;
    assert_eq!(text(ask(&server.modern().await, call(1)).await), r#"{"slow":"ü"}"#);
}

#[actix::test]
async fn subscription_stays_open_with_its_own_messages() {
    let server = Server::start_for_each_request(|mut conn, request| async move {
        if request.rpc() == "subscriptions/listen" {
            conn.stream("").await;
            let meta = json!({"io.modelcontextprotocol/subscriptionId": request.id()});
            for method in ["notifications/subscriptions/acknowledged", "notifications/tools/list_changed"] {
                conn.event(&json!({"jsonrpc": "2.0", "method": method, "params": {"_meta": meta}})).await;
            }
            conn.closed().await;
        } else {
            conn.result(&request, json!({})).await;
        }
        conn
    })
    .await;
    let link = server.modern().await;
    let listener = RecordingListener::new();
    let outgoing = OutgoingRequest::new(1, "subscriptions/listen", Some("{}"));
    let mut listen = link.request(&outgoing, listener.clone());
    let others = async {
        assert_eq!(listener.next_notification().await.method, "notifications/subscriptions/acknowledged");
        assert_eq!(listener.next_notification().await.method, "notifications/tools/list_changed");
        assert_eq!(text(ask(&link, call(2)).await), "{}");
    };
    tokio::select! { answer = &mut listen => panic!("{answer:?}"), () = others => {} }
}

#[actix::test]
async fn url_credentials_are_sent_and_never_shown() {
    let server = Server::start_for_each_request(|mut conn, request| async move {
        conn.result(&request, json!({})).await;
        conn
    })
    .await;
    let mut url = server.url.clone();
    url.set_username("us%20er").unwrap();
    url.set_password(Some("p%40ss")).unwrap();
    url.set_query(Some("token=hidden"));
    let connector = connector(&url, &[], UrlTransport::StreamableHttp);
    assert_eq!(connector.describe(), server.url.as_str());
    let link = connector.connect(RecordingListener::new()).await.unwrap();
    ask(&link, OutgoingRequest::new(1, "server/discover", None)).await.unwrap();
    let request = &server.log.all()[0];
    assert_eq!(request.header("authorization"), Some("Basic dXMgZXI6cEBzcw=="));
    assert_eq!(request.path, "/mcp?token=hidden");
    assert_eq!(request.header("mcp-protocol-version"), Some("2026-07-28"));
}

#[actix::test]
async fn threads_share_links_but_not_connections() {
    let server = Server::start_for_each_request(|mut conn, request| async move {
        conn.result(&request, json!({"connection": conn.number})).await;
        conn
    })
    .await;
    let link = server.modern().await;
    let arbiters: Vec<_> = (0..3).map(|_| actix::Arbiter::new()).collect();
    for round in 0..2 {
        for (n, arbiter) in arbiters.iter().enumerate() {
            let (done, answer) = tokio::sync::oneshot::channel();
            let link = link.clone();
            let id = round * 10 + n as u64;
            arbiter.spawn_fn(move || {
                actix_web::rt::spawn(async move {
                    let _ = done.send(text(link.request(&call(id), RecordingListener::new()).await));
                });
            });
            let text = within_max_wait(answer).await.unwrap();
            assert_eq!(text, json!({"connection": n}).to_string(), "round {round}");
        }
    }
    for arbiter in arbiters {
        arbiter.stop();
        let _ = arbiter.join();
    }
}

#[actix::test]
async fn close_delimited_bodies_and_1xx_are_read() {
    for stream in [false, true] {
        for pieces in [1, 3, 100] {
            let server = Server::start(move |mut conn| async move {
                let request = conn.request().await.unwrap();
                let answer = json!({"jsonrpc": "2.0", "id": request.id(), "result": {"long": "x".repeat(500)}}).to_string();
                let (kind, body) =
                    if stream { ("text/event-stream", format!("data: {answer}\n\n")) } else { ("application/json", answer) };
                let text = format!("HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\nHTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-type: {kind}\r\n\r\n{body}");
                for piece in text.as_bytes().chunks(text.len().div_ceil(pieces)) {
                    conn.write(piece).await;
                    tokio::task::yield_now().await;
                }
            })
            .await;
            let link = server.modern().await;
            for id in 1..=2 {
                assert!(text(ask(&link, call(id)).await).contains("xxx"), "{stream} {pieces}");
            }
            assert_eq!(*server.connections.borrow(), 2);
        }
    }
}
