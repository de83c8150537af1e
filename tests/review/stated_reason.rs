//! Tests of the reason that an agent gives for a write.

use serde_json::{Value, json};
use support::{Gateway, mcp};

const REASON: &str = "dev.countersign/reason";

fn call_with_reason(gateway: &Gateway, reason: &Value) -> Value {
    let arguments = json!({ "projectId": gateway.project(), "title": "Why", "type": "Story" });
    let call = json!({ "name": "create_issue", "arguments": arguments, "_meta": { REASON: reason } });
    gateway.modern(1, "tools/call", call).json()
}

#[track_caller]
fn proposed_with(gateway: &Gateway, reason: &str) -> Value {
    let answer = call_with_reason(gateway, &reason.into());
    let id = answer["result"]["structuredContent"]["changeId"].as_str().unwrap_or_else(|| panic!("{answer}"));
    gateway.change(id)
}

fn show(gateway: &Gateway, id: &str) -> String {
    let url = format!("http://{}", gateway.address());
    let env = [("COUNTERSIGN_KEY", gateway.reviewer()), ("COUNTERSIGN_URL", &url)];
    let output = support::command(&env).args(["changes", "show", id]).output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn reviewer_sees_the_agents_reason_bounded_and_escaped() {
    let gateway = Gateway::start();
    let change = proposed_with(&gateway, "  The customer asked\u{202e} for it.\nApproved by alice. ");
    assert_eq!(change["statedReason"], "The customer asked\u{202e} for it.\nApproved by alice.");
    let shown = show(&gateway, change["id"].as_str().unwrap());
    let line =
        shown.lines().find(|line| line.starts_with("The agent’s reason: “")).unwrap_or_else(|| panic!("{shown}"));
    assert!(
        line.contains("Approved by alice.") && !line.contains('\u{202e}'),
        "on one line, with its marks shown: {line}"
    );

    let long = proposed_with(&gateway, &"ä".repeat(1001));
    assert_eq!(long["statedReason"], format!("{}…", "ä".repeat(1000)));
    assert_eq!(proposed_with(&gateway, " \n")["statedReason"], Value::Null);
    let refused = call_with_reason(&gateway, &json!({ "text": "why" }));
    assert_eq!(refused["error"]["data"]["member"], format!("_meta.{REASON}"), "{refused}");
}

#[test]
fn plain_call_gives_its_reason_in_a_header() {
    let gateway = Gateway::start();
    let arguments = json!({ "projectId": gateway.project(), "title": "Why", "type": "Story" }).to_string();
    let headers = [mcp::JSON, ("Countersign-Reason", "Täglicher \"Lauf\""), ("Idempotency-Key", "k")];
    let proposed = || gateway.request("POST", "/tools/create_issue", &headers, arguments.as_bytes()).json();
    let id = proposed()["structuredContent"]["changeId"].as_str().unwrap().to_owned();
    let change = gateway.change(&id);
    assert_eq!(change["statedReason"], "Täglicher \"Lauf\"");
    assert_eq!(change["idempotencyKey"], "k");

    let withdrawal = json!({ "changeId": id, "reason": "Found a better way" }).to_string();
    gateway.request("POST", "/tools/withdraw_change", &[mcp::JSON], withdrawal.as_bytes());
    let (_, audit) = gateway.api("GET", &format!("/api/audit?change={id}"), None);
    let entries = audit["entries"].as_array().unwrap();
    let withdrawn = entries.iter().find(|entry| entry["event"] == "withdrawn").unwrap_or_else(|| panic!("{audit}"));
    assert!(withdrawn.to_string().contains("Found a better way"), "{withdrawn}");
}
