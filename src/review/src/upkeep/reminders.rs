//! Reminds of changes that are still undecided after the interval that their terms set. The changes stay as they are, and
//! reminders that fall due while no node runs are left out.
//!
//! Each node reminds the dashboards that are connected to it. Only the leader sends webhooks.

use std::sync::Arc;

use jiff::Timestamp;

use super::{BATCH_SIZE, handle_due};
use crate::{change_repository::ChangeRepository, draft::live_event, shutdown::pause};
use countersign_store::StoreError;

/// The live event on the feed.
const FEED_EVENT: &str = "change.reminder";

/// Sends due reminders on the feed of this node until the gateway closes.
pub(crate) async fn run(repository: Arc<ChangeRepository>) {
    let (stop, interval) = (&repository.shutdown.stop, repository.config.tuning.expiry_interval);
    let mut checked_to = repository.config.now();
    while pause(stop, interval).await {
        let now = repository.config.now();
        while remind_due(&repository, checked_to, now).await == BATCH_SIZE && !stop.is_cancelled() {}
        checked_to = now;
    }
}

/// Sends the reminders that fell due after `checked_to`, at most one for each change, and schedules the next ones. Returns the
/// number of changes that were handled.
pub(crate) async fn remind_due(repository: &ChangeRepository, checked_to: Timestamp, now: Timestamp) -> usize {
    handle_due(&repository.indexes.reminders, now, |id| async move {
        let reminded = remind(repository, &id, checked_to, now).await;
        if let Err(error) = &reminded {
            tracing::warn!(%error, change = id, "a change could not be read to remind of it");
        }
        reminded.is_ok()
    })
    .await
}

async fn remind(
    repository: &ChangeRepository,
    id: &str,
    checked_to: Timestamp,
    now: Timestamp,
) -> Result<(), StoreError> {
    let change = repository.store.get(id).await?;
    let Some(change) = change.filter(|change| change.state.awaits_decision()) else {
        repository.indexes.reminders.remove(id);
        return Ok(());
    };
    let reminder_after = |time| change.terms.next_reminder(change.created_at, time);
    match reminder_after(now) {
        Some(next) => repository.indexes.reminders.insert(id, next, now),
        None => repository.indexes.reminders.remove(id),
    }
    if reminder_after(checked_to).is_some_and(|at| at <= now) {
        repository.feed.publish_live(&live_event(FEED_EVENT, &change, now));
    }
    Ok(())
}
