//! Starts a child under its guard: environment, working directory, pipes, and what the guard tells.

use std::{
    ffi::OsString,
    io::IoSlice,
    mem::MaybeUninit,
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::UnixStream as StdUnixStream,
    },
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use rustix::{
    net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags},
    process::{Pid, Signal, kill_process_group},
};
use tokio::{
    io::{AsyncBufReadExt, BufReader, Lines},
    net::{
        UnixStream,
        unix::{OwnedReadHalf, OwnedWriteHalf, pipe},
    },
    process,
    time::timeout,
};

use crate::{
    guard::{KILL_ORDER, LEAN, Report, SUBCOMMAND, TERMINATE_ORDER},
    processes,
};

/// How long the guard may take to start the child; it takes milliseconds.
const START: Duration = Duration::from_secs(30);
/// This program, also after an upgrade has replaced its file.
const THIS_PROGRAM: &str = "/proc/self/exe";

/// Returns the program whose guard subcommand children of this process are started with: this one.
#[must_use]
pub fn this_program() -> PathBuf {
    let this = Path::new(THIS_PROGRAM);
    let found = if this.exists() { Ok(this.to_owned()) } else { std::env::current_exe() };
    found.unwrap_or_else(|_| this.to_owned())
}

/// What to start.
pub struct Spec<'a> {
    /// The program that has the guard's subcommand.
    pub guard: &'a Path,
    pub command: &'a str,
    pub args: &'a [String],
    /// What of this process's environment it gets.
    pub inherited: &'a [(OsString, OsString)],
    /// Beside that; wins over it.
    pub env: &'a [(&'a str, &'a str)],
    /// That of this process, where none is given.
    pub cwd: Option<&'a Path>,
}

/// Why a child does not run. Nothing of it is left.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("{0}: {1}")]
    System(&'static str, std::io::Error),
    #[error("`{command}` cannot be started: {error}{hint}")]
    Command { command: String, error: std::io::Error, hint: &'static str },
    #[error("it did not start within {}s", START.as_secs())]
    TooSlow,
    #[error("its guard ended at once; its stderr is in the log")]
    GuardEnded,
}

/// A child that runs. Dropping it all ends it (its stdin ends; after a while SIGTERM, after another SIGKILL).
pub struct Started {
    pub stdin: pipe::Sender,
    pub stdout: pipe::Receiver,
    pub stderr: pipe::Receiver,
    pub guard: Guard,
}

/// Starts a child and waits until its program runs.
///
/// # Errors
/// A program that cannot be started, or a system that refuses what a guard needs.
pub async fn start(spec: Spec<'_>) -> Result<Started, StartError> {
    let failed = |what: &'static str| move |error: std::io::Error| StartError::System(what, error);
    let (started, theirs) = prepare().map_err(failed("no pipes for it"))?;
    let (stdin, stdout, stderr, ours) = started;
    let mut command = process::Command::new(spec.guard);
    command
        .arg0("countersign")
        .arg(SUBCOMMAND)
        .arg("--")
        .arg(spec.command)
        .args(spec.args)
        .env_clear()
        .env(LEAN.0, LEAN.1)
        .envs(spec.inherited.iter().map(|(name, value)| (name, value)))
        .envs(spec.env.iter().copied())
        .stdin(theirs.control)
        .stdout(Stdio::null())
        .stderr(theirs.stderr);
    if let Some(cwd) = spec.cwd {
        command.current_dir(cwd);
    }
    let process = command.spawn().map_err(failed("its guard cannot be started"))?;
    // Only the guard holds its side now, so that its end is seen here.
    drop(command);
    let mut guard = Guard::new(ours, process).map_err(failed("no socket for it"))?;
    match timeout(START, guard.report()).await.map_err(|_| StartError::TooSlow)? {
        Some(Report::Started { pid, since }) => {
            guard.server = Pid::from_raw(pid).map(|pid| (pid, since));
            Ok(Started { stdin, stdout, stderr, guard })
        }
        Some(Report::Failed { errno }) => {
            let error = std::io::Error::from_raw_os_error(errno);
            let hint = match error.kind() {
                std::io::ErrorKind::NotFound => "; no such program, or its interpreter is missing",
                _ => "",
            };
            Err(StartError::Command { command: spec.command.to_owned(), error, hint })
        }
        _ => Err(StartError::GuardEnded),
    }
}

/// What the guard starts with.
struct Theirs {
    control: OwnedFd,
    stderr: OwnedFd,
}

type Ours = (pipe::Sender, pipe::Receiver, pipe::Receiver, StdUnixStream);

/// The pipes and the socket. The server's ends of the pipes wait in the socket for the guard: they are never
/// inheritable in the gateway, so that no other process which is started at the same time can get them.
fn prepare() -> std::io::Result<(Ours, Theirs)> {
    let (server_in, stdin) = std::io::pipe()?;
    let (stdout, server_out) = std::io::pipe()?;
    let (stderr, server_err) = std::io::pipe()?;
    let (ours, control) = StdUnixStream::pair()?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let fds = [server_in.as_fd(), server_out.as_fd(), server_err.as_fd()];
    if !ancillary.push(SendAncillaryMessage::ScmRights(&fds)) {
        return Err(std::io::Error::other("three descriptors do not fit"));
    }
    rustix::net::sendmsg(&ours, &[IoSlice::new(b"\n")], &mut ancillary, SendFlags::NOSIGNAL)?;
    let ours = (
        pipe::Sender::from_owned_fd(stdin.into())?,
        pipe::Receiver::from_owned_fd(stdout.into())?,
        pipe::Receiver::from_owned_fd(stderr.into())?,
        ours,
    );
    Ok((ours, Theirs { control: control.into(), stderr: server_err.into() }))
}

/// This process's side of the guard.
pub struct Guard {
    reports: Lines<BufReader<OwnedReadHalf>>,
    /// For the order to end the child. Closed without one, it says that this process is gone.
    order: Option<OwnedWriteHalf>,
    process: process::Child,
    server: Option<(Pid, u64)>,
}

impl Guard {
    fn new(socket: StdUnixStream, process: process::Child) -> std::io::Result<Self> {
        socket.set_nonblocking(true)?;
        let (read, write) = UnixStream::from_std(socket)?.into_split();
        let reports = BufReader::with_capacity(256, read).lines();
        Ok(Self { reports, order: Some(write), process, server: None })
    }

    /// Returns the next report; `None` once the guard is gone. Nothing is lost where the future is dropped.
    pub async fn report(&mut self) -> Option<Report> {
        loop {
            match self.reports.next_line().await {
                Ok(Some(line)) => match Report::parse(&line) {
                    Some(report) => return Some(report),
                    None => continue,
                },
                Ok(None) | Err(_) => return None,
            }
        }
    }

    /// Orders the end: SIGTERM to everything that the child started, SIGKILL to what is left after two seconds.
    pub fn terminate(&mut self) {
        self.give(TERMINATE_ORDER);
    }

    /// Orders the end at once: SIGKILL to everything that the child started.
    pub fn kill(&mut self) {
        self.give(KILL_ORDER);
    }

    fn give(&mut self, order: &[u8]) {
        if let Some(socket) = self.order.take() {
            // Where it does not get through, the end of the socket says the same, only later.
            let _ = socket.try_write(order);
        }
    }

    /// Waits until nothing is left of the child, and takes leave of the guard.
    ///
    /// `orphaned`: the guard ended before the child did, by no order of ours (somebody killed it).
    pub async fn finish(mut self, orphaned: bool) {
        while self.report().await.is_some() {}
        if orphaned && let Some((pid, since)) = self.server {
            // Best effort, since nothing adopted what the child started: its group is all that is known.
            if processes::started(pid) == Some(since) {
                let _ = kill_process_group(pid, Signal::KILL);
            }
        }
        let _ = self.process.wait().await;
    }
}
