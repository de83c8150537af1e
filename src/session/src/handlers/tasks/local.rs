//! Tool calls that a client of 2025-11-25 requests as tasks and that the policy lets through, although the tool may be
//! reviewed. They run in the gateway, because modules, and upstreams without tasks, have no tasks of their own.

use serde_json::json;

use super::super::admitted_call::AdmittedCall;
use crate::{
    gateway::local_tasks::{LocalTaskState, LocalTasks},
    owned_messages::OwnedRequest,
};
use countersign_bridge::CallFlags;
use countersign_exchange::{
    reply::{RelatedChannel, Reply},
    state::Cancellation,
};
use countersign_protocol::{ErrorKind, McpError, json::MemberEdit};
use countersign_runtime::background;

/// Runs the call as a task of this gateway. The task is cancelled when the client's access is revoked.
///
/// # Errors
/// `OVERLOADED` if the principal has too many tasks already, or no memory left.
pub fn start(call: AdmittedCall<'_>, tasks: &LocalTasks) -> Result<Reply, McpError> {
    let AdmittedCall { exchange, runner, request, admitted, flags, .. } = call;
    let size = request.params.map_or(0, |params| params.get().len());
    let cancel = runner.long_requests.shutdown.child_token();
    let task = tasks.register(&exchange.identity.principal.name, size, cancel.clone())?;
    let description = task.describe();
    let owned = OwnedRequest::with_edits(request, &[("task", MemberEdit::Drop)])?;
    let (mut exchange, runner) = (exchange.clone(), runner.clone());
    if matches!(exchange.related, RelatedChannel::Stream(_)) {
        // The stream of a request that is answered at once ends with the answer.
        exchange.related = RelatedChannel::None;
    }
    let flags = CallFlags { wants_task: false, ..flags };
    background::spawn(async move {
        let (request, call_cancel) = (&owned.as_request(), &Cancellation::from(cancel.clone()));
        let call = AdmittedCall { exchange: &exchange, runner: &runner, cancel: call_cancel, request, admitted, flags };
        let work = Box::pin(call.run_as_task());
        let state = tokio::select! {
            outcome = work => match outcome {
                Ok(reply) => task.keep_result(reply.finish(exchange.revision()).into_owned()),
                Err(error) => LocalTaskState::Failed(error),
            },
            () = cancel.cancelled() => LocalTaskState::Cancelled,
            // The client may renew an access token while its task runs, so one that expires does not end the task.
            error = runner.long_requests.authenticator.wait_until_access_revoked(&exchange.identity) => {
                tracing::info!(principal = %exchange.identity.principal.name, %error, "a task ends with the access of its client");
                cancel.cancel();
                LocalTaskState::Cancelled
            }
        };
        task.end(state);
    });
    Ok(Reply::verbatim(format!(r#"{{"task":{description}}}"#)))
}

/// Returns the error for a tool that does not run as a task. `tools/list` says so too
/// (2025-11-25/basic/utilities/tasks, "Tool-Level Negotiation").
pub fn forbidden_task_error() -> McpError {
    McpError::new(ErrorKind::MethodNotFound, "this tool does not run as a task")
        .with("execution", json!({ "taskSupport": "forbidden" }))
}
