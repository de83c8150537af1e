//! The end of something long-lived: waited for by few, asked about with every call.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use tokio_util::sync::{CancellationToken, WaitForCancellationFuture};

/// A [`CancellationToken`] that is the child of none, and that can be asked without taking a lock: the threads that
/// serve calls all ask the same one.
#[derive(Clone, Debug, Default)]
pub struct Ending {
    token: CancellationToken,
    over: Arc<AtomicBool>,
}

impl Ending {
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    pub fn cancel(&self) {
        // First, so that whoever is woken finds it so.
        self.over.store(true, Ordering::Release);
        self.token.cancel();
    }

    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    pub fn cancelled(&self) -> WaitForCancellationFuture<'_> {
        self.token.cancelled()
    }

    /// A token that ends with it, and that may end before.
    #[must_use]
    pub fn child_token(&self) -> CancellationToken {
        self.token.child_token()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn all_copies_and_children_end_with_it_and_it_with_none_of_them() {
        let ending = Ending::new();
        let (copy, child, early) = (ending.clone(), ending.child_token(), ending.child_token());
        early.cancel();
        assert!(!ending.is_cancelled() && !copy.is_cancelled() && !child.is_cancelled());
        let waits = tokio::spawn(async move {
            copy.cancelled().await;
            copy.is_cancelled()
        });
        tokio::task::yield_now().await;
        ending.cancel();
        assert!(waits.await.unwrap() && ending.is_cancelled() && child.is_cancelled());
    }
}
