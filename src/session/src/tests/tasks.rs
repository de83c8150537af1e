//! Changes, and calls that run here, as tasks.

use serde_json::{Value, json};

use super::bench::{Bench, ask, pause, refused};
use crate::Handling;
use countersign_domain::changes::{ChangeState, Verdict};
use countersign_exchange::testing::sent;
use countersign_protocol::Revision;

const OLD: Revision = Revision::V2025_11_25;
const NEW: Revision = Revision::MODERN;
const DECLARES: &str = r#"{"extensions":{"io.modelcontextprotocol/tasks":{}}}"#;
/// Some calls of `write` run, others are reviewed.
const MIXED: &str = "policy: { rules: [{ tools: write, when: 'arguments.target == \"run\"', then: allow }] }";

fn write(target: &str) -> Value {
    json!({ "name": "write", "arguments": { "target": target }, "task": {} })
}

async fn created(client: &Handling, target: &str) -> String {
    let result = ask(client, "tools/call", &write(target)).await;
    let task = if client.is_modern() { &result } else { &result["task"] };
    assert_eq!(task["status"], "working", "{result}");
    task["taskId"].as_str().unwrap().to_owned()
}

async fn status(client: &Handling, id: &str) -> Value {
    ask(client, "tasks/get", &json!({ "taskId": id })).await["status"].clone()
}

#[actix::test]
async fn a_change_is_a_task_of_its_proposer_from_pending_to_its_end() {
    let bench = Bench::new("").await;
    for (revision, capabilities) in [(OLD, "{}"), (NEW, DECLARES)] {
        let client = bench.client(revision, capabilities);
        let id = created(&client, "t").await;
        assert!(id.starts_with("chg_"));
        assert_eq!(status(&client, &id).await, "working");
        let bob = bench.client_of("bob", revision, capabilities);
        assert_eq!(refused(&bob, "tasks/get", &json!({ "taskId": id })).await.0, -32602);
        let change = bench.server.reviews.changes.get(&id).await.unwrap().unwrap();
        bench.decide(&change, Verdict::Approve).await;
        bench.until(&id, ChangeState::Applied).await;
        assert_eq!(status(&client, &id).await, "completed");
        if revision == OLD {
            let result = ask(&client, "tasks/result", &json!({ "taskId": id })).await;
            assert_eq!(result["content"][0]["text"], "done for ann");
            assert_eq!(result["_meta"]["io.modelcontextprotocol/related-task"]["taskId"], id.as_str());
        } else {
            let task = ask(&client, "tasks/get", &json!({ "taskId": id })).await;
            assert_eq!(task["result"]["content"][0]["text"], "done for ann");
        }
    }
    assert_eq!(refused(&bench.client(NEW, "{}"), "tasks/get", &json!({ "taskId": "chg_x" })).await.0, -32021);
}

#[actix::test]
async fn the_session_in_which_a_task_was_made_hears_of_each_transition() {
    let bench = Bench::new("").await;
    let client = bench.client(OLD, "{}");
    let mut call = write("t");
    call["_meta"] = json!({ "progressToken": 5 });
    ask(&client, "tools/call", &call).await;
    let change = bench.change().await;
    bench.decide(&change, Verdict::Reject).await;
    let mut told = Vec::new();
    while !told.iter().any(|message: &Value| message["params"]["status"] == "failed") {
        told.extend(sent(&client));
        pause().await;
    }
    assert!(told.iter().any(|message| message["params"]["progressToken"] == 5), "{told:?}");
}

#[actix::test]
async fn what_nobody_has_decided_on_can_be_cancelled_and_what_is_over_cannot() {
    let bench = Bench::new("").await;
    let client = bench.client(OLD, "{}");
    let id = created(&client, "t").await;
    let task = json!({ "taskId": id });
    assert_eq!(ask(&client, "tasks/cancel", &task).await["status"], "cancelled");
    bench.until(&id, ChangeState::Withdrawn).await;
    assert_eq!(refused(&client, "tasks/cancel", &task).await.0, -32602);
    assert_eq!(refused(&client, "tasks/result", &task).await.1, "CANCELLED");
    // In the stateless era a cancellation is acknowledged whatever comes of it.
    let client = bench.client(NEW, DECLARES);
    let id = created(&client, "t").await;
    for _ in 0..2 {
        ask(&client, "tasks/cancel", &json!({ "taskId": id })).await;
    }
    assert_eq!(status(&client, &id).await, "cancelled");
}

#[actix::test]
async fn a_call_that_is_let_through_runs_here_as_a_task() {
    let bench = Bench::new(MIXED).await;
    let client = bench.client(OLD, "{}");
    bench.fake.gate.forget_permits(1_000_000);
    let id = created(&client, "run").await;
    assert!(id.starts_with("run_"));
    assert_eq!(status(&client, &id).await, "working");
    bench.fake.gate.add_permits(1);
    let result = ask(&client, "tasks/result", &json!({ "taskId": id })).await;
    assert_eq!(result["content"][0]["text"], "done for ann");
    assert_eq!(status(&client, &id).await, "completed");
    assert_eq!(bench.fake.call_count(), 1, "once, however it was asked for");
    let bob = bench.client_of("bob", OLD, "{}");
    assert_eq!(refused(&bob, "tasks/get", &json!({ "taskId": id })).await.0, -32602);
    let listed = ask(&client, "tasks/list", &json!({})).await;
    assert_eq!(listed["tasks"].as_array().unwrap().len(), 1);
    assert_eq!(ask(&bob, "tasks/list", &json!({})).await["tasks"], json!([]));
}

#[actix::test]
async fn a_running_task_is_cancelled_once_and_none_is_given_up_for_another() {
    let bench = Bench::new(MIXED).await;
    let client = bench.client(OLD, "{}");
    bench.fake.gate.forget_permits(1_000_000);
    let mut ids = Vec::new();
    for _ in 0..100 {
        ids.push(created(&client, "run").await);
    }
    assert_eq!(refused(&client, "tools/call", &write("run")).await.1, "OVERLOADED");
    let first = json!({ "taskId": ids[0] });
    assert_eq!(ask(&client, "tasks/cancel", &first).await["status"], "cancelled");
    assert_eq!(refused(&client, "tasks/cancel", &first).await.0, -32602);
    assert_eq!(refused(&client, "tasks/result", &first).await.1, "CANCELLED");
    // What is over makes room.
    created(&client, "run").await;
    assert_eq!(refused(&client, "tasks/get", &first).await.0, -32602);
    assert_eq!(status(&client, &ids[1]).await, "working");
}

#[actix::test]
async fn a_tool_that_is_never_reviewed_runs_as_no_task() {
    let bench = Bench::new("").await;
    let client = bench.client(OLD, "{}");
    let (number, _, data) = refused(&client, "tools/call", &json!({ "name": "read", "task": {} })).await;
    assert_eq!((number, &data["execution"]["taskSupport"]), (-32601, &json!("forbidden")));
    assert_eq!(refused(&client, "tasks/get", &json!({})).await.0, -32602, "no task is named");
}
