//! The guard: the small process between the gateway and one stdio server (`countersign __guard -- command args…`).
//! `countersign check` has it between itself and the server that it checks, in the place of the gateway.
//!
//! It carries no data. The server's stdin, stdout and stderr are pipes of the gateway's that come over the guard's own
//! stdin, a Unix socket, as descriptors. Later the socket tells each of the two that the other has gone: when the
//! gateway closes its side, or dies by whatever signal, the guard ends the server and everything that the server
//! started; the gateway reads there how the server ended, and by the end of it that nothing is left.
//!
//! The guard is the subreaper of all that it starts, so that a daemon that leaves its group and its session is still
//! a descendant of the guard's, to be found and reaped. The gateway cannot be that itself: it may be killed.
//!
//! It must never write what it was given (arguments and environment hold secrets), never allocate much, and outlive
//! every process that it answers for.

use std::{
    collections::HashSet,
    ffi::OsString,
    io::{IoSliceMut, Write},
    mem::MaybeUninit,
    os::{
        fd::{AsFd, OwnedFd},
        unix::{net::UnixStream as StdUnixStream, process::CommandExt},
    },
    process::{Command, ExitCode, Stdio},
    time::Duration,
};

use rustix::{
    net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags},
    process::{Pid, Signal, WaitOptions, WaitStatus},
};
use tokio::{
    net::UnixStream,
    signal::unix::{SignalKind, signal},
    time::{Instant, sleep_until},
};

use crate::processes;

/// The subcommand. It has no help: only the gateway uses it.
pub const SUBCOMMAND: &str = "__guard";
/// What the gateway adds to the guard's environment: its allocator would else begin with two huge pages, 4 MiB where
/// 2 MiB are plenty. The spelling tells it from a server's own setting of that name, which is passed on.
pub(crate) const LEAN: (&str, &str) = ("MIMALLOC_ARENA_RESERVE", "00");
/// The gateway's order to end the server now. Without an order, the end of the socket means that the gateway is gone.
pub(crate) const TERMINATE_ORDER: &[u8] = b"end\n";
/// The order to kill it at once.
pub(crate) const KILL_ORDER: &[u8] = b"kill\n";
/// What a server whose gateway is gone has to leave by itself, since its stdin has ended with it
/// (2025-11-25/basic/lifecycle#stdio).
const LEAVE: Duration = Duration::from_secs(2);
/// From SIGTERM to SIGKILL.
const GRACE: Duration = Duration::from_secs(2);
/// Between rounds of SIGKILL: what is left then was forked meanwhile.
const ROUND: Duration = Duration::from_millis(20);
/// Between rounds in the end, for what the guard may not signal (a program of another user).
const LONG_ROUND: Duration = Duration::from_secs(1);

/// What the guard tells the gateway: one line each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Report {
    /// The server runs under this id, since this many ticks after boot (`starttime` of proc_pid_stat(5)).
    Started {
        pid: i32,
        since: u64,
    },
    /// It could not be started, because of that error number.
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

impl Report {
    fn line(&self) -> String {
        match self {
            Self::Started { pid, since } => format!("started {pid} {since}\n"),
            Self::Failed { errno } => format!("failed {errno}\n"),
            Self::Exited { status } => format!("exited {status}\n"),
            Self::Killed { signal } => format!("killed {signal}\n"),
        }
    }

    /// `None` for a line that no guard writes.
    pub fn parse(line: &str) -> Option<Self> {
        let (word, rest) = line.trim_end().split_once(' ')?;
        Some(match word {
            "started" => {
                let (pid, since) = rest.split_once(' ')?;
                Self::Started { pid: pid.parse().ok()?, since: since.parse().ok()? }
            }
            "failed" => Self::Failed { errno: rest.parse().ok()? },
            "exited" => Self::Exited { status: rest.parse().ok()? },
            "killed" => Self::Killed { signal: rest.parse().ok()? },
            _ => return None,
        })
    }
}

/// Runs the guard with the arguments that follow [`SUBCOMMAND`], until nothing of the server is left.
///
/// # Errors
/// Where it was not the gateway that started it, or the system refuses the little that it needs.
pub fn main(mut args: impl Iterator<Item = OsString>) -> Result<ExitCode, String> {
    let (Some(dashes), Some(program)) = (args.next(), args.next()) else {
        return Err(format!("{SUBCOMMAND} is started by the gateway"));
    };
    if dashes != "--" {
        return Err(format!("{SUBCOMMAND} is started by the gateway"));
    }
    // Without a controlling terminal, nothing here can stop for one, nor get its Ctrl-C.
    let _ = rustix::process::setsid();
    become_subreaper().map_err(|error| format!("cannot adopt orphans: {error}"))?;
    let (control, server) = receive().map_err(|error| format!("{SUBCOMMAND} is started by the gateway: {error}"))?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .build()
        .map_err(|error| format!("cannot start: {error}"))?;
    runtime.block_on(async {
        // Handlers first: no end of a child may be missed, and nothing may end the guard once it has a child.
        let signals = Signals::new().map_err(|error| format!("cannot handle signals: {error}"))?;
        let control = Control::new(control).map_err(|error| format!("cannot use its socket: {error}"))?;
        let mut command = Command::new(program);
        let [stdin, stdout, stderr] = server;
        command.args(args).stdin(stdin).stdout(stdout).stderr(stderr).process_group(0);
        if std::env::var_os(LEAN.0).is_some_and(|value| value == LEAN.1) {
            command.env_remove(LEAN.0);
        }
        let started = command.spawn();
        // The gateway sees the end of the server's stdout only when nobody else holds it.
        drop(command);
        match started {
            Ok(child) => {
                let pid = Pid::from_child(&child);
                let since = processes::started(pid).unwrap_or(0);
                control.tell(&Report::Started { pid: pid.as_raw_nonzero().get(), since });
                watch(pid, &control, signals).await;
                Ok(ExitCode::SUCCESS)
            }
            Err(error) => {
                control.tell(&Report::Failed { errno: error.raw_os_error().unwrap_or(0) });
                Ok(ExitCode::FAILURE)
            }
        }
    })
}

fn become_subreaper() -> rustix::io::Result<()> {
    #[cfg(target_os = "linux")]
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    Ok(())
}

/// The socket that is stdin, and what came over it: the server's stdin, stdout and stderr.
fn receive() -> std::io::Result<(StdUnixStream, [Stdio; 3])> {
    let stdin = std::io::stdin();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0_u8; 1];
    // Close-on-exec, so that the server has them as its 0, 1 and 2 and nowhere else.
    rustix::net::recvmsg(&stdin, &mut [IoSliceMut::new(&mut byte)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    let mut received: Vec<OwnedFd> = Vec::with_capacity(3);
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(fds) = message {
            received.extend(fds);
        }
    }
    let server = <[OwnedFd; 3]>::try_from(received)
        .map_err(|_| std::io::Error::other("no descriptors came over its stdin"))?
        .map(Stdio::from);
    Ok((StdUnixStream::from(stdin.as_fd().try_clone_to_owned()?), server))
}

/// The guard's side of the socket.
struct Control {
    told: StdUnixStream,
    heard: UnixStream,
}

impl Control {
    fn new(stream: StdUnixStream) -> std::io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self { told: stream.try_clone()?, heard: UnixStream::from_std(stream)? })
    }

    /// A few bytes always fit; a gateway that is gone need not know.
    fn tell(&self, report: &Report) {
        let _ = (&self.told).write_all(report.line().as_bytes());
    }

    /// Waits for the gateway's order, or for its end.
    async fn ordered(&self) -> Order {
        let mut buffer = [0_u8; 64];
        loop {
            if self.heard.readable().await.is_err() {
                return Order::Leave;
            }
            match self.heard.try_read(&mut buffer) {
                Ok(count @ 1..) if buffer.get(..count) == Some(KILL_ORDER) => return Order::Kill,
                Ok(1..) => return Order::Terminate,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Ok(0) | Err(_) => return Order::Leave,
            }
        }
    }
}

/// What the gateway wants of a server.
enum Order {
    /// Nothing: the gateway is gone.
    Leave,
    Terminate,
    Kill,
}

/// What ends children, and what would end the guard.
struct Signals {
    child: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
    hangup: tokio::signal::unix::Signal,
    quit: tokio::signal::unix::Signal,
}

impl Signals {
    fn new() -> std::io::Result<Self> {
        Ok(Self {
            child: signal(SignalKind::child())?,
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
            quit: signal(SignalKind::quit())?,
        })
    }
}

/// How far the end has come.
enum Phase {
    Running,
    Leaving { until: Instant },
    Terminating { until: Instant },
    Killing { next: Instant, pause: Duration, left: HashSet<(Pid, u64)> },
}

/// Until no descendant is left.
async fn watch(server: Pid, control: &Control, mut signals: Signals) {
    let mut phase = Phase::Running;
    loop {
        match reap(server, control) {
            Reaped::NothingLeft => return,
            // What a server leaves behind would hold its pipes, its files and its port.
            Reaped::Server if matches!(phase, Phase::Running | Phase::Leaving { .. }) => phase = terminate(server),
            Reaped::Server | Reaped::Others => {}
        }
        let running = matches!(phase, Phase::Running);
        let alive = matches!(phase, Phase::Running | Phase::Leaving { .. });
        let deadline = match phase {
            Phase::Running => None,
            Phase::Leaving { until } | Phase::Terminating { until } => Some(until),
            Phase::Killing { next, .. } => Some(next),
        };
        let timer = async {
            match deadline {
                Some(deadline) => sleep_until(deadline).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = signals.child.recv() => {}
            order = control.ordered(), if running => phase = match order {
                Order::Kill => kill(server, &phase),
                Order::Terminate => terminate(server),
                Order::Leave => Phase::Leaving { until: Instant::now() + LEAVE },
            },
            // A service manager signals every process of the service: the guard then does its work, not more and not less.
            _ = signals.terminate.recv(), if alive => phase = terminate(server),
            _ = signals.interrupt.recv(), if alive => phase = terminate(server),
            _ = signals.hangup.recv(), if alive => phase = terminate(server),
            _ = signals.quit.recv(), if alive => phase = terminate(server),
            () = timer => phase = match phase {
                Phase::Leaving { .. } => terminate(server),
                _ => kill(server, &phase),
            },
        }
    }
}

fn terminate(server: Pid) -> Phase {
    processes::signal_descendants(server, Signal::TERM);
    // One that is stopped would not see it.
    processes::signal_descendants(server, Signal::CONT);
    Phase::Terminating { until: Instant::now() + GRACE }
}

fn kill(server: Pid, phase: &Phase) -> Phase {
    let killed = processes::signal_descendants(server, Signal::KILL);
    let pause = match phase {
        // The same ones, still: they cannot be killed, and are only waited for.
        Phase::Killing { pause, left, .. } if !killed.is_empty() && *left == killed => (*pause * 2).min(LONG_ROUND),
        _ => ROUND,
    };
    Phase::Killing { next: Instant::now() + pause, pause, left: killed }
}

enum Reaped {
    NothingLeft,
    Server,
    Others,
}

/// Takes leave of every child that has ended, adopted ones too.
fn reap(server: Pid, control: &Control) -> Reaped {
    let mut reaped = Reaped::Others;
    loop {
        match rustix::process::wait(WaitOptions::NOHANG) {
            Ok(Some((pid, status))) if pid == server => {
                if let Some(report) = ended(status) {
                    control.tell(&report);
                    reaped = Reaped::Server;
                }
            }
            Ok(Some(_)) | Err(rustix::io::Errno::INTR) => {}
            Ok(None) => return reaped,
            Err(_) => return Reaped::NothingLeft,
        }
    }
}

fn ended(status: WaitStatus) -> Option<Report> {
    if let Some(status) = status.exit_status() {
        return Some(Report::Exited { status });
    }
    status.terminating_signal().map(|signal| Report::Killed { signal })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_round_trip_as_lines() {
        for report in [
            Report::Started { pid: 12, since: 99 },
            Report::Failed { errno: 2 },
            Report::Exited { status: 3 },
            Report::Killed { signal: 9 },
        ] {
            assert_eq!(Report::parse(&report.line()), Some(report));
        }
        for line in ["", "\n", "started\n", "started 1\n", "exited x\n", "hello 1\n"] {
            assert_eq!(Report::parse(line), None, "{line}");
        }
    }

    #[test]
    fn unexpected_guard_arguments_are_refused() {
        for args in [vec![], vec!["--"], vec!["x", "y"]] {
            assert!(main(args.into_iter().map(OsString::from)).is_err());
        }
    }
}
