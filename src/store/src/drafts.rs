//! Builds and submits transitions for tests.

use std::sync::Arc;

use jiff::Timestamp;
use serde_json::json;
use tokio::sync::oneshot;

use super::{CommittedWrite, Draft, Store, WriteError, WriteRequest};
use countersign_domain::changes::{
    Change, ChangeState, Claimant, digest::body_hash, machine::EventKind, testing::change,
};

/// Returns a draft that replaces the previous version of the change, or creates the change if `from` is `None`.
pub(crate) fn draft_for(change: Change, from: Option<ChangeState>) -> Draft {
    let body = serde_json::to_string(&change).unwrap();
    Draft {
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

pub(crate) fn created_draft(id: &str) -> Draft {
    draft_for(change(id, "agent", 1, ChangeState::Pending), None)
}

pub(crate) fn updated_draft(id: &str, version: u64, from: ChangeState, to: ChangeState) -> Draft {
    draft_for(change(id, "agent", version, to), Some(from))
}

pub(crate) fn submit(store: &dyn Store, draft: Draft) -> oneshot::Receiver<Result<CommittedWrite, WriteError>> {
    let (reply, answer) = oneshot::channel();
    store.submit(
        WriteRequest::Transition(draft),
        Box::new(move |result, _| {
            let _ = reply.send(result);
        }),
    );
    answer
}

pub(crate) async fn write(store: &dyn Store, draft: Draft) -> Result<CommittedWrite, WriteError> {
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
) -> Draft {
    let mut after = change(id, "agent", version, to);
    after.target.lock_key = target.into();
    after.claimed_by = claimant;
    after.updated_at = Timestamp::now();
    let kind = match to {
        ChangeState::Executing => EventKind::Executing,
        ChangeState::OutcomeUnknown => EventKind::OutcomeUnknown,
        _ => EventKind::Applied,
    };
    Draft { kind, ..draft_for(after, Some(from)) }
}

pub(crate) fn claim_draft(id: &str, claimant: Option<Claimant>, target: &str) -> Draft {
    transition_draft(id, 3, ChangeState::Approved, ChangeState::Executing, claimant, target)
}
