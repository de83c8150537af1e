//! A random mix of all operations: no unapproved change runs, and no change runs twice.

use std::{collections::HashMap, sync::atomic::Ordering, time::Duration};

use futures_util::future::join_all;

use crate::{ChangeFilter, testing::*};
use countersign_domain::{
    changes::{BlockingChange, ChangeState, ReviewVerdict},
    principal::{Principal, Role},
};
use countersign_store::StoreLocation;

/// A reproducible source of random choices.
struct Choices(u64);

impl Choices {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}

async fn make_random_requests(bench: &TestBench, mut choices: Choices, ids: &[String]) {
    let agent = Principal::new("agent", Role::Agent);
    for _ in 0..60 {
        let pick = usize::try_from(choices.below(ids.len() as u64)).unwrap();
        let change = bench.get(&ids[pick]).await;
        // Refusals are expected. The end of the test checks the invariants.
        match choices.below(40) {
            0..20 => drop(bench.decide(&change, ReviewVerdict::Approve).await),
            20 => drop(bench.decide(&change, ReviewVerdict::Reject).await),
            21 => drop(bench.changes.withdraw(&change.id, &agent, None).await),
            22..28 => *bench.fake.state.lock().unwrap() = format!("state {}", choices.below(3)),
            28..32 => {
                let endings = [CallOutcome::Succeed, CallOutcome::ToolError, CallOutcome::Panic];
                let ending = endings[usize::try_from(choices.below(3)).unwrap()].clone();
                *bench.fake.outcome.lock().unwrap() = ending;
            }
            32..37 => {
                let applied = choices.below(2) == 0;
                drop(bench.settle(&change, "bob", applied).await);
            }
            _ => {
                bench.skew.store(i64::try_from(choices.below(300)).unwrap(), Ordering::SeqCst);
                crate::upkeep::expiry::expire_due(bench.repository()).await;
                bench.skew.store(0, Ordering::SeqCst);
            }
        }
    }
}

#[actix::test]
async fn random_mix_runs_nothing_unapproved_or_twice() {
    let mut seen_events = std::collections::HashSet::new();
    for seed in 0..4 {
        let bench = TestBench::with(|config| config.tuning.feed_buffer = 32).await;
        let mut ids = Vec::new();
        for n in 0..40 {
            let mut proposal = bench.proposal("agent", &format!(r#"{{"n":{n},"target":"t{}"}}"#, n % 7));
            // Only the first few can expire.
            proposal.expire_after = Duration::from_secs(60 + 60 * n);
            ids.push(bench.changes.propose(proposal).await.unwrap().id.clone());
        }
        join_all((0..8).map(|n| make_random_requests(&bench, Choices(seed * 100 + n), &ids))).await;
        *bench.fake.outcome.lock().unwrap() = CallOutcome::Succeed;
        // All changes come to rest. A stale change becomes pending again, because previews always succeed here.
        for id in &ids {
            let mut change = bench.get(id).await;
            while matches!(change.state, ChangeState::Approved | ChangeState::Executing | ChangeState::Stale) {
                // The change may wait for another one whose outcome is unknown.
                bench.changes.set_waits_for(std::slice::from_mut(&mut change)).await.unwrap();
                if let Some(BlockingChange { change: other, until: Some(_) }) = &change.waits_for {
                    let other = bench.get(other).await;
                    drop(bench.settle(&other, "bob", true).await);
                }
                change = bench.changes.wait(id, change.version, Duration::from_millis(50)).await.unwrap().unwrap();
            }
        }
        let mut calls: HashMap<String, usize> = HashMap::new();
        for (_, arguments) in &*bench.fake.received_calls.lock().unwrap() {
            *calls.entry(arguments.clone()).or_default() += 1;
        }
        let page = bench.changes.list(ChangeFilter::default(), 500, None).await.unwrap();
        assert_eq!(page.items.len(), 40);
        let mut counts: HashMap<ChangeState, u64> = HashMap::new();
        for change in &page.items {
            *counts.entry(change.state).or_default() += 1;
            let runs = calls.get(change.arguments.get()).copied().unwrap_or(0);
            let trail = bench.trail(&change.id).await;
            assert_eq!(trail.len() as u64, change.version, "one entry for each version");
            seen_events.extend(trail.iter().map(|e| e.event.clone()));
            let times = |event: &str| trail.iter().filter(|e| e.event == event).count();
            assert_eq!(runs, times("executing"), "seed {seed}: each claim leads to one call");
            assert!(runs <= 1 && times("approved") >= runs, "seed {seed}");
            let ran = matches!(change.state, ChangeState::Applied | ChangeState::Failed | ChangeState::OutcomeUnknown);
            assert_eq!(runs == 1, ran, "seed {seed}: {:?}", change.state);
        }
        for (state, n) in bench.changes.counts() {
            assert_eq!(counts.get(&state).copied().unwrap_or(0), n, "seed {seed}: {state:?}");
        }
        // The feed has the same transitions, in order.
        let mut feed = bench.changes.feed().subscribe(Some(0)).unwrap();
        let mut versions: HashMap<String, u64> = HashMap::new();
        for seq in 1..=bench.changes.feed().head() {
            let event = feed.next().await.unwrap();
            let change = event.change.as_ref().unwrap();
            assert_eq!(event.seq, Some(seq));
            let version = versions.entry(change.id.clone()).or_default();
            *version += 1;
            assert_eq!(change.version, *version);
        }
        let (dir, ..) = bench.end().await;
        let verified = StoreLocation::directory(dir.path()).verify_audit(None).unwrap();
        assert_eq!(verified.entries, versions.values().sum::<u64>());
    }
    // The mix must include every kind of transition, or the test would prove nothing.
    for event in ["approved", "rejected", "withdrawn", "expired", "stale", "refreshed", "applied", "failed"] {
        assert!(seen_events.contains(event), "no change was {event} in any run");
    }
}
