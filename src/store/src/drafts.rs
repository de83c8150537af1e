//! Builds and submits transitions for tests.

use std::sync::Arc;

use jiff::Timestamp;
use serde_json::json;
use tokio::sync::oneshot;

use super::{CommittedWrite, Draft, Store, WriteError, WriteRequest};
use countersign_domain::changes::{
    Change, ChangeState, Claimant, digest::body_hash, machine::EventKind, testing::change,
};

/// Returns a draft that replaces the version before, or creates the change.
pub(crate) fn draft(change: Change, from: Option<ChangeState>) -> Draft {
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
        orphan: false,
        call_hash: None,
    }
}

pub(crate) fn created(id: &str) -> Draft {
    draft(change(id, "agent", 1, ChangeState::Pending), None)
}

pub(crate) fn moved(id: &str, version: u64, from: ChangeState, to: ChangeState) -> Draft {
    draft(change(id, "agent", version, to), Some(from))
}

pub(crate) fn send(store: &dyn Store, draft: Draft) -> oneshot::Receiver<Result<CommittedWrite, WriteError>> {
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
    send(store, draft).await.unwrap()
}

/// Creates and approves a change with that lock key.
pub(crate) async fn approved(store: &dyn Store, id: &str, target: &str) {
    let mut new = created(id);
    Arc::make_mut(&mut new.change).target.lock_key = target.into();
    write(store, new).await.unwrap();
    write(store, moved(id, 2, ChangeState::Pending, ChangeState::Approved)).await.unwrap();
}

/// Returns a step, at the present time, of a change with that lock key.
pub(crate) fn step(
    id: &str,
    version: u64,
    from: ChangeState,
    to: ChangeState,
    by: Option<Claimant>,
    target: &str,
) -> Draft {
    let mut after = change(id, "agent", version, to);
    after.target.lock_key = target.into();
    after.claimed_by = by;
    after.updated_at = Timestamp::now();
    let kind = match to {
        ChangeState::Executing => EventKind::Executing,
        ChangeState::OutcomeUnknown => EventKind::OutcomeUnknown,
        _ => EventKind::Applied,
    };
    Draft { kind, ..draft(after, Some(from)) }
}

pub(crate) fn claim(id: &str, by: Option<Claimant>, target: &str) -> Draft {
    step(id, 3, ChangeState::Approved, ChangeState::Executing, by, target)
}
