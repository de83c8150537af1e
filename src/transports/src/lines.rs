//! Newline-framed byte streams with one JSON message per line (2026-07-28/basic/transports/stdio): the process's own stdin and
//! stdout, and the connections of the attach socket.

use std::{sync::Arc, time::Duration};

use bytes::{Bytes, BytesMut};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    sync::Notify,
};

use super::next_pump_id;
use crate::endpoint::McpEndpoint;
use countersign_domain::principal::Identity;
use countersign_exchange::{
    body_budget::{ConnectionBudget, Reservation, UNCOUNTED_MESSAGE_BYTES},
    state::{Channel, SessionState},
};
use countersign_protocol::{ErrorKind, McpError, Revision, encode};
use countersign_runtime::background;
use countersign_session::{
    Session,
    actor::{Attach, AttachedConnection, Disconnected, InboundMessage, deliver},
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
pub struct Framer {
    max: usize,
    buffer: BytesMut,
    /// Number of bytes of `buffer` without a newline.
    searched: usize,
    is_skipping: bool,
}

impl Framer {
    /// Creates a framer for lines of at most `max` bytes.
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

    /// Returns the bytes after the last newline, once the stream has ended.
    pub fn rest(&mut self) -> Option<Line> {
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
        let bytes = encode::error(None, &error, Revision::NEWEST_LEGACY);
        let mut writer = writer;
        let write_refusal = async {
            writer.write_all(&bytes).await?;
            writer.write_all(b"\n").await?;
            writer.shutdown().await
        };
        let _ = tokio::time::timeout(FLUSH_TIMEOUT, write_refusal).await;
        return;
    }
    let limits = endpoint.sessions.limits.outbox;
    let session = Arc::new(endpoint.sessions.create_outbox_session(Transport::Stdio, identity, limits));
    let actor = Session::open(&endpoint.sessions, Arc::clone(&session), None);
    let wake_up = Arc::new(Notify::new());
    let pump_id = next_pump_id();
    let wake = {
        let wake_up = Arc::clone(&wake_up);
        Arc::new(move || wake_up.notify_one())
    };
    let cut = {
        let session = Arc::clone(&session);
        Arc::new(move || session.end())
    };
    let connection = AttachedConnection { id: pump_id, generation: 0, wake, cut, is_alive: Arc::default() };
    if actor.send(Attach(connection)).await.is_err() {
        return;
    }
    let space_freed = Arc::new(Notify::new());
    let writing =
        background::spawn(write(Arc::clone(&session), Arc::clone(&wake_up), Arc::clone(&space_freed), writer));
    let max = endpoint.transports.stdio.max_message_size;
    tokio::select! {
        () = read(&actor, &session, &space_freed, reader, (max, endpoint.connections.new_budget())) => {
            wait_for_last_answers(&session).await;
        }
        () = session.ended.cancelled() => {}
        () = wait_for_drain(&endpoint, &session) => {}
    }
    let _ = actor.send(Disconnected { pump_id, closed_by_peer: true }).await;
    if tokio::time::timeout(FLUSH_TIMEOUT, writing).await.is_err() {
        tracing::debug!("the peer of a line transport did not read its last answers");
    }
}

/// Waits until the gateway drains and has answered the session's requests. The session ends at the latest when the drain
/// does (`limits.drain`). Until then the input is read, because a running call may wait for an answer of its client.
async fn wait_for_drain(endpoint: &McpEndpoint, session: &SessionState) {
    endpoint.shutdown.cancelled().await;
    wait_for_answers(session).await;
}

async fn wait_for_last_answers(session: &SessionState) {
    let _ = tokio::time::timeout(LAST_ANSWERS_TIMEOUT, wait_for_answers(session)).await;
}

/// Waits until no request of the session is in flight.
async fn wait_for_answers(session: &SessionState) {
    while session.in_flight() > 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn read<R: AsyncRead + Unpin>(
    actor: &actix::Addr<Session>,
    session: &Arc<SessionState>,
    space_freed: &Notify,
    mut reader: R,
    (max, budget): (usize, Arc<ConnectionBudget>),
) {
    let mut framer = Framer::new(max);
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
            let counted = reservation.get_or_insert_with(|| budget.new_reservation()).grow(read_len).await;
            if let Err(error) = counted {
                reservation = None;
                framer.skip();
                refuse(session, &error);
            }
        }
        framer.push(chunk.get(..read_len).unwrap_or_default());
        while let Some(line) = framer.next_line() {
            // A peer is not served faster than it reads answers. The rest of its input stays in the pipe.
            while matches!(&session.channel, Channel::Outbox(outbox) if outbox.is_half_full()) {
                space_freed.notified().await;
            }
            if !handle_line(actor, session, line, max, reservation.take()).await {
                return;
            }
        }
    }
    if let Some(line) = framer.rest() {
        handle_line(actor, session, line, max, reservation).await;
    }
}

/// Hands a line to the session. Returns `false` if the session has ended.
async fn handle_line(
    actor: &actix::Addr<Session>,
    session: &SessionState,
    line: Line,
    max: usize,
    reservation: Option<Reservation>,
) -> bool {
    match line {
        Line::Message(frame) => {
            deliver(actor, InboundMessage { identity: session.identity(), frame, reservation }).await.is_ok()
        }
        Line::TooLong => {
            let error = McpError::new(ErrorKind::InvalidRequest, "the message is too large").with("limit", max as u64);
            refuse(session, &error);
            true
        }
    }
}

/// Sends the error for a line that was skipped.
fn refuse(session: &SessionState, error: &McpError) {
    let revision = session.legacy_revision().unwrap_or(Revision::NEWEST_LEGACY);
    session.send_unsolicited(encode::error(None, error, revision));
}

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

    fn all(framer: &mut Framer) -> Vec<Line> {
        std::iter::from_fn(|| framer.next_line()).collect()
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
            let mut framer = Framer::new(100);
            framer.push(&text[..cut]);
            let mut lines = all(&mut framer);
            framer.push(&text[cut..]);
            lines.extend(all(&mut framer));
            lines.extend(framer.rest());
            assert_eq!(lines, vec![message("{\"a\":1}"), message("{\"b\":2}"), message("{\"c\"")], "cut at {cut}");
        }
    }

    #[test]
    fn line_over_limit_is_skipped() {
        let mut framer = Framer::new(10);
        framer.push(&[b'x'; 50]);
        assert_eq!(all(&mut framer), vec![Line::TooLong]);
        framer.push(&[b'x'; 50]);
        assert_eq!(all(&mut framer), vec![]);
        framer.push(b"xx\nok\n");
        assert_eq!(all(&mut framer), vec![message("ok")]);
        assert!(framer.buffer.is_empty());
    }

    #[test]
    fn line_of_exactly_the_limit_passes() {
        let mut framer = Framer::new(5);
        framer.push(b"12345\n123456\n");
        assert_eq!(all(&mut framer), vec![message("12345"), Line::TooLong]);
        framer.push(b"12345\r");
        assert_eq!(all(&mut framer), vec![]);
        framer.push(b"\n12345\r\n");
        assert_eq!(all(&mut framer), vec![message("12345"), message("12345")]);
    }
}
