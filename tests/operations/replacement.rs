//! Tests of gateways that end while agents are attached: for a newer program, for a restart, and by a crash.
//!
//! A program of another version would need a build of the whole workspace, so the test itself speaks the handshake of one
//! on the socket. This also fixes the bytes that versions exchange from now on.

use std::{
    fs::{self, File},
    io::{BufRead, BufReader, Write},
    os::unix::{
        fs::PermissionsExt,
        net::{UnixListener, UnixStream},
    },
    process::{Child, Stdio},
    sync::mpsc,
    thread,
    time::Duration,
};

use rustix::process::Signal;
use serde_json::{Value, json};
use support::cli::{Home, Lines, alive, signal, wait_until};

use crate::attach::{call, home, propose_issue, start_session};

const OWN_VERSION: &str = env!("CARGO_PKG_VERSION");

/// Says hello to the gateway of the home as a program of another version, and returns its answer.
fn greet(home: &Home, hello: &Value) -> Value {
    let mut stream = UnixStream::connect(home.data().join("gateway.sock")).unwrap();
    writeln!(stream, "{hello}").unwrap();
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer).unwrap();
    serde_json::from_str(&answer).unwrap()
}

fn hello(version: &str, replace: bool) -> Value {
    json!({"attach": 1, "version": version, "pid": 1, "replace": replace})
}

/// Returns the next message with this id. Announcements may come first.
fn answer_to(agent: &mut Lines, id: i64) -> Value {
    loop {
        let message = agent.message();
        if message["id"] == id {
            return message;
        }
        assert!(message["method"].as_str().is_some_and(|method| method.starts_with("notifications/")), "{message}");
    }
}

/// Writes the configuration of a server whose tool answers after `seconds`, and returns the file that appears once it runs.
fn with_slow_server(home: &Home, seconds: u32) -> std::path::PathBuf {
    let began = home.path().join("began");
    let script = r#"while read -r line; do
  id=$(printf %s "$line" | sed -n 's/.*"id":\([0-9]*\).*/\1/p')
  result=
  case $line in
    *'"initialize"'*) result='{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"slow","version":"1"}}' ;;
    *'"tools/list"'*) result='{"tools":[{"name":"sleep","inputSchema":{"type":"object"}}]}' ;;
    *'"tools/call"'*) touch BEGAN; sleep SECONDS; result='{"content":[{"type":"text","text":"slept well"}]}' ;;
    *'"ping"'*) result='{}' ;;
  esac
  if [ -n "$result" ]; then echo "{\"jsonrpc\":\"2.0\",\"id\":$id,\"result\":$result}"
  elif [ -n "$id" ]; then echo "{\"jsonrpc\":\"2.0\",\"id\":$id,\"error\":{\"code\":-32601,\"message\":\"no such method\"}}"; fi
done
"#;
    let script = script.replace("BEGAN", began.to_str().unwrap()).replace("SECONDS", &seconds.to_string());
    let script = home.write("slow.sh", &script);
    fs::create_dir_all(home.path().join(".config/countersign")).unwrap();
    let config = json!({
        "policy": {"default": "allow"},
        "mcpServers": {"slow": {"command": "/bin/sh", "args": [script]}},
    });
    home.write(".config/countersign/countersign.yaml", &config.to_string());
    began
}

/// Starts a session and a call of the slow tool, with the id 2, and returns when the tool runs.
fn with_running_call(home: &Home, seconds: u32) -> Lines {
    let began = with_slow_server(home, seconds);
    let mut agent = start_session(home, &["stdio"]);
    agent.send(&call("slow__sleep", &json!({})));
    wait_until("the tool runs", || began.exists());
    agent
}

#[test]
fn newer_program_replaces_background_gateway() {
    let home = home();
    let mut agent = start_session(&home, &["stdio"]);
    let change = propose_issue(&mut agent, "survives")["structuredContent"]["changeId"].clone();
    agent.send(&call("wait_for_change", &json!({"changeId": change})));
    agent.ping("3");
    let old = home.gateway_pid().unwrap();
    // Neither an equal nor an older program ends it, nor a newer one that does not ask.
    for (version, replace) in [(OWN_VERSION, true), ("0.0.1", true), ("99.0.0", false)] {
        assert_eq!(greet(&home, &hello(version, replace)), json!({"welcome": OWN_VERSION, "background": true}));
    }
    assert!(alive(old));

    // The newer program holds the start lock until its gateway listens.
    let lock = File::options().create(true).append(true).open(home.data().join("start.lock")).unwrap();
    lock.lock().unwrap();
    assert_eq!(greet(&home, &hello("99.0.0", true)), json!({"leaving": OWN_VERSION}));
    wait_until("the gateway ends", || !alive(old));
    thread::sleep(Duration::from_millis(200));
    assert_eq!(home.gateway_pid(), None, "the attached agent waits for the newer program");
    let mut command = home.command(&["serve", "--detached"]);
    let mut gateway = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    wait_until("the next gateway listens", || home.gateway_pid().is_some());
    drop(lock);
    let next = home.gateway_pid().unwrap();
    assert_ne!(next, old);

    // The held call goes on at the next gateway.
    let key = home.run(&["keys", "create", "--role", "reviewer", "--name", "alice"]).ends(0).stdout();
    home.run_with(&[("COUNTERSIGN_KEY", key.trim())], &["changes", "approve", change.as_str().unwrap()]).ends(0);
    let answer = answer_to(&mut agent, 2);
    assert_eq!(answer["result"]["structuredContent"]["status"], "applied", "{answer}");
    assert_eq!(home.gateway_pid(), Some(next));
    agent.close();
    assert_eq!(agent.finish().0, 0);
    signal(next, Signal::TERM);
    assert_eq!(gateway.wait().unwrap().code(), Some(0));
}

#[test]
fn running_call_gets_drain_of_replaced_gateway() {
    let home = home();
    let mut agent = with_running_call(&home, 1);
    let old = home.gateway_pid().unwrap();
    assert_eq!(greet(&home, &hello("99.0.0", true)), json!({"leaving": OWN_VERSION}));
    // A request that arrives meanwhile is answered by the next gateway.
    agent.send(r#"{"jsonrpc":"2.0","id":5,"method":"tools/list"}"#);
    let answer = answer_to(&mut agent, 2);
    assert_eq!(answer["result"]["content"][0]["text"], "slept well", "{answer}");
    let answer = answer_to(&mut agent, 5);
    assert!(answer["result"]["tools"].is_array(), "{answer}");
    assert_ne!(home.gateway_pid(), Some(old));
}

#[test]
fn call_of_dead_gateway_has_unknown_outcome() {
    let home = home();
    let mut agent = with_running_call(&home, 60);
    agent.send(r#"{"jsonrpc":"2.0","id":4,"method":"tools/list"}"#);
    answer_to(&mut agent, 4);
    let old = home.gateway_pid().unwrap();
    signal(old, Signal::KILL);
    let answer = answer_to(&mut agent, 2);
    assert_eq!(answer["error"]["data"]["code"], "OUTCOME_UNKNOWN", "{answer}");
    assert!(answer["error"]["message"].as_str().unwrap().contains("outcome is unknown"), "{answer}");
    // The session continues without another handshake of the agent.
    agent.send(&call("list_projects", &json!({})));
    let answer = answer_to(&mut agent, 2);
    assert!(answer["result"]["structuredContent"]["projects"].is_array(), "{answer}");
    assert_ne!(home.gateway_pid(), Some(old));
}

fn serve(home: &Home) -> Child {
    let child = home.command(&["serve"]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let pid = i32::try_from(child.id()).unwrap();
    wait_until("the gateway listens", || home.gateway_pid() == Some(pid));
    child
}

#[test]
fn foreground_gateway_is_not_replaced_but_restarted() {
    let home = home();
    let mut gateway = serve(&home);
    let mut agent = start_session(&home, &["stdio"]);
    agent.ping("3");
    assert_eq!(greet(&home, &hello("99.0.0", true)), json!({"welcome": OWN_VERSION}));
    signal(home.gateway_pid().unwrap(), Signal::TERM);
    assert_eq!(gateway.wait().unwrap().code(), Some(0));
    // The agent leaves the data directory to the person or the service that restarts the gateway.
    agent.send(&call("list_projects", &json!({})));
    let mut gateway = serve(&home);
    let answer = answer_to(&mut agent, 2);
    assert!(answer["result"]["structuredContent"]["projects"].is_array(), "{answer}");
    agent.close();
    assert_eq!(agent.finish().0, 0);
    signal(i32::try_from(gateway.id()).unwrap(), Signal::TERM);
    assert_eq!(gateway.wait().unwrap().code(), Some(0));
}

/// A gateway of another version: answers each hello as `answer` says, and pings after a welcome. It ends when it leaves.
/// Returns the hellos that it got.
fn serve_as_other_version(home: &Home, answer: fn(&Value) -> Value) -> mpsc::Receiver<Value> {
    let data = home.data();
    fs::create_dir_all(&data).unwrap();
    fs::set_permissions(&data, fs::Permissions::from_mode(0o700)).unwrap();
    let lock = File::options().create(true).append(true).open(data.join("lock")).unwrap();
    lock.lock().unwrap();
    let path = data.join("gateway.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let (sender, hellos) = mpsc::channel();
    thread::spawn(move || {
        loop {
            let (mut stream, _) = listener.accept().unwrap();
            let mut reader = BufReader::new(stream.try_clone().unwrap());
            let mut line = String::new();
            reader.read_line(&mut line).unwrap();
            let hello: Value = serde_json::from_str(&line).unwrap();
            let answer = answer(&hello);
            writeln!(stream, "{answer}").unwrap();
            let _ = sender.send(hello);
            if answer["leaving"].is_string() {
                fs::remove_file(&path).unwrap();
                // It still drains.
                thread::sleep(Duration::from_millis(300));
                drop(lock);
                return;
            }
            thread::spawn(move || {
                for line in reader.lines().map_while(Result::ok) {
                    let request: Value = serde_json::from_str(&line).unwrap();
                    writeln!(stream, "{}", json!({"jsonrpc": "2.0", "id": request["id"], "result": {}})).unwrap();
                }
            });
        }
    });
    hellos
}

#[test]
fn program_replaces_older_background_gateway() {
    let home = home();
    let hellos = serve_as_other_version(&home, |hello| match hello["replace"] == true {
        true => json!({"leaving": "0.0.1", "later": 1}),
        false => json!({"welcome": "0.0.1", "background": true, "later": 1}),
    });
    let mut agent = Lines::start(&home, &["stdio"]);
    agent.ping("1");
    assert_eq!(home.gateway_file().unwrap()["version"], OWN_VERSION);
    let asked: Vec<Value> = hellos.try_iter().map(|hello| hello["replace"].clone()).collect();
    assert_eq!(asked, [json!(false), json!(true)]);
    agent.close();
    assert_eq!(agent.finish().0, 0);
}

#[test]
fn program_attaches_to_gateway_that_it_may_not_replace() {
    // A newer one, an equal one, an older one that somebody has started, and one that does not know replacement.
    let answers: [fn(&Value) -> Value; 4] = [
        |_| json!({"welcome": "99.0.0", "background": true}),
        |_| json!({"welcome": OWN_VERSION, "background": true}),
        |_| json!({"welcome": "0.0.1"}),
        |_| json!({"welcome": "unknown", "background": true}),
    ];
    for answer in answers {
        let home = home();
        let hellos = serve_as_other_version(&home, answer);
        let mut agent = Lines::start(&home, &["stdio"]);
        agent.ping("1");
        agent.close();
        assert_eq!(agent.finish().0, 0);
        let hellos: Vec<Value> = hellos.try_iter().collect();
        assert_eq!(hellos.len(), 1, "{hellos:?}");
        assert_eq!((&hellos[0]["attach"], &hellos[0]["replace"]), (&json!(1), &json!(false)));
        assert_eq!(hellos[0]["version"], OWN_VERSION);
    }
}
