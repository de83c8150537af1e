//! Pruning of old records. Finished changes first lose their contents and are later deleted, and feed events are
//! deleted. Changes that are not final are never pruned, and audit entries are never deleted. Each redaction and
//! deletion has an audit entry.
//!
//! The caller prepares the writes. Each one is a compare-and-set, so that a change that was modified since it was read
//! is not pruned.

use jiff::Timestamp;

use countersign_domain::changes::{Change, ChangeState};

/// The times before which finished changes and events are old. `None` means never.
#[derive(Clone, Copy, Debug, Default)]
pub struct PruningCutoffs {
    pub contents: Option<Timestamp>,
    /// The same for large changes that were not applied, with the bytes from which a change counts as large: at least
    /// [`countersign_domain::changes::retention::LARGE_CHANGE_MIN_BYTES`].
    pub large: Option<(Timestamp, usize)>,
    pub changes: Option<Timestamp>,
    pub events: Option<Timestamp>,
}

/// The oldest prunable records, as many as one transaction prunes.
#[derive(Clone, Debug, Default)]
pub struct PrunableRecords {
    /// Finished changes that still have their contents.
    pub contents: Vec<std::sync::Arc<Change>>,
    /// Finished changes to delete: id, version, state.
    pub changes: Vec<(String, u64, ChangeState)>,
    /// The number of the last event to delete; 0 means none.
    pub events_to: u64,
    /// More records are prunable.
    pub more: bool,
}

/// A change that loses its contents or is deleted.
#[derive(Clone, Debug)]
pub struct PrunedChange {
    pub id: String,
    pub version: u64,
    pub state: ChangeState,
    /// The JSON without the contents; `None` deletes the change.
    pub body: Option<String>,
    /// The audit entry's details: a JSON object. If a body remains, it has `version` and the `changeHash` of that body.
    pub details: String,
}

/// The writes of one transaction.
#[derive(Clone, Debug)]
pub struct Pruning {
    pub at: Timestamp,
    pub changes: Vec<PrunedChange>,
    /// The number of the last feed event to delete; 0 means none. The newest event always remains, because the numbers
    /// continue from it.
    pub events_to: u64,
    /// The details of the audit entry about the events.
    pub events_details: String,
}

/// The maximum changes, bytes and events that one transaction prunes.
pub(crate) const MAX_CHANGES: usize = 50;
pub(crate) const MAX_BYTES: usize = 4 << 20;
pub(crate) const MAX_EVENTS: usize = 500;
