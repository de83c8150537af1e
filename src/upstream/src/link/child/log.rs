//! What a server writes beside the protocol, line by line into the log: bounded, legible, without its secrets.

use std::{
    borrow::Cow,
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::{io::AsyncReadExt, net::unix::pipe};

use parking_lot::Mutex;

use super::frames::{Frames, Line};
use countersign_domain::changes::visible::visible;

/// What is read of one line; secrets are looked for in all of it.
const READ: usize = 16 << 10;
/// What is logged of one line. So much less than what is read that no secret is cut in two at its end.
const LOGGED: usize = 4 << 10;
/// Lines per [`WINDOW`] that are logged.
const LINES: u32 = 200;
const WINDOW: Duration = Duration::from_secs(10);
/// Shorter values are no secrets, and hiding them would make the log illegible (`1`, `no`).
const SECRET: usize = 4;
const MASK: &str = "[secret]";

/// Characters of the last line that are kept for whoever asks why a server is down.
const LAST: usize = 500;

/// The last line that a server wrote to its stderr, whichever of its processes did; legible.
pub(super) type LastLine = Arc<Mutex<Option<String>>>;

/// Where a server's lines go.
pub(super) struct ServerLog {
    server: String,
    /// Longest first, so that none shows because a part of it was hidden before.
    secrets: Vec<String>,
    last: LastLine,
}

impl ServerLog {
    pub(super) fn new<'a>(server: &str, secrets: impl Iterator<Item = &'a str>, last: LastLine) -> Self {
        // A secret of several lines (a private key) is seen one line at a time.
        let mut secrets: Vec<String> =
            secrets.flat_map(str::lines).map(str::trim).filter(|s| s.len() >= SECRET).map(str::to_owned).collect();
        secrets.sort_by(|a, b| b.len().cmp(&a.len()).then_with(|| a.cmp(b)));
        secrets.dedup();
        Self { server: server.to_owned(), secrets, last }
    }

    pub(super) fn server(&self) -> &str {
        &self.server
    }

    /// As it may be shown: no secret, nothing that moves a terminal's cursor, not too long.
    pub(super) fn legible(&self, bytes: &[u8]) -> String {
        let mut text = String::from_utf8_lossy(bytes);
        for secret in &self.secrets {
            if text.contains(secret.as_str()) {
                text = Cow::Owned(text.replace(secret.as_str(), MASK));
            }
        }
        let mut text = visible(&text).into_owned();
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
        // What a server says as it ends is told also where so much came before that it is not logged.
        let mut last = None;
        while matches!(stderr.read_buf(frames.room()).await, Ok(1..)) {
            while let Some(Line::Whole(line) | Line::Cut(line)) = frames.next() {
                self.said(&line, &mut throttle);
                last = Some(line).filter(|line| !line.trim_ascii().is_empty()).or(last);
            }
        }
        if let Some(rest) = frames.rest() {
            self.said(&rest, &mut throttle);
            last = Some(rest).filter(|line| !line.trim_ascii().is_empty()).or(last);
        }
        if let Some(last) = last {
            self.keep(&self.legible(&last));
        }
        self.silenced(throttle.finish());
    }

    fn said(&self, line: &[u8], throttle: &mut Throttle) {
        if line.trim_ascii().is_empty() {
            return;
        }
        let (pass, silenced) = throttle.pass(Instant::now());
        self.silenced(silenced);
        if pass {
            let line = self.legible(line);
            self.keep(&line);
            tracing::info!(target: "countersign_upstream", upstream = %self.server, "{line}");
        }
    }

    fn keep(&self, line: &str) {
        *self.last.lock() = Some(line.chars().take(LAST).collect());
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
        let log = ServerLog::new("s", ["hunter2", "hunter2-and-more", "no", key].into_iter(), LastLine::default());
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
}
