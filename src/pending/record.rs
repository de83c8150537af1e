//! Serializes a transition for the store and the feed, in the caller's thread.

use jiff::Timestamp;
use serde::Serialize;

use crate::{
    changes::{
        Change, ChangeFault, ChangeState, Operation, Proposer, Target,
        digest::body_hash,
        machine::{EventKind, Transition},
    },
    protocol::{ErrorKind, McpError},
    store::Draft,
};

/// What the feed tells of a change: no arguments, no diff.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Summary<'a> {
    id: &'a str,
    version: u64,
    state: ChangeState,
    provider: &'a str,
    tool: &'a str,
    tool_title: &'a str,
    operation: Operation,
    summary: &'a str,
    target: &'a Target,
    proposer: &'a Proposer,
    created_at: Timestamp,
    updated_at: Timestamp,
    expires_at: Timestamp,
    #[serde(skip_serializing_if = "Option::is_none")]
    fault: Option<&'a ChangeFault>,
}

#[derive(Serialize)]
struct EventTail<'a> {
    at: Timestamp,
    actor: &'a str,
    comment: Option<&'a str>,
    change: Summary<'a>,
}

/// Of an audit entry.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Details<'a> {
    version: u64,
    /// What was shown when this happened.
    digest: &'a str,
    /// Of the whole change after this, so that `audit verify` sees whether the change itself was altered.
    change_hash: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    comment: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    key_id: Option<&'a str>,
}

/// The draft of a transition; `key_id` is the key by which its actor was known, if any.
pub(super) fn draft(transition: Transition, key_id: Option<&str>) -> Result<Draft, McpError> {
    let Transition { kind, from, actor, comment, after } = transition;
    let body = json(&after)?;
    let tail = json(&EventTail {
        at: after.updated_at,
        actor: &actor,
        comment: comment.as_deref(),
        change: Summary {
            id: &after.id,
            version: after.version,
            state: after.state,
            provider: &after.provider,
            tool: &after.tool,
            tool_title: &after.tool_title,
            operation: after.operation,
            summary: &after.summary,
            target: &after.target,
            proposer: &after.proposer,
            created_at: after.created_at,
            updated_at: after.updated_at,
            expires_at: after.expires_at,
            fault: after.fault.as_ref(),
        },
    })?;
    let details = json(&Details {
        version: after.version,
        digest: &after.digest,
        change_hash: &body_hash(&body),
        comment: comment.as_deref(),
        key_id,
    })?;
    let event_tail = tail.get(1..).unwrap_or_default().to_owned();
    Ok(Draft {
        expected: (kind != EventKind::Created).then(|| after.version - 1),
        at: after.updated_at,
        change: std::sync::Arc::new(after),
        body,
        kind,
        from,
        actor,
        details,
        event_tail,
    })
}

/// A new change, as its first transition.
pub(super) fn created(change: Change) -> Transition {
    Transition {
        kind: EventKind::Created,
        from: None,
        actor: change.proposer.principal.clone(),
        comment: None,
        after: change,
    }
}

fn json<T: Serialize>(value: &T) -> Result<String, McpError> {
    serde_json::to_string(value).map_err(|error| {
        tracing::error!(%error, "a change could not be serialized");
        McpError::new(ErrorKind::Internal, "The change could not be stored")
    })
}
