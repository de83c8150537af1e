//! Tasks of upstreams: the experimental ones of 2025-11-25 (basic/utilities/tasks) and those of the extension
//! `io.modelcontextprotocol/tasks`, which are wire-incompatible, for clients of either kind.
//!
//! | | upstream of 2025-11-25 | stateless upstream |
//! |---|---|---|
//! | client of 2025-11-25 | passed on under another id | the old verbs over the extension; a client that wants no task gets the result once it is there |
//! | stateless client | the gateway augments the call where the tool wants that, and waits for its result ([`augmented`]) | passed on under another id |
//!
//! Ids towards clients are the gateway's own: unguessable, and of use to one principal only ([`table`]).

pub mod ask;
pub mod augmented;
mod legacy;
pub mod listen;
mod modern;
pub mod shape;
pub mod table;
#[cfg(test)]
mod tests;

use std::time::Duration;

use serde_json::{json, value::RawValue};

use super::{Ready, Verb, result::Glance};
use crate::Bridge;
use ask::{About, EXTENSION};
use augmented::Augmented;
use countersign_exchange::{context::Exchange, reply::Reply};
use countersign_protocol::{
    Era, ErrorKind, McpError, Revision,
    envelope::Request,
    json::{Op, edit, member, string},
    method::Method,
    outline::Object,
};
use countersign_upstream::{Negotiated, Response, Upstream};
pub use legacy::list;
use shape::{Status, Times};
pub use table::Tasks;
use table::{Mode, Task};

/// Whether capabilities, as JSON text, declare the extension.
#[must_use]
pub fn declares(capabilities: &str) -> bool {
    member(capabilities, "extensions").is_some_and(|extensions| member(extensions, EXTENSION).is_some())
}

/// Whether tools of that upstream may run as tasks.
fn has_tasks(negotiated: &Negotiated) -> bool {
    let capabilities = negotiated.capabilities.get();
    match negotiated.revision.era() {
        Era::Modern => declares(capabilities),
        Era::Legacy => {
            let requests = member(capabilities, "tasks").and_then(|tasks| member(tasks, "requests"));
            requests.and_then(|requests| member(requests, "tools")).is_some_and(|tools| member(tools, "call").is_some())
        }
    }
}

/// Whether a call of that tool may be passed on as the task that its client wants: its server has tasks, and says so of
/// this tool.
#[must_use]
pub fn runs_there(upstream: &Upstream, definition: Option<&RawValue>) -> bool {
    let support = definition.and_then(|definition| task_support(definition.get()));
    support.is_some_and(|support| support != "forbidden")
        && upstream.negotiated().is_some_and(|negotiated| has_tasks(&negotiated))
}

/// The client of 2025-11-25 wants this call to be a task.
#[must_use]
pub fn wanted(exchange: &Exchange, params: &Object<'_>) -> bool {
    exchange.revision() == Revision::V2025_11_25 && params.member("task").is_some_and(|task| task.starts_with('{'))
}

/// The tool's `execution.taskSupport`.
fn task_support(definition: &str) -> Option<std::borrow::Cow<'_, str>> {
    member(definition, "execution").and_then(|execution| member(execution, "taskSupport")).and_then(string)
}

/// The tool's `execution.taskSupport` insists on a task.
fn wants_task(definition: &str) -> bool {
    task_support(definition).is_some_and(|support| support == "required")
}

/// What a call gets beside the client's own parameters so that it becomes a task.
///
/// # Errors
/// `-32601` where a client wants a task of an upstream that has none; `-32021` for a stateless client that cannot have
/// the task that a tool insists on.
pub fn augmentation(ready: &Ready<'_>) -> Result<Option<(&'static str, &'static str)>, McpError> {
    if ready.call.verb != Verb::Tool {
        return Ok(None);
    }
    if ready.wants_task {
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

/// Whether a stateless upstream is told of the extension on behalf of a client that cannot know it.
#[must_use]
pub fn speaks_for(client: Revision, upstream: &Negotiated) -> bool {
    client.era() == Era::Legacy && upstream.revision.era() == Era::Modern && has_tasks(upstream)
}

/// For a stateless client that cannot have a task, or speaks of one.
#[must_use]
pub fn undeclared() -> McpError {
    McpError::new(ErrorKind::MissingCapability, "Missing required client capability")
        .with("requiredCapabilities", json!({ "extensions": { EXTENSION: {} } }))
}

fn broken(why: &'static str) -> McpError {
    McpError::new(ErrorKind::NotBridgeable, why)
}

/// What becomes of a call's result that is a task, or has to become one; `None` where neither is so.
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
                let renamed = shape::renamed(text, &task.alias);
                // What it asks stands in `tasks/get`, where it says who does.
                return Ok(Some(Reply::passed_on(edit(&renamed, &[("inputRequests", Op::Drop)]))));
            }
            let task = register(ready, text, Mode::Extension(parking_lot::Mutex::new(false)))?;
            let status = Status::of(text).unwrap_or(Status::Working);
            Ok(Some(wrapped(&shape::legacy(text, &task.alias, status))))
        }
        Era::Modern if !stateless && ready.wants_task => {
            // It was quicker than a task; the client wants one all the same.
            let (times, outcome) = (Times::now(), Ok(result.to_owned()));
            let task = insert(
                ready,
                Task::new(String::new(), ready.call.upstream, ready.caller.clone(), Mode::Done(outcome, times), None),
            );
            Ok(Some(wrapped(&shape::local(&task.alias, Status::Working, &times))))
        }
        Era::Modern => Ok(None),
        Era::Legacy => {
            let Some(created) = member(text, "task").filter(|task| shape::id(task).is_some()) else { return Ok(None) };
            if !stateless && ready.wants_task {
                let task = register(ready, created, Mode::Same)?;
                let renamed = shape::renamed(created, &task.alias);
                let json = edit(text, &[("task", Op::Set(&renamed))]);
                return Ok(Some(Reply::passed_on(json)));
            }
            if !stateless || !ready.augmented() {
                return Ok(None);
            }
            let declared = std::sync::Arc::clone(&ready.call.exchange.facts.capabilities);
            let server = ready.call.upstream.config.name.clone();
            let waiting = Augmented::new(created, ready.caller.capabilities.clone(), declared, server);
            let task = register(ready, created, Mode::Augmented(waiting.clone()))?;
            waiting.wait(&task, ready.call.upstream);
            let described = shape::modern(created, &task.alias, Status::Working, None);
            let json = shape::typed(&described, "task");
            let meta = ("_meta", Op::Set(&ready.call.exchange.services.server_meta));
            Ok(Some(Reply::passed_on(edit(&json, &[meta]))))
        }
    }
}

/// A result of the extension that creates a task.
#[must_use]
pub fn is_task(result: &str) -> bool {
    Glance::at(result).result_type.and_then(string).is_some_and(|kind| kind == "task")
}

/// `CreateTaskResult` of 2025-11-25.
fn wrapped(task: &str) -> Reply {
    Reply::passed_on(format!(r#"{{"task":{task}}}"#))
}

fn register(ready: &Ready<'_>, task: &str, mode: Mode) -> Result<std::sync::Arc<Task>, McpError> {
    let own = shape::id(task).ok_or_else(|| broken("the upstream's task has no id"))?;
    let ttl: Option<Duration> = shape::millis(task, "ttlMs").or_else(|| shape::millis(task, "ttl"));
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
        Response::Result(result) if !ready.wants_task => follow(ready, result.get()).await,
        _ => ready.reply(response),
    }
}

/// A handshake-era client that wanted no task gets the result of one that a stateless upstream made.
async fn follow(ready: &Ready<'_>, created: &str) -> Result<Reply, McpError> {
    let exchange = ready.call.exchange;
    let task = register(ready, created, Mode::Extension(parking_lot::Mutex::new(false)))?;
    let about = About::new(exchange, task)?;
    let mut abandoned = legacy::Abandon::new(&about);
    let result = legacy::extension_result(&about, None).await;
    abandoned.over();
    ready.call.bridge.tasks.forget(&about.task.alias);
    let result = result?;
    let failed = member(&result, "isError") == Some("true");
    Ok(Reply::passed_on(result).failing(failed.then_some(ErrorKind::ToolExecution)))
}

/// Whether the client may speak of tasks.
///
/// # Errors
/// `-32021` for a stateless client that does not declare the extension.
pub fn declared(exchange: &Exchange) -> Result<(), McpError> {
    if exchange.is_modern() && !declares(&exchange.facts.capabilities) {
        return Err(undeclared());
    }
    Ok(())
}

/// The task that a request is about.
///
/// # Errors
/// `-32602` where it names none.
pub fn id(params: &str) -> Result<String, McpError> {
    shape::id(params).ok_or_else(|| {
        McpError::new(ErrorKind::InvalidParams, "`taskId` must be a string").with("member", "params.taskId")
    })
}

/// Requests about one task of an upstream.
///
/// # Errors
/// `-32602` for a task that is not the client's own.
pub async fn handle(
    bridge: &Bridge,
    exchange: &Exchange,
    method: Method,
    request: &Request<'_>,
    alias: &str,
) -> Result<Reply, McpError> {
    let task = bridge.tasks.of(&exchange.identity.principal.name, alias)?;
    // Ids of one kind of task mean nothing among the other.
    if task.caller.stateless != exchange.is_modern() {
        return Err(McpError::new(ErrorKind::InvalidParams, "Task not found").with("taskId", alias.to_owned()));
    }
    match (method, exchange.is_modern()) {
        (Method::TasksGet, true) => modern::get(exchange, task, request).await,
        (Method::TasksUpdate, _) => modern::update(exchange, task, request).await,
        (Method::TasksCancel, true) => modern::cancel(exchange, task, request).await,
        (Method::TasksGet, false) => legacy::get(exchange, task).await,
        (Method::TasksResult, _) => legacy::result(exchange, task, request).await,
        _ => legacy::cancel(exchange, task, request).await,
    }
}
