//! `tasks/get`, `tasks/result`, `tasks/cancel` and `tasks/list` of clients of 2025-11-25
//! (2025-11-25/basic/utilities/tasks).

use std::{collections::HashSet, sync::Arc};

use futures_util::{StreamExt, stream};
use serde_json::value::RawValue;

use super::{
    Tasks,
    awaited_task::MAX_OPEN_QUESTIONS,
    request::TaskRequest,
    table::{Task, TaskKind},
};
use crate::{
    questions::{self, ClientAsker, Relay},
    translation::task_shape::{self, Status},
};
use countersign_exchange::{ask::ask, context::Exchange, reply::Reply};
use countersign_protocol::{
    ErrorKind, McpError,
    envelope::Request,
    json::{MemberEdit, edit, member, members, push_quoted, string},
};
use countersign_upstream::Response;

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
        return Ok(task_shape::local_task(&task.alias, status_of_outcome(outcome), times));
    }
    let task_request = TaskRequest::new(exchange, task)?;
    let alias = &task_request.task.alias;
    let described = task_request.send_or_fail("tasks/get", "{}").await?;
    let status = status(described.get())?;
    Ok(match &task_request.task.kind {
        TaskKind::ModernUpstream { is_cancelled } => {
            // A cancelled task stays cancelled, even if its work continues (2025-11-25, "Task Cancellation").
            let status = if *is_cancelled.lock() { Status::Cancelled } else { status };
            task_shape::to_legacy(described.get(), alias, status)
        }
        _ => task_shape::with_task_id(described.get(), alias),
    })
}

fn status_of_outcome(outcome: &Result<Box<RawValue>, countersign_protocol::rpc_error::RpcError>) -> Status {
    match outcome {
        Ok(result) if member(result.get(), "isError") != Some("true") => Status::Completed,
        _ => Status::Failed,
    }
}

fn status(task: &str) -> Result<Status, McpError> {
    Status::parse(task).ok_or_else(|| McpError::new(ErrorKind::NotBridgeable, "the upstream's task has no state"))
}

/// Answers `tasks/result`: waits for the task's end and returns the result that the call itself would have returned.
///
/// # Errors
/// The errors of [`get`], and the error with which the task ended.
pub async fn result(exchange: &Exchange, task: Arc<Task>, request: &Request<'_>) -> Result<Reply, McpError> {
    let params = request.params.map_or("{}", |params| params.get());
    let task_request = TaskRequest::new(exchange, task)?;
    let alias = &task_request.task.alias;
    let result = match &task_request.task.kind {
        TaskKind::Finished(Ok(result), _) => task_request.adapted_result(result.get())?,
        TaskKind::Finished(Err(error), _) => return Err(task_request.error(error)),
        TaskKind::ModernUpstream { is_cancelled } => extension_result(&task_request, Some(is_cancelled)).await?,
        TaskKind::SameEra | TaskKind::LegacyUpstream(_) => {
            let outgoing = task_request.outgoing("tasks/result", params);
            let (relay, requests) =
                Relay::with_questions(task_request.recipient(task_request.task.caller.log_level), true);
            let work = task_request.upstream.call(&task_request.task.caller, &outgoing, relay);
            let asker = ClientAsker {
                exchange,
                upstream: &task_request.upstream.config.name,
                capabilities: &task_request.task.caller.capabilities,
                task: Some(alias),
            };
            match asker.run(work, requests).await? {
                Response::Result(result) => task_request.adapted_result(result.get())?,
                Response::Error(error) => return Err(task_request.error(&error)),
            }
        }
    };
    let failed = member(&result, "isError") == Some("true");
    Ok(Reply::passed_on(task_shape::with_related_task(&result, alias))
        .failing(failed.then_some(ErrorKind::ToolExecution)))
}

/// Follows a task of the extension to its end, and asks the client the upstream's questions.
///
/// # Errors
/// The error with which the task fails.
pub async fn extension_result(
    task_request: &TaskRequest<'_>,
    is_cancelled: Option<&parking_lot::Mutex<bool>>,
) -> Result<String, McpError> {
    let mut asked: HashSet<String> = HashSet::new();
    loop {
        if is_cancelled.is_some_and(|is_cancelled| *is_cancelled.lock()) {
            return Err(McpError::new(ErrorKind::Cancelled, "the task was cancelled"));
        }
        let task = task_request.send_or_fail("tasks/get", "{}").await?;
        let text = task.get();
        match status(text)? {
            Status::Completed => return task_request.adapted_result(member(text, "result").unwrap_or("{}")),
            Status::Failed => return Err(failure(member(text, "error"))),
            Status::Cancelled => return Err(McpError::new(ErrorKind::Cancelled, "the task was cancelled")),
            Status::InputRequired => {
                let requests = member(text, "inputRequests").unwrap_or("{}");
                if let Some(responses) = ask_client(task_request, requests, &mut asked).await? {
                    task_request.send_or_fail("tasks/update", &format!(r#"{{"inputResponses":{responses}}}"#)).await?;
                    continue;
                }
            }
            Status::Working => {}
        }
        tokio::time::sleep(task_shape::poll_interval(text)).await;
    }
}

/// Cancels a task when the request that waits for it is dropped before the task has ended.
pub struct CancelOnDrop<'a> {
    /// The request of the task, or `None` once the task has ended.
    pub task_request: Option<&'a TaskRequest<'a>>,
}

impl<'a> CancelOnDrop<'a> {
    pub fn new(task_request: &'a TaskRequest<'a>) -> Self {
        Self { task_request: Some(task_request) }
    }
}

impl Drop for CancelOnDrop<'_> {
    fn drop(&mut self) {
        let Some(task_request) = self.task_request else { return };
        let (upstream, task) = (Arc::clone(&task_request.upstream), Arc::clone(&task_request.task));
        let outgoing = task_request.outgoing("tasks/cancel", "{}");
        let relay: Arc<dyn countersign_upstream::Listener> = Relay::new(task_request.recipient(None), false);
        actix::spawn(async move {
            if let Err(error) = upstream.call(&task.caller, &outgoing, relay).await {
                tracing::debug!(%error, "the task of a dropped request could not be cancelled");
            }
        });
    }
}

/// Asks the client the questions that it was not asked before. Returns its answers, or `None` if there are no new
/// questions.
async fn ask_client(
    task_request: &TaskRequest<'_>,
    requests: &str,
    asked: &mut HashSet<String>,
) -> Result<Option<String>, McpError> {
    let mut responses = String::new();
    for request in members(requests).take(MAX_OPEN_QUESTIONS) {
        if !asked.insert(request.key.clone().into_owned()) {
            continue;
        }
        let exchange = task_request.exchange;
        let method = member(request.value, "method").and_then(string).unwrap_or_default();
        let params = member(request.value, "params");
        if let Err(refused) = questions::check_capabilities(&task_request.task.caller.capabilities, &method, params) {
            let message = format!("the upstream needs what this client cannot give: {}", refused.message);
            return Err(McpError::new(ErrorKind::NotBridgeable, message));
        }
        let elicitation_id = questions::is_url_elicitation(&method, params).then(|| nanoid::nanoid!(24));
        let upstream = &task_request.upstream.config.name;
        let params =
            questions::params_for_client(upstream, &method, params, exchange.revision(), elicitation_id.as_deref());
        let params = task_shape::with_related_task(params.as_deref().unwrap_or("{}"), &task_request.task.alias);
        let answer = ask(&exchange.session, &exchange.related, &method, Some(&params)).await;
        let answer = questions::answer_or_error(&method, answer)?;
        responses.push(if responses.is_empty() { '{' } else { ',' });
        push_quoted(&mut responses, &request.key);
        responses.push(':');
        responses.push_str(answer.get());
    }
    Ok((!responses.is_empty()).then(|| responses + "}"))
}

/// Returns the JSON-RPC error of a failed task of the extension.
fn failure(error: Option<&str>) -> McpError {
    let error = error.unwrap_or("{}");
    let code = member(error, "code").and_then(|code| code.parse().ok()).unwrap_or(-32603);
    let message = member(error, "message").and_then(string).unwrap_or_default().into_owned();
    McpError::from_upstream(ErrorKind::UpstreamError, code, message, member(error, "data"))
}

/// Answers `tasks/cancel`.
///
/// # Errors
/// `-32602` for a task that has ended.
pub async fn cancel(exchange: &Exchange, task: Arc<Task>, request: &Request<'_>) -> Result<Reply, McpError> {
    let params = request.params.map_or("{}", |params| params.get());
    let ended = || McpError::new(ErrorKind::InvalidParams, "the task has ended already");
    let task_request = TaskRequest::new(exchange, task)?;
    let alias = &task_request.task.alias;
    match &task_request.task.kind {
        TaskKind::Finished(..) => Err(ended()),
        TaskKind::ModernUpstream { is_cancelled } => {
            let task = task_request.send_or_fail("tasks/get", "{}").await?;
            if status(task.get())?.is_terminal() || *is_cancelled.lock() {
                return Err(ended());
            }
            task_request.send_or_fail("tasks/cancel", params).await?;
            *is_cancelled.lock() = true;
            Ok(Reply::new(task_shape::to_legacy(task.get(), alias, Status::Cancelled)))
        }
        TaskKind::SameEra | TaskKind::LegacyUpstream(_) => {
            let task = task_request.send_or_fail("tasks/cancel", params).await?;
            Ok(Reply::new(task_shape::with_task_id(task.get(), alias)))
        }
    }
}

/// Returns one page of a principal's tasks at upstreams, oldest first, and the cursor of the next page. A task that its
/// server does not know any more is left out.
///
/// # Errors
/// `-32602` for an invalid cursor.
pub async fn list(
    tasks: &Tasks,
    exchange: &Exchange,
    cursor: Option<&str>,
) -> Result<(Vec<String>, Option<String>), McpError> {
    let all = tasks.all_of(&exchange.identity.principal.name);
    let from = match cursor {
        None => 0,
        // The cursor counts tasks, because a task that it named might have ended since.
        Some(cursor) => cursor
            .strip_prefix("after-")
            .and_then(|count| count.parse::<usize>().ok())
            .ok_or_else(|| McpError::new(ErrorKind::InvalidParams, "unknown cursor").with("member", "params.cursor"))?,
    };
    let page: Vec<_> = all.iter().skip(from).take(MAX_PAGE_ENTRIES).cloned().collect();
    let has_more = all.len() > from.saturating_add(page.len());
    let described: Vec<_> = stream::iter(page.into_iter().map(|task| describe(exchange, task)))
        .buffered(MAX_CONCURRENT_REQUESTS)
        .collect()
        .await;
    let tasks = described.into_iter().filter_map(Result::ok).map(|task| without_meta(&task)).collect();
    Ok((tasks, has_more.then(|| format!("after-{}", from.saturating_add(MAX_PAGE_ENTRIES)))))
}

/// Removes the `_meta` of the result that contained the task.
fn without_meta(task: &str) -> String {
    edit(task, &[("_meta", MemberEdit::Drop)])
}
