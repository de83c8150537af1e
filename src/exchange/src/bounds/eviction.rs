//! Chooses the holder to evict when all places are taken: first holders that never finished a handshake, then the one
//! that was idle longest. A holder with a call in flight keeps its place.

use std::{collections::VecDeque, sync::OnceLock, time::Instant};

/// The number of idle holders that one search finds. A search through all holders is too expensive for each eviction.
const IDLE_BATCH: usize = 64;

/// Returns milliseconds of a monotonic clock since its first use in this process.
#[must_use]
pub fn now() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    u64::try_from(START.get_or_init(Instant::now).elapsed().as_millis()).unwrap_or(u64::MAX)
}

/// The claim of a holder to its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hold {
    /// The holder never finished its handshake.
    Handshake,
    /// The time, by [`now`], since which the holder has been idle.
    Idle(u64),
    /// The holder has a call in flight, or must not be evicted.
    Busy,
}

/// The order in which holders of one kind are evicted.
pub struct Queue<K> {
    /// Holders that had not finished their handshakes when they were added, oldest first.
    handshaking: VecDeque<K>,
    /// Some of the holders that were idle longest, with the times since which they were idle.
    idle: VecDeque<(K, u64)>,
}

impl<K> Default for Queue<K> {
    fn default() -> Self {
        Self { handshaking: VecDeque::new(), idle: VecDeque::new() }
    }
}

impl<K> Queue<K> {
    /// Adds a holder. `open` is the number of all holders, including this one. `hold` returns `None` for a holder that
    /// is gone.
    pub fn joined(&mut self, key: K, open: usize, hold: impl Fn(&K) -> Option<Hold>) {
        if self.handshaking.len() >= 2 * open + IDLE_BATCH {
            self.handshaking.retain(|key| matches!(hold(key), Some(Hold::Handshake | Hold::Busy)));
        }
        self.handshaking.push_back(key);
    }

    /// Returns the next holder to evict. `all` lists all holders, and is called only if no idle one is known.
    pub fn next(&mut self, hold: impl Fn(&K) -> Option<Hold>, all: impl FnOnce() -> Vec<K>) -> Option<K> {
        for _ in 0..self.handshaking.len() {
            let key = self.handshaking.pop_front()?;
            match hold(&key) {
                Some(Hold::Handshake) => return Some(key),
                // The holder may yet fail to finish its handshake.
                Some(Hold::Busy) => self.handshaking.push_back(key),
                Some(Hold::Idle(_)) | None => {}
            }
        }
        self.take_longest_idle(&hold).or_else(|| {
            self.find_idle(&hold, all());
            self.take_longest_idle(&hold)
        })
    }

    /// Takes the first known holder that was still idle since it was found.
    fn take_longest_idle(&mut self, hold: &impl Fn(&K) -> Option<Hold>) -> Option<K> {
        while let Some((key, since)) = self.idle.pop_front() {
            if hold(&key) == Some(Hold::Idle(since)) {
                return Some(key);
            }
        }
        None
    }

    fn find_idle(&mut self, hold: &impl Fn(&K) -> Option<Hold>, all: Vec<K>) {
        let mut idle: Vec<(K, u64)> = all
            .into_iter()
            .filter_map(|key| match hold(&key)? {
                // A holder that is missing in `handshaking` goes before all holders that finished their handshakes.
                Hold::Handshake => Some((key, 0)),
                Hold::Idle(since) => Some((key, since)),
                Hold::Busy => None,
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

    type Holds = HashMap<u32, Hold>;

    fn next(queue: &mut Queue<u32>, holds: &Holds) -> Option<u32> {
        let mut all: Vec<u32> = holds.keys().copied().collect();
        all.sort_unstable();
        queue.next(|key| holds.get(key).copied(), || all)
    }

    #[test]
    fn unfinished_handshakes_are_evicted_before_longest_idle() {
        let mut queue = Queue::default();
        let mut holds = Holds::new();
        for (key, hold) in
            [(1, Hold::Idle(30)), (2, Hold::Handshake), (3, Hold::Busy), (4, Hold::Idle(10)), (5, Hold::Handshake)]
        {
            holds.insert(key, hold);
            queue.joined(key, holds.len(), |key| holds.get(key).copied());
        }
        for expected in [Some(2), Some(5), Some(4), Some(1), None] {
            assert_eq!(next(&mut queue, &holds), expected);
            expected.map(|key| holds.remove(&key));
        }
        // A busy holder may become idle later.
        holds.insert(3, Hold::Idle(50));
        assert_eq!(next(&mut queue, &holds), Some(3));
    }

    #[test]
    fn holder_that_became_active_since_search_stays() {
        let mut queue = Queue::default();
        let mut holds: Holds = (0..5).map(|key| (key, Hold::Idle(u64::from(key)))).collect();
        assert_eq!(next(&mut queue, &holds), Some(0));
        holds.remove(&0);
        holds.insert(1, Hold::Idle(100));
        holds.insert(2, Hold::Busy);
        assert_eq!(next(&mut queue, &holds), Some(3));
        holds.remove(&3);
        assert_eq!(next(&mut queue, &holds), Some(4));
        holds.remove(&4);
        assert_eq!(next(&mut queue, &holds), Some(1));
    }

    #[test]
    fn silent_newcomers_evict_only_each_other() {
        let mut queue = Queue::default();
        let mut holds: Holds = (0..1000).map(|key| (key, Hold::Idle(u64::from(key)))).collect();
        assert_eq!(next(&mut queue, &holds), Some(0));
        holds.remove(&0);
        for key in 1000..5000 {
            holds.insert(key, Hold::Handshake);
            queue.joined(key, holds.len(), |key| holds.get(key).copied());
            let evicted = next(&mut queue, &holds).unwrap();
            assert_eq!(evicted, key);
            holds.remove(&evicted);
        }
        assert!(queue.handshaking.len() <= 2 * 1000 + IDLE_BATCH, "{}", queue.handshaking.len());
    }

    #[test]
    fn holders_with_finished_handshake_are_removed_from_queue() {
        let mut queue = Queue::default();
        for key in 0..10_000_u32 {
            queue.joined(key, 10, |_| Some(Hold::Idle(0)));
        }
        assert!(queue.handshaking.len() <= 2 * 10 + IDLE_BATCH + 1, "{}", queue.handshaking.len());
    }
}
