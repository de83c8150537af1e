//! Questions of a running change's tool: durable before the client sees them, answered once, and limited in time.

use std::{sync::Arc, time::Duration};

use serde_json::value::RawValue;

use crate::testing::*;
use countersign_domain::{
    changes::{Change, ChangeState, ReviewVerdict, Terms},
    principal::{Claims, Principal, Scope},
};
use countersign_protocol::ErrorKind;

fn raw(json: &str) -> Arc<RawValue> {
    Arc::from(RawValue::from_string(json.into()).unwrap())
}

fn agent() -> Principal {
    Principal::new("agent", countersign_domain::principal::Role::Agent)
}

/// Approves a change whose tool asks these questions; its client can fill in forms.
async fn approve_asking_change(bench: &TestBench, questions: &[(&str, &str)]) -> Arc<Change> {
    *bench.fake.outcome.lock().unwrap() =
        CallOutcome::Ask(questions.iter().map(|(key, method)| ((*key).to_owned(), (*method).to_owned())).collect());
    let proposal = crate::Proposal {
        terms: Terms { questions: true, ..Terms::default() },
        client_capabilities: Some(raw(r#"{"elicitation":{"form":{}}}"#)),
        ..bench.proposal("agent", "{}")
    };
    let change = bench.changes.propose(proposal).await.unwrap();
    bench.decide(&change, ReviewVerdict::Approve).await.unwrap();
    change
}

async fn wait_for_open_questions(bench: &TestBench, id: &str, count: usize) -> Vec<String> {
    let mut version = 0;
    loop {
        let change = bench.changes.wait(id, version, Duration::from_secs(60)).await.unwrap().unwrap();
        let open: Vec<_> =
            change.dialogue.iter().flat_map(|dialogue| dialogue.open_questions()).map(|q| q.key.clone()).collect();
        if open.len() == count {
            return open;
        }
        assert!(!change.state.is_final() && change.version > version, "{change:?}");
        version = change.version;
    }
}

fn result_text(change: &Change) -> String {
    change.result.as_ref().unwrap().get().to_owned()
}

#[actix::test]
async fn questions_and_answers_are_stored_and_audited() {
    let bench = TestBench::new().await;
    let change = approve_asking_change(&bench, &[("a", "elicitation/create"), ("b", "elicitation/create")]).await;
    assert_eq!(wait_for_open_questions(&bench, &change.id, 2).await, ["a", "b"]);
    let yes = |key: &str| vec![(key.to_owned(), Ok(raw(r#"{"action":"accept","content":{"n":1.0}}"#)))];
    bench.changes.answer(&change.id, &agent(), yes("never asked")).await.unwrap();
    bench.changes.answer(&change.id, &agent(), yes("b")).await.unwrap();
    assert_eq!(wait_for_open_questions(&bench, &change.id, 1).await, ["a"], "one question is still open");
    bench.changes.answer(&change.id, &agent(), yes("b")).await.unwrap();
    bench.changes.answer(&change.id, &agent(), yes("a")).await.unwrap();
    let applied = bench.wait_for_state(&change.id, ChangeState::Applied).await;
    assert!(
        result_text(&applied).contains(r#"a={\"action\":\"accept\",\"content\":{\"n\":1.0}}"#),
        "{}",
        result_text(&applied)
    );
    let dialogue = applied.dialogue.as_ref().unwrap();
    assert!(dialogue.questions.iter().all(|q| q.answer.is_some() && q.unanswered.is_none() && !q.is_open()));
    assert_eq!(bench.fake.call_count(), 1, "the tool ran once");
    let trail = bench.trail(&change.id).await;
    let events: Vec<_> = trail.iter().rev().map(|e| (e.event.as_str(), e.actor.as_str())).collect();
    let (asked, answered) = (("asked", "system"), ("answered", "agent"));
    assert_eq!(events[2..], [("executing", "system"), asked, asked, answered, answered, ("applied", "system")]);
    // An answer after the end of the call is ignored.
    bench.changes.answer(&change.id, &agent(), yes("a")).await.unwrap();
    bench.end().await;
}

#[actix::test]
async fn answer_needs_the_scope_to_propose() {
    let bench = TestBench::new().await;
    let change = approve_asking_change(&bench, &[("a", "elicitation/create")]).await;
    wait_for_open_questions(&bench, &change.id, 1).await;
    let claims = Claims { scopes: Some(vec![Scope::ToolsRead]), ..Claims::default() };
    let reader = Principal { claims: Some(Arc::new(claims)), ..agent() };
    let yes = || vec![("a".to_owned(), Ok(raw(r#"{"action":"accept","content":{}}"#)))];
    assert_eq!(bench.changes.answer(&change.id, &reader, yes()).await.unwrap_err().kind, ErrorKind::Forbidden);
    bench.changes.answer(&change.id, &agent(), yes()).await.unwrap();
    bench.wait_for_state(&change.id, ChangeState::Applied).await;
    bench.end().await;
}

#[actix::test]
async fn unanswered_question_times_out() {
    let bench = TestBench::with(|config| config.tuning.answer_timeout = Duration::from_millis(50)).await;
    let change = approve_asking_change(&bench, &[("a", "elicitation/create"), ("b", "sampling/createMessage")]).await;
    let applied = bench.wait_for_state(&change.id, ChangeState::Applied).await;
    let result = result_text(&applied);
    assert!(result.contains(r#"a={\"action\":\"cancel\"}"#), "an unanswered elicitation is dismissed: {result}");
    assert!(result.contains("b=-32601"), "a client without sampling gets no sampling request: {result}");
    let questions = &applied.dialogue.as_ref().unwrap().questions;
    assert_eq!((questions.len(), questions[0].unanswered.as_deref()), (1, Some("nobody answered in time")));
    bench.end().await;
}

#[actix::test]
async fn tool_gets_no_answer_after_task_was_cancelled() {
    let bench = TestBench::with(|config| config.tuning.concurrency = 1).await;
    let change = approve_asking_change(&bench, &[("a", "elicitation/create"), ("a", "elicitation/create")]).await;
    let keys = wait_for_open_questions(&bench, &change.id, 2).await;
    assert!(keys[0] == "a" && keys[1] != "a", "no key is used twice: {keys:?}");
    // A change that waits for its client does not keep other changes from running.
    let other = bench.propose(r#"{"target":"u"}"#).await;
    *bench.fake.outcome.lock().unwrap() = CallOutcome::Succeed;
    bench.decide(&other, ReviewVerdict::Approve).await.unwrap();
    bench.wait_for_state(&other.id, ChangeState::Applied).await;
    bench.changes.cancel_dialogue(&change.id, &agent()).await.unwrap();
    let applied = bench.wait_for_state(&change.id, ChangeState::Applied).await;
    assert!(applied.dialogue.as_ref().unwrap().is_cancelled);
    bench.end().await;
}

#[actix::test]
async fn oversized_answer_is_refused_and_the_call_continues() {
    let bench = TestBench::new().await;
    let change = approve_asking_change(&bench, &[("a", "elicitation/create")]).await;
    wait_for_open_questions(&bench, &change.id, 1).await;
    let big = raw(&format!(r#"{{"action":"accept","content":{{"x":"{}"}}}}"#, "x".repeat(2 << 20)));
    let error = bench.changes.answer(&change.id, &agent(), vec![("a".into(), Ok(big))]).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::TooLarge);
    assert_eq!(wait_for_open_questions(&bench, &change.id, 1).await, ["a"]);
    let refusal = vec![("a".into(), Err("its client cannot show the dialogue".to_owned()))];
    bench.changes.answer(&change.id, &agent(), refusal).await.unwrap();
    let applied = bench.wait_for_state(&change.id, ChangeState::Applied).await;
    assert!(result_text(&applied).contains("cancel"));
    bench.end().await;
}

#[actix::test]
async fn tool_asks_nothing_without_the_rule() {
    let bench = TestBench::new().await;
    *bench.fake.outcome.lock().unwrap() = CallOutcome::Ask(vec![("a".into(), "elicitation/create".into())]);
    let proposal = crate::Proposal {
        client_capabilities: Some(raw(r#"{"elicitation":{"form":{}}}"#)),
        ..bench.proposal("agent", "{}")
    };
    let change = bench.changes.propose(proposal).await.unwrap();
    assert!(change.dialogue.is_none());
    bench.decide(&change, ReviewVerdict::Approve).await.unwrap();
    let applied = bench.wait_for_state(&change.id, ChangeState::Applied).await;
    assert!(result_text(&applied).contains("nobody to ask"));
    bench.end().await;
}
