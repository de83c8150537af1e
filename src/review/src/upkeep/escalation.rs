//! Records and announces that further reviewers may decide on a change, because nobody has decided for some time. The terms
//! alone admit them ([`Terms::reviewers_at`](countersign_domain::changes::Terms::reviewers_at)): nothing here alters the change,
//! and time never approves anything.

use std::sync::Arc;

use jiff::Timestamp;
use serde_json::json;

use super::{BATCH_SIZE, handle_due, wait_for_leadership};
use crate::{change_repository::ChangeRepository, draft::live_event};
use countersign_domain::changes::{Change, machine::SYSTEM};
use countersign_store::{AuditRecord, StoreError, WriteError, WriteRequest, write};

/// The audit entry of an escalation.
pub const AUDIT_EVENT: &str = "escalated";
/// The live event on the feed.
const FEED_EVENT: &str = "change.escalated";

/// Records due escalations until the gateway closes.
pub(crate) async fn run(repository: Arc<ChangeRepository>) {
    while wait_for_leadership(&repository, repository.config.tuning.expiry_interval).await {
        while escalate_due(&repository).await == BATCH_SIZE && !repository.shutdown.stop.is_cancelled() {}
    }
}

/// Records due escalations, and returns the number of changes that were handled. A change that cannot be read or recorded stays
/// due.
pub(crate) async fn escalate_due(repository: &ChangeRepository) -> usize {
    handle_due(&repository.indexes.escalations, repository.config.now(), |id| async move {
        let escalated = escalate(repository, &id).await;
        if let Err(error) = &escalated {
            tracing::warn!(%error, change = id, "the escalation of a change could not be recorded yet");
        }
        escalated.is_ok()
    })
    .await
}

/// Records the escalation of one change, unless it is decided, recorded already or not due yet.
async fn escalate(repository: &ChangeRepository, id: &str) -> Result<(), StoreError> {
    let (change, now) = (repository.store.get(id).await?, repository.config.now());
    let undecided = change.filter(|change| change.state.awaits_decision());
    let due = undecided.and_then(|change| Some((change.terms.escalates_at(change.created_at)?, change)));
    match due {
        Some((at, _)) if at > now => repository.indexes.escalations.insert(id, at, now),
        Some((_, change)) => {
            record(repository, &change, now).await?;
            repository.indexes.escalations.remove(id);
        }
        None => repository.indexes.escalations.remove(id),
    }
    Ok(())
}

/// Records the escalation in the audit trail, and then announces it on the feed. Does neither if it is recorded already, for
/// example by the node that leads now.
async fn record(repository: &ChangeRepository, change: &Change, now: Timestamp) -> Result<(), StoreError> {
    let to = change.terms.escalate.as_ref().map(|escalation| &escalation.to);
    let details = json!({ "version": change.version, "to": to }).to_string();
    let record =
        AuditRecord { change: change.id.clone(), once: true, ..AuditRecord::new(AUDIT_EVENT, now, SYSTEM, details) };
    match write(&*repository.store, WriteRequest::Record(record)).await {
        Ok(()) => {}
        Err(WriteError::Conflict) => return Ok(()),
        Err(WriteError::Store(error)) => return Err(error),
        Err(error) => return Err(StoreError::BadRecord(format!("{}: {error}", change.id))),
    }
    repository.feed.publish_live(&live_event(FEED_EVENT, change, now));
    Ok(())
}

/// Announces on the feed of this node an escalation that another node recorded.
pub(crate) async fn announce_recorded(repository: &ChangeRepository, id: &str) -> Result<(), StoreError> {
    if let Some(change) = repository.store.get(id).await? {
        repository.feed.publish_live(&live_event(FEED_EVENT, &change, repository.config.now()));
    }
    Ok(())
}
