//! `tasks/get`, `tasks/update` and `tasks/cancel` of stateless clients (ext-tasks), and `notifications/tasks` for the
//! tasks that a `subscriptions/listen` names (ext-tasks, "Task Status Notifications").

use std::{borrow::Cow, collections::HashSet, sync::Arc};

use bytes::Bytes;
use futures_util::future::join_all;

use super::{
    Tasks, check_extension_declared, input_responses,
    request::TaskRequest,
    table::{Task, TaskKind},
};
use crate::{questions, translation::task_json};
use countersign_domain::questions::elicitation::attribute_requests;
use countersign_exchange::{context::Exchange, reply::Reply};
use countersign_protocol::{
    ErrorKind, McpError, encode,
    json::{MemberEdit, edit, member, merge_meta, set_members},
    params::keys,
    task::{self, Status},
};

/// Answers `tasks/get`.
///
/// # Errors
/// `UPSTREAM_UNAVAILABLE`, and the errors of the upstream.
pub async fn get(exchange: &Exchange, task: Arc<Task>, params: &str) -> Result<Reply, McpError> {
    Ok(Reply::new(describe(&TaskRequest::new(exchange, task).await?, params).await?))
}

/// Returns the task as it is now, without the members that every result has.
///
/// # Errors
/// The errors of [`get`].
pub async fn describe(task_request: &TaskRequest<'_>, params: &str) -> Result<String, McpError> {
    let alias = &task_request.task.alias;
    if let TaskKind::LegacyUpstream(awaited) = &task_request.task.kind {
        let adapt = |result: &str| task_request.adapt_result(result).unwrap_or_else(|_| result.to_owned());
        let task = awaited.describe(alias, adapt)?;
        if let Some(requests) = member(&task, "inputRequests") {
            check_questions(task_request, requests)?;
        }
        return Ok(task);
    }
    let task = task_request.send_or_fail("tasks/get", params).await?;
    Status::parse_known(task.get())?;
    let result = member(task.get(), "result").map(|result| task_request.adapt_result(result)).transpose()?;
    let input_requests = match member(task.get(), "inputRequests") {
        Some(requests) => {
            check_questions(task_request, requests)?;
            attribute_requests(&task_request.upstream.config.name, requests)
        }
        None => None,
    };
    let mut edits = set_members([("inputRequests", &input_requests), ("result", &result)]);
    edits.push(("resultType", MemberEdit::Drop));
    Ok(edit(&task_json::with_task_id(task.get(), alias), &edits))
}

/// Checks that the configuration allows the upstream's questions, and that the client declares with this request what they
/// need. Earlier requests do not count (2026-07-28/basic/index, "Capabilities").
///
/// # Errors
/// The errors of [`questions::check_requests`].
fn check_questions(task_request: &TaskRequest<'_>, requests: &str) -> Result<(), McpError> {
    let TaskRequest { exchange, upstream, .. } = task_request;
    questions::check_requests(exchange, &upstream.config, &task_request.capabilities(), requests)
}

/// Answers `tasks/update`: hands the client's answers to the awaited task, or passes the request on to a stateless
/// upstream.
///
/// # Errors
/// `-32602` for `inputResponses` that are not an object, and the errors of [`get`].
pub async fn update(exchange: &Exchange, task: Arc<Task>, params: &str) -> Result<Reply, McpError> {
    let responses = input_responses(params)?;
    if let TaskKind::LegacyUpstream(awaited) = &task.kind {
        awaited.pass_answers(responses);
    } else {
        TaskRequest::new(exchange, task).await?.send_or_fail("tasks/update", params).await?;
    }
    Ok(Reply::new("{}".into()))
}

/// Answers `tasks/cancel`: asks the upstream to cancel the task, and acknowledges the request. Whether the task ends as
/// cancelled is up to the upstream (ext-tasks, "Task Cancellation").
///
/// # Errors
/// The errors of [`get`]. A stateless upstream acknowledges a cancellation even if the task has ended, so its error,
/// for example for an unknown task, reaches the client.
pub async fn cancel(exchange: &Exchange, task: Arc<Task>, params: &str) -> Result<Reply, McpError> {
    let task_request = TaskRequest::new(exchange, task).await?;
    match &task_request.task.kind {
        TaskKind::LegacyUpstream(awaited) => {
            // An upstream of 2025-11-25 must refuse to cancel a task that has ended, but the extension acknowledges
            // such a request.
            if let Err(error) = task_request.send("tasks/cancel", params).await? {
                tracing::debug!(code = error.code, "the upstream does not cancel a task");
            } else {
                awaited.cancel();
            }
        }
        _ => {
            task_request.send_or_fail("tasks/cancel", params).await?;
        }
    }
    Ok(Reply::new("{}".into()))
}

/// The maximum number of tasks in one subscription.
const MAX_TASKS_PER_SUBSCRIPTION: usize = 100;

/// Returns the named tasks that this client may observe, each once.
///
/// # Errors
/// `-32021` for a client that names tasks but does not declare the extension.
pub fn find_observable(
    tasks: &Tasks,
    exchange: &Exchange,
    named_aliases: &[Cow<'_, str>],
) -> Result<Vec<Arc<Task>>, McpError> {
    if named_aliases.is_empty() {
        return Ok(Vec::new());
    }
    check_extension_declared(exchange)?;
    let mut seen: HashSet<&str> = HashSet::new();
    let known_tasks =
        named_aliases.iter().map(AsRef::as_ref).filter(|alias: &&str| seen.insert(alias)).filter_map(|alias| {
            let task = tasks.find(&exchange.identity.principal.name, alias).ok()?;
            task.caller.is_modern.then_some(task)
        });
    Ok(known_tasks.take(MAX_TASKS_PER_SUBSCRIPTION).collect())
}

/// A `subscriptions/listen` request that gets the states of tasks.
#[derive(Clone, Copy)]
pub struct TaskListener<'a> {
    pub exchange: &'a Exchange,
    /// The id of the request, as JSON text.
    pub subscription: &'a str,
    /// Sends a message, and returns `false` once the client has stopped reading.
    pub sink: &'a dyn Fn(Bytes) -> bool,
}

impl TaskListener<'_> {
    /// Sends the state of a task. Returns `false` once the client has stopped reading.
    pub fn notify(&self, task: &str) -> bool {
        let subscription = MemberEdit::Set(self.subscription);
        let params = merge_meta(task, &[(keys::SUBSCRIPTION_ID, subscription)]);
        (self.sink)(encode::notification("notifications/tasks", Some(&params)))
    }
}

/// Sends every new state of the tasks until each has ended, and then never returns. Each task is polled at the interval that
/// its server suggests, so it does not matter whether the server sends notifications.
pub async fn watch(listener: TaskListener<'_>, tasks: Vec<Arc<Task>>) {
    join_all(tasks.into_iter().map(|task| watch_task(listener, task))).await;
    std::future::pending().await
}

async fn watch_task(listener: TaskListener<'_>, task: Arc<Task>) {
    let Ok(task_request) = TaskRequest::new(listener.exchange, task).await else { return };
    let mut last_sent = String::new();
    loop {
        match describe(&task_request, "{}").await {
            Ok(described) => {
                let has_ended = Status::parse(&described).is_none_or(Status::is_terminal);
                let described = edit(&described, &[("_meta", MemberEdit::Drop)]);
                if described != last_sent {
                    if !listener.notify(&described) {
                        return;
                    }
                    last_sent = described;
                }
                if has_ended {
                    return;
                }
                tokio::time::sleep(task::poll_interval(&last_sent)).await;
            }
            Err(error) => {
                tracing::debug!(%error, "a task cannot be polled, so its listener gets no notifications for now");
                // A server that answers with an error no longer knows the task, except that -32021 refuses to show a question
                // to this client. After any other error the task is polled again until it expires, because the server may
                // come back.
                let is_unknown = error.passthrough.is_some() && error.kind != ErrorKind::MissingCapability;
                if is_unknown || task_request.task.is_expired() {
                    return;
                }
                tokio::time::sleep(task::poll_interval("{}")).await;
            }
        }
    }
}
