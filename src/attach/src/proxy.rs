//! Carries lines between an agent and the gateway, and between the agent and the next gateway if one ends. Only whole
//! lines are written to stdout, so that a gateway that dies in the middle of a message leaves no partial line.

use std::{
    borrow::Cow,
    cell::RefCell,
    future::{Future, pending},
    io,
    time::{Duration, Instant},
};

use tokio::{
    io::{AsyncBufRead, AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader},
    sync::Notify,
    time::{sleep, timeout},
};

use super::{
    AttachError,
    conversation::{self, Conversation, GatewayLine},
};

/// The time within which answers are still forwarded after the end of stdin, so that the process ends within a second
/// after its client.
pub const DRAIN_TIMEOUT: Duration = Duration::from_millis(700);

/// Maximum bytes of a line from the gateway. It is far above all limits on messages, so a longer line is a fault.
const MAX_LINE_BYTES: u64 = 256 << 20;
/// Maximum bytes of a line from the agent that are kept together. A longer line goes through in parts.
const MAX_KEPT_LINE_BYTES: usize = 64 << 20;
/// The time in which a person or a service may restart a gateway that they started, before the proxy starts a
/// detached one.
const RESTART_GRACE: Duration = Duration::from_secs(10);
/// The time that the next gateway may take to answer the handshake of the resumed session.
const RESUME_TIMEOUT: Duration = Duration::from_secs(30);
/// The first and the longest interval between attempts to find a gateway.
const FIRST_SEARCH_INTERVAL: Duration = Duration::from_millis(20);
const MAX_SEARCH_INTERVAL: Duration = Duration::from_millis(500);
/// A connection that ends within this time counts as short.
const SHORT_CONNECTION: Duration = Duration::from_secs(2);
/// The number of short connections in a row after which the proxy gives up, because no gateway can serve this agent.
const MAX_SHORT_CONNECTIONS: u32 = 4;

/// The reason why the proxy ended.
#[derive(Debug)]
pub enum ProxyOutcome {
    /// stdin ended or `terminate` was ready, and finished answers were written.
    Done,
    /// The reader of stdout is gone.
    OutputClosed,
    /// Several gateways in a row closed the connection soon after it began.
    GatewayGone,
    /// After the end of the gateway, no other one could be reached, or the next one does not continue the session.
    NoGateway(AttachError),
    /// Reading stdin or writing stdout failed.
    Failed(io::Error),
}

/// An open connection to a gateway, after the handshake.
#[derive(Debug)]
pub struct GatewayConnection<R, W> {
    pub reader: R,
    pub writer: W,
    /// `true` if the gateway is detached, because a `countersign stdio` started it.
    pub is_detached: bool,
}

/// Forwards lines until the agent ends or `terminate` is ready. If the gateway ends, the session continues with the
/// next one. `connect` connects to a running gateway, or starts one if it is called with `true` and none runs.
///
/// At the end of stdin, and on `terminate`, the gateway's input is closed, and everything that it still sends within
/// [`DRAIN_TIMEOUT`] is written.
pub async fn run<I, O, R, W>(
    input: I,
    mut output: O,
    mut connection: GatewayConnection<R, W>,
    mut connect: impl AsyncFnMut(bool) -> Result<Option<GatewayConnection<R, W>>, AttachError>,
    terminate: impl Future<Output = ()>,
) -> ProxyOutcome
where
    I: AsyncRead + Unpin,
    O: AsyncWrite + Unpin,
    R: AsyncBufRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let mut input = AgentInput::new(input);
    let conversation = RefCell::new(Conversation::default());
    tokio::pin!(terminate);
    let mut short_connections = 0;
    loop {
        let (connected_at, is_detached) = (Instant::now(), connection.is_detached);
        match carry(&mut input, &mut output, connection, &conversation, &mut terminate).await {
            ProxyOutcome::GatewayGone => {}
            ended => return ended,
        }
        short_connections = if connected_at.elapsed() < SHORT_CONNECTION { short_connections + 1 } else { 0 };
        if short_connections >= MAX_SHORT_CONNECTIONS {
            return ProxyOutcome::GatewayGone;
        }
        let lines = conversation.borrow_mut().note_gateway_end();
        if let Err(ended) = write_lines(&mut output, &lines).await {
            return ended;
        }
        tracing::info!("the connection to the gateway has ended; the session continues on the next one");
        let search = find_gateway(&mut input, &conversation, &mut connect, is_detached);
        connection = tokio::select! {
            found = search => match found {
                Ok(gateway) => gateway,
                Err(ended) => return ended,
            },
            () = &mut terminate => return ProxyOutcome::Done,
        };
    }
}

/// Waits for another gateway. Starts one only when the agent needs it, and only after [`RESTART_GRACE`] if a person or a
/// service had started the last one. The error is the outcome if the agent ends or no gateway can be reached.
async fn find_gateway<R, W>(
    input: &mut AgentInput<impl AsyncRead + Unpin>,
    conversation: &RefCell<Conversation>,
    connect: &mut impl AsyncFnMut(bool) -> Result<Option<GatewayConnection<R, W>>, AttachError>,
    was_detached: bool,
) -> Result<GatewayConnection<R, W>, ProxyOutcome> {
    let may_start_at = Instant::now() + if was_detached { Duration::ZERO } else { RESTART_GRACE };
    let mut interval = FIRST_SEARCH_INTERVAL;
    loop {
        let is_needed = input.is_ready || conversation.borrow().has_unanswered_requests();
        let may_start = is_needed && Instant::now() >= may_start_at;
        let search = async {
            let search_result = connect(may_start).await;
            if matches!(search_result, Ok(None)) {
                sleep(interval).await;
            }
            search_result
        };
        tokio::select! {
            search_result = search => match search_result {
                Ok(Some(gateway)) => return Ok(gateway),
                Ok(None) => interval = (interval * 2).min(MAX_SEARCH_INTERVAL),
                Err(error) => return Err(ProxyOutcome::NoGateway(error)),
            },
            waited = input.wait_for_line_or_end() => match waited {
                Ok(true) => {}
                Ok(false) => return Err(ProxyOutcome::Done),
                Err(error) => return Err(ProxyOutcome::Failed(error)),
            },
        }
    }
}

/// Carries lines between the agent and one gateway.
async fn carry(
    input: &mut AgentInput<impl AsyncRead + Unpin>,
    output: &mut (impl AsyncWrite + Unpin),
    connection: GatewayConnection<impl AsyncBufRead + Unpin, impl AsyncWrite + Unpin>,
    conversation: &RefCell<Conversation>,
    terminate: &mut (impl Future<Output = ()> + Unpin),
) -> ProxyOutcome {
    let resumed = Notify::new();
    let download = download(connection.reader, output, conversation, &resumed);
    tokio::pin!(download);
    let mut writer = connection.writer;
    let uploaded = tokio::select! {
        ended = &mut download => return ended,
        uploaded = upload(input, &mut writer, conversation, &resumed) => Some(uploaded),
        () = terminate => None,
    };
    match uploaded {
        Some(Ok(())) => {
            let _ = writer.shutdown().await;
            match timeout(DRAIN_TIMEOUT, download).await {
                Ok(ended @ (ProxyOutcome::Failed(_) | ProxyOutcome::OutputClosed)) => ended,
                // The gateway closes after its answers; unfinished answers are abandoned.
                Ok(_) | Err(_) => ProxyOutcome::Done,
            }
        }
        Some(Err(UploadError::Input(error))) => ProxyOutcome::Failed(error),
        // The gateway stopped reading; its remaining output is still forwarded.
        Some(Err(UploadError::Gateway)) => timeout(DRAIN_TIMEOUT, download).await.unwrap_or(ProxyOutcome::GatewayGone),
        Some(Err(UploadError::NotResumed)) => {
            let reason = format!("it does not answer within {}s", RESUME_TIMEOUT.as_secs());
            ProxyOutcome::NoGateway(AttachError::NotResumed(reason))
        }
        // After termination, further input of the agent is ignored. Dropping the write half closes the gateway's input.
        None => {
            drop(writer);
            let _ = timeout(DRAIN_TIMEOUT, download).await;
            ProxyOutcome::Done
        }
    }
}

/// The lines of the agent. A line that a gateway did not take completely stays for the next one.
struct AgentInput<I> {
    reader: BufReader<I>,
    line: Vec<u8>,
    /// `true` if `line` can be sent: it is complete, or the last bytes before the end, or a part of a line that is too long.
    is_ready: bool,
    /// `true` if `line` continues a line that is too long.
    is_continuation: bool,
    /// `true` if the conversation has noted `line`.
    is_noted: bool,
}

impl<I: AsyncRead + Unpin> AgentInput<I> {
    fn new(input: I) -> Self {
        let reader = BufReader::with_capacity(64 << 10, input);
        Self { reader, line: Vec::new(), is_ready: false, is_continuation: false, is_noted: false }
    }

    /// Reads until a line can be sent. Returns `false` at the end of the input. Cancel-safe: `line` keeps what was read.
    async fn fill(&mut self) -> io::Result<bool> {
        while !self.is_ready {
            let max_bytes = MAX_KEPT_LINE_BYTES.saturating_sub(self.line.len());
            let limit = u64::try_from(max_bytes).unwrap_or(u64::MAX);
            match (&mut self.reader).take(limit).read_until(b'\n', &mut self.line).await {
                Ok(0) if self.line.is_empty() => return Ok(false),
                Ok(_) => self.is_ready = true,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Waits for a line that can be sent, or, if there is one already, for the end of the input. Returns `false` at the end.
    /// Never returns if further lines follow the one that can be sent. Cancel-safe.
    async fn wait_for_line_or_end(&mut self) -> io::Result<bool> {
        if !self.is_ready {
            return self.fill().await;
        }
        if self.reader.fill_buf().await?.is_empty() {
            return Ok(false);
        }
        pending().await
    }

    /// Waits for the end of the input. Never returns if further lines follow the one that can be sent. Cancel-safe.
    async fn wait_for_end(&mut self) -> io::Result<()> {
        while self.wait_for_line_or_end().await? {}
        Ok(())
    }

    /// Sends the line, which must be ready, and clears it.
    async fn send(
        &mut self,
        gateway: &mut (impl AsyncWrite + Unpin),
        conversation: &RefCell<Conversation>,
    ) -> io::Result<()> {
        let is_whole = !self.is_continuation && self.line.len() < MAX_KEPT_LINE_BYTES;
        let line = if !is_whole {
            Some(Cow::from(&self.line))
        } else if self.is_noted {
            // Answers that were noted before are for the gateway that has ended.
            conversation::without_answers(&self.line)
        } else {
            self.is_noted = true;
            conversation.borrow_mut().note_agent_line(&self.line)
        };
        if let Some(line) = line {
            gateway.write_all(&line).await?;
        }
        conversation.borrow_mut().mark_sent();
        self.is_continuation = self.line.last() != Some(&b'\n');
        self.line.clear();
        // A large line must not keep its memory for the lifetime of the session.
        self.line.shrink_to(1 << 20);
        (self.is_ready, self.is_noted) = (false, false);
        Ok(())
    }
}

enum UploadError {
    /// Reading the agent's lines failed.
    Input(io::Error),
    /// The gateway no longer reads.
    Gateway,
    /// The gateway does not answer the handshake of the resumed session.
    NotResumed,
}

/// Sends the agent's lines to the gateway until the input ends.
async fn upload(
    input: &mut AgentInput<impl AsyncRead + Unpin>,
    gateway: &mut (impl AsyncWrite + Unpin),
    conversation: &RefCell<Conversation>,
    resumed: &Notify,
) -> Result<(), UploadError> {
    let handshake = conversation.borrow().handshake_request();
    if let Some(request) = handshake {
        gateway.write_all(&request).await.map_err(|_| UploadError::Gateway)?;
        // A new gateway accepts other requests only after the handshake.
        tokio::select! {
            biased;
            () = resumed.notified() => {}
            ended = input.wait_for_end() => return ended.map_err(UploadError::Input),
            () = sleep(RESUME_TIMEOUT) => return Err(UploadError::NotResumed),
        }
    }
    let lines = conversation.borrow_mut().resuming_lines();
    for line in lines {
        gateway.write_all(&line).await.map_err(|_| UploadError::Gateway)?;
    }
    while input.fill().await.map_err(UploadError::Input)? {
        input.send(gateway, conversation).await.map_err(|_| UploadError::Gateway)?;
    }
    Ok(())
}

/// Forwards the gateway's lines to the agent until either side closes.
async fn download(
    mut gateway: impl AsyncBufRead + Unpin,
    output: &mut (impl AsyncWrite + Unpin),
    conversation: &RefCell<Conversation>,
    resumed: &Notify,
) -> ProxyOutcome {
    let mut line = Vec::new();
    loop {
        line.clear();
        // Large lines must not keep their memory for the lifetime of the session.
        line.shrink_to(1 << 20);
        let read_result = (&mut gateway).take(MAX_LINE_BYTES).read_until(b'\n', &mut line).await;
        if read_result.is_err() || line.last() != Some(&b'\n') {
            return ProxyOutcome::GatewayGone;
        }
        let gateway_line = conversation.borrow_mut().note_gateway_line(&line);
        let write_result = match gateway_line {
            GatewayLine::Forward(line) => write_lines(output, &[line]).await,
            GatewayLine::Drop => Ok(()),
            GatewayLine::Resumed(lines) => {
                resumed.notify_one();
                write_lines(output, &lines).await
            }
            GatewayLine::NotResumed(error) => return ProxyOutcome::NoGateway(AttachError::NotResumed(error)),
        };
        if let Err(ended) = write_result {
            return ended;
        }
    }
}

/// Writes lines for the agent.
async fn write_lines<O: AsyncWrite + Unpin>(output: &mut O, lines: &[impl AsRef<[u8]>]) -> Result<(), ProxyOutcome> {
    let write_and_flush = async {
        for line in lines {
            output.write_all(line.as_ref()).await?;
        }
        output.flush().await
    };
    write_and_flush.await.map_err(|error| match error.kind() {
        io::ErrorKind::BrokenPipe => ProxyOutcome::OutputClosed,
        _ => ProxyOutcome::Failed(error),
    })
}

#[cfg(test)]
mod tests;
