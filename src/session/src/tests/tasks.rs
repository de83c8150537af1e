//! Changes and local tool calls as tasks.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::bench::{Bench, ask, ask_error, pause};
use crate::gateway::server::RequestScope;
use countersign_auth::keys;
use countersign_domain::{
    changes::{ChangeState, ReviewVerdict},
    principal::{Credential, Role},
};
use countersign_exchange::testing::take_sent_messages;
use countersign_protocol::Revision;

const LEGACY: Revision = Revision::V2025_11_25;
const MODERN: Revision = Revision::MODERN;
const TASKS_CAPABILITY: &str = r#"{"extensions":{"io.modelcontextprotocol/tasks":{}}}"#;
/// A policy that lets some calls of `write` run and reviews all others.
const RUN_ONLY_TARGET_RUN: &str =
    "policy: { rules: [{ tools: write, when: 'arguments.target == \"run\"', then: allow }] }";

fn write(target: &str) -> Value {
    json!({ "name": "write", "arguments": { "target": target }, "task": {} })
}

async fn create_task(client: &RequestScope, target: &str) -> String {
    let result = ask(client, "tools/call", &write(target)).await;
    let task = if client.exchange.is_modern() { &result } else { &result["task"] };
    assert_eq!(task["status"], "working", "{result}");
    task["taskId"].as_str().unwrap().to_owned()
}

async fn status(client: &RequestScope, id: &str) -> Value {
    ask(client, "tasks/get", &json!({ "taskId": id })).await["status"].clone()
}

#[actix::test]
async fn change_is_task_of_its_proposer_until_it_ends() {
    let bench = Bench::new("").await;
    for (revision, capabilities) in [(LEGACY, "{}"), (MODERN, TASKS_CAPABILITY)] {
        let client = bench.client(revision, capabilities);
        let id = create_task(&client, "t").await;
        assert!(id.starts_with("chg_"));
        assert_eq!(status(&client, &id).await, "working");
        let bob = bench.client_of("bob", revision, capabilities);
        assert_eq!(ask_error(&bob, "tasks/get", &json!({ "taskId": id })).await.0, -32602);
        let change = bench.server.reviews.changes.get(&id).await.unwrap().unwrap();
        bench.decide(&change, ReviewVerdict::Approve).await;
        bench.wait_for_state(&id, ChangeState::Applied).await;
        assert_eq!(status(&client, &id).await, "completed");
        if revision == LEGACY {
            let result = ask(&client, "tasks/result", &json!({ "taskId": id })).await;
            assert_eq!(result["content"][0]["text"], "done for ann");
            assert_eq!(result["_meta"]["io.modelcontextprotocol/related-task"]["taskId"], id.as_str());
        } else {
            let task = ask(&client, "tasks/get", &json!({ "taskId": id })).await;
            assert_eq!(task["result"]["content"][0]["text"], "done for ann");
        }
    }
    assert_eq!(ask_error(&bench.client(MODERN, "{}"), "tasks/get", &json!({ "taskId": "chg_x" })).await.0, -32021);
}

#[actix::test]
async fn session_that_created_task_is_notified_of_transitions() {
    let bench = Bench::new("").await;
    let client = bench.client(LEGACY, "{}");
    let mut call = write("t");
    call["_meta"] = json!({ "progressToken": 5 });
    ask(&client, "tools/call", &call).await;
    let change = bench.change().await;
    bench.decide(&change, ReviewVerdict::Reject).await;
    let mut messages = Vec::new();
    while !messages.iter().any(|message: &Value| message["params"]["status"] == "failed") {
        messages.extend(take_sent_messages(&client.exchange));
        pause().await;
    }
    assert!(messages.iter().any(|message| message["params"]["progressToken"] == 5), "{messages:?}");
}

#[actix::test]
async fn pending_task_can_be_cancelled_and_ended_one_cannot() {
    let bench = Bench::new("").await;
    let client = bench.client(LEGACY, "{}");
    let id = create_task(&client, "t").await;
    let task = json!({ "taskId": id });
    assert_eq!(ask(&client, "tasks/cancel", &task).await["status"], "cancelled");
    bench.wait_for_state(&id, ChangeState::Withdrawn).await;
    assert_eq!(ask_error(&client, "tasks/cancel", &task).await.0, -32602);
    assert_eq!(ask_error(&client, "tasks/result", &task).await.1, "CANCELLED");
    // The stateless era acknowledges every cancellation.
    let client = bench.client(MODERN, TASKS_CAPABILITY);
    let id = create_task(&client, "t").await;
    for _ in 0..2 {
        ask(&client, "tasks/cancel", &json!({ "taskId": id })).await;
    }
    assert_eq!(status(&client, &id).await, "cancelled");
}

#[actix::test]
async fn wait_for_result_ends_with_shutdown() {
    let bench = Bench::new("").await;
    let client = bench.client(LEGACY, "{}");
    let task = json!({ "taskId": create_task(&client, "t").await });
    let ending = async {
        pause().await;
        bench.server.long_requests.shutdown.cancel();
    };
    let ((_, code, data), ()) = tokio::join!(ask_error(&client, "tasks/result", &task), ending);
    assert_eq!((code.as_str(), data.get("started")), ("SHUTTING_DOWN", None), "the request was begun");
}

#[actix::test]
async fn admitted_call_runs_as_local_task() {
    let bench = Bench::new(RUN_ONLY_TARGET_RUN).await;
    let client = bench.client(LEGACY, "{}");
    bench.fake.gate.forget_permits(1_000_000);
    let id = create_task(&client, "run").await;
    assert!(id.starts_with("run_"));
    assert_eq!(status(&client, &id).await, "working");
    bench.fake.gate.add_permits(1);
    let result = ask(&client, "tasks/result", &json!({ "taskId": id })).await;
    assert_eq!(result["content"][0]["text"], "done for ann");
    assert_eq!(status(&client, &id).await, "completed");
    assert_eq!(bench.fake.call_count(), 1, "reading the result does not run the tool again");
    let bob = bench.client_of("bob", LEGACY, "{}");
    assert_eq!(ask_error(&bob, "tasks/get", &json!({ "taskId": id })).await.0, -32602);
    let listed = ask(&client, "tasks/list", &json!({})).await;
    assert_eq!(listed["tasks"].as_array().unwrap().len(), 1);
    assert_eq!(ask(&bob, "tasks/list", &json!({})).await["tasks"], json!([]));
}

#[actix::test]
async fn running_task_is_never_dropped_for_another() {
    let bench = Bench::new(RUN_ONLY_TARGET_RUN).await;
    let client = bench.client(LEGACY, "{}");
    bench.fake.gate.forget_permits(1_000_000);
    let mut ids = Vec::new();
    for _ in 0..100 {
        ids.push(create_task(&client, "run").await);
    }
    assert_eq!(ask_error(&client, "tools/call", &write("run")).await.1, "OVERLOADED");
    let first = json!({ "taskId": ids[0] });
    assert_eq!(ask(&client, "tasks/cancel", &first).await["status"], "cancelled");
    assert_eq!(ask_error(&client, "tasks/cancel", &first).await.0, -32602);
    assert_eq!(ask_error(&client, "tasks/result", &first).await.1, "CANCELLED");
    // A task that has ended makes room for another one.
    create_task(&client, "run").await;
    assert_eq!(ask_error(&client, "tasks/get", &first).await.0, -32602);
    assert_eq!(status(&client, &ids[1]).await, "working");
}

#[actix::test]
async fn local_task_ends_when_its_key_is_revoked() {
    let bench = Bench::new(RUN_ONLY_TARGET_RUN).await;
    let new = keys::create("ann", Role::Agent, Timestamp::now()).unwrap();
    bench.keys.writer().insert(&new.key, &new.hash).unwrap();
    let mut client = bench.client(LEGACY, "{}");
    client.exchange.identity.credential = Credential::Key(new.hash);
    bench.fake.gate.forget_permits(1_000_000);
    let id = create_task(&client, "run").await;
    bench.keys.writer().revoke(&new.key.id, Timestamp::now()).unwrap();
    let other_client = bench.client(LEGACY, "{}");
    let id = json!({ "taskId": id });
    let end = ask_error(&other_client, "tasks/result", &id);
    assert_eq!(tokio::time::timeout(Duration::from_secs(10), end).await.unwrap().1, "CANCELLED");
}

#[actix::test]
async fn tool_without_review_does_not_run_as_task() {
    let bench = Bench::new("").await;
    let client = bench.client(LEGACY, "{}");
    let (number, _, data) = ask_error(&client, "tools/call", &json!({ "name": "read", "task": {} })).await;
    assert_eq!((number, &data["execution"]["taskSupport"]), (-32601, &json!("forbidden")));
    assert_eq!(ask_error(&client, "tasks/get", &json!({})).await.0, -32602, "the request names no task");
}
