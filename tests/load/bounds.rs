//! Tests of the limits on what one client can make the gateway hold: client info, subscriptions, bodies, connections,
//! streams, sessions.

mod connections;
mod http2_streams;

use std::net::TcpStream;

use serde_json::{Value, json};

use crate::{
    http2::{Http2, frames},
    load::start_serving,
};
use support::{
    Gateway, Options, eventually,
    http::Conn,
    mcp::{ACCEPT, JSON, borrow_headers, initialize_params, modern_headers, request, with_meta},
    ws::Ws,
};

pub const NEWEST: &str = "2025-11-25";

pub fn start_with(config: &str) -> Gateway {
    Gateway::with_options(&Options { config: Some(config), ..Options::default() })
}

/// Checks for `-32602` with our own code, and the limit in the error's details.
#[track_caller]
fn refused_as_too_long(answer: &Value, limit: u64) {
    let error = &answer["error"];
    assert_eq!((&error["code"], &error["data"]["code"]), (&json!(-32602), &json!("INVALID_PARAMS")), "{answer}");
    assert_eq!(error["data"]["details"]["limit"], limit, "{answer}");
}

pub fn initialize(capabilities: Value, info: Value) -> String {
    let mut params = initialize_params(NEWEST);
    params["capabilities"] = capabilities;
    params["clientInfo"] = info;
    request(0, "initialize", params).to_string()
}

fn long_capabilities() -> Value {
    json!({ "experimental": { "x": { "y": "z".repeat(16 << 10) } } })
}

#[test]
fn capabilities_over_16_kib_are_refused_at_every_endpoint() {
    let gateway = Gateway::start();
    let handshake = initialize(long_capabilities(), json!({ "name": "raw", "version": "1" }));
    let answer = gateway.post(&[], &handshake);
    refused_as_too_long(&answer.json(), 16 << 10);
    assert!(answer.header("mcp-session-id").is_none());

    let mut ws = Ws::open(&gateway);
    ws.send(&handshake);
    refused_as_too_long(&ws.frame().unwrap().json(), 16 << 10);
    // The socket stays open, and the client may send less.
    ws.send(&initialize(json!({}), json!({ "name": "raw", "version": "1" })));
    assert!(ws.frame().unwrap().json()["result"].is_object());

    let declared = json!({ "_meta": { "io.modelcontextprotocol/clientCapabilities": long_capabilities() } });
    let answer = gateway.modern(1, "tools/list", declared.clone());
    assert_eq!(answer.status, 400);
    refused_as_too_long(&answer.json(), 16 << 10);
    let mut ws = Ws::open(&gateway);
    ws.send_json(&request(1, "tools/list", with_meta(declared)));
    refused_as_too_long(&ws.frame().unwrap().json(), 16 << 10);

    // Exactly as long as permitted.
    let filler = "x".repeat((16 << 10) - r#"{"experimental":{"x":{"y":""}}}"#.len());
    let answer = gateway.post(&[], &initialize(json!({ "experimental": { "x": { "y": filler } } }), info("raw")));
    assert!(answer.json()["result"].is_object(), "{}", answer.text());
}

pub fn info(name: &str) -> Value {
    json!({ "name": name, "version": "1" })
}

#[test]
fn client_names_are_cut_and_icons_dropped() {
    let gateway = Gateway::start();
    let long = "ä".repeat(1 << 19);
    let answer = gateway.post(
        &[],
        &initialize(
            json!({}),
            json!({ "name": long, "version": long, "title": long, "icons": [{ "src": format!("data:{long}") }] }),
        ),
    );
    assert_eq!(answer.status, 200);
    let (status, listed) = gateway.api("GET", "/api/sessions", None);
    assert_eq!((status, listed["sessions"].as_array().unwrap().len()), (200, 1));
    assert_eq!(listed["sessions"][0]["clientName"], "ä".repeat(256));
    assert_eq!(listed["sessions"][0]["clientVersion"], "ä".repeat(256));
    assert_eq!(listed["sessions"][0]["connected"], false, "its client has closed its only connection");
    assert!(listed.to_string().len() < 4096);
}

#[test]
fn uris_over_4_kib_are_refused_everywhere() {
    let gateway = Gateway::start();
    let session = gateway.session(NEWEST);
    let long = format!("tracker://{}", "x".repeat(4 << 10));
    for (id, method) in [(1, "resources/subscribe"), (2, "resources/read"), (3, "resources/unsubscribe")] {
        refused_as_too_long(&session.call(id, method, json!({ "uri": long })), 4 << 10);
    }
    let listen = json!({ "notifications": { "resourceSubscriptions": [long] } });
    refused_as_too_long(&gateway.modern(4, "subscriptions/listen", listen.clone()).json(), 4 << 10);
    let complete = json!({ "ref": { "type": "ref/resource", "uri": long }, "argument": { "name": "a", "value": "" } });
    refused_as_too_long(&session.call(5, "completion/complete", complete), 4 << 10);
    let mut ws = Ws::open(&gateway);
    ws.send_json(&request(6, "subscriptions/listen", with_meta(listen)));
    refused_as_too_long(&ws.frame().unwrap().json(), 4 << 10);
    // A byte less is an ordinary URI, and the session is unaffected.
    let fits = &long[..4 << 10];
    assert!(session.call(7, "resources/subscribe", json!({ "uri": fits }))["result"].is_object());
}

/// Subscribes to different resources with long URIs until that is refused; returns how many were accepted.
fn subscribe_until_refused(session: &support::mcp::Session<'_>) -> usize {
    for n in 0.. {
        let uri = format!("tracker://{n}/{}", "x".repeat(4000));
        let answer = session.call(n, "resources/subscribe", json!({ "uri": uri }));
        if answer["result"].is_object() {
            continue;
        }
        assert_eq!(answer["error"]["data"]["code"], "OVERLOADED", "{answer}");
        assert_eq!(answer["error"]["data"]["limit"], 256 << 10, "{answer}");
        return usize::try_from(n).unwrap();
    }
    unreachable!()
}

#[test]
fn memory_per_principal_is_bounded_and_released() {
    let gateway = start_with("limits:\n  principal_memory: 256KiB\n");
    let (one, two) = (gateway.session(NEWEST), gateway.session(NEWEST));
    let accepted = subscribe_until_refused(&one);
    assert!((5..60).contains(&accepted), "{accepted}");
    // Both sessions stay open, and neither has room for more of the principal's data.
    assert!(one.call(1000, "ping", json!({}))["result"].is_object());
    assert_eq!(subscribe_until_refused(&two), 0);
    // A handshake with much data is refused, too.
    let capabilities = json!({ "experimental": { "x": { "y": "z".repeat(15 << 10) } } });
    let answer = gateway.post(&[], &initialize(capabilities, info("raw"))).json();
    assert_eq!(answer["error"]["data"]["code"], "OVERLOADED", "{answer}");
    // Another principal has a separate limit.
    let key = gateway.create_key("agent", "bob");
    let bearer = format!("Bearer {key}");
    let opened = gateway.post(&[("Authorization", bearer.as_str())], &initialize(json!({}), info("bob")));
    assert!(opened.json()["result"].is_object(), "{}", opened.text());
    // Ending a subscription or a session releases its memory.
    let uri = format!("tracker://0/{}", "x".repeat(4000));
    assert!(one.call(1001, "resources/unsubscribe", json!({ "uri": uri }))["result"].is_object());
    assert_eq!(subscribe_until_refused(&two), 1);
    assert_eq!(one.delete().status, 204);
    eventually("the memory is given back", || {
        let uri = format!("tracker://again/{}", "x".repeat(4000));
        two.call(2000, "resources/subscribe", json!({ "uri": uri }))["result"].is_object().then_some(())
    });
}

#[test]
fn session_list_has_pages() {
    let gateway = Gateway::start();
    let open: Vec<_> = (0..7).map(|_| gateway.session_without_initialized(NEWEST).id).collect();
    let mut seen = Vec::new();
    let mut path = "/api/sessions?limit=3".to_owned();
    for page in 0.. {
        let (status, listed) = gateway.api("GET", &path, None);
        assert_eq!((status, &listed["total"]), (200, &json!(7)), "{listed}");
        let ids = listed["sessions"].as_array().unwrap();
        assert_eq!(ids.len(), [3, 3, 1][page]);
        seen.extend(ids.iter().map(|session| session["id"].as_str().unwrap().trim_end_matches('…').to_owned()));
        let Some(cursor) = listed["nextCursor"].as_str() else { break };
        path = format!("/api/sessions?limit=3&cursor={cursor}");
    }
    let newest_first: Vec<_> = open.iter().rev().map(|id| id[..8].to_owned()).collect();
    assert_eq!(seen, newest_first);
    assert_eq!(gateway.api("GET", "/api/sessions?cursor=nonsense", None).0, 400);
}

/// Sends the head of a POST of so many bytes, and all of them but the last.
fn start_post(gateway: &Gateway, bytes: usize) -> Conn {
    let mut conn = gateway.connect();
    let length = bytes.to_string();
    conn.request("POST", "/mcp", &[JSON, ACCEPT, ("Content-Length", &length)], b"");
    conn.send(&vec![b' '; bytes - 1]);
    conn
}

fn ping(bytes: usize) -> String {
    let ping = request(1, "ping", json!({})).to_string();
    format!("{ping}{}", " ".repeat(bytes - ping.len()))
}

/// Returns `true` if a POST is refused because there is no budget for its body.
fn is_refused(gateway: &Gateway, body: &str) -> bool {
    let answer = gateway.post(&[], body);
    match answer.status {
        503 => {
            assert_eq!(answer.json()["error"]["data"]["code"], "OVERLOADED");
            assert_eq!(answer.header("retry-after"), Some("1"));
            true
        }
        status => {
            assert_eq!(status, 200, "{}", answer.text());
            false
        }
    }
}

/// Returns the number of requests in flight.
fn in_flight(gateway: &Gateway) -> Value {
    gateway.api("GET", "/api/sessions", None).1["inFlight"].clone()
}

/// Returns a gauge of `/metrics`.
fn gauge(gateway: &Gateway, name: &str) -> usize {
    let text = gateway.request("GET", "/metrics", &[], b"").text();
    let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{name} in {text}"));
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

/// Waits until so many bytes of bodies are held.
#[track_caller]
fn wait_for_body_bytes(gateway: &Gateway, bytes: std::ops::Range<usize>) {
    eventually(&format!("{bytes:?} bytes of bodies are held"), || {
        bytes.contains(&gauge(gateway, "countersign_body_bytes")).then_some(())
    });
}

const SMALL_BODY_BUDGET: &str = "transports:
  http:
    max_body_bytes: 1MiB
    max_connection_body_bytes: 1MiB
    max_body: 1MiB
    body_wait: 200ms
  websocket:
    max_message_size: 1MiB
  stdio:
    max_message_size: 1MiB
";

#[test]
fn bodies_over_their_budget_wait_and_are_then_answered_503() {
    let gateway = start_with(SMALL_BODY_BUDGET);
    let mut first = start_post(&gateway, 900 << 10);
    wait_for_body_bytes(&gateway, 800 << 10..1 << 20);
    let large = ping(900 << 10);
    assert!(is_refused(&gateway, &large));
    // Small bodies need no budget.
    assert_eq!(gateway.modern(1, "tools/list", json!({})).status, 200);
    assert!(!is_refused(&gateway, &ping(60 << 10)));
    // The first one is unharmed: it completes, is not JSON-RPC, and releases its budget.
    first.send(b" ");
    assert_eq!(first.response().status, 400);
    wait_for_body_bytes(&gateway, 0..1);
    assert!(!is_refused(&gateway, &large));
    // Disconnecting releases it as well.
    wait_for_body_bytes(&gateway, 0..1);
    let abandoned = start_post(&gateway, 900 << 10);
    wait_for_body_bytes(&gateway, 800 << 10..1 << 20);
    drop(abandoned);
    wait_for_body_bytes(&gateway, 0..1);
    assert!(!is_refused(&gateway, &large));
}

#[test]
fn body_reserves_budget_until_answered() {
    let gateway = start_with(SMALL_BODY_BUDGET);
    let change = gateway.propose("Waited for");
    let session = gateway.session(NEWEST);
    let call = json!({ "name": "wait_for_change", "arguments": { "changeId": change } });
    let mut wait = request(1, "tools/call", call).to_string();
    wait.push_str(&" ".repeat(900 << 10));
    let mut headers = vec![JSON, ACCEPT];
    headers.extend(session.headers());
    let mut conn = gateway.connect();
    conn.request("POST", "/mcp", &headers, wait.as_bytes());
    eventually("the call is in flight", || (in_flight(&gateway) == 1).then_some(()));
    let large = ping(900 << 10);
    assert!(is_refused(&gateway, &large));
    gateway.decide(&change, "reject");
    assert_eq!(conn.response().status, 200);
    wait_for_body_bytes(&gateway, 0..1);
    assert!(!is_refused(&gateway, &large));
}

#[test]
fn websocket_messages_share_the_body_budget() {
    let gateway = start_with(SMALL_BODY_BUDGET);
    let mut held = Ws::open(&gateway);
    // All but the end of a message, in frames.
    held.send_frame(false, support::ws::TEXT, &vec![b' '; 900 << 10]);
    wait_for_body_bytes(&gateway, 800 << 10..1 << 20);
    let large = ping(900 << 10);
    assert!(is_refused(&gateway, &large));
    let mut other = Ws::open(&gateway);
    other.send(&large);
    let end = std::iter::from_fn(|| other.any_frame()).find_map(|frame| frame.close_code());
    assert_eq!(end, Some(1013), "try again later");
    // The first one completes its message, and is answered.
    held.send_frame(true, 0, request(7, "ping", json!({})).to_string().as_bytes());
    assert_eq!(held.frame().unwrap().json()["id"], 7);
    wait_for_body_bytes(&gateway, 0..1);
    assert!(!is_refused(&gateway, &large));
}

#[test]
fn unread_sockets_are_closed_first() {
    // All of them belong to one principal.
    let gateway = start_serving(
        "policy: {default: allow}\nlimits: {principal_memory: 2MiB, total_memory: 2MiB, rate_per_second: 0}",
        "",
    );
    let answer = 500_000;
    let call = |id| request(id, "tools/call", json!({ "name": "load__read", "arguments": { "answer": answer } }));
    let open = || {
        let mut ws = Ws::open(&gateway);
        ws.initialize(NEWEST);
        ws
    };
    let mut reads = open();
    // More than the system's buffers hold.
    let answers = 40;
    let silent: Vec<Ws> = (0..2)
        .map(|_| {
            let mut ws = open();
            (1..=answers).for_each(|id| ws.send_json(&call(id)));
            ws
        })
        .collect();
    let mut id = 0;
    eventually("the unread ones are closed", || {
        id += 1;
        let answered = reads.call(id, "tools/call", call(0)["params"].clone());
        assert_eq!(answered["result"]["content"][0]["text"].as_str().map(str::len), Some(answer), "{answered:.300}");
        (gateway.api("GET", "/api/sessions", None).1["total"] == 1).then_some(())
    });
    for mut ws in silent {
        let whole = std::iter::from_fn(|| ws.any_frame()).filter(|frame| frame.payload.len() > answer).count();
        assert!(whole < usize::try_from(answers).unwrap(), "{whole} came");
    }
}

#[test]
fn unread_http_answers_are_closed_first() {
    let gateway = start_serving(
        "policy: {default: allow}\nlimits: {principal_memory: 2MiB, total_memory: 2MiB, rate_per_second: 0}",
        "",
    );
    let answer = 500_000;
    let call = json!({ "name": "load__read", "arguments": { "answer": answer } });
    let params = with_meta(call.clone());
    let (headers, call_bytes) = (modern_headers("tools/call", &params), request(1, "tools/call", params.clone()));
    // More than the system's buffers hold.
    let answers = 40;
    let silent: Vec<Conn> = (0..6)
        .map(|_| {
            let mut conn = gateway.connect();
            for _ in 0..answers {
                conn.request("POST", "/mcp", &borrow_headers(&headers), call_bytes.to_string().as_bytes());
            }
            conn
        })
        .collect();
    eventually("an unread one is closed", || {
        let answered = gateway.modern(1, "tools/call", call.clone());
        assert_eq!((answered.status, answered.body.len() > answer), (200, true), "{:.300}", answered.text());
        gateway.log().contains("there is no memory for its answer").then_some(())
    });
    // A client that reads gets everything, after those that do not.
    let mut whole = silent.into_iter().map(|mut conn| std::iter::from_fn(|| conn.try_response()).take(answers).count());
    assert!(whole.any(|whole| whole < answers));
    assert_eq!(gateway.modern(1, "tools/call", call).status, 200);
}

/// Returns a field of a process's status in KiB.
pub fn status_kib(pid: u32, field: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with(field)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Opens so many connections with 8 MiB of body each, without the last byte, or fewer if the gateway refuses more.
pub fn unfinished_bodies(gateway: &Gateway, connections: usize) -> Vec<Conn> {
    let address = gateway.address();
    let senders: Vec<_> = (0..connections)
        .map(|_| {
            std::thread::spawn(move || {
                let mut conn = Conn::open(address);
                let length = (8_usize << 20).to_string();
                conn.request("POST", "/mcp", &[JSON, ACCEPT, ("Content-Length", &length)], b"");
                conn.send(&vec![b' '; (8 << 20) - 1]);
                conn
            })
        })
        .collect();
    senders.into_iter().map(|sender| sender.join().unwrap()).collect()
}

#[test]
fn unfinished_bodies_stay_within_their_budget() {
    let gateway = start_with("transports:\n  http:\n    body_wait: 200ms\n");
    let before = status_kib(gateway.process.0.id(), "VmRSS:");
    // 40 bodies of 8 MiB are 320 MiB, of which 48 MiB are accepted. Later ones use the memory of earlier ones again.
    for peak_mib in [130, 192, 192] {
        let conns = unfinished_bodies(&gateway, 40);
        let peak = status_kib(gateway.process.0.id(), "VmHWM:");
        assert!(peak < before + (peak_mib << 10), "from {before} to {peak} KiB");
        drop(conns);
    }
}
