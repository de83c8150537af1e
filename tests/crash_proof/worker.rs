//! Agents and reviewers who do not give up: what got no answer is asked again of the next gateway, as real clients do.

use std::sync::atomic::Ordering;

use serde_json::{Value, json};

use crate::{
    chance::Chance,
    world::{NAMES, World},
};

/// So often is a decision tried before something is wrong.
const TRIES: usize = 2000;

/// What becomes of a change, if its reviewers have their way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Plan {
    Approve,
    EditAndApprove,
    Reject,
    Withdraw,
    Leave,
}

/// Proposes and decides until there is enough.
pub fn run(world: &World, name: &str, mut chance: Chance) {
    for n in 0.. {
        if world.enough.load(Ordering::SeqCst) {
            return;
        }
        one(world, &format!("{name}-{n}"), &mut chance);
    }
}

fn one(world: &World, key: &str, chance: &mut Chance) {
    let plan = match chance.below(20) {
        0..12 => Plan::Approve,
        12..15 => Plan::EditAndApprove,
        15..17 => Plan::Reject,
        17..18 => Plan::Withdraw,
        _ => Plan::Leave,
    };
    let mode = match chance.below(10) {
        0..5 => "ok",
        5..8 => "slow",
        8 => "fail",
        _ => "lost",
    };
    let value = format!("{key} as proposed");
    let tool = format!("count{}__apply", chance.below(NAMES as u64));
    let arguments = json!({"key": key, "value": value, "mode": mode});
    world.note(key, |_| {});
    let id = propose(world, &tool, key, &arguments, chance);
    world.named(key, &id);
    world.proposed.fetch_add(1, Ordering::SeqCst);
    match plan {
        Plan::Leave => {}
        Plan::Withdraw => withdraw(world, &id, key),
        Plan::Reject => decide(world, &id, key, "reject", chance),
        Plan::Approve => decide(world, &id, key, "approve", chance),
        Plan::EditAndApprove => {
            edit(world, &id, key, mode, chance);
            decide(world, &id, key, "approve", chance);
        }
    }
    // Sometimes the agent has forgotten that it asked.
    if chance.below(10) == 0 {
        let again = propose(world, &tool, key, &arguments, chance);
        world.named(key, &again);
    }
}

/// Over the plain door or over MCP; always with an idempotency key, so that a repeat finds the same change.
fn propose(world: &World, tool: &str, key: &str, arguments: &Value, chance: &mut Chance) -> String {
    loop {
        let answer = if chance.below(2) == 0 {
            world.insist("POST", &format!("/tools/{tool}"), &[("Idempotency-Key", key)], arguments)
        } else {
            let meta = json!({
                "io.modelcontextprotocol/protocolVersion": "2026-07-28",
                "io.modelcontextprotocol/clientInfo": {"name": "crash-proof", "version": "1"},
                "io.modelcontextprotocol/clientCapabilities": {},
                "dev.countersign/idempotencyKey": key,
            });
            let params = json!({"name": tool, "arguments": arguments, "_meta": meta});
            let headers = [
                ("Accept", "application/json, text/event-stream"),
                ("MCP-Protocol-Version", "2026-07-28"),
                ("Mcp-Method", "tools/call"),
                ("Mcp-Name", tool),
            ];
            let body = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params});
            world.insist("POST", "/mcp", &headers, &body)
        };
        let text = answer.body.to_string();
        if let Some(start) = text.find("chg_") {
            return text[start..].chars().take_while(|c| c.is_ascii_alphanumeric() || "_-".contains(*c)).collect();
        }
        // Right after a start, the upstream's tools are not there yet.
        assert!(
            answer.status == 404 || answer.status == 200,
            "{tool} was refused: {} {text}\n{}",
            answer.status,
            world.log()
        );
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

/// Until the change is no longer pending, whoever's doing that is.
fn decide(world: &World, id: &str, key: &str, verdict: &str, chance: &mut Chance) {
    for _ in 0..TRIES {
        let change = world.change(id);
        if change["state"] != "pending" {
            return;
        }
        if verdict == "approve" {
            let value = change["arguments"]["value"].as_str().unwrap().to_owned();
            world.note(key, |promise| {
                promise.approval_sent = true;
                promise.values.insert(value);
            });
        }
        let body = json!({
            "decision": verdict, "version": change["version"], "digest": change["digest"], "comment": "by the driver",
        });
        let reviewer = usize::from(chance.below(2) == 0);
        let Some(answer) = world.review(reviewer, &format!("/api/changes/{id}/decision"), &body) else { continue };
        match answer.status {
            // One vote of two.
            200 if answer.body["state"] == "pending" => {}
            200 if verdict == "approve" => return world.note(key, |promise| promise.approved = true),
            200 => return world.note(key, |promise| promise.rejected = true),
            // Somebody was quicker (ourselves, before the crash), voted already, or the upstream is not there yet.
            409 | 429 | 500.. => {}
            _ => panic!("{verdict} {id}: {} {}", answer.status, answer.body),
        }
    }
    panic!("{id} could never be decided on: {}", world.change(id));
}

fn withdraw(world: &World, id: &str, key: &str) {
    let answer = world.insist("POST", "/tools/withdraw_change", &[], &json!({"changeId": id}));
    assert_eq!(answer.status, 200, "{}", answer.body);
    world.note(key, |promise| promise.withdrawn = true);
}

/// Other arguments; the key stays, since it is how the upstream counts.
fn edit(world: &World, id: &str, key: &str, mode: &str, chance: &mut Chance) {
    let value = format!("{key} as corrected");
    for _ in 0..TRIES {
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
            200 => return world.note(key, |promise| promise.edited = true),
            // Right after a start, the upstream's tools are not there yet.
            404 if answer.body["code"] == "TOOL_NOT_FOUND" => std::thread::sleep(std::time::Duration::from_millis(20)),
            409 | 429 | 500.. => {}
            _ => panic!("edit {id}: {} {}", answer.status, answer.body),
        }
    }
    panic!("{id} could never be edited: {}", world.change(id));
}
