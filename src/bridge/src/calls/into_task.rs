//! Tool calls that become tasks at their upstreams, or must become tasks for their clients.

use std::time::Duration;

use serde_json::value::RawValue;

use super::prepared_call::PreparedCall;
use crate::{
    tasks::{
        ask::TaskRequest,
        awaited_task::AwaitedTask,
        declares, has_tasks, legacy, missing_extension,
        table::{Mode, Task},
        task_support,
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

/// Returns `true` if the tool's `execution.taskSupport` requires a task.
fn requires_task(definition: &str) -> bool {
    task_support(definition).is_some_and(|support| support == "required")
}

/// Returns the member that turns the call into a task, if the gateway has to add one to the client's parameters.
///
/// # Errors
/// `-32601` if a client requests a task from an upstream without tasks; `-32021` if a tool requires a task and its
/// stateless client does not declare the extension.
pub fn added_task_member(prepared: &PreparedCall<'_>) -> Result<Option<(&'static str, &'static str)>, McpError> {
    if prepared.call.verb != Verb::Tool {
        return Ok(None);
    }
    if prepared.call.plan.wants_task {
        return match has_tasks(&prepared.negotiated) {
            true => Ok(None),
            false => Err(McpError::new(ErrorKind::MethodNotFound, "this tool does not run as a task")),
        };
    }
    let stateless = prepared.call.exchange.is_modern();
    if !stateless || prepared.negotiated.revision.era() == Era::Modern || !has_tasks(&prepared.negotiated) {
        return Ok(None);
    }
    if !prepared.call.definition.is_some_and(|definition| requires_task(definition.get())) {
        return Ok(None);
    }
    if declares(&prepared.call.exchange.facts.capabilities) {
        Ok(Some(("task", "{}")))
    } else {
        Err(missing_extension())
    }
}

/// Returns the reply for a result that is a task or must become one, or `None` for any other result.
///
/// # Errors
/// [`ErrorKind::NotBridgeable`] for a task without an id.
pub fn reply_if_task(prepared: &PreparedCall<'_>, result: &RawValue) -> Result<Option<Reply>, McpError> {
    if prepared.call.verb != Verb::Tool {
        return Ok(None);
    }
    let text = result.get();
    let stateless = prepared.call.exchange.is_modern();
    match prepared.negotiated.revision.era() {
        Era::Modern if is_task(text) => {
            if stateless {
                let task = register(prepared, text, Mode::SameEra)?;
                let renamed = task_shape::with_task_id(text, &task.alias);
                // `tasks/get` contains the questions and the name of the server that asks them.
                return Ok(Some(Reply::passed_on(edit(&renamed, &[("inputRequests", MemberEdit::Drop)]))));
            }
            let task = register(prepared, text, Mode::Extension(parking_lot::Mutex::new(false)))?;
            let status = Status::parse(text).unwrap_or(Status::Working);
            Ok(Some(create_task_reply(&task_shape::legacy(text, &task.alias, status))))
        }
        Era::Modern if !stateless && prepared.call.plan.wants_task => {
            // The upstream answered at once without a task, but the client has requested one.
            let (times, outcome) = (Times::now(), Ok(result.to_owned()));
            let task = insert(
                prepared,
                Task::new(
                    String::new(),
                    prepared.call.upstream,
                    prepared.caller.clone(),
                    Mode::Done(outcome, times),
                    None,
                ),
            );
            Ok(Some(create_task_reply(&task_shape::local(&task.alias, Status::Working, &times))))
        }
        Era::Modern => Ok(None),
        Era::Legacy => {
            let Some(created) = member(text, "task").filter(|task| task_shape::task_id(task).is_some()) else {
                return Ok(None);
            };
            if !stateless && prepared.call.plan.wants_task {
                let task = register(prepared, created, Mode::SameEra)?;
                let renamed = task_shape::with_task_id(created, &task.alias);
                let json = edit(text, &[("task", MemberEdit::Set(&renamed))]);
                return Ok(Some(Reply::passed_on(json)));
            }
            if !stateless || !prepared.requests_task() {
                return Ok(None);
            }
            let declared = std::sync::Arc::clone(&prepared.call.exchange.facts.capabilities);
            let server = prepared.call.upstream.config.name.clone();
            let awaited = AwaitedTask::new(created, prepared.caller.capabilities.clone(), declared, server);
            let task = register(prepared, created, Mode::AwaitedTask(awaited.clone()))?;
            awaited.wait(&task, prepared.call.upstream);
            let described = task_shape::modern(created, &task.alias, Status::Working, None);
            let json = task_shape::with_result_type(&described, "task");
            let meta = ("_meta", MemberEdit::Set(SERVER_META));
            Ok(Some(Reply::passed_on(edit(&json, &[meta]))))
        }
    }
}

/// Returns `true` for a result of the extension that creates a task.
#[must_use]
pub fn is_task(result: &str) -> bool {
    ResultMembers::parse(result).result_type.and_then(string).is_some_and(|kind| kind == "task")
}

/// Returns the `CreateTaskResult` of 2025-11-25.
fn create_task_reply(task: &str) -> Reply {
    Reply::passed_on(format!(r#"{{"task":{task}}}"#))
}

fn register(prepared: &PreparedCall<'_>, task: &str, mode: Mode) -> Result<std::sync::Arc<Task>, McpError> {
    let upstream_id = task_shape::task_id(task)
        .ok_or_else(|| McpError::new(ErrorKind::NotBridgeable, "the upstream's task has no id"))?;
    let ttl: Option<Duration> = task_shape::duration_ms(task, "ttlMs").or_else(|| task_shape::duration_ms(task, "ttl"));
    Ok(insert(prepared, Task::new(upstream_id, prepared.call.upstream, prepared.caller.clone(), mode, ttl)))
}

fn insert(prepared: &PreparedCall<'_>, task: Task) -> std::sync::Arc<Task> {
    prepared.call.bridge.tasks.insert(task)
}

/// Returns the reply for a task that a stateless upstream created for a handshake-era client. The client may not have
/// requested a task.
///
/// # Errors
/// The error with which the task fails.
pub async fn reply_for_legacy_client(prepared: &PreparedCall<'_>, response: Response) -> Result<Reply, McpError> {
    match &response {
        Response::Result(result) if !prepared.call.plan.wants_task => {
            wait_for_task_result(prepared, result.get()).await
        }
        _ => prepared.reply(response),
    }
}

/// Waits for the result of a task, for a handshake-era client that did not request one.
async fn wait_for_task_result(prepared: &PreparedCall<'_>, created: &str) -> Result<Reply, McpError> {
    let exchange = prepared.call.exchange;
    let task = register(prepared, created, Mode::Extension(parking_lot::Mutex::new(false)))?;
    let task_request = TaskRequest::new(exchange, task)?;
    let mut cancel_guard = legacy::CancelOnDrop::new(&task_request);
    let result = legacy::extension_result(&task_request, None).await;
    cancel_guard.disarm();
    prepared.call.bridge.tasks.forget(&task_request.task.alias);
    let result = result?;
    let failed = member(&result, "isError") == Some("true");
    Ok(Reply::passed_on(result).failing(failed.then_some(ErrorKind::ToolExecution)))
}
