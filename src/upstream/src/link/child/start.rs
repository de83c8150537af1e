//! Starts a server under its guard: environment, working directory, pipes, and what the guard tells.

use std::{
    ffi::{OsStr, OsString},
    fs,
    io::IoSlice,
    mem::MaybeUninit,
    os::{
        fd::{AsFd, OwnedFd},
        unix::{
            fs::{DirBuilderExt, PermissionsExt},
            net::UnixStream as StdUnixStream,
        },
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

use super::{
    guard::{LEAN, ORDER, Report, SUBCOMMAND},
    processes,
};
use crate::link::LinkError;

/// How long the guard may take to start the server; it takes milliseconds.
const START: Duration = Duration::from_secs(30);
/// What a server gets of the gateway's environment. Everything else, the gateway's own `COUNTERSIGN_*` above all, is
/// not its business.
const INHERITED: [&str; 7] = ["PATH", "HOME", "LANG", "TZ", "TMPDIR", "USER", "LOGNAME"];

/// What to start.
pub(super) struct Spec<'a> {
    pub(super) guard: &'a Path,
    pub(super) command: &'a str,
    pub(super) args: &'a [String],
    /// Beside what is inherited; wins over it.
    pub(super) env: &'a [(&'a str, &'a str)],
    pub(super) cwd: &'a Path,
}

/// A server that runs. Dropping it all ends it (its stdin ends; after a while SIGTERM, after another SIGKILL).
pub(super) struct Started {
    pub(super) stdin: pipe::Sender,
    pub(super) stdout: pipe::Receiver,
    pub(super) stderr: pipe::Receiver,
    pub(super) guard: Guard,
}

/// Starts a server and waits until its program runs.
pub(super) async fn start(spec: Spec<'_>) -> Result<Started, LinkError> {
    let failed = |what: &str, error: std::io::Error| LinkError::Unreachable(format!("{what}: {error}"));
    let (started, theirs) = prepare().map_err(|error| failed("no pipes for it", error))?;
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
        .envs(inherited(std::env::vars_os()))
        .envs(spec.env.iter().copied())
        .current_dir(spec.cwd)
        .stdin(theirs.control)
        .stdout(Stdio::null())
        .stderr(theirs.stderr);
    let process = command.spawn().map_err(|error| failed("its guard cannot be started", error))?;
    // Only the guard holds its side now, so that its end is seen here.
    drop(command);
    let mut guard = Guard::new(ours, process).map_err(|error| failed("no socket for it", error))?;
    let report = timeout(START, guard.report())
        .await
        .map_err(|_| LinkError::Unreachable(format!("it did not start within {}s", START.as_secs())))?;
    match report {
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
            Err(LinkError::Unreachable(format!("`{}` cannot be started: {error}{hint}", spec.command)))
        }
        _ => Err(LinkError::Unreachable("its guard ended at once; its stderr is in the log".to_owned())),
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

/// The gateway's side of the guard.
pub(super) struct Guard {
    reports: Lines<BufReader<OwnedReadHalf>>,
    /// For the order to end the server. Closed without one, it says that the gateway is gone.
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

    /// The next report; `None` once the guard is gone. Nothing is lost where the future is dropped.
    pub(super) async fn report(&mut self) -> Option<Report> {
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

    /// Orders the end: SIGTERM to everything that the server started, SIGKILL to what is left after two seconds.
    pub(super) fn terminate(&mut self) {
        if let Some(order) = self.order.take() {
            // Where it does not get through, the end of the socket says the same, only later.
            let _ = order.try_write(ORDER);
        }
    }

    /// Waits until nothing is left of the server, and takes leave of the guard.
    ///
    /// `orphaned`: the guard ended before the server did, by no order of ours (somebody killed it).
    pub(super) async fn finish(mut self, orphaned: bool) {
        while self.report().await.is_some() {}
        if orphaned && let Some((pid, since)) = self.server {
            // Best effort, since nothing adopted what the server started: its group is all that is known.
            if processes::started(pid) == Some(since) {
                let _ = kill_process_group(pid, Signal::KILL);
            }
        }
        let _ = self.process.wait().await;
    }
}

/// What is passed on of an environment.
fn inherited(all: impl Iterator<Item = (OsString, OsString)>) -> impl Iterator<Item = (OsString, OsString)> {
    all.filter(|(name, _)| is_inherited(name))
}

fn is_inherited(name: &OsStr) -> bool {
    name.to_str().is_some_and(|name| INHERITED.contains(&name) || name.starts_with("LC_"))
}

/// The folder that a server works in where the configuration names none: made for it alone.
pub(super) fn own_folder(data: &Path, name: &str) -> Result<PathBuf, LinkError> {
    let folder = data.join("servers").join(slug(name));
    let failed = |error| LinkError::Unreachable(format!("no working directory {}: {error}", folder.display()));
    fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder).map_err(failed)?;
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o700)).map_err(failed)?;
    Ok(folder)
}

/// A name as the name of a folder: lower case, `[a-z0-9.-]`, and never `.` or `..`.
fn slug(name: &str) -> String {
    let slug: String = name
        .chars()
        .map(|c| c.to_ascii_lowercase())
        .map(|c| if matches!(c, 'a'..='z' | '0'..='9' | '.' | '-') { c } else { '-' })
        .collect();
    if slug.bytes().all(|b| b == b'.') { "-".repeat(slug.len().max(1)) } else { slug }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_is_minimal() {
        let all = ["PATH", "HOME", "LC_ALL", "LANG", "TERM", "COUNTERSIGN_KEY", "AWS_SECRET_ACCESS_KEY", "LD_PRELOAD"]
            .map(|name| (OsString::from(name), OsString::from("x")));
        let names: Vec<_> = inherited(all.into_iter()).map(|(name, _)| name.into_string().unwrap()).collect();
        assert_eq!(names, ["PATH", "HOME", "LC_ALL", "LANG"]);
    }

    #[test]
    fn a_folder_stays_in_the_data_directory() {
        for (name, folder) in [
            ("GitHub", "github"),
            ("a/b c", "a-b-c"),
            ("..", "--"),
            (".", "-"),
            ("", "-"),
            ("../../etc", "..-..-etc"),
            ("é.1", "-.1"),
        ] {
            assert_eq!(slug(name), folder);
        }
        let data = tempfile::tempdir().unwrap();
        let folder = own_folder(data.path(), "..").unwrap();
        assert_eq!(folder, data.path().join("servers/--"));
        for path in [&folder, &data.path().join("servers")] {
            assert_eq!(fs::metadata(path).unwrap().permissions().mode() & 0o777, 0o700);
        }
        assert_eq!(own_folder(data.path(), "..").unwrap(), folder);
    }
}
