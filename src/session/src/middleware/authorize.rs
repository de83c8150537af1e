//! Checks that the principal's role may use the MCP endpoints at all.

use countersign_domain::principal::Identity;
use countersign_exchange::context::Exchange;
use countersign_protocol::{ErrorKind, McpError};

/// # Errors
/// `FORBIDDEN` for a role that only watches.
pub fn check(exchange: &Exchange) -> Result<(), McpError> {
    role(&exchange.identity)
}

/// Like [`check`], for a request that has no exchange yet.
///
/// # Errors
/// `FORBIDDEN` for a role that only watches.
pub fn role(identity: &Identity) -> Result<(), McpError> {
    if identity.principal.role.may_call() {
        return Ok(());
    }
    Err(McpError::new(ErrorKind::Forbidden, "this key may look at changes but not use tools"))
}
