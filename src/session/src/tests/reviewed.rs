//! Calls that a person decides on: what their callers are told, and when an equal call is the same one.

use std::time::Duration;

use serde_json::{Value, json};

use super::bench::{Bench, ask, pause, refused};
use crate::handlers::reviewed::long_poll::{self, WaitOutcome};
use countersign_domain::changes::{ChangeState, Verdict};
use countersign_protocol::{ErrorKind, Revision};
use countersign_provider::NoProgress;

const OLD: Revision = Revision::V2025_11_25;
const NEW: Revision = Revision::MODERN;
const HOLDS: &str = "policy: { rules: [{ tools: write, then: review, on_review: hold, hold_for: 10m }] }";

fn write() -> Value {
    json!({ "name": "write", "arguments": { "target": "t" } })
}

/// The change that a pending result names.
fn pending(result: &Value) -> &str {
    assert_eq!(result["structuredContent"]["status"], "pending", "{result}");
    result["structuredContent"]["changeId"].as_str().unwrap()
}

#[actix::test]
async fn a_reviewed_call_is_previewed_and_kept_and_does_not_run() {
    let bench = Bench::new("").await;
    let result = ask(&bench.client(OLD, "{}"), "tools/call", &write()).await;
    let change = bench.change().await;
    assert_eq!((pending(&result), change.state), (change.id.as_str(), ChangeState::Pending));
    assert_eq!((change.proposer.principal.as_str(), change.arguments.get()), ("ann", r#"{"target":"t"}"#));
    assert_eq!((bench.fake.call_count(), bench.fake.previews.load(std::sync::atomic::Ordering::SeqCst)), (0, 1));
    bench.decide(&change, Verdict::Approve).await;
    bench.until(&change.id, ChangeState::Applied).await;
    assert_eq!(*bench.fake.received_calls.lock().unwrap(), [("write".to_owned(), r#"{"target":"t"}"#.to_owned())]);
}

#[actix::test]
async fn what_could_mean_two_things_is_not_proposed() {
    let bench = Bench::new("").await;
    let client = bench.client(OLD, "{}");
    let text = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"write","arguments":{"target":"a","target":"b"}}}"#;
    let request = countersign_exchange::testing::request(text);
    let answer = crate::inbound::answer(&client, &request).await.unwrap();
    let response: Value = serde_json::from_slice(&answer.bytes).unwrap();
    assert_eq!(response["error"]["data"]["key"], "target", "{response}");
    assert!(bench.changes().await.is_empty());
    *bench.fake.preview_error.lock().unwrap() = Some(ErrorKind::ResourceNotFound);
    assert_eq!(ask(&client, "tools/call", &write()).await["isError"], true, "a write that could not run");
    assert!(bench.changes().await.is_empty());
}

#[actix::test]
async fn a_held_call_is_answered_by_the_decision() {
    let bench = Bench::new(HOLDS).await;
    let client = bench.client(OLD, "{}");
    let call = write();
    let approving = async {
        let change = bench.change().await;
        bench.decide(&change, Verdict::Approve).await;
    };
    let (result, ()) = tokio::join!(ask(&client, "tools/call", &call), approving);
    assert_eq!(
        (&result["content"][0]["text"], result.get("isError")),
        (&json!("done for ann"), None),
        "the tool's own"
    );
    let rejecting = async {
        loop {
            if let Some(change) = bench.changes().await.into_iter().find(|change| change.state == ChangeState::Pending)
            {
                return bench.decide(&change, Verdict::Reject).await;
            }
            pause().await;
        }
    };
    let (result, ()) = tokio::join!(ask(&client, "tools/call", &call), rejecting);
    assert_eq!((&result["isError"], &result["structuredContent"]["status"]), (&json!(true), &json!("rejected")));
    assert_eq!(bench.fake.call_count(), 1);
}

#[actix::test]
async fn repeat_with_the_same_key_is_held_again() {
    let bench = Bench::new(HOLDS).await;
    let mut call = write();
    call["_meta"] = json!({ "dev.countersign/idempotencyKey": "k" });
    let first = bench.client(OLD, "{}");
    let change = tokio::select! {
        change = bench.change() => change,
        result = ask(&first, "tools/call", &call) => panic!("nobody has decided: {result}"),
    };
    let again = bench.client(NEW, "{}");
    let deciding = async { bench.decide(&change, Verdict::Approve).await };
    let (result, ()) = tokio::join!(ask(&again, "tools/call", &call), deciding);
    assert_eq!(result["content"][0]["text"], "done for ann");
    assert_eq!((bench.changes().await.len(), bench.fake.call_count()), (1, 1));
}

#[actix::test]
async fn equal_call_is_another_change_unless_its_key_is_the_same() {
    let bench = Bench::new("").await;
    let client = bench.client(OLD, "{}");
    let (first, second) = (ask(&client, "tools/call", &write()).await, ask(&client, "tools/call", &write()).await);
    assert_ne!(pending(&first), pending(&second));
    assert_eq!(second["structuredContent"]["duplicateOf"], pending(&first), "{second}");
    let mut keyed = write();
    keyed["_meta"] = json!({ "dev.countersign/idempotencyKey": "k" });
    let (first, second) = (ask(&client, "tools/call", &keyed).await, ask(&client, "tools/call", &keyed).await);
    assert_eq!(pending(&first), pending(&second));
    let bobs = ask(&bench.client_of("bob", OLD, "{}"), "tools/call", &keyed).await;
    assert_ne!(pending(&bobs), pending(&first), "his key is his");
    assert_eq!(bench.changes().await.len(), 4);
}

#[actix::test]
async fn what_is_reviewed_as_a_task_only_is_refused_to_who_takes_none() {
    let bench = Bench::new("policy: { rules: [{ tools: write, then: review, on_review: task }] }").await;
    let (number, _, data) = refused(&bench.client(NEW, "{}"), "tools/call", &write()).await;
    assert_eq!((number, data.pointer("/requiredCapabilities/extensions").is_some()), (-32021, true));
    for revision in [OLD, Revision::V2025_06_18] {
        let result = ask(&bench.client(revision, "{}"), "tools/call", &write()).await;
        assert!(result["content"][0]["text"].as_str().unwrap().contains("POLICY_DENIED"), "{result}");
    }
    assert!(bench.changes().await.is_empty(), "nobody waits for what nobody was told of");
}

#[actix::test]
async fn a_state_that_names_a_change_is_one_of_this_very_call() {
    let bench = Bench::new("").await;
    let client = bench.client(NEW, "{}");
    let result = ask(&client, "tools/call", &write()).await;
    let mut retry = write();
    retry["requestState"] = pending(&result).into();
    assert_eq!(pending(&ask(&client, "tools/call", &retry).await), pending(&result));
    let mut other = retry.clone();
    other["arguments"]["target"] = "other".into();
    let bob = bench.client_of("bob", NEW, "{}");
    for (client, params) in [(&client, &other), (&bob, &retry)] {
        let (number, _, data) = refused(client, "tools/call", params).await;
        assert_eq!((number, &data["member"]), (-32602, &json!("params.requestState")));
    }
    assert_eq!(bench.changes().await.len(), 1);
}

#[actix::test]
async fn a_wait_ends_with_the_decision_its_time_or_the_gateway() {
    let bench = Bench::new("").await;
    let client = bench.client(OLD, "{}");
    let wait = async |limit| {
        let change = bench.changes().await.remove(0);
        long_poll::wait(&client, change, limit, &NoProgress, long_poll::is_over).await.unwrap()
    };
    ask(&client, "tools/call", &write()).await;
    assert!(matches!(wait(Some(Duration::ZERO)).await, WaitOutcome::NotYet(_)));
    let change = bench.change().await;
    let (over, ()) = tokio::join!(wait(None), bench.decide(&change, Verdict::Reject));
    assert!(matches!(over, WaitOutcome::Over(change) if change.state == ChangeState::Rejected));
    assert!(matches!(wait(Some(Duration::ZERO)).await, WaitOutcome::Over(_)), "what is over needs no time");
    ask(&client, "tools/call", &write()).await;
    let ending = async {
        pause().await;
        bench.server.long_requests.shutdown.cancel();
    };
    let (waited, ()) = tokio::join!(wait(None), ending);
    assert!(matches!(waited, WaitOutcome::NotYet(change) if change.state == ChangeState::Pending));
    let change = bench.changes().await.remove(0);
    let error = long_poll::moved(&client, change.clone(), change.version).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::ShuttingDown);
}
