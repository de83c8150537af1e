//! How many bytes of changes one principal proposed within a day: what is withdrawn at once takes room on the disk, too.
//!
//! Counted by the hour. Nothing of it is stored for its own sake: of each change it is known when it was made and how large it
//! was then, whatever became of it since.

use std::collections::{HashMap, VecDeque};

use jiff::{SignedDuration, Timestamp};

use countersign_protocol::{ErrorKind, McpError};
use countersign_store::Proposed;

const HOUR: i64 = 3600;
/// Hours that count: the running one, and those before it that are not wholly a day ago.
const HOURS: i64 = 24;

/// How far back the store is asked at the start.
#[must_use]
pub(crate) fn since(now: Timestamp) -> Timestamp {
    now.checked_sub(SignedDuration::from_hours(HOURS)).unwrap_or(Timestamp::MIN)
}

/// Per principal; owned by `PendingChanges`.
pub(crate) struct Daily {
    /// None where there is no limit.
    max: Option<u64>,
    /// Hours of the Unix epoch in which something was proposed, and bytes, in order.
    of: HashMap<String, VecDeque<(i64, u64)>>,
}

impl Daily {
    pub(crate) fn new(max: usize) -> Self {
        Self { max: (max > 0).then_some(max as u64), of: HashMap::new() }
    }

    /// What was proposed before the start.
    pub(crate) fn restore(&mut self, proposed: &[Proposed]) {
        if self.max.is_none() {
            return;
        }
        for Proposed { principal, bytes, at } in proposed {
            let hours = self.of.entry(principal.clone()).or_default();
            let hour = at.as_second().div_euclid(HOUR);
            // The store gives them in order; a clock that was set back is of no account here.
            match hours.back_mut() {
                Some((last, sum)) if *last >= hour => *sum += bytes,
                _ => hours.push_back((hour, *bytes)),
            }
        }
    }

    /// Counts a change that is about to be written.
    ///
    /// # Errors
    /// `RATE_LIMITED` with `retryAfter` (seconds).
    pub(crate) fn admit(&mut self, principal: &str, bytes: u64, now: Timestamp) -> Result<(), McpError> {
        let Some(max) = self.max else { return Ok(()) };
        let hour = now.as_second().div_euclid(HOUR);
        let hours = self.of.entry(principal.to_owned()).or_default();
        // Of a time that is still to come by a clock that was set back, too.
        hours.retain(|(at, _)| (hour - HOURS + 1..=hour).contains(at));
        let used: u64 = hours.iter().map(|(_, bytes)| bytes).sum();
        if used.saturating_add(bytes) > max {
            // When the hours that are in the way are a day ago.
            let mut left = used;
            let free = hours.iter().find(|(_, bytes_then)| {
                left -= bytes_then;
                left.saturating_add(bytes) <= max
            });
            let until = free.map_or(HOURS, |(at, _)| at + HOURS - hour) * HOUR - now.as_second().rem_euclid(HOUR);
            if hours.is_empty() {
                self.of.remove(principal);
            }
            return Err(McpError::new(
                ErrorKind::RateLimited,
                "Too many bytes of changes of this principal within a day; propose smaller changes, or wait",
            )
            .with("limit", "changes.max_bytes_per_day")
            .with("max", max)
            .with("current", used)
            .with("retryAfter", until.max(1)));
        }
        match hours.back_mut() {
            Some((last, sum)) if *last == hour => *sum += bytes,
            _ => hours.push_back((hour, bytes)),
        }
        Ok(())
    }

    /// Counts a change that another node has written.
    pub(crate) fn count(&mut self, principal: &str, bytes: u64, at: Timestamp) {
        self.restore(&[Proposed { principal: principal.to_owned(), bytes, at }]);
    }

    /// Takes back what was counted for a write that failed.
    pub(crate) fn release(&mut self, principal: &str, bytes: u64) {
        let Some(hours) = self.of.get_mut(principal) else { return };
        if let Some((_, sum)) = hours.back_mut() {
            *sum = sum.saturating_sub(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(hours: i64, seconds: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 / HOUR * HOUR + hours * HOUR + seconds).unwrap()
    }

    #[test]
    fn a_day_holds_so_many_bytes_of_one_principal() {
        let mut daily = Daily::new(100);
        daily.admit("a", 60, at(0, 10)).unwrap();
        daily.admit("a", 40, at(3, 0)).unwrap();
        let refused = daily.admit("a", 1, at(4, 600)).unwrap_err();
        assert_eq!(refused.kind, ErrorKind::RateLimited);
        assert_eq!(refused.data["current"], 100);
        // The first hour is a day ago at the beginning of the hour 24.
        assert_eq!(refused.data["retryAfter"], 20 * HOUR - 600);
        daily.admit("b", 100, at(4, 600)).unwrap();
        daily.admit("a", 1, at(23, 3599)).unwrap_err();
        daily.admit("a", 60, at(24, 0)).unwrap();
        daily.admit("a", 1, at(24, 0)).unwrap_err();
        daily.release("a", 10);
        daily.admit("a", 10, at(24, 0)).unwrap();
        assert!(daily.admit("c", 101, at(0, 0)).is_err(), "it would never fit");
        assert!(!daily.of.contains_key("c"));
        assert!(Daily::new(0).admit("a", u64::MAX, at(0, 0)).is_ok(), "no limit");
    }

    #[test]
    fn what_was_proposed_before_a_restart_counts() {
        let mut daily = Daily::new(100);
        let proposed = |hours, bytes| Proposed { principal: "a".into(), bytes, at: at(hours, 1) };
        daily.restore(&[proposed(0, 50), proposed(0, 20), proposed(2, 30)]);
        daily.admit("a", 1, at(3, 0)).unwrap_err();
        daily.admit("a", 70, at(24, 0)).unwrap();
    }

    #[test]
    fn a_clock_that_is_set_back_locks_nobody_out() {
        let mut daily = Daily::new(100);
        daily.admit("a", 100, at(48, 0)).unwrap();
        daily.admit("a", 100, at(0, 0)).unwrap();
    }
}
