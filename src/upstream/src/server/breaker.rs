//! The circuit breaker of one endpoint, which decides whether a call is tried.
//!
//! It opens when `threshold` calls failed within `window` and most calls of that time failed, so that one broken tool does not
//! make a working server unreachable. After `cooldown`, a single trial call decides. The caller decides which outcomes of calls
//! count as failures.

use std::{
    sync::atomic::{AtomicU8, AtomicU32, Ordering},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::time::Instant;

use countersign_config::BreakerConfig;
use countersign_telemetry::metrics::Breaker as State;

const CLOSED: u8 = State::Closed as u8;

/// The circuit breaker of one endpoint.
#[derive(Debug)]
pub struct Breaker {
    config: BreakerConfig,
    /// A copy of the state in `inner`, so that a call to a working server takes no lock.
    state: AtomicU8,
    /// Successful calls since the oldest failure that still counts.
    successes: AtomicU32,
    inner: Mutex<BreakerState>,
}

#[derive(Debug, Default)]
struct BreakerState {
    failures: std::collections::VecDeque<Instant>,
    /// The time at which the circuit opened.
    opened: Option<Instant>,
    /// `true` while the trial call is in flight.
    trial: bool,
}

impl Breaker {
    #[must_use]
    pub fn new(config: BreakerConfig) -> Self {
        Self { config, state: AtomicU8::new(CLOSED), successes: AtomicU32::new(0), inner: Mutex::default() }
    }

    #[must_use]
    pub fn state(&self) -> State {
        match self.state.load(Ordering::Relaxed) {
            CLOSED => State::Closed,
            state if state == State::HalfOpen as u8 => State::HalfOpen,
            _ => State::Open,
        }
    }

    /// Admits a call, whose outcome must be reported to the pass.
    ///
    /// # Errors
    /// Returns the time to wait before the next attempt.
    pub fn admit(&self) -> Result<CallPass<'_>, Duration> {
        if self.state.load(Ordering::Relaxed) == CLOSED {
            return Ok(self.pass(false));
        }
        let mut inner = self.inner.lock();
        let Some(opened) = inner.opened else { return Ok(self.pass(false)) };
        let open = opened.elapsed();
        if open < self.config.cooldown {
            return Err(self.config.cooldown.saturating_sub(open));
        }
        if inner.trial {
            return Err(Duration::from_secs(1));
        }
        inner.trial = true;
        self.state.store(State::HalfOpen as u8, Ordering::Relaxed);
        Ok(self.pass(true))
    }

    fn pass(&self, trial: bool) -> CallPass<'_> {
        CallPass { breaker: self, trial, reported: false }
    }

    /// Returns `true` if a call would be refused now.
    pub fn is_refusing(&self) -> bool {
        if self.state.load(Ordering::Relaxed) == CLOSED {
            return false;
        }
        let inner = self.inner.lock();
        inner.opened.is_some_and(|opened| inner.trial || opened.elapsed() < self.config.cooldown)
    }

    /// Requires a trial call, because another gateway was refused or got no answer. A circuit that is open stays open.
    pub fn require_trial(&self) {
        let mut inner = self.inner.lock();
        // A machine that started less than a cooldown ago cannot represent this time. Its own calls detect the failure instead.
        if self.config.threshold > 0
            && inner.opened.is_none()
            && let Some(long_ago) = Instant::now().checked_sub(self.config.cooldown)
        {
            inner.failures.clear();
            inner.opened = Some(long_ago);
            self.state.store(State::HalfOpen as u8, Ordering::Relaxed);
        }
    }

    /// Closes the circuit after a reconnection, and forgets earlier failures.
    pub fn reset(&self) {
        self.close(&mut self.inner.lock());
    }

    fn close(&self, inner: &mut BreakerState) {
        *inner = BreakerState::default();
        self.successes.store(0, Ordering::Relaxed);
        self.state.store(CLOSED, Ordering::Relaxed);
    }

    fn fail(&self, trial: bool) {
        if self.config.threshold == 0 {
            return;
        }
        let now = Instant::now();
        let mut inner = self.inner.lock();
        if trial {
            inner.trial = false;
            inner.opened = Some(now);
            self.state.store(State::Open as u8, Ordering::Relaxed);
            return;
        }
        if inner.opened.is_some() {
            // Calls that were in flight when the circuit opened do not count.
            return;
        }
        while inner.failures.front().is_some_and(|failure| now.duration_since(*failure) >= self.config.window) {
            inner.failures.pop_front();
        }
        if inner.failures.is_empty() {
            self.successes.store(0, Ordering::Relaxed);
        }
        inner.failures.push_back(now);
        let failed = u32::try_from(inner.failures.len()).unwrap_or(u32::MAX);
        if failed >= self.config.threshold && failed >= self.successes.load(Ordering::Relaxed) {
            inner.failures.clear();
            inner.opened = Some(now);
            self.state.store(State::Open as u8, Ordering::Relaxed);
        }
    }
}

/// Admits one call. A pass that is dropped without a report, such as that of a cancelled call, has no effect.
#[derive(Debug)]
#[must_use]
pub struct CallPass<'a> {
    breaker: &'a Breaker,
    trial: bool,
    reported: bool,
}

impl CallPass<'_> {
    /// Returns `true` for the trial call that decides about the circuit.
    #[must_use]
    pub fn is_trial(&self) -> bool {
        self.trial
    }

    /// Records that the server answered, with any result or error.
    pub fn record_success(mut self) {
        self.reported = true;
        if self.trial {
            self.breaker.close(&mut self.breaker.inner.lock());
        } else {
            self.breaker.successes.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Records that there was no answer, or an invalid one.
    pub fn record_failure(mut self) {
        self.reported = true;
        self.breaker.fail(self.trial);
    }
}

impl Drop for CallPass<'_> {
    fn drop(&mut self) {
        if self.trial && !self.reported {
            let mut inner = self.breaker.inner.lock();
            inner.trial = false;
            if inner.opened.is_some() {
                self.breaker.state.store(State::Open as u8, Ordering::Relaxed);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn breaker() -> Breaker {
        Breaker::new(BreakerConfig { threshold: 3, window: Duration::from_secs(30), cooldown: Duration::from_secs(10) })
    }

    fn fail(breaker: &Breaker, times: u32) {
        for _ in 0..times {
            breaker.admit().unwrap().record_failure();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn breaker_opens_at_threshold_and_closes_after_trial() {
        let breaker = breaker();
        fail(&breaker, 2);
        assert_eq!(breaker.state(), State::Closed);
        fail(&breaker, 1);
        assert_eq!(breaker.state(), State::Open);
        assert_eq!(breaker.admit().unwrap_err(), Duration::from_secs(10));
        tokio::time::advance(Duration::from_secs(4)).await;
        assert_eq!(breaker.admit().unwrap_err(), Duration::from_secs(6));
        tokio::time::advance(Duration::from_secs(6)).await;
        let trial = breaker.admit().unwrap();
        assert_eq!(breaker.state(), State::HalfOpen);
        assert!(breaker.admit().is_err(), "only one call is tried");
        trial.record_success();
        assert_eq!(breaker.state(), State::Closed);
        fail(&breaker, 2);
        assert_eq!(breaker.state(), State::Closed, "the count starts at zero again");
    }

    #[tokio::test(start_paused = true)]
    async fn failed_trial_reopens_and_dropped_trial_is_repeated() {
        let breaker = breaker();
        fail(&breaker, 3);
        tokio::time::advance(Duration::from_secs(10)).await;
        breaker.admit().unwrap().record_failure();
        assert_eq!(breaker.admit().unwrap_err(), Duration::from_secs(10));
        tokio::time::advance(Duration::from_secs(10)).await;
        drop(breaker.admit().unwrap());
        assert_eq!(breaker.state(), State::Open);
        breaker.admit().unwrap().record_success();
        assert_eq!(breaker.state(), State::Closed);
    }

    #[tokio::test(start_paused = true)]
    async fn old_or_rare_failures_keep_breaker_closed() {
        let breaker = breaker();
        fail(&breaker, 2);
        tokio::time::advance(Duration::from_secs(30)).await;
        fail(&breaker, 2);
        assert_eq!(breaker.state(), State::Closed, "the first two are too old");
        for _ in 0..100 {
            breaker.admit().unwrap().record_success();
        }
        fail(&breaker, 10);
        assert_eq!(breaker.state(), State::Closed, "most calls succeed");
    }

    #[tokio::test(start_paused = true)]
    async fn required_trial_decides_breaker_state() {
        let breaker = breaker();
        tokio::time::advance(Duration::from_secs(60)).await;
        breaker.require_trial();
        assert_eq!(breaker.state(), State::HalfOpen);
        let trial = breaker.admit().unwrap();
        assert!(trial.is_trial() && breaker.admit().is_err(), "only one call is tried");
        breaker.require_trial();
        trial.record_success();
        assert_eq!(breaker.state(), State::Closed);
        breaker.require_trial();
        breaker.admit().unwrap().record_failure();
        assert_eq!(breaker.state(), State::Open);
        breaker.require_trial();
        assert!(breaker.admit().is_err(), "an open circuit stays open");
    }

    #[tokio::test(start_paused = true)]
    async fn zero_threshold_disables_breaker() {
        let breaker =
            Breaker::new(BreakerConfig { threshold: 0, window: Duration::from_secs(1), cooldown: Duration::ZERO });
        fail(&breaker, 1000);
        assert_eq!(breaker.state(), State::Closed);
    }
}
