//! Turns an upstream's response into the reply to the client. The response to a tool call may be a task, or must become
//! one for its client.

use std::sync::Arc;

use serde_json::value::RawValue;

use super::{prepared_call::PreparedCall, tool_error_reply};
use crate::{
    questions,
    tasks::{
        awaited_task::AwaitedTask,
        kept_outcome::{KeptOutcome, TaskOutcome},
        legacy,
        request::TaskRequest,
        table::{Task, TaskKind},
    },
    translation::{
        error,
        request::RequestedItem,
        result::{InputRequest, ResultMembers, ResultType, input_required_result, is_error_result},
        task_json::{self, TaskTimes},
    },
};
use countersign_domain::questions::{
    ELICITATION, check_capabilities,
    elicitation::{attribute_params, checked_url},
    is_url_elicitation,
};
use countersign_exchange::{
    memory::MemoryShare,
    reply::{Reply, SERVER_META},
};
use countersign_protocol::{
    Era, ErrorKind, McpError,
    json::{MemberEdit, edit, elements, member, string},
    rpc_error::RpcError,
    task::{self, Status},
};
use countersign_upstream::Response;

impl PreparedCall<'_> {
    /// Converts an upstream's response into the reply.
    pub(super) fn reply(&self, response: Response) -> Result<Reply, McpError> {
        let client = self.call.exchange.revision();
        if self.may_be_task()
            && let Response::Result(result) = &response
            && let Some(reply) = reply_if_task(self, result)?
        {
            return Ok(reply);
        }
        match response {
            Response::Result(result) => self.response_adapter().reply(result),
            Response::Error(rpc) => {
                if rpc.code == error::URL_ELICITATION_REQUIRED
                    && let Some(reply) = self.elicitations_as_input(&rpc)
                {
                    return Ok(reply);
                }
                let attributed = self.attribute_urls(&rpc)?;
                let rpc = attributed.unwrap_or(rpc);
                let error = self.response_adapter().adapt_error(&rpc);
                let error = questions::explain_withheld_capability(&self.call.upstream.config, error);
                // No error code of the client's era expresses this, but a tool result at least reaches the model.
                if error.kind == ErrorKind::NotBridgeable && self.call.item.is_tool() && client.era() == Era::Legacy {
                    return Ok(tool_error_reply(&error));
                }
                Err(error)
            }
        }
    }

    /// Turns the error with which a handshake-era upstream asks for pages to be opened first into a result that asks a
    /// stateless client for input. Returns `None` for any other error. The upstream runs the call only when the client
    /// retries it (2025-11-25/client/elicitation).
    fn elicitations_as_input(&self, error: &RpcError) -> Option<Reply> {
        let (client, upstream) = (self.call.exchange.revision(), self.negotiated.revision);
        if (upstream.era(), client.era()) != (Era::Legacy, Era::Modern)
            || matches!(self.call.item, RequestedItem::Completion(_))
            || !self.caller.capabilities.elicitation_url
        {
            return None;
        }
        let elicitations = member(error.data.as_deref()?.get(), "elicitations")?;
        let is_allowed = |elicitation: &str| {
            is_url_elicitation(ELICITATION, Some(elicitation))
                && check_capabilities(&self.caller.capabilities, ELICITATION, Some(elicitation)).is_ok()
        };
        let upstream_name = &self.call.upstream.config.name;
        let elicitations: Vec<(String, String)> = elements(elicitations)
            .enumerate()
            .filter(|(_, (_, elicitation))| is_allowed(elicitation))
            .map(|(index, (_, elicitation))| {
                let id = member(elicitation, "elicitationId").and_then(string);
                let id = id.map_or_else(|| format!("url-{}", index + 1), std::borrow::Cow::into_owned);
                let attributed = attribute_params(upstream_name, ELICITATION, Some(elicitation));
                (id, edit(&attributed.unwrap_or_default(), &[("elicitationId", MemberEdit::Drop)]))
            })
            .collect();
        if elicitations.is_empty() {
            return None;
        }
        let requests = elicitations.iter().map(|(id, elicitation)| InputRequest::elicitation(id, elicitation));
        Some(Reply::verbatim(input_required_result(requests, None, &self.server_meta())))
    }

    /// Names the upstream in the pages that it wants to be opened, for a handshake-era client, which opens them itself.
    /// Returns `None` for any other error.
    ///
    /// # Errors
    /// [`ErrorKind::NotBridgeable`] if one of the URLs is not a web page.
    fn attribute_urls(&self, error: &RpcError) -> Result<Option<RpcError>, McpError> {
        if error.code != error::URL_ELICITATION_REQUIRED {
            return Ok(None);
        }
        let Some(data) = error.data.as_deref().map(RawValue::get) else { return Ok(None) };
        let Some(elicitations) = member(data, "elicitations") else { return Ok(None) };
        let mut attributed = Vec::new();
        for (_, elicitation) in elements(elicitations) {
            if let Err(reason) = checked_url(elicitation) {
                let message =
                    format!("the upstream asks that a page be opened first, which the gateway refuses: {reason}");
                return Err(McpError::new(ErrorKind::NotBridgeable, message));
            }
            let elicitation = edit(elicitation, &[("mode", MemberEdit::Set(r#""url""#))]);
            let upstream = &self.call.upstream.config.name;
            let attributed_params = attribute_params(upstream, ELICITATION, Some(&elicitation));
            attributed.extend(attributed_params.map(String::from));
        }
        let data = edit(data, &[("elicitations", MemberEdit::Set(&format!("[{}]", attributed.join(","))))]);
        Ok(Some(RpcError { data: RawValue::from_string(data).ok(), ..error.clone() }))
    }
}

/// Returns the reply for a result that is a task or must become one, or `None` for any other result.
///
/// # Errors
/// [`ErrorKind::NotBridgeable`] for a task without an id.
fn reply_if_task(prepared: &PreparedCall<'_>, result: &RawValue) -> Result<Option<Reply>, McpError> {
    if !prepared.call.item.is_tool() {
        return Ok(None);
    }
    let text = result.get();
    let wants_task = prepared.call.flags.wants_task;
    match prepared.negotiated.revision.era() {
        Era::Modern if is_task(text) => {
            if prepared.call.exchange.is_modern() {
                let task = register(prepared, text, TaskKind::SameEra)?;
                let renamed = task_json::with_task_id(text, &task.alias);
                // `tasks/get` contains the questions and the name of the server that asks them.
                return Ok(Some(Reply::verbatim(edit(&renamed, &[("inputRequests", MemberEdit::Drop)]))));
            }
            let task = register(prepared, text, TaskKind::modern_upstream())?;
            let status = Status::parse(text).unwrap_or(Status::Working);
            Ok(Some(create_task_reply(&task_json::to_legacy(text, &task.alias, status))))
        }
        Era::Modern if wants_task => Ok(Some(finished_task_reply(prepared, result))),
        Era::Modern => Ok(None),
        Era::Legacy => {
            let Some(created) = member(text, "task").filter(|task| task::task_id(task).is_some()) else {
                return Ok(wants_task.then(|| finished_task_reply(prepared, result)));
            };
            if wants_task {
                let task = register(prepared, created, TaskKind::SameEra)?;
                let renamed = task_json::with_task_id(created, &task.alias);
                let json = edit(text, &[("task", MemberEdit::Set(&renamed))]);
                return Ok(Some(Reply::verbatim(json)));
            }
            if !prepared.requests_client_task() {
                return Ok(None);
            }
            let awaited = AwaitedTask::new(created, prepared.stateless_client(), memory_share(prepared));
            let task = register(prepared, created, TaskKind::LegacyUpstream(awaited.clone()))?;
            awaited.wait_in_background(&task, prepared.call.upstream);
            let described = task_json::to_modern(created, &task.alias, Status::Working, None);
            let json = task_json::with_result_type(&described, "task");
            let meta = ("_meta", MemberEdit::Set(SERVER_META));
            Ok(Some(Reply::verbatim(edit(&json, &[meta]))))
        }
    }
}

/// Returns the reply for a result that came at once, without a task, although the client has requested one.
fn finished_task_reply(prepared: &PreparedCall<'_>, result: &RawValue) -> Reply {
    let times = TaskTimes::now();
    let outcome = KeptOutcome::new(memory_share(prepared));
    outcome.keep(TaskOutcome::Result(result.to_owned()));
    let kind = TaskKind::Finished(outcome, times);
    let task = Task::new(String::new(), prepared.call.upstream, prepared.caller.clone(), kind, None);
    let task = prepared.call.bridge.tasks.insert(task);
    create_task_reply(&task_json::local_task(&task.alias, Status::Working, &times))
}

/// Returns an empty share of the memory of the call's principal.
fn memory_share(prepared: &PreparedCall<'_>) -> MemoryShare {
    prepared.call.bridge.memory.share(&prepared.caller.principal.name)
}

/// Returns `true` for a result of the extension that creates a task.
fn is_task(result: &str) -> bool {
    ResultMembers::parse(result).parse_type() == ResultType::Extension("task".into())
}

/// Returns the `CreateTaskResult` of 2025-11-25.
fn create_task_reply(task: &str) -> Reply {
    Reply::verbatim(format!(r#"{{"task":{task}}}"#))
}

/// Registers a task that an upstream created. `task` is its description.
fn register(prepared: &PreparedCall<'_>, task: &str, kind: TaskKind) -> Result<Arc<Task>, McpError> {
    let upstream_id =
        task::task_id(task).ok_or_else(|| McpError::new(ErrorKind::NotBridgeable, "the upstream's task has no id"))?;
    let ttl = task::duration_ms(task, "ttlMs").or_else(|| task::duration_ms(task, "ttl"));
    let task = Task::new(upstream_id, prepared.call.upstream, prepared.caller.clone(), kind, ttl);
    Ok(prepared.call.bridge.tasks.insert(task))
}

/// Returns the reply for a task that a stateless upstream created for a handshake-era client. The client may not have
/// requested a task.
///
/// # Errors
/// The error with which the task fails.
pub async fn reply_for_legacy_client(prepared: &PreparedCall<'_>, response: Response) -> Result<Reply, McpError> {
    match &response {
        Response::Result(result) if !prepared.call.flags.wants_task => {
            wait_for_task_result(prepared, result.get()).await
        }
        _ => prepared.reply(response),
    }
}

/// Waits for the result of a task, for a handshake-era client that did not request one.
async fn wait_for_task_result(prepared: &PreparedCall<'_>, created: &str) -> Result<Reply, McpError> {
    let exchange = prepared.call.exchange;
    let task = register(prepared, created, TaskKind::modern_upstream())?;
    let task_request = TaskRequest::new(exchange, task).await?;
    let cancel_guard = legacy::TaskCancelGuard::new(&task_request);
    let end_result = legacy::await_end(&task_request, None).await;
    if end_result.is_ok() {
        cancel_guard.disarm();
    }
    prepared.call.bridge.tasks.forget(&task_request.task.alias);
    let result = end_result.and_then(|task| legacy::result_of_ended_task(&task_request, task.get()))?;
    let has_failed = is_error_result(&result);
    Ok(Reply::verbatim(result).with_failure(has_failed.then_some(ErrorKind::ToolExecution)))
}
