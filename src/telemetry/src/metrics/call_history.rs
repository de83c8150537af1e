//! Keeps the tool calls of the last hours by minute, for the overview of the dashboard.

use std::{
    collections::VecDeque,
    sync::{Mutex, OnceLock, PoisonError},
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
    /// The minutes with calls, oldest first.
    minutes: Mutex<VecDeque<CallsInMinute>>,
}

impl CallHistory {
    #[must_use]
    pub fn global() -> &'static Self {
        static CALL_HISTORY: OnceLock<CallHistory> = OnceLock::new();
        CALL_HISTORY.get_or_init(Self::default)
    }

    /// Adds a call to the current minute, and drops minutes that are too old.
    pub(super) fn record(&self, outcome: RequestOutcome, duration: Duration, now: SystemTime) {
        let minute = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs() / 60;
        let mut minutes = self.minutes.lock().unwrap_or_else(PoisonError::into_inner);
        while minutes.front().is_some_and(|oldest| oldest.minute + MAX_MINUTES as u64 <= minute) {
            minutes.pop_front();
        }
        if minutes.back().is_none_or(|last| last.minute < minute) {
            minutes.push_back(CallsInMinute { minute, ..CallsInMinute::default() });
        }
        if let Some(last) = minutes.back_mut() {
            last.calls += 1;
            last.failed += u64::from(outcome.is_error());
            if outcome != RequestOutcome::Pending {
                last.timed += 1;
                last.micros = last.micros.saturating_add(u64::try_from(duration.as_micros()).unwrap_or(u64::MAX));
            }
        }
    }

    /// Returns the minutes with calls, oldest first.
    #[must_use]
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
        history.record(RequestOutcome::Ok, Duration::from_micros(30), at(100));
        history.record(RequestOutcome::ToolError, Duration::from_micros(10), at(100));
        history.record(RequestOutcome::Pending, Duration::from_secs(9), at(100));
        let first = CallsInMinute { minute: 100, calls: 3, failed: 1, timed: 2, micros: 40 };
        assert_eq!(history.minutes(), [first]);
        let single = |minute| CallsInMinute { minute, calls: 1, failed: 0, timed: 1, micros: 5 };
        for minute in [101, 459] {
            history.record(RequestOutcome::Ok, Duration::from_micros(5), at(minute));
        }
        assert_eq!(history.minutes(), [first, single(101), single(459)]);
        history.record(RequestOutcome::Ok, Duration::from_micros(5), at(460));
        assert_eq!(history.minutes(), [101, 459, 460].map(single));
    }
}
