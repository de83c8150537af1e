//! `tasks/get`, `tasks/update` and `tasks/cancel` of stateless clients (ext-tasks).

use std::sync::Arc;

use super::{
    ask::TaskRequest,
    table::{Mode, Task},
};
use crate::{
    questions,
    translation::task_shape::{self, Status},
};
use countersign_exchange::{context::Exchange, reply::Reply};
use countersign_protocol::{
    ErrorKind, McpError,
    envelope::Request,
    json::{MemberEdit, edit, member, members, string},
};

/// Answers `tasks/get`.
///
/// # Errors
/// `UPSTREAM_UNAVAILABLE`, and the errors of the upstream.
pub async fn get(exchange: &Exchange, task: Arc<Task>, request: &Request<'_>) -> Result<Reply, McpError> {
    let params = request.params.map_or("{}", |params| params.get());
    Ok(Reply::new(describe(&TaskRequest::new(exchange, task)?, params).await?))
}

/// Returns the current state of the task, without the members that every result has.
///
/// # Errors
/// The errors of [`get`].
pub async fn describe(task_request: &TaskRequest<'_>, params: &str) -> Result<String, McpError> {
    let alias = &task_request.task.alias;
    if let Mode::AwaitedTask(awaited) = &task_request.task.mode {
        return Ok(
            awaited.describe(alias, |result| task_request.adapted_result(result).unwrap_or_else(|_| result.to_owned()))
        );
    }
    let task = task_request.ask_or_fail("tasks/get", params).await?;
    if Status::parse(task.get()).is_none() {
        return Err(McpError::new(ErrorKind::NotBridgeable, "the upstream's task has no state"));
    }
    let result = match member(task.get(), "result") {
        Some(result) => Some(task_request.adapted_result(result)?),
        None => None,
    };
    let server = task_request.upstream.config.name.as_str();
    let input_requests = match member(task.get(), "inputRequests") {
        Some(requests) => {
            check_url_questions(task_request, requests)?;
            questions::attribute_requests(server, requests)
        }
        None => None,
    };
    let mut edits = vec![("resultType", MemberEdit::Drop)];
    if let Some(requests) = &input_requests {
        edits.push(("inputRequests", MemberEdit::Set(requests)));
    }
    if let Some(result) = &result {
        edits.push(("result", MemberEdit::Set(result)));
    }
    Ok(edit(&task_shape::with_task_id(task.get(), alias), &edits))
}

/// Checks that the upstream's questions send a person only to web pages.
///
/// # Errors
/// [`ErrorKind::NotBridgeable`] for any other URL.
fn check_url_questions(task_request: &TaskRequest<'_>, requests: &str) -> Result<(), McpError> {
    for request in members(requests) {
        let method = member(request.value, "method").and_then(string).unwrap_or_default();
        let params = member(request.value, "params");
        if questions::is_url_elicitation(&method, params)
            && let Err(refused) = questions::check_capabilities(&task_request.task.caller.capabilities, &method, params)
        {
            let message =
                format!("the upstream asks the client to open a URL that the gateway refuses: {}", refused.message);
            return Err(McpError::new(ErrorKind::NotBridgeable, message));
        }
    }
    Ok(())
}

/// Answers `tasks/update` at once. The upstream takes the answers when it can.
///
/// # Errors
/// The errors of [`get`].
pub async fn update(exchange: &Exchange, task: Arc<Task>, request: &Request<'_>) -> Result<Reply, McpError> {
    let params = request.params.map_or("{}", |params| params.get());
    let responses = member(params, "inputResponses").filter(|responses| responses.starts_with('{'));
    let Some(responses) = responses else {
        return Err(McpError::new(ErrorKind::InvalidParams, "`inputResponses` must be an object")
            .with("member", "params.inputResponses"));
    };
    if let Mode::AwaitedTask(awaited) = &task.mode {
        awaited.update(responses);
    } else {
        TaskRequest::new(exchange, task)?.ask_or_fail("tasks/update", params).await?;
    }
    Ok(Reply::new("{}".into()))
}

/// Answers `tasks/cancel`, which is always acknowledged, and cancels the task if possible.
///
/// # Errors
/// The errors of [`get`].
pub async fn cancel(exchange: &Exchange, task: Arc<Task>, request: &Request<'_>) -> Result<Reply, McpError> {
    let params = request.params.map_or("{}", |params| params.get());
    let task_request = TaskRequest::new(exchange, task)?;
    match &task_request.task.mode {
        Mode::AwaitedTask(awaited) => {
            // The upstream refuses to cancel a task that has ended, but the client gets an acknowledgement.
            if let Err(error) = task_request.ask("tasks/cancel", params).await? {
                tracing::debug!(code = error.code, "the upstream does not cancel a task");
            } else {
                awaited.cancel();
            }
        }
        _ => {
            task_request.ask_or_fail("tasks/cancel", params).await?;
        }
    }
    Ok(Reply::new("{}".into()))
}
