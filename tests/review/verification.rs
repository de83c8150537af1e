//! Tests that applied changes are read back, through the real program and a server that does not always do what it says.

use serde_json::{Value, json};
use support::{Gateway, Options, eventually};

const SERVER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/review/verification/server.py");

/// The recipe of the tool that sets a text.
pub const WRITE_RECIPE: &str = "      write:
        target: arguments.path
        before: { tool: read, arguments: { path: arguments.path }, missing: '^no such text$' }
        after: arguments.text
";

/// Starts a gateway with the server, whose tools have these recipes. `policy` is the beginning of the configuration.
pub fn start_with(policy: &str, recipes: &str) -> (Gateway, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let args = json!([SERVER, dir.path().join("texts").to_str().unwrap()]);
    let config =
        format!("{policy}mcpServers:\n  texts:\n    command: python3\n    args: {args}\n    previews:\n{recipes}");
    let gateway = Gateway::with_options(&Options { config: Some(&config), ..Options::default() });
    eventually("the server is connected", || {
        let (status, body) = gateway.api("GET", "/api/servers/texts", None);
        (status == 200 && body["tools"].as_array().is_some_and(|tools| tools.len() == 3)).then_some(())
    });
    (gateway, dir)
}

fn start() -> (Gateway, tempfile::TempDir) {
    start_with("", WRITE_RECIPE)
}

/// Calls a tool, approves the change, and returns it once it was applied and read back.
fn apply(gateway: &Gateway, tool: &str, arguments: &Value) -> Value {
    let session = gateway.session("2025-11-25");
    let answer = session.call(7, "tools/call", json!({ "name": tool, "arguments": arguments }));
    session.delete();
    let id =
        answer["result"]["structuredContent"]["changeId"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned();
    gateway.decide(&id, "approve");
    gateway.wait_for_verification(&id)
}

#[test]
fn server_that_does_not_do_what_it_says_is_noticed() {
    let (gateway, _dir) = start();
    for (path, verification) in [
        ("plain", json!({ "verified": "matches" })),
        ("broken", json!({ "verified": "unreadable", "reason": "texts__read answered: the index is damaged" })),
    ] {
        let change = apply(&gateway, "texts__write", &json!({ "path": path, "text": "new\n" }));
        assert_eq!((&change["verification"], &change["state"]), (&verification, &json!("applied")), "{path}");
    }
    for (path, found) in [("silent", Value::Null), ("tidy", json!("new"))] {
        let change = apply(&gateway, "texts__write", &json!({ "path": path, "text": "new\n" }));
        assert_eq!((&change["verification"]["verified"], &change["state"]), (&json!("differs"), &json!("applied")));
        let field = &change["verification"]["diff"]["fields"][0];
        assert_eq!((&field["before"], &field["after"]), (&json!("new\n"), &found), "{path}");
    }
    let (_, trail) = gateway.api("GET", "/api/audit?event=verified", None);
    let outcomes: Vec<_> = trail["entries"].as_array().unwrap().iter().map(|e| &e["details"]["verified"]).collect();
    assert_eq!(outcomes, ["differs", "differs", "unreadable", "matches"]);
    let mut list = support::command_on(&gateway.data());
    list.env("COUNTERSIGN_KEY", gateway.reviewer()).args(["changes", "list", "--status", "applied", "--data"]);
    let output = list.arg(gateway.data()).output().unwrap();
    let listed = String::from_utf8(output.stdout).unwrap();
    assert_eq!((output.status.code(), listed.matches("(differs) ").count()), (Some(0), 2), "{listed}");
}

#[test]
fn writes_of_the_tracker_are_read_back() {
    let (gateway, _dir) = start();
    let project = apply(&gateway, "create_project", &json!({ "name": "Shop", "key": "SHOP" }));
    assert_eq!(project["verification"], json!({ "verified": "matches" }));
    let project = &project["result"]["structuredContent"]["project"]["id"];
    let issue = json!({ "projectId": project, "title": "Fix login", "type": "Bug", "description": "One\ntwo" });
    let issue = apply(&gateway, "create_issue", &issue);
    assert_eq!(issue["verification"], json!({ "verified": "matches" }));
    let deletion = apply(&gateway, "delete_issue", &json!({ "issueId": "SHOP-1" }));
    assert_eq!(deletion["verification"], json!({ "verified": "matches" }));
}
