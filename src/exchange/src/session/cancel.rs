//! The cancellation of a request by its client or by the end of its session.

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
/// Every request has one, and most requests need it only to wake the task that runs them. A [`CancellationToken`] takes
/// locks and a place among its parent's children, so it is created only for handlers that pass it on.
#[derive(Clone, Default)]
pub struct Cancel(Arc<Inner>);

#[derive(Default)]
struct Inner {
    is_cancelled: AtomicBool,
    waker: AtomicWaker,
    token: Mutex<Option<CancellationToken>>,
}

impl Cancel {
    pub fn cancel(&self) {
        // The flag is set first, so that a token that is created meanwhile is cancelled, too.
        self.0.is_cancelled.store(true, Ordering::Release);
        self.0.waker.wake();
        if let Some(token) = &*self.0.token.lock() {
            token.cancel();
        }
    }

    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.0.is_cancelled.load(Ordering::Acquire)
    }

    /// Waits until the request is cancelled. Only the task that waited last is woken.
    pub async fn cancelled(&self) {
        poll_fn(|cx| {
            if !self.is_cancelled() {
                self.0.waker.register(cx.waker());
            }
            if self.is_cancelled() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    /// Returns a token that many tasks may wait for. It is cancelled with this one, or with the `parent` of the first
    /// call.
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

/// Wraps the token of another operation. [`Cancel::token`] returns that same token.
impl From<CancellationToken> for Cancel {
    fn from(token: CancellationToken) -> Self {
        Self(Arc::new(Inner { token: Mutex::new(Some(token)), ..Inner::default() }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn cancellation_wakes_waiter_and_all_tokens() {
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

        let cancelled = Cancel::default();
        cancelled.cancel();
        assert!(cancelled.token(&parent).is_cancelled());
    }

    #[test]
    fn token_ends_with_parent_and_wrapped_token_is_returned() {
        let (cancel, parent) = (Cancel::default(), CancellationToken::new());
        let token = cancel.token(&parent);
        parent.cancel();
        assert!(token.is_cancelled() && !cancel.is_cancelled());
        let wrapped = CancellationToken::new();
        let returned = Cancel::from(wrapped.clone()).token(&parent);
        assert!(!returned.is_cancelled());
        wrapped.cancel();
        assert!(returned.is_cancelled());
    }
}
