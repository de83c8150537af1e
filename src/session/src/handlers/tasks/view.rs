//! The representations of a change as a task: the `Task` of 2025-11-25 (schema/2025-11-25) and that of the extension
//! (ext-tasks, "Tasks").

use serde_json::json;

use super::super::reviewed::{approval_page, ask_client, finished_call::outcome_of};
use crate::gateway::server::Reviews;
use countersign_bridge::task_json;
use countersign_config::RetentionConfig;
use countersign_domain::changes::{Change, ChangeState};
use countersign_exchange::context::Exchange;
use countersign_protocol::{
    McpError,
    json::{MemberEdit, edit},
    task::Status,
};
use countersign_review::gateway_tools;

/// The polling intervals in milliseconds. A decision takes longer than a run.
const DECISION_POLL_MS: u64 = 2_000;
const RUN_POLL_MS: u64 = 500;

/// Returns the time in milliseconds, counted from the creation of the task, for which its result is kept
/// (`changes.retention`). `None` means unlimited: a change that has not ended is kept, and its retention begins
/// when it ends.
fn ttl(retention: &RetentionConfig, change: &Change) -> Option<u64> {
    if !change.state.is_final() {
        return None;
    }
    let retained = match (retention.arguments, retention.finished) {
        (Some(arguments), Some(finished)) => arguments.min(finished),
        (arguments, finished) => arguments.or(finished)?,
    };
    let lifetime =
        std::time::Duration::try_from(change.updated_at.duration_since(change.created_at)).unwrap_or_default();
    u64::try_from(lifetime.saturating_add(retained).as_millis()).ok().map(|ttl| ttl.max(1))
}

/// Returns the members that a task has in both forms, as JSON text.
fn common_members(reviews: &Reviews, change: &Change, status: Status, keys: TimeKeys) -> String {
    let mut task = json!({
        "taskId": change.id,
        "status": status.as_str(),
        "statusMessage": gateway_tools::task_status_message(change),
        "createdAt": change.created_at.to_string(),
        "lastUpdatedAt": change.updated_at.to_string(),
        (keys.ttl): ttl(&reviews.retention, change),
    });
    if !status.is_terminal() {
        let is_decided = matches!(change.state, ChangeState::Approved | ChangeState::Executing);
        task[keys.poll_interval] = if is_decided { RUN_POLL_MS } else { DECISION_POLL_MS }.into();
    }
    task.to_string()
}

/// The keys of a task's times.
#[derive(Clone, Copy)]
struct TimeKeys {
    ttl: &'static str,
    poll_interval: &'static str,
}

const MODERN_KEYS: TimeKeys = TimeKeys { ttl: "ttlMs", poll_interval: "pollIntervalMs" };
const LEGACY_KEYS: TimeKeys = TimeKeys { ttl: "ttl", poll_interval: "pollInterval" };

/// Returns the task for the result that creates it. Its outcome is only in the answer to `tasks/get`.
pub fn created_modern_task(reviews: &Reviews, change: &Change) -> String {
    common_members(reviews, change, modern_status(change), MODERN_KEYS)
}

/// Returns the status of a change for the extension, where `failed` means a protocol error only.
pub fn modern_status(change: &Change) -> Status {
    match (change.state, outcome_of(change)) {
        (ChangeState::Withdrawn, _) => Status::Cancelled,
        (ChangeState::Expired, _) | (_, Some(Err(_))) => Status::Failed,
        (_, Some(Ok(_))) => Status::Completed,
        (_, None) => Status::Working,
    }
}

/// Returns the status of a change for 2025-11-25, where `failed` includes a tool's own error.
pub fn legacy_status(change: &Change) -> Status {
    match change.state {
        ChangeState::Applied => Status::Completed,
        ChangeState::Failed | ChangeState::Rejected | ChangeState::Expired => Status::Failed,
        ChangeState::Withdrawn => Status::Cancelled,
        _ => Status::Working,
    }
}

/// Returns the `DetailedTask` of the extension, with its result, its error or its open questions.
pub fn modern_task(exchange: &Exchange, reviews: &Reviews, change: &Change) -> String {
    let mut status = modern_status(change);
    let detail = match (status, outcome_of(change)) {
        (Status::Completed, Some(Ok(finished))) => {
            let result = finished.result.to_json(exchange.revision(), finished.fits_output_schema);
            Some(("result", task_json::with_result_type(&result, "complete")))
        }
        (Status::Failed, Some(Err(error))) => Some(("error", error_json(exchange, &error))),
        (Status::Failed, Some(Ok(finished))) => {
            let kind = finished.failure.unwrap_or(countersign_protocol::ErrorKind::ChangeExpired);
            let message = gateway_tools::change_text(change);
            Some(("error", error_json(exchange, &McpError::new(kind, message).with("changeId", change.id.as_str()))))
        }
        (Status::Working, _) => input_requests(exchange, reviews, change).map(|requests| {
            status = Status::InputRequired;
            ("inputRequests", requests)
        }),
        _ => None,
    };
    let task = common_members(reviews, change, status, MODERN_KEYS);
    match detail {
        Some((key, value)) => edit(&task, &[(key, MemberEdit::Set(&value))]),
        None => task,
    }
}

/// Returns all open questions to the client: those of the gateway before the decision, those of the tool while it runs.
fn input_requests(exchange: &Exchange, reviews: &Reviews, change: &Change) -> Option<String> {
    approval_page::page_input_requests(exchange, reviews, change)
        .or_else(|| ask_client::input_requests(exchange, change))
}

fn error_json(exchange: &Exchange, error: &McpError) -> String {
    json!({ "code": error.number(exchange.revision()), "message": error.message, "data": error.data() }).to_string()
}

/// Returns the `Task` of 2025-11-25.
pub fn legacy_task(exchange: &Exchange, reviews: &Reviews, change: &Change) -> String {
    let mut status = legacy_status(change);
    let asks_for_page =
        approval_page::can_ask(exchange) && approval_page::page_input_requests(exchange, reviews, change).is_some();
    if status == Status::Working && (asks_for_page || !ask_client::answerable_questions(exchange, change).is_empty()) {
        status = Status::InputRequired;
    }
    common_members(reviews, change, status, LEGACY_KEYS)
}
