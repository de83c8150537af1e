//! What stands around each request, and what the policy makes of it.

use serde_json::{Value, json};

use super::bench::{Bench, ask, refused};
use crate::policy::{self, Counted, Gate};
use countersign_domain::{policy::Verdict, principal::Role};
use countersign_protocol::Revision;

const OLD: Revision = Revision::V2025_11_25;
const NEW: Revision = Revision::MODERN;

fn write() -> Value {
    json!({ "name": "write", "arguments": { "target": "t" } })
}

#[actix::test]
async fn whoever_only_watches_uses_no_tools() {
    let bench = Bench::new("policy: { default: allow }").await;
    for (role, may) in [(Role::Viewer, false), (Role::Agent, true), (Role::Reviewer, true), (Role::Admin, true)] {
        let client = bench.client_as(role, OLD);
        let before = bench.fake.call_count();
        if may {
            ask(&client, "tools/call", &write()).await;
        } else {
            assert_eq!(refused(&client, "tools/call", &write()).await.1, "FORBIDDEN");
            assert_eq!(refused(&client, "ping", &json!({})).await.1, "FORBIDDEN");
        }
        assert_eq!(bench.fake.call_count() - before, usize::from(may), "{role:?}");
    }
}

#[actix::test]
async fn each_principal_has_its_rate_and_is_told_when_to_come_again() {
    let bench = Bench::new("limits: { rate_per_second: 1, rate_burst: 2 }").await;
    let ann = bench.client(OLD, "{}");
    for _ in 0..2 {
        ask(&ann, "ping", &json!({})).await;
    }
    let (_, code, data) = refused(&ann, "ping", &json!({})).await;
    assert_eq!((code.as_str(), data["retryAfter"].is_u64()), ("RATE_LIMITED", true));
    // Another connection of hers is hers too; bob is somebody else.
    assert_eq!(refused(&bench.client(NEW, "{}"), "tools/list", &json!({})).await.1, "RATE_LIMITED");
    ask(&bench.client_of("bob", OLD, "{}"), "ping", &json!({})).await;
}

#[actix::test]
async fn a_gateway_that_ends_takes_nothing_new() {
    let bench = Bench::new("").await;
    bench.server.long_requests.shutdown.cancel();
    let client = bench.client(OLD, "{}");
    assert_eq!(refused(&client, "tools/call", &json!({ "name": "read" })).await.1, "SHUTTING_DOWN");
    assert_eq!(bench.fake.call_count(), 0);
}

#[actix::test]
async fn a_method_is_one_of_its_revision_only() {
    let bench = Bench::new("").await;
    for (revision, method) in [
        (OLD, "server/discover"),
        (OLD, "subscriptions/listen"),
        (NEW, "initialize"),
        (NEW, "ping"),
        (NEW, "resources/subscribe"),
        (OLD, "acme/do"),
        (NEW, "notifications/initialized"),
    ] {
        let client = bench.client(revision, "{}");
        assert_eq!(refused(&client, method, &json!({})).await.0, -32601, "{method} in {revision:?}");
    }
}

#[actix::test]
async fn what_is_denied_runs_nowhere_is_not_listed_and_says_why() {
    let policy = "policy: { default: allow, rules: [{ name: no, tools: write, then: deny, reason: by hand }] }";
    let bench = Bench::new(policy).await;
    let client = bench.client(OLD, "{}");
    let result = ask(&client, "tools/call", &write()).await;
    assert_eq!(result["isError"], true);
    let said: Value = serde_json::from_str(result["content"][0]["text"].as_str().unwrap()).unwrap();
    assert_eq!((&said["code"], &said["details"]["rule"]), (&json!("POLICY_DENIED"), &json!("no")));
    assert!(said["details"]["reason"].as_str().unwrap().contains("by hand"));
    assert_eq!((bench.fake.call_count(), bench.changes().await.len()), (0, 0));
    let tools = ask(&client, "tools/list", &json!({})).await;
    let names: Vec<_> = tools["tools"].as_array().unwrap().iter().map(|tool| tool["name"].clone()).collect();
    assert!(names.contains(&json!("read")) && !names.contains(&json!("write")), "{names:?}");
}

#[actix::test]
async fn a_simulated_policy_stops_nothing() {
    let deny = "rules: [{ tools: write, then: deny }, { resources: \"f://*\", then: deny }]";
    let bench = Bench::new(&format!("policy: {{ mode: simulate, default: allow, {deny} }}")).await;
    let client = bench.client(OLD, "{}");
    ask(&client, "tools/call", &write()).await;
    assert_eq!(bench.fake.call_count(), 1);
    ask(&client, "resources/read", &json!({ "uri": "f://a" })).await;
    assert_eq!(ask(&client, "resources/list", &json!({})).await["resources"].as_array().unwrap().len(), 2);
}

#[actix::test]
async fn resources_and_prompts_are_used_and_shown_as_the_policy_names_them() {
    let bench =
        Bench::new("policy: { default: allow, rules: [{ resources: \"f://b\", prompts: greet, then: deny }] }").await;
    let client = bench.client(OLD, "{}");
    let listed = ask(&client, "resources/list", &json!({})).await;
    let uris: Vec<_> = listed["resources"].as_array().unwrap().iter().map(|resource| resource["uri"].clone()).collect();
    assert_eq!(uris, ["f://a"]);
    ask(&client, "resources/read", &json!({ "uri": "f://a" })).await;
    for (method, params) in [
        ("resources/read", json!({ "uri": "f://b" })),
        ("resources/subscribe", json!({ "uri": "f://b" })),
        ("prompts/get", json!({ "name": "greet", "arguments": { "whom": "x" } })),
    ] {
        assert_eq!(refused(&client, method, &params).await.1, "POLICY_DENIED", "{method}");
    }
    assert_eq!(ask(&client, "prompts/list", &json!({})).await["prompts"], json!([]));
}

#[actix::test]
async fn a_condition_sees_the_call_and_who_makes_it() {
    let rules =
        "rules: [{ tools: write, when: 'arguments.target == \"x\" && principal.name == \"ann\"', then: allow }]";
    let bench = Bench::new(&format!("policy: {{ default: review_writes, {rules} }}")).await;
    let route = bench.server.routing.routes.load().find_tool("write").unwrap();
    for (principal, target, verdict) in
        [("ann", "x", Verdict::Allow), ("ann", "y", Verdict::Review), ("bob", "x", Verdict::Review)]
    {
        let client = bench.client_of(principal, OLD, "{}");
        let arguments = serde_json::value::to_raw_value(&json!({ "target": target })).unwrap();
        let judged = policy::judge(&client, &route, &arguments).await.unwrap();
        assert_eq!(judged.verdict(), verdict, "{principal} {target}");
        let gate = judged.carry_out(&client, Counted::NotYet).unwrap();
        assert_eq!(matches!(gate, Gate::Open(_)), verdict == Verdict::Allow);
    }
}
