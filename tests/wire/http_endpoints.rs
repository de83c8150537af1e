//! Tests of the port's other endpoints and its protection: plain HTTP, credentials, foreign origins, hostile bytes.

use serde_json::json;
use support::{Gateway, Options, eventually, http::Conn, mcp};

fn small_limits() -> Options<'static> {
    Options {
        env: vec![
            ("COUNTERSIGN_TRANSPORTS__HTTP__HEADER_TIMEOUT", "1s"),
            ("COUNTERSIGN_TRANSPORTS__HTTP__REQUEST_TIMEOUT", "2s"),
            ("COUNTERSIGN_TRANSPORTS__HTTP__MAX_BODY", "64KiB"),
        ],
        ..Options::default()
    }
}

#[test]
fn plain_endpoint_needs_no_handshake() {
    let gateway = Gateway::start();
    let health = gateway.request("GET", "/health", &[], b"");
    assert_eq!(health.status, 200, "{}", health.text());
    let info = gateway.request("GET", "/info", &[], b"").json();
    assert!(info.to_string().contains("countersign"), "{info}");
    let tools = gateway.request("GET", "/tools", &[], b"").json();
    assert!(tools["tools"].as_array().unwrap().iter().any(|tool| tool["name"] == "create_issue"), "{tools}");

    let projects = gateway.request("POST", "/tools/list_projects", &[mcp::JSON], b"{}");
    assert_eq!(projects.status, 200, "{}", projects.text());
    assert!(projects.text().contains("projects"));
    let arguments = json!({"projectId": gateway.project(), "title": "Over plain HTTP", "type": "Story"}).to_string();
    let proposed = gateway.request("POST", "/tools/create_issue", &[mcp::JSON], arguments.as_bytes());
    assert_eq!(proposed.status, 202, "{}", proposed.text());
    assert!(proposed.text().contains("chg_") && proposed.text().contains("pending"), "{}", proposed.text());
    assert_eq!(gateway.issues_titled("Over plain HTTP"), 0, "the same policy");

    let unknown = gateway.request("POST", "/tools/no_such_tool", &[mcp::JSON], b"{}");
    assert_eq!((unknown.status, unknown.json()["code"].as_str()), (404, Some("TOOL_NOT_FOUND")), "{}", unknown.text());
    assert!(unknown.header("content-type").is_some_and(|kind| kind.starts_with("application/problem+json")));
    let invalid = gateway.request("POST", "/tools/create_issue", &[mcp::JSON], b"{\"title\":\"\"}");
    assert_eq!(invalid.json()["code"], "VALIDATION_FAILED", "{}", invalid.text());
    assert_eq!(invalid.status, 422);
    for (body, code) in [("[]", "INVALID_PARAMS"), ("{", "PARSE_ERROR"), ("5", "INVALID_PARAMS")] {
        let refused = gateway.request("POST", "/tools/list_projects", &[mcp::JSON], body.as_bytes());
        assert_eq!((refused.status, refused.json()["code"].as_str()), (400, Some(code)), "{body}: {}", refused.text());
    }
    let nothing = gateway.request("POST", "/tools/list_projects", &[mcp::JSON], b"");
    assert_eq!(nothing.status, 200, "no body is no arguments: {}", nothing.text());
    let duplicate = br#"{"projectId":"x","title":"a","title":"b","type":"Story"}"#;
    let refused = gateway.request("POST", "/tools/create_issue", &[mcp::JSON], duplicate);
    let refusal = (refused.status, refused.json()["code"].clone());
    assert_eq!(refusal, (400, json!("INVALID_PARAMS")), "duplicate keys of reviewed arguments: {}", refused.text());
}

#[test]
fn metrics_cover_operations() {
    let gateway = Gateway::start();
    gateway.project();
    let metrics = gateway.request("GET", "/metrics", &[], b"");
    assert_eq!(metrics.status, 200);
    let text = metrics.text().to_lowercase();
    for part in ["request", "duration", "error", "connections", "queue", "cache", "circuit"] {
        assert!(text.contains(part), "{part} in\n{text}");
    }
    for id in 0..50 {
        gateway.modern(id, &format!("no/such/{id}"), json!({}));
        gateway.request("GET", &format!("/no/such/{id}"), &[], b"");
    }
    let text = gateway.request("GET", "/metrics", &[], b"").text();
    assert!(!text.contains("no/such/4"), "label values are bounded");
}

#[test]
fn deciding_needs_a_key() {
    let gateway = Gateway::start();
    let change = gateway.propose("Not to be approved by an agent");
    let path = format!("/api/changes/{change}/decision");
    let body = json!({"decision": "approve", "version": 1}).to_string();
    let nobody = gateway.request("POST", &path, &[mcp::JSON], body.as_bytes());
    assert_eq!((nobody.status, nobody.json()["code"].as_str()), (401, Some("UNAUTHORIZED")), "{}", nobody.text());
    assert_eq!(nobody.header("www-authenticate").map(|value| value.starts_with("Bearer")), Some(true));
    for (role, status) in [("agent", 403), ("viewer", 403)] {
        let key = gateway.create_key(role, &format!("some-{role}"));
        let (decision_status, answer) =
            gateway.api_as(&key, "POST", &path, Some(&json!({"decision": "approve", "version": 1})));
        assert_eq!((decision_status, answer["code"].as_str()), (status, Some("FORBIDDEN")), "{role}: {answer}");
    }
    for path in ["/api/changes", "/api/audit", "/api/sessions", "/api/events", "/api/servers"] {
        assert_eq!(gateway.request("GET", path, &[], b"").status, 401, "{path}");
    }
    let cookie = [("Cookie", "countersign_session=made-up"), ("Origin", "null"), mcp::JSON];
    let forged = gateway.request("POST", &path, &cookie, body.as_bytes());
    assert_eq!((forged.status, forged.json()["code"].as_str()), (403, Some("FORBIDDEN")), "{}", forged.text());
    assert_eq!(gateway.change(&change)["state"], "pending");
}

#[test]
fn proposer_cannot_approve() {
    let gateway = Gateway::start();
    let key = gateway.create_key("admin", "root");
    let bearer = format!("Bearer {key}");
    let params = mcp::with_meta(json!({
        "name": "create_issue", "arguments": {"projectId": gateway.project(), "title": "My own", "type": "Story"},
    }));
    let mut headers = mcp::modern_headers("tools/call", &params);
    headers.push(("Authorization".into(), bearer));
    let body = mcp::request(1, "tools/call", params).to_string();
    let answer = gateway.request("POST", "/mcp", &mcp::borrow_headers(&headers), body.as_bytes()).json();
    let change = answer["result"]["structuredContent"]["changeId"].as_str().expect("a change").to_owned();
    let path = format!("/api/changes/{change}/decision");
    let (status, refused) = gateway.api_as(&key, "POST", &path, Some(&json!({"decision": "approve", "version": 1})));
    assert_eq!((status, refused["code"].as_str()), (403, Some("SELF_APPROVAL")), "{refused}");
    assert_eq!(gateway.decide(&change, "approve")["id"], change.as_str(), "somebody else can");
}

#[test]
fn outdated_version_decides_nothing() {
    let gateway = Gateway::start();
    let change = gateway.propose("Decided once");
    let path = format!("/api/changes/{change}/decision");
    let (status, conflict) = gateway.api("POST", &path, Some(&json!({"decision": "approve", "version": 99})));
    assert_eq!((status, conflict["code"].as_str()), (409, Some("VERSION_CONFLICT")), "{conflict}");
    assert_eq!(conflict["change"]["state"], "pending", "with the state as it is");
    gateway.decide(&change, "reject");
    let (status, late) = gateway.api("POST", &path, Some(&json!({"decision": "approve", "version": 1})));
    assert_eq!((status, late["code"].as_str()), (409, Some("CHANGE_NOT_PENDING")), "{late}");
}

#[test]
fn keys_mode_needs_a_key_and_limits_guessing() {
    let gateway =
        Gateway::with_options(&Options { env: vec![("COUNTERSIGN_AUTH__MODE", "keys")], ..Options::default() });
    let ping = mcp::request(1, "ping", json!({})).to_string();
    let without = gateway.post(&[], &ping);
    assert_eq!(without.status, 401, "{}", without.text());
    assert!(without.header("www-authenticate").is_some());
    let bearer = format!("Bearer {}", gateway.create_key("agent", "bot"));
    assert_eq!(gateway.post(&[("Authorization", &bearer)], &ping).status, 200);
    let limited =
        (0..200).any(|n| gateway.post(&[("Authorization", &format!("Bearer cs_guess_{n}"))], &ping).status == 429);
    assert!(limited, "failed attempts are limited");
}

#[test]
fn foreign_hosts_and_origins_are_refused_at_every_endpoint() {
    let gateway = Gateway::start();
    let port = gateway.port;
    let own = format!("127.0.0.1:{port}");
    let body = mcp::request(1, "ping", json!({})).to_string();
    for (path, method) in [
        ("/mcp", "POST"),
        ("/mcp", "GET"),
        ("/sse", "GET"),
        ("/ws", "GET"),
        ("/tools", "GET"),
        ("/health", "GET"),
        ("/", "GET"),
        ("/api/changes", "GET"),
    ] {
        for headers in [
            vec![("Host", "evil.example.com")],
            vec![("Host", own.as_str()), ("Origin", "http://evil.example.com")],
            vec![("Host", own.as_str()), ("Origin", "null")],
            vec![("Host", "127.0.0.1.evil.example.com")],
        ] {
            let mut all = vec![mcp::JSON, mcp::ACCEPT];
            all.extend_from_slice(&headers);
            let answer = gateway.request(method, path, &all, if method == "POST" { body.as_bytes() } else { b"" });
            assert_eq!(answer.status, 403, "{method} {path} {headers:?}: {}", answer.text());
        }
    }
    let origin = format!("http://{own}");
    for headers in [vec![("Origin", origin.as_str())], vec![("Host", "localhost")], vec![]] {
        assert_eq!(gateway.post(&headers, &body).status, 200, "{headers:?}");
    }
    let preflight = [("Origin", "https://app.example.com"), ("Access-Control-Request-Method", "POST")];
    assert_eq!(gateway.request("OPTIONS", "/mcp", &preflight, b"").status, 403);
    let open = Gateway::with_options(&Options {
        env: vec![("COUNTERSIGN_TRANSPORTS__HTTP__CORS_ORIGINS", "https://app.example.com")],
        ..Options::default()
    });
    let allowed = open.request("OPTIONS", "/mcp", &preflight, b"");
    assert_eq!(allowed.status, 204);
    assert_eq!(allowed.header("access-control-allow-origin"), Some("https://app.example.com"));
    assert_eq!(
        open.request("OPTIONS", "/mcp", &[("Origin", "https://other.example.com"), preflight[1]], b"").status,
        403
    );
}

#[test]
fn bodies_are_compressed_on_request() {
    let gateway = Gateway::start();
    let body = mcp::request(1, "tools/list", json!({})).to_string();
    let answer = gateway.post(&[("Accept-Encoding", "br, gzip")], &body);
    assert_eq!((answer.status, answer.header("content-encoding")), (200, Some("gzip")));
    assert_eq!(gateway.post(&[], &body).header("content-encoding"), None);
}

#[test]
fn test_of_webhook_may_last_as_long_as_its_receiver() {
    // It accepts connections and never answers.
    let receiver = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let address = receiver.local_addr().unwrap();
    let config = format!("webhooks: {{ hook: {{ url: 'http://{address}/', format: slack, timeout: 1s }} }}\n");
    let gateway = Gateway::with_options(&Options {
        env: vec![("COUNTERSIGN_TRANSPORTS__HTTP__REQUEST_TIMEOUT", "500ms")],
        config: Some(&config),
    });
    let (status, result) = gateway.api("POST", "/api/webhooks/hook/test", None);
    assert_eq!((status, &result["delivered"]), (200, &json!(false)), "{result}");
    assert!(result["error"].as_str().unwrap().contains("no answer"), "{result}");
}

/// The second request is read once the first is answered, before any of its body arrives.
#[test]
fn pipelined_body_may_arrive_late() {
    let gateway = Gateway::with_options(&small_limits());
    let body = mcp::request(1, "ping", json!({})).to_string();
    let head = format!(
        "POST /mcp HTTP/1.1\r\nHost: 127.0.0.1:{}\r\nContent-Type: application/json\r\nAccept: */*\r\nContent-Length: {}\r\n\r\n",
        gateway.port,
        body.len()
    );
    let both = format!("{head}{body}{head}");
    let mut late = gateway.connect();
    late.send(both.as_bytes());
    assert_eq!(late.response().status, 200);
    late.send(body.as_bytes());
    assert_eq!(late.response().status, 200);
    let mut never = gateway.connect();
    never.send(both.as_bytes());
    assert_eq!(never.response().status, 200);
    assert_eq!(never.response().status, 408);
}

#[test]
fn slow_and_huge_requests_are_cut_off() {
    let gateway = Gateway::with_options(&small_limits());
    // A head without an end.
    let mut slow = gateway.connect();
    slow.send(b"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: ");
    let answer = slow.try_response();
    assert_eq!(answer.map(|answer| answer.status), Some(408));
    // A body that never arrives.
    let mut stream = gateway.connect();
    stream.request("GET", "/sse", &[("Accept", "text/event-stream")], b"");
    assert_eq!(stream.head().status, 200);
    let messages = stream.expect_event().data.expect("a path");
    let head = format!(
        "POST /mcp HTTP/1.1\r\nHost: 127.0.0.1:{}\r\nContent-Type: application/json\r\nAccept: */*\r\nContent-Length: 100\r\n\r\n{{",
        gateway.port
    );
    let unfinished = ["/mcp", "/tools/list_projects", messages.as_str()].map(|path| {
        let mut conn = gateway.connect();
        conn.send(head.replace("/mcp", path).as_bytes());
        conn
    });
    for mut conn in unfinished {
        let answer = conn.try_response();
        assert_eq!(answer.map(|answer| answer.status), Some(408));
    }
    // A body whose announced length is over the limit.
    let mut endless = gateway.connect();
    endless.send(head.replace("Content-Length: 100", "Content-Length: 99999999999999").as_bytes());
    assert_eq!(endless.try_response().map(|answer| answer.status), Some(413));
    // A huge header.
    let giant = "x".repeat(1 << 20);
    let mut conn = gateway.connect();
    conn.request("GET", "/health", &[("X-Giant", &giant)], b"");
    let answer = conn.try_response();
    assert_eq!(answer.map(|answer| answer.status), Some(431));
    // A body over the limit, announced or not.
    let big = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"ping","params":{{"pad":"{}"}}}}"#, "x".repeat(70 << 10));
    let refused = gateway.post(&[], &big);
    assert_eq!(refused.status, 413, "{}", refused.text());
    let mut chunked = gateway.connect();
    chunked.request("POST", "/mcp", &[mcp::JSON, mcp::ACCEPT, ("Transfer-Encoding", "chunked")], b"");
    for part in big.as_bytes().chunks(4096) {
        chunked.send(format!("{:x}\r\n", part.len()).as_bytes());
        chunked.send(part);
        chunked.send(b"\r\n");
    }
    chunked.send(b"0\r\n\r\n");
    assert_eq!(chunked.try_response().map(|answer| answer.status), Some(413));
    // Nobody else was affected.
    assert_eq!(gateway.post(&[], &mcp::request(1, "ping", json!({})).to_string()).status, 200);
}

#[test]
fn garbage_is_answered_or_cut_off() {
    let gateway = Gateway::with_options(&small_limits());
    let host = format!("127.0.0.1:{}", gateway.port);
    for (bytes, status) in [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03".to_vec(), 400),
        (b"GET\r\n\r\n".to_vec(), 400),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(), 400),
        (b"\0\0\0\0".to_vec(), 400),
        (
            format!("POST /mcp HTTP/1.1\r\nHost: {host}\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n{{}}")
                .into_bytes(),
            400,
        ),
        (format!("POST /mcp HTTP/1.1\r\nHost: {host}\r\nContent-Length: -1\r\n\r\n").into_bytes(), 400),
        (format!("POST /mcp HTTP/1.1\r\nHost: {host}\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n").into_bytes(), 415),
        (format!("GET /../../etc/passwd HTTP/1.1\r\nHost: {host}\r\n\r\n").into_bytes(), 404),
        (format!("GET /%2e%2e/%2e%2e/etc/passwd HTTP/1.1\r\nHost: {host}\r\n\r\n").into_bytes(), 404),
        (format!("GET /tools/%00 HTTP/1.1\r\nHost: {host}\r\n\r\n").into_bytes(), 405),
        (format!("GET /health HTTP/1.1\r\nHost: {host}\r\nHost: evil.example.com\r\n\r\n").into_bytes(), 400),
    ] {
        let mut conn = gateway.connect();
        conn.send(&bytes);
        conn.finish();
        let answer = conn.try_response();
        let shown = String::from_utf8_lossy(&bytes).into_owned();
        assert_eq!(answer.map(|answer| answer.status), Some(status), "{shown:?}");
    }
    assert_eq!(gateway.request("GET", "/health", &[], b"").status, 200);
    assert!(!gateway.log().contains("panicked"), "{}", gateway.log());
}

#[test]
fn deep_and_wide_json_is_bounded() {
    let gateway = Gateway::start();
    let session = gateway.session("2025-11-25");
    for depth in [200, 10_000, 1_000_000] {
        let nested = format!("{}1{}", "[".repeat(depth), "]".repeat(depth));
        let body = format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"list_projects","arguments":{{"x":{nested}}}}}}}"#
        );
        let answer = session.post(&body);
        assert_eq!((answer.status, answer.code()), (400, Some(-32600)), "{depth}: {}", answer.text());
        assert_eq!(answer.json()["error"]["data"]["maxDepth"], 128, "{depth}: {}", answer.text());
    }
    let wide = format!("[{}1]", "1,".repeat(1_000_000));
    let body = format!(
        r#"{{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{{"name":"list_projects","arguments":{{"x":{wide}}}}}}}"#
    );
    let answer = session.post(&body);
    assert_eq!(answer.json()["result"]["isError"], true, "{}", answer.text());
    assert_eq!(session.call(3, "ping", json!({}))["result"], json!({}));
}

#[test]
fn connections_over_the_limit_are_refused() {
    let gateway = Gateway::with_options(&Options {
        env: vec![("COUNTERSIGN_TRANSPORTS__HTTP__MAX_CONNECTIONS", "8")],
        ..Options::default()
    });
    let change = gateway.propose("Waited for");
    let wait = json!({"name": "wait_for_change", "arguments": {"changeId": change}});
    // Each carries a call, so none of them can be evicted.
    let held: Vec<Conn> = (0..8).map(|id| gateway.modern_conn(id, "tools/call", wait.clone())).collect();
    eventually("eight calls in flight", || {
        (gateway.api("GET", "/api/sessions", None).1["inFlight"] == 8).then_some(())
    });
    let mut over = gateway.connect();
    over.request("GET", "/health", &[], b"");
    assert_eq!(over.try_response().map(|answer| answer.status), Some(503));
    drop(held);
    eventually("there is room again", || {
        let mut conn = gateway.connect();
        conn.request("GET", "/health", &[], b"");
        conn.try_response().filter(|answer| answer.status == 200)
    });
}

#[test]
fn many_requests_on_one_connection() {
    let gateway = Gateway::start();
    let mut conn = gateway.connect();
    for id in 0..100 {
        let body = mcp::request(id, "ping", json!({})).to_string();
        conn.request("POST", "/mcp", &[mcp::JSON, mcp::ACCEPT], body.as_bytes());
    }
    for id in 0..100 {
        let answer = conn.response();
        assert_eq!((answer.status, answer.json()["id"].as_i64()), (200, Some(id)), "pipelined, in order");
    }
}
