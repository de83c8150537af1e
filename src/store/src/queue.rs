//! What waits to be written, whatever the backend: commands, and how many of them share a transaction.

use std::time::Duration;

use super::{Done, Draft, Pruning, Record, StoreError, WriteError, Written};
use countersign_domain::changes::audit::EntryContent;

/// Transitions, and bytes of them, in one transaction: bounds how long the first waits for the last.
pub(crate) const MAX_BATCH: usize = 1024;
pub(crate) const MAX_BATCH_BYTES: usize = 32 << 20;

/// Transitions that wait for the writer; over it, they are refused.
pub(crate) const QUEUE: usize = 8192;

/// Without a command for so long, other things are looked after.
pub(crate) const QUIET: Duration = Duration::from_millis(500);

/// After `close`, how long an unreadable database is tried before its last writes are answered as unknown.
pub(crate) const GIVE_UP: Duration = Duration::from_secs(2);

pub(crate) type WriteResult = Result<Written, WriteError>;

pub(crate) struct Command {
    pub work: Work,
    pub done: Done,
}

pub(crate) enum Work {
    Transition(Draft),
    Record(Record),
    /// A record that ends being a backup.
    Restored(Record),
    Prune(Pruning),
}

impl Work {
    /// Bytes, about.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Transition(draft) => draft.body.len(),
            Self::Prune(pruning) => pruning.redactions.iter().map(|redaction| redaction.body.len()).sum(),
            Self::Record(record) | Self::Restored(record) => {
                let texts = record.pins.iter().filter_map(|write| write.pin.text.as_deref());
                record.details.len() * (1 + record.rules.len()) + texts.map(str::len).sum::<usize>()
            }
        }
    }
}

/// The audit entry of a transition, as the one with this number; `at` is its time.
pub(crate) fn entry_of<'a>(draft: &'a Draft, seq: u64, at: &'a str) -> EntryContent<'a> {
    EntryContent {
        seq,
        at,
        change_id: &draft.change.id,
        event: draft.kind.as_str(),
        from: draft.from.map(|state| state.as_str()),
        to: draft.change.state.as_str(),
        actor: &draft.actor,
        details: &draft.details,
    }
}

/// The feed event of a transition, as the one with this number.
pub(crate) fn event_of(draft: &Draft, seq: u64) -> String {
    format!(r#"{{"type":"{}","seq":{seq},{}"#, draft.kind.feed_type(), draft.event_tail)
}

/// Answers each, and all but the last that more follow.
pub(crate) fn answer(batch: Vec<Command>, outcomes: Vec<WriteResult>) {
    let last = batch.len().saturating_sub(1);
    for (n, (command, outcome)) in batch.into_iter().zip(outcomes).enumerate() {
        (command.done)(outcome, n < last);
    }
}

/// Nobody's transition was written, or nobody knows.
pub(crate) fn refuse(batch: Vec<Command>, error: &StoreError) {
    tracing::error!(%error, changes = batch.len(), "the store could not write");
    let outcomes = batch.iter().map(|_| Err(error.clone().into())).collect();
    answer(batch, outcomes);
}
