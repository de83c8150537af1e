//! Accounts of what is not final: per principal, to bound it; per state, to show it; by time, to expire it.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

use jiff::Timestamp;
use metrics::Gauge;

use countersign_domain::changes::ChangeState;
use countersign_protocol::{ErrorKind, McpError};
use countersign_telemetry::metrics as telemetry;

#[derive(Default)]
struct Usage {
    changes: usize,
    bytes: u64,
}

/// Per principal; owned by `PendingChanges`.
pub(crate) struct Ledger {
    max_changes: usize,
    max_bytes: u64,
    usage: HashMap<String, Usage>,
    live: HashMap<String, Live>,
}

/// A live change: whose it is, what it counts, and how it stands.
struct Live {
    principal: String,
    bytes: u64,
    state: ChangeState,
}

impl Ledger {
    pub(crate) fn new(max_changes: usize, max_bytes: u64) -> Self {
        Self { max_changes, max_bytes, usage: HashMap::new(), live: HashMap::new() }
    }

    /// Reserves room for a change that is about to be written.
    pub(crate) fn reserve(&mut self, principal: &str, bytes: u64) -> Result<(), McpError> {
        let usage = self.usage.entry(principal.to_owned()).or_default();
        let over = if usage.changes >= self.max_changes {
            Some(("changes.max_pending", self.max_changes as u64, usage.changes as u64))
        } else if usage.bytes.saturating_add(bytes) > self.max_bytes {
            Some(("changes.max_pending_bytes", self.max_bytes, usage.bytes))
        } else {
            None
        };
        if let Some((limit, max, current)) = over {
            self.forget_idle(principal);
            return Err(McpError::new(
                ErrorKind::RateLimited,
                "Too many changes of this principal wait for a decision; wait until some are decided, or withdraw some",
            )
            .with("limit", limit)
            .with("max", max)
            .with("current", current));
        }
        usage.changes += 1;
        usage.bytes += bytes;
        Ok(())
    }

    /// Gives back what was reserved for a write that failed.
    pub(crate) fn release(&mut self, principal: &str, bytes: u64) {
        if let Some(usage) = self.usage.get_mut(principal) {
            usage.changes = usage.changes.saturating_sub(1);
            usage.bytes = usage.bytes.saturating_sub(bytes);
        }
        self.forget_idle(principal);
    }

    /// A change that was reserved for is durable.
    pub(crate) fn opened(&mut self, id: &str, principal: &str, bytes: u64, state: ChangeState) {
        self.live.insert(id.to_owned(), Live { principal: principal.to_owned(), bytes, state });
    }

    /// How a live change stands.
    pub(crate) fn state(&self, id: &str) -> Option<ChangeState> {
        self.live.get(id).map(|live| live.state)
    }

    pub(crate) fn moved(&mut self, id: &str, state: ChangeState) {
        if let Some(live) = self.live.get_mut(id) {
            live.state = state;
        }
    }

    /// A change is final.
    pub(crate) fn closed(&mut self, id: &str) {
        if let Some(live) = self.live.remove(id) {
            self.release(&live.principal, live.bytes);
        }
    }

    /// One that was stored earlier, or by another node; over the bound too, if the bound was lowered.
    pub(crate) fn restore(&mut self, id: &str, principal: &str, bytes: u64, state: ChangeState) {
        let usage = self.usage.entry(principal.to_owned()).or_default();
        usage.changes += 1;
        usage.bytes += bytes;
        self.opened(id, principal, bytes, state);
    }

    fn forget_idle(&mut self, principal: &str) {
        if self.usage.get(principal).is_some_and(|u| u.changes == 0) {
            self.usage.remove(principal);
        }
    }
}

/// How many changes are in each state; read by anyone. Those that are not final are what the ledger knows; of the others,
/// what the store counted last and what has become final since.
pub(crate) struct Counts {
    states: [(AtomicU64, Gauge); ChangeState::ALL.len()],
}

impl Counts {
    pub(crate) fn new(counts: &[(ChangeState, u64)]) -> Arc<Self> {
        let states = ChangeState::ALL.map(|state| {
            let gauge = metrics::gauge!(telemetry::CHANGES, "state" => state.as_str());
            gauge.set(0.0);
            (AtomicU64::new(0), gauge)
        });
        let all = Self { states };
        all.recount(counts);
        Arc::new(all)
    }

    pub(crate) fn moved(&self, from: Option<ChangeState>, to: ChangeState) {
        if let Some(from) = from {
            self.gone(from);
        }
        if let Some((n, gauge)) = self.of(to) {
            n.fetch_add(1, Ordering::Relaxed);
            gauge.increment(1.0);
        }
    }

    /// Those that are final, as the store counts them: others may have pruned some.
    pub(crate) fn recount(&self, counts: &[(ChangeState, u64)]) {
        for (state, (n, gauge)) in ChangeState::ALL.into_iter().zip(&self.states).filter(|(state, _)| state.is_final())
        {
            let counted = counts.iter().find(|(s, _)| *s == state).map_or(0, |(_, n)| *n);
            n.store(counted, Ordering::Relaxed);
            gauge.set(approximate(counted));
        }
    }

    /// One of this state was deleted.
    pub(crate) fn gone(&self, state: ChangeState) {
        if let Some((n, gauge)) = self.of(state)
            && n.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1)).is_ok()
        {
            gauge.decrement(1.0);
        }
    }

    pub(crate) fn read(&self) -> Vec<(ChangeState, u64)> {
        ChangeState::ALL.into_iter().zip(&self.states).map(|(s, (n, _))| (s, n.load(Ordering::Relaxed))).collect()
    }

    fn of(&self, state: ChangeState) -> Option<&(AtomicU64, Gauge)> {
        ChangeState::ALL.iter().position(|s| *s == state).and_then(|i| self.states.get(i))
    }
}

#[allow(clippy::cast_precision_loss, reason = "a gauge")]
fn approximate(n: u64) -> f64 {
    n as f64
}

/// When which change expires. By the wall clock, and by the monotonic one too, so that a clock that was set back
/// keeps no change alive; whichever comes first counts.
#[derive(Default)]
pub(crate) struct Deadlines(Mutex<Times>);

#[derive(Default)]
struct Times {
    wall: BTreeSet<(Timestamp, String)>,
    steady: BTreeSet<(Instant, String)>,
    of: HashMap<String, (Timestamp, Instant)>,
}

impl Deadlines {
    pub(crate) fn insert(&self, id: &str, expires_at: Timestamp, now: Timestamp) {
        let left = std::time::Duration::try_from(expires_at.duration_since(now)).unwrap_or_default();
        // A time beyond what `Instant` holds is one the process will not see.
        let Some(steady) = Instant::now().checked_add(left) else { return };
        let mut times = self.lock();
        times.remove(id);
        times.wall.insert((expires_at, id.to_owned()));
        times.steady.insert((steady, id.to_owned()));
        times.of.insert(id.to_owned(), (expires_at, steady));
    }

    pub(crate) fn remove(&self, id: &str) {
        self.lock().remove(id);
    }

    /// At most `limit` that are due. They stay until they are removed.
    pub(crate) fn due(&self, now: Timestamp, limit: usize) -> Vec<String> {
        let times = self.lock();
        let steady_now = Instant::now();
        let mut due: Vec<String> =
            times.wall.iter().take_while(|(at, _)| *at <= now).take(limit).map(|(_, id)| id.clone()).collect();
        for (_, id) in times.steady.iter().take_while(|(at, _)| *at <= steady_now).take(limit) {
            if due.len() < limit && !due.contains(id) {
                due.push(id.clone());
            }
        }
        due
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Times> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Times {
    fn remove(&mut self, id: &str) {
        if let Some((wall, steady)) = self.of.remove(id) {
            self.wall.remove(&(wall, id.to_owned()));
            self.steady.remove(&(steady, id.to_owned()));
        }
    }
}
