//! Tests of stdio as a desktop agent uses it, in one process and attached to a shared gateway.

use std::{
    os::unix::fs::{FileTypeExt as _, PermissionsExt as _},
    path::Path,
};

use serde_json::{Value, json};
use support::{Gateway, LISTEN, eventually, mcp, signal, stdio::Agent};
use tempfile::TempDir;

/// Starts an agent with `--standalone` on a free port with its own data.
fn start_standalone() -> (TempDir, Agent) {
    let home = tempfile::tempdir().unwrap();
    let agent = Agent::start(home.path(), &["--standalone", "--listen", LISTEN], &[]);
    (home, agent)
}

#[test]
fn stdio_answers_lines() {
    let (_home, mut agent) = start_standalone();
    assert_eq!(agent.initialize("2025-11-25")["result"]["protocolVersion"], "2025-11-25");
    assert_eq!(agent.call(1, "ping", json!({}))["result"], json!({}));
    let tools = agent.call(2, "tools/list", json!({}));
    assert!(tools["result"]["tools"].as_array().unwrap().len() > 10, "{tools}");
    // CRLF, blank lines and spaces around a message are accepted.
    agent.send_bytes(b"\r\n\n  {\"jsonrpc\":\"2.0\",\"id\":3,\"method\":\"ping\"}\t\r\n");
    assert_eq!(agent.answer(&json!(3))["result"], json!({}));
    for (line, code) in [("{", -32700), ("5", -32600), ("[]", -32600), ("\u{feff}5", -32700)] {
        agent.send(line);
        let answer = agent.message();
        assert_eq!(answer["error"]["code"], code, "{line}: {answer}");
    }
    agent.send_bytes(b"\xff\xfe\n");
    assert_eq!(agent.message()["error"]["code"], -32700, "no UTF-8");
    // Several messages in one write, and one message in several.
    agent.send_bytes(b"{\"jsonrpc\":\"2.0\",\"id\":10,\"method\":\"ping\"}\n{\"jsonrpc\":\"2.0\",\"id\":11,\"method\":\"ping\"}\n{\"jsonrpc\":\"2.0\",");
    agent.send_bytes(b"\"id\":12,\"method\":\"ping\"}\n");
    for id in 10..13 {
        assert_eq!(agent.answer(&json!(id))["result"], json!({}));
    }
}

#[test]
fn stateless_request_needs_no_handshake() {
    let (_home, mut agent) = start_standalone();
    let discovered = agent.call(1, "server/discover", mcp::with_meta(json!({})));
    assert_eq!(discovered["result"]["resultType"], "complete", "{discovered}");
    let called = agent.call(2, "tools/call", mcp::with_meta(json!({"name": "list_projects", "arguments": {}})));
    assert!(called["result"]["structuredContent"]["projects"].is_array(), "{called}");
}

#[test]
fn long_messages_go_both_ways() {
    let (_home, mut agent) = start_standalone();
    agent.initialize("2025-11-25");
    for size in [64 << 10, (8 << 20) - 100] {
        // The id is echoed byte for byte, so the answer is as long as the question.
        let id = "x".repeat(size - 40);
        agent.send(&format!(r#"{{"jsonrpc":"2.0","id":"{id}","method":"ping"}}"#));
        let line = agent.line();
        assert!(line.len() > size - 40 && line.contains(&id), "{size}: {} bytes", line.len());
    }
    agent.send(&format!(r#"{{"jsonrpc":"2.0","id":"{}","method":"ping"}}"#, "x".repeat(9 << 20)));
    let refused = agent.message();
    assert_eq!(refused["error"]["code"], -32600, "over the limit: {}", refused["error"]);
    assert_eq!(agent.call(5, "ping", json!({}))["result"], json!({}), "the session continues");
}

#[test]
fn stdio_requests_run_concurrently() {
    let (home, mut agent) = start_standalone();
    agent.initialize("2025-11-25");
    let project = agent.call(1, "tools/call", json!({"name": "list_projects", "arguments": {}}));
    let project = project["result"]["structuredContent"]["projects"][0]["id"].clone();
    let arguments = json!({"projectId": project, "title": "Waited for over stdio", "type": "Story"});
    let proposed = agent.call(2, "tools/call", json!({"name": "create_issue", "arguments": arguments}));
    let change = proposed["result"]["structuredContent"]["changeId"].clone();
    agent.send_json(&mcp::request(
        3,
        "tools/call",
        json!({"name": "wait_for_change", "arguments": {"changeId": change}}),
    ));
    for id in 4..40 {
        agent.send_json(&mcp::request(id, "ping", json!({})));
    }
    for id in 4..40 {
        assert_eq!(agent.answer(&json!(id))["result"], json!({}), "the wait holds up nothing");
    }
    agent.send_json(&mcp::request(
        50,
        "tools/call",
        json!({"name": "withdraw_change", "arguments": {"changeId": change}}),
    ));
    let mut seen = Vec::new();
    while seen.len() < 2 {
        let message = agent.message();
        if message["id"].is_number() {
            assert_eq!(message["result"]["structuredContent"]["status"], "withdrawn", "{message}");
            seen.push(message["id"].as_i64().unwrap());
        }
    }
    seen.sort_unstable();
    assert_eq!(seen, [3, 50]);
    assert!(home.path().join("data").is_dir());
}

/// Waits until the process ends, and checks its exit code.
#[track_caller]
fn check_clean_exit(agent: &mut Agent) {
    let status = agent.process.wait_for_exit();
    assert_eq!(status.code(), Some(0), "{status:?}");
}

#[test]
fn eof_flushes_finished_answers() {
    let (_home, mut agent) = start_standalone();
    agent.initialize("2025-11-25");
    let proposed = {
        let project = agent.call(1, "tools/call", json!({"name": "list_projects", "arguments": {}}));
        let project = project["result"]["structuredContent"]["projects"][0]["id"].clone();
        let arguments = json!({"projectId": project, "title": "Held at EOF", "type": "Story"});
        agent.call(2, "tools/call", json!({"name": "create_issue", "arguments": arguments}))
    };
    let change = proposed["result"]["structuredContent"]["changeId"].clone();
    // One held call, and others that can be answered in the short time that is left.
    agent.send_json(&mcp::request(
        3,
        "tools/call",
        json!({"name": "wait_for_change", "arguments": {"changeId": change}}),
    ));
    let mut pings = String::new();
    for id in 100..105 {
        pings.push_str(&format!("{}\n", mcp::request(id, "ping", json!({}))));
    }
    agent.send_bytes(pings.as_bytes());
    agent.close();
    let rest = agent.read_remaining();
    check_clean_exit(&mut agent);
    let ids: Vec<Value> = rest.iter().map(|line| serde_json::from_str::<Value>(line).unwrap()["id"].clone()).collect();
    for id in 100..105 {
        assert!(ids.contains(&json!(id)), "the answer to {id} was flushed");
    }
    assert!(!ids.contains(&json!(3)), "what was held is abandoned");
}

#[test]
fn immediate_eof_ends_the_process() {
    let (_home, mut agent) = start_standalone();
    agent.close();
    check_clean_exit(&mut agent);
}

#[test]
fn sigterm_exits_with_0() {
    let (_home, mut agent) = start_standalone();
    agent.initialize("2025-11-25");
    agent.process.terminate();
    check_clean_exit(&mut agent);
}

#[test]
fn attached_agents_share_one_gateway_with_the_dashboard() {
    let gateway = Gateway::start();
    let socket = gateway.data().join("gateway.sock");
    let meta = std::fs::symlink_metadata(&socket).unwrap();
    assert!(meta.file_type().is_socket());
    assert_eq!(meta.permissions().mode() & 0o777, 0o600, "nobody else may connect");
    assert_eq!(std::fs::metadata(gateway.data()).unwrap().permissions().mode() & 0o777, 0o700);

    let mut first = Agent::start(gateway.home.path(), &[], &[]);
    let mut second = Agent::start(gateway.home.path(), &[], &[]);
    first.initialize("2025-11-25");
    second.initialize("2025-03-26");
    let arguments = json!({"projectId": gateway.project(), "title": "Shared", "type": "Story"});
    let proposed = first.call(1, "tools/call", json!({"name": "create_issue", "arguments": arguments}));
    let change = proposed["result"]["structuredContent"]["changeId"].as_str().unwrap().to_owned();
    assert_eq!(gateway.change(&change)["proposer"]["transport"], "stdio");
    let change_result = second.call(1, "tools/call", json!({"name": "get_change", "arguments": {"changeId": change}}));
    assert!(change_result["result"]["content"][0]["text"].as_str().unwrap().contains("pending"), "{change_result}");
    // The end of one agent affects neither the other nor the gateway.
    first.close();
    check_clean_exit(&mut first);
    gateway.decide(&change, "approve");
    let after = second.call(2, "tools/call", json!({"name": "wait_for_change", "arguments": {"changeId": change}}));
    assert!(after["result"].is_object(), "{after}");
    second.process.terminate();
    assert_eq!(second.process.wait_for_exit().code(), Some(0));
    assert_eq!(gateway.request("GET", "/health", &[], b"").status, 200);
}

#[test]
fn attached_agent_outlives_the_gateway() {
    let gateway = Gateway::start();
    let mut agent = Agent::start(gateway.home.path(), &[], &[]);
    agent.initialize("2025-11-25");
    let (status, _home) = gateway.stop();
    assert_eq!(status.code(), Some(0));
    agent.close();
    check_clean_exit(&mut agent);
    assert!(
        agent.read_remaining().iter().all(|line| serde_json::from_str::<Value>(line).is_ok()),
        "nothing but JSON on stdout"
    );
}

/// Returns the processes that serve that data directory and are not our children.
fn detached_gateways(data: &Path) -> Vec<u32> {
    let data = data.to_str().unwrap().as_bytes().to_vec();
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    processes
        .filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok())
        .filter(|pid| {
            let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let args: Vec<&[u8]> = line.split(|byte| *byte == 0).collect();
            args.contains(&data.as_slice()) && !args.contains(&&b"stdio"[..])
        })
        .collect()
}

#[test]
fn missing_gateway_is_started_and_ends_by_itself() {
    let home = tempfile::tempdir().unwrap();
    let env = [("COUNTERSIGN_TRANSPORTS__STDIO__LINGER", "1s")];
    let mut agents: Vec<Agent> = (0..3).map(|_| Agent::start(home.path(), &["--listen", LISTEN], &env)).collect();
    for agent in &mut agents {
        agent.initialize("2025-11-25");
    }
    let data = home.path().join("data");
    let serving = detached_gateways(&data);
    assert_eq!(serving.len(), 1, "three agents that start at once share one gateway: {serving:?}");
    let project = agents[0].call(1, "tools/call", json!({"name": "list_projects", "arguments": {}}));
    let project = project["result"]["structuredContent"]["projects"][0]["id"].clone();
    let arguments = json!({"projectId": project, "title": "Detached", "type": "Story"});
    let proposed = agents[0].call(2, "tools/call", json!({"name": "create_issue", "arguments": arguments}));
    let change = proposed["result"]["structuredContent"]["changeId"].clone();
    drop(agents.remove(0));
    let seen = agents[0].call(3, "tools/call", json!({"name": "get_change", "arguments": {"changeId": change}}));
    assert_eq!(seen["result"]["structuredContent"]["status"], "pending", "{seen}");
    for agent in &mut agents {
        agent.close();
        agent.process.wait_for_exit();
    }
    let ended = std::panic::catch_unwind(|| {
        eventually("it ends by itself", || detached_gateways(&data).is_empty().then_some(()))
    });
    for pid in detached_gateways(&data) {
        signal(pid, rustix::process::Signal::KILL);
    }
    assert!(ended.is_ok(), "the gateway that was started ends after its last user");
}
