//! `tasks/get`, `tasks/result`, `tasks/cancel` and `tasks/list` of clients of 2025-11-25
//! (2025-11-25/basic/utilities/tasks).

use std::{collections::HashSet, sync::Arc};

use futures_util::{StreamExt, stream};
use serde_json::value::RawValue;

use super::{
    Tasks,
    ask::TaskRequest,
    table::{Mode, Task},
};
use crate::{
    questions::{self, client_asker::ClientAsker, relay::Relay},
    translation::task_shape::{self, Status},
};
use countersign_exchange::{ask::ask, context::Exchange, reply::Reply};
use countersign_protocol::{
    ErrorKind, McpError,
    envelope::Request,
    json::{MemberEdit, edit, member, members, push_quoted, string},
};
use countersign_upstream::Response;

/// Tasks in one page of a list.
const PAGE: usize = 50;

/// Tasks that are asked for at a time for a list.
const AT_ONCE: usize = 8;

/// `tasks/get`
///
/// # Errors
/// `UPSTREAM_UNAVAILABLE`, and what the upstream answers.
pub async fn get(exchange: &Exchange, task: Arc<Task>) -> Result<Reply, McpError> {
    Ok(Reply::new(describe(exchange, task).await?))
}

async fn describe(exchange: &Exchange, task: Arc<Task>) -> Result<String, McpError> {
    if let Mode::Done(outcome, times) = &task.mode {
        return Ok(task_shape::local(&task.alias, status_of_outcome(outcome), times));
    }
    let about = TaskRequest::new(exchange, task)?;
    let alias = &about.task.alias;
    let described = about.ask_or_fail("tasks/get", "{}").await?;
    let status = status(described.get())?;
    Ok(match &about.task.mode {
        Mode::Extension(cancelled) => {
            // Once it is cancelled it stays so, whatever becomes of the work (2025-11-25, "Task Cancellation").
            let status = if *cancelled.lock() { Status::Cancelled } else { status };
            task_shape::legacy(described.get(), alias, status)
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

/// `tasks/result`: waits for the task's end, and gives exactly what the call itself would have given.
///
/// # Errors
/// The errors of [`get`], and the error with which the task ended.
pub async fn result(exchange: &Exchange, task: Arc<Task>, request: &Request<'_>) -> Result<Reply, McpError> {
    let params = request.params.map_or("{}", |params| params.get());
    let about = TaskRequest::new(exchange, task)?;
    let alias = &about.task.alias;
    let result = match &about.task.mode {
        Mode::Done(Ok(result), _) => about.adapted_result(result.get())?,
        Mode::Done(Err(error), _) => return Err(about.error(error)),
        Mode::Extension(cancelled) => extension_result(&about, Some(cancelled)).await?,
        Mode::Same | Mode::AwaitedTask(_) => {
            let outgoing = about.outgoing("tasks/result", params);
            let (relay, requests) = Relay::asking(about.hearer(about.task.caller.log_level), true);
            let work = about.upstream.call(&about.task.caller, &outgoing, relay);
            let (server, task) = (about.upstream.config.name.as_str(), Some(alias.as_str()));
            let asks = ClientAsker { exchange, server, capabilities: &about.task.caller.capabilities, task };
            match asks.run(work, requests).await? {
                Response::Result(result) => about.adapted_result(result.get())?,
                Response::Error(error) => return Err(about.error(&error)),
            }
        }
    };
    let failed = member(&result, "isError") == Some("true");
    Ok(Reply::passed_on(task_shape::with_related_task(&result, alias))
        .failing(failed.then_some(ErrorKind::ToolExecution)))
}

/// Follows a task of the extension to its end, and asks the client what the upstream wants to know.
///
/// # Errors
/// As the task fails.
pub async fn extension_result(
    about: &TaskRequest<'_>,
    cancelled: Option<&parking_lot::Mutex<bool>>,
) -> Result<String, McpError> {
    let mut answered: HashSet<String> = HashSet::new();
    loop {
        if cancelled.is_some_and(|cancelled| *cancelled.lock()) {
            return Err(McpError::new(ErrorKind::Cancelled, "the task was cancelled"));
        }
        let task = about.ask_or_fail("tasks/get", "{}").await?;
        let text = task.get();
        match status(text)? {
            Status::Completed => return about.adapted_result(member(text, "result").unwrap_or("{}")),
            Status::Failed => return Err(failure(member(text, "error"))),
            Status::Cancelled => return Err(McpError::new(ErrorKind::Cancelled, "the task was cancelled")),
            Status::InputRequired => {
                let requests = member(text, "inputRequests").unwrap_or("{}");
                if let Some(responses) = answers(about, requests, &mut answered).await? {
                    about.ask_or_fail("tasks/update", &format!(r#"{{"inputResponses":{responses}}}"#)).await?;
                    continue;
                }
            }
            Status::Working => {}
        }
        tokio::time::sleep(task_shape::pause(text)).await;
    }
}

/// Cancels a task that nobody waits for any more, unless it is over.
pub struct CancelOnDrop<'a> {
    about: Option<&'a TaskRequest<'a>>,
}

impl<'a> CancelOnDrop<'a> {
    pub fn new(about: &'a TaskRequest<'a>) -> Self {
        Self { about: Some(about) }
    }

    pub fn disarm(&mut self) {
        self.about = None;
    }
}

impl Drop for CancelOnDrop<'_> {
    fn drop(&mut self) {
        let Some(about) = self.about else { return };
        let (upstream, task) = (Arc::clone(&about.upstream), Arc::clone(&about.task));
        let outgoing = about.outgoing("tasks/cancel", "{}");
        let relay: Arc<dyn countersign_upstream::Listener> = Relay::new(about.hearer(None), false);
        actix::spawn(async move {
            if let Err(error) = upstream.call(&task.caller, &outgoing, relay).await {
                tracing::debug!(%error, "a task that nobody waits for could not be cancelled");
            }
        });
    }
}

/// Asks the client what it was not asked before. Returns its answers, or `None` if there is nothing new to ask.
async fn answers(
    about: &TaskRequest<'_>,
    requests: &str,
    answered: &mut HashSet<String>,
) -> Result<Option<String>, McpError> {
    let mut responses = String::new();
    for request in members(requests).take(64) {
        if !answered.insert(request.key.clone().into_owned()) {
            continue;
        }
        let exchange = about.exchange;
        let method = member(request.value, "method").and_then(string).unwrap_or_default();
        let params = member(request.value, "params");
        if let Err(refused) = questions::check_capabilities(&about.task.caller.capabilities, &method, params) {
            let why = format!("the upstream needs what this client cannot give: {}", refused.message);
            return Err(McpError::new(ErrorKind::NotBridgeable, why));
        }
        let elicitation = questions::is_url_elicitation(&method, params).then(|| nanoid::nanoid!(24));
        let server = &about.upstream.config.name;
        let params = questions::params_for_client(server, &method, params, exchange.revision(), elicitation.as_deref());
        let params = task_shape::with_related_task(params.as_deref().unwrap_or("{}"), &about.task.alias);
        let answer = ask(&exchange.session, &exchange.related, &method, Some(&params)).await;
        let answer = questions::answer(&method, answer)?;
        responses.push(if responses.is_empty() { '{' } else { ',' });
        push_quoted(&mut responses, &request.key);
        responses.push(':');
        responses.push_str(answer.get());
    }
    Ok((!responses.is_empty()).then(|| responses + "}"))
}

/// The JSON-RPC error that a task of the extension failed with.
fn failure(error: Option<&str>) -> McpError {
    let error = error.unwrap_or("{}");
    let code = member(error, "code").and_then(|code| code.parse().ok()).unwrap_or(-32603);
    let message = member(error, "message").and_then(string).unwrap_or_default().into_owned();
    McpError::from_upstream(ErrorKind::UpstreamError, code, message, member(error, "data"))
}

/// `tasks/cancel`
///
/// # Errors
/// `-32602` for a task that has ended.
pub async fn cancel(exchange: &Exchange, task: Arc<Task>, request: &Request<'_>) -> Result<Reply, McpError> {
    let params = request.params.map_or("{}", |params| params.get());
    let ended = || McpError::new(ErrorKind::InvalidParams, "the task has ended already");
    let about = TaskRequest::new(exchange, task)?;
    let alias = &about.task.alias;
    match &about.task.mode {
        Mode::Done(..) => Err(ended()),
        Mode::Extension(cancelled) => {
            let task = about.ask_or_fail("tasks/get", "{}").await?;
            if status(task.get())?.is_terminal() || *cancelled.lock() {
                return Err(ended());
            }
            about.ask_or_fail("tasks/cancel", params).await?;
            *cancelled.lock() = true;
            Ok(Reply::new(task_shape::legacy(task.get(), alias, Status::Cancelled)))
        }
        Mode::Same | Mode::AwaitedTask(_) => {
            let task = about.ask_or_fail("tasks/cancel", params).await?;
            Ok(Reply::new(task_shape::with_task_id(task.get(), alias)))
        }
    }
}

/// What this principal has at upstreams, oldest first, and the cursor of what comes after that. A task whose server does
/// not know it any more is left out.
///
/// # Errors
/// `-32602` for a cursor that is none.
pub async fn list(
    tasks: &Tasks,
    exchange: &Exchange,
    cursor: Option<&str>,
) -> Result<(Vec<String>, Option<String>), McpError> {
    let all = tasks.all_of(&exchange.identity.principal.name);
    let from = match cursor {
        None => 0,
        // A task that ended since must not end the listing.
        Some(cursor) => cursor
            .strip_prefix("after-")
            .and_then(|count| count.parse::<usize>().ok())
            .ok_or_else(|| McpError::new(ErrorKind::InvalidParams, "unknown cursor").with("member", "params.cursor"))?,
    };
    let page: Vec<_> = all.iter().skip(from).take(PAGE).cloned().collect();
    let more = all.len() > from.saturating_add(page.len());
    let described: Vec<_> =
        stream::iter(page.into_iter().map(|task| describe(exchange, task))).buffered(AT_ONCE).collect().await;
    let tasks = described.into_iter().filter_map(Result::ok).map(|task| plain(&task)).collect();
    Ok((tasks, more.then(|| format!("after-{}", from.saturating_add(PAGE)))))
}

/// A task alone, out of the result that it came in.
fn plain(task: &str) -> String {
    edit(task, &[("_meta", MemberEdit::Drop)])
}
