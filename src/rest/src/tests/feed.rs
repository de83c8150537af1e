//! Tests the endpoints of the feed. No subscriber misses or repeats an event, and a stalled subscriber affects no
//! other.

use std::collections::VecDeque;

use actix_web_actors::ws::{CloseCode, Frame};
use futures_util::{SinkExt as _, StreamExt as _};

use super::*;
use crate::events::{FeedStep, FeedSubscriber};
use countersign_domain::principal::{Credential, Principal, SecretHash};
use countersign_feed::Feed;
use countersign_protocol::McpError;
use countersign_store::keys::ApiKey;

/// The time that a test waits for an expected event, so that it fails instead of hanging.
const EVENT_TIMEOUT: Duration = Duration::from_secs(60);

/// A subscriber to server-sent events.
struct Sse {
    socket: TcpStream,
    head: String,
    /// The received body, still chunked.
    raw: String,
    /// The decoded body that was not returned yet.
    buffer: String,
    /// The number of comments so far.
    comments: usize,
}

#[derive(Debug, Default, PartialEq)]
struct SseEvent {
    id: Option<u64>,
    event: String,
    data: Value,
}

impl Sse {
    async fn open(endpoints: &Endpoints, query: &str, headers: &[(&str, &str)]) -> Self {
        let mut socket = TcpStream::connect(endpoints.address).await.unwrap();
        let headers: String = headers.iter().map(|(n, v)| format!("{n}: {v}\r\n")).collect();
        let request = format!("GET /api/events{query} HTTP/1.1\r\nHost: {}\r\n{headers}\r\n", endpoints.address);
        socket.write_all(request.as_bytes()).await.unwrap();
        let mut sse = Self { socket, head: String::new(), raw: String::new(), buffer: String::new(), comments: 0 };
        while !sse.raw.contains("\r\n\r\n") {
            assert!(sse.read().await, "{}", sse.raw);
        }
        let (head, rest) = sse.raw.split_once("\r\n\r\n").unwrap();
        (sse.head, sse.raw) = (head.to_owned(), rest.to_owned());
        assert!(sse.head.starts_with("HTTP/1.1 200"), "{}", sse.head);
        sse
    }

    async fn read(&mut self) -> bool {
        let mut bytes = [0; 8192];
        let n = self.socket.read(&mut bytes).await.unwrap_or(0);
        self.raw.push_str(std::str::from_utf8(&bytes[..n]).unwrap());
        n > 0
    }

    /// Returns the body up to the next `end`, or `None` at the end of the body.
    async fn read_until(&mut self, end: &str) -> Option<String> {
        loop {
            if let Some((block, rest)) = self.buffer.split_once(end) {
                let (block, rest) = (block.to_owned(), rest.to_owned());
                self.buffer = rest;
                return Some(block);
            }
            let chunk = self.raw.split_once("\r\n").and_then(|(size, rest)| {
                let size = usize::from_str_radix(size, 16).unwrap();
                (rest.len() >= size + 2).then(|| (rest[..size].to_owned(), rest[size + 2..].to_owned()))
            });
            match chunk {
                Some((chunk, _)) if chunk.is_empty() => return None,
                Some((chunk, rest)) => {
                    self.buffer.push_str(&chunk);
                    self.raw = rest;
                }
                None if !self.read().await => return None,
                None => {}
            }
        }
    }

    /// Returns the next event, skipping comments, or `None` at the end.
    async fn next(&mut self) -> Option<SseEvent> {
        tokio::time::timeout(EVENT_TIMEOUT, self.next_event()).await.expect("an event or the end of the stream")
    }

    async fn next_event(&mut self) -> Option<SseEvent> {
        loop {
            let block = self.read_until("\n\n").await?;
            let mut event = SseEvent::default();
            for line in block.lines() {
                match line.split_once(": ").unwrap_or((line, "")) {
                    ("id", id) => event.id = Some(id.parse().unwrap()),
                    ("event", kind) => kind.clone_into(&mut event.event),
                    ("data", data) => event.data = serde_json::from_str(data).unwrap(),
                    _ => assert!(line.starts_with(':'), "{line:?}"),
                }
            }
            if !event.event.is_empty() {
                return Some(event);
            }
            self.comments += 1;
        }
    }
}

fn bearer(key: &str) -> String {
    format!("Bearer {key}")
}

#[actix::test]
async fn sse_stream_begins_with_position_and_continues_live() {
    let endpoints = Endpoints::open().await;
    let key = bearer(&endpoints.key("vic", Role::Viewer));
    endpoints.propose_by("ci").await;
    let mut sse = Sse::open(&endpoints, "", &[("Authorization", &key)]).await;
    let head = sse.head.to_lowercase();
    for line in ["content-type: text/event-stream", "cache-control: no-store", "x-accel-buffering: no"] {
        assert!(head.contains(line), "{line} in {head}");
    }
    let hello = sse.next().await.unwrap();
    assert_eq!((hello.id, hello.event.as_str(), &hello.data), (None, "hello", &json!({ "type": "hello", "seq": 1 })));
    let change = endpoints.propose_by("ci").await;
    let created = sse.next().await.unwrap();
    assert_eq!((created.id, created.event.as_str()), (Some(2), "change.created"));
    assert_eq!(created.data["change"]["id"], change.id.as_str());
    assert_eq!((&created.data["seq"], &created.data["type"]), (&json!(2), &json!("change.created")));
    endpoints.changes.feed().publish_live(&json!({ "type": "session.opened", "session": { "id": "x" } }));
    let session = sse.next().await.unwrap();
    assert_eq!((session.id, session.event.as_str()), (None, "session.opened"));
    endpoints.data.feed.shutdown.cancel();
    endpoints.changes.shutdown(Duration::from_secs(5)).await;
    assert_eq!(sse.next().await, None, "the stream ends with the gateway");
    endpoints.close().await;
}

#[actix::test]
async fn resumed_subscriber_misses_and_repeats_no_event() {
    let endpoints = Endpoints::open().await;
    let key = bearer(&endpoints.key("vic", Role::Viewer));
    for _ in 0..150 {
        endpoints.propose_by("ci").await;
    }
    let mut sse = Sse::open(&endpoints, "?since=100", &[("Authorization", &key), ("Last-Event-ID", "40")]).await;
    for expected in 41..=90 {
        assert_eq!(sse.next().await.unwrap().id, Some(expected), "the header wins over since");
    }
    drop(sse);
    let mut sse = Sse::open(&endpoints, "?since=90", &[("Authorization", &key)]).await;
    for _ in 0..10 {
        endpoints.propose_by("ci").await;
    }
    for expected in 91..=160 {
        assert_eq!(sse.next().await.unwrap().id, Some(expected));
    }
    for (query, header) in [("?since=x", ""), ("?since=-1", ""), ("?sinse=1", ""), ("", "x1"), ("", "1.5")] {
        let headers = [("Authorization", key.as_str()), ("Last-Event-ID", header)];
        let reply = endpoints.send("GET", &format!("/api/events{query}"), &headers, None).await;
        assert_eq!(reply.problem(400), "INVALID_PARAMS", "{query} {header}");
    }
    endpoints.close().await;
}

#[actix::test]
async fn sse_stream_is_kept_alive_and_ends_with_its_credential() {
    let endpoints = Endpoints::open_with(|c| c.transports.http.sse_keep_alive = Duration::from_millis(10)).await;
    let new = keys::create("vic", Role::Viewer, Timestamp::now()).unwrap();
    endpoints.stored.writer().insert(&new.key, &new.hash).unwrap();
    let mut sse = Sse::open(&endpoints, "", &[("Authorization", &bearer(&new.secret))]).await;
    sse.next().await.unwrap();
    for _ in 0..3 {
        assert_eq!(sse.read_until("\n\n").await.unwrap(), ":");
    }
    endpoints.stored.writer().revoke(&new.key.id, Timestamp::now()).unwrap();
    endpoints.data.access.authentication.authenticator.forget_key(&new.hash);
    assert_eq!(sse.next().await, None);
    endpoints.close().await;
}

#[actix::test]
async fn sse_streams_of_one_principal_are_bounded() {
    let endpoints = Endpoints::open_with(|c| c.limits.max_streams = 2).await;
    let key = bearer(&endpoints.key("vic", Role::Viewer));
    let other = bearer(&endpoints.key("alice", Role::Reviewer));
    let mut first = Sse::open(&endpoints, "", &[("Authorization", &key)]).await;
    first.next().await.unwrap();
    let _second = Sse::open(&endpoints, "", &[("Authorization", &key)]).await;
    let reply = endpoints.send("GET", "/api/events", &[("Authorization", &key)], None).await;
    assert_eq!(reply.problem(503), "OVERLOADED");
    let _other = Sse::open(&endpoints, "", &[("Authorization", &other)]).await;
    endpoints.close().await;
}

type Socket = actix_codec::Framed<awc::BoxedSocket, awc::ws::Codec>;

async fn connect(endpoints: &Endpoints, query: &str, key: &str) -> Socket {
    let client = awc::Client::builder().max_http_version(awc::http::Version::HTTP_11).finish();
    let request = client.ws(format!("ws://{}/events{query}", endpoints.address)).header("Authorization", key);
    request.connect().await.unwrap().1
}

/// Returns the next JSON frame, and answers pings.
async fn receive_frame(socket: &mut Socket) -> Result<Value, Option<CloseCode>> {
    tokio::time::timeout(EVENT_TIMEOUT, next_frame(socket)).await.expect("a frame or the end of the socket")
}

async fn next_frame(socket: &mut Socket) -> Result<Value, Option<CloseCode>> {
    loop {
        match socket.next().await {
            Some(Ok(Frame::Text(text))) => return Ok(serde_json::from_slice(&text).unwrap()),
            Some(Ok(Frame::Ping(payload))) => socket.send(awc::ws::Message::Pong(payload)).await.unwrap(),
            Some(Ok(Frame::Close(reason))) => return Err(reason.map(|r| r.code)),
            Some(Ok(other)) => panic!("unexpected {other:?}"),
            Some(Err(error)) => panic!("{error}"),
            None => return Err(None),
        }
    }
}

#[actix::test]
async fn web_socket_sends_same_events_as_sse_stream() {
    let endpoints = Endpoints::open().await;
    let key = bearer(&endpoints.key("vic", Role::Viewer));
    endpoints.propose_by("ci").await;
    let mut live = connect(&endpoints, "", &key).await;
    assert_eq!(receive_frame(&mut live).await.unwrap(), json!({ "type": "hello", "seq": 1 }));
    let mut resumed = connect(&endpoints, "?since=0", &key).await;
    let second = endpoints.propose_by("ci").await;
    for socket in [&mut live, &mut resumed] {
        let mut event = receive_frame(socket).await.unwrap();
        if event["seq"] == 1 {
            event = receive_frame(socket).await.unwrap();
        }
        assert_eq!((&event["seq"], event["change"]["id"].as_str()), (&json!(2), Some(second.id.as_str())));
    }
    endpoints.data.feed.shutdown.cancel();
    endpoints.changes.shutdown(Duration::from_secs(5)).await;
    assert_eq!(receive_frame(&mut live).await, Err(Some(CloseCode::Away)));
    endpoints.close().await;
}

#[actix::test]
async fn long_replay_does_not_evict_the_subscriber() {
    let endpoints = Endpoints::open_with(|c| c.limits.outbox_messages = 4).await;
    let key = bearer(&endpoints.key("vic", Role::Viewer));
    for _ in 0..200 {
        endpoints.propose_by("ci").await;
    }
    let mut socket = connect(&endpoints, "?since=0", &key).await;
    for expected in 1..=200 {
        assert_eq!(receive_frame(&mut socket).await.unwrap()["seq"], expected);
    }
    endpoints.close().await;
}

#[actix::test]
async fn web_socket_refuses_messages_and_unauthorized_callers() {
    let endpoints = Endpoints::open().await;
    let key = bearer(&endpoints.key("vic", Role::Viewer));
    let plain = endpoints.send("GET", "/events", &[("Authorization", &key)], None).await;
    assert_eq!(plain.problem(426), "INVALID_REQUEST");
    let upgrade = [
        ("Upgrade", "websocket"),
        ("Connection", "Upgrade"),
        ("Sec-WebSocket-Version", "13"),
        ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
    ];
    assert_eq!(endpoints.send("GET", "/events", &upgrade, None).await.problem(401), "UNAUTHORIZED");
    let evil = [upgrade.as_slice(), &[("Authorization", key.as_str()), ("Origin", "http://evil.example")]].concat();
    assert_eq!(endpoints.send("GET", "/events", &evil, None).await.problem(403), "FORBIDDEN");

    for (message, code) in [
        (awc::ws::Message::Text("{}".into()), CloseCode::Unsupported),
        (awc::ws::Message::Binary(vec![1].into()), CloseCode::Unsupported),
        (awc::ws::Message::Text("x".repeat(10_000).into()), CloseCode::Size),
    ] {
        let mut socket = connect(&endpoints, "", &key).await;
        receive_frame(&mut socket).await.unwrap();
        socket.send(message).await.unwrap();
        assert_eq!(receive_frame(&mut socket).await, Err(Some(code)));
        assert!(socket.next().await.is_none_or(|rest| rest.is_err()), "the connection is closed");
    }
    endpoints.close().await;
}

#[actix::test]
async fn web_sockets_are_bounded_and_end_with_their_credential() {
    let endpoints = Endpoints::open_with(|c| {
        c.transports.websocket.max_connections = 1;
        c.transports.websocket.ping_interval = Duration::from_secs(2);
    })
    .await;
    let new = keys::create("vic", Role::Viewer, Timestamp::now()).unwrap();
    endpoints.stored.writer().insert(&new.key, &new.hash).unwrap();
    let key = bearer(&new.secret);
    let mut socket = connect(&endpoints, "", &key).await;
    receive_frame(&mut socket).await.unwrap();
    let client = awc::Client::default();
    let second =
        client.ws(format!("ws://{}/events", endpoints.address)).header("Authorization", key.as_str()).connect().await;
    assert!(matches!(second, Err(awc::error::WsClientError::InvalidResponseStatus(status)) if status.as_u16() == 503));
    endpoints.stored.writer().revoke(&new.key.id, Timestamp::now()).unwrap();
    endpoints.data.access.authentication.authenticator.forget_key(&new.hash);
    assert_eq!(receive_frame(&mut socket).await, Err(Some(CloseCode::Policy)));
    endpoints.close().await;
}

#[actix::test]
async fn stalled_web_socket_is_evicted_without_affecting_others() {
    let endpoints = Endpoints::open_with(|c| {
        c.transports.websocket.ping_interval = Duration::from_secs(2);
        c.limits.outbox_bytes = 1 << 20;
    })
    .await;
    let key = bearer(&endpoints.key("vic", Role::Viewer));
    let stalled = connect(&endpoints, "", &key).await;
    let mut reader = connect(&endpoints, "", &key).await;
    receive_frame(&mut reader).await.unwrap();
    let feed = endpoints.changes.feed();
    let filler = "x".repeat(32 * 1024);
    let mut pending = VecDeque::new();
    let mut n = 0_u64;
    // Sends more than the kernel's buffers and the outbox hold, until the gateway evicts the stalled subscriber.
    while feed.subscriber_count() > 1 {
        feed.publish_live(&json!({ "type": "session.opened", "n": n, "filler": filler }));
        pending.push_back(n);
        n += 1;
        let event = receive_frame(&mut reader).await.unwrap();
        assert_eq!(event["n"].as_u64(), pending.pop_front(), "the other subscriber receives all events in order");
    }
    let change = endpoints.propose_by("ci").await;
    assert_eq!(receive_frame(&mut reader).await.unwrap()["change"]["id"], change.id.as_str());
    // The stalled subscriber now reads the remaining frames, and then the reason for its end.
    let mut stalled = stalled;
    let end = loop {
        if let Err(end) = frame_without_pong(&mut stalled).await {
            break end;
        }
    };
    assert_eq!(end, Some(CloseCode::Again));
    endpoints.close().await;
}

async fn frame_without_pong(socket: &mut Socket) -> Result<(), Option<CloseCode>> {
    match socket.next().await {
        Some(Ok(Frame::Close(reason))) => Err(reason.map(|r| r.code)),
        Some(Ok(_)) => Ok(()),
        Some(Err(_)) | None => Err(None),
    }
}

#[actix::test]
async fn late_sse_reader_misses_no_change_and_delays_no_other() {
    let endpoints = Endpoints::open().await;
    let key = bearer(&endpoints.key("vic", Role::Viewer));
    let mut late = Sse::open(&endpoints, "?since=0", &[("Authorization", &key)]).await;
    let mut reader = Sse::open(&endpoints, "", &[("Authorization", &key)]).await;
    reader.next().await.unwrap();
    let filler = "x".repeat(16 * 1024);
    // Publishes more events than the feed keeps in memory, and more bytes than the kernel buffers.
    for n in 1..=20_u64 {
        endpoints.propose_by("ci").await;
        assert_eq!(reader.next().await.unwrap().id, Some(n));
        for _ in 0..250 {
            endpoints.changes.feed().publish_live(&json!({ "type": "session.closed", "filler": filler }));
            assert_eq!(reader.next().await.unwrap().event, "session.closed");
        }
    }
    let mut next = 1;
    while next <= 20 {
        if let Some(id) = late.next().await.unwrap().id {
            assert_eq!(id, next);
            next += 1;
        }
    }
    endpoints.close().await;
}

/// A store that gives the same answer about every key.
struct FakeKeys(Mutex<Result<Option<(ApiKey, SecretHash)>, McpError>>);

impl KeyStore for FakeKeys {
    fn find_key(&self, _: &SecretHash) -> Result<Option<(ApiKey, SecretHash)>, McpError> {
        self.0.lock().unwrap().clone()
    }
    fn is_person_revoked(&self, _: &str) -> Result<bool, McpError> {
        Ok(false)
    }
}

#[tokio::test(start_paused = true)]
async fn unreadable_store_does_not_revoke_subscriber() {
    let dir = tempfile::tempdir().unwrap();
    let (location, config) = (StoreLocation::directory(dir.path()), Config::default());
    let fake_keys = Arc::new(FakeKeys(Mutex::new(Err(McpError::new(ErrorKind::StoreUnavailable, "away")))));
    let authenticator = Arc::new(Authenticator::new(&config, Arc::clone(&fake_keys) as Arc<dyn KeyStore>));
    let feed = Feed::new(location.open().unwrap(), 0, 16);
    let stored = Arc::new(StoredCredentials::open(&location).unwrap());
    let access = web::Data::new(FeedAccess {
        feed: feed.clone(),
        sign_ins: Arc::new(DashboardSignIns::new(authenticator, stored, &OriginRules::new(&config))),
        shutdown: CancellationToken::new(),
        streams: StreamSlots::new(1),
        memory: MemoryBudget::new(1 << 20, 1 << 20),
        web_sockets: Arc::new(Semaphore::new(1)),
        reserved_web_sockets: Arc::new(Semaphore::new(0)),
        outbox_messages: 1,
        outbox_bytes: 1,
        ping_interval: Duration::from_secs(1),
        sse_keep_alive: Duration::from_secs(1),
    });
    let principal = Arc::new(Principal::new("vic", Role::Viewer));
    let caller = Caller { principal, credential: Credential::Key([1; 32]) };
    let (mut subscriber, _) = FeedSubscriber::new(&access, caller, None).unwrap();
    let step = tokio::time::timeout(Duration::from_secs(60), subscriber.next(true)).await;
    assert!(step.is_err(), "the stream stays open");
    feed.publish_live(&json!({ "type": "session.opened" }));
    assert!(matches!(subscriber.next(true).await, FeedStep::Ended), "the key may have been revoked");
    *fake_keys.0.lock().unwrap() = Ok(None);
    assert!(matches!(subscriber.next(true).await, FeedStep::Unauthorized));
}
