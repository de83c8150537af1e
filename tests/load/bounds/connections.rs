//! Tests of the bounds of connections, sessions and streams, and of their eviction.

use super::*;

/// Keeps connections busy with calls that wait for a decision.
fn start_waiting_calls(gateway: &Gateway, change: &str, count: i64) -> Vec<Conn> {
    let call = json!({ "name": "wait_for_change", "arguments": { "changeId": change } });
    (0..count).map(|id| gateway.modern_conn(id, "tools/call", call.clone())).collect()
}

/// Opens waiting calls until they occupy all connections.
fn fill_connections(gateway: &Gateway, change: &str, max: usize) -> Vec<Conn> {
    let mut busy = Vec::new();
    eventually("all places are taken", || {
        if gateway.request("GET", "/health", &[], b"").status == 503 {
            return Some(());
        }
        busy.extend(start_waiting_calls(gateway, change, 1));
        None
    });
    eventually("all of them carry calls", || (in_flight(gateway) == max).then_some(()));
    busy
}

/// Sends one request on a connection that stays open.
fn health(conn: &mut Conn) -> Option<u16> {
    conn.request("GET", "/health", &[], b"");
    conn.try_response().map(|answer| answer.status)
}

/// Opens a stream of 2024-11-05 whose client never sends anything.
fn silent_stream(gateway: &Gateway) -> Conn {
    let mut conn = gateway.connect();
    conn.request("GET", "/sse", &[("Accept", "text/event-stream")], b"");
    assert_eq!(conn.head().status, 200);
    assert_eq!(conn.expect_event().event.as_deref(), Some("endpoint"));
    conn
}

#[test]
fn silent_streams_are_evicted_for_new_clients() {
    let gateway = start_with("transports:\n  http:\n    max_connections: 20\n    reserved_connections: 2\n");
    let mut silent: Vec<Conn> = (0..20).map(|_| silent_stream(&gateway)).collect();
    // A client with a request is served in place of the first silent one.
    let mut agent = gateway.connect();
    assert_eq!(health(&mut agent), Some(200));
    assert!(silent[0].is_closed());
    // Reviewers are, too, again and again.
    for _ in 0..10 {
        assert_eq!(gateway.api("GET", "/api/changes", None).0, 200);
    }
    assert_eq!(health(&mut agent), Some(200), "a connection with a request outlasts a silent one");
}

#[test]
fn reviewers_have_reserved_connections() {
    let gateway = start_with("transports:\n  http:\n    max_connections: 6\n    reserved_connections: 20\n");
    let change = gateway.propose("Waited for");
    let bearer = format!("Bearer {}", gateway.reviewer());
    let key = [("Authorization", bearer.as_str())];
    // None can be evicted, so an agent is refused, with or without a key.
    let busy = fill_connections(&gateway, &change, 6);
    let agents = format!("Bearer {}", gateway.create_key("agent", "somebody"));
    for authorization in [agents.as_str(), "Bearer csk_nonsense"] {
        assert_eq!(gateway.request("GET", "/health", &[("Authorization", authorization)], b"").status, 503);
    }
    // The feed over both endpoints and the REST API: three connections at a time.
    let mut feed = gateway.connect();
    feed.request("GET", "/api/events", &key, b"");
    assert_eq!(feed.head().status, 200);
    let socket = Ws::try_open(&gateway, "/events", &key);
    assert_eq!(socket.head.status, 101);
    // The decided call ends, which frees a connection.
    gateway.decide(&change, "reject");
    let answered = busy.into_iter().filter_map(|mut conn| conn.try_response()).filter(|answer| answer.status == 200);
    assert_eq!(answered.count(), 6);
    assert_eq!(gateway.request("GET", "/health", &[], b"").status, 200);
}

#[test]
fn signed_in_dashboard_loads_at_full_load() {
    let gateway = start_with("transports:\n  http:\n    max_connections: 3\n    reserved_connections: 20\n");
    let body = json!({ "key": gateway.reviewer() }).to_string();
    let origin = format!("http://127.0.0.1:{}", gateway.port);
    let signed_in = gateway.request("POST", "/api/sign-in", &[JSON, ("Origin", &origin)], body.as_bytes());
    assert_eq!(signed_in.status, 200, "{}", signed_in.text());
    let cookie = signed_in.header("set-cookie").unwrap().split(';').next().unwrap().to_owned();
    let change = gateway.propose("Waited for");
    let _busy = fill_connections(&gateway, &change, 3);
    assert_eq!(gateway.request("GET", "/", &[], b"").status, 503);
    assert_eq!(gateway.request("GET", "/", &[("Cookie", "countersign_session=nonsense")], b"").status, 503);
    assert_eq!(gateway.request("GET", "/", &[("Cookie", &cookie)], b"").status, 200);
}

#[test]
fn longest_idle_connection_is_evicted_first() {
    let gateway = start_with("transports:\n  http:\n    max_connections: 3\n    reserved_connections: 0\n");
    // Health checks may still be counted.
    let mut conns: Vec<Conn> = eventually("three connections, and no other", || {
        let mut conns: Vec<Conn> = (0..3).map(|_| gateway.connect()).collect();
        let served = conns.iter_mut().all(|conn| health(conn) == Some(200));
        conns[0].request("GET", "/metrics", &[], b"");
        let metrics = conns[0].try_response()?.text();
        (served && metrics.contains("connections_active{transport=\"http\"} 3\n")).then_some(conns)
    });
    // The clock counts milliseconds.
    std::thread::sleep(std::time::Duration::from_millis(5));
    for at in [0, 2] {
        assert_eq!(health(&mut conns[at]), Some(200));
    }
    let mut fourth = gateway.connect();
    assert_eq!(health(&mut fourth), Some(200));
    assert!(conns[1].is_closed());
    std::thread::sleep(std::time::Duration::from_millis(5));
    for at in [0, 2] {
        assert_eq!(health(&mut conns[at]), Some(200));
    }
    // A connection that sends nothing evicts one, and is then the first to be evicted.
    let mut silent = TcpStream::connect(gateway.address()).unwrap();
    assert!(fourth.is_closed());
    let mut fifth = gateway.connect();
    assert_eq!(health(&mut fifth), Some(200));
    assert_eq!(std::io::Read::read(&mut silent, &mut [0; 1]).unwrap_or(0), 0);
}

#[test]
fn new_session_evicts_uninitialized_then_idlest() {
    let gateway = start_with("limits:\n  max_sessions: 3\n");
    let change = gateway.propose("Waited for");
    let busy = gateway.session(NEWEST);
    let call = json!({ "name": "wait_for_change", "arguments": { "changeId": change } });
    let _wait = busy.start(&request(1, "tools/call", call));
    eventually("a call is in flight", || (in_flight(&gateway) == 1).then_some(()));
    let idle = gateway.session(NEWEST);
    let fresh = gateway.session_without_initialized(NEWEST);
    // Sessions that never begin evict one another.
    let mut last = fresh;
    for _ in 0..5 {
        let next = gateway.session_without_initialized(NEWEST);
        assert_eq!(last.call(1, "ping", json!({}))["error"]["data"]["code"], "SESSION_NOT_FOUND");
        last = next;
    }
    assert!(idle.call(2, "tools/list", json!({}))["result"].is_object());
    // One that does begin evicts the last of them, and the next one the longest idle session.
    std::thread::sleep(std::time::Duration::from_millis(5));
    let working = gateway.session(NEWEST);
    std::thread::sleep(std::time::Duration::from_millis(5));
    let another = gateway.session(NEWEST);
    assert_eq!(idle.call(3, "ping", json!({}))["error"]["data"]["code"], "SESSION_NOT_FOUND");
    for session in [&busy, &working, &another] {
        assert!(session.call(4, "ping", json!({}))["result"].is_object());
    }
}

#[test]
fn new_stream_evicts_uninitialized_but_no_waiting_one() {
    let gateway = start_with("limits:\n  max_streams: 3\n");
    let change = gateway.propose("Waited for");
    let _wait = start_waiting_calls(&gateway, &change, 1);
    eventually("a call is in flight", || (in_flight(&gateway) == 1).then_some(()));
    let session = gateway.session(NEWEST);
    let mut stream = session.stream(None);
    let mut silent = silent_stream(&gateway);
    // The silent stream goes, although it came last.
    let second = gateway.session(NEWEST);
    let _second = second.stream(None);
    assert!(silent.is_closed());
    // Then the stream whose session was idle longest.
    std::thread::sleep(std::time::Duration::from_millis(5));
    assert!(second.call(1, "ping", json!({}))["result"].is_object());
    let third = gateway.session(NEWEST);
    let _third = third.stream(None);
    // Its priming event and its end.
    while stream.event().is_some() {}
    assert_eq!(health(&mut stream), Some(200), "its connection may be used for something else");
    assert_eq!(in_flight(&gateway), 1, "the wait goes on");
}

#[test]
fn new_socket_evicts_an_uninitialized_one() {
    let gateway = start_with("transports:\n  websocket:\n    max_connections: 2\n");
    let mut working = Ws::open(&gateway);
    working.initialize(NEWEST);
    // Its handshake is over once a later request is answered.
    working.call(1, "ping", json!({}));
    let mut silent = Ws::open(&gateway);
    let mut third = Ws::open(&gateway);
    let end = std::iter::from_fn(|| silent.any_frame()).find_map(|frame| frame.close_code());
    assert_eq!(end, Some(1001));
    assert_eq!(third.call(1, "ping", json!({}))["result"], json!({}));
    assert_eq!(working.call(2, "ping", json!({}))["result"], json!({}));
}
