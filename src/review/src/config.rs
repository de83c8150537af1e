//! The configuration of changes.

use std::{sync::Arc, time::Duration};

use jiff::{Timestamp, Unit};

use countersign_config::ChangesConfig;
use countersign_domain::policy::Reviewers;

/// The wall clock; tests pass their own.
pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// The limits and retention of changes, their reviewers, and the clock.
#[derive(Clone)]
pub struct ReviewConfig {
    /// The configured limits and retention times.
    pub limits: ChangesConfig,
    /// The longest time between two proposals of one bundle. Zero forms none.
    pub bundle_window: Duration,
    /// Determines which reviewers may decide on which changes.
    pub reviewers: Arc<Reviewers>,
    pub clock: Clock,
    pub tuning: ReviewTuning,
}

/// Limits and times that no setting of the gateway changes; tests do.
#[derive(Clone)]
pub struct ReviewTuning {
    /// The maximum number of bytes of one change.
    pub max_change_bytes: usize,
    /// The maximum number of bytes of a tool's result that are stored.
    pub max_result_bytes: usize,
    /// The maximum number of transitions on their way to the store, and of their bytes.
    pub max_queued_writes: usize,
    pub max_queued_bytes: usize,
    /// Timeouts of a provider for a preview and for a run.
    pub preview_timeout: Duration,
    pub run_timeout: Duration,
    /// The timeout of a question to the proposer's client.
    pub answer_timeout: Duration,
    /// The timeout of a write that an endpoint waits for.
    pub write_timeout: Duration,
    /// The maximum number of approved changes that run at the same time.
    pub concurrency: usize,
    /// The time after the start during which an approved change waits for its provider to appear.
    pub provider_startup_timeout: Duration,
    /// The usual delay between attempts of the Executor while the store fails or a target cannot be read.
    pub retry_delay: Duration,
    /// The maximum number of concurrent waits ([`crate::Changes::wait`]).
    pub max_waiters: usize,
    /// The interval between searches for expired changes.
    pub expiry_interval: Duration,
    /// The number of events that the feed keeps in memory.
    pub feed_buffer: usize,
}

impl ReviewConfig {
    /// Returns the time of the wall clock, to the millisecond.
    pub(crate) fn now(&self) -> Timestamp {
        let now = (self.clock)();
        now.round(Unit::Millisecond).unwrap_or(now)
    }
}

impl From<&ChangesConfig> for ReviewConfig {
    fn from(config: &ChangesConfig) -> Self {
        Self {
            limits: config.clone(),
            bundle_window: Duration::from_secs(300),
            reviewers: Arc::default(),
            clock: Arc::new(Timestamp::now),
            tuning: ReviewTuning::default(),
        }
    }
}

impl Default for ReviewTuning {
    fn default() -> Self {
        Self {
            max_change_bytes: 20 << 20,
            max_result_bytes: 1 << 20,
            max_queued_writes: 4096,
            max_queued_bytes: 256 << 20,
            preview_timeout: Duration::from_secs(10),
            run_timeout: Duration::from_secs(120),
            answer_timeout: Duration::from_secs(300),
            write_timeout: Duration::from_secs(15),
            concurrency: 16,
            provider_startup_timeout: Duration::from_secs(30),
            retry_delay: Duration::from_secs(1),
            max_waiters: 10_000,
            expiry_interval: Duration::from_secs(1),
            feed_buffer: 4096,
        }
    }
}
