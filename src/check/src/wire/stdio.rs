//! A server that is a child process: lines on its stdin and stdout.

use std::{
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use countersign_child::{Guard, Spec, Started, environment::Inherited, guard::Report, start, this_program};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::unix::pipe,
};

use super::{Budget, MAX_MESSAGE_BYTES, ProbeError, ReceivedMessage};

/// Bytes of stderr that are kept, of its end.
const KEPT: usize = 8 << 10;

/// Dropped, it is killed, and so is what it has started.
pub(crate) struct Stdio {
    guard: Guard,
    stdin: Option<pipe::Sender>,
    stdout: BufReader<pipe::Receiver>,
    /// What was read of a line that is not at its end yet.
    partial: Vec<u8>,
    errors: Arc<Mutex<Vec<u8>>>,
    budget: Arc<Budget>,
}

impl Stdio {
    pub async fn start(
        program: &str,
        arguments: &[String],
        env: &[(String, String)],
        cwd: Option<&Path>,
        budget: Arc<Budget>,
    ) -> Result<Self, ProbeError> {
        let env: Vec<(&str, &str)> = env.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let inherited = Inherited::from_process().variables;
        let guard = this_program();
        let spec = Spec { guard: &guard, command: program, args: arguments, inherited: &inherited, env: &env, cwd };
        let started = start(spec).await.map_err(|error| ProbeError::Unreachable(error.to_string()))?;
        let Started { stdin, stdout, mut stderr, guard } = started;
        let errors = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&errors);
        // Read all the time, so that it never waits for us to read its log.
        tokio::spawn(async move {
            let mut buffer = vec![0; 4096];
            while let Ok(count @ 1..) = stderr.read(&mut buffer).await {
                let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
                kept.extend_from_slice(buffer.get(..count).unwrap_or_default());
                let over = kept.len().saturating_sub(KEPT);
                kept.drain(..over);
            }
        });
        Ok(Self { guard, stdin: Some(stdin), stdout: BufReader::new(stdout), partial: Vec::new(), errors, budget })
    }

    /// The end of what it wrote to stderr.
    pub fn errors(&self) -> String {
        let kept = self.errors.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&kept).trim().to_owned()
    }

    pub async fn line(&mut self, text: &[u8]) -> Result<(), ProbeError> {
        let mut bytes = text.to_vec();
        bytes.push(b'\n');
        self.bytes(&bytes).await
    }

    /// Writes bytes as they are, and reads nothing meanwhile.
    pub async fn bytes(&mut self, bytes: &[u8]) -> Result<(), ProbeError> {
        let stdin = self.stdin.as_mut().ok_or(ProbeError::Closed)?;
        stdin.write_all(bytes).await.map_err(|_| ProbeError::Closed)?;
        stdin.flush().await.map_err(|_| ProbeError::Closed)
    }

    /// The next line, without its end.
    pub async fn receive(&mut self, limit: Duration) -> Result<Option<ReceivedMessage>, ProbeError> {
        let line = async {
            loop {
                // What was read before the time was over stays in `partial`.
                let read = self.stdout.fill_buf().await.map_err(|_| ProbeError::Closed)?;
                if read.is_empty() {
                    return Err(ProbeError::Closed);
                }
                let end = read.iter().position(|byte| *byte == b'\n').map(|at| at + 1);
                let taken = end.unwrap_or(read.len());
                self.partial.extend_from_slice(read.get(..taken).unwrap_or_default());
                self.stdout.consume(taken);
                self.budget.charge(taken)?;
                if end.is_some() {
                    return Ok(());
                }
                if self.partial.len() > MAX_MESSAGE_BYTES {
                    return Err(ProbeError::InvalidData("a line without an end".to_owned()));
                }
            }
        };
        match tokio::time::timeout(limit, line).await {
            Err(_) => return Ok(None),
            Ok(outcome) => outcome?,
        }
        let bytes = std::mem::take(&mut self.partial);
        let text = String::from_utf8_lossy(&bytes).trim_end_matches(['\r', '\n']).to_owned();
        Ok(Some(ReceivedMessage { text, status: None }))
    }

    /// Closes its stdin.
    pub fn close(&mut self) {
        self.stdin = None;
    }

    /// How it ended, if it does within that time.
    pub async fn ended(&mut self, limit: Duration) -> Option<Report> {
        let ended = async {
            loop {
                match self.guard.report().await? {
                    report @ (Report::Exited { .. } | Report::Killed { .. }) => return Some(report),
                    Report::Started { .. } | Report::Failed { .. } => {}
                }
            }
        };
        tokio::time::timeout(limit, ended).await.ok()?
    }
}

impl Drop for Stdio {
    fn drop(&mut self) {
        self.guard.kill();
    }
}
