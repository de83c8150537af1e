//! Tests of a new user's first hours with the real program: servers that do not start, tools without hints, failing
//! previews, decisions in the terminal, and the program's first output.

use std::{
    path::PathBuf,
    process::{Child, Stdio},
};

use rustix::process::Signal;
use serde_json::{Value, json};
use support::cli::{Home, Lines, RunResult, object_in, signal, wait_until};
use support::{eventually, pty::Pty};

const SERVER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/operations/first_hours/server.py");

/// A server whose tool `save` has a failing preview, with rules for some of its tools.
const CONFIG: &str = r#"
listen: 127.0.0.1:0
mcpServers:
  fs:
    command: python3
    args: [SERVER, LEDGER]
    previews:
      - git
      - save: { before: { tool: unreadable, arguments: { path: arguments.path } }, after: arguments.content }
policy:
  rules:
    - { tools: "fs__unreadable", then: allow }
    - { tools: "fs__twice", then: review, quorum: 2 }
    - { tools: "fs__later", then: review, undo_for: 1h }
"#;

struct Gateway {
    home: Home,
    child: Child,
    key: String,
    ledger: PathBuf,
}

impl Gateway {
    fn start() -> Self {
        Self::with_config(CONFIG)
    }

    fn with_config(config: &str) -> Self {
        let home = Home::new();
        let ledger = home.path().join("ledger");
        let config = config.replace("SERVER", SERVER).replace("LEDGER", ledger.to_str().unwrap());
        let file = home.write("countersign.yaml", &config);
        let home = home.with_var("COUNTERSIGN_CONFIG", file.to_str().unwrap());
        let child = serve(&home);
        let key = home.run(&["keys", "create", "--role", "reviewer", "--name", "alice"]).ends(0).stdout();
        Self { home, child, key: key.trim().to_owned(), ledger }
    }

    /// Waits until the server's tools are listed.
    fn wait_until_ready(self) -> Self {
        wait_until("the server is connected", || self.run(&["servers", "show", "fs"]).stdout().contains("fs__note"));
        self
    }

    /// Ends the gateway and starts it again.
    fn restart(&mut self) {
        self.end();
        self.child = serve(&self.home);
    }

    fn end(&mut self) {
        signal(i32::try_from(self.child.id()).unwrap(), Signal::TERM);
        let _ = self.child.wait();
    }

    /// Runs a command as alice, without a terminal.
    fn run(&self, arguments: &[&str]) -> RunResult {
        self.home.run_with(&[("COUNTERSIGN_KEY", &self.key)], arguments)
    }

    fn key(&self, role: &str, name: &str) -> String {
        self.home.run(&["keys", "create", "--role", role, "--name", name]).ends(0).stdout().trim().to_owned()
    }

    /// Sends a request to the gateway; returns head and body.
    fn ask(&self, method: &str, path: &str, body: &str) -> (String, String) {
        self.home.ask(method, path, Some(&self.key), body)
    }

    fn api(&self, path: &str) -> Value {
        let (head, body) = self.ask("GET", path, "");
        assert!(head.starts_with("HTTP/1.1 200"), "{head}\n{body}");
        object_in(&body)
    }

    /// Calls a tool as the local agent; returns the id of the change, if the call became one.
    fn call(&self, tool: &str, arguments: &Value) -> Option<String> {
        let (head, body) = self.home.ask("POST", &format!("/tools/{tool}"), None, &arguments.to_string());
        if head.starts_with("HTTP/1.1 200") {
            return None;
        }
        assert!(head.starts_with("HTTP/1.1 202"), "{head}\n{body}");
        let at = body.find("chg_").unwrap();
        Some(body[at..].chars().take_while(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-')).collect())
    }

    fn propose(&self, tool: &str, arguments: &Value) -> String {
        self.call(tool, arguments).unwrap_or_else(|| panic!("{tool} ran"))
    }

    fn state(&self, id: &str) -> String {
        self.api(&format!("/api/changes/{id}"))["state"].as_str().unwrap().to_owned()
    }

    /// Returns the tools that were really called.
    fn called_tools(&self) -> Vec<String> {
        std::fs::read_to_string(&self.ledger).unwrap_or_default().lines().map(str::to_owned).collect()
    }
}

fn serve(home: &Home) -> Child {
    let child = home.command(&["serve"]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let pid = i32::try_from(child.id()).unwrap();
    wait_until("the gateway listens", || home.gateway_pid() == Some(pid));
    child
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.end();
    }
}

#[test]
fn failed_preview_needs_an_explicit_approval() {
    let gateway = Gateway::start().wait_until_ready();
    let id = gateway.propose("fs__save", &json!({ "path": "/a", "content": "new" }));
    let details = gateway.run(&["changes", "show", &id]).ends(0);
    details.says(&["The preview failed, so only the arguments are shown: ", "the disk is gone"]);
    gateway
        .run(&["changes", "approve", &id])
        .ends(1)
        .complains(&["preview of this change failed", "--without-preview"]);
    gateway.run(&["changes", "approve", &id, "--yes"]).ends(1).complains(&["--without-preview"]);
    gateway.run(&["changes", "approve", &id, "--without-preview"]).ends(2).complains(&["needs --yes"]);
    assert_eq!(gateway.state(&id), "pending");
    gateway.run(&["changes", "approve", &id, "--without-preview", "--yes"]).ends(0).says(&["Approved"]);
    wait_until("it is applied", || gateway.state(&id) == "applied");
    assert!(gateway.called_tools().contains(&"save".to_owned()));

    // The inbox has a separate key for it, which asks for confirmation.
    let second = gateway.propose("fs__save", &json!({ "path": "/b", "content": "new" }));
    let mut command = gateway.home.command(&["changes", "watch"]);
    command.env("COUNTERSIGN_KEY", &gateway.key);
    let mut inbox = Pty::start(&command, 110, 30);
    inbox.wait_for_text("pending 1");
    inbox.wait_for_screen("the change", |screen| screen.contains("CALL"));
    inbox.keys("\r");
    inbox.wait_for_text("The preview failed, so only the arguments are shown");
    inbox.keys("a");
    inbox.wait_for_text("W approves without preview");
    assert_eq!(gateway.state(&second), "pending");
    inbox.keys("W");
    inbox.wait_for_text("Approve without preview? y/N");
    inbox.keys("n");
    inbox.keys("W");
    inbox.keys("y");
    wait_until("it is applied", || gateway.state(&second) == "applied");
    inbox.keys("qq");
    assert!(inbox.wait_for_exit().success());
}

#[test]
fn down_server_shows_error_and_last_output() {
    let down = "listen: 127.0.0.1:0\nmcpServers:\n  db:\n    command: sh\n    args: [-c, 'echo opening >&2; echo \"no such database\u{202e}\" >&2; exit 3']\n";
    let gateway = Gateway::with_config(down);
    wait_until("it has been started again", || {
        let servers = gateway.api("/api/servers");
        let db = servers["servers"].as_array().unwrap().iter().find(|s| s["name"] == "db").cloned();
        db.is_some_and(|db| db["restarts"].as_u64() > Some(1) && db["status"] == "down")
    });
    // It is down except while it is started.
    let listed = eventually("it is listed as down", || {
        Some(gateway.run(&["servers"]).ends(0)).filter(|listed| listed.stdout().contains(" down "))
    });
    let listed = listed.says(&["RESTARTS", "! db: ", "status 3", "! db: stderr: no such database\\u{202e}"]);
    let row = listed.stdout().lines().find(|line| line.starts_with("db ")).unwrap().to_owned();
    assert!(row.split_whitespace().any(|cell| cell.parse::<u64>().is_ok_and(|restarts| restarts > 1)), "{row}");
    let (_, metrics) = gateway.ask("GET", "/metrics", "");
    let restarts =
        metrics.lines().find(|line| line.starts_with("countersign_upstream_restarts_total{upstream=\"db\"}"));
    assert!(restarts.is_some_and(|line| !line.ends_with(" 0") && !line.ends_with(" 1")), "{restarts:?}");
}

#[test]
fn allowed_tool_runs_unreviewed_until_revoked() {
    let mut gateway = Gateway::start().wait_until_ready();
    let lookup = json!({ "query": "x" });
    let accepted = gateway.run(&["servers", "accept", "fs", "--tool", "fs__lookup"]).ends(0);
    accepted.says(&["Accepted 1 definition.", "fs__lookup is still reviewed", "countersign servers allow fs TOOL"]);
    gateway
        .run(&["servers", "accept", "fs", "--tool", "fs__peek"])
        .ends(0)
        .says(&["fs__peek now runs without review."]);
    let before = gateway.propose("fs__lookup", &lookup);
    gateway.run(&["changes", "reject", &before]).ends(0);

    let allow = ["servers", "allow", "fs", "fs__lookup", "--reason", "it only looks things up"];
    let viewer = gateway.key("viewer", "vic");
    gateway.home.run_with(&[("COUNTERSIGN_KEY", &viewer)], &allow).ends(5);
    gateway
        .run(&["servers", "allow", "fs", "fs__twice", "--reason", "x"])
        .ends(5)
        .complains(&["configuration decides"]);
    gateway.run(&["servers", "allow", "fs", "fs__lookup"]).ends(2).complains(&["--reason"]);
    gateway.run(&allow).ends(0).says(&["fs__lookup now runs without review.", "Your own calls are still reviewed"]);
    assert_eq!(gateway.call("fs__lookup", &lookup), None);
    gateway
        .run(&["servers", "show", "fs"])
        .ends(0)
        .says(&["alice lets it run without review: it only looks things up"]);
    let trail = gateway.home.run(&["audit", "export"]).ends(0);
    trail.says(&["standing_rule_created", "it only looks things up"]);

    // It is durable, bound to this definition, and can be revoked.
    gateway.restart();
    let gateway = gateway.wait_until_ready();
    assert_eq!(gateway.call("fs__lookup", &lookup), None);
    std::fs::write(gateway.home.path().join("ledger.words"), "Looks things up, and sends them away").unwrap();
    let mut gateway = gateway;
    gateway.restart();
    let gateway = gateway.wait_until_ready();
    gateway.propose("fs__lookup", &lookup);
    std::fs::remove_file(gateway.home.path().join("ledger.words")).unwrap();
    let mut gateway = gateway;
    gateway.restart();
    let gateway = gateway.wait_until_ready();
    assert_eq!(gateway.call("fs__lookup", &lookup), None);
    let rules = gateway.run(&["rules"]).ends(0).says(&["fs / lookup, by anybody", "any arguments", "the tool itself"]);
    let rule = rules.stdout().split_whitespace().next().unwrap().to_owned();
    gateway.run(&["rules", "revoke", &rule, "--comment", "not any more"]).ends(0);
    gateway.propose("fs__lookup", &json!({ "query": "y" }));
    gateway.home.run(&["audit", "verify"]).ends(0);
}

#[test]
fn approval_reports_its_outcome() {
    let gateway = Gateway::start().wait_until_ready();
    let propose = |tool: &str| gateway.propose(tool, &json!({ "title": tool }));
    let approve = |id: &str| gateway.run(&["changes", "approve", id]).ends(0);
    // The program waits some seconds for the outcome. If a busy machine needs longer, another change is approved.
    let approve_until_reported = |tool: &str, more: &[&str]| {
        eventually("the outcome is reported", || {
            let id = propose(tool);
            let approve = ["changes", "approve", id.as_str()];
            let result = gateway.run(&[&approve[..], more].concat());
            let text = result.stdout();
            let unfinished = ["it is still running", r#""state":"approved""#, r#""state":"executing""#];
            (!unfinished.iter().any(|part| text.contains(part))).then_some(result)
        })
    };
    let applied = approve_until_reported("fs__note", &[]).ends(0);
    applied.says(&["Approved and applied.", "Result", "done: note"]);
    let failed = approve_until_reported("fs__fails", &[]).ends(1);
    failed.says(&["Approved, but it failed.", "there is no room left", "none at all"]);
    approve_until_reported("fs__fails", &["--json"]).ends(1).says(&[r#""state":"failed""#]);
    approve(&propose("fs__twice")).says(&["it waits for 1 more approval."]);
    approve(&propose("fs__later")).says(&["Approved; it runs at ", "changes undo chg_"]);
    let json = approve_until_reported("fs__note", &["--json"]).ends(0).stdout();
    assert_eq!(serde_json::from_str::<Value>(&json).unwrap()["state"], "applied");
    let slow = propose("fs__hangs");
    approve(&slow).says(&["it is still running", &format!("countersign changes show {slow}")]);
    std::fs::write(gateway.home.path().join("ledger.release"), "").unwrap();
    wait_until("it is applied", || gateway.state(&slow) == "applied");
}

#[test]
fn bulk_decisions_need_yes_without_a_terminal() {
    let gateway = Gateway::start().wait_until_ready();
    let propose = || gateway.propose("fs__note", &json!({ "title": "a" }));
    let (first, second, third) = (propose(), propose(), propose());
    for word in ["approve", "reject"] {
        gateway.run(&["changes", word, &first, &second]).ends(2).complains(&["needs --yes"]);
    }
    assert_eq!((gateway.state(&first).as_str(), gateway.state(&second).as_str()), ("pending", "pending"));
    gateway.run(&["changes", "approve", &first, &second, "--yes"]).ends(0);
    wait_until("both are applied", || gateway.state(&first) == "applied" && gateway.state(&second) == "applied");
    // A single decision is as scriptable as before.
    gateway.run(&["changes", "reject", &third]).ends(0).says(&["Rejected."]);

    gateway.run(&["servers", "accept", "fs", "--all-reads"]).ends(2).complains(&["--all-reads needs --yes"]);
    assert_eq!(gateway.api("/api/servers/fs")["tools"][0]["verdict"], "review");
    let several = ["servers", "allow", "fs", "fs__note", "fs__fails", "--reason", "x"];
    gateway.run(&several).ends(2).complains(&["needs --yes"]);
    let accepted = gateway.run(&["servers", "accept", "fs", "--all-reads", "--yes"]).ends(0);
    accepted.says(&["Accepted 2 definitions.", "fs__peek, fs__glance now run without review."]);
}

#[test]
fn known_reads_with_another_definition_are_not_covered() {
    // The configuration names the recipes of the git server, whose tools have other definitions here.
    let gateway = Gateway::start().wait_until_ready();
    let uncovered = "fs__git_status, fs__git_diff_staged are not covered, because their definitions differ";
    gateway.run(&["servers", "show", "fs"]).ends(0).says(&[uncovered]);
    gateway.run(&["servers", "accept", "fs", "--known-reads"]).ends(2).complains(&["--known-reads needs --yes"]);
    let accept = ["servers", "accept", "fs", "--known-reads", "--yes"];
    gateway.run(&accept).ends(1).complains(&[uncovered, "mcp-server-git", "Nothing was accepted."]);
    gateway.propose("fs__git_status", &json!({}));
}

#[test]
fn hints_name_no_writing_tool() {
    let gateway = Gateway::start().wait_until_ready();
    let tools = gateway.api("/api/servers/fs")["tools"].clone();
    let names = tools.as_array().unwrap().iter().map(|tool| tool["name"].as_str().unwrap()).collect::<Vec<_>>();
    let show = || {
        let shown = gateway.run(&["servers", "show", "fs"]).ends(0);
        shown.stderr()
    };
    let before = show();
    assert!(before.contains("servers accept fs --all-reads") && before.contains("servers allow fs TOOL"), "{before}");
    gateway.run(&["servers", "accept", "fs", "--all-reads", "--yes"]).ends(0);
    let after = show();
    assert!(after.contains("servers allow fs TOOL"), "{after}");
    let accepted = gateway.run(&["servers", "accept", "fs", "fs__note"]).ends(0).stdout();
    let (_, hint) = accepted.split_once("`countersign").unwrap();
    for hint_text in [before.as_str(), &after, hint] {
        assert!(!names.iter().any(|name| hint_text.contains(name)), "{hint_text}");
    }
}

#[test]
fn patterns_select_and_list_tools() {
    let gateway = Gateway::start().wait_until_ready();
    let by_pattern = ["servers", "accept", "fs", "fs__git_*", "fs__peek"];
    gateway.run(&by_pattern).ends(2).complains(&["a pattern matches needs --yes"]);
    gateway.run(&[&by_pattern[..], &["--yes"]].concat()).ends(0).says(&[
        "4 tools:\n  fs__peek             says that it only reads\n  fs__git_commit       may write\n",
        "Accepted 4 definitions.",
    ]);
    // An accepted tool is left out of patterns, but not if it is named.
    gateway.run(&["servers", "accept", "fs", "fs__git_*", "--yes"]).ends(0).complains(&["already accepted"]);
    gateway.run(&["servers", "accept", "fs", "fs__git_commit"]).ends(0).says(&["Accepted 1 definition."]);
    gateway
        .run(&["servers", "accept", "fs", "fs__x*", "--yes"])
        .ends(3)
        .complains(&["none of the server's tools matches"]);
    gateway.run(&["servers", "accept", "fs"]).ends(2);

    let allow = ["servers", "allow", "fs", "fs__{lookup,twice,git_s*}", "--reason", "they only look"];
    gateway.run(&allow).ends(2).complains(&["needs --yes"]);
    let allowed = gateway.run(&[&allow[..], &["--yes"]].concat()).ends(0);
    allowed
        .says(&["2 tools:\n", "fs__lookup, fs__git_status now run without review."])
        .complains(&["fs__twice is not"]);
    assert_eq!(gateway.call("fs__lookup", &json!({ "query": "x" })), None);
    gateway
        .run(&[&allow[..], &["--yes"]].concat())
        .ends(1)
        .complains(&["fs__lookup, fs__git_status run without review"]);
    gateway.run(&["servers", "revoke", "fs", "--tool", "fs__git_*"]).ends(0).says(&["Revoked."]);
    gateway.run(&["servers", "revoke", "fs", "--tool", "fs__git_*"]).ends(0).complains(&["None of the matching tools"]);
}

#[test]
fn connecting_server_is_waited_for() {
    let plain = "command: python3\n    args: [SERVER, LEDGER]";
    let gated =
        "command: sh\n    args: [-c, 'until [ -e LEDGER.gate ]; do sleep 0.05; done; exec python3 SERVER LEDGER']";
    assert!(CONFIG.contains(plain));
    let gateway = Gateway::with_config(&CONFIG.replace(plain, gated));
    gateway.run(&["servers", "show", "fs"]).ends(0).says(&["fs is not connected yet", "--wait"]);
    for arguments in [&["accept", "fs", "--all-reads", "--yes"][..], &["allow", "fs", "fs__lookup", "--reason", "x"]] {
        let ran = gateway.run(&[&["servers"], arguments].concat()).ends(69);
        ran.complains(&["fs is not connected yet", "--wait"]);
    }
    let mut command = gateway.home.command(&["servers", "accept", "fs", "--all-reads", "--yes", "--wait"]);
    let waiting = command.env("COUNTERSIGN_KEY", &gateway.key).stdout(Stdio::piped()).spawn().unwrap();
    std::fs::write(gateway.home.path().join("ledger.gate"), "").unwrap();
    let ended = waiting.wait_with_output().unwrap();
    let stdout = String::from_utf8(ended.stdout).unwrap();
    assert!(ended.status.success() && stdout.contains("Accepted 2 definitions."), "{stdout}");
    let shown = gateway.run(&["servers", "show", "fs", "--wait"]).ends(0);
    shown.says(&["stdio, handshake · up · sh -c 'until [", "fs__peek"]);
    gateway.run(&["servers"]).ends(0).says(&["COMMAND OR ADDRESS", "sh -c 'until ["]);
    let id = gateway.propose("fs__note", &json!({ "title": "a" }));
    gateway.run(&["changes", "show", &id]).ends(0).says(&["fs / note, sh -c 'until ["]);
}

#[test]
fn server_that_was_just_added_is_waited_for() {
    let gateway = Gateway::start();
    let ledger = gateway.ledger.with_extension("added");
    gateway.run(&["servers", "add", "added", "--", "python3", SERVER, ledger.to_str().unwrap()]).ends(0);
    gateway.run(&["servers", "show", "added", "--wait"]).ends(0).says(&["added__peek"]);
    gateway.run(&["servers", "show", "unknown", "--wait"]).ends(3).complains(&["there is no server of this name"]);
}

#[test]
fn since_means_the_same_everywhere() {
    let gateway = Gateway::start().wait_until_ready();
    let id = gateway.propose("fs__note", &json!({ "title": "a" }));
    for since in ["1h", "2 days", "2026-01-01", "2026-01-01T00:00:00Z"] {
        gateway.run(&["changes", "list", "--since", since]).ends(0).says(&[&id]);
        gateway.run(&["audit", "export", "--since", since]).ends(0).says(&[&id]);
        let mut command = gateway.home.command(&["changes", "watch", "--json", "--since", since]);
        command.env("COUNTERSIGN_KEY", &gateway.key);
        let mut watch = Lines::spawn(command);
        assert!(watch.line().contains(&id), "{since}");
        signal(watch.pid(), Signal::INT);
        assert_eq!(watch.finish().0, 0);
    }
    for until in ["1h", "2026-01-01"] {
        gateway.run(&["changes", "list", "--until", until]).ends(0).complains(&["No such changes."]);
        assert_eq!(gateway.run(&["audit", "export", "--until", until]).ends(0).stdout(), "");
    }
    for command in [&["changes", "list"][..], &["audit", "export"], &["changes", "watch"]] {
        gateway.run(&[command, &["--since", "yesterday"]].concat()).ends(2).complains(&["2h"]);
    }
    // Event numbers have a separate flag.
    let mut command = gateway.home.command(&["changes", "watch", "--json", "--after", "0"]);
    command.env("COUNTERSIGN_KEY", &gateway.key);
    let mut watch = Lines::spawn(command);
    assert!(watch.line().contains(&id));
    signal(watch.pid(), Signal::INT);
    assert_eq!(watch.finish().0, 0);
}

#[test]
fn call_without_preview_shows_arguments_once() {
    let gateway = Gateway::start().wait_until_ready();
    let arguments = json!({ "title": "Buy milk", "content": "two litres\nof it", "query": "n" });
    let id = gateway.propose("fs__note", &arguments);
    let change = gateway.api(&format!("/api/changes/{id}"));
    assert_eq!((&change["operation"], &change["summary"]), (&json!("CALL"), &json!("fs / note: Buy milk")));
    gateway.run(&["changes", "list"]).ends(0).says(&["CALL fs / note: Buy milk", "CLIENT"]);
    let shown = gateway.run(&["changes", "show", &id]).ends(0).stdout();
    assert_eq!(shown.matches("two litres").count(), 1, "{shown}");
    assert!(shown.contains("    content:\n      | two litres\n      | of it\n"), "{shown}");
    assert!(!shown.lines().any(|line| line.trim_start().starts_with("+ ")), "nothing looks added: {shown}");
    assert!(shown.contains("No preview is available for this tool") && shown.contains("Tool description"), "{shown}");

    // Arguments in the diff are not repeated.
    let projects = gateway.ask("POST", "/tools/list_projects", "{}").1;
    let at = projects.find("\"id\":\"").unwrap() + 6;
    let project: String = projects[at..].chars().take_while(|c| *c != '"').collect();
    let issue = json!({ "projectId": project, "title": "Say hello", "type": "Story" });
    let id = gateway.propose("create_issue", &issue);
    let shown = gateway.run(&["changes", "show", &id]).ends(0).stdout();
    let arguments = &shown[shown.find("  Arguments").unwrap()..];
    assert!(!arguments.contains("Say hello") && arguments.contains("title"), "{shown}");
    assert!(arguments.contains("as the diff shows") && arguments.contains(&project), "{shown}");

    // The recipe of git shows the message of a commit.
    let id =
        gateway.propose("fs__git_commit", &json!({ "repo_path": "/r", "message": "Fix the login\n\nIt was broken." }));
    let change = gateway.api(&format!("/api/changes/{id}"));
    assert_eq!(change["summary"], "Commit in /r: Fix the login …");
}

#[test]
fn start_up_takes_three_lines() {
    let home = Home::new();
    // A bare port is bound on this machine only.
    let mut terminal = Pty::start(&home.command(&["serve", "--listen", "0"]), 200, 40);
    terminal.wait_for_text("countersign serves");
    terminal.wait_for_text("/#code=csc_");
    terminal.wait_for_text("is watched");
    let url = home.gateway_file().unwrap()["url"].as_str().unwrap().to_owned();
    assert!(url.starts_with("http://127.0.0.1:"), "{url}");
    let output = terminal.raw();
    let lines: Vec<&str> = output.lines().filter(|line| !line.trim().is_empty()).collect();
    assert_eq!(lines.len(), 3, "{output}");
    assert!(output.contains("works once"), "{output}");
    signal(home.gateway_pid().unwrap(), Signal::TERM);
    assert!(terminal.wait_for_exit().success());
}

#[test]
fn help_is_wrapped_once() {
    let home = Home::new();
    for columns in ["80", "110"] {
        for command in [&[][..], &["changes"], &["servers"], &["rules"], &["stdio"], &["backup"], &["policy", "test"]] {
            let text = home.run_with(&[("COLUMNS", columns)], &[command, &["--help"]].concat()).ends(0).stdout();
            let width: usize = columns.parse().unwrap();
            let lines: Vec<&str> = text.lines().collect();
            for pair in lines.windows(2) {
                let (line, next) = (pair[0], pair[1]);
                assert!(line.chars().count() <= width, "{command:?} at {columns}: {line}");
                // A line continues only if the next word did not fit.
                let prose = |line: &str| line.starts_with(|c: char| c.is_alphanumeric() || c == '-' || c == '`');
                let heads = next.ends_with(':')
                    || next.starts_with("Usage")
                    || line.ends_with(':')
                    || line.starts_with("Usage");
                if prose(line) && prose(next) && !heads {
                    let word = next.split(' ').next().unwrap().chars().count();
                    assert!(line.chars().count() + 1 + word > width, "{command:?} at {columns}:\n{line}\n{next}");
                }
            }
        }
    }
}
