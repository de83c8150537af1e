//! Requests that stay open for long. Each takes one of its principal's slots, and ends when its key is revoked or the
//! gateway shuts down.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use countersign_auth::Authenticator;
use countersign_domain::principal::{Identity, Principal};
use countersign_exchange::slots::{Evictable, StreamSlot, StreamSlots};
use countersign_protocol::McpError;

/// Admits long requests and ends them.
#[derive(Clone)]
pub struct LongRequests {
    pub slots: Arc<StreamSlots>,
    pub authenticator: Arc<Authenticator>,
    /// Cancelled when the gateway begins to drain.
    pub shutdown: CancellationToken,
}

impl LongRequests {
    /// Takes one of a principal's slots for long requests.
    ///
    /// # Errors
    /// `OVERLOADED` if all slots are taken.
    pub fn admit(&self, principal: &Principal) -> Result<StreamSlot, McpError> {
        self.slots.take(&principal.name)
    }

    /// Takes a slot for a stream that may be evicted later to make room for another one.
    ///
    /// # Errors
    /// `OVERLOADED` if all slots are taken and none of their streams can be evicted.
    pub fn admit_stream(&self, principal: &Principal, stream: Evictable) -> Result<StreamSlot, McpError> {
        self.slots.take_for(&principal.name, Some(stream))
    }

    /// Waits until the client's key is revoked, and returns the error that ends the request.
    pub async fn wait_until_revoked(&self, identity: &Identity) -> McpError {
        self.authenticator.wait_until_revoked(identity).await
    }
}
