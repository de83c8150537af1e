//! Tests of approvals: whose decision counts, what it applies to, and what an agent learns about data that it may not
//! read.

mod agent_view;

use std::io::{Read as _, Write as _};

use serde_json::{Value, json};
use support::{
    Gateway, Options, command_on, eventually,
    mcp::{self, borrow_headers, modern_headers, with_meta},
    ws::Ws,
};
use tempfile::TempDir;

const SERVER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/review/approval/server.py");

/// The folder of the server's files, with its ledger.
struct Files(TempDir);

impl Files {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn put(&self, name: &str, text: &str) {
        std::fs::write(self.0.path().join(name), text).unwrap();
    }

    /// Returns the calls with the server that got them.
    fn ledger(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.0.path().join("ledger")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// Configures the server `fs` with that name for itself; `more` are keys of the server, `policy` those of the
    /// policy.
    fn config(&self, name: &str, more: &str, policy: &str) -> String {
        let args = json!([SERVER, self.0.path(), name]);
        format!(
            "mcpServers:\n  fs: {{ command: python3, args: {args}, trust_annotations: true{more} }}\npolicy:\n{policy}\n"
        )
    }
}

fn start(config: &str) -> Gateway {
    start_on(tempfile::tempdir().unwrap(), config)
}

fn start_on(home: TempDir, config: &str) -> Gateway {
    let gateway = Gateway::on_home(home, &Options { config: Some(config), ..Options::default() });
    wait_until_connected(&gateway);
    gateway
}

fn wait_until_connected(gateway: &Gateway) {
    eventually("the server is connected", || {
        let (status, body) = gateway.api("GET", "/api/servers/fs", None);
        (status == 200 && body["tools"].as_array().is_some_and(|tools| tools.len() == 3)).then_some(())
    });
}

/// Replaces the configuration file atomically.
fn rewrite(gateway: &Gateway, config: &str) {
    let file = gateway.home.path().join("countersign.yaml");
    let new = file.with_extension("new");
    std::fs::write(&new, config).unwrap();
    std::fs::rename(new, &file).unwrap();
}

fn owned_key(gateway: &Gateway, role: &str, name: &str, owner: &str) -> String {
    let (code, out, error) = make_key(gateway, role, name, Some(owner));
    assert_eq!(code, Some(0), "{error}");
    out.trim().to_owned()
}

fn make_key(gateway: &Gateway, role: &str, name: &str, owner: Option<&str>) -> (Option<i32>, String, String) {
    let mut create = command_on(&gateway.data());
    create.args(["keys", "create", "--role", role, "--name", name]);
    if let Some(owner) = owner {
        create.args(["--owner", owner]);
    }
    create.arg("--data").arg(gateway.data());
    let config = gateway.home.path().join("countersign.yaml");
    if config.exists() {
        create.arg("--config").arg(config);
    }
    let output = create.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

/// Calls at the plain endpoint, with or without a key; the arguments are sent as they are.
fn call(gateway: &Gateway, key: Option<&str>, tool: &str, arguments: &str) -> Value {
    let bearer = key.map(|key| format!("Bearer {key}"));
    let mut headers = vec![mcp::JSON];
    headers.extend(bearer.as_deref().map(|bearer| ("Authorization", bearer)));
    gateway.request("POST", &format!("/tools/{tool}"), &headers, arguments.as_bytes()).json()
}

/// Calls as an agent without a key; returns a result of the protocol.
fn call_as_agent(gateway: &Gateway, tool: &str, arguments: &Value) -> Value {
    gateway.modern(1, "tools/call", json!({ "name": tool, "arguments": arguments })).json()["result"].clone()
}

#[track_caller]
fn propose(gateway: &Gateway, tool: &str, arguments: &Value) -> String {
    let result = call_as_agent(gateway, tool, arguments);
    assert_eq!(result["structuredContent"]["status"], "pending", "{result}");
    result["structuredContent"]["changeId"].as_str().unwrap().to_owned()
}

/// Returns the change of that principal's newest call.
fn newest_change(gateway: &Gateway, principal: &str) -> Value {
    let (_, page) = gateway.api("GET", &format!("/api/changes?principal={principal}"), None);
    page["changes"][0].clone()
}

fn act(gateway: &Gateway, key: &str, id: &str, act: &str, mut body: Value) -> (u16, Value) {
    body["version"] = gateway.change(id)["version"].clone();
    gateway.api_as(key, "POST", &format!("/api/changes/{id}/{act}"), Some(&body))
}

fn approve(gateway: &Gateway, key: &str, id: &str) -> (u16, Value) {
    act(gateway, key, id, "decision", json!({ "decision": "approve" }))
}

fn code(answer: &(u16, Value)) -> (u16, &str) {
    (answer.0, answer.1["code"].as_str().unwrap_or_default())
}

// ---------------------------------------------------------------------------------------------------- identity

#[test]
fn owner_cannot_ease_rules_for_own_agent() {
    let files = Files::new();
    let gateway = start(&files.config("a", "", "  default: review_writes"));
    let bot = owned_key(&gateway, "agent", "bot", "Paula");
    // One key named after the owner of the agent's key, and one with another owner.
    let paula = owned_key(&gateway, "reviewer", "paula", "someone");
    let arguments = r#"{"path":"f","text":"t"}"#;
    call(&gateway, Some(&bot), "fs__write", arguments);
    let id = newest_change(&gateway, "bot")["id"].as_str().unwrap().to_owned();
    assert_eq!(code(&approve(&gateway, &paula, &id)), (403, "SELF_APPROVAL"));
    let rule = |verdict: &str| json!({ "verdict": verdict, "arguments": "any", "principal": "same", "for": 600 });
    let path = format!("/api/changes/{id}/rule");
    let answer = gateway.api_as(&paula, "POST", &path, Some(&rule("allow")));
    assert_eq!(code(&answer), (403, "SELF_APPROVAL"), "{}", answer.1);
    call(&gateway, Some(&bot), "fs__write", arguments);
    assert_eq!(files.ledger(), Vec::<String>::new(), "nothing ran");
    let edit = act(&gateway, &paula, &id, "edit", json!({ "arguments": { "path": "g" } }));
    assert_eq!(code(&edit), (403, "SELF_APPROVAL"));

    // A denial applies to the person with any key, and they cannot revoke it.
    let (status, denial) = gateway.api("POST", &path, Some(&rule("deny")));
    assert_eq!(status, 200, "{denial}");
    let second = owned_key(&gateway, "agent", "bot-2", "PAULA");
    for key in [&bot, &second] {
        let refused = call(&gateway, Some(key), "fs__write", arguments);
        assert!(refused.to_string().contains("POLICY_DENIED"), "{refused}");
    }
    let other = owned_key(&gateway, "agent", "robot", "karl");
    let pending = call(&gateway, Some(&other), "fs__write", arguments);
    assert!(!pending.to_string().contains("POLICY_DENIED"), "{pending}");
    let revoke = format!("/api/rules/{}/revoke", denial["id"].as_str().unwrap());
    assert_eq!(code(&gateway.api_as(&paula, "POST", &revoke, Some(&json!({})))), (403, "SELF_APPROVAL"));
    assert_eq!(gateway.api("POST", &revoke, Some(&json!({}))).0, 200);
}

#[test]
fn one_person_has_one_vote() {
    let files = Files::new();
    let policy =
        "  groups: { dba: [dora, erik] }\n  rules: [{ tools: fs__write, then: review, reviewers: [dba], quorum: 2 }]";
    let gateway = start(&files.config("a", "", policy));
    let [desk, phone, erik] = [("desk", "DORA"), ("phone", "\u{ff24}ora"), ("laptop", "Erik")]
        .map(|(name, owner)| owned_key(&gateway, "reviewer", name, owner));
    let id = propose(&gateway, "fs__write", &json!({ "path": "f", "text": "t" }));
    assert_eq!(code(&approve(&gateway, gateway.reviewer(), &id)), (403, "FORBIDDEN"), "she is not of the group");
    assert_eq!(approve(&gateway, &desk, &id).0, 200);
    assert_eq!(code(&approve(&gateway, &phone, &id)), (409, "ALREADY_VOTED"));
    assert_eq!(approve(&gateway, &erik, &id).0, 200);
    gateway.wait_for_state(&id, "applied");
    assert_eq!(files.ledger(), ["a write t"]);
}

#[test]
fn lookalike_key_names_are_refused() {
    let files = Files::new();
    let gateway = start(&files.config("a", "", "  groups: { dba: [Karla] }"));
    owned_key(&gateway, "agent", "bot", "Paula");
    let revoked = owned_key(&gateway, "reviewer", "mike", "Zoe");
    assert!(!revoked.is_empty());
    for (name, owner) in [
        ("x", Some("P\u{430}ula")),
        ("x", Some("\u{420}aula")),
        ("x", Some("Pau\u{406}a")),
        ("paufa", Some("Karl\u{430}")),
        ("Pau1a", None),
        ("rnike", None),
        ("b0t", Some("B\u{3bf}t")),
        ("systern", None),
    ] {
        let (code, out, error) = make_key(&gateway, "reviewer", name, owner);
        assert_eq!((code, out.as_str()), (Some(2), ""), "{name} {owner:?}: {error}");
        assert!(error.contains("looks like"), "{name} {owner:?}: {error}");
    }
    // The same name again is the same person; other names are other people.
    for (name, owner) in [("bot", None), ("desk", Some("PAULA")), ("paula", None), ("x", Some("Petra"))] {
        assert_eq!(make_key(&gateway, "agent", name, owner).0, Some(0), "{name} {owner:?}");
    }
}

// ------------------------------------------------------------------------------------ what an approval applies to

#[test]
fn change_is_stale_after_its_server_command_changed() {
    let files = Files::new();
    let at = |name: &str| files.config(name, "", "  default: review_writes");
    let gateway = start(&at("a"));
    let id = propose(&gateway, "fs__write", &json!({ "path": "f", "text": "t" }));
    let before = gateway.change(&id);
    assert_eq!(before["servedBy"]["label"], format!("python3 {SERVER} {} a", files.0.path().display()));

    // By a reload. The acceptance shows when the other command is active.
    let read = |gateway: &Gateway| {
        let (_, body) = gateway.api("GET", "/api/servers/fs", None);
        body["tools"].as_array()?.iter().find(|tool| tool["name"] == "fs__read").cloned()
    };
    let accepted = read(&gateway).unwrap();
    let tools = json!({ "tools": [{ "name": "fs__read", "hash": accepted["hash"] }] });
    assert_eq!(gateway.api("POST", "/api/servers/fs/accept", Some(&tools)).0, 200);
    rewrite(&gateway, &at("b"));
    eventually("another command is there", || read(&gateway).filter(|tool| tool["definitionStatus"] == "changed"));
    let stale = approve(&gateway, gateway.reviewer(), &id);
    assert_eq!(code(&stale), (409, "CHANGE_STALE"), "{}", stale.1);
    assert!(stale.1.to_string().contains("another command or address"), "{}", stale.1);
    let refreshed = gateway.change(&id);
    assert_eq!(refreshed["state"], "pending", "with a fresh preview");
    assert_ne!(refreshed["servedBy"]["fingerprint"], before["servedBy"]["fingerprint"]);
    assert_ne!(refreshed["digest"], before["digest"]);
    assert_eq!(files.ledger(), Vec::<String>::new());
    let (_, trail) = gateway.api("GET", &format!("/api/audit?change={id}"), None);
    let events: Vec<&str> = trail["entries"].as_array().unwrap().iter().map(|e| e["event"].as_str().unwrap()).collect();
    assert_eq!(events, ["refreshed", "stale", "created"]);

    // By a restart; with a new decision it runs on the current command.
    let (_, home) = gateway.stop();
    let gateway = start_on(home, &at("c"));
    assert_eq!(code(&approve(&gateway, gateway.reviewer(), &id)), (409, "CHANGE_STALE"));
    assert_eq!(approve(&gateway, gateway.reviewer(), &id).0, 200);
    gateway.wait_for_state(&id, "applied");
    assert_eq!(files.ledger(), ["c write t"]);
    let (_, home) = gateway.stop();
    let data = home.path().join("data");
    let verified = command_on(&data).args(["audit", "verify", "--data"]).arg(&data).output().unwrap();
    assert!(verified.status.success(), "{verified:?}");
}

#[test]
fn approved_change_never_runs_on_another_command() {
    let files = Files::new();
    let at = |name: &str| files.config(name, "", "  default: review_writes\n  review: { undo_for: 10s }");
    let gateway = start(&at("a"));
    let id = propose(&gateway, "fs__write", &json!({ "path": "f", "text": "t" }));
    assert_eq!(approve(&gateway, gateway.reviewer(), &id).0, 200);
    let gateway = start_on(gateway.kill(), &at("b"));
    let again = eventually("it was looked at before it ran", || {
        Some(gateway.change(&id)).filter(|change| change["state"] != "approved")
    });
    let again = if again["state"] == "stale" { gateway.wait_for_state(&id, "pending") } else { again };
    assert_eq!((&again["state"], &again["decisions"]), (&json!("pending"), &json!([])));
    assert_eq!(files.ledger(), Vec::<String>::new());
}

#[test]
fn standing_rule_is_bound_to_its_command() {
    let files = Files::new();
    let at = |name: &str| files.config(name, "", "  default: review_writes");
    let gateway = start(&at("a"));
    let arguments = json!({ "path": "f", "text": "t" });
    let id = propose(&gateway, "fs__write", &arguments);
    let rule = json!({ "verdict": "allow", "arguments": "any", "principal": "same", "for": 600 });
    assert_eq!(gateway.api("POST", &format!("/api/changes/{id}/rule"), Some(&rule)).0, 200);
    assert_eq!(call_as_agent(&gateway, "fs__write", &arguments)["content"][0]["text"], "done");
    let (_, home) = gateway.stop();
    let gateway = start_on(home, &at("b"));
    propose(&gateway, "fs__write", &arguments);
    // Nor does one created from a change that was shown for another command.
    let refused = gateway.api("POST", &format!("/api/changes/{id}/rule"), Some(&rule));
    assert_eq!(code(&refused), (409, "VERSION_CONFLICT"));
    assert_eq!(files.ledger(), ["a write t"]);
}

// --------------------------------------------------------------------------------------------- requirements of a rule

/// Text without any visible character.
const BLANK: &str = "\u{3164}\u{2800}\u{200b}\u{202e}\u{e0041} \u{a0}";

#[test]
fn only_the_rules_reviewers_settle_unknown_outcomes() {
    let files = Files::new();
    let policy = "  groups: { dba: [dora] }\n  rules: [{ tools: fs__die, then: review, reviewers: [dba], require_comment: true }]";
    let gateway = start(&files.config("a", "", policy));
    let dora = gateway.create_key("reviewer", "dora");
    let id = propose(&gateway, "fs__die", &json!({}));
    for comment in ["", BLANK] {
        let refused = act(&gateway, &dora, &id, "decision", json!({ "decision": "approve", "comment": comment }));
        assert_eq!(code(&refused), (422, "COMMENT_REQUIRED"), "{}", refused.1);
    }
    assert_eq!(act(&gateway, &dora, &id, "decision", json!({ "decision": "approve", "comment": "go" })).0, 200);
    gateway.wait_for_state(&id, "outcome_unknown");
    let settle = |key: &str, comment: Value| {
        act(&gateway, key, &id, "settle", json!({ "outcome": "applied", "comment": comment }))
    };
    assert_eq!(code(&settle(gateway.reviewer(), json!("I looked"))), (403, "FORBIDDEN"));
    for comment in [Value::Null, json!(""), json!(BLANK)] {
        assert_eq!(code(&settle(&dora, comment)), (422, "COMMENT_REQUIRED"));
    }
    let (status, settled) = settle(&dora, json!("I looked"));
    assert_eq!((status, &settled["state"]), (200, &json!("applied")));
}

#[test]
fn editor_cannot_approve_if_the_rule_forbids_it() {
    let files = Files::new();
    let policy = "  rules:\n    - { tools: fs__write, then: review, edit: other }\n    - { tools: fs__read, then: review, quorum: 2 }";
    let gateway = start(&files.config("a", "", policy));
    let [alice, bob, phone] = [
        gateway.reviewer().to_owned(),
        gateway.create_key("reviewer", "bob"),
        owned_key(&gateway, "reviewer", "phone", "ALICE"),
    ];
    let edited = json!({ "arguments": { "path": "f", "text": "better" } });
    let id = propose(&gateway, "fs__write", &json!({ "path": "f", "text": "t" }));
    assert_eq!(gateway.change(&id)["terms"]["edit"], "other");
    assert_eq!(act(&gateway, &alice, &id, "edit", edited.clone()).0, 200);
    for key in [&alice, &phone] {
        let refused = approve(&gateway, key, &id);
        assert_eq!(code(&refused), (403, "SELF_APPROVAL"), "{}", refused.1);
        assert!(refused.1.to_string().contains("editor"), "{}", refused.1);
        let rule = json!({ "verdict": "allow", "arguments": "exact", "principal": "same", "for": 600 });
        let refused = gateway.api_as(key, "POST", &format!("/api/changes/{id}/rule"), Some(&rule));
        assert_eq!(code(&refused), (403, "SELF_APPROVAL"), "{}", refused.1);
    }
    assert_eq!(approve(&gateway, &bob, &id).0, 200);
    gateway.wait_for_state(&id, "applied");
    assert_eq!(files.ledger(), ["a write better"]);

    // If two approvals are required, an edit and a vote by one person would reduce them to one.
    let id = propose(&gateway, "fs__read", &json!({ "path": "x" }));
    assert_eq!(act(&gateway, &alice, &id, "edit", edited).0, 200);
    assert_eq!(code(&approve(&gateway, &alice, &id)), (403, "SELF_APPROVAL"));
    assert_eq!(approve(&gateway, &bob, &id).0, 200);
    assert_eq!(gateway.change(&id)["state"], "pending");
    let carol = gateway.create_key("reviewer", "carol");
    assert_eq!(approve(&gateway, &carol, &id).0, 200);
    gateway.wait_for_state(&id, "applied");
}

#[test]
fn standing_rule_needs_a_visible_comment() {
    let files = Files::new();
    let gateway = start(&files.config("a", "", "  review: { require_comment: true }"));
    let id = propose(&gateway, "fs__write", &json!({ "path": "f", "text": "t" }));
    let give = |comment: &str| {
        let rule =
            json!({ "verdict": "allow", "arguments": "any", "principal": "same", "for": 60, "comment": comment });
        gateway.api("POST", &format!("/api/changes/{id}/rule"), Some(&rule))
    };
    assert_eq!(code(&give(BLANK)), (422, "VALIDATION_FAILED"));
    assert_eq!(give("it only writes here").0, 200);
}

// ------------------------------------------------------------------------------------------------- waiting changes

#[test]
fn change_waits_for_a_lost_call_until_settled() {
    for (more, waits) in [("", true), (", serialize: tool", false)] {
        let files = Files::new();
        let gateway = start(&files.config("a", more, "  default: review_writes"));
        let lost = propose(&gateway, "fs__die", &json!({}));
        gateway.decide(&lost, "approve");
        let unknown = gateway.wait_for_state(&lost, "outcome_unknown");
        assert!(unknown["targetTakenUntil"].is_string(), "its call may be running: {unknown}");
        let next = propose(&gateway, "fs__write", &json!({ "path": "f", "text": "t" }));
        eventually("the server is there again", || {
            (approve(&gateway, gateway.reviewer(), &next).0 == 200).then_some(())
        });
        if waits {
            assert_eq!(gateway.change(&next)["state"], "approved");
            assert_eq!(gateway.change(&next)["waitsFor"]["change"], lost.as_str());
            let (_, page) = gateway.api("GET", "/api/changes?status=approved", None);
            assert_eq!(page["changes"][0]["waitsFor"]["until"], unknown["targetTakenUntil"], "{page}");
            assert_eq!(files.ledger(), ["a die"]);
            let (status, settled) = act(&gateway, gateway.reviewer(), &lost, "settle", json!({ "outcome": "failed" }));
            assert_eq!(status, 200, "{settled}");
        }
        gateway.wait_for_state(&next, "applied");
        assert_eq!(files.ledger(), ["a die", "a write t"]);
    }
}

// ---------------------------------------------------------------------------------------------- secrets

/// Starts a server that refuses each request with an error that repeats its credential.
fn start_echoing_server() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let mut text = String::new();
            let mut bytes = [0; 4096];
            let whole = |text: &str| text.split_once("\r\n\r\n").and_then(|(_, body)| serde_json::from_str(body).ok());
            let message: Value = loop {
                match stream.read(&mut bytes) {
                    Ok(read @ 1..) => text += &String::from_utf8_lossy(&bytes[..read]),
                    _ => break Value::Null,
                }
                if let Some(message) = whole(&text) {
                    break message;
                }
            };
            let key = text.lines().find(|line| line.to_lowercase().starts_with("authorization")).unwrap_or_default();
            let error = json!({ "code": -32000, "message": format!("bad key: {key}") });
            let body = json!({ "jsonrpc": "2.0", "id": message["id"], "error": error }).to_string();
            let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close";
            let _ = write!(stream, "{head}\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        }
    });
    port
}

#[test]
fn secret_echoed_by_a_server_is_never_shown() {
    let secret = "sk-do-not-repeat-me";
    let config = format!(
        "log: {{ filter: 'info,countersign=debug' }}\nmcpServers:\n  fs: {{ url: 'http://127.0.0.1:{}/mcp', headers: {{ \
         Authorization: 'Bearer ${{MODEL_KEY}}' }} }}\n",
        start_echoing_server()
    );
    let options = Options { config: Some(&config), env: vec![("MODEL_KEY", secret)] };
    let gateway = Gateway::with_options(&options);
    let provider = eventually("what it says is told", || {
        let (_, provider) = gateway.api("GET", "/api/servers", None);
        provider.to_string().contains("bad key: ").then_some(provider)
    });
    assert!(provider.to_string().contains("[secret]"), "{provider}");
    let called = call_as_agent(&gateway, "fs__anything", &json!({}));
    for text in [gateway.log(), provider.to_string(), called.to_string()] {
        assert!(!text.contains(secret), "{text}");
    }
}
