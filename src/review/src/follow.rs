//! Follows the store's feed: transitions of other nodes, and own transitions whose outcome was unknown, go to the
//! actor, which announces them like its own. Messages of other nodes go to the running changes (`receive_messages`).

use std::{sync::Arc, time::Duration};

use tokio::sync::Notify;

use crate::{
    actor::{AnnounceRemote, remote_transition::RemoteTransition},
    change_repository::ChangeRepository,
    dialogue_channels::DialogueMessage,
    review_core::ReviewCore,
    shutdown::pause,
};
use countersign_store::StoreError;

/// The maximum number of events that are read at a time.
const PAGE_SIZE: usize = 256;
/// The delay before the store is read again if it had fewer events than its notification said.
const REREAD_DELAY: Duration = Duration::from_secs(1);
/// The delay after a failed read.
const FAILURE_DELAY: Duration = Duration::from_millis(100);
/// The interval at which counts are refreshed while other nodes write, because pruning is not announced.
const RECOUNT_INTERVAL: Duration = Duration::from_secs(60);

/// Passes new transitions to the actor until the gateway closes.
pub(crate) async fn run(repository: Arc<ChangeRepository>, feed_gap: Arc<Notify>) {
    let (mut updates, stop) = (repository.nodes.subscribe_updates(), &repository.shutdown.stop_following);
    let mut last_read = repository.feed.head();
    let mut recount = tokio::time::interval(RECOUNT_INTERVAL);
    recount.tick().await;
    loop {
        let is_behind = updates.borrow_and_update().event > last_read.max(repository.feed.head());
        if !is_behind {
            tokio::select! {
                () = stop.cancelled() => return,
                () = feed_gap.notified() => {}
                changed = updates.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    continue;
                }
                _ = recount.tick() => {
                    if repository.nodes.live_count() > 1 && let Ok(counts) = repository.store.count_by_state().await {
                        repository.indexes.counts.recount(&counts);
                    }
                    continue;
                }
            }
        }
        match read_new_events(&repository, &mut last_read).await {
            Ok(true) => {}
            // The store has fewer events than its notification said: it is read again after a delay, or at the next notification.
            Ok(false) if is_behind => {
                tokio::select! {
                    () = stop.cancelled() => return,
                    () = feed_gap.notified() => {}
                    _ = updates.changed() => {}
                    () = tokio::time::sleep(REREAD_DELAY) => {}
                }
            }
            Ok(false) => {}
            Err(StoreError::Closed) => return,
            Err(error) => {
                tracing::warn!(%error, "the events of other nodes cannot be read; trying again");
                feed_gap.notify_one();
                if !pause(stop, FAILURE_DELAY).await {
                    return;
                }
            }
        }
    }
}

/// Delivers messages of other nodes to the changes that run here, until the gateway closes.
pub(crate) async fn receive_messages(core: Arc<ReviewCore>) {
    let mut updates = core.repository.nodes.subscribe_updates();
    let mut received_count = 0;
    while let Some(Ok(())) = core.repository.shutdown.stop_following.run_until_cancelled(updates.changed()).await {
        let message_count = updates.borrow_and_update().messages;
        if message_count == received_count {
            continue;
        }
        match core.repository.store.receive_messages().await {
            Ok(messages) => {
                received_count = message_count;
                for (id, body) in messages {
                    let Some(message) = DialogueMessage::from_json(&body) else { continue };
                    if let Err(error) = core.dialogue_channels.send(&id, message).await {
                        tracing::warn!(
                            ?error,
                            change = id,
                            "a message of another node to a running change was not accepted"
                        );
                    }
                }
            }
            // The node is notified again within a second.
            Err(error) => tracing::warn!(%error, "the messages of other nodes cannot be read; trying again"),
        }
    }
}

/// Reads all new events. Returns `true` if there were any.
async fn read_new_events(repository: &ChangeRepository, last_read: &mut u64) -> Result<bool, StoreError> {
    let mut found_events = false;
    loop {
        let after = repository.feed.head().max(*last_read);
        let page = repository.store.remote_events_after(after, PAGE_SIZE).await?;
        let has_more = page.len() == PAGE_SIZE;
        let transitions = page.into_iter().map(RemoteTransition::parse).collect::<Result<Vec<_>, _>>()?;
        let Some(last) = transitions.last() else { return Ok(found_events) };
        *last_read = last.seq;
        found_events = true;
        repository.transitions.addr.do_send(AnnounceRemote { transitions });
        if !has_more {
            return Ok(found_events);
        }
        // Keeps about one page in the actor's mailbox.
        tokio::task::yield_now().await;
    }
}
