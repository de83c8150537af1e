//! Counts changes per state for display.

use std::sync::atomic::{AtomicU64, Ordering};

use metrics::Gauge;

use countersign_domain::changes::ChangeState;
use countersign_telemetry::metrics as telemetry;

/// Counts of changes per state, readable from any thread. Open states follow the ledger; final states follow the store's
/// last count, plus what has become final since.
pub(crate) struct StateCounts {
    /// The counts and gauges in the order of [`ChangeState::VARIANTS`].
    states: Vec<(AtomicU64, Gauge)>,
}

impl StateCounts {
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
