//! Derives the outcome of a call from the provider's answer, and records it. Also ends a change whose claim was stored although
//! its write seemed to fail.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use serde_json::value::{RawValue, to_raw_value};

use super::{RetryReason, late::record_late_result};
use crate::{
    actor::TransitionError,
    change_repository::ChangeRepository,
    shutdown::pause,
    truncation::{MAX_FAULT_CHARS, to_fault},
};
use countersign_domain::{
    changes::{Change, ChangeFault, ChangeState, Claimant, machine::ChangeEvent},
    text::truncate,
};
use countersign_protocol::{ErrorKind, McpError, redact::redact};
use countersign_provider::ToolResult;
use countersign_store::StoreError;

/// Returns the event for an answer; `last_sent_at` is the time at which a request of the call was last sent.
pub(super) fn outcome_event(
    repository: &ChangeRepository,
    answer: Result<ToolResult, McpError>,
    last_sent_at: Timestamp,
) -> ChangeEvent {
    match answer {
        Ok(result) if result.is_error => {
            let message = first_text(&result).unwrap_or_else(|| "The tool answered with an error".into());
            let fault = ChangeFault::new(ErrorKind::ToolExecution, message);
            ChangeEvent::Fail { fault, result: Some(result_to_store(repository, &result)) }
        }
        Ok(result) => ChangeEvent::Succeed { result: result_to_store(repository, &result), reads_back: false },
        Err(error) if is_certainly_not_applied(&error) => {
            let result = result_to_store(repository, &ToolResult::error(&error));
            ChangeEvent::Fail { fault: to_fault(&error), result: Some(result) }
        }
        Err(error) => {
            // After a timeout, the deadline of the call counts from its last request. Another error may come later, because
            // progress and questions extend the timeout, so the deadline counts from now.
            let last_sent_at = if error.kind == ErrorKind::Timeout { last_sent_at } else { repository.config.now() };
            ChangeEvent::LoseTrack { fault: to_fault(&error), last_sent_at }
        }
    }
}

/// Returns `true` if a call that ended with this error certainly changed nothing. A provider that knows better says so
/// in `data.outcome`: `not_applied` or `unknown`.
fn is_certainly_not_applied(error: &McpError) -> bool {
    match error.data.get("outcome").and_then(serde_json::Value::as_str) {
        Some("not_applied") => true,
        Some("unknown") => false,
        _ => !matches!(
            error.kind,
            ErrorKind::Timeout | ErrorKind::UpstreamUnavailable | ErrorKind::Cancelled | ErrorKind::Internal
        ),
    }
}

/// Returns the result to store: the whole result, or a note in its place if it is too large.
fn result_to_store(repository: &ChangeRepository, result: &ToolResult) -> Arc<RawValue> {
    let whole = to_raw_value(result).ok().filter(|raw| raw.get().len() <= repository.config.tuning.max_result_bytes);
    let raw = whole.or_else(|| {
        let note = ToolResult::text("The tool's answer was too large to be kept.", None);
        to_raw_value(&ToolResult { is_error: result.is_error, ..note }).ok()
    });
    raw.map_or_else(|| Arc::from(Box::<RawValue>::default()), Arc::from)
}

/// Returns the beginning of the first text block, without secrets.
fn first_text(result: &ToolResult) -> Option<String> {
    #[derive(serde::Deserialize)]
    struct Block {
        text: Option<String>,
    }
    let blocks: Vec<Block> = serde_json::from_str(result.content.get()).ok()?;
    let text = blocks.into_iter().find_map(|block| block.text)?;
    Some(truncate(&redact(&text), MAX_FAULT_CHARS).to_owned())
}

/// Ends a change that this node has claimed and whose attempt panicked, so that somebody can settle it.
pub(super) async fn lose_track(repository: &ChangeRepository, id: &str) {
    let Ok(Some(change)) = repository.store.get(id).await else { return };
    if change.state != ChangeState::Executing || change.claimed_by != repository.nodes.claimant() {
        return;
    }
    let message = "The gateway failed in a way that leaves open whether the change was applied";
    let event = ChangeEvent::LoseTrack {
        fault: ChangeFault::new(ErrorKind::Internal, message),
        last_sent_at: repository.config.now(),
    };
    record_outcome(repository, change, event).await;
}

/// Records the outcome and retries until that succeeds: the call is over and is never made again.
/// Returns the change as it was recorded, or `None` if it was not recorded as the outcome.
pub(super) async fn record_outcome(
    repository: &ChangeRepository,
    mut claimed: Arc<Change>,
    event: ChangeEvent,
) -> Option<Arc<Change>> {
    let mut retry_delay = Duration::from_millis(50);
    loop {
        match repository.transitions.apply_event(&claimed, event.clone()).await {
            Ok(recorded) => return Some(recorded),
            Err(TransitionError::Conflict | TransitionError::Illegal(_) | TransitionError::Fenced) => {
                match repository.store.get(&claimed.id).await {
                    // A question was stored although storing it seemed to fail.
                    Ok(Some(current))
                        if current.state == ChangeState::Executing && current.version > claimed.version =>
                    {
                        claimed = current;
                        continue;
                    }
                    Ok(current) => {
                        if record_late_result(repository, &claimed, &event).await {
                            return None;
                        }
                        // An earlier attempt was written although its outcome was unknown at the time.
                        tracing::warn!(change = %claimed.id, "the outcome of a change was recorded already");
                        return current;
                    }
                    Err(error) => {
                        tracing::error!(%error, change = %claimed.id, "a change whose outcome is not recorded yet cannot be read; trying again");
                    }
                }
            }
            Err(TransitionError::Store(StoreError::Closed)) => {
                tracing::error!(change = %claimed.id, "the store closed before the outcome of a change was recorded");
                return None;
            }
            Err(error) => {
                tracing::error!(?error, change = %claimed.id, "the outcome of a change cannot be recorded; trying again");
            }
        }
        if !pause(&repository.shutdown.abandon, retry_delay).await {
            tracing::error!(change = %claimed.id, "gave up recording the outcome of a change");
            return None;
        }
        retry_delay = (retry_delay * 2).min(Duration::from_secs(5));
    }
}

/// Finds out whether a claim of unknown outcome was stored, and waits for the store if necessary. A stored claim ends as failed.
/// Only the attempt that made the claim may call this, before any call: it alone knows that nothing was sent.
///
/// An error means that the claim was not stored.
pub(super) async fn resolve_unknown_claim(
    repository: &ChangeRepository,
    change: &Change,
    claimant: Option<&Claimant>,
) -> Result<(), RetryReason> {
    loop {
        match repository.store.get(&change.id).await {
            Ok(Some(current))
                if current.state == ChangeState::Executing
                    && current.version == change.version + 1
                    && current.claimed_by.as_ref() == claimant =>
            {
                let message =
                    "The store did not confirm the claim of the change, so nothing was sent; propose it again";
                let fault = ChangeFault::new(ErrorKind::StoreUnavailable, message);
                record_outcome(repository, current, ChangeEvent::Fail { fault, result: None }).await;
                return Ok(());
            }
            Ok(_) => return Err(RetryReason::Unavailable),
            Err(StoreError::Closed) => return Ok(()),
            Err(error) => {
                tracing::error!(%error, change = %change.id, "a change that may have been claimed cannot be read; trying again");
            }
        }
        if !pause(&repository.shutdown.stop, repository.config.tuning.retry_delay).await {
            return Ok(());
        }
    }
}
