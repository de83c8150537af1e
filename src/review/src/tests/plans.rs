//! Plans: their steps run in order, once all are approved, and never past a failure.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, atomic::AtomicI64},
    time::Duration,
};

use serde_json::{Value, json, value::RawValue};

use crate::{ChangeRequestError, Plan, PlanAnnouncement, PlanDecision, PlanProposal, Proposal, testing::*};
use countersign_domain::{
    changes::{Change, ChangeState, Preview, ReviewVerdict, Terms, diff::DiffBuilder, fingerprint},
    principal::{Principal, Role},
};
use countersign_protocol::{ErrorKind, McpError};
use countersign_provider::{Provider, ToolResult, previews, testing::context};

/// A bench whose provider fails or loses calls with the member `"end": "fail"` or `"end": "lose"`.
pub(super) async fn bench() -> TestBench {
    let call = |_: &str, arguments: &RawValue| match member(arguments, "end").as_str() {
        Some("fail") => Ok(ToolResult { is_error: true, ..ToolResult::text("it did not work", None) }),
        Some("lose") => Err(McpError::new(ErrorKind::UpstreamUnavailable, "gone")),
        _ => Ok(ToolResult::text("done", Some(&json!({ "id": format!("n-{}", member(arguments, "target")) })))),
    };
    let fake = FakeProvider { call_script: Some(Box::new(call)), ..FakeProvider::new("fake") };
    start(fake).await
}

pub(super) async fn start(fake: FakeProvider) -> TestBench {
    *fake.tools.lock().unwrap() = vec![countersign_provider::testing::tool("update", &json!({}))];
    let (dir, skew) = (Arc::new(tempfile::tempdir().unwrap()), Arc::new(AtomicI64::new(0)));
    TestBench::in_directory(dir, Arc::new(fake), Arc::clone(&skew), config(&skew)).await
}

fn member(arguments: &RawValue, name: &str) -> Value {
    serde_json::from_str::<Value>(arguments.get()).unwrap()[name].clone()
}

/// Proposes a plan with a step for each of the arguments.
pub(super) async fn propose(bench: &TestBench, steps: &[&str]) -> Vec<Arc<Change>> {
    propose_with(bench, steps, |_, _| {}).await
}

pub(super) async fn propose_with(
    bench: &TestBench,
    steps: &[&str],
    adjust: impl Fn(usize, &mut Proposal),
) -> Vec<Arc<Change>> {
    let proposal = |(step, arguments): (usize, &&str)| {
        let mut proposal = bench.proposal("agent", arguments);
        adjust(step, &mut proposal);
        proposal
    };
    let mut proposals: Vec<Proposal> = steps.iter().enumerate().map(proposal).collect();
    let (provider, context) = (Arc::clone(&bench.fake) as Arc<dyn Provider>, context(reviewer("agent")));
    for proposal in &mut proposals {
        if previews::shows_arguments_only(&provider, "update", &proposal.arguments) {
            let preview = previews::preview_arguments_only(&provider, "update", &proposal.arguments, &context);
            proposal.preview = preview.await.unwrap();
        }
    }
    bench
        .changes
        .propose_plan(PlanProposal { reason: Some("because".into()), ..plan_proposal(proposals) })
        .await
        .unwrap()
}

fn plan_of(step: &Change) -> &str {
    &step.plan.as_ref().unwrap().id
}

pub(super) async fn plan(bench: &TestBench, steps: &[Arc<Change>]) -> Plan {
    bench.changes.plan(plan_of(&steps[0])).await.unwrap().unwrap()
}

fn digests(plan: &Plan) -> BTreeMap<String, String> {
    plan.changes.iter().map(|step| (step.id.clone(), step.digest.clone())).collect()
}

pub(super) async fn decide_as(
    bench: &TestBench,
    plan: &Plan,
    name: &str,
    verdict: ReviewVerdict,
) -> Result<Plan, ChangeRequestError> {
    decide_as_principal(bench, plan, reviewer(name), verdict).await
}

pub(super) async fn decide_as_principal(
    bench: &TestBench,
    plan: &Plan,
    reviewer: Principal,
    verdict: ReviewVerdict,
) -> Result<Plan, ChangeRequestError> {
    let decision = PlanDecision {
        id: plan.id.clone(),
        reviewer: Arc::new(reviewer),
        verdict,
        comment: Some("looks right".into()),
        version: Some(plan.version),
        digests: digests(plan),
    };
    bench.changes.decide_plan(decision).await
}

pub(super) async fn approve(bench: &TestBench, steps: &[Arc<Change>]) -> Plan {
    let plan = plan(bench, steps).await;
    decide_as(bench, &plan, "alice", ReviewVerdict::Approve).await.unwrap()
}

pub(super) fn states(plan: &Plan) -> Vec<ChangeState> {
    plan.changes.iter().map(|step| step.state).collect()
}

pub(super) fn called_targets(bench: &TestBench) -> Vec<String> {
    let calls = bench.fake.received_calls.lock().unwrap();
    calls
        .iter()
        .map(|(_, arguments)| serde_json::from_str::<Value>(arguments).unwrap()["target"].as_str().unwrap().to_owned())
        .collect()
}

pub(super) const ABC: [&str; 3] = [r#"{"target":"a"}"#, r#"{"target":"b"}"#, r#"{"target":"c"}"#];

#[actix::test]
async fn steps_run_in_order_once_all_are_approved() {
    let bench = bench().await;
    let allowed = |step, proposal: &mut Proposal| {
        if step == 1 {
            proposal.expire_after = Duration::from_secs(100_000);
        } else {
            proposal.terms.quorum = 0;
        }
    };
    let steps = propose_with(&bench, &ABC, allowed).await;
    let expiry = |step: &Change| step.expires_at.duration_since(step.created_at).as_secs();
    assert_eq!(steps.iter().map(|step| expiry(step)).collect::<Vec<_>>(), [100_000; 3], "allowed steps wait as long");
    let states_at_first: Vec<_> = steps.iter().map(|step| step.state).collect();
    assert_eq!(states_at_first, [ChangeState::Approved, ChangeState::Pending, ChangeState::Approved]);
    let places: Vec<_> = steps.iter().map(|step| step.plan.clone().unwrap()).collect();
    assert_eq!(
        places.iter().map(|place| (place.index, place.last)).collect::<Vec<_>>(),
        [(0, false), (1, false), (2, true)]
    );
    // A change outside the plan runs meanwhile, and shows that the Executor works.
    let other = bench.propose(r#"{"target":"other"}"#).await;
    bench.decide(&other, ReviewVerdict::Approve).await.unwrap();
    bench.wait_for_state(&other.id, ChangeState::Applied).await;
    assert_eq!(called_targets(&bench), ["other"], "also an allowed step waits for the others");
    bench.decide(&steps[1], ReviewVerdict::Approve).await.unwrap();
    bench.wait_for_state(&steps[2].id, ChangeState::Applied).await;
    assert_eq!(called_targets(&bench), ["other", "a", "b", "c"]);
    let finished = plan(&bench, &steps).await;
    assert_eq!((states(&finished), finished.stopped), (vec![ChangeState::Applied; 3], None));
    bench.end().await;
}

#[actix::test]
async fn plan_is_decided_only_as_it_was_shown() {
    let bench = bench().await;
    let strict = |step, proposal: &mut Proposal| {
        if step == 2 {
            proposal.terms.quorum = 2;
        }
    };
    let steps = propose_with(&bench, &ABC, strict).await;
    let shown = plan(&bench, &steps).await;
    assert_eq!((shown.title.as_str(), shown.reason.as_deref(), shown.version), ("Move", Some("because"), 3));
    assert!(shown.is_complete);
    let decision = PlanDecision {
        id: shown.id.clone(),
        reviewer: Arc::new(reviewer("alice")),
        verdict: ReviewVerdict::Approve,
        comment: None,
        version: None,
        digests: digests(&shown),
    };
    let kind = async |decision: PlanDecision| bench.changes.decide_plan(decision).await.unwrap_err().error.kind;
    let mut other_digest = decision.clone();
    *other_digest.digests.get_mut(&steps[2].id).unwrap() = "sha256:other".into();
    assert_eq!(kind(other_digest).await, ErrorKind::VersionConflict);
    let mut one_missing = decision.clone();
    one_missing.digests.remove(&steps[2].id);
    assert_eq!(kind(one_missing).await, ErrorKind::VersionConflict);
    let mut one_more = decision.clone();
    one_more.digests.insert("chg_other".into(), "sha256:x".into());
    assert_eq!(kind(one_more).await, ErrorKind::VersionConflict);
    assert_eq!(kind(PlanDecision { version: Some(4), ..decision.clone() }).await, ErrorKind::VersionConflict);
    assert_eq!(kind(PlanDecision { id: "plan_other".into(), ..decision.clone() }).await, ErrorKind::NotFound);
    let agent = Principal { role: Role::Reviewer, ..reviewer("agent") };
    let by_proposer = PlanDecision { reviewer: Arc::new(agent), ..decision.clone() };
    assert_eq!(kind(by_proposer).await, ErrorKind::SelfApproval);
    assert_eq!(plan(&bench, &steps).await.version, 3, "nothing was decided");

    use ChangeState::{Approved, Pending};
    let after = bench.changes.decide_plan(decision.clone()).await.unwrap();
    assert_eq!(states(&after), [Approved, Approved, Pending]);
    let again = bench.changes.decide_plan(decision).await.unwrap_err();
    assert_eq!(again.error.kind, ErrorKind::Forbidden, "the last step needs another reviewer");
    assert_eq!(bench.fake.call_count(), 0);
    decide_as(&bench, &after, "bob", ReviewVerdict::Approve).await.unwrap();
    bench.wait_for_state(&steps[2].id, ChangeState::Applied).await;
    assert_eq!(called_targets(&bench), ["a", "b", "c"]);
    bench.end().await;
}

#[actix::test]
async fn failed_check_of_one_step_leaves_all_undecided() {
    let bench = bench().await;
    let truncated = |step, proposal: &mut Proposal| proposal.preview.diff.truncated = step == 2;
    let steps = propose_with(&bench, &ABC, truncated).await;
    let shown = plan(&bench, &steps).await;
    let refused = decide_as(&bench, &shown, "alice", ReviewVerdict::Approve).await.unwrap_err();
    assert_eq!((refused.error.kind, &refused.current.unwrap().id), (ErrorKind::Truncated, &steps[2].id));
    assert_eq!(states(&plan(&bench, &steps).await), [ChangeState::Pending; 3]);
    bench.decide(&steps[2], ReviewVerdict::Approve).await.unwrap();
    approve(&bench, &steps).await;
    bench.wait_for_state(&steps[2].id, ChangeState::Applied).await;
    bench.end().await;
}

#[actix::test]
async fn first_failure_stops_the_plan() {
    let bench = bench().await;
    let steps = propose(&bench, &[ABC[0], r#"{"target":"b","end":"fail"}"#, ABC[2]]).await;
    approve(&bench, &steps).await;
    let withdrawn = bench.wait_for_state(&steps[2].id, ChangeState::Withdrawn).await;
    let fault = withdrawn.fault.as_ref().unwrap();
    assert_eq!(fault.code, "PLAN_STOPPED");
    assert_eq!(fault.message, format!("Not run, because step 2 of its plan ({}) failed", steps[1].id));
    use ChangeState::{Applied, Failed, Withdrawn};
    assert_eq!(states(&plan(&bench, &steps).await), [Applied, Failed, Withdrawn]);
    assert_eq!(called_targets(&bench), ["a", "b"]);
    bench.end().await;
}

#[actix::test]
async fn rejection_of_a_step_withdraws_the_others() {
    let bench = bench().await;
    let allowed = |step, proposal: &mut Proposal| {
        if step == 2 {
            proposal.terms.quorum = 0;
        }
    };
    let steps = propose_with(&bench, &ABC, allowed).await;
    bench.decide(&steps[1], ReviewVerdict::Reject).await.unwrap();
    for step in [&steps[0], &steps[2]] {
        bench.wait_for_state(&step.id, ChangeState::Withdrawn).await;
    }
    let stopped = plan(&bench, &steps).await;
    assert_eq!(stopped.stopped, Some(format!("step 2 of its plan ({}) was rejected", steps[1].id)));
    let refused = decide_as(&bench, &stopped, "alice", ReviewVerdict::Approve).await.unwrap_err();
    assert_eq!(refused.error.kind, ErrorKind::ChangeNotPending);

    let steps = propose(&bench, &ABC).await;
    let shown = plan(&bench, &steps).await;
    decide_as(&bench, &shown, "alice", ReviewVerdict::Reject).await.unwrap();
    for step in &steps {
        let mut change = bench.get(&step.id).await;
        while !change.state.is_final() {
            change = bench.changes.wait(&step.id, change.version, Duration::from_secs(60)).await.unwrap().unwrap();
        }
        assert!(matches!(change.state, ChangeState::Rejected | ChangeState::Withdrawn), "{change:?}");
    }
    assert_eq!(bench.fake.call_count(), 0);
    bench.end().await;
}

#[actix::test]
async fn unknown_outcome_pauses_the_plan_until_it_is_settled() {
    let bench = bench().await;
    for applied in [true, false] {
        let steps = propose(&bench, &[r#"{"target":"a","end":"lose"}"#, ABC[1]]).await;
        let calls = bench.fake.call_count();
        approve(&bench, &steps).await;
        let lost = bench.wait_for_state(&steps[0].id, ChangeState::OutcomeUnknown).await;
        let waiting = plan(&bench, &steps).await;
        assert_eq!((states(&waiting)[1], waiting.stopped), (ChangeState::Approved, None));
        bench.settle(&lost, "alice", applied).await.unwrap();
        let end = if applied { ChangeState::Applied } else { ChangeState::Withdrawn };
        bench.wait_for_state(&steps[1].id, end).await;
        assert_eq!(bench.fake.call_count() - calls, if applied { 2 } else { 1 });
    }
    bench.end().await;
}

#[actix::test]
async fn undone_approval_holds_back_the_whole_plan() {
    let bench = bench().await;
    let undoable = |step, proposal: &mut Proposal| {
        proposal.expire_after = Duration::from_secs(100_000);
        if step == 2 {
            proposal.terms.undo_for = 3600;
        }
    };
    let steps = propose_with(&bench, &ABC, undoable).await;
    let approved = approve(&bench, &steps).await;
    let last = &approved.changes[2];
    let undone = bench.changes.undo(&last.id, &reviewer("alice"), last.version).await.unwrap();
    assert_eq!((undone.state, bench.fake.call_count()), (ChangeState::Pending, 0));
    // The approval begins another hour, after which the plan runs; a restart reads the time from the store.
    bench.decide(&undone, ReviewVerdict::Approve).await.unwrap();
    let (dir, fake, skew) = bench.end().await;
    skew.fetch_add(3601, std::sync::atomic::Ordering::SeqCst);
    let bench = TestBench::in_directory(dir, fake, Arc::clone(&skew), config(&skew)).await;
    bench.wait_for_state(&steps[2].id, ChangeState::Applied).await;
    assert_eq!(called_targets(&bench), ["a", "b", "c"]);
    bench.end().await;
}

#[actix::test]
async fn calls_of_a_plan_come_one_by_one() {
    let bench = bench().await;
    let announcement = |last| PlanAnnouncement { id: "plan_1".into(), title: "Move".into(), last };
    let send = async |arguments: &str, last| {
        let proposal =
            Proposal { terms: Terms { quorum: 0, ..Terms::default() }, ..bench.proposal("agent", arguments) };
        bench.changes.propose_step(proposal, announcement(last)).await
    };
    let first = send(ABC[0], false).await.unwrap();
    let bad = send(r#"{"target":"b","x":{"$from":1,"pointer":"/id"}}"#, false).await.unwrap_err();
    assert_eq!(bad.kind, ErrorKind::ValidationFailed, "a step uses only earlier results");
    let incomplete = plan(&bench, std::slice::from_ref(&first)).await;
    assert!(!incomplete.is_complete);
    let refused = decide_as(&bench, &incomplete, "alice", ReviewVerdict::Approve).await.unwrap_err();
    assert_eq!(refused.error.kind, ErrorKind::ChangeNotPending);
    assert_eq!(bench.fake.call_count(), 0);
    let last = send(ABC[1], true).await.unwrap();
    assert_eq!((last.plan.as_ref().unwrap().index, last.plan.as_ref().unwrap().last), (1, true));
    bench.wait_for_state(&last.id, ChangeState::Applied).await;
    assert_eq!(called_targets(&bench), ["a", "b"]);
    assert_eq!(send(ABC[2], true).await.unwrap_err().kind, ErrorKind::InvalidParams, "the plan is complete");

    let other = |last| PlanAnnouncement { id: "plan_2".into(), ..announcement(last) };
    let step = bench.changes.propose_step(bench.proposal("agent", ABC[0]), other(false)).await.unwrap();
    bench.changes.refuse_plan("plan_2", "somebody else", "no").await;
    assert_eq!(bench.get(&step.id).await.state, ChangeState::Pending);
    bench.changes.refuse_plan("plan_2", "agent", "a later call of its plan was denied").await;
    bench.wait_for_state(&step.id, ChangeState::Withdrawn).await;
    let late = bench.changes.propose_step(bench.proposal("agent", ABC[1]), other(true)).await.unwrap_err();
    assert_eq!(late.kind, ErrorKind::PlanStopped);
    bench.end().await;
}

#[actix::test]
async fn concurrent_calls_of_a_plan_get_different_places() {
    let bench = bench().await;
    let sent = (0..6).map(|n| {
        let proposal = bench.proposal("agent", &format!(r#"{{"target":"{n}"}}"#));
        let announcement = PlanAnnouncement { id: "plan_1".into(), title: "Move".into(), last: false };
        let changes = bench.changes.clone();
        async move { changes.propose_step(proposal, announcement).await.unwrap() }
    });
    let steps = futures_util::future::join_all(sent).await;
    let mut places: Vec<u32> = steps.iter().map(|step| step.plan.as_ref().unwrap().index).collect();
    places.sort_unstable();
    assert_eq!(places, [0, 1, 2, 3, 4, 5]);
    // A call that did not get a place at first leaves nothing behind.
    for step in &steps {
        let again = bench.propose(step.arguments.get()).await;
        assert_eq!(again.duplicate_of.as_ref(), Some(&step.id));
    }
    bench.end().await;
}

/// A provider of one text for each target. A call sets the text to `set`, or to `odd`.
fn texts() -> FakeProvider {
    let text = Arc::new(Mutex::new("one".to_owned()));
    let live = Arc::clone(&text);
    let preview = move |_: &str, arguments: &RawValue| {
        let state = live.lock().unwrap().clone();
        let set = member(arguments, "set");
        let target = FakeProvider::new("fake").current_preview(arguments).target;
        Ok(Preview {
            diff: DiffBuilder::new().field("text", "Text", Some(&state), set.as_str()).finish(),
            fingerprint: fingerprint(&[("text", &state)]),
            target,
            ..FakeProvider::new("fake").current_preview(arguments)
        })
    };
    let call = move |_: &str, arguments: &RawValue| {
        let odd = member(arguments, "odd");
        *text.lock().unwrap() = odd.as_str().unwrap_or(member(arguments, "set").as_str().unwrap()).to_owned();
        Ok(ToolResult::text("done", None))
    };
    FakeProvider {
        call_script: Some(Box::new(call)),
        preview_script: Some(Box::new(preview)),
        ..FakeProvider::new("fake")
    }
}

pub(super) async fn text_bench() -> TestBench {
    start(texts()).await
}

pub(super) async fn propose_texts(bench: &TestBench, steps: &[&str]) -> Vec<Arc<Change>> {
    propose_with(bench, steps, |_, proposal| {
        let script = bench.fake.preview_script.as_ref().unwrap();
        proposal.preview = script("update", &proposal.arguments).unwrap();
    })
    .await
}

/// Returns the events of the change in the audit trail, oldest first.
pub(super) async fn recorded_events(bench: &TestBench, change: &Change) -> Vec<String> {
    let trail = bench.trail(&change.id).await;
    trail.iter().rev().map(|entry| entry.event.clone()).collect()
}

fn shown_values(change: &Change) -> (Option<&str>, Option<&str>) {
    let field = &change.diff.fields[0];
    (field.before.as_deref(), field.after.as_deref())
}

#[actix::test]
async fn step_is_shown_after_earlier_steps_of_its_target() {
    let bench = text_bench().await;
    let steps = propose_texts(&bench, &[r#"{"set":"two"}"#, r#"{"set":"three"}"#, r#"{"set":"four"}"#]).await;
    assert_eq!(shown_values(&steps[0]), (Some("one"), Some("two")));
    assert_eq!(shown_values(&steps[1]), (Some("two"), Some("three")));
    assert_eq!(shown_values(&steps[2]), (Some("three"), Some("four")));
    approve(&bench, &steps).await;
    let applied = bench.wait_for_state(&steps[2].id, ChangeState::Applied).await;
    assert_eq!(applied.fingerprint, fingerprint(&[("text", "three")]), "it ran on the state that was shown");
    let events = recorded_events(&bench, &applied).await;
    assert_eq!(events, ["created", "approved", "executing", "applied"], "nobody had to look again");
    bench.end().await;
}

#[actix::test]
async fn step_whose_target_is_not_as_shown_waits_for_review() {
    let bench = text_bench().await;
    let steps = propose_texts(&bench, &[r#"{"set":"two","odd":"other"}"#, r#"{"set":"three"}"#]).await;
    approve(&bench, &steps).await;
    let change = bench.wait_for_state(&steps[1].id, ChangeState::Pending).await;
    assert_eq!(recorded_events(&bench, &change).await, ["created", "approved", "stale", "refreshed"]);
    assert_eq!(shown_values(&change), (Some("other"), Some("three")));
    assert_eq!(bench.fake.call_count(), 1);
    bench.decide(&change, ReviewVerdict::Approve).await.unwrap();
    bench.wait_for_state(&change.id, ChangeState::Applied).await;
    bench.end().await;
}

#[actix::test]
async fn step_shown_after_an_edited_call_waits_for_review() {
    let bench = text_bench().await;
    let steps = propose_texts(&bench, &[r#"{"set":"two"}"#, r#"{"set":"three"}"#]).await;
    bench.decide(&steps[1], ReviewVerdict::Approve).await.unwrap();
    // The edited call has another target, so that the text stays as it was.
    let edit = super::edits::edit(&steps[0], "bob", r#"{"target":"b","set":"two","odd":"one"}"#);
    let edited = bench.changes.edit(edit).await.unwrap();
    bench.decide(&edited, ReviewVerdict::Approve).await.unwrap();
    let change = bench.wait_for_state(&steps[1].id, ChangeState::Pending).await;
    assert_eq!((shown_values(&change), bench.fake.call_count()), ((Some("one"), Some("three")), 1));
    bench.end().await;
}

#[actix::test]
async fn references_are_filled_in_and_shown_again() {
    let bench = bench().await;
    let second = r#"{ "target":"b", "n" : 1.10, "id":{"$from":0,"pointer":"/id"} }"#;
    let steps = propose(&bench, &[ABC[0], second, ABC[2]]).await;
    approve(&bench, &steps).await;
    bench.wait_for_state(&steps[0].id, ChangeState::Applied).await;
    let filled = bench.wait_for_state(&steps[1].id, ChangeState::Pending).await;
    let bytes = r#"{ "target":"b", "n" : 1.10, "id":"n-\"a\"" }"#;
    assert_eq!((filled.arguments.get(), filled.original_arguments().get()), (bytes, second));
    assert_eq!((filled.approvals(), filled.edits[0].by.as_str()), (0, "system"));
    assert_eq!(bench.get(&steps[2].id).await.state, ChangeState::Approved, "later steps keep their approval");
    bench.decide(&filled, ReviewVerdict::Approve).await.unwrap();
    bench.wait_for_state(&steps[2].id, ChangeState::Applied).await;
    assert_eq!(bench.fake.received_calls.lock().unwrap()[1].1, bytes);

    for (reference, why) in [
        (r#"{"target":"b","x":{"$from":0,"pointer":"/none"}}"#, "has no value at `/none`"),
        (r#"{"target":"b","wrong":{"$from":0,"pointer":"/id"}}"#, "the fake does not like it"),
    ] {
        let steps = propose(&bench, &[ABC[0], reference, ABC[2]]).await;
        approve(&bench, &steps).await;
        let stopped = bench.wait_for_state(&steps[1].id, ChangeState::Withdrawn).await;
        assert!(stopped.fault.as_ref().unwrap().message.contains(why), "{stopped:?}");
        bench.wait_for_state(&steps[2].id, ChangeState::Withdrawn).await;
    }
    bench.end().await;
}
