//! Calls and `tasks/result` that stay open until a change is over: never longer than their client, their key and the
//! gateway.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use crate::Handling;
use countersign_domain::changes::{Change, ChangeState};
use countersign_protocol::{ErrorKind, McpError};
use countersign_provider::ProgressSink;
use countersign_review::gateway_tools;

/// The interval at which a waiting client is told that the wait goes on.
const TICK: Duration = Duration::from_secs(5);

/// One look at the change at least this often, whatever is announced.
const LOOK: Duration = Duration::from_secs(60);

/// The outcome of a wait.
#[derive(Debug)]
pub enum WaitOutcome {
    Over(Arc<Change>),
    /// The time is up, the gateway is ending, or too many wait.
    NotYet(Arc<Change>),
}

/// Nothing more will happen to it by itself: an unknown outcome may stay so for days, until a person settles it.
#[must_use]
pub fn is_over(change: &Change) -> bool {
    change.state.is_final() || change.state == ChangeState::OutcomeUnknown
}

/// Waits until the change is `over`, for `limit` at most. Dropping the future frees its place.
///
/// # Errors
/// `UNAUTHORIZED` once the client's key was revoked; those of the store.
pub async fn wait(
    exchange: &Handling,
    change: Arc<Change>,
    limit: Option<Duration>,
    progress: &dyn ProgressSink,
    over: fn(&Change) -> bool,
) -> Result<WaitOutcome, McpError> {
    let server = &exchange.server;
    let before = Arc::clone(&change);
    tokio::select! {
        waited = follow(exchange, change, limit, progress, over) => waited,
        () = server.long_requests.shutdown.cancelled() => Ok(WaitOutcome::NotYet(now(exchange, before).await)),
        revoked = server.long_requests.wait_until_revoked(&exchange.identity) => Err(revoked),
    }
}

/// Waits until the change is at another version than that.
///
/// # Errors
/// The errors of [`wait`]; `SHUTTING_DOWN`, `OVERLOADED`.
pub async fn moved(exchange: &Handling, change: Arc<Change>, version: u64) -> Result<Arc<Change>, McpError> {
    let server = &exchange.server;
    loop {
        let news = tokio::select! {
            news = server.reviews.changes.wait(&change.id, version, LOOK) => news?,
            () = server.long_requests.shutdown.cancelled() => {
                return Err(McpError::new(ErrorKind::ShuttingDown, "the gateway is shutting down; ask again later"));
            }
            revoked = server.long_requests.wait_until_revoked(&exchange.identity) => return Err(revoked),
        };
        match news {
            Some(news) if news.version > version => return Ok(news),
            Some(_) => {}
            None => return Ok(change),
        }
    }
}

async fn follow(
    exchange: &Handling,
    mut change: Arc<Change>,
    limit: Option<Duration>,
    progress: &dyn ProgressSink,
    over: fn(&Change) -> bool,
) -> Result<WaitOutcome, McpError> {
    let began = Instant::now();
    loop {
        if over(&change) {
            return Ok(WaitOutcome::Over(change));
        }
        let elapsed = began.elapsed();
        let left = limit.map_or(LOOK, |limit| limit.saturating_sub(elapsed));
        if left.is_zero() {
            return Ok(WaitOutcome::NotYet(change));
        }
        let wanted = progress.has_listener();
        if wanted {
            let total = limit.map(|limit| limit.as_secs_f64());
            progress.progress(elapsed.as_secs_f64(), total, Some(&gateway_tools::state_message(&change)));
        }
        let pause = left.min(if wanted { TICK } else { LOOK });
        let asked = Instant::now();
        let news = match exchange.server.reviews.changes.wait(&change.id, change.version, pause).await {
            Ok(Some(news)) => news,
            Ok(None) => return Ok(WaitOutcome::NotYet(change)),
            Err(error) if error.kind == ErrorKind::Overloaded => return Ok(WaitOutcome::NotYet(change)),
            Err(error) => return Err(error),
        };
        // It comes back early without news only when the gateway is shutting down.
        let early = news.version <= change.version && asked.elapsed() < pause;
        change = news;
        if early && !over(&change) {
            return Ok(WaitOutcome::NotYet(change));
        }
    }
}

/// The change as it is now, as far as that can still be told.
pub async fn now(exchange: &Handling, change: Arc<Change>) -> Arc<Change> {
    exchange.server.reviews.changes.get(&change.id).await.ok().flatten().unwrap_or(change)
}
