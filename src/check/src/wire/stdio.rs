//! A server that is a child process: lines on its stdin and stdout.

use std::{
    path::Path,
    process::{ExitStatus, Stdio as Pipe},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    process::{Child, ChildStdin, ChildStdout, Command},
};

use super::{MAX, Received, Trouble};

/// Bytes of stderr that are kept, of its end.
const KEPT: usize = 8 << 10;

/// Dropped, it is killed, and so is what it has started.
pub(crate) struct Stdio {
    child: Child,
    group: Option<Pid>,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
    /// What was read of a line that is not at its end yet.
    partial: Vec<u8>,
    errors: Arc<Mutex<Vec<u8>>>,
}

impl Stdio {
    pub fn start(
        program: &str,
        arguments: &[String],
        env: &[(String, String)],
        cwd: Option<&Path>,
    ) -> Result<Self, Trouble> {
        let mut command = Command::new(program);
        command.args(arguments).envs(env.iter().map(|(name, value)| (name, value)));
        if let Some(cwd) = cwd {
            command.current_dir(cwd);
        }
        // A group of its own: what it starts goes with it.
        command.process_group(0);
        command.stdin(Pipe::piped()).stdout(Pipe::piped()).stderr(Pipe::piped()).kill_on_drop(true);
        let unreachable = |why: String| Trouble::Unreachable(format!("{program}: {why}"));
        let mut child = command.spawn().map_err(|error| unreachable(error.to_string()))?;
        let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (Some(stdin), Some(stdout), Some(mut stderr)) = pipes else {
            return Err(unreachable("it has no pipes".to_owned()));
        };
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
        let group = child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
        Ok(Self { child, group, stdin: Some(stdin), stdout: BufReader::new(stdout), partial: Vec::new(), errors })
    }

    /// The end of what it wrote to stderr.
    pub fn errors(&self) -> String {
        let kept = self.errors.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&kept).trim().to_owned()
    }

    pub async fn line(&mut self, text: &[u8]) -> Result<(), Trouble> {
        let mut bytes = text.to_vec();
        bytes.push(b'\n');
        self.bytes(&bytes).await
    }

    /// Writes bytes as they are, and reads nothing meanwhile.
    pub async fn bytes(&mut self, bytes: &[u8]) -> Result<(), Trouble> {
        let stdin = self.stdin.as_mut().ok_or(Trouble::Closed)?;
        stdin.write_all(bytes).await.map_err(|_| Trouble::Closed)?;
        stdin.flush().await.map_err(|_| Trouble::Closed)
    }

    /// The next line, without its end.
    pub async fn receive(&mut self, limit: Duration) -> Result<Option<Received>, Trouble> {
        let line = async {
            loop {
                // What was read before the time was over stays in `partial`.
                let read = self.stdout.fill_buf().await.map_err(|_| Trouble::Closed)?;
                if read.is_empty() {
                    return Err(Trouble::Closed);
                }
                let end = read.iter().position(|byte| *byte == b'\n').map(|at| at + 1);
                let taken = end.unwrap_or(read.len());
                self.partial.extend_from_slice(read.get(..taken).unwrap_or_default());
                self.stdout.consume(taken);
                if end.is_some() {
                    return Ok(());
                }
                if self.partial.len() > MAX {
                    return Err(Trouble::Garbled("a line without an end".to_owned()));
                }
            }
        };
        match tokio::time::timeout(limit, line).await {
            Err(_) => return Ok(None),
            Ok(outcome) => outcome?,
        }
        let bytes = std::mem::take(&mut self.partial);
        let text = String::from_utf8_lossy(&bytes).trim_end_matches(['\r', '\n']).to_owned();
        Ok(Some(Received { text, status: None }))
    }

    /// Closes its stdin.
    pub fn close(&mut self) {
        self.stdin = None;
    }

    /// How it ended, if it does within that time.
    pub async fn ended(&mut self, limit: Duration) -> Option<ExitStatus> {
        tokio::time::timeout(limit, self.child.wait()).await.ok()?.ok()
    }
}

impl Drop for Stdio {
    fn drop(&mut self) {
        if let Some(group) = self.group {
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}
