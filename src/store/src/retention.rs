//! Pruning: old finished changes lose their contents, later they are deleted, and old feed events go. What is not
//! final is never touched; audit entries never go, and each redaction and deletion is one.
//!
//! What is to be written is prepared by the caller; the backend has the statements. Each is a compare-and-set, so that what
//! was looked at and what is pruned are the same.

use jiff::Timestamp;

use countersign_domain::changes::{Change, ChangeState};

/// What is old: finished, or told, before these times. `None` is never.
#[derive(Clone, Copy, Debug, Default)]
pub struct OldBefore {
    pub contents: Option<Timestamp>,
    /// Of changes that came to nothing and have more than so many bytes ([`countersign_domain::changes::retention::LEAST_LARGE`] or
    /// more).
    pub large: Option<(Timestamp, usize)>,
    pub changes: Option<Timestamp>,
    pub events: Option<Timestamp>,
}

/// A part of what is old, the oldest first: a transaction's worth.
#[derive(Clone, Debug, Default)]
pub struct Old {
    /// Finished changes that still have their contents.
    pub contents: Vec<std::sync::Arc<Change>>,
    /// Finished changes that are to go: id, version, state.
    pub changes: Vec<(String, u64, ChangeState)>,
    /// The last of the events that are to go; 0 is none.
    pub events_to: u64,
    /// There is more.
    pub more: bool,
}

/// A change without its contents, ready to be written.
#[derive(Clone, Debug)]
pub struct Redaction {
    pub id: String,
    pub version: u64,
    pub state: ChangeState,
    /// What is left, as JSON.
    pub body: String,
    /// The audit entry's details: a JSON object with `version` and the `changeHash` of what is left.
    pub details: String,
}

/// A change that goes.
#[derive(Clone, Debug)]
pub struct Deletion {
    pub id: String,
    pub version: u64,
    pub state: ChangeState,
    pub details: String,
}

/// One transaction of pruning.
#[derive(Clone, Debug)]
pub struct Pruning {
    pub at: Timestamp,
    pub redactions: Vec<Redaction>,
    pub deletions: Vec<Deletion>,
    /// Feed events up to this one go, but never the last of all: it is how the numbers go on. 0 is none.
    pub events_to: u64,
    /// The details of the audit entry about the events.
    pub events_details: String,
}

/// Changes and events of one transaction.
pub(crate) const MAX_CHANGES: usize = 50;
pub(crate) const MAX_BYTES: usize = 4 << 20;
pub(crate) const MAX_EVENTS: usize = 500;
