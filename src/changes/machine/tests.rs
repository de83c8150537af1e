//! The whole table of states and events, written out by hand, and properties of every sequence.

use std::sync::Arc;

use proptest::prelude::*;
use serde_json::value::RawValue;

use super::*;
use crate::changes::{Diff, Operation, PreviewNote, Proposer, Target, Terms, diff::DiffBuilder};

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + second).unwrap()
}

fn raw(json: &str) -> Arc<RawValue> {
    Arc::from(RawValue::from_string(json.into()).unwrap())
}

fn target() -> Target {
    Target { entity_type: "issue".into(), id: None, label: "CORE-1".into(), lock_key: "CORE-1".into() }
}

fn preview(after: &str) -> Preview {
    Preview {
        note: PreviewNote::default(),
        operation: Operation::Update,
        target: target(),
        summary: format!("Set it to {after}"),
        diff: DiffBuilder::new().field("f", "F", None, Some(after)).finish(),
        fingerprint: format!("sha256:{after}"),
    }
}

fn change(state: ChangeState) -> Change {
    let mut change = Change {
        id: "chg_1".into(),
        version: 7,
        state,
        proposer: Proposer {
            principal: "agent".into(),
            owner: None,
            key_id: None,
            client_name: None,
            client_version: None,
            session: None,
            transport: "http".into(),
            revision: None,
        },
        provider: "tracker".into(),
        tool: "update_issue".into(),
        tool_title: "Update issue".into(),
        tool_hash: "sha256:0".into(),
        arguments: raw("{}"),
        operation: Operation::Update,
        target: target(),
        summary: "Set it".into(),
        diff: Diff::default(),
        previous_diff: None,
        fingerprint: "sha256:old".into(),
        digest: String::new(),
        idempotency_key: None,
        terms: Terms::default(),
        twin_of: None,
        run_after: None,
        proposed_arguments: None,
        edits: Vec::new(),
        preview: PreviewNote::default(),
        decisions: Vec::new(),
        created_at: at(0),
        updated_at: at(0),
        expires_at: at(3600),
        result: None,
        fault: None,
        redacted: None,
        review: None,
    };
    change.digest = change.shown_digest();
    change
}

fn decision(reviewer: &str, verdict: Verdict, version: u64) -> ChangeEvent {
    ChangeEvent::Decide(Decision { reviewer: reviewer.into(), owner: None, verdict, comment: None, at: at(1), version })
}

fn fault() -> ChangeFault {
    ChangeFault { code: "X".into(), message: "why".into() }
}

fn events(change: &Change) -> [(&'static str, ChangeEvent); 14] {
    let by = String::from("alice");
    [
        ("approve", decision("alice", Verdict::Approve, change.version)),
        ("reject", decision("alice", Verdict::Reject, change.version)),
        ("edit", ChangeEvent::Edit { by: by.clone(), arguments: raw(r#"{"a":1}"#), preview: preview("edited") }),
        ("unapprove", ChangeEvent::Unapprove { by: by.clone() }),
        ("withdraw", ChangeEvent::Withdraw { by: "agent".into() }),
        ("expire", ChangeEvent::Expire { reason: "time".into() }),
        ("stale", ChangeEvent::MarkStale { fault: fault() }),
        ("refresh", ChangeEvent::Refresh { preview: preview("fresh") }),
        ("claim", ChangeEvent::Claim),
        ("succeed", ChangeEvent::Succeed { result: raw("{}") }),
        ("fail", ChangeEvent::Fail { fault: fault(), result: None }),
        ("lose", ChangeEvent::LoseTrack { fault: fault() }),
        ("settle_applied", ChangeEvent::Settle { by: by.clone(), applied: true, comment: None }),
        ("settle_failed", ChangeEvent::Settle { by, applied: false, comment: None }),
    ]
}

/// DESIGN: "Changes". What is not here may not happen.
fn expected(state: ChangeState, event: &str) -> Option<(ChangeState, EventKind)> {
    use ChangeState as S;
    use EventKind as E;
    Some(match (state, event) {
        (S::Pending, "approve") => (S::Approved, E::Approved),
        (S::Pending | S::Stale, "reject") => (S::Rejected, E::Rejected),
        (S::Pending, "edit") => (S::Pending, E::Edited),
        (S::Approved, "unapprove") => (S::Pending, E::Unapproved),
        (S::Pending | S::Stale, "withdraw") => (S::Withdrawn, E::Withdrawn),
        (S::Pending | S::Stale | S::Approved, "expire") => (S::Expired, E::Expired),
        (S::Pending | S::Approved, "stale") => (S::Stale, E::Stale),
        (S::Stale, "refresh") => (S::Pending, E::Refreshed),
        (S::Approved, "claim") => (S::Executing, E::Executing),
        (S::Executing, "succeed") => (S::Applied, E::Applied),
        (S::Executing, "fail") => (S::Failed, E::Failed),
        (S::Executing, "lose") => (S::OutcomeUnknown, E::OutcomeUnknown),
        (S::OutcomeUnknown, "settle_applied") => (S::Applied, E::Settled),
        (S::OutcomeUnknown, "settle_failed") => (S::Failed, E::Settled),
        _ => return None,
    })
}

#[track_caller]
fn check(state: ChangeState, name: &str, event: ChangeEvent) {
    let before = change(state);
    match (apply(&before, event, at(5)), expected(state, name)) {
        (Ok(step), Some((to, kind))) => {
            assert_eq!((step.after.state, step.kind, step.from), (to, kind, Some(state)), "{state:?} {name}");
            assert_eq!(step.after.version, before.version + 1);
            assert_eq!(step.after.updated_at, at(5));
            assert_eq!(step.after.digest, step.after.shown_digest(), "the digest is of what is shown");
        }
        (Err(IllegalTransition::State { from, .. }), None) => assert_eq!(from, state),
        (got, want) => panic!("{state:?} {name}: got {got:?}, want {want:?}"),
    }
}

#[test]
fn every_state_and_every_event() {
    for state in ChangeState::ALL {
        for (name, event) in events(&change(state)) {
            check(state, name, event);
        }
    }
}

#[test]
fn names_are_those_of_the_json() {
    for state in ChangeState::ALL {
        assert_eq!(serde_json::to_value(state).unwrap(), state.as_str());
        assert_eq!(ChangeState::parse(state.as_str()), Some(state));
    }
    for kind in EventKind::ALL {
        assert_eq!(kind.feed_type(), format!("change.{}", kind.as_str()));
    }
}

#[test]
fn a_vote_short_of_the_quorum_leaves_it_pending() {
    let mut one = change(ChangeState::Pending);
    one.terms.quorum = 2;
    let voted = apply(&one, decision("alice", Verdict::Approve, 7), at(1)).unwrap();
    assert_eq!((voted.kind, voted.after.state), (EventKind::Voted, ChangeState::Pending));
    let again = apply(&voted.after, decision("alice", Verdict::Approve, 8), at(2));
    assert_eq!(again.unwrap_err(), IllegalTransition::VotedAlready);
    let approved = apply(&voted.after, decision("bob", Verdict::Approve, 8), at(2)).unwrap();
    assert_eq!((approved.kind, approved.after.state), (EventKind::Approved, ChangeState::Approved));
    let edit = ChangeEvent::Edit { by: "alice".into(), arguments: raw("{}"), preview: preview("x") };
    assert_eq!(apply(&voted.after, edit, at(2)).unwrap().after.approvals(), 0, "an edit voids votes");
    let rejected = apply(&voted.after, decision("bob", Verdict::Reject, 8), at(2)).unwrap();
    assert_eq!(rejected.after.state, ChangeState::Rejected, "one rejection is enough");
}

#[test]
fn an_approval_taken_back_no_longer_counts() {
    let approved = apply(&change(ChangeState::Pending), decision("alice", Verdict::Approve, 7), at(1)).unwrap().after;
    let undone = apply(&approved, ChangeEvent::Unapprove { by: "alice".into() }, at(2)).unwrap().after;
    assert_eq!((undone.state, undone.approvals()), (ChangeState::Pending, 0));
}

#[test]
fn a_refreshed_change_shows_the_new_diff_and_keeps_the_old_one() {
    let stale = apply(&change(ChangeState::Approved), ChangeEvent::MarkStale { fault: fault() }, at(1)).unwrap().after;
    assert_eq!(stale.fault, Some(fault()));
    let fresh = apply(&stale, ChangeEvent::Refresh { preview: preview("new") }, at(2)).unwrap().after;
    assert_eq!(fresh.previous_diff, Some(stale.diff));
    assert_eq!((fresh.fingerprint.as_str(), fresh.fault.clone()), ("sha256:new", None));
    assert_ne!(fresh.digest, stale.digest);
    assert!(fresh.decisions.is_empty(), "who approved the old diff did not approve the new one");
}

#[test]
fn what_may_never_be_is_refused_whoever_asks() {
    let pending = change(ChangeState::Pending);
    let err = |event| apply(&pending, event, at(1)).unwrap_err();
    assert_eq!(err(decision("agent", Verdict::Approve, 7)), IllegalTransition::SelfApproval);
    assert_eq!(err(decision("alice", Verdict::Approve, 6)), IllegalTransition::Version { decided: 6, current: 7 });
    assert_eq!(err(ChangeEvent::Withdraw { by: "alice".into() }), IllegalTransition::NotTheProposer);
}

#[test]
fn the_history_of_a_change_never_goes_back_in_time() {
    let step = apply(&change(ChangeState::Approved), ChangeEvent::Claim, at(-100)).unwrap();
    assert_eq!(step.after.updated_at, at(0));
}

#[test]
fn a_settled_failure_keeps_its_fault() {
    let lost = apply(&change(ChangeState::Executing), ChangeEvent::LoseTrack { fault: fault() }, at(1)).unwrap().after;
    let settle = |applied| ChangeEvent::Settle { by: "alice".into(), applied, comment: Some("looked".into()) };
    assert_eq!(apply(&lost, settle(false), at(2)).unwrap().after.fault, Some(fault()));
    assert_eq!(apply(&lost, settle(true), at(2)).unwrap().after.fault, None);
}

proptest! {
    #[test]
    fn every_sequence_keeps_the_rules(
        quorum in 1_u32..4,
        steps in proptest::collection::vec((0_usize..14, 0_usize..4, any::<bool>(), -50_i64..50), 0..60),
    ) {
        let mut now = change(ChangeState::Pending);
        now.terms.quorum = quorum;
        let (mut claims, mut approved_at) = (0, None);
        for (which, who, right_version, time) in steps {
            let who = ["alice", "bob", "carol", "agent"][who];
            let version = if right_version { now.version } else { now.version + 1 };
            let event = match which {
                0 => decision(who, Verdict::Approve, version),
                1 => decision(who, Verdict::Reject, version),
                3 => ChangeEvent::Unapprove { by: who.into() },
                4 => ChangeEvent::Withdraw { by: who.into() },
                _ => events(&now)[which].1.clone(),
            };
            let Ok(step) = apply(&now, event, at(time)) else { continue };
            let after = step.after;
            prop_assert!(!now.state.is_final(), "a final change moved");
            prop_assert_eq!(after.version, now.version + 1);
            prop_assert!(after.updated_at >= now.updated_at);
            prop_assert_eq!(step.from, Some(now.state));
            if step.kind == EventKind::Approved {
                let approvers: std::collections::HashSet<_> =
                    after.decisions.iter().filter(|d| d.verdict == Verdict::Approve).map(|d| &d.reviewer).collect();
                prop_assert!(approvers.len() >= quorum as usize && !approvers.contains(&now.proposer.principal));
                approved_at = Some(after.digest.clone());
            }
            if step.kind == EventKind::Executing {
                claims += 1;
                prop_assert_eq!(now.state, ChangeState::Approved);
                prop_assert_eq!(approved_at.as_ref(), Some(&after.digest), "what runs is what was approved");
            }
            if matches!(after.state, ChangeState::Applied | ChangeState::OutcomeUnknown) {
                prop_assert_eq!(claims, 1);
            }
            prop_assert!(claims <= 1, "claimed twice");
            now = after;
        }
    }
}
