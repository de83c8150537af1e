//! Reviewers edit the arguments of a change, or refresh its preview.

use std::sync::{Arc, atomic::Ordering};

use futures_util::future::join_all;
use serde_json::{Value, value::RawValue};

use super::expect_refusal;
use crate::{ChangeEdit, testing::*};
use countersign_domain::{
    changes::{Change, ChangeState, Editing, ReviewVerdict, Terms, digest::arguments_hash},
    policy,
};
use countersign_protocol::ErrorKind;

pub(super) fn edit(change: &Change, reviewer_name: &str, arguments: &str) -> ChangeEdit {
    ChangeEdit {
        id: change.id.clone(),
        reviewer: Arc::new(reviewer(reviewer_name)),
        arguments: RawValue::from_string(arguments.into()).unwrap(),
        version: change.version,
        comment: Some("the other one".into()),
    }
}

#[actix::test]
async fn edited_arguments_run_and_the_proposal_is_kept() {
    let bench = TestBench::new().await;
    let mut feed = bench.changes.feed().subscribe(None).unwrap();
    let mut proposal = bench.proposal("agent", r#"{"target":"one"}"#);
    proposal.idempotency_key = Some("k".into());
    let change = bench.changes.propose(proposal).await.unwrap();
    let edited = bench.changes.edit(edit(&change, "alice", r#"{"target": "two"}"#)).await.unwrap();
    assert_eq!((edited.state, edited.version, edited.target.label.as_str()), (ChangeState::Pending, 2, "two"));
    assert_eq!(edited.arguments.get(), r#"{"target": "two"}"#, "the bytes are unchanged");
    assert_eq!(edited.original_arguments().get(), r#"{"target":"one"}"#);
    assert_eq!(edited.edits[0].comment.as_deref(), Some("the other one"));
    for kind in ["change.created", "change.edited"] {
        assert_eq!(feed.next().await.unwrap().kind, kind);
    }
    // The old version can no longer be approved; the editor may approve the new one.
    expect_refusal(bench.decide(&change, ReviewVerdict::Approve).await, ErrorKind::VersionConflict);
    bench.decide(&edited, ReviewVerdict::Approve).await.unwrap();
    let applied = bench.wait_for_state(&change.id, ChangeState::Applied).await;
    assert_eq!(bench.fake.received_calls.lock().unwrap()[0].1, r#"{"target": "two"}"#);
    assert_eq!(applied.proposed_arguments.as_ref().unwrap().get(), r#"{"target":"one"}"#);

    // A repeat of the agent's original call still returns this change.
    let mut again = bench.proposal("agent", r#"{"target":"one"}"#);
    again.idempotency_key = Some("k".into());
    assert_eq!(bench.changes.propose(again).await.unwrap().id, change.id);

    // The trail distinguishes the proposed arguments from the approved and executed ones.
    let trail = bench.trail(&change.id).await;
    let details = |event: &str| -> Value {
        serde_json::from_str(trail.iter().find(|e| e.event == event).unwrap().details.get()).unwrap()
    };
    let (before, after) = (arguments_hash(&change.arguments), arguments_hash(&edited.arguments));
    assert_eq!(details("created")["argumentsHash"], before.as_str());
    assert_eq!(details("edited")["previousArgumentsHash"], before.as_str());
    for event in ["edited", "approved", "executing", "applied"] {
        assert_eq!(details(event)["argumentsHash"], after.as_str(), "{event}");
    }
    assert!(details("approved").get("previousArgumentsHash").is_none());
    bench.end().await;
}

#[actix::test]
async fn edit_is_checked_like_a_call() {
    let bench = TestBench::new().await;
    let change = bench.propose(r#"{"a":1}"#).await;
    for (arguments, kind) in [
        (r#"{ "a": 1 }"#, ErrorKind::ValidationFailed),
        (r#"{"a":2,"a":3}"#, ErrorKind::ValidationFailed),
        ("[]", ErrorKind::ValidationFailed),
        (r#"{"wrong":1}"#, ErrorKind::ValidationFailed),
    ] {
        let error = expect_refusal(bench.changes.edit(edit(&change, "alice", arguments)).await, kind);
        assert_eq!(error.current.unwrap().version, 1, "{arguments}");
    }
    let huge = format!(r#"{{"a":"{}"}}"#, "x".repeat(21 << 20));
    expect_refusal(bench.changes.edit(edit(&change, "alice", &huge)).await, ErrorKind::TooLarge);
    expect_refusal(bench.changes.edit(edit(&change, "agent", r#"{"a":2}"#)).await, ErrorKind::SelfApproval);
    let wrong_version = ChangeEdit { version: 9, ..edit(&change, "alice", r#"{"a":2}"#) };
    expect_refusal(bench.changes.edit(wrong_version).await, ErrorKind::VersionConflict);
    *bench.fake.preview_error.lock().unwrap() = Some(ErrorKind::ResourceNotFound);
    expect_refusal(bench.changes.edit(edit(&change, "alice", r#"{"a":2}"#)).await, ErrorKind::ResourceNotFound);
    *bench.fake.preview_error.lock().unwrap() = None;
    *bench.fake.tool_hash.lock().unwrap() = "sha256:other".into();
    expect_refusal(bench.changes.edit(edit(&change, "alice", r#"{"a":2}"#)).await, ErrorKind::ChangeStale);
    *bench.fake.tool_hash.lock().unwrap() = "sha256:tool".into();
    assert_eq!(bench.get(&change.id).await.version, 1, "refused edits are not recorded");

    let not_editable = crate::Proposal {
        terms: Terms { edit: Editing::Forbidden, ..Terms::default() },
        ..bench.proposal("agent", r#"{"a":1}"#)
    };
    let not_editable = bench.changes.propose(not_editable).await.unwrap();
    expect_refusal(bench.changes.edit(edit(&not_editable, "alice", r#"{"a":2}"#)).await, ErrorKind::EditForbidden);
    bench.decide(&change, ReviewVerdict::Reject).await.unwrap();
    let late_edit = ChangeEdit { version: 2, ..edit(&change, "alice", r#"{"a":2}"#) };
    expect_refusal(bench.changes.edit(late_edit).await, ErrorKind::ChangeNotPending);
    bench.end().await;
}

#[actix::test]
async fn denied_change_cannot_be_approved() {
    let bench = TestBench::new().await;
    let change = bench.propose(r#"{"db":"staging"}"#).await;
    bench.set_policy(policy::Verdict::Deny, Terms::default());
    let refused = expect_refusal(bench.decide(&change, ReviewVerdict::Approve).await, ErrorKind::PolicyDenied);
    assert_eq!(refused.current.unwrap().version, change.version);
    // Terms that are stricter now do not hold for a change that was proposed before.
    bench.set_policy(policy::Verdict::Review, Terms { quorum: 2, ..Terms::default() });
    bench.decide(&change, ReviewVerdict::Approve).await.unwrap();
    bench.wait_for_state(&change.id, ChangeState::Applied).await;
    let other = bench.propose(r#"{"db":"staging"}"#).await;
    bench.set_policy(policy::Verdict::Deny, Terms::default());
    let rejected = bench.decide(&other, ReviewVerdict::Reject).await.unwrap();
    assert_eq!(rejected.state, ChangeState::Rejected);
    bench.end().await;
}

#[actix::test]
async fn approved_change_does_not_run_if_policy_denies_it() {
    let bench = TestBench::new().await;
    let mut proposal = bench.proposal("agent", r#"{"db":"staging"}"#);
    proposal.terms.undo_for = 1;
    let change = bench.changes.propose(proposal).await.unwrap();
    bench.decide(&change, ReviewVerdict::Approve).await.unwrap();
    bench.set_policy(policy::Verdict::Deny, Terms::default());
    let stale = bench.wait_for_state(&change.id, ChangeState::Stale).await;
    assert_eq!((stale.fault.as_ref().unwrap().code.as_str(), bench.fake.call_count()), ("POLICY_DENIED", 0));
    let alice = Arc::new(reviewer("alice"));
    let same = bench.changes.refresh(&change.id, &alice, stale.version).await.unwrap();
    assert_eq!((same.version, &same.fault), (stale.version, &stale.fault), "the reason stays");
    // Once policy no longer denies it, a reviewer may look at it and approve it.
    bench.set_policy(policy::Verdict::Review, Terms::default());
    let fresh = bench.changes.refresh(&change.id, &alice, stale.version).await.unwrap();
    assert_eq!((fresh.state, &fresh.fault), (ChangeState::Pending, &None));
    bench.decide(&fresh, ReviewVerdict::Approve).await.unwrap();
    bench.wait_for_state(&change.id, ChangeState::Applied).await;
    bench.end().await;
}

#[actix::test]
async fn edit_cannot_bypass_a_rule() {
    let bench = TestBench::new().await;
    let judge = |verdict, terms| bench.set_policy(verdict, terms);
    let change = bench.propose(r#"{"db":"staging"}"#).await;
    judge(policy::Verdict::Deny, Terms::default());
    expect_refusal(bench.changes.edit(edit(&change, "alice", r#"{"db":"production"}"#)).await, ErrorKind::PolicyDenied);
    judge(policy::Verdict::Review, Terms { quorum: 2, require_comment: true, ..Terms::default() });
    let edited = bench.changes.edit(edit(&change, "alice", r#"{"db":"production"}"#)).await.unwrap();
    assert_eq!((edited.terms.quorum, edited.terms.require_comment), (2, true));
    // Neither the edit nor a vote of the editor counts as one of the two approvals.
    expect_refusal(bench.decide(&edited, ReviewVerdict::Approve).await, ErrorKind::SelfApproval);
    let voted = bench.changes.decide(decision(&edited, "carol", ReviewVerdict::Approve)).await.unwrap();
    assert_eq!((voted.state, voted.approvals()), (ChangeState::Pending, 1));
    // The earlier terms stay in force even if the policy would now allow such a call.
    judge(policy::Verdict::Allow, Terms::default());
    let back = bench.changes.edit(edit(&voted, "bob", r#"{"db":"test"}"#)).await.unwrap();
    assert_eq!((back.terms.quorum, back.approvals()), (2, 0), "an edit voids votes");
    bench.end().await;
}

#[actix::test]
async fn one_of_concurrent_edits_and_approvals_wins() {
    let bench = TestBench::new().await;
    for round in 0..20 {
        let change = bench.propose(&format!(r#"{{"target":"{round}"}}"#)).await;
        let edits = (0..3).map(|n| {
            let edit = edit(&change, &format!("editor-{n}"), &format!(r#"{{"target":"{round}","n":{n}}}"#));
            let changes = &bench.changes;
            async move { changes.edit(edit).await }
        });
        let approvals = (0..3).map(|n| {
            let decision = decision(&change, &format!("reviewer-{n}"), ReviewVerdict::Approve);
            let changes = &bench.changes;
            async move { changes.decide(decision).await }
        });
        let (edits, approvals) = futures_util::join!(join_all(edits), join_all(approvals));
        let won: Vec<_> = edits.into_iter().chain(approvals).filter_map(Result::ok).collect();
        assert_eq!(won.len(), 1, "all of them refer to the same version");
        let ended = if won[0].state == ChangeState::Approved {
            bench.wait_for_state(&change.id, ChangeState::Applied).await
        } else {
            bench.decide(&won[0], ReviewVerdict::Approve).await.unwrap();
            bench.wait_for_state(&change.id, ChangeState::Applied).await
        };
        let ran = bench.fake.received_calls.lock().unwrap().last().unwrap().1.clone();
        assert_eq!((ran.as_str(), ended.arguments.get()), (won[0].arguments.get(), won[0].arguments.get()));
    }
    let (_, fake, _) = bench.end().await;
    assert_eq!(fake.call_count(), 20);
}

#[actix::test]
async fn stale_change_can_be_edited() {
    let bench = TestBench::new().await;
    let change = bench.propose(r#"{"old":"text"}"#).await;
    *bench.fake.preview_error.lock().unwrap() = Some(ErrorKind::ToolExecution);
    let stale =
        expect_refusal(bench.decide(&change, ReviewVerdict::Approve).await, ErrorKind::ChangeStale).current.unwrap();
    assert_eq!(stale.state, ChangeState::Stale);
    *bench.fake.preview_error.lock().unwrap() = None;
    let edited = bench.changes.edit(edit(&stale, "alice", r#"{"old":"new text"}"#)).await.unwrap();
    assert_eq!((edited.state, &edited.fault), (ChangeState::Pending, &None));
    bench.decide(&edited, ReviewVerdict::Approve).await.unwrap();
    bench.wait_for_state(&change.id, ChangeState::Applied).await;
    bench.end().await;
}

#[actix::test]
async fn refresh_shows_the_new_diff_and_voids_votes() {
    let bench = TestBench::new().await;
    let mut proposal = bench.proposal("agent", "{}");
    proposal.terms.quorum = 2;
    let change = bench.changes.propose(proposal).await.unwrap();
    let alice = Arc::new(reviewer("alice"));
    let voted = bench.decide(&change, ReviewVerdict::Approve).await.unwrap();
    let same = bench.changes.refresh(&change.id, &alice, 2).await.unwrap();
    assert_eq!((same.version, same.approvals()), (2, 1), "an unchanged target records nothing");
    expect_refusal(bench.changes.refresh(&change.id, &alice, 1).await, ErrorKind::VersionConflict);
    *bench.fake.state.lock().unwrap() = "moved".into();
    let moved = bench.changes.refresh(&change.id, &alice, voted.version).await.unwrap();
    assert_eq!((moved.state, moved.approvals()), (ChangeState::Pending, 0));
    assert_eq!(moved.previous_diff.as_ref(), Some(&change.diff));
    *bench.fake.preview_error.lock().unwrap() = Some(ErrorKind::ResourceNotFound);
    let stale = bench.changes.refresh(&change.id, &alice, moved.version).await.unwrap();
    assert_eq!((stale.state, stale.fault.as_ref().unwrap().code.as_str()), (ChangeState::Stale, "RESOURCE_NOT_FOUND"));
    let still = bench.changes.refresh(&change.id, &alice, stale.version).await.unwrap();
    assert_eq!(still.version, stale.version);
    *bench.fake.preview_error.lock().unwrap() = Some(ErrorKind::UpstreamUnavailable);
    expect_refusal(bench.changes.refresh(&change.id, &alice, stale.version).await, ErrorKind::UpstreamUnavailable);
    *bench.fake.preview_error.lock().unwrap() = None;
    let fresh = bench.changes.refresh(&change.id, &alice, stale.version).await.unwrap();
    assert_eq!(fresh.state, ChangeState::Pending);
    bench.decide(&fresh, ReviewVerdict::Reject).await.unwrap();
    expect_refusal(bench.changes.refresh(&change.id, &alice, fresh.version + 1).await, ErrorKind::ChangeNotPending);
    assert!(bench.fake.preview_count.load(Ordering::SeqCst) >= 6);
    bench.end().await;
}
