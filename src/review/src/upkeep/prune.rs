//! Takes the contents out of finished changes when they are old, deletes them when they are older, and forgets old
//! feed events (`changes.retention`): in small transactions, one after another, so that no writer waits long.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use jiff::{SignedDuration, Timestamp};
use serde_json::json;
use tokio::sync::oneshot;

use crate::inner::Inner;
use countersign_config::RetentionConfig;
use countersign_domain::changes::{digest::body_hash, retention::redact};
use countersign_store::{Deletion, OldBefore, Pruning, Redaction, StoreError, WriteError};

/// Between two looks for what is old, and before the first; less where something is kept for less.
const INTERVAL: Duration = Duration::from_secs(60);
const SHORTEST: Duration = Duration::from_secs(1);
/// Between two transactions.
const PAUSE: Duration = Duration::from_millis(20);
/// How far the wall clock may go from the steady one before nothing is pruned by it.
const TOLERANCE: SignedDuration = SignedDuration::from_hours(1);
/// How long a clock that jumped is watched before it is believed.
const DOUBT: Duration = Duration::from_secs(24 * 3600);

/// A wall clock that jumped forwards would make everything old at once. It is believed while it keeps pace with the
/// steady clock, and after a jump only once it has kept pace for a day.
pub(crate) struct Trust {
    wall: Timestamp,
    steady: Instant,
    doubted_until: Option<Instant>,
}

impl Trust {
    pub(crate) fn new(now: Timestamp) -> Self {
        Self { wall: now, steady: Instant::now(), doubted_until: None }
    }

    /// Whether `now` may be used to tell what is old.
    pub(crate) fn holds(&mut self, now: Timestamp) -> bool {
        let passed = SignedDuration::try_from(self.steady.elapsed()).unwrap_or(SignedDuration::MAX);
        let drift = now.duration_since(self.wall).checked_sub(passed).unwrap_or(SignedDuration::MAX);
        if drift.abs() > TOLERANCE {
            tracing::warn!(
                seconds = drift.as_secs(),
                "the clock jumped; nothing old is pruned until it has been steady for a day, or the gateway is restarted"
            );
            *self = Self { doubted_until: Instant::now().checked_add(DOUBT), ..Self::new(now) };
        }
        self.doubted_until.is_none_or(|until| Instant::now() >= until)
    }
}

/// Looks for what is old until the gateway closes.
pub(crate) async fn run(inner: Arc<Inner>) {
    let mut trust = Trust::new(inner.now());
    let RetentionConfig { arguments, large, finished, events, large_bytes: _ } = inner.config.retention;
    let shortest = [arguments, large, finished, events].into_iter().flatten().min();
    let interval = shortest.unwrap_or(INTERVAL).clamp(SHORTEST, INTERVAL);
    loop {
        tokio::select! {
            () = inner.stop.cancelled() => return,
            () = tokio::time::sleep(interval) => {}
        }
        if !trust.holds(inner.now()) || !inner.nodes.leads() {
            continue;
        }
        loop {
            match round(&inner).await {
                Ok(true) if !inner.stop.is_cancelled() => tokio::time::sleep(PAUSE).await,
                Ok(_) => break,
                Err(error) => {
                    tracing::warn!(%error, "old records could not be pruned; trying again later");
                    break;
                }
            }
        }
    }
}

fn before(retention: &RetentionConfig, now: Timestamp) -> OldBefore {
    let ago = |time: Option<Duration>| {
        let time = SignedDuration::try_from(time?).ok()?;
        now.checked_sub(time).ok()
    };
    let large = ago(retention.large).map(|at| (at, retention.large_bytes));
    OldBefore {
        contents: ago(retention.arguments),
        large,
        changes: ago(retention.finished),
        events: ago(retention.events),
    }
}

/// One transaction's worth. Whether there is more.
pub(crate) async fn round(inner: &Inner) -> Result<bool, StoreError> {
    let now = inner.now();
    let old = inner.store.old(before(&inner.config.retention, now)).await?;
    if old.contents.is_empty() && old.changes.is_empty() && old.events_to == 0 {
        return Ok(false);
    }
    let redactions = old.contents.iter().map(|change| {
        let body = serde_json::to_string(&redact(change, now))
            .map_err(|e| StoreError::BadRecord(format!("{}: {e}", change.id)))?;
        let details = json!({
            "version": change.version, "digest": change.digest, "changeHash": body_hash(&body),
            "comment": "Its arguments, diffs and result were old",
        });
        let details = details.to_string();
        Ok(Redaction { id: change.id.clone(), version: change.version, state: change.state, body, details })
    });
    let redactions = redactions.collect::<Result<Vec<_>, StoreError>>()?;
    let deletions: Vec<_> = old
        .changes
        .iter()
        .map(|(id, version, state)| {
            let details = json!({ "version": version, "comment": "It was old" }).to_string();
            Deletion { id: id.clone(), version: *version, state: *state, details }
        })
        .collect();
    let pruning = Pruning {
        at: now,
        redactions,
        deletions,
        events_to: old.events_to,
        events_details: json!({ "to": old.events_to, "comment": "Feed events were old" }).to_string(),
    };
    let (redacted, deleted) = (pruning.redactions.len(), pruning.deletions.len());
    let (reply, answer) = oneshot::channel();
    inner.store.submit_pruning(
        pruning,
        Box::new(move |result, _| {
            let _ = reply.send(result);
        }),
    );
    match answer.await {
        Ok(Ok(_)) => {}
        Ok(Err(WriteError::Store(error))) => return Err(error),
        Ok(Err(_)) => return Ok(old.more),
        Err(_) => return Err(StoreError::Closed),
    }
    for (.., state) in &old.changes {
        inner.counts.gone(*state);
    }
    tracing::info!(redacted, deleted, events_to = old.events_to, "old records were pruned");
    Ok(old.more)
}
