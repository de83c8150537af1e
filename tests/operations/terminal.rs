//! Tests of the terminal against the real gateway: an agent proposes; a person inspects, decides and verifies.

use std::{
    io::{Read, Write},
    net::TcpStream,
    process::{Child, Stdio},
    time::Duration,
};

use rustix::process::Signal;
use serde_json::{Value, json};
use support::cli::{Home, Lines, RunResult, object_in, signal, wait_until};
use support::pty::Pty;

struct Gateway {
    home: Home,
    child: Child,
    key: String,
}

impl Gateway {
    fn start() -> Self {
        let home = Home::new().with_var("COUNTERSIGN_LISTEN", "127.0.0.1:0");
        let child = home.command(&["serve"]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        wait_until("the gateway listens", || home.gateway_pid().is_some());
        let key = home.run(&["keys", "create", "--role", "reviewer", "--name", "alice"]).ends(0).stdout();
        Self { home, child, key: key.trim().to_owned() }
    }

    fn changes(&self, arguments: &[&str]) -> RunResult {
        self.home.run_with(&[("COUNTERSIGN_KEY", &self.key)], &[&["changes"], arguments].concat())
    }

    /// Calls a tool as the local agent, over the plain HTTP endpoint.
    fn call(&self, tool: &str, arguments: &Value) -> Value {
        object_in(&self.home.ask("POST", &format!("/tools/{tool}"), None, &arguments.to_string()).1)
    }

    /// Creates a project.
    fn project(&self) -> String {
        let listed = self.call("list_projects", &json!({}));
        listed["structuredContent"]["projects"][0]["id"].as_str().unwrap_or_else(|| panic!("{listed}")).to_owned()
    }

    /// Proposes a change and returns its id.
    fn propose(&self, title: &str) -> String {
        let answer = self.call("create_issue", &json!({"projectId": self.project(), "title": title, "type": "Story"}));
        let id = answer["structuredContent"]["changeId"].as_str();
        id.unwrap_or_else(|| panic!("{answer}")).to_owned()
    }
}

impl Gateway {
    /// Opens the full-screen inbox in a new terminal.
    fn inbox(&self, key: &str, vars: &[(&str, &str)], columns: u16, rows: u16) -> Pty {
        let mut command = self.home.command(&["changes", "watch"]);
        command.env("COUNTERSIGN_KEY", key).envs(vars.iter().copied());
        Pty::start(&command, columns, rows)
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        signal(i32::try_from(self.child.id()).unwrap(), Signal::TERM);
        let _ = self.child.wait();
    }
}

#[test]
fn proposal_is_decided_in_the_terminal() {
    let gateway = Gateway::start();
    gateway.changes(&["list"]).ends(0).complains(&["You're all caught up"]);
    let mut watch = {
        let mut command = gateway.home.command(&["changes", "watch", "--json", "--since", "0"]);
        command.env("COUNTERSIGN_KEY", &gateway.key);
        Lines::spawn(command)
    };
    let first = gateway.propose("First \u{202e}story");
    let event: Value = serde_json::from_str(&watch.line()).unwrap();
    assert_eq!(
        (event["type"].as_str(), event["change"]["id"].as_str()),
        (Some("change.created"), Some(first.as_str()))
    );

    gateway.changes(&["list"]).ends(0).says(&[&first, "pending", "local-agent", "Create Story", r"\u{202e}"]);
    let shown = gateway.changes(&["show", &first]).ends(0).says(&["version 1", "+ First", "create_issue", "Arguments"]);
    assert!(!shown.stdout().contains('\u{202e}'));
    gateway.changes(&["approve", &first, "--version", "9"]).ends(4);
    gateway.changes(&["approve", &first, "--comment", "looks right"]).ends(0).says(&["Approved"]);
    // It runs by itself, and the feed reports it.
    let mut kinds = Vec::new();
    while kinds.last().map(String::as_str) != Some("change.applied") {
        let event: Value = serde_json::from_str(&watch.line()).unwrap();
        kinds.push(event["type"].as_str().unwrap().to_owned());
    }
    kinds.retain(|kind| kind.starts_with("change."));
    assert_eq!(kinds, ["change.approved", "change.executing", "change.applied"]);
    gateway.changes(&["show", &first]).ends(0).says(&["applied", "approved by alice", "looks right", "Result"]);
    gateway.changes(&["approve", &first]).ends(4).complains(&["the change is applied"]);

    let second = gateway.propose("Second story");
    gateway.changes(&["reject", &second, "--comment", "not now"]).ends(0).says(&["Rejected."]);
    gateway.changes(&["list", "--status", "rejected"]).ends(0).says(&[&second]);
    let all = gateway.changes(&["list", "--status", "all", "--json"]).ends(0).stdout();
    let all: Value = serde_json::from_str(&all).unwrap();
    assert_eq!(all["changes"].as_array().unwrap().len(), 2);
    gateway.changes(&["show", "chg_nope"]).ends(3);
    signal(watch.pid(), Signal::INT);
    assert_eq!(watch.finish().0, 0);

    // The audit is verified beside the running gateway, and the head is found again later.
    let head = gateway.home.run(&["audit", "verify"]).ends(0).stdout();
    assert!(!head.starts_with("0:"));
    gateway.propose("Third story");
    gateway.home.run(&["audit", "verify", "--head", head.trim()]).ends(0).complains(&["contains the given head"]);
}

#[test]
fn roles_are_kept_apart() {
    let gateway = Gateway::start();
    let id = gateway.propose("A story");
    let key = |role: &str| {
        let key = gateway.home.run(&["keys", "create", "--role", role, "--name", role]).ends(0).stdout();
        key.trim().to_owned()
    };
    let with = |key: &str, arguments: &[&str]| {
        gateway.home.run_with(&[("COUNTERSIGN_KEY", key)], &[&["changes"], arguments].concat())
    };
    let (agent, viewer) = (key("agent"), key("viewer"));
    with(&agent, &["list"]).ends(5);
    with(&viewer, &["show", &id]).ends(0);
    with(&viewer, &["approve", &id]).ends(5);
    with("csk_wrong", &["list"]).ends(5);
    with(&gateway.key, &["approve", &id]).ends(0);
}

#[test]
fn sign_in_link_works_once() {
    let gateway = Gateway::start();
    let link = gateway.home.run(&["open", "--print"]).ends(0).stdout();
    let (url, code) = link.trim().split_once("/#code=").unwrap();
    let address = url.strip_prefix("http://").unwrap();
    let sign_in = || {
        let body = json!({ "code": code }).to_string();
        let mut stream = TcpStream::connect(address).unwrap();
        write!(
            stream,
            "POST /api/sign-in HTTP/1.1\r\nhost: {address}\r\norigin: {url}\r\ncontent-type: application/json\r\n\
             content-length: {}\r\nconnection: close\r\n\r\n{body}",
            body.len()
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    let answer = sign_in();
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("\"reviewer\""), "{answer}");
    assert!(sign_in().starts_with("HTTP/1.1 401"), "a code works once");
}

/// Checks that the terminal is restored, however the inbox ended.
#[track_caller]
fn assert_terminal_restored(pty: &Pty) {
    // Its last output may still be on its way.
    for (back, taken) in
        [("\u{1b}[?1049l", "\u{1b}[?1049h"), ("\u{1b}[?25h", "\u{1b}[?25l"), ("\u{1b}[?2004l", "\u{1b}[?2004h")]
    {
        wait_until(back, || {
            let raw = pty.raw();
            raw.contains(taken) && raw.rfind(back) > raw.rfind(taken)
        });
    }
    assert!(pty.is_cooked(), "lines are edited");
}

#[test]
fn inbox_decides_changes() {
    let gateway = Gateway::start();
    let mut inbox = gateway.inbox(&gateway.key, &[], 100, 60);
    inbox.wait_for_text("pending 0");
    inbox.wait_for_text("live");
    assert!(!inbox.is_cooked());
    // A proposal appears by itself, and its hidden characters do not reach the terminal.
    let first = gateway.propose("First \u{202e}\u{1b}[7mstory");
    inbox.wait_for_text("pending 1");
    inbox.wait_for_text(r"First \u{202e}\u{1b}[7mstory");
    inbox.keys("a");
    inbox.wait_for_text("This is what it would do.");
    // Until it is fetched, the same key only requests it again.
    inbox.wait_for_text("0 of 1 approval");
    inbox.keys("a");
    inbox.wait_for_text("applied  CREATE");
    gateway.changes(&["show", &first]).ends(0).says(&["applied", "approved by alice"]);

    let second = gateway.propose("Second story");
    inbox.keys("q");
    inbox.wait_for_text("Second story");
    inbox.keys("\r");
    inbox.wait_for_text("0 of 1 approval");
    inbox.keys("r");
    inbox.wait_for_text("Why rejected");
    inbox.keys("not now\r");
    inbox.wait_for_text("Rejected; the change is rejected.");
    gateway.changes(&["show", &second]).ends(0).says(&["rejected", "not now"]);

    // A small window works, too, and a stopped inbox redraws itself.
    inbox.keys("q");
    inbox.wait_for_text("You're all caught up");
    inbox.resize(40, 10);
    inbox.wait_for_text("unknown 0 …");
    let before = inbox.raw().matches("\u{1b}[?1049h").count();
    inbox.keys("\u{1a}");
    support::eventually("it draws itself again", || {
        (inbox.raw().matches("\u{1b}[?1049h").count() > before).then_some(())
    });
    // A key that arrives while the keyboard is taken over again may be read with the next one only.
    support::eventually("the help opens", || {
        inbox.keys("?");
        inbox.shows_within(Duration::from_secs(2), "any key closes").then_some(())
    });
    inbox.keys(" q");
    assert!(inbox.wait_for_exit().success());
    assert_terminal_restored(&inbox);
    assert!(!inbox.raw().contains('\u{202e}') && !inbox.raw().contains("\u{1b}[7mstory"));
}

#[test]
fn inbox_is_updated_while_keys_are_pressed() {
    let gateway = Gateway::start();
    let mut inbox = gateway.inbox(&gateway.key, &[], 100, 24);
    inbox.wait_for_text("You're all caught up");
    inbox.wait_for_text("● live");
    let is_updated = std::thread::scope(|scope| {
        scope.spawn(|| gateway.propose("A story"));
        (0..1200).any(|_| {
            inbox.keys("z");
            inbox.shows_within(Duration::from_millis(50), "A story")
        })
    });
    assert!(is_updated, "{}", inbox.raw());
}

#[test]
fn inbox_stops_waiting_after_a_refused_bulk_decision() {
    let gateway = Gateway::start();
    gateway.propose("A story");
    let mut inbox = gateway.inbox(&gateway.key, &[], 120, 24);
    inbox.wait_for_text("A story");
    inbox.wait_for_text("● live");
    inbox.keys("x");
    inbox.wait_for_text("selected 1");
    signal(i32::try_from(gateway.child.id()).unwrap(), Signal::KILL);
    inbox.wait_for_text("not connected");
    inbox.keys("r");
    inbox.wait_for_text("Comment for 1 x rejection");
    inbox.keys("\r");
    inbox.wait_for_screen("nothing is awaited", |screen| {
        // The foot line says that the gateway does not answer.
        let head = screen.lines().next().unwrap_or_default();
        screen.contains("gateway ") && head.contains("alice (reviewer)") && !head.contains('…')
    });
}

#[test]
fn arguments_are_edited_in_the_users_editor() {
    let gateway = Gateway::start();
    let id = gateway.propose("A stroy");
    let mut inbox = gateway.inbox(&gateway.key, &[("EDITOR", "sed -i s/stroy/story/")], 100, 60);
    inbox.wait_for_text("A stroy");
    inbox.keys("\r");
    inbox.wait_for_text("0 of 1 approval");
    inbox.keys("e");
    inbox.wait_for_text("Comment for the edit:");
    inbox.keys("a typo\r");
    inbox.wait_for_text("Edited and previewed again");
    inbox.wait_for_text("+ A story");
    inbox.wait_for_text("as the agent proposed them");
    inbox.keys("a");
    inbox.wait_for_text("applied  CREATE");
    let shown = gateway.changes(&["show", &id, "--json"]).ends(0).stdout();
    let shown: Value = serde_json::from_str(&shown).unwrap();
    assert_eq!((&shown["arguments"]["title"], &shown["state"]), (&json!("A story"), &json!("applied")));
    assert_eq!(shown["edits"][0]["comment"], "a typo");
    // No draft remains.
    inbox.keys("\u{3}");
    assert!(inbox.wait_for_exit().success());
    assert_terminal_restored(&inbox);
}

#[test]
fn terminal_is_restored_however_the_inbox_ends() {
    let gateway = Gateway::start();
    gateway.propose("A story");
    for end in [Signal::TERM, Signal::HUP, Signal::INT] {
        let mut inbox = gateway.inbox(&gateway.key, &[("NO_COLOR", "1"), ("LANG", "C")], 80, 24);
        inbox.wait_for_text("live  pending 1");
        signal(i32::try_from(inbox.child.id()).unwrap(), end);
        assert!(inbox.wait_for_exit().success());
        assert_terminal_restored(&inbox);
        let raw = inbox.raw();
        assert!(raw.is_ascii(), "no UTF-8 where the locale has none");
        assert!(!raw.contains("\u{1b}[38;") && !raw.contains("\u{1b}[3"), "no colours: {raw:?}");
    }
    // A viewer sees the inbox and cannot act.
    let viewer = gateway.home.run(&["keys", "create", "--role", "viewer", "--name", "vera"]).ends(0).stdout();
    let mut inbox = gateway.inbox(viewer.trim(), &[], 80, 24);
    inbox.wait_for_text("vera (viewer)");
    inbox.wait_for_text("A story");
    inbox.keys("a");
    inbox.wait_for_text("A viewer cannot decide");
    inbox.keys("q");
    assert!(inbox.wait_for_exit().success());
    // A key without access is refused before the screen is taken over.
    let mut inbox = gateway.inbox("csk_wrong", &[], 80, 24);
    assert_eq!(inbox.wait_for_exit().code(), Some(5));
    assert!(!inbox.raw().contains("?1049h"));
}
