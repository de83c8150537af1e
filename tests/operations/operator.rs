//! Tests of an operator's guarantees: path rules hold, the terminal talks only to its own gateway, the trail has keys
//! and acceptances, and configuration errors are explained.

mod configuration;

use std::{
    io::{Read as _, Write as _},
    net::TcpListener,
    path::Path,
    process::{Command, Stdio},
    sync::{Arc, Mutex},
};

use serde_json::{Value, json};
use support::{Gateway, Options, Process, eventually, mcp};
use tempfile::TempDir;

const SERVER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/review/upstream_policy/server.py");
const POLICY_PAGE: &str = include_str!("../../docs/policy.md");

/// Runs a command of the terminal with nothing but the gateway's data directory; returns exit code, stdout and stderr.
fn cli(data: &Path, key: &str, arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = terminal(data, key, arguments).stdin(Stdio::null()).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

fn terminal(data: &Path, key: &str, arguments: &[&str]) -> Command {
    let mut command = support::command(&[("COUNTERSIGN_KEY", key)]);
    command.args(arguments).arg("--data").arg(data);
    command
}

fn verify(data: &Path) -> (Option<i32>, String) {
    let (code, out, err) = support::run(&["audit", "verify", "--data", data.to_str().unwrap()]);
    (code, format!("{out}{err}"))
}

/// A gateway with the file server of `tests/review/upstream_policy`, which records its calls.
struct FileServerGateway {
    dir: TempDir,
    gateway: Gateway,
}

impl FileServerGateway {
    fn start(policy: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("words"), "Reads").unwrap();
        let args = json!([SERVER, dir.path().join("ledger"), dir.path().join("words")]);
        let config = format!("mcpServers:\n  fs: {{ command: python3, args: {args} }}\npolicy:\n{policy}");
        let gateway = Gateway::with_options(&Options { config: Some(&config), ..Options::default() });
        eventually("the server is connected", || {
            let (status, body) = gateway.api("GET", "/api/servers/fs", None);
            (status == 200 && !body["tools"].as_array().unwrap().is_empty()).then_some(())
        });
        Self { dir, gateway }
    }

    /// Calls `fs__write`, and returns the outcome: `ran`, `pending`, or an error code.
    fn write(&self, path: &Value) -> String {
        let call = json!({ "name": "fs__write", "arguments": { "path": path } });
        let answer = self.gateway.modern(1, "tools/call", call).json();
        if let Some(code) = answer["error"]["data"]["code"].as_str() {
            return code.to_owned();
        }
        let result = &answer["result"];
        if result["structuredContent"]["status"] == "pending" {
            return "pending".to_owned();
        }
        if result["isError"] == true {
            let error: Value = serde_json::from_str(result["content"][0]["text"].as_str().unwrap()).unwrap();
            return error["code"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned();
        }
        assert_eq!(result["content"][0]["text"], "done", "{answer}");
        "ran".to_owned()
    }

    fn calls_received(&self) -> usize {
        std::fs::read_to_string(self.dir.path().join("ledger")).unwrap_or_default().lines().count()
    }
}

#[test]
fn path_rule_allows_only_paths_surely_inside() {
    // Uses the rule of docs/policy.md on a server of this test.
    let rule = POLICY_PAGE.lines().find(|line| line.contains("path_within(")).unwrap().trim();
    assert!(rule.starts_with("- {") && rule.contains("fs__write_file") && !rule.contains("startsWith"), "{rule}");
    let rule = rule.replace("fs__write_file", "fs__write");
    let files = FileServerGateway::start(&format!("  rules:\n    {rule}\n"));
    for path in ["/notes/a.md", "//notes//deep/./a.md", "/notes/", "/notes/%2e%2e/x"] {
        assert_eq!(files.write(&json!(path)), "ran", "{path}");
    }
    let ran = files.calls_received();
    assert_eq!(ran, 4);
    for path in
        ["/notes/../etc/cron.d/x", "/notes2/x", "notes/x", "/notes/..", "/notes\\..\\etc", "/notes/\0", "/etc/x", ""]
    {
        assert_eq!(files.write(&json!(path)), "pending", "{path:?}");
    }
    assert_eq!(files.calls_received(), ran, "nothing else reached the server");
}

#[test]
fn path_denial_covers_equivalent_paths() {
    let deny = "  default: allow\n  rules:\n    - { name: keep-out, tools: fs__write, when: 'path_within(arguments.path, \"/etc\")', then: deny }
    - { name: private, tools: fs__write, when: 'path_within(arguments.path, \"/priv\u{e9}\")', then: deny }\n";
    let files = FileServerGateway::start(deny);
    assert_eq!(files.write(&json!("/home/x")), "ran");
    for path in [
        "/etc/passwd",
        "//etc/passwd",
        "/home/../etc/passwd",
        "etc/passwd",
        "/home/\\..\\etc",
        "/priv\u{e9}/x",
        "/prive\u{301}/x",
    ] {
        assert_eq!(files.write(&json!(path)), "POLICY_DENIED", "{path}");
    }
    assert_eq!(files.calls_received(), 1);
}

#[test]
fn list_argument_makes_a_text_rule_stricter() {
    let config = r#"
policy:
  default: allow
  rules:
    - { name: equal, tools: create_issue, when: 'arguments.title == "/x"', then: deny }
    - { name: unequal, tools: update_issue, when: 'arguments.title != "/x"', then: allow }
    - { name: "in", tools: add_comment, when: 'arguments.content in ["/x"]', then: deny }
    - { name: begins, tools: assign_issue, when: 'arguments.title.startsWith("/x")', then: deny }
    - { name: within, tools: delete_issue, when: 'path_within(arguments.path, "/x")', then: deny }
"#;
    let gateway = Gateway::with_options(&Options { config: Some(config), ..Options::default() });
    let verdict = |tool: &str, arguments: Value| {
        let body = json!({ "tool": tool, "arguments": arguments });
        let (status, tested) = gateway.api("POST", "/api/policy/test", Some(&body));
        assert_eq!(status, 200, "{tested}");
        tested["verdict"].as_str().unwrap().to_owned()
    };
    for (tool, argument, of_text, of_list) in [
        ("create_issue", "title", "deny", "deny"),
        ("update_issue", "title", "allow", "review"),
        ("add_comment", "content", "deny", "deny"),
        ("assign_issue", "title", "deny", "deny"),
        ("delete_issue", "path", "deny", "deny"),
    ] {
        assert_eq!(verdict(tool, json!({ argument: "/x" })), of_text, "{tool}");
        for list in [json!(["/x"]), json!([["/x"]]), json!([])] {
            assert_eq!(verdict(tool, json!({ argument: list })), of_list, "{tool} of {list}");
        }
        assert_eq!(verdict(tool, json!({ argument: "/y" })), "allow", "{tool}");
    }
}

#[test]
fn text_comparison_of_paths_is_warned_about() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("c.yaml");
    let check = |when: &str| {
        let yaml = format!("policy: {{ rules: [{{ name: notes, tools: x, when: '{when}', then: allow }}] }}\n");
        std::fs::write(&file, yaml).unwrap();
        support::run(&["config", "check", "--config", file.to_str().unwrap()])
    };
    for when in [
        r#"arguments.path.startsWith("/notes/")"#,
        r#"has(arguments.sourceFile) && arguments.sourceFile.startsWith("/notes/")"#,
        r#"arguments.paths.all(p, p.startsWith("/notes/"))"#,
    ] {
        let (code, _, err) = check(when);
        assert_eq!(code, Some(0), "{err}");
        assert!(
            err.contains("warning: policy.rules") && err.contains("notes") && err.contains("path_within("),
            "{err}"
        );
    }
    let (code, _, err) = check(r#"path_within(arguments.path, "/notes") && arguments.title.startsWith("a")"#);
    assert!(code == Some(0) && !err.contains("startsWith"), "{err}");

    let config = "policy: { rules: [{ tools: x, when: 'arguments.dir.startsWith(\"/a\")', then: allow }] }\n";
    let gateway = Gateway::with_options(&Options { config: Some(config), ..Options::default() });
    assert!(gateway.log().contains("applies startsWith to arguments.dir"), "{}", gateway.log());
}

/// A program that took over the port: records every byte, and answers each request the same way.
struct Impostor {
    address: std::net::SocketAddr,
    bytes: Arc<Mutex<Vec<u8>>>,
}

impl Impostor {
    fn start_on(listener: TcpListener) -> Self {
        let address = listener.local_addr().unwrap();
        let bytes: Arc<Mutex<Vec<u8>>> = Arc::default();
        let recorded = Arc::clone(&bytes);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (mut stream, recorded) = (stream.unwrap(), Arc::clone(&recorded));
                std::thread::spawn(move || {
                    let mut buffer = [0; 4096];
                    while let Ok(count) = stream.read(&mut buffer) {
                        if count == 0 {
                            return;
                        }
                        recorded.lock().unwrap().extend_from_slice(&buffer[..count]);
                        if recorded.lock().unwrap().ends_with(b"\r\n\r\n") {
                            let body = r#"{"changes":[],"nextCursor":null,"counts":{},"tools":[],"rules":[]}"#;
                            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len());
                            let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body.as_bytes()));
                        }
                    }
                });
            }
        });
        Self { address, bytes }
    }

    fn received(&self) -> String {
        String::from_utf8_lossy(&self.bytes.lock().unwrap()).into_owned()
    }
}

const COMMANDS: [&[&str]; 10] = [
    &["changes", "list"],
    &["changes", "show", "chg_1"],
    &["changes", "approve", "chg_1", "--yes"],
    &["changes", "watch", "--json"],
    &["servers", "list"],
    &["rules", "list"],
    &["webhooks", "list"],
    &["policy", "test", "create_issue"],
    &["config", "pending"],
    &["open", "--print"],
];

#[test]
fn impostor_on_a_dead_gateways_port_gets_no_key() {
    let gateway = Gateway::start();
    let key = gateway.reviewer().to_owned();
    let data = gateway.data();
    assert_eq!(cli(&data, &key, &["changes", "list"]).0, Some(0));
    let file: Value = serde_json::from_slice(&std::fs::read(data.join("gateway.json")).unwrap()).unwrap();
    // Its file remains, as after a crash, and its pid may belong to another process.
    let address = gateway.address();
    let home = gateway.kill();
    let stale = {
        let mut stale = file.clone();
        stale["pid"] = std::process::id().into();
        stale.to_string()
    };
    std::fs::write(data.join("gateway.json"), &stale).unwrap();
    let impostor = Impostor::start_on(eventually("the port is free", || TcpListener::bind(address).ok()));
    assert_eq!(impostor.address, address);
    for command in COMMANDS {
        if command.contains(&"watch") {
            continue; // `watch` retries forever and never sends a key; see below.
        }
        let (code, out, err) = cli(&data, &key, command);
        assert_eq!(code, Some(69), "{command:?}: {out}{err}");
        assert!(err.contains("is not the gateway of") || err.contains("has ended"), "{command:?}: {err}");
    }
    let secret = file["proof"].as_str().expect("the file has what the gateway proves itself by");
    // The watcher retries; it has asked more than once when this returns.
    let mut watch = terminal(&data, &key, &["changes", "watch", "--json"]);
    let watching = Process(watch.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    let before = impostor.received().matches("GET /proof").count();
    eventually("the watcher asks", || (impostor.received().matches("GET /proof").count() > before).then_some(()));
    drop(watching);
    let received = impostor.received();
    for part in [key.as_str(), "csk_", "uthorization", "Bearer", secret, "csc_"] {
        assert!(!received.contains(part), "{part} reached whoever listens:\n{received}");
    }

    // With an explicit URL it is the user's own decision.
    let url = format!("http://{address}");
    let (code, _, err) = cli(&data, &key, &["changes", "list", "--url", &url]);
    assert_eq!(code, Some(0), "{err}");
    assert!(impostor.received().contains(&key));
    drop(home);
}

#[test]
fn without_a_gateway_nothing_is_sent_to_the_configured_address() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let impostor = Impostor::start_on(listener);
    let home = tempfile::tempdir().unwrap();
    let config = home.path().join("c.yaml");
    std::fs::write(&config, format!("listen: {}\n", impostor.address)).unwrap();
    let key = "csk_0000000000000000000000000000000000000000000";
    for command in COMMANDS.iter().filter(|command| command[0] != "policy") {
        let arguments = [command, &["--config", config.to_str().unwrap()][..]].concat();
        let (code, out, err) = cli(home.path(), key, &arguments);
        assert_eq!(code, Some(69), "{command:?}: {out}{err}");
        assert!(err.contains("countersign serve"), "{command:?}: {err}");
    }
    assert_eq!(impostor.received(), "");
}

#[test]
fn terminal_finds_a_restarted_gateway() {
    let gateway = Gateway::start();
    let key = gateway.reviewer().to_owned();
    let first = std::fs::read_to_string(gateway.data().join("gateway.json")).unwrap();
    assert_eq!(cli(&gateway.data(), &key, &["changes", "list"]).0, Some(0));
    let (status, home) = gateway.stop();
    assert!(status.success());
    let gateway = Gateway::on_home(home, &Options::default());
    let second = std::fs::read_to_string(gateway.data().join("gateway.json")).unwrap();
    let proof = |text: &str| serde_json::from_str::<Value>(text).unwrap()["proof"].clone();
    assert!(proof(&first).is_string() && proof(&first) != proof(&second), "another at each start");
    for command in [&["changes", "list"][..], &["rules", "list"], &["servers", "list"], &["open", "--print"]] {
        let (code, out, err) = cli(&gateway.data(), &key, command);
        assert_eq!(code, Some(0), "{command:?}: {out}{err}");
    }
    // The proof endpoint answers nothing but challenges, so it is no oracle.
    assert_eq!(gateway.request("GET", "/proof", &[], b"").status, 400);
    assert_eq!(gateway.request("GET", "/proof?challenge=x", &[], b"").status, 400);
}

/// Alters the store of a stopped gateway, and returns the result of the verification.
fn tamper_and_verify(data: &Path, sql: &str) -> String {
    let copy = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(data).unwrap() {
        let path = entry.unwrap().path();
        if path.is_file() {
            std::fs::copy(&path, copy.path().join(path.file_name().unwrap())).unwrap();
        }
    }
    let conn = rusqlite::Connection::open(copy.path().join("countersign.db")).unwrap();
    assert!(conn.execute(sql, []).unwrap() > 0, "{sql}");
    drop(conn);
    let (code, verdict) = verify(copy.path());
    assert_eq!(code, Some(1), "{sql}: {verdict}");
    verdict
}

#[test]
fn tampered_records_break_the_trail_and_are_named() {
    let files = FileServerGateway::start("  default: review_writes\n");
    let gateway = files.gateway;
    let id = gateway.propose("Told of");
    // A key created while the gateway runs is in the same trail, and the gateway continues it.
    let second = gateway.create_key("agent", "bot");
    assert!(!second.is_empty());
    let tools = gateway.api("GET", "/api/servers/fs", None).1["tools"].clone();
    let read = tools.as_array().unwrap().iter().find(|tool| tool["name"] == "fs__read").unwrap().clone();
    let body = json!({ "tools": [{ "name": read["name"], "hash": read["hash"] }] });
    assert_eq!(gateway.api("POST", "/api/servers/fs/accept", Some(&body)).0, 200);
    let deny = json!({ "verdict": "deny", "arguments": "exact", "principal": "same", "comment": "no" });
    let (status, rule) = gateway.api("POST", &format!("/api/changes/{id}/rule"), Some(&deny));
    assert_eq!(status, 200, "{rule}");
    gateway.decide(&id, "reject");
    let (_, audit) = gateway.api("GET", "/api/audit", None);
    let events: Vec<&str> =
        audit["entries"].as_array().unwrap().iter().map(|entry| entry["event"].as_str().unwrap()).collect();
    assert_eq!(events.iter().filter(|event| **event == "key_created").count(), 2, "{events:?}");
    let data = gateway.data();
    let (code, verdict) = verify(&data);
    assert_eq!(code, Some(0), "while it runs: {verdict}");
    let keys = support::run(&["keys", "list", "--json", "--data", data.to_str().unwrap()]).1;
    let keys: Value = serde_json::from_str(&keys).unwrap();
    let bot = keys["keys"].as_array().unwrap().iter().find(|key| key["name"] == "bot").unwrap()["id"].clone();
    let revoked = support::run(&["keys", "revoke", bot.as_str().unwrap(), "--data", data.to_str().unwrap()]);
    assert_eq!(revoked.0, Some(0), "{revoked:?}");
    let (status, _home) = gateway.stop();
    assert!(status.success());
    let (code, verdict) = verify(&data);
    assert!(code == Some(0) && verdict.contains("2 keys, 3 definitions and 1 standing rule"), "{verdict}");

    for (sql, part) in [
        ("UPDATE api_keys SET role = 'admin' WHERE name = 'bot'", "key "),
        ("UPDATE api_keys SET name = 'alice' WHERE name = 'bot'", "key "),
        ("UPDATE api_keys SET owner = 'alice' WHERE name = 'bot'", "key "),
        ("UPDATE api_keys SET created_by = '[\"mallory\"]' WHERE name = 'bot'", "key "),
        ("UPDATE api_keys SET revoked_at = NULL WHERE name = 'bot'", "key "),
        ("UPDATE api_keys SET hash = x'00' WHERE name = 'bot'", "key "),
        ("DELETE FROM api_keys WHERE name = 'bot'", "is gone"),
        (
            "INSERT INTO api_keys (id, name, role, hash, created_at, owner) SELECT 'key_x', name, role, x'01', created_at, owner FROM api_keys WHERE name = 'alice'",
            "key key_x has no audit entry",
        ),
        (
            "UPDATE tool_pins SET accepted = 'sha256:0' WHERE tool = 'fs__read'",
            "the pinned definition of tool fs__read",
        ),
        (
            "UPDATE tool_pins SET accepted_target = 'x' WHERE tool = 'fs__read'",
            "the pinned definition of tool fs__read",
        ),
        (
            "UPDATE tool_pins SET accepted = seen, accepted_by = 'alice', accepted_at = '2026-01-01T00:00:00Z' WHERE tool = 'fs__write'",
            "the pinned definition of tool fs__write",
        ),
        ("DELETE FROM tool_pins WHERE tool = 'fs__secret'", "is gone"),
        ("INSERT INTO tool_pins (server, tool, seen) VALUES ('fs', 'fs__new', 'h')", "fs__new"),
        ("UPDATE standing_rules SET body = json_set(body, '$.verdict', 'allow')", "standing rule srl_"),
        ("DELETE FROM standing_rules", "is gone"),
        (
            "INSERT INTO standing_rules (id, over, body) SELECT 'srl_x', 0, json_set(body, '$.id', 'srl_x') FROM standing_rules",
            "standing rule srl_x has no audit entry",
        ),
        (
            "UPDATE facts SET value = replace(value, 'review_writes', 'allow') WHERE name = 'policy_in_force'",
            "the recorded policy in force does not match audit entry 1",
        ),
        ("UPDATE changes SET principal = 'somebody else'", "its principal"),
        (
            "UPDATE changes SET expires_at = '2099-01-01T00:00:00Z'",
            "its principal, idempotency key, expiry, end, redaction or plan",
        ),
    ] {
        let verdict = tamper_and_verify(&data, sql);
        assert!(verdict.contains("does not hold") && verdict.contains(part), "{sql}: {verdict}");
    }
}

#[test]
fn older_stores_records_are_added_once() {
    // The store as left by versions whose trail had neither.
    let home = tempfile::tempdir().unwrap();
    let data = home.path().join("data");
    std::fs::create_dir(&data).unwrap();
    let conn = rusqlite::Connection::open(data.join("countersign.db")).unwrap();
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../src/store/src/sqlite/migrations");
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let at = files.iter().position(|file| file.to_str().unwrap().contains("trail_covers")).unwrap();
    for file in &files[..at] {
        conn.execute_batch(&std::fs::read_to_string(file).unwrap()).unwrap();
    }
    conn.execute_batch(&format!(
        "PRAGMA application_id = {}; PRAGMA user_version = {at};
         INSERT INTO api_keys (id, name, role, hash, created_at)
             VALUES ('key_old', 'alice', 'reviewer', zeroblob(32), '2026-01-01T00:00:00Z');
         INSERT INTO pinned_servers VALUES ('fs');
         INSERT INTO tool_pins (server, tool, seen) VALUES ('fs', 'fs__read', 'sha256:1');",
        0x4353_474e
    ))
    .unwrap();
    drop(conn);
    let (code, verdict) = verify(&data);
    assert!(
        code == Some(0) && verdict.contains("2 of these keys, definitions, rules and policies are older than"),
        "{verdict}"
    );
    // The second start finds nothing to record.
    let (status, home) = Gateway::on_home(home, &Options::default()).stop();
    assert!(status.success());
    let gateway = Gateway::on_home(home, &Options::default());
    let (_, audit) = gateway.api("GET", "/api/audit", None);
    let entries = audit["entries"].as_array().unwrap();
    let anchors = entries.iter().filter(|entry| entry["event"] == "records_anchored").count();
    assert_eq!(anchors, 1, "{audit}");
    let (status, home) = gateway.stop();
    assert!(status.success());
    let data = home.path().join("data");
    let (code, verdict) = verify(&data);
    assert!(code == Some(0) && !verdict.contains("are older than"), "{verdict}");
    for sql in [
        "UPDATE api_keys SET role = 'admin' WHERE id = 'key_old'",
        "UPDATE tool_pins SET accepted = seen, accepted_by = 'alice', accepted_at = '2026-01-01T00:00:00Z'",
    ] {
        let verdict = tamper_and_verify(&data, sql);
        assert!(verdict.contains("does not match audit entry 1"), "{sql}: {verdict}");
    }
}

#[test]
fn trail_export_escapes_control_characters_on_terminals() {
    let gateway = Gateway::start();
    let id = gateway.propose("Painted");
    // The bytes that clear a screen, in a form that JSON does not escape.
    let (status, body) = gateway.try_decide(&id, "reject", "no \u{9b}2J\u{202e} thanks");
    assert_eq!(status, 200, "{body}");
    let data = gateway.data();
    for format in ["jsonl", "csv"] {
        let arguments = ["audit", "export", "--format", format, "--data", data.to_str().unwrap()];
        let (code, piped, _) = support::run(&arguments);
        assert!(code == Some(0) && piped.contains("no \u{9b}2J\u{202e} thanks"), "{format}: a file is exact");
        // With the usual width, too narrow for any layout, and without a known width.
        for columns in [80, 10, 0] {
            let mut command = support::command(&[]);
            command.args(arguments).current_dir("/");
            let mut terminal = support::pty::Pty::start(&command, columns, 24);
            assert!(terminal.wait_for_exit().success(), "{format} {columns}");
            let screen = eventually("it is shown", || Some(terminal.raw()).filter(|screen| screen.contains("thanks")));
            assert!(!screen.contains(['\u{9b}', '\u{202e}', '\u{1b}']), "{format} {columns}: {screen:?}");
        }
    }
}
