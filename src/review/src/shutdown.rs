//! The signals by which the Executor, the endpoints and the reading of the feed stop, one after another.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use countersign_protocol::McpError;

/// Waits for this time. Returns `false` as soon as the signal is given.
pub(super) async fn pause(signal: &CancellationToken, delay: Duration) -> bool {
    signal.run_until_cancelled(tokio::time::sleep(delay)).await.is_some()
}

#[derive(Default)]
pub(super) struct Shutdown {
    closing: AtomicBool,
    /// Cancelled when no new change may be claimed.
    pub stop: CancellationToken,
    /// Cancelled to end running calls.
    pub kill: CancellationToken,
    /// Cancelled to give up recording outcomes.
    pub abandon: CancellationToken,
    /// Cancelled when the Executor has ended, even if it panicked.
    pub executor_ended: CancellationToken,
    /// Cancelled when nothing more will be announced.
    pub stop_following: CancellationToken,
}

impl Shutdown {
    /// Rejects new work of endpoints once the gateway shuts down.
    ///
    /// # Errors
    /// `SHUTTING_DOWN`
    pub(super) fn check_open(&self) -> Result<(), McpError> {
        if self.closing.load(Ordering::Acquire) { Err(McpError::shutting_down()) } else { Ok(()) }
    }

    /// Refuses new work and waits until the Executor has ended. At the deadline, it ends the running calls.
    pub(super) async fn end_work(&self, deadline: Duration) {
        self.closing.store(true, Ordering::Release);
        self.stop.cancel();
        if timeout(deadline, self.executor_ended.cancelled()).await.is_err() {
            tracing::warn!("changes were still running at the deadline; their outcome is unknown");
            self.kill.cancel();
            if timeout(Duration::from_secs(2), self.executor_ended.cancelled()).await.is_err() {
                self.abandon.cancel();
                let _ = timeout(Duration::from_secs(1), self.executor_ended.cancelled()).await;
            }
        }
    }
}
