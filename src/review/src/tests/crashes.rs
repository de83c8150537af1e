//! Kills a child process at every crash point, restarts on its data directory, and counts the calls.
//!
//! The child is this test binary. An environment variable makes it play the gateway.

use std::{
    path::Path,
    process::{Command, Stdio},
    sync::{Arc, atomic::AtomicI64},
};

use crate::testing::*;
use countersign_domain::changes::{Change, ChangeState, ReviewVerdict, Verification};
use countersign_store::StoreLocation;

pub(super) const CRASH_DIR_VARIABLE: &str = "COUNTERSIGN_TEST_CRASH_DIR";

const CHILD: &str = "tests::crashes::child";

/// Plays the gateway: proposes one change, writes its id to a file, approves it, and waits until it is applied. The
/// provider records each call in a file before it returns.
#[actix::test]
#[ignore = "runs only as a child process of another test"]
async fn child() {
    let Ok(dir) = std::env::var(CRASH_DIR_VARIABLE) else { return };
    let fake = fake_with_read_back();
    *fake.call_log.lock().unwrap() = Some(Path::new(&dir).join("calls"));
    let skew = Arc::new(AtomicI64::new(0));
    let data = Path::new(&dir).join("data");
    let bench = TestBench::at_path(&data, fake, Arc::clone(&skew), config(&skew)).await;
    let change = bench.propose(r#"{"n":1}"#).await;
    std::fs::write(Path::new(&dir).join("announced_id"), &change.id).unwrap();
    let _ = bench.decide(&change, ReviewVerdict::Approve).await;
    bench.wait_for_state(&change.id, ChangeState::Applied).await;
    std::fs::write(Path::new(&dir).join("finished"), "").unwrap();
    bench.changes.shutdown(std::time::Duration::from_secs(10)).await;
}

/// Returns a provider whose calls are read back as approved.
fn fake_with_read_back() -> Arc<FakeProvider> {
    let fake = fake();
    let read = |_: &str, _: &serde_json::value::RawValue| Ok(vec![("state", Some("<b>two</b>".to_owned()))]);
    assert!(fake.read_back_script.set(Box::new(read)).is_ok());
    fake
}

/// Runs a test as a child process that is killed at that hit of the crash point. Returns `true` if it ends by itself.
pub(super) fn run_child(test: &str, dir: &Path, point: &str, hit: u32) -> bool {
    let status = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--ignored", "--test-threads=1"])
        .env(CRASH_DIR_VARIABLE, dir)
        .env("COUNTERSIGN_CRASH_AT", point)
        .env("COUNTERSIGN_CRASH_AFTER", hit.to_string())
        .env_remove("RUST_BACKTRACE")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .unwrap();
    status.success()
}

fn calls(dir: &Path) -> usize {
    std::fs::read_to_string(dir.join("calls")).map_or(0, |text| text.lines().count())
}

/// Restarts on the child's data directory, and returns the change after it has stopped moving.
async fn restart(dir: &Path) -> (TestBench, Option<Arc<Change>>) {
    let fake = fake_with_read_back();
    *fake.call_log.lock().unwrap() = Some(dir.join("calls"));
    let skew = Arc::new(AtomicI64::new(0));
    let bench = TestBench::at_path(&dir.join("data"), fake, Arc::clone(&skew), config(&skew)).await;
    let page = bench.changes.list(crate::ChangeFilter::default(), 10, None).await.unwrap();
    assert!(page.items.len() <= 1);
    let Some(found) = page.items.first() else { return (bench, None) };
    let mut change = bench.get(&found.id).await;
    while matches!(change.state, ChangeState::Approved | ChangeState::Executing) {
        let version = change.version;
        change = bench.changes.wait(&change.id, version, std::time::Duration::from_secs(60)).await.unwrap().unwrap();
        assert!(change.version > version, "the change is stuck in {:?}", change.state);
    }
    (bench, Some(change))
}

#[actix::test]
async fn crash_at_any_point_applies_once_and_announces_after_commit() {
    use ChangeState::{Applied, OutcomeUnknown, Pending};
    // The crash point, the hit at which it crashes, the state after the restart, and the total number of calls.
    let table: &[(&str, u32, Option<ChangeState>, usize)] = &[
        ("before_commit", 1, None, 0),
        ("after_commit", 1, Some(Pending), 0),
        ("between_commit_and_announce", 1, Some(Pending), 0),
        ("after_announce", 1, Some(Pending), 0),
        ("before_commit", 2, Some(Pending), 0),
        ("after_commit", 2, Some(Applied), 1),
        ("between_commit_and_announce", 2, Some(Applied), 1),
        ("after_announce", 2, Some(Applied), 1),
        ("before_claim", 1, Some(Applied), 1),
        ("before_commit", 3, Some(Applied), 1),
        ("after_commit", 3, Some(OutcomeUnknown), 0),
        ("between_commit_and_announce", 3, Some(OutcomeUnknown), 0),
        ("after_claim", 1, Some(OutcomeUnknown), 0),
        ("after_call", 1, Some(OutcomeUnknown), 1),
        ("before_result", 1, Some(OutcomeUnknown), 1),
        ("before_commit", 4, Some(OutcomeUnknown), 1),
        ("after_commit", 4, Some(Applied), 1),
        ("between_commit_and_announce", 4, Some(Applied), 1),
        ("after_result", 1, Some(Applied), 1),
        ("before_commit", 5, Some(Applied), 1),
        ("after_commit", 5, Some(Applied), 1),
        ("nowhere", 1, Some(Applied), 1),
    ];
    for (point, hit, expected_state, expected_calls) in table {
        let name = format!("{point} {hit}");
        let dir = tempfile::tempdir().unwrap();
        let finished = run_child(CHILD, dir.path(), point, *hit);
        assert_eq!(finished, *point == "nowhere", "{name}: the child must crash unless no point was set");
        let was_announced = dir.path().join("announced_id").exists();
        let (bench, change) = restart(dir.path()).await;
        assert_eq!(change.as_ref().map(|c| c.state), *expected_state, "{name}");
        assert!(!was_announced || change.is_some(), "{name}: an announced change must be durable");
        assert_eq!(calls(dir.path()), *expected_calls, "{name}");
        // What was not recorded before the crash is never read back.
        let is_unread =
            matches!(*point, "after_result") || matches!((*point, *hit), ("after_commit", 4) | ("before_commit", 5));
        if let Some(change) = change.as_ref().filter(|_| is_unread) {
            assert_eq!(change.verification, Some(Verification::not_read()), "{name}");
        }
        // The feed holds every transition, without a gap.
        if let Some(change) = &change {
            let mut feed = bench.changes.feed().subscribe(Some(0)).unwrap();
            for version in 1..=change.version {
                let event = feed.next().await.unwrap();
                assert_eq!((event.seq, event.change.as_ref().unwrap().version), (Some(version), version), "{name}");
            }
        }
        bench.changes.shutdown(std::time::Duration::from_secs(10)).await;
        StoreLocation::directory(&dir.path().join("data")).verify_audit(None).unwrap();
    }
}
