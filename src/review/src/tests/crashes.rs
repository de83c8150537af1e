//! Kills a process of its own at every named point, starts again over what it left, and counts.
//!
//! The child is this test binary, told by its environment to play the part of the gateway.

use std::{
    path::Path,
    process::{Command, Stdio},
    sync::{Arc, atomic::AtomicI64},
};

use super::super::testing::*;
use countersign_domain::changes::{Change, ChangeState, Verdict};
use countersign_store::Place;

const DIR: &str = "COUNTERSIGN_TEST_CRASH_DIR";

/// The part of the gateway: propose one change, say so, approve it, and wait until it is over. Calls of the provider
/// are noted in a file before they return.
#[actix::test]
#[ignore = "played by the other test's child"]
async fn child() {
    let Ok(dir) = std::env::var(DIR) else { return };
    let fake = fake();
    *fake.ledger.lock().unwrap() = Some(Path::new(&dir).join("calls"));
    let skew = Arc::new(AtomicI64::new(0));
    let data = Path::new(&dir).join("data");
    let bench = Bench::at_path(&data, fake, Arc::clone(&skew), config(&skew)).await;
    let change = bench.propose(r#"{"n":1}"#).await;
    std::fs::write(Path::new(&dir).join("heard"), &change.id).unwrap();
    let _ = bench.decide(&change, Verdict::Approve).await;
    bench.until(&change.id, ChangeState::Applied).await;
    std::fs::write(Path::new(&dir).join("finished"), "").unwrap();
    bench.changes.shutdown(std::time::Duration::from_secs(10)).await;
}

fn run_child(dir: &Path, point: &str, passage: u32) -> bool {
    let status = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "tests::crashes::child", "--ignored", "--test-threads=1"])
        .env(DIR, dir)
        .env("COUNTERSIGN_CRASH_AT", point)
        .env("COUNTERSIGN_CRASH_AFTER", passage.to_string())
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

/// Starts over what the child left, and returns the change once it has come to rest.
async fn restart(dir: &Path) -> (Bench, Option<Arc<Change>>) {
    let fake = fake();
    *fake.ledger.lock().unwrap() = Some(dir.join("calls"));
    let skew = Arc::new(AtomicI64::new(0));
    let bench = Bench::at_path(&dir.join("data"), fake, Arc::clone(&skew), config(&skew)).await;
    let page = bench.changes.list(super::super::ChangeFilter::default(), 10, None).await.unwrap();
    assert!(page.items.len() <= 1);
    let Some(found) = page.items.first() else { return (bench, None) };
    let mut change = bench.get(&found.id).await;
    while matches!(change.state, ChangeState::Approved | ChangeState::Executing) {
        let version = change.version;
        change = bench.changes.wait(&change.id, version, std::time::Duration::from_secs(20)).await.unwrap().unwrap();
        assert!(change.version > version, "it rests at {:?}", change.state);
    }
    (bench, Some(change))
}

#[actix::test]
async fn crash_at_any_point_applies_once_and_announces_after_commit() {
    use ChangeState::{Applied, OutcomeUnknown, Pending};
    // The point, its passage, what is found after the restart, and how often the provider was called in all.
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
        ("nowhere", 1, Some(Applied), 1),
    ];
    for (point, passage, state, runs) in table {
        let name = format!("{point} {passage}");
        let dir = tempfile::tempdir().unwrap();
        let finished = run_child(dir.path(), point, *passage);
        assert_eq!(finished, *point == "nowhere", "{name}: did the child crash?");
        let heard = dir.path().join("heard").exists();
        let (bench, change) = restart(dir.path()).await;
        assert_eq!(change.as_ref().map(|c| c.state), *state, "{name}");
        assert!(!heard || change.is_some(), "{name}: told of what is not durable");
        assert_eq!(calls(dir.path()), *runs, "{name}");
        // The feed holds every transition, without a gap.
        if let Some(change) = &change {
            let mut feed = bench.changes.feed().subscribe(Some(0)).unwrap();
            for version in 1..=change.version {
                let event = feed.next().await.unwrap();
                assert_eq!((event.seq, event.change.as_ref().unwrap().version), (Some(version), version), "{name}");
            }
        }
        bench.changes.shutdown(std::time::Duration::from_secs(10)).await;
        Place::directory(&dir.path().join("data")).verify_audit(None).unwrap();
    }
}
