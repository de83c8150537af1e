//! Keeps the tool calls of the last hours by minute, for the overview of the dashboard.

use std::{
    collections::VecDeque,
    sync::{
        Mutex, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use super::RequestOutcome;

/// The number of minutes that are kept.
const MAX_MINUTES: usize = 6 * 60;

/// The tool calls of one minute. Calls that became pending changes are counted but not timed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallsInMinute {
    /// The number of the minute since the Unix epoch.
    pub minute: u64,
    pub calls: u64,
    pub failed: u64,
    /// The number of calls that were timed.
    pub timed: u64,
    /// The sum of their durations in microseconds.
    pub micros: u64,
}

/// The tool calls of the last hours. [`CallHistory::global`] returns the only instance.
#[derive(Default)]
pub struct CallHistory {
    calls: AtomicU64,
    failed: AtomicU64,
    timed: AtomicU64,
    micros: AtomicU64,
    /// The minutes with calls, oldest first.
    minutes: Mutex<VecDeque<CallsInMinute>>,
}

impl CallHistory {
    pub fn global() -> &'static Self {
        static CALL_HISTORY: OnceLock<CallHistory> = OnceLock::new();
        CALL_HISTORY.get_or_init(Self::default)
    }

    /// Counts a call, which the next update adds to its minute.
    pub(super) fn record(&self, outcome: RequestOutcome, duration: Duration) {
        self.calls.fetch_add(1, Ordering::Relaxed);
        if outcome.is_error() {
            self.failed.fetch_add(1, Ordering::Relaxed);
        }
        if outcome != RequestOutcome::Pending {
            self.timed.fetch_add(1, Ordering::Relaxed);
            self.micros.fetch_add(u64::try_from(duration.as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed);
        }
    }

    /// Adds the calls since the last update to the current minute, and drops minutes that are too old.
    pub(super) fn update(&self, now: SystemTime) {
        let minute = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs() / 60;
        let take = |counter: &AtomicU64| counter.swap(0, Ordering::Relaxed);
        let (calls, failed) = (take(&self.calls), take(&self.failed));
        let (timed, micros) = (take(&self.timed), take(&self.micros));
        let mut minutes = self.minutes.lock().unwrap_or_else(PoisonError::into_inner);
        while minutes.front().is_some_and(|oldest| oldest.minute + MAX_MINUTES as u64 <= minute) {
            minutes.pop_front();
        }
        if calls == 0 {
            return;
        }
        if minutes.back().is_none_or(|last| last.minute < minute) {
            minutes.push_back(CallsInMinute { minute, ..CallsInMinute::default() });
        }
        if let Some(last) = minutes.back_mut() {
            last.calls += calls;
            last.failed += failed;
            last.timed += timed;
            last.micros += micros;
        }
    }

    /// Returns the minutes with calls, oldest first.
    pub fn minutes(&self) -> Vec<CallsInMinute> {
        self.minutes.lock().unwrap_or_else(PoisonError::into_inner).iter().copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_kept_by_minute_for_six_hours() {
        let history = CallHistory::default();
        let at = |minute: u64| UNIX_EPOCH + Duration::from_secs(minute * 60 + 1);
        history.record(RequestOutcome::Ok, Duration::from_micros(30));
        history.record(RequestOutcome::ToolError, Duration::from_micros(10));
        history.update(at(100));
        history.record(RequestOutcome::Pending, Duration::from_secs(9));
        history.update(at(100));
        let first = CallsInMinute { minute: 100, calls: 3, failed: 1, timed: 2, micros: 40 };
        assert_eq!(history.minutes(), [first]);
        history.record(RequestOutcome::Ok, Duration::from_micros(5));
        history.update(at(101));
        history.update(at(459));
        assert_eq!(history.minutes().len(), 2);
        history.update(at(460));
        assert_eq!(history.minutes(), [CallsInMinute { minute: 101, calls: 1, failed: 0, timed: 1, micros: 5 }]);
    }
}
