//! What the black-box tests share: the real program as a child process, and raw clients that send and read bytes.
//!
//! Nothing here knows the gateway's code: what a test sends is what stands on the wire.

#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::cast_possible_truncation,
    reason = "test code; each test binary uses its own part of it"
)]

pub mod http;
pub mod mcp;
pub mod stdio;
pub mod tls;
pub mod ws;

use std::{
    fs::File,
    net::{SocketAddr, TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use tempfile::TempDir;

use self::http::{Conn, Response};

/// How long a test waits for something that must happen before it calls it a failure.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// The program under test: the one that was built, or what `COUNTERSIGN_TEST_BIN` names, such as an older one that a new
/// test must fail with.
#[must_use]
pub fn binary() -> PathBuf {
    std::env::var_os("COUNTERSIGN_TEST_BIN").map_or_else(|| env!("CARGO_BIN_EXE_countersign").into(), PathBuf::from)
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

/// A port that was free a moment ago.
#[must_use]
pub fn free_port() -> u16 {
    TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port()
}

/// Asks every 10 ms until there is an answer; panics after [`PATIENCE`].
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
        let mut attempts = 3;
        loop {
            let port = free_port();
            let mut process = Self::spawn(home.path(), port, options);
            attempts -= 1;
            if wait_listening(&mut process, port) {
                return Self { process, port, home, key: std::sync::OnceLock::new() };
            }
            let log = log_of(home.path());
            // Somebody else may have taken the port in between.
            assert!(attempts > 0 && log.to_lowercase().contains("in use"), "the gateway does not start:\n{log}");
        }
    }

    /// Starts one that is expected to crash: returns as soon as it listens or has ended.
    #[must_use]
    pub fn spawn(home: &Path, port: u16, options: &Options) -> Process {
        let log = File::options().create(true).append(true).open(home.join("log")).unwrap();
        let mut command = command(&options.env);
        command.args(["serve", "--listen", &format!("127.0.0.1:{port}"), "--data"]).arg(home.join("data"));
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
    let output =
        command(&[]).args(["keys", "create", "--role", role, "--name", name, "--data"]).arg(data).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// Runs the program to its end; answers exit code, stdout, stderr.
pub fn run(args: &[&str]) -> (Option<i32>, String, String) {
    let output = command(&[]).args(args).stdin(Stdio::null()).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

fn log_of(home: &Path) -> String {
    std::fs::read_to_string(home.join("log")).unwrap_or_default()
}

/// Whether `/health` answers before the process ends.
pub fn wait_listening(process: &mut Process, port: u16) -> bool {
    let end = Instant::now() + PATIENCE;
    while Instant::now() < end {
        if process.0.try_wait().unwrap().is_some() {
            return false;
        }
        if TcpStream::connect(("127.0.0.1", port)).is_ok() {
            let mut conn = Conn::open(([127, 0, 0, 1], port).into());
            conn.request("GET", "/health", &[], b"");
            if conn.try_response().is_some_and(|response| response.status == 200) {
                return true;
            }
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    false
}
