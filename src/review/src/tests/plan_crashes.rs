//! Kills a child process while a plan runs or stops, restarts on its data directory, and checks that each step ran at most
//! once, in order, and never past a failure.

use std::{
    collections::BTreeMap,
    path::Path,
    sync::{Arc, atomic::AtomicI64},
    time::Duration,
};

use super::crashes::{CRASH_DIR_VARIABLE, run_child};
use crate::{ChangeFilter, PlanDecision, Proposal, testing::*};
use countersign_domain::changes::{Change, ChangeState, ReviewVerdict};
use countersign_provider::ToolResult;
use countersign_store::StoreLocation;

const CHILD: &str = "tests::plan_crashes::child";
/// The tools of the steps. The call of one with the name `fail` fails.
const STEPS: [&str; 3] = ["one", "two", "three"];
const FAILING_STEPS: [&str; 4] = ["one", "fail", "three", "four"];

fn recording_fake(dir: &Path) -> Arc<FakeProvider> {
    let call = |tool: &str, _: &serde_json::value::RawValue| {
        Ok(ToolResult { is_error: tool == "fail", ..ToolResult::text("done", None) })
    };
    let fake = FakeProvider { call_script: Some(Box::new(call)), ..FakeProvider::new("fake") };
    *fake.call_log.lock().unwrap() = Some(dir.join("calls"));
    Arc::new(fake)
}

async fn start(dir: &Path) -> TestBench {
    let skew = Arc::new(AtomicI64::new(0));
    TestBench::at_path(&dir.join("data"), recording_fake(dir), Arc::clone(&skew), config(&skew)).await
}

/// Plays the gateway: proposes a plan, approves it, and waits until its last step has ended.
#[actix::test]
#[ignore = "runs only as a child process of another test"]
async fn child() {
    let Ok(dir) = std::env::var(CRASH_DIR_VARIABLE) else { return };
    let dir = Path::new(&dir);
    let tools: &[&str] = if dir.join("failing").exists() { &FAILING_STEPS } else { &STEPS };
    let bench = start(dir).await;
    let proposal = |tool: &&str| Proposal {
        tool: (*tool).to_owned(),
        ..bench.proposal("agent", &format!(r#"{{"target":"{tool}"}}"#))
    };
    let steps = bench.changes.propose_plan(plan_proposal(tools.iter().map(proposal).collect())).await.unwrap();
    decide(&bench, &steps[0]).await;
    let mut last = bench.get(&steps.last().unwrap().id).await;
    while !last.state.is_final() {
        last = bench.changes.wait(&last.id, last.version, Duration::from_secs(60)).await.unwrap().unwrap();
    }
    std::fs::write(dir.join("finished"), "").unwrap();
    bench.changes.shutdown(Duration::from_secs(10)).await;
}

/// Approves all steps of the plan that wait for a decision.
async fn decide(bench: &TestBench, step: &Change) {
    let plan = bench.changes.plan(&step.plan.as_ref().unwrap().id).await.unwrap().unwrap();
    let digests: BTreeMap<_, _> = plan.changes.iter().map(|step| (step.id.clone(), step.digest.clone())).collect();
    let (reviewer, verdict) = (Arc::new(reviewer("alice")), ReviewVerdict::Approve);
    let decision = PlanDecision { id: plan.id, reviewer, verdict, comment: None, version: None, digests };
    bench.changes.decide_plan(decision).await.unwrap();
}

/// Restarts until the plan has ended: approves what waits, and settles lost calls as the provider knows them. Returns the steps.
async fn finish(dir: &Path) -> Vec<Arc<Change>> {
    let bench = start(dir).await;
    let mut found = bench.changes.list(ChangeFilter::default(), 10, None).await.unwrap().items;
    let Some(first) = found.pop() else {
        bench.changes.shutdown(Duration::from_secs(10)).await;
        return Vec::new();
    };
    let plan_id = first.plan.as_ref().unwrap().id.clone();
    loop {
        let plan = bench.changes.plan(&plan_id).await.unwrap().unwrap();
        let is_over = plan.changes.iter().all(|step| step.state.is_final());
        if is_over || !plan.is_complete {
            bench.changes.shutdown(Duration::from_secs(10)).await;
            return plan.changes;
        }
        let open = plan.changes.iter().find(|step| !step.state.is_final()).unwrap();
        if plan.stopped.is_none() && plan.changes.iter().any(|step| step.state == ChangeState::Pending) {
            decide(&bench, open).await;
        } else if open.state == ChangeState::OutcomeUnknown {
            let applied = open.tool != "fail" && calls(dir).contains(&open.tool);
            bench.settle(open, "alice", applied).await.unwrap();
        } else {
            let version = open.version;
            let moved = bench.changes.wait(&open.id, version, Duration::from_secs(60)).await.unwrap().unwrap();
            assert!(moved.version > version, "the plan is stuck at {moved:?}");
        }
    }
}

fn calls(dir: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(dir.join("calls")).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

/// Crashes at a point, finishes the plan, and checks the calls. Returns `true` if the point was reached.
async fn crash(tools: &[&str], point: &str, hit: u32) -> bool {
    let name = format!("{point} {hit}");
    let dir = tempfile::tempdir().unwrap();
    if tools.contains(&"fail") {
        std::fs::write(dir.path().join("failing"), "").unwrap();
    }
    let finished = run_child(CHILD, dir.path(), point, hit);
    let steps = finish(dir.path()).await;
    let calls = calls(dir.path());
    let is_prefix = tools.iter().zip(&calls).all(|(tool, call)| tool == call);
    assert!(is_prefix && calls.len() <= tools.len(), "{name}: each step once and in order: {calls:?}");
    if let Some(failed) = calls.iter().position(|call| call == "fail") {
        assert_eq!(calls.len(), failed + 1, "{name}: nothing runs after a failure");
    }
    for step in &steps {
        let expected = match step.state {
            ChangeState::Applied => true,
            ChangeState::Failed => step.tool == "fail",
            _ => false,
        };
        let ran = calls.contains(&step.tool);
        assert!(ran == expected || (step.tool == "fail" && ran), "{name}: {step:?}");
    }
    StoreLocation::directory(&dir.path().join("data")).verify_audit(None).unwrap();
    !finished
}

#[actix::test]
async fn crash_while_a_plan_runs_repeats_and_skips_no_step() {
    // The commits are those of three proposals, three approvals, and claim and outcome of each step.
    let points: &[(&str, u32)] = &[
        ("after_propose", 3),
        ("after_decide", 3),
        ("before_claim", 3),
        ("after_claim", 3),
        ("after_call", 3),
        ("before_result", 3),
        ("after_result", 3),
        ("before_commit", 12),
        ("after_commit", 12),
        ("between_commit_and_announce", 12),
    ];
    for (point, hits) in points {
        for hit in 1..=*hits {
            assert!(crash(&STEPS, point, hit).await, "{point} {hit}: the child must crash");
        }
    }
    assert!(!crash(&STEPS, "nowhere", 1).await);
}

#[actix::test]
async fn crash_while_a_plan_stops_withdraws_the_rest() {
    for (point, hits) in [("before_plan_stop", 2), ("after_plan_stop", 2), ("before_result", 2), ("after_result", 2)] {
        for hit in 1..=hits {
            assert!(crash(&FAILING_STEPS, point, hit).await, "{point} {hit}: the child must crash");
        }
    }
}

#[actix::test]
async fn crash_between_decisions_leaves_a_plan_that_waits() {
    for decided in 1..STEPS.len() {
        let dir = tempfile::tempdir().unwrap();
        let hit = u32::try_from(decided).unwrap();
        assert!(!run_child(CHILD, dir.path(), "after_decide", hit), "the child must crash");
        let bench = start(dir.path()).await;
        let mut steps = bench.changes.list(ChangeFilter::default(), 10, None).await.unwrap().items;
        steps.reverse();
        let states: Vec<ChangeState> = steps.iter().map(|step| step.state).collect();
        let waiting = STEPS.len() - decided;
        assert_eq!(states, [vec![ChangeState::Approved; decided], vec![ChangeState::Pending; waiting]].concat());
        // A change outside the plan shows that the Executor works.
        let other = bench.propose("{}").await;
        bench.decide(&other, ReviewVerdict::Approve).await.unwrap();
        bench.wait_for_state(&other.id, ChangeState::Applied).await;
        assert_eq!(calls(dir.path()), ["update"]);
        decide(&bench, &steps[0]).await;
        bench.wait_for_state(&steps[2].id, ChangeState::Applied).await;
        assert_eq!(calls(dir.path())[1..], STEPS);
        bench.changes.shutdown(Duration::from_secs(10)).await;
    }
}
