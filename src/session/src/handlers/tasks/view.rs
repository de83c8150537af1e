//! How a change looks as a task: the `Task` of 2025-11-25 (schema/2025-11-25) and that of the extension (ext-tasks,
//! "Tasks").

use serde_json::{Map, Value, json};

use super::super::{
    reviewed::{
        approval_page, ask_client,
        finished_call::{ChangeOutcome, outcome_of},
    },
    tools::encode,
};
use crate::Handling;
use countersign_bridge::task_shape::{self, Status};
use countersign_domain::changes::{Change, ChangeState};
use countersign_protocol::{
    McpError,
    json::{MemberEdit, edit},
};
use countersign_review::gateway_tools;

/// The polling intervals in milliseconds: a decision takes longer than a run.
const POLL_DECISION: u64 = 2_000;
const POLL_RUN: u64 = 500;

/// How long the task's result is kept, in milliseconds from its creation on (`changes.retention`). `None` is unlimited: a
/// change that is not over is never deleted, and only its end tells when it may be.
fn ttl(exchange: &Handling, change: &Change) -> Option<u64> {
    if !change.state.is_final() {
        return None;
    }
    let retention = &exchange.server.reviews.retention;
    let kept = match (retention.arguments, retention.finished) {
        (Some(contents), Some(change)) => contents.min(change),
        (contents, change) => contents.or(change)?,
    };
    let until_over =
        std::time::Duration::try_from(change.updated_at.duration_since(change.created_at)).unwrap_or_default();
    u64::try_from(until_over.saturating_add(kept).as_millis()).ok().map(|ttl| ttl.max(1))
}

fn common(exchange: &Handling, change: &Change, status: Status, keys: (&str, &str)) -> Map<String, Value> {
    let mut task = Map::new();
    task.insert("taskId".into(), change.id.as_str().into());
    task.insert("status".into(), status.as_str().into());
    task.insert("statusMessage".into(), gateway_tools::status_text(change).into());
    task.insert("createdAt".into(), change.created_at.to_string().into());
    task.insert("lastUpdatedAt".into(), change.updated_at.to_string().into());
    task.insert(keys.0.into(), json!(ttl(exchange, change)));
    if !status.is_terminal() {
        let decided = matches!(change.state, ChangeState::Approved | ChangeState::Executing);
        task.insert(keys.1.into(), if decided { POLL_RUN } else { POLL_DECISION }.into());
    }
    task
}

const MODERN: (&str, &str) = ("ttlMs", "pollIntervalMs");
const LEGACY: (&str, &str) = ("ttl", "pollInterval");

/// Returns the task for a result that creates it. The outcome stands in `tasks/get` only.
#[must_use]
pub fn seed(exchange: &Handling, change: &Change) -> String {
    Value::Object(common(exchange, change, modern_status(change), MODERN)).to_string()
}

/// The state in the words of the extension: `failed` is for errors of the protocol only.
#[must_use]
pub fn modern_status(change: &Change) -> Status {
    match (change.state, outcome_of(change)) {
        (ChangeState::Withdrawn, _) => Status::Cancelled,
        (ChangeState::Expired, _) | (_, Some(ChangeOutcome::Error(_))) => Status::Failed,
        (_, Some(ChangeOutcome::Result(_))) => Status::Completed,
        (_, None) => Status::Working,
    }
}

/// The state in the words of 2025-11-25, where a tool's own error is a failure too.
#[must_use]
pub fn legacy_status(change: &Change) -> Status {
    match change.state {
        ChangeState::Applied => Status::Completed,
        ChangeState::Failed | ChangeState::Rejected | ChangeState::Expired => Status::Failed,
        ChangeState::Withdrawn => Status::Cancelled,
        _ => Status::Working,
    }
}

/// `DetailedTask` of the extension: with its result, its error or what is asked.
#[must_use]
pub fn detailed(exchange: &Handling, change: &Change) -> String {
    let mut status = modern_status(change);
    let more = match (status, outcome_of(change)) {
        (Status::Completed, Some(ChangeOutcome::Result(settled))) => {
            let result = encode(&settled.result, exchange.revision(), settled.structured);
            Some(("result", task_shape::with_result_type(&result, "complete")))
        }
        (Status::Failed, Some(ChangeOutcome::Error(error))) => Some(("error", rpc(exchange, &error))),
        (Status::Failed, Some(ChangeOutcome::Result(settled))) => {
            let kind = settled.failure.unwrap_or(countersign_protocol::ErrorKind::ChangeExpired);
            let message = gateway_tools::pending_text(change);
            Some(("error", rpc(exchange, &McpError::new(kind, message).with("changeId", change.id.as_str()))))
        }
        (Status::Working, _) => input_requests(exchange, change).map(|asked| {
            status = Status::InputRequired;
            ("inputRequests", asked)
        }),
        _ => None,
    };
    let task = Value::Object(common(exchange, change, status, MODERN)).to_string();
    match more {
        Some((key, value)) => edit(&task, &[(key, MemberEdit::Set(&value))]),
        None => task,
    }
}

/// Everything that the client is asked: by the gateway before somebody decides, by the tool while it runs.
fn input_requests(exchange: &Handling, change: &Change) -> Option<String> {
    if let Some(asked) = approval_page::asked_by_task(exchange, change) {
        return Some(asked);
    }
    let requests = ask_client::requests(exchange, change);
    let members: Vec<String> =
        requests.into_iter().map(|(key, request)| format!("{}:{request}", Value::from(key))).collect();
    (!members.is_empty()).then(|| format!("{{{}}}", members.join(",")))
}

fn rpc(exchange: &Handling, error: &McpError) -> String {
    json!({ "code": error.number(exchange.revision()), "message": error.message, "data": error.data() }).to_string()
}

/// The `Task` of 2025-11-25.
#[must_use]
pub fn legacy(exchange: &Handling, change: &Change) -> String {
    let mut status = legacy_status(change);
    let page = approval_page::can_ask(exchange) && approval_page::asked_by_task(exchange, change).is_some();
    if status == Status::Working && (page || !ask_client::open(exchange, change).is_empty()) {
        status = Status::InputRequired;
    }
    // A task begins as working; whoever asks again learns the rest.
    Value::Object(common(exchange, change, status, LEGACY)).to_string()
}
