//! Calls of tools that become tasks at their upstreams, or have to become one for their clients.

use std::time::Duration;

use serde_json::value::RawValue;

use super::ready::Ready;
use crate::{
    tasks::{
        ask::TaskRequest,
        awaited_task::AwaitedTask,
        declares, has_tasks, legacy,
        table::{Mode, Task},
        task_support, undeclared,
    },
    translation::{
        request::Verb,
        result::ResultMembers,
        task_shape::{self, Status, Times},
    },
};
use countersign_exchange::reply::{Reply, SERVER_META};
use countersign_protocol::{
    Era, ErrorKind, McpError,
    json::{MemberEdit, edit, member, string},
};
use countersign_upstream::Response;

/// The tool's `execution.taskSupport` insists on a task.
fn wants_task(definition: &str) -> bool {
    task_support(definition).is_some_and(|support| support == "required")
}

/// Returns the member that turns the call into a task, in addition to the client's own parameters.
///
/// # Errors
/// `-32601` where a client wants a task of an upstream that has none; `-32021` for a stateless client that cannot have
/// the task that a tool insists on.
pub fn augmentation(ready: &Ready<'_>) -> Result<Option<(&'static str, &'static str)>, McpError> {
    if ready.call.verb != Verb::Tool {
        return Ok(None);
    }
    if ready.call.plan.wants_task {
        return match has_tasks(&ready.negotiated) {
            true => Ok(None),
            false => Err(McpError::new(ErrorKind::MethodNotFound, "this tool does not run as a task")),
        };
    }
    let stateless = ready.call.exchange.is_modern();
    if !stateless || ready.negotiated.revision.era() == Era::Modern || !has_tasks(&ready.negotiated) {
        return Ok(None);
    }
    if !ready.call.definition.is_some_and(|definition| wants_task(definition.get())) {
        return Ok(None);
    }
    if declares(&ready.call.exchange.facts.capabilities) { Ok(Some(("task", "{}"))) } else { Err(undeclared()) }
}

/// Returns the reply for a result that is a task or has to become one; `None` for any other result.
///
/// # Errors
/// [`ErrorKind::NotBridgeable`] for a task without an id.
pub fn created(ready: &Ready<'_>, result: &RawValue) -> Result<Option<Reply>, McpError> {
    if ready.call.verb != Verb::Tool {
        return Ok(None);
    }
    let text = result.get();
    let stateless = ready.call.exchange.is_modern();
    match ready.negotiated.revision.era() {
        Era::Modern if is_task(text) => {
            if stateless {
                let task = register(ready, text, Mode::Same)?;
                let renamed = task_shape::with_task_id(text, &task.alias);
                // What it asks stands in `tasks/get`, where it says who does.
                return Ok(Some(Reply::passed_on(edit(&renamed, &[("inputRequests", MemberEdit::Drop)]))));
            }
            let task = register(ready, text, Mode::Extension(parking_lot::Mutex::new(false)))?;
            let status = Status::parse(text).unwrap_or(Status::Working);
            Ok(Some(wrapped(&task_shape::legacy(text, &task.alias, status))))
        }
        Era::Modern if !stateless && ready.call.plan.wants_task => {
            // It was quicker than a task; the client wants one all the same.
            let (times, outcome) = (Times::now(), Ok(result.to_owned()));
            let task = insert(
                ready,
                Task::new(String::new(), ready.call.upstream, ready.caller.clone(), Mode::Done(outcome, times), None),
            );
            Ok(Some(wrapped(&task_shape::local(&task.alias, Status::Working, &times))))
        }
        Era::Modern => Ok(None),
        Era::Legacy => {
            let Some(created) = member(text, "task").filter(|task| task_shape::id(task).is_some()) else {
                return Ok(None);
            };
            if !stateless && ready.call.plan.wants_task {
                let task = register(ready, created, Mode::Same)?;
                let renamed = task_shape::with_task_id(created, &task.alias);
                let json = edit(text, &[("task", MemberEdit::Set(&renamed))]);
                return Ok(Some(Reply::passed_on(json)));
            }
            if !stateless || !ready.augmented() {
                return Ok(None);
            }
            let declared = std::sync::Arc::clone(&ready.call.exchange.facts.capabilities);
            let server = ready.call.upstream.config.name.clone();
            let waiting = AwaitedTask::new(created, ready.caller.capabilities.clone(), declared, server);
            let task = register(ready, created, Mode::AwaitedTask(waiting.clone()))?;
            waiting.wait(&task, ready.call.upstream);
            let described = task_shape::modern(created, &task.alias, Status::Working, None);
            let json = task_shape::with_result_type(&described, "task");
            let meta = ("_meta", MemberEdit::Set(SERVER_META));
            Ok(Some(Reply::passed_on(edit(&json, &[meta]))))
        }
    }
}

/// A result of the extension that creates a task.
#[must_use]
pub fn is_task(result: &str) -> bool {
    ResultMembers::parse(result).result_type.and_then(string).is_some_and(|kind| kind == "task")
}

/// `CreateTaskResult` of 2025-11-25.
fn wrapped(task: &str) -> Reply {
    Reply::passed_on(format!(r#"{{"task":{task}}}"#))
}

fn register(ready: &Ready<'_>, task: &str, mode: Mode) -> Result<std::sync::Arc<Task>, McpError> {
    let own =
        task_shape::id(task).ok_or_else(|| McpError::new(ErrorKind::NotBridgeable, "the upstream's task has no id"))?;
    let ttl: Option<Duration> = task_shape::millis(task, "ttlMs").or_else(|| task_shape::millis(task, "ttl"));
    Ok(insert(ready, Task::new(own, ready.call.upstream, ready.caller.clone(), mode, ttl)))
}

fn insert(ready: &Ready<'_>, task: Task) -> std::sync::Arc<Task> {
    ready.call.bridge.tasks.insert(task)
}

/// A task that a stateless upstream made for a handshake-era client, which may have wanted one or not.
///
/// # Errors
/// As the task fails.
pub async fn for_legacy(ready: &Ready<'_>, response: Response) -> Result<Reply, McpError> {
    match &response {
        Response::Result(result) if !ready.call.plan.wants_task => follow(ready, result.get()).await,
        _ => ready.reply(response),
    }
}

/// A handshake-era client that wanted no task gets the result of one that a stateless upstream made.
async fn follow(ready: &Ready<'_>, created: &str) -> Result<Reply, McpError> {
    let exchange = ready.call.exchange;
    let task = register(ready, created, Mode::Extension(parking_lot::Mutex::new(false)))?;
    let about = TaskRequest::new(exchange, task)?;
    let mut abandoned = legacy::CancelOnDrop::new(&about);
    let result = legacy::extension_result(&about, None).await;
    abandoned.disarm();
    ready.call.bridge.tasks.forget(&about.task.alias);
    let result = result?;
    let failed = member(&result, "isError") == Some("true");
    Ok(Reply::passed_on(result).failing(failed.then_some(ErrorKind::ToolExecution)))
}
