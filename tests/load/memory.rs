//! Attacks on the memory and CPU time of a gateway, each with its limit. They take minutes, so only `scripts/memory`
//! runs them, on the release build. A new one is a test whose name begins with `attack_`.

use std::{
    process::Stdio,
    thread,
    time::{Duration, Instant},
};

use serde_json::json;

use crate::{
    bounds::{NEWEST, info, initialize, status_kib, unfinished_bodies},
    http2::{self, Http2, frames},
    load::{propose_change, start_serving},
};
use support::{
    Gateway, Options, command, create_key_in, eventually,
    mcp::{ACCEPT, JSON, initialize_params, notification, request, with_meta},
    postgres::Server,
    tls::TlsGateway,
    ws::Ws,
};

/// Runs an attack on a gateway's memory, and prints its peak and the use 30 seconds later.
fn measure_attack(name: &str, pid: u32, attack: impl FnOnce()) {
    let before = status_kib(pid, "VmRSS:") / 1024;
    attack();
    thread::sleep(Duration::from_secs(30));
    let (peak, after) = (status_kib(pid, "VmHWM:") / 1024, status_kib(pid, "VmRSS:") / 1024);
    println!("{name}: {before} MiB before, {peak} MiB at its peak, {after} MiB 30 s after");
    assert!(peak < 190 && after < 114, "200 and 120 MB are 190 and 114 MiB");
}

/// Runs an attack on a gateway over plain HTTP.
fn attack_gateway(name: &str, gateway: &Gateway, run: impl FnOnce(&Gateway)) {
    measure_attack(name, gateway.process.0.id(), || run(gateway));
}

/// Returns the CPU time of a process.
fn processor_time(pid: u32) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<_> = stat.rsplit_once(") ").unwrap().1.split(' ').collect();
    // In hundredths of a second; the fields are counted from the third one here.
    let ticks = |field: usize| fields[field - 3].parse::<u64>().unwrap();
    Duration::from_millis((ticks(14) + ticks(15)) * 10)
}

#[test]
#[ignore = "minutes; scripts/memory runs it on the release build"]
fn attack_handshakes_with_much_to_say() {
    attack_gateway("30 handshakes with 7 MiB of capabilities", &Gateway::start(), |gateway| {
        let capabilities = json!({ "experimental": { "x": { "y": "z".repeat(7 << 20) } } });
        let handshake = initialize(capabilities, info("raw"));
        for _ in 0..30 {
            gateway.post(&[], &handshake);
        }
    });
    for member in ["title", "name"] {
        attack_gateway(&format!("30 handshakes with 7 MiB of clientInfo.{member}"), &Gateway::start(), |gateway| {
            let mut info = info("raw");
            info[member] = "z".repeat(7 << 20).into();
            let handshake = initialize(json!({}), info);
            for _ in 0..30 {
                gateway.post(&[], &handshake);
            }
            let (status, listed) = gateway.api("GET", "/api/sessions", None);
            println!("  GET /api/sessions: {status}, {} bytes", listed.to_string().len());
        });
    }
}

#[test]
#[ignore = "minutes; scripts/memory runs it on the release build"]
fn attack_subscriptions_with_long_uris() {
    for length in [8 << 10, 4 << 10] {
        let name = format!("10 sessions with 1,000 subscriptions to URIs of {length} bytes");
        attack_gateway(&name, &Gateway::start(), |gateway| {
            for _ in 0..10 {
                let session = gateway.session(NEWEST);
                for n in 0..1000 {
                    let begin = format!("tracker://{n}/");
                    let uri = format!("{begin}{}", "x".repeat(length - begin.len()));
                    session.call(n, "resources/subscribe", json!({ "uri": uri }));
                }
            }
        });
    }
}

#[test]
#[ignore = "minutes; scripts/memory runs it on the release build"]
fn attack_unfinished_bodies() {
    attack_gateway("100 connections with 8 MiB each, unfinished", &Gateway::start(), |gateway| {
        let conns = unfinished_bodies(gateway, 100);
        println!("  while they are open: {} MiB", status_kib(gateway.process.0.id(), "VmRSS:") / 1024);
        drop(conns);
    });
}

#[test]
#[ignore = "minutes; scripts/memory runs it on the release build"]
fn attack_many_streams_of_one_connection() {
    let tls = TlsGateway::start();
    // One connection with 80 endless uploads of 8 MiB: curl multiplexes them, and reads from a pipe.
    let body = tls.home.path().join("body");
    std::fs::write(&body, vec![b' '; 7 << 20]).unwrap();
    let data = format!("@{}", body.display());
    let args = ["--parallel", "--parallel-immediate", "--parallel-max", "80", "--http2", "-o", "/dev/null"];
    let mut command = std::process::Command::new("curl");
    command.args(["-sS", "--cacert"]).arg(&tls.cert).args(args);
    for at in 0..80 {
        if at > 0 {
            command.args(["--next", "-sS", "--cacert"]).arg(&tls.cert).args(["--http2", "-o", "/dev/null"]);
        }
        command.args(["-H", "Content-Type: application/json", "-H", "Accept: application/json, text/event-stream"]);
        // More is announced than arrives.
        command.args(["-H", "Content-Length: 8388608", "--max-time", "20", "--data-binary", &data]);
        command.arg(format!("{}/mcp", tls.base));
    }
    measure_attack("One HTTP/2 connection with 80 streams", tls.process.0.id(), || {
        let _ = command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null()).status().unwrap();
    });
    tls.stop();
}

/// Opens sockets that send these messages one after another and read nothing, until they are dropped.
fn unread_sockets(gateway: &Gateway, sockets: usize, key: &str, messages: &[String]) -> Vec<Ws> {
    let headers = [("Sec-WebSocket-Protocol", "mcp"), ("Authorization", key)];
    let headers = if key.is_empty() { &headers[..1] } else { &headers };
    thread::scope(|scope| {
        let senders: Vec<_> = (0..sockets)
            .map(|_| {
                scope.spawn(|| {
                    let mut ws = Ws::try_open(gateway, "/ws", headers);
                    messages.iter().for_each(|message| ws.send(message));
                    ws
                })
            })
            .collect();
        senders.into_iter().map(|sender| sender.join().unwrap()).collect()
    })
}

#[test]
#[ignore = "minutes; scripts/memory runs it on the release build"]
fn attack_unread_sockets_with_lists() {
    attack_gateway("3 rounds of 40 sockets that list the tools and never read", &Gateway::start(), |gateway| {
        let list: Vec<_> = (0..500).map(|id| request(id, "tools/list", json!({})).to_string()).collect();
        for _ in 0..3 {
            let sockets = unread_sockets(gateway, 40, "", &list);
            thread::sleep(Duration::from_secs(3));
            drop(sockets);
            println!("  {} MiB", status_kib(gateway.process.0.id(), "VmRSS:") / 1024);
        }
    });
}

#[test]
#[ignore = "minutes; scripts/memory runs it on the release build"]
fn attack_unread_sockets_with_large_answers() {
    let gateway = start_serving("policy: {default: allow}\nlimits: {rate_per_second: 0}\n", "");
    attack_gateway("3 rounds of 30 sockets with answers of 0.9 MB that nobody reads", &gateway, |gateway| {
        let key = format!("Bearer {}", gateway.create_key("agent", "attacker"));
        let handshake =
            [request(0, "initialize", initialize_params(NEWEST)), notification("notifications/initialized")];
        let call = json!({ "name": "load__read", "arguments": { "answer": 900_000 } });
        let calls = (1..=25).map(|id| request(id, "tools/call", call.clone()));
        let messages: Vec<_> = handshake.into_iter().chain(calls).map(|message| message.to_string()).collect();
        for _ in 0..3 {
            let sockets = unread_sockets(gateway, 30, &key, &messages);
            thread::sleep(Duration::from_secs(5));
            drop(sockets);
            println!("  {} MiB", status_kib(gateway.process.0.id(), "VmRSS:") / 1024);
        }
    });
}

#[test]
#[ignore = "minutes; scripts/memory runs it on the release build"]
fn attack_unread_http_answers() {
    let name = "250 connections with 12 batches of 100 lists each that nobody reads";
    attack_gateway(name, &Gateway::start(), |gateway| {
        let lists: Vec<_> = (0..100).map(|id| request(id, "tools/list", json!({}))).collect();
        let batch = serde_json::to_vec(&lists).unwrap();
        let sessions: Vec<_> = (0..84).map(|_| gateway.session("2025-03-26")).collect();
        let conns: Vec<_> = (0..250)
            .map(|n| {
                let mut headers = vec![JSON, ACCEPT];
                headers.extend(sessions[n / 3].headers());
                let mut conn = gateway.connect();
                (0..12).for_each(|_| conn.request("POST", "/mcp", &headers, &batch));
                conn
            })
            .collect();
        thread::sleep(Duration::from_secs(10));
        println!("  while they are open: {} MiB", status_kib(gateway.process.0.id(), "VmRSS:") / 1024);
        drop(conns);
    });
}

/// Returns the number of open files of a process.
fn descriptors(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count()
}

#[test]
#[ignore = "minutes; scripts/memory runs it on the release build"]
fn attack_requests_that_name_two_nodes() {
    let server = Server::start(&["-c", "fsync=off"]);
    server.sql("postgres", "CREATE DATABASE cluster");
    let url = server.database("cluster");
    let start = || Gateway::with_options(&Options { env: vec![("COUNTERSIGN_STORE__URL", &url)], config: None });
    let gateways = [start(), start()];
    let key = create_key_in(&url, &gateways[0].data(), "reviewer", "rita");
    let names = eventually("the nodes know each other", || {
        let (_, listed) = gateways[0].api_as(&key, "GET", "/api/nodes", None);
        let nodes = listed["nodes"].as_array().filter(|nodes| nodes.len() == 2)?;
        Some(nodes.iter().map(|node| format!("{}.nothing", node["id"].as_str().unwrap())).collect::<Vec<_>>())
    });
    let can = json!({ "extensions": { "io.modelcontextprotocol/tasks": {} } });
    let listen = with_meta(json!({
        "notifications": { "taskIds": names },
        "_meta": { "io.modelcontextprotocol/clientCapabilities": can },
    }));
    let taken = || {
        gateways.each_ref().map(|gateway| {
            let pid = gateway.process.0.id();
            (processor_time(pid), descriptors(pid))
        })
    };
    thread::sleep(Duration::from_secs(2));
    let before = taken();
    let listens: Vec<_> = (0..5).map(|_| gateways[0].modern_conn(1, "subscriptions/listen", listen.clone())).collect();
    let sockets: Vec<_> = (0..5)
        .map(|_| {
            let mut ws = Ws::open(&gateways[1]);
            ws.send_json(&request(2, "subscriptions/listen", listen.clone()));
            ws
        })
        .collect();
    thread::sleep(Duration::from_secs(5));
    let during = taken();
    drop((listens, sockets));
    thread::sleep(Duration::from_secs(30));
    for ((gateway, (time_before, files_before)), (time, files)) in gateways.iter().zip(before).zip(during) {
        let pid = gateway.process.0.id();
        let (took, opened) = (time - time_before, files - files_before);
        let (peak, after) = (status_kib(pid, "VmHWM:") / 1024, status_kib(pid, "VmRSS:") / 1024);
        println!(
            "10 requests that name two nodes: {took:?} of processor time, {opened} descriptors, {peak} MiB at its peak, \
             {after} MiB 30 s after"
        );
        assert!(took < Duration::from_secs(1) && opened < 20, "they are sent back and forth");
        assert!(peak < 190 && after < 114, "200 and 120 MB are 190 and 114 MiB");
    }
}

#[test]
#[ignore = "minutes; scripts/memory runs it on the release build"]
fn attack_large_proposals() {
    attack_gateway("35 proposals of 7 MiB, withdrawn", &start_serving("", ""), |gateway| {
        for _ in 0..35 {
            let id = propose_change(gateway, 7 << 20);
            assert_eq!(gateway.tool("withdraw_change", json!({ "changeId": id }))["status"], "withdrawn");
        }
    });
}

/// A kind of frame with its flags, its stream and its payload.
type Flood<'a> = (&'a str, (u8, u8), u32, &'a [u8]);

/// Sends a thousand frames at a time until the gateway ends the connection, beside a request whose body never arrives.
fn flood(tls: &TlsGateway, name: &str, mut thousand: impl FnMut(&str) -> Vec<u8>) {
    let pid = tls.process.0.id();
    let authority = tls.base.trim_start_matches("https://");
    let mut conn = Http2::connect(tls);
    conn.forget_answers();
    conn.post(1, authority);
    let (began, before) = (Instant::now(), processor_time(pid));
    let (mut sent, mut open) = (0, true);
    while open && began.elapsed() < Duration::from_secs(5) {
        open = conn.try_send(&thousand(authority));
        sent += 1000;
    }
    let took = processor_time(pid) - before;
    println!("{name}: {sent} frames sent, open until the end: {open}, {took:?} of processor time");
    assert!(!open && took < Duration::from_secs(1), "it is to be ended");
}

#[test]
#[ignore = "minutes; scripts/memory runs it on the release build"]
fn attack_idle_frames_of_http_2() {
    let tls = TlsGateway::start();
    let padding = [&[255][..], &[0; 255]].concat();
    let floods: [Flood<'_>; 6] = [
        ("WINDOW_UPDATE", (8, 0), 0, &[0, 0, 0, 1]),
        ("empty DATA", (0, 0), 1, &[]),
        ("DATA of padding", (0, 8), 1, &padding),
        ("PRIORITY", (2, 0), 3, &[0, 0, 0, 0, 1]),
        ("PING", (6, 0), 0, &[0; 8]),
        ("SETTINGS", (4, 0), 0, &[]),
    ];
    for (name, kind, stream, payload) in floods {
        flood(&tls, name, |_| frames(1000, kind, stream, payload));
    }
    let mut streams = (3..).step_by(2);
    flood(&tls, "POST", |authority| streams.by_ref().take(1000).flat_map(|n| http2::post(n, authority, &[])).collect());
    tls.stop();
}

#[test]
#[ignore = "minutes; scripts/memory runs it on the release build"]
fn attack_documents_of_headings() {
    let root = tempfile::tempdir().unwrap();
    let projects = format!("{{ handbook: {{ root: '{}' }} }}", root.path().display());
    let config = format!("modules: {{ docs: {{ enabled: true, projects: {projects} }} }}");
    let gateway = Gateway::with_options(&Options { config: Some(&config), ..Options::default() });
    let pid = gateway.process.0.id();
    let nested = |n: usize| format!("{}x\n{}", "+ ".repeat(n), "y\n".repeat(n));
    let documents = [
        ("80,000 headings", "# h\n".repeat(80_000)),
        ("200,000 headings", "# h\n".repeat(200_000)),
        ("7,000 nested lists", nested(7_000)),
        ("80,000 nested lists", nested(80_000)),
    ];
    for (name, body) in documents {
        let before = processor_time(pid);
        let content = format!("---\ntitle: Headings\n---\n{body}");
        let arguments = json!({ "project_name": "handbook", "path": "notes/headings.md", "content": content });
        let answer = gateway.modern(1, "tools/call", json!({ "name": "index_document", "arguments": arguments }));
        // Work after the answer counts, too.
        thread::sleep(Duration::from_secs(5));
        let took = processor_time(pid) - before;
        println!("A document of {name}: status {}, {took:?} of processor time", answer.status);
        assert!(took < Duration::from_secs(3), "{:.500}", answer.text());
    }
}

/// A server that answers with lists of so many `[]`, and sends so many notifications of the same kind before each
/// answer.
const LONG_LINES: &str = r#"
import sys, json
notifications, items = map(int, sys.argv[1:])
long = "[" + "[]," * items + "[]]"
for line in sys.stdin:
    asked = json.loads(line)
    if "id" in asked:
        for _ in range(notifications):
            print('{"jsonrpc":"2.0","method":"notifications/x","params":{"x":%s}}' % long)
        print('{"jsonrpc":"2.0","id":%s,"result":%s}' % (json.dumps(asked["id"]), long), flush=True)
"#;

fn check_server_of_long_lines(notifications: usize, items: usize) {
    let mut check = command(&[]);
    check.args(["check", "--max-time", "60", "--", "python3", "-c", LONG_LINES]);
    check.args([notifications.to_string(), items.to_string()]);
    let mut check = check.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let (mut peak, began) = (0, Instant::now());
    while check.try_wait().unwrap().is_none() {
        if let Ok(status) = std::fs::read_to_string(format!("/proc/{}/status", check.id())) {
            let high =
                status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.split_whitespace().next()?.parse().ok());
            peak = peak.max(high.unwrap_or(0) / 1024);
        }
        assert!(began.elapsed() < Duration::from_secs(120), "the run is not bounded; {peak} MiB by now");
        thread::sleep(Duration::from_millis(20));
    }
    let (mib, took) = ((3 * items).div_ceil(1 << 20), began.elapsed());
    println!("check of {notifications} notifications and an answer of {mib} MiB: {peak} MiB at its peak, {took:?}");
    assert!(peak < 190, "200 MB are 190 MiB");
}

#[test]
#[ignore = "minutes; scripts/memory runs it on the release build"]
fn attack_on_check_with_long_answers() {
    // Above the limit of a line, below it, and with more messages than answers.
    check_server_of_long_lines(0, 5 << 20);
    check_server_of_long_lines(0, (4 << 20) / 3);
    check_server_of_long_lines(50, (4 << 20) / 3);
}
