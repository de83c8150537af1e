//! A link to a server that is a child process: its tasks and its end.

use std::{io::ErrorKind, sync::Arc, time::Duration};

use bytes::{BufMut, BytesMut};
use tokio::{
    io::AsyncWriteExt,
    net::unix::pipe,
    time::{Instant, sleep_until, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{
    lines::{Line, LineReader, MAX_KEPT_CAPACITY},
    log::{ServerLog, Throttle},
};
use crate::link::{
    LinkError, Listener,
    mux::{Mux, SingleStreamLink},
};
use countersign_child::{RunningChild, guard::GuardReport};
use countersign_runtime::reclaim;

/// The time for a server to exit after its stdin is closed (2025-11-25/basic/lifecycle#stdio). After it, the guard
/// sends SIGTERM, and later SIGKILL.
const SELF_EXIT_TIMEOUT: Duration = Duration::from_secs(2);
/// The time to read the remaining output of a server that has exited, because one of its descendants may keep stdout
/// open.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(500);
/// The number of bytes after which no more messages are added to a batch.
const BATCH_BYTES: usize = 64 << 10;

/// Starts the tasks of a running server. `max` is the maximum number of bytes of one message from the server.
pub(super) fn start(
    child: RunningChild,
    log: ServerLog,
    max: usize,
    unsolicited: Arc<dyn Listener>,
) -> SingleStreamLink {
    let link = SingleStreamLink::new(&log.server, unsolicited);
    tokio::spawn(run(Arc::clone(&link.mux), child, log, max, link.stop.clone()));
    link
}

/// Ends the link when its task panics or its thread stops, so that no request waits forever.
struct EndOnDrop(Arc<Mux>);

impl Drop for EndOnDrop {
    fn drop(&mut self) {
        self.0.end(LinkError::Lost("the gateway ended it".to_owned()));
    }
}

/// The progress of ending a server.
enum ExitPhase {
    Running,
    /// The stdin of the server is closed, and the server should exit by itself.
    AwaitingExit {
        exit_deadline: Instant,
    },
    /// The guard was ordered to terminate the server.
    Terminating,
}

/// Runs one child from start to end.
async fn run(mux: Arc<Mux>, child: RunningChild, log: ServerLog, max: usize, stop: CancellationToken) {
    let _end = EndOnDrop(mux.clone());
    let RunningChild { stdin, stdout, stderr, mut guard } = child;
    let log = Arc::new(log);
    tokio::spawn({
        let log = log.clone();
        async move { log.log_stderr(stderr).await }
    });
    let mut writing = tokio::spawn(write(mux.clone(), stdin));
    let mut writing_ended = false;
    let reading = read(&mux, stdout, max, &log);
    tokio::pin!(reading);
    let mut reading_ended = false;
    let mut phase = ExitPhase::Running;
    let close_stdin = |phase: &mut ExitPhase| {
        if matches!(phase, ExitPhase::Running) {
            mux.queue.close();
            *phase = ExitPhase::AwaitingExit { exit_deadline: Instant::now() + SELF_EXIT_TIMEOUT };
        }
    };
    let report = loop {
        let exit_deadline = match phase {
            ExitPhase::AwaitingExit { exit_deadline } => Some(exit_deadline),
            ExitPhase::Running | ExitPhase::Terminating => None,
        };
        tokio::select! {
            report = guard.next_report() => match report {
                Some(report @ (GuardReport::Exited { .. } | GuardReport::Killed { .. })) => break Some(report),
                Some(_) => {}
                None => break None,
            },
            end = &mut reading, if !reading_ended => {
                reading_ended = true;
                match end {
                    // The server is exiting, or it is useless without its stdout.
                    Ok(()) => close_stdin(&mut phase),
                    Err(error) => {
                        mux.end(error);
                        guard.terminate();
                        phase = ExitPhase::Terminating;
                    }
                }
            }
            // The server reads nothing more, but may still answer earlier requests.
            _ = &mut writing, if !writing_ended => {
                writing_ended = true;
                close_stdin(&mut phase);
            }
            () = stop.cancelled(), if matches!(phase, ExitPhase::Running) => close_stdin(&mut phase),
            () = sleep_until(exit_deadline.unwrap_or_else(Instant::now)), if exit_deadline.is_some() => {
                if reading_ended {
                    mux.end(LinkError::Lost("it closed its stdout".to_owned()));
                }
                guard.terminate();
                phase = ExitPhase::Terminating;
            }
        }
    };
    if !reading_ended {
        let _ = timeout(DRAIN_TIMEOUT, &mut reading).await;
    }
    let has_failed = !stop.is_cancelled();
    let end = describe_end(report.as_ref(), has_failed);
    log.log_exit(&end, has_failed);
    mux.end(LinkError::Lost(end));
    writing.abort();
    guard.wait_for_end(report.is_none()).await;
}

/// Describes how a server ended. `has_failed` is `true` if the gateway did not stop it.
fn describe_end(report: Option<&GuardReport>, has_failed: bool) -> String {
    match report {
        Some(GuardReport::Exited { status }) if has_failed => {
            format!("its process exited unexpectedly with status {status}")
        }
        Some(GuardReport::Exited { status }) => format!("its process exited with status {status}"),
        Some(GuardReport::Killed { signal }) => format!("its process was killed by signal {signal}"),
        _ => "its guard process was killed".to_owned(),
    }
}

/// Reads messages until stdout is closed.
///
/// # Errors
/// [`LinkError::Protocol`] if a message is longer than `max` bytes.
async fn read(mux: &Mux, stdout: pipe::Receiver, max: usize, log: &ServerLog) -> Result<(), LinkError> {
    let mut lines = LineReader::new(stdout, max);
    let mut throttle = Throttle::default();
    while let Some(line) = lines.next().await {
        let Line::Whole(line) = line else {
            return Err(LinkError::Protocol(format!("it sent a message of more than {max} bytes")));
        };
        // The receiver of the message drops it on another thread.
        reclaim::collect_if_large(line.len());
        if !line.trim_ascii().is_empty()
            && let Err(reason) = mux.receive(line)
        {
            log.log_invalid_line(line, &reason, &mut throttle);
        }
    }
    Ok(())
}

/// Writes messages in batches until the queue is closed and empty, which closes stdin, or until writing fails.
async fn write(mux: Arc<Mux>, mut stdin: pipe::Sender) {
    let mut out = BytesMut::new();
    while let Some(first) = mux.next_permitted().await {
        let has_permit = first.permit.is_some();
        let (mut batch, mut next) = (Vec::new(), Some(first));
        while let Some(message) = next {
            out.extend_from_slice(&message.text);
            out.put_u8(b'\n');
            batch.push(message);
            // A permit is checked right before the first byte leaves, so its message is written alone.
            next = if !has_permit && out.len() < BATCH_BYTES {
                mux.queue.try_pop_if(|message| message.permit.is_none())
            } else {
                None
            };
        }
        let mut written_len = 0;
        if has_permit {
            match stdin.try_write(&out) {
                Ok(len) => written_len = len,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    // The server reads nothing at the moment, and the permit may expire until it does.
                    mux.queue.restore(batch);
                    out.clear();
                    if stdin.writable().await.is_err() {
                        return;
                    }
                    continue;
                }
                Err(_) => return mux.queue.restore(batch),
            }
        }
        while written_len < out.len() {
            match stdin.write(&out[written_len..]).await {
                Ok(len @ 1..) => written_len += len,
                Ok(0) | Err(_) => {
                    if written_len == 0 {
                        mux.queue.restore(batch);
                    }
                    return;
                }
            }
        }
        if out.capacity() > MAX_KEPT_CAPACITY {
            out = BytesMut::new();
        }
        out.clear();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::{
        link::{Link, OutgoingRequest},
        testing::RecordingListener,
    };
    use countersign_provider::Permit;

    #[tokio::test]
    async fn message_for_a_full_pipe_is_withheld_if_permit_expires() {
        let link = SingleStreamLink::new("s", Arc::new(RecordingListener::default()));
        let (stdin, stdout) = pipe::pipe().unwrap();
        stdin.writable().await.unwrap();
        while stdin.try_write(&[b' '; 4096]).is_ok() {}
        tokio::spawn(write(Arc::clone(&link.mux), stdin));
        let is_valid = Arc::new(AtomicBool::new(true));
        let permit = Permit(Arc::new({
            let is_valid = Arc::clone(&is_valid);
            move || is_valid.load(Ordering::SeqCst)
        }));
        let outgoing = OutgoingRequest { permit: Some(permit), ..OutgoingRequest::new(1, "tools/call", None) };
        let mut request = link.request(&outgoing, Arc::new(RecordingListener::default()));
        let early = timeout(Duration::from_millis(100), &mut request).await;
        assert!(early.is_err(), "the message waits for the pipe");
        is_valid.store(false, Ordering::SeqCst);
        let mut received = Vec::new();
        let answer = loop {
            tokio::select! {
                answer = &mut request => break answer,
                readable = stdout.readable() => readable.unwrap(),
                () = tokio::time::sleep(Duration::from_secs(10)) => panic!("no answer"),
            }
            let mut buffer = [0; 4096];
            if let Ok(count) = stdout.try_read(&mut buffer) {
                received.extend_from_slice(&buffer[..count]);
            }
        };
        assert!(matches!(answer, Err(LinkError::PermitExpired)));
        assert!(received.iter().all(|byte| *byte == b' '));
    }
}
