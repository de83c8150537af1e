//! What came of a call whose node was taken for gone meanwhile: noted beside the change, whose outcome stays unknown until a
//! person settles it. That it came back says that nothing of it can go out any more.

use std::time::Duration;

use serde_json::json;

use crate::inner::Inner;
use countersign_domain::changes::{
    Change, ChangeState,
    machine::{ChangeEvent, SYSTEM},
};
use countersign_store::{LateCall, Record, StoreError, WriteError, write_record};

/// Bytes of what the tool answered.
const MAX_ANSWER: usize = 16 << 10;
/// Before it is tried again.
const PAUSE: Duration = Duration::from_secs(1);

/// Notes it, if that is what it is; else `false`.
pub(super) async fn too_late(inner: &Inner, claimed: &Change, event: &ChangeEvent) -> bool {
    let Some(by) = &claimed.claimed_by else { return false };
    let now = loop {
        match inner.store.get(&claimed.id).await {
            Ok(Some(now)) => break now,
            Ok(None) | Err(StoreError::Closed) => return false,
            Err(error) => tracing::warn!(%error, change = %claimed.id, "a late result cannot be noted; trying again"),
        }
        if paused(inner).await {
            return true;
        }
    };
    let settled = now.version > claimed.version + 1 && now.state.is_final();
    // What this node wrote itself carries the same claim.
    if now.claimed_by.as_ref() != Some(by) || !(now.state == ChangeState::OutcomeUnknown || settled) {
        return false;
    }
    // An earlier try to say the same was written after all.
    if matches!(event, ChangeEvent::LoseTrack { fault, .. } if now.fault.as_ref() == Some(fault)) {
        return false;
    }
    let mut taken_until = None;
    let (outcome, message, answer) = match event {
        ChangeEvent::Succeed { result } => ("applied", None, Some(result)),
        ChangeEvent::Fail { fault, result } => ("failed", Some(&fault.message), result.as_ref()),
        ChangeEvent::LoseTrack { fault, sent_by } => {
            taken_until = Some(claimed.call_ends(*sent_by));
            ("unknown", Some(&fault.message), None)
        }
        _ => return false,
    };
    let answer = answer.filter(|answer| answer.get().len() <= MAX_ANSWER);
    let said = message.map_or_else(String::new, |message| format!(": {message}"));
    let comment = format!("The call came back after its gateway was taken for gone: {outcome}{said}");
    let details = json!({
        "version": now.version, "outcome": outcome, "node": by.node, "epoch": by.epoch, "comment": comment,
        "answer": answer,
    });
    tracing::warn!(change = %claimed.id, outcome, "the result of a change came after its gateway was taken for gone");
    loop {
        let record = Record {
            change: claimed.id.clone(),
            late: Some(LateCall { by: by.clone(), taken_until }),
            ..Record::new("late_result", inner.now(), SYSTEM, details.to_string())
        };
        match write_record(&*inner.store, record).await {
            Ok(()) | Err(WriteError::Store(StoreError::Closed)) => return true,
            Err(error) => tracing::error!(%error, change = %claimed.id, "a late result cannot be noted; trying again"),
        }
        if paused(inner).await {
            return true;
        }
    }
}

/// Waits a moment; whether the gateway ends.
async fn paused(inner: &Inner) -> bool {
    tokio::select! {
        () = inner.abandon.cancelled() => true,
        () = tokio::time::sleep(PAUSE) => false,
    }
}
