//! A separate home for each test, with the program as a child process, and cleanup of everything started in it.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Output, Stdio},
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process, test_kill_process};

use crate::is_in_state;

/// The time after which a test that hangs fails. Every step takes far less.
pub const MAX_WAIT: Duration = Duration::from_secs(60);

/// A home directory with its data directory.
pub struct Home {
    dir: tempfile::TempDir,
    vars: Vec<(String, String)>,
}

impl Home {
    pub fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap(), vars: Vec::new() }
    }

    pub fn with_var(mut self, name: &str, value: &str) -> Self {
        self.vars.push((name.to_owned(), value.to_owned()));
        self
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    pub fn data(&self) -> PathBuf {
        self.path().join(".local/state/countersign")
    }

    pub fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    /// Returns a command for the program with this home and an otherwise empty environment.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(super::binary());
        command.args(arguments).env_clear().env("HOME", self.path()).env("PATH", "/usr/bin:/bin");
        command.current_dir(self.path()).stdin(Stdio::null());
        command.envs(self.vars.iter().map(|(k, v)| (k, v)));
        command
    }

    /// Runs the program to its end.
    pub fn run(&self, arguments: &[&str]) -> RunResult {
        RunResult(self.command(arguments).output().unwrap())
    }

    /// Runs the program with extra variables.
    pub fn run_with(&self, vars: &[(&str, &str)], arguments: &[&str]) -> RunResult {
        RunResult(self.command(arguments).envs(vars.iter().copied()).output().unwrap())
    }

    pub fn gateway_file(&self) -> Option<serde_json::Value> {
        let text = std::fs::read_to_string(self.data().join("gateway.json")).ok()?;
        serde_json::from_str(&text).ok()
    }

    /// Sends one request to the gateway of this home, with a key or as the local agent; returns the head and the body
    /// of the response.
    pub fn ask(&self, method: &str, path: &str, key: Option<&str>, body: &str) -> (String, String) {
        let url = self.gateway_file().unwrap()["url"].as_str().unwrap().to_owned();
        let address = url.strip_prefix("http://").unwrap();
        let authorization = key.map(|key| format!("authorization: Bearer {key}\r\n")).unwrap_or_default();
        let mut stream = TcpStream::connect(address).unwrap();
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nhost: {address}\r\n{authorization}content-type: application/json\r\n\
             content-length: {}\r\nconnection: close\r\n\r\n{body}",
            body.len()
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.to_owned(), body.to_owned())
    }

    pub fn gateway_pid(&self) -> Option<i32> {
        i32::try_from(self.gateway_file()?["pid"].as_i64()?).ok()
    }
}

/// A gateway started in the background must not outlive its test.
impl Drop for Home {
    fn drop(&mut self) {
        if let Some(pid) = self.gateway_pid() {
            signal(pid, Signal::TERM);
            wait_until("the gateway ends", || !alive(pid));
        }
    }
}

/// Returns the JSON object in a body, which may be chunked.
#[track_caller]
pub fn object_in(body: &str) -> serde_json::Value {
    let start = body.find('{').unwrap_or_else(|| panic!("no object: {body}"));
    serde_json::Deserializer::from_str(&body[start..]).into_iter().next().unwrap().unwrap()
}

pub fn signal(pid: i32, signal: Signal) {
    let _ = kill_process(Pid::from_raw(pid).unwrap(), signal);
}

pub fn alive(pid: i32) -> bool {
    test_kill_process(Pid::from_raw(pid).unwrap()).is_ok() && !zombie(pid)
}

fn zombie(pid: i32) -> bool {
    is_in_state(Path::new(&format!("/proc/{pid}")), 'Z')
}

#[track_caller]
pub fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + MAX_WAIT;
    while !done() {
        assert!(Instant::now() < deadline, "in vain: {what}");
        std::thread::yield_now();
        std::thread::park_timeout(Duration::from_millis(5));
    }
}

/// The result of a finished run.
pub struct RunResult(pub Output);

impl RunResult {
    pub fn code(&self) -> i32 {
        self.0.status.code().unwrap_or(-1)
    }
    pub fn stdout(&self) -> String {
        String::from_utf8_lossy(&self.0.stdout).into_owned()
    }
    pub fn stderr(&self) -> String {
        String::from_utf8_lossy(&self.0.stderr).into_owned()
    }
    #[track_caller]
    pub fn ends(self, code: i32) -> Self {
        assert_eq!(self.code(), code, "stdout: {}\nstderr: {}", self.stdout(), self.stderr());
        self
    }
    #[track_caller]
    pub fn says(self, parts: &[&str]) -> Self {
        for part in parts {
            assert!(self.stdout().contains(part), "{part:?} is not on stdout:\n{}", self.stdout());
        }
        self
    }
    #[track_caller]
    pub fn complains(self, parts: &[&str]) -> Self {
        for part in parts {
            assert!(self.stderr().contains(part), "{part:?} is not on stderr:\n{}", self.stderr());
        }
        self
    }
}

/// A child whose stdin and stdout are lines.
pub struct Lines {
    pub child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
}

impl Lines {
    pub fn start(home: &Home, arguments: &[&str]) -> Self {
        Self::spawn(home.command(arguments))
    }

    pub fn spawn(mut command: Command) -> Self {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let stdin = child.stdin.take();
        let stdout = BufReader::with_capacity(1 << 20, child.stdout.take().unwrap());
        Self { child, stdin, stdout }
    }

    pub fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).unwrap()
    }

    pub fn send(&mut self, line: &str) {
        let stdin = self.stdin.as_mut().unwrap();
        stdin.write_all(line.as_bytes()).unwrap();
        stdin.write_all(b"\n").unwrap();
        stdin.flush().unwrap();
    }

    /// Returns the next line; empty at the end.
    pub fn line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        line
    }

    /// Sends a ping and checks the answer.
    #[track_caller]
    pub fn ping(&mut self, id: &str) {
        let answer = self.ask(&format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"ping"}}"#));
        assert_eq!(answer["id"].to_string(), id, "{answer}");
        assert!(answer["result"].is_object(), "{answer}");
    }

    /// Returns the next line as a message.
    #[track_caller]
    pub fn message(&mut self) -> serde_json::Value {
        let line = self.line();
        serde_json::from_str(&line).unwrap_or_else(|e| self.dead(&format!("{e}: {line:?}")))
    }

    /// Sends a line and parses the next one as its answer.
    #[track_caller]
    pub fn ask(&mut self, line: &str) -> serde_json::Value {
        self.send(line);
        self.message()
    }

    fn dead(&mut self, what: &str) -> ! {
        let _ = self.child.kill();
        let mut stderr = String::new();
        let _ = self.child.stderr.take().unwrap().read_to_string(&mut stderr);
        panic!("{what}; stderr: {stderr}");
    }

    /// Closes the child's stdin.
    pub fn close(&mut self) {
        self.stdin = None;
    }

    /// Waits for the end: returns the exit code, the rest of stdout, and stderr.
    pub fn finish(mut self) -> (i32, String, String) {
        let mut rest = String::new();
        self.stdout.read_to_string(&mut rest).unwrap();
        let mut stderr = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
        let status = self.child.wait().unwrap();
        (status.code().unwrap_or(-1), rest, stderr)
    }
}
