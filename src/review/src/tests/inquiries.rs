//! Questions of a running change's tool: durable before the client sees them, answered once, and limited in time.

use std::{sync::Arc, time::Duration};

use serde_json::value::RawValue;

use super::super::testing::*;
use countersign_domain::{
    changes::{Change, ChangeState, Terms, Verdict},
    principal::Principal,
};
use countersign_protocol::ErrorKind;

fn raw(json: &str) -> Arc<RawValue> {
    Arc::from(RawValue::from_string(json.into()).unwrap())
}

fn agent() -> Principal {
    countersign_domain::principal::Principal {
        name: "agent".into(),
        role: countersign_domain::principal::Role::Agent,
        key_id: None,
        owner: None,
    }
}

/// Approves a change whose tool asks these questions; its client can fill in forms.
async fn asking(bench: &Bench, questions: &[(&str, &str)]) -> Arc<Change> {
    *bench.fake.outcome.lock().unwrap() =
        CallOutcome::Ask(questions.iter().map(|(key, method)| ((*key).to_owned(), (*method).to_owned())).collect());
    let proposal = super::super::Proposal {
        terms: Terms { questions: true, ..Terms::default() },
        client: Some(raw(r#"{"elicitation":{"form":{}}}"#)),
        ..bench.proposal("agent", "{}")
    };
    let change = bench.changes.propose(proposal).await.unwrap();
    bench.decide(&change, Verdict::Approve).await.unwrap();
    change
}

async fn open(bench: &Bench, id: &str, count: usize) -> Vec<String> {
    let mut version = 0;
    loop {
        let change = bench.changes.wait(id, version, Duration::from_secs(20)).await.unwrap().unwrap();
        let open: Vec<_> =
            change.dialogue.iter().flat_map(|dialogue| dialogue.open_questions()).map(|q| q.key.clone()).collect();
        if open.len() == count {
            return open;
        }
        assert!(!change.state.is_final() && change.version > version, "{change:?}");
        version = change.version;
    }
}

fn text(change: &Change) -> String {
    change.result.as_ref().unwrap().get().to_owned()
}

#[actix::test]
async fn questions_and_answers_are_stored_and_audited() {
    let bench = Bench::new().await;
    let change = asking(&bench, &[("a", "elicitation/create"), ("b", "elicitation/create")]).await;
    assert_eq!(open(&bench, &change.id, 2).await, ["a", "b"]);
    let yes = |key: &str| vec![(key.to_owned(), Ok(raw(r#"{"action":"accept","content":{"n":1.0}}"#)))];
    bench.changes.answer(&change.id, &agent(), yes("never asked")).await.unwrap();
    bench.changes.answer(&change.id, &agent(), yes("b")).await.unwrap();
    assert_eq!(open(&bench, &change.id, 1).await, ["a"], "at once");
    bench.changes.answer(&change.id, &agent(), yes("b")).await.unwrap();
    bench.changes.answer(&change.id, &agent(), yes("a")).await.unwrap();
    let applied = bench.until(&change.id, ChangeState::Applied).await;
    assert!(text(&applied).contains(r#"a={\"action\":\"accept\",\"content\":{\"n\":1.0}}"#), "{}", text(&applied));
    let said = applied.dialogue.as_ref().unwrap();
    assert!(said.questions.iter().all(|q| q.answer.is_some() && q.unanswered.is_none() && !q.is_open()));
    assert_eq!(bench.fake.call_count(), 1, "the tool ran once");
    let trail = bench.changes.audit_page(Some(&change.id), 50, None).await.unwrap();
    let events: Vec<_> = trail.items.iter().rev().map(|e| (e.event.as_str(), e.actor.as_str())).collect();
    let (asked, answered) = (("asked", "system"), ("answered", "agent"));
    assert_eq!(events[2..], [("executing", "system"), asked, asked, answered, answered, ("applied", "system")]);
    // Nobody listens any more.
    bench.changes.answer(&change.id, &agent(), yes("a")).await.unwrap();
    bench.end().await;
}

#[actix::test]
async fn unanswered_question_times_out() {
    let bench = Bench::with(|config| {
        config.answer_timeout = Duration::from_millis(50);
        // The time of the call stands still meanwhile.
        config.run_timeout = Duration::from_millis(500);
    })
    .await;
    let change = asking(&bench, &[("a", "elicitation/create"), ("b", "sampling/createMessage")]).await;
    let applied = bench.until(&change.id, ChangeState::Applied).await;
    let said = text(&applied);
    assert!(said.contains(r#"a={\"action\":\"cancel\"}"#), "a dialogue that nobody answered was dismissed: {said}");
    assert!(said.contains("b=-32601"), "a client without a model is never asked for its text: {said}");
    let questions = &applied.dialogue.as_ref().unwrap().questions;
    assert_eq!((questions.len(), questions[0].unanswered.as_deref()), (1, Some("nobody answered in time")));
    bench.end().await;
}

#[actix::test]
async fn cancelled_task_is_asked_no_more_questions() {
    let bench = Bench::with(|config| config.concurrency = 1).await;
    let change = asking(&bench, &[("a", "elicitation/create"), ("a", "elicitation/create")]).await;
    let keys = open(&bench, &change.id, 2).await;
    assert!(keys[0] == "a" && keys[1] != "a", "no key is used twice: {keys:?}");
    // What waits for its client keeps nobody else from running.
    let other = bench.propose(r#"{"target":"u"}"#).await;
    *bench.fake.outcome.lock().unwrap() = CallOutcome::Succeed;
    bench.decide(&other, Verdict::Approve).await.unwrap();
    bench.until(&other.id, ChangeState::Applied).await;
    bench.changes.give_up(&change.id, &agent()).await.unwrap();
    let applied = bench.until(&change.id, ChangeState::Applied).await;
    assert!(applied.dialogue.as_ref().unwrap().given_up);
    bench.end().await;
}

#[actix::test]
async fn oversized_question_is_refused_and_the_call_goes_on() {
    let bench = Bench::new().await;
    let change = asking(&bench, &[("a", "elicitation/create")]).await;
    open(&bench, &change.id, 1).await;
    let big = raw(&format!(r#"{{"action":"accept","content":{{"x":"{}"}}}}"#, "x".repeat(2 << 20)));
    let error = bench.changes.answer(&change.id, &agent(), vec![("a".into(), Ok(big))]).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::TooLarge);
    assert_eq!(open(&bench, &change.id, 1).await, ["a"]);
    let said = vec![("a".into(), Err("its client cannot show the dialogue".to_owned()))];
    bench.changes.answer(&change.id, &agent(), said).await.unwrap();
    let applied = bench.until(&change.id, ChangeState::Applied).await;
    assert!(text(&applied).contains("cancel"));
    bench.end().await;
}

#[actix::test]
async fn tool_asks_nothing_without_the_rule() {
    let bench = Bench::new().await;
    *bench.fake.outcome.lock().unwrap() = CallOutcome::Ask(vec![("a".into(), "elicitation/create".into())]);
    let proposal =
        super::super::Proposal { client: Some(raw(r#"{"elicitation":{"form":{}}}"#)), ..bench.proposal("agent", "{}") };
    let change = bench.changes.propose(proposal).await.unwrap();
    assert!(change.dialogue.is_none());
    bench.decide(&change, Verdict::Approve).await.unwrap();
    let applied = bench.until(&change.id, ChangeState::Applied).await;
    assert!(text(&applied).contains("nobody to ask"));
    bench.end().await;
}
