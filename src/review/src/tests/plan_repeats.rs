//! Repeated proposals of plans and their steps, and the limit of proposals.

use std::sync::Arc;

use crate::{PlanAnnouncement, Proposal, testing::*};
use countersign_domain::changes::Change;
use countersign_protocol::{ErrorKind, McpError};

const AB: [&str; 2] = [r#"{"target":"a"}"#, r#"{"target":"b"}"#];

async fn propose(bench: &TestBench, key: Option<&str>, calls: &[&str]) -> Result<Vec<Arc<Change>>, McpError> {
    let mut proposals: Vec<Proposal> = calls.iter().map(|arguments| bench.proposal("agent", arguments)).collect();
    proposals[0].idempotency_key = key.map(str::to_owned);
    bench.changes.propose_plan(plan_proposal(proposals)).await
}

fn ids(steps: &[Arc<Change>]) -> Vec<&str> {
    steps.iter().map(|step| step.id.as_str()).collect()
}

#[actix::test]
async fn repeated_plan_is_the_same_plan() {
    let bench = TestBench::new().await;
    let steps = propose(&bench, Some("k"), &AB).await.unwrap();
    let again = propose(&bench, Some("k"), &AB).await.unwrap();
    assert_eq!(ids(&again), ids(&steps));
    for other in [&[AB[0], AB[0]][..], &AB[..1], &[AB[0], AB[1], AB[0]]] {
        let refused = propose(&bench, Some("k"), other).await.unwrap_err();
        assert_eq!(refused.kind, ErrorKind::IdempotencyConflict, "{other:?}");
    }
    let single = Proposal { idempotency_key: Some("s".into()), ..bench.proposal("agent", AB[0]) };
    bench.changes.propose(single).await.unwrap();
    assert_eq!(propose(&bench, Some("s"), &AB).await.unwrap_err().kind, ErrorKind::IdempotencyConflict);
    assert_ne!(ids(&propose(&bench, None, &AB).await.unwrap()), ids(&steps), "without a key, it is another plan");
    bench.end().await;
}

#[actix::test]
async fn repeated_plan_gets_the_steps_that_it_lacks() {
    let bench = TestBench::new().await;
    let calls = [AB[0], AB[1], r#"{"target":"c"}"#];
    // A crash between the first step and the second leaves a plan that does not end.
    let announcement = PlanAnnouncement { id: "plan_1".into(), title: "Move".into(), last: false };
    let proposal = Proposal { idempotency_key: Some("k".into()), ..bench.proposal("agent", calls[0]) };
    let first = bench.changes.propose_step(proposal, announcement).await.unwrap();
    assert_eq!(propose(&bench, Some("k"), &AB[..1]).await.unwrap_err().kind, ErrorKind::IdempotencyConflict);
    let answers = futures_util::future::join_all((0..3).map(|_| propose(&bench, Some("k"), &calls))).await;
    for steps in answers.into_iter().filter_map(Result::ok) {
        assert_eq!((steps.len(), &steps[0].id), (3, &first.id));
    }
    let steps = propose(&bench, Some("k"), &calls).await.unwrap();
    let plan = bench.changes.plan("plan_1").await.unwrap().unwrap();
    assert!(plan.is_complete && ids(&plan.changes) == ids(&steps), "{:?}", ids(&plan.changes));
    bench.end().await;
}

#[actix::test]
async fn call_of_a_step_with_a_key_has_duplicates() {
    let bench = TestBench::new().await;
    let announcement = PlanAnnouncement { id: "plan_1".into(), title: "Move".into(), last: false };
    let proposal = Proposal { idempotency_key: Some("k".into()), ..bench.proposal("agent", AB[0]) };
    let step = bench.changes.propose_step(proposal, announcement).await.unwrap();
    let steps = propose(&bench, Some("l"), &[AB[1]]).await.unwrap();
    for (call, original) in [(AB[0], &step), (AB[1], &steps[0])] {
        assert_eq!(bench.propose(call).await.duplicate_of.as_ref(), Some(&original.id));
    }
    bench.end().await;
}

#[actix::test]
async fn stopped_plan_gets_no_steps_that_it_lacks() {
    let bench = TestBench::new().await;
    let announcement = PlanAnnouncement { id: "plan_1".into(), title: "Move".into(), last: false };
    let proposal = Proposal { idempotency_key: Some("k".into()), ..bench.proposal("agent", AB[0]) };
    bench.changes.propose_step(proposal, announcement).await.unwrap();
    bench.changes.refuse_plan("plan_1", "agent", "it is not wanted").await;
    assert_eq!(propose(&bench, Some("k"), &AB).await.unwrap_err().kind, ErrorKind::PlanStopped);
    bench.end().await;
}

#[actix::test]
async fn step_that_is_sent_twice_at_the_same_time_is_stored_once() {
    let bench = TestBench::new().await;
    let sent = (0..4).map(|_| {
        let proposal = Proposal { idempotency_key: Some("k".into()), ..bench.proposal("agent", AB[0]) };
        let announcement = PlanAnnouncement { id: "plan_1".into(), title: "Move".into(), last: false };
        bench.changes.propose_step(proposal, announcement)
    });
    let answers = futures_util::future::join_all(sent).await;
    let steps: Vec<Arc<Change>> = answers.into_iter().map(Result::unwrap).collect();
    assert!(ids(&steps).iter().all(|id| *id == steps[0].id), "{:?}", ids(&steps));
    bench.end().await;
}

#[actix::test]
async fn key_of_a_step_belongs_to_its_plan() {
    let bench = TestBench::new().await;
    let proposal = || Proposal { idempotency_key: Some("k".into()), ..bench.proposal("agent", AB[0]) };
    let propose_step = |plan: &str| {
        let announcement = PlanAnnouncement { id: plan.into(), title: "Move".into(), last: false };
        bench.changes.propose_step(proposal(), announcement)
    };
    let step = propose_step("plan_1").await.unwrap();
    assert_eq!(propose_step("plan_1").await.unwrap().id, step.id);
    assert_eq!(propose_step("plan_2").await.unwrap_err().kind, ErrorKind::IdempotencyConflict);
    let without_plan = bench.changes.propose(proposal()).await;
    assert_eq!(without_plan.unwrap_err().kind, ErrorKind::IdempotencyConflict);
    bench.end().await;
}

#[actix::test]
async fn every_step_counts_toward_the_limit_of_proposals() {
    let bench = TestBench::with(|config| config.limits.max_proposals_per_minute = 3).await;
    propose(&bench, Some("k"), &AB).await.unwrap();
    let refused = propose(&bench, None, &AB).await.unwrap_err();
    assert_eq!(refused.data["limit"], "changes.max_proposals_per_minute");
    propose(&bench, Some("k"), &AB).await.unwrap();
    propose(&bench, None, &AB[..1]).await.unwrap();
    assert_eq!(bench.changes.counts().iter().map(|(_, n)| n).sum::<u64>(), 3, "the refused plan left no change");
    bench.end().await;
}
