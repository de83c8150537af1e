//! An applied change is read back once, and what is found never alters its state.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use crate::testing::*;
use countersign_domain::changes::{Change, ChangeState, ReviewVerdict, Verification, VerificationOutcome};
use countersign_protocol::{ErrorKind, McpError};

/// Lets the provider read this value after each call. Its previews promise `<b>two</b>`. Returns the number of reads.
fn read_after_calls(bench: &TestBench, value: Result<&'static str, &'static str>) -> Arc<AtomicUsize> {
    let reads = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&reads);
    let script = move |_: &str, _: &serde_json::value::RawValue| {
        counter.fetch_add(1, Ordering::SeqCst);
        let found = value.map_err(|message| McpError::new(ErrorKind::NotFound, message))?;
        Ok(vec![("state", Some(found.to_owned()))])
    };
    assert!(bench.fake.read_back_script.set(Box::new(script)).is_ok());
    reads
}

async fn approve(bench: &TestBench, arguments: &str) -> String {
    let change = bench.propose(arguments).await;
    bench.decide(&change, ReviewVerdict::Approve).await.unwrap();
    change.id.clone()
}

/// Waits for the event of the verification, and returns the change after it.
async fn wait_for_verification(bench: &TestBench, id: &str) -> Arc<Change> {
    let mut feed = bench.changes.feed().subscribe(Some(0)).unwrap();
    loop {
        let event = feed.next().await.unwrap();
        if event.kind == "change.verified" && event.change.as_ref().is_some_and(|change| change.id == id) {
            return bench.get(id).await;
        }
    }
}

#[actix::test]
async fn applied_change_is_read_back_once() {
    for (value, verified, reason) in [
        (Ok("<b>two</b>"), VerificationOutcome::Matches, None),
        (Ok("one"), VerificationOutcome::Differs, None),
        (Err("it is gone"), VerificationOutcome::Unreadable, Some("it is gone")),
    ] {
        let bench = TestBench::new().await;
        let reads = read_after_calls(&bench, value);
        let id = approve(&bench, "{}").await;
        let applied = bench.wait_for_state(&id, ChangeState::Applied).await;
        let change = wait_for_verification(&bench, &id).await;
        let verification = change.verification.clone().unwrap();
        assert_eq!((verification.verified, verification.reason.as_deref()), (verified, reason));
        let differences = verification.diff.map(|diff| diff.fields);
        assert_eq!(differences.is_some(), verified == VerificationOutcome::Differs);
        if let Some([field]) = differences.as_deref() {
            assert_eq!((field.before.as_deref(), field.after.as_deref()), (Some("<b>two</b>"), Some("one")));
        }
        assert_eq!((change.state, change.version, &change.digest), (ChangeState::Applied, 5, &applied.digest));
        let trail = bench.trail(&id).await;
        let events: Vec<_> = trail.iter().rev().map(|entry| entry.event.as_str()).collect();
        assert_eq!(events, ["created", "approved", "executing", "applied", "verified"]);
        let details: serde_json::Value = serde_json::from_str(trail[0].details.get()).unwrap();
        assert_eq!(details["verified"], verified.as_str());
        let (_, fake, _) = bench.end().await;
        assert_eq!((fake.call_count(), reads.load(Ordering::SeqCst)), (1, 1));
    }
}

#[actix::test]
async fn only_applied_changes_are_read_back() {
    let bench = TestBench::new().await;
    let unread = approve(&bench, "{}").await;
    assert_eq!(bench.wait_for_state(&unread, ChangeState::Applied).await.verification, None, "nothing reads it");
    let reads = read_after_calls(&bench, Ok("one"));
    *bench.fake.outcome.lock().unwrap() = CallOutcome::ToolError;
    let failed = approve(&bench, "{}").await;
    assert_eq!(bench.wait_for_state(&failed, ChangeState::Failed).await.verification, None);
    *bench.fake.outcome.lock().unwrap() = CallOutcome::Error(ErrorKind::Timeout);
    let unknown = approve(&bench, "{}").await;
    let unknown = bench.wait_for_state(&unknown, ChangeState::OutcomeUnknown).await;
    let settled = bench.settle(&unknown, "alice", true).await.unwrap();
    assert_eq!((settled.state, &settled.verification), (ChangeState::Applied, &None));
    bench.end().await;
    assert_eq!(reads.load(Ordering::SeqCst), 0);
}

#[actix::test]
async fn next_change_of_target_waits_until_the_read_ends() {
    let bench = TestBench::with(|config| config.tuning.preview_timeout = Duration::from_millis(300)).await;
    let reads = read_after_calls(&bench, Ok("<b>two</b>"));
    bench.fake.read_back_gate.forget_permits(1_000_000);
    let first = approve(&bench, r#"{"n":1}"#).await;
    bench.wait_for_state(&first, ChangeState::Applied).await;
    let second = approve(&bench, r#"{"n":2}"#).await;
    let change = wait_for_verification(&bench, &first).await;
    assert_eq!(change.verification, Some(Verification::unreadable("it took too long")));
    bench.fake.read_back_gate.add_permits(1);
    let change = wait_for_verification(&bench, &second).await;
    assert_eq!(change.verification.as_ref().unwrap().verified, VerificationOutcome::Matches);
    let trail = bench.changes.audit_after(0, 100).await.unwrap();
    let position = |id: &str, event: &str| trail.iter().find(|e| e.change_id == id && e.event == event).unwrap().seq;
    assert!(position(&second, "executing") > position(&first, "verified"));
    bench.end().await;
    assert_eq!(reads.load(Ordering::SeqCst), 1);
}

#[actix::test]
async fn stopping_gateway_gives_up_the_read() {
    let bench = TestBench::new().await;
    read_after_calls(&bench, Ok("<b>two</b>"));
    bench.fake.read_back_gate.forget_permits(1_000_000);
    let id = approve(&bench, "{}").await;
    let applied = bench.wait_for_state(&id, ChangeState::Applied).await;
    assert_eq!(applied.verification, Some(Verification::not_read()));
    let (dir, fake, skew) = bench.end().await;
    let config = config(&skew);
    let bench = TestBench::in_directory(dir, fake, skew, config).await;
    let change = bench.get(&id).await;
    assert_eq!(change.verification, Some(Verification::unreadable("the gateway was stopped")));
    assert_eq!(change.state, ChangeState::Applied);
    bench.end().await;
}
