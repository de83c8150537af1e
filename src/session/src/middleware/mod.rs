//! What stands around every request, in this order: log, metrics, authenticate
//! ([`countersign_auth::Authenticator::check`]), authorize, rate limit, and for tool calls validate ([`countersign_routing::validate`]) and policy ([`crate::policy`]), which their handler
//! asks. [`run`] is the chain.

pub mod authorize;
pub mod log;
pub mod metrics;
pub mod rate_limit;

use crate::{Handling, extension, handlers, server::McpServer};
use countersign_exchange::{cancel::Cancel, reply::Reply};
use countersign_protocol::{ErrorKind, McpError, envelope::Request, method::Method};

/// Runs a JSON-RPC request through the chain to its handler.
///
/// # Errors
/// The error of the first layer that refuses the request, or of its handler.
pub async fn run(exchange: &Handling, request: &Request<'_>, cancel: &Cancel) -> Result<Reply, McpError> {
    let method = Method::parse(&request.method);
    let log = log::RequestLog::new(exchange, &request.method);
    let metrics = metrics::Timer::start(exchange, &request.method);
    let outcome = match (admit(exchange, request.params.map_or(0, |params| params.get().len())), method) {
        (Err(error), _) => Err(error),
        (Ok(()), Some(method)) if method.is_request() && method.exists_in(exchange.revision()) => {
            handlers::handle(exchange, method, request, cancel).await
        }
        // Of an extension, or of nobody.
        (Ok(()), _) => extension::call(exchange, request).await,
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
    /// The failure is told in a result.
    pub in_band: bool,
    /// A person has to approve it.
    pub pending: bool,
}

impl RequestEnd {
    fn error(error: &McpError) -> Self {
        Self { failure: Some(error.kind), in_band: false, pending: false }
    }
}

/// `bytes` are those of the parameters.
fn admit(exchange: &Handling, bytes: usize) -> Result<(), McpError> {
    let McpServer { long_requests, .. } = &*exchange.server;
    if long_requests.shutdown.is_cancelled() {
        return Err(McpError::new(ErrorKind::ShuttingDown, "the gateway is shutting down"));
    }
    // A connection may outlive the key that it was opened with.
    long_requests.authenticator.check(&exchange.identity)?;
    authorize::check(exchange)?;
    rate_limit::check(exchange, bytes)
}
