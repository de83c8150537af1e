//! Tests of `countersign stdio` as an agent uses it: lines in, lines out, one gateway for all, and clean ends.

use std::{io::Write, os::unix::fs::PermissionsExt, thread};

use rustix::process::Signal;
use serde_json::{Value, json};
use support::cli::{Home, Lines, alive, signal, wait_until};

/// Any port, so that tests collide neither with each other nor with a gateway of the machine's user.
pub fn home() -> Home {
    Home::new().with_var("COUNTERSIGN_LISTEN", "127.0.0.1:0")
}

#[test]
fn lines_are_answered() {
    let home = home();
    let mut agent = Lines::start(&home, &["stdio"]);
    agent.ping("1");
    agent.ping("\"text\"");
    let file = home.gateway_file().unwrap();
    assert_eq!(file["detached"], true);
    assert!(file["url"].as_str().unwrap().starts_with("http://127.0.0.1:"));
    let mode = |name: &str| std::fs::metadata(home.data().join(name)).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode("gateway.sock"), mode("gateway.json"), mode("gateway.log")), (0o600, 0o600, 0o600));
    agent.close();
    let (code, rest, stderr) = agent.finish();
    assert_eq!((code, rest.as_str()), (0, ""), "{stderr}");
    // The gateway stays for the next agent.
    let pid = home.gateway_pid().unwrap();
    let mut next = Lines::start(&home, &["stdio"]);
    next.ping("2");
    assert_eq!(home.gateway_pid(), Some(pid));
    next.close();
    assert_eq!(next.finish().0, 0);
}

#[test]
fn answers_are_flushed_before_the_end() {
    let home = home();
    Lines::start(&home, &["stdio"]).ping("0");
    let mut agent = Lines::start(&home, &["stdio"]);
    // The session is set up by now, so that the answers take no longer than the gateway waits for them.
    agent.ping("0");
    for id in 1..=10 {
        agent.send(&format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"ping"}}"#));
    }
    agent.close();
    let (code, rest, stderr) = agent.finish();
    assert_eq!(code, 0, "{stderr}");
    assert_eq!(rest.lines().count(), 10);
    for line in rest.lines() {
        let answer: serde_json::Value = serde_json::from_str(line).unwrap();
        assert!(answer["result"].is_object(), "{line}");
    }
}

#[test]
fn messages_of_64_kib_and_of_8_mib_pass() {
    let home = home();
    let mut agent = Lines::start(&home, &["stdio"]);
    for size in [64 << 10, 8 << 20] {
        // The whole line has that size.
        let mut line = String::from(r#"{"jsonrpc":"2.0","id":7,"method":"ping","params":{"_meta":{"pad":""#);
        line.push_str(&"x".repeat(size - line.len() - 4));
        line.push_str("\"}}}");
        assert_eq!(line.len(), size);
        agent.send(&line);
        let answer: serde_json::Value = serde_json::from_str(&agent.line()).unwrap();
        assert!(answer["id"] == 7 && answer["result"].is_object(), "{answer}");
    }
    agent.close();
    assert_eq!(agent.finish().0, 0);
}

#[test]
fn concurrent_starts_share_one_gateway() {
    let home = home();
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut agent = Lines::start(&home, &["stdio"]);
                agent.ping("1");
                agent.close();
                let (code, _, stderr) = agent.finish();
                assert_eq!(code, 0, "{stderr}");
            });
        }
    });
    let log = std::fs::read_to_string(home.data().join("gateway.log")).unwrap();
    assert_eq!(log.matches("countersign serves").count(), 1, "{log}");
}

#[test]
fn sigterm_ends_one_agent_with_0() {
    let home = home();
    let (mut first, mut second) = (Lines::start(&home, &["stdio"]), Lines::start(&home, &["stdio"]));
    first.ping("1");
    second.ping("1");
    signal(first.pid(), Signal::TERM);
    let (code, rest, stderr) = first.finish();
    assert_eq!((code, rest.as_str()), (0, ""), "{stderr}");
    second.ping("2");
    // Killed without warning, too.
    let mut third = Lines::start(&home, &["stdio"]);
    third.ping("1");
    third.child.kill().unwrap();
    third.child.wait().unwrap();
    second.ping("3");
    second.close();
    assert_eq!(second.finish().0, 0);
}

#[test]
fn background_gateway_ends_with_its_last_user() {
    let home = home().with_var("COUNTERSIGN_TRANSPORTS__STDIO__LINGER", "0s");
    let mut agent = Lines::start(&home, &["stdio"]);
    agent.ping("1");
    let pid = home.gateway_pid().unwrap();
    agent.ping("2");
    agent.close();
    assert_eq!(agent.finish().0, 0);
    wait_until("the gateway ends after its last user", || !alive(pid));
    wait_until("it takes its files with it", || !home.data().join("gateway.sock").exists());
    let mut agent = Lines::start(&home, &["stdio"]);
    agent.ping("1");
    assert_ne!(home.gateway_pid(), Some(pid));
    agent.close();
    assert_eq!(agent.finish().0, 0);
    let pid = home.gateway_pid();
    wait_until("the second ends, too", || pid.is_none_or(|pid| !alive(pid)));
}

#[test]
fn dead_gateway_is_replaced_when_agent_needs_it() {
    let home = home();
    let mut agent = Lines::start(&home, &["stdio"]);
    agent.ping("1");
    let pid = home.gateway_pid().unwrap();
    signal(pid, Signal::KILL);
    wait_until("the gateway ends", || !alive(pid));
    // Its socket and file are still there without a process behind them.
    assert!(home.data().join("gateway.sock").exists());
    agent.ping("2");
    assert_ne!(home.gateway_pid(), Some(pid));
    let mut other = Lines::start(&home, &["stdio"]);
    other.ping("1");
    // An agent that ends after its gateway needs none.
    signal(home.gateway_pid().unwrap(), Signal::TERM);
    wait_until("the gateway ends", || home.gateway_pid().is_none());
    other.close();
    let (code, rest, stderr) = other.finish();
    assert_eq!((code, rest.as_str()), (0, ""), "{stderr}");
    assert_eq!(home.gateway_pid(), None);
}

#[test]
fn failed_start_explains_why() {
    let home = home();
    std::fs::create_dir_all(home.data()).unwrap();
    std::fs::write(home.data().join("gateway.sock"), "precious").unwrap();
    let mut agent = Lines::start(&home, &["stdio"]);
    agent.close();
    let (code, rest, stderr) = agent.finish();
    assert_eq!((code, rest.as_str()), (69, ""), "{stderr}");
    assert!(stderr.contains("gateway.sock"), "{stderr}");
}

#[test]
fn wrong_key_is_refused() {
    let home = home();
    Lines::start(&home, &["stdio"]).ping("1");
    let mut command = home.command(&["stdio"]);
    command.env("COUNTERSIGN_KEY", "csk_wrong");
    let agent = Lines::spawn(command);
    let (code, rest, stderr) = agent.finish();
    assert_eq!((code, rest.as_str()), (5, ""), "{stderr}");
    assert!(stderr.contains("refused"), "{stderr}");
}

#[test]
fn stdio_refuses_a_reviewers_key() {
    let home = home();
    Lines::start(&home, &["stdio"]).ping("1");
    let key = |role: &str, name: &str| {
        home.run(&["keys", "create", "--role", role, "--name", name]).ends(0).stdout().trim().to_owned()
    };
    let (alice, bot) = (key("reviewer", "alice"), key("agent", "bot"));
    let agent = |vars: &[(&str, &str)], arguments: &[&str]| {
        let mut command = home.command(arguments);
        command.envs(vars.iter().copied());
        Lines::spawn(command)
    };
    let refused = |mut agent: Lines| {
        agent.close();
        let (code, rest, stderr) = agent.finish();
        assert_eq!((code, rest.as_str()), (5, ""), "{stderr}");
        for part in ["key of alice", "role reviewer", "COUNTERSIGN_AGENT_KEY=$(countersign keys create --role agent"] {
            assert!(stderr.contains(part), "{stderr}");
        }
    };
    refused(agent(&[("COUNTERSIGN_KEY", &alice)], &["stdio"]));
    refused(agent(&[("COUNTERSIGN_AGENT_KEY", &alice), ("COUNTERSIGN_KEY", &bot)], &["stdio"]));

    // An agent's key is taken from either variable, its own one first.
    let initialize = r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25",
        "capabilities":{},"clientInfo":{"name":"x","version":"1"}}}"#
        .replace('\n', "");
    for vars in [&[("COUNTERSIGN_KEY", &*bot)][..], &[("COUNTERSIGN_KEY", &alice), ("COUNTERSIGN_AGENT_KEY", &bot)]] {
        let mut agent = agent(vars, &["stdio"]);
        agent.ask(&initialize);
        let (_, sessions) = home.ask("GET", "/api/sessions", Some(&alice), "");
        assert!(sessions.contains(r#""principal":"bot""#), "{vars:?}: {sessions}");
        agent.close();
        assert_eq!(agent.finish().0, 0);
    }

    // Over HTTP such a key is allowed, and logged once.
    for _ in 0..2 {
        let (head, body) = home.ask("POST", "/tools/list_projects", Some(&alice), "{}");
        assert!(head.starts_with("HTTP/1.1 200"), "{head}\n{body}");
    }
    let logged = || {
        let log = std::fs::read_to_string(home.data().join("gateway.log")).unwrap();
        log.matches("a key that may decide on changes calls tools").count()
    };
    wait_until("the key is logged", || logged() > 0);
    assert_eq!(logged(), 1);

    // A standalone gateway refuses it, too.
    let pid = home.gateway_pid().unwrap();
    signal(pid, Signal::TERM);
    wait_until("the gateway ends", || !alive(pid));
    refused(agent(&[("COUNTERSIGN_KEY", &alice)], &["stdio", "--standalone"]));
}

#[test]
fn taken_port_does_not_prevent_serving() {
    let occupied = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = occupied.local_addr().unwrap().to_string();
    let home = Home::new();
    let mut agent = Lines::start(&home, &["stdio", "--listen", &address]);
    agent.ping("1");
    let url = home.gateway_file().unwrap()["url"].as_str().unwrap().to_owned();
    assert_ne!(url, format!("http://{address}"));
    // `open` finds the gateway at its port.
    home.run(&["open"]).ends(0).says(&[&format!("{url}/#code=csc_")]);
    // In the foreground a taken port is an error.
    let other = Home::new();
    other.run(&["serve", "--listen", &address]).ends(69).complains(&[&address]);
}

#[test]
fn agents_are_served_in_a_long_data_path() {
    let home = home();
    let deep = home.path().join("d".repeat(100)).join("e".repeat(100));
    let mut agent = Lines::start(&home, &["stdio", "--data", deep.to_str().unwrap()]);
    agent.ping("1");
    let text = std::fs::read_to_string(deep.join("gateway.json")).unwrap();
    let pid = serde_json::from_str::<serde_json::Value>(&text).unwrap()["pid"].as_i64().unwrap();
    agent.close();
    assert_eq!(agent.finish().0, 0);
    let pid = i32::try_from(pid).unwrap();
    signal(pid, Signal::TERM);
    wait_until("the gateway ends", || !alive(pid));
}

#[test]
fn foreground_gateway_is_used() {
    let home = home();
    let mut gateway = home.command(&["serve"]);
    let mut gateway = gateway.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null()).spawn().unwrap();
    wait_until("the gateway listens", || home.gateway_pid().is_some());
    let mut agent = Lines::start(&home, &["stdio"]);
    agent.ping("1");
    assert_eq!(home.gateway_pid(), i32::try_from(gateway.id()).ok());
    home.run(&["serve"]).ends(75).complains(&["another gateway serves this data directory"]);
    agent.close();
    assert_eq!(agent.finish().0, 0);
    signal(i32::try_from(gateway.id()).unwrap(), Signal::TERM);
    assert_eq!(gateway.wait().unwrap().code(), Some(0));
    assert!(!home.data().join("gateway.json").exists());
}

#[test]
fn background_log_is_bounded() {
    let home = home();
    std::fs::create_dir_all(home.data()).unwrap();
    let log = home.data().join("gateway.log");
    std::fs::write(&log, vec![b'x'; 5 << 20]).unwrap();
    let mut agent = Lines::start(&home, &["stdio"]);
    agent.ping("1");
    wait_until("the full log is put away", || home.data().join("gateway.log.1").exists());
    let pid = home.gateway_pid().unwrap();
    agent.close();
    assert_eq!(agent.finish().0, 0);
    signal(pid, Signal::TERM);
    wait_until("the gateway ends", || !alive(pid));
    // It continued in a new file.
    let text = std::fs::read_to_string(&log).unwrap();
    assert!(text.contains("ended") && !text.contains("xxxx"), "{text}");
    assert_eq!(std::fs::metadata(&log).unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn unread_logs_stall_nothing() {
    let home = home().with_var("COUNTERSIGN_LOG__FILTER", "trace").with_var("COUNTERSIGN_LOG__FORMAT", "json");
    let mut agent = Lines::start(&home, &["stdio", "--standalone"]);
    // Far more log than a pipe can hold.
    for id in 0..2000 {
        agent.ping(&id.to_string());
    }
    agent.close();
    let (code, rest, stderr) = agent.finish();
    assert_eq!((code, rest.as_str()), (0, ""));
    // The log up to the moment when the pipe was full; the rest was dropped.
    assert!(stderr.len() >= 32 << 10, "there was not enough to stall: {} bytes", stderr.len());
    let first: serde_json::Value = serde_json::from_str(stderr.lines().next().unwrap()).unwrap();
    assert!(first["timestamp"].is_string() && first["level"].is_string(), "{first}");
}

/// Returns the request for a call of a tool.
pub fn call(name: &str, arguments: &Value) -> String {
    let params = json!({"name": name, "arguments": arguments});
    json!({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": params}).to_string()
}

/// Starts an agent with a session.
pub fn start_session(home: &Home, arguments: &[&str]) -> Lines {
    let mut agent = Lines::start(home, arguments);
    agent.ask(r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}"#);
    agent.send(r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#);
    agent
}

/// Proposes an issue and returns the result of the call.
pub fn propose_issue(agent: &mut Lines, title: &str) -> Value {
    let projects = agent.ask(&call("list_projects", &json!({})));
    let project = &projects["result"]["structuredContent"]["projects"][0]["id"];
    let answer = agent.ask(&call("create_issue", &json!({"projectId": project, "title": title, "type": "Story"})));
    assert!(answer["result"]["structuredContent"]["changeId"].is_string(), "{answer}");
    answer["result"].clone()
}

#[test]
fn first_pending_result_says_how_to_open_dashboard() {
    let home = home();
    for arguments in [&["stdio"][..], &["stdio"], &["stdio", "--standalone"]] {
        if arguments.len() == 2 {
            let pid = home.gateway_pid().unwrap();
            signal(pid, Signal::TERM);
            wait_until("the gateway ends", || !alive(pid));
        }
        let mut agent = start_session(&home, arguments);
        let first = propose_issue(&mut agent, &format!("first of {arguments:?}"));
        let change = first["structuredContent"]["changeId"].as_str().unwrap();
        let url = home.gateway_file().unwrap()["url"].as_str().unwrap().to_owned();
        let page = format!("{url}/#/inbox/{change}");
        for text in [&first["content"][0]["text"], &first["structuredContent"]["nextStep"]] {
            let text = text.as_str().unwrap();
            assert!(text.contains(&page) && text.contains("`countersign open`"), "{text}");
            assert!(text.contains("wait_for_change"), "{text}");
        }
        assert!(!first.to_string().contains("code="), "an agent must not get a sign-in code: {first}");
        let second = propose_issue(&mut agent, "second");
        assert!(!second.to_string().contains("countersign open"), "{second}");
        agent.close();
        assert_eq!(agent.finish().0, 0);
    }
    // Plain HTTP has no sessions.
    let mut agent = start_session(&home, &["stdio"]);
    let issue = propose_issue(&mut agent, "third");
    let project = home.ask("POST", "/tools/list_projects", None, "{}").1;
    let project = support::cli::object_in(&project).to_string();
    let id = project.split("\"id\":\"").nth(1).unwrap().split('"').next().unwrap();
    let body = json!({"projectId": id, "title": "fourth", "type": "Story"}).to_string();
    let (_, answer) = home.ask("POST", "/tools/create_issue", None, &body);
    assert!(answer.contains("changeId") && !answer.contains("countersign open"), "{answer}");
    assert!(issue.to_string().contains("countersign open"));
}

/// Starts a session whose `wait_for_change` is held, because nobody decides.
fn with_a_held_call(home: &Home, arguments: &[&str]) -> Lines {
    let mut agent = start_session(home, arguments);
    let change = propose_issue(&mut agent, "x");
    agent.send(&call("wait_for_change", &json!({"changeId": change["structuredContent"]["changeId"]})));
    // It is in flight, and other requests are answered in the meantime.
    agent.ping("3");
    agent
}

#[test]
fn held_calls_are_abandoned_at_the_end() {
    for arguments in [&["stdio"][..], &["stdio", "--standalone"]] {
        let home = home();
        let mut agent = with_a_held_call(&home, arguments);
        agent.close();
        let (code, rest, stderr) = agent.finish();
        assert_eq!((code, rest.as_str()), (0, ""), "{stderr}");
    }
    let home = home();
    let agent = with_a_held_call(&home, &["stdio"]);
    signal(agent.pid(), Signal::TERM);
    let (code, rest, stderr) = agent.finish();
    assert_eq!((code, rest.as_str()), (0, ""), "{stderr}");
}

#[test]
fn standalone_serves_in_one_process() {
    let home = home();
    let mut agent = Lines::start(&home, &["stdio", "--standalone"]);
    agent.ping("1");
    agent.close();
    let (code, rest, stderr) = agent.finish();
    assert_eq!((code, rest.as_str()), (0, ""), "{stderr}");
    let mut agent = Lines::start(&home, &["stdio", "--standalone"]);
    agent.ping("1");
    signal(agent.pid(), Signal::TERM);
    assert_eq!(agent.finish().0, 0);
    let _ = std::io::stdout().flush();
}
