//! Logs the output of a server outside of the protocol. Each line is limited in length, and logged without control
//! characters and secrets.

use std::{
    borrow::Cow,
    collections::HashMap,
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use tokio::net::unix::pipe;

use super::lines::{Line, LineReader};
use crate::link::StderrSummary;
use countersign_domain::changes::visible::escape_hidden;
use countersign_protocol::redact::{MASK, redact};

/// The maximum number of bytes of a line that are read and redacted.
const MAX_READ_BYTES: usize = 16 << 10;
/// The maximum number of bytes of a line that are logged. It is much less than [`MAX_READ_BYTES`], so that the limit
/// cuts no secret in two.
const MAX_LOGGED_BYTES: usize = 4 << 10;
/// The maximum number of lines that are logged in a [`THROTTLE_WINDOW`].
const MAX_LINES_PER_WINDOW: u32 = 200;
const THROTTLE_WINDOW: Duration = Duration::from_secs(10);
/// The minimum number of bytes of a secret. Redacting shorter values (`1`, `no`) would make the log illegible.
const MIN_SECRET_BYTES: usize = 4;

/// The number of last lines that are kept of all processes of a server.
const MAX_LAST_LINES: usize = 20;
/// The maximum number of characters of a line in the status of a server.
const MAX_STDERR_CHARS: usize = 500;
/// A process that exits by itself before it is this old has failed to start. Several in a row are a crash loop.
const STARTUP_TIME: Duration = Duration::from_secs(10);
/// The maximum number of remembered lines of processes that failed to start.
const MAX_REMEMBERED_LINES: usize = 1000;
/// Lines that look like errors belong together if they arrive within this time of each other. The first of these lines
/// is kept.
const ERROR_GROUP_TIME: Duration = Duration::from_secs(1);

/// The remembered output on stderr of all processes of one server.
#[derive(Default)]
pub(super) struct StderrHistory {
    pub(super) summary: StderrSummary,
    /// The number of the process that wrote last.
    recent_process: u64,
    /// The process and time of the last line that looks like an error.
    last_error: Option<(u64, Instant)>,
    /// Hashes of the lines of starting processes (see [`hash_line`]), each with the number of the first process that wrote it.
    startup_lines: HashMap<u64, u64>,
    /// The number of consecutive processes that failed to start.
    failures: u64,
    /// The number of the process that was started last.
    last_process: u64,
}

impl StderrHistory {
    /// Records a line of a process for the status.
    fn record(&mut self, process: u64, line: &str, now: Instant) {
        let line: String = line.chars().take(MAX_STDERR_CHARS).collect();
        if looks_like_error(&line) {
            let is_continued = self.last_error.is_some_and(|(last_process, time)| {
                last_process == process && now.duration_since(time) < ERROR_GROUP_TIME
            });
            self.last_error = Some((process, now));
            if !is_continued {
                self.summary.error = Some(line.clone());
            }
        }
        if self.recent_process != process {
            // A server that is started again would repeat its lines.
            self.summary.last_lines.clear();
            self.recent_process = process;
        }
        if self.summary.last_lines.len() == MAX_LAST_LINES {
            self.summary.last_lines.pop_front();
        }
        self.summary.last_lines.push_back(line);
    }

    /// Remembers a line of a process that is starting. Returns `true` if an earlier process wrote the same line and
    /// failed to start.
    fn remember_startup_line(&mut self, process: u64, line: &str) -> bool {
        let line_hash = hash_line(line);
        match self.startup_lines.get(&line_hash) {
            Some(first) => self.failures > 0 && *first < process,
            None => {
                if self.startup_lines.len() < MAX_REMEMBERED_LINES {
                    self.startup_lines.insert(line_hash, process);
                }
                false
            }
        }
    }
}

/// Returns a hash of the line that ignores digits, and therefore times, process ids and addresses.
fn hash_line(line: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    for (at, part) in line.split("0x").enumerate() {
        // An address is a number whose digits may be letters.
        let part = if at == 0 { part } else { part.trim_start_matches(|c: char| c.is_ascii_hexdigit()) };
        part.split(|c: char| c.is_ascii_digit())
            .filter(|part| !part.is_empty())
            .for_each(|part| part.hash(&mut hasher));
    }
    hasher.finish()
}

/// Returns `true` if the line describes an error. Indented lines, such as frames of a stack, and warnings do not count.
fn looks_like_error(line: &str) -> bool {
    if line.starts_with(char::is_whitespace) {
        return false;
    }
    let lower = line.to_ascii_lowercase();
    let error_positions = ["error", "err!", "fatal", "panicked", "exception"].iter().filter_map(|word| {
        // `ValueError:` contains the word, but `errors=0` and `error_handler` do not.
        let ends = |at: &usize| !lower[at + word.len()..].starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_');
        lower.match_indices(word).map(|(at, _)| at).find(ends)
    });
    let warning = lower.find("warn");
    error_positions.min().is_some_and(|at| warning.is_none_or(|warning| warning > at))
}

/// The log of one process of a server.
pub(super) struct ServerLog {
    /// The configured name of the server.
    pub(super) server: String,
    /// The longest secret comes first, because masking a part of a secret first would leave the rest visible.
    secrets: Vec<String>,
    history: Arc<Mutex<StderrHistory>>,
    /// The number of the process among those of the server.
    process: u64,
    started_at: Instant,
}

/// The output of one process on stderr.
#[derive(Default)]
struct OutputState {
    throttle: Throttle,
    /// The last line, if the throttle kept it out of the log.
    unlogged: Option<Vec<u8>>,
    /// The number of lines that were omitted because an earlier process wrote the same.
    repeated: u64,
}

impl ServerLog {
    pub(super) fn new<'a>(
        server: &str,
        secrets: impl Iterator<Item = &'a str>,
        history: Arc<Mutex<StderrHistory>>,
    ) -> Self {
        // A secret of several lines, such as a private key, appears one line at a time.
        let secrets = secrets.flat_map(str::lines).map(str::trim).filter(|secret| secret.len() >= MIN_SECRET_BYTES);
        let mut secrets: Vec<String> = secrets.map(str::to_owned).collect();
        secrets.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
        let process = {
            let mut history = history.lock();
            history.last_process += 1;
            history.last_process
        };
        Self { server: server.to_owned(), secrets, history, process, started_at: Instant::now() }
    }

    /// Logs how the process ended. `has_failed` is `true` if the process ended without being stopped by the gateway.
    pub(super) fn log_exit(&self, description: &str, has_failed: bool) {
        let failures = {
            let mut history = self.history.lock();
            if self.started_at.elapsed() >= STARTUP_TIME {
                history.failures = 0;
                history.startup_lines.clear();
            } else if has_failed {
                history.failures += 1;
            }
            history.failures
        };
        match (has_failed, failures) {
            (false, _) => {
                tracing::debug!(target: "countersign_upstream", upstream = %self.server, "the server was stopped: {description}");
            }
            (true, 0 | 1) => tracing::warn!(target: "countersign_upstream", upstream = %self.server, "{description}"),
            (true, times) => {
                tracing::warn!(target: "countersign_upstream", upstream = %self.server, times, "{description} again");
            }
        }
    }

    /// Returns the text without secrets and control characters, and limits its length.
    pub(super) fn redact_line(&self, bytes: &[u8]) -> String {
        let mut text = String::from_utf8_lossy(bytes);
        for secret in &self.secrets {
            if text.contains(secret.as_str()) {
                text = Cow::Owned(text.replace(secret.as_str(), MASK));
            }
        }
        let mut text = redact(&escape_hidden(&text)).into_owned();
        if text.len() > MAX_LOGGED_BYTES {
            text.truncate(text.floor_char_boundary(MAX_LOGGED_BYTES));
            text.push('…');
        }
        text
    }

    /// Logs what the server writes to its stderr until it is closed.
    pub(super) async fn log_stderr(&self, stderr: pipe::Receiver) {
        let mut lines = LineReader::new(stderr, MAX_READ_BYTES);
        let mut output = OutputState::default();
        while let Some(Line::Whole(line) | Line::Truncated(line)) = lines.next().await {
            self.log_line(line, &mut output);
        }
        // The last line of a server is recorded even if it was not logged.
        if let Some(line) = output.unlogged {
            self.history.lock().record(self.process, &self.redact_line(&line), Instant::now());
        }
        self.log_omitted(output.throttle.take_omitted());
        if output.repeated > 0 {
            tracing::info!(target: "countersign_upstream", upstream = %self.server, lines = output.repeated,
                "lines on stderr that repeat an earlier failed start were omitted");
        }
    }

    /// Records and logs a line unless it is empty.
    fn log_line(&self, line: &[u8], output: &mut OutputState) {
        if line.trim_ascii().is_empty() {
            return;
        }
        let now = Instant::now();
        let (may_pass, omitted) = output.throttle.admit_line(now);
        self.log_omitted(omitted);
        output.unlogged = (!may_pass).then(|| line.to_vec());
        if !may_pass {
            return;
        }
        let line = self.redact_line(line);
        let is_repeated = {
            let mut history = self.history.lock();
            history.record(self.process, &line, now);
            now.duration_since(self.started_at) < STARTUP_TIME && history.remember_startup_line(self.process, &line)
        };
        if is_repeated {
            output.repeated += 1;
        } else {
            tracing::info!(target: "countersign_upstream", upstream = %self.server, "{line}");
        }
    }

    /// Logs a line on stdout that is not a message.
    pub(super) fn log_invalid_line(&self, line: &[u8], reason: &str, throttle: &mut Throttle) {
        let (may_pass, omitted) = throttle.admit_line(Instant::now());
        self.log_omitted(omitted);
        if may_pass {
            let line = self.redact_line(&line[..line.len().min(MAX_READ_BYTES)]);
            tracing::warn!(target: "countersign_upstream", upstream = %self.server, %reason, "a line on the stdout of the server is skipped: {line}");
        }
    }

    fn log_omitted(&self, lines: u64) {
        if lines > 0 {
            tracing::warn!(target: "countersign_upstream", upstream = %self.server, lines, "the server writes too much, so lines were left out");
        }
    }
}

/// Limits the number of lines in a window of time.
#[derive(Default)]
pub(super) struct Throttle {
    window_start: Option<Instant>,
    passed: u32,
    omitted: u64,
}

impl Throttle {
    /// Returns `true` if a line may pass, together with the number of lines that were omitted in a window that has just
    /// ended.
    fn admit_line(&mut self, now: Instant) -> (bool, u64) {
        let mut omitted = 0;
        if self.window_start.is_none_or(|start| now.duration_since(start) >= THROTTLE_WINDOW) {
            omitted = self.take_omitted();
            self.window_start = Some(now);
            self.passed = 0;
        }
        let may_pass = self.passed < MAX_LINES_PER_WINDOW;
        if may_pass {
            self.passed += 1;
        } else {
            self.omitted += 1;
        }
        (may_pass, omitted)
    }

    fn take_omitted(&mut self) -> u64 {
        std::mem::take(&mut self.omitted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_and_control_characters_are_not_logged() {
        let key = "-----BEGIN KEY-----\nMIIabc\nxyz\n";
        let log = ServerLog::new("s", ["hunter2", "hunter2-and-more", "no", key].into_iter(), Arc::default());
        assert_eq!(log.redact_line(b"hunter2-and-more hunter2 no"), "[secret] [secret] no");
        assert_eq!(log.redact_line(b"key: MIIabc"), "key: [secret]");
        assert_eq!(log.redact_line(b"a\x1b[2J\rb\xff\tc"), "a\\u{1b}[2J\\u{d}b\u{fffd}\tc");
        let long = log.redact_line("é".repeat(MAX_LOGGED_BYTES).as_bytes());
        assert!(long.len() <= MAX_LOGGED_BYTES + 4 && long.ends_with("é…"));
        // A secret that crosses the limit of logged bytes is found too.
        let mut line = vec![b'x'; MAX_LOGGED_BYTES - 3];
        line.extend_from_slice(b"hunter2");
        assert!(!log.redact_line(&line).contains("hun"));
    }

    #[test]
    fn omitted_lines_are_counted() {
        let mut throttle = Throttle::default();
        let start = Instant::now();
        let passed = (0..MAX_LINES_PER_WINDOW * 3).filter(|_| throttle.admit_line(start).0).count();
        assert_eq!(passed, MAX_LINES_PER_WINDOW as usize);
        assert_eq!(throttle.admit_line(start + THROTTLE_WINDOW), (true, u64::from(MAX_LINES_PER_WINDOW) * 2));
        assert_eq!(throttle.admit_line(start + THROTTLE_WINDOW), (true, 0));
    }

    #[test]
    fn first_line_of_error_is_recorded() {
        let history = Arc::new(Mutex::new(StderrHistory::default()));
        let log_lines = |lines: &[&str]| {
            let log = ServerLog::new("s", std::iter::empty(), Arc::clone(&history));
            let mut output = OutputState::default();
            for line in lines {
                log.log_line(line.as_bytes(), &mut output);
            }
            let StderrSummary { error, mut last_lines } = history.lock().summary.clone();
            (error.unwrap_or_default(), last_lines.pop_back().unwrap_or_default())
        };
        let npm = [
            "npm warn exec The following package was not found and will be installed: x",
            "npm error code SELF_SIGNED_CERT_IN_CHAIN",
            "npm error errno SELF_SIGNED_CERT_IN_CHAIN",
            "npm error A complete log of this run can be found in: /root/.npm/_logs/x.log",
        ];
        assert_eq!(log_lines(&npm), (npm[1].to_owned(), npm[3].to_owned()));
        let python =
            ["Traceback (most recent call last):", "  File \"error.py\"", "ModuleNotFoundError: No module named 'x'"];
        assert_eq!(log_lines(&python), (python[2].to_owned(), python[2].to_owned()));
        // A process without an error line keeps the error of the previous process.
        assert_eq!(log_lines(&["bye"]), (python[2].to_owned(), "bye".to_owned()));
        for line in ["warning: an error may follow", "0 errors", "error_handler is set", "    throw new Error(x)"] {
            assert!(!looks_like_error(line), "{line}");
        }
        for line in ["npm ERR! code E404", "FATAL: no", "java.lang.Exception", "thread 'main' panicked at x.rs:1:2"] {
            assert!(looks_like_error(line), "{line}");
        }
    }

    #[test]
    fn only_the_last_lines_of_the_last_process_are_kept() {
        let history = Arc::new(Mutex::new(StderrHistory::default()));
        let log = ServerLog::new("s", std::iter::empty(), Arc::clone(&history));
        for number in 0..=MAX_LAST_LINES {
            log.log_line(format!("line {number}").as_bytes(), &mut OutputState::default());
        }
        {
            let lines = &history.lock().summary.last_lines;
            assert_eq!((lines.len(), lines[0].as_str()), (MAX_LAST_LINES, "line 1"));
        }
        let next = ServerLog::new("s", std::iter::empty(), Arc::clone(&history));
        next.log_line(b"again", &mut OutputState::default());
        assert_eq!(history.lock().summary.last_lines, ["again"]);
    }

    #[test]
    fn crash_loop_logs_repeated_lines_once() {
        let history = Arc::new(Mutex::new(StderrHistory::default()));
        let logged = |lines: &[&str], failed: bool| {
            let log = ServerLog::new("s", std::iter::empty(), Arc::clone(&history));
            let mut output = OutputState::default();
            for line in lines {
                log.log_line(line.as_bytes(), &mut output);
            }
            log.log_exit("it exited", failed);
            lines.len() as u64 - output.repeated
        };
        // Lines of processes that did not fail are always logged, because one server may run several processes.
        assert_eq!((logged(&["hello"], false), logged(&["hello"], false)), (1, 1));
        assert_eq!(logged(&["at 10:00:01", "Traceback", "Traceback"], true), 3);
        assert_eq!(logged(&["at 10:00:07", "Traceback", "Traceback", "and more"], true), 1);
        assert_eq!(logged(&["Traceback"], true), 0);
        assert_eq!(logged(&["<Handle object at 0x7f3a9c01beef>"], true), 1);
        assert_eq!(logged(&["<Handle object at 0x7f51d0ff00>"], true), 0);
        assert_eq!(history.lock().failures, 5);
        // A process that runs for long enough ends the crash loop.
        history.lock().failures = 3;
        let mut log = ServerLog::new("s", std::iter::empty(), Arc::clone(&history));
        log.started_at = Instant::now().checked_sub(STARTUP_TIME).unwrap();
        log.log_exit("it exited", true);
        assert_eq!(history.lock().failures, 0);
        assert_eq!(logged(&["Traceback"], true), 1);
    }
}
