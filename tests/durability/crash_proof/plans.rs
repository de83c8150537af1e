//! Plans of many calls: proposed as a whole, approved, and run step by step, whatever happens to the gateways meanwhile. Some have a
//! step that fails or whose answer is lost, and some are stopped.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::atomic::Ordering,
};

use serde_json::{Value, json};

use super::{
    chance::Chance,
    checks::Figures,
    world::{Answer, REVIEWERS, UPSTREAM_NAMES, World},
};

pub const STEPS: usize = 20;
/// The step that uses the result of the one before.
const FILLED_STEP: usize = 7;
const FINAL_STATES: [&str; 5] = ["applied", "failed", "rejected", "expired", "withdrawn"];

/// The driver's knowledge about one plan.
#[derive(Clone, Debug, Default)]
pub struct PlanPromise {
    /// Every id that an answer named; a repeat with the same idempotency key must name the same one.
    ids: BTreeSet<String>,
    /// An approval was sent, answered or not.
    approval_sent: bool,
}

fn update(world: &World, key: &str, change: impl FnOnce(&mut PlanPromise)) {
    change(world.plans.lock().unwrap().entry(key.to_owned()).or_default());
}

fn step_key(key: &str, step: usize) -> String {
    format!("{key} step {step:02}")
}

fn state(step: &Value) -> &str {
    step["state"].as_str().unwrap()
}

/// Proposes a plan until it is stored as a whole, and drives it until it is over.
pub fn run(world: &World, key: &str, is_rejected: bool, chance: &mut Chance) {
    update(world, key, |_| {});
    let id = propose(world, key, &calls(key, chance));
    world.proposed.fetch_add(1, Ordering::SeqCst);
    if is_rejected {
        reject_one_step(world, &id, chance);
    }
    drive(world, key, &id, chance);
}

/// Returns the calls of a plan. In a third of all plans one fails, and in another third an answer is lost.
fn calls(key: &str, chance: &mut Chance) -> Vec<Value> {
    let mut some_step = || usize::try_from(chance.below(3 * STEPS as u64)).unwrap();
    let (failing, lost) = (some_step(), some_step());
    let call = |step| {
        let server = match chance.below(6) {
            0 => "free".to_owned(),
            _ => format!("count{}", chance.below(UPSTREAM_NAMES as u64)),
        };
        let mode = match (step, chance.below(8)) {
            _ if step == failing => "fail",
            _ if step == lost => "lost",
            (_, 0) => "slow",
            _ => "ok",
        };
        let value = match step {
            FILLED_STEP => json!({"$from": FILLED_STEP - 1, "pointer": "/value"}),
            _ => json!(format!("{} as proposed", step_key(key, step))),
        };
        json!({"name": format!("{server}__apply"), "arguments": {"key": step_key(key, step), "value": value, "mode": mode}})
    };
    (0..STEPS).map(call).collect()
}

/// Proposes until there is a plan. A repeated proposal adds the steps that a crash has left out.
fn propose(world: &World, key: &str, calls: &[Value]) -> String {
    let body = json!({"title": key, "calls": calls});
    let patience = world.retry_budget();
    loop {
        if let Some(answer) = world.ask("POST", "/tools/propose_plan", &[("Idempotency-Key", key)], &body) {
            if let Some(id) = answer.body["structuredContent"]["planId"].as_str() {
                update(world, key, |promise| {
                    promise.ids.insert(id.to_owned());
                });
                return id.to_owned();
            }
            // Right after a start, the upstream's tools are not known yet.
            assert!(answer.status == 404 || answer.is_retryable(), "the plan was refused: {}", answer.body);
        }
        patience.pause(|| format!("the plan {key}"));
    }
}

/// Rejects one step, so that the gateway withdraws the others.
fn reject_one_step(world: &World, plan: &str, chance: &mut Chance) {
    let shown = world.get_as_reviewer(&format!("/api/plans/{plan}"));
    let pending: Vec<&Value> =
        shown["changes"].as_array().unwrap().iter().filter(|step| state(step) == "pending").collect();
    let step = pending[usize::try_from(chance.below(pending.len() as u64)).unwrap()];
    let body = json!({"decision": "reject", "version": step["version"], "digest": step["digest"]});
    // Without an answer, the whole plan is rejected or approved.
    world.review(0, &format!("/api/changes/{}/decision", step["id"].as_str().unwrap()), &body);
}

/// Decides, settles and waits until every step of the plan is over.
fn drive(world: &World, key: &str, id: &str, chance: &mut Chance) {
    let stops_after = (chance.below(4) == 0).then(|| usize::try_from(chance.below(STEPS as u64)).unwrap());
    let (mut version, mut patience) = (0, world.retry_budget());
    loop {
        let plan = world.get_as_reviewer(&format!("/api/plans/{id}"));
        let steps = plan["changes"].as_array().unwrap();
        let first_in = |states: &[&str]| steps.iter().find(|step| states.contains(&state(step)));
        if steps.iter().all(|step| FINAL_STATES.contains(&state(step))) {
            return;
        }
        let applied = steps.iter().filter(|step| state(step) == "applied").count();
        if let Some(lost) = first_in(&["outcome_unknown"]) {
            settle(world, lost);
        } else if plan["stopped"].is_string() {
            // The gateway withdraws the rest.
        } else if stops_after.is_some_and(|after| applied >= after) {
            decide(world, id, "reject", chance);
        } else if first_in(&["pending", "stale"]).is_some() {
            update(world, key, |promise| promise.approval_sent = true);
            decide(world, id, "approve", chance);
        }
        let now = plan["version"].as_u64().unwrap();
        if now > version {
            (version, patience) = (now, world.retry_budget());
        }
        patience.pause(|| format!("the end of the plan {plan}"));
    }
}

/// Decides on a plan as it is shown, as one of the reviewers. Another attempt follows if that fails.
fn decide(world: &World, id: &str, decision: &str, chance: &mut Chance) {
    let shown = world.get_as_reviewer(&format!("/api/plans/{id}"));
    let steps = shown["changes"].as_array().unwrap().iter();
    let digests: Vec<Value> = steps.map(|step| json!({"change": step["id"], "digest": step["digest"]})).collect();
    let body = json!({"decision": decision, "comment": "by the driver", "digests": digests});
    let reviewer = usize::try_from(chance.below(REVIEWERS.len() as u64)).unwrap();
    let answer = world.review(reviewer, &format!("/api/plans/{id}/decision"), &body);
    expect_refusal(answer.filter(|answer| answer.status != 200), decision);
}

/// Settles the outcome as a person, after the call has ended at the upstream.
fn settle(world: &World, step: &Value) {
    let key = step["arguments"]["key"].as_str().unwrap();
    support::eventually("the upstream is done with it", || (!world.upstream.is_working_on(key)).then_some(()));
    let outcome = if world.upstream.has_applied(key) { "applied" } else { "failed" };
    let body = json!({"outcome": outcome, "comment": "the upstream's own ledger", "version": step["version"]});
    let answer = world.review(1, &format!("/api/changes/{}/settle", step["id"].as_str().unwrap()), &body);
    expect_refusal(answer.filter(|answer| answer.status != 200), "settle");
}

/// Expects an error that permits another attempt: nothing waits for this reviewer, somebody was faster, or the gateway has just
/// started.
fn expect_refusal(answer: Option<Answer>, what: &str) {
    let Some(answer) = answer else { return };
    let is_expected = [403, 409].contains(&answer.status)
        || answer.is_retryable()
        || (answer.status == 404 && answer.body["code"] == "TOOL_NOT_FOUND");
    assert!(is_expected, "{what}: {} {}", answer.status, answer.body);
}

/// Checks that each step of each plan ran at most once, in order, and never past a failure.
pub fn check(world: &World, steps: &[Value], found: &mut Figures) {
    let promises = world.plans.lock().unwrap().clone();
    let order = world.upstream.order();
    let mut by_key: BTreeMap<&str, Vec<&Value>> = BTreeMap::new();
    for step in steps {
        let key = step["plan"]["title"].as_str().unwrap();
        assert!(promises.contains_key(key), "nobody proposed {step}");
        by_key.entry(key).or_default().push(step);
        *found.states.entry(state(step).to_owned()).or_default() += 1;
    }
    found.changes += steps.len();
    for (key, promise) in &promises {
        let mut steps = by_key.remove(key.as_str()).unwrap_or_default();
        steps.sort_by_key(|step| step["plan"]["index"].as_u64());
        let ran: Vec<&str> =
            order.iter().filter_map(|ran| ran.strip_prefix(key.as_str())?.strip_prefix(" step ")).collect();
        check_plan(world, key, promise, &steps, &ran);
        found.plans += 1;
        found.finished_plans += usize::from(steps.len() == STEPS && steps.iter().all(|step| state(step) == "applied"));
        found.steps += ran.len();
        found.calls += ran.len();
    }
}

fn check_plan(world: &World, key: &str, promise: &PlanPromise, steps: &[&Value], ran: &[&str]) {
    let states: Vec<&str> = steps.iter().map(|step| state(step)).collect();
    let context =
        || format!("{key}: {promise:?}\n{states:?}\nran: {ran:?}\n{steps:#?}\n{:#?}", world.trace.lock().unwrap());
    let ids: BTreeSet<&str> = steps.iter().map(|step| step["plan"]["id"].as_str().unwrap()).collect();
    assert!(ids.len() <= 1 && promise.ids.len() <= 1, "proposed once, but stored twice: {}", context());
    assert!(
        promise.ids.iter().all(|id| ids.contains(id.as_str()) && steps.len() == STEPS),
        "it is gone: {}",
        context()
    );
    for (position, step) in steps.iter().enumerate() {
        assert_eq!(step["plan"]["index"], position, "{}", context());
        assert_eq!(step["arguments"]["key"], step_key(key, position), "{}", context());
    }
    let in_order: Vec<String> = (0..ran.len()).map(|step| format!("{step:02}")).collect();
    assert_eq!(ran, in_order, "each at most once, and in order: {}", context());
    assert!(ran.is_empty() || (promise.approval_sent && steps.len() == STEPS), "without an approval: {}", context());
    let applied = states.iter().take_while(|state| **state == "applied").count();
    let end = states.get(applied).copied();
    let ran_to_failure = ran.len() == applied + 1 && end == Some("failed");
    assert!(ran.len() == applied || ran_to_failure, "not what the states say: {}", context());
    assert!(end.is_none_or(|end| FINAL_STATES.contains(&end)), "it is not over: {}", context());
    let rest = states.iter().skip(applied + 1);
    assert!(rest.clone().all(|state| ["withdrawn", "rejected"].contains(state)), "past a failure: {}", context());
    let done = world.upstream.applied_calls();
    for step in steps.iter().take(ran.len()) {
        let arguments = &step["arguments"];
        assert_eq!(arguments["value"], done[arguments["key"].as_str().unwrap()][0].value, "{}", context());
        let votes = step["decisions"].as_array().unwrap();
        let voters: BTreeSet<&str> = votes.iter().map(|vote| vote["reviewer"].as_str().unwrap()).collect();
        let is_filled = step["plan"]["index"] == FILLED_STEP;
        let quorum = match step["provider"].as_str().unwrap() {
            "count2" => 2,
            "free" => usize::from(is_filled),
            _ => 1,
        };
        assert!(voters.len() >= quorum, "it ran with too few votes: {}", context());
    }
}
