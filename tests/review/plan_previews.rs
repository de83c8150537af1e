//! Tests that the steps of a plan are previewed over what its earlier steps write, through the real program and a server with
//! recipes.

use serde_json::{Value, json};
use support::{Gateway, eventually};

use crate::verification::{WRITE_RECIPE, start_with};

/// The recipe of the tool that appends to a text.
const APPEND_RECIPE: &str = "      append:
        target: arguments.path
        before: { tool: read, arguments: { path: arguments.path } }
        after: before + arguments.text
";

fn start() -> (Gateway, tempfile::TempDir) {
    let allow_reads = "policy:\n  rules:\n    - { tools: texts__read, then: allow }\n";
    start_with(allow_reads, &format!("{WRITE_RECIPE}{APPEND_RECIPE}"))
}

/// Proposes a plan of calls, each with a path and a text, and returns its id and its changes.
fn propose(gateway: &Gateway, calls: &[(&str, &str, &str)]) -> (String, Vec<Value>) {
    let calls: Vec<Value> = calls
        .iter()
        .map(|(tool, path, text)| json!({ "name": format!("texts__{tool}"), "arguments": { "path": path, "text": text } }))
        .collect();
    let plan = gateway.tool("propose_plan", json!({ "title": "Texts", "calls": calls }));
    let id = plan["planId"].as_str().unwrap().to_owned();
    let (status, shown) = gateway.api("GET", &format!("/api/plans/{id}"), None);
    assert_eq!(status, 200, "{shown}");
    (id, shown["changes"].as_array().unwrap().clone())
}

fn approve_all(gateway: &Gateway, plan: &str, steps: &[Value]) {
    let digests: Vec<Value> =
        steps.iter().map(|step| json!({ "change": step["id"], "digest": step["digest"] })).collect();
    let body = json!({ "decision": "approve", "digests": digests });
    let (status, answer) = gateway.api("POST", &format!("/api/plans/{plan}/decision"), Some(&body));
    assert_eq!(status, 200, "{answer}");
}

/// Waits until a person has to look at an approved step again, and returns it.
fn wait_for_new_review(gateway: &Gateway, step: &Value) -> Value {
    let id = step["id"].as_str().unwrap();
    eventually("the step waits for a new review", || {
        Some(gateway.change(id)).filter(|change| change["state"] == "pending" && change["digest"] != step["digest"])
    })
}

fn values(step: &Value) -> (Value, Value, Value) {
    let field = step["diff"]["fields"].as_array().unwrap().iter().find(|field| field["field"] == "$content").unwrap();
    (step["operation"].clone(), field["before"].clone(), field["after"].clone())
}

fn note(step: &Value) -> Option<&str> {
    let field = &step["diff"]["fields"][0];
    (field["field"] == "$plan").then(|| field["lines"][0]["text"].as_str().unwrap())
}

fn text(gateway: &Gateway, path: &str) -> String {
    gateway.modern(1, "tools/call", json!({ "name": "texts__read", "arguments": { "path": path } })).json()["result"]
        ["content"][0]["text"]
        .as_str()
        .unwrap()
        .to_owned()
}

#[test]
fn step_runs_on_the_state_that_an_earlier_step_leaves() {
    let (gateway, _dir) = start();
    let (plan, steps) =
        propose(&gateway, &[("write", "plain", "one\n"), ("write", "plain", "two\n"), ("write", "other", "x")]);
    assert_eq!(values(&steps[0]), (json!("CREATE"), Value::Null, json!("one\n")));
    assert_eq!(values(&steps[1]), (json!("UPDATE"), json!("one\n"), json!("two\n")));
    assert_eq!(values(&steps[2]), (json!("CREATE"), Value::Null, json!("x")), "it is another text");
    approve_all(&gateway, &plan, &steps);
    for step in &steps {
        let applied = gateway.wait_for_state(step["id"].as_str().unwrap(), "applied");
        assert_eq!(applied["digest"], step["digest"], "nobody had to look again");
    }
    assert_eq!(text(&gateway, "plain"), "two\n");
}

#[test]
fn step_waits_if_the_state_is_not_as_shown() {
    let (gateway, _dir) = start();
    // The server writes another text than the one that it got, as somebody else could do between the steps.
    let (plan, steps) = propose(&gateway, &[("write", "tidy", "one\n"), ("write", "tidy", "two\n")]);
    approve_all(&gateway, &plan, &steps);
    let second = wait_for_new_review(&gateway, &steps[1]);
    assert_eq!(values(&second), (json!("UPDATE"), json!("one"), json!("two\n")));
    assert_eq!(text(&gateway, "tidy"), "one", "the second step has not run");
    let id = second["id"].as_str().unwrap();
    gateway.decide(id, "approve");
    gateway.wait_for_state(id, "applied");
    assert_eq!(text(&gateway, "tidy"), "two");
}

#[test]
fn step_that_depends_on_an_earlier_one_waits_for_review() {
    let (gateway, _dir) = start();
    let first = propose(&gateway, &[("write", "plain", "one")]);
    approve_all(&gateway, &first.0, &first.1);
    gateway.wait_for_state(first.1[0]["id"].as_str().unwrap(), "applied");
    let (plan, steps) = propose(&gateway, &[("write", "plain", "two"), ("append", "plain", "!")]);
    assert_eq!(values(&steps[1]), (json!("UPDATE"), json!("one"), json!("one!")));
    let expected =
        "Step 1 writes the same target. This shows the state before it, and a person is asked again once it has run.";
    assert_eq!((note(&steps[0]), note(&steps[1])), (None, Some(expected)));
    approve_all(&gateway, &plan, &steps);
    let second = wait_for_new_review(&gateway, &steps[1]);
    assert_eq!((values(&second), note(&second)), ((json!("UPDATE"), json!("two"), json!("two!")), None));
    assert_eq!(text(&gateway, "plain"), "two", "the second step has not run");
    let id = second["id"].as_str().unwrap();
    gateway.decide(id, "approve");
    gateway.wait_for_state(id, "applied");
    assert_eq!(text(&gateway, "plain"), "two!");
}
