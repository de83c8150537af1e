//! The whole table of states and events, written by hand. `plans.rs` has the events of steps of plans.

mod people;
mod plans;
mod properties;
mod verification;

use std::sync::Arc;

use serde_json::value::RawValue;

use super::*;
use crate::{
    changes::{
        Editing, Operation, PreviewNote, ServerIdentity, StateEffect, Target, Terms, VerificationOutcome,
        diff::DiffBuilder, digest::arguments_hash, testing,
    },
    principal::Role,
};

fn time_at(second: i64) -> Timestamp {
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
        state_effect: StateEffect::Fields,
    }
}

fn change(state: ChangeState) -> Change {
    let mut change = Change {
        tool: "update_issue".into(),
        tool_title: "Update issue".into(),
        arguments: raw("{}"),
        operation: Operation::Update,
        target: target(),
        summary: "Set it".into(),
        fingerprint: "sha256:old".into(),
        digest: String::new(),
        expires_at: time_at(3600),
        dialogue: Some(crate::changes::Dialogue::new(raw("{}"))),
        ..testing::change("chg_1", "agent", 7, state)
    };
    change.digest = change.review_digest();
    change
}

fn vote(reviewer: &str, owner: Option<&str>, verdict: ReviewVerdict, version: u64) -> ReviewDecision {
    let (reviewer, owner) = (reviewer.into(), owner.map(Into::into));
    ReviewDecision {
        reviewer,
        display_name: None,
        owner,
        key_id: None,
        other_names: Vec::new(),
        token: None,
        deputy_for: None,
        verdict,
        comment: None,
        at: time_at(1),
        version,
    }
}

fn decision(reviewer: &str, verdict: ReviewVerdict, version: u64) -> ChangeEvent {
    ChangeEvent::Decide(vote(reviewer, None, verdict, version))
}

fn principal_named(name: &str, owner: Option<&str>) -> Principal {
    Principal { owner: owner.map(Into::into), ..Principal::new(name, Role::Reviewer) }
}

fn edit_by(editor: &str, owner: Option<&str>, arguments: &str) -> ChangeEvent {
    ChangeEvent::Edit {
        editor: principal_named(editor, owner),
        comment: Some("corrected".into()),
        call: revised_call(arguments, "edited", Terms::default()),
    }
}

fn revised_call(arguments: &str, shown: &str, terms: Terms) -> RevisedCall {
    let (served_by, terms) = (ServerIdentity::default(), Box::new(terms));
    RevisedCall { arguments: raw(arguments), preview: preview(shown), served_by, terms }
}

fn unapprove(reviewer: &str) -> ChangeEvent {
    ChangeEvent::Unapprove { reviewer: principal_named(reviewer, None), all: false }
}

fn fault() -> ChangeFault {
    ChangeFault { code: "X".into(), message: "why".into() }
}

fn question(key: &str) -> Question {
    Question {
        key: key.into(),
        method: "elicitation/create".into(),
        params: None,
        at: time_at(0),
        closed_at: None,
        answer: None,
        unanswered: None,
    }
}

#[test]
fn only_a_vote_approves_however_late() {
    for &state in ChangeState::VARIANTS.iter().filter(|state| **state != ChangeState::Approved) {
        let mut change = change(state);
        change.terms.reviewers = vec!["dba".into()];
        change.terms.escalate = Some(crate::changes::Escalation { after: 60, to: vec!["oncall".into()] });
        for (name, event) in events(&change) {
            let is_vote = matches!(event, ChangeEvent::Decide(_));
            for second in [0, 60, 3600, 400_000_000] {
                let after = apply(&change, event.clone(), time_at(second)).map(|step| step.after.state);
                assert!(is_vote || after != Ok(ChangeState::Approved), "{name} in {state:?} at {second}");
            }
        }
    }
}

#[test]
fn questions_end_once_or_with_the_call() {
    let ask = |change: &Change, key| apply(change, ChangeEvent::Ask { question: question(key) }, time_at(3));
    let answer = |change: &Change, key: &str| {
        let closed = vec![ClosedQuestion { key: key.into(), answer: Ok(raw(r#"{"action":"accept"}"#)) }];
        let answer = ChangeEvent::Answer { answered_by: Some("agent".into()), closed, is_cancelled: false };
        apply(change, answer, time_at(4))
    };
    let asked = ask(&change(ChangeState::Executing), "a").unwrap().after;
    assert_eq!(asked.dialogue.as_ref().unwrap().questions[0].at, time_at(3));
    assert_eq!(ask(&asked, "a").unwrap_err(), IllegalTransition::NoOpenQuestion, "a key is used only once");
    let both = ask(&asked, "b").unwrap().after;
    assert_eq!(answer(&both, "c").unwrap_err(), IllegalTransition::NoOpenQuestion);
    let step = answer(&both, "a").unwrap();
    assert_eq!((step.actor.as_str(), step.after.state), ("agent", ChangeState::Executing));
    assert_eq!(answer(&step.after, "a").unwrap_err(), IllegalTransition::NoOpenQuestion, "a question is answered once");
    assert_eq!(
        ask(&step.after, "a").unwrap_err(),
        IllegalTransition::NoOpenQuestion,
        "keys are unique after the answer too"
    );
    let lost = apply(&step.after, ChangeEvent::LoseTrack { fault: fault(), last_sent_at: time_at(0) }, time_at(9))
        .unwrap()
        .after;
    let dialogue = lost.dialogue.unwrap();
    assert_eq!(dialogue.open_questions().count(), 0);
    assert_eq!(
        (dialogue.questions[1].unanswered.as_deref(), dialogue.questions[1].closed_at),
        (Some("the call has ended"), Some(time_at(9)))
    );
    let without_dialogue = Change { dialogue: None, ..change(ChangeState::Executing) };
    assert_eq!(
        ask(&without_dialogue, "a").unwrap_err(),
        IllegalTransition::NoOpenQuestion,
        "the rule allows no questions"
    );
}

fn events(change: &Change) -> [(&'static str, ChangeEvent); 18] {
    let reviewer = principal_named("alice", None);
    [
        ("approve", decision("alice", ReviewVerdict::Approve, change.version)),
        ("reject", decision("alice", ReviewVerdict::Reject, change.version)),
        ("edit", edit_by("alice", None, &format!(r#"{{"a":{}}}"#, change.version))),
        ("unapprove", unapprove("alice")),
        ("void", ChangeEvent::Void { valid: Vec::new(), reason: "revoked".into() }),
        ("withdraw", ChangeEvent::Withdraw { proposer: principal_named("agent", None), reason: None }),
        ("expire", ChangeEvent::Expire { reason: "time".into() }),
        ("stale", ChangeEvent::MarkStale { fault: fault() }),
        ("refresh", ChangeEvent::Refresh { preview: preview("fresh"), served_by: ServerIdentity::default() }),
        ("claim", ChangeEvent::Claim { claimant: None, call_timeout: Duration::from_secs(30), fingerprint: None }),
        ("ask", ChangeEvent::Ask { question: question("k") }),
        ("answer", ChangeEvent::Answer { answered_by: None, closed: Vec::new(), is_cancelled: true }),
        ("succeed", ChangeEvent::Succeed { result: raw("{}"), reads_back: true }),
        ("verify", ChangeEvent::Verify { verification: Verification::unreadable("gone") }),
        ("fail", ChangeEvent::Fail { fault: fault(), result: None }),
        ("lose", ChangeEvent::LoseTrack { fault: fault(), last_sent_at: time_at(0) }),
        ("settle_applied", ChangeEvent::Settle { reviewer: reviewer.clone(), applied: true, comment: None }),
        ("settle_failed", ChangeEvent::Settle { reviewer, applied: false, comment: None }),
    ]
}

/// The allowed transitions. All other combinations of state and event are illegal.
fn expected(state: ChangeState, event: &str) -> Option<(ChangeState, EventKind)> {
    use ChangeState as S;
    use EventKind as E;
    Some(match (state, event) {
        (S::Pending, "approve") => (S::Approved, E::Approved),
        (S::Pending | S::Stale, "reject") => (S::Rejected, E::Rejected),
        (S::Pending | S::Stale, "edit") => (S::Pending, E::Edited),
        (S::Approved, "unapprove") | (S::Pending | S::Approved, "void") => (S::Pending, E::Unapproved),
        (S::Pending | S::Stale, "withdraw") => (S::Withdrawn, E::Withdrawn),
        (S::Pending | S::Stale | S::Approved, "expire") => (S::Expired, E::Expired),
        (S::Pending | S::Approved | S::Stale, "stale") => (S::Stale, E::Stale),
        (S::Stale, "refresh") => (S::Pending, E::Refreshed),
        (S::Approved, "claim") => (S::Executing, E::Executing),
        (S::Executing, "ask") => (S::Executing, E::QuestionAsked),
        (S::Executing, "answer") => (S::Executing, E::QuestionAnswered),
        (S::Executing, "succeed") => (S::Applied, E::Applied),
        (S::Applied, "verify") => (S::Applied, E::Verified),
        (S::Executing, "fail") => (S::Failed, E::Failed),
        (S::Executing, "lose") => (S::OutcomeUnknown, E::OutcomeUnknown),
        (S::OutcomeUnknown, "settle_applied") => (S::Applied, E::Settled),
        (S::OutcomeUnknown, "settle_failed") => (S::Failed, E::Settled),
        _ => return None,
    })
}

#[track_caller]
fn check_transition(state: ChangeState, name: &str, event: ChangeEvent) {
    let mut before = change(state);
    if state == ChangeState::Approved {
        // The change has not run, so the approval can be undone.
        before.run_after = Some(time_at(60));
        before.decisions.push(vote("alice", None, ReviewVerdict::Approve, 6));
    }
    if state == ChangeState::Applied && name == "verify" {
        before.verification = Some(Verification::not_read());
    }
    if state == ChangeState::Pending && name == "void" {
        assert_eq!(apply(&before, event.clone(), time_at(5)).unwrap_err(), IllegalTransition::NothingToVoid);
        before.decisions.push(vote("alice", None, ReviewVerdict::Approve, 6));
    }
    match (apply(&before, event, time_at(5)), expected(state, name)) {
        (Ok(step), Some((to, kind))) => {
            assert_eq!((step.after.state, step.kind, step.from), (to, kind, Some(state)), "{state:?} {name}");
            assert_eq!(step.after.version, before.version + 1);
            assert_eq!(step.after.updated_at, time_at(5));
            assert_eq!(step.after.digest, step.after.review_digest(), "the digest covers the shown content");
            assert_eq!(step.after.run_after, None, "no rule asks for a grace period");
        }
        (Err(IllegalTransition::State { from, .. }), None) => assert_eq!(from, state),
        (got, want) => panic!("{state:?} {name}: got {got:?}, want {want:?}"),
    }
}

#[test]
fn events_are_accepted_as_in_table() {
    for &state in ChangeState::VARIANTS {
        for (name, event) in events(&change(state)) {
            check_transition(state, name, event);
        }
    }
}

#[test]
fn state_names_match_json() {
    for &state in ChangeState::VARIANTS {
        assert_eq!(serde_json::to_value(state).unwrap(), state.as_str());
        assert_eq!(ChangeState::parse(state.as_str()), Some(state));
    }
    for &kind in EventKind::VARIANTS {
        assert_eq!(kind.feed_type(), format!("change.{}", kind.as_str()));
    }
}

#[test]
fn vote_below_quorum_keeps_change_pending() {
    let mut pending = change(ChangeState::Pending);
    pending.terms.quorum = 2;
    let voted = apply(&pending, decision("alice", ReviewVerdict::Approve, 7), time_at(1)).unwrap();
    assert_eq!((voted.kind, voted.after.state), (EventKind::Voted, ChangeState::Pending));
    let again = apply(&voted.after, decision("alice", ReviewVerdict::Approve, 8), time_at(2));
    assert_eq!(again.unwrap_err(), IllegalTransition::AlreadyVoted);
    let approved = apply(&voted.after, decision("bob", ReviewVerdict::Approve, 8), time_at(2)).unwrap();
    assert_eq!((approved.kind, approved.after.state), (EventKind::Approved, ChangeState::Approved));
    let edit = edit_by("alice", None, r#"{"a":2}"#);
    assert_eq!(apply(&voted.after, edit, time_at(2)).unwrap().after.approvals(), 0, "an edit voids votes");
    let rejected = apply(&voted.after, decision("bob", ReviewVerdict::Reject, 8), time_at(2)).unwrap();
    assert_eq!(rejected.after.state, ChangeState::Rejected, "one rejection is enough");
}

#[test]
fn withdrawn_approval_no_longer_counts() {
    let mut pending = change(ChangeState::Pending);
    pending.terms.undo_for = 10;
    pending.terms.quorum = 2;
    let voted = apply(&pending, decision("alice", ReviewVerdict::Approve, 7), time_at(1)).unwrap().after;
    assert_eq!(voted.run_after, None, "one vote starts no grace period");
    let approved = apply(&voted, decision("bob", ReviewVerdict::Approve, 8), time_at(2)).unwrap().after;
    assert_eq!(approved.run_after, Some(time_at(12)));
    let undo = |event| apply(&approved, event, time_at(11));
    let undone = undo(unapprove("alice")).unwrap();
    assert_eq!((undone.kind, undone.after.state), (EventKind::Unapproved, ChangeState::Pending));
    assert_eq!((undone.after.run_after, undone.after.approvals()), (None, 1), "bob's vote stays");
    let other_key = ChangeEvent::Unapprove { reviewer: principal_named("desk", Some("bob")), all: false };
    assert_eq!(undo(other_key).unwrap().after.decisions[0].reviewer, "alice");
    assert_eq!(undo(unapprove("carol")).unwrap_err(), IllegalTransition::NotAnApprover);
    let admin = ChangeEvent::Unapprove { reviewer: principal_named("carol", None), all: true };
    assert_eq!(undo(admin).unwrap().after.approvals(), 0);
    assert_eq!(apply(&approved, unapprove("alice"), time_at(12)).unwrap_err(), IllegalTransition::GracePeriodOver);
    let again = apply(&undone.after, decision("alice", ReviewVerdict::Approve, 10), time_at(20)).unwrap().after;
    assert_eq!((again.state, again.run_after), (ChangeState::Approved, Some(time_at(30))));
    let claim = ChangeEvent::Claim { claimant: None, call_timeout: Duration::from_secs(30), fingerprint: None };
    assert_eq!(apply(&again, claim, time_at(30)).unwrap().after.run_after, None);
}

#[test]
fn grace_period_ends_before_expiry() {
    let mut pending = change(ChangeState::Pending);
    pending.terms.undo_for = u64::MAX;
    let approve =
        |now| apply(&pending, decision("alice", ReviewVerdict::Approve, 7), time_at(now)).unwrap().after.run_after;
    assert_eq!(approve(1), Some(time_at(3595)));
    assert_eq!(approve(3597), None, "there is no time left to wait");
}

#[test]
fn edit_keeps_original_arguments() {
    let pending = change(ChangeState::Pending);
    let once = apply(&pending, edit_by("alice", None, r#"{"a":1}"#), time_at(1)).unwrap();
    assert_eq!((once.actor.as_str(), once.comment.as_deref()), ("alice", Some("corrected")));
    let twice = apply(&once.after, edit_by("bob", None, r#"{"a":2}"#), time_at(2)).unwrap().after;
    assert_eq!((twice.original_arguments().get(), twice.arguments.get()), ("{}", r#"{"a":2}"#));
    assert_eq!(twice.proposed_arguments.as_ref().unwrap().get(), "{}");
    assert_eq!((twice.edits[0].by.as_str(), twice.edits[1].by.as_str()), ("alice", "bob"));
    assert_eq!(twice.edits[0].to, twice.edits[1].from);
    assert_eq!(twice.edits[1].to, arguments_hash(&twice.arguments));
    assert_eq!(twice.previous_diff, None, "the target has not moved");
    assert_ne!(twice.digest, once.after.digest);
    let err = |change: &Change, event| apply(change, event, time_at(3)).unwrap_err();
    assert_eq!(err(&twice, edit_by("bob", None, r#"{"a":2}"#)), IllegalTransition::UnchangedArguments);
    assert_eq!(err(&twice, edit_by("agent", None, "{}")), IllegalTransition::SelfApproval);
    assert_eq!(err(&twice, edit_by("desk", Some("agent"), "{}")), IllegalTransition::SelfApproval);
    let mut fixed = pending;
    fixed.terms.edit = Editing::Forbidden;
    assert_eq!(err(&fixed, edit_by("alice", None, r#"{"a":1}"#)), IllegalTransition::EditForbidden);
}

#[test]
fn expiry_can_count_as_rejection() {
    let expire = |state| {
        let mut change = change(state);
        change.terms.on_expiry = OnExpiry::Reject;
        apply(&change, ChangeEvent::Expire { reason: "nobody approved it".into() }, time_at(9)).unwrap()
    };
    for state in [ChangeState::Pending, ChangeState::Stale] {
        let step = expire(state);
        assert_eq!((step.kind, step.after.state), (EventKind::Rejected, ChangeState::Rejected));
        assert_eq!((step.actor.as_str(), step.after.fault.unwrap().code.as_str()), (SYSTEM, "CHANGE_EXPIRED"));
    }
    assert_eq!(expire(ChangeState::Approved).after.state, ChangeState::Expired, "an approved change expires");
}

#[test]
fn refresh_keeps_previous_diff() {
    let stale =
        apply(&change(ChangeState::Approved), ChangeEvent::MarkStale { fault: fault() }, time_at(1)).unwrap().after;
    assert_eq!(stale.fault, Some(fault()));
    let fresh = apply(
        &stale,
        ChangeEvent::Refresh { preview: preview("new"), served_by: ServerIdentity::default() },
        time_at(2),
    )
    .unwrap()
    .after;
    assert_eq!(fresh.previous_diff, Some(stale.diff));
    assert_eq!((fresh.fingerprint.as_str(), fresh.fault.clone()), ("sha256:new", None));
    assert_ne!(fresh.digest, stale.digest);
    assert!(fresh.decisions.is_empty(), "approvals of the old diff do not count for the new one");
}

#[test]
fn illegal_events_are_refused() {
    let pending = change(ChangeState::Pending);
    let err = |event| apply(&pending, event, time_at(1)).unwrap_err();
    assert_eq!(err(decision("agent", ReviewVerdict::Approve, 7)), IllegalTransition::SelfApproval);
    assert_eq!(
        err(decision("alice", ReviewVerdict::Approve, 6)),
        IllegalTransition::Version { decided: 6, current: 7 }
    );
    assert_eq!(
        err(ChangeEvent::Withdraw { proposer: principal_named("alice", None), reason: None }),
        IllegalTransition::NotProposer
    );
}

#[test]
fn updated_at_never_decreases() {
    let step = apply(
        &change(ChangeState::Approved),
        ChangeEvent::Claim { claimant: None, call_timeout: Duration::from_secs(30), fingerprint: None },
        time_at(-100),
    )
    .unwrap();
    assert_eq!(step.after.updated_at, time_at(0));
}

#[test]
fn lost_call_blocks_target_until_deadline_or_settlement() {
    let claim = ChangeEvent::Claim { claimant: None, call_timeout: Duration::from_secs(30), fingerprint: None };
    let claimed = apply(&change(ChangeState::Approved), claim, time_at(1)).unwrap().after;
    let lose = |sent, now| {
        let event = ChangeEvent::LoseTrack { fault: fault(), last_sent_at: time_at(sent) };
        apply(&claimed, event, time_at(now)).unwrap().after
    };
    assert_eq!(lose(2, 5).target_taken_until, Some(time_at(32)));
    assert_eq!(lose(2, 32).target_taken_until, None, "the deadline of the call has passed");
    let settle = ChangeEvent::Settle { reviewer: principal_named("alice", None), applied: true, comment: None };
    assert_eq!(apply(&lose(2, 5), settle, time_at(6)).unwrap().after.target_taken_until, None);
}

#[test]
fn settled_failure_keeps_fault_and_names_reviewer() {
    let lost = apply(
        &change(ChangeState::Executing),
        ChangeEvent::LoseTrack { fault: fault(), last_sent_at: time_at(0) },
        time_at(1),
    )
    .unwrap()
    .after;
    let settle = |applied| ChangeEvent::Settle {
        reviewer: principal_named("alice", None),
        applied,
        comment: Some("looked".into()),
    };
    let expected = ChangeFault { message: "why. alice checked: it was not applied: “looked”".into(), ..fault() };
    assert_eq!(apply(&lost, settle(false), time_at(2)).unwrap().after.fault, Some(expected));
    assert_eq!(apply(&lost, settle(true), time_at(2)).unwrap().after.fault, None);
}
