//! Reviewers stop plans, including those that are approved or running.

use std::sync::Arc;

use super::plans::*;
use crate::testing::*;
use countersign_domain::changes::{Change, ChangeState, ReviewVerdict};
use countersign_protocol::ErrorKind;

/// Lets the approval of the last step be undone for an hour, so that an approved plan does not run yet.
async fn propose_undoable(bench: &TestBench) -> Vec<Arc<Change>> {
    let undoable = |step, proposal: &mut crate::Proposal| {
        proposal.expire_after = std::time::Duration::from_secs(100_000);
        proposal.terms.undo_for = if step == 2 { 3600 } else { 0 };
    };
    propose_with(bench, &ABC, undoable).await
}

#[actix::test]
async fn approved_plan_can_be_stopped_before_it_runs() {
    let bench = bench().await;
    let steps = propose_undoable(&bench).await;
    let approved = approve(&bench, &steps).await;
    assert_eq!(states(&approved), [ChangeState::Approved; 3]);
    let again = decide_as(&bench, &approved, "bob", ReviewVerdict::Approve).await.unwrap_err();
    assert_eq!(again.error.kind, ErrorKind::ChangeNotPending, "nothing waits for an approval");
    let stopped = decide_as(&bench, &approved, "bob", ReviewVerdict::Reject).await.unwrap();
    assert!(stopped.stopped.is_some());
    for step in &steps {
        bench.wait_for_state(&step.id, ChangeState::Withdrawn).await;
    }
    let first = bench.get(&steps[0].id).await;
    let fault = first.fault.as_ref().unwrap();
    assert_eq!(fault.code, "PLAN_STOPPED");
    assert_eq!(fault.message, "Not run, because its plan was stopped by bob: “looks right”");
    let entry = &bench.trail(&first.id).await[0];
    assert_eq!((entry.event.as_str(), entry.actor.as_str()), ("withdrawn", "bob"));
    assert!(entry.details.get().contains("plan_stopped: its plan was stopped by bob"), "{}", entry.details);
    let over = plan(&bench, &steps).await;
    let late = decide_as(&bench, &over, "bob", ReviewVerdict::Reject).await.unwrap_err();
    assert_eq!((late.error.kind, bench.fake.call_count()), (ErrorKind::ChangeNotPending, 0));
    bench.end().await;
}

#[actix::test]
async fn rejecting_an_approved_step_stops_its_plan() {
    let bench = bench().await;
    let steps = propose_undoable(&bench).await;
    let approved = approve(&bench, &steps).await;
    let old = decision(&steps[1], "bob", ReviewVerdict::Reject);
    let refused = bench.changes.decide(old).await.unwrap_err();
    assert_eq!(refused.error.kind, ErrorKind::VersionConflict, "the step was approved since");
    let withdrawn = bench.changes.decide(decision(&approved.changes[1], "bob", ReviewVerdict::Reject)).await.unwrap();
    assert_eq!(withdrawn.state, ChangeState::Withdrawn);
    for step in [&steps[0], &steps[2]] {
        bench.wait_for_state(&step.id, ChangeState::Withdrawn).await;
    }
    let single = bench.propose(ABC[0]).await;
    let applied = bench.decide(&single, ReviewVerdict::Approve).await.unwrap();
    let applied = bench.wait_for_state(&applied.id, ChangeState::Applied).await;
    let refused = bench.decide(&applied, ReviewVerdict::Reject).await.unwrap_err();
    assert_eq!(refused.error.kind, ErrorKind::ChangeNotPending);
    assert_eq!(called_targets(&bench), ["a"], "only the single change ran");
    bench.end().await;
}

#[actix::test]
async fn running_plan_is_stopped_after_the_step_that_runs() {
    let bench = bench().await;
    let steps = propose(&bench, &[r#"{"target":"a","end":"lose"}"#, ABC[1], ABC[2]]).await;
    approve(&bench, &steps).await;
    let lost = bench.wait_for_state(&steps[0].id, ChangeState::OutcomeUnknown).await;
    let running = plan(&bench, &steps).await;
    let stopped = decide_as(&bench, &running, "bob", ReviewVerdict::Reject).await.unwrap();
    assert_eq!(states(&stopped)[0], ChangeState::OutcomeUnknown, "what has begun is not withdrawn");
    for step in &steps[1..] {
        bench.wait_for_state(&step.id, ChangeState::Withdrawn).await;
    }
    bench.settle(&lost, "alice", true).await.unwrap();
    assert_eq!(called_targets(&bench), ["a"]);
    bench.end().await;
}

#[actix::test]
async fn rejected_plan_has_rejected_and_withdrawn_steps() {
    let bench = bench().await;
    let steps = propose(&bench, &ABC).await;
    bench.decide(&steps[0], ReviewVerdict::Approve).await.unwrap();
    let shown = plan(&bench, &steps).await;
    decide_as(&bench, &shown, "bob", ReviewVerdict::Reject).await.unwrap();
    let withdrawn = bench.wait_for_state(&steps[0].id, ChangeState::Withdrawn).await;
    assert_eq!((withdrawn.fault.as_ref().unwrap().code.as_str(), bench.fake.call_count()), ("PLAN_STOPPED", 0));
    let decided = plan(&bench, &steps).await;
    assert!(decided.changes.iter().any(|step| step.state == ChangeState::Rejected), "{:?}", states(&decided));
    bench.end().await;
}
