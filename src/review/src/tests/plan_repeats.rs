//! Repeated proposals of plans and their steps, and the limit of proposals.

use std::sync::Arc;

use crate::{PlanAnnouncement, Proposal, testing::*};
use countersign_domain::changes::Change;
use countersign_protocol::{ErrorKind, McpError};

const AB: [&str; 2] = [r#"{"target":"a"}"#, r#"{"target":"b"}"#];

async fn propose(bench: &TestBench, key: Option<&str>, calls: &[&str]) -> Result<Vec<Arc<Change>>, McpError> {
    let mut proposals: Vec<Proposal> = calls.iter().map(|arguments| bench.proposal("agent", arguments)).collect();
    proposals[0].idempotency_key = key.map(str::to_owned);
    bench.changes.propose_plan("Move", None, proposals).await
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
    for other in [&[AB[0], AB[0]][..], &AB[..1]] {
        let refused = propose(&bench, Some("k"), other).await.unwrap_err();
        assert_eq!(refused.kind, ErrorKind::IdempotencyConflict, "{other:?}");
    }
    let longer = propose(&bench, Some("k"), &[AB[0], AB[1], AB[0]]).await.unwrap_err();
    assert_eq!(longer.kind, ErrorKind::Overloaded);
    let single = Proposal { idempotency_key: Some("s".into()), ..bench.proposal("agent", AB[0]) };
    bench.changes.propose(single).await.unwrap();
    assert_eq!(propose(&bench, Some("s"), &AB).await.unwrap_err().kind, ErrorKind::IdempotencyConflict);
    assert_ne!(ids(&propose(&bench, None, &AB).await.unwrap()), ids(&steps), "without a key, it is another plan");
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
async fn every_step_counts_toward_the_limit_of_proposals() {
    let bench = TestBench::with(|config| config.max_proposals_per_minute = 3).await;
    propose(&bench, Some("k"), &AB).await.unwrap();
    let refused = propose(&bench, None, &AB).await.unwrap_err();
    assert_eq!(refused.data["limit"], "changes.max_proposals_per_minute");
    propose(&bench, Some("k"), &AB).await.unwrap();
    propose(&bench, None, &AB[..1]).await.unwrap();
    assert_eq!(bench.changes.counts().iter().map(|(_, n)| n).sum::<u64>(), 3, "the refused plan left no change");
    bench.end().await;
}
