//! Whether the identity behind a request still holds. The door has established it; a connection may outlive it.

use crate::{auth::authenticator::Credential, protocol::McpError, session::Exchange};

/// # Errors
/// `UNAUTHORIZED` for a key that was revoked since the connection was made.
pub fn check(exchange: &Exchange) -> Result<(), McpError> {
    match &exchange.identity.credential {
        Credential::Key(hash) => exchange.gateway.authenticator.recheck(hash).map(drop),
        Credential::Loopback | Credential::SignIn(_) => Ok(()),
    }
}
