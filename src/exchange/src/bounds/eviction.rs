//! Chooses who is evicted when every place is taken: first who never finished a handshake, then who was idle longest.
//! A holder with a call in flight keeps its place.

use std::{collections::VecDeque, sync::OnceLock, time::Instant};

/// Those that were idle longest are looked for so many at a time: a look at all of them costs too much for each.
const BATCH: usize = 64;

/// Milliseconds since the process began to count them, by a clock that nobody sets.
#[must_use]
pub fn now() -> u64 {
    static BEGAN: OnceLock<Instant> = OnceLock::new();
    u64::try_from(BEGAN.get_or_init(Instant::now).elapsed().as_millis()).unwrap_or(u64::MAX)
}

/// The claim of a holder to its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hold {
    /// It never got past its handshake.
    Handshake,
    /// Nothing was heard of it since then, by [`now`].
    Idle(u64),
    /// It has a call in flight, or its place is not to be taken.
    Busy,
}

/// The order in which those of one kind lose their places.
pub struct Queue<K> {
    /// Those that were not past their handshake when they came, oldest first.
    fresh: VecDeque<K>,
    /// Some of those that were idle longest, and since when.
    idle: VecDeque<(K, u64)>,
}

impl<K> Default for Queue<K> {
    fn default() -> Self {
        Self { fresh: VecDeque::new(), idle: VecDeque::new() }
    }
}

impl<K> Queue<K> {
    /// One more has come; there are `open` of them by now. `hold` is `None` for those that are gone.
    pub fn joined(&mut self, key: K, open: usize, hold: impl Fn(&K) -> Option<Hold>) {
        if self.fresh.len() >= 2 * open + BATCH {
            self.fresh.retain(|key| matches!(hold(key), Some(Hold::Handshake | Hold::Busy)));
        }
        self.fresh.push_back(key);
    }

    /// Returns the next holder to evict. `all` lists all holders, and is called only if no idle one is known.
    pub fn next(&mut self, hold: impl Fn(&K) -> Option<Hold>, all: impl FnOnce() -> Vec<K>) -> Option<K> {
        for _ in 0..self.fresh.len() {
            let key = self.fresh.pop_front()?;
            match hold(&key) {
                Some(Hold::Handshake) => return Some(key),
                // It may yet fail to get past it.
                Some(Hold::Busy) => self.fresh.push_back(key),
                Some(Hold::Idle(_)) | None => {}
            }
        }
        self.idlest(&hold).or_else(|| {
            self.look(&hold, all());
            self.idlest(&hold)
        })
    }

    /// The first that was not heard of since it was looked at.
    fn idlest(&mut self, hold: &impl Fn(&K) -> Option<Hold>) -> Option<K> {
        while let Some((key, since)) = self.idle.pop_front() {
            if hold(&key) == Some(Hold::Idle(since)) {
                return Some(key);
            }
        }
        None
    }

    fn look(&mut self, hold: &impl Fn(&K) -> Option<Hold>, all: Vec<K>) {
        let mut idle: Vec<(K, u64)> = all
            .into_iter()
            .filter_map(|key| match hold(&key)? {
                // One that a pass over `fresh` has lost sight of goes before all that are past it.
                Hold::Handshake => Some((key, 0)),
                Hold::Idle(since) => Some((key, since)),
                Hold::Busy => None,
            })
            .collect();
        if idle.len() > BATCH {
            idle.select_nth_unstable_by_key(BATCH, |(_, since)| *since);
            idle.truncate(BATCH);
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
    fn first_goes_who_never_got_past_its_handshake_then_who_was_idle_longest() {
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
        // What was busy may be idle later.
        holds.insert(3, Hold::Idle(50));
        assert_eq!(next(&mut queue, &holds), Some(3));
    }

    #[test]
    fn who_was_heard_of_since_it_was_looked_at_stays() {
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
    fn newcomers_that_say_nothing_take_one_anothers_places_and_nobody_elses() {
        let mut queue = Queue::default();
        let mut holds: Holds = (0..1000).map(|key| (key, Hold::Idle(u64::from(key)))).collect();
        assert_eq!(next(&mut queue, &holds), Some(0));
        holds.remove(&0);
        for key in 1000..5000 {
            holds.insert(key, Hold::Handshake);
            queue.joined(key, holds.len(), |key| holds.get(key).copied());
            let gone = next(&mut queue, &holds).unwrap();
            assert_eq!(gone, key);
            holds.remove(&gone);
        }
        assert!(queue.fresh.len() <= 2 * 1000 + BATCH, "{}", queue.fresh.len());
    }

    #[test]
    fn those_that_got_past_it_are_forgotten_among_the_fresh() {
        let mut queue = Queue::default();
        for key in 0..10_000_u32 {
            queue.joined(key, 10, |_| Some(Hold::Idle(0)));
        }
        assert!(queue.fresh.len() <= 2 * 10 + BATCH + 1, "{}", queue.fresh.len());
    }
}
