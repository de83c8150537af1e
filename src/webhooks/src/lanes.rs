//! Orders the deliveries of one webhook. This module does no I/O, and callers pass the time.
//!
//! The deliveries about one change, rule or server form a lane, and are sent one after the other. A failed delivery
//! blocks only the later deliveries of its lane. A receiver that fails several times in a row counts as failing. Single
//! deliveries then probe whether it is back.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use tokio::time::Instant;

use countersign_net::Backoff;
use countersign_store::webhooks::PendingDelivery;

/// The maximum number of deliveries in flight to one receiver.
pub const MAX_CONCURRENT_DELIVERIES: usize = 4;
/// The number of failures in a row after which the receiver counts as failing.
pub const FAILURES_UNTIL_FAILING: u32 = 3;

/// The pauses between attempts of one lane.
const BACKOFF: Backoff = Backoff { first: Duration::from_secs(1), longest: Duration::from_secs(3600) };
/// The pauses between probes of a failing receiver. They are shorter, so that its return is noticed soon.
const PROBE_BACKOFF: Backoff = Backoff { first: Duration::from_secs(1), longest: Duration::from_secs(300) };

struct Lane {
    queue: VecDeque<PendingDelivery>,
    due: Instant,
    /// The number of failures in a row of the first delivery.
    failures: u32,
    is_in_flight: bool,
}

/// The pending deliveries of one webhook, by subject.
#[derive(Default)]
pub struct Lanes {
    lanes: BTreeMap<String, Lane>,
    /// The time of the next probe of a failing receiver.
    next_probe: Option<Instant>,
    /// The end of the longest pause that the receiver has requested. No delivery in flight shortens it.
    requested_pause_end: Option<Instant>,
    /// The number of failures in a row of the receiver.
    failures: u32,
}

impl Lanes {
    /// Returns the number of deliveries that are pending or in flight.
    pub fn len(&self) -> usize {
        self.lanes.values().map(|lane| lane.queue.len()).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.lanes.is_empty()
    }

    /// Returns the lowest feed number among the deliveries.
    pub fn lowest_seq(&self) -> Option<u64> {
        self.lanes.values().flat_map(|lane| &lane.queue).filter_map(|delivery| delivery.seq).min()
    }

    /// Returns `true` if the receiver counts as failing.
    pub const fn is_failing(&self) -> bool {
        self.failures >= FAILURES_UNTIL_FAILING
    }

    /// Inserts deliveries like [`Lanes::push`].
    pub fn extend(&mut self, all: impl IntoIterator<Item = PendingDelivery>) {
        let now = Instant::now();
        all.into_iter().for_each(|delivery| self.push(delivery, now));
    }

    /// Inserts a delivery in the order of its lane, unless it is already present. If it is present with an earlier time, somebody
    /// has requested a retry at another node, so all deliveries become due.
    pub fn push(&mut self, delivery: PendingDelivery, now: Instant) {
        let lane = self.lanes.entry(delivery.subject.clone()).or_insert_with(|| Lane {
            queue: VecDeque::new(),
            due: now,
            failures: 0,
            is_in_flight: false,
        });
        if let Some(known) = lane.queue.iter_mut().find(|other| other.id == delivery.id) {
            if known.since < delivery.since {
                known.since = delivery.since;
                self.make_all_due(now);
            }
            return;
        }
        // The delivery in flight stays first.
        let from = usize::from(lane.is_in_flight);
        let at = lane.queue.iter().skip(from).position(|other| other.id > delivery.id);
        lane.queue.insert(at.map_or(lane.queue.len(), |at| at + from), delivery);
    }

    /// Returns the next delivery that may be sent now, and marks its lane as in flight.
    pub fn take_next(&mut self, now: Instant) -> Option<PendingDelivery> {
        if self.paused_until().is_some_and(|pause| pause > now) || self.free_slots() == 0 {
            return None;
        }
        let due = self.lanes.values_mut().filter(|lane| !lane.is_in_flight && lane.due <= now);
        // Lanes with fewer failures go first, so that one undeliverable event does not block the receiver.
        let lane = due.min_by_key(|lane| (lane.failures, lane.queue.front().map(|delivery| delivery.id)))?;
        let first = lane.queue.front()?.clone();
        lane.is_in_flight = true;
        Some(first)
    }

    /// Returns the time before which no delivery is sent.
    fn paused_until(&self) -> Option<Instant> {
        self.next_probe.max(self.requested_pause_end)
    }

    fn free_slots(&self) -> usize {
        let max_in_flight = if self.is_failing() { 1 } else { MAX_CONCURRENT_DELIVERIES };
        max_in_flight.saturating_sub(self.lanes.values().filter(|lane| lane.is_in_flight).count())
    }

    /// Returns the time at which [`Lanes::take_next`] will return a delivery if nothing else happens.
    pub fn next_due(&self) -> Option<Instant> {
        if self.free_slots() == 0 {
            return None;
        }
        let due = self.lanes.values().filter(|lane| !lane.is_in_flight).map(|lane| lane.due).min()?;
        Some(self.paused_until().map_or(due, |pause| pause.max(due)))
    }

    /// Records a successful delivery. Returns `true` if the receiver counted as failing until now.
    pub fn record_delivered(&mut self, subject: &str, now: Instant) -> bool {
        self.remove_first(subject, now);
        let was_failing = self.is_failing();
        self.failures = 0;
        self.next_probe = None;
        if was_failing {
            self.make_lanes_due(now);
        }
        was_failing
    }

    /// Removes the first delivery of a lane, such as one that will not be tried again. It does not count as a success of the
    /// receiver.
    pub fn remove_first(&mut self, subject: &str, now: Instant) {
        if let Some(lane) = self.lanes.get_mut(subject) {
            lane.queue.pop_front();
            (lane.is_in_flight, lane.failures, lane.due) = (false, 0, now);
            if lane.queue.is_empty() {
                self.lanes.remove(subject);
            }
        }
    }

    /// Records a failed delivery, which stays the first in its lane. `requested_pause` is the pause that the receiver
    /// requests. `jitter` selects a pause between half (0) and all (255) of the backoff. Returns `true` if the receiver
    /// counts as failing from now on.
    pub fn record_failure(
        &mut self,
        subject: &str,
        requested_pause: Option<Duration>,
        jitter: u8,
        now: Instant,
    ) -> bool {
        self.failures = self.failures.saturating_add(1);
        let failed_probes = self.failures.saturating_sub(FAILURES_UNTIL_FAILING);
        self.next_probe = self.is_failing().then(|| now + PROBE_BACKOFF.pause_with_jitter(failed_probes, jitter));
        let requested_end = requested_pause.map(|pause| now + pause.min(BACKOFF.longest));
        self.requested_pause_end = self.requested_pause_end.max(requested_end);
        if let Some(lane) = self.lanes.get_mut(subject) {
            lane.is_in_flight = false;
            lane.due = now + BACKOFF.pause_with_jitter(lane.failures, jitter);
            lane.failures = lane.failures.saturating_add(1);
            lane.queue.iter_mut().take(1).for_each(|first| first.attempts = first.attempts.saturating_add(1));
        }
        self.failures == FAILURES_UNTIL_FAILING
    }

    /// Makes all pending deliveries due at once, even during a pause that the receiver requested.
    pub fn make_all_due(&mut self, now: Instant) {
        (self.next_probe, self.requested_pause_end) = (None, None);
        self.make_lanes_due(now);
    }

    fn make_lanes_due(&mut self, now: Instant) {
        for lane in self.lanes.values_mut() {
            lane.due = now;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::pending_delivery;

    fn lanes_with(deliveries: &[(u64, &str)], now: Instant) -> Lanes {
        let mut lanes = Lanes::default();
        deliveries.iter().for_each(|(seq, change)| lanes.push(pending_delivery(*seq, change), now));
        lanes
    }

    fn take_ids(lanes: &mut Lanes, now: Instant) -> Vec<u64> {
        std::iter::from_fn(|| lanes.take_next(now)).map(|delivery| delivery.id).collect()
    }

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn deliveries_are_ordered_per_change_and_limited() {
        let now = Instant::now();
        let mut all = lanes_with(&[(3, "b"), (1, "a"), (2, "a"), (4, "c"), (5, "d"), (6, "e")], now);
        assert_eq!((all.len(), all.lowest_seq()), (6, Some(1)));
        assert_eq!(take_ids(&mut all, now), [1, 3, 4, 5], "2 waits for 1, and 6 for a free slot");
        assert_eq!(all.next_due(), None);
        assert!(!all.record_delivered("a", now));
        assert_eq!(take_ids(&mut all, now), [2]);
        // A requeued delivery comes before later ones, but after the one in flight.
        all.push(pending_delivery(1, "a"), now);
        all.push(pending_delivery(1, "a"), now);
        all.record_delivered("a", now);
        assert_eq!(take_ids(&mut all, now), [1]);
    }

    #[test]
    fn failure_holds_back_only_its_change() {
        let now = Instant::now();
        let mut all = lanes_with(&[(1, "a"), (2, "a"), (3, "b"), (4, "b")], now);
        assert_eq!(take_ids(&mut all, now), [1, 3]);
        assert!(!all.record_failure("a", None, 255, now));
        all.record_delivered("b", now);
        assert_eq!(take_ids(&mut all, now), [4]);
        assert_eq!(all.next_due(), Some(now + SECOND));
        assert!(take_ids(&mut all, now + SECOND / 2).is_empty());
        assert_eq!(take_ids(&mut all, now + SECOND), [1]);
        all.record_failure("a", None, 255, now);
        assert_eq!(all.next_due(), Some(now + 2 * SECOND), "the second pause is twice as long");
        all.remove_first("a", now);
        assert_eq!(take_ids(&mut all, now), [2]);
    }

    #[test]
    fn absent_receiver_is_probed_by_one_delivery() {
        let mut now = Instant::now();
        let mut all = lanes_with(&[(1, "a"), (2, "b"), (3, "c"), (4, "d"), (5, "e")], now);
        assert_eq!(take_ids(&mut all, now).len(), 4);
        let failing: Vec<bool> =
            ["a", "b", "c", "d"].iter().map(|change| all.record_failure(change, None, 255, now)).collect();
        assert_eq!(failing, [false, false, true, false], "only the third failure reports the receiver as failing");
        assert!(take_ids(&mut all, now).is_empty());
        now += 2 * SECOND;
        assert_eq!(take_ids(&mut all, now), [5], "the delivery that has not failed yet goes first");
        all.record_failure("e", None, 255, now);
        for _ in 0..20 {
            let next = all.next_due().unwrap();
            assert!(next - now <= PROBE_BACKOFF.longest);
            now = next;
            let [id] = take_ids(&mut all, now)[..] else { panic!("one at a time") };
            let change = ["a", "b", "c", "d", "e"][usize::try_from(id - 1).unwrap()];
            assert!(!all.record_failure(change, None, 255, now));
        }
        now = all.next_due().unwrap();
        let change = all.take_next(now).unwrap().subject;
        assert!(all.record_delivered(&change, now), "the receiver is back");
        assert_eq!(take_ids(&mut all, now).len(), 4, "all lanes are due again");
    }

    #[test]
    fn retry_after_pauses_deliveries() {
        let now = Instant::now();
        let mut all = lanes_with(&[(1, "a"), (2, "b")], now);
        all.take_next(now).unwrap();
        all.record_failure("a", Some(30 * SECOND), 0, now);
        assert_eq!((take_ids(&mut all, now + 29 * SECOND), all.next_due()), (vec![], Some(now + 30 * SECOND)));
        assert_eq!(take_ids(&mut all, now + 30 * SECOND), [2, 1]);
        all.record_failure("b", Some(BACKOFF.longest * 9), 0, now);
        assert!(all.paused_until().unwrap() <= now + BACKOFF.longest);
        all.make_all_due(now);
        assert_eq!(take_ids(&mut all, now), [2]);
    }

    #[test]
    fn retry_at_another_node_makes_deliveries_due() {
        let now = Instant::now();
        let mut all = lanes_with(&[(1, "a"), (2, "b")], now);
        all.take_next(now).unwrap();
        all.record_failure("a", Some(30 * SECOND), 0, now);
        all.extend([pending_delivery(1, "a"), pending_delivery(2, "b")]);
        assert!(take_ids(&mut all, now).is_empty());
        let since = jiff::Timestamp::from_second(1).unwrap();
        all.extend([PendingDelivery { since, ..pending_delivery(1, "a") }]);
        assert_eq!(take_ids(&mut all, Instant::now()), [2, 1]);
        assert_eq!(all.lanes["a"].queue[0].since, since);
    }

    #[test]
    fn requested_pause_outlasts_deliveries_in_flight() {
        let now = Instant::now();
        let mut all = lanes_with(&[(1, "a"), (2, "b"), (3, "b"), (4, "c"), (5, "c")], now);
        assert_eq!(take_ids(&mut all, now), [1, 2, 4]);
        all.record_failure("a", Some(60 * SECOND), 0, now);
        all.record_delivered("b", now);
        all.record_failure("c", None, 0, now);
        assert_eq!((take_ids(&mut all, now + 59 * SECOND), all.next_due()), (vec![], Some(now + 60 * SECOND)));
        assert_eq!(take_ids(&mut all, now + 60 * SECOND), [3, 1, 4]);
    }

    #[test]
    fn receiver_that_is_back_keeps_its_requested_pause() {
        let now = Instant::now();
        let mut all = lanes_with(&[(1, "a"), (2, "b"), (3, "c"), (4, "d")], now);
        assert_eq!(take_ids(&mut all, now).len(), 4);
        for change in ["a", "b", "c"] {
            all.record_failure(change, Some(60 * SECOND), 0, now);
        }
        assert!(all.record_delivered("d", now));
        assert!(take_ids(&mut all, now + 59 * SECOND).is_empty());
        assert_eq!(take_ids(&mut all, now + 60 * SECOND).len(), 3);
    }
}
