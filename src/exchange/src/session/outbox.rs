//! A connection's bounded queue of outgoing messages, and the ring it replays from when a client comes back.
//!
//! Anyone on any thread may push; one pump drains. The outbox never wakes a pump that was already woken,
//! so a peer that stops reading costs no more than the bound. What it holds counts as its principal's memory
//! ([`crate::bounds::memory`]), and where there is no room the connection that was left unread for longest ends.

use std::{
    collections::VecDeque,
    sync::{Arc, Weak},
};

use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use tokio_util::sync::CancellationToken;

use crate::bounds::{
    eviction,
    memory::{EXEMPT_BYTES, Share, Unread},
};

/// More bytes than that, drained at a time, count until the next drain, or until they are [`Outbox::taken`].
pub const LARGE_HANDOVER: usize = 32 << 10;

/// Wakes the pump that drains an outbox. Called at most once between two drains.
pub type Wake = Arc<dyn Fn() + Send + Sync>;

/// The next work of a pump.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Drained {
    pub frames: Vec<Bytes>,
    /// Send a keep-alive ping.
    pub ping: bool,
    /// Everything was drained and the connection is to be closed with this code and reason.
    pub close: Option<(u16, &'static str)>,
}

/// The queue is full, or there is no memory for it: the peer does not read.
#[derive(Debug, PartialEq, Eq)]
pub struct Overflow;

/// Why a session cannot be resumed from where the client says it is.
#[derive(Debug, PartialEq, Eq)]
pub enum ResumeFault {
    /// The frames that the client missed are no longer held.
    TooLate,
    /// The client says it received more frames than were ever sent.
    Ahead,
}

/// Bounds of one outbox.
#[derive(Clone, Copy, Debug)]
pub struct OutboxLimits {
    /// Messages and bytes not yet handed to the pump.
    pub messages: usize,
    pub bytes: usize,
    /// Frames and bytes kept after they were handed over; 0 keeps none.
    pub replay_frames: usize,
    pub replay_bytes: usize,
}

#[derive(Default)]
enum Connection {
    /// Its pump is yet to be attached.
    #[default]
    Awaited,
    /// `woken` is set from a call of `wake` until the pump drains.
    Attached { wake: Wake, woken: bool },
    /// It was lost; its client may come back.
    Away,
}

#[derive(Default)]
struct State {
    /// Frames `base..base + frames.len()` of the session's stream; those below `sent` were handed to a pump.
    frames: VecDeque<Bytes>,
    base: u64,
    sent: u64,
    queued_bytes: usize,
    replay_bytes: usize,
    /// Handed to the connection, which has not asked for more since.
    handed_bytes: usize,
    /// When the peer last took something of what waits, or when it began to wait, by [`eviction::now`].
    since: u64,
    connection: Connection,
    /// The pump is to send a ping.
    ping: bool,
    close: Option<(u16, &'static str)>,
    /// A bound was hit since the pump was attached: nothing more is taken in.
    overflowed: bool,
    /// Counts the clients that came back; only the pump of the latest turn drains.
    turn: u64,
    /// The memory of the principal that the frames take.
    share: Option<Share>,
    /// Ends the session.
    end: Option<CancellationToken>,
}

/// The outgoing messages of one connection.
pub struct Outbox {
    limits: OutboxLimits,
    state: Arc<Mutex<State>>,
}

impl Outbox {
    #[must_use]
    pub fn new(limits: OutboxLimits) -> Self {
        Self { limits, state: Arc::default() }
    }

    /// Like [`Self::new`], with frames that count as memory of a principal.
    #[must_use]
    pub fn counted(limits: OutboxLimits, share: Share) -> Self {
        Self { limits, state: Arc::new(Mutex::new(State { share: Some(share), ..State::default() })) }
    }

    /// Cancels that token where the connection is closed to make room for others.
    pub fn ends_with(&self, end: CancellationToken) {
        self.state.lock().end = Some(end);
    }

    /// Queues one message.
    ///
    /// # Errors
    /// `Overflow` once a bound is reached; the message is dropped and every later one too, until a pump is attached anew.
    pub fn push(&self, frame: Bytes) -> Result<(), Overflow> {
        let mut state = self.state.lock();
        if state.overflowed || state.close.is_some() {
            return Err(Overflow);
        }
        let queued = queued_len(&state);
        if queued >= self.limits.messages || (queued > 0 && state.queued_bytes + frame.len() > self.limits.bytes) {
            give_up(&mut state);
            return Err(Overflow);
        }
        let is_away = matches!(state.connection, Connection::Away);
        if queued == 0 && !is_away {
            state.since = eviction::now();
        }
        state.queued_bytes += frame.len();
        state.frames.push_back(frame);
        if is_away {
            self.trim_away(&mut state);
        } else if !self.covers_messages(&mut state) {
            give_up(&mut state);
            return Err(Overflow);
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

    /// Asks the pump to close once everything queued is sent.
    pub fn close(&self, code: u16, reason: &'static str) {
        let mut state = self.state.lock();
        state.close.get_or_insert((code, reason));
        wake(state);
    }

    /// Like [`Self::close`], but drops the queued messages.
    pub fn abandon(&self, code: u16, reason: &'static str) {
        let mut state = self.state.lock();
        let sent = state.frames.len() - queued_len(&state);
        state.frames.truncate(sent);
        state.frames.shrink_to_fit();
        state.queued_bytes = 0;
        self.trim(&mut state);
        drop(state);
        self.close(code, reason);
    }

    /// Takes what is queued, up to about `budget` bytes. `None` when there is nothing to do, or another connection
    /// has taken over since `turn`: what an old one took would be lost.
    pub fn drain(&self, turn: u64, budget: usize) -> Option<Drained> {
        let mut state = self.state.lock();
        if state.turn != turn {
            return None;
        }
        if let Connection::Attached { woken, .. } = &mut state.connection {
            *woken = false;
        }
        state.handed_bytes = 0;
        let mut out = Drained { ping: std::mem::take(&mut state.ping), ..Drained::default() };
        let mut taken = 0;
        while let Some(frame) = usize::try_from(state.sent - state.base).ok().and_then(|i| state.frames.get(i)).cloned()
        {
            if taken > 0 && taken + frame.len() > budget {
                break;
            }
            taken += frame.len();
            state.sent += 1;
            state.queued_bytes -= frame.len();
            state.replay_bytes += frame.len();
            out.frames.push(frame);
        }
        if taken > 0 {
            state.since = eviction::now();
        }
        if taken > LARGE_HANDOVER {
            state.handed_bytes = taken;
        }
        self.trim(&mut state);
        if queued_len(&state) == 0 {
            out.close = state.close;
        } else {
            wake(state);
        }
        (out != Drained::default()).then_some(out)
    }

    /// The connection has taken what was drained last: it does not count any more.
    pub fn taken(&self, turn: u64) {
        let mut state = self.state.lock();
        if state.turn == turn {
            state.handed_bytes = 0;
            self.trim(&mut state);
        }
    }

    /// Attaches the pump of a turn; frames that wait are announced to it at once. `false` for one that came too
    /// late, because another connection has taken over.
    #[must_use]
    pub fn attach(&self, turn: u64, wake: Wake) -> bool {
        let mut state = self.state.lock();
        if state.turn != turn {
            return false;
        }
        state.connection = Connection::Attached { wake, woken: false };
        state.overflowed = false;
        state.since = eviction::now();
        if queued_len(&state) > 0 || state.close.is_some() {
            self::wake(state);
        }
        true
    }

    /// The connection is gone; the newest frames are kept for a client that comes back, within the ring's bounds.
    pub fn detach(&self) {
        let mut state = self.state.lock();
        state.connection = Connection::Away;
        state.handed_bytes = 0;
        self.trim_away(&mut state);
    }

    /// There is no connection to send to.
    pub fn is_away(&self) -> bool {
        matches!(self.state.lock().connection, Connection::Away)
    }

    /// Sets the stream back to just after frame number `received` (counted from 1), for the connection that comes
    /// next. From here on the one before gets nothing more, so that nothing falls between the two. Gives the turn of
    /// the new one; the first connection of all has turn 0.
    ///
    /// # Errors
    /// See [`ResumeFault`]; nothing is changed then.
    pub fn rewind(&self, received: u64) -> Result<u64, ResumeFault> {
        let mut state = self.state.lock();
        if received > state.base + state.frames.len() as u64 || received > state.sent {
            return Err(ResumeFault::Ahead);
        }
        if received < state.base {
            return Err(ResumeFault::TooLate);
        }
        state.sent = received;
        let start = usize::try_from(received - state.base).unwrap_or(usize::MAX);
        state.queued_bytes = state.frames.iter().skip(start).map(Bytes::len).sum();
        state.replay_bytes = state.frames.iter().take(start).map(Bytes::len).sum();
        state.overflowed = false;
        state.connection = Connection::Awaited;
        state.turn += 1;
        Ok(state.turn)
    }

    /// Messages that wait for the pump.
    pub fn len(&self) -> usize {
        queued_len(&self.state.lock())
    }

    /// Bytes that wait for the pump.
    pub fn bytes(&self) -> usize {
        self.state.lock().queued_bytes
    }

    /// So much waits for the pump that it is wiser to take nothing more in from this peer.
    pub fn is_half_full(&self) -> bool {
        let state = self.state.lock();
        queued_len(&state) * 2 >= self.limits.messages || state.queued_bytes * 2 >= self.limits.bytes
    }

    /// Nothing waits for the pump.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bound was hit since the pump was attached.
    pub fn overflowed(&self) -> bool {
        self.state.lock().overflowed
    }

    fn trim(&self, state: &mut State) {
        while state.base < state.sent
            && (state.sent - state.base > self.limits.replay_frames as u64
                || state.replay_bytes > self.limits.replay_bytes)
        {
            drop_front(state);
        }
        forget_uncovered(state, state.sent);
        shrink(state);
    }

    /// While nobody is there the ring's bounds hold for all that is kept.
    fn trim_away(&self, state: &mut State) {
        let count = self.limits.replay_frames.max(1);
        while state.frames.len() > count || state.queued_bytes + state.replay_bytes > self.limits.replay_bytes {
            drop_front(state);
        }
        let end = state.base + state.frames.len() as u64;
        forget_uncovered(state, end);
        shrink(state);
    }

    /// Returns `true` if there is memory for the held frames. Frames that were sent are forgotten first.
    fn covers_messages(&self, state: &mut State) -> bool {
        loop {
            let (bytes, since) = (counted(state), state.since);
            let weak = || Arc::downgrade(&self.state) as Weak<dyn Unread>;
            let is_covered = state.share.as_mut().is_none_or(|share| share.cover_messages(bytes, since, weak));
            if is_covered || state.base >= state.sent {
                return is_covered;
            }
            drop_front(state);
        }
    }
}

impl Unread for Mutex<State> {
    fn since(&self) -> Option<u64> {
        let state = self.try_lock()?;
        (queued_len(&state) > 0 && !state.overflowed).then_some(state.since)
    }

    fn close(&self) -> bool {
        let Some(mut state) = self.try_lock() else { return false };
        tracing::warn!("a client does not read, and there is no memory for what waits for it: its session ends");
        give_up(&mut state);
        let end = state.end.clone();
        drop(state);
        if let Some(end) = end {
            end.cancel();
        }
        true
    }
}

/// Returns the bytes that count as memory of the principal.
fn counted(state: &State) -> usize {
    (state.queued_bytes + state.replay_bytes + state.handed_bytes).saturating_sub(EXEMPT_BYTES)
}

/// Forgets frames below that number for which there is no memory.
fn forget_uncovered(state: &mut State, below: u64) {
    loop {
        let bytes = counted(state);
        if state.share.as_mut().is_none_or(|share| share.cover(bytes)) || state.base >= below {
            return;
        }
        drop_front(state);
    }
}

/// An idle session keeps no spare room: ten thousand of them may sleep here.
fn shrink(state: &mut State) {
    if state.frames.capacity() > 32 && state.frames.len() * 4 < state.frames.capacity() {
        state.frames.shrink_to_fit();
    }
}

/// Drops all frames: nobody gets them any more.
fn give_up(state: &mut State) {
    state.overflowed = true;
    state.base += state.frames.len() as u64;
    state.sent = state.base;
    state.frames = VecDeque::new();
    (state.queued_bytes, state.replay_bytes) = (0, 0);
    let handed = state.handed_bytes.saturating_sub(EXEMPT_BYTES);
    if let Some(share) = &mut state.share {
        share.shrink_to(handed);
    }
}

fn queued_len(state: &State) -> usize {
    state.frames.len() - usize::try_from(state.sent - state.base).unwrap_or(0)
}

fn drop_front(state: &mut State) {
    if let Some(frame) = state.frames.pop_front() {
        if state.base < state.sent {
            state.replay_bytes -= frame.len();
        } else {
            // Dropped before it was ever sent: the client will learn of the gap when it resumes.
            state.queued_bytes -= frame.len();
            state.sent += 1;
        }
        state.base += 1;
    }
}

fn wake(mut state: MutexGuard<'_, State>) {
    if let Connection::Attached { wake, woken: woken @ false } = &mut state.connection {
        *woken = true;
        let wake = Arc::clone(wake);
        // Not under the lock: the wake-up may drain at once.
        drop(state);
        wake();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::bounds::memory::Memory;

    const LIMITS: OutboxLimits = OutboxLimits { messages: 4, bytes: 100, replay_frames: 2, replay_bytes: 1000 };

    fn counted() -> (Wake, Arc<AtomicUsize>) {
        let n = Arc::new(AtomicUsize::new(0));
        let seen = n.clone();
        (
            Arc::new(move || {
                seen.fetch_add(1, Ordering::Relaxed);
            }),
            n,
        )
    }

    #[test]
    fn wakes_once_until_drained() {
        let outbox = Outbox::new(LIMITS);
        let (wake, n) = counted();
        assert!(outbox.attach(0, wake));
        outbox.push(Bytes::from_static(b"a")).unwrap();
        outbox.push(Bytes::from_static(b"b")).unwrap();
        assert_eq!(n.load(Ordering::Relaxed), 1);
        assert_eq!(outbox.drain(0, 1000).unwrap().frames.len(), 2);
        assert!(outbox.drain(0, 1000).is_none());
        outbox.push(Bytes::from_static(b"c")).unwrap();
        assert_eq!(n.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn a_pump_that_is_attached_hears_of_what_waits_for_it_and_of_nothing_else() {
        let outbox = Outbox::new(LIMITS);
        let (wake, n) = counted();
        assert!(outbox.attach(0, wake) && outbox.is_empty());
        assert_eq!(n.load(Ordering::Relaxed), 0);
        outbox.detach();
        outbox.push(Bytes::from_static(b"a")).unwrap();
        let (wake, n) = counted();
        assert!(outbox.attach(0, wake) && !outbox.is_empty());
        assert_eq!(n.load(Ordering::Relaxed), 1);
        // The end waits too, without a frame.
        assert_eq!(outbox.drain(0, 1000).unwrap().frames.len(), 1);
        outbox.detach();
        outbox.close(1000, "done");
        let (wake, n) = counted();
        assert!(outbox.attach(0, wake) && outbox.is_empty());
        assert_eq!(n.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn overflow_is_final_until_reattached() {
        let outbox = Outbox::new(LIMITS);
        let (wake, _) = counted();
        assert!(outbox.attach(0, wake.clone()));
        for _ in 0..4 {
            outbox.push(Bytes::from_static(b"x")).unwrap();
        }
        assert_eq!(outbox.push(Bytes::from_static(b"y")), Err(Overflow));
        outbox.drain(0, 1000);
        assert_eq!(outbox.push(Bytes::from_static(b"y")), Err(Overflow));
        assert!(outbox.attach(0, wake));
        assert_eq!(outbox.push(Bytes::from_static(b"y")), Ok(()));
    }

    #[test]
    fn frames_that_its_principal_has_no_memory_for_are_forgotten_first() {
        let memory = Memory::new(64 << 10, 1 << 20);
        let limits = OutboxLimits { replay_frames: 100, replay_bytes: 1 << 20, bytes: 1 << 20, ..LIMITS };
        let outbox = Outbox::counted(limits, memory.take("alice", 0).unwrap());
        let (wake, _) = counted();
        assert!(outbox.attach(0, wake));
        for _ in 0..4 {
            outbox.push(Bytes::from(vec![b'x'; 15 << 10])).unwrap();
            assert_eq!(outbox.drain(0, 1 << 20).unwrap().frames.len(), 1);
        }
        // What is free holds one of them, and half of what there is two more.
        assert_eq!(memory.used_by("alice"), 32 << 10);
        assert_eq!(outbox.rewind(0), Err(ResumeFault::TooLate));
        assert_eq!(outbox.rewind(1), Ok(1));
        drop(outbox);
        assert_eq!(memory.used_by("alice"), 0);
    }

    #[test]
    fn one_message_over_the_byte_bound_still_passes_alone() {
        let outbox = Outbox::new(LIMITS);
        let (wake, _) = counted();
        assert!(outbox.attach(0, wake));
        assert_eq!(outbox.push(Bytes::from(vec![b'x'; 500])), Ok(()));
        assert_eq!(outbox.push(Bytes::from_static(b"y")), Err(Overflow));
    }

    #[test]
    fn resumes_from_the_ring_or_says_too_late() {
        let outbox = Outbox::new(LIMITS);
        let (wake, _) = counted();
        assert!(outbox.attach(0, wake.clone()));
        for frame in ["1", "2", "3", "4"] {
            outbox.push(Bytes::from(frame)).unwrap();
        }
        assert_eq!(outbox.drain(0, 1000).unwrap().frames.len(), 4);
        outbox.detach();
        assert_eq!(outbox.rewind(1), Err(ResumeFault::TooLate));
        assert_eq!(outbox.rewind(5), Err(ResumeFault::Ahead));
        let turn = outbox.rewind(3).unwrap();
        assert!(outbox.attach(turn, wake));
        assert_eq!(outbox.drain(turn, 1000).unwrap().frames, vec![Bytes::from("4")]);
    }

    #[test]
    fn unsent_frames_dropped_while_away_are_too_late() {
        let outbox = Outbox::new(LIMITS);
        outbox.detach();
        for frame in ["1", "2", "3"] {
            outbox.push(Bytes::from(frame)).unwrap();
        }
        assert_eq!(outbox.rewind(0), Err(ResumeFault::TooLate));
        let turn = outbox.rewind(1).unwrap();
        assert_eq!(outbox.drain(turn, 1000).unwrap().frames, vec![Bytes::from("2"), Bytes::from("3")]);
    }

    #[test]
    fn once_a_client_came_back_its_old_connection_takes_nothing_more() {
        let outbox = Outbox::new(OutboxLimits { replay_frames: 10, ..LIMITS });
        let (wake, _) = counted();
        assert!(outbox.attach(0, wake.clone()));
        outbox.push(Bytes::from_static(b"1")).unwrap();
        outbox.drain(0, 1000).unwrap();
        let turn = outbox.rewind(1).unwrap();
        // Produced between the new connection's request and its first word.
        outbox.push(Bytes::from_static(b"2")).unwrap();
        assert_eq!(outbox.drain(0, 1000), None);
        assert!(!outbox.attach(0, wake.clone()));
        assert!(outbox.attach(turn, wake));
        assert_eq!(outbox.drain(turn, 1000).unwrap().frames, vec![Bytes::from_static(b"2")]);
    }

    #[test]
    fn what_waits_when_a_client_comes_back_is_not_cut_to_the_ring() {
        let outbox = Outbox::new(LIMITS);
        let (wake, _) = counted();
        assert!(outbox.attach(0, wake.clone()));
        for frame in ["1", "2", "3"] {
            outbox.push(Bytes::from(frame)).unwrap();
        }
        let turn = outbox.rewind(0).unwrap();
        outbox.push(Bytes::from_static(b"4")).unwrap();
        assert!(outbox.attach(turn, wake));
        assert_eq!(outbox.drain(turn, 1000).unwrap().frames.len(), 4);
    }

    #[test]
    fn closes_after_the_last_frame() {
        let outbox = Outbox::new(LIMITS);
        let (wake, _) = counted();
        assert!(outbox.attach(0, wake));
        outbox.push(Bytes::from(vec![b'x'; 50])).unwrap();
        outbox.push(Bytes::from(vec![b'y'; 50])).unwrap();
        outbox.close(1001, "bye");
        assert_eq!(outbox.drain(0, 60).unwrap().close, None);
        assert_eq!(outbox.drain(0, 60).unwrap().close, Some((1001, "bye")));
    }

    #[test]
    fn an_outbox_that_is_abandoned_drops_what_waits_and_says_why() {
        let outbox = Outbox::new(LIMITS);
        let (wake, n) = counted();
        assert!(outbox.attach(0, wake));
        outbox.push(Bytes::from_static(b"sent")).unwrap();
        outbox.drain(0, 60).unwrap();
        outbox.push(Bytes::from_static(b"waits")).unwrap();
        assert_eq!((outbox.len(), outbox.bytes()), (1, 5));
        outbox.abandon(1013, "too slow");
        assert_eq!((outbox.len(), outbox.bytes(), n.load(Ordering::Relaxed)), (0, 0, 2));
        assert_eq!(outbox.push(Bytes::from_static(b"late")), Err(Overflow));
        let last = outbox.drain(0, 60).unwrap();
        assert_eq!((last.frames, last.close), (vec![], Some((1013, "too slow"))));
        // What was sent before can be asked for again.
        assert_eq!(outbox.rewind(0), Ok(1));
    }

    #[test]
    fn detached_outbox_keeps_at_most_what_may_be_replayed() {
        let memory = Memory::new(1 << 20, 1 << 20);
        let limits = OutboxLimits { messages: 1000, bytes: 1 << 20, replay_frames: 100, replay_bytes: 30_000 };
        let outbox = Outbox::counted(limits, memory.share("alice"));
        let (wake, _) = counted();
        assert!(outbox.attach(0, wake));
        let push = || outbox.push(Bytes::from(vec![b'x'; 10_000]));
        (0..50).for_each(|_| push().unwrap());
        assert_eq!(outbox.drain(0, 20_000).unwrap().frames.len(), 2);
        assert!(memory.used_by("alice") > 400_000);
        outbox.detach();
        assert_eq!(outbox.bytes(), 30_000);
        assert!(memory.used_by("alice") <= 32 << 10, "{}", memory.used_by("alice"));
        push().unwrap();
        assert_eq!(outbox.bytes(), 30_000);
        assert_eq!(outbox.rewind(47), Err(ResumeFault::TooLate));
        let turn = outbox.rewind(48).unwrap();
        assert_eq!(outbox.drain(turn, 1 << 20).unwrap().frames.len(), 3);
    }

    #[test]
    fn outboxes_that_nobody_reads_stay_within_the_total() {
        let memory = Memory::new(256 << 10, 512 << 10);
        let limits = OutboxLimits { messages: 1000, bytes: 1 << 20, replay_frames: 100, replay_bytes: 1 << 20 };
        let (wake, _) = counted();
        let outboxes: Vec<_> = (0..20)
            .map(|n| {
                let outbox = Outbox::counted(limits, memory.share(if n % 2 == 0 { "alice" } else { "bob" }));
                let end = CancellationToken::new();
                outbox.ends_with(end.clone());
                assert!(outbox.attach(0, wake.clone()));
                (outbox, end)
            })
            .collect();
        for _ in 0..50 {
            for (outbox, _) in &outboxes {
                let _ = outbox.push(Bytes::from(vec![b'x'; 10_000]));
                assert!(memory.used_total() <= 512 << 10);
            }
        }
        let ended = |(outbox, end): &&(Outbox, CancellationToken)| outbox.overflowed() || end.is_cancelled();
        assert!(outboxes.iter().filter(ended).count() >= 10);
        assert!(outboxes.iter().filter(ended).all(|(outbox, _)| outbox.is_empty()), "what waited is dropped at once");
        drop(outboxes);
        assert_eq!(memory.used_total(), 0);
    }

    #[test]
    fn bytes_handed_over_count_until_the_connection_took_them() {
        let memory = Memory::new(1 << 20, 1 << 20);
        let limits = OutboxLimits { replay_frames: 0, replay_bytes: 0, bytes: 1 << 20, ..LIMITS };
        let outbox = Outbox::counted(limits, memory.share("alice"));
        let (wake, _) = counted();
        assert!(outbox.attach(0, wake));
        outbox.push(Bytes::from(vec![b'x'; 200_000])).unwrap();
        assert!(outbox.drain(0, 1).is_some() && outbox.is_empty());
        assert!(memory.used_by("alice") >= 200_000 - EXEMPT_BYTES);
        outbox.taken(0);
        assert!(memory.used_by("alice") <= 16 << 10);
    }
}
