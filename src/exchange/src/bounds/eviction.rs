//! Chooses which holder of a slot (a connection, session or stream) is evicted when all slots are taken: first holders that
//! never finished a handshake, then the one that was idle longest. A holder with a call in flight keeps its slot.

use std::collections::VecDeque;

use rustix::time::{ClockId, clock_gettime};

/// The number of idle holders that one search keeps for later evictions, because each search goes through all holders.
const IDLE_BATCH: usize = 64;

/// Returns milliseconds of the system's monotonic clock.
pub fn monotonic_ms() -> u64 {
    // Cheaper than an `Instant` and the time since another one. Each request needs it, some several times.
    let time = clock_gettime(ClockId::Monotonic);
    u64::try_from(time.tv_sec.saturating_mul(1000).saturating_add(time.tv_nsec / 1_000_000)).unwrap_or_default()
}

/// The activity of a holder, which decides when it is evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activity {
    /// The holder never finished its handshake.
    Handshake,
    /// The time, by [`monotonic_ms`], since which the holder has been idle.
    Idle(u64),
    /// The holder has a call in flight, or must not be evicted.
    Busy,
}

/// The order in which holders of one kind are evicted.
pub struct EvictionQueue<K> {
    /// Holders that had not finished their handshakes when they were added, oldest first.
    handshaking: VecDeque<K>,
    /// The holders that were idle longest at the last search, with the times since which they were idle.
    idle: VecDeque<(K, u64)>,
}

impl<K> Default for EvictionQueue<K> {
    fn default() -> Self {
        Self { handshaking: VecDeque::new(), idle: VecDeque::new() }
    }
}

impl<K> EvictionQueue<K> {
    /// Adds a holder. `holder_count` is the number of all holders, including this one. `activity` returns `None` for a
    /// holder that is gone.
    pub fn add(&mut self, key: K, holder_count: usize, activity: impl Fn(&K) -> Option<Activity>) {
        if self.handshaking.len() >= 2 * holder_count + IDLE_BATCH {
            self.handshaking.retain(|key| matches!(activity(key), Some(Activity::Handshake | Activity::Busy)));
        }
        self.handshaking.push_back(key);
    }

    /// Returns the next holder to evict. `all` lists all holders, and is called only if no idle one is known.
    pub fn next(&mut self, activity: impl Fn(&K) -> Option<Activity>, all: impl FnOnce() -> Vec<K>) -> Option<K> {
        for _ in 0..self.handshaking.len() {
            let key = self.handshaking.pop_front()?;
            match activity(&key) {
                Some(Activity::Handshake) => return Some(key),
                // The holder may yet fail to finish its handshake.
                Some(Activity::Busy) => self.handshaking.push_back(key),
                Some(Activity::Idle(_)) | None => {}
            }
        }
        self.take_longest_idle(&activity).or_else(|| {
            self.refill_idle(&activity, all());
            self.take_longest_idle(&activity)
        })
    }

    /// Takes the holder that was idle longest, and drops known holders that have been active since they were found.
    fn take_longest_idle(&mut self, activity: &impl Fn(&K) -> Option<Activity>) -> Option<K> {
        while let Some((key, since)) = self.idle.pop_front() {
            if activity(&key) == Some(Activity::Idle(since)) {
                return Some(key);
            }
        }
        None
    }

    /// Replaces the known idle holders by those of `all` that were idle longest.
    fn refill_idle(&mut self, activity: &impl Fn(&K) -> Option<Activity>, all: Vec<K>) {
        let mut idle: Vec<(K, u64)> = all
            .into_iter()
            .filter_map(|key| match activity(&key)? {
                // A holder with an unfinished handshake that is missing in `handshaking` goes before all idle ones.
                Activity::Handshake => Some((key, 0)),
                Activity::Idle(since) => Some((key, since)),
                Activity::Busy => None,
            })
            .collect();
        if idle.len() > IDLE_BATCH {
            idle.select_nth_unstable_by_key(IDLE_BATCH, |(_, since)| *since);
            idle.truncate(IDLE_BATCH);
        }
        idle.sort_by_key(|(_, since)| *since);
        self.idle = idle.into();
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    type Activities = HashMap<u32, Activity>;

    fn next(queue: &mut EvictionQueue<u32>, activities: &Activities) -> Option<u32> {
        let mut all: Vec<u32> = activities.keys().copied().collect();
        all.sort_unstable();
        queue.next(|key| activities.get(key).copied(), || all)
    }

    #[test]
    fn unfinished_handshakes_are_evicted_before_longest_idle() {
        let mut queue = EvictionQueue::default();
        let mut activities = Activities::new();
        for (key, activity) in [
            (1, Activity::Idle(30)),
            (2, Activity::Handshake),
            (3, Activity::Busy),
            (4, Activity::Idle(10)),
            (5, Activity::Handshake),
        ] {
            activities.insert(key, activity);
            queue.add(key, activities.len(), |key| activities.get(key).copied());
        }
        for expected in [Some(2), Some(5), Some(4), Some(1), None] {
            assert_eq!(next(&mut queue, &activities), expected);
            expected.map(|key| activities.remove(&key));
        }
        // A busy holder may become idle later.
        activities.insert(3, Activity::Idle(50));
        assert_eq!(next(&mut queue, &activities), Some(3));
    }

    #[test]
    fn holder_that_became_active_since_search_stays() {
        let mut queue = EvictionQueue::default();
        let mut activities: Activities = (0..5).map(|key| (key, Activity::Idle(u64::from(key)))).collect();
        assert_eq!(next(&mut queue, &activities), Some(0));
        activities.remove(&0);
        activities.insert(1, Activity::Idle(100));
        activities.insert(2, Activity::Busy);
        assert_eq!(next(&mut queue, &activities), Some(3));
        activities.remove(&3);
        assert_eq!(next(&mut queue, &activities), Some(4));
        activities.remove(&4);
        assert_eq!(next(&mut queue, &activities), Some(1));
    }

    #[test]
    fn silent_newcomers_evict_only_each_other() {
        let mut queue = EvictionQueue::default();
        let mut activities: Activities = (0..1000).map(|key| (key, Activity::Idle(u64::from(key)))).collect();
        assert_eq!(next(&mut queue, &activities), Some(0));
        activities.remove(&0);
        for key in 1000..5000 {
            activities.insert(key, Activity::Handshake);
            queue.add(key, activities.len(), |key| activities.get(key).copied());
            let evicted = next(&mut queue, &activities).unwrap();
            assert_eq!(evicted, key);
            activities.remove(&evicted);
        }
        assert!(queue.handshaking.len() <= 2 * 1000 + IDLE_BATCH, "{}", queue.handshaking.len());
    }

    #[test]
    fn holders_with_finished_handshake_are_removed_from_queue() {
        let mut queue = EvictionQueue::default();
        for key in 0..10_000_u32 {
            queue.add(key, 10, |_| Some(Activity::Idle(0)));
        }
        assert!(queue.handshaking.len() <= 2 * 10 + IDLE_BATCH + 1, "{}", queue.handshaking.len());
    }
}
