//! Limits the bytes that a WebSocket accepts.
//!
//! The codec holds a frame back until all of it has arrived, and only then compares it with its limit: a peer that announces a
//! terabyte could fill the memory. [`LimitedInput`] instead refuses a frame by the length in its header. It also counts the
//! bytes as they arrive, until their message is answered ([`countersign_exchange::body_budget`]).

use std::{
    cell::RefCell,
    collections::VecDeque,
    pin::Pin,
    rc::Rc,
    sync::Arc,
    task::{Context, Poll, ready},
};

use actix_web_actors::ws::CloseCode;
use bytes::Bytes;
use futures_util::Stream;

use countersign_exchange::body_budget::{ConnectionBudget, Reservation, UNCOUNTED_MESSAGE_BYTES};
use countersign_protocol::McpError;

/// The code and the reason of a close frame.
pub type CloseFrame = (CloseCode, &'static str);

pub const TOO_LARGE: CloseFrame = (CloseCode::Size, "message too large");
/// Only an extension would give these bits a meaning, and none was negotiated (RFC 6455, 5.2).
const RESERVED_BITS: CloseFrame = (CloseCode::Protocol, "reserved bits are set");
const NO_ROOM: CloseFrame = (CloseCode::Again, "no room for the message at the moment");

/// Records a sign of life of the peer.
pub type Heartbeat = Rc<dyn Fn()>;

/// The number of received bytes that are a sign of life, because a large message may take longer than a ping may go
/// unanswered. Fewer are none, so a peer that sends a message byte by byte does not hold room for it for long.
const HEARTBEAT_BYTES: usize = 4 << 10;

/// The limits of the messages from a peer.
pub struct MessageLimits {
    pub max_bytes: usize,
    /// The budget for bodies, against which the bytes of messages count. `None` counts nothing.
    pub budget: Option<Arc<ConnectionBudget>>,
}

/// The state that [`LimitedInput`] shares with the pump.
#[derive(Clone, Default)]
pub struct InputState(Rc<RefCell<Inner>>);

#[derive(Default)]
struct Inner {
    /// The counted bytes of each complete message, in order of arrival. Small messages are not counted.
    reservations: VecDeque<Option<Reservation>>,
    close_frame: Option<CloseFrame>,
}

impl InputState {
    /// Removes and returns the counted bytes of the next message. They stay counted until the returned value is dropped.
    #[must_use]
    pub fn take_reservation(&self) -> Option<Reservation> {
        self.0.borrow_mut().reservations.pop_front().flatten()
    }

    /// Returns the close frame to send if the input broke a limit.
    pub fn close_frame(&self) -> Option<CloseFrame> {
        self.0.borrow().close_frame
    }
}

type PendingGrowth = Pin<Box<dyn Future<Output = (Reservation, Result<(), McpError>)>>>;

/// A stream of the bytes of a connection that ends before the first forbidden frame.
pub struct LimitedInput<S> {
    input: S,
    frames: WebSocketFrameScanner,
    state: InputState,
    /// See [`MessageLimits::budget`].
    budget: Option<Arc<ConnectionBudget>>,
    /// The counted bytes of the message that is arriving.
    reservation: Option<Reservation>,
    /// A piece that waits for room in the budget, with the number of messages that end in the piece.
    waiting: Option<(Bytes, usize, PendingGrowth)>,
    heartbeat: Heartbeat,
    /// The number of bytes since the last call of `heartbeat`.
    unreported_bytes: usize,
}

impl<S> LimitedInput<S> {
    /// Limits the payload of each frame to that of a message. Calls `heartbeat` for every `HEARTBEAT_BYTES` that arrive.
    pub fn new(input: S, limits: MessageLimits, heartbeat: Heartbeat) -> (Self, InputState) {
        let state = InputState::default();
        let input = Self {
            input,
            frames: WebSocketFrameScanner::new(limits.max_bytes),
            state: state.clone(),
            budget: limits.budget,
            reservation: None,
            waiting: None,
            heartbeat,
            unreported_bytes: 0,
        };
        (input, state)
    }

    /// Counts a piece in which so many messages end. Returns the piece, or `None` if the piece must wait for room.
    fn count(&mut self, piece: Bytes, ended_messages: usize) -> Option<Bytes> {
        let Some(budget) = &self.budget else { return Some(piece) };
        let bytes = piece.len();
        if self.reservation.is_some() || bytes > UNCOUNTED_MESSAGE_BYTES {
            let mut reservation = self.reservation.take().unwrap_or_else(|| budget.new_reservation());
            if !reservation.try_grow(bytes) {
                let growing = Box::pin(async move {
                    let grown = reservation.grow(bytes).await;
                    (reservation, grown)
                });
                self.waiting = Some((piece, ended_messages, growing));
                return None;
            }
            self.reservation = Some(reservation);
        }
        self.end_messages(ended_messages);
        Some(piece)
    }

    /// Assigns the counted bytes to the first message that ends. Further messages that end in the same piece hold no bytes.
    fn end_messages(&mut self, ended_messages: usize) {
        let mut state = self.state.0.borrow_mut();
        state.reservations.extend((0..ended_messages).map(|_| self.reservation.take()));
    }
}

impl<S, E> Stream for LimitedInput<S>
where
    S: Stream<Item = Result<Bytes, E>> + Unpin,
{
    type Item = Result<Bytes, E>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if let Some((_, _, growing)) = &mut self.waiting {
            let (reservation, grown) = ready!(growing.as_mut().poll(cx));
            let Some((piece, ended_messages, _)) = self.waiting.take() else { return Poll::Ready(None) };
            if grown.is_err() {
                self.state.0.borrow_mut().close_frame = Some(NO_ROOM);
                return Poll::Ready(None);
            }
            self.reservation = Some(reservation);
            self.end_messages(ended_messages);
            return Poll::Ready(Some(Ok(piece)));
        }
        if self.state.close_frame().is_some() {
            return Poll::Ready(None);
        }
        let mut chunk = match ready!(Pin::new(&mut self.input).poll_next(cx)) {
            Some(Ok(chunk)) => chunk,
            other => return Poll::Ready(other),
        };
        self.unreported_bytes += chunk.len();
        if self.unreported_bytes >= HEARTBEAT_BYTES {
            self.unreported_bytes = 0;
            (self.heartbeat)();
        }
        let mut ended_messages = 0;
        if let Err((allowed, close_frame)) = self.frames.scan(&chunk, || ended_messages += 1) {
            self.state.0.borrow_mut().close_frame = Some(close_frame);
            chunk.truncate(allowed);
        }
        match self.count(chunk, ended_messages) {
            Some(chunk) => Poll::Ready(Some(Ok(chunk))),
            // The piece waits for room. Its first poll registers this task, which is woken once there is room.
            None => self.poll_next(cx),
        }
    }
}

/// Finds the headers of WebSocket frames in a stream of bytes that arrives in pieces of any size.
struct WebSocketFrameScanner {
    max: u64,
    header: [u8; 10],
    filled: usize,
    /// Number of bytes of mask and payload until the next header.
    bytes_to_skip: u64,
    /// `true` if these bytes belong to the last frame of a message.
    is_last: bool,
}

impl WebSocketFrameScanner {
    fn new(max: usize) -> Self {
        let max = u64::try_from(max).unwrap_or(u64::MAX);
        Self { max, header: [0; 10], filled: 0, bytes_to_skip: 0, is_last: false }
    }

    /// Scans bytes, and calls `on_message_end` for each message that ends in them.
    ///
    /// # Errors
    /// Returns the number of bytes before the forbidden frame, and the close code.
    fn scan(&mut self, bytes: &[u8], mut on_message_end: impl FnMut()) -> Result<(), (usize, CloseFrame)> {
        let mut position = 0;
        while position < bytes.len() {
            if self.bytes_to_skip > 0 {
                let rest = u64::try_from(bytes.len() - position).unwrap_or(u64::MAX);
                let step = self.bytes_to_skip.min(rest);
                self.bytes_to_skip -= step;
                position += usize::try_from(step).unwrap_or(usize::MAX);
                if self.bytes_to_skip == 0 && self.is_last {
                    on_message_end();
                }
                continue;
            }
            let start = position - self.filled.min(position);
            self.header[self.filled] = bytes[position];
            self.filled += 1;
            position += 1;
            if self.header[0] & 0x70 != 0 {
                return Err((start, RESERVED_BITS));
            }
            if let Some(length) = self.length() {
                if length > self.max {
                    return Err((start, TOO_LARGE));
                }
                let mask = if self.header[1] & 0x80 == 0 { 0 } else { 4 };
                self.bytes_to_skip = length + mask;
                self.filled = 0;
                // A control frame stands between the frames of a message and is part of none.
                self.is_last = self.header[0] & 0x88 == 0x80;
                if self.bytes_to_skip == 0 && self.is_last {
                    on_message_end();
                }
            }
        }
        Ok(())
    }

    /// Returns the length of the payload, once the header is complete.
    fn length(&self) -> Option<u64> {
        let [_, second, a, b, rest @ ..] = self.header;
        match (second & 0x7f, self.filled) {
            (_, 0..2) => None,
            (126, filled) => (filled >= 4).then(|| u64::from(u16::from_be_bytes([a, b]))),
            (127, filled) => (filled >= 10).then(|| {
                let [c, d, e, f, g, h] = rest;
                u64::from_be_bytes([a, b, c, d, e, f, g, h])
            }),
            (short, _) => Some(u64::from(short)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures_util::{FutureExt, StreamExt, stream};

    use super::*;
    use countersign_exchange::body_budget::BodyBudget;

    fn frame(first: u8, length: usize) -> Vec<u8> {
        let mut bytes = vec![first];
        match length {
            0..126 => bytes.push(0x80 | u8::try_from(length).unwrap()),
            126..65_536 => {
                bytes.push(0x80 | 126);
                bytes.extend_from_slice(&u16::try_from(length).unwrap().to_be_bytes());
            }
            _ => {
                bytes.push(0x80 | 127);
                bytes.extend_from_slice(&u64::try_from(length).unwrap().to_be_bytes());
            }
        }
        bytes.extend_from_slice(&[1, 2, 3, 4]);
        bytes.resize(bytes.len() + length, 0xff);
        bytes
    }

    fn limits(max_bytes: usize, budget: Option<Arc<ConnectionBudget>>) -> MessageLimits {
        MessageLimits { max_bytes, budget }
    }

    fn no_heartbeat() -> Heartbeat {
        Rc::new(|| ())
    }

    #[test]
    fn unfinished_message_is_heartbeat_unless_it_trickles() {
        let beats = Rc::new(RefCell::new(0));
        let counter = Rc::clone(&beats);
        let bytes = frame(0x81, 70_000);
        let pieces = [&bytes[..HEARTBEAT_BYTES - 1], &bytes[..1], &bytes[..HEARTBEAT_BYTES]];
        let pieces = pieces.map(|piece| Ok::<_, ()>(Bytes::copy_from_slice(piece)));
        let heartbeat = Rc::new(move || *counter.borrow_mut() += 1);
        let (mut input, _) = LimitedInput::new(stream::iter(pieces), limits(1 << 20, None), heartbeat);
        for expected in [0, 1, 2] {
            assert!(input.next().now_or_never().flatten().is_some());
            assert_eq!(*beats.borrow(), expected);
        }
    }

    /// Returns the bytes that pass if the input arrives in pieces of `piece` bytes, and the close code.
    fn pass(bytes: &[u8], piece: usize, max: usize) -> (Vec<u8>, Option<CloseCode>) {
        let pieces: Vec<_> = bytes.chunks(piece).map(|p| Ok::<_, ()>(Bytes::copy_from_slice(p))).collect();
        let (input, state) = LimitedInput::new(stream::iter(pieces), limits(max, None), no_heartbeat());
        let passed = input.map(Result::unwrap).collect::<Vec<_>>().now_or_never().unwrap().concat();
        (passed, state.close_frame().map(|(code, _)| code))
    }

    #[test]
    fn frames_within_limit_pass_in_pieces_of_any_size() {
        let bytes = [frame(0x81, 0), frame(0x01, 125), frame(0x80, 126), frame(0x89, 3), frame(0x81, 70_000)].concat();
        for piece in [1, 2, 3, 7, 4096, bytes.len()] {
            assert_eq!(pass(&bytes, piece, 70_000), (bytes.clone(), None), "in pieces of {piece}");
        }
    }

    #[test]
    fn frame_over_limit_is_refused_by_its_header() {
        let good = frame(0x81, 100);
        for too_large in [frame(0x81, 101), frame(0x81, 300), frame(0x81, 70_000)] {
            let bytes = [good.clone(), too_large].concat();
            let (passed, code) = pass(&bytes, bytes.len(), 100);
            assert_eq!((passed, code), (good.clone(), Some(CloseCode::Size)));
            for piece in [1, 3, 5] {
                let (passed, code) = pass(&bytes, piece, 100);
                assert!(passed.len() <= good.len() + 10, "{}", passed.len());
                assert_eq!(code, Some(CloseCode::Size));
            }
        }
    }

    #[test]
    fn frame_that_announces_a_terabyte_is_refused_at_once() {
        let mut header = vec![0x81, 0xff];
        header.extend_from_slice(&(1_u64 << 40).to_be_bytes());
        assert_eq!(pass(&header, header.len(), 8 << 20), (vec![], Some(CloseCode::Size)));
        let mut header = vec![0x81, 0xff];
        header.extend_from_slice(&u64::MAX.to_be_bytes());
        assert_eq!(pass(&header, header.len(), usize::MAX >> 1), (vec![], Some(CloseCode::Size)));
    }

    #[test]
    fn reserved_bits_are_a_protocol_error() {
        for bit in [0x40, 0x20, 0x10] {
            assert_eq!(pass(&[0x81 | bit], 1, 100), (vec![], Some(CloseCode::Protocol)));
        }
    }

    /// Returns an input of three messages of these sizes, of which at most 10,000 bytes are held at a time.
    fn counted_input(sizes: [usize; 3]) -> (impl Stream<Item = Result<Bytes, ()>> + Unpin, InputState) {
        let budget = BodyBudget::new(1 << 20, 10_000, Duration::from_secs(5)).connection_budget();
        let pieces = sizes.map(|size| Ok(frame(0x82, size - 8).into()));
        LimitedInput::new(stream::iter(pieces), limits(1 << 20, Some(budget)), no_heartbeat())
    }

    #[tokio::test(start_paused = true)]
    async fn message_holds_its_bytes_until_it_is_answered() {
        let (first, second) = (frame(0x81, 7992), frame(0x81, 3992));
        let third = [&second[..], &frame(0x81, 1)].concat();
        let budget = BodyBudget::new(1 << 20, 10_000, Duration::from_secs(5)).connection_budget();
        let pieces = [&first[..4000], &first[4000..], &third].map(|piece| Ok::<_, ()>(Bytes::copy_from_slice(piece)));
        let (mut input, state) = LimitedInput::new(stream::iter(pieces), limits(1 << 20, Some(budget)), no_heartbeat());
        assert!(input.next().await.is_some() && input.next().await.is_some());
        let reservation = state.take_reservation().unwrap();
        assert_eq!(reservation.bytes(), 8000);
        // The next piece waits for the first message.
        assert!(input.next().now_or_never().is_none());
        drop(reservation);
        assert!(input.next().await.is_some());
        assert_eq!(state.take_reservation().unwrap().bytes(), third.len());
        assert!(state.take_reservation().is_none(), "the second message of a piece holds nothing");
        assert!(state.close_frame().is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn message_without_room_ends_the_input() {
        let (mut input, state) = counted_input([8000, UNCOUNTED_MESSAGE_BYTES, 8000]);
        assert!(input.next().await.is_some());
        let _held = state.take_reservation().unwrap();
        assert!(input.next().await.is_some(), "a small message needs no room");
        assert!(state.take_reservation().is_none());
        assert!(input.next().await.is_none());
        assert_eq!(state.close_frame().map(|(code, _)| code), Some(CloseCode::Again));
    }
}
