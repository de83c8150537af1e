//! Cancellation of a request: by its client, or by the end of its session.

use std::{
    future::poll_fn,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::Poll,
};

use futures_util::task::AtomicWaker;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

/// The cancellation of one request.
///
/// Every request has one, and few need more of it than that whoever runs it wakes up: a [`CancellationToken`], which
/// takes locks and a place among the children of another, is made only for handlers that hand it on.
#[derive(Clone, Default)]
pub struct Cancel(Arc<Inner>);

#[derive(Default)]
struct Inner {
    over: AtomicBool,
    waits: AtomicWaker,
    token: Mutex<Option<CancellationToken>>,
}

impl Cancel {
    pub fn cancel(&self) {
        // First, so that a token made meanwhile is one that has ended.
        self.0.over.store(true, Ordering::Release);
        self.0.waits.wake();
        if let Some(token) = &*self.0.token.lock() {
            token.cancel();
        }
    }

    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.0.over.load(Ordering::Acquire)
    }

    /// Resolves once it is cancelled. One at a time may wait: whoever asked last is woken.
    pub async fn cancelled(&self) {
        poll_fn(|cx| {
            if !self.is_cancelled() {
                self.0.waits.register(cx.waker());
            }
            if self.is_cancelled() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    /// For many to wait for, or to be handed on: ends with it, or with `parent` as it was when first asked for.
    #[must_use]
    pub fn token(&self, parent: &CancellationToken) -> CancellationToken {
        let mut token = self.0.token.lock();
        let token = token.get_or_insert_with(|| parent.child_token());
        if self.is_cancelled() {
            token.cancel();
        }
        token.clone()
    }
}

/// Something else's: handlers that hand it on get that very token.
impl From<CancellationToken> for Cancel {
    fn from(token: CancellationToken) -> Self {
        Self(Arc::new(Inner { token: Mutex::new(Some(token)), ..Inner::default() }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn who_waits_and_every_token_hear_of_it() {
        let (cancel, parent) = (Cancel::default(), CancellationToken::new());
        let before = cancel.token(&parent);
        let waiting = tokio::spawn({
            let cancel = cancel.clone();
            async move { cancel.cancelled().await }
        });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished() && !before.is_cancelled() && !cancel.is_cancelled());
        cancel.cancel();
        waiting.await.unwrap();
        assert!(before.is_cancelled() && cancel.token(&parent).is_cancelled() && !parent.is_cancelled());
        cancel.cancelled().await;

        let late = Cancel::default();
        late.cancel();
        assert!(late.token(&parent).is_cancelled());
    }

    #[test]
    fn tokens_end_with_their_parent_too_and_one_that_was_given_is_given_back() {
        let (cancel, parent) = (Cancel::default(), CancellationToken::new());
        let token = cancel.token(&parent);
        parent.cancel();
        assert!(token.is_cancelled() && !cancel.is_cancelled());
        let own = CancellationToken::new();
        let given = Cancel::from(own.clone()).token(&parent);
        assert!(!given.is_cancelled());
        own.cancel();
        assert!(given.is_cancelled());
    }
}
