//! Limits the bytes of changes that one principal may propose within a day. A change that is withdrawn at once counts
//! too, because it takes space on the disk.
//!
//! Bytes are counted by the hour. The counts are not stored, because the store knows when each change was made and how
//! large it was.

use std::collections::{BTreeMap, HashMap};

use jiff::{SignedDuration, Timestamp};

use countersign_protocol::{ErrorKind, McpError};
use countersign_store::ProposalRecord;

const SECONDS_PER_HOUR: i64 = 3600;
/// The hours in the window: the current hour and the 23 hours before it.
const WINDOW_HOURS: i64 = 24;

/// Returns the time from which the store's proposals are counted at the start.
pub(crate) fn window_start(now: Timestamp) -> Timestamp {
    now.checked_sub(SignedDuration::from_hours(WINDOW_HOURS)).unwrap_or(Timestamp::MIN)
}

/// Bytes proposed by each principal; owned by `PendingChanges`.
pub(crate) struct DailyVolume {
    /// `None` means no limit.
    max: Option<u64>,
    /// For each principal, the hours since the Unix epoch that have proposals, with their bytes.
    by_principal: HashMap<String, BTreeMap<i64, u64>>,
    /// The hour in which principals without proposals in the window were last removed.
    last_removal: i64,
}

impl DailyVolume {
    pub(crate) fn new(max: usize) -> Self {
        Self { max: (max > 0).then_some(max as u64), by_principal: HashMap::new(), last_removal: 0 }
    }

    /// Counts proposals that were stored before the start.
    pub(crate) fn restore(&mut self, proposed: &[ProposalRecord]) {
        if self.max.is_none() {
            return;
        }
        for ProposalRecord { principal, bytes, at } in proposed {
            let hours = self.by_principal.entry(principal.clone()).or_default();
            *hours.entry(hour_of(*at)).or_default() += bytes;
        }
    }

    /// Counts a change that is about to be written.
    ///
    /// # Errors
    /// `RATE_LIMITED` with `retryAfter` (seconds).
    pub(crate) fn admit(&mut self, principal: &str, bytes: u64, now: Timestamp) -> Result<(), McpError> {
        let Some(max) = self.max else { return Ok(()) };
        let hour = hour_of(now);
        self.remove_idle(hour);
        let hours = self.by_principal.entry(principal.to_owned()).or_default();
        // This also drops hours that lie in the future after the clock was set back.
        hours.retain(|at, _| (hour - WINDOW_HOURS + 1..=hour).contains(at));
        let used: u64 = hours.values().sum();
        if used.saturating_add(bytes) > max {
            // The wait ends when enough of the counted hours have left the window.
            let mut remaining = used;
            let last_to_leave = hours.iter().find(|(_, hour_bytes)| {
                remaining -= **hour_bytes;
                remaining.saturating_add(bytes) <= max
            });
            let wait_seconds = last_to_leave.map_or(WINDOW_HOURS, |(at, _)| at + WINDOW_HOURS - hour)
                * SECONDS_PER_HOUR
                - now.as_second().rem_euclid(SECONDS_PER_HOUR);
            if hours.is_empty() {
                self.by_principal.remove(principal);
            }
            return Err(McpError::new(
                ErrorKind::RateLimited,
                "Too many bytes of changes of this principal within a day; propose smaller changes, or wait",
            )
            .with("limit", "changes.max_bytes_per_day")
            .with("max", max)
            .with("current", used)
            .with("retryAfter", wait_seconds.max(1)));
        }
        *hours.entry(hour).or_default() += bytes;
        Ok(())
    }

    /// Counts a change that another node has written.
    pub(crate) fn count_remote(&mut self, proposed: ProposalRecord, now: Timestamp) {
        self.remove_idle(hour_of(now));
        self.restore(&[proposed]);
    }

    /// Removes principals without proposals in the window, once an hour.
    fn remove_idle(&mut self, hour: i64) {
        if self.last_removal != hour {
            self.last_removal = hour;
            self.by_principal.retain(|_, hours| hours.keys().any(|at| *at > hour - WINDOW_HOURS));
        }
    }

    /// Subtracts the bytes of a write that failed, and that was admitted at the time `at`.
    pub(crate) fn release(&mut self, principal: &str, bytes: u64, at: Timestamp) {
        if let Some(sum) = self.by_principal.get_mut(principal).and_then(|hours| hours.get_mut(&hour_of(at))) {
            *sum = sum.saturating_sub(bytes);
        }
    }
}

/// Returns the hours since the Unix epoch.
fn hour_of(time: Timestamp) -> i64 {
    time.as_second().div_euclid(SECONDS_PER_HOUR)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn time_after(hours: i64, seconds: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 / SECONDS_PER_HOUR * SECONDS_PER_HOUR + hours * SECONDS_PER_HOUR + seconds)
            .unwrap()
    }

    #[test]
    fn daily_bytes_of_a_principal_are_limited() {
        let mut daily = DailyVolume::new(100);
        daily.admit("a", 60, time_after(0, 10)).unwrap();
        daily.admit("a", 40, time_after(3, 0)).unwrap();
        let refused = daily.admit("a", 1, time_after(4, 600)).unwrap_err();
        assert_eq!(refused.kind, ErrorKind::RateLimited);
        assert_eq!(refused.data["current"], 100);
        // The first counted hour leaves the window when hour 24 begins.
        assert_eq!(refused.data["retryAfter"], 20 * SECONDS_PER_HOUR - 600);
        daily.admit("b", 100, time_after(4, 600)).unwrap();
        daily.admit("a", 1, time_after(23, 3599)).unwrap_err();
        daily.admit("a", 60, time_after(24, 0)).unwrap();
        daily.admit("a", 1, time_after(24, 0)).unwrap_err();
        daily.release("a", 10, time_after(24, 0));
        daily.admit("a", 10, time_after(24, 0)).unwrap();
        assert!(daily.admit("c", 101, time_after(0, 0)).is_err(), "it would never fit");
        assert!(!daily.by_principal.contains_key("c"));
        assert!(DailyVolume::new(0).admit("a", u64::MAX, time_after(0, 0)).is_ok(), "no limit");
    }

    #[test]
    fn failed_write_is_released_from_its_own_hour() {
        let mut daily = DailyVolume::new(100);
        daily.admit("a", 60, time_after(0, 3599)).unwrap();
        daily.admit("a", 40, time_after(1, 0)).unwrap();
        daily.release("a", 60, time_after(0, 3599));
        // The first hour has left the window, and the bytes of the second one still count.
        daily.admit("a", 61, time_after(24, 0)).unwrap_err();
        daily.admit("a", 60, time_after(24, 0)).unwrap();
    }

    #[test]
    fn proposals_before_a_restart_count() {
        let mut daily = DailyVolume::new(100);
        let proposed = |hours, bytes| ProposalRecord { principal: "a".into(), bytes, at: time_after(hours, 1) };
        daily.restore(&[proposed(0, 50), proposed(0, 20), proposed(2, 30)]);
        daily.admit("a", 1, time_after(3, 0)).unwrap_err();
        daily.admit("a", 70, time_after(24, 0)).unwrap();
    }

    #[test]
    fn principals_without_proposals_for_a_day_are_removed() {
        let mut daily = DailyVolume::new(100);
        daily.admit("a", 1, time_after(0, 0)).unwrap();
        daily.admit("b", 1, time_after(23, 0)).unwrap();
        assert_eq!(daily.by_principal.len(), 2);
        daily.admit("b", 1, time_after(24, 0)).unwrap();
        assert!(!daily.by_principal.contains_key("a"));
        let remote = ProposalRecord { principal: "c".into(), bytes: 1, at: time_after(48, 0) };
        daily.count_remote(remote, time_after(48, 0));
        assert!(daily.by_principal.keys().eq(["c"]), "changes of other nodes remove idle principals, too");
    }

    #[test]
    fn clock_set_back_locks_nobody_out() {
        let mut daily = DailyVolume::new(100);
        daily.admit("a", 100, time_after(48, 0)).unwrap();
        daily.admit("a", 100, time_after(0, 0)).unwrap();
    }
}
