//! Calls that an agent announces as a plan, all at once or one by one.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
    time::Duration,
};

use serde_json::{Value, json, value::RawValue};

use super::bench::{Bench, ask, ask_error};
use countersign_domain::changes::{CertainFailure, Change, ChangeState, ReviewVerdict};
use countersign_protocol::Revision;
use countersign_provider::testing::{FakeProvider, tool};
use countersign_review::gateway_tools::{PROPOSE_PLAN, tool_definitions};
use countersign_routing::RouteTarget;

const LEGACY: Revision = Revision::V2025_11_25;
const HOLD_POLICY: &str = "policy: { rules: [{ tools: write, then: review, on_review: hold, hold_for: 10m }] }";

/// Creates a module with the tool `put`. Its preview shows that a call with `missing` must fail, and so must the second one at a
/// target that begins with `once`.
fn strict() -> FakeProvider {
    let previewed = Mutex::new(BTreeSet::new());
    let preview = move |_: &str, arguments: &RawValue| {
        let mut preview = FakeProvider::new("strict").current_preview(arguments);
        let text = arguments.get();
        let is_second = text.contains("once") && !previewed.lock().unwrap().insert(text.to_owned());
        if text.contains("missing") || is_second {
            preview.note.failed = Some("There is no such thing".into());
            preview.note.must_fail = Some(CertainFailure::Readable);
        }
        Ok(preview)
    };
    let strict = FakeProvider { preview_script: Some(Box::new(preview)), ..FakeProvider::new("strict") };
    let arguments = json!({ "target": { "type": "string" }, "missing": { "type": "boolean" } });
    strict.tools.lock().unwrap().push(tool("put", &arguments));
    strict
}

fn put(target: &str, missing: bool) -> Value {
    let arguments = if missing { json!({ "target": target, "missing": true }) } else { json!({ "target": target }) };
    json!({ "name": "put", "arguments": arguments })
}

/// Creates a gateway that also lists `propose_plan`, and the tool of [`strict`].
async fn bench(config: &str) -> Bench {
    let bench = Bench::new(config).await;
    let gateway = FakeProvider::new("gateway");
    let tools = tool_definitions(Duration::from_secs(1)).into_iter().filter(|tool| tool.name == PROPOSE_PLAN);
    gateway.tools.lock().unwrap().extend(tools);
    let modules = [Arc::clone(&bench.fake), Arc::new(gateway), Arc::new(strict())];
    bench.offer(modules.into_iter().map(|module| RouteTarget::Module(module as _)).collect()).await;
    bench
}

fn write(target: &str) -> Value {
    json!({ "name": "write", "arguments": { "target": target } })
}

async fn propose(bench: &Bench, calls: &[Value]) -> Value {
    let arguments = json!({ "title": "Move", "reason": "because", "calls": calls });
    let params = json!({ "name": PROPOSE_PLAN, "arguments": arguments });
    ask(&bench.client(LEGACY, "{}"), "tools/call", &params).await
}

/// Returns the changes of the only plan in its order.
async fn steps(bench: &Bench) -> Vec<Arc<Change>> {
    let mut changes = bench.changes().await;
    changes.sort_by_key(|change| change.plan.as_ref().unwrap().index);
    changes
}

#[actix::test]
async fn all_calls_of_a_plan_become_changes() {
    let bench = bench("policy: { review: { own_agents: allow } }").await;
    let result = propose(&bench, &[json!({ "name": "read", "arguments": { "n": 1 } }), write("t")]).await;
    let plan = &result["structuredContent"];
    let steps = steps(&bench).await;
    assert_eq!(plan["planId"], steps[0].plan.as_ref().unwrap().id, "{result}");
    let statuses: Vec<&Value> = plan["changes"].as_array().unwrap().iter().map(|step| &step["status"]).collect();
    assert_eq!(statuses, ["approved", "pending"]);
    assert!(steps[0].is_allowed_step() && steps[0].terms.own_agents, "it has the terms of policy.review");
    let note = steps[0].review.as_ref().unwrap();
    assert!(note.reason.contains("the policy allows it without a review"), "{note:?}");
    assert_eq!(bench.fake.call_count(), 0, "the allowed call waits too");
    bench.decide(&steps[1], ReviewVerdict::Approve).await;
    bench.wait_for_state(&steps[1].id, ChangeState::Applied).await;
    let calls: Vec<String> = bench.fake.received_calls.lock().unwrap().iter().map(|(tool, _)| tool.clone()).collect();
    assert_eq!(calls, ["read", "write"]);
}

#[actix::test]
async fn refused_call_refuses_the_whole_plan() {
    let bench = bench("policy: { rules: [{ tools: read, then: deny }] }").await;
    let own = json!({ "name": PROPOSE_PLAN, "arguments": {} });
    for (bad, code) in [
        (json!({ "name": "read", "arguments": { "n": 1 } }), "POLICY_DENIED"),
        (json!({ "name": "write", "arguments": {} }), "VALIDATION_FAILED"),
        (json!({ "name": "write", "arguments": { "target": { "$from": 1, "pointer": "/id" } } }), "VALIDATION_FAILED"),
        (json!({ "name": "nothing" }), "TOOL_NOT_FOUND"),
        (own, "VALIDATION_FAILED"),
    ] {
        let result = propose(&bench, &[write("t"), bad.clone()]).await;
        let error = &result["structuredContent"];
        let text = result.to_string();
        assert!(result["isError"] == true && text.contains(code), "{bad}: {result}");
        assert!(text.contains("Call 1 of the plan"), "{bad}: {error}");
    }
    assert!(bench.changes().await.is_empty());
    let reference = json!({ "name": "write", "arguments": { "target": { "$from": 0, "pointer": "/id" } } });
    let result = propose(&bench, &[write("t"), reference]).await;
    assert_eq!(result["structuredContent"]["changes"].as_array().unwrap().len(), 2, "{result}");
}

#[actix::test]
async fn calls_that_name_a_plan_are_not_held() {
    let bench = bench(HOLD_POLICY).await;
    let client = bench.client(LEGACY, "{}");
    let call = |mut call: Value, last: bool| {
        call["_meta"] = json!({ "dev.countersign/plan": { "id": "mine", "title": "Move", "last": last } });
        call
    };
    let first = ask(&client, "tools/call", &call(write("t"), false)).await;
    assert_eq!(first["structuredContent"]["status"], "pending", "{first}");
    assert_eq!(first["structuredContent"]["plan"]["step"], 0, "{first}");
    let read = json!({ "name": "read", "arguments": { "n": 1 } });
    let last = ask(&client, "tools/call", &call(read.clone(), true)).await;
    assert_eq!(last["structuredContent"]["status"], "approved", "{last}");
    assert_eq!(last["structuredContent"]["plan"]["last"], true, "{last}");
    assert_eq!(bench.fake.call_count(), 0);
    let steps = steps(&bench).await;
    bench.decide(&steps[0], ReviewVerdict::Approve).await;
    bench.wait_for_state(&steps[1].id, ChangeState::Applied).await;

    let other = bench.client_of("eve", LEGACY, "{}");
    let result = ask(&other, "tools/call", &call(read, true)).await;
    assert_eq!(result["structuredContent"]["plan"]["step"], 0, "another principal has another plan: {result}");
    for bad in [json!({}), json!({ "id": 1, "title": "x" }), json!({ "id": "", "title": "x" }), json!("x")] {
        let mut params = write("t");
        params["_meta"] = json!({ "dev.countersign/plan": bad });
        let (_, code, _) = ask_error(&client, "tools/call", &params).await;
        assert_eq!(code, "INVALID_PARAMS", "{bad}");
    }
}

#[actix::test]
async fn denied_call_ends_the_plan_that_it_names() {
    let bench = bench("policy: { rules: [{ tools: read, then: deny }] }").await;
    let client = bench.client(LEGACY, "{}");
    let meta = json!({ "dev.countersign/plan": { "id": "mine", "title": "Move" } });
    let mut params = write("t");
    params["_meta"] = meta.clone();
    let denied = json!({ "name": "read", "arguments": { "n": 1 }, "_meta": meta });
    assert_eq!(ask(&client, "tools/call", &denied).await["isError"], true);
    let first = ask(&client, "tools/call", &params).await;
    assert_eq!(first["structuredContent"]["plan"]["step"], 0, "there was no plan to end yet: {first}");
    assert_eq!(ask(&client, "tools/call", &denied).await["isError"], true);
    let step = bench.change().await;
    let withdrawn = bench.wait_for_state(&step.id, ChangeState::Withdrawn).await;
    assert_eq!(withdrawn.fault.as_ref().unwrap().code, "PLAN_STOPPED");
    let late = ask(&client, "tools/call", &params).await;
    assert!(late["isError"] == true && late.to_string().contains("PLAN_STOPPED"), "{late}");
}

#[actix::test]
async fn plan_with_an_idempotency_key_is_proposed_once() {
    let bench = bench("").await;
    let client = bench.client(LEGACY, "{}");
    let arguments = json!({ "title": "Move", "calls": [write("t")] });
    let meta = json!({ "dev.countersign/idempotencyKey": "k" });
    let params = json!({ "name": PROPOSE_PLAN, "arguments": arguments, "_meta": meta });
    let first = ask(&client, "tools/call", &params).await;
    let again = ask(&client, "tools/call", &params).await;
    assert_eq!(first["structuredContent"]["planId"], again["structuredContent"]["planId"], "{again}");
    assert_eq!(bench.changes().await.len(), 1);
}

#[actix::test]
async fn repeat_with_a_key_is_answered_before_its_preview() {
    let bench = bench("").await;
    let client = bench.client(LEGACY, "{}");
    let plan = json!({ "name": PROPOSE_PLAN, "arguments": { "title": "Move", "calls": [put("once c", false)] } });
    let (call, mut step) = (put("once a", false), put("once b", false));
    step["_meta"] = json!({ "dev.countersign/plan": { "id": "mine", "title": "Move", "last": true } });
    for (key, mut params) in [("a", call), ("b", step), ("c", plan)] {
        params["_meta"]["dev.countersign/idempotencyKey"] = key.into();
        let first = ask(&client, "tools/call", &params).await;
        let again = ask(&client, "tools/call", &params).await;
        let id = if key == "c" { "planId" } else { "changeId" };
        assert!(first["structuredContent"][id].is_string(), "{key}: {first}");
        assert_eq!(again["structuredContent"][id], first["structuredContent"][id], "{key}: {again}");
    }
    assert_eq!(bench.changes().await.len(), 3);
}

#[actix::test]
async fn call_that_must_fail_refuses_the_whole_plan() {
    let bench = bench("").await;
    let result = propose(&bench, &[write("t"), put("u", true)]).await;
    let text = result.to_string();
    assert_eq!(result["isError"], true, "{result}");
    for part in ["CALL_MUST_FAIL", "Call 1 of the plan", "There is no such thing"] {
        assert!(text.contains(part), "{part}: {result}");
    }
    assert!(bench.changes().await.is_empty());
    let trail = bench.server.reviews.changes.audit_after(0, 100).await.unwrap();
    assert!(trail.iter().any(|entry| entry.event == "failing_call_returned"), "{trail:?}");
    // The first call may do what the second one needs.
    let result = propose(&bench, &[put("u", false), put("u", true)]).await;
    assert_eq!(result["structuredContent"]["changes"].as_array().unwrap().len(), 2, "{result}");
}

#[actix::test]
async fn call_that_must_fail_is_returned_and_its_plan_continues() {
    let bench = bench("").await;
    let client = bench.client(LEGACY, "{}");
    let call = |mut call: Value, last: bool| {
        call["_meta"] = json!({ "dev.countersign/plan": { "id": "mine", "title": "Move", "last": last } });
        call
    };
    ask(&client, "tools/call", &call(put("t", false), false)).await;
    let returned = ask(&client, "tools/call", &call(put("u", true), false)).await;
    assert!(returned["isError"] == true && returned.to_string().contains("CALL_MUST_FAIL"), "{returned}");
    let next = ask(&client, "tools/call", &call(put("t", true), true)).await;
    assert_eq!(next["structuredContent"]["plan"]["step"], 1, "an earlier step writes its target: {next}");
    assert_eq!(steps(&bench).await.len(), 2);
}
