//! Who is next: the order of one webhook's deliveries. Pure; the time is passed in.
//!
//! What is about one change (or rule, or server) stands in a lane and goes out one after the other: a delivery that
//! fails holds back the later ones of its change, and of no other. A receiver that fails several times in a row, whatever
//! it was sent, is taken to be away: then one delivery at a time tries whether it is back.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use tokio::time::Instant;

use countersign_net::Backoff;
use countersign_store::webhooks::Waiting;

/// Deliveries under way at a time.
pub const CONCURRENCY: usize = 4;
/// Failures in a row after which the receiver is away.
pub const AWAY: u32 = 3;

/// The pauses of one change after failures.
const BACKOFF: Backoff = Backoff { first: Duration::from_secs(1), longest: Duration::from_secs(3600) };
/// The pauses of a receiver that is away: its return is noticed sooner.
const BACKOFF_AWAY: Backoff = Backoff { first: Duration::from_secs(1), longest: Duration::from_secs(300) };

struct Lane {
    queue: VecDeque<Waiting>,
    due: Instant,
    /// Of its first delivery, in a row.
    failures: u32,
    busy: bool,
}

/// See the module's page.
#[derive(Default)]
pub struct Lanes {
    lanes: BTreeMap<String, Lane>,
    /// Nothing goes out before.
    hold: Option<Instant>,
    /// Of the receiver, in a row.
    failures: u32,
}

impl Lanes {
    /// What is waiting or under way.
    #[must_use]
    pub fn len(&self) -> usize {
        self.lanes.values().map(|lane| lane.queue.len()).sum()
    }

    /// Whether this delivery waits or is under way.
    #[must_use]
    pub fn has(&self, id: u64) -> bool {
        self.lanes.values().flat_map(|lane| &lane.queue).any(|waiting| waiting.id == id)
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.lanes.is_empty()
    }

    /// The oldest number in the feed among them.
    #[must_use]
    pub fn first(&self) -> Option<u64> {
        self.lanes.values().flat_map(|lane| &lane.queue).filter_map(|waiting| waiting.seq).min()
    }

    /// Whether the receiver is away.
    #[must_use]
    pub const fn away(&self) -> bool {
        self.failures >= AWAY
    }

    /// Adds one at its place among those of its change; one that is there already is not added again.
    pub fn push(&mut self, waiting: Waiting, now: Instant) {
        let lane = self.lanes.entry(waiting.subject.clone()).or_insert_with(|| Lane {
            queue: VecDeque::new(),
            due: now,
            failures: 0,
            busy: false,
        });
        if lane.queue.iter().any(|other| other.id == waiting.id) {
            return;
        }
        // What is under way is overtaken by nothing.
        let from = usize::from(lane.busy);
        let at = lane.queue.iter().skip(from).position(|other| other.id > waiting.id);
        lane.queue.insert(at.map_or(lane.queue.len(), |at| at + from), waiting);
    }

    /// The next one that may go out now; it counts as under way.
    pub fn take(&mut self, now: Instant) -> Option<Waiting> {
        if self.hold.is_some_and(|hold| hold > now) || self.free() == 0 {
            return None;
        }
        let due = self.lanes.values_mut().filter(|lane| !lane.busy && lane.due <= now);
        // Those that failed less often first, so that one that never gets through does not stand for the receiver.
        let lane = due.min_by_key(|lane| (lane.failures, lane.queue.front().map(|waiting| waiting.id)))?;
        let first = lane.queue.front()?.clone();
        lane.busy = true;
        Some(first)
    }

    fn free(&self) -> usize {
        let at_most = if self.away() { 1 } else { CONCURRENCY };
        at_most.saturating_sub(self.lanes.values().filter(|lane| lane.busy).count())
    }

    /// When [`Lanes::take`] has something, if nothing happens before.
    #[must_use]
    pub fn next(&self) -> Option<Instant> {
        if self.free() == 0 {
            return None;
        }
        let due = self.lanes.values().filter(|lane| !lane.busy).map(|lane| lane.due).min()?;
        Some(self.hold.map_or(due, |hold| hold.max(due)))
    }

    /// It arrived. Answers whether the receiver was away until now.
    pub fn delivered(&mut self, subject: &str, now: Instant) -> bool {
        self.pop(subject, now);
        let back = self.away();
        self.failures = 0;
        self.hold = None;
        if back {
            self.hurry(now);
        }
        back
    }

    /// It will not be tried again; the receiver has said nothing for itself by that.
    pub fn given_up(&mut self, subject: &str, now: Instant) {
        self.pop(subject, now);
    }

    fn pop(&mut self, subject: &str, now: Instant) {
        if let Some(lane) = self.lanes.get_mut(subject) {
            lane.queue.pop_front();
            (lane.busy, lane.failures, lane.due) = (false, 0, now);
            if lane.queue.is_empty() {
                self.lanes.remove(subject);
            }
        }
    }

    /// It failed and stays first of its change. `asked` is how long the receiver wants to be left alone; `share` is
    /// from 0 to 255, how much of the second half of a pause. Answers whether the receiver is away from now on.
    pub fn failed(&mut self, subject: &str, asked: Option<Duration>, share: u8, now: Instant) -> bool {
        self.count();
        let away = self.failures.saturating_sub(AWAY);
        let hold = self.away().then(|| BACKOFF_AWAY.pause_with(away, share));
        let hold = hold.max(asked.map(|asked| asked.min(BACKOFF.longest)));
        self.hold = hold.map(|hold| now + hold);
        if let Some(lane) = self.lanes.get_mut(subject) {
            lane.busy = false;
            lane.due = now + BACKOFF.pause_with(lane.failures, share);
            lane.failures = lane.failures.saturating_add(1);
        }
        self.failures == AWAY
    }

    /// How often the first one of a change was tried.
    pub fn tried(&mut self, subject: &str, attempts: u32) {
        if let Some(first) = self.lanes.get_mut(subject).and_then(|lane| lane.queue.front_mut()) {
            first.attempts = attempts;
        }
    }

    /// The receiver did not take something, whatever becomes of that.
    fn count(&mut self) {
        self.failures = self.failures.saturating_add(1);
    }

    /// Everything that waits may go out at once.
    pub fn hurry(&mut self, now: Instant) {
        self.hold = None;
        for lane in self.lanes.values_mut() {
            lane.due = now;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting(id: u64, subject: &str) -> Waiting {
        Waiting {
            id,
            key: id.to_string(),
            seq: Some(id),
            kind: "change.created".into(),
            subject: subject.into(),
            event: String::new(),
            attempts: 0,
            since: jiff::Timestamp::UNIX_EPOCH,
        }
    }

    fn lanes(of: &[(u64, &str)], now: Instant) -> Lanes {
        let mut lanes = Lanes::default();
        of.iter().for_each(|(seq, change)| lanes.push(waiting(*seq, change), now));
        lanes
    }

    fn taken(lanes: &mut Lanes, now: Instant) -> Vec<u64> {
        std::iter::from_fn(|| lanes.take(now)).map(|waiting| waiting.id).collect()
    }

    const S: Duration = Duration::from_secs(1);

    #[test]
    fn one_after_the_other_for_each_change_and_some_at_a_time() {
        let now = Instant::now();
        let mut all = lanes(&[(3, "b"), (1, "a"), (2, "a"), (4, "c"), (5, "d"), (6, "e")], now);
        assert_eq!((all.len(), all.first()), (6, Some(1)));
        assert_eq!(taken(&mut all, now), [1, 3, 4, 5], "2 waits for 1, and 6 for a place");
        assert_eq!(all.next(), None);
        assert!(!all.delivered("a", now));
        assert_eq!(taken(&mut all, now), [2]);
        // What is put back comes before what is later, but behind what is under way.
        all.push(waiting(1, "a"), now);
        all.push(waiting(1, "a"), now);
        all.delivered("a", now);
        assert_eq!(taken(&mut all, now), [1]);
    }

    #[test]
    fn what_fails_holds_back_its_change_alone() {
        let now = Instant::now();
        let mut all = lanes(&[(1, "a"), (2, "a"), (3, "b"), (4, "b")], now);
        assert_eq!(taken(&mut all, now), [1, 3]);
        assert!(!all.failed("a", None, 255, now));
        all.delivered("b", now);
        assert_eq!(taken(&mut all, now), [4]);
        assert_eq!(all.next(), Some(now + S));
        assert!(taken(&mut all, now + S / 2).is_empty());
        assert_eq!(taken(&mut all, now + S), [1]);
        all.failed("a", None, 255, now);
        assert_eq!(all.next(), Some(now + 2 * S), "twice as long");
        all.given_up("a", now);
        assert_eq!(taken(&mut all, now), [2]);
    }

    #[test]
    fn a_receiver_that_is_away_is_asked_by_one_at_a_time_until_it_is_back() {
        let mut now = Instant::now();
        let mut all = lanes(&[(1, "a"), (2, "b"), (3, "c"), (4, "d"), (5, "e")], now);
        assert_eq!(taken(&mut all, now).len(), 4);
        let away: Vec<bool> = ["a", "b", "c", "d"].iter().map(|change| all.failed(change, None, 255, now)).collect();
        assert_eq!(away, [false, false, true, false], "said once");
        assert!(taken(&mut all, now).is_empty());
        now += 2 * S;
        assert_eq!(taken(&mut all, now), [5], "the one that has not failed yet");
        all.failed("e", None, 255, now);
        for _ in 0..20 {
            let next = all.next().unwrap();
            assert!(next - now <= BACKOFF_AWAY.longest);
            now = next;
            let [one] = taken(&mut all, now)[..] else { panic!("one at a time") };
            let change = ["a", "b", "c", "d", "e"][usize::try_from(one - 1).unwrap()];
            assert!(!all.failed(change, None, 255, now));
        }
        now = all.next().unwrap();
        let change = all.take(now).unwrap().subject;
        assert!(all.delivered(&change, now), "it is back");
        assert_eq!(taken(&mut all, now).len(), 4, "nobody waits any longer");
    }

    #[test]
    fn a_receiver_that_asks_for_a_pause_gets_it() {
        let now = Instant::now();
        let mut all = lanes(&[(1, "a"), (2, "b")], now);
        all.take(now).unwrap();
        all.failed("a", Some(30 * S), 0, now);
        assert_eq!((taken(&mut all, now + 29 * S), all.next()), (vec![], Some(now + 30 * S)));
        assert_eq!(taken(&mut all, now + 30 * S), [2, 1]);
        all.failed("b", Some(BACKOFF.longest * 9), 0, now);
        assert!(all.hold.unwrap() <= now + BACKOFF.longest);
        all.hurry(now);
        assert_eq!(taken(&mut all, now), [2]);
    }
}
