//! Writes log lines to stderr from its own thread, so that a slow reader of stderr cannot stall the gateway. If the
//! queue is full, lines are dropped and counted. Also limits the size of a detached gateway's log file.

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

/// Maximum number of lines in the queue.
const MAX_QUEUED_LINES: usize = 4096;
/// Size in bytes above which a log file is renamed to `….1` and a new file is started.
const MAX_LOG_BYTES: u64 = 4 << 20;

/// Queues lines for the thread that writes them. Cheap to clone.
#[derive(Clone)]
pub(super) struct StderrWriter {
    lines: SyncSender<Vec<u8>>,
    progress: Arc<WriterProgress>,
}

/// The numbers of queued, dropped and written lines, which the clones of the writer and the thread share.
#[derive(Default)]
struct WriterProgress {
    /// Lines that were put into the queue since the start.
    queued: AtomicU64,
    /// Lines that were dropped since the last report.
    dropped: AtomicU64,
    /// Lines that were written since the start.
    written_lines: Mutex<u64>,
    line_written: Condvar,
}

impl StderrWriter {
    /// Starts the thread. `log_file` is the file to which stderr already points. It is rotated, so that its size is
    /// limited.
    pub(super) fn start(log_file: Option<PathBuf>) -> io::Result<Self> {
        let (lines, queue) = sync_channel(MAX_QUEUED_LINES);
        let progress = Arc::new(WriterProgress::default());
        let writer = Self { lines, progress: Arc::clone(&progress) };
        std::thread::Builder::new().name("log".into()).spawn(move || write_lines(&queue, &progress, log_file))?;
        Ok(writer)
    }

    /// Waits until all lines logged before are written, but at most for `limit`.
    pub(super) fn flush(&self, limit: Duration) {
        let queued = self.progress.queued.load(Ordering::Acquire);
        let written_lines = self.progress.written_lines.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = self.progress.line_written.wait_timeout_while(written_lines, limit, |written| *written < queued);
    }

    fn send(&self, line: Vec<u8>) {
        self.progress.queued.fetch_add(1, Ordering::AcqRel);
        if let Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) = self.lines.try_send(line) {
            self.progress.queued.fetch_sub(1, Ordering::AcqRel);
            self.progress.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

fn write_lines(queue: &Receiver<Vec<u8>>, progress: &WriterProgress, log_file: Option<PathBuf>) {
    let mut rotation = log_file.map(LogRotation::new);
    while let Ok(line) = queue.recv() {
        let mut stderr = io::stderr().lock();
        let dropped = progress.dropped.swap(0, Ordering::Relaxed);
        if dropped > 0 {
            let _ = writeln!(stderr, "countersign: {dropped} log lines were dropped because stderr was not read");
        }
        // An error of stderr cannot be reported anywhere.
        let _ = stderr.write_all(&line);
        drop(stderr);
        if let Some(rotation) = &mut rotation {
            rotation.record_write(line.len() as u64);
        }
        *progress.written_lines.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        progress.line_written.notify_all();
    }
}

/// The log file that stderr is redirected to, which is replaced when it is full.
struct LogRotation {
    path: PathBuf,
    size: u64,
}

impl LogRotation {
    fn new(path: PathBuf) -> Self {
        let size = std::fs::metadata(&path).map_or(0, |m| m.len());
        Self { path, size }
    }

    fn record_write(&mut self, bytes: u64) {
        self.size = self.size.saturating_add(bytes);
        if self.size > MAX_LOG_BYTES && self.rotate().is_ok() {
            self.size = 0;
        }
    }

    /// Renames the full file to `….1`, replacing an older one, and redirects stderr to a new file.
    fn rotate(&self) -> io::Result<()> {
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
/// The file cannot be opened.
pub fn open_log(path: &std::path::Path) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).mode(0o600).open(path)
}

/// Collects the text of one event and sends it when dropped.
pub(super) struct LogEntry<'a> {
    writer: &'a StderrWriter,
    text: Vec<u8>,
}

impl Write for LogEntry<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.text.extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for LogEntry<'_> {
    fn drop(&mut self) {
        if !self.text.is_empty() {
            self.writer.send(indent_continuation_lines(mask_secrets(std::mem::take(&mut self.text))));
        }
    }
}

/// Masks configured secrets, because the text may quote messages of other programs.
fn mask_secrets(text: Vec<u8>) -> Vec<u8> {
    match std::str::from_utf8(&text).map(redact) {
        Ok(Cow::Owned(masked)) => masked.into_bytes(),
        _ => text,
    }
}

/// Indents all lines of an entry but the first, so that foreign text (a backtrace, or a client's name) cannot look
/// like a log line.
fn indent_continuation_lines(text: Vec<u8>) -> Vec<u8> {
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
    type Writer = LogEntry<'a>;
    fn make_writer(&'a self) -> LogEntry<'a> {
        LogEntry { writer: self, text: Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configured_secrets_are_not_logged() {
        countersign_protocol::redact::register_secrets(["not-in-any-log".to_owned()]);
        assert_eq!(mask_secrets(b"401: not-in-any-log".to_vec()), b"401: [secret]");
    }

    #[test]
    fn continuation_lines_are_indented() {
        assert_eq!(indent_continuation_lines(b"a\n".to_vec()), b"a\n");
        assert_eq!(indent_continuation_lines(b"a\nb\n\n".to_vec()), b"a\n    b\n    \n");
        assert_eq!(indent_continuation_lines(Vec::new()), b"");
    }
}
