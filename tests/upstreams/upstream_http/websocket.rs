//! Tests of WebSocket upstreams, whose frames are written byte by byte.

use std::sync::Arc;

use actix_codec::Framed;
use actix_http::ws::{Codec, Frame, Item, Message, hash_key};
use countersign_config::UrlTransport;
use countersign_protocol::Era;
use countersign_upstream::{Link, LinkError, LinkKind, OutgoingRequest, detect::detect};
use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};

use super::server::*;

type Socket = Framed<tokio::net::TcpStream, Codec>;

/// Accepts the upgrade.
async fn upgrade(mut conn: Conn, protocol: &str) -> Socket {
    let request = conn.request().await.unwrap();
    assert_eq!(request.header("sec-websocket-protocol"), Some("mcp"));
    let accept = hash_key(request.header("sec-websocket-key").unwrap().as_bytes());
    let accept = std::str::from_utf8(&accept).unwrap();
    conn.write(format!(
        "HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: Upgrade\r\nsec-websocket-accept: {accept}\r\n{protocol}\r\n"
    ))
    .await;
    Framed::new(conn.io, Codec::new().max_size(1 << 20))
}

/// Returns the next message; skips pings and pongs.
async fn next_message(socket: &mut Socket) -> Option<Value> {
    loop {
        match socket.next().await? {
            Ok(Frame::Text(text)) => return Some(serde_json::from_slice(&text).unwrap()),
            Ok(Frame::Ping(_) | Frame::Pong(_)) => {}
            _ => return None,
        }
    }
}

async fn say(socket: &mut Socket, message: Value) {
    let _ = socket.send(Message::Text(message.to_string().into())).await;
}

async fn initialize(socket: &mut Socket) -> Option<()> {
    let message = next_message(socket).await?;
    if message["method"] == "server/discover" {
        // Older servers close the connection on unknown methods.
        return None;
    }
    assert_eq!(message["method"], "initialize");
    say(
        socket,
        json!({"jsonrpc": "2.0", "id": message["id"], "result": {"protocolVersion": "2025-11-25", "capabilities": {}}}),
    )
    .await;
    assert_eq!(next_message(socket).await?["method"], "notifications/initialized");
    Some(())
}

const ECHOED_PROTOCOL: &str = "sec-websocket-protocol: mcp\r\n";

async fn open(server: &Server, unsolicited: Arc<RecordingListener>) -> Result<Arc<dyn Link>, LinkError> {
    let mut url = server.url.clone();
    url.set_scheme("ws").unwrap();
    let connector = connector(&url, &[("authorization", "Bearer x")], UrlTransport::Auto);
    assert_eq!(connector.kind(), LinkKind::SingleStream);
    legacy(&*connector, unsolicited).await
}

#[actix::test]
async fn messages_are_text_frames_and_pings_are_answered() {
    let server = Server::start(|conn| async move {
        let mut socket = upgrade(conn, ECHOED_PROTOCOL).await;
        initialize(&mut socket).await;
        socket.send(Message::Ping("are you there".into())).await.unwrap();
        let (mut ponged, mut question_id) = (false, None);
        while !ponged || question_id.is_none() {
            match socket.next().await {
                Some(Ok(Frame::Pong(payload))) => ponged |= &payload[..] == b"are you there",
                Some(Ok(Frame::Text(text))) => question_id = Some(serde_json::from_slice::<Value>(&text).unwrap()),
                Some(Ok(Frame::Ping(_))) => {}
                other => panic!("{other:?}"),
            }
        }
        let id = &question_id.unwrap()["id"];
        let progress = json!({"progressToken": id, "progress": 1});
        say(&mut socket, json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": progress})).await;
        // Fragmented into several frames.
        let answer = json!({"jsonrpc": "2.0", "id": id, "result": {"ponged": ponged}}).to_string();
        let (a, b) = answer.split_at(10);
        let (b, c) = b.split_at(5);
        socket.send(Message::Continuation(Item::FirstText(a.to_owned().into()))).await.unwrap();
        socket.send(Message::Continuation(Item::Continue(b.to_owned().into()))).await.unwrap();
        socket.send(Message::Continuation(Item::Last(c.to_owned().into()))).await.unwrap();
        next_message(&mut socket).await;
    })
    .await;
    let link = open(&server, RecordingListener::new()).await.unwrap();
    assert_eq!(server.log.all()[0].header("authorization"), Some("Bearer x"));
    let listener = RecordingListener::new();
    let answer = within_max_wait(link.request(&call(1), listener.clone())).await;
    assert_eq!(text(answer), r#"{"ponged":true}"#);
    assert_eq!(listener.methods(), ["notifications/progress"]);
}

#[actix::test]
async fn socket_end_fails_requests_in_flight() {
    for how in ["close", "drop", "garbage", "long"] {
        let server = Server::start(move |conn| async move {
            let mut socket = upgrade(conn, "").await;
            initialize(&mut socket).await;
            next_message(&mut socket).await;
            match how {
                "close" => socket.send(Message::Close(None)).await.unwrap(),
                "garbage" => {
                    use tokio::io::AsyncWriteExt;
                    let mut io = socket.into_parts().io;
                    io.write_all(&[0xFF; 64]).await.unwrap();
                    let _ = tokio::io::AsyncReadExt::read(&mut io, &mut [0; 64]).await;
                }
                "long" => {
                    let part = "x".repeat(1 << 20);
                    let mut sent =
                        socket.send(Message::Continuation(Item::FirstText(part.clone().into()))).await.is_ok();
                    for _ in 0..100 {
                        sent = sent
                            && socket.send(Message::Continuation(Item::Continue(part.clone().into()))).await.is_ok();
                    }
                    assert!(!sent, "100 MiB were taken");
                }
                _ => {}
            }
        })
        .await;
        let link = open(&server, RecordingListener::new()).await.unwrap();
        let outcome = ask(&link, call(1)).await;
        match how {
            "close" | "drop" => assert!(matches!(outcome, Err(LinkError::Lost(_))), "{how}: {outcome:?}"),
            _ => assert!(matches!(outcome, Err(LinkError::Protocol(_))), "{how}: {outcome:?}"),
        }
        assert!(link.closed().is_cancelled());
    }
}

#[actix::test]
async fn close_is_sent_and_dropped_request_is_cancelled() {
    let (observed, mut observations) = tokio::sync::mpsc::unbounded_channel();
    let server = Server::start(move |conn| {
        let observed = observed.clone();
        async move {
            let mut socket = upgrade(conn, ECHOED_PROTOCOL).await;
            initialize(&mut socket).await;
            while let Some(Ok(frame)) = socket.next().await {
                match frame {
                    Frame::Text(text) => observed.send(String::from_utf8(text.to_vec()).unwrap()).unwrap(),
                    Frame::Close(reason) => return observed.send(format!("close {:?}", reason.unwrap().code)).unwrap(),
                    _ => {}
                }
            }
        }
    })
    .await;
    let link = open(&server, RecordingListener::new()).await.unwrap();
    {
        let outgoing = OutgoingRequest::new(5, "slow", None);
        let mut request = link.request(&outgoing, RecordingListener::new());
        tokio::select! { answer = &mut request => panic!("{answer:?}"), text = observations.recv() => assert!(text.unwrap().contains("slow")) }
    }
    assert!(within_max_wait(observations.recv()).await.unwrap().contains(r#""requestId":5"#));
    link.close();
    assert_eq!(within_max_wait(observations.recv()).await.unwrap(), "close Normal");
    assert!(matches!(ask(&link, call(6)).await, Err(LinkError::Unreachable(_))));
}

#[actix::test]
async fn refused_upgrade_is_an_error() {
    let refusals = [
        "HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
        "HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: Upgrade\r\nsec-websocket-accept: wrong\r\n\r\n",
        "",
    ];
    for refusal in refusals {
        let server = Server::start(move |mut conn| async move {
            conn.request().await;
            conn.write(refusal).await;
        })
        .await;
        assert!(open(&server, RecordingListener::new()).await.is_err(), "{refusal}");
    }
    let server = Server::start(|conn| async move {
        upgrade(conn, "sec-websocket-protocol: other\r\n").await;
    })
    .await;
    assert!(matches!(open(&server, RecordingListener::new()).await.map(|_| ()), Err(LinkError::Protocol(_))));
}

#[actix::test]
async fn server_that_dies_on_discovery_is_legacy() {
    let server = Server::start(|conn| async move {
        let mut socket = upgrade(conn, ECHOED_PROTOCOL).await;
        if initialize(&mut socket).await.is_some() {
            while let Some(message) = next_message(&mut socket).await {
                say(&mut socket, json!({"jsonrpc": "2.0", "id": message["id"], "result": {}})).await;
            }
        }
    })
    .await;
    let mut url = server.url.clone();
    url.set_scheme("ws").unwrap();
    let connector = connector(&url, &[], UrlTransport::WebSocket);
    let found = within_max_wait(detect(connector, RecordingListener::new())).await.unwrap();
    assert_eq!(found.era(), Era::Legacy);
    assert_eq!(text(ask(&found.link, call(1)).await), "{}");
    assert_eq!(*server.connections.borrow(), 2);
}
