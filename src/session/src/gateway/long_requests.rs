//! Requests that stay open for long. Each takes one of its principal's slots, and ends when its credential is no longer
//! valid or the gateway shuts down.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use countersign_auth::Authenticator;
use countersign_domain::principal::{Identity, Principal};
use countersign_exchange::slots::{EvictableStream, StreamSlot, StreamSlots};
use countersign_protocol::McpError;

/// Admits long requests and ends them.
#[derive(Clone)]
pub struct LongRequests {
    pub slots: Arc<StreamSlots>,
    /// Checks credentials, also those of ordinary requests.
    pub authenticator: Arc<Authenticator>,
    /// Cancelled when the gateway begins to drain, after which it refuses ordinary requests, too.
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
    pub fn admit_stream(&self, principal: &Principal, stream: EvictableStream) -> Result<StreamSlot, McpError> {
        self.slots.take_evictable(&principal.name, stream)
    }

    /// Waits until the client's credential is no longer valid, and returns the error that ends the request.
    pub async fn wait_until_invalid(&self, identity: &Identity) -> McpError {
        self.authenticator.wait_until_invalid(identity).await
    }

    /// Waits until the client's access is revoked. The client may renew an access token while its task runs, so a token that
    /// expires does not count as revoked.
    pub async fn wait_until_access_revoked(&self, identity: &Identity) {
        let error = self.authenticator.wait_until_access_revoked(identity).await;
        tracing::info!(principal = %identity.principal.name, %error, "a task ends with the access of its client");
    }
}
