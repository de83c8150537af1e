//! Writes log lines to stderr from a thread of its own, so that whoever does not read our stderr cannot stall the
//! gateway: when the queue is full, lines are dropped and counted. Keeps a detached gateway's log file bounded.

use std::{
    borrow::Cow,
    fs::{File, OpenOptions},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::PathBuf,
    sync::{
        Arc, Condvar, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
        mpsc::{Receiver, SyncSender, TrySendError, sync_channel},
    },
    time::Duration,
};

use tracing_subscriber::fmt::MakeWriter;

use countersign_protocol::redact::redact;

/// Lines that may wait.
const QUEUE: usize = 4096;
/// Bytes of a log file before it becomes `….1` and a new one begins.
const MAX_LOG: u64 = 4 << 20;

/// Hands lines to the thread. Cheap to clone.
#[derive(Clone)]
pub(super) struct StderrWriter {
    lines: SyncSender<Vec<u8>>,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    queued: AtomicU64,
    dropped: AtomicU64,
    written: Mutex<u64>,
    progress: Condvar,
}

impl StderrWriter {
    /// Starts the thread. With `rotate`, stderr is that file and is kept bounded.
    pub(super) fn start(rotate: Option<PathBuf>) -> io::Result<Self> {
        let (lines, queue) = sync_channel(QUEUE);
        let shared = Arc::new(Shared::default());
        let writer = Self { lines, shared: Arc::clone(&shared) };
        std::thread::Builder::new().name("log".into()).spawn(move || pump(&queue, &shared, rotate))?;
        Ok(writer)
    }

    /// Waits until what was logged before is written, at most for `limit`.
    pub(super) fn flush(&self, limit: Duration) {
        let goal = self.shared.queued.load(Ordering::Acquire);
        let written = self.shared.written.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = self.shared.progress.wait_timeout_while(written, limit, |written| *written < goal);
    }

    fn send(&self, line: Vec<u8>) {
        self.shared.queued.fetch_add(1, Ordering::AcqRel);
        if let Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) = self.lines.try_send(line) {
            self.shared.queued.fetch_sub(1, Ordering::AcqRel);
            self.shared.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

fn pump(queue: &Receiver<Vec<u8>>, shared: &Shared, rotate: Option<PathBuf>) {
    let mut rotation = rotate.map(Rotation::new);
    while let Ok(line) = queue.recv() {
        let mut stderr = io::stderr().lock();
        let dropped = shared.dropped.swap(0, Ordering::Relaxed);
        if dropped > 0 {
            let _ = writeln!(stderr, "countersign: {dropped} log lines were dropped because stderr was not read");
        }
        // Nobody is left to tell if stderr is gone.
        let _ = stderr.write_all(&line);
        drop(stderr);
        if let Some(rotation) = &mut rotation {
            rotation.wrote(line.len() as u64);
        }
        *shared.written.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        shared.progress.notify_all();
    }
}

struct Rotation {
    path: PathBuf,
    size: u64,
}

impl Rotation {
    fn new(path: PathBuf) -> Self {
        let size = std::fs::metadata(&path).map_or(0, |m| m.len());
        Self { path, size }
    }

    fn wrote(&mut self, bytes: u64) {
        self.size = self.size.saturating_add(bytes);
        if self.size > MAX_LOG && self.turn_over().is_ok() {
            self.size = 0;
        }
    }

    /// The full file becomes `….1` (replacing the last one), and stderr, with all that writes to it, a new file.
    fn turn_over(&self) -> io::Result<()> {
        let mut old = self.path.clone().into_os_string();
        old.push(".1");
        std::fs::rename(&self.path, old)?;
        let file = open_log(&self.path)?;
        rustix::stdio::dup2_stderr(file)?;
        Ok(())
    }
}

/// Opens a log file for appending, readable by its owner only.
///
/// # Errors
/// As opening any file.
pub fn open_log(path: &std::path::Path) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).mode(0o600).open(path)
}

/// Collects one event's text and sends it when dropped.
pub(super) struct Line<'a> {
    writer: &'a StderrWriter,
    text: Vec<u8>,
}

impl Write for Line<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.text.extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Line<'_> {
    fn drop(&mut self) {
        if !self.text.is_empty() {
            self.writer.send(one_entry(without_secrets(std::mem::take(&mut self.text))));
        }
    }
}

/// What others say is logged as it came, but for configured secrets.
fn without_secrets(text: Vec<u8>) -> Vec<u8> {
    match std::str::from_utf8(&text).map(redact) {
        Ok(Cow::Owned(masked)) => masked.into_bytes(),
        _ => text,
    }
}

/// Whatever line breaks are in an entry (a backtrace, or what a client calls itself) are indented: only we begin lines.
fn one_entry(text: Vec<u8>) -> Vec<u8> {
    let Some((b'\n', body)) = text.split_last() else { return text };
    if !body.contains(&b'\n') {
        return text;
    }
    let mut out = Vec::with_capacity(text.len() + 64);
    for byte in body {
        out.push(*byte);
        if *byte == b'\n' {
            out.extend_from_slice(b"    ");
        }
    }
    out.push(b'\n');
    out
}

impl<'a> MakeWriter<'a> for StderrWriter {
    type Writer = Line<'a>;
    fn make_writer(&'a self) -> Line<'a> {
        Line { writer: self, text: Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configured_secrets_are_not_logged() {
        countersign_protocol::redact::register_secrets(["not-in-any-log".to_owned()]);
        assert_eq!(without_secrets(b"401: not-in-any-log".to_vec()), b"401: [secret]");
    }

    #[test]
    fn continuation_lines_are_indented() {
        assert_eq!(one_entry(b"a\n".to_vec()), b"a\n");
        assert_eq!(one_entry(b"a\nb\n\n".to_vec()), b"a\n    b\n    \n");
        assert_eq!(one_entry(Vec::new()), b"");
    }
}
