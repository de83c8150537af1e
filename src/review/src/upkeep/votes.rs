//! Approvals whose givers may not decide any more. Until the change runs, a vote counts as long as the key that it was
//! given with holds: a key is revoked because it leaked or its holder left, and nothing shall run on such a word. Who
//! has another key votes again. What has run stays as it was decided.

use std::sync::Arc;

use crate::{commit::StepError, inner::Inner};
use countersign_domain::changes::{Change, Decision, Verdict, machine::ChangeEvent};
use countersign_protocol::McpError;

/// Names in a reason.
const MAX_NAMES: usize = 10;

/// The event that takes out the approvals which count no more; none where all do.
pub(crate) fn void(inner: &Inner, change: &Change) -> Result<Option<ChangeEvent>, McpError> {
    let (mut kept, mut void) = (Vec::new(), Vec::new());
    for vote in &change.decisions {
        let counts = vote.verdict != Verdict::Approve || inner.config.people.stands(&change.terms, vote)?;
        if counts { kept.push(vote.clone()) } else { void.push(vote) }
    }
    Ok((!void.is_empty()).then(|| ChangeEvent::Void { reason: reason(&void), kept }))
}

fn reason(void: &[&Decision]) -> String {
    let names: Vec<_> = void.iter().take(MAX_NAMES).map(|vote| vote.reviewer.as_str()).collect();
    let more = if void.len() > MAX_NAMES { " and others" } else { "" };
    let names = names.join(", ");
    let why = "revoked, or may not decide on this any more";
    if void.len() == 1 {
        return format!("The approval by {names} no longer counts: the key was {why}");
    }
    format!("The approvals by {names}{more} no longer count: the keys were {why}")
}

/// Looks at the votes that were given so far, whenever somebody's may have ceased to count, until the gateway closes.
pub(crate) async fn run(inner: Arc<Inner>) {
    let mut seen = None;
    loop {
        // What cannot be read is asked for again; nothing runs on it meanwhile.
        if inner.nodes.leads()
            && let Ok(losses) = inner.config.people.losses()
            && seen != Some(losses)
            && sweep(&inner).await
        {
            seen = Some(losses);
        }
        tokio::select! {
            () = inner.stop.cancelled() => return,
            () = tokio::time::sleep(inner.config.expiry_interval) => {}
        }
    }
}

/// Whether all votes were looked at.
pub(crate) async fn sweep(inner: &Inner) -> bool {
    let Ok(ids) = inner.store.voted().await else { return false };
    let mut all = true;
    for id in ids {
        all &= !inner.stop.is_cancelled() && one(inner, &id).await;
    }
    all
}

async fn one(inner: &Inner, id: &str) -> bool {
    let change = match inner.store.get(id).await {
        Ok(Some(change)) => change,
        found => return found.is_ok(),
    };
    match void(inner, &change) {
        Ok(Some(event)) => match inner.step(&change, event, None).await {
            Ok(_) => true,
            // Somebody was quicker: looked at again in a moment.
            Err(StepError::Conflict | StepError::Illegal(_)) => false,
            Err(error) => {
                tracing::warn!(?error, change = id, "a vote that no longer counts could not be removed yet");
                false
            }
        },
        Ok(None) => true,
        Err(_) => false,
    }
}
