//! Tests of misbehaving servers: each fault is a clear error that says whether the request may have been carried out.

use countersign_config::UrlTransport;
use countersign_protocol::Revision;
use countersign_upstream::{LinkError, OutgoingRequest, Response};
use serde_json::json;
use support::DeadPort;
use tokio::net::TcpListener;

use super::server::*;

/// Calls a server that answers with these bytes and closes the connection.
async fn call_raw_server(bytes: impl AsRef<[u8]> + 'static) -> Result<Response, LinkError> {
    let bytes = std::rc::Rc::new(bytes);
    let server = Server::start(move |mut conn| {
        let bytes = std::rc::Rc::clone(&bytes);
        async move {
            conn.request().await;
            conn.write(&*bytes).await;
        }
    })
    .await;
    ask(&server.modern().await, call(5)).await
}

fn http_response(head: &str, body: &str) -> String {
    format!("HTTP/1.1 {head}\r\n\r\n{body}")
}

#[actix::test]
async fn interrupted_response_is_lost() {
    let good = json!({"jsonrpc": "2.0", "id": 5, "result": {}}).to_string();
    for bytes in [
        String::new(),
        "HTTP/1.1 200".into(),
        "HTTP/1.1 200 OK\r\ncontent-type: app".into(),
        http_response("200 OK\r\ncontent-type: application/json\r\ncontent-length: 100", ""),
        http_response("200 OK\r\ncontent-type: application/json\r\ncontent-length: 100", &good),
        http_response("200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked", "10\r\n{\"jsonrpc\":"),
        http_response("200 OK\r\ncontent-type: application/json\r\nconnection: close", &good[..20]),
        http_response("200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 100", ""),
        http_response("200 OK\r\ncontent-type: text/event-stream", ""),
        http_response("200 OK\r\ncontent-type: text/event-stream", "id: 1\ndata: {\"jsonrpc\":\"2.0\",\"id\":5,\"resu"),
        http_response("200 OK\r\ncontent-type: text/event-stream", &format!("data: {good}\n")),
        http_response("200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked", "5\r\ndata"),
        http_response("200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 9", "data: \n\n\n"),
    ] {
        let outcome = call_raw_server(bytes.clone()).await;
        assert!(matches!(outcome, Err(LinkError::Lost(_))), "{bytes:?}: {outcome:?}");
    }
}

#[actix::test]
async fn invalid_response_is_a_protocol_error() {
    let json = "200 OK\r\ncontent-type: application/json\r\nconnection: close";
    let stream = "200 OK\r\ncontent-type: text/event-stream";
    for bytes in [
        "SSH-2.0-OpenSSH_9.2\r\n\r\n".to_owned(),
        http_response(json, "<html>hello</html>"),
        http_response(json, "{}"),
        http_response(json, "[]"),
        http_response(json, "null"),
        http_response(json, r#"{"jsonrpc":"2.0","id":6,"result":{}}"#),
        http_response(json, r#"{"jsonrpc":"2.0","id":"5","result":{}}"#),
        http_response(json, r#"{"jsonrpc":"2.0","method":"notifications/message"}"#),
        http_response(json, r#"{"jsonrpc":"2.0","id":5,"result":{},"error":{"code":1,"message":"x"}}"#),
        http_response(json, r#"{"jsonrpc":"1.0","id":5,"result":{}}"#),
        http_response(
            json,
            &format!(r#"{{"jsonrpc":"2.0","id":5,"result":{}{}}}"#, "[".repeat(100_000), "]".repeat(100_000)),
        ),
        http_response(stream, "data: garbage\n\n"),
        http_response(&format!("{json}\r\ncontent-encoding: gzip"), "\u{1f}"),
    ] {
        let outcome = call_raw_server(bytes.clone()).await;
        assert!(matches!(outcome, Err(LinkError::Protocol(_))), "{:.200}: {outcome:?}", bytes);
    }
    let mut invalid = http_response(json, r#"{"jsonrpc":"2.0","id":5,"result":{"a":"?"}}"#).into_bytes();
    let at = invalid.iter().rposition(|b| *b == b'?').unwrap();
    invalid[at] = 0xFF;
    assert!(matches!(call_raw_server(invalid).await, Err(LinkError::Protocol(_))));
    // An unknown id on a stream belongs to somebody else, and the right one never comes.
    let wrong = http_response(stream, "data: {\"jsonrpc\":\"2.0\",\"id\":6,\"result\":{}}\n\n");
    assert!(matches!(call_raw_server(wrong).await, Err(LinkError::Lost(_))));
}

#[actix::test]
async fn bare_error_status_is_reported() {
    for (head, body, status) in [
        ("500 Oops\r\ncontent-type: text/html", "<b>\u{1b}[31mboom</b>", 500),
        ("502 Bad Gateway", "", 502),
        ("401 Unauthorized\r\nwww-authenticate: Bearer", "{\"error\":\"x\"}", 401),
        ("404 Not Found", "Cannot POST /mcp", 404),
        ("204 No Content", "", 204),
        ("202 Accepted\r\ncontent-length: 0", "", 202),
        ("200 OK\r\ncontent-length: 0", "", 200),
        ("503 Busy\r\ncontent-type: text/event-stream", "", 503),
    ] {
        match call_raw_server(http_response(&format!("{head}\r\nconnection: close"), body)).await {
            Err(LinkError::Status { status: found, body }) => {
                assert_eq!(found, status);
                assert!(!body.contains('\u{1b}'), "{body}");
            }
            other => panic!("{head}: {other:?}"),
        }
    }
}

#[actix::test]
async fn redirects_are_not_followed() {
    let other = Server::start_for_each_request(|mut conn, request| async move {
        conn.result(&request, json!({})).await;
        conn
    })
    .await;
    for status in ["301 Moved", "302 Found", "303 See Other", "307 Temporary", "308 Permanent"] {
        let head = format!("{status}\r\nlocation: {}\r\ncontent-length: 0", other.url);
        assert!(matches!(call_raw_server(http_response(&head, "")).await, Err(LinkError::Status { .. })), "{status}");
    }
    assert_eq!(*other.connections.borrow(), 0);
}

#[actix::test]
async fn huge_answers_are_refused_early() {
    const MIB: usize = 1 << 20;
    for head in [
        "content-type: application/json\r\ncontent-length: 104857600\r\n\r\n{\"jsonrpc\":\"2.0\",\"id\":5,\"result\":\"",
        "content-type: application/json\r\nconnection: close\r\n\r\n{\"jsonrpc\":\"2.0\",\"id\":5,\"result\":\"",
        "content-type: text/event-stream\r\n\r\ndata: {\"jsonrpc\":\"2.0\",\"id\":5,\"result\":\"",
        "content-type: text/event-stream\r\n\r\n: ",
    ] {
        let (sent, mut written) = tokio::sync::mpsc::unbounded_channel();
        let server = Server::start(move |mut conn| {
            let sent = sent.clone();
            async move {
                conn.request().await;
                conn.write(format!("HTTP/1.1 200 OK\r\n{head}")).await;
                let mut mibs = 0;
                while mibs < 100 && conn.write(vec![b'x'; MIB]).await {
                    mibs += 1;
                }
                sent.send(mibs).unwrap();
            }
        })
        .await;
        let outcome = ask(&server.modern().await, call(5)).await;
        assert!(matches!(&outcome, Err(LinkError::Protocol(why)) if why.contains("16777216")), "{head}: {outcome:?}");
        assert!(
            within_max_wait(written.recv()).await.unwrap() < 60,
            "the connection was closed before all of it had come"
        );
    }
    // Just below the limit is fine.
    let body = format!(r#"{{"jsonrpc":"2.0","id":5,"result":{{"x":"{}"}}}}"#, "y".repeat(15 * MIB));
    let head = format!("200 OK\r\ncontent-type: application/json\r\ncontent-length: {}", body.len());
    assert!(call_raw_server(http_response(&head, &body)).await.is_ok());
}

#[actix::test]
async fn unsent_and_possibly_sent_requests_differ() {
    let nobody = DeadPort::new();
    let url = url::Url::parse(&format!("http://{}/", nobody.address)).unwrap();
    let refused = |url: &url::Url, headers: &[(&str, &str)]| {
        let connector = connector(url, headers, UrlTransport::Auto);
        async move {
            let link = connector.connect(RecordingListener::new()).await?;
            link.complete_handshake(&negotiated(Revision::MODERN));
            ask(&link, call(1)).await
        }
    };
    assert!(matches!(refused(&url, &[]).await, Err(LinkError::Unreachable(_))));
    // No certificate, and no TLS at all.
    let plain = Server::start(|conn| async move { drop(conn) }).await;
    for mut https in [url.clone(), plain.url.clone()] {
        https.set_scheme("https").unwrap();
        assert!(matches!(refused(&https, &[]).await, Err(LinkError::Unreachable(_))), "{https}");
    }
    let secret = "line\nbreak";
    match refused(&url, &[("x-key", secret)]).await {
        Err(LinkError::Unreachable(why)) => assert!(why.contains("x-key") && !why.contains("break"), "{why}"),
        other => panic!("{other:?}"),
    }
}

#[actix::test]
async fn request_is_sent_once_if_idle_connection_ends() {
    // Each connection answers once, then reads one more request and closes without an answer.
    let server = Server::start(|mut conn| async move {
        let request = conn.request().await.unwrap();
        conn.result(&request, json!({})).await;
        conn.request().await;
    })
    .await;
    let link = server.modern().await;
    ask(&link, call(1)).await.unwrap();
    assert!(matches!(ask(&link, call(2)).await, Err(LinkError::Lost(_))));
    assert_eq!(
        server.log.all().iter().filter(|r| r.id() == 2).count(),
        1,
        "a request that may have been processed is not sent again"
    );

    ask(&link, call(3)).await.unwrap();
    let read = OutgoingRequest { is_repeatable: true, ..call(4) };
    assert!(matches!(ask(&link, read).await, Err(LinkError::Lost(_))), "repeating a read is left to the caller");
    assert_eq!(server.log.all().iter().filter(|r| r.id() == 4).count(), 1);
}

#[actix::test]
async fn closed_idle_connections_are_not_an_error() {
    let (closed, mut is_closed) = tokio::sync::mpsc::unbounded_channel();
    let server = Server::start(move |mut conn| {
        let closed = closed.clone();
        async move {
            let request = conn.request().await.unwrap();
            conn.result(&request, json!({})).await;
            drop(conn);
            closed.send(()).unwrap();
        }
    })
    .await;
    let link = server.modern().await;
    for id in 1..=20 {
        assert_eq!(text(ask(&link, call(id)).await), "{}", "{id}");
        within_max_wait(is_closed.recv()).await.unwrap();
        // The client learns of a closed connection at the next poll of its reactor.
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    assert_eq!(*server.connections.borrow(), 20);
}

#[actix::test]
async fn restarted_server_is_reached_again() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let mut server = Some(Server::start_on(listener, echo));
    let link = server.as_ref().unwrap().modern().await;
    for id in 0..5 {
        assert_eq!(text(ask(&link, call(id)).await), "{}");
        drop(server.take());
        // The task is gone once the runtime has had a turn. Nobody else gets the port until the server is back.
        let nobody = within_max_wait(async {
            loop {
                match DeadPort::at_address(address) {
                    Ok(nobody) => return nobody,
                    Err(_) => tokio::task::yield_now().await,
                }
            }
        })
        .await;
        let outcome = ask(&link, call(100 + id)).await;
        assert!(matches!(outcome, Err(LinkError::Unreachable(_) | LinkError::Lost(_))), "{outcome:?}");
        let listener = nobody.listen();
        listener.set_nonblocking(true).unwrap();
        server = Some(Server::start_on(TcpListener::from_std(listener).unwrap(), echo));
    }
}

async fn echo(mut conn: Conn) {
    while let Some(request) = conn.request().await {
        conn.result(&request, json!({})).await;
    }
}
