//! Connects to the gateway of a data directory, or starts a detached one. Of two concurrent starters, the holder of the
//! start lock starts the gateway, and the other waits and connects to it.
//!
//! A detached gateway of an older version is asked to end first. The start lock is held until the new one listens, so that
//! no agent that has lost its gateway starts the older program again.

use std::{
    ffi::OsString,
    fs::{self, File, TryLockError},
    io::{ErrorKind, Read, Seek, SeekFrom},
    net::SocketAddr,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    process::Stdio,
    time::{Duration, Instant},
};

use tokio::{
    io::BufReader,
    net::unix::{OwnedReadHalf, OwnedWriteHalf},
    process::{Child, Command},
    time::{sleep, timeout},
};

use super::{
    AttachError,
    hello::{self, Hello, HelloAnswer},
    proxy::GatewayConnection,
    socket,
    version::{OWN_VERSION, is_newer},
};
use countersign_runtime::data_dir::{ensure_data_dir, is_locked};
use countersign_telemetry::logs::open_log;

/// The file that a program locks while it starts a gateway. The gateway itself locks the data directory.
const START_LOCK_FILE: &str = "start.lock";
/// The file for stderr of the detached gateway.
pub const LOG_FILE: &str = "gateway.log";
/// The time that a gateway may take from its start to its first answer.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// The time for which a gateway may hold the data directory without a socket, because it is ending (`limits.drain`), or is
/// starting and waits for its database.
const DATA_DIR_HELD_TIMEOUT: Duration = Duration::from_secs(90);
/// The time that a listening gateway may take to answer the hello.
const WELCOME_TIMEOUT: Duration = Duration::from_secs(10);
/// The interval between attempts.
const POLL_INTERVAL: Duration = Duration::from_millis(15);
/// Maximum number of bytes of a failed gateway's log that are reported.
const MAX_LOG_TAIL_BYTES: u64 = 4096;
/// The exit code of a gateway whose data directory another gateway holds. Another starter was faster, so this is not a
/// failure.
pub const DATA_DIR_TAKEN_EXIT_CODE: u8 = 75;

/// The variables of `sd_notify(3)`.
const NOTIFY_VARIABLES: [&str; 3] = ["NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"];

/// An open connection after the handshake.
pub type SocketConnection = GatewayConnection<BufReader<OwnedReadHalf>, OwnedWriteHalf>;

/// A gateway that has answered the hello.
struct ContactedGateway {
    connection: SocketConnection,
    /// `true` for a detached gateway of an older program, which serves nevertheless.
    is_older: bool,
}

/// The command that starts a gateway.
#[derive(Clone, Debug)]
pub struct GatewayCommand {
    /// The path of this program.
    pub program: PathBuf,
    /// `serve` with the configuration and the data directory as absolute paths, so that the gateway has the same ones.
    pub arguments: Vec<OsString>,
}

/// Connects to the gateway of the data directory, and starts one if there is none, or if a detached one is older than this
/// program.
///
/// # Errors
/// See [`AttachError`]; each error names a remedy or a log.
pub async fn connect_or_start(
    data: &Path,
    hello: &Hello,
    command: &GatewayCommand,
) -> Result<SocketConnection, AttachError> {
    ensure_data_dir(data)?;
    let deadline = Instant::now() + DATA_DIR_HELD_TIMEOUT + START_TIMEOUT;
    loop {
        if let Some(ContactedGateway { connection, is_older: false }) = try_connect(data, hello).await? {
            return Ok(connection);
        }
        let Some(_lock) = try_acquire_start_lock(data)? else {
            if Instant::now() > deadline {
                return Err(AttachError::StartTimeout {
                    within: DATA_DIR_HELD_TIMEOUT + START_TIMEOUT,
                    log: data.join(LOG_FILE),
                });
            }
            sleep(POLL_INTERVAL).await;
            continue;
        };
        // Another process may have started a gateway before the lock was taken. An older one is now asked to end.
        let replacing = Hello { replace: true, ..hello.clone() };
        if let Some(connection) = connect(data, &replacing).await? {
            return Ok(connection);
        }
        return start_gateway(data, hello, command).await;
    }
}

/// Connects to the gateway of the data directory if one runs, whatever its version.
///
/// # Errors
/// See [`AttachError`].
pub async fn connect(data: &Path, hello: &Hello) -> Result<Option<SocketConnection>, AttachError> {
    Ok(try_connect(data, hello).await?.map(|gateway| gateway.connection))
}

/// Connects and performs the handshake. Returns `None` if nobody listens, or if the gateway closes the connection because it
/// is ending.
async fn try_connect(data: &Path, hello: &Hello) -> Result<Option<ContactedGateway>, AttachError> {
    let no_answer = || AttachError::NoAnswer { socket: socket::path(data), within: WELCOME_TIMEOUT };
    let stream = timeout(WELCOME_TIMEOUT, socket::connect(data)).await.map_err(|_| no_answer())??;
    let Some(stream) = stream else { return Ok(None) };
    let (reader, mut writer) = stream.into_split();
    let mut reader = BufReader::with_capacity(64 << 10, reader);
    let handshake = timeout(WELCOME_TIMEOUT, hello::perform_handshake(&mut reader, &mut writer, hello)).await;
    match handshake.map_err(|_| no_answer())? {
        Ok(Some(HelloAnswer::Welcome { version, is_detached })) => {
            let connection = SocketConnection { reader, writer, is_detached };
            let is_older = is_detached && is_newer(OWN_VERSION, &version);
            Ok(Some(ContactedGateway { connection, is_older }))
        }
        Ok(Some(HelloAnswer::Leaving { .. })) => {
            tracing::info!(data = %data.display(), "an older gateway ends for this program");
            Ok(None)
        }
        Ok(Some(HelloAnswer::Refused { reason })) => Err(AttachError::Refused(reason)),
        Ok(None) => Ok(None),
        Err(error) if matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Takes the start lock, which is held until the file is dropped. Returns `None` if another starter holds it.
///
/// # Errors
/// [`AttachError::Lock`]
pub fn try_acquire_start_lock(data: &Path) -> Result<Option<File>, AttachError> {
    let path = data.join(START_LOCK_FILE);
    let fail = |source| AttachError::Lock { path: path.clone(), source };
    let file = fs::OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(&path).map_err(fail)?;
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(source)) => Err(fail(source)),
    }
}

async fn start_gateway(data: &Path, hello: &Hello, command: &GatewayCommand) -> Result<SocketConnection, AttachError> {
    let log = data.join(LOG_FILE);
    let lock_deadline = Instant::now() + DATA_DIR_HELD_TIMEOUT;
    loop {
        // A gateway that is ending, or that is starting without this lock, holds the data directory.
        while is_locked(data)? {
            if let Some(connection) = connect(data, hello).await? {
                return Ok(connection);
            }
            if Instant::now() > lock_deadline {
                let reason = "another gateway holds the data directory but does not open its socket".to_owned();
                return Err(AttachError::StartFailed { reason, log_tail: String::new(), log });
            }
            sleep(POLL_INTERVAL).await;
        }
        let stderr = open_log(&log).map_err(AttachError::Spawn)?;
        let log_start = stderr.metadata().map_or(0, |meta| meta.len());
        let mut child = spawn(command, stderr)?;
        let start_deadline = Instant::now() + START_TIMEOUT;
        loop {
            if let Some(connection) = connect(data, hello).await? {
                // This process may outlive the gateway, which must not stay a zombie then.
                tokio::spawn(async move { child.wait().await });
                return Ok(connection);
            }
            let start_error = |reason: String| AttachError::StartFailed {
                reason,
                log_tail: read_log_tail(&log, log_start),
                log: log.clone(),
            };
            match child.try_wait().map_err(AttachError::Spawn)? {
                // Another gateway has taken the data directory meanwhile.
                Some(status)
                    if status.code() == Some(i32::from(DATA_DIR_TAKEN_EXIT_CODE)) && Instant::now() < lock_deadline =>
                {
                    break;
                }
                Some(status) => return Err(start_error(status.to_string())),
                None if Instant::now() > start_deadline => {
                    return Err(start_error(format!("it did not open its socket within {}s", START_TIMEOUT.as_secs())));
                }
                None => sleep(POLL_INTERVAL).await,
            }
        }
    }
}

fn spawn(command: &GatewayCommand, stderr: File) -> Result<Child, AttachError> {
    let mut child = Command::new(&command.program);
    // The key identifies this process, not the gateway, and a service manager waits for notifications of this process.
    for name in hello::KEY_VARIABLES.iter().chain(&NOTIFY_VARIABLES) {
        child.env_remove(name);
    }
    child
        .args(&command.arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::from(stderr))
        .spawn()
        .map_err(AttachError::Spawn)
}

/// Returns the end of the log after the offset `start`.
fn read_log_tail(log: &Path, start: u64) -> String {
    let read = || -> std::io::Result<Vec<u8>> {
        let mut file = File::open(log)?;
        let end = file.metadata()?.len();
        file.seek(SeekFrom::Start(start.max(end.saturating_sub(MAX_LOG_TAIL_BYTES))))?;
        let mut bytes = Vec::new();
        file.take(MAX_LOG_TAIL_BYTES).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    String::from_utf8_lossy(&read().unwrap_or_default()).trim().to_owned()
}

/// Moves a detached gateway out of the session and process group of its starter, so that neither a closed terminal nor an
/// agent that kills its children ends it.
pub fn detach() {
    // Fails only for a group leader, which already has its own group.
    let _ = rustix::process::setsid();
}

/// Binds the configured port. With `allow_other_port`, binds a free port of the same address if it is taken, because a
/// detached gateway is reached through its socket.
///
/// # Errors
/// Errors of binding the port.
pub fn bind_port(listen: SocketAddr, allow_other_port: bool) -> std::io::Result<std::net::TcpListener> {
    let bind = |address: SocketAddr| -> std::io::Result<std::net::TcpListener> {
        let socket = socket2::Socket::new(socket2::Domain::for_address(address), socket2::Type::STREAM, None)?;
        // A restarted gateway must not wait until connections of the old one time out.
        socket.set_reuse_address(true)?;
        socket.set_nonblocking(true)?;
        socket.bind(&address.into())?;
        socket.listen(1024)?;
        Ok(socket.into())
    };
    match bind(listen) {
        Err(error) if allow_other_port && error.kind() == ErrorKind::AddrInUse => {
            let listener = bind(SocketAddr::new(listen.ip(), 0))?;
            tracing::warn!(%listen, instead = ?listener.local_addr(), "the port is taken; listening on a free one");
            Ok(listener)
        }
        result => result,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn taken_port_fails_or_uses_free_port() {
        let first = bind_port("127.0.0.1:0".parse().unwrap(), false).unwrap();
        let taken = first.local_addr().unwrap();
        assert_eq!(bind_port(taken, false).unwrap_err().kind(), std::io::ErrorKind::AddrInUse);
        let other = bind_port(taken, true).unwrap().local_addr().unwrap();
        assert_eq!(other.ip(), taken.ip());
        assert_ne!(other.port(), taken.port());
    }

    #[tokio::test]
    async fn failed_start_reports_log() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(LOG_FILE), "an old line\n").unwrap();
        let command = GatewayCommand {
            program: "/bin/sh".into(),
            arguments: vec!["-c".into(), "echo it is broken >&2; exit 3".into()],
        };
        let error = connect_or_start(dir.path(), &Hello::from_process(None), &command).await.unwrap_err().to_string();
        assert!(error.contains("exit status: 3") && error.ends_with("it is broken"), "{error}");
        assert!(!error.contains("an old line"));
        let command = GatewayCommand { program: "/nonexistent".into(), arguments: vec![] };
        let error = connect_or_start(dir.path(), &Hello::from_process(None), &command).await.unwrap_err();
        assert!(matches!(error, AttachError::Spawn(_)), "{error}");
    }

    #[tokio::test]
    async fn started_gateway_is_reaped_when_it_ends() {
        let dir = tempfile::tempdir().unwrap();
        let (pid_file, end_file) = (dir.path().join("pid"), dir.path().join("end"));
        let script = r#"echo $$ > "$0"; until [ -e "$1" ]; do sleep 0.05; done"#;
        let arguments = vec!["-c".into(), script.into(), pid_file.clone().into(), end_file.clone().into()];
        let command = GatewayCommand { program: "/bin/sh".into(), arguments };
        // The test listens in place of the program.
        let serve = async {
            let pid = loop {
                let text = fs::read_to_string(&pid_file).unwrap_or_default();
                match text.strip_suffix('\n') {
                    Some(pid) => break pid.parse().unwrap(),
                    None => sleep(POLL_INTERVAL).await,
                }
            };
            let lock = countersign_runtime::data_dir::lock_data_dir(dir.path()).unwrap();
            let listener = socket::Listener::bind(dir.path(), &lock).unwrap();
            let (reader, mut writer) = listener.accept().await.unwrap().into_split();
            let admit = |_: &Hello| Ok(());
            hello::accept_handshake(&mut BufReader::new(reader), &mut writer, true, admit).await.unwrap();
            rustix::process::Pid::from_raw(pid).unwrap()
        };
        let hello = Hello::from_process(None);
        let (pid, connected) = tokio::join!(serve, connect_or_start(dir.path(), &hello, &command));
        connected.unwrap();
        fs::write(&end_file, "").unwrap();
        let reaped = async {
            while rustix::process::test_kill_process(pid).is_ok() {
                sleep(POLL_INTERVAL).await;
            }
        };
        timeout(START_TIMEOUT, reaped).await.expect("the process was waited for");
    }

    #[tokio::test]
    async fn running_gateway_is_used_and_may_refuse() {
        let dir = tempfile::tempdir().unwrap();
        let lock = countersign_runtime::data_dir::lock_data_dir(dir.path()).unwrap();
        let listener = socket::Listener::bind(dir.path(), &lock).unwrap();
        let serve = async {
            for welcome in [true, false] {
                let (reader, mut writer) = listener.accept().await.unwrap().into_split();
                let admit = |_: &Hello| if welcome { Ok(()) } else { Err("no such key".to_owned()) };
                hello::accept_handshake(&mut BufReader::new(reader), &mut writer, true, admit).await.unwrap();
            }
        };
        let command = GatewayCommand { program: "/nonexistent".into(), arguments: vec![] };
        let hello = Hello::from_process(None);
        let ask = async {
            connect_or_start(dir.path(), &hello, &command).await.unwrap();
            connect_or_start(dir.path(), &hello, &command).await.unwrap_err()
        };
        let ((), error) = tokio::join!(serve, ask);
        assert!(matches!(error, AttachError::Refused(reason) if reason == "no such key"));
    }
}
