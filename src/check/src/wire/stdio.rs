//! A server as a child process, with lines on its stdin and stdout.

use std::{
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use countersign_child::{
    ChildSpec, GuardHandle, RunningChild, environment::InheritedEnvironment, guard::GuardReport, start, this_program,
};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::unix::pipe,
};

use super::{Budget, MAX_MESSAGE_BYTES, ProbeError, ReceivedMessage};

/// The number of bytes kept from the end of stderr.
const MAX_STDERR_BYTES: usize = 8 << 10;

/// A child process, which is killed with its descendants on drop.
pub(crate) struct Stdio {
    guard: GuardHandle,
    stdin: Option<pipe::Sender>,
    stdout: BufReader<pipe::Receiver>,
    /// The beginning of an incomplete line.
    partial: Vec<u8>,
    stderr_tail: Arc<Mutex<Vec<u8>>>,
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
        let inherited = InheritedEnvironment::from_process().variables;
        let guard = this_program();
        let spec =
            ChildSpec { guard: &guard, command: program, args: arguments, inherited: &inherited, env: &env, cwd };
        let started = start(spec).await.map_err(|error| ProbeError::Unreachable(error.to_string()))?;
        let RunningChild { stdin, stdout, mut stderr, guard } = started;
        let stderr_tail = Arc::new(Mutex::new(Vec::new()));
        let tail = Arc::clone(&stderr_tail);
        // Stderr is read all the time, so that the child never blocks on writing its log.
        tokio::spawn(async move {
            let mut buffer = vec![0; 4096];
            while let Ok(count @ 1..) = stderr.read(&mut buffer).await {
                let mut tail = tail.lock().unwrap_or_else(PoisonError::into_inner);
                tail.extend_from_slice(buffer.get(..count).unwrap_or_default());
                let excess = tail.len().saturating_sub(MAX_STDERR_BYTES);
                tail.drain(..excess);
            }
        });
        Ok(Self { guard, stdin: Some(stdin), stdout: BufReader::new(stdout), partial: Vec::new(), stderr_tail, budget })
    }

    /// Returns the end of the child's stderr.
    pub fn stderr_tail(&self) -> String {
        let tail = self.stderr_tail.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&tail).trim().to_owned()
    }

    pub async fn write_line(&mut self, text: &[u8]) -> Result<(), ProbeError> {
        let mut bytes = text.to_vec();
        bytes.push(b'\n');
        self.write_bytes(&bytes).await
    }

    /// Writes bytes unchanged, without reading meanwhile.
    pub async fn write_bytes(&mut self, bytes: &[u8]) -> Result<(), ProbeError> {
        let stdin = self.stdin.as_mut().ok_or(ProbeError::Closed)?;
        stdin.write_all(bytes).await.map_err(|_| ProbeError::Closed)?;
        stdin.flush().await.map_err(|_| ProbeError::Closed)
    }

    /// Returns the next line without its line break.
    pub async fn receive(&mut self, limit: Duration) -> Result<Option<ReceivedMessage>, ProbeError> {
        // Bytes that were read before a timeout stay in `partial`.
        let read_before = self.partial.len();
        let max_bytes = (MAX_MESSAGE_BYTES + 1).saturating_sub(read_before) as u64;
        let mut rest = (&mut self.stdout).take(max_bytes);
        let read = tokio::time::timeout(limit, rest.read_until(b'\n', &mut self.partial)).await;
        // What was read counts even if its line never ends.
        self.budget.charge(self.partial.len() - read_before)?;
        let Ok(read) = read else { return Ok(None) };
        read.map_err(|_| ProbeError::Closed)?;
        if !self.partial.ends_with(b"\n") {
            return Err(match self.partial.len() {
                0..=MAX_MESSAGE_BYTES => ProbeError::Closed,
                _ => ProbeError::InvalidData("a line without an end".to_owned()),
            });
        }
        let bytes = std::mem::take(&mut self.partial);
        let text = String::from_utf8_lossy(&bytes).trim_end_matches(['\r', '\n']).to_owned();
        Ok(Some(ReceivedMessage { text, status: None }))
    }

    /// Closes the child's stdin.
    pub fn close_stdin(&mut self) {
        self.stdin = None;
    }

    /// Returns the report of how the child ended, or `None` if it did not end within the limit.
    pub async fn wait_for_exit(&mut self, limit: Duration) -> Option<GuardReport> {
        let exit_report = async {
            loop {
                match self.guard.next_report().await? {
                    report @ (GuardReport::Exited { .. } | GuardReport::Killed { .. }) => return Some(report),
                    GuardReport::Started { .. } | GuardReport::Failed { .. } => {}
                }
            }
        };
        tokio::time::timeout(limit, exit_report).await.ok()?
    }
}

impl Drop for Stdio {
    fn drop(&mut self) {
        self.guard.kill();
    }
}
