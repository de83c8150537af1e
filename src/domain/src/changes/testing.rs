//! A change, a step of a plan and a proposer for tests, in this crate and in others.
#![allow(clippy::unwrap_used, reason = "this module is only built for tests")]

use std::sync::Arc;

use jiff::Timestamp;
use serde_json::value::RawValue;

use super::{
    Change, ChangeState, Diff, Operation, PlanStep, Preview, PreviewNote, Proposer, ServerIdentity, Target, Terms,
};

/// Creates a change with that proposer and state, and minimal other values.
pub fn change(id: &str, principal: &str, version: u64, state: ChangeState) -> Change {
    let now = Timestamp::from_second(1_800_000_000).unwrap();
    Change {
        id: id.into(),
        version,
        state,
        proposer: proposer(principal),
        provider: "tracker".into(),
        tool: "create_issue".into(),
        tool_title: "Create issue".into(),
        tool_hash: "sha256:0".into(),
        served_by: ServerIdentity::default(),
        arguments: Arc::from(RawValue::from_string(r#"{ "a" :1.50}"#.into()).unwrap()),
        operation: Operation::Create,
        target: Target { entity_type: "issue".into(), id: None, label: "x".into(), lock_key: "x".into() },
        summary: "Create".into(),
        diff: Diff::default(),
        previous_diff: None,
        fingerprint: "sha256:1".into(),
        digest: "sha256:2".into(),
        idempotency_key: None,
        stated_reason: None,
        terms: Terms::default(),
        duplicate_of: None,
        plan: None,
        run_after: None,
        proposed_arguments: None,
        edits: Vec::new(),
        preview: PreviewNote::default(),
        decisions: Vec::new(),
        created_at: now,
        updated_at: now,
        expires_at: now,
        claimed_by: None,
        call_timeout_ms: None,
        target_taken_until: None,
        waits_for: None,
        dialogue: None,
        result: None,
        verification: None,
        fault: None,
        redacted: None,
        review: None,
    }
}

/// Creates the first step of a plan, which has this preview of a call of the provider.
pub fn first_step(provider: &str, preview: Preview) -> Change {
    let plan = PlanStep { id: "plan_1".into(), title: "t".into(), reason: None, index: 0, last: false };
    let Preview { note, operation, target, diff, .. } = preview;
    Change {
        provider: provider.into(),
        plan: Some(plan),
        preview: note,
        operation,
        target,
        diff,
        ..change("chg_1", "agent", 1, ChangeState::Pending)
    }
}

/// Creates a proposer without a key and a session.
pub fn proposer(principal: &str) -> Proposer {
    Proposer::new(principal, "http")
}
