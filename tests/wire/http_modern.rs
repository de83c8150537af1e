//! Tests of 2026-07-28 over raw HTTP: the order of header checks, listen streams, and cancellation by disconnecting.

use std::time::Duration;

use serde_json::{Value, json};
use support::{
    Gateway,
    http::{Conn, Response},
    mcp::{self, MODERN},
};

const VERSION_KEY: &str = "io.modelcontextprotocol/protocolVersion";
const CAPABILITIES_KEY: &str = "io.modelcontextprotocol/clientCapabilities";
const SUBSCRIPTION_KEY: &str = "io.modelcontextprotocol/subscriptionId";

/// Sends a correct `tools/list` after this change to it.
fn send_altered(gateway: &Gateway, change: impl FnOnce(&mut Value, &mut Vec<(String, String)>)) -> Response {
    let mut body = mcp::request(31, "tools/list", mcp::with_meta(json!({})));
    let mut headers = mcp::modern_headers("tools/list", &json!({}));
    change(&mut body, &mut headers);
    gateway.request("POST", "/mcp", &mcp::borrow_headers(&headers), body.to_string().as_bytes())
}

fn set(headers: &mut Vec<(String, String)>, name: &str, value: Option<&str>) {
    headers.retain(|(key, _)| !key.eq_ignore_ascii_case(name));
    if let Some(value) = value {
        headers.push((name.into(), value.into()));
    }
}

/// Calls `list_projects` with this `Mcp-Name`.
fn call_with_name(gateway: &Gateway, name: Option<&str>) -> Response {
    let params = mcp::with_meta(json!({"name": "list_projects", "arguments": {}}));
    let mut headers = mcp::modern_headers("tools/call", &params);
    set(&mut headers, "Mcp-Name", name);
    gateway.request(
        "POST",
        "/mcp",
        &mcp::borrow_headers(&headers),
        mcp::request(32, "tools/call", params).to_string().as_bytes(),
    )
}

/// Reads the acknowledgment at the beginning of a listen stream; returns the accepted filter.
#[track_caller]
fn read_acknowledgment(stream: &mut Conn, id: i64) -> Value {
    let head = stream.head();
    assert_eq!(head.status, 200, "{head:?}");
    assert_eq!(head.header("x-accel-buffering"), Some("no"));
    assert!(head.header("mcp-session-id").is_none(), "no session is minted");
    let first = stream.expect_event().json();
    assert_eq!(first["method"], "notifications/subscriptions/acknowledged", "{first}");
    assert_eq!(first["params"]["_meta"][SUBSCRIPTION_KEY], id, "{first}");
    first["params"]["notifications"].clone()
}

#[test]
fn header_checks_run_in_order() {
    let gateway = Gateway::start();
    assert_eq!(send_altered(&gateway, |_, _| {}).status, 200);

    // Step 2: the body must be one request or notification.
    let no_request = r#"{"jsonrpc":"2.0","id":1,"result":{}}"#;
    for (body, code) in [("", -32700), ("{", -32700), ("[]", -32600), ("5", -32600), (no_request, -32600)] {
        let headers = mcp::modern_headers("tools/list", &json!({}));
        let answer = gateway.request("POST", "/mcp", &mcp::borrow_headers(&headers), body.as_bytes());
        assert_eq!((answer.status, answer.code()), (400, Some(code)), "{body}: {}", answer.text());
    }

    // Step 3 before step 4: `_meta` lacks a member and the headers are wrong, too.
    for key in [VERSION_KEY, CAPABILITIES_KEY] {
        let answer = send_altered(&gateway, |body, headers| {
            body["params"]["_meta"].as_object_mut().unwrap().remove(key);
            set(headers, "Mcp-Method", Some("prompts/list"));
        });
        assert_eq!((answer.status, answer.code()), (400, Some(-32602)), "{key}: {}", answer.text());
        assert_eq!(answer.json()["id"], 31, "errors carry the request's id");
    }
    let no_meta = send_altered(&gateway, |body, _| body["params"] = json!({}));
    assert_eq!((no_meta.status, no_meta.code()), (400, Some(-32602)), "{}", no_meta.text());

    // Step 4 before step 5: the header differs, and the body's version is not supported.
    let mismatch = send_altered(&gateway, |body, _| body["params"]["_meta"][VERSION_KEY] = json!("v999.0.0"));
    assert_eq!((mismatch.status, mismatch.code()), (400, Some(-32020)), "{}", mismatch.text());
    for (name, value) in [
        ("MCP-Protocol-Version", None),
        ("Mcp-Method", None),
        ("Mcp-Method", Some("TOOLS/LIST")),
        ("Mcp-Method", Some("prompts/list")),
        ("MCP-Protocol-Version", Some("2025-11-25")),
    ] {
        let answer = send_altered(&gateway, |_, headers| set(headers, name, value));
        assert_eq!((answer.status, answer.code()), (400, Some(-32020)), "{name}: {value:?}: {}", answer.text());
    }

    // Step 5 before step 6: an unsupported version and an unknown method.
    for version in ["v999.0.0", "2027-01-01", "2025-11-25"] {
        let answer = send_altered(&gateway, |body, headers| {
            body["method"] = json!("no/such");
            body["params"]["_meta"][VERSION_KEY] = json!(version);
            set(headers, "Mcp-Method", Some("no/such"));
            set(headers, "MCP-Protocol-Version", Some(version));
        });
        let error = &answer.json()["error"];
        assert_eq!((answer.status, error["code"].as_i64()), (400, Some(-32022)), "{version}: {error}");
        assert_eq!(error["data"]["requested"], version);
        let discovered = gateway.modern(1, "server/discover", json!({})).json();
        let supported = discovered["result"]["supportedVersions"].as_array().unwrap().clone();
        assert!(error["data"]["supported"].as_array().unwrap().iter().all(|v| supported.contains(v)), "{error}");
    }

    // Step 6: unknown methods, and those that the revision removed.
    for method in ["no/such", "initialize", "ping", "logging/setLevel", "resources/subscribe", "resources/unsubscribe"]
    {
        let answer = gateway.modern(33, method, json!({}));
        assert_eq!((answer.status, answer.code()), (404, Some(-32601)), "{method}: {}", answer.text());
        assert_eq!(answer.json()["id"], 33);
    }
}

#[test]
fn names_are_compared_after_decoding_and_trimming() {
    let gateway = Gateway::start();
    for good in ["list_projects", "  list_projects  ", "\tlist_projects", "=?base64?bGlzdF9wcm9qZWN0cw==?="] {
        let answer = call_with_name(&gateway, Some(good));
        assert_eq!(answer.status, 200, "{good}: {}", answer.text());
    }
    for bad in [
        None,
        Some(""),
        Some("list_issues"),
        Some("LIST_PROJECTS"),
        Some("=?base64?bGlzdF9wcm9qZWN0cw?="),
        Some("=?base64?!!!?="),
    ] {
        let answer = call_with_name(&gateway, bad);
        assert_eq!((answer.status, answer.code()), (400, Some(-32020)), "{bad:?}: {}", answer.text());
    }
    let shouted = send_altered(&gateway, |_, headers| {
        set(headers, "Mcp-Method", None);
        headers.push(("MCP-METHOD".into(), "tools/list".into()));
    });
    assert_eq!(shouted.status, 200, "field names are case-insensitive: {}", shouted.text());
    let twice = send_altered(&gateway, |_, headers| headers.push(("Mcp-Method".into(), "prompts/list".into())));
    assert_eq!((twice.status, twice.code()), (400, Some(-32020)), "{}", twice.text());
}

#[test]
fn legacy_initialize_ignores_the_method_header() {
    let gateway = Gateway::start();
    let body = mcp::request(0, "initialize", mcp::initialize_params("2025-11-25")).to_string();
    let headers = [("MCP-Protocol-Version", "2025-11-25"), ("Mcp-Method", "initialize")];
    let answer = gateway.post(&headers, &body);
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(answer.json()["result"]["protocolVersion"], "2025-11-25");
    assert!(answer.header("mcp-session-id").is_some());
}

#[test]
fn stateless_requests_get_no_session() {
    let gateway = Gateway::start();
    for method in ["GET", "DELETE"] {
        let answer = gateway.request(method, "/mcp", &[("MCP-Protocol-Version", MODERN)], b"");
        assert_eq!(answer.status, 405, "{method}: {}", answer.text());
        assert!(answer.header("allow").is_some_and(|allow| allow.contains("POST")), "{method}: {:?}", answer.headers);
    }
    let answer = send_altered(&gateway, |_, headers| {
        headers.push(("Mcp-Session-Id".into(), "nobody-knows-this-one".into()));
        headers.push(("Last-Event-ID".into(), "12".into()));
    });
    assert_eq!(answer.status, 200, "ignored: {}", answer.text());
    assert!(answer.header("mcp-session-id").is_none(), "none is minted");
}

#[test]
fn results_have_type_and_ttl() {
    let gateway = Gateway::start();
    let discovered = gateway.modern(1, "server/discover", json!({})).json();
    assert_eq!(discovered["result"]["_meta"]["io.modelcontextprotocol/serverInfo"]["name"], "countersign");
    assert!(discovered["result"]["supportedVersions"].as_array().unwrap().contains(&json!(MODERN)));
    let first = gateway.modern(2, "resources/list", json!({})).json()["result"]["resources"][0]["uri"].clone();
    for (method, params) in [
        ("server/discover", json!({})),
        ("tools/list", json!({})),
        ("prompts/list", json!({})),
        ("resources/list", json!({})),
        ("resources/templates/list", json!({})),
        ("resources/read", json!({"uri": first})),
    ] {
        let result = gateway.modern(3, method, params).json()["result"].clone();
        assert_eq!(result["resultType"], "complete", "{method}: {result}");
        assert!(result["ttlMs"].is_u64(), "{method}: {result}");
        assert!(matches!(result["cacheScope"].as_str(), Some("public" | "private")), "{method}: {result}");
    }
    let called = gateway.modern(4, "tools/call", json!({"name": "list_projects", "arguments": {}})).json();
    assert_eq!(called["result"]["resultType"], "complete");
    let missing = gateway.modern(5, "resources/read", json!({"uri": "test://not/there"})).json();
    assert_eq!(missing["error"]["code"], -32602, "{missing}");
    assert_eq!(missing["error"]["data"]["uri"], "test://not/there");
    let no_client_info = send_altered(&gateway, |body, _| {
        body["params"]["_meta"].as_object_mut().unwrap().remove("io.modelcontextprotocol/clientInfo");
    });
    assert_eq!(no_client_info.status, 200, "clientInfo is optional: {}", no_client_info.text());
    let accepted = {
        let body = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": mcp::with_meta(json!({"requestId": 1}))});
        let headers = mcp::modern_headers("notifications/cancelled", &json!({}));
        gateway.request("POST", "/mcp", &mcp::borrow_headers(&headers), body.to_string().as_bytes())
    };
    assert_eq!((accepted.status, accepted.body.len()), (202, 0), "{}", accepted.text());
}

#[test]
fn listener_gets_only_requested_events() {
    let gateway = Gateway::start();
    let (watched, other) = (gateway.propose("Listened to"), gateway.propose("Not listened to"));
    let uri = format!("change://{watched}");
    let mut stream =
        gateway.modern_conn(77, "subscriptions/listen", json!({"notifications": {"resourceSubscriptions": [uri]}}));
    let honoured = read_acknowledgment(&mut stream, 77);
    assert_eq!(honoured["resourceSubscriptions"], json!([uri]));
    let mut lists =
        gateway.modern_conn(78, "subscriptions/listen", json!({"notifications": {"promptsListChanged": true}}));
    read_acknowledgment(&mut lists, 78);
    gateway.decide(&other, "reject");
    gateway.decide(&watched, "reject");
    let update = stream.expect_event().json();
    assert_eq!(update["method"], "notifications/resources/updated");
    assert_eq!(update["params"]["uri"], uri);
    assert_eq!(update["params"]["_meta"][SUBSCRIPTION_KEY], 77);
    assert!(update.get("id").is_none());
    assert!(lists.event_within(Duration::from_millis(300)).is_none(), "not what it asked for");
}

#[test]
fn listener_that_accepts_no_stream_is_refused() {
    let gateway = Gateway::start();
    let answer = send_altered(&gateway, |body, headers| {
        body["method"] = json!("subscriptions/listen");
        body["params"]["notifications"] = json!({"toolsListChanged": true});
        set(headers, "Mcp-Method", Some("subscriptions/listen"));
        set(headers, "Accept", Some("application/json"));
    });
    assert_eq!((answer.status, answer.code()), (406, Some(-32600)), "{}", answer.text());
    assert_eq!(answer.json()["id"], 31);
}

#[test]
fn listener_gets_a_final_event_at_shutdown() {
    let gateway = Gateway::start();
    let params = json!({"notifications": {"resourcesListChanged": true}});
    let mut stream = gateway.modern_conn(5, "subscriptions/listen", params);
    read_acknowledgment(&mut stream, 5);
    gateway.process.terminate();
    let last = stream.expect_event().json();
    assert_eq!(last["id"], 5, "{last}");
    assert_eq!(last["result"]["resultType"], "complete", "{last}");
    assert!(stream.event().is_none());
    let (status, _) = gateway.stop();
    assert_eq!(status.code(), Some(0));
}

#[test]
fn disconnecting_cancels_the_request() {
    let gateway = Gateway::start();
    let change = gateway.propose("Waited for");
    let params = json!({
        "name": "wait_for_change", "arguments": {"changeId": change}, "_meta": {"progressToken": 1},
    });
    let mut stream = gateway.modern_conn(6, "tools/call", params);
    assert_eq!(stream.head().status, 200);
    assert_eq!(stream.expect_event().json()["method"], "notifications/progress");
    let in_flight = |gateway: &Gateway| {
        let (_, listed) = gateway.api("GET", "/api/sessions", None);
        let sessions = listed["sessions"].as_array().unwrap().clone();
        sessions.iter().map(|session| session["inFlight"].as_u64().unwrap_or_default()).sum::<u64>()
    };
    support::eventually("the call is in flight", || (in_flight(&gateway) > 0).then_some(()));
    drop(stream);
    support::eventually("the call is cancelled", || (in_flight(&gateway) == 0).then_some(()));
    assert_eq!(gateway.change(&change)["state"], "pending");
}

#[test]
fn answer_is_json_without_stream_events() {
    let gateway = Gateway::start();
    let answer = gateway.modern(1, "tools/call", json!({"name": "list_projects", "arguments": {}}));
    assert!(answer.header("content-type").is_some_and(|kind| kind.starts_with("application/json")));
    // A wait without a progress token may be answered in either form.
    let change = gateway.propose("Waited for without a token");
    gateway.decide(&change, "reject");
    let waited = gateway.modern(2, "tools/call", json!({"name": "wait_for_change", "arguments": {"changeId": change}}));
    assert!(waited.text().contains("rejected"), "{}", waited.text());
}
