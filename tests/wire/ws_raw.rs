//! Tests of `/ws` over a raw socket: the upgrade, frames of every kind, both eras, resumption, and stalled readers.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use serde_json::{Value, json};
use support::{
    Gateway, Options, eventually, mcp,
    ws::{BINARY, CLOSE, PING, PONG, TEXT, Ws},
};

const MCP: (&str, &str) = ("Sec-WebSocket-Protocol", "mcp");

#[test]
fn upgrade_names_subprotocol_and_session() {
    let gateway = Gateway::start();
    let ws = Ws::open(&gateway);
    assert_eq!(ws.head.header("sec-websocket-protocol"), Some("mcp"));
    assert_eq!(ws.head.header("sec-websocket-accept"), Some("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="));
    assert_eq!(ws.session().map(str::len), Some(32));
    let several = Ws::try_open(&gateway, "/ws", &[("Sec-WebSocket-Protocol", "other, mcp")]);
    assert_eq!((several.head.status, several.head.header("sec-websocket-protocol")), (101, Some("mcp")));
    for headers in [[("Origin", "http://evil.example.com"), MCP], [("Origin", "null"), MCP]] {
        assert_eq!(Ws::try_open(&gateway, "/ws", &headers).head.status, 403, "{headers:?}");
    }
    let plain = gateway.request("GET", "/ws", &[], b"");
    assert_eq!((plain.status, plain.code()), (400, Some(-32600)), "{}", plain.text());
}

#[test]
fn socket_serves_the_handshake_era() {
    let gateway = Gateway::start();
    for version in mcp::LEGACY {
        let mut ws = Ws::open(&gateway);
        let opened = ws.initialize(version);
        assert_eq!(opened["result"]["protocolVersion"], version);
        assert_eq!(ws.call(1, "ping", json!({}))["result"], json!({}));
        let read = ws.call(2, "tools/call", json!({"name": "list_projects", "arguments": {}}));
        assert!(read["result"]["content"].is_array(), "{read}");
        ws.send(r#"{"jsonrpc":"2.0","id":123456789012345678901234567890,"method":"ping"}"#);
        let raw = ws.frame().unwrap();
        assert!(String::from_utf8(raw.payload).unwrap().contains(r#""id":123456789012345678901234567890"#));
        ws.send("[]");
        assert_eq!(ws.message()["error"]["code"], -32600);
    }
}

#[test]
fn socket_serves_the_stateless_era() {
    let gateway = Gateway::start();
    let mut ws = Ws::open(&gateway);
    let discovered = ws.call(1, "server/discover", mcp::with_meta(json!({})));
    assert_eq!(discovered["result"]["resultType"], "complete", "{discovered}");
    let called = ws.call(2, "tools/call", mcp::with_meta(json!({"name": "list_projects", "arguments": {}})));
    assert!(called["result"]["structuredContent"]["projects"].is_array(), "{called}");
    let missing = ws.call(3, "tools/list", json!({"_meta": {"io.modelcontextprotocol/protocolVersion": mcp::MODERN}}));
    assert_eq!(missing["error"]["code"], -32602, "{missing}");
    let dropped = ws.call(4, "ping", mcp::with_meta(json!({})));
    assert_eq!(dropped["error"]["code"], -32601, "{dropped}");

    let change = gateway.propose("Heard of over a socket");
    let uri = format!("change://{change}");
    let listen = json!({"notifications": {"resourceSubscriptions": [uri]}});
    ws.send_json(&mcp::request(5, "subscriptions/listen", mcp::with_meta(listen)));
    assert_eq!(ws.message()["method"], "notifications/subscriptions/acknowledged");
    gateway.decide(&change, "reject");
    let update = ws.message();
    assert_eq!(update["params"]["uri"], uri, "{update}");
    assert_eq!(update["params"]["_meta"]["io.modelcontextprotocol/subscriptionId"], 5);
    ws.send_json(&json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": mcp::with_meta(json!({"requestId": 5}))}));
    assert!(ws.call(6, "tools/list", mcp::with_meta(json!({})))["result"]["tools"].is_array(), "the socket goes on");
}

#[test]
fn invalid_frames_close_with_their_code() {
    let gateway = Gateway::with_options(&Options {
        env: vec![("COUNTERSIGN_TRANSPORTS__WEBSOCKET__MAX_MESSAGE_SIZE", "64KiB")],
        ..Options::default()
    });
    let closed_with = |prepare: &dyn Fn(&mut Ws)| {
        let mut ws = Ws::open(&gateway);
        prepare(&mut ws);
        loop {
            match ws.frame() {
                Some(frame) if frame.opcode == CLOSE => return frame.close_code(),
                Some(_) => {}
                None => return None,
            }
        }
    };
    assert_eq!(closed_with(&|ws| ws.send_frame(true, BINARY, b"{}")), Some(1003), "binary");
    let too_big = vec![b'x'; 70 << 10];
    assert_eq!(closed_with(&|ws| ws.send_frame(true, TEXT, &too_big)), Some(1009), "too big");
    let broken = closed_with(&|ws| ws.send_frame(true, TEXT, b"\xff\xfe"));
    assert_eq!(broken, Some(1007), "no UTF-8");
    let unknown = closed_with(&|ws| ws.send_frame(true, 3, b"x"));
    assert_eq!(unknown, Some(1002), "a reserved opcode");
    let orphan = closed_with(&|ws| ws.send_frame(true, 0, b"x"));
    assert_eq!(orphan, Some(1002), "a continuation without a first frame");
    let normal = closed_with(&|ws| ws.send_frame(true, CLOSE, &1000u16.to_be_bytes()));
    assert_eq!(normal, Some(1000), "a close is echoed");
    assert_eq!(Ws::open(&gateway).call(1, "ping", json!({}))["result"], json!({}));
}

#[test]
fn bad_messages_get_errors_on_an_open_socket() {
    let gateway = Gateway::start();
    let mut ws = Ws::open(&gateway);
    ws.initialize("2025-11-25");
    for (text, code) in [
        ("{", -32700),
        ("", -32700),
        ("5", -32600),
        ("[]", -32600),
        (r#"{"jsonrpc":"2.0","id":null,"method":"ping"}"#, -32600),
        (r#"{"jsonrpc":"2.0","id":1.5,"method":"ping"}"#, -32600),
    ] {
        ws.send(text);
        let answer = ws.message();
        assert_eq!(answer["error"]["code"], code, "{text}: {answer}");
        assert!(answer.get("id").is_none(), "{text}: {answer}");
    }
    let deep = "[".repeat(100_000);
    ws.send(&deep);
    assert_eq!(ws.message()["error"]["code"], -32700);
    assert_eq!(ws.call(9, "ping", json!({}))["result"], json!({}));
}

#[test]
fn fragments_are_joined_around_control_frames() {
    let gateway = Gateway::start();
    let mut ws = Ws::open(&gateway);
    let text = mcp::request(1, "ping", json!({"pad": "é".repeat(1000)})).to_string();
    let (first, rest) = text.as_bytes().split_at(80);
    ws.send_frame(false, TEXT, first);
    ws.send_frame(true, PING, b"between");
    for (n, part) in rest.chunks(100).enumerate() {
        ws.send_frame((n + 1) * 100 >= rest.len(), 0, part);
    }
    let mut pong = None;
    let answer = loop {
        let frame = ws.any_frame().expect("a frame");
        match frame.opcode {
            PONG => pong = Some(frame.payload),
            TEXT => break frame.json(),
            _ => {}
        }
    };
    assert_eq!(pong.as_deref(), Some(&b"between"[..]));
    assert_eq!(answer["id"], 1);
}

#[test]
fn concurrent_requests_can_be_cancelled() {
    let gateway = Gateway::start();
    let mut ws = Ws::open(&gateway);
    ws.initialize("2025-11-25");
    let change = gateway.propose("Waited for over a socket");
    let wait = json!({"name": "wait_for_change", "arguments": {"changeId": change}, "_meta": {"progressToken": "p"}});
    ws.send_json(&mcp::request(1, "tools/call", wait.clone()));
    ws.send_json(&mcp::request(2, "ping", json!({})));
    let (answer, before) = ws.answer(&json!(2));
    assert_eq!(answer["result"], json!({}), "the wait holds up nothing");
    assert!(before.iter().all(|message| message["method"] == "notifications/progress"), "{before:?}");
    ws.send_json(&json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}));
    ws.send_json(&mcp::request(3, "tools/call", wait));
    gateway.decide(&change, "reject");
    let (answer, before) = ws.answer(&json!(3));
    assert_eq!(answer["result"]["structuredContent"]["status"], "rejected", "{answer}");
    assert!(before.iter().all(|message| message["id"] != 1), "a cancelled request is not answered: {before:?}");
}

#[test]
fn dead_sockets_are_evicted_after_pings() {
    let gateway = Gateway::with_options(&Options {
        env: vec![
            ("COUNTERSIGN_TRANSPORTS__WEBSOCKET__PING_INTERVAL", "2s"),
            ("COUNTERSIGN_LIMITS__RATE_PER_SECOND", "100000"),
            ("COUNTERSIGN_LIMITS__RATE_BURST", "100000"),
        ],
        ..Options::default()
    });
    let mut dead = Ws::open(&gateway);
    let evicted = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // `call` answers pings while it waits.
        let alive = scope.spawn(|| {
            let mut alive = Ws::open(&gateway);
            for id in 0.. {
                assert_eq!(alive.call(id, "ping", json!({}))["result"], json!({}));
                if evicted.load(Ordering::Relaxed) {
                    return;
                }
            }
        });
        let mut pings = 0;
        // `any_frame` answers none.
        while let Some(frame) = dead.any_frame() {
            match frame.opcode {
                PING => pings += 1,
                CLOSE => break,
                other => panic!("opcode {other}"),
            }
        }
        evicted.store(true, Ordering::Relaxed);
        assert!(pings > 0, "it was pinged before it was dropped");
        alive.join().expect("the socket that answers pings stays open");
    });
}

#[test]
fn socket_over_the_limit_is_refused() {
    let gateway = Gateway::with_options(&Options {
        env: vec![("COUNTERSIGN_TRANSPORTS__WEBSOCKET__MAX_CONNECTIONS", "3")],
        ..Options::default()
    });
    let change = gateway.propose("Waited for");
    let wait = json!({"name": "wait_for_change", "arguments": {"changeId": change}});
    // Each has a call in flight, so none of them can be evicted.
    let held: Vec<Ws> = (0..3)
        .map(|_| {
            let mut ws = Ws::open(&gateway);
            ws.send_json(&mcp::request(1, "tools/call", mcp::with_meta(wait.clone())));
            ws
        })
        .collect();
    eventually("all have calls in flight", || {
        (gateway.api("GET", "/api/sessions", None).1["inFlight"] == 3).then_some(())
    });
    assert_eq!(Ws::try_open(&gateway, "/ws", &[MCP]).head.status, 503);
    drop(held);
    eventually("there is room again", || (Ws::try_open(&gateway, "/ws", &[MCP]).head.status == 101).then_some(()));
}

/// Opens a session, subscribes to two changes, and receives the first update.
fn open_subscribed(gateway: &Gateway) -> (Ws, [String; 2]) {
    let changes = [gateway.propose("First"), gateway.propose("Second")];
    let mut ws = Ws::open(gateway);
    ws.initialize("2025-11-25");
    for (n, change) in changes.iter().enumerate() {
        let answer = ws.call(n as i64 + 1, "resources/subscribe", json!({"uri": format!("change://{change}")}));
        assert_eq!(answer["result"], json!({}), "{answer}");
    }
    gateway.decide(&changes[0], "reject");
    assert_eq!(ws.message()["params"]["uri"], format!("change://{}", changes[0]));
    (ws, changes)
}

#[test]
fn resuming_client_gets_missed_messages() {
    let gateway = Gateway::start();
    let (ws, changes) = open_subscribed(&gateway);
    let path = format!("/ws?session={}&received={}", ws.session().unwrap(), ws.received);
    drop(ws);
    gateway.decide(&changes[1], "reject");
    let mut resumed = eventually("the session is free to be resumed", || {
        let ws = Ws::try_open(&gateway, &path, &[MCP]);
        (ws.head.status == 101).then_some(ws)
    });
    let missed = resumed.message();
    assert_eq!(missed["params"]["uri"], format!("change://{}", changes[1]), "neither lost nor repeated: {missed}");
    assert_eq!(resumed.call(9, "ping", json!({}))["result"], json!({}), "initialized still");
}

#[test]
fn lost_frame_is_resent_on_resume() {
    let gateway = Gateway::start();
    let (ws, changes) = open_subscribed(&gateway);
    // The client reports that it has not received the last frame.
    let path = format!("/ws?session={}&received={}", ws.session().unwrap(), ws.received - 1);
    drop(ws);
    let mut resumed = eventually("resumed", || {
        let ws = Ws::try_open(&gateway, &path, &[MCP]);
        (ws.head.status == 101).then_some(ws)
    });
    assert_eq!(resumed.message()["params"]["uri"], format!("change://{}", changes[0]));
}

#[test]
fn late_or_foreign_resume_is_refused() {
    let gateway = Gateway::with_options(&Options {
        env: vec![("COUNTERSIGN_TRANSPORTS__WEBSOCKET__REPLAY_FRAMES", "4")],
        ..Options::default()
    });
    let mut ws = Ws::open(&gateway);
    ws.initialize("2025-11-25");
    for id in 1..20 {
        ws.call(id, "ping", json!({}));
    }
    let session = ws.session().unwrap().to_owned();
    let received = ws.received;
    drop(ws);
    let refused = |path: &str, headers: &[(&str, &str)]| Ws::try_open(&gateway, path, headers).head.status;
    assert_eq!(refused(&format!("/ws?session={session}&received=1"), &[MCP]), 410, "those frames are gone");
    assert_eq!(refused(&format!("/ws?session={session}&received={}", received + 5), &[MCP]), 400, "never sent");
    assert_eq!(refused(&format!("/ws?session={}&received=0", "x".repeat(32)), &[MCP]), 404);
    assert_eq!(refused(&format!("/ws?session={session}&received=minus"), &[MCP]), 400);
    let key = format!("Bearer {}", gateway.create_key("agent", "somebody-else"));
    let path = format!("/ws?session={session}&received={received}");
    assert_eq!(refused(&path, &[MCP, ("Authorization", &key)]), 404, "another principal's session is not found");
}

#[test]
fn stalled_reader_is_dropped() {
    let gateway = Gateway::with_options(&Options {
        env: vec![
            ("COUNTERSIGN_LIMITS__OUTBOX_MESSAGES", "64"),
            ("COUNTERSIGN_LIMITS__OUTBOX_BYTES", "1MiB"),
            ("COUNTERSIGN_TRANSPORTS__HTTP__MAX_BODY", "64KiB"),
            ("COUNTERSIGN_TRANSPORTS__WEBSOCKET__MAX_MESSAGE_SIZE", "64KiB"),
            ("COUNTERSIGN_TRANSPORTS__STDIO__MAX_MESSAGE_SIZE", "64KiB"),
            ("COUNTERSIGN_LIMITS__RATE_PER_SECOND", "100000"),
            ("COUNTERSIGN_LIMITS__RATE_BURST", "100000"),
        ],
        ..Options::default()
    });
    let mut stalled = Ws::open(&gateway);
    stalled.initialize("2025-11-25");
    // Answers of many KiB each, none of which it reads.
    for id in 0..3_000 {
        stalled.send_json(&mcp::request(id, "tools/list", json!({})));
    }
    let mut other = Ws::open(&gateway);
    assert_eq!(other.call(1, "ping", json!({}))["result"], json!({}), "others are served meanwhile");
    // It reads nothing until it is dropped, so nothing can save it.
    eventually("it is dropped", || {
        let (_, listed) = gateway.api("GET", "/api/sessions", None);
        (listed["sessions"].as_array().unwrap().len() == 1).then_some(())
    });
    let mut answers = 0;
    while let Some(frame) = stalled.any_frame() {
        match frame.opcode {
            TEXT => answers += 1,
            CLOSE => break,
            _ => {}
        }
    }
    assert!(answers < 3_000, "only answers that were on their way arrived: {answers}");
    assert_eq!(other.call(2, "ping", json!({}))["result"], json!({}), "the other socket is still served");
    assert!(!gateway.log().contains("panicked"), "{}", gateway.log());
    assert!(rss_mib(gateway.process.0.id()) < 300, "unread answers are not kept");
}

/// Returns the resident memory of a process.
fn rss_mib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() / 1024
}

#[test]
fn sockets_are_listed_and_closed_at_shutdown() {
    let gateway = Gateway::start();
    let mut ws = Ws::open(&gateway);
    ws.initialize("2025-11-25");
    let (_, listed) = gateway.api("GET", "/api/sessions", None);
    let shown =
        listed["sessions"].as_array().unwrap().iter().any(|session: &Value| session["transport"] == "websocket");
    assert!(shown, "{listed}");
    gateway.process.terminate();
    let close = loop {
        match ws.frame() {
            Some(frame) if frame.opcode == CLOSE => break frame.close_code(),
            Some(_) => {}
            None => break None,
        }
    };
    assert_eq!(close, Some(1001), "going away");
    let (status, _) = gateway.stop();
    assert_eq!(status.code(), Some(0));
}

#[test]
fn quiet_sockets_stay_open() {
    let gateway = Gateway::start();
    let mut ws = Ws::open(&gateway);
    ws.initialize("2025-11-25");
    assert!(ws.is_quiet_for(Duration::from_millis(200)), "nothing unasked");
    assert_eq!(ws.call(1, "ping", json!({}))["result"], json!({}));
}
