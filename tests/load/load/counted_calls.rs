//! Tests that a call counts once, in whatever form it is made.

use super::*;

/// Creates a rule from that change, for all such calls.
#[track_caller]
fn give_rule(gateway: &Gateway, change: &str, verdict: &str) -> String {
    let lasts = if verdict == "allow" { json!(3600) } else { Value::Null };
    let body = json!({"verdict": verdict, "arguments": "any", "principal": "same", "for": lasts});
    let (status, rule) = gateway.api("POST", &format!("/api/changes/{change}/rule"), Some(&body));
    assert_eq!(status, 200, "{rule}");
    rule["id"].as_str().unwrap().to_owned()
}

#[track_caller]
fn uses(gateway: &Gateway, rule: &str) -> u64 {
    let (_, listed) = gateway.api("GET", "/api/rules", None);
    let found = listed["rules"].as_array().unwrap().iter().find(|one| one["id"] == rule).cloned();
    found.unwrap_or_else(|| panic!("{listed}"))["uses"].as_u64().unwrap()
}

/// Makes a call as most clients do.
fn plain_call(gateway: &Gateway, call: &Value) -> Value {
    gateway.session("2025-11-25").call(1, "tools/call", call.clone())
}

/// Makes a call as a task of 2025-11-25; returns its result.
fn as_legacy_task(gateway: &Gateway, call: &Value) -> Value {
    let mut ws = Ws::open(gateway);
    let mut params = mcp::initialize_params("2025-11-25");
    params["capabilities"] = json!({"tasks": {}});
    ws.call(0, "initialize", params);
    ws.send_json(&mcp::notification("notifications/initialized"));
    let mut call = call.clone();
    call["task"] = json!({});
    let created = ws.call(1, "tools/call", call);
    match created["result"]["task"]["taskId"].as_str() {
        Some(id) => ws.call(2, "tasks/result", json!({ "taskId": id })),
        None => created,
    }
}

/// Makes a call of a stateless client that declares the extension.
fn as_extension_task(gateway: &Gateway, call: &Value) -> Value {
    let mut call = call.clone();
    call["_meta"] = json!({"io.modelcontextprotocol/clientCapabilities": {"extensions": {EXTENSION: {}}}});
    gateway.modern(7, "tools/call", call).json()
}

#[test]
fn call_uses_a_standing_rule_once_in_every_form() {
    let gateway = start_serving("", "");
    let story = json!({"projectId": gateway.project(), "title": "Counted", "type": "Story"});
    let calls = [
        json!({"name": "load__write", "arguments": {"text": "four"}}),
        json!({"name": "create_issue", "arguments": story}),
    ];
    for call in calls {
        let change = gateway.tool(call["name"].as_str().unwrap(), call["arguments"].clone());
        let change = change["changeId"].as_str().unwrap();
        let allow = give_rule(&gateway, change, "allow");
        assert_eq!(uses(&gateway, &allow), 0);
        let done = |answer: &Value| {
            assert!(answer["result"]["content"].is_array() && answer["result"]["isError"] != true, "{answer}");
        };
        done(&plain_call(&gateway, &call));
        assert_eq!(uses(&gateway, &allow), 1, "plain: {call}");
        done(&as_legacy_task(&gateway, &call));
        assert_eq!(uses(&gateway, &allow), 2, "a task of 2025-11-25: {call}");
        done(&as_extension_task(&gateway, &call));
        assert_eq!(uses(&gateway, &allow), 3, "with the extension: {call}");
        let (name, body) = (call["name"].as_str().unwrap(), call["arguments"].to_string());
        assert_eq!(gateway.request("POST", &format!("/tools/{name}"), &[JSON], body.as_bytes()).status, 200);
        assert_eq!(uses(&gateway, &allow), 4, "as one POST: {call}");
        let (status, _) = gateway.api("POST", &format!("/api/rules/{allow}/revoke"), Some(&json!({})));
        assert_eq!(status, 200);

        let deny = give_rule(&gateway, change, "deny");
        for (n, way) in [plain_call, as_legacy_task, as_extension_task].into_iter().enumerate() {
            let answer = way(&gateway, &call);
            assert!(answer.to_string().contains("POLICY_DENIED"), "{answer}");
            assert_eq!(uses(&gateway, &deny), n as u64 + 1, "denied, {n}: {call}");
        }
    }
}

/// Returns the sum of a counter over its labels.
fn counter_sum(gateway: &Gateway, name: &str) -> u64 {
    let answer = gateway.request("GET", "/metrics", &[], b"");
    let lines = answer.text();
    let of = lines.lines().filter(|line| line.starts_with(name));
    of.map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum()
}

#[test]
fn simulated_policy_counts_a_call_once() {
    let gateway = start_serving("policy: {mode: simulate}", "");
    let simulated = || counter_sum(&gateway, "countersign_policy_simulated_total");
    let project = gateway.project();
    let before = simulated();
    let story = json!({"projectId": project, "title": "Simulated", "type": "Story"});
    let calls = [
        json!({"name": "create_issue", "arguments": story}),
        json!({"name": "load__write", "arguments": {"text": "four"}}),
    ];
    let mut expected = before;
    for call in &calls {
        for way in [plain_call, as_extension_task] {
            let answer = way(&gateway, call);
            assert!(answer["result"]["content"].is_array(), "{answer}");
            expected += 1;
            assert_eq!(simulated(), expected, "{call}");
        }
    }
    // Nothing is reviewed, so the tool is not listed as a task, and a request for one is refused.
    let refusal = as_legacy_task(&gateway, &calls[1]);
    assert_eq!(refusal["error"]["code"], -32601, "{refusal}");
    assert_eq!(simulated(), expected + 1);
    // A call without a required argument goes nowhere and counts nothing.
    let mut lacking = json!({"name": "create_issue", "arguments": {"projectId": project, "type": "Story"}});
    lacking["_meta"] = json!({"io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}}});
    let answer = gateway.modern(1, "tools/call", lacking).json();
    assert!(answer.to_string().contains("VALIDATION_FAILED"), "{answer}");
    assert_eq!(simulated(), expected + 1);
}
