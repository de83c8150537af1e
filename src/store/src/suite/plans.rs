//! Plans: the order in which their steps are claimed, and the steps that are read.

use super::*;
use countersign_domain::changes::{Claimant, PlanStep, plan::StepState};

const PLAN: &str = "plan_a";

/// Returns the step at the position of a plan of three.
fn step(index: u32, version: u64, state: ChangeState) -> Change {
    let plan = PlanStep { id: PLAN.into(), title: "Move".into(), reason: None, index, last: index == 2 };
    let mut step = change(&format!("s{index}"), "agent", version, state);
    step.target.lock_key = format!("t{index}");
    Change { plan: Some(plan), updated_at: Timestamp::now(), ..step }
}

fn transition(change: Change, from: ChangeState, kind: EventKind, claimant: &Option<Claimant>) -> TransitionDraft {
    TransitionDraft { kind, ..draft_for(Change { claimed_by: claimant.clone(), ..change }, Some(from)) }
}

pub(super) async fn steps_of_a_plan_are_claimed_in_order(location_of: LocationOf) {
    use ChangeState::{Applied, Approved, Executing, Failed, OutcomeUnknown, Pending};
    let dir = tempfile::tempdir().unwrap();
    let store = location_of(dir.path()).open().unwrap();
    let by = store.nodes().claimant();
    let claim = async |index, version| {
        let draft = transition(step(index, version, Executing), Approved, EventKind::Executing, &by);
        match write(&*store, draft).await {
            Ok(_) => true,
            Err(WriteError::Busy) => false,
            Err(error) => panic!("{error}"),
        }
    };
    let move_on = async |index, version, from, to, kind| {
        write(&*store, transition(step(index, version, to), from, kind, &by)).await.map(drop).unwrap();
    };
    // The first step is allowed by policy, so that it is approved from the start.
    write(&*store, draft_for(step(0, 1, Approved), None)).await.unwrap();
    write(&*store, draft_for(step(1, 1, Pending), None)).await.unwrap();
    assert!(!claim(0, 2).await, "a step is not approved, and the last one is missing");
    let same_place = Change { id: "other".into(), ..step(1, 1, Pending) };
    assert!(matches!(write(&*store, draft_for(same_place, None)).await, Err(WriteError::Duplicate)));
    move_on(1, 2, Pending, Approved, EventKind::Approved).await;
    assert!(!claim(0, 2).await, "the last step is missing");
    write(&*store, draft_for(step(2, 1, Pending), None)).await.unwrap();
    assert!(!claim(0, 2).await, "the last step is not approved");
    let hour = Timestamp::from_second(Timestamp::now().as_second() + 3600).unwrap();
    let undoable = Change { run_after: Some(hour), ..step(2, 2, Approved) };
    write(&*store, transition(undoable, Pending, EventKind::Approved, &None)).await.unwrap();
    assert!(!claim(0, 2).await, "an approval can be undone");
    move_on(2, 3, Approved, Pending, EventKind::Unapproved).await;
    move_on(2, 4, Pending, Approved, EventKind::Approved).await;
    assert!(!claim(1, 3).await && !claim(2, 5).await, "an earlier step is not applied");
    assert!(claim(0, 2).await, "all are approved for good");
    assert!(!claim(1, 3).await, "an earlier step runs");
    move_on(0, 3, Executing, OutcomeUnknown, EventKind::OutcomeUnknown).await;
    assert!(!claim(1, 3).await, "the outcome of an earlier step is unknown");
    write(&*store, transition(step(0, 4, Applied), OutcomeUnknown, EventKind::Settled, &None)).await.unwrap();
    assert!(!claim(2, 5).await && claim(1, 3).await, "the next step runs");
    move_on(1, 4, Executing, Failed, EventKind::Failed).await;
    assert!(!claim(2, 5).await, "nothing runs after a failure");

    let states = store.plan_states(PLAN).await.unwrap();
    let expected: Vec<_> = [(0, 4, Applied), (1, 4, Failed), (2, 4, Approved)]
        .map(|(index, version, state)| StepState::from_change(&step(index, version, state)).unwrap())
        .to_vec();
    assert_eq!(states, expected);
    let ids: Vec<String> = store.plan(PLAN).await.unwrap().iter().map(|step| step.id.clone()).collect();
    assert_eq!(ids, ["s0", "s1", "s2"]);
    assert_eq!(store.open_plans().await.unwrap(), [PLAN]);
    let live = store.live_changes().await.unwrap();
    assert_eq!(live.iter().map(|live| live.plan.as_deref()).collect::<Vec<_>>(), [Some(PLAN)]);
    let later = Timestamp::from_second(Timestamp::now().as_second() + 60).unwrap();
    let all = PruningCutoffs { contents: Some(later), large: None, changes: None, events: None };
    let finished = PruningCutoffs { contents: None, changes: Some(later), ..all };
    let count = async |cutoffs| {
        let found = store.find_prunable(cutoffs).await.unwrap();
        found.contents.len() + found.changes.len()
    };
    assert_eq!((count(all).await, count(finished).await), (0, 0), "the last step needs the earlier ones");
    move_on(2, 5, Approved, ChangeState::Withdrawn, EventKind::Withdrawn).await;
    assert_eq!((count(all).await, count(finished).await), (3, 3));
    assert!(store.plan("plan_b").await.unwrap().is_empty() && store.plan_states("plan_b").await.unwrap().is_empty());
    store.close();
}

pub(super) async fn undone_approval_is_never_followed_by_a_run(location_of: LocationOf) {
    let dir = tempfile::tempdir().unwrap();
    let store = location_of(dir.path()).open().unwrap();
    let by = store.nodes().claimant();
    let mut undone = 0;
    for round in 0..20 {
        let race = UndoRace::create(&*store, &format!("r{round}"), &by).await;
        let (claimed, taken_back) = if round % 2 == 0 {
            let claimed = submit(&*store, race.claim.clone());
            (claimed, submit(&*store, race.undo.clone()))
        } else {
            let taken_back = submit(&*store, race.undo.clone());
            (submit(&*store, race.claim.clone()), taken_back)
        };
        let (claimed, taken_back) = (claimed.await.unwrap(), taken_back.await.unwrap());
        undone += usize::from(race.check(&*store, claimed, taken_back).await);
    }
    assert_eq!(undone, 10, "the one that comes first happens");
    store.close();
}
