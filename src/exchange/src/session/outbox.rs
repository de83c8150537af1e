//! A connection's bounded queue of outgoing messages, with sent frames that are kept for a client that comes back.
//!
//! Any thread may push; one pump drains. The outbox wakes its pump only once between two drains. A peer that stops
//! reading costs no more memory than the limits of its outbox allow. The frames count as memory of the principal
//! ([`crate::bounds::memory`]). Without room, the connection that was left unread for longest ends.

use std::{collections::VecDeque, sync::Arc};

use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use tokio_util::sync::CancellationToken;

use crate::bounds::{
    eviction,
    memory::{EXEMPT_MESSAGE_BYTES, MemoryShare, UnreadHolder, WeakHolder},
};
use countersign_protocol::{Method, encode};

/// The size in bytes above which the frames of a drain still count as memory until the next drain or
/// [`Outbox::confirm_taken`].
pub const LARGE_DRAIN_BYTES: usize = 32 << 10;

/// Wakes the pump that drains an outbox. Called at most once between two drains.
pub type Wake = Arc<dyn Fn() + Send + Sync>;

/// The frames and signals that a pump has to send next.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct DrainedFrames {
    pub frames: Vec<Bytes>,
    /// `true` if the pump has to send a keep-alive ping.
    pub ping: bool,
    /// The code and reason with which the pump has to close the connection. All frames were drained before.
    pub close: Option<(u16, &'static str)>,
}

/// The reason why the outbox refused a message.
#[derive(Debug, PartialEq, Eq)]
pub enum PushError {
    /// The outbox is half full, and the client can do without the notification. `is_first` is `true` for the first one that
    /// was dropped.
    Dispensable { is_first: bool },
    /// The outbox is full, or there is no memory for the message. All later messages are refused as [`Self::Closed`].
    Overflow,
    /// A limit was exceeded before, or the connection is closing.
    Closed,
}

/// The reason why a session cannot be resumed at the client's position.
#[derive(Debug, PartialEq, Eq)]
pub enum ResumeError {
    /// The frames that the client missed are no longer kept.
    TooLate,
    /// The client states that it received more frames than were ever sent.
    Ahead,
}

/// The limits of one outbox.
#[derive(Clone, Copy, Debug)]
pub struct OutboxLimits {
    /// The maximum number of messages that wait for the pump.
    pub messages: usize,
    /// The maximum number of bytes of the messages that wait for the pump.
    pub bytes: usize,
    /// The maximum number of sent frames that are kept; 0 keeps none.
    pub replay_frames: usize,
    /// The maximum number of bytes of the sent frames that are kept.
    pub replay_bytes: usize,
}

impl OutboxLimits {
    /// Returns `true` if this number of waiting messages or of their bytes is half of its limit or more.
    pub(super) const fn is_half_used_by(&self, messages: usize, bytes: usize) -> bool {
        messages * 2 >= self.messages || bytes * 2 >= self.bytes
    }

    /// Returns `true` if there is room for the message beside this number of waiting messages and of their bytes. A single
    /// message may exceed the limit of bytes.
    pub(super) const fn has_room_for(&self, message: &Bytes, messages: usize, bytes: usize) -> bool {
        messages < self.messages && (messages == 0 || bytes + message.len() <= self.bytes)
    }
}

#[derive(Default)]
enum Connection {
    /// The pump is not attached yet.
    #[default]
    Awaited,
    /// The pump is attached. `woken` is `true` from a call of `wake` until the pump drains.
    Attached { wake: Wake, woken: bool },
    /// The connection was lost, and its client may come back.
    Detached,
}

#[derive(Default)]
struct State {
    /// Frames `base..base + frames.len()` of the session's stream; those below `sent_end` were handed to a pump.
    frames: VecDeque<Bytes>,
    base: u64,
    sent_end: u64,
    queued_bytes: usize,
    replay_bytes: usize,
    /// The bytes of the last drain that the connection has not confirmed yet.
    unconfirmed_bytes: usize,
    /// The time, by [`eviction::monotonic_ms`], at which the peer last took a frame, or at which the oldest one began to wait.
    waiting_since: u64,
    connection: Connection,
    /// `true` if the pump has to send a ping.
    ping: bool,
    /// See [`DrainedFrames::close`].
    close: Option<(u16, &'static str)>,
    /// `true` if a limit was exceeded since the pump was attached. Further messages are then refused.
    has_overflowed: bool,
    /// `true` once a notification was dropped, because half of a limit was used.
    has_dropped_notification: bool,
    /// The number of times that a client came back. Only the pump of the latest generation may drain.
    generation: u64,
    /// The memory of the principal that the frames take.
    share: Option<MemoryShare>,
    /// The token that ends the session.
    end: Option<CancellationToken>,
}

/// The outgoing messages of one connection.
pub struct Outbox {
    limits: OutboxLimits,
    state: Arc<Mutex<State>>,
}

impl Outbox {
    /// Creates an outbox whose frames do not count as memory of a principal.
    #[cfg(any(test, feature = "testing"))]
    pub fn new(limits: OutboxLimits) -> Self {
        Self { limits, state: Arc::default() }
    }

    /// Creates an outbox whose frames count as memory of a principal.
    pub fn with_share(limits: OutboxLimits, share: MemoryShare) -> Self {
        Self { limits, state: Arc::new(Mutex::new(State { share: Some(share), ..State::default() })) }
    }

    /// Sets the token that is cancelled if the connection is closed to make room for others.
    pub fn set_end_token(&self, end: CancellationToken) {
        self.state.lock().end = Some(end);
    }

    /// Queues one message.
    ///
    /// # Errors
    /// [`PushError::Dispensable`] for progress, log messages and repeated notifications of changes while half of a limit
    /// is used. Otherwise, once a limit is exceeded or the connection is closing, the message and all later ones are
    /// dropped until a pump is attached again. `SessionState::push` then ends the session, and the session's actor
    /// cuts the connection without a grace period.
    pub fn push(&self, frame: Bytes) -> Result<(), PushError> {
        let mut state = self.state.lock();
        if state.has_overflowed || state.close.is_some() {
            return Err(PushError::Closed);
        }
        // The other half is left for messages that the client cannot do without, such as the answer that follows its progress.
        let queued = queued_len(&state);
        if self.limits.is_half_used_by(queued, state.queued_bytes)
            && is_dispensable(&frame, state.frames.iter().rev().take(queued))
        {
            let is_first = !std::mem::replace(&mut state.has_dropped_notification, true);
            return Err(PushError::Dispensable { is_first });
        }
        if !self.limits.has_room_for(&frame, queued, state.queued_bytes) {
            overflow(&mut state);
            return Err(PushError::Overflow);
        }
        let is_detached = matches!(state.connection, Connection::Detached);
        if queued == 0 && !is_detached {
            state.waiting_since = eviction::monotonic_ms();
        }
        state.queued_bytes += frame.len();
        state.frames.push_back(frame);
        if is_detached {
            self.trim_disconnected(&mut state);
        } else if !self.reserve_memory(&mut state) {
            overflow(&mut state);
            return Err(PushError::Overflow);
        }
        wake(state);
        Ok(())
    }

    /// Asks the pump to send a ping.
    pub fn ping(&self) {
        let mut state = self.state.lock();
        state.ping = true;
        wake(state);
    }

    /// Asks the pump to close the connection once all queued messages are sent.
    pub fn close(&self, code: u16, reason: &'static str) {
        let mut state = self.state.lock();
        state.close.get_or_insert((code, reason));
        wake(state);
    }

    /// Closes the connection like [`Self::close`], but drops the queued messages.
    pub fn abandon(&self, code: u16, reason: &'static str) {
        let mut state = self.state.lock();
        let sent_frames = state.frames.len() - queued_len(&state);
        state.frames.truncate(sent_frames);
        state.frames.shrink_to_fit();
        state.queued_bytes = 0;
        self.trim(&mut state);
        drop(state);
        self.close(code, reason);
    }

    /// Takes queued messages of about `budget` bytes. Returns `None` if there is nothing to do, or if another
    /// connection has taken over since `generation`, because frames that an old connection takes would be lost.
    pub fn drain(&self, generation: u64, budget: usize) -> Option<DrainedFrames> {
        let mut state = self.state.lock();
        if state.generation != generation {
            return None;
        }
        if let Connection::Attached { woken, .. } = &mut state.connection {
            *woken = false;
        }
        state.unconfirmed_bytes = 0;
        let mut out = DrainedFrames { ping: std::mem::take(&mut state.ping), ..DrainedFrames::default() };
        let mut drained_bytes = 0;
        while let Some(frame) =
            usize::try_from(state.sent_end - state.base).ok().and_then(|i| state.frames.get(i)).cloned()
        {
            if drained_bytes > 0 && drained_bytes + frame.len() > budget {
                break;
            }
            drained_bytes += frame.len();
            state.sent_end += 1;
            state.queued_bytes -= frame.len();
            state.replay_bytes += frame.len();
            out.frames.push(frame);
        }
        if drained_bytes > 0 {
            state.waiting_since = eviction::monotonic_ms();
        }
        if drained_bytes > LARGE_DRAIN_BYTES {
            state.unconfirmed_bytes = drained_bytes;
        }
        self.trim(&mut state);
        if queued_len(&state) == 0 {
            out.close = state.close;
        } else {
            wake(state);
        }
        (out != DrainedFrames::default()).then_some(out)
    }

    /// Confirms that the connection has sent the last drained frames, which then no longer count.
    pub fn confirm_taken(&self, generation: u64) {
        let mut state = self.state.lock();
        if state.generation == generation {
            state.unconfirmed_bytes = 0;
            self.trim(&mut state);
        }
    }

    /// Attaches the pump of a generation and wakes it if frames wait. Returns `false` if another connection has taken over
    /// since.
    pub fn attach(&self, generation: u64, wake: Wake) -> bool {
        let mut state = self.state.lock();
        if state.generation != generation {
            return false;
        }
        state.connection = Connection::Attached { wake, woken: false };
        state.has_overflowed = false;
        state.waiting_since = eviction::monotonic_ms();
        if queued_len(&state) > 0 || state.close.is_some() {
            self::wake(state);
        }
        true
    }

    /// Detaches the lost connection of a generation. The newest frames are kept, within the replay limits, for a client that
    /// comes back. Returns `false`, and does nothing, if the client has come back already.
    pub fn detach(&self, generation: u64) -> bool {
        let mut state = self.state.lock();
        if state.generation != generation {
            return false;
        }
        state.connection = Connection::Detached;
        state.unconfirmed_bytes = 0;
        self.trim_disconnected(&mut state);
        true
    }

    /// Returns `true` if the connection was lost.
    pub fn is_detached(&self) -> bool {
        matches!(self.state.lock().connection, Connection::Detached)
    }

    /// Rewinds the stream to just after frame number `received` (counted from 1), for the next connection. The previous
    /// connection gets no more frames, so none is lost between the two. Returns the generation of the next connection; the
    /// first connection has generation 0.
    ///
    /// # Errors
    /// [`ResumeError`]; the outbox is then unchanged.
    pub fn rewind(&self, received: u64) -> Result<u64, ResumeError> {
        let mut state = self.state.lock();
        if received > state.base + state.frames.len() as u64 || received > state.sent_end {
            return Err(ResumeError::Ahead);
        }
        if received < state.base {
            return Err(ResumeError::TooLate);
        }
        state.sent_end = received;
        let start = usize::try_from(received - state.base).unwrap_or(usize::MAX);
        state.queued_bytes = state.frames.iter().skip(start).map(Bytes::len).sum();
        state.replay_bytes = state.frames.iter().take(start).map(Bytes::len).sum();
        state.has_overflowed = false;
        state.connection = Connection::Awaited;
        state.generation += 1;
        Ok(state.generation)
    }

    /// Returns the number of messages that wait for the pump.
    pub fn len(&self) -> usize {
        queued_len(&self.state.lock())
    }

    /// Returns the number of bytes that wait for the pump.
    pub fn bytes(&self) -> usize {
        self.state.lock().queued_bytes
    }

    /// Returns `true` if half of a limit is used, so that no more should be read from this peer.
    pub fn is_half_full(&self) -> bool {
        let state = self.state.lock();
        self.limits.is_half_used_by(queued_len(&state), state.queued_bytes)
    }

    /// Returns `true` if no message waits for the pump.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns `true` if a limit was exceeded since the pump was attached.
    pub fn has_overflowed(&self) -> bool {
        self.state.lock().has_overflowed
    }

    /// Drops sent frames beyond the replay limits and the memory.
    fn trim(&self, state: &mut State) {
        while state.base < state.sent_end
            && (state.sent_end - state.base > self.limits.replay_frames as u64
                || state.replay_bytes > self.limits.replay_bytes)
        {
            drop_front(state);
        }
        drop_frames_without_memory(state, state.sent_end);
        release_capacity(state);
    }

    /// Applies the replay limits to all frames, including unsent ones, while there is no connection.
    fn trim_disconnected(&self, state: &mut State) {
        let count = self.limits.replay_frames.max(1);
        while state.frames.len() > count || state.queued_bytes + state.replay_bytes > self.limits.replay_bytes {
            drop_front(state);
        }
        let end = state.base + state.frames.len() as u64;
        drop_frames_without_memory(state, end);
        release_capacity(state);
    }

    /// Reserves memory for the kept frames. To get it, drops sent frames and closes unread connections. Returns `false`
    /// if there is not enough.
    fn reserve_memory(&self, state: &mut State) -> bool {
        loop {
            let (bytes, since) = (counted_bytes(state), state.waiting_since);
            let weak = || Arc::downgrade(&self.state) as WeakHolder;
            let is_covered = state.share.as_mut().is_none_or(|share| share.cover_messages(bytes, since, weak));
            if is_covered || state.base >= state.sent_end {
                return is_covered;
            }
            drop_front(state);
        }
    }
}

impl UnreadHolder for Mutex<State> {
    fn unread_since(&self) -> Option<u64> {
        let state = self.try_lock()?;
        (queued_len(&state) > 0 && !state.has_overflowed).then_some(state.waiting_since)
    }

    fn close(&self) -> bool {
        let Some(mut state) = self.try_lock() else { return false };
        tracing::warn!("a session ends because its client does not read and there is no memory for its messages");
        overflow(&mut state);
        let end = state.end.clone();
        drop(state);
        if let Some(end) = end {
            end.cancel();
        }
        true
    }
}

/// Returns the bytes that count as memory of the principal.
fn counted_bytes(state: &State) -> usize {
    (state.queued_bytes + state.replay_bytes + state.unconfirmed_bytes).saturating_sub(EXEMPT_MESSAGE_BYTES)
}

/// Drops frames below number `below` for which there is no memory.
fn drop_frames_without_memory(state: &mut State, below: u64) {
    loop {
        let bytes = counted_bytes(state);
        if state.share.as_mut().is_none_or(|share| share.cover_replay(bytes)) || state.base >= below {
            return;
        }
        drop_front(state);
    }
}

/// Releases spare capacity, because there may be ten thousand idle sessions.
fn release_capacity(state: &mut State) {
    if state.frames.capacity() > 32 && state.frames.len() * 4 < state.frames.capacity() {
        state.frames.shrink_to_fit();
    }
}

/// Drops all frames, because no client will get them, and refuses further ones.
fn overflow(state: &mut State) {
    state.has_overflowed = true;
    state.base += state.frames.len() as u64;
    state.sent_end = state.base;
    state.frames = VecDeque::new();
    (state.queued_bytes, state.replay_bytes) = (0, 0);
    let unconfirmed_bytes = state.unconfirmed_bytes.saturating_sub(EXEMPT_MESSAGE_BYTES);
    if let Some(share) = &mut state.share {
        share.shrink_to(unconfirmed_bytes);
    }
}

fn queued_len(state: &State) -> usize {
    state.frames.len() - usize::try_from(state.sent_end - state.base).unwrap_or(0)
}

/// Returns `true` if the frame is progress, a log message, or a notification of a change that a waiting frame announces.
pub(super) fn is_dispensable<'a>(frame: &Bytes, mut waiting: impl Iterator<Item = &'a Bytes>) -> bool {
    match encode::notified_method(frame) {
        Some(Method::Progress | Method::LogMessage) => true,
        Some(
            Method::ToolsListChanged
            | Method::PromptsListChanged
            | Method::ResourcesListChanged
            | Method::ResourcesUpdated,
        ) => waiting.any(|waiting| waiting == frame),
        _ => false,
    }
}

fn drop_front(state: &mut State) {
    if let Some(frame) = state.frames.pop_front() {
        if state.base < state.sent_end {
            state.replay_bytes -= frame.len();
        } else {
            // The frame was never sent. The client will learn of the gap when it resumes.
            state.queued_bytes -= frame.len();
            state.sent_end += 1;
        }
        state.base += 1;
    }
}

fn wake(mut state: MutexGuard<'_, State>) {
    if let Connection::Attached { wake, woken: woken @ false } = &mut state.connection {
        *woken = true;
        let wake = Arc::clone(wake);
        // The lock is released first, because the pump may drain at once.
        drop(state);
        wake();
    }
}

#[cfg(test)]
mod tests;
