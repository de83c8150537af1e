//! Tasks of upstreams: the experimental ones of 2025-11-25 (basic/utilities/tasks) and those of the extension
//! `io.modelcontextprotocol/tasks`, which are wire-incompatible, for clients of either kind.
//!
//! | | upstream of 2025-11-25 | stateless upstream |
//! |---|---|---|
//! | client of 2025-11-25 | passed on under another id | the old verbs over the extension; a client that wants no task gets the result once it is there |
//! | stateless client | the gateway augments the call where the tool wants that, and waits for its result ([`awaited_task`]) | passed on under another id |
//!
//! Ids towards clients are the gateway's own: unguessable, and of use to one principal only ([`table`]).

pub mod ask;
pub mod awaited_task;
pub mod legacy;
pub mod listen;
mod modern;
pub mod table;
#[cfg(test)]
mod tests;

use serde_json::{json, value::RawValue};

use crate::translation::task_shape;
use ask::EXTENSION;
use countersign_exchange::{context::Exchange, reply::Reply};
use countersign_protocol::{
    Era, ErrorKind, McpError, Revision,
    envelope::Request,
    json::{member, string},
    method::Method,
    outline::OutlinedObject,
};
use countersign_upstream::{NegotiatedSession, Upstream};
pub use legacy::list;
pub use table::Tasks;

/// Returns `true` if capabilities, as JSON text, declare the extension.
#[must_use]
pub fn declares(capabilities: &str) -> bool {
    member(capabilities, "extensions").is_some_and(|extensions| member(extensions, EXTENSION).is_some())
}

/// Returns `true` if tools of that upstream may run as tasks.
#[must_use]
pub fn has_tasks(negotiated: &NegotiatedSession) -> bool {
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
pub fn wanted(exchange: &Exchange, params: &OutlinedObject<'_>) -> bool {
    exchange.revision() == Revision::V2025_11_25 && params.member("task").is_some_and(|task| task.starts_with('{'))
}

/// The tool's `execution.taskSupport`.
#[must_use]
pub fn task_support(definition: &str) -> Option<std::borrow::Cow<'_, str>> {
    member(definition, "execution").and_then(|execution| member(execution, "taskSupport")).and_then(string)
}

/// Returns `true` if the gateway declares the extension to a stateless upstream for a client that cannot know it.
#[must_use]
pub fn speaks_for(client: Revision, upstream: &NegotiatedSession) -> bool {
    client.era() == Era::Legacy && upstream.revision.era() == Era::Modern && has_tasks(upstream)
}

/// For a stateless client that cannot have a task, or speaks of one.
#[must_use]
pub fn undeclared() -> McpError {
    McpError::new(ErrorKind::MissingCapability, "Missing required client capability")
        .with("requiredCapabilities", json!({ "extensions": { EXTENSION: {} } }))
}

/// Checks that the client may send requests about tasks.
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
    task_shape::id(params).ok_or_else(|| {
        McpError::new(ErrorKind::InvalidParams, "`taskId` must be a string").with("member", "params.taskId")
    })
}

/// Requests about one task of an upstream.
///
/// # Errors
/// `-32602` for a task that is not the client's own.
pub async fn handle(
    tasks: &Tasks,
    exchange: &Exchange,
    method: Method,
    request: &Request<'_>,
    alias: &str,
) -> Result<Reply, McpError> {
    let task = tasks.find(&exchange.identity.principal.name, alias)?;
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
