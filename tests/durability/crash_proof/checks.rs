//! Checks at the end of a run.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use super::{
    feed::{self, FeedTransition},
    plans,
    upstream::AppliedCall,
    world::{Promise, World},
};
use support::MAX_WAIT;

/// Figures of the run.
#[derive(Debug, Default)]
pub struct Figures {
    pub changes: usize,
    pub calls: usize,
    pub states: BTreeMap<String, usize>,
    /// Changes whose outcome was unknown before a person settled them, during the run and at its end.
    pub unknown: usize,
    pub edited: usize,
    pub undone: usize,
    pub tasks: usize,
    pub rules: usize,
    pub stale: usize,
    pub plans: usize,
    /// Plans of which every step was applied, and steps that ran.
    pub finished_plans: usize,
    pub steps: usize,
    /// Webhook deliveries that arrived, and how many of them repeatedly.
    pub delivered: usize,
    pub delivered_again: usize,
}

impl Figures {
    pub fn state(&self, state: &str) -> usize {
        self.states.get(state).copied().unwrap_or_default()
    }

    pub fn describe_plans(&self) -> String {
        let (plans, finished, steps) = (self.plans, self.finished_plans, self.steps);
        format!(
            "plans of {} calls {plans}, {finished} of them to the end; steps that ran, each once and in order {steps}",
            plans::STEPS
        )
    }
}

/// Waits as long as the number left keeps falling, however slow the machine is.
fn wait_until_none_left(world: &World, what: &str, left: impl Fn() -> (u64, Value)) {
    let (mut least, mut since) = (u64::MAX, Instant::now());
    loop {
        let (remaining, details) = left();
        if remaining == 0 {
            return;
        }
        if remaining < least {
            (least, since) = (remaining, Instant::now());
        }
        assert!(since.elapsed() < MAX_WAIT * 3, "{remaining} {what}: {details}\n{}", world.log());
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Waits until no change is in progress; returns the number of the last event.
pub fn wait_until_settled(world: &World) -> u64 {
    wait_until_none_left(world, "changes neither run nor expire", || {
        let approved = world.get_as_reviewer("/api/changes?status=approved,executing&limit=1");
        let brief = world.get_as_reviewer("/api/changes?status=pending,stale&server=brief&limit=200");
        let count = |state: &str| approved["counts"][state].as_u64().unwrap();
        let open = brief["changes"].as_array().unwrap().len() as u64;
        (count("approved") + count("executing") + open, json!([approved["changes"], brief["changes"]]))
    });
    feed::head(world)
}

/// Waits until the webhook receivers have everything.
fn wait_for_deliveries(world: &World) {
    wait_until_none_left(world, "events are not delivered", || {
        let webhooks = world.get_as_reviewer("/api/webhooks");
        let all = webhooks["webhooks"].as_array().unwrap();
        assert_eq!(all.len(), world.receivers.len(), "{webhooks}");
        let left = |webhook: &Value| {
            let number = |name: &str| webhook[name].as_u64().unwrap();
            number("head") - number("position") + number("waiting")
        };
        (all.iter().map(left).sum(), webhooks.clone())
    });
}

/// Compares the promises with the store, the store with the upstream, and the feed with itself and with the webhook
/// receivers.
pub fn check_everything(world: &World, announced: &[FeedTransition]) -> Figures {
    let promises = world.promises.lock().unwrap().clone();
    let done = world.upstream.applied_calls();
    let mut by_key: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    let (steps, changes): (Vec<Value>, Vec<Value>) =
        all_changes(world).into_iter().partition(|change| change["plan"].is_object());
    for change in changes {
        let key = change["arguments"]["key"].as_str().unwrap().to_owned();
        assert!(promises.contains_key(&key), "nobody proposed {change}");
        by_key.entry(key).or_default().push(change);
    }
    let mut found = Figures { changes: by_key.values().map(Vec::len).sum(), ..Figures::default() };
    for (key, promise) in &promises {
        let done = done.get(key).map(Vec::as_slice).unwrap_or_default();
        found.calls += done.len();
        let changes = by_key.get(key).map(Vec::as_slice).unwrap_or_default();
        if promise.rule.is_some() {
            check_rule(world, promise, changes, done);
            found.rules += 1;
        }
        if changes.is_empty() {
            assert!(promise.ids.is_empty() && done.is_empty(), "{key} is gone: {promise:?} {done:?}");
        }
        assert!(changes.len() <= 1 || promise.rule.is_some(), "proposed once, but stored twice: {changes:?}");
        for change in changes {
            let state = change["state"].as_str().unwrap();
            *found.states.entry(state.to_owned()).or_default() += 1;
            if promise.rule.is_some() {
                continue;
            }
            check_change(key, promise, change, done);
            found.edited += usize::from(promise.edited);
            found.undone += usize::from(promise.undone);
            found.tasks += usize::from(promise.task);
            found.unknown += usize::from(promise.settled.is_some());
            if promise.task {
                check_task(world, change);
            }
            if state == "outcome_unknown" {
                found.unknown += 1;
                settle(world, change, !done.is_empty());
            }
        }
    }
    plans::check(world, &steps, &mut found);
    let overlaps = world.upstream.overlaps();
    assert!(
        overlaps.is_empty(),
        "two at one target at the same time: {overlaps:?}\n{:#?}",
        world.trace.lock().unwrap()
    );
    for key in done.keys() {
        let is_step = steps.iter().any(|step| step["arguments"]["key"] == key.as_str());
        assert!(is_step || by_key.contains_key(key), "the upstream ran {key}, which no change explains");
    }
    // Everything announced during the crashes is stored: nothing was announced and then forgotten.
    let stored = feed::replay(world, feed::head(world));
    assert!(stored.len() >= announced.len());
    for (received, expected) in announced.iter().zip(&stored) {
        assert_eq!(received, expected, "an announced event differs from the stored one");
    }
    check_transitions(&stored);
    found.stale = stored.iter().filter(|event| event.kind == "change.stale").count();
    wait_for_deliveries(world);
    for receiver in &world.receivers {
        let (delivered, repeated) = receiver.check(&stored, world);
        found.delivered += delivered;
        found.delivered_again += repeated;
    }
    found
}

/// Checks one change: what was promised, what the gateway says, and what the upstream did.
fn check_change(key: &str, promise: &Promise, change: &Value, done: &[AppliedCall]) {
    let context = || format!("{key}: {promise:?}\n{change}\nthe upstream: {done:?}");
    let state = change["state"].as_str().unwrap();
    let id = change["id"].as_str().unwrap();
    assert!(promise.ids.len() <= 1 && promise.ids.iter().all(|promised| promised == id), "{}", context());
    assert!(done.len() <= 1, "it ran {} times: {}", done.len(), context());
    for AppliedCall { value, base } in done {
        assert!(promise.approval_sent, "it ran without a valid approval: {}", context());
        assert!(promise.values.contains(value), "what ran is not what was approved: {}", context());
        assert_eq!(change["arguments"]["value"], value.as_str(), "{}", context());
        let base_was_shown = change["diff"].to_string().contains(base);
        assert!(
            change["provider"] != "doc" || base_was_shown || promise.moved_late,
            "it ran on a state that no reviewer saw: {}",
            context()
        );
    }
    let open = ["pending", "stale"].contains(&state);
    if promise.approved {
        let ended = ["applied", "failed", "outcome_unknown"].contains(&state) || (open && promise.moved_late);
        assert!(ended, "approved, but it neither ran nor is reported as lost: {}", context());
    }
    let quorum = if change["provider"] == "count2" { 2 } else { 1 };
    if !done.is_empty() {
        let votes = change["decisions"].as_array().unwrap();
        let voters: BTreeSet<&str> = votes.iter().map(|vote| vote["reviewer"].as_str().unwrap()).collect();
        assert!(voters.len() >= quorum, "it ran with too few votes: {}", context());
        let edited = |edit: &Value| edit["by"].as_str().is_some_and(|by| voters.contains(by));
        let by_editor = change["edits"].as_array().is_some_and(|edits| edits.iter().any(edited));
        assert!(quorum == 1 || !by_editor, "an editor's vote was one of two: {}", context());
    }
    if promise.edited {
        assert_eq!(change["arguments"]["value"], format!("{key} as corrected"), "{}", context());
    }
    assert!(!promise.rejected || state == "rejected", "{}", context());
    assert!(!promise.withdrawn || state == "withdrawn", "{}", context());
    assert_eq!(state == "expired", change["provider"] == "brief", "{}", context());
    if let Some(settled) = promise.settled {
        return assert_eq!(state, settled, "{}", context());
    }
    let mode = change["arguments"]["mode"].as_str().unwrap();
    match state {
        "applied" => assert!(done.len() == 1 && ["ok", "slow", "long"].contains(&mode), "{}", context()),
        // Or its gateway lost its lease between the claim and the call.
        "failed" if change["fault"]["message"].as_str().unwrap().contains("before anything was sent") => {
            assert!(done.is_empty(), "{}", context());
        }
        "failed" => assert!(done.len() == 1 && mode == "fail", "{}", context()),
        // Claimed, and then the gateway or the answer was lost.
        "outcome_unknown" => {}
        "rejected" | "withdrawn" | "pending" | "stale" | "expired" => assert!(done.is_empty(), "{}", context()),
        _ => panic!("still in progress: {}", context()),
    }
}

/// Checks a change with standing rules and the call after their revocation: neither was approved.
fn check_rule(world: &World, promise: &Promise, changes: &[Value], done: &[AppliedCall]) {
    let rule = promise.rule.as_ref().unwrap();
    let context = || format!("{promise:?}\n{changes:?}\nthe upstream: {done:?}");
    assert!(changes.len() <= 2 && changes.iter().all(|change| change["state"] == "pending"), "{}", context());
    let max_calls = if rule.denies { 0 } else { rule.sent_calls };
    assert!((rule.answered..=max_calls).contains(&done.len()), "calls under a standing rule: {}", context());
    let rules = world.get_as_reviewer("/api/rules");
    for id in &rule.ids {
        let stored_rule = rules["rules"].as_array().unwrap().iter().find(|rule| rule["id"] == id.as_str());
        let stored_rule =
            stored_rule.unwrap_or_else(|| panic!("the rule {id} was promised and is gone: {}", context()));
        let revoked = rule.revoked.contains(id);
        assert!(!revoked || stored_rule["revokedAt"].is_string(), "revoked, but still in force: {stored_rule}");
    }
}

/// Reads the change as a task, long after its end.
fn check_task(world: &World, change: &Value) {
    let id = change["id"].as_str().unwrap();
    let answer = world.rpc("tasks/get", id, json!({"taskId": id}), true);
    let task = &answer.body["result"];
    let status = match change["state"].as_str().unwrap() {
        // A change settled as failed has no result of the tool.
        "failed" if !change["result"].is_object() => "failed",
        "applied" | "rejected" | "failed" => "completed",
        "withdrawn" => "cancelled",
        "expired" => "failed",
        _ => "working",
    };
    assert_eq!(task["status"], status, "{change} is the task {}", answer.body);
    if change["state"] == "applied" && change["result"].is_object() {
        assert_eq!(task["result"]["content"][0]["text"], "Done", "{}", answer.body);
    }
}

/// Settles the outcome as a person who has looked at the upstream.
fn settle(world: &World, change: &Value, ran: bool) {
    let outcome = if ran { "applied" } else { "failed" };
    let path = format!("/api/changes/{}/settle", change["id"].as_str().unwrap());
    let body = json!({"outcome": outcome, "comment": "the upstream's own ledger", "version": change["version"]});
    // Not while the call might still be sent.
    let answer = support::eventually("it is settled", || {
        world.review(1, &path, &body).filter(|answer| answer.body["settleAfter"].is_null())
    });
    assert_eq!((answer.status, answer.body["state"].as_str()), (200, Some(outcome)), "{}", answer.body);
}

/// Checks that each change begins once, its versions rise by one, and it is claimed at most once.
fn check_transitions(stored: &[FeedTransition]) {
    let mut versions: BTreeMap<&str, u64> = BTreeMap::new();
    let mut claimed: BTreeSet<&str> = BTreeSet::new();
    for event in stored.iter().filter(|event| !event.change.is_empty()) {
        let version = versions.entry(&event.change).or_default();
        assert_eq!(event.version, *version + 1, "{event:?}");
        *version = event.version;
        assert_eq!(event.kind == "change.created", event.version == 1, "{event:?}");
        assert!(event.kind != "change.executing" || claimed.insert(&event.change), "claimed twice: {event:?}");
    }
}

fn all_changes(world: &World) -> Vec<Value> {
    let mut all = Vec::new();
    let mut path = "/api/changes?limit=200".to_owned();
    loop {
        let page = world.get_as_reviewer(&path);
        all.extend(page["changes"].as_array().unwrap().iter().cloned());
        let Some(cursor) = page["nextCursor"].as_str() else { return all };
        path = format!("/api/changes?limit=200&cursor={cursor}");
    }
}
