//! An endpoint of an upstream with its connections and its circuit breaker. An upstream has one endpoint, or one for
//! each of its replicas.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicU8, AtomicU32, AtomicUsize, Ordering},
    },
    time::Duration,
};

use arc_swap::{ArcSwap, ArcSwapOption};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::{connection::UpstreamConnection, limits::CounterGuard, pool::Pool};
use crate::link::{Connector, LinkKind};
use countersign_config::BreakerConfig;
use countersign_net::random_byte;
use countersign_telemetry::metrics::CircuitState;

/// One endpoint with its connections.
pub struct Endpoint {
    /// The position among the endpoints of the upstream.
    pub index: usize,
    /// The connector. Era detection replaces it if the server speaks another transport.
    connector: ArcSwap<Arc<dyn Connector>>,
    pub breaker: Breaker,
    pub pool: Pool,
    /// The connection without capabilities, which all callers that need none share.
    pub common_connection: ArcSwapOption<UpstreamConnection>,
    in_flight: AtomicUsize,
}

impl Endpoint {
    pub fn new(index: usize, connector: Arc<dyn Connector>, breaker: BreakerConfig) -> Self {
        Self {
            index,
            connector: ArcSwap::from_pointee(connector),
            breaker: Breaker::new(breaker),
            pool: Pool::default(),
            common_connection: ArcSwapOption::empty(),
            in_flight: AtomicUsize::new(0),
        }
    }

    pub fn connector(&self) -> Arc<dyn Connector> {
        Arc::clone(&self.connector.load())
    }

    pub fn set_connector(&self, connector: Arc<dyn Connector>) {
        self.connector.store(Arc::new(connector));
    }

    pub fn kind(&self) -> LinkKind {
        self.connector.load().kind()
    }

    /// Returns the common connection if it can be used.
    pub fn common_connection(&self) -> Option<Arc<UpstreamConnection>> {
        self.common_connection.load_full().filter(|connection| connection.is_usable())
    }

    /// Returns the bit of this endpoint in a set of endpoints.
    pub fn index_bit(&self) -> u64 {
        1 << (self.index % 64)
    }

    /// Counts a call until the guard is dropped.
    pub fn count_call(&self) -> CounterGuard<'_> {
        CounterGuard::new(&self.in_flight)
    }

    /// Closes all connections. Later calls open others.
    pub fn close(&self) {
        if let Some(common_connection) = self.common_connection.swap(None) {
            common_connection.close();
        }
        self.pool.close_all();
    }
}

/// Chooses the endpoint with the fewest calls in flight for the next call, at random among equals. Endpoints in the set
/// `excluded` are not chosen.
pub fn choose_endpoint(endpoints: &[Arc<Endpoint>], excluded: u64) -> Option<&Arc<Endpoint>> {
    let is_allowed = |endpoint: &&Arc<Endpoint>| excluded & endpoint.index_bit() == 0;
    if let [only] = endpoints {
        return Some(only).filter(is_allowed);
    }
    let first = usize::from(random_byte());
    let load = |endpoint: &&Arc<Endpoint>| {
        (endpoint.in_flight.load(Ordering::Relaxed), (endpoint.index + first) % endpoints.len())
    };
    endpoints.iter().filter(is_allowed).min_by_key(load)
}

const CLOSED: u8 = CircuitState::Closed as u8;

/// The circuit breaker of one endpoint, which decides whether a call is tried.
///
/// It opens when `threshold` calls failed within `window` and at least half of the calls of that time failed, so that one
/// broken tool does not make a working server unreachable. After `cooldown`, a single trial call decides. The caller decides
/// which outcomes of calls count as failures.
#[derive(Debug)]
pub struct Breaker {
    config: BreakerConfig,
    /// The state that follows from `history`, so that a call to a working server takes no lock.
    state: AtomicU8,
    /// All successful calls. Only differences matter, so it may wrap around.
    successes: AtomicU32,
    history: Mutex<CircuitHistory>,
}

#[derive(Debug, Default)]
struct CircuitHistory {
    /// The failures that still count, the oldest first.
    failures: VecDeque<CountedFailure>,
    /// The time at which the circuit opened.
    opened_at: Option<Instant>,
    /// `true` while the trial call is in flight.
    is_trial_in_flight: bool,
}

#[derive(Debug)]
struct CountedFailure {
    at: Instant,
    /// The value of `successes` at that time.
    successes_before: u32,
}

impl Breaker {
    pub fn new(config: BreakerConfig) -> Self {
        Self { config, state: AtomicU8::new(CLOSED), successes: AtomicU32::new(0), history: Mutex::default() }
    }

    pub fn state(&self) -> CircuitState {
        match self.state.load(Ordering::Relaxed) {
            CLOSED => CircuitState::Closed,
            state if state == CircuitState::HalfOpen as u8 => CircuitState::HalfOpen,
            _ => CircuitState::Open,
        }
    }

    /// Admits a call, whose outcome must be reported to the pass.
    ///
    /// # Errors
    /// Returns the time to wait before the next attempt.
    pub fn admit(&self) -> Result<CallPass<'_>, Duration> {
        if self.state.load(Ordering::Relaxed) == CLOSED {
            return Ok(CallPass { breaker: self, is_trial: false });
        }
        let mut history = self.history.lock();
        let Some(opened_at) = history.opened_at else { return Ok(CallPass { breaker: self, is_trial: false }) };
        let open_for = opened_at.elapsed();
        if open_for < self.config.cooldown {
            return Err(self.config.cooldown.saturating_sub(open_for));
        }
        if history.is_trial_in_flight {
            return Err(Duration::from_secs(1));
        }
        history.is_trial_in_flight = true;
        self.state.store(CircuitState::HalfOpen as u8, Ordering::Relaxed);
        Ok(CallPass { breaker: self, is_trial: true })
    }

    /// Returns `true` if a call would be refused now.
    pub fn is_refusing(&self) -> bool {
        if self.state.load(Ordering::Relaxed) == CLOSED {
            return false;
        }
        let history = self.history.lock();
        history
            .opened_at
            .is_some_and(|opened_at| history.is_trial_in_flight || opened_at.elapsed() < self.config.cooldown)
    }

    /// Requires a trial call, because another gateway was refused or got no answer. A circuit that is open stays open.
    pub fn require_trial(&self) {
        let mut history = self.history.lock();
        // A machine that started less than a cooldown ago cannot represent this time. Its own calls detect the failure
        // instead.
        if self.config.threshold > 0
            && history.opened_at.is_none()
            && let Some(long_ago) = Instant::now().checked_sub(self.config.cooldown)
        {
            history.failures.clear();
            history.opened_at = Some(long_ago);
            self.state.store(CircuitState::HalfOpen as u8, Ordering::Relaxed);
        }
    }

    /// Closes the circuit after a reconnection, and forgets earlier failures.
    pub fn reset(&self) {
        self.close(&mut self.history.lock());
    }

    /// Closes the circuit.
    fn close(&self, history: &mut CircuitHistory) {
        *history = CircuitHistory::default();
        self.state.store(CLOSED, Ordering::Relaxed);
    }

    /// Counts a failure, and opens the circuit after too many of them or after a failed trial.
    fn record_failure(&self, is_trial: bool) {
        if self.config.threshold == 0 {
            return;
        }
        let now = Instant::now();
        let mut history = self.history.lock();
        if is_trial {
            history.is_trial_in_flight = false;
            history.opened_at = Some(now);
            self.state.store(CircuitState::Open as u8, Ordering::Relaxed);
            return;
        }
        if history.opened_at.is_some() {
            // Calls that were in flight when the circuit opened do not count.
            return;
        }
        while history.failures.front().is_some_and(|failure| now.duration_since(failure.at) >= self.config.window) {
            history.failures.pop_front();
        }
        let successes = self.successes.load(Ordering::Relaxed);
        history.failures.push_back(CountedFailure { at: now, successes_before: successes });
        let successes_before = history.failures.front().map_or(successes, |oldest| oldest.successes_before);
        let failed = u32::try_from(history.failures.len()).unwrap_or(u32::MAX);
        if failed >= self.config.threshold && failed >= successes.wrapping_sub(successes_before) {
            history.failures.clear();
            history.opened_at = Some(now);
            self.state.store(CircuitState::Open as u8, Ordering::Relaxed);
        }
    }
}

/// Admits one call. A pass that is dropped without a report, such as that of a cancelled call, has no effect.
#[derive(Debug)]
#[must_use]
pub struct CallPass<'a> {
    breaker: &'a Breaker,
    /// `true` for a trial call whose outcome was not reported yet.
    is_trial: bool,
}

impl CallPass<'_> {
    /// Returns `true` for the trial call that decides about the circuit.
    pub fn is_trial(&self) -> bool {
        self.is_trial
    }

    /// Records that the server answered, with any result or error.
    pub fn record_success(mut self) {
        if std::mem::take(&mut self.is_trial) {
            self.breaker.close(&mut self.breaker.history.lock());
        } else {
            self.breaker.successes.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Records that there was no answer, or an invalid one.
    pub fn record_failure(mut self) {
        let is_trial = std::mem::take(&mut self.is_trial);
        self.breaker.record_failure(is_trial);
    }
}

impl Drop for CallPass<'_> {
    fn drop(&mut self) {
        if self.is_trial {
            let mut history = self.breaker.history.lock();
            history.is_trial_in_flight = false;
            if history.opened_at.is_some() {
                self.breaker.state.store(CircuitState::Open as u8, Ordering::Relaxed);
            }
        }
    }
}

#[cfg(test)]
mod tests;
