//! Approvals that reviewers undo before the change runs.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use futures_util::future::join_all;

use super::expect_refusal;
use crate::{ChangeRequestError, Proposal, testing::*};
use countersign_domain::{
    changes::{Change, ChangeState, ReviewVerdict},
    principal::{Principal, Role},
};
use countersign_protocol::ErrorKind;

async fn propose(bench: &TestBench, target: &str, undo_for: u64) -> Arc<Change> {
    let mut proposal = bench.proposal("agent", &format!(r#"{{"target":"{target}"}}"#));
    proposal.terms.undo_for = undo_for;
    bench.changes.propose(Proposal { expire_after: Duration::from_secs(1_000_000), ..proposal }).await.unwrap()
}

#[actix::test]
async fn approver_or_admin_can_undo_approval_until_run() {
    let bench = TestBench::new().await;
    let change = propose(&bench, "a", 3600).await;
    let approved = bench.decide(&change, ReviewVerdict::Approve).await.unwrap();
    assert_eq!(approved.run_after.unwrap().duration_since(approved.updated_at).as_secs(), 3600);
    // A change without a grace period is not delayed by it, even with the same target.
    let other = propose(&bench, "a", 0).await;
    bench.decide(&other, ReviewVerdict::Approve).await.unwrap();
    bench.wait_for_state(&other.id, ChangeState::Applied).await;
    assert_eq!(bench.get(&change.id).await.state, ChangeState::Approved);
    let undo = |by: Principal, version| {
        let changes = bench.changes.clone();
        let id = change.id.clone();
        async move { changes.undo(&id, &by, version).await }
    };
    expect_refusal(undo(reviewer("bob"), 2).await, ErrorKind::Forbidden);
    expect_refusal(undo(Principal { role: Role::Agent, ..reviewer("alice") }, 2).await, ErrorKind::Forbidden);
    expect_refusal(undo(reviewer("alice"), 1).await, ErrorKind::VersionConflict);
    let undone = undo(reviewer("alice"), 2).await.unwrap();
    assert_eq!((undone.state, undone.run_after, undone.approvals()), (ChangeState::Pending, None, 0));
    let nothing_to_undo = undo(reviewer("alice"), 3).await;
    assert_eq!(
        nothing_to_undo.as_ref().unwrap_err().error.message,
        "There is no approval to undo: the change waits for one"
    );
    expect_refusal(nothing_to_undo, ErrorKind::VersionConflict);
    let again = bench.decide(&undone, ReviewVerdict::Approve).await.unwrap();

    let (dir, fake, skew) = bench.end().await;
    let bench = TestBench::in_directory(dir, fake, Arc::clone(&skew), config(&skew)).await;
    let admin = Principal { role: Role::Admin, ..reviewer("root") };
    let undone = bench.changes.undo(&change.id, &admin, again.version).await.unwrap();
    assert_eq!(undone.approvals(), 0);
    bench.decide(&undone, ReviewVerdict::Approve).await.unwrap();

    let (dir, fake, skew) = bench.end().await;
    assert_eq!(fake.call_count(), 1, "only the change without a grace period ran");
    skew.store(3601, Ordering::SeqCst);
    let bench = TestBench::in_directory(dir, fake, Arc::clone(&skew), config(&skew)).await;
    bench.wait_for_state(&change.id, ChangeState::Applied).await;
    let (_, fake, _) = bench.end().await;
    assert_eq!(fake.call_count(), 2);
}

#[actix::test]
async fn approved_change_runs_after_its_grace_period() {
    let bench = TestBench::new().await;
    let change = propose(&bench, "a", 1).await;
    let approved = bench.decide(&change, ReviewVerdict::Approve).await.unwrap();
    let applied = bench.wait_for_state(&change.id, ChangeState::Applied).await;
    assert!(applied.updated_at >= approved.run_after.unwrap());
    expect_refusal(
        bench.changes.undo(&change.id, &reviewer("alice"), applied.version).await,
        ErrorKind::ChangeNotPending,
    );
    // Without a term in the rule there is no grace period.
    bench.fake.gate.forget_permits(usize::MAX >> 4);
    let quick = propose(&bench, "b", 0).await;
    let approved = bench.decide(&quick, ReviewVerdict::Approve).await.unwrap();
    assert_eq!(approved.run_after, None);
    let error = bench.changes.undo(&quick.id, &reviewer("alice"), approved.version).await.unwrap_err();
    assert_eq!(error.error.kind, ErrorKind::ChangeNotPending);
    bench.fake.gate.add_permits(10);
    bench.wait_for_state(&quick.id, ChangeState::Applied).await;
    bench.end().await;
}

#[actix::test]
async fn repeated_approval_has_a_full_grace_period() {
    let bench = TestBench::new().await;
    // Long enough to undo the approval in time on a busy machine.
    let change = propose(&bench, "a", 5).await;
    let approved = bench.decide(&change, ReviewVerdict::Approve).await.unwrap();
    let undone = bench.changes.undo(&change.id, &reviewer("alice"), approved.version).await.unwrap();
    // The grace period of the first approval ends during the grace period of the second one.
    let marker = propose(&bench, "b", 6).await;
    let again = bench.decide(&undone, ReviewVerdict::Approve).await.unwrap();
    bench.decide(&marker, ReviewVerdict::Approve).await.unwrap();
    let applied = bench.wait_for_state(&change.id, ChangeState::Applied).await;
    assert!(applied.updated_at >= again.run_after.unwrap());
    bench.wait_for_state(&marker.id, ChangeState::Applied).await;
    let (_, fake, _) = bench.end().await;
    assert_eq!(fake.call_count(), 2);
}

#[actix::test]
async fn late_undo_leads_to_one_run_or_none() {
    let bench = TestBench::new().await;
    let changes = join_all((0..40).map(|n| {
        let bench = &bench;
        async move {
            let change = propose(bench, &n.to_string(), 1).await;
            bench.decide(&change, ReviewVerdict::Approve).await.unwrap()
        }
    }))
    .await;
    let ends = join_all(changes.iter().enumerate().map(|(n, approved)| {
        let bench = &bench;
        async move {
            // The undo arrives around the time at which the change may run.
            tokio::time::sleep(Duration::from_millis(960 + 2 * n as u64)).await;
            match bench.changes.undo(&approved.id, &reviewer("alice"), approved.version).await {
                Ok(undone) => {
                    assert_eq!(undone.state, ChangeState::Pending);
                    0
                }
                Err(ChangeRequestError { error, .. }) => {
                    assert!(
                        matches!(error.kind, ErrorKind::ChangeNotPending | ErrorKind::VersionConflict),
                        "{error:?}"
                    );
                    bench.wait_for_state(&approved.id, ChangeState::Applied).await;
                    1
                }
            }
        }
    }))
    .await;
    let (_, fake, _) = bench.end().await;
    assert_eq!(fake.call_count(), ends.iter().sum::<usize>());
}
