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
    epoch: Mutex<Epoch>,
}

/// The period in which the sessions of this node count as alive. It ends when the node loses its lease.
struct Epoch {
    /// The start of the epoch, as [`Nodes::sessions_since`] counts.
    since: u64,
    /// Ends the sessions of this epoch that clients reach through any node.
    ended: CancellationToken,
}

impl SessionLifetimes {
    pub fn new(nodes: Arc<dyn Nodes>) -> Self {
        let end_token = CancellationToken::new();
        Self { nodes, epoch: Mutex::new(Epoch { since: 0, ended: end_token.child_token() }), ended: end_token }
    }

    /// Returns the token that ends sessions of the current lease. It is cancelled when the gateway ends. It is also
    /// cancelled when this node loses its lease while other nodes live, because those nodes already answer clients that
    /// its sessions are gone.
    #[must_use]
    pub fn lease_token(&self) -> CancellationToken {
        self.end_lapsed_epoch();
        self.epoch.lock().ended.clone()
    }

    /// Ends the sessions of a lease that was lost, and begins a new epoch.
    pub fn end_lapsed_epoch(&self) {
        let since = self.nodes.sessions_since();
        let mut epoch = self.epoch.lock();
        if epoch.since != since {
            let lapsed = std::mem::replace(&mut *epoch, Epoch { since, ended: self.ended.child_token() });
            lapsed.ended.cancel();
        }
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
    pub fn node(&self) -> Option<String> {
        self.nodes.claimant().map(|claimant| claimant.node)
    }
}
