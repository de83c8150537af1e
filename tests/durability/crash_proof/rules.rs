//! Standing rules: once an answer said that there is one, calls are as it says, after any crash; once an answer said that
//! it is revoked, they are reviewed again.

use serde_json::{Value, json};

use super::{
    agent::Agent,
    chance::Chance,
    worker::{again, propose, rest},
    world::{Standing, World},
};

/// So often is something tried before it is wrong.
const TRIES: usize = 4000;

/// On a pending change, which itself is never approved.
pub fn give_use_and_revoke(world: &World, change: &str, key: &str, arguments: &Value, chance: &mut Chance) {
    let denies = chance.below(3) == 0;
    world.note(key, |promise| promise.rule = Some(Standing { denies, ..Standing::default() }));
    give(world, change, key, denies);
    call(world, key, arguments, denies);
    revoke(world, change, key);
    // With another idempotency key: the one of the first call names the first change.
    let after =
        propose(world, &mut Agent::Stateless, "ruled__apply", &format!("{key} after"), arguments, false, chance);
    assert_ne!(after, change, "another key is another change");
}

fn note(world: &World, key: &str, change: impl FnOnce(&mut Standing)) {
    world.note(key, |promise| change(promise.rule.as_mut().unwrap()));
}

/// Rules of that change that are in force.
fn in_force(world: &World, change: &str) -> Vec<String> {
    let rules = world.look("/api/rules");
    let of_change = |rule: &&Value| rule["fromChange"] == change && rule["revokedAt"].is_null();
    let rules = rules["rules"].as_array().unwrap().iter().filter(of_change);
    rules.map(|rule| rule["id"].as_str().unwrap().to_owned()).collect()
}

fn give(world: &World, change: &str, key: &str, denies: bool) {
    let body = json!({
        "verdict": if denies { "deny" } else { "allow" }, "arguments": "exact", "principal": "same", "for": 3600,
    });
    for _ in 0..TRIES {
        // An answer may have been lost: the list tells.
        if let Some(id) = in_force(world, change).into_iter().next() {
            return note(world, key, |rule| {
                rule.ids.insert(id);
            });
        }
        match world.review(0, &format!("/api/changes/{change}/rule"), &body) {
            Some(answer) if answer.status < 300 => {
                let id = answer.body["id"].as_str().unwrap().to_owned();
                return note(world, key, |rule| {
                    rule.ids.insert(id);
                });
            }
            Some(answer) => again(&answer, "rule"),
            None => {}
        }
    }
    panic!("no rule could be given on {change}");
}

/// Until there is an answer: without one, nobody knows whether it ran.
fn call(world: &World, key: &str, arguments: &Value, denies: bool) {
    for _ in 0..TRIES {
        note(world, key, |rule| rule.sent += 1);
        match world.ask("POST", "/tools/ruled__apply", &[], arguments) {
            Some(answer) if answer.status == 200 && !denies => return note(world, key, |rule| rule.answered += 1),
            Some(answer) if answer.body["code"] == "POLICY_DENIED" && denies => return,
            Some(answer) if [404, 429].contains(&answer.status) || answer.status >= 500 => rest(),
            Some(answer) => panic!("there is a standing rule, and yet: {} {}", answer.status, answer.body),
            None => {}
        }
    }
    panic!("a call could never be made");
}

fn revoke(world: &World, change: &str, key: &str) {
    for _ in 0..TRIES {
        let Some(id) = in_force(world, change).into_iter().next() else { return };
        match world.review(1, &format!("/api/rules/{id}/revoke"), &json!({})) {
            Some(answer) if answer.status == 200 => note(world, key, |rule| {
                rule.revoked.insert(id);
            }),
            Some(answer) => again(&answer, "revoke"),
            None => {}
        }
    }
    panic!("the rule of {change} could never be revoked");
}
