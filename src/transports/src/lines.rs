//! Newline-framed byte streams with one JSON message per line (2026-07-28/basic/transports/stdio): the process's own stdin and
//! stdout, and the connections of the attach socket.

use std::{sync::Arc, time::Duration};

use actix::Addr;
use bytes::{Bytes, BytesMut};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    sync::Notify,
};

use crate::{attachment::attach_only_connection, endpoint::McpEndpoint};
use countersign_domain::principal::Identity;
use countersign_exchange::{
    body_budget::{ConnectionBudget, Reservation, UNCOUNTED_MESSAGE_BYTES},
    state::{Channel, SessionState},
};
use countersign_protocol::{ErrorKind, McpError, Revision, encode};
use countersign_runtime::background;
use countersign_session::{
    Session,
    actor::{Disconnected, InboundMessage, deliver},
};
use countersign_telemetry::metrics::Transport;

/// Maximum time to wait for unfinished answers once the input has ended.
const LAST_ANSWERS_TIMEOUT: Duration = Duration::from_millis(500);
/// Maximum time that the peer may take to read the last answers.
const FLUSH_TIMEOUT: Duration = Duration::from_millis(300);
/// Number of bytes that are read or written at a time.
const CHUNK_BYTES: usize = 64 * 1024;

/// A line of a stream.
#[derive(Debug, PartialEq, Eq)]
pub enum Line {
    Message(Bytes),
    /// A line over the limit, which was skipped.
    TooLong,
}

/// Splits a stream of bytes into lines. Its buffer never exceeds the limit of a line by more than one chunk.
pub struct LineSplitter {
    max: usize,
    buffer: BytesMut,
    /// Number of bytes of `buffer` without a newline.
    searched: usize,
    is_skipping: bool,
}

impl LineSplitter {
    /// Creates a splitter for lines of at most `max` bytes.
    pub fn new(max: usize) -> Self {
        Self { max, buffer: BytesMut::new(), searched: 0, is_skipping: false }
    }

    /// Adds bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// Skips the current line, including the bytes that have not arrived yet.
    pub fn skip(&mut self) {
        self.buffer = BytesMut::new();
        self.searched = 0;
        self.is_skipping = true;
    }

    /// Returns the next complete line without its end (`\n` or `\r\n`). Skips blank lines.
    pub fn next_line(&mut self) -> Option<Line> {
        loop {
            let Some(newline) = memchr::memchr(b'\n', &self.buffer[self.searched..]) else {
                self.searched = self.buffer.len();
                // One byte over the limit may be the `\r` of a line within the limit.
                if self.buffer.len() > self.max + usize::from(self.buffer.last() == Some(&b'\r')) {
                    self.buffer.clear();
                    self.searched = 0;
                    if !std::mem::replace(&mut self.is_skipping, true) {
                        return Some(Line::TooLong);
                    }
                }
                return None;
            };
            let line = self.buffer.split_to(self.searched + newline + 1);
            self.searched = 0;
            if std::mem::take(&mut self.is_skipping) {
                continue;
            }
            if let Some(line) = self.to_line(line.freeze()) {
                return Some(line);
            }
        }
    }

    /// Returns the bytes after the last newline as a line, once the stream has ended.
    pub fn take_rest(&mut self) -> Option<Line> {
        let rest = self.buffer.split().freeze();
        self.searched = 0;
        if std::mem::take(&mut self.is_skipping) { None } else { self.to_line(rest) }
    }

    fn to_line(&self, mut line: Bytes) -> Option<Line> {
        for end in [b'\n', b'\r'] {
            if line.last() == Some(&end) {
                line.truncate(line.len() - 1);
            }
        }
        if line.iter().all(u8::is_ascii_whitespace) {
            return None;
        }
        Some(if line.len() > self.max { Line::TooLong } else { Line::Message(line) })
    }
}

/// Serves one peer until its input ends, its output fails, or the gateway ends. Must run on an actix arbiter.
pub async fn serve<R, W>(endpoint: Arc<McpEndpoint>, identity: Identity, reader: R, writer: W)
where
    R: AsyncRead + Unpin + 'static,
    W: AsyncWrite + Unpin + 'static,
{
    if let Err(error) = endpoint.sessions.make_room_for_session(&identity.principal) {
        let _ = tokio::time::timeout(FLUSH_TIMEOUT, write_refusal(writer, &error)).await;
        return;
    }
    let limits = endpoint.sessions.limits.outbox;
    let session = Arc::new(endpoint.sessions.create_outbox_session(Transport::Stdio, identity, limits));
    let actor = Session::open(&endpoint.sessions, Arc::clone(&session), None);
    let ended_session = Arc::clone(&session);
    let attached = attach_only_connection(&actor, Arc::new(move || ended_session.end())).await;
    let Ok((pump_id, wake_up)) = attached else { return };
    let space_freed = Arc::new(Notify::new());
    let writing = background::spawn(write(Arc::clone(&session), wake_up, Arc::clone(&space_freed), writer));
    let receiver = LineReceiver {
        actor: &actor,
        session: &session,
        max_line_bytes: endpoint.transports.stdio.max_message_size,
        budget: endpoint.connections.new_budget(),
    };
    tokio::select! {
        () = receiver.read(reader, &space_freed) => {
            let _ = tokio::time::timeout(LAST_ANSWERS_TIMEOUT, wait_for_answers(&session)).await;
        }
        () = session.ended.cancelled() => {}
        () = wait_for_drain(&endpoint, &session) => {}
    }
    let _ = actor.send(Disconnected { pump_id, closed_by_peer: true }).await;
    if tokio::time::timeout(FLUSH_TIMEOUT, writing).await.is_err() {
        tracing::debug!("the peer of a line transport did not read its last answers");
    }
}

/// Writes the error with which a peer is refused, and closes the output.
async fn write_refusal(mut writer: impl AsyncWrite + Unpin, error: &McpError) -> std::io::Result<()> {
    writer.write_all(&encode::error(None, error, Revision::NEWEST_LEGACY)).await?;
    writer.write_all(b"\n").await?;
    writer.shutdown().await
}

/// Waits until the gateway drains and has answered the session's requests. The session ends at the latest after the drain
/// (`limits.drain`). Until then the input is read, because a running call may wait for an answer of its client.
async fn wait_for_drain(endpoint: &McpEndpoint, session: &SessionState) {
    endpoint.shutdown.cancelled().await;
    wait_for_answers(session).await;
}

/// Waits until no request of the session is in flight.
async fn wait_for_answers(session: &SessionState) {
    while session.in_flight() > 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Passes the lines of a peer to its session.
struct LineReceiver<'a> {
    actor: &'a Addr<Session>,
    session: &'a SessionState,
    max_line_bytes: usize,
    budget: Arc<ConnectionBudget>,
}

impl LineReceiver<'_> {
    /// Reads until the input or the session ends. `space_freed` is notified when the peer has read something.
    async fn read(&self, mut reader: impl AsyncRead + Unpin, space_freed: &Notify) {
        let mut lines = LineSplitter::new(self.max_line_bytes);
        let mut reservation: Option<Reservation> = None;
        let mut chunk = vec![0; CHUNK_BYTES];
        loop {
            let read_len = match reader.read(&mut chunk).await {
                Ok(0) => break,
                Ok(n) => n,
                Err(error) => {
                    tracing::debug!(%error, "the input of a line transport failed");
                    break;
                }
            };
            // Small lines that arrive one by one are not counted. Input for which the budget has no room stays in the pipe.
            if reservation.is_some() || read_len > UNCOUNTED_MESSAGE_BYTES {
                let counted = reservation.get_or_insert_with(|| self.budget.new_reservation()).grow(read_len).await;
                if let Err(error) = counted {
                    reservation = None;
                    lines.skip();
                    self.refuse_line(&error);
                }
            }
            lines.push(chunk.get(..read_len).unwrap_or_default());
            while let Some(line) = lines.next_line() {
                // A peer is not served faster than it reads answers. The rest of its input stays in the pipe.
                while matches!(&self.session.channel, Channel::Outbox(outbox) if outbox.is_half_full()) {
                    space_freed.notified().await;
                }
                if !self.handle_line(line, reservation.take()).await {
                    return;
                }
            }
        }
        if let Some(line) = lines.take_rest() {
            self.handle_line(line, reservation).await;
        }
    }

    /// Passes a line to the session. Returns `false` if the session has ended.
    async fn handle_line(&self, line: Line, reservation: Option<Reservation>) -> bool {
        match line {
            Line::Message(frame) => {
                let identity = self.session.identity();
                deliver(self.actor, InboundMessage { identity, frame, reservation }).await.is_ok()
            }
            Line::TooLong => {
                let error = McpError::new(ErrorKind::InvalidRequest, "the message is too large");
                self.refuse_line(&error.with("limit", self.max_line_bytes as u64));
                true
            }
        }
    }

    /// Sends the error of a line that was skipped.
    fn refuse_line(&self, error: &McpError) {
        let revision = self.session.legacy_revision().unwrap_or(Revision::NEWEST_LEGACY);
        self.session.send_unsolicited(encode::error(None, error, revision));
    }
}

/// Writes the outbox of a session to its peer, until the outbox is closed or writing fails.
async fn write<W: AsyncWrite + Unpin>(
    session: Arc<SessionState>,
    wake_up: Arc<Notify>,
    space_freed: Arc<Notify>,
    mut writer: W,
) {
    let Channel::Outbox(outbox) = &session.channel else { return };
    let mut buffer = BytesMut::new();
    loop {
        let Some(drained) = outbox.drain(0, CHUNK_BYTES) else {
            wake_up.notified().await;
            continue;
        };
        space_freed.notify_one();
        for frame in &drained.frames {
            buffer.extend_from_slice(frame);
            buffer.extend_from_slice(b"\n");
        }
        let write_and_flush = async {
            writer.write_all(&buffer).await?;
            writer.flush().await
        };
        if let Err(error) = write_and_flush.await {
            tracing::debug!(%error, "the output of a line transport failed");
            session.end();
            return;
        }
        buffer.clear();
        if buffer.capacity() > 4 * CHUNK_BYTES {
            buffer = BytesMut::new();
        }
        if drained.close.is_some() {
            let _ = writer.shutdown().await;
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TestEndpoint;

    fn all(splitter: &mut LineSplitter) -> Vec<Line> {
        std::iter::from_fn(|| splitter.next_line()).collect()
    }

    fn message(text: &'static str) -> Line {
        Line::Message(Bytes::from_static(text.as_bytes()))
    }

    #[actix::test]
    async fn output_ends_after_the_last_answers() {
        let endpoint = TestEndpoint::open("").await;
        let identity = endpoint.identity(&endpoint.key("ci"));
        let pings: String =
            (0..5).map(|id| format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":\"ping\"}}\n")).collect();
        let (output, mut peer) = tokio::io::duplex(16);
        let mut answers = String::new();
        let served = async {
            let serving = serve(Arc::clone(&endpoint.endpoint), identity, std::io::Cursor::new(pings), output);
            tokio::join!(serving, peer.read_to_string(&mut answers)).1
        };
        // Otherwise the peer would wait forever.
        tokio::time::timeout(Duration::from_secs(60), served).await.unwrap().unwrap();
        assert_eq!(answers.lines().count(), 5, "{answers}");
    }

    #[test]
    fn lines_are_found_in_pieces_of_any_size() {
        let text = b"{\"a\":1}\r\n\n  \n{\"b\":2}\n{\"c\"";
        for cut in 0..text.len() {
            let mut splitter = LineSplitter::new(100);
            splitter.push(&text[..cut]);
            let mut lines = all(&mut splitter);
            splitter.push(&text[cut..]);
            lines.extend(all(&mut splitter));
            lines.extend(splitter.take_rest());
            assert_eq!(lines, vec![message("{\"a\":1}"), message("{\"b\":2}"), message("{\"c\"")], "cut at {cut}");
        }
    }

    #[test]
    fn line_over_limit_is_skipped() {
        let mut splitter = LineSplitter::new(10);
        splitter.push(&[b'x'; 50]);
        assert_eq!(all(&mut splitter), vec![Line::TooLong]);
        splitter.push(&[b'x'; 50]);
        assert_eq!(all(&mut splitter), vec![]);
        splitter.push(b"xx\nok\n");
        assert_eq!(all(&mut splitter), vec![message("ok")]);
        assert!(splitter.buffer.is_empty());
    }

    #[test]
    fn line_of_exactly_the_limit_passes() {
        let mut splitter = LineSplitter::new(5);
        splitter.push(b"12345\n123456\n");
        assert_eq!(all(&mut splitter), vec![message("12345"), Line::TooLong]);
        splitter.push(b"12345\r");
        assert_eq!(all(&mut splitter), vec![]);
        splitter.push(b"\n12345\r\n");
        assert_eq!(all(&mut splitter), vec![message("12345"), message("12345")]);
    }
}
