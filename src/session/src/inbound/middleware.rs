//! The chain around every request: log, metrics, authenticate ([`countersign_auth::Authenticator::check`]), authorize,
//! rate limit, and the choice of the handler. The handler of a tool call also validates its arguments
//! ([`countersign_routing::validate`]) and asks the policy (`policy::judge`).

use std::{
    borrow::Cow,
    sync::Arc,
    time::{Duration, Instant},
};

use crate::{
    gateway::server::{CallRunner, McpServer, RequestScope, Routing},
    handlers::{
        ItemRequest, extension_methods, lifecycle, listen, prompts, resources,
        tasks::{self, TaskSources},
        tool_call::ToolCallScope,
        tools,
        upstream_wait::RouteFinder,
    },
};
use countersign_domain::principal::{Identity, Scope};
use countersign_exchange::{context::Exchange, reply::Reply, state::Cancellation};
use countersign_protocol::{ErrorKind, McpError, Method, envelope::Request};
use countersign_routing::RouteTable;
use countersign_telemetry::{RequestMetrics, RequestOutcome, Transport};

/// Runs a JSON-RPC request through the chain to its handler.
///
/// # Errors
/// The error of the first layer that refuses the request, or of its handler.
pub(crate) async fn run(scope: &RequestScope, request: &Request<'_>, cancel: &Cancellation) -> Result<Reply, McpError> {
    let RequestScope { exchange, server, table } = scope;
    let method = Method::parse(&request.method);
    let timer = RequestTimer::start(exchange, &request.method);
    let size = request.params.map_or(0, |params| params.get().len());
    let outcome = match (check_caller(&exchange.identity, &server.runner, size), method) {
        (Err(error), _) => Err(error),
        (Ok(()), Some(method)) if method.is_request() && method.exists_in(exchange.revision()) => {
            handle(scope, method, request, cancel).await
        }
        // A method of an extension, or an unknown one.
        (Ok(()), _) => extension_methods::call(exchange, table, &server.runner.bridge, request).await,
    };
    timer.finish(exchange, &request.method, &outcome);
    outcome
}

/// Checks the credential, the role and the rate of the caller of a request with parameters of this size.
///
/// # Errors
/// `SHUTTING_DOWN`, `UNAUTHORIZED`, `FORBIDDEN`, or `RATE_LIMITED` with `retryAfter` (seconds).
fn check_caller(identity: &Identity, runner: &CallRunner, size: usize) -> Result<(), McpError> {
    if runner.long_requests.shutdown.is_cancelled() {
        // `countersign stdio` sends a request that was not begun to the next gateway.
        return Err(McpError::shutting_down().with("started", false));
    }
    // A connection may outlive the credential that opened it.
    runner.long_requests.authenticator.check(identity)?;
    check_access(identity)?;
    runner
        .limiter
        .check_rate(&identity.principal.name, size)
        .map_err(|wait| McpError::new(ErrorKind::RateLimited, "too many requests, slow down").with("retryAfter", wait))
}

/// Checks that the principal may use the MCP endpoints.
///
/// # Errors
/// `FORBIDDEN` for a role that may only view, and for a token without the scope `tools:read`.
pub fn check_access(identity: &Identity) -> Result<(), McpError> {
    identity.principal.require_scope(Scope::ToolsRead)?;
    if identity.principal.role.may_call() {
        return Ok(());
    }
    Err(McpError::new(ErrorKind::Forbidden, "this key may look at changes but not use tools"))
}

/// Runs the handler of a method that exists in the exchange's revision. Each handler gets only the parts of the gateway
/// that it uses.
///
/// # Errors
/// Protocol errors. A failure that the tool itself reports is a result.
async fn handle(
    scope: &RequestScope,
    method: Method,
    request: &Request<'_>,
    cancel: &Cancellation,
) -> Result<Reply, McpError> {
    let RequestScope { exchange, server, table } = scope;
    let McpServer { limits, memory, routing, reviews, runner, local_tasks, status, .. } = &**server;
    let bridge = &runner.bridge;
    let waited = if is_list(method) { wait_for_first_answers(routing, table).await } else { None };
    let table = waited.as_ref().unwrap_or(table);
    let finder = RouteFinder { principal: &exchange.identity.principal, table: Cow::Borrowed(table), routing };
    let item = ItemRequest { exchange, request, cancel, finder, limits };
    let tasks = TaskSources { reviews, local: local_tasks, upstream: &bridge.tasks };
    match method {
        Method::Ping => Ok(Reply::new("{}".into())),
        Method::Initialize => lifecycle::initialize(exchange, table, limits, memory, request),
        Method::Discover => Ok(lifecycle::discover(exchange, table)),
        Method::HealthCheck => Ok(Reply::new(status.health().to_string())),
        Method::ServerInfo => Ok(Reply::new(status.info().to_string())),
        Method::MetricsGet => Ok(lifecycle::metrics(status)),
        Method::ToolsList => tools::list(exchange, table, request),
        Method::ToolsCall => {
            server.deciding_keys.note_call(&exchange.identity.principal, exchange.transport.as_str());
            let scope = ToolCallScope { exchange, cancel, table, runner, reviews, local_tasks };
            tools::call_tool(scope, item.finder, request).await
        }
        Method::ResourcesList => resources::list(item).await,
        Method::ResourceTemplatesList => resources::list_templates(exchange, table, request),
        Method::ResourcesRead => resources::read(item, bridge).await,
        Method::ResourcesSubscribe => resources::subscribe(item, memory).await,
        Method::ResourcesUnsubscribe => resources::unsubscribe(item).await,
        Method::PromptsList => prompts::list(exchange, table, request),
        Method::PromptsGet => prompts::get(item, bridge).await,
        Method::Complete => prompts::complete(item, bridge).await,
        Method::SetLevel => lifecycle::set_log_level(exchange, request),
        Method::TasksGet | Method::TasksUpdate | Method::TasksCancel | Method::TasksResult | Method::TasksList => {
            Box::pin(tasks::handle(exchange, tasks, method, request)).await
        }
        Method::Listen => Box::pin(listen::listen(item, memory, tasks)).await,
        // The caller has checked that the method is a request.
        _ => Err(McpError::new(ErrorKind::MethodNotFound, "not a request")),
    }
}

/// Returns `true` for the lists of tools, prompts and resources.
const fn is_list(method: Method) -> bool {
    matches!(method, Method::ToolsList | Method::PromptsList | Method::ResourcesList | Method::ResourceTemplatesList)
}

/// The time after the gateway's start in which lists wait for upstreams that have not connected yet.
const STARTUP_PERIOD: Duration = Duration::from_secs(10);
/// The longest time that a list waits for such upstreams.
const MAX_LIST_WAIT: Duration = Duration::from_secs(5);
/// The time that the router needs to publish an upstream's first answer.
const PUBLISH_DELAY: Duration = Duration::from_millis(150);

/// Waits for the first answers of upstreams and returns the routes that include them, or `None` if nothing was missing.
/// Many clients request lists only once, often while the gateway is still starting and upstreams have not answered yet.
async fn wait_for_first_answers(routing: &Routing, table: &RouteTable) -> Option<Arc<RouteTable>> {
    if routing.started_at.elapsed() >= STARTUP_PERIOD || table.is_complete() {
        return None;
    }
    routing.upstreams.wait_until_settled(MAX_LIST_WAIT).await;
    tokio::time::sleep(PUBLISH_DELAY).await;
    Some(routing.routes.load_full())
}

/// Counts a request and its duration. Labels come from closed lists, never from a client. A timer that is dropped
/// unfinished counts as cancelled by the client.
struct RequestTimer {
    transport: Transport,
    method: countersign_telemetry::MethodLabel,
    started_at: Instant,
    is_finished: bool,
}

impl RequestTimer {
    fn start(exchange: &Exchange, method: &str) -> Self {
        Self {
            transport: exchange.transport,
            method: countersign_telemetry::MethodLabel::from_name(method),
            started_at: Instant::now(),
            is_finished: false,
        }
    }

    /// Counts a finished request, and writes one structured DEBUG line about it. The line never contains arguments or results,
    /// because they may be confidential.
    fn finish(mut self, exchange: &Exchange, method: &str, answer: &Result<Reply, McpError>) {
        self.is_finished = true;
        let failure = answer.as_ref().map_or_else(|error| Some(error.kind), |reply| reply.failure);
        let (outcome, logged_outcome) = match (answer, failure) {
            (Err(error), _) => (RequestOutcome::from_error_kind(error.kind), error.kind.code()),
            (Ok(_), Some(kind)) => (RequestOutcome::ToolError, kind.code()),
            (Ok(reply), None) if reply.is_pending => (RequestOutcome::Pending, "pending"),
            (Ok(_), None) => (RequestOutcome::Ok, "ok"),
        };
        if let Some(kind) = failure {
            RequestMetrics::get().record_error(kind);
        }
        let duration = self.record(outcome);
        tracing::debug!(
            // The method is an arbitrary text of the client.
            method = %method.escape_debug().take(64).collect::<String>(),
            session = %exchange.session.short_id(),
            principal = %exchange.identity.principal.name,
            transport = exchange.transport.as_str(),
            revision = exchange.revision().as_str(),
            outcome = logged_outcome,
            duration_us = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX),
            "request"
        );
    }

    fn record(&self, outcome: RequestOutcome) -> Duration {
        let duration = self.started_at.elapsed();
        RequestMetrics::get().record(self.transport, self.method, outcome, duration);
        duration
    }
}

impl Drop for RequestTimer {
    fn drop(&mut self) {
        if !self.is_finished {
            self.record(RequestOutcome::Cancelled);
        }
    }
}
