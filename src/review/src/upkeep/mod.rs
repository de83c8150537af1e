//! Periodic work on changes: expires them, records when further reviewers may decide, reminds of them, voids votes that are no longer valid, marks the outcome of changes whose node is
//! gone as unknown, moves plans on, and prunes old changes. The leading node does it until the gateway closes.

pub mod escalation;
pub mod expiry;
pub mod orphans;
pub mod plans;
pub mod prune;
pub mod reminders;
pub mod votes;

use std::time::Duration;

use crate::inner::Inner;

/// Waits for the interval, and then until this node leads. Returns `false` when the gateway closes.
async fn wait_for_turn(inner: &Inner, interval: Duration) -> bool {
    while inner.shutdown.stop.run_until_cancelled(tokio::time::sleep(interval)).await.is_some() {
        if inner.nodes.is_leader() {
            return true;
        }
    }
    false
}
