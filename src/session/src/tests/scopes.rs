//! Tests of the requests that the scopes of access tokens permit.

use serde_json::json;

use super::bench::{Bench, ask, ask_error};
use crate::gateway::server::RequestScope;
use countersign_domain::principal::{Credential, Role, Scope};
use countersign_exchange::testing::token_identity;
use countersign_protocol::Revision;

const REVISIONS: [Revision; 2] = [Revision::V2025_11_25, Revision::MODERN];

/// Returns a client whose token has these scopes and does not expire.
fn client(bench: &Bench, revision: Revision, role: Role, scopes: &[Scope]) -> RequestScope {
    let mut client = bench.client(revision, "{}");
    client.exchange.identity = token_identity("ann", role, scopes, i64::MAX);
    client.exchange.identity.credential = Credential::Loopback;
    client
}

#[actix::test]
async fn every_request_needs_the_scope_to_read() {
    let bench = Bench::new("").await;
    for revision in REVISIONS {
        let reviewer = client(&bench, revision, Role::Reviewer, &[Scope::ChangesDecide]);
        for (method, params) in [
            ("tools/list", json!({})),
            ("tools/call", json!({ "name": "read", "arguments": {} })),
            ("resources/read", json!({ "uri": "f://a" })),
        ] {
            let (_, code, data) = ask_error(&reviewer, method, &params).await;
            assert_eq!((code.as_str(), &data["scope"]), ("FORBIDDEN", &json!("tools:read")), "{method}");
        }
        let agent = client(&bench, revision, Role::Agent, &[Scope::ToolsRead]);
        ask(&agent, "tools/list", &json!({})).await;
        ask(&agent, "tools/call", &json!({ "name": "read", "arguments": {} })).await;
    }
}

#[actix::test]
async fn reviewed_call_needs_the_scope_to_propose() {
    for policy in ["", "policy: { rules: [{ tools: write, then: review, on_review: hold, hold_for: 10m }] }"] {
        let bench = Bench::new(policy).await;
        let write = json!({ "name": "write", "arguments": { "target": "t" } });
        for revision in REVISIONS {
            let agent = client(&bench, revision, Role::Agent, &[Scope::ToolsRead]);
            let (_, code, data) = ask_error(&agent, "tools/call", &write).await;
            assert_eq!((code.as_str(), &data["scope"]), ("FORBIDDEN", &json!("tools:read tools:propose")));
        }
        assert!(bench.changes().await.is_empty());
    }
    let bench = Bench::new("").await;
    let agent = client(&bench, Revision::MODERN, Role::Agent, &[Scope::ToolsPropose]);
    let write = json!({ "name": "write", "arguments": { "target": "t" } });
    let result = ask(&agent, "tools/call", &write).await;
    assert_eq!(result["structuredContent"]["status"], "pending");
}

#[actix::test]
async fn task_of_reviewed_call_needs_the_scope_to_propose() {
    let bench = Bench::new("").await;
    let agent = client(&bench, Revision::V2025_11_25, Role::Agent, &[Scope::ToolsRead]);
    let write = json!({ "name": "write", "arguments": { "target": "t" }, "task": {} });
    assert_eq!(ask_error(&agent, "tools/call", &write).await.1, "FORBIDDEN");
    assert!(bench.changes().await.is_empty());
}

#[actix::test]
async fn cancelled_change_needs_the_scope_to_propose() {
    let bench = Bench::new("").await;
    let agent = |scope| client(&bench, Revision::V2025_11_25, Role::Agent, &[scope]);
    let write = json!({ "name": "write", "arguments": { "target": "t" }, "task": {} });
    let created = ask(&agent(Scope::ToolsPropose), "tools/call", &write).await;
    let task = json!({ "taskId": created["task"]["taskId"] });
    let (_, code, data) = ask_error(&agent(Scope::ToolsRead), "tasks/cancel", &task).await;
    assert_eq!((code.as_str(), &data["scope"]), ("FORBIDDEN", &json!("tools:read tools:propose")));
    assert_eq!(ask(&agent(Scope::ToolsPropose), "tasks/cancel", &task).await["status"], "cancelled");
}

#[actix::test]
async fn missing_arguments_need_the_scope_to_propose() {
    let bench = Bench::new("policy: { rules: [{ tools: write, then: review, questions: ask }] }").await;
    let mut agent = bench.client(Revision::MODERN, r#"{"elicitation":{"form":{}}}"#);
    let incomplete = json!({ "name": "write", "arguments": {} });
    assert_eq!(ask(&agent, "tools/call", &incomplete).await["resultType"], "input_required");
    agent.exchange.identity = token_identity("ann", Role::Agent, &[Scope::ToolsRead], i64::MAX);
    agent.exchange.identity.credential = Credential::Loopback;
    let (_, code, _) = ask_error(&agent, "tools/call", &incomplete).await;
    assert_eq!(code, "FORBIDDEN");
}
