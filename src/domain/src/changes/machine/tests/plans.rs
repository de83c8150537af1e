//! The events of steps of plans.

use super::*;
use crate::changes::{PlanStep, ReviewNote, retention::redact};

fn step(state: ChangeState) -> Change {
    let plan = PlanStep { id: "plan_1".into(), title: "Move".into(), reason: None, index: 1, last: true };
    Change { plan: Some(plan), ..change(state) }
}

fn fill(arguments: &str, terms: Terms) -> ChangeEvent {
    ChangeEvent::Fill {
        comment: "Filled".into(),
        is_allowed: terms.quorum == 0,
        call: revised_call(arguments, "filled", terms),
        expires_at: time_at(900),
    }
}

fn stop() -> ChangeEvent {
    ChangeEvent::StopPlan { reason: "step 1 of its plan (chg_0) failed".into(), reviewer: None }
}

fn claim_step() -> ChangeEvent {
    let call_timeout = Duration::from_secs(30);
    ChangeEvent::Claim { claimant: None, call_timeout, fingerprint: Some("sha256:present".into()) }
}

#[test]
fn events_of_steps_are_accepted_as_in_table() {
    use ChangeState as S;
    for &state in S::VARIANTS {
        let outcome = |event: ChangeEvent| apply(&step(state), event, time_at(5)).map(|t| (t.kind, t.after.state));
        let stopped = matches!(state, S::Pending | S::Stale | S::Approved);
        assert_eq!(outcome(stop()).ok(), stopped.then_some((EventKind::Withdrawn, S::Withdrawn)), "{state:?}");
        let is_approved = state == S::Approved;
        let filled = outcome(fill(r#"{"a":1}"#, Terms::default())).ok();
        assert_eq!(filled, is_approved.then_some((EventKind::Edited, S::Pending)), "{state:?}");
        let allowed = outcome(fill(r#"{"a":1}"#, Terms { quorum: 0, ..Terms::default() })).ok();
        assert_eq!(allowed, is_approved.then_some((EventKind::Edited, S::Pending)), "{state:?}");
        let claimed = outcome(claim_step()).ok();
        assert_eq!(claimed, is_approved.then_some((EventKind::Executing, S::Executing)), "{state:?}");
        for event in [stop(), fill("{}", Terms::default()), claim_step()] {
            assert!(apply(&change(state), event, time_at(5)).is_err(), "{state:?}: only steps of plans have the event");
        }
    }
}

#[test]
fn stopped_step_says_why() {
    let mut approved = step(ChangeState::Approved);
    approved.run_after = Some(time_at(60));
    let stopped = apply(&approved, stop(), time_at(5)).unwrap();
    assert_eq!(stopped.actor, SYSTEM);
    assert_eq!(stopped.comment.as_deref(), Some("plan_stopped: step 1 of its plan (chg_0) failed"));
    let fault = ChangeFault {
        code: "PLAN_STOPPED".into(),
        message: "Not run, because step 1 of its plan (chg_0) failed".into(),
    };
    assert_eq!((stopped.after.fault, stopped.after.run_after), (Some(fault), None));
    let reviewer = Some(principal_named("alice", None));
    let by_reviewer = ChangeEvent::StopPlan { reason: "its plan was stopped by alice".into(), reviewer };
    assert_eq!(apply(&approved, by_reviewer, time_at(5)).unwrap().actor, "alice");
}

#[test]
fn filled_step_needs_review_and_keeps_proposed_arguments() {
    let mut approved = step(ChangeState::Approved);
    approved.decisions.push(vote("alice", None, ReviewVerdict::Approve, 6));
    let filled = apply(&approved, fill(r#"{"a":1}"#, Terms::default()), time_at(5)).unwrap();
    assert_eq!((filled.actor.as_str(), filled.comment.as_deref()), (SYSTEM, Some("Filled")));
    let after = filled.after;
    assert!(after.decisions.is_empty(), "the votes were for other arguments");
    assert_eq!((after.original_arguments().get(), after.arguments.get()), ("{}", r#"{"a":1}"#));
    assert_eq!((after.edits[0].by.as_str(), &after.edits[0].to), (SYSTEM, &arguments_hash(&after.arguments)));
    assert_eq!((after.digest.clone(), after.fingerprint.as_str()), (after.review_digest(), "sha256:filled"));
    assert_eq!(after.expires_at, time_at(900));
    let approve = apply(&after, decision("alice", ReviewVerdict::Approve, after.version), time_at(6)).unwrap();
    assert_eq!(approve.after.state, ChangeState::Approved);
}

#[test]
fn claimed_step_has_the_fingerprint_of_the_present_state() {
    let approved = step(ChangeState::Approved);
    let claimed = apply(&approved, claim_step(), time_at(5)).unwrap();
    assert_eq!((claimed.from, claimed.after.version), (Some(ChangeState::Approved), approved.version + 1));
    assert_eq!(claimed.after.fingerprint, "sha256:present");
    assert_eq!((claimed.after.digest, claimed.after.call_timeout_ms), (approved.digest, Some(30_000)));
}

#[test]
fn allowed_step_under_review_needs_one_approval() {
    let mut stale = step(ChangeState::Stale);
    stale.terms.quorum = 0;
    assert!(stale.is_allowed_step());
    let fresh = ChangeEvent::Refresh { preview: preview("new"), served_by: ServerIdentity::default() };
    let pending = apply(&stale, fresh, time_at(1)).unwrap().after;
    let approved = apply(&pending, decision("alice", ReviewVerdict::Approve, pending.version), time_at(2)).unwrap();
    assert_eq!((approved.kind, approved.after.state), (EventKind::Approved, ChangeState::Approved));
}

#[test]
fn allowed_step_says_when_policy_asks_for_a_review() {
    let mut allowed = step(ChangeState::Approved);
    allowed.terms.quorum = 0;
    allowed.review = Some(ReviewNote { rule: None, reason: "the policy allows it".into(), mark: None });
    let filled = |terms| apply(&allowed, fill("{}", terms), time_at(1)).unwrap().after;
    let reason = |filled: &Change| filled.review.clone().unwrap().reason;
    assert!(reason(&filled(Terms::default())).contains("asks for a review"));
    let still_allowed = filled(allowed.terms.clone());
    assert!(reason(&still_allowed).contains("results of earlier steps"));
    assert_eq!((still_allowed.terms.quorum, still_allowed.is_allowed_step()), (1, false), "somebody must look at it");
}

#[test]
fn filled_step_has_the_new_terms_and_needs_an_approval() {
    for (before, after) in (0..4).flat_map(|before| (0..4).map(move |after| (before, after))) {
        let mut approved = step(ChangeState::Approved);
        (approved.terms.quorum, approved.review) = (before, None);
        let terms = Terms { quorum: after, require_comment: true, ..Terms::default() };
        let filled = apply(&approved, fill("{}", terms.clone()), time_at(1)).unwrap().after;
        assert_eq!(filled.terms, Terms { quorum: after.max(1), ..terms }, "{before} {after}");
        assert_eq!(filled.review.is_some(), before == 0, "{before} {after}");
        assert_eq!((filled.state, filled.decisions.len()), (ChangeState::Pending, 0), "{before} {after}");
    }
}

#[test]
fn reason_for_a_plan_is_removed_with_the_contents_of_its_steps() {
    let mut step = step(ChangeState::Applied);
    step.plan.as_mut().unwrap().reason = Some("because".into());
    let plan = redact(&step, time_at(9)).plan.unwrap();
    assert_eq!((plan.title.as_str(), plan.reason), ("Move", None));
}
