//! The life of an approved change, and of a rejected one.

use crate::testing::*;
use countersign_domain::changes::{ChangeState, ReviewVerdict};
use countersign_protocol::ErrorKind;
use countersign_store::StoreLocation;

#[actix::test]
async fn approved_change_runs_once_with_the_bytes_shown() {
    let bench = TestBench::new().await;
    let mut feed = bench.changes.feed().subscribe(None).unwrap();
    let arguments = "{ \"target\":\"t\",\n \"n\": 1.50 }";
    let change = bench.propose(arguments).await;
    assert_eq!((change.state, change.version), (ChangeState::Pending, 1));
    assert_eq!(bench.fake.call_count(), 0);
    let approved = bench.decide(&change, ReviewVerdict::Approve).await.unwrap();
    assert_eq!((approved.state, approved.version), (ChangeState::Approved, 2));
    let applied = bench.wait_for_state(&change.id, ChangeState::Applied).await;
    assert_eq!(applied.version, 4);
    assert!(applied.result.as_ref().unwrap().get().contains("done for agent"));
    assert_eq!(*bench.fake.received_calls.lock().unwrap(), [("update".to_owned(), arguments.to_owned())]);
    for (seq, kind) in [(1, "change.created"), (2, "change.approved"), (3, "change.executing"), (4, "change.applied")] {
        let event = feed.next().await.unwrap();
        assert_eq!((event.seq, event.kind.as_ref()), (Some(seq), kind));
    }
    let counts = bench.changes.counts();
    assert_eq!(counts.iter().map(|(_, n)| n).sum::<u64>(), 1);
    assert!(counts.contains(&(ChangeState::Applied, 1)));
    let head = bench.changes.audit_head().await.unwrap();
    let (dir, ..) = bench.end().await;
    let verified = StoreLocation::directory(dir.path()).verify_audit(Some(head)).unwrap();
    assert_eq!((verified.entries, verified.changes, verified.head), (4, 1, head));
}

#[actix::test]
async fn rejected_change_never_runs() {
    let bench = TestBench::new().await;
    let change = bench.propose("{}").await;
    let rejected = bench.decide(&change, ReviewVerdict::Reject).await.unwrap();
    assert_eq!(rejected.state, ChangeState::Rejected);
    let again = bench.decide(&rejected, ReviewVerdict::Approve).await.unwrap_err();
    assert_eq!(again.error.kind, ErrorKind::ChangeNotPending);
    assert_eq!(again.current.unwrap().version, 2);
    let (_, fake, _) = bench.end().await;
    assert_eq!(fake.call_count(), 0);
}

#[actix::test]
async fn proposer_cannot_approve_own_change() {
    let bench = TestBench::new().await;
    let change = bench.changes.propose(bench.proposal("alice", "{}")).await.unwrap();
    let by_name = bench.decide(&change, ReviewVerdict::Approve).await.unwrap_err();
    assert_eq!(by_name.error.kind, ErrorKind::SelfApproval);
    let mut same_key = decision(&change, "bob", ReviewVerdict::Approve);
    let mut bob = reviewer("bob");
    bob.key_id = Some("key_alice".into());
    same_key.reviewer = std::sync::Arc::new(bob);
    assert_eq!(bench.changes.decide(same_key).await.unwrap_err().error.kind, ErrorKind::SelfApproval);
    assert_eq!(bench.get(&change.id).await.state, ChangeState::Pending);
    bench.end().await;
}
