//! Calls and `tasks/result` that stay open until a change is over. They end with their client, with its credential and
//! with the gateway.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use crate::gateway::server::Reviews;
use countersign_domain::changes::{Change, ChangeState};
use countersign_exchange::context::Exchange;
use countersign_protocol::{ErrorKind, McpError};
use countersign_provider::ProgressSink;
use countersign_review::gateway_tools;

/// The interval at which a waiting client gets progress.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(5);

/// The longest time between two reads of the change, even if nothing is announced.
const RECHECK_INTERVAL: Duration = Duration::from_secs(60);

/// The time for which a call is held. The call may wait several times, and its progress is the time since the first wait
/// began, because progress must rise.
#[derive(Clone, Copy)]
pub struct Hold<'a> {
    started_at: Instant,
    duration: Duration,
    progress: &'a dyn ProgressSink,
}

impl<'a> Hold<'a> {
    /// Holds a call from now on.
    pub fn new(duration: Duration, progress: &'a dyn ProgressSink) -> Self {
        Self { started_at: Instant::now(), duration, progress }
    }

    /// Returns the time that is left.
    pub fn remaining(&self) -> Duration {
        self.duration.saturating_sub(self.started_at.elapsed())
    }

    /// Reports the progress of the call.
    fn report(&self, change: &Change) {
        let message = gateway_tools::progress_message(change);
        let (elapsed, total) = (self.started_at.elapsed().as_secs_f64(), self.duration.as_secs_f64());
        self.progress.progress(elapsed, Some(total), Some(&message));
    }
}

/// The outcome of a wait.
#[derive(Debug)]
pub enum WaitOutcome {
    /// The change fulfils the condition.
    Reached(Arc<Change>),
    /// The time is up, the gateway is shutting down, or too many requests wait.
    NotReached(Arc<Change>),
}

/// Returns `true` if the change can no longer move on its own. An unknown outcome may last for days, until a person
/// settles it.
pub fn is_over(change: &Change) -> bool {
    change.state.is_final() || change.state == ChangeState::OutcomeUnknown
}

/// A request that waits for a change.
#[derive(Clone, Copy)]
pub struct ChangeWait<'a> {
    pub exchange: &'a Exchange,
    pub reviews: &'a Reviews,
    /// Bounds the wait and reports its progress; `None` for a wait of any length.
    pub hold: Option<Hold<'a>>,
}

impl ChangeWait<'_> {
    /// Waits until `is_reached` returns `true` for the change.
    ///
    /// # Errors
    /// `UNAUTHORIZED` once the client's credential is no longer valid; the errors of the store.
    pub async fn until(
        self,
        change: Arc<Change>,
        is_reached: impl Fn(&Change) -> bool,
    ) -> Result<WaitOutcome, McpError> {
        let Self { exchange, reviews, .. } = self;
        let before = Arc::clone(&change);
        tokio::select! {
            waited = self.follow(change, is_reached) => waited,
            () = reviews.long_requests.shutdown.cancelled() => {
                Ok(WaitOutcome::NotReached(reload(reviews, before).await))
            }
            error = reviews.long_requests.authenticator.wait_until_invalid(&exchange.identity) => Err(error),
        }
    }

    /// Reads the change again and again until `is_reached` returns `true` for it or the time is up.
    async fn follow(
        self,
        mut change: Arc<Change>,
        is_reached: impl Fn(&Change) -> bool,
    ) -> Result<WaitOutcome, McpError> {
        let reporting_hold = self.hold.filter(|hold| hold.progress.has_listener());
        loop {
            if is_reached(&change) {
                return Ok(WaitOutcome::Reached(change));
            }
            let remaining = self.hold.map_or(RECHECK_INTERVAL, |hold| hold.remaining());
            if remaining.is_zero() {
                return Ok(WaitOutcome::NotReached(change));
            }
            if let Some(hold) = reporting_hold {
                hold.report(&change);
            }
            let pause = remaining.min(if reporting_hold.is_some() { PROGRESS_INTERVAL } else { RECHECK_INTERVAL });
            let paused_at = Instant::now();
            let current = match self.reviews.changes.wait(&change.id, change.version, pause).await {
                Ok(Some(current)) => current,
                Ok(None) => return Ok(WaitOutcome::NotReached(change)),
                Err(error) if error.kind == ErrorKind::Overloaded => return Ok(WaitOutcome::NotReached(change)),
                Err(error) => return Err(error),
            };
            // The wait returns early without a new version only when the gateway is shutting down.
            let is_early = current.version <= change.version && paused_at.elapsed() < pause;
            change = current;
            if is_early && !is_reached(&change) {
                return Ok(WaitOutcome::NotReached(change));
            }
        }
    }
}

/// Reads the change again. Returns the given one if it cannot be read.
pub async fn reload(reviews: &Reviews, change: Arc<Change>) -> Arc<Change> {
    reviews.changes.get(&change.id).await.ok().flatten().unwrap_or(change)
}
