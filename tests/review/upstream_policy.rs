//! Tests of the policy for upstream tools, through the real program: read-only claims that count once accepted,
//! changing definitions, rules, and approved calls that run exactly as approved.

use serde_json::{Value, json};
use support::{Gateway, Options, eventually, http::Response};
use tempfile::TempDir;

const SERVER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/review/upstream_policy/server.py");

/// The files that the server uses: its ledger of calls, and the description of `read`.
struct Files {
    dir: TempDir,
}

impl Files {
    fn new() -> Self {
        let files = Self { dir: tempfile::tempdir().unwrap() };
        files.set_description("Reads");
        files
    }

    fn path(&self, name: &str) -> String {
        self.dir.path().join(name).to_str().unwrap().to_owned()
    }

    fn set_description(&self, words: &str) {
        std::fs::write(self.path("words"), words).unwrap();
    }

    fn calls(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.path("ledger")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    fn config(&self, policy: &str) -> String {
        let args = json!([SERVER, self.path("ledger"), self.path("words")]);
        format!("mcpServers:\n  fs: {{ command: python3, args: {args} }}\npolicy:\n{policy}")
    }
}

const RULES: &str = r#"
  default: review_writes
  rules:
    - { name: not-for-agents, tools: "*__secret", roles: [agent], then: deny }
    - { name: keep-out, tools: "fs__write", when: 'arguments.path.startsWith("/etc/")', then: deny, reason: hands off }
    - { name: notes, tools: fs__write, when: 'arguments.path.startsWith("/notes/")', then: allow }
"#;

fn start(home: TempDir, files: &Files) -> Gateway {
    start_under(RULES, home, files)
}

fn start_under(policy: &str, home: TempDir, files: &Files) -> Gateway {
    let gateway = Gateway::on_home(home, &Options { config: Some(&files.config(policy)), ..Options::default() });
    eventually("the server is connected", || (!tools(&gateway).is_empty()).then_some(()));
    gateway
}

fn tools(gateway: &Gateway) -> Vec<Value> {
    let (status, body) = gateway.api("GET", "/api/servers/fs", None);
    if status == 200 { body["tools"].as_array().unwrap().clone() } else { Vec::new() }
}

fn tool(gateway: &Gateway, name: &str) -> Value {
    tools(gateway).into_iter().find(|tool| tool["name"] == name).unwrap_or_else(|| panic!("no {name}"))
}

fn accept(gateway: &Gateway, tools: &[&Value]) -> u16 {
    let tools: Vec<_> = tools.iter().map(|t| json!({ "name": t["name"], "hash": t["hash"] })).collect();
    gateway.api("POST", "/api/servers/fs/accept", Some(&json!({ "tools": tools }))).0
}

/// Calls with the arguments sent as this text, and returns the result.
fn call(gateway: &Gateway, name: &str, arguments: &str) -> Value {
    let session = gateway.session("2025-11-25");
    let body = format!(
        r#"{{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{{"name":"{name}","arguments":{arguments}}}}}"#
    );
    let answer: Response = session.post(&body);
    let answer = answer.json();
    // The session does not outlive the call.
    session.delete();
    assert!(answer["result"].is_object(), "{answer}");
    answer["result"].clone()
}

fn pending_change_id(result: &Value) -> String {
    assert_eq!(result["structuredContent"]["status"], "pending", "{result}");
    result["structuredContent"]["changeId"].as_str().unwrap().to_owned()
}

fn listed_tools(gateway: &Gateway) -> Vec<String> {
    let session = gateway.session("2025-11-25");
    let answer = session.call(3, "tools/list", json!({}));
    let names = answer["result"]["tools"].as_array().unwrap().iter();
    names.map(|tool| tool["name"].as_str().unwrap().to_owned()).filter(|name| name.starts_with("fs__")).collect()
}

#[test]
fn read_claims_count_while_accepted() {
    let files = Files::new();
    let gateway = start(tempfile::tempdir().unwrap(), &files);
    let change = gateway.change(&pending_change_id(&call(&gateway, "fs__read", r#"{"path":"a"}"#)));
    assert_eq!(change["review"], json!({ "reason": "its read-only hint has not been accepted yet" }));
    assert!(files.calls().is_empty(), "nothing was sent");
    let read = tool(&gateway, "fs__read");
    assert_eq!((&read["definitionStatus"], &read["claimsRead"]), (&json!("seen"), &json!(true)));
    assert_eq!(accept(&gateway, &[&read]), 200);
    assert_eq!(call(&gateway, "fs__read", r#"{"path":"a"}"#)["content"][0]["text"], "done");
    assert_eq!(files.calls(), [r#"read {"path":"a"}"#]);

    // A changed definition of an accepted tool, and a new tool: both are known after a restart, too.
    let (_, home) = gateway.stop();
    files.set_description("Reads, and does more");
    let gateway = start(home, &files);
    let changed = tool(&gateway, "fs__read");
    assert_eq!(changed["mark"], "TOOL_CHANGED");
    assert!(changed["previous"].as_str().unwrap().contains(r#""Reads""#), "{changed}");
    assert_eq!(tool(&gateway, "fs__more")["mark"], "TOOL_NEW");
    let change = gateway.change(&pending_change_id(&call(&gateway, "fs__read", r#"{"path":"b"}"#)));
    assert_eq!(change["review"]["mark"], "TOOL_CHANGED");
    assert_eq!(accept(&gateway, &[&read]), 409, "the accepted definition is not the current one");
    assert_eq!(accept(&gateway, &[&changed]), 200);
    assert_eq!(call(&gateway, "fs__read", r#"{"path":"b"}"#)["content"][0]["text"], "done");
    assert_eq!(files.calls(), [r#"read {"path":"a"}"#, r#"read {"path":"b"}"#]);
}

#[test]
fn acceptance_of_module_tools_is_refused() {
    let gateway = Gateway::start();
    let tools = json!({ "tools": [{ "name": "create_issue", "hash": "sha256:x" }] });
    let (status, problem) = gateway.api("POST", "/api/servers/tracker/accept", Some(&tools));
    assert_eq!((status, &problem["code"]), (422, &json!("VALIDATION_FAILED")), "{problem}");
}

#[test]
fn change_of_unannounced_new_definition_never_runs() {
    let files = Files::new();
    let gateway = start(tempfile::tempdir().unwrap(), &files);
    let id = pending_change_id(&call(&gateway, "fs__read", r#"{"path":"a"}"#));
    files.set_description("Deletes");
    let (status, refused) = gateway.try_decide(&id, "approve", "fine");
    assert_eq!((status, &refused["code"]), (409, &json!("CHANGE_STALE")), "{refused}");
    let change = gateway.change(&id);
    assert_eq!((&change["state"], &change["fault"]["code"]), (&json!("stale"), &json!("CHANGE_STALE")));
    // The call is proposed again with the new definition.
    eventually("the new definition is known", || (tool(&gateway, "fs__read")["mark"] == "TOOL_CHANGED").then_some(()));
    let id = pending_change_id(&call(&gateway, "fs__read", r#"{"path":"b"}"#));
    gateway.decide(&id, "approve");
    gateway.wait_for_state(&id, "applied");
    assert_eq!(files.calls(), [r#"read {"path":"b"}"#]);
}

#[test]
fn changed_command_inherits_no_acceptance() {
    let files = Files::new();
    let gateway = start(tempfile::tempdir().unwrap(), &files);
    let read = tool(&gateway, "fs__read");
    assert_eq!(accept(&gateway, &[&read]), 200);
    assert_eq!(tool(&gateway, "fs__read")["definitionStatus"], "accepted");

    // By a reload: it describes itself in the same way, but is another program.
    let file = gateway.home.path().join("countersign.yaml");
    let original = std::fs::read_to_string(&file).unwrap();
    let write = |yaml: &str| {
        let new = file.with_extension("new");
        std::fs::write(&new, yaml).unwrap();
        std::fs::rename(new, &file).unwrap();
    };
    let other = original.replacen("\"]", "\",\"--other\"]", 1);
    assert_ne!(other, original);
    write(&other);
    let wait_for_status = |gateway: &Gateway, is: &str| {
        eventually("its definition has that status", || {
            tools(gateway).into_iter().find(|t| t["name"] == "fs__read" && t["definitionStatus"] == is)
        })
    };
    let changed = wait_for_status(&gateway, "changed");
    assert_eq!((&changed["mark"], &changed["hash"]), (&json!("TOOL_CHANGED"), &read["hash"]));
    assert_eq!(changed["previous"], Value::Null);
    let change = gateway.change(&pending_change_id(&call(&gateway, "fs__read", r#"{"path":"a"}"#)));
    assert_eq!(change["review"]["mark"], "TOOL_CHANGED");
    // The accepted definition is unchanged.
    write(&original);
    wait_for_status(&gateway, "accepted");

    // By a restart; once accepted again, it counts, and the first one is no longer accepted.
    let (_, home) = gateway.stop();
    std::fs::write(home.path().join("countersign.yaml"), &other).unwrap();
    let gateway = Gateway::on_home(home, &Options { config: Some(&other), ..Options::default() });
    let changed = wait_for_status(&gateway, "changed");
    assert!(gateway.log().contains("another command or address"), "{}", gateway.log());
    assert_eq!(accept(&gateway, &[&changed]), 200);
    wait_for_status(&gateway, "accepted");
    let gateway = start(gateway.stop().1, &files);
    wait_for_status(&gateway, "changed");
}

#[test]
fn approved_call_runs_once_with_its_exact_bytes() {
    let files = Files::new();
    // Without rules: a condition could not represent this number exactly, and its rule would deny.
    let plain = "  default: review_writes\n";
    let gateway = start_under(plain, tempfile::tempdir().unwrap(), &files);
    let arguments = r#"{ "path":"/tmp/x",  "n":12345678901234567890123, "f":1.10, "e":"\u00e9", "z":{"b":1,"a":2} }"#;
    let id = pending_change_id(&call(&gateway, "fs__write", arguments));
    assert!(files.calls().is_empty());
    // A restart between proposal and approval makes no difference.
    let (_, home) = gateway.stop();
    let gateway = start_under(plain, home, &files);
    eventually("it is approved", || (gateway.try_decide(&id, "approve", "fine").0 == 200).then_some(()));
    gateway.wait_for_state(&id, "applied");
    assert_eq!(files.calls(), [format!("write {arguments}")]);
    assert_eq!(gateway.try_decide(&id, "approve", "again").0, 409);
    assert_eq!(files.calls().len(), 1);
}

#[test]
fn argument_and_role_rules_decide_and_hide_tools() {
    let files = Files::new();
    let gateway = start(tempfile::tempdir().unwrap(), &files);
    assert_eq!(listed_tools(&gateway), ["fs__read", "fs__write"]);
    let denied = call(&gateway, "fs__write", r#"{"path":"/etc/passwd"}"#);
    assert_eq!(denied["isError"], true);
    let text = denied["content"][0]["text"].as_str().unwrap();
    assert!(text.contains("POLICY_DENIED") && text.contains("keep-out") && text.contains("hands off"), "{text}");
    assert!(call(&gateway, "fs__secret", "{}")["content"][0]["text"].as_str().unwrap().contains("not-for-agents"));
    assert_eq!(call(&gateway, "fs__write", r#"{"path":"/notes/a"}"#)["content"][0]["text"], "done");
    // If a condition cannot decide, the call is reviewed, or denied if a rule would deny it.
    let change = call(&gateway, "fs__write", r#"{"path":"/notes/a","path":"/etc/passwd"}"#);
    assert_eq!(change["isError"], true, "{change}");
    let unclear = call(&gateway, "fs__write", "{}");
    assert!(unclear["content"][0]["text"].as_str().unwrap().contains("keep-out"), "{unclear}");
    assert_eq!(files.calls(), [r#"write {"path":"/notes/a"}"#]);
}

#[test]
fn filled_in_arguments_decide_whether_the_call_runs() {
    let files = Files::new();
    files.set_description("Reads, and lists the tool fill");
    let policy = r#"
  review: { questions: ask }
  rules: [{ name: notes, tools: fs__fill, when: 'arguments.path.startsWith("/notes/")', then: allow }]
"#;
    let gateway = start_under(policy, tempfile::tempdir().unwrap(), &files);
    let fill_in = |path: &str| {
        let meta = json!({ "io.modelcontextprotocol/clientCapabilities": { "elicitation": { "form": {} } } });
        let mut params = json!({ "name": "fs__fill", "arguments": { "text": "a" }, "_meta": meta });
        let question = gateway.modern(1, "tools/call", params.clone()).json();
        assert_eq!(question["result"]["resultType"], "input_required", "{question}");
        params["inputResponses"] = json!({ "missing-arguments": { "action": "accept", "content": { "path": path } } });
        gateway.modern(2, "tools/call", params).json()["result"].clone()
    };
    let reviewed = fill_in("/etc/a");
    assert!(files.calls().is_empty(), "nothing was sent");
    let change = gateway.change(&pending_change_id(&reviewed));
    assert_eq!(change["arguments"], json!({ "text": "a", "path": "/etc/a" }));
    // The client would answer the server by repeating its incomplete call, so the server may not ask.
    assert_eq!(fill_in("/notes/a")["content"][0]["text"], "done");
    assert_eq!(files.calls(), [r#"fill {"text":"a","path":"/notes/a"}"#]);
}
