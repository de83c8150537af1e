//! Calls of tools that their server runs only as tasks (2025-11-25/basic/utilities/tasks), for callers that wait for the result.

use std::sync::Arc;

use super::ResendPolicy;
use crate::{
    link::{Listener, OutgoingRequest, Response, SilentListener},
    server::{Caller, LinkChoice, Upstream, endpoint::Endpoint},
};
use countersign_protocol::{
    ErrorKind, McpError,
    json::{member, quoted},
    task::{self, Status},
};
use countersign_provider::Permit;
use countersign_runtime::background;

impl Upstream {
    /// Sends a request that cancels a task for which nobody waits any more. Does not wait for the answer.
    pub fn cancel_in_background(self: &Arc<Self>, caller: Caller, cancellation: OutgoingRequest) {
        let upstream = Arc::clone(self);
        background::spawn(async move {
            if let Err(error) = upstream.call(&caller, &cancellation, Arc::new(SilentListener)).await {
                tracing::debug!(%error, "a task that nobody waits for could not be cancelled");
            }
        });
    }

    /// Sends a call that requests a task, with the limits of [`Upstream::send`], and waits for the result that the call itself
    /// would have returned. Dropping the future cancels the task.
    ///
    /// # Errors
    /// The errors of [`Upstream::call`], with the outcome `unknown` once the task exists.
    pub(super) async fn send_and_await_task(
        &self,
        caller: &Caller,
        outgoing: &OutgoingRequest,
        listener: Arc<dyn Listener>,
        resend: ResendPolicy,
        preferred: Option<&Arc<Endpoint>>,
    ) -> Result<Response, McpError> {
        let recording = Caller { link_choice: LinkChoice::recording(), ..caller.clone() };
        let response = self.send_recorded(&recording, outgoing, Arc::clone(&listener), resend, preferred).await?;
        let Response::Result(created) = &response else { return Ok(response) };
        let Some(id) = member(created.get(), "task").and_then(task::task_id) else { return Ok(response) };
        let running_task = RunningTask {
            upstream: self,
            caller: Caller { link_choice: recording.link_choice.for_follow_up(), ..recording },
            params: format!(r#"{{"taskId":{}}}"#, quoted(&id)),
            permit: outgoing.permit.clone(),
            has_ended: false,
        };
        running_task.wait(listener).await.map_err(|error| error.with("outcome", "unknown"))
    }
}

/// A task that the gateway waits for. It is cancelled when it is dropped before it has ended.
struct RunningTask<'a> {
    upstream: &'a Upstream,
    /// The caller, on the link that created the task.
    caller: Caller,
    /// The parameters of all requests about the task.
    params: String,
    permit: Option<Permit>,
    has_ended: bool,
}

impl RunningTask<'_> {
    /// Waits for the result. A task may take longer than any call, so it is polled when the request for its result has reached
    /// its time limit.
    async fn wait(mut self, listener: Arc<dyn Listener>) -> Result<Response, McpError> {
        loop {
            match self.request("tasks/result", &listener).await {
                Err(error) if error.kind == ErrorKind::Timeout => {}
                // The server no longer knows the task, so nobody knows how it has ended.
                Ok(Response::Error(error)) if error.code == ErrorKind::InvalidParams.number() => {
                    return Err(lost_task_error(&error.message));
                }
                Ok(response) => {
                    self.has_ended = true;
                    return Ok(response);
                }
                Err(error) => return Err(error),
            }
            loop {
                let described = match self.request("tasks/get", &listener).await? {
                    Response::Result(described) => described,
                    Response::Error(error) => return Err(lost_task_error(&error.message)),
                };
                if Status::parse_known(described.get())? != Status::Working {
                    break;
                }
                tokio::time::sleep(task::poll_interval(described.get())).await;
            }
        }
    }

    async fn request(&self, method: &str, listener: &Arc<dyn Listener>) -> Result<Response, McpError> {
        let mut outgoing = OutgoingRequest::new(self.upstream.next_request_id(), method, Some(&self.params));
        outgoing.is_repeatable = method == "tasks/get";
        outgoing.permit = self.permit.clone();
        self.upstream.call(&self.caller, &outgoing, Arc::clone(listener)).await
    }
}

impl Drop for RunningTask<'_> {
    fn drop(&mut self) {
        let Some(upstream) = self.upstream.weak_self.upgrade().filter(|_| !self.has_ended) else { return };
        let cancellation = OutgoingRequest::new(upstream.next_request_id(), "tasks/cancel", Some(&self.params));
        upstream.cancel_in_background(self.caller.clone(), cancellation);
    }
}

fn lost_task_error(message: &str) -> McpError {
    McpError::new(ErrorKind::UpstreamUnavailable, format!("the server does not say how its task has ended: {message}"))
}
