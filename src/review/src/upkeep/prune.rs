//! Removes the contents of old finished changes, then the changes themselves, and old feed events (`changes.retention`).
//! Pruning uses small transactions, so that writers never wait long.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use jiff::{SignedDuration, Timestamp};
use serde_json::json;

use super::wait_for_leadership;
use crate::change_repository::ChangeRepository;
use countersign_config::RetentionConfig;
use countersign_domain::changes::{digest::body_hash, retention::redact};
use countersign_store::{PrunedChange, Pruning, PruningCutoffs, StoreError, WriteError, WriteRequest, write};

/// The longest interval between two searches for old records. A short retention time shortens it.
const MAX_INTERVAL: Duration = Duration::from_secs(60);
/// The shortest interval between two searches for old records.
const MIN_INTERVAL: Duration = Duration::from_secs(1);
/// The delay between two transactions.
const BATCH_DELAY: Duration = Duration::from_millis(20);
/// The largest drift between wall clock and monotonic clock at which pruning still trusts the wall clock.
const MAX_CLOCK_DRIFT: SignedDuration = SignedDuration::from_hours(1);
/// The time for which a clock must be steady after a jump before it is trusted again.
const DISTRUST_PERIOD: Duration = Duration::from_secs(24 * 3600);

/// Decides whether the wall clock may be used for pruning. A clock that jumps forward would make everything old at once,
/// so it is trusted only while it keeps pace with the monotonic clock. A jump ends the trust for a day.
pub(crate) struct ClockTrust {
    wall_time: Timestamp,
    monotonic_time: Instant,
    distrusted_until: Option<Instant>,
}

impl ClockTrust {
    pub(crate) fn new(now: Timestamp) -> Self {
        Self { wall_time: now, monotonic_time: Instant::now(), distrusted_until: None }
    }

    /// Returns `true` if `now` may be used to tell what is old.
    pub(crate) fn is_trusted(&mut self, now: Timestamp) -> bool {
        let elapsed = SignedDuration::try_from(self.monotonic_time.elapsed()).unwrap_or(SignedDuration::MAX);
        let drift = now.duration_since(self.wall_time).checked_sub(elapsed).unwrap_or(SignedDuration::MAX);
        if drift.abs() > MAX_CLOCK_DRIFT {
            tracing::warn!(
                seconds = drift.as_secs(),
                "the clock jumped; nothing old is pruned until it has been steady for a day, or the gateway is restarted"
            );
            *self = Self { distrusted_until: Instant::now().checked_add(DISTRUST_PERIOD), ..Self::new(now) };
        }
        self.distrusted_until.is_none_or(|until| Instant::now() >= until)
    }
}

/// Prunes old records until the gateway closes.
pub(crate) async fn run(repository: Arc<ChangeRepository>) {
    let mut trust = ClockTrust::new(repository.config.now());
    let RetentionConfig { arguments, large, finished, events, large_bytes: _ } = repository.config.limits.retention;
    let shortest = [arguments, large, finished, events].into_iter().flatten().min();
    let interval = shortest.unwrap_or(MAX_INTERVAL).clamp(MIN_INTERVAL, MAX_INTERVAL);
    while wait_for_leadership(&repository, interval).await {
        while trust.is_trusted(repository.config.now()) {
            match prune_batch(&repository).await {
                Ok(true) if !repository.shutdown.stop.is_cancelled() => tokio::time::sleep(BATCH_DELAY).await,
                Ok(_) => break,
                Err(error) => {
                    tracing::warn!(%error, "old records could not be pruned; trying again later");
                    break;
                }
            }
        }
    }
}

/// Returns the times before which records are old.
fn cutoffs(retention: &RetentionConfig, now: Timestamp) -> PruningCutoffs {
    let cutoff = |retention: Option<Duration>| {
        let retention = SignedDuration::try_from(retention?).ok()?;
        now.checked_sub(retention).ok()
    };
    let large = cutoff(retention.large).map(|at| (at, retention.large_bytes));
    PruningCutoffs {
        contents: cutoff(retention.arguments),
        large,
        changes: cutoff(retention.finished),
        events: cutoff(retention.events),
    }
}

/// Prunes the records of one transaction. Returns `true` if there are more.
pub(crate) async fn prune_batch(repository: &ChangeRepository) -> Result<bool, StoreError> {
    let now = repository.config.now();
    let prunable = repository.store.find_prunable(cutoffs(&repository.config.limits.retention, now)).await?;
    if prunable.contents.is_empty() && prunable.changes.is_empty() && prunable.events_to == 0 {
        return Ok(false);
    }
    let redactions = prunable.contents.iter().map(|change| {
        let body = serde_json::to_string(&redact(change, now))
            .map_err(|e| StoreError::BadRecord(format!("{}: {e}", change.id)))?;
        let details = json!({
            "version": change.version, "digest": change.digest, "changeHash": body_hash(&body),
            "comment": "Its arguments, diffs and result were old",
        });
        let details = details.to_string();
        let (id, version, state) = (change.id.clone(), change.version, change.state);
        Ok(PrunedChange { id, version, state, body: Some(body), details })
    });
    let deletions = prunable.changes.iter().map(|(id, version, state)| {
        let details = json!({ "version": version, "comment": "It was old" }).to_string();
        Ok(PrunedChange { id: id.clone(), version: *version, state: *state, body: None, details })
    });
    let pruning = Pruning {
        at: now,
        changes: redactions.chain(deletions).collect::<Result<_, StoreError>>()?,
        events_to: prunable.events_to,
        events_details: json!({ "to": prunable.events_to, "comment": "Feed events were old" }).to_string(),
    };
    let (redacted, deleted) = (prunable.contents.len(), prunable.changes.len());
    match write(&*repository.store, WriteRequest::Prune(pruning)).await {
        Ok(()) => {}
        Err(WriteError::Store(error)) => return Err(error),
        // A change was altered since the search. The next search finds what is still old.
        Err(_) => return Ok(prunable.more),
    }
    for (.., state) in &prunable.changes {
        repository.indexes.counts.decrement(*state);
    }
    tracing::info!(redacted, deleted, events_to = prunable.events_to, "old records were pruned");
    Ok(prunable.more)
}
