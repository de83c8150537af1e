//! Orders transitions by their numbers before they are announced, whichever node wrote them.
//!
//! Own writes arrive from the store's thread. Writes of other nodes, and own writes whose outcome was unknown, are read
//! from the feed. Either may arrive first.

use std::collections::{BTreeMap, HashMap};

/// Identifies a transition: the change's id and its version after the transition.
pub(crate) type TransitionId = (String, u64);

enum OrderEntry<T> {
    Own(T),
    FromFeed(TransitionId, T),
}

/// The durable transitions that are not announced yet, by their numbers.
pub(crate) struct AnnouncementOrder<T> {
    /// The number announced last.
    last_announced: u64,
    /// The number up to which the feed was read: missing numbers below it were pruned.
    last_read: u64,
    entries: BTreeMap<u64, OrderEntry<T>>,
    /// Own writes that the store has not answered yet.
    unanswered: HashMap<TransitionId, usize>,
}

impl<T> AnnouncementOrder<T> {
    pub(crate) fn new(last_announced: u64) -> Self {
        Self { last_announced, last_read: last_announced, entries: BTreeMap::new(), unanswered: HashMap::new() }
    }

    /// Records that the store was asked to write this transition.
    pub(crate) fn begin_write(&mut self, id: TransitionId) {
        *self.unanswered.entry(id).or_default() += 1;
    }

    /// Records the store's answer: the number under which the transition was written, or `None` if it was not written.
    pub(crate) fn end_write(&mut self, id: &TransitionId, written: Option<(u64, T)>) {
        if let Some(n) = self.unanswered.get_mut(id) {
            *n -= 1;
            if *n == 0 {
                self.unanswered.remove(id);
            }
        }
        if let Some((seq, transition)) = written {
            // It is returned by `next` even if it was announced before, because its caller waits for the answer.
            self.entries.insert(seq, OrderEntry::Own(transition));
        }
    }

    /// Adds a page of transitions read from the feed, in order. No stored transition may be missing between the page and the
    /// numbers that were read or announced before.
    pub(crate) fn add_remote(&mut self, transitions: impl IntoIterator<Item = (u64, TransitionId, T)>) {
        for (seq, id, transition) in transitions {
            self.last_read = self.last_read.max(seq);
            if seq > self.last_announced {
                self.entries.entry(seq).or_insert(OrderEntry::FromFeed(id, transition));
            }
        }
    }

    /// Returns the next transition to announce, if it is known.
    pub(crate) fn next(&mut self) -> Option<(u64, T)> {
        let first = self.entries.first_entry()?;
        let seq = *first.key();
        if seq > self.last_announced + 1 && seq > self.last_read {
            return None;
        }
        // The store's answer is on its way and carries the waiting caller.
        if matches!(first.get(), OrderEntry::FromFeed(id, _) if self.unanswered.contains_key(id)) {
            return None;
        }
        self.last_announced = self.last_announced.max(seq);
        Some(match first.remove() {
            OrderEntry::Own(transition) | OrderEntry::FromFeed(_, transition) => (seq, transition),
        })
    }

    /// Returns `true` if a number is missing that only the store can supply.
    pub(crate) fn has_gap(&self) -> bool {
        self.entries.first_key_value().is_some_and(|(seq, _)| *seq > self.last_announced + 1 && *seq > self.last_read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn transition_id(id: &str) -> TransitionId {
        (id.to_owned(), 1)
    }

    fn announced(order: &mut AnnouncementOrder<&'static str>) -> Vec<(u64, &'static str)> {
        std::iter::from_fn(|| order.next()).collect()
    }

    #[test]
    fn order_waits_for_missing_remote_transitions() {
        let mut order = AnnouncementOrder::new(10);
        for id in ["a", "c"] {
            order.begin_write(transition_id(id));
        }
        order.end_write(&transition_id("a"), Some((11, "a")));
        order.end_write(&transition_id("c"), Some((13, "c")));
        assert_eq!(announced(&mut order), [(11, "a")]);
        assert!(order.has_gap());
        order.add_remote([(12, transition_id("b"), "b"), (13, transition_id("c"), "c as read")]);
        assert_eq!(announced(&mut order), [(12, "b"), (13, "c")]);
        assert!(!order.has_gap());
        order.add_remote([(12, transition_id("b"), "b"), (13, transition_id("c"), "c as read")]);
        assert_eq!(announced(&mut order), [], "each transition is announced once");
    }

    #[test]
    fn order_waits_for_the_answer_to_an_own_write() {
        let mut order = AnnouncementOrder::new(0);
        order.begin_write(transition_id("a"));
        order.add_remote([(1, transition_id("a"), "a as read"), (2, transition_id("b"), "b")]);
        assert_eq!(announced(&mut order), []);
        assert!(!order.has_gap());
        order.end_write(&transition_id("a"), Some((1, "a")));
        assert_eq!(announced(&mut order), [(1, "a"), (2, "b")]);

        // The store answers that the outcome is unknown, although the transition was written.
        order.begin_write(transition_id("c"));
        order.add_remote([(3, transition_id("c"), "c as read")]);
        order.end_write(&transition_id("c"), None);
        assert_eq!(announced(&mut order), [(3, "c as read")]);
    }

    #[test]
    fn order_skips_pruned_numbers() {
        let mut order = AnnouncementOrder::new(5);
        order.add_remote([(9, transition_id("d"), "d")]);
        assert_eq!(announced(&mut order), [(9, "d")]);
    }
}
