//! Calls that a person decides on: their answers, and repeated calls.

use std::time::Duration;

use serde_json::{Value, json, value::RawValue};

use super::bench::{Bench, ask, ask_error, pause};
use crate::{
    gateway::server::RequestScope,
    handlers::reviewed::long_poll::{self, ChangeWait, Hold, WaitOutcome},
};
use countersign_domain::changes::{ChangeState, OnReview, ReviewVerdict, Terms};
use countersign_exchange::testing::take_sent_messages;
use countersign_protocol::{ErrorKind, RequestId, Revision, envelope::Response};
use countersign_provider::{NoProgress, testing::CallOutcome};
use countersign_review::{Proposal, testing::proposal};

const LEGACY: Revision = Revision::V2025_11_25;
const MODERN: Revision = Revision::MODERN;
const ASKING_POLICY: &str = "policy: { rules: [{ tools: write, then: review, questions: ask }] }";
/// Capabilities of a client that can fill in forms.
const FORMS: &str = r#"{"elicitation":{"form":{}}}"#;
const HOLD_POLICY: &str = "policy: { rules: [{ tools: write, then: review, on_review: hold, hold_for: 10m }] }";

fn write() -> Value {
    json!({ "name": "write", "arguments": { "target": "t" } })
}

/// The change that a pending result names.
fn pending(result: &Value) -> &str {
    assert_eq!(result["structuredContent"]["status"], "pending", "{result}");
    result["structuredContent"]["changeId"].as_str().unwrap()
}

#[actix::test]
async fn reviewed_call_is_previewed_and_runs_once_approved() {
    let bench = Bench::new("").await;
    let result = ask(&bench.client(LEGACY, "{}"), "tools/call", &write()).await;
    let change = bench.change().await;
    assert_eq!((pending(&result), change.state), (change.id.as_str(), ChangeState::Pending));
    assert_eq!((change.proposer.principal.as_str(), change.arguments.get()), ("ann", r#"{"target":"t"}"#));
    assert_eq!((bench.fake.call_count(), bench.fake.preview_count.load(std::sync::atomic::Ordering::SeqCst)), (0, 1));
    bench.decide(&change, ReviewVerdict::Approve).await;
    bench.wait_for_state(&change.id, ChangeState::Applied).await;
    assert_eq!(*bench.fake.received_calls.lock().unwrap(), [("write".to_owned(), r#"{"target":"t"}"#.to_owned())]);
}

#[actix::test]
async fn ambiguous_or_unpreviewable_call_is_not_proposed() {
    let bench = Bench::new("").await;
    let client = bench.client(LEGACY, "{}");
    let text = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"write","arguments":{"target":"a","target":"b"}}}"#;
    let request = countersign_exchange::testing::request(text);
    let answer = crate::inbound::answer(&client, &request).await.unwrap();
    let response: Value = serde_json::from_slice(&answer.bytes).unwrap();
    assert_eq!(response["error"]["data"]["key"], "target", "{response}");
    assert!(bench.changes().await.is_empty());
    *bench.fake.preview_error.lock().unwrap() = Some(ErrorKind::ResourceNotFound);
    assert_eq!(ask(&client, "tools/call", &write()).await["isError"], true, "the write has no preview");
    assert!(bench.changes().await.is_empty());
}

#[actix::test]
async fn held_call_is_answered_by_decision() {
    let bench = Bench::new(HOLD_POLICY).await;
    let client = bench.client(LEGACY, "{}");
    let call = write();
    let approving = async {
        let change = bench.change().await;
        bench.decide(&change, ReviewVerdict::Approve).await;
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
                return bench.decide(&change, ReviewVerdict::Reject).await;
            }
            pause().await;
        }
    };
    let (result, ()) = tokio::join!(ask(&client, "tools/call", &call), rejecting);
    assert_eq!((&result["isError"], &result["structuredContent"]["status"]), (&json!(true), &json!("rejected")));
    assert_eq!(bench.fake.call_count(), 1);
}

#[actix::test]
async fn held_call_ends_in_time_while_its_client_is_asked() {
    let bench = Bench::new("").await;
    *bench.fake.outcome.lock().unwrap() = CallOutcome::Ask(vec![("a".into(), "elicitation/create".into())]);
    let client = bench.client(LEGACY, FORMS);
    let raw = |json: &str| RawValue::from_string(json.into()).unwrap();
    let arguments = raw(r#"{"target":"t"}"#);
    let preview = bench.fake.current_preview(&arguments);
    let asking_proposal = Proposal {
        tool_hash: client.table.find_tool("write").unwrap().hash.clone(),
        client_capabilities: Some(raw(FORMS).into()),
        terms: Terms { on_review: OnReview::Hold, hold_for: 1, questions: true, ..Terms::default() },
        idempotency_key: Some("k".into()),
        ..proposal(client.exchange.proposer(), ("f", "write"), arguments, preview)
    };
    let change = bench.server.reviews.changes.propose(asking_proposal).await.unwrap();
    bench.decide(&change, ReviewVerdict::Approve).await;
    let mut call = write();
    call["_meta"] = json!({ "dev.countersign/idempotencyKey": "k" });
    let held = tokio::time::timeout(Duration::from_secs(60), ask(&client, "tools/call", &call)).await;
    assert_eq!(held.expect("the call ends")["structuredContent"]["changeId"], change.id.as_str());
    let messages = take_sent_messages(&client.exchange);
    let question = messages.iter().find(|message| message["method"] == "elicitation/create").unwrap();
    let cancelled = messages.iter().find(|message| message["method"] == "notifications/cancelled").unwrap();
    assert_eq!(cancelled["params"]["requestId"], question["id"]);
}

#[actix::test]
async fn repeated_call_with_same_key_waits_for_same_change() {
    let bench = Bench::new(HOLD_POLICY).await;
    let mut call = write();
    call["_meta"] = json!({ "dev.countersign/idempotencyKey": "k" });
    let first = bench.client(LEGACY, "{}");
    let change = tokio::select! {
        change = bench.change() => change,
        result = ask(&first, "tools/call", &call) => panic!("nobody has decided: {result}"),
    };
    let second = bench.client(MODERN, "{}");
    let deciding = async { bench.decide(&change, ReviewVerdict::Approve).await };
    let (result, ()) = tokio::join!(ask(&second, "tools/call", &call), deciding);
    assert_eq!(result["content"][0]["text"], "done for ann");
    assert_eq!((bench.changes().await.len(), bench.fake.call_count()), (1, 1));
}

#[actix::test]
async fn repeated_call_never_runs_again_if_policy_allows_it() {
    let bench = Bench::new("").await;
    let mut call = write();
    call["_meta"] = json!({ "dev.countersign/idempotencyKey": "k" });
    ask(&bench.client(LEGACY, "{}"), "tools/call", &call).await;
    let change = bench.change().await;
    bench.decide(&change, ReviewVerdict::Approve).await;
    bench.wait_for_state(&change.id, ChangeState::Applied).await;
    bench.allow_all_calls().await;
    let client = bench.client(LEGACY, "{}");
    let result = ask(&client, "tools/call", &call).await;
    assert_eq!((&result["content"][0]["text"], bench.fake.call_count()), (&json!("done for ann"), 1));
    call["_meta"] = json!({ "dev.countersign/idempotencyKey": "new" });
    ask(&client, "tools/call", &call).await;
    assert_eq!(bench.fake.call_count(), 2, "a call with a key of its own runs");
}

#[actix::test]
async fn identical_call_is_new_change_unless_key_matches() {
    let bench = Bench::new("").await;
    let client = bench.client(LEGACY, "{}");
    let (first, second) = (ask(&client, "tools/call", &write()).await, ask(&client, "tools/call", &write()).await);
    assert_ne!(pending(&first), pending(&second));
    assert_eq!(second["structuredContent"]["duplicateOf"], pending(&first), "{second}");
    let mut keyed = write();
    keyed["_meta"] = json!({ "dev.countersign/idempotencyKey": "k" });
    let (first, second) = (ask(&client, "tools/call", &keyed).await, ask(&client, "tools/call", &keyed).await);
    assert_eq!(pending(&first), pending(&second));
    let other_result = ask(&bench.client_of("bob", LEGACY, "{}"), "tools/call", &keyed).await;
    assert_ne!(pending(&other_result), pending(&first), "another principal's key is another key");
    assert_eq!(bench.changes().await.len(), 4);
}

#[actix::test]
async fn task_only_review_refuses_client_without_tasks() {
    let bench = Bench::new("policy: { rules: [{ tools: write, then: review, on_review: task }] }").await;
    let (number, _, data) = ask_error(&bench.client(MODERN, "{}"), "tools/call", &write()).await;
    assert_eq!((number, data.pointer("/requiredCapabilities/extensions").is_some()), (-32021, true));
    for revision in [LEGACY, Revision::V2025_06_18] {
        let result = ask(&bench.client(revision, "{}"), "tools/call", &write()).await;
        assert!(result["content"][0]["text"].as_str().unwrap().contains("POLICY_DENIED"), "{result}");
    }
    assert!(bench.changes().await.is_empty(), "a refused call leaves no change");
}

#[actix::test]
async fn request_state_is_valid_only_for_its_own_call() {
    let bench = Bench::new("").await;
    let client = bench.client(MODERN, "{}");
    let result = ask(&client, "tools/call", &write()).await;
    let mut retry = write();
    retry["requestState"] = pending(&result).into();
    assert_eq!(pending(&ask(&client, "tools/call", &retry).await), pending(&result));
    let mut other_call = retry.clone();
    other_call["arguments"]["target"] = "other".into();
    let bob = bench.client_of("bob", MODERN, "{}");
    for (client, params) in [(&client, &other_call), (&bob, &retry)] {
        let (number, _, data) = ask_error(client, "tools/call", params).await;
        assert_eq!((number, &data["member"]), (-32602, &json!("params.requestState")));
    }
    assert_eq!(bench.changes().await.len(), 1);
}

#[actix::test]
async fn continued_change_never_runs_again_if_policy_allows_it() {
    let bench = Bench::new("").await;
    ask(&bench.client(MODERN, "{}"), "tools/call", &write()).await;
    let change = bench.change().await;
    bench.decide(&change, ReviewVerdict::Approve).await;
    bench.wait_for_state(&change.id, ChangeState::Applied).await;
    bench.allow_all_calls().await;
    let mut retry = write();
    retry["requestState"] = change.id.as_str().into();
    let result = ask(&bench.client(MODERN, "{}"), "tools/call", &retry).await;
    assert_eq!((&result["content"][0]["text"], bench.fake.call_count()), (&json!("done for ann"), 1));
}

#[actix::test]
async fn wait_ends_with_decision_timeout_or_shutdown() {
    let bench = Bench::new("").await;
    let client = bench.client(LEGACY, "{}");
    let wait = async |limit: Option<Duration>| {
        let change = bench.changes().await.remove(0);
        let hold = limit.map(|limit| Hold::new(limit, &NoProgress));
        let wait = ChangeWait { exchange: &client.exchange, reviews: &bench.server.reviews, hold };
        wait.until(change, long_poll::is_over).await.unwrap()
    };
    ask(&client, "tools/call", &write()).await;
    assert!(matches!(wait(Some(Duration::ZERO)).await, WaitOutcome::NotReached(_)));
    let change = bench.change().await;
    let (over, ()) = tokio::join!(wait(None), bench.decide(&change, ReviewVerdict::Reject));
    assert!(matches!(over, WaitOutcome::Reached(change) if change.state == ChangeState::Rejected));
    assert!(
        matches!(wait(Some(Duration::ZERO)).await, WaitOutcome::Reached(_)),
        "a decided change is returned without a wait"
    );
    ask(&client, "tools/call", &write()).await;
    let ending = async {
        pause().await;
        bench.server.long_requests.shutdown.cancel();
    };
    let (waited, ()) = tokio::join!(wait(None), ending);
    assert!(matches!(waited, WaitOutcome::NotReached(change) if change.state == ChangeState::Pending));
    let change = bench.changes().await.remove(0);
    let version = change.version;
    let wait = ChangeWait { exchange: &client.exchange, reviews: &bench.server.reviews, hold: None };
    let waited = wait.until(change, |current| current.version > version).await.unwrap();
    assert!(matches!(waited, WaitOutcome::NotReached(_)), "{waited:?}");
}

#[actix::test]
async fn progress_of_held_call_rises_from_wait_to_wait() {
    let bench = Bench::new("").await;
    let client = bench.client(LEGACY, "{}");
    ask(&client, "tools/call", &write()).await;
    let change = bench.change().await;
    let progress = client.exchange.progress(Some("1"));
    let hold = Some(Hold::new(Duration::from_secs(600), &*progress));
    let wait = ChangeWait { exchange: &client.exchange, reviews: &bench.server.reviews, hold };
    for _ in 0..2 {
        let waiting = wait.until(change.clone(), long_poll::is_over);
        tokio::time::timeout(Duration::from_millis(50), waiting).await.unwrap_err();
    }
    let mut messages = take_sent_messages(&client.exchange);
    messages.retain(|message| message["method"] == "notifications/progress");
    assert!(messages.iter().all(|message| message["params"]["total"] == 600.0), "{messages:?}");
    let values: Vec<_> = messages.iter().filter_map(|message| message["params"]["progress"].as_f64()).collect();
    assert!(values.len() == 2 && values[1] >= 0.05, "{messages:?}");
}

/// Answers the next question to a client of the handshake era.
async fn answer_question(client: &RequestScope, answer: Value) -> Value {
    let question = loop {
        let mut messages = take_sent_messages(&client.exchange).into_iter();
        if let Some(question) = messages.find(|message| message.get("id").is_some()) {
            break question;
        }
        pause().await;
    };
    let answer = serde_json::value::to_raw_value(&answer).unwrap();
    let id = Some(RequestId::from_raw(&question["id"].to_string()));
    client.exchange.session.questions.deliver_answer(&Response { id, outcome: Ok(&answer) });
    question
}

#[actix::test]
async fn missing_arguments_are_asked_for_before_the_proposal() {
    let bench = Bench::new(ASKING_POLICY).await;
    let incomplete = json!({ "name": "write", "arguments": {} });
    let accepted = json!({ "action": "accept", "content": { "target": "t", "more": 1 } });
    let client = bench.client(LEGACY, FORMS);
    let asking = ask(&client, "tools/call", &incomplete);
    let (result, question) = tokio::join!(asking, answer_question(&client, accepted.clone()));
    assert_eq!(question["params"]["requestedSchema"]["required"], json!(["target"]));
    pending(&result);
    assert_eq!(bench.change().await.arguments.get(), r#"{"target":"t"}"#, "other values are ignored");
    // A client that declines, or cannot be asked, gets the error.
    let asking = ask(&client, "tools/call", &incomplete);
    let (result, _) = tokio::join!(asking, answer_question(&client, json!({ "action": "decline" })));
    assert_eq!(result["isError"], true);
    assert_eq!(ask(&bench.client(LEGACY, "{}"), "tools/call", &incomplete).await["isError"], true);
    // A stateless client gets the question as a result, and the gateway keeps nothing meanwhile.
    let client = bench.client(MODERN, FORMS);
    let question = ask(&client, "tools/call", &incomplete).await;
    assert_eq!(question["resultType"], "input_required");
    assert_eq!(bench.changes().await.len(), 1);
    let mut retry = incomplete.clone();
    retry["inputResponses"] = json!({ "missing-arguments": accepted });
    let result = ask(&client, "tools/call", &retry).await;
    assert_eq!(bench.changes().await.len(), 2);
    // The answer to a later question continues the change, although the call itself still lacks the arguments.
    let mut continued = incomplete.clone();
    continued["requestState"] = pending(&result).into();
    assert_eq!(pending(&ask(&client, "tools/call", &continued).await), pending(&result));
    assert_eq!(bench.changes().await.len(), 2);
    continued["arguments"]["target"] = "other".into();
    assert_eq!(ask_error(&client, "tools/call", &continued).await.0, -32602);
}

#[actix::test]
async fn missing_arguments_are_refused_unless_the_rule_asks() {
    let bench = Bench::new("").await;
    let incomplete = json!({ "name": "write", "arguments": {} });
    let client = bench.client(LEGACY, FORMS);
    assert_eq!(ask(&client, "tools/call", &incomplete).await["isError"], true);
    assert!(take_sent_messages(&client.exchange).is_empty());
}
