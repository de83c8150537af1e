//! What tests of a store write.

use std::sync::Arc;

use serde_json::json;
use tokio::sync::oneshot;

use super::{Draft, Store, WriteError, Written};
use countersign_domain::changes::{Change, ChangeState, digest::body_hash, machine::EventKind, testing::change};

/// A draft that replaces the version before, or creates.
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

pub(crate) fn send(store: &dyn Store, draft: Draft) -> oneshot::Receiver<Result<Written, WriteError>> {
    let (reply, answer) = oneshot::channel();
    store.submit(
        draft,
        Box::new(move |result, _| {
            let _ = reply.send(result);
        }),
    );
    answer
}

pub(crate) async fn write(store: &dyn Store, draft: Draft) -> Result<Written, WriteError> {
    send(store, draft).await.unwrap()
}
