//! A link to a server that is a child process: its tasks and its end.

use std::{sync::Arc, time::Duration};

use bytes::BytesMut;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::unix::pipe,
    time::{Instant, sleep_until, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{
    frames::{Frames, Line},
    log::{ServerLog, Throttle},
};
use crate::link::{
    LinkError, Listener,
    mux::{Mux, SharedLink},
};
use countersign_child::{RunningChild, guard::GuardReport};
use countersign_runtime::{lanes::LARGE_MESSAGE_BYTES, reclaim};

/// How long a server may take to end after its stdin is closed (2025-11-25/basic/lifecycle#stdio); then comes the
/// guard's SIGTERM, and after its grace SIGKILL.
const LEAVE: Duration = Duration::from_secs(2);
/// How long what a server wrote before it ended is read, where something that it started keeps its stdout open.
const DRAIN: Duration = Duration::from_millis(500);
/// What the buffer of the writer may keep.
const KEPT: usize = 256 << 10;

/// Takes over a server that runs. `max`: bytes of one message from it.
pub(super) fn start(started: RunningChild, log: ServerLog, max: usize, unsolicited: Arc<dyn Listener>) -> SharedLink {
    let link = SharedLink::new(unsolicited);
    tokio::spawn(run(Arc::clone(&link.mux), started, log, max, link.stop.clone()));
    link
}

/// Nobody waits for ever, even where the tasks end by no end of the child's: a panic, or the thread that stops.
struct EndOnDrop(Arc<Mux>);

impl Drop for EndOnDrop {
    fn drop(&mut self) {
        self.0.end(LinkError::Lost("the gateway ended it".to_owned()));
    }
}

/// How far the end has come.
enum Phase {
    Running,
    /// Its stdin is closed.
    Leaving {
        until: Instant,
    },
    /// The guard has its order.
    Terminating,
}

/// Looks after one child from start to end.
async fn run(mux: Arc<Mux>, started: RunningChild, log: ServerLog, max: usize, stop: CancellationToken) {
    let _end = EndOnDrop(mux.clone());
    let RunningChild { stdin, stdout, stderr, mut guard } = started;
    let log = Arc::new(log);
    tokio::spawn({
        let log = log.clone();
        async move { log.follow(stderr).await }
    });
    let mut writing = tokio::spawn(write(mux.clone(), stdin));
    let mut written = false;
    let reading = read(&mux, stdout, max, &log);
    tokio::pin!(reading);
    let mut read = false;
    let mut phase = Phase::Running;
    let leave = |phase: &mut Phase| {
        if matches!(phase, Phase::Running) {
            mux.queue.close();
            *phase = Phase::Leaving { until: Instant::now() + LEAVE };
        }
    };
    let report = loop {
        let until = match phase {
            Phase::Leaving { until } => Some(until),
            Phase::Running | Phase::Terminating => None,
        };
        tokio::select! {
            report = guard.next_report() => match report {
                Some(report @ (GuardReport::Exited { .. } | GuardReport::Killed { .. })) => break Some(report),
                Some(_) => {}
                None => break None,
            },
            end = &mut reading, if !read => {
                read = true;
                match end {
                    // It is ending, or else it is of no use any more.
                    ReadEnd::Closed => leave(&mut phase),
                    ReadEnd::TooLong => {
                        mux.end(LinkError::Protocol(format!("it sent a message of more than {max} bytes")));
                        guard.terminate();
                        phase = Phase::Terminating;
                    }
                }
            }
            // It does not read any more; what it already has it may still answer.
            _ = &mut writing, if !written => {
                written = true;
                leave(&mut phase);
            }
            () = stop.cancelled(), if matches!(phase, Phase::Running) => leave(&mut phase),
            () = sleep_until(until.unwrap_or_else(Instant::now)), if until.is_some() => {
                if read {
                    mux.end(LinkError::Lost("it closed its stdout".to_owned()));
                }
                guard.terminate();
                phase = Phase::Terminating;
            }
        }
    };
    if !read {
        let _ = timeout(DRAIN, &mut reading).await;
    }
    let how = describe(report.as_ref());
    log.ended(&how, !stop.is_cancelled());
    mux.end(LinkError::Lost(how));
    writing.abort();
    guard.finish(report.is_none()).await;
}

/// How a server ended, in words that follow its name.
fn describe(report: Option<&GuardReport>) -> String {
    match report {
        Some(GuardReport::Exited { status }) => format!("its process exited unexpectedly with status {status}"),
        Some(GuardReport::Killed { signal }) => format!("its process was killed by signal {signal}"),
        _ => "its guard process was killed".to_owned(),
    }
}

enum ReadEnd {
    Closed,
    TooLong,
}

async fn read(mux: &Arc<Mux>, mut stdout: pipe::Receiver, max: usize, log: &ServerLog) -> ReadEnd {
    let mut frames = Frames::new(max);
    let mut throttle = Throttle::default();
    let mut take = |line: &[u8]| {
        if line.len() > LARGE_MESSAGE_BYTES {
            // Whoever asked for it drops it on another thread.
            reclaim::collect_after_large();
        }
        if !line.trim_ascii().is_empty()
            && let Err(why) = mux.receive(line)
        {
            log.garbage(line, &why, &mut throttle);
        }
    };
    while matches!(stdout.read_buf(frames.room()).await, Ok(1..)) {
        while let Some(line) = frames.next() {
            match line {
                Line::Whole(line) => take(&line),
                Line::Cut(_) => return ReadEnd::TooLong,
            }
        }
    }
    if let Some(rest) = frames.rest() {
        take(&rest);
    }
    ReadEnd::Closed
}

/// Returns when the queue is closed and written, which closes stdin, or when it cannot be written any more.
async fn write(mux: Arc<Mux>, mut stdin: pipe::Sender) {
    let mut out = BytesMut::new();
    while mux.queue.next(&mut out).await {
        mux.withhold();
        let mut written = 0;
        while written < out.len() {
            match stdin.write(&out[written..]).await {
                Ok(more @ 1..) => written += more,
                Ok(0) | Err(_) => {
                    if written == 0 {
                        mux.queue.unwritten();
                    }
                    return;
                }
            }
        }
        if out.capacity() > KEPT {
            out = BytesMut::new();
        }
        out.clear();
    }
}
