//! Decisions of reviewers, and the conditions under which they are refused.

use std::sync::{Arc, atomic::Ordering};

use futures_util::future::join_all;

use super::expect_refusal;
use crate::{ChangeRequestError, ChangeSettlement, testing::*};
use countersign_domain::{
    changes::{ChangeState, ReviewVerdict, ServerIdentity},
    principal::{Principal, Role},
};
use countersign_protocol::ErrorKind;

#[actix::test]
async fn one_of_a_thousand_concurrent_decisions_wins() {
    let bench = TestBench::new().await;
    let change = bench.propose("{}").await;
    let decisions = (0..1000).map(|n| {
        let verdict = if n % 2 == 0 { ReviewVerdict::Approve } else { ReviewVerdict::Reject };
        bench.changes.decide(decision(&change, &format!("reviewer-{n}"), verdict))
    });
    let mut won = Vec::new();
    for result in join_all(decisions).await {
        match result {
            Ok(change) => won.push(change),
            Err(ChangeRequestError { error, current }) => {
                assert!(matches!(error.kind, ErrorKind::ChangeNotPending | ErrorKind::VersionConflict), "{error:?}");
                assert!(current.unwrap().version > 1, "a conflict shows the change as it is now");
            }
        }
    }
    assert_eq!(won.len(), 1);
    if won[0].state == ChangeState::Approved {
        bench.wait_for_state(&change.id, ChangeState::Applied).await;
    }
    let events = bench.trail(&change.id).await;
    assert_eq!(events.iter().filter(|e| e.event == "approved" || e.event == "rejected").count(), 1);
    let (_, fake, _) = bench.end().await;
    assert_eq!(fake.call_count(), usize::from(won[0].state == ChangeState::Approved));
}

#[actix::test]
async fn old_version_wrong_digest_and_wrong_role_are_refused() {
    let bench = TestBench::new().await;
    let change = bench.propose("{}").await;
    let with = |adjust: fn(&mut crate::ChangeDecision)| {
        let mut decision = decision(&change, "alice", ReviewVerdict::Approve);
        adjust(&mut decision);
        bench.changes.decide(decision)
    };
    assert_eq!(expect_refusal(with(|d| d.version = 0).await, ErrorKind::VersionConflict).current.unwrap().version, 1);
    expect_refusal(with(|d| d.version = 2).await, ErrorKind::VersionConflict);
    expect_refusal(with(|d| d.digest = Some("sha256:other".into())).await, ErrorKind::VersionConflict);
    expect_refusal(with(|d| d.id = "chg_unknown".into()).await, ErrorKind::ChangeNotFound);
    expect_refusal(with(|d| d.id = "x".repeat(100_000)).await, ErrorKind::ChangeNotFound);
    expect_refusal(with(|d| d.comment = Some("x".repeat(5000))).await, ErrorKind::InvalidParams);
    for role in [Role::Agent, Role::Viewer] {
        let mut decision = decision(&change, "alice", ReviewVerdict::Reject);
        decision.reviewer = Arc::new(Principal::new("alice", role));
        expect_refusal(bench.changes.decide(decision).await, ErrorKind::Forbidden);
    }
    assert_eq!(bench.get(&change.id).await.version, 1);
    let without = with(|d| d.digest = None).await.unwrap();
    assert_eq!(without.state, ChangeState::Approved);
    bench.wait_for_state(&change.id, ChangeState::Applied).await;
    bench.end().await;
}

#[actix::test]
async fn moved_target_returns_change_to_pending_with_new_diff() {
    let bench = TestBench::new().await;
    let mut feed = bench.changes.feed().subscribe(None).unwrap();
    let change = bench.propose("{}").await;
    *bench.fake.state.lock().unwrap() = "moved".into();
    let current =
        expect_refusal(bench.decide(&change, ReviewVerdict::Approve).await, ErrorKind::ChangeStale).current.unwrap();
    assert_eq!((current.state, current.version), (ChangeState::Pending, 3));
    assert_eq!(current.previous_diff.as_ref(), Some(&change.diff));
    assert_eq!(current.diff.fields[0].before.as_deref(), Some("moved"));
    assert_ne!(current.digest, change.digest);
    assert!(current.fault.is_none());
    for kind in ["change.created", "change.stale", "change.refreshed"] {
        assert_eq!(feed.next().await.unwrap().kind, kind);
    }
    expect_refusal(bench.decide(&change, ReviewVerdict::Approve).await, ErrorKind::VersionConflict);
    bench.decide(&current, ReviewVerdict::Approve).await.unwrap();
    bench.wait_for_state(&change.id, ChangeState::Applied).await;
    let (_, fake, _) = bench.end().await;
    assert_eq!(fake.call_count(), 1);
}

#[actix::test]
async fn change_is_stale_if_its_server_changed() {
    let bench = TestBench::new().await;
    let server = |fingerprint: &str| ServerIdentity { fingerprint: fingerprint.into(), label: "elsewhere".into() };
    let change = bench.propose("{}").await;
    *bench.fake.served_by.lock().unwrap() = server("sha256:b");
    let current =
        expect_refusal(bench.decide(&change, ReviewVerdict::Approve).await, ErrorKind::ChangeStale).current.unwrap();
    assert_eq!((current.state, current.version), (ChangeState::Pending, 3));
    assert_eq!((&current.served_by, &current.previous_diff), (&server("sha256:b"), &None), "the diff is the same");
    assert_ne!(current.digest, change.digest);
    let trail = bench.trail(&change.id).await;
    let why: serde_json::Value = serde_json::from_str(trail[1].details.get()).unwrap();
    assert!(why["comment"].as_str().unwrap().contains("another command or address"), "{why}");
    bench.decide(&current, ReviewVerdict::Approve).await.unwrap();
    bench.wait_for_state(&change.id, ChangeState::Applied).await;
    let (_, fake, _) = bench.end().await;
    assert_eq!(fake.call_count(), 1);
}

#[actix::test]
async fn stale_change_stays_stale_until_its_preview_works() {
    let bench = TestBench::new().await;
    let change = bench.propose("{}").await;
    *bench.fake.preview_error.lock().unwrap() = Some(ErrorKind::ResourceNotFound);
    let stale =
        expect_refusal(bench.decide(&change, ReviewVerdict::Approve).await, ErrorKind::ChangeStale).current.unwrap();
    assert_eq!((stale.state, stale.version), (ChangeState::Stale, 2));
    assert_eq!(stale.fault.as_ref().unwrap().code, "RESOURCE_NOT_FOUND");
    let still =
        expect_refusal(bench.decide(&stale, ReviewVerdict::Approve).await, ErrorKind::ChangeStale).current.unwrap();
    assert_eq!(still.version, 2, "an unchanged fault is not recorded again");
    *bench.fake.preview_error.lock().unwrap() = None;
    let fresh =
        expect_refusal(bench.decide(&stale, ReviewVerdict::Approve).await, ErrorKind::ChangeStale).current.unwrap();
    assert_eq!((fresh.state, fresh.version), (ChangeState::Pending, 3));
    bench.decide(&fresh, ReviewVerdict::Approve).await.unwrap();
    bench.wait_for_state(&change.id, ChangeState::Applied).await;
    bench.end().await;
}

#[actix::test]
async fn stale_change_can_be_rejected_and_withdrawn() {
    let bench = TestBench::new().await;
    let (first, second) = (bench.propose("{}").await, bench.propose("{}").await);
    *bench.fake.preview_error.lock().unwrap() = Some(ErrorKind::ResourceNotFound);
    let stale =
        expect_refusal(bench.decide(&first, ReviewVerdict::Approve).await, ErrorKind::ChangeStale).current.unwrap();
    assert_eq!(bench.decide(&stale, ReviewVerdict::Reject).await.unwrap().state, ChangeState::Rejected);
    expect_refusal(bench.decide(&second, ReviewVerdict::Approve).await, ErrorKind::ChangeStale);
    let agent = Principal::new("agent", Role::Agent);
    assert_eq!(bench.changes.withdraw(&second.id, &agent, None).await.unwrap().state, ChangeState::Withdrawn);
    bench.end().await;
}

#[actix::test]
async fn change_is_stale_if_its_tool_definition_changed() {
    let bench = TestBench::new().await;
    let change = bench.propose("{}").await;
    *bench.fake.tool_hash.lock().unwrap() = "sha256:other".into();
    let stale =
        expect_refusal(bench.decide(&change, ReviewVerdict::Approve).await, ErrorKind::ChangeStale).current.unwrap();
    assert_eq!(stale.state, ChangeState::Stale);
    assert!(stale.fault.as_ref().unwrap().message.contains("propose it again"));
    expect_refusal(bench.decide(&stale, ReviewVerdict::Approve).await, ErrorKind::ChangeStale);
    let (_, fake, _) = bench.end().await;
    assert_eq!(fake.call_count(), 0);
}

#[actix::test]
async fn change_is_unchanged_while_its_target_cannot_be_read() {
    let bench = TestBench::new().await;
    let change = bench.propose("{}").await;
    bench.fake.present.store(false, Ordering::SeqCst);
    let current = expect_refusal(bench.decide(&change, ReviewVerdict::Approve).await, ErrorKind::UpstreamUnavailable)
        .current
        .unwrap();
    assert_eq!((current.state, current.version), (ChangeState::Pending, 1));
    bench.fake.present.store(true, Ordering::SeqCst);
    *bench.fake.preview_error.lock().unwrap() = Some(ErrorKind::Timeout);
    expect_refusal(bench.decide(&change, ReviewVerdict::Approve).await, ErrorKind::Timeout);
    assert_eq!(bench.decide(&change, ReviewVerdict::Reject).await.unwrap().state, ChangeState::Rejected);
    bench.end().await;
}

#[actix::test]
async fn only_the_proposer_withdraws_a_change() {
    let bench = TestBench::new().await;
    let change = bench.propose("{}").await;
    let principal = |name: &str, role| Principal::new(name, role);
    let other = bench.changes.withdraw(&change.id, &principal("other", Role::Agent), None).await;
    expect_refusal(other, ErrorKind::ChangeNotFound);
    let reviewer = bench.changes.withdraw(&change.id, &principal("alice", Role::Reviewer), None).await;
    expect_refusal(reviewer, ErrorKind::Forbidden);
    let agent = principal("agent", Role::Agent);
    let withdrawn = bench.changes.withdraw(&change.id, &agent, None).await.unwrap();
    assert_eq!(withdrawn.state, ChangeState::Withdrawn);
    expect_refusal(bench.changes.withdraw(&change.id, &agent, None).await, ErrorKind::ChangeNotPending);
    expect_refusal(bench.decide(&withdrawn, ReviewVerdict::Approve).await, ErrorKind::ChangeNotPending);
    bench.end().await;
}

#[actix::test]
async fn expired_change_cannot_be_approved() {
    let bench = TestBench::new().await;
    let change = bench.propose("{}").await;
    bench.skew.store(59, Ordering::SeqCst);
    assert_eq!(crate::upkeep::expiry::expire_due(bench.repository()).await, 0);
    bench.skew.store(60, Ordering::SeqCst);
    let expired =
        expect_refusal(bench.decide(&change, ReviewVerdict::Approve).await, ErrorKind::ChangeExpired).current.unwrap();
    assert_eq!((expired.state, expired.version), (ChangeState::Expired, 2));
    assert_eq!(expired.fault.as_ref().unwrap().code, "CHANGE_EXPIRED");
    expect_refusal(bench.decide(&expired, ReviewVerdict::Approve).await, ErrorKind::ChangeExpired);
    bench.end().await;
}

#[actix::test]
async fn undecided_change_expires_with_a_reason_and_an_event() {
    let bench = TestBench::new().await;
    let mut feed = bench.changes.feed().subscribe(None).unwrap();
    let mut ids = Vec::new();
    for _ in 0..300 {
        ids.push(bench.propose("{}").await.id.clone());
    }
    let decided = bench.get(&ids[7]).await;
    bench.decide(&decided, ReviewVerdict::Reject).await.unwrap();
    // A clock that is set back neither prevents the expiry nor changes the order of events.
    bench.skew.store(-7200, Ordering::SeqCst);
    assert_eq!(crate::upkeep::expiry::expire_due(bench.repository()).await, 0);
    bench.skew.store(61, Ordering::SeqCst);
    let first = crate::upkeep::expiry::expire_due(bench.repository()).await;
    let second = crate::upkeep::expiry::expire_due(bench.repository()).await;
    assert_eq!((first, second), (256, 43));
    assert_eq!(crate::upkeep::expiry::expire_due(bench.repository()).await, 0);
    let counts = bench.changes.counts();
    assert!(counts.contains(&(ChangeState::Expired, 299)) && counts.contains(&(ChangeState::Pending, 0)));
    for seq in 1..=600 {
        let event = feed.next().await.unwrap();
        assert_eq!(event.seq, Some(seq));
        if seq > 301 {
            let json: serde_json::Value = serde_json::from_slice(&event.json).unwrap();
            assert_eq!((json["type"].as_str(), json["actor"].as_str()), (Some("change.expired"), Some("system")));
            assert!(json["comment"].as_str().unwrap().contains("Nobody decided"));
        }
    }
    bench.end().await;
}

#[actix::test]
async fn unknown_outcome_is_settled_once_by_a_reviewer() {
    let bench = TestBench::new().await;
    *bench.fake.outcome.lock().unwrap() = CallOutcome::Error(ErrorKind::Timeout);
    let change = bench.propose("{}").await;
    let early = bench.settle(&change, "alice", true).await;
    expect_refusal(early, ErrorKind::ChangeNotPending);
    bench.decide(&change, ReviewVerdict::Approve).await.unwrap();
    let unknown = bench.wait_for_state(&change.id, ChangeState::OutcomeUnknown).await;
    let agent = Arc::new(Principal::new("agent", Role::Agent));
    let by_agent = ChangeSettlement { reviewer: agent, ..settlement(&unknown, "", true) };
    expect_refusal(bench.changes.settle(by_agent).await, ErrorKind::Forbidden);
    let own = bench.settle(&unknown, "agent", true).await;
    expect_refusal(own, ErrorKind::SelfApproval);
    let old = bench.settle(&change, "alice", true).await;
    expect_refusal(old, ErrorKind::VersionConflict);
    let comment = Some("it is there".to_owned());
    let commented = ChangeSettlement { comment, ..settlement(&unknown, "alice", true) };
    let settled = bench.changes.settle(commented).await.unwrap();
    assert_eq!(settled.state, ChangeState::Applied);
    let again = bench.settle(&settled, "bob", false).await;
    expect_refusal(again, ErrorKind::ChangeNotPending);
    let entry = &bench.trail(&change.id).await[0];
    assert_eq!((entry.event.as_str(), entry.actor.as_str()), ("settled", "alice"));
    assert!(entry.details.get().contains("it is there"));
    bench.end().await;
}

#[actix::test]
async fn dropped_request_leaves_no_partial_decision() {
    let bench = TestBench::new().await;
    let change = bench.propose("{}").await;
    *bench.fake.state.lock().unwrap() = "moved".into();
    let mut deciding = Box::pin(bench.decide(&change, ReviewVerdict::Approve));
    // The request is polled once and dropped. The decision continues without it.
    assert!(futures_util::poll!(deciding.as_mut()).is_pending());
    drop(deciding);
    let stale = bench.changes.wait(&change.id, 2, std::time::Duration::from_secs(60)).await.unwrap().unwrap();
    assert_eq!((stale.state, stale.version), (ChangeState::Pending, 3));
    bench.end().await;
}
