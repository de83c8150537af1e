//! Requests of the gateway to an upstream about a task.

use std::sync::Arc;

use serde_json::value::RawValue;

use super::table::Task;
use crate::{
    questions::{ClientAsker, MessageRecipient, Relay, allowed_capabilities, explain_withheld_capability},
    translation::{
        request::{self, DeclaredClient, RequestDraft, RequestedItem, client_info},
        result::{ResponseAdapter, check_object},
    },
};
use countersign_exchange::context::Exchange;
use countersign_protocol::{
    Era, ErrorKind, McpError, Revision,
    json::{MemberEdit, edit, member},
    negotiate::ClientCapabilities,
    outline::Outline,
    params::LoggingLevel,
    rpc_error::RpcError,
    task::TASKS_EXTENSION,
};
use countersign_upstream::{Listener, NegotiatedSession, OutgoingRequest, Response, Upstream};

/// A client's request about a task, with everything that is known about its client and its upstream.
pub struct TaskRequest<'a> {
    pub exchange: &'a Exchange,
    pub task: Arc<Task>,
    pub upstream: Arc<Upstream>,
    pub negotiated: Arc<NegotiatedSession>,
}

impl<'a> TaskRequest<'a> {
    /// Finds the upstream of a task.
    ///
    /// # Errors
    /// The errors of [`Task::upstream`], with the outcome `unknown`; `UPSTREAM_UNAVAILABLE` if the upstream was not reached
    /// yet.
    pub async fn new(exchange: &'a Exchange, task: Arc<Task>) -> Result<Self, McpError> {
        let upstream = task.upstream().await.map_err(with_unknown_outcome)?;
        let negotiated = upstream.negotiated().ok_or_else(|| {
            McpError::new(ErrorKind::UpstreamUnavailable, "the server of this task has not been reached yet")
        })?;
        Ok(Self { exchange, task, upstream, negotiated })
    }

    /// Returns a request to the upstream with the upstream's own task id. `params` come from the client or from the
    /// gateway.
    pub fn build_request(&self, method: &str, params: &str) -> OutgoingRequest {
        build_request(&self.upstream, &self.task, &self.capabilities(), method, params)
    }

    /// Returns the capabilities that the upstream may use. A stateless client declares them with each request.
    pub fn capabilities(&self) -> ClientCapabilities {
        match self.exchange.is_modern() {
            true => allowed_capabilities(self.exchange, &self.upstream.config).0,
            false => self.task.caller.capabilities.clone(),
        }
    }

    /// Returns the recipient of messages that the upstream sends meanwhile.
    pub fn recipient(&self, level: Option<LoggingLevel>) -> MessageRecipient {
        MessageRecipient::for_exchange(self.exchange, None, level)
    }

    /// Returns the asker of a client of the handshake era. Its questions name `task`, if there is one.
    pub fn client_asker<'t>(&'t self, task: Option<&'t str>) -> ClientAsker<'t> {
        let (upstream, capabilities) = (&self.upstream.config.name, &self.task.caller.capabilities);
        ClientAsker { exchange: self.exchange, upstream, capabilities, task }
    }

    /// Sends a request to the upstream on behalf of the task's caller.
    ///
    /// # Errors
    /// The errors of [`Upstream::call`], with the outcome `unknown`.
    pub async fn call(&self, outgoing: &OutgoingRequest, listener: Arc<dyn Listener>) -> Result<Response, McpError> {
        self.upstream.call(&self.task.caller, outgoing, listener).await.map_err(with_unknown_outcome)
    }

    /// Sends a request to the upstream. The upstream's questions during it are declined.
    ///
    /// # Errors
    /// The errors of [`Self::call`].
    pub async fn send(&self, method: &str, params: &str) -> Result<Result<Box<RawValue>, RpcError>, McpError> {
        let relay: Arc<dyn Listener> = Relay::new(self.recipient(None));
        match self.call(&self.build_request(method, params), relay).await? {
            Response::Result(result) => {
                check_object(result.get())?;
                Ok(Ok(result))
            }
            Response::Error(error) => Ok(Err(error)),
        }
    }

    /// Sends a request like [`Self::send`], and translates an error of the upstream into the client's era.
    ///
    /// # Errors
    /// The errors of [`Self::send`] and those of the upstream.
    pub async fn send_or_fail(&self, method: &str, params: &str) -> Result<Box<RawValue>, McpError> {
        self.send(method, params).await?.map_err(|error| self.error_for_client(&error))
    }

    /// Translates an error of the upstream into the client's era.
    pub fn error_for_client(&self, error: &RpcError) -> McpError {
        explain_withheld_capability(&self.upstream.config, self.response_adapter().adapt_error(error))
    }

    /// Adapts a tool result to the client.
    ///
    /// # Errors
    /// [`ErrorKind::NotBridgeable`] for a result that is not an object.
    pub fn adapt_result(&self, result: &str) -> Result<String, McpError> {
        self.response_adapter().adapt_nested(result)
    }

    fn response_adapter(&self) -> ResponseAdapter<'_> {
        let (item, uri_prefix) = (RequestedItem::Task(&self.task.upstream_id), self.upstream.names.uri_prefix());
        ResponseAdapter { item, client: self.exchange.revision(), upstream: &self.negotiated, uri_prefix }
    }
}

/// Replaces the outcome of a failed request about a task, because the tool that runs as the task may have run.
fn with_unknown_outcome(error: McpError) -> McpError {
    match error.data.contains_key("outcome") {
        true => error.with("outcome", "unknown"),
        false => error,
    }
}

/// Returns a request about a task in the form that its upstream gets. `capabilities` are those that the upstream may use.
fn build_request(
    upstream: &Upstream,
    task: &Task,
    capabilities: &ClientCapabilities,
    method: &str,
    params: &str,
) -> OutgoingRequest {
    let is_modern = task.caller.is_modern;
    let revision = upstream.negotiated().map_or(Revision::MODERN, |negotiated| negotiated.revision);
    let capabilities = with_extension(&capabilities.to_json(revision).to_string());
    let is_declaration_of_client = is_modern
        // Such a server gets less than the client declares.
        && upstream.config.elicitation
        && upstream.config.sampling
        // A request of the gateway itself has no declaration.
        && member(params, "_meta").is_some();
    let outline = Outline::new(params);
    let draft = RequestDraft {
        method,
        params: outline.params(params),
        item: RequestedItem::Task(&task.upstream_id),
        declared_client: DeclaredClient {
            is_modern: is_modern && revision.era() == Era::Modern,
            info: client_info().into(),
            capabilities: (revision.era() == Era::Modern && !is_declaration_of_client).then(|| capabilities.into()),
            log_level: None,
        },
        extra: &[],
        keeps_task: true,
    };
    let mut outgoing = request::write_request(upstream.next_request_id(), revision, &draft);
    outgoing.is_repeatable = method == "tasks/get";
    outgoing
}

/// Returns a request of the gateway itself about the task of a caller.
pub fn build_own_request(upstream: &Upstream, task: &Task, method: &str) -> OutgoingRequest {
    build_request(upstream, task, &task.caller.capabilities, method, "{}")
}

/// Asks the upstream to cancel a task that nobody waits for any more. Does not wait for the answer.
pub fn cancel_in_background(upstream: &Arc<Upstream>, task: &Task) {
    let cancellation = build_own_request(upstream, task, "tasks/cancel");
    upstream.cancel_in_background(task.caller.clone(), cancellation);
}

/// Adds the declaration of the extension to capabilities.
pub fn with_extension(capabilities: &str) -> String {
    let extensions = member(capabilities, "extensions").filter(|value| value.starts_with('{')).unwrap_or("{}");
    let extensions = edit(extensions, &[(TASKS_EXTENSION, MemberEdit::SetIfMissing("{}"))]);
    edit(capabilities, &[("extensions", MemberEdit::Set(&extensions))])
}
