//! The SSE streams of a handshake-era HTTP session. They are numbered logs that a client can resume with
//! `Last-Event-ID` (2025-11-25/basic/transports, "Resumability and Redelivery").
//!
//! Stream 0 is the GET stream; every POST that streams gets its own number. All logs of a session share one limit for events that
//! are kept for a client that reconnects, and events beyond it cannot be replayed. Events that wait for a connected reader are
//! limited like the messages of an [outbox](super::outbox) instead.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::outbox::{OutboxLimits, PushError, is_dispensable};
use crate::bounds::{
    eviction,
    memory::{EXEMPT_MESSAGE_BYTES, MemoryShare, UnreadHolder, WeakHolder},
};

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
    /// There is no new event. The reader should wait for [`StreamReader::changed`].
    Wait,
    /// The stream is finished and completely read, or it is unknown.
    End,
    /// Another connection reads this stream now.
    Superseded,
}

/// A reader that was attached to a stream.
pub struct StreamReader {
    pub number: u64,
    /// Changes with the stream.
    pub changed: watch::Receiver<()>,
    /// The number of the newest event when the reader was attached.
    pub newest_event: u64,
}

/// The events of one stream.
#[derive(Default)]
struct StreamLog {
    /// The events that can be replayed, with their numbers.
    events: VecDeque<(u64, Bytes)>,
    /// The number of the next event.
    next: u64,
    is_finished: bool,
    /// The number of the last event that a reader got.
    last_read: u64,
    /// The bytes of the events after [`Self::last_read`].
    waiting_bytes: usize,
    /// The time, by [`eviction::monotonic_ms`], at which a reader last took events, or at which the oldest one began to wait.
    waiting_since: u64,
    /// The number of the reader that was attached last. Earlier readers are superseded.
    reader: u64,
    /// `true` until the first reader is attached, if the client waits for one.
    is_awaited: bool,
    changed: watch::Sender<()>,
}

impl StreamLog {
    fn new(is_awaited: bool) -> Self {
        // Event 0 is the priming event, which carries no data.
        Self { next: 1, is_awaited, ..Self::default() }
    }

    /// Returns `true` if no client waits for the log's events, so that they may be dropped for other events.
    fn is_spent(&self) -> bool {
        self.is_finished && (self.last_read + 1 >= self.next || !self.is_live())
    }

    /// Returns `true` if a connection reads the log or is about to.
    fn is_live(&self) -> bool {
        self.is_awaited || self.changed.receiver_count() > 0
    }

    /// Returns the number of events that no reader has got yet.
    fn waiting_len(&self) -> usize {
        usize::try_from(self.next - 1 - self.last_read).unwrap_or(usize::MAX).min(self.events.len())
    }

    /// Returns the number of events that are only kept for a client that reconnects.
    fn kept_len(&self) -> usize {
        self.events.len() - if self.is_live() { self.waiting_len() } else { 0 }
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
    /// `true` once a notification was dropped, because half of a limit was used.
    has_dropped_notification: bool,
    /// The token that ends the session.
    end: Option<CancellationToken>,
}

impl State {
    /// Returns the number and the bytes of the events that are only kept for a client that reconnects.
    fn measure_kept(&self) -> (usize, usize) {
        let live = self.logs.values().filter(|log| log.is_live());
        live.fold((self.events, self.bytes), |(events, bytes), log| {
            (events - log.waiting_len(), bytes - log.waiting_bytes)
        })
    }

    /// Drops everything, because no client will get it, and refuses further messages.
    fn overflow(&mut self) {
        self.logs.clear();
        (self.events, self.bytes) = (0, 0);
        if let Some(share) = &mut self.share {
            share.shrink_to(0);
        }
    }

    fn remove(&mut self, stream: u32) {
        if let Some(log) = self.logs.remove(&stream) {
            self.events -= log.events.len();
            self.bytes -= log.events.iter().map(|(_, message)| message.len()).sum::<usize>();
        }
    }
}

/// The streams of one session.
pub struct Streams {
    limits: OutboxLimits,
    state: Arc<Mutex<State>>,
}

impl Streams {
    /// Creates streams whose events do not count as memory of a principal. Waiting events and kept ones have equal limits.
    #[cfg(any(test, feature = "testing"))]
    pub fn new(max_events: usize, max_bytes: usize) -> Self {
        Self::with_limits(OutboxLimits {
            messages: max_events,
            bytes: max_bytes,
            replay_frames: max_events,
            replay_bytes: max_bytes,
        })
    }

    /// Creates streams whose events count as memory of a principal. The limits of messages apply to each stream that is read,
    /// and those of replay to all streams together.
    pub fn with_share(limits: OutboxLimits, share: MemoryShare) -> Self {
        let streams = Self::with_limits(limits);
        streams.state.lock().share = Some(share);
        streams
    }

    fn with_limits(limits: OutboxLimits) -> Self {
        let mut state = State::default();
        state.logs.insert(GET_STREAM, StreamLog::new(false));
        Self { limits, state: Arc::new(Mutex::new(state)) }
    }

    /// Sets the token that is cancelled if the session is ended to make room for others.
    pub fn set_end_token(&self, end: CancellationToken) {
        self.state.lock().end = Some(end);
    }

    /// Opens a stream for one POST, whose reader is attached soon unless [`Self::detach`] is called.
    pub fn open(&self) -> u32 {
        let mut state = self.state.lock();
        state.last_number += 1;
        let number = state.last_number;
        state.logs.insert(number, StreamLog::new(true));
        number
    }

    /// Appends a message. One that comes after the answer of its request is appended to the stream of the GET.
    ///
    /// # Errors
    /// Those of [`Outbox::push`](super::outbox::Outbox::push), while a connection reads the stream. Without one, the oldest
    /// events are dropped instead.
    pub fn push(&self, stream: u32, message: Bytes) -> Result<(), PushError> {
        let mut state = self.state.lock();
        let is_open = state.logs.get(&stream).is_some_and(|log| !log.is_finished);
        let stream = if is_open { stream } else { GET_STREAM };
        let Some(log) = state.logs.get(&stream) else { return Err(PushError::Closed) };
        if !log.is_live() {
            self.append(&mut state, stream, message);
            return Ok(());
        }
        let (waiting, bytes) = (log.waiting_len(), log.waiting_bytes);
        let newest = log.events.iter().rev().take(waiting).map(|(_, event)| event);
        if self.limits.is_half_used_by(waiting, bytes) && is_dispensable(&message, newest) {
            let is_first = !std::mem::replace(&mut state.has_dropped_notification, true);
            return Err(PushError::Dispensable { is_first });
        }
        let has_room = self.limits.has_room_for(&message, waiting, bytes);
        if !has_room || !(self.append(&mut state, stream, message) || self.reserve_memory(&mut state, stream)) {
            state.overflow();
            return Err(PushError::Overflow);
        }
        Ok(())
    }

    /// Returns `false` if there is not enough memory for all events.
    fn append(&self, state: &mut State, stream: u32, message: Bytes) -> bool {
        let size = message.len();
        let Some(log) = state.logs.get_mut(&stream) else { return true };
        if log.waiting_len() == 0 {
            log.waiting_since = eviction::monotonic_ms();
        }
        log.events.push_back((log.next, message));
        log.next += 1;
        log.waiting_bytes += size;
        log.changed.send_replace(());
        state.events += 1;
        state.bytes += size;
        self.trim(state, stream)
    }

    /// Reserves memory for the events of unfinished streams that wait for their readers. To get it, closes connections that were
    /// left unread for longer than this stream. Returns `false` if there is not enough.
    fn reserve_memory(&self, state: &mut State, stream: u32) -> bool {
        let waiting = state.logs.values().filter(|log| log.is_live() && !log.is_finished);
        let bytes = waiting.map(|log| log.waiting_bytes).sum::<usize>().saturating_sub(EXEMPT_MESSAGE_BYTES);
        let since = state.logs.get(&stream).map_or(0, |log| log.waiting_since);
        let weak = || Arc::downgrade(&self.state) as WeakHolder;
        state.share.as_mut().is_none_or(|share| share.cover_messages(bytes, since, weak))
    }

    /// Notes that no connection is about to read the stream. Unless one reads it already, its events are only kept for a client
    /// that reconnects, within the limits of replay.
    pub fn detach(&self, stream: u32) {
        let mut state = self.state.lock();
        if let Some(log) = state.logs.get_mut(&stream) {
            log.is_awaited = false;
            self.trim(&mut state, stream);
        }
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
    pub fn newest_event(&self, stream: u32) -> Option<u64> {
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

    /// Attaches a reader to a stream, which supersedes the previous one.
    pub fn attach(&self, stream: u32) -> Option<StreamReader> {
        let mut state = self.state.lock();
        let log = state.logs.get_mut(&stream)?;
        log.reader += 1;
        log.is_awaited = false;
        log.waiting_since = eviction::monotonic_ms();
        log.changed.send_replace(());
        let mut changed = log.changed.subscribe();
        changed.mark_unchanged();
        Some(StreamReader { number: log.reader, changed, newest_event: log.next - 1 })
    }

    /// Returns the events after event `after`, if `reader` still is the reader of the stream.
    pub fn read(&self, stream: u32, reader: u64, after: u64) -> ReadOutcome {
        let mut state = self.state.lock();
        let Some(log) = state.logs.get_mut(&stream) else { return ReadOutcome::End };
        if log.reader != reader {
            return ReadOutcome::Superseded;
        }
        log.last_read = log.next - 1;
        log.waiting_bytes = 0;
        log.waiting_since = eviction::monotonic_ms();
        let events: Vec<_> = log.events.iter().filter(|(n, _)| *n > after).cloned().collect();
        let outcome = match (events.is_empty(), log.is_finished) {
            (false, _) => ReadOutcome::Events(events),
            (true, true) => ReadOutcome::End,
            (true, false) => ReadOutcome::Wait,
        };
        // The reader has taken all events, so they are dropped if there is no room to keep them.
        self.trim(&mut state, stream);
        outcome
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

    /// Returns `true` if kept events must be dropped. A single event may exceed the limit of bytes, so that a large answer
    /// reaches its client.
    fn exceeds_replay_limits(&self, state: &State) -> bool {
        let OutboxLimits { replay_frames, replay_bytes, .. } = self.limits;
        if state.events <= replay_frames && state.bytes <= replay_bytes {
            return false;
        }
        let (events, bytes) = state.measure_kept();
        events > replay_frames || (state.events > 1 && bytes > replay_bytes)
    }

    /// Drops kept events beyond the limits and the memory: the oldest finished streams first, then the oldest events of the
    /// stream that keeps most. An event that is being delivered is never dropped. Returns `false` if the rest has not enough
    /// memory.
    fn trim(&self, state: &mut State, current: u32) -> bool {
        let is_covered = loop {
            let bytes = state.bytes;
            let is_covered = state.share.as_mut().is_none_or(|share| share.cover_replay(bytes));
            if (is_covered && !self.exceeds_replay_limits(state)) || !drop_oldest(state, current) {
                break is_covered;
            }
        };
        // Finished streams without events would accumulate otherwise.
        while state.logs.len() > self.limits.replay_frames.max(2) {
            let Some(number) = state.logs.iter().find(|(_, log)| log.is_spent()).map(|(n, _)| *n) else { break };
            state.remove(number);
        }
        is_covered
    }
}

/// Drops a finished stream or a kept event. Returns `false` if there is none, or only a single event.
fn drop_oldest(state: &mut State, current: u32) -> bool {
    // The current stream is removed only if its event is the only one and nobody waits for it.
    let is_removable = |number: u32| number != current || state.events <= 1;
    let spent = state.logs.iter().find(|(n, log)| is_removable(**n) && log.is_spent()).map(|(n, _)| *n);
    if let Some(victim) = spent {
        state.remove(victim);
        return true;
    }
    if state.events <= 1 {
        return false;
    }
    // If nothing can be dropped, all events are being delivered. The limit on requests in flight bounds the number of answers.
    let droppable = state.logs.iter_mut().filter(|(_, log)| log.kept_len() > 0 && (!log.is_finished || log.is_spent()));
    let Some((_, log)) = droppable.max_by_key(|(_, log)| log.kept_len()) else { return false };
    let Some((number, dropped)) = log.events.pop_front() else { return false };
    if number > log.last_read {
        log.waiting_bytes -= dropped.len();
    }
    state.events -= 1;
    state.bytes -= dropped.len();
    true
}

impl UnreadHolder for Mutex<State> {
    fn unread_since(&self) -> Option<u64> {
        let state = self.try_lock()?;
        let unread = state.logs.values().filter(|log| log.is_live() && log.waiting_len() > 0);
        unread.map(|log| log.waiting_since).min()
    }

    fn close(&self) -> bool {
        let Some(mut state) = self.try_lock() else { return false };
        tracing::warn!("a session ends because its client does not read and there is no memory for its messages");
        state.overflow();
        let end = state.end.clone();
        drop(state);
        if let Some(end) = end {
            end.cancel();
        }
        true
    }
}

#[cfg(test)]
mod tests;
