//! Tests of one peer's load that others must not feel: failed sign-ins, large messages, changes that fill the disk, and
//! endless lists; and calls that count once in whatever form they are made.

mod counted_calls;

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use crate::bounds::status_kib;
use serde_json::{Value, json};
use support::{
    Gateway, Options, command, command_on, eventually,
    http::{Conn, Response},
    mcp::{self, ACCEPT, JSON, borrow_headers, modern_headers, with_meta},
    run,
    ws::Ws,
};

const SERVER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/load/load/server.py");
const EXTENSION: &str = "io.modelcontextprotocol/tasks";

/// Starts a gateway with the fixture as the server `load`, which gets `arguments`.
pub fn start_serving(config: &str, arguments: &str) -> Gateway {
    let config = format!("{config}\nmcpServers:\n  load: {{command: python3, args: [\"{SERVER}\"{arguments}]}}\n");
    let gateway = Gateway::with_options(&Options { config: Some(&config), ..Options::default() });
    await_server(&gateway);
    gateway
}

fn await_server(gateway: &Gateway) {
    eventually("the server is up", || {
        (server(gateway)["status"] == "up" && server(gateway)["tools"] != 0).then_some(())
    });
}

/// Returns the gateway's status of the server.
fn server(gateway: &Gateway) -> Value {
    let (status, listed) = gateway.api("GET", "/api/servers", None);
    assert_eq!(status, 200, "{listed}");
    let found = listed["servers"].as_array().unwrap().iter().find(|provider| provider["name"] == "load").cloned();
    found.unwrap_or_else(|| panic!("{listed}"))
}

// --- Sign-in

fn sign_in(conn: &mut Conn, body: &Value) -> Response {
    conn.request("POST", "/api/sign-in", &[JSON], body.to_string().as_bytes());
    conn.response()
}

fn me(conn: &mut Conn, key: &str) -> Response {
    conn.request("GET", "/api/me", &[("Authorization", &format!("Bearer {key}"))], b"");
    conn.response()
}

/// Returns the code of a sign-in link.
fn code(gateway: &Gateway) -> String {
    let output = command_on(&gateway.data()).args(["open", "--print", "--data"]).arg(gateway.data()).output().unwrap();
    let link = String::from_utf8(output.stdout).unwrap();
    link.trim().split_once("/#code=").unwrap_or_else(|| panic!("{link}")).1.to_owned()
}

#[test]
fn wrong_credentials_do_not_block_valid_ones() {
    let gateway = Gateway::start();
    let (stop, wrong) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let statuses: Arc<Mutex<Vec<u16>>> = Arc::default();
    let guessers: Vec<_> = (0..4)
        .map(|guesser| {
            let (stop, wrong, statuses) = (Arc::clone(&stop), Arc::clone(&wrong), Arc::clone(&statuses));
            let mut conn = gateway.connect();
            thread::spawn(move || {
                for n in 0_u64.. {
                    let guess = format!("{:043}", n * 4 + guesser);
                    let answer = match n % 3 {
                        0 => me(&mut conn, &format!("csk_{guess}")),
                        1 => sign_in(&mut conn, &json!({ "key": format!("csk_{guess}") })),
                        _ => sign_in(&mut conn, &json!({ "code": format!("csc_{guess}") })),
                    };
                    let mut statuses = statuses.lock().unwrap();
                    if !statuses.contains(&answer.status) {
                        statuses.push(answer.status);
                    }
                    wrong.fetch_add(1, Ordering::SeqCst);
                    if stop.load(Ordering::SeqCst) {
                        return;
                    }
                }
            })
        })
        .collect();
    let mut conn = gateway.connect();
    eventually("failures are throttled", || statuses.lock().unwrap().contains(&429).then_some(()));
    for round in 0..6 {
        // Created during the attack, and new to the gateway.
        let key = gateway.create_key("reviewer", &format!("person{round}"));
        let answer = me(&mut conn, &key);
        assert_eq!(answer.status, 200, "{}", answer.text());
        let answer = sign_in(&mut conn, &json!({ "key": key }));
        assert_eq!(answer.status, 200, "{}", answer.text());
        let code = code(&gateway);
        let answer = sign_in(&mut conn, &json!({ "code": code }));
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert!(sign_in(&mut conn, &json!({ "code": code })).status != 200, "a code works once");
        let so_far = wrong.load(Ordering::SeqCst);
        eventually("they go on guessing", || (wrong.load(Ordering::SeqCst) >= so_far + 500).then_some(()));
    }
    stop.store(true, Ordering::SeqCst);
    guessers.into_iter().for_each(|guesser| guesser.join().unwrap());
    assert!(wrong.load(Ordering::SeqCst) >= 3000);
    let mut statuses = statuses.lock().unwrap().clone();
    statuses.sort_unstable();
    assert_eq!(statuses, [401, 429], "every guess is refused or throttled");
    let log = gateway.log();
    assert!(log.matches("too many failed attempts").count() < 100, "the log is not flooded");
}

// --- Large messages

/// Returns an object of 300,000 members.
fn large_arguments() -> String {
    let mut text = String::from("{");
    for n in 0..300_000 {
        text.push_str(&format!("\"k{n}\":0,"));
    }
    text.pop();
    text.push('}');
    text
}

/// Returns the bytes of a request with these headers.
fn bytes(path: &str, headers: &[(&str, &str)], body: &str) -> Vec<u8> {
    let mut text = format!("POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n", body.len());
    for (name, value) in headers {
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    text.push_str("\r\n");
    text.push_str(body);
    text.into_bytes()
}

/// Makes one large call: sends all but its last byte, so that the gateway has read the rest, and then that byte right
/// before a reviewer's request. The only worker gets the call first, but must answer the reviewer first. Returns `false`
/// if the call was answered before this test saw that, which may be because the machine is busy with something else.
fn race_reviewer(gateway: &Gateway, conn: &mut Conn, call: &[u8]) -> bool {
    let key = gateway.reviewer().to_owned();
    let mut reviewer = gateway.connect();
    let (last, before) = call.split_last().unwrap();
    conn.send(before);
    // The worker has processed everything that came so far.
    for _ in 0..3 {
        assert_eq!(me(&mut reviewer, &key).status, 200);
    }
    conn.send(&[*last]);
    for _ in 0..3 {
        assert_eq!(me(&mut reviewer, &key).status, 200);
    }
    conn.read_within(Duration::ZERO).is_none()
}

/// Makes large calls until the reviewer goes first. A call returns whether the reviewer did.
#[track_caller]
fn reviewer_goes_first(what: &str, call: impl FnMut() -> bool) {
    // A gateway that lets the reviewer wait does so each time.
    let mut calls = std::iter::repeat_with(call).take(3);
    assert!(calls.any(|is_first| is_first), "{what}: the reviewer waited for the call");
}

#[test]
fn reviewer_is_answered_before_a_large_call() {
    let env = vec![("COUNTERSIGN_TRANSPORTS__HTTP__WORKERS", "1")];
    let gateway = Gateway::with_options(&Options { env, ..Options::default() });
    let arguments = large_arguments();
    let params = |meta: &str| format!(r#"{{"name":"list_projects",{meta}"arguments":{arguments}}}"#);
    let request = |params: &str| format!(r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{params}}}"#);
    let refused = |answer: &Value| {
        // The call was really processed.
        assert!(answer.to_string().contains("VALIDATION_FAILED"), "{:.500}", answer.to_string());
    };
    let refused_after_reviewer = |what: &str, call: &[u8]| {
        reviewer_goes_first(what, || {
            let mut conn = gateway.connect();
            let is_first = race_reviewer(&gateway, &mut conn, call);
            refused(&conn.response().json());
            is_first
        });
    };

    let meta = format!(r#""_meta":{},"#, mcp::meta());
    let headers = modern_headers("tools/call", &json!({"name": "list_projects"}));
    refused_after_reviewer("stateless", &bytes("/mcp", &borrow_headers(&headers), &request(&params(&meta))));

    let session = gateway.session("2025-11-25");
    let headers = [vec![JSON, ACCEPT], session.headers()].concat();
    refused_after_reviewer("handshake", &bytes("/mcp", &headers, &request(&params(""))));

    let session = gateway.session("2025-03-26");
    let headers = [vec![JSON, ACCEPT], session.headers()].concat();
    let batch = format!("[{}]", request(&params("")));
    refused_after_reviewer("batch", &bytes("/mcp", &headers, &batch));

    refused_after_reviewer("plain", &bytes("/tools/list_projects", &[JSON], &arguments));

    let mut pair = gateway.connect();
    pair.request("GET", "/sse", &[("Accept", "text/event-stream")], b"");
    assert_eq!(pair.head().status, 200);
    let path = pair.expect_event().data.unwrap();
    let post = |body: &str| {
        let mut conn = gateway.connect();
        conn.request("POST", &path, &[JSON], body.as_bytes());
        assert_eq!(conn.response().status, 202);
    };
    post(&mcp::request(0, "initialize", mcp::initialize_params("2024-11-05")).to_string());
    assert_eq!(pair.expect_event().json()["id"], 0);
    post(&mcp::notification("notifications/initialized").to_string());
    let call = bytes(&path, &[JSON], &request(&params("")));
    reviewer_goes_first("pair", || {
        let mut conn = gateway.connect();
        let is_first = race_reviewer(&gateway, &mut conn, &call);
        assert_eq!(conn.response().status, 202);
        refused(&pair.expect_event().json());
        is_first
    });
}

#[test]
fn large_frame_delays_no_reviewer_and_keeps_order() {
    let env = vec![("COUNTERSIGN_TRANSPORTS__HTTP__WORKERS", "1")];
    let gateway = Gateway::with_options(&Options { env, ..Options::default() });
    let mut ws = Ws::open(&gateway);
    ws.initialize("2025-11-25");
    let arguments = large_arguments();
    let call = format!(
        r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"list_projects","arguments":{arguments}}}}}"#
    );
    let mut frame = vec![0x81, 0xff];
    frame.extend_from_slice(&(call.len() as u64).to_be_bytes());
    // A mask of zeroes leaves the text unchanged.
    frame.extend_from_slice(&[0; 4]);
    frame.extend_from_slice(call.as_bytes());
    reviewer_goes_first("websocket", || {
        let is_first = race_reviewer(&gateway, &mut ws.conn, &frame);
        ws.send_json(&mcp::request(2, "ping", json!({})));
        let first = ws.message();
        assert_eq!(first["id"], 1, "what came first is answered first: {first:.300}");
        assert!(first.to_string().contains("VALIDATION_FAILED"), "{first:.300}");
        assert_eq!(ws.message()["id"], 2);
        is_first
    });
}

#[test]
fn large_calls_behave_like_small_ones() {
    let gateway = start_serving("policy: {default: allow}", "");
    let text = "x".repeat(1 << 20);
    let call = json!({"name": "load__read", "arguments": {"text": text}});
    let text_of = |answer: Value| answer["result"]["content"][0]["text"].clone();
    assert_eq!(text_of(gateway.modern(1, "tools/call", call.clone()).json()), "1048576");
    assert_eq!(text_of(gateway.session("2025-11-25").call(1, "tools/call", call.clone())), "1048576");
    let mut ws = Ws::open(&gateway);
    ws.initialize("2025-11-25");
    assert_eq!(text_of(ws.call(1, "tools/call", call.clone())), "1048576");
    let answer = gateway.request("POST", "/tools/load__read", &[JSON], call["arguments"].to_string().as_bytes());
    assert_eq!((answer.status, &answer.json()["content"][0]["text"]), (200, &json!("1048576")));
    // Errors of a large body are reported like those of a small one.
    let broken =
        gateway.post(&[], &format!(r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"a":"{text}""#));
    assert_eq!((broken.status, broken.code()), (400, Some(-32700)), "{}", broken.text());
    let params = with_meta(json!({"name": "load__read", "arguments": {"text": text}}));
    let mut headers = modern_headers("tools/call", &params);
    headers.retain(|(name, _)| name != "Mcp-Name");
    let mut conn = gateway.connect();
    conn.request(
        "POST",
        "/mcp",
        &borrow_headers(&headers),
        mcp::request(1, "tools/call", params).to_string().as_bytes(),
    );
    assert_eq!(conn.response().status, 400, "the header is missing");
}

#[test]
fn bytes_count_as_calls() {
    let config = "policy: {default: allow}\nlimits: {rate_per_second: 1, rate_burst: 200}";
    let gateway = Gateway::with_options(&Options { config: Some(config), ..Options::default() });
    let filler = "x".repeat(150 << 10);
    let call = |text: &str| {
        let body = json!({"filler": text}).to_string();
        gateway.request("POST", "/tools/list_projects", &[JSON], body.as_bytes())
    };
    assert_ne!(call(&filler).status, 429, "151 of 200");
    let refused = call(&filler);
    assert_eq!((refused.status, &refused.json()["code"]), (429, &json!("RATE_LIMITED")), "{}", refused.text());
    assert_ne!(call("").status, 429, "a small one fits");
}

// --- The disk

#[track_caller]
fn propose(gateway: &Gateway, bytes: usize) -> Response {
    let body = json!({"text": "x".repeat(bytes)}).to_string();
    gateway.request("POST", "/tools/load__write", &[JSON], body.as_bytes())
}

#[track_caller]
pub fn propose_change(gateway: &Gateway, bytes: usize) -> String {
    let answer = propose(gateway, bytes);
    assert_eq!(answer.status, 202, "{:.500}", answer.text());
    answer.json()["structuredContent"]["changeId"].as_str().unwrap().to_owned()
}

#[test]
fn daily_proposal_bytes_are_bounded_across_restarts() {
    let config = "changes: {max_bytes_per_day: 3MiB}";
    let gateway = start_serving(config, "");
    for _ in 0..2 {
        let id = propose_change(&gateway, 1 << 20);
        // A withdrawn change counts as well, because it is on the disk.
        assert_eq!(gateway.tool("withdraw_change", json!({"changeId": id}))["status"], "withdrawn");
    }
    let refused = |gateway: &Gateway| {
        let answer = propose(gateway, 1 << 20);
        let problem = answer.json();
        assert_eq!((answer.status, &problem["code"]), (429, &json!("RATE_LIMITED")), "{problem}");
        assert!(problem.to_string().contains("changes.max_bytes_per_day"), "{problem}");
        assert!(answer.header("retry-after").unwrap().parse::<u64>().unwrap() > 3600, "{problem}");
    };
    refused(&gateway);
    let small = propose_change(&gateway, 1000);
    let home = gateway.kill();
    let config = format!("{config}\nmcpServers:\n  load: {{command: python3, args: [\"{SERVER}\"]}}\n");
    let gateway = Gateway::on_home(home, &Options { config: Some(&config), ..Options::default() });
    await_server(&gateway);
    refused(&gateway);
    assert_eq!(gateway.change(&small)["state"], "pending");
    // Nothing was counted for another principal.
    let key = format!("Bearer {}", gateway.create_key("agent", "other"));
    let body = json!({"text": "x".repeat(1 << 20)}).to_string();
    let headers = [JSON, ("Authorization", key.as_str())];
    assert_eq!(gateway.request("POST", "/tools/load__write", &headers, body.as_bytes()).status, 202);
}

#[test]
fn large_dead_changes_shrink_to_hashes() {
    let gateway = start_serving("changes: {retention: {large: 1s, large_bytes: 64KiB}}", "");
    let database = gateway.data().join("countersign.db");
    let size = |name: &str| std::fs::metadata(gateway.data().join(name)).map_or(0, |file| file.len());
    let undecided = propose_change(&gateway, 100 << 10);
    let small = propose_change(&gateway, 1000);
    gateway.decide(&small, "reject");
    let pid = gateway.process.0.id();
    let before = status_kib(pid, "VmRSS:");
    let large: Vec<String> = (0..5).map(|_| propose_change(&gateway, 6 << 20)).collect();
    assert!(size("countersign.db") + size("countersign.db-wal") > 30 << 20);
    for (n, id) in large.iter().enumerate() {
        if n % 2 == 0 {
            gateway.decide(id, "reject");
        } else {
            assert_eq!(gateway.tool("withdraw_change", json!({"changeId": id}))["status"], "withdrawn");
        }
    }
    eventually("the memory is given back", || (status_kib(pid, "VmRSS:") < before + (70 << 10)).then_some(()));
    for id in &large {
        let change = eventually("it shrinks", || Some(gateway.change(id)).filter(|c| c["redacted"].is_object()));
        assert_eq!((&change["arguments"], &change["diff"]["fields"]), (&json!({}), &json!([])));
        assert!(change["redacted"]["arguments"].as_str().unwrap().starts_with("sha256:"), "{change}");
        assert_eq!(gateway.tool("get_change", json!({"changeId": id}))["changeId"], json!(id));
    }
    for id in [&undecided, &small] {
        assert!(gateway.change(id).get("redacted").is_none(), "it is small, or nobody has decided on it");
    }
    // People see what remains of it.
    let url = format!("http://{}", gateway.address());
    let env = [("COUNTERSIGN_KEY", gateway.reviewer()), ("COUNTERSIGN_URL", url.as_str())];
    let stdout = command(&env).args(["changes", "show", &large[0]]).output().unwrap();
    assert!(stdout.status.success(), "{}", String::from_utf8_lossy(&stdout.stderr));
    let stdout = String::from_utf8(stdout.stdout).unwrap();
    assert!(stdout.contains("rejected") && stdout.contains("were removed") && stdout.contains("sha256:"), "{stdout}");

    eventually("the room is given back", || {
        (size("countersign.db") < 12 << 20 && size("countersign.db-wal") <= 24 << 20).then_some(())
    });
    let data = gateway.data().to_str().unwrap().to_owned();
    let (code, out, err) = run(&["audit", "verify", "--data", &data]);
    assert_eq!(code, Some(0), "{out}{err}");
    let (status, home) = gateway.stop();
    assert!(status.success());
    let (code, out, err) = run(&["audit", "verify", "--data", &data]);
    assert_eq!(code, Some(0), "{out}{err}");
    assert!(std::fs::metadata(&database).unwrap().len() < 12 << 20);
    drop(home);
}

// --- Lists

/// Starts the server with such lists; returns the number of its tools, and what its status says about the rest.
fn list_tools(arguments: &str, config: &str) -> (u64, String) {
    let config = format!(
        "policy: {{default: allow}}\nmcpServers:\n  load: {{command: python3, args: [\"{SERVER}\", {arguments}], {config}}}\n"
    );
    let gateway = Gateway::with_options(&Options { config: Some(&config), ..Options::default() });
    await_server(&gateway);
    // The tools that were read work.
    let call = json!({"name": "load__read", "arguments": {"text": "four"}});
    let answer = gateway.modern(1, "tools/call", call).json();
    assert_eq!(answer["result"]["content"][0]["text"], "4", "{answer}");
    let status = server(&gateway);
    let url = format!("http://{}", gateway.address());
    let env = [("COUNTERSIGN_KEY", gateway.reviewer()), ("COUNTERSIGN_URL", url.as_str())];
    let shown_status = command(&env).args(["servers", "show", "load"]).output().unwrap();
    let shown_status = String::from_utf8(shown_status.stdout).unwrap();
    let left_out = status["leftOut"].as_array().unwrap();
    let explanation = left_out.first().and_then(Value::as_str).unwrap_or_default().to_owned();
    assert!(shown_status.contains(&explanation), "{explanation}: {shown_status:.2000}");
    assert!(gateway.log().contains("only a part of a list of the upstream is read"), "{}", gateway.log());
    (status["tools"].as_u64().unwrap(), explanation)
}

#[test]
fn huge_tool_list_is_read_up_to_its_limit() {
    let (tools, explanation) = list_tools("many, \"100000\"", "");
    assert_eq!(tools, 5000);
    assert!(
        explanation.contains("tools/list")
            && explanation.contains("5000 entries")
            && explanation.contains("lists.entries"),
        "{explanation}"
    );
}

#[test]
fn endless_pages_and_repeated_cursors_end() {
    let (tools, explanation) = list_tools("endless", "");
    assert_eq!(tools, 202, "one of each page, and the two on the first");
    assert!(explanation.contains("200 pages") && explanation.contains("lists.pages"), "{explanation}");
    let (tools, explanation) = list_tools("circle", "");
    assert_eq!(tools, 5);
    assert!(explanation.contains("loop"), "{explanation}");
}

#[test]
fn list_limits_apply_per_server() {
    let (tools, explanation) = list_tools("wide, \"100\"", "lists: {bytes: 20KiB}");
    assert_eq!(tools, 20);
    assert!(explanation.contains("20480 bytes") && explanation.contains("lists.bytes"), "{explanation}");
    assert_eq!(list_tools("many, \"100\"", "lists: {entries: 10}").0, 10);
}
