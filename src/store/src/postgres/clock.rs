//! The server's time, computed from a clock of this machine that nobody sets.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use jiff::Timestamp;

/// Returns the time since the machine's start, which also advances while this process is stopped.
pub(super) fn steady() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    Duration::new(u64::try_from(now.tv_sec).unwrap_or(0), u32::try_from(now.tv_nsec).unwrap_or(0))
}

/// An estimate of the server's clock.
#[derive(Default)]
pub(super) struct ServerClock {
    /// The microseconds by which it is ahead of [`steady`].
    ahead: Mutex<Option<i64>>,
}

impl ServerClock {
    /// Adjusts the estimate: the server reported that many microseconds since 1970 at some moment between the two. An
    /// estimate that may still be right stays, so that slow answers do not shift it.
    pub fn heard(&self, said: i64, sent: Duration, received: Duration) {
        let (least, most) = (said.saturating_sub(micros(received)), said.saturating_sub(micros(sent)));
        let mut ahead = self.ahead.lock().unwrap_or_else(PoisonError::into_inner);
        *ahead = Some(ahead.map_or_else(|| i64::midpoint(least, most), |ahead| ahead.clamp(least, most.max(least))));
    }

    /// Returns the server's time, or the system's time before the first answer.
    pub fn now(&self) -> Timestamp {
        let ahead = *self.ahead.lock().unwrap_or_else(PoisonError::into_inner);
        let now = ahead.map(|ahead| Timestamp::from_microsecond(ahead.saturating_add(micros(steady()))));
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
    const DAY: i64 = 86_400_000_000;

    fn off_by(clock: &ServerClock, micros: i64) -> bool {
        let off = clock.now().as_microsecond() - Timestamp::now().as_microsecond() - micros;
        off.abs() < 60_000_000
    }

    #[test]
    fn clock_follows_server_time_after_first_answer() {
        let clock = ServerClock::default();
        assert!(off_by(&clock, 0));
        for days in [3, -2] {
            let now = steady();
            clock.heard(Timestamp::now().as_microsecond() + days * DAY, now, now + SECOND / 1000);
            assert!(off_by(&clock, days * DAY));
        }
    }

    #[test]
    fn slow_answer_does_not_shift_consistent_clock() {
        let clock = ServerClock::default();
        let ahead = || clock.ahead.lock().unwrap().unwrap();
        clock.heard(DAY, 10 * SECOND, 10 * SECOND);
        assert_eq!(ahead(), DAY - 10_000_000);
        // Said right after it was asked, and three seconds on the way back.
        clock.heard(DAY + 10_000_000, 20 * SECOND, 23 * SECOND);
        assert_eq!(ahead(), DAY - 10_000_000);
        // Half a second less than what was reckoned, at the least.
        clock.heard(DAY + 9_500_000, 20 * SECOND, 23 * SECOND);
        assert_eq!(ahead(), DAY - 10_500_000);
    }

    #[test]
    fn invalid_server_time_is_ignored() {
        let clock = ServerClock::default();
        clock.heard(i64::MAX, Duration::ZERO, Duration::MAX);
        clock.heard(i64::MIN, Duration::MAX, Duration::ZERO);
        assert!(off_by(&clock, 0));
    }
}
