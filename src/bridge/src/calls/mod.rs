//! The way of a call through the bridge, by the eras of its client and its upstream.

mod into_task;
mod park;
pub mod plan;
mod ready;
mod reply;
mod response_cache;
mod rounds;

use std::sync::Arc;

use serde_json::value::RawValue;

use crate::{
    parked_calls::ParkedCalls,
    questions::{
        self,
        client_asker::ClientAsker,
        relay::{Hearer, Relay},
    },
    request_state::StateSealer,
    tasks::Tasks,
    translation::request::{Subject, Verb},
};
use countersign_config::UpstreamConfig;
use countersign_exchange::{context::Exchange, memory::Memory, reply::Reply};
use countersign_protocol::{Era, McpError, envelope::Request, param_headers::ParamHeader, params::LoggingLevel};
use countersign_provider::ToolResult;
use countersign_upstream::{Caller, LinkChoice, Outgoing, Response, Upstream};
use plan::CallPlan;
use ready::Ready;

/// The log messages that a handshake-era client gets from upstreams if it never set a level.
const DEFAULT_LEVEL: LoggingLevel = LoggingLevel::Info;

/// The state that the bridge keeps from one request to the next.
pub struct Bridge {
    /// Tasks of upstreams that clients may ask for.
    pub tasks: Tasks,
    /// Calls that wait for what their stateless clients answer.
    pub parked: Arc<ParkedCalls>,
    /// Seals what clients carry to their next request.
    pub carrier: Arc<StateSealer>,
    /// The memory of each principal, of which parked calls take a share.
    memory: Arc<Memory>,
}

impl Bridge {
    /// `node` is what this gateway is called among those that serve its store, where there may be several.
    #[must_use]
    pub fn new(carrier: StateSealer, memory: Arc<Memory>, node: Option<String>) -> Self {
        let carrier = Arc::new(carrier);
        let parked = ParkedCalls::new(node.clone(), Arc::clone(&carrier));
        Self { tasks: Tasks::new(node), parked, carrier, memory }
    }
}

/// One call of a client, routed to an upstream and allowed.
#[derive(Clone, Copy)]
pub struct Call<'a> {
    pub exchange: &'a Exchange,
    pub bridge: &'a Arc<Bridge>,
    pub upstream: &'a Arc<Upstream>,
    pub verb: Verb,
    /// The requested item, under the upstream's own name.
    pub subject: Subject<'a>,
    /// The URI that the client named, where it read a resource.
    pub uri: Option<&'a str>,
    /// As the client wrote it.
    pub request: &'a Request<'a>,
    /// A tool's definition as the upstream wrote it.
    pub definition: Option<&'a RawValue>,
    /// Arguments that are mirrored into headers.
    pub headers: &'a [ParamHeader],
    /// It changes nothing: asking twice does no harm.
    pub reads: bool,
    pub plan: CallPlan,
}

impl<'a> Call<'a> {
    /// Creates a call of anything but a tool. Requests of extensions may write.
    #[must_use]
    pub fn new(
        exchange: &'a Exchange,
        bridge: &'a Arc<Bridge>,
        upstream: &'a Arc<Upstream>,
        verb: Verb,
        subject: Subject<'a>,
        request: &'a Request<'a>,
    ) -> Self {
        let (plan, reads) = (CallPlan::new(&request.outlined_params().object), verb != Verb::Extension);
        Self {
            exchange,
            bridge,
            upstream,
            verb,
            subject,
            uri: None,
            request,
            definition: None,
            headers: &[],
            reads,
            plan,
        }
    }
}

/// Takes a call to its upstream and brings the answer back.
///
/// Not bounded in time here: the upstream's own time-out is, and it stands still while somebody is asked.
///
/// # Errors
/// The upstream's own errors as its client's era has them ([`McpError::from_upstream`]), those of
/// [`Upstream::call`], and `NOT_BRIDGEABLE`.
pub async fn call(call: Call<'_>) -> Result<Reply, McpError> {
    let mut ready = Ready::new(call)?;
    ready.task = into_task::augmentation(&ready)?;
    if ready.may_be_task() {
        // What is asked about the task later must reach the process that has it.
        ready.caller.link_choice = LinkChoice::recording();
    }
    ready.question = response_cache::question(&ready);
    if let Some(reply) = response_cache::answer(&ready)? {
        return Ok(reply);
    }
    match (ready.negotiated.revision.era(), call.exchange.is_modern()) {
        (Era::Modern, true) => rounds::pass_through(&ready).await,
        (Era::Modern, false) => rounds::gather(&ready).await,
        (Era::Legacy, false) => ready.reply(call_in_handshake_era(&ready).await?),
        (Era::Legacy, true) => park::call(&ready).await,
    }
}

/// Returns the caller for whom an upstream is called, and whether the configuration withholds some of its capabilities.
fn caller(exchange: &Exchange, config: &UpstreamConfig) -> (Caller, bool) {
    let stateless = exchange.is_modern();
    let (capabilities, less) = questions::capabilities(exchange, config);
    let level =
        if stateless { exchange.log_level } else { Some(exchange.session.log_level().unwrap_or(DEFAULT_LEVEL)) };
    let caller = Caller {
        principal: exchange.identity.principal.clone(),
        session: (!stateless).then(|| Arc::clone(&exchange.session.id)),
        capabilities,
        stateless,
        log_level: level,
        link_choice: LinkChoice::default(),
    };
    (caller, less)
}

/// Subscribes a client to a resource, or ends that, on a connection of its own, where it has one at this upstream:
/// some servers tell only the session that asked, and the gateway's own connection is another. What arrives there
/// counts like what arrives elsewhere. Best effort, since the gateway's own subscription stands anyway.
pub async fn subscribe_own(exchange: &Exchange, upstream: &Arc<Upstream>, own_uri: &str, method: &'static str) {
    let (caller, _) = caller(exchange, &upstream.config);
    if !upstream.needs_own_link(&caller) {
        return;
    }
    let params = serde_json::json!({ "uri": own_uri }).to_string();
    let outgoing = Outgoing::new(upstream.next_request_id(), method, Some(&params));
    let relay = Relay::new(Hearer::for_exchange(exchange, None, None), false);
    if let Err(error) = upstream.call(&caller, &outgoing, relay).await {
        tracing::debug!(upstream = %upstream.config.name, %error, method, "not on the client's own connection");
    }
}

/// A tool's result that says what went wrong.
#[must_use]
pub fn failed(error: &McpError) -> Reply {
    let result = ToolResult::error(error);
    let json = format!(r#"{{"content":{},"isError":true}}"#, result.content.get());
    Reply::new(json).failing(Some(error.kind))
}

/// Calls a handshake-era upstream for a handshake-era client. What the upstream asks during the call is asked of that
/// client on that request. When the call ends, or is dropped, open questions are cancelled.
async fn call_in_handshake_era(ready: &Ready<'_>) -> Result<Response, McpError> {
    let outgoing = ready.outgoing(&[]);
    let upstream = ready.call.upstream;
    if ready.caller.capabilities.accepts_no_requests() {
        return upstream.call(&ready.caller, &outgoing, Relay::new(ready.hearer(), true)).await;
    }
    let (relay, requests) = Relay::asking(ready.hearer(), true);
    let (exchange, server) = (ready.call.exchange, ready.call.upstream.config.name.as_str());
    let asks = ClientAsker { exchange, server, capabilities: &ready.caller.capabilities, task: None };
    // Boxed, because the future would otherwise be stored twice.
    asks.run(Box::pin(upstream.call(&ready.caller, &outgoing, relay)), requests).await
}
