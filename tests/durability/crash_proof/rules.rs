//! Standing rules: after an answer confirms a rule, calls follow it across any crash; after an answer confirms its
//! revocation, they are reviewed again.

use serde_json::{Value, json};

use super::{
    agent::Agent,
    chance::Chance,
    worker::{expect_retryable, pause, propose},
    world::{RulePromise, World},
};

/// The number of attempts before something is wrong.
const MAX_TRIES: usize = 4000;

/// Creates, uses and revokes a rule on a pending change, which itself is never approved.
pub fn give_use_and_revoke(world: &World, change: &str, key: &str, arguments: &Value, chance: &mut Chance) {
    let denies = chance.below(3) == 0;
    world.update_promise(key, |promise| promise.rule = Some(RulePromise { denies, ..RulePromise::default() }));
    give_rule(world, change, key, denies);
    call_under_rule(world, key, arguments, denies);
    revoke_rule(world, change, key);
    // With another idempotency key, because the first one belongs to the first change.
    let after =
        propose(world, &mut Agent::Stateless, "ruled__apply", &format!("{key} after"), arguments, false, chance);
    assert_ne!(after, change, "another key is another change");
}

fn note(world: &World, key: &str, change: impl FnOnce(&mut RulePromise)) {
    world.update_promise(key, |promise| change(promise.rule.as_mut().unwrap()));
}

/// Returns the rules of that change that are in force.
fn in_force(world: &World, change: &str) -> Vec<String> {
    let rules = world.get_as_reviewer("/api/rules");
    let of_change = |rule: &&Value| rule["fromChange"] == change && rule["revokedAt"].is_null();
    let rules = rules["rules"].as_array().unwrap().iter().filter(of_change);
    rules.map(|rule| rule["id"].as_str().unwrap().to_owned()).collect()
}

fn give_rule(world: &World, change: &str, key: &str, denies: bool) {
    let body = json!({
        "verdict": if denies { "deny" } else { "allow" }, "arguments": "exact", "principal": "same", "for": 3600,
    });
    for _ in 0..MAX_TRIES {
        // An answer may have been lost, so the list is read.
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
            Some(answer) => expect_retryable(&answer, "rule"),
            None => {}
        }
    }
    panic!("no rule could be created from {change}");
}

/// Calls until there is an answer: without one, nobody knows whether the call ran.
fn call_under_rule(world: &World, key: &str, arguments: &Value, denies: bool) {
    for _ in 0..MAX_TRIES {
        note(world, key, |rule| rule.sent_calls += 1);
        match world.ask("POST", "/tools/ruled__apply", &[], arguments) {
            Some(answer) if answer.status == 200 && !denies => return note(world, key, |rule| rule.answered += 1),
            Some(answer) if answer.body["code"] == "POLICY_DENIED" && denies => return,
            Some(answer) if [404, 429].contains(&answer.status) || answer.status >= 500 => pause(),
            Some(answer) => panic!("the standing rule was not applied: {} {}", answer.status, answer.body),
            None => {}
        }
    }
    panic!("a call could never be made");
}

fn revoke_rule(world: &World, change: &str, key: &str) {
    for _ in 0..MAX_TRIES {
        let Some(id) = in_force(world, change).into_iter().next() else { return };
        match world.review(1, &format!("/api/rules/{id}/revoke"), &json!({})) {
            Some(answer) if answer.status == 200 => note(world, key, |rule| {
                rule.revoked.insert(id);
            }),
            Some(answer) => expect_retryable(&answer, "revoke"),
            None => {}
        }
    }
    panic!("the rule of {change} could never be revoked");
}
