//! Limits the number and the size of the open changes of each principal.

use std::collections::HashMap;

use countersign_domain::changes::ChangeState;
use countersign_protocol::{ErrorKind, McpError};
use countersign_store::LiveChange;

/// The share of the limits that the open changes of a principal take.
#[derive(Default)]
struct Usage {
    changes: usize,
    bytes: u64,
}

/// Open changes of each principal; owned by `PendingChanges`.
pub(crate) struct Ledger {
    max_changes: usize,
    max_bytes: u64,
    usage: HashMap<String, Usage>,
    open: HashMap<String, OpenChange>,
}

/// An open change: its principal, the bytes it counts for, and its state.
struct OpenChange {
    principal: String,
    bytes: u64,
    state: ChangeState,
}

impl Ledger {
    pub(crate) fn new(max_changes: usize, max_bytes: u64) -> Self {
        Self { max_changes, max_bytes, usage: HashMap::new(), open: HashMap::new() }
    }

    /// Reserves a change's share of its principal's limits before it is written.
    pub(crate) fn reserve(&mut self, principal: &str, bytes: u64) -> Result<(), McpError> {
        let usage = self.usage.entry(principal.to_owned()).or_default();
        let exceeded = if usage.changes >= self.max_changes {
            Some(("changes.max_pending", self.max_changes as u64, usage.changes as u64))
        } else if usage.bytes.saturating_add(bytes) > self.max_bytes {
            Some(("changes.max_pending_bytes", self.max_bytes, usage.bytes))
        } else {
            None
        };
        if let Some((limit, max, current)) = exceeded {
            self.remove_if_idle(principal);
            return Err(McpError::new(
                ErrorKind::RateLimited,
                "This principal has too many open changes, or too large ones; wait until some end, or withdraw some",
            )
            .with("limit", limit)
            .with("max", max)
            .with("current", current));
        }
        usage.changes += 1;
        usage.bytes += bytes;
        Ok(())
    }

    /// Releases the reservation of a write that failed.
    pub(crate) fn release(&mut self, principal: &str, bytes: u64) {
        if let Some(usage) = self.usage.get_mut(principal) {
            usage.changes = usage.changes.saturating_sub(1);
            usage.bytes = usage.bytes.saturating_sub(bytes);
        }
        self.remove_if_idle(principal);
    }

    /// Records that a change whose share is counted already is durable.
    pub(crate) fn insert(&mut self, id: &str, principal: &str, bytes: u64, state: ChangeState) {
        self.open.insert(id.to_owned(), OpenChange { principal: principal.to_owned(), bytes, state });
    }

    /// Returns the state of an open change.
    pub(crate) fn state_of(&self, id: &str) -> Option<ChangeState> {
        self.open.get(id).map(|change| change.state)
    }

    pub(crate) fn set_state(&mut self, id: &str, state: ChangeState) {
        if let Some(change) = self.open.get_mut(id) {
            change.state = state;
        }
    }

    /// Removes a change that became final, and releases its share.
    pub(crate) fn close(&mut self, id: &str) {
        if let Some(change) = self.open.remove(id) {
            self.release(&change.principal, change.bytes);
        }
    }

    /// Adds a change that was stored before the start, even beyond the limits.
    pub(crate) fn restore(&mut self, change: &LiveChange) {
        self.add_usage(&change.principal, change.bytes);
        self.insert(&change.id, &change.principal, change.bytes, change.state);
    }

    /// Counts a change that another node has written, even beyond the limits, before it is inserted.
    pub(crate) fn add_usage(&mut self, principal: &str, bytes: u64) {
        let usage = self.usage.entry(principal.to_owned()).or_default();
        usage.changes += 1;
        usage.bytes += bytes;
    }

    fn remove_if_idle(&mut self, principal: &str) {
        if self.usage.get(principal).is_some_and(|u| u.changes == 0) {
            self.usage.remove(principal);
        }
    }
}
