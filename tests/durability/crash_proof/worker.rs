//! Agents and reviewers that never give up: unanswered requests are repeated at the next gateway, as real clients do.
//!
//! They wait for their own changes before they propose more, so that the queue stays as short as with people.

use std::{sync::atomic::Ordering, time::Duration};

use serde_json::{Value, json};

use super::{
    agent::Agent,
    chance::Chance,
    plans, rules,
    scenario::Scenario,
    world::{Answer, REVIEWERS, World},
};

/// The number of attempts at a decision before something is wrong.
const MAX_TRIES: usize = 4000;
/// The number of polls for a change's end before the worker turns to other things.
const MAX_POLLS: usize = 60;

/// Sleeps for a moment between attempts.
pub fn pause() {
    std::thread::sleep(Duration::from_millis(20));
}

/// Proposes and decides until there are enough changes.
pub fn run(world: &World, name: &str, mut agent: Agent, mut chance: Chance) {
    for n in 0.. {
        if world.has_enough.load(Ordering::SeqCst) {
            return;
        }
        let wanted = world.wanted_scenario.lock().unwrap().filter(|_| chance.below(10) < 7);
        let scenario = wanted.unwrap_or_else(|| Scenario::any(&mut chance));
        // A decision on rules at one gateway takes effect at the others a moment later.
        let scenario = if scenario == Scenario::Rule && world.ports.len() > 1 { Scenario::Approve } else { scenario };
        // Also a short run has a plan.
        let scenario = if n == 0 && name == "w0" { Scenario::Plan } else { scenario };
        let key = format!("{name}-{n}");
        match scenario {
            Scenario::Plan | Scenario::RejectedPlan => {
                plans::run(world, &key, scenario == Scenario::RejectedPlan, &mut chance)
            }
            _ => run_scenario(world, &mut agent, &key, scenario, &mut chance),
        }
    }
}

fn run_scenario(world: &World, agent: &mut Agent, key: &str, scenario: Scenario, chance: &mut Chance) {
    let mode = scenario.mode(chance);
    let value = format!("{key} as proposed");
    let tool = format!("{}__apply", scenario.server(chance));
    let arguments = json!({"key": key, "value": value, "mode": mode});
    let task = scenario == Scenario::Task;
    world.update_promise(key, |promise| promise.task = task);
    let id = propose(world, agent, &tool, key, &arguments, task, chance);
    world.record_id(key, &id);
    world.proposed.fetch_add(1, Ordering::SeqCst);
    agent.follow(world, &id);
    match scenario {
        Scenario::Leave | Scenario::Expire | Scenario::Plan | Scenario::RejectedPlan => {}
        Scenario::Withdraw => withdraw(world, &id, key),
        Scenario::Task if chance.below(3) == 0 => cancel(world, &id, key),
        Scenario::Reject => decide(world, &id, key, "reject", chance),
        Scenario::Approve | Scenario::Task | Scenario::Settle => approve(world, &id, key, scenario, chance),
        Scenario::Edit => {
            edit(world, &id, key, mode, chance);
            approve(world, &id, key, scenario, chance);
        }
        Scenario::Undo => approve_and_undo(world, &id, key, chance),
        Scenario::Move | Scenario::Refresh => {
            world.upstream.alter(key, format!("{key} as altered"));
            if scenario == Scenario::Refresh {
                refresh(world, &id);
            }
            approve(world, &id, key, scenario, chance);
        }
        Scenario::MoveLate => {
            decide(world, &id, key, "approve", chance);
            world.update_promise(key, |promise| promise.moved_late = true);
            world.upstream.alter(key, format!("{key} as altered late"));
            wait_until_run(world, &id, key, scenario, chance);
        }
        Scenario::Rule => rules::give_use_and_revoke(world, &id, key, &arguments, chance),
    }
    agent.catch_up(world, &id, chance);
    // Sometimes the agent repeats its proposal. If there is an answer, it is about the same change, however that ended.
    if chance.below(10) == 0
        && let Some(answer) = world.ask("POST", &format!("/tools/{tool}"), &[("Idempotency-Key", key)], &arguments)
        && let Some(again) = id_in(&answer.body)
    {
        world.record_id(key, &again);
    }
}

/// Returns the id of the change in an answer.
fn id_in(body: &Value) -> Option<String> {
    let text = body.to_string();
    let start = text.find("chg_")?;
    Some(text[start..].chars().take_while(|c| c.is_ascii_alphanumeric() || "_-".contains(*c)).collect())
}

/// Proposes in the agent's own way until there is a change; always with an idempotency key, so that a repeat finds the
/// same one.
pub fn propose(
    world: &World,
    agent: &mut Agent,
    tool: &str,
    key: &str,
    arguments: &Value,
    task: bool,
    chance: &mut Chance,
) -> String {
    loop {
        let meta = json!({"dev.countersign/idempotencyKey": key});
        let params = json!({"name": tool, "arguments": arguments, "_meta": meta});
        let answer = match agent.in_session() {
            Some(session) if !task => Answer::in_session(session.request(world, "tools/call", &params)),
            None if !task && chance.below(2) == 0 => {
                world.ask_until_answered("POST", &format!("/tools/{tool}"), &[("Idempotency-Key", key)], arguments)
            }
            // Only stateless clients have tasks.
            _ => world.rpc("tools/call", tool, params, task),
        };
        if let Some(id) = id_in(&answer.body) {
            return id;
        }
        // Right after a start, the upstream's tools are not known yet.
        let text = answer.body.to_string();
        let early = answer.status == 404 || (answer.status == 200 && text.contains("\"error\""));
        assert!(early, "{tool} was refused: {} {text}\n{}", answer.status, world.log());
        pause();
    }
}

/// Approves, and waits until the change has run.
fn approve(world: &World, id: &str, key: &str, scenario: Scenario, chance: &mut Chance) {
    decide(world, id, key, "approve", chance);
    wait_until_run(world, id, key, scenario, chance);
}

/// Waits until the change has run, and approves it again if its target moved. Does not wait forever: changes in
/// progress are checked at the end.
fn wait_until_run(world: &World, id: &str, key: &str, scenario: Scenario, chance: &mut Chance) {
    for _ in 0..MAX_POLLS {
        match world.change(id)["state"].as_str().unwrap() {
            "approved" | "executing" => std::thread::sleep(Duration::from_millis(30)),
            "pending" | "stale" => decide(world, id, key, "approve", chance),
            "outcome_unknown" if scenario == Scenario::Settle || chance.below(2) == 0 => return settle(world, id, key),
            _ => return,
        }
    }
}

/// Decides until the change is neither pending nor stale, whoever made the decision.
fn decide(world: &World, id: &str, key: &str, verdict: &str, chance: &mut Chance) {
    for _ in 0..MAX_TRIES {
        let change = world.change(id);
        if change["state"] != "pending" && change["state"] != "stale" {
            return;
        }
        if verdict == "approve" {
            let value = change["arguments"]["value"].as_str().unwrap().to_owned();
            world.update_promise(key, |promise| {
                promise.approval_sent = true;
                promise.values.insert(value);
            });
        }
        let body = json!({
            "decision": verdict, "version": change["version"], "digest": change["digest"], "comment": "by the driver",
        });
        let others = others_than_editors(&change);
        let reviewer = others[usize::try_from(chance.below(others.len() as u64)).unwrap()];
        let Some(answer) = world.review(reviewer, &format!("/api/changes/{id}/decision"), &body) else { continue };
        match answer.status {
            // One of two votes.
            200 if answer.body["state"] == "pending" => {}
            200 if verdict == "approve" => return world.update_promise(key, |promise| promise.approved = true),
            200 => return world.update_promise(key, |promise| promise.rejected = true),
            _ => expect_retryable(&answer, verdict),
        }
    }
    panic!("{id} could never be decided on: {}", world.change(id));
}

/// Returns the reviewers whose votes count: with two approvals required, an editor's does not.
fn others_than_editors(change: &Value) -> Vec<usize> {
    let edited =
        |name: &str| change["edits"].as_array().is_some_and(|edits| edits.iter().any(|edit| edit["by"] == name));
    (0..REVIEWERS.len()).filter(|reviewer| !edited(REVIEWERS[*reviewer])).collect()
}

/// Expects an error that permits another attempt: somebody was faster (ourselves before the crash), or voted already,
/// the target moved, or the gateway has just started.
pub fn expect_retryable(answer: &Answer, what: &str) {
    match answer.status {
        409 | 429 | 500.. => pause(),
        404 if answer.body["code"] == "TOOL_NOT_FOUND" => pause(),
        _ => panic!("{what}: {} {}", answer.status, answer.body),
    }
}

/// Approves and undoes the approval, if there is time; then continues with another decision.
fn approve_and_undo(world: &World, id: &str, key: &str, chance: &mut Chance) {
    decide(world, id, key, "approve", chance);
    for _ in 0..MAX_TRIES {
        let change = world.change(id);
        match change["state"].as_str().unwrap() {
            "approved" => {}
            "pending" => break,
            // Too late: it has run, or is about to.
            _ => return,
        }
        // Each reviewer can undo only their own approval.
        let by = REVIEWERS.iter().position(|name| change["decisions"][0]["reviewer"] == *name).unwrap_or(0);
        let body = json!({"version": change["version"]});
        // From here on, nothing promises that it runs.
        world.update_promise(key, |promise| promise.approved = false);
        match world.review(by, &format!("/api/changes/{id}/undo"), &body) {
            Some(answer) if answer.status == 200 => break,
            Some(answer) => expect_retryable(&answer, "undo"),
            None => {}
        }
    }
    world.update_promise(key, |promise| {
        promise.approval_sent = false;
        promise.undone = true;
        promise.values.clear();
    });
    match chance.below(3) {
        0 => decide(world, id, key, "reject", chance),
        1 => {}
        _ => approve(world, id, key, Scenario::Undo, chance),
    }
}

fn refresh(world: &World, id: &str) {
    for _ in 0..MAX_TRIES {
        let change = world.change(id);
        if change["state"] == "pending" && change["diff"].to_string().contains("as altered") {
            return;
        }
        let body = json!({"version": change["version"]});
        match world.review(0, &format!("/api/changes/{id}/refresh"), &body) {
            Some(answer) if answer.status == 200 => {}
            Some(answer) => expect_retryable(&answer, "refresh"),
            None => {}
        }
    }
    panic!("{id} never showed what is there now: {}", world.change(id));
}

fn withdraw(world: &World, id: &str, key: &str) {
    let answer = world.ask_until_answered("POST", "/tools/withdraw_change", &[], &json!({"changeId": id}));
    assert_eq!(answer.status, 200, "{}", answer.body);
    world.update_promise(key, |promise| promise.withdrawn = true);
}

/// Cancels the change as a task.
fn cancel(world: &World, id: &str, key: &str) {
    loop {
        let answer = world.rpc("tasks/cancel", id, json!({"taskId": id}), true);
        if answer.body["result"]["resultType"] == "complete" {
            return world.update_promise(key, |promise| promise.withdrawn = true);
        }
        assert!(answer.body["error"]["data"]["code"].is_string(), "{}", answer.body);
        pause();
    }
}

/// Edits the arguments; the key stays, because the upstream counts by it.
fn edit(world: &World, id: &str, key: &str, mode: &str, chance: &mut Chance) {
    let value = format!("{key} as corrected");
    for _ in 0..MAX_TRIES {
        let change = world.change(id);
        if change["state"] != "pending" || change["arguments"]["value"] == value.as_str() {
            return;
        }
        let body = json!({
            "arguments": {"key": key, "value": value, "mode": mode}, "version": change["version"], "comment": "better so",
        });
        let reviewer = usize::from(chance.below(2) == 0);
        let Some(answer) = world.review(reviewer, &format!("/api/changes/{id}/edit"), &body) else { continue };
        match answer.status {
            200 => return world.update_promise(key, |promise| promise.edited = true),
            _ => expect_retryable(&answer, "edit"),
        }
    }
    panic!("{id} could never be edited: {}", world.change(id));
}

/// Settles the outcome as a person, after the call has ended at the upstream.
fn settle(world: &World, id: &str, key: &str) {
    support::eventually("the upstream is done with it", || (!world.upstream.is_working_on(key)).then_some(()));
    let outcome = if world.upstream.has_applied(key) { "applied" } else { "failed" };
    world.update_promise(key, |promise| promise.settled = Some(outcome));
    for _ in 0..MAX_TRIES {
        let change = world.change(id);
        if change["state"] != "outcome_unknown" {
            return;
        }
        let body = json!({"outcome": outcome, "comment": "the upstream's own ledger", "version": change["version"]});
        match world.review(1, &format!("/api/changes/{id}/settle"), &body) {
            Some(answer) if answer.status == 200 => return,
            Some(answer) => expect_retryable(&answer, "settle"),
            None => {}
        }
    }
    panic!("{id} could never be settled: {}", world.change(id));
}
