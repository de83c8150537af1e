//! Shared parts of the black-box tests: the real program as a child process, and raw clients that send and read bytes.
//!
//! Only [`children`] uses the gateway's code: other tests send what is literally on the wire.
//!
//! No port is chosen before it is bound. A gateway under test binds port 0, and its tests read the address from
//! `gateway.json` in its data directory. The file names the process that wrote it, so an answer never comes from
//! another program.

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

/// The time that a test waits for something that must happen.
pub const MAX_WAIT: Duration = Duration::from_secs(60);

/// The value of `--listen`: any port that is free when it is bound.
pub const LISTEN: &str = "127.0.0.1:0";

/// Returns the program under test: the one of these sources, or the one that `COUNTERSIGN_TEST_BIN` names, such as an
/// older build with which a new test must fail.
pub fn binary() -> PathBuf {
    std::env::var_os("COUNTERSIGN_TEST_BIN").map_or_else(built_binary, PathBuf::from)
}

/// Returns the program of these sources. Cargo builds it before a test of this package and passes its path; for a test
/// program run by hand, it is in Cargo's usual place.
pub fn built_binary() -> PathBuf {
    let beside = || {
        let test = std::env::current_exe().unwrap();
        test.parent().unwrap().with_file_name("countersign-under-test")
    };
    std::env::var_os("CARGO_BIN_EXE_countersign-under-test").map_or_else(beside, PathBuf::from)
}

/// Returns a command for the program with only the necessary parts of the developer's environment.
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

/// Returns a command like [`command`] that works on a data directory and the store that belongs to it. The caller adds
/// the arguments.
pub fn command_on(data: &Path) -> Command {
    let mut command = command(&[]);
    postgres::set_store_env(&mut command, data);
    command
}

/// A loopback port that is bound but not listened on: connections are refused for as long as this lives.
pub struct DeadPort {
    /// Bound, but not listening.
    socket: OwnedFd,
    pub address: SocketAddr,
}

impl DeadPort {
    pub fn new() -> Self {
        Self::at_address(([127, 0, 0, 1], 0).into()).unwrap()
    }

    /// Takes the port of a listener that has ended.
    ///
    /// # Errors
    /// Fails if the listener still exists.
    pub fn at_address(address: SocketAddr) -> std::io::Result<Self> {
        use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, getsockname, socket_with, sockopt};
        let socket = socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        // Connections of the previous listener may linger. Once bound, the port belongs to nobody else.
        sockopt::set_socket_reuseaddr(&socket, address.port() != 0)?;
        bind(&socket, &address)?;
        sockopt::set_socket_reuseaddr(&socket, false)?;
        let address = getsockname(&socket)?.try_into()?;
        Ok(Self { socket, address })
    }

    /// Starts listening, without a moment in which another program could take the port.
    #[must_use]
    pub fn listen(self) -> TcpListener {
        // Connections of the previous listener may linger.
        rustix::net::sockopt::set_socket_reuseaddr(&self.socket, true).unwrap();
        rustix::net::listen(&self.socket, 128).unwrap();
        self.socket.into()
    }
}

/// Polls every 10 ms until there is a result; panics after [`MAX_WAIT`].
#[track_caller]
pub fn eventually<T>(what: &str, mut check: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + MAX_WAIT;
    loop {
        if let Some(value) = check() {
            return value;
        }
        assert!(Instant::now() < end, "did not happen: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Sends a signal to one of our processes by its id.
pub fn signal(pid: u32, signal: rustix::process::Signal) {
    let pid = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    // The process may be gone already.
    let _ = rustix::process::kill_process(pid, signal);
}

/// Stops one of our processes, and waits until each of its threads has stopped: until then, they answer requests.
pub fn freeze(pid: u32) {
    signal(pid, rustix::process::Signal::STOP);
    eventually("its threads stop", || {
        let threads = std::fs::read_dir(format!("/proc/{pid}/task")).ok()?;
        threads.flatten().all(|thread| is_in_state(&thread.path(), 'T')).then_some(())
    });
}

/// Returns `true` if the process or thread with this folder below `/proc` is in a state, such as `Z` for a zombie.
pub fn is_in_state(folder: &Path, state: char) -> bool {
    let stat = std::fs::read_to_string(folder.join("stat")).unwrap_or_default();
    stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with(state))
}

/// A child process that does not outlive its test.
pub struct Process(pub Child);

impl Process {
    /// Waits until the process ends by itself.
    #[track_caller]
    pub fn wait_for_exit(&mut self) -> ExitStatus {
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

/// Options for starting a gateway.
#[derive(Default)]
pub struct Options<'a> {
    pub env: Vec<(&'a str, &'a str)>,
    /// The configuration file as YAML, if any.
    pub config: Option<&'a str>,
}

/// A `countersign serve` on a free loopback port with its own data directory.
pub struct Gateway {
    pub process: Process,
    pub port: u16,
    /// The data directory and the log, removed with the gateway.
    pub home: TempDir,
    /// A reviewer's key, created when first needed.
    key: std::sync::OnceLock<String>,
}

impl Gateway {
    #[must_use]
    pub fn start() -> Self {
        Self::with_options(&Options::default())
    }

    #[must_use]
    pub fn with_options(options: &Options) -> Self {
        Self::on_home(tempfile::tempdir().unwrap(), options)
    }

    /// Starts a gateway on another one's data.
    #[must_use]
    pub fn on_home(home: TempDir, options: &Options) -> Self {
        let mut process = Self::spawn(home.path(), options);
        let Some(port) = wait_until_ready(&mut process, &home.path().join("data")) else {
            panic!("the gateway does not start:\n{}", log_of(home.path()));
        };
        Self { process, port, home, key: std::sync::OnceLock::new() }
    }

    /// Starts a gateway without waiting: it may end before it listens. See [`wait_until_ready`].
    #[must_use]
    pub fn spawn(home: &Path, options: &Options) -> Process {
        let log = File::options().create(true).append(true).open(home.join("log")).unwrap();
        let mut command = command(&options.env);
        command.args(["serve", "--listen", LISTEN, "--data"]).arg(home.join("data"));
        postgres::set_store_env(&mut command, &home.join("data"));
        if let Some(config) = options.config {
            let path = home.join("countersign.yaml");
            std::fs::write(&path, config).unwrap();
            command.arg("--config").arg(path);
        }
        Process(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().unwrap())
    }

    pub fn address(&self) -> SocketAddr {
        ([127, 0, 0, 1], self.port).into()
    }

    pub fn data(&self) -> PathBuf {
        self.home.path().join("data")
    }

    /// Returns the log so far.
    pub fn log(&self) -> String {
        log_of(self.home.path())
    }

    pub fn connect(&self) -> Conn {
        Conn::open(self.address())
    }

    /// Sends one request on a separate connection.
    #[track_caller]
    pub fn request(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Response {
        let mut conn = self.connect();
        conn.request(method, path, headers, body);
        conn.response()
    }

    /// Creates an API key with the command line.
    pub fn create_key(&self, role: &str, name: &str) -> String {
        create_key(&self.data(), role, name)
    }

    /// Returns the key of the reviewer `alice`.
    pub fn reviewer(&self) -> &str {
        self.key.get_or_init(|| self.create_key("reviewer", "alice"))
    }

    /// Calls the REST API as `alice`.
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

    /// Returns the change as the reviewer sees it.
    #[track_caller]
    pub fn change(&self, id: &str) -> Value {
        let (status, change) = self.api("GET", &format!("/api/changes/{id}"), None);
        assert_eq!(status, 200, "{change}");
        change
    }

    /// Decides on the current version of the change; returns status and body.
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
    pub fn wait_for_state(&self, id: &str, state: &str) -> Value {
        eventually(&format!("{id} is {state}"), || Some(self.change(id)).filter(|change| change["state"] == state))
    }

    /// Waits until the applied change was read back, and returns it.
    pub fn wait_for_verification(&self, id: &str) -> Value {
        self.wait_for_state(id, "applied");
        eventually("the change is read back", || {
            let change = self.change(id);
            (change["verification"]["verified"] != "not_read").then_some(change)
        })
    }

    /// Sends SIGTERM; returns the exit status and the data that remain.
    pub fn stop(mut self) -> (ExitStatus, TempDir) {
        self.process.terminate();
        (self.process.wait_for_exit(), self.home)
    }

    /// Sends SIGKILL; returns the data that remain.
    #[must_use]
    pub fn kill(mut self) -> TempDir {
        self.process.0.kill().unwrap();
        self.process.0.wait().unwrap();
        self.home
    }
}

/// Creates an API key with the command line, whether a gateway runs or not.
#[track_caller]
pub fn create_key(data: &Path, role: &str, name: &str) -> String {
    create_key_by(command_on(data), data, role, name)
}

/// Creates an API key like [`create_key`], in the store at that address.
#[track_caller]
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

/// Runs the program to its end; returns exit code, stdout and stderr.
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

/// Returns the content of `gateway.json` once this process has written it, ignoring an older file; `None` if the
/// process ends before.
fn gateway_file_of(process: &mut Process, data: &Path) -> Option<Value> {
    let end = Instant::now() + MAX_WAIT;
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

/// Returns the address that this process has published in its data directory; `None` if it ends before or takes too
/// long.
pub fn published_address(process: &mut Process, data: &Path) -> Option<SocketAddr> {
    let file = gateway_file_of(process, data)?;
    let url = file["url"].as_str().unwrap();
    Some(url.split_once("://").unwrap().1.parse().unwrap())
}

/// Returns the gateway's port once `/health` reports that it is ready; `None` if it ends before or takes too long.
pub fn wait_until_ready(process: &mut Process, data: &Path) -> Option<u16> {
    let address = published_address(process, data)?;
    let end = Instant::now() + MAX_WAIT;
    while Instant::now() < end {
        // The process holds the port until it ends, so any answer while it runs is its own.
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
