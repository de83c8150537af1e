//! `notifications/tasks` for the tasks that a `subscriptions/listen` names (ext-tasks, "Task Status Notifications").
//!
//! The gateway polls each task at the interval that its server suggests, and notifies the client of every change. So it
//! does not matter whether the upstream sends notifications.

use std::{collections::HashSet, sync::Arc};

use bytes::Bytes;
use futures_util::future::join_all;

use super::{Tasks, ask::TaskRequest, awaited_task, declares, missing_extension, modern, table::Task};
use crate::translation::task_shape::{self, Status};
use countersign_exchange::context::Exchange;
use countersign_protocol::McpError;

/// The maximum number of tasks in one subscription.
const MAX_TASKS: usize = 100;

/// Returns the named tasks that this client may observe, each once.
///
/// # Errors
/// `-32021` for a client that names tasks but does not declare the extension.
pub fn permitted(
    tasks: &Tasks,
    exchange: &Exchange,
    named: &[std::borrow::Cow<'_, str>],
) -> Result<Vec<Arc<Task>>, McpError> {
    if named.is_empty() {
        return Ok(Vec::new());
    }
    if !declares(&exchange.facts.capabilities) {
        return Err(missing_extension());
    }
    let mut seen: HashSet<&str> = HashSet::new();
    let known = named.iter().map(AsRef::as_ref).filter(|alias: &&str| seen.insert(alias)).filter_map(|alias| {
        let task = tasks.find(&exchange.identity.principal.name, alias).ok()?;
        task.caller.stateless.then_some(task)
    });
    Ok(known.take(MAX_TASKS).collect())
}

/// Sends every change of the tasks to `sink` until each has ended, and then never returns. `subscription` is the id of
/// the listen request, as JSON text. `sink` returns `false` once the client has stopped reading.
pub async fn watch(exchange: &Exchange, tasks: Vec<Arc<Task>>, subscription: &str, sink: &dyn Fn(Bytes) -> bool) {
    join_all(tasks.into_iter().map(|task| watch_task(exchange, task, subscription, sink))).await;
    std::future::pending().await
}

async fn watch_task(exchange: &Exchange, task: Arc<Task>, subscription: &str, sink: &dyn Fn(Bytes) -> bool) {
    let Ok(task_request) = TaskRequest::new(exchange, task) else { return };
    let mut last_sent = String::new();
    loop {
        match modern::describe(&task_request, "{}").await {
            Ok(described) => {
                let ended = Status::parse(&described).is_none_or(Status::is_terminal);
                let described = countersign_protocol::json::edit(
                    &described,
                    &[("_meta", countersign_protocol::json::MemberEdit::Drop)],
                );
                if described != last_sent {
                    if !sink(awaited_task::notification(&described, subscription)) {
                        return;
                    }
                    last_sent = described;
                }
                if ended {
                    return;
                }
                tokio::time::sleep(task_shape::poll_interval(&last_sent)).await;
            }
            Err(error) => {
                tracing::debug!(%error, "a task cannot be polled, so its listener gets no notifications for now");
                // After an error of the server itself the task is unknown there. Otherwise it is polled again, because
                // the server may come back.
                if error.passthrough.is_some() {
                    return;
                }
                tokio::time::sleep(task_shape::poll_interval("{}")).await;
            }
        }
    }
}
