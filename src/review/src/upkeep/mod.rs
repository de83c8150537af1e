//! What becomes of changes without anybody asking for it: their time ends, votes cease to count, their node is gone
//! while they run, and what is old is pruned. Each is looked for again and again until the gateway closes, by the node that
//! leads.

pub mod expiry;
pub mod orphans;
pub mod prune;
pub mod votes;

use std::time::Duration;

use crate::inner::Inner;

/// Waits so long, and on until this node leads; `false` when the gateway closes.
async fn turn(inner: &Inner, interval: Duration) -> bool {
    loop {
        tokio::select! {
            () = inner.stop.cancelled() => return false,
            () = tokio::time::sleep(interval) => {}
        }
        if inner.nodes.leads() {
            return true;
        }
    }
}
