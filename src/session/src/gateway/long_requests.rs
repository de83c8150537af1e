//! Requests that stay open for long. Each takes one of its principal's slots, and ends when its credential is no longer
//! valid or the gateway shuts down.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use countersign_auth::Authenticator;
use countersign_exchange::slots::StreamSlots;

/// The parts that bound the number of long requests and end them.
#[derive(Clone)]
pub struct LongRequests {
    pub slots: Arc<StreamSlots>,
    /// Checks credentials, also those of ordinary requests.
    pub authenticator: Arc<Authenticator>,
    /// Cancelled when the gateway begins to drain, after which it refuses ordinary requests, too.
    pub shutdown: CancellationToken,
}
