//! The program as a stdio server.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    path::Path,
    process::{ChildStdin, Stdio},
    sync::mpsc::{Receiver, RecvTimeoutError, channel},
    time::Duration,
};

use serde_json::Value;

use super::{MAX_WAIT, Process, command, mcp};

/// A `countersign stdio …` as a child.
pub struct Agent {
    pub process: Process,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
}

impl Agent {
    /// Starts an agent; `home` holds the data directory, as a gateway's does.
    pub fn start(home: &Path, args: &[&str], env: &[(&str, &str)]) -> Self {
        let log = std::fs::File::options().create(true).append(true).open(home.join("stdio.log")).unwrap();
        // A gateway that it starts in the background must not outlive the test.
        let mut child = command(&[&[("COUNTERSIGN_TRANSPORTS__STDIO__LINGER", "0s")], env].concat())
            .arg("stdio")
            .args(args)
            .arg("--data")
            .arg(home.join("data"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .unwrap();
        let stdin = child.stdin.take();
        let stdout = child.stdout.take().unwrap();
        let (sender, lines) = channel();
        // Reads continuously, as a client does, so that the program never waits for the test.
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).split(b'\n') {
                let Ok(line) = line else { return };
                if sender.send(String::from_utf8(line).expect("UTF-8 on stdout")).is_err() {
                    return;
                }
            }
        });
        Self { process: Process(child), stdin, lines }
    }

    /// Sends exactly these bytes. A closed pipe is no error here.
    pub fn send_bytes(&mut self, bytes: &[u8]) {
        let stdin = self.stdin.as_mut().expect("stdin is open");
        let _ = stdin.write_all(bytes).and_then(|()| stdin.flush());
    }

    pub fn send(&mut self, line: &str) {
        self.send_bytes(format!("{line}\n").as_bytes());
    }

    pub fn send_json(&mut self, message: &Value) {
        self.send(&message.to_string());
    }

    /// Returns the next line on stdout, which must be a JSON object or array.
    #[track_caller]
    pub fn message(&mut self) -> Value {
        self.message_within(MAX_WAIT).expect("a line on stdout")
    }

    #[track_caller]
    pub fn message_within(&mut self, time: Duration) -> Option<Value> {
        match self.lines.recv_timeout(time) {
            Ok(line) => {
                let value: Value =
                    serde_json::from_str(&line).unwrap_or_else(|error| panic!("not JSON on stdout: {error}: {line:?}"));
                assert!(value.is_object() || value.is_array(), "{line}");
                Some(value)
            }
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => None,
        }
    }

    /// Returns the raw text of the next line.
    #[track_caller]
    pub fn line(&mut self) -> String {
        self.lines.recv_timeout(MAX_WAIT).expect("a line on stdout")
    }

    #[track_caller]
    pub fn answer(&mut self, id: &Value) -> Value {
        loop {
            let message = self.message();
            if &message["id"] == id && message.get("method").is_none() {
                return message;
            }
        }
    }

    #[track_caller]
    pub fn call(&mut self, id: i64, method: &str, params: Value) -> Value {
        self.send_json(&mcp::request(id, method, params));
        self.answer(&id.into())
    }

    #[track_caller]
    pub fn initialize(&mut self, version: &str) -> Value {
        let answer = self.call(0, "initialize", mcp::initialize_params(version));
        self.send_json(&mcp::notification("notifications/initialized"));
        answer
    }

    /// Closes stdin.
    pub fn close(&mut self) {
        self.stdin = None;
    }

    /// Returns everything that still comes on stdout before the program closes it.
    pub fn read_remaining(&mut self) -> Vec<String> {
        self.lines.iter().collect()
    }
}
