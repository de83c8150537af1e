//! `notifications/tasks` for the tasks that a `subscriptions/listen` names (ext-tasks, "Task Status Notifications").
//!
//! The gateway asks for each task as often as its server suggests, whatever kind of server that is, and tells the client
//! of every change. So nothing depends on whether the upstream pushes.

use std::{collections::HashSet, sync::Arc};

use bytes::Bytes;
use futures_util::future::join_all;

use super::{Tasks, ask::TaskRequest, awaited_task, declares, modern, table::Task, undeclared};
use crate::translation::task_shape::{self, Status};
use countersign_exchange::context::Exchange;
use countersign_protocol::McpError;

/// Tasks of one subscription at most.
const MAX_TASKS: usize = 100;

/// The tasks among those named that this client may hear of, each once.
///
/// # Errors
/// `-32021` for a client that does not declare the extension and names some.
pub fn honoured(
    tasks: &Tasks,
    exchange: &Exchange,
    named: &[std::borrow::Cow<'_, str>],
) -> Result<Vec<Arc<Task>>, McpError> {
    if named.is_empty() {
        return Ok(Vec::new());
    }
    if !declares(&exchange.facts.capabilities) {
        return Err(undeclared());
    }
    let mut seen: HashSet<&str> = HashSet::new();
    let known = named.iter().map(AsRef::as_ref).filter(|alias: &&str| seen.insert(alias)).filter_map(|alias| {
        let task = tasks.find(&exchange.identity.principal.name, alias).ok()?;
        task.caller.stateless.then_some(task)
    });
    Ok(known.take(MAX_TASKS).collect())
}

/// Tells of every change of those tasks until each has ended, and then stays. `subscription` is the id of the listen
/// request, as JSON text; `sink` gives `false` once nobody reads.
pub async fn watch(exchange: &Exchange, tasks: Vec<Arc<Task>>, subscription: &str, sink: &dyn Fn(Bytes) -> bool) {
    join_all(tasks.into_iter().map(|task| one(exchange, task, subscription, sink))).await;
    std::future::pending().await
}

async fn one(exchange: &Exchange, task: Arc<Task>, subscription: &str, sink: &dyn Fn(Bytes) -> bool) {
    let Ok(about) = TaskRequest::new(exchange, task) else { return };
    let mut told = String::new();
    loop {
        match modern::describe(&about, "{}").await {
            Ok(described) => {
                let ended = Status::parse(&described).is_none_or(Status::is_terminal);
                let described = countersign_protocol::json::edit(
                    &described,
                    &[("_meta", countersign_protocol::json::MemberEdit::Drop)],
                );
                if described != told {
                    if !sink(awaited_task::notification(&described, subscription)) {
                        return;
                    }
                    told = described;
                }
                if ended {
                    return;
                }
                tokio::time::sleep(task_shape::pause(&told)).await;
            }
            Err(error) => {
                tracing::debug!(%error, "a task cannot be asked for; its listener hears nothing for now");
                // It has been forgotten there, or comes back with its server.
                if error.passthrough.is_some() {
                    return;
                }
                tokio::time::sleep(task_shape::pause("{}")).await;
            }
        }
    }
}
