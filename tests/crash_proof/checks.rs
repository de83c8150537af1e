//! What must hold in the end.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use crate::{
    common::PATIENCE,
    feed::{self, Told},
    world::{Promise, World},
};

/// Figures of the run.
#[derive(Debug)]
pub struct Found {
    pub changes: usize,
    pub calls: usize,
    pub states: BTreeMap<String, usize>,
    /// Of unknown outcome before a person settled them.
    pub unknown: usize,
    pub edited: usize,
}

impl Found {
    pub fn state(&self, state: &str) -> usize {
        self.states.get(state).copied().unwrap_or_default()
    }
}

/// Waits until nothing is on its way; answers the number of the last event.
pub fn come_to_rest(world: &World) -> u64 {
    let bearer = format!("Bearer {}", world.reviewers[0]);
    let (mut left, mut since) = (u64::MAX, Instant::now());
    while left > 0 {
        let path = "/api/changes?status=approved,executing&limit=1";
        let answer = world.insist("GET", path, &[("Authorization", bearer.as_str())], &Value::Null);
        let count = |state: &str| answer.body["counts"][state].as_u64().unwrap();
        let now = count("approved") + count("executing");
        // What waits runs one after another: it may be many, but it must get fewer.
        if now < left {
            (left, since) = (now, Instant::now());
        }
        let stuck = || format!("{left} approved changes do not run: {}\n{}", answer.body["changes"], world.log());
        assert!(since.elapsed() < PATIENCE * 3, "{}", stuck());
        std::thread::sleep(Duration::from_millis(50));
    }
    feed::head(world)
}

/// Holds the promises against the store, the store against the upstream, and the feed against itself.
pub fn everything(world: &World, told: &[Told]) -> Found {
    let promises = world.promises.lock().unwrap().clone();
    let done = world.upstream.done();
    let changes = all(world);
    let mut by_key: BTreeMap<String, Value> = BTreeMap::new();
    for change in changes {
        let key = change["arguments"]["key"].as_str().unwrap().to_owned();
        assert!(promises.contains_key(&key), "nobody proposed {change}");
        let twice = by_key.insert(key, change);
        assert!(twice.is_none(), "proposed once, there twice: {}", twice.unwrap());
    }
    let mut found = Found { changes: by_key.len(), calls: 0, states: BTreeMap::new(), unknown: 0, edited: 0 };
    for (key, promise) in &promises {
        let values = done.get(key).map(|done| done.values.as_slice()).unwrap_or_default();
        let Some(change) = by_key.get(key) else {
            assert!(promise.ids.is_empty() && values.is_empty(), "{key} is gone: {promise:?} {values:?}");
            continue;
        };
        one(key, promise, change, values);
        found.calls += values.len();
        found.edited += usize::from(promise.edited);
        let state = change["state"].as_str().unwrap();
        if state == "outcome_unknown" {
            found.unknown += 1;
            settle(world, change, !values.is_empty());
        }
        *found.states.entry(state.to_owned()).or_default() += 1;
    }
    for key in done.keys() {
        assert!(by_key.contains_key(key), "the upstream did something for {key}, of which there is no trace");
    }
    // What was told over all the crashes is what is stored: nothing was announced and then forgotten.
    let stored = feed::replay(world, feed::head(world));
    assert!(stored.len() >= told.len());
    for (heard, kept) in told.iter().zip(&stored) {
        assert_eq!(heard, kept, "told otherwise than it is stored");
    }
    edges(&stored);
    found
}

/// One change: what was promised of it, what it says of itself, what the upstream did.
fn one(key: &str, promise: &Promise, change: &Value, values: &[String]) {
    let about = || format!("{key}: {promise:?}\n{change}\nthe upstream got {values:?}");
    let state = change["state"].as_str().unwrap();
    let id = change["id"].as_str().unwrap();
    assert!(promise.ids.len() <= 1 && promise.ids.iter().all(|told| told == id), "{}", about());
    assert!(values.len() <= 1, "it ran {} times: {}", values.len(), about());
    for value in values {
        assert!(promise.approval_sent, "it ran and nobody approved: {}", about());
        assert!(promise.values.contains(value), "what ran is not what was approved: {}", about());
        assert_eq!(change["arguments"]["value"], value.as_str(), "{}", about());
    }
    if promise.approved {
        let ended = ["applied", "failed", "outcome_unknown"].contains(&state);
        assert!(ended, "approved, and neither run nor known to be lost: {}", about());
    }
    let quorum = if change["provider"] == "count2" { 2 } else { 1 };
    if !values.is_empty() {
        let votes = change["decisions"].as_array().unwrap();
        let who: BTreeSet<&str> = votes.iter().map(|vote| vote["reviewer"].as_str().unwrap()).collect();
        assert!(who.len() >= quorum, "it ran with too few votes: {}", about());
    }
    if promise.edited {
        assert_eq!(change["arguments"]["value"], format!("{key} as corrected"), "{}", about());
    }
    assert!(!promise.rejected || state == "rejected", "{}", about());
    assert!(!promise.withdrawn || state == "withdrawn", "{}", about());
    let mode = change["arguments"]["mode"].as_str().unwrap();
    match state {
        "applied" => assert!(values.len() == 1 && ["ok", "slow"].contains(&mode), "{}", about()),
        "failed" => assert!(values.len() == 1 && mode == "fail", "{}", about()),
        // Claimed, and then the gateway or the answer was lost.
        "outcome_unknown" => {}
        "rejected" | "withdrawn" | "pending" => assert!(values.is_empty(), "{}", about()),
        _ => panic!("not at rest: {}", about()),
    }
}

/// A person looks at the upstream and says how it ended.
fn settle(world: &World, change: &Value, ran: bool) {
    let outcome = if ran { "applied" } else { "failed" };
    let path = format!("/api/changes/{}/settle", change["id"].as_str().unwrap());
    let body = json!({"outcome": outcome, "comment": "the upstream's own ledger", "version": change["version"]});
    let answer = world.review(1, &path, &body).expect("an answer");
    assert_eq!((answer.status, answer.body["state"].as_str()), (200, Some(outcome)), "{}", answer.body);
}

/// Each change begins once, its versions rise by one, and it is claimed at most once.
fn edges(stored: &[Told]) {
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

fn all(world: &World) -> Vec<Value> {
    let bearer = format!("Bearer {}", world.reviewers[0]);
    let mut all = Vec::new();
    let mut path = "/api/changes?limit=200".to_owned();
    loop {
        let answer = world.insist("GET", &path, &[("Authorization", bearer.as_str())], &Value::Null);
        assert_eq!(answer.status, 200, "{}", answer.body);
        all.extend(answer.body["changes"].as_array().unwrap().iter().cloned());
        let Some(cursor) = answer.body["nextCursor"].as_str() else { return all };
        path = format!("/api/changes?limit=200&cursor={cursor}");
    }
}
