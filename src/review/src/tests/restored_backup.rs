//! A gateway that starts on a backup does not run changes that may have run since the backup.

use std::sync::{Arc, atomic::AtomicI64};

use jiff::Timestamp;

use crate::testing::*;
use countersign_domain::changes::{ChangeState, ReviewVerdict};
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
    let pending = bench.propose(r#"{"n":2}"#).await;
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
    assert_eq!(restored.get(&pending.id).await.state, ChangeState::Pending);
    let lost = restored.get(&running.id).await;
    assert_eq!(lost.state, ChangeState::OutcomeUnknown);
    restored.changes.settle(&lost.id, &reviewer("bob"), true, None, lost.version).await.unwrap();
    // After a refresh the change can be approved again, and later starts do not restore again.
    let refused = restored.decide(&stale, ReviewVerdict::Approve).await.unwrap_err();
    let fresh = refused.current.unwrap();
    assert_eq!(fresh.state, ChangeState::Pending);
    restored.decide(&fresh, ReviewVerdict::Approve).await.unwrap();
    restored.wait_for_state(&change.id, ChangeState::Applied).await;
    restored.end().await;
    let again = TestBench::at_path(data.path(), fake, Arc::clone(&skew), config(&skew)).await;
    let trail = again.changes.audit_after(0, 100).await.unwrap();
    assert_eq!(trail.iter().filter(|entry| entry.event == "restored").count(), 1);
    again.end().await;
    StoreLocation::directory(data.path()).verify_audit(None).unwrap();
}
