//! A connection's bounded queue of outgoing messages, and the ring it replays from when a client comes back.
//!
//! Anyone on any thread may push; one pump drains. The outbox never wakes a pump that was already woken,
//! so a peer that stops reading costs no more than the bound.

use std::{collections::VecDeque, sync::Arc};

use bytes::Bytes;
use parking_lot::Mutex;

use crate::bounds::memory::Share;

/// Wakes the pump that drains an outbox. Called at most once between two drains.
pub type Wake = Arc<dyn Fn() + Send + Sync>;

/// What a pump should do next.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Drained {
    pub frames: Vec<Bytes>,
    /// Send a keep-alive ping.
    pub ping: bool,
    /// Everything was drained and the connection is to be closed with this code and reason.
    pub close: Option<(u16, &'static str)>,
}

/// The queue is full: the peer does not read.
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
struct State {
    /// Frames `base..base + frames.len()` of the session's stream; those below `sent` were handed to a pump.
    frames: VecDeque<Bytes>,
    base: u64,
    sent: u64,
    queued_bytes: usize,
    replay_bytes: usize,
    wake: Option<Wake>,
    /// The connection was lost; its client may come back.
    away: bool,
    woken: bool,
    ping: bool,
    close: Option<(u16, &'static str)>,
    overflowed: bool,
    /// Counts the clients that came back; only the pump of the latest turn drains.
    turn: u64,
    /// What the frames that are kept take of their principal's memory.
    share: Option<Share>,
}

/// See the module's page.
pub struct Outbox {
    limits: OutboxLimits,
    state: Mutex<State>,
}

impl Outbox {
    #[must_use]
    pub fn new(limits: OutboxLimits) -> Self {
        Self { limits, state: Mutex::default() }
    }

    /// As [`Self::new`]; what is kept for a client that comes back counts.
    #[must_use]
    pub fn counted(limits: OutboxLimits, share: Share) -> Self {
        Self { limits, state: Mutex::new(State { share: Some(share), ..State::default() }) }
    }

    /// Queues one message.
    ///
    /// # Errors
    /// `Overflow` once the bound is reached; the message is dropped and every later one too, until a pump is attached anew.
    pub fn push(&self, frame: Bytes) -> Result<(), Overflow> {
        let mut state = self.state.lock();
        if state.overflowed || state.close.is_some() {
            return Err(Overflow);
        }
        let queued = queued_len(&state);
        if queued >= self.limits.messages || (queued > 0 && state.queued_bytes + frame.len() > self.limits.bytes) {
            state.overflowed = true;
            return Err(Overflow);
        }
        state.queued_bytes += frame.len();
        state.frames.push_back(frame);
        // While nobody is there the ring's bound counts too.
        if state.away {
            let count = self.limits.replay_frames.max(1);
            while queued_len(&state) > count {
                drop_front(&mut state);
            }
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

    /// As [`Self::close`], without what is queued: that is dropped.
    pub fn abandon(&self, code: u16, reason: &'static str) {
        let mut state = self.state.lock();
        let sent = state.frames.len() - queued_len(&state);
        state.frames.truncate(sent);
        state.frames.shrink_to_fit();
        state.queued_bytes = 0;
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
        state.woken = false;
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
        self.trim(&mut state);
        if queued_len(&state) == 0 {
            out.close = state.close;
        } else if let Some(wake) = state.wake.clone() {
            state.woken = true;
            drop(state);
            wake();
        }
        (out != Drained::default()).then_some(out)
    }

    /// Attaches the pump of a turn; frames that wait are announced to it at once. `false` for one that came too
    /// late, because another connection has taken over.
    #[must_use]
    pub fn attach(&self, turn: u64, wake: Wake) -> bool {
        let mut state = self.state.lock();
        if state.turn != turn {
            return false;
        }
        state.wake = Some(wake);
        state.away = false;
        state.woken = false;
        state.overflowed = false;
        if queued_len(&state) > 0 || state.close.is_some() {
            self::wake(state);
        }
        true
    }

    /// The connection is gone; frames are kept for a client that comes back.
    pub fn detach(&self) {
        let mut state = self.state.lock();
        state.wake = None;
        state.away = true;
        state.woken = false;
    }

    /// There is no connection to send to.
    pub fn is_away(&self) -> bool {
        self.state.lock().away
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
        state.wake = None;
        state.away = false;
        state.woken = false;
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
        if let Some(mut share) = state.share.take() {
            while state.base < state.sent && !share.cover(state.replay_bytes) {
                drop_front(state);
            }
            state.share = Some(share);
        }
        // An idle session keeps no spare room: ten thousand of them may sleep here.
        if state.frames.capacity() > 32 && state.frames.len() * 4 < state.frames.capacity() {
            state.frames.shrink_to_fit();
        }
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

fn wake(mut state: parking_lot::MutexGuard<'_, State>) {
    if state.woken {
        return;
    }
    if let Some(wake) = state.wake.clone() {
        state.woken = true;
        // Not under the lock: the wake-up may drain at once.
        drop(state);
        wake();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

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
        let memory = crate::bounds::memory::Memory::new(64 << 10);
        let limits = OutboxLimits { replay_frames: 100, replay_bytes: 1 << 20, bytes: 1 << 20, ..LIMITS };
        let outbox = Outbox::counted(limits, memory.take("alice", 0).unwrap());
        let (wake, _) = counted();
        assert!(outbox.attach(0, wake));
        for _ in 0..3 {
            outbox.push(Bytes::from(vec![b'x'; 15 << 10])).unwrap();
        }
        assert_eq!(outbox.drain(0, 1 << 20).unwrap().frames.len(), 3);
        // Half of what there is holds two of them.
        assert_eq!(memory.of("alice"), 32 << 10);
        assert_eq!(outbox.rewind(0), Err(ResumeFault::TooLate));
        assert_eq!(outbox.rewind(1), Ok(1));
        drop(outbox);
        assert_eq!(memory.of("alice"), 0);
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
}
