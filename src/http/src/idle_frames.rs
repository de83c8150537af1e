//! Ends HTTP/2 connections whose frames get nothing done: a flood of WINDOW_UPDATE, PRIORITY, PING, SETTINGS or empty DATA
//! takes a whole core and is no request that a limit would count (CVE-2019-9511 to 9518).
//!
//! Each such frame takes one from a connection's allowance, and so does each stream that is refused or broken off. Time,
//! requests, and bodies in both directions add to it.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    rc::Rc,
    task::{Context, Poll, ready},
    time::{Duration, Instant},
};

use actix_codec::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;

use crate::connections::Connection;

/// Frames that a connection may send at once without getting anything done.
const ALLOWANCE: u32 = 2000;

/// How many more it may send each second.
const EACH_SECOND: u32 = 200;

/// Bytes of a request's body for each of its DATA frames; one with less counts as a frame that gets nothing done.
const DATA_BYTES: u32 = 256;

/// The byte that says how much padding there is, and the padding.
const MAX_PADDING: u32 = 256;

/// Frames for each DATA frame of an answer: a window to update, of the stream and of the connection.
const FOR_ANSWER: u32 = 2;

/// Bytes with which a client begins (RFC 9113, 3.4).
const PREFACE: usize = 24;

/// How long a client that is told to calm down may take to read that.
pub const FAREWELL: Duration = Duration::from_secs(1);

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const PADDED: u8 = 8;

/// Follows the heads of frames through a stream of bytes, however it is cut.
#[derive(Default)]
struct Heads {
    head: [u8; 9],
    filled: usize,
    /// Bytes until the next head.
    skip: usize,
}

struct Head {
    kind: u8,
    flags: u8,
    length: u32,
}

impl Heads {
    fn pass(&mut self, mut bytes: &[u8], mut frame: impl FnMut(Head)) {
        while !bytes.is_empty() {
            let skipped = self.skip.min(bytes.len());
            self.skip -= skipped;
            bytes = bytes.get(skipped..).unwrap_or_default();
            let taken = (self.head.len() - self.filled).min(bytes.len());
            let (head, rest) = bytes.split_at(taken);
            if let Some(room) = self.head.get_mut(self.filled..self.filled + taken) {
                room.copy_from_slice(head);
            }
            self.filled += taken;
            bytes = rest;
            if self.filled == self.head.len() {
                self.filled = 0;
                let [a, b, c, kind, flags, ..] = self.head;
                let length = u32::from_be_bytes([0, a, b, c]);
                self.skip = usize::try_from(length).unwrap_or(usize::MAX);
                frame(Head { kind, flags, length });
            }
        }
    }
}

/// Counts what a connection may still send.
struct Allowance {
    left: u32,
    refilled: Instant,
    received: Heads,
    sent: Heads,
}

impl Allowance {
    fn new(now: Instant) -> Self {
        let received = Heads { skip: PREFACE, ..Heads::default() };
        Self { left: ALLOWANCE, refilled: now, received, sent: Heads::default() }
    }

    /// Takes in what the client has sent; `false` once that is more than it may.
    fn received(&mut self, bytes: &[u8], now: impl FnOnce() -> Instant) -> bool {
        let (mut add, mut take) = (0, 0);
        self.received.pass(bytes, |Head { kind, flags, length }| match kind {
            DATA => {
                // As much as that may be padding.
                let padding = if flags & PADDED != 0 { MAX_PADDING } else { 0 };
                add += length.saturating_sub(padding) / DATA_BYTES + u32::from(flags & END_STREAM != 0);
                take += 1;
            }
            HEADERS => add += 1,
            // Those of one request are bounded by the bytes that its headers may have.
            CONTINUATION => {}
            // It undoes a request, and what that added.
            RST_STREAM => take += 2,
            _ => take += 1,
        });
        self.add(add);
        self.take(take, now)
    }

    /// Takes in what the client was sent; `false` once more of it was of no use than may be.
    fn sent(&mut self, bytes: &[u8], now: impl FnOnce() -> Instant) -> bool {
        let (mut add, mut take) = (0, 0);
        self.sent.pass(bytes, |Head { kind, .. }| match kind {
            DATA => add += FOR_ANSWER,
            // It undoes a request, too: one over the bound of streams.
            RST_STREAM => take += 2,
            _ => {}
        });
        self.add(add);
        self.take(take, now)
    }

    /// Whether there was as much.
    fn take(&mut self, take: u32, now: impl FnOnce() -> Instant) -> bool {
        if take > self.left {
            let now = now();
            let seconds = now.duration_since(self.refilled).as_secs_f32();
            self.refilled = now;
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "it saturates, and is positive"
            )]
            self.add((seconds * EACH_SECOND as f32) as u32);
        }
        let enough = take <= self.left;
        self.left = self.left.saturating_sub(take);
        enough
    }

    fn add(&mut self, frames: u32) {
        self.left = self.left.saturating_add(frames).min(ALLOWANCE);
    }
}

/// The bytes of a connection, of which no more is read once its client has sent too many frames that get nothing done.
pub struct Metered<T> {
    io: T,
    connection: Rc<Connection>,
    allowance: Allowance,
    over: bool,
    told: Rc<Notify>,
}

impl<T> Metered<T> {
    /// That connection's, and what is notified when it is to be ended.
    pub fn new(io: T, connection: &Rc<Connection>) -> (Self, Rc<Notify>) {
        let told = Rc::new(Notify::new());
        let allowance = Allowance::new(Instant::now());
        (Self { io, connection: Rc::clone(connection), allowance, over: false, told: Rc::clone(&told) }, told)
    }

    fn sent(&mut self, bytes: &[u8]) {
        if !self.allowance.sent(bytes, Instant::now) && !self.connection.is_peers() && !self.over {
            self.end();
        }
    }

    fn end(&mut self) {
        self.over = true;
        self.told.notify_one();
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Metered<T> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.over {
            return Poll::Pending;
        }
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.io).poll_read(cx, buf))?;
        let read = buf.filled().get(before..).unwrap_or_default();
        // What another gateway sends is of many clients.
        if self.allowance.received(read, Instant::now) || self.connection.is_peers() {
            return Poll::Ready(Ok(()));
        }
        buf.set_filled(before);
        self.end();
        Poll::Pending
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Metered<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.io).poll_write(cx, buf))?;
        self.sent(buf.get(..written).unwrap_or_default());
        Poll::Ready(Ok(written))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.io).poll_write_vectored(cx, bufs))?;
        let mut left = written;
        for buf in bufs {
            let part = buf.get(..left.min(buf.len())).unwrap_or_default();
            self.sent(part);
            left -= part.len();
        }
        Poll::Ready(Ok(written))
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW_UPDATE: u8 = 8;

    fn frames(count: usize, kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        let head = [length[1], length[2], length[3], kind, flags, 0, 0, 0, 1];
        [&head[..], payload].concat().repeat(count)
    }

    struct Client {
        allowance: Allowance,
        began: Instant,
    }

    impl Client {
        fn new() -> Self {
            let began = Instant::now();
            let mut allowance = Allowance::new(began);
            assert!(allowance.received(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", || began));
            Self { allowance, began }
        }

        fn sends(&mut self, after: u64, frames: &[u8]) -> bool {
            let now = self.began + Duration::from_secs(after);
            // However the bytes are cut.
            frames.chunks(100).all(|chunk| self.allowance.received(chunk, || now))
        }

        fn is_sent(&mut self, after: u64, frames: &[u8]) -> bool {
            let now = self.began + Duration::from_secs(after);
            frames.chunks(100).all(|chunk| self.allowance.sent(chunk, || now))
        }
    }

    #[test]
    fn frames_without_progress_are_refused_over_the_allowance() {
        for (kind, payload) in [(WINDOW_UPDATE, &[0; 4][..]), (2, &[0; 5]), (6, &[0; 8]), (4, &[]), (0, &[]), (0, &[1])]
        {
            let mut client = Client::new();
            assert!(client.sends(0, &frames(1990, kind, 0, payload)), "{kind}");
            // Each second a few more.
            assert!(client.sends(1, &frames(190, kind, 0, payload)), "{kind}");
            assert!(!client.sends(1, &frames(100, kind, 0, payload)), "{kind}");
        }
        let mut client = Client::new();
        let reset = [frames(1, HEADERS, 5, b"x"), frames(1, RST_STREAM, 0, &[0; 4])].concat();
        assert!(!client.sends(0, &reset.repeat(3000)), "requests that are given up at once");
        let mut client = Client::new();
        let padded = [&[255][..], &[0; 255]].concat();
        assert!(!client.sends(0, &frames(3000, DATA, PADDED, &padded)), "nothing but padding");
        let mut client = Client::new();
        let refused = (0..3000).all(|_| {
            client.sends(0, &frames(1, HEADERS, 4, b"x")) && client.is_sent(0, &frames(1, RST_STREAM, 0, &[0; 4]))
        });
        assert!(!refused, "requests over the bound of streams");
    }

    #[test]
    fn clients_that_get_something_done_may_send_without_end() {
        let mut client = Client::new();
        // Requests with and without bodies.
        let request =
            [frames(1, HEADERS, 4, b"x"), frames(3, DATA, 0, &[b'x'; 1000]), frames(1, DATA, 1, b"")].concat();
        assert!(client.sends(0, &request.repeat(5000)));
        assert!(client.sends(0, &frames(10_000, HEADERS, 5, b"x")));
        // An answer of many pieces, each of which updates two windows.
        for _ in 0..10_000 {
            assert!(client.is_sent(0, &frames(1, DATA, 0, b"x")));
            assert!(client.sends(0, &frames(2, WINDOW_UPDATE, 0, &[0; 4])));
        }
        // Bodies with padding, and bodies of which no more is wanted once they were answered.
        assert!(client.sends(0, &frames(10_000, DATA, PADDED, &[1; 600])));
        for _ in 0..10_000 {
            assert!(client.sends(0, &frames(1, HEADERS, 4, b"x")));
            assert!(client.is_sent(0, &[frames(1, DATA, 1, b"x"), frames(1, RST_STREAM, 0, &[0; 4])].concat()));
        }
        // What is only answered by itself adds nothing.
        for _ in 0..1500 {
            assert!(client.is_sent(0, &frames(1, 6, 1, &[0; 8])));
            client.sends(0, &frames(2, 6, 0, &[0; 8]));
        }
        assert!(!client.sends(0, &frames(10, 6, 0, &[0; 8])));
    }
}
