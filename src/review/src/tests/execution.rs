//! The Executor: one call for one approval, whatever happens around it.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use super::super::testing::*;
use countersign_domain::changes::{ChangeState, Verdict, WaitsFor, machine::ChangeEvent};
use countersign_protocol::ErrorKind;
use countersign_store::Place;

#[actix::test]
async fn each_call_outcome_leads_to_its_state() {
    for (ending, state, code) in [
        (CallOutcome::Succeed, ChangeState::Applied, None),
        (CallOutcome::ToolError, ChangeState::Failed, Some("TOOL_EXECUTION_ERROR")),
        (CallOutcome::Error(ErrorKind::ValidationFailed), ChangeState::Failed, Some("VALIDATION_FAILED")),
        (CallOutcome::Error(ErrorKind::ResourceNotFound), ChangeState::Failed, Some("RESOURCE_NOT_FOUND")),
        (CallOutcome::Error(ErrorKind::UpstreamUnavailable), ChangeState::OutcomeUnknown, Some("UPSTREAM_UNAVAILABLE")),
        (CallOutcome::Error(ErrorKind::Internal), ChangeState::OutcomeUnknown, Some("INTERNAL_ERROR")),
        (CallOutcome::Panic, ChangeState::OutcomeUnknown, Some("INTERNAL_ERROR")),
        (CallOutcome::Hang, ChangeState::OutcomeUnknown, Some("TIMEOUT")),
    ] {
        let bench = Bench::with(|config| config.run_timeout = Duration::from_millis(500)).await;
        *bench.fake.outcome.lock().unwrap() = ending.clone();
        let change = bench.propose("{}").await;
        bench.decide(&change, Verdict::Approve).await.unwrap();
        let ended = bench.until(&change.id, state).await;
        assert_eq!(ended.fault.as_ref().map(|f| f.code.as_str()), code, "{ending:?}");
        assert_eq!(ended.result.is_some(), matches!(state, ChangeState::Applied | ChangeState::Failed), "{ending:?}");
        let (_, fake, _) = bench.end().await;
        assert_eq!(fake.call_count(), 1, "{ending:?}");
    }
}

#[actix::test]
async fn changes_to_one_target_run_one_at_a_time() {
    let bench = Bench::with(|config| config.concurrency = 4).await;
    bench.fake.gate.forget_permits(1_000_000);
    let mut same = Vec::new();
    for n in 0..3 {
        let change = bench.propose(&format!(r#"{{"target":"same","n":{n}}}"#)).await;
        bench.decide(&change, Verdict::Approve).await.unwrap();
        same.push(change.id.clone());
    }
    bench.until(&same[0], ChangeState::Executing).await;
    assert_eq!(bench.fake.call_count(), 1);
    let mut others = Vec::new();
    for n in 0..6 {
        let change = bench.propose(&format!(r#"{{"target":"other-{n}"}}"#)).await;
        bench.decide(&change, Verdict::Approve).await.unwrap();
        others.push(change.id.clone());
    }
    for id in &others[..3] {
        bench.until(id, ChangeState::Executing).await;
    }
    assert_eq!(bench.get(&same[1]).await.state, ChangeState::Approved, "it waits for the one before it");
    bench.fake.gate.add_permits(1_000_000);
    for id in same.iter().chain(&others) {
        bench.until(id, ChangeState::Applied).await;
    }
    assert_eq!(bench.fake.max_running.load(Ordering::SeqCst), 4, "the bound is used, and kept");
    let calls = bench.fake.received_calls.lock().unwrap().clone();
    let order: Vec<_> = calls.iter().filter(|(_, a)| a.contains("same")).map(|(_, a)| a.as_str()).collect();
    assert_eq!(order, [r#"{"target":"same","n":0}"#, r#"{"target":"same","n":1}"#, r#"{"target":"same","n":2}"#]);
    bench.end().await;
}

#[actix::test]
async fn change_is_not_run_if_its_target_moved_after_approval() {
    let bench = Bench::new().await;
    bench.fake.gate.forget_permits(1_000_000);
    let first = bench.propose(r#"{"n":1}"#).await;
    let second = bench.propose(r#"{"n":2}"#).await;
    bench.decide(&first, Verdict::Approve).await.unwrap();
    bench.until(&first.id, ChangeState::Executing).await;
    bench.decide(&second, Verdict::Approve).await.unwrap();
    // The first one's run changes what the second was approved against.
    *bench.fake.state.lock().unwrap() = "changed by the first".into();
    bench.fake.gate.add_permits(1_000_000);
    let fresh = bench.changes.wait(&second.id, 3, Duration::from_secs(20)).await.unwrap().unwrap();
    assert_eq!((fresh.state, fresh.version), (ChangeState::Pending, 4));
    assert_eq!(fresh.approvals(), 0, "the approval was for another diff");
    assert_eq!(bench.fake.call_count(), 1);
    let trail = bench.changes.audit_page(Some(&second.id), 10, None).await.unwrap().items;
    let events: Vec<_> = trail.iter().rev().map(|e| e.event.as_str()).collect();
    assert_eq!(events, ["created", "approved", "stale", "refreshed"]);
    bench.end().await;
}

#[actix::test]
async fn change_goes_back_to_review_if_its_provider_is_gone() {
    let bench = Bench::new().await;
    bench.fake.gate.forget_permits(1_000_000);
    let first = bench.propose("{}").await;
    let second = bench.propose("{}").await;
    bench.decide(&first, Verdict::Approve).await.unwrap();
    bench.until(&first.id, ChangeState::Executing).await;
    bench.decide(&second, Verdict::Approve).await.unwrap();
    bench.fake.present.store(false, Ordering::SeqCst);
    bench.fake.gate.add_permits(1_000_000);
    let stale = bench.until(&second.id, ChangeState::Stale).await;
    assert_eq!(stale.fault.as_ref().unwrap().code, "UPSTREAM_UNAVAILABLE");
    assert_eq!(bench.fake.call_count(), 1);
    bench.end().await;
}

#[actix::test]
async fn approved_change_expires_if_not_run_in_time() {
    let bench = Bench::new().await;
    bench.fake.gate.forget_permits(1_000_000);
    let first = bench.propose("{}").await;
    let second = bench.propose("{}").await;
    bench.decide(&first, Verdict::Approve).await.unwrap();
    bench.until(&first.id, ChangeState::Executing).await;
    bench.decide(&second, Verdict::Approve).await.unwrap();
    bench.skew.store(61, Ordering::SeqCst);
    assert_eq!(super::super::upkeep::expiry::expire_due(&bench.changes.inner).await, 1, "not the one that runs");
    let expired = bench.get(&second.id).await;
    assert!(expired.state == ChangeState::Expired && expired.fault.as_ref().unwrap().message.contains("not run"));
    bench.fake.gate.add_permits(1_000_000);
    bench.until(&first.id, ChangeState::Applied).await;
    let (_, fake, _) = bench.end().await;
    assert_eq!(fake.call_count(), 1);
}

#[actix::test]
async fn oversized_result_is_replaced_by_a_note() {
    let bench = Bench::with(|config| config.max_result_bytes = 20).await;
    let change = bench.propose("{}").await;
    bench.decide(&change, Verdict::Approve).await.unwrap();
    let applied = bench.until(&change.id, ChangeState::Applied).await;
    assert!(applied.result.as_ref().unwrap().get().contains("too large"));
    bench.end().await;
}

/// Simulates a killed process, which leaves one executing and one approved change.
#[actix::test]
async fn restart_leaves_running_unknown_and_runs_approved_once() {
    let bench = Bench::new().await;
    let propose = async |target| bench.propose(&format!(r#"{{"target":"{target}"}}"#)).await;
    let (ran, waiting, pending, same) =
        (propose("a").await, propose("b").await, propose("c").await, propose("a").await);
    // Taken there without the Executor, as if the process had ended right after the commit.
    bench.changes.inner.stop.cancel();
    let inner = &bench.changes.inner;
    for change in [&ran, &waiting, &same] {
        let decision = countersign_domain::changes::Decision {
            reviewer: "alice".into(),
            owner: None,
            key_id: None,
            verdict: Verdict::Approve,
            comment: None,
            at: inner.now(),
            version: 1,
        };
        let approved = inner.step(change, ChangeEvent::Decide(decision)).await.unwrap();
        if change.id == ran.id {
            inner
                .step(&approved, ChangeEvent::Claim { by: None, call_timeout: Duration::from_secs(30) })
                .await
                .unwrap();
        }
    }
    let (dir, fake, skew) = bench.end().await;
    assert_eq!(fake.call_count(), 0);

    let bench = Bench::in_directory(dir, fake, Arc::clone(&skew), config(&skew)).await;
    let unknown = bench.get(&ran.id).await;
    assert_eq!((unknown.state, unknown.version), (ChangeState::OutcomeUnknown, 4), "before anybody can ask");
    bench.until(&waiting.id, ChangeState::Applied).await;
    assert_eq!(bench.get(&pending.id).await.state, ChangeState::Pending);
    bench.decide(&pending, Verdict::Approve).await.unwrap();
    bench.until(&pending.id, ChangeState::Applied).await;
    let counts = bench.changes.counts();
    assert!(counts.contains(&(ChangeState::OutcomeUnknown, 1)) && counts.contains(&(ChangeState::Applied, 2)));
    assert_eq!(bench.get(&same.id).await.state, ChangeState::Approved, "a call to its target may still be running");
    // For as long as that call may take.
    skew.fetch_add(30, Ordering::SeqCst);
    bench.until(&same.id, ChangeState::Applied).await;
    let (dir, fake, _) = bench.end().await;
    assert_eq!(fake.call_count(), 3);
    Place::directory(dir.path()).verify_audit(None).unwrap();
}

#[actix::test]
async fn lost_call_holds_back_its_target_until_settled_and_rechecked() {
    // One place: what waits takes none.
    let bench = Bench::with(|config| config.concurrency = 1).await;
    *bench.fake.outcome.lock().unwrap() = CallOutcome::Error(ErrorKind::UpstreamUnavailable);
    let lost = bench.propose(r#"{"target":"a","n":1}"#).await;
    bench.decide(&lost, Verdict::Approve).await.unwrap();
    let lost = bench.until(&lost.id, ChangeState::OutcomeUnknown).await;
    assert!(lost.target_taken_until.is_some_and(|until| until > lost.updated_at));
    *bench.fake.outcome.lock().unwrap() = CallOutcome::Succeed;
    let same = bench.propose(r#"{"target":"a","n":2}"#).await;
    bench.decide(&same, Verdict::Approve).await.unwrap();
    let moved = bench.propose(r#"{"target":"a","n":3}"#).await;
    bench.decide(&moved, Verdict::Approve).await.unwrap();
    let other = bench.propose(r#"{"target":"b"}"#).await;
    bench.decide(&other, Verdict::Approve).await.unwrap();
    bench.until(&other.id, ChangeState::Applied).await;
    assert_eq!(bench.get(&same.id).await.state, ChangeState::Approved);
    let mut waits = [bench.get(&same.id).await, bench.get(&other.id).await];
    bench.changes.note_waits(&mut waits).await.unwrap();
    let waits = waits.map(|change| change.waits_for.clone());
    assert_eq!(waits, [Some(WaitsFor { change: lost.id.clone(), until: lost.target_taken_until }), None]);
    let settled = bench.changes.settle(&lost.id, &reviewer("bob"), false, None, lost.version).await.unwrap();
    assert_eq!(settled.target_taken_until, None);
    bench.until(&same.id, ChangeState::Applied).await;
    bench.until(&moved.id, ChangeState::Applied).await;
    let calls = bench.fake.received_calls.lock().unwrap().clone();
    assert!(calls[2].1.contains("2") && calls[3].1.contains("3"), "in the order of their approvals: {calls:?}");
    bench.end().await;
}

/// Progress and questions keep a call alive for longer than its time-out.
#[actix::test]
async fn broken_long_call_still_occupies_its_target() {
    for (ending, held) in [
        (CallOutcome::Error(ErrorKind::UpstreamUnavailable), true),
        (CallOutcome::Panic, true),
        (CallOutcome::Error(ErrorKind::Timeout), false),
    ] {
        let bench = Bench::new().await;
        *bench.fake.outcome.lock().unwrap() = ending.clone();
        bench.fake.gate.forget_permits(1_000_000);
        let change = bench.propose("{}").await;
        bench.decide(&change, Verdict::Approve).await.unwrap();
        bench.until(&change.id, ChangeState::Executing).await;
        while bench.fake.call_count() == 0 {
            tokio::task::yield_now().await;
        }
        bench.skew.store(3600, Ordering::SeqCst);
        bench.fake.gate.add_permits(1);
        let lost = bench.until(&change.id, ChangeState::OutcomeUnknown).await;
        assert_eq!(lost.target_taken_until.is_some_and(|until| until > lost.updated_at), held, "{ending:?}");
        bench.end().await;
    }
}

#[actix::test]
async fn approved_change_waits_for_its_provider_after_restart() {
    let bench = Bench::new().await;
    let change = bench.propose("{}").await;
    bench.changes.inner.stop.cancel();
    bench.decide(&change, Verdict::Approve).await.unwrap();
    let (dir, fake, skew) = bench.end().await;
    fake.present.store(false, Ordering::SeqCst);
    let config = super::super::PendingConfig { provider_grace: Duration::from_secs(60), ..config(&skew) };
    let bench = Bench::in_directory(dir, fake, skew, config).await;
    assert_eq!(bench.get(&change.id).await.state, ChangeState::Approved);
    bench.fake.present.store(true, Ordering::SeqCst);
    bench.until(&change.id, ChangeState::Applied).await;
    bench.end().await;
}

#[actix::test]
async fn shutdown_waits_for_running_calls() {
    let bench = Bench::new().await;
    bench.fake.gate.forget_permits(1_000_000);
    let change = bench.propose("{}").await;
    bench.decide(&change, Verdict::Approve).await.unwrap();
    bench.until(&change.id, ChangeState::Executing).await;
    let mut feed = bench.changes.feed().subscribe(None).unwrap();
    let waiting = bench.changes.wait(&change.id, 99, Duration::from_secs(600));
    let (waited, ()) = tokio::join!(waiting, async {
        let ending = bench.changes.shutdown(Duration::from_secs(60));
        let release = async { bench.fake.gate.add_permits(1) };
        tokio::join!(ending, release);
    });
    // It ended with the shutdown, not after its ten minutes; whether the call was quicker is open.
    assert!(matches!(waited.unwrap().unwrap().state, ChangeState::Executing | ChangeState::Applied));
    assert_eq!(feed.next().await.unwrap().kind, "change.applied");
    assert!(feed.next().await.is_none(), "and then the feed ends");
    assert!(bench.changes.feed().subscribe(None).is_none());
    let refused = bench.changes.propose(bench.proposal("agent", "{}")).await.unwrap_err();
    assert_eq!(refused.kind, ErrorKind::ShuttingDown);
    assert!(!bench.changes.is_healthy());
    assert_eq!(Place::directory(bench.dir.path()).verify_audit(None).unwrap().entries, 4);
}

#[actix::test]
async fn call_beyond_the_shutdown_deadline_is_unknown() {
    let bench = Bench::new().await;
    *bench.fake.outcome.lock().unwrap() = CallOutcome::Hang;
    let change = bench.propose("{}").await;
    bench.decide(&change, Verdict::Approve).await.unwrap();
    bench.until(&change.id, ChangeState::Executing).await;
    bench.changes.shutdown(Duration::from_millis(1)).await;
    let (dir, fake, skew) = (bench.dir, bench.fake, bench.skew);
    let bench = Bench::in_directory(dir, fake, Arc::clone(&skew), config(&skew)).await;
    let unknown = bench.get(&change.id).await;
    assert_eq!((unknown.state, unknown.version), (ChangeState::OutcomeUnknown, 4));
    assert!(unknown.fault.as_ref().unwrap().message.contains("stopped while"));
    bench.end().await;
}

#[actix::test]
async fn change_waits_for_its_server_and_runs_as_approved() {
    for unlisted in [false, true] {
        let bench = Bench::with(|config| config.provider_grace = Duration::from_secs(3600)).await;
        let away = |is: bool| {
            let flag = if unlisted { &bench.fake.tools_unknown } else { &bench.fake.unavailable };
            flag.store(is, Ordering::SeqCst);
        };
        let bytes = r#"{ "target":"t",  "n":12345678901234567890123, "f":1.10, "e":"\u00e9" }"#;
        let change = bench.propose(bytes).await;
        // Nobody can tell now whether it is still what was shown: the decision is refused and nothing else happens.
        away(true);
        let refused = bench.decide(&change, Verdict::Approve).await.unwrap_err();
        assert_eq!(refused.error.kind, ErrorKind::UpstreamUnavailable);
        assert_eq!(bench.get(&change.id).await.state, ChangeState::Pending);
        away(false);
        // It goes away between the approval and the run.
        bench.fake.gate.forget_permits(1_000_000);
        let first = bench.propose(r#"{"target":"t"}"#).await;
        bench.decide(&first, Verdict::Approve).await.unwrap();
        bench.until(&first.id, ChangeState::Executing).await;
        bench.decide(&change, Verdict::Approve).await.unwrap();
        away(true);
        bench.fake.gate.add_permits(10);
        bench.until(&first.id, ChangeState::Applied).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert_eq!(bench.get(&change.id).await.state, ChangeState::Approved, "it waits");
        assert_eq!(bench.fake.call_count(), 1);
        away(false);
        bench.until(&change.id, ChangeState::Applied).await;
        let calls = bench.fake.received_calls.lock().unwrap().clone();
        assert_eq!(calls[1..], [("update".to_owned(), bytes.to_owned())], "the exact bytes, once");
        bench.end().await;
    }
}

#[actix::test]
async fn change_goes_back_to_review_if_its_server_stays_away() {
    let bench = Bench::new().await;
    bench.fake.gate.forget_permits(1_000_000);
    let first = bench.propose(r#"{"target":"t"}"#).await;
    let change = bench.propose(r#"{"target":"t"}"#).await;
    bench.decide(&first, Verdict::Approve).await.unwrap();
    bench.until(&first.id, ChangeState::Executing).await;
    bench.decide(&change, Verdict::Approve).await.unwrap();
    bench.fake.unavailable.store(true, Ordering::SeqCst);
    bench.fake.gate.add_permits(10);
    let stale = bench.until(&change.id, ChangeState::Stale).await;
    assert_eq!(stale.fault.as_ref().map(|fault| fault.code.as_str()), Some("UPSTREAM_UNAVAILABLE"));
    let (_, fake, _) = bench.end().await;
    assert_eq!(fake.call_count(), 1, "nothing was sent");
}
