//! The SSE streams of a handshake-era HTTP session. They are numbered logs that a client can resume with
//! `Last-Event-ID` (2025-11-25/basic/transports, "Resumability and Redelivery").
//!
//! Stream 0 is the GET stream; every POST that streams gets its own number. All logs of a session share one limit, and
//! events beyond it cannot be replayed.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::bounds::memory::MemoryShare;

/// The number of the GET stream.
pub const GET_STREAM: u32 = 0;

/// An event id in its wire form `<stream>-<event>`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventId {
    pub stream: u32,
    pub event: u64,
}

impl EventId {
    /// Parses `Last-Event-ID`. Returns `None` for a text that is not of this form.
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

/// The result of reading a stream after the last event that the reader has got.
#[derive(Debug, PartialEq, Eq)]
pub enum ReadOutcome {
    Events(Vec<(u64, Bytes)>),
    /// There is no new event. The reader should wait for the watch to change.
    Wait,
    /// The stream is finished and completely read, or it is unknown.
    End,
    /// Another connection reads this stream now.
    Superseded,
}

/// The events of one stream.
struct StreamLog {
    /// The events that can be replayed, with their numbers.
    events: VecDeque<(u64, Bytes)>,
    /// The number of the next event.
    next: u64,
    is_finished: bool,
    /// The number of the last event that a reader got.
    last_read: u64,
    /// The number of the reader that was attached last. Earlier readers are superseded.
    reader: u64,
    changed: watch::Sender<()>,
}

impl StreamLog {
    fn new() -> Self {
        // Event 0 is the priming event, which carries no data.
        Self {
            events: VecDeque::new(),
            next: 1,
            is_finished: false,
            last_read: 0,
            reader: 0,
            changed: watch::Sender::new(()),
        }
    }

    /// Returns `true` if no client waits for the log's events, so that they may be dropped for other events.
    fn is_spent(&self) -> bool {
        self.is_finished && (self.last_read + 1 >= self.next || self.changed.receiver_count() == 0)
    }
}

#[derive(Default)]
struct State {
    logs: BTreeMap<u32, StreamLog>,
    last_number: u32,
    /// The number of events in all logs.
    events: usize,
    /// The number of bytes of these events.
    bytes: usize,
    /// The memory of the principal that the events take.
    share: Option<MemoryShare>,
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
    /// Creates the streams with limits on the events and bytes of all streams together.
    #[must_use]
    pub fn new(max_events: usize, max_bytes: usize) -> Self {
        let mut state = State::default();
        state.logs.insert(GET_STREAM, StreamLog::new());
        Self { max_events, max_bytes, state: Mutex::new(state) }
    }

    /// Creates streams like [`Self::new`], whose events count as memory of a principal.
    #[must_use]
    pub fn with_share(max_events: usize, max_bytes: usize, share: MemoryShare) -> Self {
        let streams = Self::new(max_events, max_bytes);
        streams.state.lock().share = Some(share);
        streams
    }

    /// Opens a stream for one POST.
    pub fn open(&self) -> u32 {
        let mut state = self.state.lock();
        state.last_number += 1;
        let number = state.last_number;
        state.logs.insert(number, StreamLog::new());
        number
    }

    /// Appends a message. One that comes after the answer of its request is appended to the stream of the GET.
    pub fn push(&self, stream: u32, message: Bytes) {
        let mut state = self.state.lock();
        let is_open = state.logs.get(&stream).is_some_and(|log| !log.is_finished);
        self.append(&mut state, if is_open { stream } else { GET_STREAM }, message);
    }

    fn append(&self, state: &mut State, stream: u32, message: Bytes) {
        let size = message.len();
        let Some(log) = state.logs.get_mut(&stream) else { return };
        log.events.push_back((log.next, message));
        log.next += 1;
        log.changed.send_replace(());
        state.events += 1;
        state.bytes += size;
        self.trim(state, stream);
    }

    /// Marks the stream as finished. It is kept for clients that resume it.
    pub fn finish(&self, stream: u32) {
        if let Some(log) = self.state.lock().logs.get_mut(&stream) {
            log.is_finished = true;
            log.changed.send_replace(());
        }
    }

    /// Removes a stream that was answered without SSE.
    pub fn forget(&self, stream: u32) {
        self.state.lock().remove(stream);
    }

    /// Returns `true` if a connection reads one of the streams.
    pub fn is_read(&self) -> bool {
        self.state.lock().logs.values().any(|log| log.changed.receiver_count() > 0)
    }

    /// Returns the number of a stream's newest event.
    pub fn newest(&self, stream: u32) -> Option<u64> {
        self.state.lock().logs.get(&stream).map(|log| log.next - 1)
    }

    /// Returns `true` if the stream is finished and has no event after event `last`.
    pub fn has_ended_with(&self, stream: u32, last: u64) -> bool {
        self.state.lock().logs.get(&stream).is_some_and(|log| log.is_finished && last + 1 >= log.next)
    }

    /// Keeps the events of a finished stream from being dropped while the receiver exists.
    pub fn hold(&self, stream: u32) -> Option<watch::Receiver<()>> {
        self.state.lock().logs.get(&stream).map(|log| log.changed.subscribe())
    }

    /// Starts reading a stream, which supersedes its previous reader. Returns the reader's number, a watch that changes
    /// with the stream, and the number of the newest event.
    pub fn attach(&self, stream: u32) -> Option<(u64, watch::Receiver<()>, u64)> {
        let mut state = self.state.lock();
        let log = state.logs.get_mut(&stream)?;
        log.reader += 1;
        log.changed.send_replace(());
        let mut watch = log.changed.subscribe();
        watch.mark_unchanged();
        Some((log.reader, watch, log.next - 1))
    }

    /// Returns the events after event `after`, if `reader` still is the reader of the stream.
    pub fn read(&self, stream: u32, reader: u64, after: u64) -> ReadOutcome {
        let mut state = self.state.lock();
        let Some(log) = state.logs.get_mut(&stream) else { return ReadOutcome::End };
        if log.reader != reader {
            return ReadOutcome::Superseded;
        }
        log.last_read = log.next - 1;
        let events: Vec<_> = log.events.iter().filter(|(n, _)| *n > after).cloned().collect();
        match (events.is_empty(), log.is_finished) {
            (false, _) => ReadOutcome::Events(events),
            (true, true) => {
                // The reader has taken all events, so they are dropped if there is no room for them.
                self.trim(&mut state, stream);
                ReadOutcome::End
            }
            (true, false) => ReadOutcome::Wait,
        }
    }

    /// Returns `true` if the stream has no event yet and is not finished.
    pub fn is_untouched(&self, stream: u32) -> bool {
        self.state.lock().logs.get(&stream).is_some_and(|log| !log.is_finished && log.next == 1)
    }

    /// Appends the last message and finishes the stream. Its reader sees both at once.
    pub fn push_last(&self, stream: u32, message: Option<Bytes>) {
        let Some(message) = message else { return self.finish(stream) };
        let mut state = self.state.lock();
        if let Some(log) = state.logs.get_mut(&stream) {
            log.is_finished = true;
        }
        self.append(&mut state, stream, message);
    }

    /// Returns the only event of a finished stream, which can then be answered as plain JSON.
    pub fn sole_answer(&self, stream: u32) -> Option<Bytes> {
        let state = self.state.lock();
        let log = state.logs.get(&stream)?;
        match (&log.events.front(), log.is_finished, log.next) {
            (Some((1, message)), true, 2) => Some(message.clone()),
            _ => None,
        }
    }

    /// Returns `true` if events must be dropped. A single event may exceed the limit of bytes, so that a large answer reaches
    /// its client.
    fn exceeds_limits(&self, state: &mut State) -> bool {
        let (events, bytes) = (state.events, state.bytes);
        events > self.max_events
            || (events > 1 && bytes > self.max_bytes)
            || state.share.as_mut().is_some_and(|share| !share.cover_replay(bytes))
    }

    /// Drops the oldest finished streams first, then the oldest events of the stream with the most events. An
    /// answer that is being delivered is never dropped.
    fn trim(&self, state: &mut State, current: u32) {
        while self.exceeds_limits(state) {
            // The current stream is removed only if its event is the only one and nobody waits for it.
            let is_removable = |number: u32| number != current || state.events <= 1;
            let finished = state.logs.iter().find(|(n, log)| is_removable(**n) && log.is_spent()).map(|(n, _)| *n);
            let longest = || {
                let droppable =
                    state.logs.iter().filter(|(_, log)| !log.events.is_empty() && (!log.is_finished || log.is_spent()));
                droppable.max_by_key(|(_, log)| log.events.len()).map(|(n, _)| *n)
            };
            if let Some(victim) = finished {
                state.remove(victim);
                continue;
            }
            if state.events <= 1 {
                return;
            }
            // If nothing can be dropped, all events are answers that are being delivered. The limit on requests in flight
            // bounds their number.
            let Some(log) = longest().and_then(|victim| state.logs.get_mut(&victim)) else { return };
            let Some((_, dropped)) = log.events.pop_front() else { return };
            state.events -= 1;
            state.bytes -= dropped.len();
        }
        // Finished streams without events would accumulate otherwise.
        while state.logs.len() > self.max_events.max(2) {
            let Some(number) = state.logs.iter().find(|(_, log)| log.is_spent()).map(|(n, _)| *n) else { break };
            state.remove(number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bounds::memory::MemoryBudget;

    fn bytes(text: &'static str) -> Bytes {
        Bytes::from_static(text.as_bytes())
    }

    #[test]
    fn message_after_the_answer_goes_to_stream_of_get() {
        let streams = Streams::new(10, 1000);
        let (answered, forgotten) = (streams.open(), streams.open());
        streams.push_last(answered, Some(bytes("answer")));
        streams.forget(forgotten);
        let (reader, ..) = streams.attach(GET_STREAM).unwrap();
        for (stream, message) in [(answered, "late"), (forgotten, "later")] {
            streams.push(stream, bytes(message));
        }
        let late = vec![(1, bytes("late")), (2, bytes("later"))];
        assert_eq!(streams.read(GET_STREAM, reader, 0), ReadOutcome::Events(late));
        assert_eq!(streams.newest(answered), Some(1));
    }

    #[test]
    fn event_id_round_trips_and_garbage_is_refused() {
        let id = EventId { stream: 3, event: 17 };
        assert_eq!(EventId::parse(&id.to_string()), Some(id));
        for bad in ["", "3", "-", "a-1", "1-b", "1-2-3", "99999999999-1"] {
            assert_eq!(EventId::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn resumed_reader_gets_only_later_events() {
        let streams = Streams::new(10, 1000);
        let n = streams.open();
        streams.push(n, bytes("one"));
        streams.push(n, bytes("two"));
        streams.finish(n);
        let (reader, _, _) = streams.attach(n).unwrap();
        assert_eq!(streams.read(n, reader, 1), ReadOutcome::Events(vec![(2, bytes("two"))]));
        assert_eq!(streams.read(n, reader, 2), ReadOutcome::End);
    }

    #[test]
    fn stream_is_untouched_until_first_event_or_end() {
        let streams = Streams::new(10, 1000);
        let (first, second) = (streams.open(), streams.open());
        assert!(streams.is_untouched(first) && streams.is_untouched(second));
        streams.push(first, bytes("one"));
        streams.finish(second);
        assert!(!streams.is_untouched(first) && !streams.is_untouched(second));
        assert!(!streams.is_untouched(second + 1), "the stream does not exist");
    }

    #[test]
    fn second_reader_supersedes_first() {
        let streams = Streams::new(10, 1000);
        let (first, _, _) = streams.attach(GET_STREAM).unwrap();
        let (second, _, _) = streams.attach(GET_STREAM).unwrap();
        assert_eq!(streams.read(GET_STREAM, first, 0), ReadOutcome::Superseded);
        assert_eq!(streams.read(GET_STREAM, second, 0), ReadOutcome::Wait);
    }

    #[test]
    fn finished_streams_are_dropped_first_at_limit() {
        let streams = Streams::new(3, 1000);
        let finished_stream = streams.open();
        streams.push(finished_stream, bytes("old"));
        streams.finish(finished_stream);
        for _ in 0..5 {
            streams.push(GET_STREAM, bytes("x"));
        }
        assert!(streams.attach(finished_stream).is_none());
        let (reader, _, newest) = streams.attach(GET_STREAM).unwrap();
        assert_eq!(newest, 5);
        assert_eq!(
            streams.read(GET_STREAM, reader, 0),
            ReadOutcome::Events(vec![(3, bytes("x")), (4, bytes("x")), (5, bytes("x"))])
        );
    }

    #[test]
    fn undelivered_answer_is_not_dropped_for_another() {
        let streams = Streams::new(10, 100);
        let (first, second) = (streams.open(), streams.open());
        let hold = streams.hold(first).unwrap();
        streams.push_last(first, Some(Bytes::from(vec![b'a'; 90])));
        streams.push_last(second, Some(Bytes::from(vec![b'b'; 90])));
        streams.push(GET_STREAM, bytes("x"));
        let (reader, _watch, _) = streams.attach(first).unwrap();
        drop(hold);
        assert!(matches!(streams.read(first, reader, 0), ReadOutcome::Events(events) if events[0].1.len() == 90));
        // An answer that was read may be dropped.
        streams.push(GET_STREAM, Bytes::from(vec![b'c'; 90]));
        assert!(streams.attach(first).is_none());
    }

    #[test]
    fn single_answer_counts_as_memory_until_another_event() {
        let memory = MemoryBudget::new(1 << 20, 1 << 20);
        let streams = Streams::with_share(10, 100, memory.share("ann"));
        let n = streams.open();
        let (reader, _watch, _) = streams.attach(n).unwrap();
        streams.push_last(n, Some(Bytes::from(vec![b'a'; 40 << 10])));
        assert!(memory.used_by("ann") > 0);
        assert!(matches!(streams.read(n, reader, 0), ReadOutcome::Events(events) if events[0].1.len() == 40 << 10));
        assert_eq!(streams.read(n, reader, 1), ReadOutcome::End);
        // The client may not have received it, although its connection has taken it.
        assert!(streams.attach(n).is_some());
        streams.push(GET_STREAM, bytes("x"));
        assert!(streams.attach(n).is_none(), "it exceeds the limit");
        assert!(memory.used_by("ann") <= 16 << 10);
    }

    #[test]
    fn single_answer_without_room_or_reader_is_dropped() {
        let memory = MemoryBudget::new(2, 2);
        let streams = Streams::with_share(10, 100, memory.share("ann"));
        let (awaited, abandoned) = (streams.open(), streams.open());
        let hold = streams.hold(awaited);
        streams.push_last(awaited, Some(bytes("a")));
        assert!(streams.attach(awaited).is_some());
        drop(hold);
        streams.push_last(abandoned, Some(bytes("b")));
        assert!(streams.attach(awaited).is_none() && streams.attach(abandoned).is_none());
    }

    #[test]
    fn sole_answer_exists_only_for_finished_stream_with_one_event() {
        let streams = Streams::new(10, 1000);
        let n = streams.open();
        streams.push(n, bytes("answer"));
        assert_eq!(streams.sole_answer(n), None);
        streams.finish(n);
        assert_eq!(streams.sole_answer(n), Some(bytes("answer")));
        streams.forget(n);
        assert!(streams.attach(n).is_none());
    }
}
