//! Tests of the commands as a user or a script runs them, against the real program and a fake REST endpoint.

use std::{
    os::unix::fs::PermissionsExt,
    process::{Command, Stdio},
    sync::atomic::{AtomicBool, Ordering},
};

use rustix::process::Signal;
use serde_json::{Value, json as value};
use support::cli::{Home, Lines, RunResult};
use support::fake::{FakeGateway, change, event_stream, json, problem};

#[test]
fn help_version_usage_and_completions() {
    let home = Home::new();
    home.run(&["--version"]).ends(0).says(&[concat!("countersign ", env!("CARGO_PKG_VERSION"))]);
    home.run(&["--help"]).ends(0).says(&["MCP gateway", "Examples:", "Exit codes:", "COUNTERSIGN_KEY", "completions"]);
    home.run(&["changes", "--help"]).ends(0).says(&["approve", "watch", "Examples:", "--url"]);
    home.run(&["stdio", "--help"]).ends(0).says(&["--standalone", "gateway.log"]);
    let hidden = home.run(&["serve", "--help"]).ends(0).stdout();
    assert!(!hidden.contains("--detached"));
    home.run(&["serve", "--lisen", "x"]).ends(2).complains(&["--listen"]);
    home.run(&["changes", "list", "--status", "odd"]).ends(2).complains(&["outcome_unknown"]);
    home.run(&["changes", "list", "--limit", "0"]).ends(2).complains(&["--limit"]);
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        home.run(&["completions", shell]).ends(0).says(&["countersign"]);
    }
}

/// Runs a command whose stdout nobody reads.
fn run_with_closed_stdout(mut command: Command) -> RunResult {
    let (reader, stdout) = std::io::pipe().unwrap();
    drop(reader);
    RunResult(command.stdout(stdout).output().unwrap())
}

#[test]
fn closed_output_is_not_a_failure() {
    let ended = run_with_closed_stdout(Home::new().command(&["config", "show"])).ends(0);
    assert_eq!(ended.stderr(), "");
}

#[test]
fn decisions_are_made_if_nobody_reads_stdout() {
    let fake = FakeGateway::start(|request, _| {
        let id = request.target.split('/').nth(3).unwrap_or_default();
        match (request.method.as_str(), id) {
            ("GET", id) => json("200 OK", &change(id, 1, "pending")),
            (_, "chg_stale") => json("200 OK", &change(id, 2, "stale")),
            (_, id) => json("200 OK", &change(id, 2, "rejected")),
        }
    });
    let home = Home::new();
    let decide = |arguments: &[&str]| {
        let mut command = home.command(&[&["changes", "--url", &fake.url], arguments, &["--yes"]].concat());
        command.envs([KEY]);
        run_with_closed_stdout(command)
    };
    decide(&["reject", "chg_1", "chg_2", "chg_3"]).ends(0);
    let decisions = fake.requests().into_iter().filter(|request| request.method == "POST");
    let expected = ["chg_1", "chg_2", "chg_3"].map(|id| format!("/api/changes/{id}/decision"));
    assert_eq!(decisions.map(|request| request.target).collect::<Vec<_>>(), expected);
    decide(&["approve", "chg_stale"]).ends(4);
}

#[test]
fn keys_are_printed_once_listed_and_revoked() {
    let home = Home::new();
    let created = home.run(&["keys", "create", "--role", "reviewer", "--name", "alice"]).ends(0);
    let created = created.complains(&["of alice, for COUNTERSIGN_KEY."]);
    let text = created.stdout();
    let key = text.strip_suffix('\n').unwrap();
    assert!(key.starts_with("csk_") && key.len() == 47 && !key.contains(char::is_whitespace), "{text:?}");
    // Only its hash is stored.
    let database = std::fs::read(home.data().join("countersign.db")).unwrap();
    let wal = std::fs::read(home.data().join("countersign.db-wal")).unwrap_or_default();
    for bytes in [&database, &wal] {
        assert!(!bytes.windows(key.len()).any(|w| w == key.as_bytes()));
    }
    let mode = std::fs::metadata(home.data()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);

    let listed = home.run(&["keys", "list", "--json"]).ends(0).stdout();
    let listed: Value = serde_json::from_str(&listed).unwrap();
    let entry = &listed["keys"][0];
    assert_eq!((entry["name"].as_str(), entry["role"].as_str()), (Some("alice"), Some("reviewer")));
    let id = entry["id"].as_str().unwrap();
    home.run(&["keys", "list"]).ends(0).says(&[id, "alice", "reviewer", "never", "active"]);
    home.run(&["keys", "revoke", id]).ends(0).says(&["is revoked"]);
    home.run(&["keys", "revoke", id]).ends(4).complains(&["revoked already"]);
    home.run(&["keys", "revoke", "key_nope"]).ends(3).complains(&["no key"]);
    home.run(&["keys", "list"]).ends(0).says(&["revoked 2"]);

    let other = home.path().join("other");
    let data = other.to_str().unwrap();
    let created = home.run(&["keys", "create", "--role", "agent", "--name", "ci", "--data", data]).ends(0);
    created.says(&["csk_"]).complains(&["of ci, for COUNTERSIGN_AGENT_KEY."]);
    assert!(other.join("countersign.db").exists() && other.join("identity.json").exists());
    home.run(&["keys", "create", "--role", "agent", "--name", "system"]).ends(2).complains(&["system"]);
    home.run(&["keys", "create", "--role", "king", "--name", "x"]).ends(2).complains(&["reviewer"]);
}

#[test]
fn person_is_revoked_by_any_name_that_the_gateway_shows() {
    let home = Home::new();
    let config = "public_url: https://gw.example\nauth: { tokens: [{ issuer: https://id.example }] }\n";
    let file = home.write("gateway.yaml", config);
    let run = |arguments: &[&str]| home.run(&[arguments, &["--config", file.to_str().unwrap()][..]].concat());
    let revoke = |name: &str| run(&["people", "revoke", name]);
    let subject = ["--subject", "https://id.example", "ada b"];
    run(&[&["keys", "create", "--role", "viewer", "--name", "ada-laptop"][..], &subject[..]].concat()).ends(0);
    let bob = ["--subject", "https://id.example", "bob"];
    run(&[&["keys", "create", "--role", "viewer", "--name", "bob-laptop"][..], &bob[..]].concat()).ends(0);
    for (name, problem) in [
        ("ada", "ISSUER#SUBJECT"),
        ("ada#laptop", "ISSUER#SUBJECT"),
        ("https://id.example#", "ISSUER#SUBJECT"),
        ("https://id.example#a#b#c", "ISSUER#SUBJECT"),
        ("https://id.example/#ada%20b", "write it as there: https://id.example"),
        ("https://ID.example#ada%20b", "write it as there: https://id.example"),
        ("https://id.example#ada b", "https://id.example#ada%20b"),
        ("https://id.example#ada%2520b%", "https://id.example#ada%2520b%25"),
    ] {
        revoke(name).ends(2).complains(&[problem]);
    }
    run(&["people", "list"]).ends(0).complains(&["Nobody has signed in"]);

    let revoked = revoke("https://id.example#ada%20b#claude").ends(0).complains(&["that of a client"]);
    let revoked = revoked.says(&["https://id.example#ada%20b is revoked", "keys revoked: 1"]);
    assert!(!revoked.stderr().contains("Nobody of this name"), "{}", revoked.stderr());
    revoke("https://id.example#eve").ends(0).complains(&["Nobody of this name", "in advance"]);
    let list = run(&["people", "list"]).ends(0).stdout();
    let names: Vec<&str> = list.lines().skip(1).filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(names, ["https://id.example#ada%20b", "https://id.example#eve"], "{list}");
    assert_eq!(list.matches("never").count(), 2, "{list}");

    home.write("gateway.yaml", &config.replace("id.example", "new.example"));
    revoke("https://id.example#carol").ends(2).complains(&["https://new.example"]);
    let known = revoke("https://id.example#bob").ends(0).says(&["keys revoked: 1"]);
    assert!(!known.stderr().contains("Nobody of this name"), "{}", known.stderr());

    let create = || run(&[&["keys", "create", "--role", "viewer", "--name", "dave-laptop"][..], &bob[..]].concat());
    home.write(
        "gateway.yaml",
        "auth: { oidc: { issuer: https://new.example, client_id: gw, client_secret: '${NOT_SET}' } }\n\
         mcpServers: { a: { command: x, env: { T: '${NOT_SET}' } } }\n",
    );
    revoke("https://id.example#dave").ends(2).complains(&["https://new.example"]);
    create().ends(2).complains(&["https://new.example"]);
    for (config, problem) in [
        ("auth: { tokens: [{ issuer: new.example }] }\n", "is not a URL"),
        ("auth: { oidc: { client_id: gw } }\n", "the issuer is missing"),
    ] {
        home.write("gateway.yaml", config);
        create().ends(78).complains(&[problem]);
        revoke("https://id.example#dave").ends(0).complains(&["could not be checked", problem]);
    }
}

#[test]
fn key_whose_secret_cannot_be_printed_is_revoked() {
    let home = Home::new();
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let mut create = home.command(&["keys", "create", "--role", "agent", "--name", "ci"]);
    let ended = RunResult(create.stdout(full).output().unwrap()).ends(1);
    ended.complains(&["output cannot be written", "so the new key key_", "was revoked"]);
    let create = home.command(&["keys", "create", "--role", "agent", "--name", "other"]);
    run_with_closed_stdout(create).ends(1).complains(&["so the new key key_", "was revoked"]);
    home.run(&["keys", "list"]).ends(0).says(&["ci", "revoked 2", "other"]);
}

#[test]
fn audit_trail_of_a_new_store_verifies() {
    let home = Home::new();
    home.run(&["audit", "verify"]).ends(69);
    home.run(&["keys", "create", "--role", "agent", "--name", "a"]).ends(0);
    // The key is the first that it tells of.
    let head = home.run(&["audit", "verify"]).ends(0).complains(&["1 entry, 0 changes, 1 key,"]).stdout();
    assert!(head.starts_with("1:") && head.len() == "1:\n".len() + 64, "{head}");
    home.run(&["audit", "verify", "--head", head.trim()]).ends(0);
    let beyond = format!("5:{}", "a".repeat(64));
    home.run(&["audit", "verify", "--head", &beyond])
        .ends(1)
        .complains(&["does not hold", "before the expected head 5"]);
    home.run(&["audit", "verify", "--head", "x"]).ends(2).complains(&["SEQ:HASH"]);
    let witness = home.data().join("audit.head");
    std::fs::write(&witness, "garbage").unwrap();
    home.run(&["audit", "verify"]).ends(0).complains(&["audit.head in the data directory cannot be read"]);
    std::fs::write(&witness, beyond).unwrap();
    home.run(&["audit", "verify"]).ends(1).complains(&["does not hold", "entry 5 was written"]);
}

#[test]
fn open_needs_a_gateway() {
    let home = Home::new();
    home.run(&["open"]).ends(69).complains(&["countersign serve"]);
    std::fs::create_dir_all(home.data()).unwrap();
    let nobody = support::DeadPort::new();
    let url = format!("http://{}", nobody.address);
    let stale = value!({"pid": 999_999_999, "version": "0", "url": url, "proof": format!("csp_{}", "0".repeat(43))});
    std::fs::write(home.data().join("gateway.json"), stale.to_string()).unwrap();
    home.run(&["open"]).ends(69).complains(&["does not answer"]);
    std::fs::remove_file(home.data().join("gateway.json")).unwrap();
}

#[test]
fn open_prints_a_link_with_a_code() {
    let home = Home::new().with_var("COUNTERSIGN_LISTEN", "127.0.0.1:0");
    let start = |home: &Home| {
        let gateway = home.command(&["serve"]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let pid = i32::try_from(gateway.id()).unwrap();
        support::cli::wait_until("the gateway listens", || home.gateway_pid() == Some(pid));
        gateway
    };
    let end = |mut gateway: std::process::Child| {
        support::cli::signal(i32::try_from(gateway.id()).unwrap(), Signal::TERM);
        gateway.wait().unwrap();
    };
    let gateway = start(&home);
    let url = home.gateway_file().unwrap()["url"].as_str().unwrap().to_owned();
    let first = home.run(&["open"]).ends(0).complains(&["works once"]).stdout();
    let second = home.run(&["open", "--print"]).ends(0).stdout();
    assert!(first.starts_with(&format!("{url}/#code=csc_")) && first.lines().count() == 1, "{first}");
    assert_ne!(first, second);
    end(gateway);
    let home = home.with_var("COUNTERSIGN_PUBLIC_URL", "https://g.example");
    let gateway = start(&home);
    home.run(&["open"]).ends(0).says(&["https://g.example/#code=csc_"]);
    end(gateway);
}

const KEY: (&str, &str) = ("COUNTERSIGN_KEY", "csk_test");

#[test]
fn changes_needs_a_key_and_a_gateway() {
    let home = Home::new();
    home.run(&["changes", "list"]).ends(5).complains(&["COUNTERSIGN_KEY", "keys create --role reviewer"]);
    let nobody = support::DeadPort::new();
    let url = format!("http://{}", nobody.address);
    home.run_with(&[KEY], &["changes", "list", "--url", &url]).ends(69).complains(&["does not answer", &url]);
    home.run_with(&[KEY, ("COUNTERSIGN_URL", &url)], &["changes", "list"]).ends(69).complains(&[&url]);
    home.run_with(&[KEY], &["changes", "list", "--url", "localhost"]).ends(2).complains(&["http://127.0.0.1:8080"]);
}

#[test]
fn changes_are_listed_page_by_page() {
    let fake = FakeGateway::start(|request, _| {
        let second = request.target.contains("cursor=next");
        let ids = if second { ["chg_3", "chg_4"] } else { ["chg_1", "chg_2"] };
        let changes: Vec<Value> = ids.iter().map(|id| change(id, 1, "pending")).collect();
        let cursor = if second { Value::Null } else { value!("next") };
        json("200 OK", &value!({"changes": changes, "nextCursor": cursor, "counts": {"pending": 4}}))
    });
    let home = Home::new();
    let run = |more: &[&str]| home.run_with(&[KEY], &[&["changes", "list", "--url", &fake.url], more].concat());
    let text = run(&[]).ends(0).says(&["chg_1", "chg_4", "pending", "local-agent", r"Fix\u{1b}[2J login"]).stdout();
    assert_eq!(text.lines().count(), 5);
    let head = text.lines().next().unwrap();
    assert!(head.contains("CLIENT") && text.lines().nth(1).unwrap().contains("  test  "), "{text}");
    assert!(!text.contains('\u{1b}'), "no colour and no escapes: {text:?}");
    let requests = fake.requests();
    assert_eq!(requests[0].target, "/api/changes?limit=50&status=pending%2Cstale%2Coutcome_unknown");
    assert_eq!(requests[0].authorization, "Bearer csk_test");
    assert!(requests[1].target.ends_with("&cursor=next") && requests[1].target.contains("limit=48"), "{requests:?}");
    let limited = run(&["--limit", "3", "--status", "all", "--principal", "a b"]).ends(0);
    assert_eq!(limited.stdout().lines().count(), 4);
    assert_eq!(fake.requests()[2].target, "/api/changes?limit=3&principal=a%20b");
    let all: Value = serde_json::from_str(&run(&["--json"]).ends(0).stdout()).unwrap();
    assert_eq!(all["changes"].as_array().unwrap().len(), 4);
    assert_eq!(all["counts"]["pending"], 4);
}

#[test]
fn module_is_shown_with_its_details() {
    let fake = FakeGateway::start(|request, _| {
        let docs = value!({"name": "docs", "kind": "module", "status": "up", "tools": 0, "details": ["handbook: 3 documents"]});
        let body = if request.target == "/api/servers" { value!({"servers": [docs]}) } else { value!({"tools": []}) };
        json("200 OK", &body)
    });
    Home::new()
        .run_with(&[KEY], &["servers", "show", "docs", "--url", &fake.url])
        .ends(0)
        .says(&["handbook: 3 documents"]);
}

#[test]
fn decision_applies_to_the_shown_version() {
    // It runs at once: a poll after the approval finds it applied.
    let approved = AtomicBool::new(false);
    let fake = FakeGateway::start(move |request, _| match (request.method.as_str(), request.target.as_str()) {
        ("GET", "/api/changes/chg_1") if approved.swap(false, Ordering::SeqCst) => {
            json("200 OK", &change("chg_1", 9, "applied"))
        }
        ("GET", "/api/changes/chg_1") => json("200 OK", &change("chg_1", 7, "pending")),
        ("POST", "/api/changes/chg_1/decision") => {
            let approve = request.body["decision"] == "approve";
            approved.store(approve, Ordering::SeqCst);
            json("200 OK", &change("chg_1", 8, if approve { "approved" } else { "rejected" }))
        }
        _ => problem("404 Not Found", "CHANGE_NOT_FOUND", "there is no such change"),
    });
    let home = Home::new();
    let run = |arguments: &[&str]| home.run_with(&[KEY], &[&["changes", "--url", &fake.url], arguments].concat());
    run(&["show", "chg_1"]).ends(0).says(&[r"Fix\u{1b}[2J login", "version 7", "+ Fix login", r"Fix\u{202e} login"]);
    let raw: Value = serde_json::from_str(&run(&["show", "chg_1", "--json"]).ends(0).stdout()).unwrap();
    assert_eq!(raw, change("chg_1", 7, "pending"));
    run(&["show", "chg_2"]).ends(3).complains(&["there is no such change: chg_2 (CHANGE_NOT_FOUND)"]);

    run(&["approve", "chg_1", "--comment", "fine"]).ends(0).says(&["+ Fix login", "Approved and applied."]);
    let decided = || fake.requests().iter().rfind(|request| request.method == "POST").unwrap().body.clone();
    let body = decided();
    assert_eq!(body, value!({"decision": "approve", "comment": "fine", "version": 7, "digest": "sha256:d"}));
    run(&["reject", "chg_1"]).ends(0).says(&["Rejected."]);
    assert_eq!(decided()["comment"], Value::Null);
    let after: Value = serde_json::from_str(&run(&["approve", "chg_1", "--json"]).ends(0).stdout()).unwrap();
    assert_eq!(after["state"], "applied");

    let request_count = fake.requests().len();
    run(&["approve", "chg_1", "--version", "6"]).ends(4).complains(&["version 7 and not 6", "changes show chg_1"]);
    assert_eq!(fake.requests().len(), request_count + 1, "nothing was decided");
}

#[test]
fn refusals_have_their_exit_codes() {
    let fake = FakeGateway::start(|request, _| {
        let id = request.target.split('/').nth(3).unwrap_or_default().to_owned();
        match (request.method.as_str(), id.as_str()) {
            (_, "chg_401") => problem("401 Unauthorized", "UNAUTHORIZED", "the key is not known"),
            ("GET", "chg_done") => json("200 OK", &change("chg_done", 1, "applied")),
            ("GET", "chg_html") => "HTTP/1.1 502 Bad Gateway\r\nconnection: close\r\n\r\n<html>".to_owned(),
            ("GET", "chg_odd") => json("200 OK", &value!({"id": 1})),
            ("GET", id) => json("200 OK", &change(id, 1, "pending")),
            (_, "chg_stale") => problem("409 Conflict", "CHANGE_STALE", "the target has moved."),
            (_, "chg_own") => problem("403 Forbidden", "SELF_APPROVAL", "you proposed it"),
            (_, "chg_view") => problem("403 Forbidden", "FORBIDDEN", "viewers cannot decide"),
            _ => problem("503 Service Unavailable", "STORE_UNAVAILABLE", "the disk is full"),
        }
    });
    let home = Home::new();
    let approve = |id: &str| home.run_with(&[KEY], &["changes", "approve", id, "--url", &fake.url]);
    approve("chg_401").ends(5).complains(&["the key is not known"]);
    approve("chg_done").ends(4).complains(&["the change is applied"]);
    approve("chg_html").ends(69).complains(&["502"]);
    approve("chg_odd").ends(1).complains(&["not from a Countersign gateway"]);
    approve("chg_stale")
        .ends(4)
        .complains(&["the target has moved (CHANGE_STALE)", "countersign changes show chg_stale"]);
    approve("chg_own").ends(1).complains(&["SELF_APPROVAL"]);
    approve("chg_view").ends(5).complains(&["viewers cannot decide"]);
    approve("chg_full").ends(69).complains(&["the disk is full"]);
}

#[test]
fn watch_prints_each_event_once_across_reconnects() {
    let event = |seq: u64, kind: &str| {
        let mut brief = change("chg_1", seq, "pending");
        brief.as_object_mut().unwrap().retain(|k, _| k != "diff" && k != "arguments");
        let data = value!({"type": kind, "seq": seq, "at": "2027-01-01T00:00:00Z", "actor": "alice", "comment": null, "change": brief});
        format!("id: {seq}\nevent: {kind}\ndata: {data}\n\n")
    };
    let fake = FakeGateway::start(move |_, before| match before {
        0 => event_stream(&format!(
            "event: hello\ndata: {{\"type\":\"hello\",\"seq\":4}}\n\n: quiet\n\n{}{}id: 7\nevent: cut",
            event(5, "change.created"),
            event(6, "change.approved")
        )),
        1 => problem("503 Service Unavailable", "OVERLOADED", "later"),
        2 => event_stream(&format!(
            "{}{}event: session.opened\ndata: {}\n\n",
            event(6, "change.approved"),
            event(7, "change.applied"),
            value!({"type": "session.opened", "at": "2027-01-01T00:00:00Z", "session": {"id": "s"}})
        )),
        _ => problem("401 Unauthorized", "UNAUTHORIZED", "the key was revoked"),
    });
    let home = Home::new();
    let ran = home.run_with(&[KEY], &["changes", "watch", "--url", &fake.url]).ends(5);
    let kinds: Vec<String> = ran.stdout().lines().map(|l| l.split_whitespace().nth(1).unwrap().to_owned()).collect();
    assert_eq!(kinds, ["created", "approved", "applied", "session.opened"], "{}", ran.stdout());
    ran.complains(&["was lost", "the key was revoked"]);
    let targets: Vec<String> = fake.requests().into_iter().map(|a| a.target).collect();
    assert_eq!(targets, ["/api/events", "/api/events?since=6", "/api/events?since=6", "/api/events?since=7"]);

    let fake = FakeGateway::start(|_, _| {
        event_stream("id: 1\nevent: change.created\ndata: {\"type\":\ndata: \"change.created\"}\n\n")
    });
    let mut watch = Lines::spawn({
        let mut command = home.command(&["changes", "watch", "--json", "--since", "0", "--url", &fake.url]);
        command.env(KEY.0, KEY.1);
        command
    });
    let line: Value = serde_json::from_str(&watch.line()).unwrap();
    assert_eq!(line["type"], "change.created");
    support::cli::signal(watch.pid(), Signal::INT);
    assert_eq!(watch.finish().0, 0);
    assert!(fake.requests()[0].target.ends_with("?since=0"));
}

/// Runs the program on a terminal, types `typed`, and returns its exit code and everything shown.
fn on_a_terminal(home: &Home, vars: &[(&str, &str)], arguments: &[&str], typed: &str) -> (i32, String) {
    use std::io::{Read, Write};

    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    let pty = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&pty).unwrap();
    unlockpt(&pty).unwrap();
    let name = ptsname(&pty, Vec::new()).unwrap().into_string().unwrap();
    let end = || std::fs::File::options().read(true).write(true).open(&name).unwrap();
    let mut command = home.command(arguments);
    command.envs(vars.iter().copied()).env("TERM", "xterm").stdin(end()).stdout(end()).stderr(end());
    let mut child = command.spawn().unwrap();
    drop(command);
    let mut pty = std::fs::File::from(pty);
    pty.write_all(typed.as_bytes()).unwrap();
    let mut shown = Vec::new();
    let mut bytes = [0; 4096];
    // The terminal is gone (EIO) when its last end is closed.
    while let Ok(count) = pty.read(&mut bytes) {
        shown.extend_from_slice(&bytes[..count]);
    }
    (child.wait().unwrap().code().unwrap(), String::from_utf8_lossy(&shown).into_owned())
}

#[test]
fn terminal_gets_colour_and_a_question() {
    let approved = AtomicBool::new(false);
    let fake = FakeGateway::start(move |request, _| match request.method.as_str() {
        "GET" if approved.swap(false, Ordering::SeqCst) => json("200 OK", &change("chg_1", 9, "applied")),
        "GET" => json("200 OK", &change("chg_1", 7, "pending")),
        _ => {
            approved.store(true, Ordering::SeqCst);
            json("200 OK", &change("chg_1", 8, "approved"))
        }
    });
    let home = Home::new();
    let approve = ["changes", "approve", "chg_1", "--url", &fake.url];
    let decided = || fake.requests().iter().filter(|a| a.method == "POST").count();
    let (code, shown) = on_a_terminal(&home, &[KEY], &approve, "n\n");
    assert_eq!((code, decided()), (1, 0), "{shown}");
    assert!(shown.contains("\u{1b}[32m    + Fix login\u{1b}[0m"), "{shown}");
    assert!(
        shown.contains("Approve version 7 of this change? [y/N]") && shown.contains("Nothing was decided."),
        "{shown}"
    );
    // The agent's own escape sequences are visible, not obeyed.
    assert!(shown.contains(r"Fix\u{1b}[2J login") && !shown.contains('\u{202e}'), "{shown}");
    let (code, shown) = on_a_terminal(&home, &[KEY, ("NO_COLOR", "1")], &approve, "y\n");
    assert_eq!((code, decided()), (0, 1), "{shown}");
    assert!(!shown.contains('\u{1b}') && shown.contains("Approved and applied."), "{shown}");
    let (code, shown) = on_a_terminal(&home, &[KEY], &[&approve[..], &["--yes"]].concat(), "");
    assert_eq!((code, decided()), (0, 2), "{shown}");
    assert!(!shown.contains("[y/N]"));
}
