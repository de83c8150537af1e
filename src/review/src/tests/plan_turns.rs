//! Tests of the checks of a step of a plan at its turn.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use serde_json::value::RawValue;

use super::{
    expect_refusal,
    plans::{self, *},
    votes::{RevocableKeys, reviewers},
};
use crate::{PlanAnnouncement, Proposal, ReviewConfig, testing::*, upkeep::expiry};
use countersign_domain::{
    changes::{ChangeState, Preview, ReviewVerdict, StateEffect, Target, Terms, fingerprint},
    policy::Verdict,
};
use countersign_protocol::ErrorKind;

#[actix::test]
async fn filled_step_waits_for_review_although_it_is_allowed() {
    let bench = bench().await;
    let second = r#"{"target":"b","id":{"$from":0,"pointer":"/id"}}"#;
    let steps = propose_with(&bench, &[ABC[0], second, ABC[2]], |_, proposal| proposal.terms.quorum = 0).await;
    let filled = bench.wait_for_state(&steps[1].id, ChangeState::Pending).await;
    assert_eq!(filled.arguments.get(), r#"{"target":"b","id":"n-\"a\""}"#);
    assert_eq!((filled.terms.quorum, called_targets(&bench)), (1, vec!["a".to_owned()]));
    bench.decide(&filled, ReviewVerdict::Approve).await.unwrap();
    bench.wait_for_state(&steps[2].id, ChangeState::Applied).await;
    assert_eq!(called_targets(&bench), ["a", "b", "c"]);
    bench.end().await;
}

#[actix::test]
async fn required_preview_is_shown_once_the_step_is_filled() {
    let bench = bench().await;
    let second = r#"{"target":"b","id":{"$from":0,"pointer":"/id"}}"#;
    let steps = propose_with(&bench, &[ABC[0], second], |_, proposal| proposal.terms.preview_required = true).await;
    assert!(steps[1].preview.awaits_results && !steps[1].preview.is_live());
    approve(&bench, &steps).await;
    let filled = bench.wait_for_state(&steps[1].id, ChangeState::Pending).await;
    assert!(filled.terms.preview_required && filled.preview.is_live() && !filled.preview.awaits_results);
    bench.decide(&filled, ReviewVerdict::Approve).await.unwrap();
    bench.wait_for_state(&steps[1].id, ChangeState::Applied).await;
    bench.end().await;
}

#[actix::test]
async fn filled_step_is_reviewed_under_the_terms_of_policy() {
    let bench = bench().await;
    let terms = Terms { reviewers: vec!["reviewer".into()], quorum: 2, own_agents: true, ..Terms::default() };
    for verdict in [Verdict::Allow, Verdict::Review] {
        bench.set_policy(verdict, terms.clone());
        let steps =
            propose_with(&bench, &[ABC[0], r#"{"target":"b","id":{"$from":0,"pointer":"/id"}}"#], |step, proposal| {
                if step == 1 {
                    proposal.terms = Terms { quorum: 0, reviewers: vec!["nobody".into()], ..Terms::default() };
                }
            })
            .await;
        bench.decide(&steps[0], ReviewVerdict::Approve).await.unwrap();
        let filled = bench.wait_for_state(&steps[1].id, ChangeState::Pending).await;
        assert_eq!(filled.terms, terms, "{verdict:?}");
        let voted = bench.decide(&filled, ReviewVerdict::Approve).await.unwrap();
        assert_eq!(voted.state, ChangeState::Pending, "{verdict:?}");
        bench.changes.decide(decision(&voted, "bob", ReviewVerdict::Approve)).await.unwrap();
        bench.wait_for_state(&steps[1].id, ChangeState::Applied).await;
    }
    bench.end().await;
}

#[actix::test]
async fn policy_is_asked_again_about_an_allowed_step() {
    let bench = bench().await;
    let steps = propose_with(&bench, &ABC[..2], |_, proposal| proposal.terms.quorum = 0).await;
    bench.wait_for_state(&steps[1].id, ChangeState::Applied).await;
    bench.set_policy(Verdict::Review, Terms::default());
    let steps = propose_with(&bench, &ABC[..2], |_, proposal| proposal.terms.quorum = 0).await;
    let first = bench.wait_for_state(&steps[0].id, ChangeState::Pending).await;
    assert_eq!(first.terms.quorum, 1);
    bench.set_policy(Verdict::Deny, Terms::default());
    expect_refusal(bench.decide(&first, ReviewVerdict::Approve).await, ErrorKind::PolicyDenied);
    let steps = propose_with(&bench, &ABC[..2], |_, proposal| proposal.terms.quorum = 0).await;
    bench.wait_for_state(&steps[1].id, ChangeState::Withdrawn).await;
    assert_eq!(bench.fake.call_count(), 2, "neither step ran");
    bench.end().await;
}

#[actix::test]
async fn plan_does_not_begin_if_policy_denies_a_later_step() {
    let bench = bench().await;
    let steps = propose_with(&bench, &ABC, |_, proposal| proposal.terms.undo_for = 1).await;
    approve(&bench, &steps).await;
    bench.set_policy(Verdict::Deny, Terms::default());
    bench.wait_for_state(&steps[2].id, ChangeState::Stale).await;
    let states = states(&plan(&bench, &steps).await);
    assert_eq!(states, [ChangeState::Approved, ChangeState::Stale, ChangeState::Stale]);
    assert!(called_targets(&bench).is_empty());
    bench.end().await;
}

#[actix::test]
async fn step_with_truncated_diff_is_stale_if_its_target_moves() {
    let bench = text_bench().await;
    let long = |end: &str| format!(r#"{{"set":"{}{end}"}}"#, "x".repeat(70_000));
    let steps = propose_texts(&bench, &[&long("1"), r#"{"set":"short"}"#]).await;
    for step in &steps {
        bench.decide(step, ReviewVerdict::Approve).await.unwrap();
    }
    let second = bench.wait_for_state(&steps[1].id, ChangeState::Pending).await;
    assert_eq!(recorded_events(&bench, &second).await, ["created", "approved", "stale", "refreshed"]);
    assert!(second.diff.truncated);
    // Somebody changes the end of the text, which the diff leaves out.
    let elsewhere = RawValue::from_string(long("2")).unwrap();
    bench.fake.call_script.as_ref().unwrap()("update", &elsewhere).unwrap();
    let refused = bench.decide(&second, ReviewVerdict::Approve).await.unwrap_err();
    assert_eq!((refused.error.kind, bench.fake.call_count()), (ErrorKind::ChangeStale, 1));
    bench.end().await;
}

#[actix::test]
async fn dependent_step_is_stale_if_its_hidden_state_moves() {
    let state = Arc::new(Mutex::new("one".to_owned()));
    let live = Arc::clone(&state);
    let preview = move |_: &str, arguments: &RawValue| {
        let state = live.lock().unwrap().clone();
        let shown = FakeProvider::new("fake").current_preview(arguments);
        Ok(Preview {
            target: Target { id: None, ..shown.target },
            fingerprint: fingerprint(&[("hidden", &state)]),
            state_effect: StateEffect::Dependent,
            ..shown
        })
    };
    let fake = FakeProvider { preview_script: Some(Box::new(preview)), ..FakeProvider::new("fake") };
    let bench = plans::start(fake).await;
    let steps = propose_texts(&bench, &[r#"{"n":1}"#, r#"{"n":2}"#]).await;
    *state.lock().unwrap() = "two".to_owned();
    let refused = bench.decide(&steps[1], ReviewVerdict::Approve).await.unwrap_err();
    assert_eq!(refused.error.kind, ErrorKind::ChangeStale);
    let fresh = refused.current.unwrap();
    assert_eq!(fresh.diff, steps[1].diff, "the diff does not show the state");
    bench.decide(&fresh, ReviewVerdict::Approve).await.unwrap();
    bench.end().await;
}

#[actix::test]
async fn allowed_step_does_not_run_after_its_proposer_was_revoked() {
    let keys = Arc::new(RevocableKeys::default());
    let skew = Arc::new(AtomicI64::new(0));
    let config = ReviewConfig { reviewers: reviewers(&keys), ..config(&skew) };
    let dir = Arc::new(tempfile::tempdir().unwrap());
    let bench = TestBench::in_directory(dir, fake(), skew, config).await;
    let allowed = |step, proposal: &mut Proposal| {
        if step != 1 {
            proposal.terms.quorum = 0;
        }
    };
    let steps = propose_with(&bench, &ABC, allowed).await;
    keys.revoke("key_agent");
    bench.decide(&steps[1], ReviewVerdict::Approve).await.unwrap();
    let stopped = bench.wait_for_state(&steps[0].id, ChangeState::Withdrawn).await;
    let fault = stopped.fault.as_ref().unwrap();
    assert_eq!(fault.code, "PLAN_STOPPED");
    assert!(fault.message.contains("its proposer, whose call policy allowed, may no longer make it"), "{fault:?}");
    for step in &steps[1..] {
        bench.wait_for_state(&step.id, ChangeState::Withdrawn).await;
    }
    assert_eq!(bench.fake.call_count(), 0);

    // What a person has approved runs all the same, like a single change.
    let steps = propose(&bench, &ABC[..1]).await;
    bench.decide(&steps[0], ReviewVerdict::Approve).await.unwrap();
    bench.wait_for_state(&steps[0].id, ChangeState::Applied).await;
    bench.end().await;
}

#[actix::test]
async fn allowed_step_expires_no_earlier_than_its_siblings() {
    let bench = bench().await;
    for (seconds, end) in [(7200, ChangeState::Applied), (60, ChangeState::Expired)] {
        let announcement = |last| PlanAnnouncement { id: format!("plan_{seconds}"), title: "Move".into(), last };
        let mut allowed = bench.proposal("agent", ABC[0]);
        allowed.terms.quorum = 0;
        let first = bench.changes.propose_step(allowed, announcement(false)).await.unwrap();
        let expire_after = Duration::from_secs(seconds);
        let reviewed = Proposal { expire_after, ..bench.proposal("agent", ABC[1]) };
        let last = bench.changes.propose_step(reviewed, announcement(true)).await.unwrap();
        bench.skew.fetch_add(3600, Ordering::SeqCst);
        expiry::expire_due(bench.repository()).await;
        if end == ChangeState::Applied {
            assert_eq!(bench.get(&first.id).await.state, ChangeState::Approved);
            bench.decide(&last, ReviewVerdict::Approve).await.unwrap();
        }
        bench.wait_for_state(&last.id, end).await;
    }
    assert_eq!(called_targets(&bench), ["a", "b"]);
    bench.end().await;
}

#[actix::test]
async fn filled_step_expires_no_earlier_than_its_siblings() {
    let bench = bench().await;
    let announcement = |last| PlanAnnouncement { id: "plan_1".into(), title: "Move".into(), last };
    let reviewed = Proposal { expire_after: Duration::from_secs(7200), ..bench.proposal("agent", ABC[0]) };
    let first = bench.changes.propose_step(reviewed, announcement(false)).await.unwrap();
    let mut allowed = bench.proposal("agent", r#"{"target":"b","id":{"$from":0,"pointer":"/id"}}"#);
    allowed.terms.quorum = 0;
    let last = bench.changes.propose_step(allowed, announcement(true)).await.unwrap();
    bench.skew.fetch_add(3600, Ordering::SeqCst);
    bench.decide(&first, ReviewVerdict::Approve).await.unwrap();
    let filled = bench.wait_for_state(&last.id, ChangeState::Pending).await;
    assert_eq!(filled.expires_at, first.expires_at);
    expiry::expire_due(bench.repository()).await;
    bench.decide(&filled, ReviewVerdict::Approve).await.unwrap();
    bench.wait_for_state(&last.id, ChangeState::Applied).await;
    bench.end().await;
}
