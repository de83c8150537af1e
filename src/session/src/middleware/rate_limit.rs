//! Refuses a call of a principal that makes more of them a second than it may ([`crate::state::limiter`]).

use crate::Handling;
use countersign_protocol::{ErrorKind, McpError};

/// `bytes` are those of the request's parameters.
///
/// # Errors
/// `RATE_LIMITED` with `retryAfter` (seconds).
pub fn check(exchange: &Handling, bytes: usize) -> Result<(), McpError> {
    let server = &exchange.server;
    server
        .limiter
        .admits(&exchange.identity.principal.name, bytes, server.reviews.changes.nodes().live_count())
        .map_err(|wait| McpError::new(ErrorKind::RateLimited, "too many requests, slow down").with("retryAfter", wait))
}
