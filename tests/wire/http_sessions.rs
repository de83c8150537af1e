//! Tests of Streamable HTTP in the handshake revisions: session ids, streams, resumption, cancellation, and the
//! 2024-11-05 pair.

use std::time::Duration;

use serde_json::{Value, json};
use support::{Gateway, eventually, http::Conn, mcp};

/// Returns a `wait_for_change` that reports progress under that token.
fn wait_call(id: i64, change: &str, token: &str) -> Value {
    let params = json!({
        "name": "wait_for_change", "arguments": {"changeId": change}, "_meta": {"progressToken": token},
    });
    mcp::request(id, "tools/call", params)
}

/// Reads events up to the answer to `id`; returns it with the notifications before it.
#[track_caller]
fn answer(conn: &mut Conn, id: i64) -> (Value, Vec<Value>) {
    let mut before = Vec::new();
    loop {
        let event = conn.expect_event();
        if event.data.as_deref().is_none_or(str::is_empty) {
            continue;
        }
        let message = event.json();
        if message["id"] == id {
            return (message, before);
        }
        before.push(message);
    }
}

#[test]
fn only_calls_need_an_initialized_session() {
    let gateway = Gateway::start();
    for method in ["ping", "tools/list"] {
        let answer = gateway.post(&[], &mcp::request(1, method, json!({})).to_string());
        assert_eq!(answer.status, 200, "{method}: {}", answer.text());
        assert!(answer.json()["result"].is_object(), "{method}: {}", answer.text());
    }
    let call = mcp::request(1, "tools/call", json!({"name": "list_projects", "arguments": {}})).to_string();
    let without = gateway.post(&[], &call);
    assert_eq!(without.status, 400, "no session id: {}", without.text());
    assert_eq!(without.json()["error"]["code"], -31005, "{}", without.text());
    assert_eq!(without.json()["error"]["data"]["code"], "NOT_INITIALIZED", "{}", without.text());
}

#[test]
fn ended_session_is_not_found() {
    let gateway = Gateway::start();
    let session = gateway.session("2025-11-25");
    let ended = session.delete();
    assert_eq!(ended.status, 204);
    let answer = session.post(&mcp::request(1, "tools/list", json!({})).to_string());
    assert_eq!((answer.status, answer.json()["error"]["data"]["code"].as_str()), (404, Some("SESSION_NOT_FOUND")));
    assert_eq!(session.delete().status, 404);
    let stream =
        gateway.request("GET", "/mcp", &[("Accept", "text/event-stream"), ("Mcp-Session-Id", &session.id)], b"");
    assert_eq!(stream.status, 404);
    let never = gateway.post(&[("Mcp-Session-Id", &"x".repeat(32))], &mcp::request(1, "ping", json!({})).to_string());
    assert_eq!(never.status, 404);
    let bare = gateway.request("GET", "/mcp", &[("Accept", "text/event-stream")], b"");
    assert_eq!(bare.status, 405, "{}", bare.text());
}

#[test]
fn session_belongs_to_its_principal() {
    let gateway = Gateway::start();
    let key = format!("Bearer {}", gateway.create_key("agent", "bot-1"));
    let other = format!("Bearer {}", gateway.create_key("agent", "bot-2"));
    let opened = gateway.post(
        &[("Authorization", &key)],
        &mcp::request(0, "initialize", mcp::initialize_params("2025-11-25")).to_string(),
    );
    let id = opened.header("mcp-session-id").unwrap().to_owned();
    let ping = mcp::request(1, "ping", json!({})).to_string();
    assert_eq!(gateway.post(&[("Authorization", &key), ("Mcp-Session-Id", &id)], &ping).status, 200);
    for headers in [
        vec![("Mcp-Session-Id", id.as_str())],
        vec![("Authorization", other.as_str()), ("Mcp-Session-Id", id.as_str())],
    ] {
        let stolen = gateway.post(&headers, &ping);
        assert_eq!(stolen.status, 404, "{}", stolen.text());
    }
}

#[test]
fn version_header_must_match_the_session() {
    let gateway = Gateway::start();
    let session = gateway.session("2025-11-25");
    let ping = mcp::request(1, "ping", json!({})).to_string();
    for wrong in ["1999-01-01", "banana"] {
        let answer = gateway.post(&[("Mcp-Session-Id", &session.id), ("MCP-Protocol-Version", wrong)], &ping);
        assert_eq!(answer.status, 400, "{wrong}: {}", answer.text());
        assert_eq!(answer.json()["id"], 1, "{wrong}");
    }
    // The session knows its revision, so the header is optional.
    assert_eq!(gateway.post(&[("Mcp-Session-Id", &session.id)], &ping).status, 200);
}

#[test]
fn accept_and_content_type_are_checked() {
    let gateway = Gateway::start();
    let body = mcp::request(1, "ping", json!({})).to_string();
    let wrong_accept = gateway.request("POST", "/mcp", &[mcp::JSON, ("Accept", "text/html")], body.as_bytes());
    assert_eq!(wrong_accept.status, 406, "{}", wrong_accept.text());
    let wrong_type = gateway.request("POST", "/mcp", &[("Content-Type", "text/plain"), mcp::ACCEPT], body.as_bytes());
    assert_eq!(wrong_type.status, 415, "{}", wrong_type.text());
    let charset = gateway.request(
        "POST",
        "/mcp",
        &[("Content-Type", "application/json; charset=utf-8"), mcp::ACCEPT],
        body.as_bytes(),
    );
    assert_eq!(charset.status, 200, "{}", charset.text());
    let any = gateway.request("POST", "/mcp", &[mcp::JSON, ("Accept", "*/*")], body.as_bytes());
    assert_eq!(any.status, 200, "{}", any.text());
}

#[test]
fn progress_stream_begins_with_a_priming_event() {
    let gateway = Gateway::start();
    for version in ["2025-06-18", "2025-11-25"] {
        let session = gateway.session(version);
        let change = gateway.propose(&format!("Streamed in {version}"));
        let mut conn = session.start(&wait_call(9, &change, "tok"));
        let head = conn.head();
        assert_eq!(head.header("content-type").map(|kind| kind.split(';').next().unwrap()), Some("text/event-stream"));
        assert_eq!(head.header("content-encoding"), None, "never compressed: {head:?}");
        let first = conn.expect_event();
        let primed = first.id.is_some() && first.data.as_deref() == Some("");
        assert_eq!(primed, version == "2025-11-25", "{first:?}");
        if !primed {
            assert_eq!(first.json()["method"], "notifications/progress");
        }
        gateway.decide(&change, "reject");
        let (message, before) = answer(&mut conn, 9);
        assert_eq!(message["result"]["structuredContent"]["status"], "rejected", "{message}");
        assert!(
            before.iter().all(|m| m["method"] == "notifications/progress" && m["params"]["progressToken"] == "tok")
        );
        let values: Vec<f64> = before.iter().map(|m| m["params"]["progress"].as_f64().unwrap()).collect();
        assert!(values.windows(2).all(|two| two[0] < two[1]), "{values:?}");
        assert!(conn.event().is_none(), "the stream ends with its answer");
    }
}

#[test]
fn interrupted_call_continues_and_resumes() {
    let gateway = Gateway::start();
    let session = gateway.session("2025-11-25");
    let change = gateway.propose("Cut");
    let mut conn = session.start(&wait_call(4, &change, "cut"));
    assert_eq!(conn.head().status, 200);
    let last = conn.expect_event().id.expect("an id to resume from");
    // Disconnecting is not a cancellation in the handshake revisions.
    drop(conn);
    gateway.decide(&change, "reject");
    let mut resumed = session.stream(Some(&last));
    let (message, _) = answer(&mut resumed, 4);
    assert_eq!(message["result"]["structuredContent"]["status"], "rejected", "{message}");
    assert!(resumed.event().is_none(), "a resumed stream of a call ends with the answer");
    // It was delivered once; resuming from the same point replays only that stream.
    let mut second_stream = session.stream(Some(&last));
    let (second, _) = answer(&mut second_stream, 4);
    assert_eq!(second, message);
}

#[test]
fn standalone_stream_resumes_without_loss() {
    let gateway = Gateway::start();
    let session = gateway.session("2025-11-25");
    let changes: Vec<String> = (0..3).map(|n| gateway.propose(&format!("Watched {n}"))).collect();
    for (n, change) in changes.iter().enumerate() {
        let answer = session.call(n as i64, "resources/subscribe", json!({"uri": format!("change://{change}")}));
        assert_eq!(answer["result"], json!({}), "{answer}");
    }
    let mut stream = session.stream(None);
    let priming = stream.expect_event();
    assert!(priming.id.is_some() && priming.data.as_deref() == Some(""), "{priming:?}");
    gateway.decide(&changes[0], "reject");
    let first = stream.expect_event();
    assert_eq!(first.json()["method"], "notifications/resources/updated");
    assert_eq!(first.json()["params"]["uri"], format!("change://{}", changes[0]));
    let last = first.id.expect("an id");
    drop(stream);
    gateway.decide(&changes[1], "reject");
    let mut resumed = session.stream(Some(&last));
    let update = eventually("the missed update", || {
        let event = resumed.expect_event();
        event.data.as_deref().is_some_and(|data| !data.is_empty()).then(|| event.json())
    });
    assert_eq!(update["params"]["uri"], format!("change://{}", changes[1]), "neither lost nor repeated");
    gateway.decide(&changes[2], "reject");
    let live = resumed.expect_event().json();
    assert_eq!(live["params"]["uri"], format!("change://{}", changes[2]), "and then live");
    let unsubscribed = session.call(9, "resources/unsubscribe", json!({"uri": format!("change://{}", changes[2])}));
    assert_eq!(unsubscribed["result"], json!({}));
}

#[test]
fn cancelled_call_is_not_answered() {
    let gateway = Gateway::start();
    let session = gateway.session("2025-11-25");
    let change = gateway.propose("Cancelled wait");
    let mut conn = session.start(&wait_call(11, &change, "c"));
    assert_eq!(conn.head().status, 200);
    let mut last = conn.expect_event().id;
    let cancelled = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 11}});
    assert_eq!(session.post(&cancelled.to_string()).status, 202);
    while let Some(event) = conn.event_within(Duration::from_secs(5)) {
        let answered =
            event.data.as_deref().is_some_and(|data| data.contains("\"result\"") || data.contains("\"error\""));
        assert!(!answered, "{event:?}");
        last = event.id.or(last);
    }
    let last = last.expect("an id to resume from");
    let resume =
        [("Accept", "text/event-stream"), ("Mcp-Session-Id", session.id.as_str()), ("Last-Event-ID", last.as_str())];
    let resumed = gateway.request("GET", "/mcp", &resume, b"");
    assert_eq!(resumed.status, 410, "nothing more comes on that stream: {}", resumed.text());
    assert_eq!(gateway.change(&change)["state"], "pending", "only the waiting was cancelled");
    // Another session's notification cancels nothing of ours.
    let mut second = session.start(&wait_call(12, &change, "d"));
    second.head();
    second.expect_event();
    let stranger = gateway.session("2025-11-25");
    stranger
        .post(&json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 12}}).to_string());
    gateway.decide(&change, "reject");
    assert_eq!(answer(&mut second, 12).0["result"]["structuredContent"]["status"], "rejected");
}

#[test]
fn cancelled_call_without_messages_opens_no_stream() {
    let gateway = Gateway::start();
    let session = gateway.session("2025-11-25");
    let change = gateway.propose("Cancelled silent wait");
    let params = json!({"name": "wait_for_change", "arguments": {"changeId": change}});
    let mut conn = session.start(&mcp::request(11, "tools/call", params));
    eventually("it waits", || (gateway.api("GET", "/api/sessions", None).1["inFlight"] == 1).then_some(()));
    let cancelled = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 11}});
    assert_eq!(session.post(&cancelled.to_string()).status, 202);
    let answer = conn.response();
    assert_eq!((answer.status, answer.text()), (202, String::new()));
}

#[test]
fn sse_pair_of_2024_11_05_works() {
    let gateway = Gateway::start();
    let mut stream = gateway.connect();
    stream.request("GET", "/sse", &[("Accept", "text/event-stream")], b"");
    assert_eq!(stream.head().status, 200);
    let endpoint = stream.expect_event();
    assert_eq!(endpoint.event.as_deref(), Some("endpoint"));
    let path = endpoint.data.expect("a path");
    assert!(path.starts_with("/messages"), "{path}");
    let post = |body: &Value| {
        let accepted = gateway.request("POST", &path, &[mcp::JSON], body.to_string().as_bytes());
        assert_eq!(accepted.status, 202, "{}", accepted.text());
    };
    post(&mcp::request(1, "initialize", mcp::initialize_params("2024-11-05")));
    let opened = stream.expect_event();
    assert_eq!(opened.event.as_deref(), Some("message"));
    assert_eq!(opened.json()["result"]["protocolVersion"], "2024-11-05");
    post(&mcp::notification("notifications/initialized"));
    post(&mcp::request(2, "tools/call", json!({"name": "list_projects", "arguments": {}})));
    let called = stream.expect_event().json();
    assert_eq!(called["id"], 2);
    assert!(called["result"]["content"].is_array(), "{called}");
    let unknown = gateway.request("POST", "/messages?sessionId=none", &[mcp::JSON], b"{}");
    assert_eq!(unknown.status, 404, "{}", unknown.text());
}

#[test]
fn sessions_are_listed_while_open() {
    let gateway = Gateway::start();
    let session = gateway.session("2025-11-25");
    let (status, listed) = gateway.api("GET", "/api/sessions", None);
    assert_eq!(status, 200);
    let shown = listed["sessions"].as_array().unwrap().iter().find(|s| s["revision"] == "2025-11-25").expect("listed");
    assert_eq!(shown["clientName"], "raw");
    assert!(!shown["id"].as_str().unwrap().contains(&session.id), "the whole id is never shown: {shown}");
    session.delete();
    eventually("it is gone from the list", || {
        let (_, listed) = gateway.api("GET", "/api/sessions", None);
        listed["sessions"].as_array().unwrap().is_empty().then_some(())
    });
}
