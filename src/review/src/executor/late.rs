//! Results of calls whose node was declared gone before they returned. They are recorded beside the change, whose outcome
//! stays unknown until a person settles it. A result also proves that the call can send nothing more.

use std::time::Duration;

use serde_json::json;

use crate::{change_repository::ChangeRepository, shutdown::pause};
use countersign_domain::changes::{
    Change, ChangeState,
    machine::{ChangeEvent, SYSTEM},
};
use countersign_store::{AuditRecord, LateCall, StoreError, WriteError, WriteRequest, write};

/// The largest answer of a tool that is recorded, in bytes.
const MAX_RECORDED_ANSWER_BYTES: usize = 16 << 10;
/// The delay between attempts to record the result.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// Records the result beside the change if it is late. Returns `true` for a late result, even if the gateway ends before it
/// is recorded.
pub(super) async fn record_late_result(repository: &ChangeRepository, claimed: &Change, event: &ChangeEvent) -> bool {
    let Some(claimant) = &claimed.claimed_by else { return false };
    let current = loop {
        match repository.store.get(&claimed.id).await {
            Ok(Some(current)) => break current,
            Ok(None) | Err(StoreError::Closed) => return false,
            Err(error) => {
                tracing::warn!(%error, change = %claimed.id, "a change whose result may be late cannot be read; trying again")
            }
        }
        if !pause(&repository.shutdown.abandon, RETRY_DELAY).await {
            return true;
        }
    };
    let settled = current.version > claimed.version + 1 && current.state.is_final();
    // A final state that directly follows the claimed version was recorded by this node, so the result was not late. Another
    // node first gives the change an unknown outcome.
    if current.claimed_by.as_ref() != Some(claimant) || !(current.state == ChangeState::OutcomeUnknown || settled) {
        return false;
    }
    // An earlier attempt to record the same event had succeeded.
    if matches!(event, ChangeEvent::LoseTrack { fault, .. } if current.fault.as_ref() == Some(fault)) {
        return false;
    }
    let mut taken_until = None;
    let (outcome, message, answer) = match event {
        ChangeEvent::Succeed { result, .. } => ("applied", None, Some(result)),
        ChangeEvent::Fail { fault, result } => ("failed", Some(&fault.message), result.as_ref()),
        ChangeEvent::LoseTrack { fault, last_sent_at } => {
            taken_until = Some(claimed.call_deadline(*last_sent_at));
            ("unknown", Some(&fault.message), None)
        }
        _ => return false,
    };
    let answer = answer.filter(|answer| answer.get().len() <= MAX_RECORDED_ANSWER_BYTES);
    let suffix = message.map_or_else(String::new, |message| format!(": {message}"));
    let comment = format!("The call returned after its gateway was declared gone: {outcome}{suffix}");
    let details = json!({
        "version": current.version, "outcome": outcome, "node": claimant.node, "epoch": claimant.epoch, "comment": comment,
        "answer": answer,
    });
    tracing::warn!(change = %claimed.id, outcome, "the result of a change came after its gateway was declared gone");
    loop {
        let record = AuditRecord {
            change: claimed.id.clone(),
            late: Some(LateCall { claimant: claimant.clone(), taken_until }),
            ..AuditRecord::new("late_result", repository.config.now(), SYSTEM, details.to_string())
        };
        match write(&*repository.store, WriteRequest::Record(record)).await {
            Ok(()) | Err(WriteError::Store(StoreError::Closed)) => return true,
            Err(error) => {
                tracing::error!(%error, change = %claimed.id, "a late result cannot be recorded; trying again")
            }
        }
        if !pause(&repository.shutdown.abandon, RETRY_DELAY).await {
            return true;
        }
    }
}
