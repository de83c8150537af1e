//! Builds and submits transitions for tests.

use std::sync::Arc;

use jiff::Timestamp;
use serde_json::json;
use tokio::sync::oneshot;

use super::{CommittedWrite, Store, TransitionDraft, WriteError, WriteRequest};
use countersign_domain::changes::{
    Change, ChangeState, Claimant, PlanStep, digest::body_hash, machine::EventKind, testing::change,
};

/// Returns a draft that replaces the previous version of the change, or creates the change if `from` is `None`.
pub(crate) fn draft_for(change: Change, from: Option<ChangeState>) -> TransitionDraft {
    let body = serde_json::to_string(&change).unwrap();
    TransitionDraft {
        expected: from.map(|_| change.version - 1),
        kind: if from.is_none() { EventKind::Created } else { EventKind::Approved },
        from,
        at: change.updated_at,
        actor: "alice".into(),
        details: json!({ "version": change.version, "changeHash": body_hash(&body) }).to_string(),
        event_tail: format!(r#""change":{{"id":"{}"}}}}"#, change.id),
        body,
        change: Arc::new(change),
        ends_orphaned_claim: false,
        call_hash: None,
    }
}

pub(crate) fn created_draft(id: &str) -> TransitionDraft {
    draft_for(change(id, "agent", 1, ChangeState::Pending), None)
}

pub(crate) fn updated_draft(id: &str, version: u64, from: ChangeState, to: ChangeState) -> TransitionDraft {
    draft_for(change(id, "agent", version, to), Some(from))
}

pub(crate) fn submit(
    store: &dyn Store,
    draft: TransitionDraft,
) -> oneshot::Receiver<Result<CommittedWrite, WriteError>> {
    let (reply, answer) = oneshot::channel();
    store.submit(
        WriteRequest::Transition(draft),
        Box::new(move |result, _| {
            let _ = reply.send(result);
        }),
    );
    answer
}

pub(crate) async fn write(store: &dyn Store, draft: TransitionDraft) -> Result<CommittedWrite, WriteError> {
    submit(store, draft).await.unwrap()
}

/// Creates and approves a change with the lock key `target`.
pub(crate) async fn create_approved(store: &dyn Store, id: &str, target: &str) {
    let mut new = created_draft(id);
    Arc::make_mut(&mut new.change).target.lock_key = target.into();
    write(store, new).await.unwrap();
    write(store, updated_draft(id, 2, ChangeState::Pending, ChangeState::Approved)).await.unwrap();
}

/// Returns a transition, at the present time, of a change with the lock key `target`.
pub(crate) fn transition_draft(
    id: &str,
    version: u64,
    from: ChangeState,
    to: ChangeState,
    claimant: Option<Claimant>,
    target: &str,
) -> TransitionDraft {
    let mut after = change(id, "agent", version, to);
    after.target.lock_key = target.into();
    after.claimed_by = claimant;
    after.updated_at = Timestamp::now();
    let kind = match to {
        ChangeState::Executing => EventKind::Executing,
        ChangeState::OutcomeUnknown => EventKind::OutcomeUnknown,
        _ => EventKind::Applied,
    };
    TransitionDraft { kind, ..draft_for(after, Some(from)) }
}

pub(crate) fn claim_draft(id: &str, claimant: Option<Claimant>, target: &str) -> TransitionDraft {
    transition_draft(id, 3, ChangeState::Approved, ChangeState::Executing, claimant, target)
}

/// An approved plan of two steps at the end of a grace period: a claim of the first step, which is allowed now, and an undo of
/// the approval of the second one, which was requested in time.
pub(crate) struct UndoRace {
    pub claim: TransitionDraft,
    pub undo: TransitionDraft,
    /// The end of the run of the first step.
    pub applied: TransitionDraft,
}

impl UndoRace {
    /// Creates the plan.
    pub(crate) async fn create(store: &dyn Store, name: &str, claimant: &Option<Claimant>) -> Self {
        use ChangeState::{Applied, Approved, Executing, Pending};
        let step = |index: u32, version, state, by: &Option<Claimant>| {
            let plan =
                PlanStep { id: format!("plan_{name}"), title: "Move".into(), reason: None, index, last: index == 1 };
            let mut step = change(&format!("{name}_{index}"), "agent", version, state);
            step.target.lock_key = step.id.clone();
            Change { plan: Some(plan), updated_at: Timestamp::now(), claimed_by: by.clone(), ..step }
        };
        let moved = |step: Change, from, kind| TransitionDraft { kind, ..draft_for(step, Some(from)) };
        write(store, draft_for(step(0, 1, Approved, &None), None)).await.unwrap();
        write(store, draft_for(step(1, 1, Pending, &None), None)).await.unwrap();
        let approved = Change { run_after: Some(Timestamp::now()), ..step(1, 2, Approved, &None) };
        write(store, moved(approved, Pending, EventKind::Approved)).await.unwrap();
        Self {
            claim: moved(step(0, 2, Executing, claimant), Approved, EventKind::Executing),
            undo: moved(step(1, 3, Pending, &None), Approved, EventKind::Unapproved),
            applied: moved(step(0, 3, Applied, claimant), Executing, EventKind::Applied),
        }
    }

    /// Checks that only one of the two happened. Returns `true` if it was the undo; otherwise ends the run.
    pub(crate) async fn check(
        self,
        store: &dyn Store,
        claimed: Result<CommittedWrite, WriteError>,
        undone: Result<CommittedWrite, WriteError>,
    ) -> bool {
        match (claimed, undone) {
            (Err(WriteError::Busy), Ok(_)) => {
                let again = write(store, self.claim).await;
                assert!(matches!(again, Err(WriteError::Busy)), "the second step is not approved: {again:?}");
                true
            }
            (Ok(_), Err(WriteError::Busy)) => {
                let by_system =
                    TransitionDraft { actor: countersign_domain::changes::machine::SYSTEM.into(), ..self.undo.clone() };
                assert!(by_system.plan_of_undone_step().is_none(), "a void approval never stays");
                write(store, self.applied).await.unwrap();
                write(store, self.undo).await.expect("nothing runs any more");
                false
            }
            other => panic!("exactly one of them happens: {other:?}"),
        }
    }
}
