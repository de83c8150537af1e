//! Requests that stay open for long. Each takes one of its principal's places, and ends when its key is revoked or the
//! gateway shuts down.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use countersign_auth::Authenticator;
use countersign_domain::principal::{Identity, Principal};
use countersign_exchange::slots::{Evictable, StreamSlot, StreamSlots};
use countersign_protocol::McpError;

/// Admits requests that stay open, and ends them.
#[derive(Clone)]
pub struct LongRequests {
    pub slots: Arc<StreamSlots>,
    pub authenticator: Arc<Authenticator>,
    /// Cancelled when the gateway begins to drain.
    pub shutdown: CancellationToken,
}

impl LongRequests {
    /// Takes one of a principal's places for requests that stay open.
    ///
    /// # Errors
    /// `OVERLOADED` when all are taken.
    pub fn admit(&self, principal: &Principal) -> Result<StreamSlot, McpError> {
        self.slots.take(&principal.name)
    }

    /// The same for a stream that may have to make room for another one later.
    ///
    /// # Errors
    /// `OVERLOADED` when all are taken, and none of them can go.
    pub fn admit_stream(&self, principal: &Principal, stream: Evictable) -> Result<StreamSlot, McpError> {
        self.slots.take_for(&principal.name, Some(stream))
    }

    /// Waits until the key of a client is revoked, and returns the error that ends its request.
    pub async fn wait_until_revoked(&self, identity: &Identity) -> McpError {
        self.authenticator.wait_until_revoked(identity).await
    }
}
