//! Passes calls through the bridge. The eras of client and upstream determine how.

mod parking;
mod prepared_call;
mod reply;
mod rounds;

use std::sync::Arc;

use serde_json::value::RawValue;

use crate::{
    parked_calls::ParkedCalls,
    questions::{self, MessageRecipient, Relay},
    request_state::StateSealer,
    tasks::{self, Tasks},
    translation::request::RequestedItem,
};
use countersign_config::UpstreamConfig;
use countersign_exchange::{context::Exchange, memory::MemoryBudget, reply::Reply};
use countersign_protocol::{
    Era, McpError, envelope::Request, outline::OutlinedObject, param_headers::ParamHeader, params::LoggingLevel,
};
use countersign_provider::ToolResult;
use countersign_upstream::{Caller, LinkChoice, OutgoingRequest, Response, Upstream};
use prepared_call::PreparedCall;

/// The default level of the log messages that a handshake-era client gets from upstreams.
const DEFAULT_LOG_LEVEL: LoggingLevel = LoggingLevel::Info;

/// The state that the bridge keeps from one request to the next.
pub struct Bridge {
    /// The tasks that upstreams run for clients.
    pub tasks: Tasks,
    /// Calls that wait for the answers of their stateless clients.
    pub parked_calls: Arc<ParkedCalls>,
    /// Seals the state that clients carry to their next request.
    pub sealer: Arc<StateSealer>,
    /// The memory budget of each principal. Parked calls and the outcomes of tasks take shares of it.
    memory: Arc<MemoryBudget>,
}

impl Bridge {
    /// Creates the bridge. `node` is the name of this gateway, if several gateways may serve its store.
    pub fn new(sealer: StateSealer, memory: Arc<MemoryBudget>, node: Option<String>) -> Self {
        let sealer = Arc::new(sealer);
        let parked_calls = ParkedCalls::new(node.clone(), Arc::clone(&sealer));
        Self { tasks: Tasks::new(node), parked_calls, sealer, memory }
    }
}

/// The flags of a call that determine how it is handled. They are determined once, without side effects, before the
/// policy is asked, and the admitted call keeps them.
#[derive(Clone, Copy, Debug, Default)]
pub struct CallFlags {
    /// `true` if the client continues a call for which it was asked for input.
    pub is_retry: bool,
    /// `true` if the request resumes a parked call or is refused. Either way no new call is made.
    pub resumes_parked_call: bool,
    /// `true` if a client of 2025-11-25 requests the call as a task.
    pub wants_task: bool,
    /// `true` if the upstream can run the call as the requested task.
    pub is_upstream_task: bool,
    /// `true` if the upstream must not ask the client anything, whatever the client declares.
    pub forbids_questions: bool,
}

impl CallFlags {
    /// Determines the flags of a request that is not a tool call.
    pub fn new(params: &OutlinedObject<'_>) -> Self {
        let is_retry = params.members().any(|member| matches!(&*member.key, "inputResponses" | "requestState"));
        Self { is_retry, ..Self::default() }
    }

    /// Determines the flags of a tool call. `upstream` is `None` for a module; otherwise it includes the tool's definition.
    pub fn for_tool(
        exchange: &Exchange,
        params: &OutlinedObject<'_>,
        upstream: Option<(&Upstream, Option<&RawValue>)>,
    ) -> Self {
        let flags = Self { wants_task: tasks::is_requested(exchange, params), ..Self::new(params) };
        let Some((upstream, definition)) = upstream else { return flags };
        let is_legacy = || upstream.negotiated().is_some_and(|negotiated| negotiated.revision.era() == Era::Legacy);
        Self {
            resumes_parked_call: flags.is_retry
                && exchange.is_modern()
                && params.member("requestState").is_some()
                && is_legacy(),
            is_upstream_task: flags.wants_task && tasks::can_run_as_task(upstream, definition),
            ..flags
        }
    }
}

/// One call of a client that is routed to an upstream and allowed by the policy.
#[derive(Clone, Copy)]
pub struct Call<'a> {
    pub exchange: &'a Exchange,
    pub bridge: &'a Arc<Bridge>,
    pub upstream: &'a Arc<Upstream>,
    pub item: RequestedItem<'a>,
    /// The request of the client, unchanged.
    pub request: &'a Request<'a>,
    /// The tool's definition as the upstream wrote it.
    pub definition: Option<&'a RawValue>,
    /// Arguments that are mirrored into headers.
    pub headers: &'a [ParamHeader],
    /// `true` if the call changes nothing, so that it may be repeated.
    pub is_read_only: bool,
    pub flags: CallFlags,
}

impl<'a> Call<'a> {
    /// Creates a call that is not a tool call. Requests of extensions count as writes.
    #[must_use]
    pub fn new(
        exchange: &'a Exchange,
        bridge: &'a Arc<Bridge>,
        upstream: &'a Arc<Upstream>,
        item: RequestedItem<'a>,
        request: &'a Request<'a>,
    ) -> Self {
        let (flags, is_read_only) = (CallFlags::new(&request.outlined_params().object), !item.is_extension());
        Self { exchange, bridge, upstream, item, request, definition: None, headers: &[], is_read_only, flags }
    }
}

/// Passes a call to its upstream and returns the reply. If the upstream uses accounts of persons, the call goes to the
/// caller's own connections, and its task or parked call stays there.
///
/// The bridge limits only the time for which a parked call waits for its client. Otherwise the upstream's own time-out
/// applies, and stops while a person is asked.
///
/// # Errors
/// The upstream's own errors, translated into the client's era ([`McpError::from_upstream`]); the errors of
/// [`Upstream::for_principal`] and [`Upstream::call`]; `NOT_BRIDGEABLE`.
pub async fn call(call: Call<'_>) -> Result<Reply, McpError> {
    let account_upstream;
    let upstream = if call.upstream.uses_accounts() {
        account_upstream = call.upstream.for_principal(&call.exchange.identity.principal).await?;
        &account_upstream
    } else {
        call.upstream
    };
    send(Call { upstream, ..call }).await
}

/// Sends a call to its upstream in the way that the eras of client and upstream require.
async fn send(call: Call<'_>) -> Result<Reply, McpError> {
    let mut prepared = PreparedCall::new(call)?;
    if prepared.may_be_task() {
        // Later requests about the task must reach the same server process.
        prepared.caller.link_choice = LinkChoice::recording();
    }
    prepared.cache_lookup = prepared.prepare_lookup();
    if let Some(reply) = prepared.cached_reply()? {
        return Ok(reply);
    }
    match (prepared.negotiated.revision.era(), call.exchange.is_modern()) {
        (Era::Modern, true) => rounds::pass_through(&prepared).await,
        (Era::Modern, false) => rounds::ask_in_rounds(&prepared).await,
        (Era::Legacy, false) => prepared.reply(call_in_handshake_era(&prepared).await?),
        (Era::Legacy, true) => parking::call_or_resume(&prepared).await,
    }
}

/// Returns the caller for an upstream, and `true` if the upstream may use fewer capabilities than the client declared.
fn build_caller(exchange: &Exchange, config: &UpstreamConfig) -> (Caller, bool) {
    let is_modern = exchange.is_modern();
    let (capabilities, is_restricted) = questions::allowed_capabilities(exchange, config);
    let log_level =
        if is_modern { exchange.log_level } else { Some(exchange.session.log_level().unwrap_or(DEFAULT_LOG_LEVEL)) };
    let caller = Caller {
        principal: exchange.identity.principal.clone(),
        session: (!is_modern).then(|| Arc::clone(&exchange.session.id)),
        session_ended: (!is_modern).then(|| exchange.session.ended.clone()),
        capabilities,
        is_modern,
        log_level,
        link_choice: LinkChoice::default(),
    };
    (caller, is_restricted)
}

/// Subscribes a client to a resource, or unsubscribes it, on its own link to the upstream, if it has one. `upstream_uri` is
/// the URI in the upstream's own form. Some servers send updates only to the session that subscribed, and the gateway's
/// shared link is another session. A failure is only logged, because the gateway's own subscription remains.
pub async fn subscribe_on_own_link(
    exchange: &Exchange,
    upstream: &Arc<Upstream>,
    upstream_uri: &str,
    method: &'static str,
) {
    let Ok(upstream) = upstream.for_principal(&exchange.identity.principal).await else { return };
    let (caller, _) = build_caller(exchange, &upstream.config);
    if !upstream.needs_unshared_link(&caller) {
        return;
    }
    let params = serde_json::json!({ "uri": upstream_uri }).to_string();
    let outgoing = OutgoingRequest::new(upstream.next_request_id(), method, Some(&params));
    let relay = Relay::new(MessageRecipient::for_exchange(exchange, None, None));
    if let Err(error) = upstream.call(&caller, &outgoing, relay).await {
        tracing::debug!(upstream = %upstream.config.name, %error, method, "the subscription failed on the client's own link");
    }
}

/// Returns a tool result that describes an error.
pub fn tool_error_reply(error: &McpError) -> Reply {
    let result = ToolResult::error(error);
    let json = format!(r#"{{"content":{},"isError":true}}"#, result.content.get());
    Reply::new(json).with_failure(Some(error.kind))
}

/// Calls a handshake-era upstream for a handshake-era client. The upstream's questions go to the client as part of that
/// request. When the call ends or is dropped, its open questions are cancelled.
async fn call_in_handshake_era(prepared: &PreparedCall<'_>) -> Result<Response, McpError> {
    let outgoing = prepared.build_request(&[]);
    let upstream = prepared.call.upstream;
    if prepared.caller.capabilities.accepts_no_requests() {
        return upstream.call(&prepared.caller, &outgoing, Relay::new(prepared.recipient())).await;
    }
    let (relay, requests) = Relay::with_questions(prepared.recipient());
    // Boxed, because the future would otherwise be stored twice.
    prepared.client_asker().run(Box::pin(upstream.call(&prepared.caller, &outgoing, relay)), requests).await
}
