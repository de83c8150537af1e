//! Ends HTTP/2 connections that send too many idle frames, which neither begin a request nor carry content. A flood of
//! WINDOW_UPDATE, PRIORITY, PING, SETTINGS or empty DATA occupies a whole core, and no limit of requests counts it
//! (CVE-2019-9511 to 9518).
//!
//! Each connection has an allowance of idle frames. Streams that are refused or reset use it up as well. It grows with time,
//! with requests, and with bodies in both directions.

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

/// Number of idle frames that a connection may send at once.
const MAX_ALLOWANCE: u32 = 2000;

/// Number of idle frames that a connection may send each second.
const FRAMES_PER_SECOND: u32 = 200;

/// Size in bytes below which a DATA frame of a request counts as idle.
const MIN_DATA_BYTES: u32 = 256;

/// Maximum size in bytes of the padding of a frame, including the field with its length.
const MAX_PADDING: u32 = 256;

/// Number of frames that a client may send for each DATA frame of a response, to update the windows of the stream and of the
/// connection.
const FRAMES_PER_RESPONSE_DATA: u32 = 2;

/// Size in bytes of the preface that a client begins with (RFC 9113, 3.4).
const PREFACE_BYTES: usize = 24;

/// Maximum time that a client may take to read a GOAWAY frame.
pub const GOAWAY_TIMEOUT: Duration = Duration::from_secs(1);

// Frame types and flags (RFC 9113, section 6).
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const CONTINUATION: u8 = 9;
const END_STREAM_FLAG: u8 = 1;
const PADDED_FLAG: u8 = 8;

/// Finds the headers of HTTP/2 frames in a stream of bytes that arrives in pieces of any size.
#[derive(Default)]
struct Http2FrameScanner {
    header: [u8; 9],
    filled: usize,
    /// Number of bytes until the next header.
    bytes_to_skip: usize,
}

struct FrameHeader {
    kind: u8,
    flags: u8,
    length: u32,
}

impl Http2FrameScanner {
    /// Scans bytes, and calls `on_header` for each header that ends in them.
    fn scan(&mut self, mut bytes: &[u8], mut on_header: impl FnMut(FrameHeader)) {
        while !bytes.is_empty() {
            let skipped = self.bytes_to_skip.min(bytes.len());
            self.bytes_to_skip -= skipped;
            bytes = bytes.get(skipped..).unwrap_or_default();
            let copied_bytes = (self.header.len() - self.filled).min(bytes.len());
            let (header, rest) = bytes.split_at(copied_bytes);
            if let Some(target) = self.header.get_mut(self.filled..self.filled + copied_bytes) {
                target.copy_from_slice(header);
            }
            self.filled += copied_bytes;
            bytes = rest;
            if self.filled == self.header.len() {
                self.filled = 0;
                let [a, b, c, kind, flags, ..] = self.header;
                let length = u32::from_be_bytes([0, a, b, c]);
                self.bytes_to_skip = usize::try_from(length).unwrap_or(usize::MAX);
                on_header(FrameHeader { kind, flags, length });
            }
        }
    }
}

/// Counts the idle frames that a connection may still send.
struct Allowance {
    remaining: u32,
    refilled_at: Instant,
    received: Http2FrameScanner,
    sent: Http2FrameScanner,
}

impl Allowance {
    fn new(now: Instant) -> Self {
        let received = Http2FrameScanner { bytes_to_skip: PREFACE_BYTES, ..Http2FrameScanner::default() };
        Self { remaining: MAX_ALLOWANCE, refilled_at: now, received, sent: Http2FrameScanner::default() }
    }

    /// Counts the frames in bytes from the client. Returns `false` if the allowance is exceeded.
    fn count_received(&mut self, bytes: &[u8], now: impl FnOnce() -> Instant) -> bool {
        let (mut earned, mut spent) = (0, 0);
        self.received.scan(bytes, |FrameHeader { kind, flags, length }| match kind {
            DATA => {
                // The frame may consist of padding alone.
                let padding = if flags & PADDED_FLAG != 0 { MAX_PADDING } else { 0 };
                earned += length.saturating_sub(padding) / MIN_DATA_BYTES + u32::from(flags & END_STREAM_FLAG != 0);
                spent += 1;
            }
            HEADERS => earned += 1,
            // The maximum size of the headers of a request limits these frames.
            CONTINUATION => {}
            // A reset ends a request, and takes back the allowance that the request added.
            RST_STREAM => spent += 2,
            _ => spent += 1,
        });
        self.add(earned);
        self.take(spent, now)
    }

    /// Counts the frames in bytes to the client. Returns `false` if the allowance is exceeded.
    fn count_sent(&mut self, bytes: &[u8], now: impl FnOnce() -> Instant) -> bool {
        let (mut earned, mut spent) = (0, 0);
        self.sent.scan(bytes, |FrameHeader { kind, .. }| match kind {
            DATA => earned += FRAMES_PER_RESPONSE_DATA,
            // The gateway has refused a request over the limit of streams.
            RST_STREAM => spent += 2,
            _ => {}
        });
        self.add(earned);
        self.take(spent, now)
    }

    /// Takes frames from the allowance. Returns `false` if there are too few.
    fn take(&mut self, frames: u32, now: impl FnOnce() -> Instant) -> bool {
        if frames > self.remaining {
            let now = now();
            let seconds = now.duration_since(self.refilled_at).as_secs_f32();
            self.refilled_at = now;
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "the value is positive and the cast saturates"
            )]
            self.add((seconds * FRAMES_PER_SECOND as f32) as u32);
        }
        let is_sufficient = frames <= self.remaining;
        self.remaining = self.remaining.saturating_sub(frames);
        is_sufficient
    }

    fn add(&mut self, frames: u32) {
        self.remaining = self.remaining.saturating_add(frames).min(MAX_ALLOWANCE);
    }
}

/// The socket of a connection, which reads nothing more after its client has sent too many idle frames.
pub struct MeteredIo<T> {
    io: T,
    connection: Rc<Connection>,
    allowance: Allowance,
    is_exceeded: bool,
    exceeded: Rc<Notify>,
}

impl<T> MeteredIo<T> {
    /// Wraps a socket. Also returns a `Notify` that fires when the connection must be closed.
    pub fn new(io: T, connection: &Rc<Connection>) -> (Self, Rc<Notify>) {
        let exceeded = Rc::new(Notify::new());
        let (connection, allowance) = (Rc::clone(connection), Allowance::new(Instant::now()));
        (Self { io, connection, allowance, is_exceeded: false, exceeded: Rc::clone(&exceeded) }, exceeded)
    }

    fn count_sent(&mut self, bytes: &[u8]) {
        if !self.allowance.count_sent(bytes, Instant::now) && !self.connection.is_peer() && !self.is_exceeded {
            self.mark_exceeded();
        }
    }

    fn mark_exceeded(&mut self) {
        self.is_exceeded = true;
        self.exceeded.notify_one();
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for MeteredIo<T> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.is_exceeded {
            return Poll::Pending;
        }
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.io).poll_read(cx, buf))?;
        let received_bytes = buf.filled().get(before..).unwrap_or_default();
        // Another gateway sends the frames of many clients.
        if self.allowance.count_received(received_bytes, Instant::now) || self.connection.is_peer() {
            return Poll::Ready(Ok(()));
        }
        buf.set_filled(before);
        self.mark_exceeded();
        Poll::Pending
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for MeteredIo<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written_len = ready!(Pin::new(&mut self.io).poll_write(cx, buf))?;
        self.count_sent(buf.get(..written_len).unwrap_or_default());
        Poll::Ready(Ok(written_len))
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
        let written_len = ready!(Pin::new(&mut self.io).poll_write_vectored(cx, bufs))?;
        let mut remaining = written_len;
        for buf in bufs {
            let part = buf.get(..remaining.min(buf.len())).unwrap_or_default();
            self.count_sent(part);
            remaining -= part.len();
        }
        Poll::Ready(Ok(written_len))
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
        opened_at: Instant,
    }

    impl Client {
        fn new() -> Self {
            let opened_at = Instant::now();
            let mut allowance = Allowance::new(opened_at);
            assert!(allowance.count_received(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", || opened_at));
            Self { allowance, opened_at }
        }

        fn send(&mut self, after_secs: u64, frames: &[u8]) -> bool {
            let now = self.opened_at + Duration::from_secs(after_secs);
            frames.chunks(100).all(|chunk| self.allowance.count_received(chunk, || now))
        }

        fn receive(&mut self, after_secs: u64, frames: &[u8]) -> bool {
            let now = self.opened_at + Duration::from_secs(after_secs);
            frames.chunks(100).all(|chunk| self.allowance.count_sent(chunk, || now))
        }
    }

    #[test]
    fn idle_frames_over_allowance_are_refused() {
        for (kind, payload) in [(WINDOW_UPDATE, &[0; 4][..]), (2, &[0; 5]), (6, &[0; 8]), (4, &[]), (0, &[]), (0, &[1])]
        {
            let mut client = Client::new();
            assert!(client.send(0, &frames(1990, kind, 0, payload)), "{kind}");
            assert!(client.send(1, &frames(190, kind, 0, payload)), "{kind}");
            assert!(!client.send(1, &frames(100, kind, 0, payload)), "{kind}");
        }
        let mut client = Client::new();
        let reset = [frames(1, HEADERS, 5, b"x"), frames(1, RST_STREAM, 0, &[0; 4])].concat();
        assert!(!client.send(0, &reset.repeat(3000)), "requests that are reset at once");
        let mut client = Client::new();
        let padded = [&[255][..], &[0; 255]].concat();
        assert!(!client.send(0, &frames(3000, DATA, PADDED_FLAG, &padded)), "only padding");
        let mut client = Client::new();
        let refused = (0..3000).all(|_| {
            client.send(0, &frames(1, HEADERS, 4, b"x")) && client.receive(0, &frames(1, RST_STREAM, 0, &[0; 4]))
        });
        assert!(!refused, "requests over the limit of streams");
    }

    #[test]
    fn frames_with_progress_are_never_refused() {
        let mut client = Client::new();
        // Requests with and without bodies.
        let request =
            [frames(1, HEADERS, 4, b"x"), frames(3, DATA, 0, &[b'x'; 1000]), frames(1, DATA, 1, b"")].concat();
        assert!(client.send(0, &request.repeat(5000)));
        assert!(client.send(0, &frames(10_000, HEADERS, 5, b"x")));
        // A response of many pieces, each of which updates two windows.
        for _ in 0..10_000 {
            assert!(client.receive(0, &frames(1, DATA, 0, b"x")));
            assert!(client.send(0, &frames(2, WINDOW_UPDATE, 0, &[0; 4])));
        }
        // Bodies with padding, and bodies that are reset after the response.
        assert!(client.send(0, &frames(10_000, DATA, PADDED_FLAG, &[1; 600])));
        for _ in 0..10_000 {
            assert!(client.send(0, &frames(1, HEADERS, 4, b"x")));
            assert!(client.receive(0, &[frames(1, DATA, 1, b"x"), frames(1, RST_STREAM, 0, &[0; 4])].concat()));
        }
        // Automatic answers add nothing.
        for _ in 0..1500 {
            assert!(client.receive(0, &frames(1, 6, 1, &[0; 8])));
            client.send(0, &frames(2, 6, 0, &[0; 8]));
        }
        assert!(!client.send(0, &frames(10, 6, 0, &[0; 8])));
    }
}
