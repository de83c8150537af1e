//! The order in which transitions are announced: that of their numbers, whoever wrote them.
//!
//! What this gateway writes comes from the store's thread; what others write, and what a write of its own turns out to have
//! been after all, is read. Either may come first.

use std::collections::{BTreeMap, HashMap};

/// A change's id and the version that a transition leaves it at: whose transition it is.
pub(crate) type Which = (String, u64);

enum Entry<T> {
    Own(T),
    /// As it was read.
    Read(Which, T),
}

pub(crate) struct Order<T> {
    /// The last that was announced.
    head: u64,
    /// Up to here everything there is was read: what is missing is gone.
    read_to: u64,
    entries: BTreeMap<u64, Entry<T>>,
    /// This gateway's own that the store has not answered yet.
    under_way: HashMap<Which, usize>,
}

impl<T> Order<T> {
    pub(crate) fn new(head: u64) -> Self {
        Self { head, read_to: head, entries: BTreeMap::new(), under_way: HashMap::new() }
    }

    /// The store is asked to write this.
    pub(crate) fn begin(&mut self, which: Which) {
        *self.under_way.entry(which).or_default() += 1;
    }

    /// The store has answered, that it is written as this number or that it is not.
    pub(crate) fn end(&mut self, which: &Which, written: Option<(u64, T)>) {
        if let Some(n) = self.under_way.get_mut(which) {
            *n -= 1;
            if *n == 0 {
                self.under_way.remove(which);
            }
        }
        if let Some((seq, step)) = written {
            // Whoever waits for it is told, even where it was passed over.
            self.entries.insert(seq, Entry::Own(step));
        }
    }

    /// Everything that there is after a number that was read to or announced, in order.
    pub(crate) fn read(&mut self, steps: impl IntoIterator<Item = (u64, Which, T)>) {
        for (seq, which, step) in steps {
            self.read_to = self.read_to.max(seq);
            if seq > self.head {
                self.entries.entry(seq).or_insert(Entry::Read(which, step));
            }
        }
    }

    /// What is to be announced next, if it is known.
    pub(crate) fn next(&mut self) -> Option<(u64, T)> {
        let first = self.entries.first_entry()?;
        let seq = *first.key();
        if seq > self.head + 1 && seq > self.read_to {
            return None;
        }
        // The answer to it is on its way, with whoever waits for it.
        if matches!(first.get(), Entry::Read(which, _) if self.under_way.contains_key(which)) {
            return None;
        }
        self.head = self.head.max(seq);
        Some(match first.remove() {
            Entry::Own(step) | Entry::Read(_, step) => (seq, step),
        })
    }

    /// Whether something is missing that only the store knows.
    pub(crate) fn has_gap(&self) -> bool {
        self.entries.first_key_value().is_some_and(|(seq, _)| *seq > self.head + 1 && *seq > self.read_to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn which(id: &str) -> Which {
        (id.to_owned(), 1)
    }

    fn all(order: &mut Order<&'static str>) -> Vec<(u64, &'static str)> {
        std::iter::from_fn(|| order.next()).collect()
    }

    #[test]
    fn what_others_wrote_in_between_is_waited_for() {
        let mut order = Order::new(10);
        for id in ["a", "c"] {
            order.begin(which(id));
        }
        order.end(&which("a"), Some((11, "a")));
        order.end(&which("c"), Some((13, "c")));
        assert_eq!(all(&mut order), [(11, "a")]);
        assert!(order.has_gap());
        order.read([(12, which("b"), "b"), (13, which("c"), "c as read")]);
        assert_eq!(all(&mut order), [(12, "b"), (13, "c")]);
        assert!(!order.has_gap());
        order.read([(12, which("b"), "b"), (13, which("c"), "c as read")]);
        assert_eq!(all(&mut order), [], "once");
    }

    #[test]
    fn what_is_read_before_its_answer_waits_for_it() {
        let mut order = Order::new(0);
        order.begin(which("a"));
        order.read([(1, which("a"), "a as read"), (2, which("b"), "b")]);
        assert_eq!(all(&mut order), []);
        assert!(!order.has_gap());
        order.end(&which("a"), Some((1, "a")));
        assert_eq!(all(&mut order), [(1, "a"), (2, "b")]);

        // The answer is that nobody knows; it was written all the same.
        order.begin(which("c"));
        order.read([(3, which("c"), "c as read")]);
        order.end(&which("c"), None);
        assert_eq!(all(&mut order), [(3, "c as read")]);
    }

    #[test]
    fn what_was_pruned_is_passed_over() {
        let mut order = Order::new(5);
        order.read([(9, which("d"), "d")]);
        assert_eq!(all(&mut order), [(9, "d")]);
    }
}
