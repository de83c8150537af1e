//! Calls of tools that their server runs only as tasks (2025-11-25/basic/utilities/tasks), for callers that wait for the result.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use super::OutgoingCall;
use crate::{
    link::{Listener, OutgoingRequest, Response, SilentListener},
    server::{Caller, LinkChoice, Upstream},
};
use countersign_protocol::{
    ErrorKind, McpError,
    json::{member, quoted},
    task::{self, Status},
};
use countersign_provider::Permit;
use countersign_runtime::background;

/// The number of consecutive requests about a task that may fail in any case, as long as its link is open.
const MAX_FAILED_REQUESTS: u32 = 10;

/// The time for which more requests may fail. The server chooses the interval of requests, so their number can be reached within a
/// second.
const MAX_OUTAGE: Duration = Duration::from_secs(120);

/// The consecutive failed requests about a task, which continues at its server meanwhile.
#[derive(Default)]
pub struct FailedRequests {
    count: u32,
    /// The time of the first of them.
    since: Option<Instant>,
}

impl FailedRequests {
    /// Records a failed request of the task's caller. Returns `true` if the wait for the task is to be given up, at once if
    /// the child process that ran it has ended.
    pub fn record(&mut self, caller: &Caller) -> bool {
        let since = *self.since.get_or_insert_with(Instant::now);
        self.count = self.count.saturating_add(1);
        caller.link_choice.has_ended() || (self.count > MAX_FAILED_REQUESTS && since.elapsed() >= MAX_OUTAGE)
    }
}

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
    pub(super) async fn send_and_await_task(&self, call: OutgoingCall<'_>) -> Result<Response, McpError> {
        let (outgoing, listener) = (call.outgoing, Arc::clone(&call.listener));
        let recording = Caller { link_choice: LinkChoice::recording(), ..call.caller.clone() };
        let response = self.send_recorded(OutgoingCall { caller: &recording, ..call }).await?;
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
    /// its time limit. An outage of the server ends the wait only if it is long, because the task continues. The removal of the
    /// server from the configuration ends it at once.
    async fn wait(mut self, listener: Arc<dyn Listener>) -> Result<Response, McpError> {
        const UNKNOWN_TASK: i64 = ErrorKind::InvalidParams.number();
        let mut method = "tasks/result";
        let (mut failures, mut pause) = (FailedRequests::default(), task::poll_interval("{}"));
        loop {
            match self.request(method, &listener).await {
                // The server no longer knows the task, so nobody knows how it has ended.
                Ok(Response::Error(error)) if method == "tasks/get" || error.code == UNKNOWN_TASK => {
                    return Err(lost_task_error(&error.message));
                }
                Ok(Response::Result(described)) if method == "tasks/get" => {
                    if Status::parse_known(described.get())? != Status::Working {
                        method = "tasks/result";
                        continue;
                    }
                    (failures, pause) = (FailedRequests::default(), task::poll_interval(described.get()));
                }
                Ok(response) => {
                    self.has_ended = true;
                    return Ok(response);
                }
                Err(error)
                    if !error.kind.is_transient()
                        || self.upstream.stop.is_cancelled()
                        || failures.record(&self.caller) =>
                {
                    return Err(error);
                }
                Err(_) => method = "tasks/get",
            }
            tokio::time::sleep(pause).await;
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
