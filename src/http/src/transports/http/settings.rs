//! Tells clients of HTTP/2 how many streams they may open at a time (RFC 9113, `SETTINGS_MAX_CONCURRENT_STREAMS`).
//!
//! actix-http has no way to set it, and without it the number is unlimited. So the setting is added to the first frame
//! that the server sends, which is always its settings; nothing else on the connection is touched. Who opens more all
//! the same is answered 503 ([`crate::front`]).

use std::{
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll, ready},
};

use actix_codec::{AsyncRead, AsyncWrite, ReadBuf};

/// Bytes of a frame's head.
const HEAD: usize = 9;
/// The type of a frame of settings.
const SETTINGS: u8 = 4;
const MAX_CONCURRENT_STREAMS: u16 = 3;

/// A connection whose first frame is given one more setting.
pub struct Announcing<T> {
    io: T,
    state: State,
}

enum State {
    /// What was written so far of the first frame.
    First(Vec<u8>, u32),
    /// The frame as it is sent, and how much of it was.
    Sending(Vec<u8>, usize),
    Through,
}

impl<T> Announcing<T> {
    /// An HTTP/2 connection that may have so many streams.
    #[must_use]
    pub fn new(io: T, streams: u32) -> Self {
        Self { io, state: State::First(Vec::new(), streams) }
    }

    /// A connection of another protocol, which stays as it is.
    #[must_use]
    pub const fn plain(io: T) -> Self {
        Self { io, state: State::Through }
    }

    #[must_use]
    pub const fn get_ref(&self) -> &T {
        &self.io
    }
}

/// How many bytes the frame has that begins here, once its head is there.
fn frame_len(bytes: &[u8]) -> Option<usize> {
    let [a, b, c, ..] = bytes.first_chunk::<HEAD>()?;
    Some(HEAD + (usize::from(*a) << 16 | usize::from(*b) << 8 | usize::from(*c)))
}

/// The frame with the setting added, if it is one of settings that has room for it.
fn with_setting(mut frame: Vec<u8>, streams: u32) -> Vec<u8> {
    let payload = frame.len() - HEAD + 6;
    let kind = (frame.get(3).copied(), frame.get(4).copied());
    // No acknowledgement has any.
    if kind != (Some(SETTINGS), Some(0)) {
        return frame;
    }
    let Ok(length) = u16::try_from(payload) else { return frame };
    frame[1..3].copy_from_slice(&length.to_be_bytes());
    frame.extend_from_slice(&MAX_CONCURRENT_STREAMS.to_be_bytes());
    frame.extend_from_slice(&streams.to_be_bytes());
    frame
}

impl<T: AsyncWrite + Unpin> Announcing<T> {
    /// Takes what belongs to the first frame, and says how much that was.
    fn gather(&mut self, buf: &[u8]) -> Option<usize> {
        let State::First(first, streams) = &mut self.state else { return None };
        let mut taken = 0;
        loop {
            let wanted = frame_len(first).unwrap_or(HEAD);
            let step = (wanted - first.len()).min(buf.len() - taken);
            first.extend_from_slice(&buf[taken..taken + step]);
            taken += step;
            if frame_len(first) == Some(first.len()) {
                let frame = with_setting(std::mem::take(first), *streams);
                self.state = State::Sending(frame, 0);
                return Some(taken);
            }
            if taken == buf.len() {
                return Some(taken);
            }
        }
    }

    fn poll_first(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while let State::Sending(frame, sent) = &mut self.state {
            let rest = frame.get(*sent..).unwrap_or_default();
            if rest.is_empty() {
                self.state = State::Through;
                break;
            }
            match ready!(Pin::new(&mut self.io).poll_write(cx, rest))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                written => *sent += written,
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Announcing<T> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(cx, buf)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Announcing<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        if let Some(taken) = self.gather(buf) {
            return Poll::Ready(Ok(taken));
        }
        ready!(self.poll_first(cx))?;
        Pin::new(&mut self.io).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_first(cx))?;
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_first(cx))?;
        Pin::new(&mut self.io).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if matches!(self.state, State::Through) {
            return Pin::new(&mut self.io).poll_write_vectored(cx, bufs);
        }
        let first = bufs.iter().find(|buf| !buf.is_empty()).map_or(&[][..], |buf| buf);
        self.poll_write(cx, first)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    /// A frame of settings with one of them: an initial window of 65,535.
    const OWN: [u8; 15] = [0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0xff, 0xff];
    const WITH: [u8; 21] = [0, 0, 12, 4, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0xff, 0xff, 0, 3, 0, 0, 0, 100];

    async fn sent(bytes: &[u8], piece: usize, announces: bool) -> Vec<u8> {
        let (mut client, server) = tokio::io::duplex(7);
        let mut server = if announces { Announcing::new(server, 100) } else { Announcing::plain(server) };
        let write = async {
            for piece in bytes.chunks(piece) {
                server.write_all(piece).await.unwrap();
            }
            server.flush().await.unwrap();
            drop(server);
        };
        let mut got = Vec::new();
        let (_, read) = tokio::join!(write, client.read_to_end(&mut got));
        read.unwrap();
        got
    }

    #[tokio::test]
    async fn the_first_settings_have_one_more_and_the_rest_is_as_it_was() {
        let rest = [0, 0, 0, 4, 1, 0, 0, 0, 0, 9, 9, 9];
        let all = [&OWN[..], &rest[..]].concat();
        for piece in [1, 4, 9, 15, 16, all.len()] {
            assert_eq!(sent(&all, piece, true).await, [&WITH[..], &rest[..]].concat(), "in pieces of {piece}");
            assert_eq!(sent(&all, piece, false).await, all);
        }
    }

    #[tokio::test]
    async fn what_are_no_settings_is_left_alone() {
        for frame in [[0, 0, 0, 4, 1, 0, 0, 0, 0], [0, 0, 0, 6, 0, 0, 0, 0, 0]] {
            assert_eq!(sent(&frame, 9, true).await, frame);
        }
    }
}
