//! The lifetimes of sessions. All sessions end with the gateway. Sessions that clients reach through any node also end
//! when this node loses its lease.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use countersign_protocol::{ErrorKind, McpError};
use countersign_review::Nodes;

/// The lifetimes of all sessions.
pub struct SessionLifetimes {
    pub nodes: Arc<dyn Nodes>,
    /// Cancelled when the gateway ends, which ends all remaining sessions.
    pub ended: CancellationToken,
    /// The epoch of this node, and the token that ends this epoch's sessions that any node can serve.
    epoch: Mutex<(u64, CancellationToken)>,
}

impl SessionLifetimes {
    #[must_use]
    pub fn new(nodes: Arc<dyn Nodes>) -> Self {
        let ended = CancellationToken::new();
        Self { nodes, epoch: Mutex::new((0, ended.child_token())), ended }
    }

    /// Returns the token that ends sessions of the current lease. It is cancelled when the gateway ends. It is also
    /// cancelled when this node loses its lease while other nodes live, because those nodes already answer clients that
    /// its sessions are gone.
    #[must_use]
    pub fn lease_token(&self) -> CancellationToken {
        let current_epoch = self.nodes.sessions_since();
        let mut epoch = self.epoch.lock();
        if epoch.0 != current_epoch {
            let before = std::mem::replace(&mut *epoch, (current_epoch, self.ended.child_token()));
            before.1.cancel();
        }
        epoch.1.clone()
    }

    /// Ends the sessions of a lease that was lost.
    pub fn end_lapsed(&self) {
        drop(self.lease_token());
    }

    /// Checks that this node holds its lease, without which sessions can neither open nor continue: other nodes may
    /// count its sessions as gone.
    ///
    /// # Errors
    /// `STORE_UNAVAILABLE` without a lease.
    pub fn check_lease(&self) -> Result<(), McpError> {
        if self.nodes.holds_claim(None) {
            return Ok(());
        }
        let text = "this gateway does not reach its database, and so serves no sessions at the moment; try again";
        Err(McpError::new(ErrorKind::StoreUnavailable, text).with("retryAfter", 1))
    }

    /// Returns the name of this node if several nodes may serve its store.
    #[must_use]
    pub fn node(&self) -> Option<String> {
        self.nodes.claimant().map(|claimant| claimant.node)
    }
}
