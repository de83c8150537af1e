//! Tool calls that a client of 2025-11-25 requests as tasks and that the policy lets through, although the tool may be
//! reviewed. They run in the gateway, because modules, and upstreams without tasks, have no tasks of their own.

use std::sync::Arc;

use serde_json::{json, value::RawValue};

use super::super::tools;
use crate::{
    RequestScope,
    owned::OwnedRequest,
    policy::AdmittedCall,
    state::local_tasks::{LocalTask, TASK_BYTES, TaskOutcome},
};
use countersign_bridge::CallPlan;
use countersign_exchange::{cancel::Cancel, related::RelatedChannel, reply::Reply};
use countersign_protocol::{
    ErrorKind, McpError,
    envelope::Request,
    json::{MemberEdit, edit},
    outline::Outline,
};

/// Runs the call as a task of this gateway.
///
/// # Errors
/// `OVERLOADED` if the principal has too many tasks already.
pub fn start(
    exchange: &RequestScope,
    request: &Request<'_>,
    admitted: AdmittedCall,
    plan: CallPlan,
) -> Result<Reply, McpError> {
    let bytes = TASK_BYTES + 2 * request.params.map_or(0, |params| params.get().len());
    let share = exchange.server.memory.take(&exchange.identity.principal.name, bytes)?;
    let task =
        LocalTask::new(&exchange.identity.principal.name, share, exchange.server.long_requests.shutdown.child_token());
    exchange.server.local_tasks.insert(Arc::clone(&task))?;
    let description = task.describe();
    let params = request.params.map_or("{}", RawValue::get);
    let params = RawValue::from_string(edit(params, &[("task", MemberEdit::Drop)]))
        .map_err(|_| McpError::new(ErrorKind::InvalidParams, "`params` are not JSON"))?;
    let mut exchange = exchange.clone();
    if matches!(exchange.related, RelatedChannel::Stream(_)) {
        // The stream of a request that is answered at once ends with the answer.
        exchange.exchange.related = RelatedChannel::Nowhere;
    }
    let owned = OwnedRequest::from_request(&Request {
        id: request.id.clone(),
        method: request.method.clone(),
        params: Some(&params),
        outline: Outline::new(params.get()),
    });
    let plan = CallPlan { wants_task: false, ..plan };
    let cancel = task.cancel.clone();
    actix::spawn(async move {
        let request = owned.as_request();
        let call_cancel = Cancel::from(cancel.clone());
        let work = Box::pin(tools::call_admitted(&exchange, &request, admitted, plan, &call_cancel));
        let outcome = tokio::select! {
            outcome = work => match outcome {
                Ok(reply) => task.outcome(reply.finish(exchange.revision()).into_owned()),
                Err(error) => TaskOutcome::Failed(Box::new(error)),
            },
            () = cancel.cancelled() => TaskOutcome::Cancelled,
        };
        task.end(outcome);
    });
    Ok(Reply::passed_on(format!(r#"{{"task":{description}}}"#)))
}

/// Returns the error for a tool that does not run as a task. `tools/list` says so too
/// (2025-11-25/basic/utilities/tasks, "Tool-Level Negotiation").
#[must_use]
pub fn refused() -> McpError {
    McpError::new(ErrorKind::MethodNotFound, "this tool does not run as a task")
        .with("execution", json!({ "taskSupport": "forbidden" }))
}
