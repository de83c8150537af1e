//! Starts a child under its guard: environment, working directory, pipes and the guard's reports.

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
    guard::{GuardReport, KILL_ORDER, SMALL_ARENA, SUBCOMMAND, TERMINATE_ORDER},
    processes,
};

/// Time limit for the guard to start the child, which normally takes milliseconds.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// The path of this program, which stays valid after an upgrade has replaced its file.
const THIS_PROGRAM: &str = "/proc/self/exe";

/// Returns the path of this program, which provides the guard's subcommand for children.
pub fn this_program() -> PathBuf {
    let this = PathBuf::from(THIS_PROGRAM);
    if this.exists() { this } else { std::env::current_exe().unwrap_or(this) }
}

/// The command of a child and its environment.
pub struct ChildSpec<'a> {
    /// The program that provides the guard's subcommand.
    pub guard: &'a Path,
    pub command: &'a str,
    pub args: &'a [String],
    /// The variables that the child inherits from this process.
    pub inherited: &'a [(OsString, OsString)],
    /// Additional variables, which override the inherited ones.
    pub env: &'a [(&'a str, &'a str)],
    /// The working directory; `None` means that of this process.
    pub cwd: Option<&'a Path>,
}

/// The reason why a child could not be started. A guard that runs nevertheless ends the child, because its socket is closed.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("{0}: {1}")]
    System(&'static str, std::io::Error),
    #[error("`{command}` cannot be started: {error}{hint}")]
    Command { command: String, error: std::io::Error, hint: &'static str },
    #[error("it did not start within {}s", START_TIMEOUT.as_secs())]
    TooSlow,
    #[error("its guard ended at once; its stderr is in the log")]
    GuardEnded,
}

/// A running child. Dropping it ends the child: its stdin is closed, and SIGTERM and then SIGKILL follow after a while.
pub struct RunningChild {
    pub stdin: pipe::Sender,
    pub stdout: pipe::Receiver,
    pub stderr: pipe::Receiver,
    pub guard: GuardHandle,
}

/// Starts a child and waits until its program runs.
///
/// # Errors
/// The program cannot be started, or the system refuses what the guard needs.
pub async fn start(spec: ChildSpec<'_>) -> Result<RunningChild, StartError> {
    let system_error = |problem: &'static str| move |error: std::io::Error| StartError::System(problem, error);
    let (gateway_ends, guard_ends) = create_pipes().map_err(system_error("its pipes cannot be created"))?;
    let (stdin, stdout, stderr, control) = gateway_ends;
    let mut command = process::Command::new(spec.guard);
    command
        .arg0("countersign")
        .arg(SUBCOMMAND)
        .arg("--")
        .arg(spec.command)
        .args(spec.args)
        .env_clear()
        .env(SMALL_ARENA.0, SMALL_ARENA.1)
        .envs(spec.inherited.iter().map(|(name, value)| (name, value)))
        .envs(spec.env.iter().copied())
        .stdin(guard_ends.control)
        .stdout(Stdio::null())
        .stderr(guard_ends.stderr);
    if let Some(cwd) = spec.cwd {
        command.current_dir(cwd);
    }
    let process = command.spawn().map_err(system_error("its guard cannot be started"))?;
    // From now on only the guard holds its end of the socket, so this process sees when the guard exits.
    drop(command);
    let mut guard =
        GuardHandle::new(control, process).map_err(system_error("the socket of its guard cannot be used"))?;
    match timeout(START_TIMEOUT, guard.next_report()).await.map_err(|_| StartError::TooSlow)? {
        Some(GuardReport::Started { pid, start_ticks }) => {
            guard.child = Pid::from_raw(pid).map(|pid| (pid, start_ticks));
            Ok(RunningChild { stdin, stdout, stderr, guard })
        }
        Some(GuardReport::Failed { errno }) => {
            let error = std::io::Error::from_raw_os_error(errno);
            let hint = match (error.kind(), spec.command) {
                (std::io::ErrorKind::NotFound, "npx") => "; install Node.js (https://nodejs.org), which contains it",
                (std::io::ErrorKind::NotFound, "uvx") => "; install uv (https://docs.astral.sh/uv), which contains it",
                (std::io::ErrorKind::NotFound, _) => "; no such program, or its interpreter is missing",
                _ => "",
            };
            Err(StartError::Command { command: spec.command.to_owned(), error, hint })
        }
        _ => Err(StartError::GuardEnded),
    }
}

/// The ends of the socket and the pipe that the guard starts with.
struct GuardEnds {
    control: OwnedFd,
    stderr: OwnedFd,
}

/// The gateway's ends of the pipes and the socket.
type GatewayEnds = (pipe::Sender, pipe::Receiver, pipe::Receiver, StdUnixStream);

/// Creates the pipes and the socket. The child's ends of the pipes wait in the socket for the guard. They are never
/// inheritable in the gateway, so no other process started at the same time can get them.
fn create_pipes() -> std::io::Result<(GatewayEnds, GuardEnds)> {
    let (child_stdin, stdin) = std::io::pipe()?;
    let (stdout, child_stdout) = std::io::pipe()?;
    let (stderr, child_stderr) = std::io::pipe()?;
    let (gateway_socket, guard_socket) = StdUnixStream::pair()?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let fds = [child_stdin.as_fd(), child_stdout.as_fd(), child_stderr.as_fd()];
    if !ancillary.push(SendAncillaryMessage::ScmRights(&fds)) {
        return Err(std::io::Error::other("three descriptors do not fit"));
    }
    rustix::net::sendmsg(&gateway_socket, &[IoSlice::new(b"\n")], &mut ancillary, SendFlags::NOSIGNAL)?;
    let gateway_ends = (
        pipe::Sender::from_owned_fd(stdin.into())?,
        pipe::Receiver::from_owned_fd(stdout.into())?,
        pipe::Receiver::from_owned_fd(stderr.into())?,
        gateway_socket,
    );
    Ok((gateway_ends, GuardEnds { control: guard_socket.into(), stderr: child_stderr.into() }))
}

/// The gateway's connection to a guard.
pub struct GuardHandle {
    reports: Lines<BufReader<OwnedReadHalf>>,
    /// The socket for the order to end the child. If it is closed without an order, the guard knows that this process is
    /// gone.
    orders: Option<OwnedWriteHalf>,
    /// The process of the guard.
    process: process::Child,
    /// The process of the child, once it has started.
    child: Option<processes::ProcessIdentity>,
}

impl GuardHandle {
    fn new(socket: StdUnixStream, process: process::Child) -> std::io::Result<Self> {
        socket.set_nonblocking(true)?;
        let (read, write) = UnixStream::from_std(socket)?.into_split();
        let reports = BufReader::with_capacity(256, read).lines();
        Ok(Self { reports, orders: Some(write), process, child: None })
    }

    /// Returns the next report, or `None` once the guard is gone. Cancel-safe: dropping the future loses no report.
    pub async fn next_report(&mut self) -> Option<GuardReport> {
        let line = self.reports.next_line().await.ok()??;
        serde_json::from_str(&line).ok()
    }

    /// Orders SIGTERM for the child and all its descendants, and SIGKILL for those that are left after two seconds.
    pub fn terminate(&mut self) {
        self.send_order(TERMINATE_ORDER);
    }

    /// Orders SIGKILL for the child and all its descendants.
    pub fn kill(&mut self) {
        self.send_order(KILL_ORDER);
    }

    fn send_order(&mut self, order: &[u8]) {
        if let Some(socket) = self.orders.take() {
            // If the order is not delivered, the end of the socket has the same effect later.
            let _ = socket.try_write(order);
        }
    }

    /// Waits until no descendant of the child is left, and reaps the guard.
    ///
    /// `guard_was_killed` is `true` if the guard ended without a report that the child has ended.
    pub async fn wait_for_end(mut self, guard_was_killed: bool) {
        while self.next_report().await.is_some() {}
        if guard_was_killed && let Some((pid, start_ticks)) = self.child {
            // Without the guard, only the child's process group is known, so descendants in other groups may survive.
            if processes::read_start_ticks(pid) == Some(start_ticks) {
                let _ = kill_process_group(pid, Signal::KILL);
            }
        }
        let _ = self.process.wait().await;
    }
}
