//! Calls that a client of 2025-11-25 wants as tasks, of tools that may be reviewed, where the policy lets the very call
//! through: they run here, since neither a module nor an upstream without tasks has any.

use std::sync::Arc;

use serde_json::{json, value::RawValue};

use super::super::tools;
use crate::{
    Handling,
    owned::OwnedRequest,
    policy::AdmittedCall,
    state::local_tasks::{LocalTask, TASK_BYTES, TaskOutcome},
};
use countersign_bridge::CallPlan;
use countersign_exchange::{cancel::Cancel, related::Related, reply::Reply};
use countersign_protocol::{
    ErrorKind, McpError,
    envelope::Request,
    json::{MemberEdit, edit},
    outline::Outline,
};

/// Runs the call as a task of this gateway.
///
/// # Errors
/// `OVERLOADED` for one too many.
pub fn start(
    exchange: &Handling,
    request: &Request<'_>,
    admitted: AdmittedCall,
    plan: CallPlan,
) -> Result<Reply, McpError> {
    let bytes = TASK_BYTES + 2 * request.params.map_or(0, |params| params.get().len());
    let share = exchange.server.memory.take(&exchange.identity.principal.name, bytes)?;
    let task =
        LocalTask::new(&exchange.identity.principal.name, share, exchange.server.long_requests.shutdown.child_token());
    exchange.server.local_tasks.insert(Arc::clone(&task))?;
    let seed = task.describe();
    let params = request.params.map_or("{}", RawValue::get);
    let params = RawValue::from_string(edit(params, &[("task", MemberEdit::Drop)]))
        .map_err(|_| McpError::new(ErrorKind::InvalidParams, "`params` are not JSON"))?;
    let mut exchange = exchange.clone();
    if matches!(exchange.related, Related::Stream(_)) {
        // The stream of a request that is answered at once ends with it.
        exchange.exchange.related = Related::Nowhere;
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
        let handed_on = Cancel::from(cancel.clone());
        let work = Box::pin(tools::call_admitted(&exchange, &request, admitted, plan, &handed_on));
        let outcome = tokio::select! {
            outcome = work => match outcome {
                Ok(reply) => task.outcome(reply.finish(exchange.revision()).into_owned()),
                Err(error) => TaskOutcome::Failed(Box::new(error)),
            },
            () = cancel.cancelled() => TaskOutcome::Cancelled,
        };
        task.end(outcome);
    });
    Ok(Reply::passed_on(format!(r#"{{"task":{seed}}}"#)))
}

/// That a tool does not run as a task: it says so in its list (2025-11-25/basic/utilities/tasks, "Tool-Level
/// Negotiation").
#[must_use]
pub fn refused() -> McpError {
    McpError::new(ErrorKind::MethodNotFound, "this tool does not run as a task")
        .with("execution", json!({ "taskSupport": "forbidden" }))
}
