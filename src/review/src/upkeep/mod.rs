//! Periodic work on changes: expires, escalates and prunes them, reminds of them, voids invalid votes, advances plans, and marks
//! the outcome of changes whose node is gone as unknown. The leader does it until the gateway closes, except that every node
//! reminds its own dashboards and advances plans.

pub mod escalation;
pub mod expiry;
pub mod orphans;
pub mod plans;
pub mod prune;
pub mod reminders;
pub mod votes;

use std::time::Duration;

use futures_util::{StreamExt, stream};
use jiff::Timestamp;

use crate::{actor::deadlines::Deadlines, change_repository::ChangeRepository, shutdown::pause};

/// The maximum number of changes handled in one round.
const BATCH_SIZE: usize = 256;
/// The maximum number of changes handled at the same time.
const MAX_CONCURRENT: usize = 32;

/// Waits for the interval, and then until this node leads. Returns `false` when the gateway closes.
async fn wait_for_leadership(repository: &ChangeRepository, interval: Duration) -> bool {
    while pause(&repository.shutdown.stop, interval).await {
        if repository.nodes.is_leader() {
            return true;
        }
    }
    false
}

/// Handles the changes that are due, at most [`BATCH_SIZE`]. Returns the number of those for which `handle` returned `true`
/// because they need no further attempt in this round.
async fn handle_due<F: Future<Output = bool>>(
    deadlines: &Deadlines,
    now: Timestamp,
    handle: impl Fn(String) -> F,
) -> usize {
    let handled = stream::iter(deadlines.due(now, BATCH_SIZE)).map(handle).buffer_unordered(MAX_CONCURRENT);
    handled.filter(|is_done| std::future::ready(*is_done)).count().await
}
