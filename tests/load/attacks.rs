//! Tests of hostile or unlucky peers, and of what they must not achieve.

use std::{
    process::Stdio,
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use support::{
    Gateway, LISTEN, Options, command, command_on, eventually,
    http::Conn,
    mcp::{self, borrow_headers, modern_headers, with_meta},
    tls::TlsGateway,
    ws::{CLOSE, TEXT, Ws},
};

const MCP: (&str, &str) = ("Sec-WebSocket-Protocol", "mcp");

fn in_flight(gateway: &Gateway) -> u64 {
    requests_in_flight(&gateway.api("GET", "/api/sessions", None).1)
}

/// Returns the requests in flight over all sessions of a page.
fn requests_in_flight(listed: &Value) -> u64 {
    listed["inFlight"].as_u64().expect("a list of sessions")
}

/// Returns the close code of a socket, skipping other frames.
fn close_code(ws: &mut Ws) -> Option<u16> {
    loop {
        let frame = ws.any_frame()?;
        if frame.opcode == CLOSE {
            return frame.close_code();
        }
    }
}

#[test]
fn frame_is_refused_by_its_announced_length() {
    let gateway = Gateway::start();
    let mut ws = Ws::open(&gateway);
    // A terabyte is announced, and nothing of it arrives.
    let mut head = vec![0x81, 0xff];
    head.extend_from_slice(&(1_u64 << 40).to_be_bytes());
    ws.conn.send(&head);
    assert_eq!(close_code(&mut ws), Some(1009));
    let key = format!("Bearer {}", gateway.reviewer());
    let mut feed = Ws::try_open(&gateway, "/events", &[("Authorization", &key)]);
    assert_eq!(feed.head.status, 101);
    feed.conn.send(&head);
    assert_eq!(close_code(&mut feed), Some(1009));
}

#[test]
fn invalid_text_closes_with_1007_and_bad_bits_with_1002() {
    let gateway = Gateway::start();
    let mut ws = Ws::open(&gateway);
    ws.send_frame(false, TEXT, b"\"\xff");
    ws.send_frame(true, 0, b"\xfe\"");
    assert_eq!(close_code(&mut ws), Some(1007));
    let mut ws = Ws::open(&gateway);
    ws.conn.send(&[0xc1, 0x80, 0, 0, 0, 0]);
    assert_eq!(close_code(&mut ws), Some(1002));
}

#[test]
fn resuming_mid_stream_loses_and_repeats_nothing() {
    let gateway = Gateway::start();
    let mut old = Ws::open(&gateway);
    old.initialize("2025-11-25");
    let session = old.session().unwrap().to_owned();
    let mut seen = Vec::new();
    let mut received = old.received;
    let mut next = 1_i64;
    for round in 0..20 {
        // Half of the answers are read, and the rest is in flight when the next connection comes.
        for _ in 0..20 {
            old.send_json(&mcp::request(next, "ping", json!({})));
            next += 1;
        }
        for _ in 0..10 {
            seen.push(old.message()["id"].as_i64().unwrap());
            received += 1;
        }
        let path = format!("/ws?session={session}&received={received}");
        let mut new = Ws::try_open(&gateway, &path, &[MCP]);
        assert_eq!(new.head.status, 101, "round {round}");
        // The old connection's last requests may have been cut with it; the answer to this one ends the rest.
        new.send_json(&mcp::request(1_000_000 + round, "ping", json!({})));
        loop {
            let id = new.message()["id"].as_i64().unwrap();
            received += 1;
            if id == 1_000_000 + round {
                break;
            }
            seen.push(id);
        }
        old = new;
    }
    let mut once = seen.clone();
    once.sort_unstable();
    once.dedup();
    assert_eq!(once.len(), seen.len(), "nothing came twice");
    // Requests of the old connection may be answered after the new connection's first, in their own order.
    for round in 0..20 {
        let of_round: Vec<_> = seen.iter().filter(|id| (**id - 1) / 20 == round).map(|id| (*id - 1) % 20).collect();
        let whole: Vec<i64> = (0..i64::try_from(of_round.len()).unwrap()).collect();
        assert_eq!(of_round, whole, "no gap in round {round}");
    }
}

#[test]
fn sessions_are_bounded_at_every_endpoint() {
    let gateway =
        Gateway::with_options(&Options { env: vec![("COUNTERSIGN_LIMITS__MAX_SESSIONS", "3")], ..Options::default() });
    let held: Vec<_> = (0..3).map(|_| gateway.session("2025-11-25")).collect();
    // Each has a call in flight, so none of them can be evicted.
    let change = gateway.propose("Waited for");
    let wait = mcp::request(1, "tools/call", json!({"name": "wait_for_change", "arguments": {"changeId": change}}));
    let _waits: Vec<_> = held.iter().map(|session| session.start(&wait)).collect();
    eventually("all have calls in flight", || (in_flight(&gateway) == 3).then_some(()));
    let refused = gateway.post(&[], &mcp::request(0, "initialize", mcp::initialize_params("2025-11-25")).to_string());
    assert_eq!((refused.status, &refused.json()["error"]["data"]["code"]), (503, &json!("OVERLOADED")));
    assert_eq!(Ws::try_open(&gateway, "/ws", &[MCP]).head.status, 503);
    assert_eq!(gateway.request("GET", "/sse", &[("Accept", "text/event-stream")], b"").status, 503);
    assert_eq!(gateway.modern(1, "tools/list", json!({})).status, 200, "a request without a session is served");
}

#[test]
fn event_ids_that_were_never_sent_are_refused() {
    let gateway = Gateway::start();
    let session = gateway.session("2025-11-25");
    for (last, status) in [("0-7", 400), ("7-0", 410), ("x", 400), ("0-0", 200)] {
        let headers = [
            ("Accept", "text/event-stream"),
            ("Mcp-Session-Id", session.id.as_str()),
            ("MCP-Protocol-Version", "2025-11-25"),
            ("Last-Event-ID", last),
        ];
        let mut conn = gateway.connect();
        conn.request("GET", "/mcp", &headers, b"");
        assert_eq!(conn.head().status, status, "{last}");
    }
}

#[test]
fn deleted_session_cancels_its_requests() {
    let gateway = Gateway::start();
    let change = gateway.propose("Waited for");
    let session = gateway.session("2025-11-25");
    let headers =
        [mcp::JSON, mcp::ACCEPT, ("Mcp-Session-Id", session.id.as_str()), ("MCP-Protocol-Version", "2025-11-25")];
    let wait = json!({"name": "wait_for_change", "arguments": {"changeId": change}});
    let mut conn = gateway.connect();
    conn.request("POST", "/mcp", &headers, mcp::request(1, "tools/call", wait).to_string().as_bytes());
    eventually("it waits", || (in_flight(&gateway) == 1).then_some(()));
    assert_eq!(gateway.request("DELETE", "/mcp", &headers[2..], b"").status, 204);
    assert_eq!(conn.response().status, 404);
    assert_eq!(in_flight(&gateway), 0);
}

#[test]
fn shutdown_does_not_wait_for_decisions() {
    let gateway = Gateway::start();
    let change = gateway.propose("Waited for");
    let params = json!({"name": "wait_for_change", "arguments": {"changeId": change}});
    let mut conn = gateway.modern_conn(1, "tools/call", params);
    let body = json!({"changeId": change}).to_string();
    let mut plain = gateway.connect();
    plain.request("POST", "/tools/wait_for_change", &[mcp::JSON], body.as_bytes());
    eventually("it waits", || (in_flight(&gateway) == 1).then_some(()));
    gateway.process.terminate();
    assert_eq!(conn.response().json()["error"]["data"]["code"], "SHUTTING_DOWN");
    // It may also have come too late to be accepted at all.
    assert_eq!(plain.response().status, 503);
    let (status, _) = gateway.stop();
    assert_eq!(status.code(), Some(0));
}

#[test]
fn rate_limited_client_is_told_when_to_retry() {
    let gateway = Gateway::with_options(&Options {
        env: vec![("COUNTERSIGN_LIMITS__RATE_PER_SECOND", "1"), ("COUNTERSIGN_LIMITS__RATE_BURST", "1")],
        ..Options::default()
    });
    let refused = eventually("the limit", || {
        let answer = gateway.modern(1, "tools/list", json!({}));
        (answer.status != 200).then_some(answer)
    });
    assert_eq!((refused.status, &refused.json()["error"]["data"]["code"]), (429, &json!("RATE_LIMITED")));
    assert_eq!(refused.header("retry-after"), Some("1"));
    let refused = eventually("the limit", || {
        let answer = gateway.request("POST", "/tools/list_projects", &[mcp::JSON], b"{}");
        (answer.status != 200).then_some(answer)
    });
    assert_eq!((refused.status, refused.header("retry-after")), (429, Some("1")));
}

#[test]
fn revoked_key_ends_its_connections() {
    let config = "auth: {mode: keys}\npolicy: {review: {on_review: hold, hold_for: 10m}}\n";
    let gateway = Gateway::with_options(&Options { config: Some(config), ..Options::default() });
    let key = gateway.create_key("agent", "bot");
    let bearer = format!("Bearer {key}");
    let authorized = ("Authorization", bearer.as_str());
    let mut ws = Ws::try_open(&gateway, "/ws", &[MCP, authorized]);
    ws.initialize("2025-11-25");
    let mut pair = gateway.connect();
    pair.request("GET", "/sse", &[("Accept", "text/event-stream"), authorized], b"");
    assert_eq!(pair.head().status, 200);
    pair.event().unwrap();
    let params = with_meta(json!({"notifications": {"resourcesListChanged": true}}));
    let mut headers = modern_headers("subscriptions/listen", &params);
    headers.push(("Authorization".into(), bearer.clone()));
    let mut listen = gateway.connect();
    let body = mcp::request(1, "subscriptions/listen", params).to_string();
    listen.request("POST", "/mcp", &borrow_headers(&headers), body.as_bytes());
    assert_eq!(listen.head().status, 200);
    listen.event().unwrap();
    let mut held = held_call(&gateway, &bearer);
    let mut task = waiting_task(&gateway, &bearer);
    revoke(&gateway, "bot");
    assert_eq!(close_code(&mut ws), Some(1008));
    assert!(pair.event().is_none());
    assert_eq!(listen.event().unwrap().json()["error"]["data"]["code"], "UNAUTHORIZED");
    assert_eq!(held.response().json()["error"]["data"]["code"], "UNAUTHORIZED");
    // Its session ends as well, and either may come first.
    let code = task.response().json()["error"]["data"]["code"].clone();
    assert!(code == "UNAUTHORIZED" || code == "SESSION_NOT_FOUND", "{code}");
    let (_, changes) = gateway.api("GET", "/api/changes?status=pending", None);
    assert_eq!(changes["changes"].as_array().unwrap().len(), 2, "its proposals can still be decided on");
}

#[test]
fn idle_feeds_end_with_their_key() {
    let config = "transports: {http: {sse_keep_alive: 1h}, websocket: {ping_interval: 1h}}\n";
    let gateway = Gateway::with_options(&Options { config: Some(config), ..Options::default() });
    let subscribers = || {
        let metrics = gateway.request("GET", "/metrics", &[], b"").text();
        let line =
            metrics.lines().find_map(|line| line.strip_prefix("countersign_feed_subscribers ").map(str::to_owned));
        line.unwrap_or_else(|| panic!("{metrics}")).parse::<f64>().unwrap()
    };
    let before = subscribers();
    let watcher = format!("Bearer {}", gateway.create_key("viewer", "vera"));
    let mut feed = gateway.connect();
    feed.request("GET", "/api/events", &[("Authorization", &watcher)], b"");
    assert_eq!(feed.head().status, 200);
    let mut frames = Ws::try_open(&gateway, "/events", &[("Authorization", &watcher)]);
    eventually("both listen", || (subscribers() >= before + 2.0).then_some(()));
    revoke(&gateway, "vera");
    // Long before anything would have been sent to them.
    assert_eq!(close_code(&mut frames), Some(1008));
    eventually("nobody listens any more", || (subscribers() <= before).then_some(()));
}

fn revoke(gateway: &Gateway, name: &str) {
    let list = command_on(&gateway.data()).args(["keys", "list", "--data"]).arg(gateway.data()).output().unwrap();
    let list = String::from_utf8(list.stdout).unwrap();
    let id = list.lines().find(|l| l.contains(name)).unwrap().split_whitespace().next().unwrap().to_owned();
    let revoked =
        command_on(&gateway.data()).args(["keys", "revoke", &id, "--data"]).arg(gateway.data()).output().unwrap();
    assert!(revoked.status.success());
}

/// Starts a call that waits for a decision; returns once it waits.
fn held_call(gateway: &Gateway, bearer: &str) -> Conn {
    let params = with_meta(story(gateway, bearer, "Held"));
    let mut headers = modern_headers("tools/call", &params);
    headers.push(("Authorization".into(), bearer.into()));
    let mut conn = gateway.connect();
    conn.request(
        "POST",
        "/mcp",
        &borrow_headers(&headers),
        mcp::request(1, "tools/call", params).to_string().as_bytes(),
    );
    propose(gateway, "Held");
    conn
}

/// Starts a `tasks/result` that waits for a decision.
fn waiting_task(gateway: &Gateway, bearer: &str) -> Conn {
    let mut headers = vec![mcp::JSON, mcp::ACCEPT, ("Authorization", bearer), ("MCP-Protocol-Version", "2025-11-25")];
    let post =
        |headers: &[(&str, &str)], body: &Value| gateway.request("POST", "/mcp", headers, body.to_string().as_bytes());
    let hello =
        json!({ "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": { "name": "t", "version": "1" } });
    let opened = post(&headers, &mcp::request(1, "initialize", hello));
    let session = opened.header("mcp-session-id").unwrap().to_owned();
    headers.push(("Mcp-Session-Id", &session));
    post(&headers, &json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }));
    let mut call = story(gateway, bearer, "Task");
    call["task"] = json!({});
    let created = post(&headers, &mcp::request(2, "tools/call", call)).json();
    let id = created["result"]["task"]["taskId"].as_str().unwrap_or_else(|| panic!("{created}"));
    let mut conn = gateway.connect();
    let ask = mcp::request(3, "tasks/result", json!({ "taskId": id }));
    conn.request("POST", "/mcp", &headers, ask.to_string().as_bytes());
    conn
}

fn story(gateway: &Gateway, bearer: &str, title: &str) -> Value {
    let projects =
        gateway.request("POST", "/tools/list_projects", &[("Authorization", bearer), mcp::JSON], b"{}").json();
    let project = &projects["structuredContent"]["projects"][0]["id"];
    json!({ "name": "create_issue", "arguments": { "projectId": project, "title": title, "type": "Story" } })
}

fn propose(gateway: &Gateway, title: &str) {
    eventually("it is proposed", || {
        let (_, page) = gateway.api("GET", "/api/changes", None);
        page["changes"].as_array()?.iter().any(|change| change["arguments"]["title"] == title).then_some(())
    });
}

#[test]
fn viewer_key_opens_no_mcp_endpoint() {
    let gateway = Gateway::with_options(&Options { config: Some("auth: {mode: keys}\n"), ..Options::default() });
    let bearer = format!("Bearer {}", gateway.create_key("viewer", "eve"));
    let authorized = ("Authorization", bearer.as_str());
    assert_eq!(Ws::try_open(&gateway, "/ws", &[MCP, authorized]).head.status, 403);
    for (method, path) in [("GET", "/sse"), ("POST", "/messages?sessionId=x"), ("POST", "/tools/list_projects")] {
        let headers = [authorized, mcp::JSON, ("Accept", "text/event-stream")];
        assert_eq!(gateway.request(method, path, &headers, b"{}").status, 403, "{path}");
    }
}

#[test]
fn log_contains_no_client_text() {
    let gateway =
        Gateway::with_options(&Options { env: vec![("COUNTERSIGN_LOG__FILTER", "trace")], ..Options::default() });
    let mut ws = Ws::open(&gateway);
    ws.initialize("2025-11-25");
    let find = json!({"name": "search_issues", "arguments": {"query": "SECRET-ARGUMENT"}});
    ws.call(1, "tools/call", find.clone());
    ws.send_json(&json!({"jsonrpc": "2.0", "method": "notifications/cancelled",
        "params": {"requestId": 7, "reason": "SECRET-ARGUMENT"}}));
    ws.send_json(&json!({"jsonrpc": "2.0", "method": "notifications/\u{1b}[31mSECRET\n"}));
    ws.call(2, "ping", json!({}));
    gateway.modern(3, "tools/call", find);
    let key = gateway.reviewer().to_owned();
    gateway.api("GET", "/api/changes", None);
    let log = eventually("the calls are logged", || {
        Some(gateway.log()).filter(|log| log.matches("method=tools/call").count() >= 2)
    });
    for secret in ["SECRET-ARGUMENT", key.as_str(), "\u{1b}[31mSECRET"] {
        assert!(!log.contains(secret), "{secret}");
    }
}

/// A client that writes all of its requests before it reads any answer.
#[test]
fn stdio_client_may_write_everything_before_reading() {
    let home = tempfile::tempdir().unwrap();
    let mut command = command(&[]);
    command.args(["stdio", "--standalone", "--listen", LISTEN, "--data"]);
    command.arg(home.path().join("data"));
    let mut child =
        support::Process(command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap());
    let mut input = child.0.stdin.take().unwrap();
    let output = child.0.stdout.take().unwrap();
    const MANY: i64 = 5_000;
    let writing = std::thread::spawn(move || {
        use std::io::Write as _;
        for id in 0..MANY {
            let line = mcp::request(id, "tools/list", with_meta(json!({})));
            input.write_all(format!("{line}\n").as_bytes()).unwrap();
        }
        input
    });
    // Long enough to overrun a gateway that ignores backpressure.
    let began = Instant::now();
    while began.elapsed() < Duration::from_millis(300) && !writing.is_finished() {
        std::thread::yield_now();
    }
    use std::io::BufRead as _;
    let mut ids: Vec<i64> = Vec::new();
    for line in std::io::BufReader::new(output).lines().take(usize::try_from(MANY).unwrap()) {
        let message: Value = serde_json::from_str(&line.unwrap()).unwrap();
        assert!(message.get("error").is_none(), "{message}");
        ids.push(message["id"].as_i64().unwrap());
    }
    ids.sort_unstable();
    assert_eq!(ids, (0..MANY).collect::<Vec<_>>());
    drop(writing.join().unwrap());
    assert_eq!(child.wait_for_exit().code(), Some(0));
}

#[test]
fn http2_ids_do_not_collide_and_reset_cancels() {
    let tls = TlsGateway::start();
    let call = |id: i64, name: &str, arguments: Value| -> Vec<String> {
        let params = with_meta(json!({"name": name, "arguments": arguments}));
        let mut args = vec!["--http2".to_owned()];
        for (name, value) in modern_headers("tools/call", &params) {
            args.extend(["-H".into(), format!("{name}: {value}")]);
        }
        args.extend(["-d".into(), mcp::request(id, "tools/call", params).to_string(), "/mcp".into()]);
        args
    };
    let run = |args: &[String]| -> Value {
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        serde_json::from_slice(&tls.run(&args).stdout).unwrap()
    };
    let projects = run(&call(1, "list_projects", json!({})));
    let project = projects["result"]["structuredContent"]["projects"][0]["id"].clone();
    let issue = json!({"projectId": project, "title": "Waited for", "type": "Epic"});
    let change = run(&call(1, "create_issue", issue))["result"]["structuredContent"]["changeId"].clone();
    // Two concurrent requests on one connection with the same id.
    let wait = call(1, "wait_for_change", json!({"changeId": change, "timeoutSeconds": 1}));
    let mut both: Vec<&str> = vec!["--parallel", "--parallel-immediate"];
    let url = format!("{}/mcp", tls.base);
    both.extend(wait.iter().map(String::as_str));
    *both.last_mut().unwrap() = &url;
    both.extend(["--next", "-sS", "--cacert", tls.cert.to_str().unwrap()]);
    both.extend(wait.iter().map(String::as_str));
    let out = String::from_utf8(tls.run(&both).stdout).unwrap();
    assert_eq!(out.matches("\"result\"").count(), 2, "{out}");
    // A client that disconnects cancels its request.
    let key = support::create_key(&tls.home.path().join("data"), "reviewer", "r");
    let reviewer = format!("Authorization: Bearer {key}");
    let flying =
        || requests_in_flight(&serde_json::from_slice(&tls.run(&["-H", &reviewer, "/api/sessions"]).stdout).unwrap());
    let wait = call(2, "wait_for_change", json!({"changeId": change, "timeoutSeconds": 60}));
    let args: Vec<&str> = wait.iter().map(String::as_str).collect();
    let mut waiting = support::Process(tls.curl(&args).stdout(Stdio::null()).spawn().unwrap());
    eventually("the call is in flight", || (flying() == 1).then_some(()));
    waiting.0.kill().unwrap();
    eventually("the call is cancelled", || (flying() == 0).then_some(()));
    tls.stop();
}

#[test]
fn invalid_certificate_is_reported_before_start() {
    let home = tempfile::tempdir().unwrap();
    let pem = home.path().join("bad.pem");
    std::fs::write(&pem, "nonsense").unwrap();
    let config = home.path().join("c.yaml");
    std::fs::write(&config, format!("tls: {{cert: {0}, key: {0}}}\n", pem.display())).unwrap();
    let data = home.path().join("data");
    let output = command(&[])
        .args(["serve", "--listen", LISTEN, "--config"])
        .arg(&config)
        .arg("--data")
        .arg(&data)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(78));
    assert!(String::from_utf8_lossy(&output.stderr).contains("bad.pem"));
    assert!(!data.exists());
}

#[test]
fn abandoned_waits_leave_nothing_behind() {
    let gateway = Gateway::start();
    let change = gateway.propose("Waited for");
    let params = json!({"name": "wait_for_change", "arguments": {"changeId": change}});
    // Many times as many as may be open at a time.
    for id in 0..300 {
        let conn: Conn = gateway.modern_conn(id, "tools/call", params.clone());
        drop(conn);
    }
    eventually("none is in flight", || (in_flight(&gateway) == 0).then_some(()));
    let mut held: Vec<Conn> = (0..64).map(|id| gateway.modern_conn(id, "tools/call", params.clone())).collect();
    eventually("all places are free again", || (in_flight(&gateway) == 64).then_some(()));
    gateway.decide(&change, "reject");
    for conn in &mut held {
        assert!(conn.response().json().get("result").is_some());
    }
}
