//! Answers that never reached their client: for ten minutes, an equal call gets the change of the one before instead of
//! a second one.
//!
//! In memory and bounded: after a restart a repeat without an idempotency key is a new change. What is lost is what the
//! gateway knows to be lost: a call given up before its answer was there, an answer for a connection that is away.
//!
//! An answer that was written to a connection which then broke is not among them, although it may never have been read.
//! A client of one call closes its connection right after it has read the answer, one that is killed, or whose machine
//! sleeps, just goes silent, and both may well mean an equal call that they make next. To take it for a repeat would lose
//! a write without anybody noticing; to take a repeat for a write makes a twin, which is marked as one and which a person
//! decides on. Whoever cannot tell either sends an idempotency key.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use serde_json::value::RawValue;

use countersign_domain::changes::digest::PartHasher;
use countersign_exchange::{context::Exchange, related::Related, shared::Channel};
use countersign_protocol::arguments::canonical_text_hash;
use countersign_routing::ToolRoute;

/// How long a repeat is one.
const KEPT: Duration = Duration::from_secs(600);

/// Calls that are held or whose answers were lost; beyond it the oldest lost one is forgotten.
const MAX: usize = 10_000;

/// Who called what, with which arguments: a hash.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Key([u8; 32]);

/// What a call is known by when it comes again.
#[must_use]
pub fn key(exchange: &Exchange, route: &ToolRoute, arguments: &RawValue, idempotency: Option<&str>) -> Key {
    let canonical = canonical_text_hash(arguments.get());
    let parts =
        [exchange.identity.principal.name.as_str(), route.provider.name(), route.def.name.as_str(), canonical.as_str()];
    let mut hash = PartHasher::new("retry deduplication");
    for part in parts {
        hash.part(part.as_bytes());
    }
    hash.optional(idempotency);
    Key(hash.bytes())
}

/// Tells whether a call's client can still be given its answer.
pub type Reach = Box<dyn Fn() -> bool + Send>;

/// For the client of that exchange.
#[must_use]
pub fn reach(exchange: &Exchange) -> Reach {
    match &exchange.related {
        Related::Outbox(session) => {
            let session = Arc::clone(session);
            Box::new(move || match &session.channel {
                Channel::Outbox(outbox) => !outbox.is_away() && !session.ended.is_cancelled(),
                _ => true,
            })
        }
        // Its client may leave the request running.
        Related::Stream(stream) => {
            let stream = Arc::clone(stream);
            Box::new(move || stream.is_attended())
        }
        // Without its client the request itself is given up.
        Related::Queue(_) | Related::Nowhere => Box::new(|| true),
    }
}

enum State {
    Held(Reach),
    Lost(Instant),
}

struct ReviewedCall {
    key: Key,
    change: String,
    state: State,
}

/// See the module's page.
#[derive(Default)]
pub struct Lost {
    calls: Mutex<Calls>,
}

#[derive(Default)]
struct Calls {
    last: u64,
    entries: HashMap<u64, ReviewedCall>,
    of: HashMap<Key, Vec<u64>>,
}

impl Calls {
    fn insert(&mut self, entry: ReviewedCall) -> Option<u64> {
        if self.entries.len() >= MAX {
            self.make_room();
        }
        if self.entries.len() >= MAX {
            return None;
        }
        self.last += 1;
        self.of.entry(entry.key.clone()).or_default().push(self.last);
        self.entries.insert(self.last, entry);
        Some(self.last)
    }

    fn remove(&mut self, number: u64) -> Option<ReviewedCall> {
        let entry = self.entries.remove(&number)?;
        if let Some(numbers) = self.of.get_mut(&entry.key) {
            numbers.retain(|other| *other != number);
            if numbers.is_empty() {
                self.of.remove(&entry.key);
            }
        }
        Some(entry)
    }

    fn make_room(&mut self) {
        let since = |entry: &ReviewedCall| match entry.state {
            State::Lost(since) => Some(since),
            State::Held(_) => None,
        };
        let old: Vec<u64> = self
            .entries
            .iter()
            .filter(|(_, entry)| since(entry).is_some_and(|since| since.elapsed() > KEPT))
            .map(|(number, _)| *number)
            .collect();
        let oldest = self.entries.iter().filter_map(|(number, entry)| Some((since(entry)?, *number))).min();
        if old.is_empty()
            && let Some((_, number)) = oldest
        {
            self.remove(number);
        }
        for number in old {
            self.remove(number);
        }
    }
}

impl Lost {
    /// A call that waits, or is about to be answered.
    #[must_use]
    pub fn hold(self: &Arc<Self>, key: Key, change: &str, reach: Reach) -> Guard {
        let number =
            self.calls.lock().insert(ReviewedCall { key, change: change.to_owned(), state: State::Held(reach) });
        Guard { lost: Arc::clone(self), number, delivered: false }
    }

    /// The answer to a call was not taken.
    pub fn remember(&self, key: Key, change: &str) {
        self.calls.lock().insert(ReviewedCall { key, change: change.to_owned(), state: State::Lost(Instant::now()) });
    }

    /// The change of an equal call whose client is gone. Each is given once: who gets it is the one who waits now.
    #[must_use]
    pub fn take(&self, key: &Key) -> Option<String> {
        let mut calls = self.calls.lock();
        let numbers = calls.of.get(key)?.clone();
        for number in numbers {
            let (good, over) = match calls.entries.get(&number).map(|entry| &entry.state) {
                Some(State::Lost(since)) => (since.elapsed() <= KEPT, true),
                Some(State::Held(reach)) => (!reach(), false),
                None => (false, false),
            };
            if good || over {
                let entry = calls.remove(number);
                if good {
                    return entry.map(|entry| entry.change);
                }
            }
        }
        None
    }
}

/// A call that is being answered; dropped before that, its answer is lost.
pub struct Guard {
    lost: Arc<Lost>,
    number: Option<u64>,
    delivered: bool,
}

impl Guard {
    /// Its answer is on its way, if there is still somebody to take it.
    pub fn delivered(mut self) {
        self.delivered = true;
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let Some(number) = self.number else { return };
        let mut calls = self.lost.calls.lock();
        let Some(entry) = calls.entries.get_mut(&number) else { return };
        let reached = self.delivered && matches!(&entry.state, State::Held(reach) if reach());
        if reached {
            calls.remove(number);
        } else {
            entry.state = State::Lost(Instant::now());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    fn key(n: u8) -> Key {
        Key([n; 32])
    }

    #[test]
    fn a_call_that_was_given_up_is_found_once_and_an_answered_one_never() {
        let lost = Arc::new(Lost::default());
        let held = lost.hold(key(1), "chg_1", Box::new(|| true));
        assert_eq!(lost.take(&key(1)), None, "its client waits");
        drop(held);
        assert_eq!(lost.take(&key(2)), None, "another call");
        assert_eq!(lost.take(&key(1)).as_deref(), Some("chg_1"));
        assert_eq!(lost.take(&key(1)), None, "once");
        lost.hold(key(1), "chg_1", Box::new(|| true)).delivered();
        assert_eq!(lost.take(&key(1)), None);
        assert!(lost.calls.lock().entries.is_empty() && lost.calls.lock().of.is_empty());
    }

    #[test]
    fn a_client_that_went_away_without_a_word_is_replaced_by_its_repeat() {
        let lost = Arc::new(Lost::default());
        let there = Arc::new(AtomicBool::new(true));
        let reach = Arc::clone(&there);
        let held = lost.hold(key(1), "chg_1", Box::new(move || reach.load(Ordering::Relaxed)));
        there.store(false, Ordering::Relaxed);
        assert_eq!(lost.take(&key(1)).as_deref(), Some("chg_1"), "while the first one is still held");
        held.delivered();
        assert_eq!(lost.take(&key(1)), None, "the repeat has it");
        let reach = Arc::clone(&there);
        lost.hold(key(1), "chg_2", Box::new(move || reach.load(Ordering::Relaxed))).delivered();
        assert_eq!(lost.take(&key(1)).as_deref(), Some("chg_2"), "an answer for a connection that is away");
    }

    #[test]
    fn the_oldest_lost_answer_makes_room() {
        let lost = Arc::new(Lost::default());
        for n in 0..=MAX {
            lost.remember(key(u8::try_from(n % 200).unwrap_or(0)), &format!("chg_{n}"));
        }
        assert_eq!(lost.calls.lock().entries.len(), MAX);
        assert_eq!(lost.take(&key(0)).as_deref(), Some("chg_200"), "chg_0 was forgotten");
    }
}
