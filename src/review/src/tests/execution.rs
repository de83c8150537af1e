//! The Executor makes exactly one call for each approved change.

use std::{
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicI64, Ordering},
    },
    time::Duration,
};

use serde_json::value::RawValue;

use super::expect_refusal;
use crate::{ChangeFilter, ChangeRequestError, testing::*};
use countersign_domain::changes::{BlockingChange, Change, ChangeState, ReviewVerdict, machine::ChangeEvent};
use countersign_protocol::{ErrorKind, McpError};
use countersign_store::StoreLocation;

#[actix::test]
async fn each_call_outcome_leads_to_its_state() {
    for (call_outcome, state, code) in [
        (CallOutcome::Succeed, ChangeState::Applied, None),
        (CallOutcome::ToolError, ChangeState::Failed, Some("TOOL_EXECUTION_ERROR")),
        (CallOutcome::Error(ErrorKind::ValidationFailed), ChangeState::Failed, Some("VALIDATION_FAILED")),
        (CallOutcome::Error(ErrorKind::ResourceNotFound), ChangeState::Failed, Some("RESOURCE_NOT_FOUND")),
        (CallOutcome::Error(ErrorKind::UpstreamUnavailable), ChangeState::OutcomeUnknown, Some("UPSTREAM_UNAVAILABLE")),
        (CallOutcome::Error(ErrorKind::Internal), ChangeState::OutcomeUnknown, Some("INTERNAL_ERROR")),
        (CallOutcome::Panic, ChangeState::OutcomeUnknown, Some("INTERNAL_ERROR")),
        (CallOutcome::Hang, ChangeState::OutcomeUnknown, Some("TIMEOUT")),
    ] {
        let bench = TestBench::with(|config| {
            if matches!(call_outcome, CallOutcome::Hang) {
                config.tuning.run_timeout = Duration::from_millis(500);
            }
        })
        .await;
        *bench.fake.outcome.lock().unwrap() = call_outcome.clone();
        let change = bench.propose("{}").await;
        bench.decide(&change, ReviewVerdict::Approve).await.unwrap();
        let ended = bench.wait_for_state(&change.id, state).await;
        assert_eq!(ended.fault.as_ref().map(|f| f.code.as_str()), code, "{call_outcome:?}");
        assert_eq!(
            ended.result.is_some(),
            matches!(state, ChangeState::Applied | ChangeState::Failed),
            "{call_outcome:?}"
        );
        let (_, fake, _) = bench.end().await;
        assert_eq!(fake.call_count(), 1, "{call_outcome:?}");
    }
}

#[actix::test]
async fn changes_to_one_target_run_one_at_a_time() {
    let bench = TestBench::with(|config| config.tuning.concurrency = 4).await;
    bench.fake.gate.forget_permits(1_000_000);
    let mut same_target = Vec::new();
    for n in 0..3 {
        let change = bench.propose(&format!(r#"{{"target":"same","n":{n}}}"#)).await;
        bench.decide(&change, ReviewVerdict::Approve).await.unwrap();
        same_target.push(change.id.clone());
    }
    bench.wait_for_state(&same_target[0], ChangeState::Executing).await;
    let mut others = Vec::new();
    for n in 0..6 {
        let change = bench.propose(&format!(r#"{{"target":"other-{n}"}}"#)).await;
        bench.decide(&change, ReviewVerdict::Approve).await.unwrap();
        others.push(change.id.clone());
    }
    for id in &others[..3] {
        bench.wait_for_state(id, ChangeState::Executing).await;
    }
    assert_eq!(
        bench.get(&same_target[1]).await.state,
        ChangeState::Approved,
        "it waits for the earlier change of its target"
    );
    bench.fake.gate.add_permits(1_000_000);
    for id in same_target.iter().chain(&others) {
        bench.wait_for_state(id, ChangeState::Applied).await;
    }
    assert_eq!(bench.fake.max_running.load(Ordering::SeqCst), 4, "the limit is reached and not exceeded");
    let calls = bench.fake.received_calls.lock().unwrap().clone();
    let order: Vec<_> = calls.iter().filter(|(_, a)| a.contains("same")).map(|(_, a)| a.as_str()).collect();
    assert_eq!(order, [r#"{"target":"same","n":0}"#, r#"{"target":"same","n":1}"#, r#"{"target":"same","n":2}"#]);
    bench.end().await;
}

/// Approves two changes of one target. The first runs until the gate gets permits, and the second waits for it.
async fn approve_behind_running_change(bench: &TestBench, arguments: [&str; 2]) -> (Arc<Change>, Arc<Change>) {
    bench.fake.gate.forget_permits(1_000_000);
    let first = bench.propose(arguments[0]).await;
    let second = bench.propose(arguments[1]).await;
    bench.decide(&first, ReviewVerdict::Approve).await.unwrap();
    bench.wait_for_state(&first.id, ChangeState::Executing).await;
    bench.decide(&second, ReviewVerdict::Approve).await.unwrap();
    (first, second)
}

#[actix::test]
async fn change_is_not_run_if_its_definition_changed() {
    let bench = TestBench::new().await;
    let (_, second) = approve_behind_running_change(&bench, [r#"{"n":1}"#, r#"{"n":2}"#]).await;
    // The server announces nothing, so the directory still has the old definition.
    bench.fake.definitions_changed.store(true, Ordering::SeqCst);
    bench.fake.gate.add_permits(1_000_000);
    let stale = bench.wait_for_state(&second.id, ChangeState::Stale).await;
    assert!(stale.fault.as_ref().unwrap().message.contains("propose it again"));
    let third = bench.propose(r#"{"target":"u"}"#).await;
    expect_refusal(bench.decide(&third, ReviewVerdict::Approve).await, ErrorKind::ChangeStale);
    let (_, fake, _) = bench.end().await;
    assert_eq!(fake.call_count(), 1);
}

#[actix::test]
async fn change_is_not_run_if_its_definition_changes_during_recheck() {
    let fake = Arc::new_cyclic(|fake: &Weak<FakeProvider>| {
        let fake = Weak::clone(fake);
        let preview = move |_: &str, arguments: &RawValue| {
            let fake = fake.upgrade().unwrap();
            // The first preview is made for the decision, and the second one just before the run.
            if fake.preview_count.load(Ordering::SeqCst) == 2 {
                *fake.tool_hash.lock().unwrap() = "sha256:other".into();
            }
            Ok(fake.current_preview(arguments))
        };
        FakeProvider { preview_script: Some(Box::new(preview)), ..FakeProvider::new("fake") }
    });
    let (dir, skew) = (Arc::new(tempfile::tempdir().unwrap()), Arc::new(AtomicI64::new(0)));
    let bench = TestBench::in_directory(dir, fake, Arc::clone(&skew), config(&skew)).await;
    let change = bench.propose("{}").await;
    bench.decide(&change, ReviewVerdict::Approve).await.unwrap();
    let stale = bench.wait_for_state(&change.id, ChangeState::Stale).await;
    assert!(stale.fault.as_ref().unwrap().message.contains("propose it again"));
    let (_, fake, _) = bench.end().await;
    assert_eq!(fake.call_count(), 0);
}

#[actix::test]
async fn change_is_not_run_if_its_target_moved_after_approval() {
    let bench = TestBench::new().await;
    let (_, second) = approve_behind_running_change(&bench, [r#"{"n":1}"#, r#"{"n":2}"#]).await;
    // The run of the first change alters the target of the second.
    *bench.fake.state.lock().unwrap() = "changed by the first".into();
    bench.fake.gate.add_permits(1_000_000);
    let fresh = bench.changes.wait(&second.id, 3, Duration::from_secs(60)).await.unwrap().unwrap();
    assert_eq!((fresh.state, fresh.version), (ChangeState::Pending, 4));
    assert_eq!(fresh.approvals(), 0, "the approval was for another diff");
    assert_eq!(bench.fake.call_count(), 1);
    let trail = bench.trail(&second.id).await;
    let events: Vec<_> = trail.iter().rev().map(|e| e.event.as_str()).collect();
    assert_eq!(events, ["created", "approved", "stale", "refreshed"]);
    bench.end().await;
}

#[actix::test]
async fn change_returns_to_review_if_its_provider_is_gone() {
    let bench = TestBench::new().await;
    let (_, second) = approve_behind_running_change(&bench, ["{}", "{}"]).await;
    bench.fake.present.store(false, Ordering::SeqCst);
    bench.fake.gate.add_permits(1_000_000);
    let stale = bench.wait_for_state(&second.id, ChangeState::Stale).await;
    assert_eq!(stale.fault.as_ref().unwrap().code, "UPSTREAM_UNAVAILABLE");
    assert_eq!(bench.fake.call_count(), 1);
    bench.end().await;
}

#[actix::test]
async fn approved_change_expires_if_not_run_in_time() {
    let bench = TestBench::new().await;
    let (first, second) = approve_behind_running_change(&bench, ["{}", "{}"]).await;
    bench.skew.store(61, Ordering::SeqCst);
    assert_eq!(crate::upkeep::expiry::expire_due(bench.repository()).await, 1, "a running change does not expire");
    let expired = bench.get(&second.id).await;
    assert!(expired.state == ChangeState::Expired && expired.fault.as_ref().unwrap().message.contains("not run"));
    bench.fake.gate.add_permits(1_000_000);
    bench.wait_for_state(&first.id, ChangeState::Applied).await;
    let (_, fake, _) = bench.end().await;
    assert_eq!(fake.call_count(), 1);
}

#[actix::test]
async fn oversized_result_is_replaced_by_a_note() {
    let bench = TestBench::with(|config| config.tuning.max_result_bytes = 20).await;
    let change = bench.propose("{}").await;
    bench.decide(&change, ReviewVerdict::Approve).await.unwrap();
    let applied = bench.wait_for_state(&change.id, ChangeState::Applied).await;
    assert!(applied.result.as_ref().unwrap().get().contains("too large"));
    bench.end().await;
}

/// Simulates a killed process, which leaves one executing and one approved change.
#[actix::test]
async fn restart_leaves_running_unknown_and_runs_approved_once() {
    let bench = TestBench::new().await;
    let propose = async |target| bench.propose(&format!(r#"{{"target":"{target}"}}"#)).await;
    let (ran, waiting, pending, same) =
        (propose("a").await, propose("b").await, propose("c").await, propose("a").await);
    // The transitions are made without the Executor, as if the process had ended right after the commit.
    let repository = bench.repository();
    repository.shutdown.stop.cancel();
    for change in [&ran, &waiting, &same] {
        let decision = countersign_domain::changes::ReviewDecision {
            reviewer: "alice".into(),
            display_name: None,
            owner: None,
            key_id: None,
            other_names: Vec::new(),
            token: None,
            deputy_for: None,
            verdict: ReviewVerdict::Approve,
            comment: None,
            at: repository.config.now(),
            version: 1,
        };
        let approved = repository.transitions.apply_event(change, ChangeEvent::Decide(decision)).await.unwrap();
        if change.id == ran.id {
            let claim = ChangeEvent::Claim { claimant: None, call_timeout: Duration::from_secs(30), fingerprint: None };
            repository.transitions.apply_event(&approved, claim).await.unwrap();
        }
    }
    let (dir, fake, skew) = bench.end().await;
    assert_eq!(fake.call_count(), 0);

    let bench = TestBench::in_directory(dir, fake, Arc::clone(&skew), config(&skew)).await;
    let unknown = bench.get(&ran.id).await;
    assert_eq!(
        (unknown.state, unknown.version),
        (ChangeState::OutcomeUnknown, 4),
        "the outcome is unknown as soon as the start returns"
    );
    bench.wait_for_state(&waiting.id, ChangeState::Applied).await;
    assert_eq!(bench.get(&pending.id).await.state, ChangeState::Pending);
    bench.decide(&pending, ReviewVerdict::Approve).await.unwrap();
    bench.wait_for_state(&pending.id, ChangeState::Applied).await;
    let counts = bench.changes.counts();
    assert!(counts.contains(&(ChangeState::OutcomeUnknown, 1)) && counts.contains(&(ChangeState::Applied, 2)));
    assert_eq!(bench.get(&same.id).await.state, ChangeState::Approved, "a call to its target may still be running");
    // The target is blocked until the deadline of that call.
    skew.fetch_add(30, Ordering::SeqCst);
    bench.wait_for_state(&same.id, ChangeState::Applied).await;
    let (dir, fake, _) = bench.end().await;
    assert_eq!(fake.call_count(), 3);
    StoreLocation::directory(dir.path()).verify_audit(None).unwrap();
}

#[actix::test]
async fn lost_call_holds_back_its_target_until_settled_and_rechecked() {
    // With a concurrency of one, a waiting change must not occupy the only slot.
    let bench = TestBench::with(|config| config.tuning.concurrency = 1).await;
    *bench.fake.outcome.lock().unwrap() = CallOutcome::Error(ErrorKind::UpstreamUnavailable);
    let lost = bench.propose(r#"{"target":"a","n":1}"#).await;
    bench.decide(&lost, ReviewVerdict::Approve).await.unwrap();
    let lost = bench.wait_for_state(&lost.id, ChangeState::OutcomeUnknown).await;
    assert!(lost.target_taken_until.is_some_and(|until| until > lost.updated_at));
    *bench.fake.outcome.lock().unwrap() = CallOutcome::Succeed;
    let same = bench.propose(r#"{"target":"a","n":2}"#).await;
    bench.decide(&same, ReviewVerdict::Approve).await.unwrap();
    let moved = bench.propose(r#"{"target":"a","n":3}"#).await;
    bench.decide(&moved, ReviewVerdict::Approve).await.unwrap();
    let other = bench.propose(r#"{"target":"b"}"#).await;
    bench.decide(&other, ReviewVerdict::Approve).await.unwrap();
    bench.wait_for_state(&other.id, ChangeState::Applied).await;
    assert_eq!(bench.get(&same.id).await.state, ChangeState::Approved);
    let mut waits = [bench.get(&same.id).await, bench.get(&other.id).await];
    bench.changes.set_waits_for(&mut waits).await.unwrap();
    let waits = waits.map(|change| change.waits_for.clone());
    assert_eq!(waits, [Some(BlockingChange { change: lost.id.clone(), until: lost.target_taken_until }), None]);
    let settled = bench.settle(&lost, "bob", false).await.unwrap();
    assert_eq!(settled.target_taken_until, None);
    bench.wait_for_state(&same.id, ChangeState::Applied).await;
    bench.wait_for_state(&moved.id, ChangeState::Applied).await;
    let calls = bench.fake.received_calls.lock().unwrap().clone();
    assert!(
        calls[2].1.contains("2") && calls[3].1.contains("3"),
        "changes run in the order of their approvals: {calls:?}"
    );
    bench.end().await;
}

/// Progress and questions can keep a call alive beyond its timeout.
#[actix::test]
async fn broken_long_call_still_occupies_its_target() {
    for (call_outcome, held) in [
        (CallOutcome::Error(ErrorKind::UpstreamUnavailable), true),
        (CallOutcome::Panic, true),
        (CallOutcome::Error(ErrorKind::Timeout), false),
    ] {
        let bench = TestBench::new().await;
        *bench.fake.outcome.lock().unwrap() = call_outcome.clone();
        bench.fake.gate.forget_permits(1_000_000);
        let change = bench.propose("{}").await;
        bench.decide(&change, ReviewVerdict::Approve).await.unwrap();
        bench.wait_for_state(&change.id, ChangeState::Executing).await;
        while bench.fake.call_count() == 0 {
            tokio::task::yield_now().await;
        }
        bench.skew.store(3600, Ordering::SeqCst);
        bench.fake.gate.add_permits(1);
        let lost = bench.wait_for_state(&change.id, ChangeState::OutcomeUnknown).await;
        assert_eq!(lost.target_taken_until.is_some_and(|until| until > lost.updated_at), held, "{call_outcome:?}");
        bench.end().await;
    }
}

#[actix::test]
async fn approved_change_waits_for_its_provider_after_restart() {
    let bench = TestBench::new().await;
    let change = bench.propose("{}").await;
    bench.repository().shutdown.stop.cancel();
    bench.decide(&change, ReviewVerdict::Approve).await.unwrap();
    let (dir, fake, skew) = bench.end().await;
    fake.present.store(false, Ordering::SeqCst);
    let mut config = config(&skew);
    config.tuning.provider_startup_timeout = Duration::from_secs(60);
    let bench = TestBench::in_directory(dir, fake, skew, config).await;
    assert_eq!(bench.get(&change.id).await.state, ChangeState::Approved);
    bench.fake.present.store(true, Ordering::SeqCst);
    bench.wait_for_state(&change.id, ChangeState::Applied).await;
    bench.end().await;
}

#[actix::test]
async fn shutdown_waits_for_running_calls() {
    let bench = TestBench::new().await;
    bench.fake.gate.forget_permits(1_000_000);
    let change = bench.propose("{}").await;
    bench.decide(&change, ReviewVerdict::Approve).await.unwrap();
    bench.wait_for_state(&change.id, ChangeState::Executing).await;
    let mut feed = bench.changes.feed().subscribe(None).unwrap();
    let waiting = bench.changes.wait(&change.id, 99, Duration::from_secs(600));
    let (waited, ()) = tokio::join!(waiting, async {
        let shutdown = bench.changes.shutdown(Duration::from_secs(60));
        let release = async { bench.fake.gate.add_permits(1) };
        tokio::join!(shutdown, release);
    });
    // The wait ended with the shutdown and not after ten minutes. The call may have ended before or after the wait.
    assert!(matches!(waited.unwrap().unwrap().state, ChangeState::Executing | ChangeState::Applied));
    assert_eq!(feed.next().await.unwrap().kind, "change.applied");
    assert!(feed.next().await.is_none(), "the feed ends after the last event");
    assert!(bench.changes.feed().subscribe(None).is_none());
    let refused = bench.changes.propose(bench.proposal("agent", "{}")).await.unwrap_err();
    assert_eq!(refused.kind, ErrorKind::ShuttingDown);
    assert!(!bench.changes.is_healthy());
    assert_eq!(StoreLocation::directory(bench.dir.path()).verify_audit(None).unwrap().entries, 4);
}

#[actix::test]
async fn call_beyond_the_shutdown_deadline_is_unknown() {
    let bench = TestBench::new().await;
    *bench.fake.outcome.lock().unwrap() = CallOutcome::Hang;
    let change = bench.propose("{}").await;
    bench.decide(&change, ReviewVerdict::Approve).await.unwrap();
    bench.wait_for_state(&change.id, ChangeState::Executing).await;
    bench.changes.shutdown(Duration::from_millis(1)).await;
    let (dir, fake, skew) = (bench.dir, bench.fake, bench.skew);
    let bench = TestBench::in_directory(dir, fake, Arc::clone(&skew), config(&skew)).await;
    let unknown = bench.get(&change.id).await;
    assert_eq!((unknown.state, unknown.version), (ChangeState::OutcomeUnknown, 4));
    assert!(unknown.fault.as_ref().unwrap().message.contains("stopped while"));
    bench.end().await;
}

#[actix::test]
async fn outcome_is_unknown_if_the_executor_panics_after_a_call() {
    let (skew, is_broken) = (Arc::<AtomicI64>::default(), Arc::<AtomicBool>::default());
    let mut config = config(&skew);
    let (clock, breaks) = (config.clock, Arc::clone(&is_broken));
    config.clock = Arc::new(move || if breaks.swap(false, Ordering::SeqCst) { panic!("no clock") } else { clock() });
    let mut fake = FakeProvider::new("fake");
    fake.call_script = Some(Box::new(move |_, _| {
        is_broken.store(true, Ordering::SeqCst);
        Err(McpError::new(ErrorKind::UpstreamUnavailable, "gone"))
    }));
    let dir = Arc::new(tempfile::tempdir().unwrap());
    let bench = TestBench::in_directory(dir, Arc::new(fake), skew, config).await;
    let change = bench.propose("{}").await;
    bench.decide(&change, ReviewVerdict::Approve).await.unwrap();
    let unknown = bench.wait_for_state(&change.id, ChangeState::OutcomeUnknown).await;
    assert_eq!(unknown.fault.as_ref().unwrap().code, "INTERNAL_ERROR");
    bench.end().await;
}

#[actix::test]
async fn request_whose_work_panics_may_have_been_done() {
    let bench = TestBench::new().await;
    let panics = || -> Result<(), ChangeRequestError> { panic!("as the test wants it") };
    let failed = bench.changes.core.run_on_executor(async move { panics() }).await.unwrap_err();
    assert_eq!(failed.error.kind, ErrorKind::Internal);
    bench.end().await;
}

#[actix::test]
async fn change_waits_for_its_server_and_runs_as_approved() {
    for unlisted in [false, true] {
        let bench = TestBench::with(|config| config.tuning.provider_startup_timeout = Duration::from_secs(3600)).await;
        let set_away = |away: bool| {
            let flag = if unlisted { &bench.fake.tools_unknown } else { &bench.fake.unavailable };
            flag.store(away, Ordering::SeqCst);
        };
        let bytes = r#"{ "target":"t",  "n":12345678901234567890123, "f":1.10, "e":"\u00e9" }"#;
        let change = bench.propose(bytes).await;
        // The change cannot be compared with its target now, so the decision is refused and nothing else happens.
        set_away(true);
        let refused = bench.decide(&change, ReviewVerdict::Approve).await.unwrap_err();
        assert_eq!(refused.error.kind, ErrorKind::UpstreamUnavailable);
        assert_eq!(bench.get(&change.id).await.state, ChangeState::Pending);
        set_away(false);
        // The server goes away between the approval and the run.
        bench.fake.gate.forget_permits(1_000_000);
        let first = bench.propose(r#"{"target":"t"}"#).await;
        bench.decide(&first, ReviewVerdict::Approve).await.unwrap();
        bench.wait_for_state(&first.id, ChangeState::Executing).await;
        bench.decide(&change, ReviewVerdict::Approve).await.unwrap();
        set_away(true);
        bench.fake.gate.add_permits(10);
        bench.wait_for_state(&first.id, ChangeState::Applied).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert_eq!(bench.get(&change.id).await.state, ChangeState::Approved, "the change waits for its server");
        assert_eq!(bench.fake.call_count(), 1);
        set_away(false);
        bench.wait_for_state(&change.id, ChangeState::Applied).await;
        let calls = bench.fake.received_calls.lock().unwrap().clone();
        assert_eq!(calls[1..], [("update".to_owned(), bytes.to_owned())], "the exact bytes are sent once");
        bench.end().await;
    }
}

#[actix::test]
async fn change_returns_to_review_if_its_server_stays_unreachable() {
    let bench = TestBench::new().await;
    bench.fake.gate.forget_permits(1_000_000);
    let first = bench.propose(r#"{"target":"t"}"#).await;
    let change = bench.propose(r#"{"target":"t"}"#).await;
    bench.decide(&first, ReviewVerdict::Approve).await.unwrap();
    bench.wait_for_state(&first.id, ChangeState::Executing).await;
    bench.decide(&change, ReviewVerdict::Approve).await.unwrap();
    bench.fake.unavailable.store(true, Ordering::SeqCst);
    bench.fake.gate.add_permits(10);
    let stale = bench.wait_for_state(&change.id, ChangeState::Stale).await;
    assert_eq!(stale.fault.as_ref().map(|fault| fault.code.as_str()), Some("UPSTREAM_UNAVAILABLE"));
    let (_, fake, _) = bench.end().await;
    assert_eq!(fake.call_count(), 1, "nothing was sent");
}

#[actix::test]
async fn change_waits_for_the_account_of_its_proposer() {
    let bench = TestBench::with(|config| config.tuning.concurrency = 1).await;
    bench.fake.gate.forget_permits(1_000_000);
    let first = bench.propose(r#"{"target":"t"}"#).await;
    let change = bench.propose(r#"{"target":"t"}"#).await;
    let proposal = bench.proposal("other-agent", r#"{"target":"t"}"#);
    let later = bench.changes.propose(proposal).await.unwrap();
    for approved in [&first, &change, &later] {
        bench.decide(approved, ReviewVerdict::Approve).await.unwrap();
    }
    bench.wait_for_state(&first.id, ChangeState::Executing).await;
    bench.fake.disconnected.lock().unwrap().push(change.proposer.principal.clone());
    bench.fake.gate.add_permits(10);
    // Another person's change of the same target does not wait for the account, although only one runs at a time.
    bench.wait_for_state(&later.id, ChangeState::Applied).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    let waiting = bench.changes.get(&change.id).await.unwrap().unwrap();
    assert_eq!(waiting.state, ChangeState::Approved);
    assert_eq!(waiting.fault.as_ref().map(|fault| fault.code.as_str()), Some("AUTHORIZATION"));
    let page = bench.changes.list(ChangeFilter::default(), 10, None).await.unwrap();
    let listed = page.items.into_iter().find(|listed| listed.id == change.id).unwrap();
    assert_eq!(listed.fault, waiting.fault);
    bench.fake.disconnected.lock().unwrap().clear();
    let applied = bench.wait_for_state(&change.id, ChangeState::Applied).await;
    assert_eq!((applied.fault.clone(), bench.fake.call_count()), (None, 3));
    bench.end().await;
}

#[actix::test]
async fn change_without_an_account_expires() {
    let bench = TestBench::new().await;
    bench.fake.gate.forget_permits(1_000_000);
    let first = bench.propose(r#"{"target":"t"}"#).await;
    let change = bench.propose(r#"{"target":"t"}"#).await;
    bench.decide(&first, ReviewVerdict::Approve).await.unwrap();
    bench.decide(&change, ReviewVerdict::Approve).await.unwrap();
    bench.wait_for_state(&first.id, ChangeState::Executing).await;
    bench.fake.disconnected.lock().unwrap().push(change.proposer.principal.clone());
    bench.fake.gate.add_permits(10);
    bench.wait_for_state(&first.id, ChangeState::Applied).await;
    while bench.get(&change.id).await.fault.is_none() {
        tokio::task::yield_now().await;
    }
    bench.skew.store(2_592_000, Ordering::SeqCst);
    bench.wait_for_state(&change.id, ChangeState::Expired).await;
    assert!(bench.changes.core.waiting_reasons.is_empty(), "an expired change waits for nobody");
    let (_, fake, _) = bench.end().await;
    assert_eq!(fake.call_count(), 1, "nothing was sent");
}
