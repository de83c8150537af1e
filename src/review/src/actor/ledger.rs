//! Counts open changes per principal for the limits and per state for display, and orders them by deadline for expiry.

use std::{
    collections::{BTreeSet, HashMap},
    sync::atomic::{AtomicU64, Ordering},
    time::Instant,
};

use jiff::Timestamp;
use metrics::Gauge;
use parking_lot::Mutex;

use countersign_domain::changes::ChangeState;
use countersign_protocol::{ErrorKind, McpError};
use countersign_telemetry::metrics as telemetry;

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
    pub(crate) fn restore(&mut self, id: &str, principal: &str, bytes: u64, state: ChangeState) {
        self.add_usage(principal, bytes);
        self.insert(id, principal, bytes, state);
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

/// Counts of changes per state, readable from any thread. Open states follow the ledger; final states follow the store's
/// last count, plus what has become final since.
pub(crate) struct Counts {
    /// The counts and gauges in the order of [`ChangeState::VARIANTS`].
    states: Vec<(AtomicU64, Gauge)>,
}

impl Counts {
    pub(crate) fn new(counts: &[(ChangeState, u64)]) -> Self {
        let counter = |state: &ChangeState| {
            let gauge = metrics::gauge!(telemetry::CHANGES, "state" => state.as_str());
            gauge.set(0.0);
            (AtomicU64::new(0), gauge)
        };
        let state_counts = Self { states: ChangeState::VARIANTS.iter().map(counter).collect() };
        state_counts.recount(counts);
        state_counts
    }

    pub(crate) fn record_transition(&self, from: Option<ChangeState>, to: ChangeState) {
        // A verification, for example, keeps the state. Readers must not see it uncounted meanwhile.
        if from == Some(to) {
            return;
        }
        if let Some(from) = from {
            self.decrement(from);
        }
        if let Some((n, gauge)) = self.states.get(to as usize) {
            n.fetch_add(1, Ordering::Relaxed);
            gauge.increment(1.0);
        }
    }

    /// Replaces the counts of the final states by the store's, since other nodes may have pruned changes.
    pub(crate) fn recount(&self, counts: &[(ChangeState, u64)]) {
        for (state, (n, gauge)) in ChangeState::VARIANTS.iter().zip(&self.states).filter(|(state, _)| state.is_final())
        {
            let counted = counts.iter().find(|(s, _)| s == state).map_or(0, |(_, n)| *n);
            n.store(counted, Ordering::Relaxed);
            gauge.set(gauge_value(counted));
        }
    }

    /// Counts one change less in this state, because it was deleted or is in another state now.
    pub(crate) fn decrement(&self, state: ChangeState) {
        if let Some((n, gauge)) = self.states.get(state as usize)
            && n.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1)).is_ok()
        {
            gauge.decrement(1.0);
        }
    }

    pub(crate) fn read(&self) -> Vec<(ChangeState, u64)> {
        ChangeState::VARIANTS.iter().zip(&self.states).map(|(s, (n, _))| (*s, n.load(Ordering::Relaxed))).collect()
    }
}

#[allow(clippy::cast_precision_loss, reason = "a gauge")]
fn gauge_value(n: u64) -> f64 {
    n as f64
}

/// Deadlines of open changes, by the wall clock and by the monotonic clock. The earlier of both deadlines counts, so that
/// setting the clock back keeps no change alive.
#[derive(Default)]
pub(crate) struct Deadlines(Mutex<DeadlineIndex>);

#[derive(Default)]
struct DeadlineIndex {
    by_wall_clock: BTreeSet<(Timestamp, String)>,
    by_monotonic_clock: BTreeSet<(Instant, String)>,
    by_id: HashMap<String, (Timestamp, Instant)>,
}

impl Deadlines {
    pub(crate) fn insert(&self, id: &str, expires_at: Timestamp, now: Timestamp) {
        let remaining = std::time::Duration::try_from(expires_at.duration_since(now)).unwrap_or_default();
        // A time beyond the range of `Instant` is never reached.
        let Some(monotonic) = Instant::now().checked_add(remaining) else { return };
        let mut deadlines = self.0.lock();
        deadlines.remove(id);
        deadlines.by_wall_clock.insert((expires_at, id.to_owned()));
        deadlines.by_monotonic_clock.insert((monotonic, id.to_owned()));
        deadlines.by_id.insert(id.to_owned(), (expires_at, monotonic));
    }

    pub(crate) fn remove(&self, id: &str) {
        self.0.lock().remove(id);
    }

    /// Returns at most `limit` changes that are due. They stay until they are removed.
    pub(crate) fn due(&self, now: Timestamp, limit: usize) -> Vec<String> {
        let deadlines = self.0.lock();
        let monotonic_now = Instant::now();
        let mut due: Vec<String> = deadlines
            .by_wall_clock
            .iter()
            .take_while(|(at, _)| *at <= now)
            .take(limit)
            .map(|(_, id)| id.clone())
            .collect();
        for (_, id) in deadlines.by_monotonic_clock.iter().take_while(|(at, _)| *at <= monotonic_now).take(limit) {
            if due.len() < limit && !due.contains(id) {
                due.push(id.clone());
            }
        }
        due
    }
}

impl DeadlineIndex {
    fn remove(&mut self, id: &str) {
        if let Some((wall, monotonic)) = self.by_id.remove(id) {
            self.by_wall_clock.remove(&(wall, id.to_owned()));
            self.by_monotonic_clock.remove(&(monotonic, id.to_owned()));
        }
    }
}
