//! Estimates the server's time from a clock of this machine that nobody can set.

use std::time::Duration;

use jiff::Timestamp;
use parking_lot::Mutex;

/// Returns the time since the machine booted, which also advances while this process is suspended.
pub(super) fn time_since_boot() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    Duration::new(u64::try_from(now.tv_sec).unwrap_or(0), u32::try_from(now.tv_nsec).unwrap_or(0))
}

/// An estimate of the server's clock.
#[derive(Default)]
pub(super) struct ServerClock {
    /// The microseconds by which the server's clock is ahead of [`time_since_boot`].
    ahead: Mutex<Option<i64>>,
}

impl ServerClock {
    /// Adjusts the estimate. The server's clock showed `server_micros` since the Unix epoch at some moment between
    /// `sent` and `received`. An estimate within these bounds is kept, so that slow answers do not shift it.
    pub fn adjust(&self, server_micros: i64, sent: Duration, received: Duration) {
        let (least, most) =
            (server_micros.saturating_sub(micros(received)), server_micros.saturating_sub(micros(sent)));
        let mut ahead = self.ahead.lock();
        *ahead = Some(ahead.map_or_else(|| i64::midpoint(least, most), |ahead| ahead.clamp(least, most.max(least))));
    }

    /// Returns the server's time, or the system's time before the first answer.
    pub fn now(&self) -> Timestamp {
        let ahead = *self.ahead.lock();
        let now = ahead.map(|ahead| Timestamp::from_microsecond(ahead.saturating_add(micros(time_since_boot()))));
        now.and_then(Result::ok).unwrap_or_else(Timestamp::now)
    }
}

fn micros(time: Duration) -> i64 {
    i64::try_from(time.as_micros()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const DAY_MICROS: i64 = 86_400_000_000;

    fn is_ahead_by(clock: &ServerClock, micros: i64) -> bool {
        let error = clock.now().as_microsecond() - Timestamp::now().as_microsecond() - micros;
        error.abs() < 60_000_000
    }

    #[test]
    fn clock_follows_server_time_after_first_answer() {
        let clock = ServerClock::default();
        assert!(is_ahead_by(&clock, 0));
        for days in [3, -2] {
            let now = time_since_boot();
            clock.adjust(Timestamp::now().as_microsecond() + days * DAY_MICROS, now, now + SECOND / 1000);
            assert!(is_ahead_by(&clock, days * DAY_MICROS));
        }
    }

    #[test]
    fn slow_answer_does_not_shift_consistent_clock() {
        let clock = ServerClock::default();
        let ahead = || clock.ahead.lock().unwrap();
        clock.adjust(DAY_MICROS, 10 * SECOND, 10 * SECOND);
        assert_eq!(ahead(), DAY_MICROS - 10_000_000);
        // The server read its clock at once, and the answer took three seconds.
        clock.adjust(DAY_MICROS + 10_000_000, 20 * SECOND, 23 * SECOND);
        assert_eq!(ahead(), DAY_MICROS - 10_000_000);
        // The server's clock is at least half a second behind the estimate.
        clock.adjust(DAY_MICROS + 9_500_000, 20 * SECOND, 23 * SECOND);
        assert_eq!(ahead(), DAY_MICROS - 10_500_000);
    }

    #[test]
    fn invalid_server_time_is_ignored() {
        let clock = ServerClock::default();
        clock.adjust(i64::MAX, Duration::ZERO, Duration::MAX);
        clock.adjust(i64::MIN, Duration::MAX, Duration::ZERO);
        assert!(is_ahead_by(&clock, 0));
    }
}
