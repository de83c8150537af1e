//! Orders open changes by the time at which something is due for them.

use std::{
    collections::{BTreeSet, HashMap},
    time::{Duration, Instant},
};

use jiff::Timestamp;
use parking_lot::Mutex;

/// Deadlines of open changes, by the wall clock and by the monotonic clock. The earlier of both deadlines counts, so that
/// setting the clock back keeps no change alive.
#[derive(Default)]
pub(crate) struct Deadlines(Mutex<DeadlineIndex>);

#[derive(Default)]
struct DeadlineIndex {
    by_wall_clock: BTreeSet<(Timestamp, String)>,
    by_monotonic_clock: BTreeSet<(Instant, String)>,
    by_id: HashMap<String, (Timestamp, Instant)>,
}

impl Deadlines {
    pub(crate) fn insert(&self, id: &str, expires_at: Timestamp, now: Timestamp) {
        let remaining = Duration::try_from(expires_at.duration_since(now)).unwrap_or_default();
        // A time beyond the range of `Instant` is never reached.
        let Some(monotonic) = Instant::now().checked_add(remaining) else { return };
        let mut deadlines = self.0.lock();
        deadlines.remove(id);
        deadlines.by_wall_clock.insert((expires_at, id.to_owned()));
        deadlines.by_monotonic_clock.insert((monotonic, id.to_owned()));
        deadlines.by_id.insert(id.to_owned(), (expires_at, monotonic));
    }

    pub(crate) fn remove(&self, id: &str) {
        self.0.lock().remove(id);
    }

    /// Returns at most `limit` changes that are due. They stay until they are removed.
    pub(crate) fn due(&self, now: Timestamp, limit: usize) -> Vec<String> {
        let deadlines = self.0.lock();
        let monotonic_now = Instant::now();
        let mut due: Vec<String> = deadlines
            .by_wall_clock
            .iter()
            .take_while(|(at, _)| *at <= now)
            .take(limit)
            .map(|(_, id)| id.clone())
            .collect();
        for (_, id) in deadlines.by_monotonic_clock.iter().take_while(|(at, _)| *at <= monotonic_now).take(limit) {
            if due.len() < limit && !due.contains(id) {
                due.push(id.clone());
            }
        }
        due
    }
}

impl DeadlineIndex {
    fn remove(&mut self, id: &str) {
        if let Some((wall, monotonic)) = self.by_id.remove(id) {
            self.by_wall_clock.remove(&(wall, id.to_owned()));
            self.by_monotonic_clock.remove(&(monotonic, id.to_owned()));
        }
    }
}
