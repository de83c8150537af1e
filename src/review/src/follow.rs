//! Follows the store: what other nodes write, and what a write of this gateway turns out to have been, goes to the actor,
//! which announces it as it would its own.

use std::{sync::Arc, time::Duration};

use crate::{
    actor::{ReadOthers, others::Other},
    inner::Inner,
    inquiries::Word,
};
use countersign_store::StoreError;

/// Read at a time.
const PAGE: usize = 256;
/// Before the store is read again, where it had less than was told.
const AGAIN: Duration = Duration::from_secs(1);
/// The same where it could not be.
const PAUSE: Duration = Duration::from_millis(100);
/// How often the counts are taken anew while others write: they do not tell of what they prune.
const RECOUNT: Duration = Duration::from_secs(60);

/// Runs until the gateway closes.
pub(crate) async fn run(inner: Arc<Inner>) {
    let mut news = inner.nodes.news();
    let mut read_to = inner.feed.head();
    let mut recount = tokio::time::interval(RECOUNT);
    recount.tick().await;
    loop {
        let behind = news.borrow_and_update().event > read_to.max(inner.feed.head());
        if !behind {
            tokio::select! {
                () = inner.followed.cancelled() => return,
                () = inner.gap.notified() => {}
                changed = news.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    continue;
                }
                _ = recount.tick() => {
                    if inner.nodes.live() > 1 && let Ok(counts) = inner.store.counts().await {
                        inner.counts.recount(&counts);
                    }
                    continue;
                }
            }
        }
        match page(&inner, &mut read_to).await {
            Ok(true) => {}
            // Told of more than there is: whatever it was, it is looked at again with the next news.
            Ok(false) if behind => {
                tokio::select! {
                    () = inner.followed.cancelled() => return,
                    () = inner.gap.notified() => {}
                    _ = news.changed() => {}
                    () = tokio::time::sleep(AGAIN) => {}
                }
            }
            Ok(false) => {}
            Err(StoreError::Closed) => return,
            Err(error) => {
                tracing::warn!(%error, "what others have written cannot be read; trying again");
                inner.gap.notify_one();
                tokio::select! {
                    () = inner.followed.cancelled() => return,
                    () = tokio::time::sleep(PAUSE) => {}
                }
            }
        }
    }
}

/// Takes what other nodes say to changes that run here, until the gateway closes.
pub(crate) async fn listen(inner: Arc<Inner>) {
    let mut news = inner.nodes.news();
    let mut heard = 0;
    loop {
        tokio::select! {
            () = inner.followed.cancelled() => return,
            changed = news.changed() => if changed.is_err() {
                return;
            }
        }
        let words = news.borrow_and_update().words;
        if words == heard {
            continue;
        }
        match inner.store.heard().await {
            Ok(all) => {
                heard = words;
                for (id, body) in all {
                    let Some(word) = Word::heard(&body) else { continue };
                    if let Err(error) = inner.inquiries.tell(&id, word).await {
                        tracing::warn!(?error, change = id, "what another node says to a change was not taken");
                    }
                }
            }
            // The node hears of it again in a second.
            Err(error) => tracing::warn!(%error, "what other nodes say cannot be read"),
        }
    }
}

/// Reads on; whether there was anything.
async fn page(inner: &Inner, read_to: &mut u64) -> Result<bool, StoreError> {
    let mut any = false;
    loop {
        let after = inner.feed.head().max(*read_to);
        let followed = inner.store.followed(after, PAGE).await?;
        let more = followed.len() == PAGE;
        let others = followed.into_iter().map(Other::read).collect::<Result<Vec<_>, _>>()?;
        let Some(last) = others.last() else { return Ok(any) };
        *read_to = last.seq;
        any = true;
        inner.addr.do_send(ReadOthers { others });
        if !more {
            return Ok(any);
        }
        // No more than a page waits for the actor, about.
        tokio::task::yield_now().await;
    }
}
