//! Tasks of upstreams for clients of either era. The experimental tasks of 2025-11-25 (basic/utilities/tasks) and those
//! of the extension `io.modelcontextprotocol/tasks` are incompatible on the wire.
//!
//! | | upstream of 2025-11-25 | stateless upstream |
//! |---|---|---|
//! | client of 2025-11-25 | passed on under another id | the methods of 2025-11-25 over the extension; a client that requests no task gets the result once it is available |
//! | stateless client | the gateway requests the task if the tool requires one, and waits for its result ([`awaited_task`]) | passed on under another id |
//! | client without tasks | the gateway requests the task if the tool requires one, and answers the call with its result | an older client gets the result once it is available; otherwise the server knows that it must not answer with a task |
//!
//! Clients see ids of the gateway, which are unguessable and valid for one principal only ([`table`]).

pub mod awaited_task;
pub mod kept_outcome;
pub mod legacy;
pub mod modern;
pub mod request;
pub mod table;
#[cfg(test)]
mod tests;

use serde_json::{json, value::RawValue};

use countersign_exchange::{context::Exchange, reply::Reply};
use countersign_protocol::{
    Era, ErrorKind, McpError, Method, Revision, envelope::Request, json::member, outline::OutlinedObject, task,
};
use countersign_upstream::{NegotiatedSession, Upstream};
pub use legacy::list;
pub use modern::TaskListener;
pub use table::Tasks;

/// Returns `true` if a call of the tool may be passed on as a task: its upstream has tasks, and the definition allows
/// them for this tool.
pub fn can_run_as_task(upstream: &Upstream, definition: Option<&RawValue>) -> bool {
    let support = definition.and_then(|definition| task::task_support(definition.get()));
    support.is_some_and(|support| support != "forbidden")
        && upstream.negotiated().is_some_and(|negotiated| negotiated.has_tasks())
}

/// Returns `true` if a client of 2025-11-25 requests this call as a task.
pub fn is_requested(exchange: &Exchange, params: &OutlinedObject<'_>) -> bool {
    exchange.revision() == Revision::V2025_11_25 && params.member("task").is_some_and(|task| task.starts_with('{'))
}

/// Returns `true` if the gateway declares the extension to a stateless upstream for a client that cannot know it.
pub fn declares_extension_for(client: Revision, upstream: &NegotiatedSession) -> bool {
    client.era() == Era::Legacy && upstream.revision.era() == Era::Modern && upstream.has_tasks()
}

/// Returns the error for a stateless client that needs the extension and does not declare it.
pub fn missing_extension_error() -> McpError {
    McpError::new(ErrorKind::MissingCapability, "Missing required client capability")
        .with("requiredCapabilities", json!({ "extensions": { task::TASKS_EXTENSION: {} } }))
}

/// Checks that the client may send requests about tasks.
///
/// # Errors
/// `-32021` for a stateless client that does not declare the extension.
pub fn check_extension_declared(exchange: &Exchange) -> Result<(), McpError> {
    if exchange.is_modern() && !task::is_extension_declared(&exchange.facts.capabilities) {
        return Err(missing_extension_error());
    }
    Ok(())
}

/// Returns the id of the task that a request names.
///
/// # Errors
/// `-32602` if the request names no task.
pub fn requested_task_id(params: &str) -> Result<String, McpError> {
    task::task_id(params).ok_or_else(|| {
        McpError::new(ErrorKind::InvalidParams, "`taskId` must be a string").with("member", "params.taskId")
    })
}

/// Returns the answers of a client in a `tasks/update`, a JSON object.
///
/// # Errors
/// `-32602` for `inputResponses` that are not an object.
pub fn input_responses(params: &str) -> Result<&str, McpError> {
    member(params, "inputResponses").filter(|responses| responses.starts_with('{')).ok_or_else(|| {
        McpError::new(ErrorKind::InvalidParams, "`inputResponses` must be an object")
            .with("member", "params.inputResponses")
    })
}

/// Answers a request about one task of an upstream. `alias` is the client's id of the task.
///
/// # Errors
/// `-32602` for an unknown task and for one of another principal or era, `-32601` for a method that the client's era
/// does not have, and the errors of the method's handler.
pub async fn handle(
    tasks: &Tasks,
    exchange: &Exchange,
    method: Method,
    request: &Request<'_>,
    alias: &str,
) -> Result<Reply, McpError> {
    let task = tasks.find(&exchange.identity.principal.name, alias)?;
    // A task of one era is unknown to clients of the other era.
    if task.caller.is_modern != exchange.is_modern() {
        return Err(table::unknown_task_error(alias));
    }
    let params = request.params.map_or("{}", RawValue::get);
    match (method, exchange.is_modern()) {
        (Method::TasksGet, true) => modern::get(exchange, task, params).await,
        (Method::TasksUpdate, true) => modern::update(exchange, task, params).await,
        (Method::TasksCancel, true) => modern::cancel(exchange, task, params).await,
        (Method::TasksGet, false) => legacy::get(exchange, task).await,
        (Method::TasksResult, false) => legacy::result(exchange, task, params).await,
        (Method::TasksCancel, false) => legacy::cancel(exchange, task, params).await,
        _ => Err(McpError::new(ErrorKind::MethodNotFound, "no such method for tasks in this protocol revision")),
    }
}
