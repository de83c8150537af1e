//! Retention removes old records in order and audits that, keeps open changes, and resets late subscribers.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use crate::{testing::*, upkeep::prune};
use countersign_config::RetentionConfig;
use countersign_domain::changes::{Change, ChangeState, ReviewVerdict, digest::text_hash};
use countersign_store::StoreLocation;

const DAY: u64 = 86_400;

fn days(arguments: u64, finished: u64, events: u64) -> RetentionConfig {
    let time = |days: u64| Some(Duration::from_secs(days * DAY));
    RetentionConfig {
        arguments: time(arguments),
        finished: time(finished),
        events: time(events),
        ..RetentionConfig::default()
    }
}

async fn bench(retention: RetentionConfig) -> TestBench {
    TestBench::with(|config| config.limits.retention = retention).await
}

async fn prune_all(bench: &TestBench) {
    while prune::prune_batch(bench.repository()).await.unwrap() {}
}

fn advance_days(bench: &TestBench, days: i64) {
    bench.skew.fetch_add(days * 86_400, Ordering::SeqCst);
}

async fn applied(bench: &TestBench, arguments: &str) -> Arc<Change> {
    let change = bench.propose(arguments).await;
    bench.decide(&change, ReviewVerdict::Approve).await.unwrap();
    bench.wait_for_state(&change.id, ChangeState::Applied).await
}

async fn trail(bench: &TestBench, id: &str) -> Vec<String> {
    bench.trail(id).await.into_iter().rev().map(|entry| entry.event).collect()
}

#[actix::test]
async fn contents_are_pruned_first_then_the_change() {
    let bench = bench(days(10, 30, 1000)).await;
    let secret = r#"{"password":"hunter2"}"#;
    let old = applied(&bench, secret).await;
    let open = bench.propose(r#"{"open":"kept"}"#).await;
    prune_all(&bench).await;
    assert!(bench.get(&old.id).await.redacted.is_none(), "nothing is old yet");

    advance_days(&bench, 11);
    let young = applied(&bench, r#"{"young":1}"#).await;
    prune_all(&bench).await;
    let pruned = bench.get(&old.id).await;
    let text = serde_json::to_string(&*pruned).unwrap();
    assert!(!text.contains("hunter2"), "{text}");
    assert_eq!((pruned.state, pruned.version, pruned.arguments.get()), (ChangeState::Applied, old.version, "{}"));
    assert_eq!((&pruned.summary, &pruned.digest, &pruned.decisions), (&old.summary, &old.digest, &old.decisions));
    assert!(pruned.result.is_none() && pruned.diff.fields.is_empty());
    let redacted = pruned.redacted.clone().unwrap();
    assert_eq!(redacted.arguments, text_hash(secret));
    assert_eq!(redacted.result, Some(text_hash(old.result.as_ref().unwrap().get())));
    assert_eq!(bench.get(&open.id).await.arguments.get(), r#"{"open":"kept"}"#, "open changes are never pruned");
    assert_eq!(bench.get(&young.id).await.arguments.get(), r#"{"young":1}"#);
    assert_eq!(trail(&bench, &old.id).await.last().unwrap(), "redacted");
    let verified = StoreLocation::directory(bench.dir.path()).verify_audit(None).unwrap();

    advance_days(&bench, 20);
    prune_all(&bench).await;
    assert!(bench.changes.get(&old.id).await.unwrap().is_none());
    assert!(bench.changes.get(&open.id).await.unwrap().is_some());
    assert!(bench.get(&young.id).await.redacted.is_some());
    assert_eq!(trail(&bench, &old.id).await, ["created", "approved", "executing", "applied", "redacted", "deleted"]);
    let counts: std::collections::BTreeMap<_, _> = bench.changes.counts().into_iter().collect();
    assert_eq!((counts[&ChangeState::Applied], counts[&ChangeState::Pending]), (1, 1));
    let later = StoreLocation::directory(bench.dir.path()).verify_audit(Some(verified.head)).unwrap();
    assert_eq!((later.changes, later.entries), (2, verified.entries + 2));
    // New changes still run after the pruning.
    applied(&bench, r#"{"n":1}"#).await;
    let (dir, ..) = bench.end().await;
    StoreLocation::directory(dir.path()).verify_audit(Some(later.head)).unwrap();
}

#[actix::test]
async fn records_are_kept_forever_without_retention() {
    let bench = bench(RetentionConfig::default()).await;
    let change = applied(&bench, r#"{"n":1}"#).await;
    advance_days(&bench, 100_000);
    prune_all(&bench).await;
    assert_eq!(bench.get(&change.id).await.arguments.get(), r#"{"n":1}"#);
    assert_eq!(bench.changes.feed().subscribe(Some(0)).unwrap().next().await.unwrap().seq, Some(1));
    bench.end().await;
}

#[actix::test]
async fn verify_detects_a_forged_pruning() {
    let bench = bench(days(0, 30, 1000)).await;
    let change = applied(&bench, r#"{"n":1}"#).await;
    advance_days(&bench, 1);
    prune_all(&bench).await;
    let (dir, ..) = bench.end().await;
    StoreLocation::directory(dir.path()).verify_audit(None).unwrap();
    let conn = countersign_store::sqlite::open::open_writer(dir.path()).unwrap();
    conn.execute("UPDATE changes SET body = replace(body, 'applied', 'Applied') WHERE id = ?1", [&change.id]).unwrap();
    assert!(StoreLocation::directory(dir.path()).verify_audit(None).is_err(), "a redacted change was altered");
    conn.execute("DELETE FROM changes", []).unwrap();
    assert!(
        StoreLocation::directory(dir.path()).verify_audit(None).is_err(),
        "a change was deleted without an audit entry"
    );
}

#[actix::test]
async fn repeat_finds_its_pruned_change() {
    let bench = bench(days(0, 30, 1000)).await;
    let proposal = |arguments: &str| {
        let mut proposal = bench.proposal("agent", arguments);
        proposal.idempotency_key = Some("k".into());
        proposal
    };
    let change = bench.changes.propose(proposal(r#"{"n":1}"#)).await.unwrap();
    bench.decide(&change, ReviewVerdict::Reject).await.unwrap();
    advance_days(&bench, 1);
    prune_all(&bench).await;
    let again = bench.changes.propose(proposal(r#"{"n":1}"#)).await.unwrap();
    assert_eq!((&again.id, again.state), (&change.id, ChangeState::Rejected));
    let other = bench.changes.propose(proposal(r#"{"n":2}"#)).await.unwrap_err();
    assert_eq!(other.kind, countersign_protocol::ErrorKind::IdempotencyConflict);
    bench.end().await;
}

#[actix::test]
async fn subscriber_behind_pruned_events_gets_a_reset() {
    let bench = bench(RetentionConfig { events: Some(Duration::from_secs(DAY)), ..RetentionConfig::default() }).await;
    for _ in 0..3 {
        bench.propose("{}").await;
    }
    advance_days(&bench, 2);
    bench.propose("{}").await;
    bench.propose("{}").await;
    prune_all(&bench).await;
    for since in [0, 2] {
        let mut late = bench.changes.feed().subscribe(Some(since)).unwrap();
        let reset = late.next().await.unwrap();
        let json: Value = serde_json::from_slice(&reset.json).unwrap();
        assert_eq!((reset.seq, json), (Some(3), json!({"type": "reset", "seq": 3})), "since {since}");
        assert_eq!(
            String::from_utf8_lossy(&reset.sse),
            "id: 3\nevent: reset\ndata: {\"type\":\"reset\",\"seq\":3}\n\n"
        );
        assert_eq!((late.next().await.unwrap().seq, late.next().await.unwrap().seq), (Some(4), Some(5)));
        assert_eq!(late.position(), 5);
    }
    let mut in_time = bench.changes.feed().subscribe(Some(3)).unwrap();
    assert_eq!(in_time.next().await.unwrap().kind, "change.created", "no requested event was pruned");

    // The last event always stays, because the numbering continues from it after a restart.
    advance_days(&bench, 30);
    prune_all(&bench).await;
    let (dir, fake, skew) = bench.end().await;
    let bench = TestBench::in_directory(dir, fake, Arc::clone(&skew), config(&skew)).await;
    assert_eq!(bench.changes.feed().head(), 5);
    bench.propose("{}").await;
    assert_eq!(bench.changes.feed().head(), 6);
    bench.end().await;
}

#[actix::test]
async fn pruning_in_batches_does_not_block_writers() {
    // Times of zero would let the gateway's own task prune each second.
    let bench = bench(days(1, 1, 1000)).await;
    for _ in 0..130 {
        let change = bench.propose("{}").await;
        bench.decide(&change, ReviewVerdict::Reject).await.unwrap();
    }
    advance_days(&bench, 2);
    let mut batches: u64 = 1;
    while prune::prune_batch(bench.repository()).await.unwrap() {
        batches += 1;
        bench.propose("{}").await;
    }
    assert!(batches >= 3, "{batches}");
    let counts: std::collections::BTreeMap<_, _> = bench.changes.counts().into_iter().collect();
    assert_eq!((counts[&ChangeState::Rejected], counts[&ChangeState::Pending]), (0, batches - 1));
    let (dir, ..) = bench.end().await;
    assert_eq!(StoreLocation::directory(dir.path()).verify_audit(None).unwrap().changes, batches - 1);
}

#[test]
fn clock_is_distrusted_for_a_day_after_a_jump() {
    let start = Timestamp::now();
    let mut trust = prune::ClockTrust::new(start);
    assert!(trust.is_trusted(start + SignedDuration::from_secs(30)));
    assert!(
        !trust.is_trusted(start + SignedDuration::from_hours(24 * 400)),
        "with a clock a year ahead, everything would be old"
    );
    assert!(
        !trust.is_trusted(start + SignedDuration::from_hours(24 * 400)),
        "a clock stays distrusted although it is steady now"
    );
    let mut trust = prune::ClockTrust::new(start);
    assert!(
        !trust.is_trusted(start - SignedDuration::from_hours(24)),
        "a clock that jumped back may jump forward again"
    );
}

const PRUNE_DIR_VARIABLE: &str = "COUNTERSIGN_TEST_PRUNE_DIR";

/// Plays the gateway that is killed while it prunes.
#[actix::test]
#[ignore = "runs only as a child process of another test"]
async fn child() {
    let Ok(dir) = std::env::var(PRUNE_DIR_VARIABLE) else { return };
    let skew = Arc::default();
    let mut config = config(&skew);
    config.limits.retention = days(0, 30, 0);
    let bench = TestBench::at_path(std::path::Path::new(&dir), fake(), skew, config).await;
    advance_days(&bench, 1);
    prune_all(&bench).await;
    std::process::exit(0);
}

#[actix::test]
async fn kill_during_pruning_leaves_all_or_nothing() {
    for (point, pruned) in [("before_prune_commit", false), ("after_prune_commit", true)] {
        let bench = TestBench::new().await;
        let change = applied(&bench, r#"{"n":1}"#).await;
        let (dir, ..) = bench.end().await;
        let status = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "tests::retention::child", "--ignored", "--test-threads=1"])
            .env(PRUNE_DIR_VARIABLE, dir.path())
            .env("COUNTERSIGN_CRASH_AT", point)
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .status()
            .unwrap();
        assert_eq!(status.code(), None, "{point}: the child must be killed");
        StoreLocation::directory(dir.path()).verify_audit(None).unwrap();
        let skew = Arc::default();
        let mut config = config(&skew);
        config.limits.retention = days(0, 30, 0);
        let bench = TestBench::in_directory(dir, fake(), skew, config).await;
        assert_eq!(bench.get(&change.id).await.redacted.is_some(), pruned, "{point}");
        let first = bench.changes.feed().subscribe(Some(0)).unwrap().next().await.unwrap();
        assert_eq!(first.kind == "reset", pruned, "{point}: events are pruned in the same transaction");
        advance_days(&bench, 1);
        prune_all(&bench).await;
        assert!(bench.get(&change.id).await.redacted.is_some());
        let (dir, ..) = bench.end().await;
        StoreLocation::directory(dir.path()).verify_audit(None).unwrap();
    }
}

#[actix::test]
async fn large_failed_changes_lose_their_contents_after_a_day() {
    let retention =
        RetentionConfig { large: Some(Duration::from_secs(DAY)), large_bytes: 100_000, ..days(90, 365, 1000) };
    let bench = bench(retention).await;
    let (large, small) = (format!(r#"{{"text":"{}"}}"#, "x".repeat(200_000)), r#"{"text":"x"}"#);
    let withdrawn = bench.propose(&large).await;
    let agent = withdrawn.proposer.to_agent();
    bench.changes.withdraw(&withdrawn.id, &agent, None).await.unwrap();
    let rejected = bench.propose(&large).await;
    bench.decide(&rejected, ReviewVerdict::Reject).await.unwrap();
    let small_rejected = bench.propose(small).await;
    bench.decide(&small_rejected, ReviewVerdict::Reject).await.unwrap();
    let ran = applied(&bench, &large).await;
    let open = bench.propose(&large).await;
    prune_all(&bench).await;
    assert!(bench.get(&withdrawn.id).await.redacted.is_none(), "nothing is a day old");

    advance_days(&bench, 2);
    prune_all(&bench).await;
    for id in [&withdrawn.id, &rejected.id] {
        let pruned = bench.get(id).await;
        let redacted = pruned.redacted.as_ref().unwrap();
        assert_eq!(redacted.arguments, text_hash(&large));
        assert!(pruned.arguments.get() == "{}" && pruned.diff.fields.is_empty());
    }
    for id in [&small_rejected.id, &ran.id, &open.id] {
        assert!(bench.get(id).await.redacted.is_none(), "small, executed and open changes keep their contents");
    }
    let (dir, ..) = bench.end().await;
    StoreLocation::directory(dir.path()).verify_audit(None).unwrap();
}
