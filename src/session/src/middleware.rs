//! The chain around every request: log, metrics, authenticate ([`countersign_auth::Authenticator::check`]), authorize,
//! rate limit. The handler of a tool call also validates its arguments ([`countersign_routing::validate`]) and asks the
//! policy ([`crate::policy`]).

use crate::{RequestScope, extension, handlers, long_requests::LongRequests, state::limiter::Limiter};
use countersign_domain::principal::Identity;
use countersign_exchange::{cancel::Cancel, context::Exchange, reply::Reply};
use countersign_protocol::{ErrorKind, McpError, Method, envelope::Request};
use countersign_telemetry::{RequestMetrics, RequestOutcome, Transport};
use std::time::Instant;

/// Runs a JSON-RPC request through the chain to its handler.
///
/// # Errors
/// The error of the first layer that refuses the request, or of its handler.
pub async fn run(scope: &RequestScope, request: &Request<'_>, cancel: &Cancel) -> Result<Reply, McpError> {
    let RequestScope { exchange, server, table } = scope;
    let method = Method::parse(&request.method);
    let log = RequestLog::new(exchange, &request.method);
    let metrics = RequestTimer::start(exchange, &request.method);
    let size = request.params.map_or(0, |params| params.get().len());
    let outcome = match (admit(&exchange.identity, &server.long_requests, &server.limiter, size), method) {
        (Err(error), _) => Err(error),
        (Ok(()), Some(method)) if method.is_request() && method.exists_in(exchange.revision()) => {
            handlers::handle(scope, method, request, cancel).await
        }
        // A method of an extension, or an unknown one.
        (Ok(()), _) => extension::call(exchange, table, &server.runner.bridge, request).await,
    };
    let ended = match &outcome {
        Ok(reply) => RequestEnd { failure: reply.failure, in_band: true, pending: reply.pending },
        Err(error) => RequestEnd::error(error),
    };
    metrics.finish(ended);
    log.finish(ended);
    outcome
}

/// The end of a request, for logs and metrics.
#[derive(Clone, Copy, Debug)]
pub struct RequestEnd {
    pub failure: Option<ErrorKind>,
    /// `true` if the failure is part of a result.
    pub in_band: bool,
    /// `true` if the call waits for a person's approval.
    pub pending: bool,
}

impl RequestEnd {
    fn error(error: &McpError) -> Self {
        Self { failure: Some(error.kind), in_band: false, pending: false }
    }
}

/// Checks that a request with parameters of this size may proceed.
///
/// # Errors
/// `SHUTTING_DOWN`, `UNAUTHORIZED`, `FORBIDDEN`, or `RATE_LIMITED` with `retryAfter` (seconds).
fn admit(identity: &Identity, requests: &LongRequests, limiter: &Limiter, size: usize) -> Result<(), McpError> {
    if requests.shutdown.is_cancelled() {
        return Err(McpError::new(ErrorKind::ShuttingDown, "the gateway is shutting down"));
    }
    // A connection may outlive the key that opened it.
    requests.authenticator.check(identity)?;
    check_role(identity)?;
    limiter
        .admits(&identity.principal.name, size)
        .map_err(|wait| McpError::new(ErrorKind::RateLimited, "too many requests, slow down").with("retryAfter", wait))
}

/// Checks that the principal's role may use the MCP endpoints.
///
/// # Errors
/// `FORBIDDEN` for a role that may only view.
pub fn check_role(identity: &Identity) -> Result<(), McpError> {
    if identity.principal.role.may_call() {
        return Ok(());
    }
    Err(McpError::new(ErrorKind::Forbidden, "this key may look at changes but not use tools"))
}

/// Writes one structured DEBUG line for each request with method, session, principal, outcome and duration. The line
/// never contains arguments or results, because they may be confidential.
struct RequestLog<'a> {
    exchange: &'a Exchange,
    method: &'a str,
    /// `None` unless the DEBUG level is enabled.
    started: Option<Instant>,
}

impl<'a> RequestLog<'a> {
    fn new(exchange: &'a Exchange, method: &'a str) -> Self {
        Self { exchange, method, started: tracing::enabled!(tracing::Level::DEBUG).then(Instant::now) }
    }

    fn finish(self, ended: RequestEnd) {
        let Some(started) = self.started else { return };
        tracing::debug!(
            // The method is an arbitrary text of the client.
            method = %self.method.escape_debug().take(64).collect::<String>(),
            session = %self.exchange.session.short_id(),
            principal = %self.exchange.identity.principal.name,
            transport = self.exchange.transport.as_str(),
            revision = self.exchange.revision().as_str(),
            outcome = match ended {
                RequestEnd { failure: Some(kind), .. } => kind.code(),
                RequestEnd { pending: true, .. } => "pending",
                _ => "ok",
            },
            duration_us = u64::try_from(started.elapsed().as_micros()).unwrap_or(u64::MAX),
            "request"
        );
    }
}

/// Counts a request and its duration. Labels come from closed lists, never from a client. A timer that is dropped
/// unfinished counts as cancelled by the client.
struct RequestTimer {
    transport: Transport,
    method: countersign_telemetry::Method,
    started: Instant,
    is_finished: bool,
}

impl RequestTimer {
    fn start(exchange: &Exchange, method: &str) -> Self {
        Self {
            transport: exchange.transport,
            method: countersign_telemetry::Method::from_name(method),
            started: Instant::now(),
            is_finished: false,
        }
    }

    fn finish(mut self, ended: RequestEnd) {
        self.is_finished = true;
        let outcome = match ended {
            RequestEnd { failure: Some(kind), in_band, .. } => {
                RequestMetrics::get().record_error(kind);
                if in_band { RequestOutcome::ToolError } else { RequestOutcome::from_error_kind(kind) }
            }
            RequestEnd { pending: true, .. } => RequestOutcome::Pending,
            RequestEnd { .. } => RequestOutcome::Ok,
        };
        self.record(outcome);
    }

    fn record(&self, outcome: RequestOutcome) {
        RequestMetrics::get().record(self.transport, self.method, outcome, self.started.elapsed());
    }
}

impl Drop for RequestTimer {
    fn drop(&mut self) {
        if !self.is_finished {
            self.record(RequestOutcome::Cancelled);
        }
    }
}
