//! Bounds the frames of a WebSocket by what their heads announce, before any of their payload is taken in.
//!
//! The codec behind it holds a frame back until all of it has arrived and only then compares it with its limit, so a
//! peer that announces a terabyte could fill the memory. Here such a frame ends the input: what came before it is
//! still taken in, and [`Verdict`] says with which code to close.

use std::{
    cell::Cell,
    pin::Pin,
    rc::Rc,
    task::{Context, Poll, ready},
};

use actix_web_actors::ws::CloseCode;
use bytes::Bytes;
use futures_util::Stream;

use super::counted::Counting;

/// Why the input was ended, if it was.
#[derive(Clone, Default)]
pub struct Verdict(Rc<Cell<Option<Fault>>>);

/// What is wrong with a frame's head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    TooLarge,
    /// Bits that only an extension would give a meaning, and none was negotiated (RFC 6455, 5.2).
    Reserved,
}

impl Verdict {
    /// Close code and reason, if a frame was refused.
    #[must_use]
    pub fn close(&self) -> Option<(CloseCode, &'static str)> {
        self.0.get().map(|fault| match fault {
            Fault::TooLarge => (CloseCode::Size, "message too large"),
            Fault::Reserved => (CloseCode::Protocol, "reserved bits are set"),
        })
    }
}

/// The bytes of a connection, up to the first frame that may not be.
pub struct FrameBound<S> {
    input: S,
    heads: Heads,
    verdict: Verdict,
    /// What counts the bytes, where they are counted.
    counting: Option<Counting>,
}

impl<S> FrameBound<S> {
    /// Frames of at most `max` bytes of payload.
    #[must_use]
    pub fn new(input: S, max: usize) -> (Self, Verdict) {
        let verdict = Verdict::default();
        (Self { input, heads: Heads::new(max), verdict: verdict.clone(), counting: None }, verdict)
    }

    /// Counts what comes in, too; there may be no room for it.
    #[must_use]
    pub fn counted(mut self, counting: Counting) -> Self {
        self.counting = Some(counting);
        self
    }
}

impl<S, E> Stream for FrameBound<S>
where
    S: Stream<Item = Result<Bytes, E>> + Unpin,
{
    type Item = Result<Bytes, E>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.verdict.0.get().is_some() {
            return Poll::Ready(None);
        }
        if let Some(counting) = &mut self.counting
            && let Some(waited) = ready!(counting.poll_waiting(cx))
        {
            return Poll::Ready(waited.ok().map(Ok));
        }
        let mut chunk = match ready!(Pin::new(&mut self.input).poll_next(cx)) {
            Some(Ok(chunk)) => chunk,
            other => return Poll::Ready(other),
        };
        let mut ended = 0;
        if let Err((good, fault)) = self.heads.pass(&chunk, || ended += 1) {
            self.verdict.0.set(Some(fault));
            chunk.truncate(good);
        }
        let passed = match &mut self.counting {
            Some(counting) => counting.take(chunk, ended),
            None => Some(chunk),
        };
        match passed {
            Some(chunk) => Poll::Ready(Some(Ok(chunk))),
            // It is polled for the first time, so that it wakes this task when there is room.
            None => self.poll_next(cx),
        }
    }
}

/// Follows the heads of frames through a stream of bytes, however it is cut.
struct Heads {
    max: u64,
    head: [u8; 10],
    filled: usize,
    /// Bytes of mask and payload until the next head.
    skip: u64,
    /// Those of the last frame of a message.
    is_last: bool,
}

impl Heads {
    fn new(max: usize) -> Self {
        Self { max: u64::try_from(max).unwrap_or(u64::MAX), head: [0; 10], filled: 0, skip: 0, is_last: false }
    }

    /// Takes bytes in; `ended` is called for each message that ends in them.
    ///
    /// # Errors
    /// How many of them come before the frame that is refused, and why it is.
    fn pass(&mut self, bytes: &[u8], mut ended: impl FnMut()) -> Result<(), (usize, Fault)> {
        let mut at = 0;
        while at < bytes.len() {
            if self.skip > 0 {
                let rest = u64::try_from(bytes.len() - at).unwrap_or(u64::MAX);
                let step = self.skip.min(rest);
                self.skip -= step;
                at += usize::try_from(step).unwrap_or(usize::MAX);
                if self.skip == 0 && self.is_last {
                    ended();
                }
                continue;
            }
            let begin = at - self.filled.min(at);
            self.head[self.filled] = bytes[at];
            self.filled += 1;
            at += 1;
            if self.head[0] & 0x70 != 0 {
                return Err((begin, Fault::Reserved));
            }
            if let Some(length) = self.length() {
                if length > self.max {
                    return Err((begin, Fault::TooLarge));
                }
                let mask = if self.head[1] & 0x80 == 0 { 0 } else { 4 };
                self.skip = length + mask;
                self.filled = 0;
                // Control frames go in between and are part of none.
                self.is_last = self.head[0] & 0x88 == 0x80;
                if self.skip == 0 && self.is_last {
                    ended();
                }
            }
        }
        Ok(())
    }

    /// The payload's length, once the head is there.
    fn length(&self) -> Option<u64> {
        let [_, second, a, b, rest @ ..] = self.head;
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
    use futures_util::{FutureExt, StreamExt, stream};

    use super::*;

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

    /// What comes through when the bytes arrive in pieces of that size, and the close code.
    fn through(bytes: &[u8], piece: usize, max: usize) -> (Vec<u8>, Option<CloseCode>) {
        let pieces: Vec<_> = bytes.chunks(piece).map(|p| Ok::<_, ()>(Bytes::copy_from_slice(p))).collect();
        let (bound, verdict) = FrameBound::new(stream::iter(pieces), max);
        let passed = bound.map(Result::unwrap).collect::<Vec<_>>().now_or_never().unwrap().concat();
        (passed, verdict.close().map(|(code, _)| code))
    }

    #[test]
    fn frames_within_the_limit_pass_however_they_are_cut() {
        let bytes = [frame(0x81, 0), frame(0x01, 125), frame(0x80, 126), frame(0x89, 3), frame(0x81, 70_000)].concat();
        for piece in [1, 2, 3, 7, 4096, bytes.len()] {
            assert_eq!(through(&bytes, piece, 70_000), (bytes.clone(), None), "in pieces of {piece}");
        }
    }

    #[test]
    fn a_frame_over_the_limit_is_refused_by_its_head_and_what_came_before_passes() {
        let good = frame(0x81, 100);
        for too_large in [frame(0x81, 101), frame(0x81, 300), frame(0x81, 70_000)] {
            let bytes = [good.clone(), too_large].concat();
            let (passed, code) = through(&bytes, bytes.len(), 100);
            assert_eq!((passed, code), (good.clone(), Some(CloseCode::Size)));
            for piece in [1, 3, 5] {
                let (passed, code) = through(&bytes, piece, 100);
                assert!(passed.len() <= good.len() + 10, "{}", passed.len());
                assert_eq!(code, Some(CloseCode::Size));
            }
        }
    }

    #[test]
    fn a_terabyte_is_refused_before_any_of_it_has_come() {
        let mut head = vec![0x81, 0xff];
        head.extend_from_slice(&(1_u64 << 40).to_be_bytes());
        assert_eq!(through(&head, head.len(), 8 << 20), (vec![], Some(CloseCode::Size)));
        let mut head = vec![0x81, 0xff];
        head.extend_from_slice(&u64::MAX.to_be_bytes());
        assert_eq!(through(&head, head.len(), usize::MAX >> 1), (vec![], Some(CloseCode::Size)));
    }

    #[test]
    fn reserved_bits_are_a_fault_of_the_protocol() {
        for bit in [0x40, 0x20, 0x10] {
            assert_eq!(through(&[0x81 | bit], 1, 100), (vec![], Some(CloseCode::Protocol)));
        }
    }
}
