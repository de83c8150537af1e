//! The middleware around each request, and the decisions of the policy.

use serde_json::{Value, json};

use super::bench::{Bench, ask, ask_error};
use crate::policy::{self, Admission, Counting};
use countersign_domain::{policy::Verdict, principal::Role};
use countersign_protocol::Revision;

const LEGACY: Revision = Revision::V2025_11_25;
const MODERN: Revision = Revision::MODERN;

fn write() -> Value {
    json!({ "name": "write", "arguments": { "target": "t" } })
}

#[actix::test]
async fn viewer_may_not_use_tools() {
    let bench = Bench::new("policy: { default: allow }").await;
    for (role, is_allowed) in [(Role::Viewer, false), (Role::Agent, true), (Role::Reviewer, true), (Role::Admin, true)]
    {
        let client = bench.client_as(role, LEGACY);
        let before = bench.fake.call_count();
        if is_allowed {
            ask(&client, "tools/call", &write()).await;
        } else {
            assert_eq!(ask_error(&client, "tools/call", &write()).await.1, "FORBIDDEN");
            assert_eq!(ask_error(&client, "ping", &json!({})).await.1, "FORBIDDEN");
        }
        assert_eq!(bench.fake.call_count() - before, usize::from(is_allowed), "{role:?}");
    }
}

#[actix::test]
async fn rate_limit_is_per_principal_and_states_retry_time() {
    let bench = Bench::new("limits: { rate_per_second: 1, rate_burst: 2 }").await;
    let ann = bench.client(LEGACY, "{}");
    for _ in 0..2 {
        ask(&ann, "ping", &json!({})).await;
    }
    let (_, code, data) = ask_error(&ann, "ping", &json!({})).await;
    assert_eq!((code.as_str(), data["retryAfter"].is_u64()), ("RATE_LIMITED", true));
    // The rate covers all connections of `ann` and none of `bob`.
    assert_eq!(ask_error(&bench.client(MODERN, "{}"), "tools/list", &json!({})).await.1, "RATE_LIMITED");
    ask(&bench.client_of("bob", LEGACY, "{}"), "ping", &json!({})).await;
}

#[actix::test]
async fn draining_gateway_refuses_requests() {
    let bench = Bench::new("").await;
    bench.server.long_requests.shutdown.cancel();
    let client = bench.client(LEGACY, "{}");
    assert_eq!(ask_error(&client, "tools/call", &json!({ "name": "read" })).await.1, "SHUTTING_DOWN");
    assert_eq!(bench.fake.call_count(), 0);
}

#[actix::test]
async fn method_of_another_revision_is_unknown() {
    let bench = Bench::new("").await;
    for (revision, method) in [
        (LEGACY, "server/discover"),
        (LEGACY, "subscriptions/listen"),
        (MODERN, "initialize"),
        (MODERN, "ping"),
        (MODERN, "resources/subscribe"),
        (LEGACY, "acme/do"),
        (MODERN, "notifications/initialized"),
    ] {
        let client = bench.client(revision, "{}");
        assert_eq!(ask_error(&client, method, &json!({})).await.0, -32601, "{method} in {revision:?}");
    }
}

#[actix::test]
async fn denied_tool_is_not_listed_and_its_error_states_rule() {
    let policy = "policy: { default: allow, rules: [{ name: no, tools: write, then: deny, reason: by hand }] }";
    let bench = Bench::new(policy).await;
    let client = bench.client(LEGACY, "{}");
    let result = ask(&client, "tools/call", &write()).await;
    assert_eq!(result["isError"], true);
    let error: Value = serde_json::from_str(result["content"][0]["text"].as_str().unwrap()).unwrap();
    assert_eq!((&error["code"], &error["details"]["rule"]), (&json!("POLICY_DENIED"), &json!("no")));
    assert!(error["details"]["reason"].as_str().unwrap().contains("by hand"));
    assert_eq!((bench.fake.call_count(), bench.changes().await.len()), (0, 0));
    let tools = ask(&client, "tools/list", &json!({})).await;
    let names: Vec<_> = tools["tools"].as_array().unwrap().iter().map(|tool| tool["name"].clone()).collect();
    assert!(names.contains(&json!("read")) && !names.contains(&json!("write")), "{names:?}");
}

#[actix::test]
async fn simulated_policy_denies_nothing() {
    let deny = "rules: [{ tools: write, then: deny }, { resources: \"f://*\", then: deny }]";
    let bench = Bench::new(&format!("policy: {{ mode: simulate, default: allow, {deny} }}")).await;
    let client = bench.client(LEGACY, "{}");
    ask(&client, "tools/call", &write()).await;
    assert_eq!(bench.fake.call_count(), 1);
    ask(&client, "resources/read", &json!({ "uri": "f://a" })).await;
    assert_eq!(ask(&client, "resources/list", &json!({})).await["resources"].as_array().unwrap().len(), 2);
}

#[actix::test]
async fn policy_denies_and_hides_resources_and_prompts() {
    let bench =
        Bench::new("policy: { default: allow, rules: [{ resources: \"f://b\", prompts: greet, then: deny }] }").await;
    let client = bench.client(LEGACY, "{}");
    let listed = ask(&client, "resources/list", &json!({})).await;
    let uris: Vec<_> = listed["resources"].as_array().unwrap().iter().map(|resource| resource["uri"].clone()).collect();
    assert_eq!(uris, ["f://a"]);
    ask(&client, "resources/read", &json!({ "uri": "f://a" })).await;
    for (method, params) in [
        ("resources/read", json!({ "uri": "f://b" })),
        ("resources/subscribe", json!({ "uri": "f://b" })),
        ("prompts/get", json!({ "name": "greet", "arguments": { "whom": "x" } })),
    ] {
        assert_eq!(ask_error(&client, method, &params).await.1, "POLICY_DENIED", "{method}");
    }
    assert_eq!(ask(&client, "prompts/list", &json!({})).await["prompts"], json!([]));
}

#[actix::test]
async fn condition_can_use_arguments_and_principal() {
    let rules =
        "rules: [{ tools: write, when: 'arguments.target == \"x\" && principal.name == \"ann\"', then: allow }]";
    let bench = Bench::new(&format!("policy: {{ default: review_writes, {rules} }}")).await;
    let route = bench.server.routing.routes.load().find_tool("write").unwrap();
    for (principal, target, verdict) in
        [("ann", "x", Verdict::Allow), ("ann", "y", Verdict::Review), ("bob", "x", Verdict::Review)]
    {
        let client = bench.client_of(principal, LEGACY, "{}");
        let arguments = serde_json::value::to_raw_value(&json!({ "target": target })).unwrap();
        let judged = policy::judge(&client.exchange, &route, &arguments).await.unwrap();
        assert_eq!(judged.decision.verdict, verdict, "{principal} {target}");
        let admission = judged.apply_decision(&client.exchange, Counting::Count).unwrap();
        assert_eq!(matches!(admission, Admission::Run(_)), verdict == Verdict::Allow);
    }
}
