//! Tests of the feed over both endpoints: every event once and in order, across reconnects and slow readers.

use std::time::Duration;

use serde_json::{Value, json};
use support::{
    Gateway, Options,
    http::{Conn, Event},
    ws::{CLOSE, Ws},
};

/// Opens the feed as the reviewer.
#[track_caller]
fn feed(gateway: &Gateway, path: &str, last: Option<u64>) -> Conn {
    let bearer = format!("Bearer {}", gateway.reviewer());
    let last = last.map(|last| last.to_string());
    let mut headers = vec![("Authorization", bearer.as_str()), ("Accept", "text/event-stream")];
    headers.extend(last.as_deref().map(|last| ("Last-Event-ID", last)));
    let mut conn = gateway.connect();
    conn.request("GET", path, &headers, b"");
    let head = conn.head();
    assert_eq!(head.status, 200, "{head:?}");
    conn
}

/// Returns the next event with a number.
#[track_caller]
fn next_numbered(conn: &mut Conn) -> (u64, Event) {
    loop {
        let event = conn.expect_event();
        if let Some(id) = &event.id {
            return (id.parse().unwrap(), event);
        }
    }
}

#[test]
fn feed_reports_each_transition() {
    let gateway = Gateway::start();
    let mut conn = feed(&gateway, "/api/events", None);
    let hello = conn.expect_event();
    assert_eq!(hello.event.as_deref(), Some("hello"));
    assert_eq!((hello.id.clone(), hello.json()["seq"].as_u64()), (None, Some(0)));
    let change = gateway.propose("Told");
    gateway.decide(&change, "approve");
    for (seq, kind) in
        (1..).zip(["change.created", "change.approved", "change.executing", "change.applied", "change.verified"])
    {
        let (id, event) = next_numbered(&mut conn);
        let data = event.json();
        assert_eq!((id, event.event.as_deref(), data["type"].as_str()), (seq, Some(kind), Some(kind)), "{data}");
        assert_eq!(data["change"]["id"], change.as_str());
        assert_eq!(data["seq"], seq);
    }
}

#[test]
fn resumed_feed_has_no_loss_or_repeat() {
    let gateway = Gateway::start();
    let changes: Vec<String> = (0..5).map(|n| gateway.propose(&format!("Number {n}"))).collect();
    for change in &changes {
        gateway.decide(change, "reject");
    }
    for start in [0, 1, 4, 9, 10] {
        for by_header in [true, false] {
            let path = if by_header { "/api/events".into() } else { format!("/api/events?since={start}") };
            let mut conn = feed(&gateway, &path, by_header.then_some(start));
            for expected in start + 1..=10 {
                assert_eq!(next_numbered(&mut conn).0, expected);
            }
            assert!(
                !matches!(conn.event_within(Duration::from_millis(50)), Some(Event { id: Some(_), .. })),
                "nothing twice"
            );
        }
    }
    let mut conn = feed(&gateway, "/api/events?since=9", None);
    assert_eq!(next_numbered(&mut conn).0, 10);
    gateway.propose("Live");
    assert_eq!(next_numbered(&mut conn).0, 11, "and goes on live");
}

#[test]
fn websocket_feed_has_no_loss_or_repeat() {
    let gateway = Gateway::start();
    let bearer = format!("Bearer {}", gateway.reviewer());
    let refused = Ws::try_open(&gateway, "/events", &[]);
    assert_eq!(refused.head.status, 401, "it shows changes");
    let change = gateway.propose("Before");
    let mut ws = Ws::try_open(&gateway, "/events?since=0", &[("Authorization", &bearer)]);
    assert_eq!(ws.head.status, 101, "{:?}", ws.head);
    let next = |ws: &mut Ws| loop {
        let message = ws.message();
        if message["seq"].is_u64() && message["type"] != "hello" {
            return message;
        }
    };
    assert_eq!(next(&mut ws)["seq"], 1);
    gateway.decide(&change, "reject");
    let second = next(&mut ws);
    assert_eq!((&second["seq"], &second["type"]), (&json!(2), &json!("change.rejected")));
    let mut live = Ws::try_open(&gateway, "/events", &[("Authorization", &bearer)]);
    assert_eq!(live.message()["type"], "hello");
}

#[test]
fn session_events_have_no_number() {
    let gateway = Gateway::start();
    let mut conn = feed(&gateway, "/api/events", None);
    conn.expect_event();
    let mut ws = Ws::open(&gateway);
    ws.initialize("2025-11-25");
    let opened = loop {
        let event = conn.expect_event();
        if event.event.as_deref() == Some("session.opened") {
            break event;
        }
    };
    assert_eq!(opened.id, None);
    assert_eq!(opened.json()["session"]["transport"], "websocket");
    // A close is final; a lost connection may resume for a while.
    ws.send_frame(true, CLOSE, &1000u16.to_be_bytes());
    let closed = loop {
        let event = conn.expect_event();
        if event.event.as_deref() == Some("session.closed") {
            break event;
        }
    };
    assert_eq!(closed.id, None);
}

#[test]
fn stalled_dashboard_harms_nobody() {
    let gateway = Gateway::with_options(&Options {
        env: vec![
            ("COUNTERSIGN_LIMITS__OUTBOX_MESSAGES", "64"),
            ("COUNTERSIGN_CHANGES__MAX_PENDING", "100000"),
            ("COUNTERSIGN_LIMITS__RATE_PER_SECOND", "100000"),
            ("COUNTERSIGN_LIMITS__RATE_BURST", "100000"),
        ],
        ..Options::default()
    });
    let stalled: Vec<Conn> = (0..20).map(|_| feed(&gateway, "/api/events", None)).collect();
    let mut reading = feed(&gateway, "/api/events", None);
    let project = gateway.project();
    let long = "x".repeat(2_000);
    for expected in 1..=300 {
        let title = expected.to_string();
        let arguments = json!({"projectId": project, "title": title, "type": "Story", "description": long});
        gateway.tool("create_issue", arguments);
        assert_eq!(next_numbered(&mut reading).0, expected, "the one that reads gets everything");
    }
    assert_eq!(gateway.request("GET", "/health", &[], b"").status, 200);
    assert!(!gateway.log().contains("panicked"), "{}", gateway.log());
    drop(stalled);
}

#[test]
fn revoked_key_ends_its_feed() {
    let gateway = Gateway::start();
    let key = gateway.create_key("viewer", "vera");
    let bearer = format!("Bearer {key}");
    let mut conn = gateway.connect();
    conn.request("GET", "/api/events", &[("Authorization", &bearer)], b"");
    assert_eq!(conn.head().status, 200);
    let data = gateway.data();
    let (code, out, err) = support::run(&["keys", "list", "--data", data.to_str().unwrap()]);
    assert_eq!(code, Some(0), "{err}");
    assert!(out.contains("vera") && !out.contains(&key), "{out}");
    let id = key_id(&out, "vera");
    let (code, _, err) = support::run(&["keys", "revoke", &id, "--data", data.to_str().unwrap()]);
    assert_eq!(code, Some(0), "{err}");
    support::eventually("the key stops working", || {
        (gateway.api_as(&key, "GET", "/api/me", None).0 == 401).then_some(())
    });
    gateway.propose("Not for vera");
    let mut seen = Vec::new();
    while let Some(event) = conn.event_within(Duration::from_secs(5)) {
        seen.push(event.event.unwrap_or_default());
    }
    assert!(!seen.contains(&"change.created".to_owned()), "{seen:?}");
}

/// Returns the id of the key of that name from the list: the first column that is neither name nor role.
fn key_id(list: &str, name: &str) -> String {
    let line = list.lines().find(|line| line.contains(name)).expect("the key is listed");
    line.split_whitespace().find(|word| *word != name && *word != "viewer").expect("an id").to_owned()
}

#[test]
fn audit_trail_reads_back_in_order() {
    let gateway = Gateway::start();
    // The key's entry precedes the change's, so the change's entries are contiguous.
    assert!(!gateway.reviewer().is_empty());
    let change = gateway.propose("Audited");
    gateway.decide(&change, "approve");
    gateway.wait_for_verification(&change);
    let (status, page) = gateway.api("GET", &format!("/api/audit?change={change}"), None);
    assert_eq!(status, 200);
    let entries = page["entries"].as_array().unwrap();
    let events: Vec<&Value> = entries.iter().rev().map(|entry| &entry["event"]).collect();
    assert_eq!(events.len(), 5, "{events:?}");
    for two in entries.windows(2) {
        assert_eq!(two[0]["prevHash"], two[1]["hash"], "newest first, each chained to the one before");
    }
    assert_eq!(page["head"]["hash"], entries[0]["hash"]);
    let approved = entries.iter().find(|entry| entry["to"] == "approved").expect("who approved it");
    assert_eq!(approved["actor"], "alice");
}
