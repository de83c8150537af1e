//! Checks that the identity behind a request is still valid. The endpoint has established it; a connection may outlive it.

use countersign_exchange::context::Exchange;
use countersign_protocol::McpError;

/// # Errors
/// `UNAUTHORIZED` for a key that was revoked since the connection was made.
pub fn check(exchange: &Exchange) -> Result<(), McpError> {
    exchange.services.holds(&exchange.identity)
}
