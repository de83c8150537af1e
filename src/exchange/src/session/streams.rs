//! The SSE streams of a handshake-era HTTP session: numbered logs that a client can resume with `Last-Event-ID`
//! (2025-11-25/basic/transports, "Resumability and Redelivery").
//!
//! Stream 0 is the GET stream; every POST that streams gets a number of its own. All logs of a session share one
//! bound; what falls out of it cannot be replayed any more.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::bounds::memory::Share;

/// The number of the GET stream.
pub const GET_STREAM: u32 = 0;

/// An event id as it stands on the wire: `<stream>-<event>`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventId {
    pub stream: u32,
    pub event: u64,
}

impl EventId {
    /// Reads `Last-Event-ID`; `None` for anything that this gateway did not mint.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (stream, event) = text.trim().split_once('-')?;
        Some(Self { stream: stream.parse().ok()?, event: event.parse().ok()? })
    }
}

impl std::fmt::Display for EventId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}-{}", self.stream, self.event)
    }
}

/// The result of reading a stream after the last event that the reader has seen.
#[derive(Debug, PartialEq, Eq)]
pub enum Read {
    Events(Vec<(u64, Bytes)>),
    /// Nothing new; wait for the watch to change.
    Wait,
    /// The stream is complete and everything was read, or it is unknown.
    End,
    /// Another connection reads this stream now.
    Superseded,
}

struct Log {
    events: VecDeque<(u64, Bytes)>,
    next: u64,
    done: bool,
    /// The last event that a reader was given.
    seen: u64,
    reader: u64,
    changed: watch::Sender<()>,
}

impl Log {
    fn new() -> Self {
        // Event 0 is the priming event, which carries no data.
        Self { events: VecDeque::new(), next: 1, done: false, seen: 0, reader: 0, changed: watch::Sender::new(()) }
    }

    /// Nobody waits for what is still on it. An answer on its way to its client is not dropped for others' sake.
    fn is_spent(&self) -> bool {
        self.done && (self.seen + 1 >= self.next || self.changed.receiver_count() == 0)
    }
}

#[derive(Default)]
struct State {
    logs: BTreeMap<u32, Log>,
    last: u32,
    events: usize,
    bytes: usize,
    /// The memory of the principal that the events take.
    share: Option<Share>,
}

impl State {
    fn remove(&mut self, stream: u32) {
        if let Some(log) = self.logs.remove(&stream) {
            self.events -= log.events.len();
            self.bytes -= log.events.iter().map(|(_, message)| message.len()).sum::<usize>();
        }
    }
}

/// The streams of one session.
pub struct Streams {
    max_events: usize,
    max_bytes: usize,
    state: Mutex<State>,
}

impl Streams {
    /// Keeps at most so many events and bytes over all streams.
    #[must_use]
    pub fn new(max_events: usize, max_bytes: usize) -> Self {
        let mut state = State::default();
        state.logs.insert(GET_STREAM, Log::new());
        Self { max_events, max_bytes, state: Mutex::new(state) }
    }

    /// Like [`Self::new`], with events that count as memory of a principal.
    #[must_use]
    pub fn counted(max_events: usize, max_bytes: usize, share: Share) -> Self {
        let streams = Self::new(max_events, max_bytes);
        streams.state.lock().share = Some(share);
        streams
    }

    /// Opens a stream for one POST.
    pub fn open(&self) -> u32 {
        let mut state = self.state.lock();
        state.last += 1;
        let number = state.last;
        state.logs.insert(number, Log::new());
        number
    }

    /// Appends a message. Does nothing on a stream that is gone.
    pub fn push(&self, stream: u32, message: Bytes) {
        let mut state = self.state.lock();
        let size = message.len();
        let Some(log) = state.logs.get_mut(&stream) else { return };
        log.events.push_back((log.next, message));
        log.next += 1;
        log.changed.send_replace(());
        state.events += 1;
        state.bytes += size;
        self.trim(&mut state, stream);
    }

    /// No more messages will come on this stream; it stays for those who resume it.
    pub fn finish(&self, stream: u32) {
        if let Some(log) = self.state.lock().logs.get_mut(&stream) {
            log.done = true;
            log.changed.send_replace(());
        }
    }

    /// Forgets a stream that was answered without SSE.
    pub fn forget(&self, stream: u32) {
        self.state.lock().remove(stream);
    }

    /// Somebody reads one of them at the moment.
    pub fn is_read(&self) -> bool {
        self.state.lock().logs.values().any(|log| log.changed.receiver_count() > 0)
    }

    /// The number of a stream's newest event.
    pub fn newest(&self, stream: u32) -> Option<u64> {
        self.state.lock().logs.get(&stream).map(|log| log.next - 1)
    }

    /// Keeps what is on a stream from being dropped as finished until it was read.
    pub fn hold(&self, stream: u32) -> Option<watch::Receiver<()>> {
        self.state.lock().logs.get(&stream).map(|log| log.changed.subscribe())
    }

    /// Starts reading a stream; whoever read it before is superseded. Gives the reader's number, a watch that
    /// changes with the stream, and the number of the newest event.
    pub fn attach(&self, stream: u32) -> Option<(u64, watch::Receiver<()>, u64)> {
        let mut state = self.state.lock();
        let log = state.logs.get_mut(&stream)?;
        log.reader += 1;
        log.changed.send_replace(());
        let mut watch = log.changed.subscribe();
        watch.mark_unchanged();
        Some((log.reader, watch, log.next - 1))
    }

    /// Returns the events after event `after`.
    pub fn read(&self, stream: u32, reader: u64, after: u64) -> Read {
        let mut state = self.state.lock();
        let Some(log) = state.logs.get_mut(&stream) else { return Read::End };
        if log.reader != reader {
            return Read::Superseded;
        }
        log.seen = log.next - 1;
        let events: Vec<_> = log.events.iter().filter(|(n, _)| *n > after).cloned().collect();
        match (events.is_empty(), log.done) {
            (false, _) => Read::Events(events),
            (true, true) => Read::End,
            (true, false) => Read::Wait,
        }
    }

    /// Nothing has come on this stream yet, and something still will.
    pub fn is_untouched(&self, stream: u32) -> bool {
        self.state.lock().logs.get(&stream).is_some_and(|log| !log.done && log.next == 1)
    }

    /// Appends the last message and ends the stream, as one step for whoever waits.
    pub fn push_last(&self, stream: u32, message: Option<Bytes>) {
        if let Some(log) = self.state.lock().logs.get_mut(&stream) {
            log.done = true;
        }
        match message {
            Some(message) => self.push(stream, message),
            None => self.finish(stream),
        }
    }

    /// The only event of a stream that is done, if that is all there is: it can be answered as plain JSON.
    pub fn sole_answer(&self, stream: u32) -> Option<Bytes> {
        let state = self.state.lock();
        let log = state.logs.get(&stream)?;
        match (&log.events.front(), log.done, log.next) {
            (Some((1, message)), true, 2) => Some(message.clone()),
            _ => None,
        }
    }

    fn is_over(&self, state: &mut State) -> bool {
        let bytes = state.bytes;
        bytes > self.max_bytes || state.share.as_mut().is_some_and(|share| !share.cover(bytes))
    }

    /// Drops the oldest finished streams first, then the oldest events of the busiest stream that goes on.
    fn trim(&self, state: &mut State, current: u32) {
        while state.events > self.max_events || (state.events > 1 && self.is_over(state)) {
            let finished = state.logs.iter().find(|(n, log)| **n != current && log.is_spent()).map(|(n, _)| *n);
            let busiest = || {
                let open = state.logs.iter().filter(|(_, log)| !log.events.is_empty() && (!log.done || log.is_spent()));
                open.max_by_key(|(_, log)| log.events.len()).map(|(n, _)| *n)
            };
            // Else there are only answers on their way, as many as there are requests in flight.
            if let Some(victim) = finished {
                state.remove(victim);
                continue;
            }
            let Some(log) = busiest().and_then(|victim| state.logs.get_mut(&victim)) else { return };
            let Some((_, dropped)) = log.events.pop_front() else { return };
            state.events -= 1;
            state.bytes -= dropped.len();
        }
        // Streams that finished without a single event left would pile up otherwise.
        while state.logs.len() > self.max_events.max(2) {
            let Some(number) = state.logs.iter().find(|(_, log)| log.is_spent()).map(|(n, _)| *n) else { break };
            state.remove(number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn b(text: &'static str) -> Bytes {
        Bytes::from_static(text.as_bytes())
    }

    #[test]
    fn event_ids_round_trip_and_refuse_garbage() {
        let id = EventId { stream: 3, event: 17 };
        assert_eq!(EventId::parse(&id.to_string()), Some(id));
        for bad in ["", "3", "-", "a-1", "1-b", "1-2-3", "99999999999-1"] {
            assert_eq!(EventId::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn replays_only_what_came_after() {
        let streams = Streams::new(10, 1000);
        let n = streams.open();
        streams.push(n, b("one"));
        streams.push(n, b("two"));
        streams.finish(n);
        let (reader, _, _) = streams.attach(n).unwrap();
        assert_eq!(streams.read(n, reader, 1), Read::Events(vec![(2, b("two"))]));
        assert_eq!(streams.read(n, reader, 2), Read::End);
    }

    #[test]
    fn a_stream_is_untouched_until_something_came_or_it_ended() {
        let streams = Streams::new(10, 1000);
        let (one, other) = (streams.open(), streams.open());
        assert!(streams.is_untouched(one) && streams.is_untouched(other));
        streams.push(one, b("one"));
        streams.finish(other);
        assert!(!streams.is_untouched(one) && !streams.is_untouched(other));
        assert!(!streams.is_untouched(other + 1), "there is none");
    }

    #[test]
    fn a_second_reader_supersedes_the_first() {
        let streams = Streams::new(10, 1000);
        let (first, _, _) = streams.attach(GET_STREAM).unwrap();
        let (second, _, _) = streams.attach(GET_STREAM).unwrap();
        assert_eq!(streams.read(GET_STREAM, first, 0), Read::Superseded);
        assert_eq!(streams.read(GET_STREAM, second, 0), Read::Wait);
    }

    #[test]
    fn the_bound_holds_and_finished_streams_go_first() {
        let streams = Streams::new(3, 1000);
        let done = streams.open();
        streams.push(done, b("old"));
        streams.finish(done);
        for _ in 0..5 {
            streams.push(GET_STREAM, b("x"));
        }
        assert!(streams.attach(done).is_none());
        let (reader, _, newest) = streams.attach(GET_STREAM).unwrap();
        assert_eq!(newest, 5);
        assert_eq!(streams.read(GET_STREAM, reader, 0), Read::Events(vec![(3, b("x")), (4, b("x")), (5, b("x"))]));
    }

    #[test]
    fn an_answer_on_its_way_is_not_dropped_for_anothers() {
        let streams = Streams::new(10, 100);
        let (first, second) = (streams.open(), streams.open());
        let held = streams.hold(first).unwrap();
        streams.push_last(first, Some(Bytes::from(vec![b'a'; 90])));
        streams.push_last(second, Some(Bytes::from(vec![b'b'; 90])));
        streams.push(GET_STREAM, b("x"));
        let (reader, _watch, _) = streams.attach(first).unwrap();
        drop(held);
        assert!(matches!(streams.read(first, reader, 0), Read::Events(events) if events[0].1.len() == 90));
        // Once it was read it may go.
        streams.push(GET_STREAM, Bytes::from(vec![b'c'; 90]));
        assert!(streams.attach(first).is_none());
    }

    #[test]
    fn a_single_answer_needs_no_stream() {
        let streams = Streams::new(10, 1000);
        let n = streams.open();
        streams.push(n, b("answer"));
        assert_eq!(streams.sole_answer(n), None);
        streams.finish(n);
        assert_eq!(streams.sole_answer(n), Some(b("answer")));
        streams.forget(n);
        assert!(streams.attach(n).is_none());
    }
}
