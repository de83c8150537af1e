//! What the black-box tests share: the real program as a child process, and raw clients that send and read bytes.
//!
//! Nothing here but [`children`] knows the gateway's code: what a test sends is what stands on the wire.
//!
//! No port is chosen before it is bound. A gateway under test binds port 0, and its tests learn where it listens from the
//! `gateway.json` in its data directory, which names the process that wrote it: an answer is never somebody else's.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::cast_possible_truncation,
    clippy::new_without_default,
    clippy::should_implement_trait,
    reason = "test code"
)]

pub mod children;
pub mod cli;
pub mod fake;
pub mod http;
pub mod mcp;
pub mod postgres;
pub mod pty;
pub mod stdio;
pub mod tls;
pub mod ws;

use std::{
    fs::File,
    net::{SocketAddr, TcpListener},
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use tempfile::TempDir;

use self::http::{Conn, Response};

/// How long a test waits for something that must happen before it calls it a failure.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// What to give as `--listen`: whatever port is free when it is bound.
pub const LISTEN: &str = "127.0.0.1:0";

/// The program under test: the one of these sources, or what `COUNTERSIGN_TEST_BIN` names, such as an older one that a
/// new test must fail with.
#[must_use]
pub fn binary() -> PathBuf {
    std::env::var_os("COUNTERSIGN_TEST_BIN").map_or_else(built, PathBuf::from)
}

/// The program of these sources. Cargo builds it before it runs a test of this package, and says where it lies; to a test
/// program that is run by hand it lies where Cargo puts it.
#[must_use]
pub fn built() -> PathBuf {
    let beside = || {
        let test = std::env::current_exe().unwrap();
        test.parent().unwrap().with_file_name("countersign-under-test")
    };
    std::env::var_os("CARGO_BIN_EXE_countersign-under-test").map_or_else(beside, PathBuf::from)
}

/// A command that runs the program with nothing of the developer's own environment but what it needs.
#[must_use]
pub fn command(env: &[(&str, &str)]) -> Command {
    let mut command = Command::new(binary());
    command.env_clear();
    for name in ["PATH", "HOME", "TMPDIR"] {
        if let Some(value) = std::env::var_os(name) {
            command.env(name, value);
        }
    }
    command.env("XDG_CONFIG_HOME", "/nonexistent").envs(env.iter().copied());
    command
}

/// As [`command`], of what works on that data directory and the store that belongs to it. Its arguments are yet to come.
#[must_use]
pub fn command_on(data: &Path) -> Command {
    let mut command = command(&[]);
    postgres::set(&mut command, data);
    command
}

/// A port of loopback that is taken and at which nobody answers: who connects is refused, for as long as this lives.
pub struct DeadPort {
    /// Bound, and not listened on.
    socket: OwnedFd,
    pub address: SocketAddr,
}

impl DeadPort {
    #[must_use]
    pub fn new() -> Self {
        Self::at(([127, 0, 0, 1], 0).into()).unwrap()
    }

    /// Where somebody listened until now.
    ///
    /// # Errors
    /// Somebody listens there still.
    pub fn at(address: SocketAddr) -> std::io::Result<Self> {
        use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, getsockname, socket_with, sockopt};
        let socket = socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        // Connections of the one before may not be gone yet. Afterwards the port is nobody else's, as a new one is.
        sockopt::set_socket_reuseaddr(&socket, address.port() != 0)?;
        bind(&socket, &address)?;
        sockopt::set_socket_reuseaddr(&socket, false)?;
        let address = getsockname(&socket)?.try_into()?;
        Ok(Self { socket, address })
    }

    /// Somebody is there now, without a moment in which the port could become another's.
    #[must_use]
    pub fn listen(self) -> TcpListener {
        // Connections of the one before may not be gone yet.
        rustix::net::sockopt::set_socket_reuseaddr(&self.socket, true).unwrap();
        rustix::net::listen(&self.socket, 128).unwrap();
        self.socket.into()
    }
}

/// Asks every 10 ms until there is an answer; panics after [`MAX_WAIT`].
#[track_caller]
pub fn eventually<T>(what: &str, mut check: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(value) = check() {
            return value;
        }
        assert!(Instant::now() < end, "did not happen: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Sends a signal to a process of ours, by its id.
pub fn signal(pid: u32, signal: rustix::process::Signal) {
    let pid = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    // It may be gone already.
    let _ = rustix::process::kill_process(pid, signal);
}

/// A child process that does not outlive its test.
pub struct Process(pub Child);

impl Process {
    /// Waits until it has ended by itself.
    #[track_caller]
    pub fn ended(&mut self) -> ExitStatus {
        eventually("the process ends", || self.0.try_wait().unwrap())
    }

    pub fn terminate(&self) {
        signal(self.0.id(), rustix::process::Signal::TERM);
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// How a gateway is to be started.
#[derive(Default)]
pub struct Options<'a> {
    pub env: Vec<(&'a str, &'a str)>,
    /// YAML, if there is to be a file.
    pub config: Option<&'a str>,
}

/// `countersign serve` on a free port of loopback with a data directory of its own.
pub struct Gateway {
    pub process: Process,
    pub port: u16,
    /// Holds the data directory and the log; goes with the gateway.
    pub home: TempDir,
    /// A reviewer's key, made when first needed.
    key: std::sync::OnceLock<String>,
}

impl Gateway {
    #[must_use]
    pub fn start() -> Self {
        Self::with(&Options::default())
    }

    #[must_use]
    pub fn with(options: &Options) -> Self {
        Self::on(tempfile::tempdir().unwrap(), options)
    }

    /// Starts on what another one has left.
    #[must_use]
    pub fn on(home: TempDir, options: &Options) -> Self {
        let mut process = Self::spawn(home.path(), options);
        let Some(port) = listening(&mut process, &home.path().join("data")) else {
            panic!("the gateway does not start:\n{}", log_of(home.path()));
        };
        Self { process, port, home, key: std::sync::OnceLock::new() }
    }

    /// Starts one and waits for nothing: it may end before it listens. See [`listening`].
    #[must_use]
    pub fn spawn(home: &Path, options: &Options) -> Process {
        let log = File::options().create(true).append(true).open(home.join("log")).unwrap();
        let mut command = command(&options.env);
        command.args(["serve", "--listen", LISTEN, "--data"]).arg(home.join("data"));
        postgres::set(&mut command, &home.join("data"));
        if let Some(config) = options.config {
            let path = home.join("countersign.yaml");
            std::fs::write(&path, config).unwrap();
            command.arg("--config").arg(path);
        }
        Process(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().unwrap())
    }

    #[must_use]
    pub fn address(&self) -> SocketAddr {
        ([127, 0, 0, 1], self.port).into()
    }

    #[must_use]
    pub fn data(&self) -> PathBuf {
        self.home.path().join("data")
    }

    /// What it has logged so far.
    #[must_use]
    pub fn log(&self) -> String {
        log_of(self.home.path())
    }

    #[must_use]
    pub fn connect(&self) -> Conn {
        Conn::open(self.address())
    }

    /// One request on a connection of its own.
    #[track_caller]
    pub fn request(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Response {
        let mut conn = self.connect();
        conn.request(method, path, headers, body);
        conn.response()
    }

    /// Makes an API key with the command line.
    #[must_use]
    pub fn create_key(&self, role: &str, name: &str) -> String {
        create_key(&self.data(), role, name)
    }

    /// The key of the reviewer `alice`.
    pub fn reviewer(&self) -> &str {
        self.key.get_or_init(|| self.create_key("reviewer", "alice"))
    }

    /// A REST call by `alice`.
    #[track_caller]
    pub fn api(&self, method: &str, path: &str, body: Option<&Value>) -> (u16, Value) {
        self.api_as(self.reviewer(), method, path, body)
    }

    #[track_caller]
    pub fn api_as(&self, key: &str, method: &str, path: &str, body: Option<&Value>) -> (u16, Value) {
        let bearer = format!("Bearer {key}");
        let headers = [("Authorization", bearer.as_str()), ("Content-Type", "application/json")];
        let body = body.map(Value::to_string).unwrap_or_default();
        let response = self.request(method, path, &headers, body.as_bytes());
        (response.status, response.json_or_null())
    }

    /// The change as the reviewer sees it.
    #[track_caller]
    pub fn change(&self, id: &str) -> Value {
        let (status, change) = self.api("GET", &format!("/api/changes/{id}"), None);
        assert_eq!(status, 200, "{change}");
        change
    }

    /// Decides on the change as it stands; answers status and body.
    #[track_caller]
    pub fn try_decide(&self, id: &str, decision: &str, comment: &str) -> (u16, Value) {
        let change = self.change(id);
        let body = json!({
            "decision": decision, "comment": comment, "version": change["version"], "digest": change["digest"],
        });
        self.api("POST", &format!("/api/changes/{id}/decision"), Some(&body))
    }

    #[track_caller]
    pub fn decide(&self, id: &str, decision: &str) -> Value {
        let (status, change) = self.try_decide(id, decision, "by a test");
        assert_eq!(status, 200, "{change}");
        change
    }

    /// Waits until the change is in that state.
    #[track_caller]
    pub fn reached(&self, id: &str, state: &str) -> Value {
        eventually(&format!("{id} is {state}"), || Some(self.change(id)).filter(|change| change["state"] == state))
    }

    /// SIGTERM; answers how it ended, and what it leaves.
    pub fn stop(mut self) -> (ExitStatus, TempDir) {
        self.process.terminate();
        (self.process.ended(), self.home)
    }

    /// SIGKILL; answers what it leaves.
    #[must_use]
    pub fn kill(mut self) -> TempDir {
        self.process.0.kill().unwrap();
        self.process.0.wait().unwrap();
        self.home
    }
}

/// Makes an API key with the command line, whether a gateway runs or not.
#[track_caller]
#[must_use]
pub fn create_key(data: &Path, role: &str, name: &str) -> String {
    create_key_by(command_on(data), data, role, name)
}

/// As [`create_key`], in the store at that address.
#[track_caller]
#[must_use]
pub fn create_key_in(store: &str, data: &Path, role: &str, name: &str) -> String {
    create_key_by(command(&[("COUNTERSIGN_STORE__URL", store)]), data, role, name)
}

#[track_caller]
fn create_key_by(mut command: Command, data: &Path, role: &str, name: &str) -> String {
    let create = ["keys", "create", "--role", role, "--name", name, "--data"];
    let output = command.args(create).arg(data).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// Runs the program to its end; answers exit code, stdout, stderr.
pub fn run(args: &[&str]) -> (Option<i32>, String, String) {
    let data = args.iter().skip_while(|arg| **arg != "--data").nth(1);
    let mut command = data.map_or_else(|| command(&[]), |data| command_on(Path::new(data)));
    let output = command.args(args).stdin(Stdio::null()).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

fn log_of(home: &Path) -> String {
    std::fs::read_to_string(home.join("log")).unwrap_or_default()
}

/// What `gateway.json` in this data directory says, once it is of this process; `None` if the process ends before. A file
/// that another gateway has left there is passed over.
fn published(process: &mut Process, data: &Path) -> Option<Value> {
    let end = Instant::now() + PATIENCE;
    while Instant::now() < end {
        let text = std::fs::read(data.join("gateway.json")).unwrap_or_default();
        let file: Value = serde_json::from_slice(&text).unwrap_or_default();
        if file["pid"] == process.0.id() {
            return Some(file);
        }
        if process.0.try_wait().unwrap().is_some() {
            return None;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    None
}

/// Where this process listens, as it says itself in its data directory; `None` if it ends before or takes too long.
pub fn address(process: &mut Process, data: &Path) -> Option<SocketAddr> {
    let file = published(process, data)?;
    let url = file["url"].as_str().unwrap();
    Some(url.split_once("://").unwrap().1.parse().unwrap())
}

/// The port of this gateway, once `/health` there says that it is ready; `None` if it ends before or takes too long.
pub fn listening(process: &mut Process, data: &Path) -> Option<u16> {
    let address = address(process, data)?;
    let end = Instant::now() + PATIENCE;
    while Instant::now() < end {
        // It holds the port until it ends, so whoever answers while it lives is it.
        let status = Conn::try_open(address).ok().and_then(|mut conn| {
            conn.request("GET", "/health", &[], b"");
            conn.try_response().map(|response| response.status)
        });
        if process.0.try_wait().unwrap().is_some() {
            return None;
        }
        if status == Some(200) {
            return Some(address.port());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    None
}
