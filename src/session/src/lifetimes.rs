//! How long sessions live: until the gateway ends, and those that clients reach through any node only while this node holds
//! its lease.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use countersign_protocol::{ErrorKind, McpError};
use countersign_review::Nodes;

/// The lifetimes of all sessions.
pub struct SessionLifetimes {
    pub nodes: Arc<dyn Nodes>,
    /// Cancelled when the gateway ends: sessions that are still there are cut.
    pub ended: CancellationToken,
    /// The token that ends sessions which clients reach through any node, and the epoch of this node in which they
    /// live.
    epoch: Mutex<(u64, CancellationToken)>,
}

impl SessionLifetimes {
    #[must_use]
    pub fn new(nodes: Arc<dyn Nodes>) -> Self {
        let ended = CancellationToken::new();
        Self { nodes, epoch: Mutex::new((0, ended.child_token())), ended }
    }

    /// Returns the token that ends sessions of the current lease: it is cancelled when the gateway ends, and when this node
    /// loses its lease while other nodes live, which have told clients by then that its sessions are gone.
    #[must_use]
    pub fn of_lease(&self) -> CancellationToken {
        let since = self.nodes.sessions_since();
        let mut epoch = self.epoch.lock();
        if epoch.0 != since {
            let before = std::mem::replace(&mut *epoch, (since, self.ended.child_token()));
            before.1.cancel();
        }
        epoch.1.clone()
    }

    /// Ends the sessions of a lease that was lost.
    pub fn end_lapsed(&self) {
        drop(self.of_lease());
    }

    /// Refuses what opens or goes on with a session while this node does not hold its lease: nobody knows then whether other
    /// nodes count it as gone.
    ///
    /// # Errors
    /// `STORE_UNAVAILABLE`
    pub fn check_lease(&self) -> Result<(), McpError> {
        if self.nodes.holds_claim(None) {
            return Ok(());
        }
        let text = "this gateway does not reach its database, and so serves no sessions at the moment; try again";
        Err(McpError::new(ErrorKind::StoreUnavailable, text).with("retryAfter", 1))
    }

    /// Returns the name of this node, where several may serve its store.
    #[must_use]
    pub fn node(&self) -> Option<String> {
        self.nodes.claimant().map(|claimant| claimant.node)
    }
}
