//! A gateway that starts on a backup does not run changes that may have run since the backup.

use std::sync::{Arc, atomic::AtomicI64};

use jiff::Timestamp;

use super::{expect_refusal, plans};
use crate::{Proposal, testing::*};
use countersign_domain::changes::{ChangeState, ReviewVerdict, Terms};
use countersign_protocol::ErrorKind;
use countersign_store::{
    StoreLocation,
    sqlite::{backup::backup, open::database_path},
};

#[actix::test]
async fn change_approved_in_a_backup_waits_for_review_again() {
    let bench = TestBench::new().await;
    // The first change blocks the second, which has the same target.
    bench.fake.gate.forget_permits(usize::MAX);
    let running = bench.propose(r#"{"n":0}"#).await;
    bench.decide(&running, ReviewVerdict::Approve).await.unwrap();
    bench.wait_for_state(&running.id, ChangeState::Executing).await;
    let change = bench.propose(r#"{"n":1}"#).await;
    bench.decide(&change, ReviewVerdict::Approve).await.unwrap();
    let out = tempfile::tempdir().unwrap();
    let to = out.path().join("copy");
    assert_eq!(bench.get(&change.id).await.state, ChangeState::Approved, "it waits for the first change");
    backup(bench.dir.path(), &to, false, Timestamp::now()).unwrap();
    bench.fake.gate.add_permits(10);
    bench.end().await;

    let data = tempfile::tempdir().unwrap();
    std::fs::copy(&to, database_path(data.path())).unwrap();
    let skew = Arc::new(AtomicI64::new(0));
    let fake = fake();
    let restored = TestBench::at_path(data.path(), Arc::clone(&fake), Arc::clone(&skew), config(&skew)).await;
    let stale = restored.get(&change.id).await;
    assert_eq!(stale.state, ChangeState::Stale);
    assert!(stale.fault.as_ref().unwrap().message.starts_with("Restored from a backup"), "{stale:?}");
    let lost = restored.get(&running.id).await;
    assert_eq!(lost.state, ChangeState::OutcomeUnknown);
    restored.settle(&lost, "bob", true).await.unwrap();
    // After a refresh the change can be approved again, and later starts do not restore again.
    let refused = restored.decide(&stale, ReviewVerdict::Approve).await.unwrap_err();
    let fresh = refused.current.unwrap();
    assert_eq!(fresh.state, ChangeState::Pending);
    restored.decide(&fresh, ReviewVerdict::Approve).await.unwrap();
    restored.wait_for_state(&change.id, ChangeState::Applied).await;
    restored.end().await;
    let again = TestBench::at_path(data.path(), fake, Arc::clone(&skew), config(&skew)).await;
    let trail = again.changes.audit_after(0, 100).await.unwrap();
    let entries: Vec<_> = trail.iter().filter(|entry| entry.event == "restored").collect();
    assert_eq!(entries.len(), 1);
    assert!(entries[0].details.get().contains("revoke them again"), "{}", entries[0].details);
    again.end().await;
    StoreLocation::directory(data.path()).verify_audit(None).unwrap();
}

#[actix::test]
async fn undecided_change_of_a_backup_may_have_run_since() {
    let bench = TestBench::new().await;
    let terms = Terms { quorum: 2, ..Terms::default() };
    let change = bench.changes.propose(Proposal { terms, ..bench.proposal("agent", "{}") }).await.unwrap();
    let voted = bench.decide(&change, ReviewVerdict::Approve).await.unwrap();
    assert_eq!((voted.state, voted.approvals()), (ChangeState::Pending, 1));
    let steps = plans::propose(&bench, &plans::ABC[..2]).await;
    let gone = bench.propose(r#"{"target":"gone"}"#).await;
    *bench.fake.preview_error.lock().unwrap() = Some(ErrorKind::ResourceNotFound);
    expect_refusal(bench.decide(&gone, ReviewVerdict::Approve).await, ErrorKind::ChangeStale);
    let out = tempfile::tempdir().unwrap();
    let to = out.path().join("copy");
    backup(bench.dir.path(), &to, false, Timestamp::now()).unwrap();
    bench.end().await;

    let data = tempfile::tempdir().unwrap();
    std::fs::copy(&to, database_path(data.path())).unwrap();
    let skew = Arc::new(AtomicI64::new(0));
    let restored = TestBench::at_path(data.path(), fake(), Arc::clone(&skew), config(&skew)).await;
    for id in [&change.id, &steps[0].id, &steps[1].id, &gone.id] {
        let stale = restored.get(id).await;
        assert_eq!(stale.state, ChangeState::Stale);
        let fault = stale.fault.as_ref().unwrap();
        assert_eq!(fault.code, "CHANGE_STALE");
        assert!(fault.message.contains("may have run since"), "{fault:?}");
    }
    // Earlier votes do not count any more, so the same reviewer votes again.
    let stale = restored.get(&change.id).await;
    let refused = expect_refusal(restored.decide(&stale, ReviewVerdict::Approve).await, ErrorKind::ChangeStale);
    let fresh = refused.current.unwrap();
    assert_eq!((fresh.state, fresh.approvals()), (ChangeState::Pending, 0));
    let voted = restored.decide(&fresh, ReviewVerdict::Approve).await.unwrap();
    restored.changes.decide(decision(&voted, "bob", ReviewVerdict::Approve)).await.unwrap();
    restored.wait_for_state(&change.id, ChangeState::Applied).await;
    // The plan runs once a reviewer has looked at each step again.
    for step in &steps {
        let stale = restored.get(&step.id).await;
        restored.changes.refresh(&stale.id, &reviewer("alice"), stale.version).await.unwrap();
    }
    plans::approve(&restored, &steps).await;
    for step in &steps {
        restored.wait_for_state(&step.id, ChangeState::Applied).await;
    }
    restored.end().await;
}
