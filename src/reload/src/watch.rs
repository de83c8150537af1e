//! Triggers a reload on SIGHUP, and when the file changes.
//!
//! The file is polled, which handles replacement by rename, swapped links and network file systems alike, at the cost
//! of one `stat` every half second.

use std::{io::IsTerminal, os::unix::fs::MetadataExt, path::Path, sync::Arc, time::Duration};

use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    time::MissedTickBehavior,
};
use tokio_util::sync::CancellationToken;

use super::{ReloadCause, Reloader};

/// The interval of checks. The file must look the same twice before it is read, so that it is rarely read half-written. A slow
/// program may leave it empty for longer, which [`Reloader::reload`] refuses.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// Identifies a version of a file: device, inode, size, and times of modification and status change.
type FileStamp = (u64, u64, u64, i64, i64, i64, i64);

/// A stamp that no file has. A watch begins with it, so that the file counts as changed even if it changed before the watch.
const NO_STAMP: FileStamp = (0, 0, 0, 0, 0, 0, 0);

async fn read_stamp(path: &Path) -> Option<FileStamp> {
    let meta = tokio::fs::metadata(path).await.ok().filter(std::fs::Metadata::is_file)?;
    Some((meta.dev(), meta.ino(), meta.size(), meta.mtime(), meta.mtime_nsec(), meta.ctime(), meta.ctime_nsec()))
}

/// Detects when a polled value has changed and then stayed the same for one poll.
#[derive(Debug)]
struct ChangeDetector<T> {
    accepted: T,
    last_seen: T,
}

impl<T: PartialEq + Copy> ChangeDetector<T> {
    const fn new(initial: T) -> Self {
        Self { accepted: initial, last_seen: initial }
    }

    /// Takes the value of a poll. Returns `true` once for each change, when two polls in a row return the changed value.
    fn observe(&mut self, now: T) -> bool {
        let is_stable = now == self.last_seen;
        self.last_seen = now;
        if is_stable && now != self.accepted {
            self.accepted = now;
            return true;
        }
        false
    }
}

/// Catches SIGHUP from this call on, and returns a future that watches the file until the gateway ends. SIGHUP calls
/// `reload_on_signal`, or ends the gateway if it came from a terminal that was closed.
pub fn run(
    reloader: Arc<Reloader>,
    shutdown: CancellationToken,
    reload_on_signal: impl AsyncFn() + 'static,
) -> impl Future<Output = ()> {
    let hangup = match signal(SignalKind::hangup()) {
        Ok(signal) => Some(signal),
        Err(error) => {
            tracing::warn!(%error, "SIGHUP cannot be received");
            None
        }
    };
    watch(reloader, shutdown, hangup, reload_on_signal)
}

async fn watch(
    reloader: Arc<Reloader>,
    shutdown: CancellationToken,
    mut hangup: Option<Signal>,
    reload_on_signal: impl AsyncFn(),
) {
    let had_terminal = std::io::stderr().is_terminal();
    let file = reloader.file().cloned();
    if let Some(file) = &file {
        let exists = reloader.has_read_file();
        tracing::info!(file = %file.display(), exists, "the configuration file is watched");
    }
    let mut ticks = tokio::time::interval(POLL_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // If there was no file, a new one counts as a change.
    let initial_stamp = reloader.has_read_file().then_some(NO_STAMP);
    let mut detector = ChangeDetector::new(initial_stamp);
    let mut is_first_check = true;
    loop {
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = receive_hangup(&mut hangup) => {
                if had_terminal && !std::io::stderr().is_terminal() {
                    tracing::info!("the terminal is gone");
                    shutdown.cancel();
                    return;
                }
                if let Some(file) = &file {
                    detector = ChangeDetector::new(read_stamp(file).await);
                }
                is_first_check = false;
                reload_on_signal().await;
            }
            _ = ticks.tick() => {
                reloader.retry_save().await;
                let Some(file) = &file else { continue };
                let now = read_stamp(file).await;
                // The path was read at the start, but has no stamp: it is a pipe or the like, which cannot be read again.
                if is_first_check && now.is_none() {
                    detector = ChangeDetector::new(None);
                }
                is_first_check = false;
                if detector.observe(now) {
                    reloader.reload(ReloadCause::File).await;
                }
            }
        }
    }
}

/// Calls `on_change` once at the beginning, and whenever one of these files has changed, until the future is dropped.
pub async fn watch_files([first, second]: [&Path; 2], on_change: impl AsyncFn()) {
    let mut ticks = tokio::time::interval(POLL_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut detector = ChangeDetector::new([Some(NO_STAMP); 2]);
    loop {
        ticks.tick().await;
        if detector.observe([read_stamp(first).await, read_stamp(second).await]) {
            on_change().await;
        }
    }
}

async fn receive_hangup(signal: &mut Option<Signal>) {
    match signal {
        Some(signal) => drop(signal.recv().await),
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn change_counts_once_it_has_settled() {
        let mut detector = ChangeDetector::new(Some(1));
        for (now, counts) in [
            (Some(1), false),
            (Some(2), false),
            (Some(3), false),
            (Some(3), true),
            (Some(3), false),
            // The file is missing for a moment, while an editor renames it.
            (None, false),
            (Some(4), false),
            (Some(4), true),
            // The file stays missing.
            (None, false),
            (None, true),
            (None, false),
            // The file appears for one poll only.
            (Some(5), false),
            (None, false),
            (None, false),
        ] {
            assert_eq!(detector.observe(now), counts, "{now:?}");
        }
    }

    #[tokio::test]
    async fn replaced_file_has_another_stamp() {
        let dir = tempfile::tempdir().unwrap();
        let (file, other) = (dir.path().join("a"), dir.path().join("b"));
        assert_eq!(read_stamp(&file).await, None);
        std::fs::write(&file, "1").unwrap();
        std::fs::write(&other, "2").unwrap();
        let before = read_stamp(&file).await.unwrap();
        std::fs::rename(&other, &file).unwrap();
        assert_ne!(read_stamp(&file).await.unwrap(), before);
        assert_eq!(read_stamp(dir.path()).await, None);
    }
}
