//! Finds the gateway of a data directory, or starts a detached one. Two that start at once get the same gateway:
//! whoever has the start lock starts, the other waits and connects.

use std::{
    ffi::OsString,
    fs::{self, File, TryLockError},
    io::{Read, Seek, SeekFrom},
    net::SocketAddr,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use tokio::{
    io::BufReader,
    net::unix::{OwnedReadHalf, OwnedWriteHalf},
    time::{sleep, timeout},
};

use super::{
    AttachError,
    hello::{self, Hello, HelloAnswer},
    socket,
};
use countersign_store::lock::ensure_data_dir;
use countersign_telemetry::logs::open_log;

/// The lock file of whoever starts a gateway; the gateway's own lock is another.
const START_LOCK: &str = "start.lock";
/// The detached gateway's stderr.
pub const LOG_FILE: &str = "gateway.log";
/// How long a gateway may take from its start to its first answer.
const START: Duration = Duration::from_secs(30);
/// How long a gateway that listens may take to say welcome.
const WELCOME: Duration = Duration::from_secs(10);
/// How often to look again.
const POLL: Duration = Duration::from_millis(15);
/// How much of a failed gateway's log is repeated.
const SAID: u64 = 4096;
/// The exit code of a gateway that found its data directory taken: somebody else was faster, which is fine.
pub const TAKEN: u8 = 75;

/// An open connection, after the welcome.
#[derive(Debug)]
pub struct Connection {
    pub reader: BufReader<OwnedReadHalf>,
    pub writer: OwnedWriteHalf,
}

/// How to start a gateway.
#[derive(Clone, Debug)]
pub struct Starter {
    /// This program.
    pub program: PathBuf,
    /// `serve` with what makes it the same gateway: its configuration and data directory, as absolute paths.
    pub arguments: Vec<OsString>,
}

/// Connects to the gateway of the data directory; starts one if there is none.
///
/// # Errors
/// See [`AttachError`]: each says what to do or where to look.
pub async fn connect_or_start(data: &Path, hello: &Hello, starter: &Starter) -> Result<Connection, AttachError> {
    ensure_data_dir(data)?;
    let deadline = Instant::now() + START;
    loop {
        if let Some(connection) = connect(data, hello).await? {
            return Ok(connection);
        }
        let Some(_lock) = try_start_lock(data)? else {
            if Instant::now() > deadline {
                return Err(AttachError::Waited { within: START, log: data.join(LOG_FILE) });
            }
            sleep(POLL).await;
            continue;
        };
        // Somebody may have started one between the look and the lock.
        if let Some(connection) = connect(data, hello).await? {
            return Ok(connection);
        }
        return start(data, hello, starter, deadline).await;
    }
}

/// `None` where nobody listens (any more).
async fn connect(data: &Path, hello: &Hello) -> Result<Option<Connection>, AttachError> {
    let silent = || AttachError::Silent { socket: socket::path(data), within: WELCOME };
    let stream = timeout(WELCOME, socket::connect(data)).await.map_err(|_| silent())??;
    let Some(stream) = stream else { return Ok(None) };
    let (reader, mut writer) = stream.into_split();
    let mut reader = BufReader::with_capacity(64 << 10, reader);
    match timeout(WELCOME, hello::send(&mut reader, &mut writer, hello)).await {
        Err(_) => Err(silent()),
        Ok(Ok(Some(HelloAnswer::Welcome(_)))) => Ok(Some(Connection { reader, writer })),
        Ok(Ok(Some(HelloAnswer::Refused(why)))) => Err(AttachError::Refused(why)),
        // It was ending just then.
        Ok(Ok(None)) => Ok(None),
        Ok(Err(error))
            if matches!(error.kind(), std::io::ErrorKind::BrokenPipe | std::io::ErrorKind::ConnectionReset) =>
        {
            Ok(None)
        }
        Ok(Err(error)) => Err(error.into()),
    }
}

fn try_start_lock(data: &Path) -> Result<Option<File>, AttachError> {
    let path = data.join(START_LOCK);
    let fail = |source| AttachError::Lock { path: path.clone(), source };
    let file = fs::OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(&path).map_err(fail)?;
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(source)) => Err(fail(source)),
    }
}

async fn start(data: &Path, hello: &Hello, starter: &Starter, deadline: Instant) -> Result<Connection, AttachError> {
    let log = data.join(LOG_FILE);
    let stderr = open_log(&log).map_err(AttachError::Spawn)?;
    let begin = stderr.metadata().map_or(0, |meta| meta.len());
    let mut child = spawn(starter, stderr)?;
    let mut ended = None;
    loop {
        if let Some(connection) = connect(data, hello).await? {
            return Ok(connection);
        }
        let failed = |how: String| AttachError::Failed { how, said: said(&log, begin), log: log.clone() };
        if ended.is_none() {
            ended = child.try_wait().map_err(AttachError::Spawn)?;
        }
        if let Some(status) = ended
            && status.code() != Some(i32::from(TAKEN))
        {
            return Err(failed(status.to_string()));
        }
        // One whose directory was taken ended because another gateway is starting: that one is waited for.
        if Instant::now() > deadline {
            return Err(failed(match ended {
                Some(_) => "another gateway has the data directory and does not open its socket".to_owned(),
                None => format!("it did not open its socket within {}s", START.as_secs()),
            }));
        }
        sleep(POLL).await;
    }
}

fn spawn(starter: &Starter, stderr: File) -> Result<Child, AttachError> {
    let mut command = Command::new(&starter.program);
    // The key is this process's identity, not the gateway's.
    for name in hello::KEY_VARIABLES {
        command.env_remove(name);
    }
    command
        .args(&starter.arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::from(stderr))
        .spawn()
        .map_err(AttachError::Spawn)
}

/// What the gateway wrote since `begin`, at most its end.
fn said(log: &Path, begin: u64) -> String {
    let read = || -> std::io::Result<Vec<u8>> {
        let mut file = File::open(log)?;
        let end = file.metadata()?.len();
        file.seek(SeekFrom::Start(begin.max(end.saturating_sub(SAID))))?;
        let mut bytes = Vec::new();
        file.take(SAID).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    String::from_utf8_lossy(&read().unwrap_or_default()).trim().to_owned()
}

/// What a detached gateway does first: it leaves the session and the process group of whoever started it, so that
/// neither a closed terminal nor an agent that ends its children takes it down.
pub fn detach() {
    // Fails only for a group's leader, which then has a group of its own already.
    let _ = rustix::process::setsid();
}

/// Opens the port of the configuration; with `any`, where it is taken, a free one of the same address. A detached
/// gateway serves its socket whoever has the port.
///
/// # Errors
/// As binding any port.
pub fn bind_port(listen: SocketAddr, any: bool) -> std::io::Result<std::net::TcpListener> {
    let bind = |address: SocketAddr| -> std::io::Result<std::net::TcpListener> {
        let socket = socket2::Socket::new(socket2::Domain::for_address(address), socket2::Type::STREAM, None)?;
        // A gateway that starts again must not wait for the old one's connections to time out.
        socket.set_reuse_address(true)?;
        socket.set_nonblocking(true)?;
        socket.bind(&address.into())?;
        socket.listen(1024)?;
        Ok(socket.into())
    };
    match bind(listen) {
        Err(error) if any && error.kind() == std::io::ErrorKind::AddrInUse => {
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
    fn a_taken_port_is_an_error_or_another_port() {
        let first = bind_port("127.0.0.1:0".parse().unwrap(), false).unwrap();
        let taken = first.local_addr().unwrap();
        assert_eq!(bind_port(taken, false).unwrap_err().kind(), std::io::ErrorKind::AddrInUse);
        let other = bind_port(taken, true).unwrap().local_addr().unwrap();
        assert_eq!(other.ip(), taken.ip());
        assert_ne!(other.port(), taken.port());
    }

    #[tokio::test]
    async fn a_gateway_that_fails_tells_why() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(LOG_FILE), "old words\n").unwrap();
        let starter =
            Starter { program: "/bin/sh".into(), arguments: vec!["-c".into(), "echo it is broken >&2; exit 3".into()] };
        let error = connect_or_start(dir.path(), &Hello::of_process(None), &starter).await.unwrap_err().to_string();
        assert!(error.contains("exit status: 3") && error.ends_with("it is broken"), "{error}");
        assert!(!error.contains("old words"));
        let starter = Starter { program: "/nonexistent".into(), arguments: vec![] };
        let error = connect_or_start(dir.path(), &Hello::of_process(None), &starter).await.unwrap_err();
        assert!(matches!(error, AttachError::Spawn(_)), "{error}");
    }

    /// A gateway in this process: says welcome, or refuses, to whoever comes.
    #[tokio::test]
    async fn one_that_runs_is_used_and_its_refusal_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let lock = countersign_store::lock_data_dir(dir.path()).unwrap();
        let listener = socket::Listener::bind(dir.path(), &lock).unwrap();
        let serve = async {
            for welcome in [true, false] {
                let (reader, mut writer) = listener.accept().await.unwrap().into_split();
                let admit = |_| if welcome { Ok(()) } else { Err("no such key".to_owned()) };
                hello::receive(&mut BufReader::new(reader), &mut writer, admit).await.unwrap();
            }
        };
        let starter = Starter { program: "/nonexistent".into(), arguments: vec![] };
        let hello = Hello::of_process(None);
        let ask = async {
            connect_or_start(dir.path(), &hello, &starter).await.unwrap();
            connect_or_start(dir.path(), &hello, &starter).await.unwrap_err()
        };
        let ((), error) = tokio::join!(serve, ask);
        assert!(matches!(error, AttachError::Refused(why) if why == "no such key"));
    }
}
