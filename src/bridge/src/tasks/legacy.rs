//! `tasks/get`, `tasks/result`, `tasks/cancel` and `tasks/list` of clients of 2025-11-25
//! (2025-11-25/basic/utilities/tasks).

use std::{
    collections::HashSet,
    sync::{Arc, atomic::Ordering},
};

use futures_util::{StreamExt, stream};
use serde_json::value::RawValue;

use super::{
    Tasks,
    awaited_task::MAX_OPEN_QUESTIONS,
    kept_outcome::TaskOutcome,
    request::{TaskRequest, cancel_in_background},
    table::{Task, TaskKind, unknown_task_error},
};
use crate::{
    questions::{self, Relay},
    translation::{result::is_error_result, task_json},
};
use countersign_domain::questions::{check_capabilities, is_url_elicitation};
use countersign_exchange::{context::Exchange, reply::Reply};
use countersign_protocol::{
    ErrorKind, McpError,
    json::{MemberEdit, edit, member, members, object, string},
    rpc_error::RpcError,
    task::{self, Status},
};
use countersign_upstream::{FailedRequests, Response};

/// The maximum number of tasks on one page of a list.
const MAX_PAGE_ENTRIES: usize = 50;

/// The maximum number of concurrent requests to upstreams for a list.
const MAX_CONCURRENT_REQUESTS: usize = 8;

/// Answers `tasks/get`.
///
/// # Errors
/// `UPSTREAM_UNAVAILABLE`, and the errors of the upstream.
pub async fn get(exchange: &Exchange, task: Arc<Task>) -> Result<Reply, McpError> {
    Ok(Reply::new(describe(exchange, task).await?))
}

async fn describe(exchange: &Exchange, task: Arc<Task>) -> Result<String, McpError> {
    if let TaskKind::Finished(outcome, times) = &task.kind {
        let status = outcome.read(status_of_outcome).ok_or_else(|| unknown_task_error(&task.alias))?;
        return Ok(task_json::local_task(&task.alias, status, times));
    }
    let task_request = TaskRequest::new(exchange, task).await?;
    let alias = &task_request.task.alias;
    let described = task_request.send_or_fail("tasks/get", "{}").await?;
    let status = Status::parse_known(described.get())?;
    Ok(match &task_request.task.kind {
        TaskKind::ModernUpstream { .. } => {
            // A cancelled task stays cancelled, even if its work continues (2025-11-25, "Task Cancellation").
            let status = if task_request.task.is_cancelled() { Status::Cancelled } else { status };
            task_json::to_legacy(described.get(), alias, status)
        }
        _ => task_json::with_task_id(described.get(), alias),
    })
}

fn status_of_outcome(outcome: &TaskOutcome) -> Status {
    match outcome {
        TaskOutcome::Result(result) if !is_error_result(result.get()) => Status::Completed,
        _ => Status::Failed,
    }
}

/// Answers `tasks/result`: waits for the task's end and returns the result that the call itself would have returned.
///
/// # Errors
/// The errors of [`get`], and the error with which the task ended.
pub async fn result(exchange: &Exchange, task: Arc<Task>, params: &str) -> Result<Reply, McpError> {
    let task_request = TaskRequest::new(exchange, task).await?;
    let alias = &task_request.task.alias;
    let result = match &task_request.task.kind {
        TaskKind::Finished(outcome, _) => {
            let read = outcome.read(|outcome| match outcome {
                TaskOutcome::Result(result) => task_request.adapt_result(result.get()),
                TaskOutcome::Error(error) => Err(task_request.error_for_client(error)),
                TaskOutcome::Cancelled => Err(cancelled_error()),
            });
            read.ok_or_else(|| unknown_task_error(alias))??
        }
        TaskKind::ModernUpstream { .. } => {
            let ended_task = await_end(&task_request, Some(alias)).await?;
            result_of_ended_task(&task_request, ended_task.get())?
        }
        TaskKind::SameEra | TaskKind::LegacyUpstream(_) => match await_handshake_task(&task_request, params).await? {
            Response::Result(result) => task_request.adapt_result(result.get())?,
            Response::Error(error) => return Err(task_request.error_for_client(&error)),
        },
    };
    Ok(Reply::verbatim(task_json::with_related_task(&result, alias))
        .with_failure(is_error_result(&result).then_some(ErrorKind::ToolExecution)))
}

/// Waits for the result of a task of a handshake-era upstream, and asks the client the upstream's questions meanwhile. A task may
/// take longer than any call, so it is polled when the request for its result has reached its time limit.
///
/// # Errors
/// The errors of [`get`]; `-32602` for a task that has expired.
async fn await_handshake_task(task_request: &TaskRequest<'_>, params: &str) -> Result<Response, McpError> {
    let task = &task_request.task;
    let asker = task_request.client_asker(Some(&task.alias));
    loop {
        let outgoing = task_request.build_request("tasks/result", params);
        let mut recipient = task_request.recipient(task.caller.log_level);
        // The task runs at an upstream of its client's era.
        recipient.wants_unknown = true;
        let (relay, requests) = Relay::with_questions(recipient);
        match asker.run(task_request.call(&outgoing, relay), requests).await {
            Err(error) if error.kind == ErrorKind::Timeout => {}
            response => return response,
        }
        loop {
            if task.is_expired() {
                return Err(unknown_task_error(&task.alias));
            }
            let described = task_request.send_or_fail("tasks/get", "{}").await?;
            if Status::parse_known(described.get())? != Status::Working {
                break;
            }
            tokio::time::sleep(task::poll_interval(described.get())).await;
        }
    }
}

fn cancelled_error() -> McpError {
    McpError::new(ErrorKind::Cancelled, "the task was cancelled")
}

/// Waits for the end of a task of the extension, and asks the client the upstream's questions meanwhile. An outage of
/// the upstream ends the wait only if it is long, because the task continues. Returns the task. Questions name
/// `requested_task`, the client's id of a task that it requested.
///
/// # Errors
/// The errors of [`get`], with which the wait is given up; `TIMEOUT` for a task that has expired, and `CANCELLED` for one that its
/// client has cancelled.
pub async fn await_end(
    task_request: &TaskRequest<'_>,
    requested_task: Option<&str>,
) -> Result<Box<RawValue>, McpError> {
    let mut asked_keys: HashSet<String> = HashSet::new();
    let (mut failures, mut pause) = (FailedRequests::default(), task::poll_interval("{}"));
    loop {
        if task_request.task.is_cancelled() {
            return Err(cancelled_error());
        }
        if task_request.task.is_expired() {
            let message = "the task has not ended in the time for which it is kept";
            return Err(McpError::new(ErrorKind::Timeout, message).with("outcome", "unknown"));
        }
        let task = match task_request.send_or_fail("tasks/get", "{}").await {
            Err(error)
                if error.passthrough.is_none()
                    && error.kind.is_transient()
                    && !failures.record(&task_request.task.caller) =>
            {
                tokio::time::sleep(pause).await;
                continue;
            }
            answer => answer?,
        };
        let text = task.get();
        (failures, pause) = (FailedRequests::default(), task::poll_interval(text));
        match Status::parse_known(text)? {
            Status::Completed | Status::Failed | Status::Cancelled => return Ok(task),
            Status::InputRequired => {
                let requests = member(text, "inputRequests").unwrap_or("{}");
                if let Some(responses) = ask_client(task_request, requested_task, requests, &mut asked_keys).await? {
                    task_request.send_or_fail("tasks/update", &format!(r#"{{"inputResponses":{responses}}}"#)).await?;
                    continue;
                }
            }
            Status::Working => {}
        }
        tokio::time::sleep(pause).await;
    }
}

/// Returns the result of a task of the extension that has ended.
///
/// # Errors
/// The error with which it has failed; `CANCELLED`.
pub fn result_of_ended_task(task_request: &TaskRequest<'_>, task: &str) -> Result<String, McpError> {
    match Status::parse_known(task)? {
        Status::Completed => task_request.adapt_result(member(task, "result").unwrap_or("{}")),
        Status::Failed => Err(error_of_failed_task(member(task, "error"))),
        _ => Err(cancelled_error()),
    }
}

/// Cancels a task when the request that waits for it is dropped, or gives up, before the task has ended.
pub struct TaskCancelGuard<'a>(Option<&'a TaskRequest<'a>>);

impl<'a> TaskCancelGuard<'a> {
    pub const fn new(task_request: &'a TaskRequest<'a>) -> Self {
        Self(Some(task_request))
    }

    /// Drops the guard of a task that has ended, without cancelling it.
    pub fn disarm(mut self) {
        self.0 = None;
    }
}

impl Drop for TaskCancelGuard<'_> {
    fn drop(&mut self) {
        if let Some(task_request) = self.0 {
            cancel_in_background(&task_request.upstream, &task_request.task);
        }
    }
}

/// Asks the client the questions that it was not asked before. Returns its answers, or `None` if there are no new
/// questions.
async fn ask_client(
    task_request: &TaskRequest<'_>,
    requested_task: Option<&str>,
    requests: &str,
    asked_keys: &mut HashSet<String>,
) -> Result<Option<String>, McpError> {
    let asker = task_request.client_asker(requested_task);
    let mut responses = Vec::new();
    for request in members(requests).take(MAX_OPEN_QUESTIONS) {
        if !asked_keys.insert(request.key.clone().into_owned()) {
            continue;
        }
        let method = member(request.value, "method").and_then(string).unwrap_or_default();
        let params = member(request.value, "params");
        if let Err(refused) = check_capabilities(asker.capabilities, &method, params) {
            let message = format!("the upstream needs what this client cannot give: {}", refused.message);
            return Err(McpError::new(ErrorKind::NotBridgeable, message));
        }
        let elicitation_id = is_url_elicitation(&method, params).then(|| nanoid::nanoid!(24));
        let answer = asker.ask(&method, params, elicitation_id.as_deref()).await;
        responses.push((request.key, questions::answer_or_error(&method, answer)?));
    }
    Ok((!responses.is_empty()).then(|| object(responses.iter().map(|(key, answer)| (&**key, answer.get())))))
}

/// Returns the JSON-RPC error of a failed task of the extension.
fn error_of_failed_task(error: Option<&str>) -> McpError {
    let RpcError { code, message, data, .. } = questions::parse_rpc_error(error.unwrap_or("{}"));
    McpError::from_upstream(ErrorKind::UpstreamError, code, message, data.as_deref().map(RawValue::get))
}

/// Answers `tasks/cancel`. Unlike in the extension, a task that has ended cannot be cancelled (2025-11-25, "Task
/// Cancellation").
///
/// # Errors
/// `-32602` for a task that has ended, and the errors of [`get`].
pub async fn cancel(exchange: &Exchange, task: Arc<Task>, params: &str) -> Result<Reply, McpError> {
    let ended_error = || McpError::new(ErrorKind::InvalidParams, "the task has ended already");
    let task_request = TaskRequest::new(exchange, task).await?;
    let alias = &task_request.task.alias;
    match &task_request.task.kind {
        TaskKind::Finished(..) => Err(ended_error()),
        TaskKind::ModernUpstream { is_cancelled } => {
            let task = task_request.send_or_fail("tasks/get", "{}").await?;
            if Status::parse_known(task.get())?.is_terminal() || is_cancelled.load(Ordering::Relaxed) {
                return Err(ended_error());
            }
            task_request.send_or_fail("tasks/cancel", params).await?;
            is_cancelled.store(true, Ordering::Relaxed);
            Ok(Reply::new(task_json::to_legacy(task.get(), alias, Status::Cancelled)))
        }
        TaskKind::SameEra | TaskKind::LegacyUpstream(_) => {
            let task = task_request.send_or_fail("tasks/cancel", params).await?;
            Ok(Reply::new(task_json::with_task_id(task.get(), alias)))
        }
    }
}

/// Returns one page of a principal's tasks at upstreams, oldest first, and the cursor of the next page. A task that its
/// upstream does not describe, for example because it has forgotten it, is left out.
///
/// # Errors
/// `-32602` for an invalid cursor.
pub async fn list(
    tasks: &Tasks,
    exchange: &Exchange,
    cursor: Option<&str>,
) -> Result<(Vec<String>, Option<String>), McpError> {
    let all = tasks.list_for(&exchange.identity.principal.name);
    let start = match cursor {
        None => 0,
        // The cursor counts tasks, because a task that it named might have ended since.
        Some(cursor) => cursor
            .strip_prefix("after-")
            .and_then(|count| count.parse::<usize>().ok())
            .ok_or_else(|| McpError::new(ErrorKind::InvalidParams, "unknown cursor").with("member", "params.cursor"))?,
    };
    let page: Vec<_> = all.iter().skip(start).take(MAX_PAGE_ENTRIES).cloned().collect();
    let has_more = all.len() > start.saturating_add(page.len());
    let described: Vec<_> = stream::iter(page.into_iter().map(|task| describe(exchange, task)))
        .buffered(MAX_CONCURRENT_REQUESTS)
        .collect()
        .await;
    // `_meta` belongs to the result that contained the task.
    let without_meta = |task: String| edit(&task, &[("_meta", MemberEdit::Drop)]);
    let tasks = described.into_iter().filter_map(Result::ok).map(without_meta).collect();
    Ok((tasks, has_more.then(|| format!("after-{}", start.saturating_add(MAX_PAGE_ENTRIES)))))
}
