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

/// `tasks/get`
///
/// # Errors
/// `UPSTREAM_UNAVAILABLE`, and what the upstream answers.
pub async fn get(exchange: &Exchange, task: Arc<Task>, request: &Request<'_>) -> Result<Reply, McpError> {
    let params = request.params.map_or("{}", |params| params.get());
    Ok(Reply::new(describe(&TaskRequest::new(exchange, task)?, params).await?))
}

/// The task as it is now, without what every result has.
///
/// # Errors
/// The errors of [`get`].
pub async fn describe(about: &TaskRequest<'_>, params: &str) -> Result<String, McpError> {
    let alias = &about.task.alias;
    if let Mode::AwaitedTask(augmented) = &about.task.mode {
        return Ok(
            augmented.describe(alias, |result| about.adapted_result(result).unwrap_or_else(|_| result.to_owned()))
        );
    }
    let task = about.ask_or_fail("tasks/get", params).await?;
    if Status::parse(task.get()).is_none() {
        return Err(McpError::new(ErrorKind::NotBridgeable, "the upstream's task has no state"));
    }
    let result = match member(task.get(), "result") {
        Some(result) => Some(about.adapted_result(result)?),
        None => None,
    };
    let server = about.upstream.config.name.as_str();
    let asked = match member(task.get(), "inputRequests") {
        Some(requests) => {
            asks_properly(about, requests)?;
            questions::attribute_requests(server, requests)
        }
        None => None,
    };
    let mut edits = vec![("resultType", MemberEdit::Drop)];
    if let Some(asked) = &asked {
        edits.push(("inputRequests", MemberEdit::Set(asked)));
    }
    if let Some(result) = &result {
        edits.push(("result", MemberEdit::Set(result)));
    }
    Ok(edit(&task_shape::with_task_id(task.get(), alias), &edits))
}

/// # Errors
/// [`ErrorKind::NotBridgeable`] where a person would be sent to what is no page of the web.
fn asks_properly(about: &TaskRequest<'_>, requests: &str) -> Result<(), McpError> {
    for request in members(requests) {
        let method = member(request.value, "method").and_then(string).unwrap_or_default();
        let params = member(request.value, "params");
        if questions::is_url_elicitation(&method, params)
            && let Err(refused) = questions::check_capabilities(&about.task.caller.capabilities, &method, params)
        {
            let why = format!("the upstream asks for something that this client is never asked: {}", refused.message);
            return Err(McpError::new(ErrorKind::NotBridgeable, why));
        }
    }
    Ok(())
}

/// `tasks/update`: acknowledged at once, taken when it can be.
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
    if let Mode::AwaitedTask(augmented) = &task.mode {
        augmented.update(responses);
    } else {
        TaskRequest::new(exchange, task)?.ask_or_fail("tasks/update", params).await?;
    }
    Ok(Reply::new("{}".into()))
}

/// `tasks/cancel`: always acknowledged, and done if it can be.
///
/// # Errors
/// The errors of [`get`].
pub async fn cancel(exchange: &Exchange, task: Arc<Task>, request: &Request<'_>) -> Result<Reply, McpError> {
    let params = request.params.map_or("{}", |params| params.get());
    let about = TaskRequest::new(exchange, task)?;
    match &about.task.mode {
        Mode::AwaitedTask(augmented) => {
            // A task that has ended is refused there, and acknowledged here.
            if let Err(error) = about.ask("tasks/cancel", params).await? {
                tracing::debug!(code = error.code, "the upstream does not cancel a task");
            } else {
                augmented.cancel();
            }
        }
        _ => {
            about.ask_or_fail("tasks/cancel", params).await?;
        }
    }
    Ok(Reply::new("{}".into()))
}
