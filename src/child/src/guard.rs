//! The guard: a small process between the gateway and one stdio server (`countersign __guard -- command args…`).
//! `countersign check` uses it in the same way for the server that it tests.
//!
//! The guard carries no data. The server's stdin, stdout and stderr are pipes of the gateway; the guard receives them
//! as descriptors over its own stdin, a Unix socket. When the gateway closes this socket or dies, the guard ends the
//! server and all its descendants. The guard reports over the socket how the server ended, and closes it once no
//! descendant is left.
//!
//! The guard is the subreaper of its descendants, so that a daemon that leaves its group and session can still be found
//! and reaped. The gateway cannot be the subreaper because it may be killed.
//!
//! The guard must never write its arguments or environment, which hold secrets. It must not allocate much, and must
//! outlive every process that it supervises.

use std::{
    collections::HashSet,
    ffi::OsString,
    future::poll_fn,
    io::{IoSliceMut, Write},
    mem::MaybeUninit,
    os::{
        fd::{AsFd, OwnedFd},
        unix::{net::UnixStream as StdUnixStream, process::CommandExt},
    },
    process::{Command, ExitCode, Stdio},
    task::Poll,
    time::Duration,
};

use rustix::{
    net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags},
    process::{Pid, Signal, WaitOptions, WaitStatus},
};
use serde::{Deserialize, Serialize};
use tokio::{
    io::AsyncReadExt as _,
    net::UnixStream,
    signal::unix::{SignalKind, signal},
    time::{Instant, sleep_until},
};

use crate::processes;

/// The subcommand. It has no help, because only the gateway uses it.
pub const SUBCOMMAND: &str = "__guard";
/// An environment variable for the guard's allocator, which would otherwise reserve two huge pages (4 MiB) instead of
/// one (2 MiB). The unusual value distinguishes it from the server's own setting, which is passed on.
pub(crate) const SMALL_ARENA: (&str, &str) = ("MIMALLOC_ARENA_RESERVE", "00");
/// The gateway's order to terminate the server. If the socket ends without an order, the gateway is gone.
pub(crate) const TERMINATE_ORDER: &[u8] = b"end\n";
/// The gateway's order to kill the server at once.
pub(crate) const KILL_ORDER: &[u8] = b"kill\n";
/// Time for a server to exit by itself after its gateway is gone, because its stdin has ended too
/// (2025-11-25/basic/lifecycle#stdio).
const SELF_EXIT_TIME: Duration = Duration::from_secs(2);
/// Time between SIGTERM and SIGKILL.
const TERMINATION_TIME: Duration = Duration::from_secs(2);
/// Initial time between rounds of SIGKILL. A process that is left after a round was forked during it.
const KILL_INTERVAL: Duration = Duration::from_millis(20);
/// Maximum time between rounds of SIGKILL, for processes that the guard may not signal (of another user).
const MAX_KILL_INTERVAL: Duration = Duration::from_secs(1);

/// A report from the guard to the gateway, one JSON text on each line.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub enum GuardReport {
    /// The server runs with this process id, and started at this time in clock ticks since boot (`starttime` of
    /// proc_pid_stat(5)).
    Started {
        pid: i32,
        start_ticks: u64,
    },
    /// The server could not be started, because of the error `errno`.
    Failed {
        errno: i32,
    },
    Exited {
        status: i32,
    },
    Killed {
        signal: i32,
    },
}

/// Runs the guard with the arguments after [`SUBCOMMAND`], until no descendant of the server is left.
///
/// # Errors
/// The guard was not started by the gateway, or a system call failed.
pub fn main(mut args: impl Iterator<Item = OsString>) -> Result<ExitCode, String> {
    let Some(program) = args.next().filter(|dashes| dashes == "--").and_then(|_| args.next()) else {
        return Err(format!("{SUBCOMMAND} is started by the gateway"));
    };
    // Without a controlling terminal, no process here is stopped by it or receives its Ctrl-C.
    let _ = rustix::process::setsid();
    #[cfg(target_os = "linux")]
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
        .map_err(|error| format!("cannot adopt orphans: {error}"))?;
    let (control, server) =
        receive_descriptors().map_err(|error| format!("{SUBCOMMAND} is started by the gateway: {error}"))?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .build()
        .map_err(|error| format!("cannot start: {error}"))?;
    runtime.block_on(async {
        // The signal handlers come first, so that no end of a child is missed and no signal ends a guard that has a child.
        let signals = Signals::new().map_err(|error| format!("cannot handle signals: {error}"))?;
        let mut control = Control::new(control).map_err(|error| format!("cannot use its socket: {error}"))?;
        let mut command = Command::new(program);
        let [stdin, stdout, stderr] = server;
        command.args(args).stdin(stdin).stdout(stdout).stderr(stderr).process_group(0);
        if std::env::var_os(SMALL_ARENA.0).is_some_and(|value| value == SMALL_ARENA.1) {
            command.env_remove(SMALL_ARENA.0);
        }
        let spawn_result = command.spawn();
        // The gateway sees the end of the server's stdout only if no other process holds it.
        drop(command);
        match spawn_result {
            Ok(child) => {
                let pid = Pid::from_child(&child);
                let start_ticks = processes::read_start_ticks(pid).unwrap_or(0);
                control.send_report(&GuardReport::Started { pid: pid.as_raw_nonzero().get(), start_ticks });
                supervise(pid, &mut control, signals).await;
                Ok(ExitCode::SUCCESS)
            }
            Err(error) => {
                control.send_report(&GuardReport::Failed { errno: error.raw_os_error().unwrap_or(0) });
                Ok(ExitCode::FAILURE)
            }
        }
    })
}

/// Receives the control socket (stdin) and, over it, the server's stdin, stdout and stderr.
fn receive_descriptors() -> std::io::Result<(StdUnixStream, [Stdio; 3])> {
    let stdin = std::io::stdin();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0_u8; 1];
    // They are close-on-exec, so that the server holds them only as its descriptors 0, 1 and 2.
    rustix::net::recvmsg(&stdin, &mut [IoSliceMut::new(&mut byte)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    let mut descriptors: Vec<OwnedFd> = Vec::with_capacity(3);
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(fds) = message {
            descriptors.extend(fds);
        }
    }
    let server = <[OwnedFd; 3]>::try_from(descriptors)
        .map_err(|_| std::io::Error::other("no descriptors came over its stdin"))?
        .map(Stdio::from);
    Ok((StdUnixStream::from(stdin.as_fd().try_clone_to_owned()?), server))
}

/// The guard's end of the control socket.
struct Control {
    writer: StdUnixStream,
    reader: UnixStream,
}

impl Control {
    fn new(stream: StdUnixStream) -> std::io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self { writer: stream.try_clone()?, reader: UnixStream::from_std(stream)? })
    }

    /// Sends a report, which always fits into the socket buffer. Errors are ignored: without a gateway, nobody needs it.
    fn send_report(&self, report: &GuardReport) {
        if let Ok(report) = serde_json::to_string(report) {
            let _ = (&self.writer).write_all(format!("{report}\n").as_bytes());
        }
    }

    /// Waits for the gateway's order or for its end.
    async fn next_event(&mut self) -> ControlEvent {
        let mut buffer = [0_u8; 64];
        match self.reader.read(&mut buffer).await {
            Ok(count @ 1..) if buffer.get(..count) == Some(KILL_ORDER) => ControlEvent::Kill,
            Ok(1..) => ControlEvent::Terminate,
            Ok(0) | Err(_) => ControlEvent::GatewayGone,
        }
    }
}

/// An order of the gateway, or the end of the gateway.
enum ControlEvent {
    /// The gateway is gone and gave no order.
    GatewayGone,
    Terminate,
    Kill,
}

/// Signals of ended children, and signals that would end the guard.
struct Signals {
    child: tokio::signal::unix::Signal,
    ending: [tokio::signal::unix::Signal; 4],
}

impl Signals {
    fn new() -> std::io::Result<Self> {
        let [terminate, interrupt, hangup, quit] =
            [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup(), SignalKind::quit()].map(signal);
        Ok(Self { child: signal(SignalKind::child())?, ending: [terminate?, interrupt?, hangup?, quit?] })
    }
}

/// The progress of ending the server.
enum Phase {
    Running,
    AwaitingExit { until: Instant },
    Terminating { until: Instant },
    Killing { next: Instant, pause: Duration, remaining: HashSet<processes::ProcessIdentity> },
}

/// Supervises the server until no descendant is left.
async fn supervise(server: Pid, control: &mut Control, mut signals: Signals) {
    let mut phase = Phase::Running;
    loop {
        match reap(server, control) {
            ReapOutcome::NoChildren => return,
            // Remaining descendants of a server would keep its pipes, files and port open.
            ReapOutcome::Server if matches!(phase, Phase::Running | Phase::AwaitingExit { .. }) => {
                phase = terminate(server)
            }
            ReapOutcome::Server | ReapOutcome::OtherChildren => {}
        }
        let is_running = matches!(phase, Phase::Running);
        let before_termination = matches!(phase, Phase::Running | Phase::AwaitingExit { .. });
        let deadline = match phase {
            Phase::Running => None,
            Phase::AwaitingExit { until } | Phase::Terminating { until } => Some(until),
            Phase::Killing { next, .. } => Some(next),
        };
        let timer = async {
            match deadline {
                Some(deadline) => sleep_until(deadline).await,
                None => std::future::pending().await,
            }
        };
        let ending = poll_fn(|cx| match signals.ending.iter_mut().any(|signal| signal.poll_recv(cx).is_ready()) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        });
        tokio::select! {
            _ = signals.child.recv() => {}
            event = control.next_event(), if is_running => phase = match event {
                ControlEvent::Kill => kill(server, &phase),
                ControlEvent::Terminate => terminate(server),
                ControlEvent::GatewayGone => Phase::AwaitingExit { until: Instant::now() + SELF_EXIT_TIME },
            },
            // A service manager signals every process of the service: the guard then terminates its server as usual.
            () = ending, if before_termination => phase = terminate(server),
            () = timer => phase = match phase {
                Phase::AwaitingExit { .. } => terminate(server),
                _ => kill(server, &phase),
            },
        }
    }
}

fn terminate(server: Pid) -> Phase {
    // A stopped process does not receive SIGTERM until it continues.
    processes::signal_descendants(server, &[Signal::TERM, Signal::CONT]);
    Phase::Terminating { until: Instant::now() + TERMINATION_TIME }
}

fn kill(server: Pid, phase: &Phase) -> Phase {
    let killed = processes::signal_descendants(server, &[Signal::KILL]);
    let pause = match phase {
        // The same processes as before cannot be killed and are only waited for.
        Phase::Killing { pause, remaining, .. } if !killed.is_empty() && *remaining == killed => {
            (*pause * 2).min(MAX_KILL_INTERVAL)
        }
        _ => KILL_INTERVAL,
    };
    Phase::Killing { next: Instant::now() + pause, pause, remaining: killed }
}

enum ReapOutcome {
    NoChildren,
    Server,
    OtherChildren,
}

/// Reaps every child that has ended, including adopted ones.
fn reap(server: Pid, control: &Control) -> ReapOutcome {
    let mut reaped = ReapOutcome::OtherChildren;
    loop {
        match rustix::process::wait(WaitOptions::NOHANG) {
            Ok(Some((pid, status))) if pid == server => {
                if let Some(report) = report_for_status(status) {
                    control.send_report(&report);
                    reaped = ReapOutcome::Server;
                }
            }
            Ok(Some(_)) | Err(rustix::io::Errno::INTR) => {}
            Ok(None) => return reaped,
            Err(_) => return ReapOutcome::NoChildren,
        }
    }
}

fn report_for_status(status: WaitStatus) -> Option<GuardReport> {
    if let Some(status) = status.exit_status() {
        return Some(GuardReport::Exited { status });
    }
    status.terminating_signal().map(|signal| GuardReport::Killed { signal })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unexpected_guard_arguments_are_refused() {
        for args in [vec![], vec!["--"], vec!["x", "y"]] {
            assert!(main(args.into_iter().map(OsString::from)).is_err());
        }
    }
}
