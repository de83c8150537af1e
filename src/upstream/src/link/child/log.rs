//! What a server writes beside the protocol, line by line into the log: bounded, legible, without its secrets.

use std::{
    borrow::Cow,
    collections::HashMap,
    hash::{DefaultHasher, Hash, Hasher},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::BytesMut;
use tokio::{io::AsyncReadExt, net::unix::pipe};

use parking_lot::Mutex;

use super::frames::{Frames, Line};
use crate::link::Stderr;
use countersign_domain::changes::visible::escape_hidden;
use countersign_protocol::redact::{MASK, redact};

/// What is read of one line; secrets are looked for in all of it.
const READ: usize = 16 << 10;
/// What is logged of one line. So much less than what is read that no secret is cut in two at its end.
const LOGGED: usize = 4 << 10;
/// Lines per [`WINDOW`] that are logged.
const LINES: u32 = 200;
const WINDOW: Duration = Duration::from_secs(10);
/// Shorter values are no secrets, and hiding them would make the log illegible (`1`, `no`).
const SECRET: usize = 4;

/// Characters of a line that are kept for whoever asks why a server is down.
const KEPT: usize = 500;
/// A process that ends by itself before it is this old has failed to start; in a row they are a crash loop.
const SETTLED: Duration = Duration::from_secs(10);
/// Lines that are remembered of processes that failed to start.
const REMEMBERED: usize = 1000;
/// Lines that look like errors belong together while they come faster than this: the first of them is kept.
const BURST: Duration = Duration::from_secs(1);

/// What all processes of one server wrote to their stderr, as far as it is kept.
#[derive(Default)]
pub(super) struct History {
    shown: Stderr,
    /// When the last line that looks like an error came, and of which process.
    error: Option<(u64, Instant)>,
    /// Lines of processes that have not settled, without their numbers, and which process wrote each first.
    lines: HashMap<u64, u64>,
    /// Processes in a row that failed to start.
    failures: u64,
    processes: u64,
}

impl History {
    pub(super) fn shown(&self) -> Stderr {
        self.shown.clone()
    }

    fn keep(&mut self, process: u64, line: &str, now: Instant) {
        let line: String = line.chars().take(KEPT).collect();
        if looks_like_error(&line) {
            let continued = self.error.is_some_and(|(of, at)| of == process && now.duration_since(at) < BURST);
            self.error = Some((process, now));
            if !continued {
                self.shown.error = Some(line.clone());
            }
        }
        self.shown.last = Some(line);
    }

    /// Notes a line of a process that has not settled. Returns `true` if it repeats what an earlier one wrote before it
    /// failed.
    fn repeats(&mut self, process: u64, line: &str) -> bool {
        let print = fingerprint(line);
        match self.lines.get(&print) {
            Some(first) => self.failures > 0 && *first < process,
            None => {
                if self.lines.len() < REMEMBERED {
                    self.lines.insert(print, process);
                }
                false
            }
        }
    }
}

/// Returns a hash of the line in which times, process ids and addresses make no difference.
fn fingerprint(line: &str) -> u64 {
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

/// Returns `true` if the line says what went wrong, rather than where (a frame of a stack is indented) or what might.
fn looks_like_error(line: &str) -> bool {
    if line.starts_with(char::is_whitespace) {
        return false;
    }
    let lower = line.to_ascii_lowercase();
    let found = ["error", "err!", "fatal", "panicked", "exception"].iter().filter_map(|word| {
        // `ValueError:` is one, `errors=0` and `error_handler` are none.
        let ends = |at: &usize| !lower[at + word.len()..].starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_');
        lower.match_indices(word).map(|(at, _)| at).find(ends)
    });
    let warning = lower.find("warn");
    found.min().is_some_and(|at| warning.is_none_or(|warning| warning > at))
}

/// Where the lines of one process of a server go.
pub(super) struct ServerLog {
    server: String,
    /// Longest first, so that none shows because a part of it was hidden before.
    secrets: Vec<String>,
    history: Arc<Mutex<History>>,
    process: u64,
    began: Instant,
    /// Lines that were left out, since an earlier process wrote the same.
    repeated: AtomicU64,
}

impl ServerLog {
    pub(super) fn new<'a>(server: &str, secrets: impl Iterator<Item = &'a str>, history: Arc<Mutex<History>>) -> Self {
        // A secret of several lines (a private key) is seen one line at a time.
        let mut secrets: Vec<String> =
            secrets.flat_map(str::lines).map(str::trim).filter(|s| s.len() >= SECRET).map(str::to_owned).collect();
        secrets.sort_by(|a, b| b.len().cmp(&a.len()).then_with(|| a.cmp(b)));
        secrets.dedup();
        let process = {
            let mut history = history.lock();
            history.processes += 1;
            history.processes
        };
        let server = server.to_owned();
        Self { server, secrets, history, process, began: Instant::now(), repeated: AtomicU64::new(0) }
    }

    /// Logs how the process ended; `failed`: by itself.
    pub(super) fn ended(&self, how: &str, failed: bool) {
        let settled = self.began.elapsed() >= SETTLED;
        let failures = {
            let mut history = self.history.lock();
            if settled {
                history.failures = 0;
                history.lines.clear();
            } else if failed {
                history.failures += 1;
            }
            history.failures
        };
        match (failed, failures) {
            (false, _) => {
                tracing::debug!(target: "countersign_upstream", upstream = %self.server, "it has ended: {how}");
            }
            (true, 0 | 1) => tracing::warn!(target: "countersign_upstream", upstream = %self.server, "{how}"),
            (true, times) => {
                tracing::warn!(target: "countersign_upstream", upstream = %self.server, times, "{how} again");
            }
        }
    }

    /// As it may be shown: no secret, nothing that moves a terminal's cursor, not too long.
    pub(super) fn legible(&self, bytes: &[u8]) -> String {
        let mut text = String::from_utf8_lossy(bytes);
        for secret in &self.secrets {
            if text.contains(secret.as_str()) {
                text = Cow::Owned(text.replace(secret.as_str(), MASK));
            }
        }
        let mut text = redact(&escape_hidden(&text)).into_owned();
        if text.len() > LOGGED {
            text.truncate(text.floor_char_boundary(LOGGED));
            text.push('…');
        }
        text
    }

    /// Logs what a server writes to its stderr until it is closed.
    pub(super) async fn follow(&self, mut stderr: pipe::Receiver) {
        let mut frames = Frames::new(READ);
        let mut throttle = Throttle::default();
        // What a server says as it ends is kept also where so much came before that it is not logged.
        let mut unlogged = None;
        while matches!(stderr.read_buf(frames.room()).await, Ok(1..)) {
            while let Some(Line::Whole(line) | Line::Cut(line)) = frames.next() {
                self.said(line, &mut throttle, &mut unlogged);
            }
        }
        if let Some(rest) = frames.rest() {
            self.said(rest, &mut throttle, &mut unlogged);
        }
        if let Some(line) = unlogged {
            self.history.lock().keep(self.process, &self.legible(&line), Instant::now());
        }
        self.silenced(throttle.finish());
        let repeated = self.repeated.load(Ordering::Relaxed);
        if repeated > 0 {
            tracing::info!(target: "countersign_upstream", upstream = %self.server, lines = repeated,
                "it wrote to its stderr what it wrote when it failed before");
        }
    }

    /// Keeps and logs a line that is not empty. `unlogged` becomes the last line, if it is not logged.
    fn said(&self, line: BytesMut, throttle: &mut Throttle, unlogged: &mut Option<BytesMut>) {
        if line.trim_ascii().is_empty() {
            return;
        }
        let now = Instant::now();
        let (pass, silenced) = throttle.pass(now);
        self.silenced(silenced);
        if !pass {
            *unlogged = Some(line);
            return;
        }
        *unlogged = None;
        let line = self.legible(&line);
        let repeats = {
            let mut history = self.history.lock();
            history.keep(self.process, &line, now);
            now.duration_since(self.began) < SETTLED && history.repeats(self.process, &line)
        };
        if repeats {
            self.repeated.fetch_add(1, Ordering::Relaxed);
        } else {
            tracing::info!(target: "countersign_upstream", upstream = %self.server, "{line}");
        }
    }

    /// A line on stdout that is no message.
    pub(super) fn garbage(&self, line: &[u8], why: &str, throttle: &mut Throttle) {
        let (pass, silenced) = throttle.pass(Instant::now());
        self.silenced(silenced);
        if pass {
            let line = self.legible(&line[..line.len().min(READ)]);
            tracing::warn!(target: "countersign_upstream", upstream = %self.server, %why, "a line on its stdout is skipped: {line}");
        }
    }

    fn silenced(&self, lines: u64) {
        if lines > 0 {
            tracing::warn!(target: "countersign_upstream", upstream = %self.server, lines, "it writes too much: lines were left out");
        }
    }
}

/// How many at most lines in a window of time.
#[derive(Default)]
pub(super) struct Throttle {
    since: Option<Instant>,
    passed: u32,
    silenced: u64,
}

impl Throttle {
    /// Whether a line may pass, and how many did not in the window that is over.
    fn pass(&mut self, now: Instant) -> (bool, u64) {
        let mut silenced = 0;
        if self.since.is_none_or(|since| now.duration_since(since) >= WINDOW) {
            silenced = self.finish();
            self.since = Some(now);
            self.passed = 0;
        }
        if self.passed < LINES {
            self.passed += 1;
            (true, silenced)
        } else {
            self.silenced += 1;
            (false, silenced)
        }
    }

    fn finish(&mut self) -> u64 {
        std::mem::take(&mut self.silenced)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_and_control_characters_do_not_show() {
        let key = "-----BEGIN KEY-----\nMIIabc\nxyz\n";
        let log = ServerLog::new("s", ["hunter2", "hunter2-and-more", "no", key].into_iter(), Arc::default());
        assert_eq!(log.legible(b"hunter2-and-more hunter2 no"), "[secret] [secret] no");
        assert_eq!(log.legible(b"key: MIIabc"), "key: [secret]");
        assert_eq!(log.legible(b"a\x1b[2J\rb\xff\tc"), "a\\u{1b}[2J\\u{d}b\u{fffd}\tc");
        let long = log.legible("é".repeat(LOGGED).as_bytes());
        assert!(long.len() <= LOGGED + 4 && long.ends_with("é…"));
        // One that stands across the end of what is logged is found all the same.
        let mut line = vec![b'x'; LOGGED - 3];
        line.extend_from_slice(b"hunter2");
        assert!(!log.legible(&line).contains("hun"));
    }

    #[test]
    fn a_flood_is_thinned_and_counted() {
        let mut throttle = Throttle::default();
        let start = Instant::now();
        let passed = (0..LINES * 3).filter(|_| throttle.pass(start).0).count();
        assert_eq!(passed, LINES as usize);
        assert_eq!(throttle.pass(start + WINDOW), (true, u64::from(LINES) * 2));
        assert_eq!(throttle.pass(start + WINDOW), (true, 0));
    }

    #[test]
    fn first_line_of_an_error_is_kept() {
        let history = Arc::new(Mutex::new(History::default()));
        let said = |lines: &[&str]| {
            let log = ServerLog::new("s", std::iter::empty(), Arc::clone(&history));
            for line in lines {
                log.said(line.as_bytes().into(), &mut Throttle::default(), &mut None);
            }
            let Stderr { error, last } = history.lock().shown();
            (error.unwrap_or_default(), last.unwrap_or_default())
        };
        let npm = [
            "npm warn exec The following package was not found and will be installed: x",
            "npm error code SELF_SIGNED_CERT_IN_CHAIN",
            "npm error errno SELF_SIGNED_CERT_IN_CHAIN",
            "npm error A complete log of this run can be found in: /root/.npm/_logs/x.log",
        ];
        assert_eq!(said(&npm), (npm[1].to_owned(), npm[3].to_owned()));
        let python =
            ["Traceback (most recent call last):", "  File \"error.py\"", "ModuleNotFoundError: No module named 'x'"];
        assert_eq!(said(&python), (python[2].to_owned(), python[2].to_owned()));
        // What ends without such a line leaves the error of the process before.
        assert_eq!(said(&["bye"]), (python[2].to_owned(), "bye".to_owned()));
        for line in ["warning: an error may follow", "0 errors", "error_handler is set", "    throw new Error(x)"] {
            assert!(!looks_like_error(line), "{line}");
        }
        for line in ["npm ERR! code E404", "FATAL: no", "java.lang.Exception", "thread 'main' panicked at x.rs:1:2"] {
            assert!(looks_like_error(line), "{line}");
        }
    }

    #[test]
    fn crash_loop_repeats_no_line_of_its_log() {
        let history = Arc::new(Mutex::new(History::default()));
        let logged = |lines: &[&str], failed: bool| {
            let log = ServerLog::new("s", std::iter::empty(), Arc::clone(&history));
            for line in lines {
                log.said(line.as_bytes().into(), &mut Throttle::default(), &mut None);
            }
            log.ended("it exited", failed);
            lines.len() as u64 - log.repeated.load(Ordering::Relaxed)
        };
        // Processes that did not fail are told of each time: one server may have several.
        assert_eq!((logged(&["hello"], false), logged(&["hello"], false)), (1, 1));
        assert_eq!(logged(&["at 10:00:01", "Traceback", "Traceback"], true), 3);
        assert_eq!(logged(&["at 10:00:07", "Traceback", "Traceback", "and more"], true), 1);
        assert_eq!(logged(&["Traceback"], true), 0);
        assert_eq!(logged(&["<Handle object at 0x7f3a9c01beef>"], true), 1);
        assert_eq!(logged(&["<Handle object at 0x7f51d0ff00>"], true), 0);
        assert_eq!(history.lock().failures, 5);
        // One that has settled ends the loop.
        history.lock().failures = 3;
        let mut log = ServerLog::new("s", std::iter::empty(), Arc::clone(&history));
        log.began = Instant::now().checked_sub(SETTLED).unwrap();
        log.ended("it exited", true);
        assert_eq!(history.lock().failures, 0);
        assert_eq!(logged(&["Traceback"], true), 1);
    }
}
