//! When to look at the configuration again: SIGHUP, and a file that is not what it was.
//!
//! The file is looked at, not listened to: that sees replacements by rename, swapped links and network file systems
//! alike, at the price of one `stat` in half a second.

use std::{io::IsTerminal, os::unix::fs::MetadataExt, path::Path, sync::Arc, time::Duration};

use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    time::MissedTickBehavior,
};
use tokio_util::sync::CancellationToken;

use super::{Reloads, Why};

/// How often the file is looked at. It must look the same twice before it is read, so that no half is read.
const TICK: Duration = Duration::from_millis(500);

/// What tells one state of a file from another: device, inode, size, and when it changed.
type Stamp = (u64, u64, u64, i64, i64, i64, i64);

async fn stamp(path: &Path) -> Option<Stamp> {
    let meta = tokio::fs::metadata(path).await.ok().filter(std::fs::Metadata::is_file)?;
    Some((meta.dev(), meta.ino(), meta.size(), meta.mtime(), meta.mtime_nsec(), meta.ctime(), meta.ctime_nsec()))
}

/// Tells when something that is looked at again and again has changed and has come to rest.
#[derive(Debug)]
struct Rest<T> {
    taken: T,
    seen: T,
}

impl<T: PartialEq + Copy> Rest<T> {
    const fn new(taken: T) -> Self {
        Self { taken, seen: taken }
    }

    fn look(&mut self, now: T) -> bool {
        let rests = now == self.seen;
        self.seen = now;
        if rests && now != self.taken {
            self.taken = now;
            return true;
        }
        false
    }
}

/// Runs until the end of the gateway. A SIGHUP because the terminal is gone ends it.
pub async fn run(reloads: Arc<Reloads>, shutdown: CancellationToken) {
    let mut hangup = match signal(SignalKind::hangup()) {
        Ok(signal) => Some(signal),
        Err(error) => {
            tracing::warn!(%error, "SIGHUP cannot be received");
            None
        }
    };
    let terminal = std::io::stderr().is_terminal();
    let file = reloads.file().cloned();
    if let Some(file) = &file {
        let there = reloads.was_read();
        tracing::info!(file = %file.display(), there, "the configuration file is watched");
    }
    let mut ticks = tokio::time::interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // Nothing that is a file has this stamp: what changed since the file was read is not missed. Where none was there,
    // any that comes is news.
    let never = reloads.was_read().then_some((0, 0, 0, 0, 0, 0, 0));
    let mut rest = Rest::new(never);
    let mut first = true;
    loop {
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = received(&mut hangup) => {
                if terminal && !std::io::stderr().is_terminal() {
                    tracing::info!("the terminal is gone");
                    shutdown.cancel();
                    return;
                }
                if let Some(file) = &file {
                    rest = Rest::new(stamp(file).await);
                }
                first = false;
                reloads.reload(Why::Signal).await;
            }
            _ = ticks.tick() => {
                reloads.save_again().await;
                let Some(file) = &file else { continue };
                let now = stamp(file).await;
                // What is no file (a pipe) was read once, and cannot be again.
                if first && now.is_none() {
                    rest = Rest::new(None);
                }
                first = false;
                if rest.look(now) {
                    reloads.reload(Why::File).await;
                }
            }
        }
    }
}

async fn received(signal: &mut Option<Signal>) {
    match signal {
        Some(signal) => drop(signal.recv().await),
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_counts_once_it_rests() {
        let mut rest = Rest::new(Some(1));
        for (now, counts) in [
            (Some(1), false),
            (Some(2), false),
            (Some(3), false),
            (Some(3), true),
            (Some(3), false),
            // Gone for a moment, while an editor renames.
            (None, false),
            (Some(4), false),
            (Some(4), true),
            // Gone for good.
            (None, false),
            (None, true),
            (None, false),
            // Changed and changed back.
            (Some(5), false),
            (None, false),
            (None, false),
        ] {
            assert_eq!(rest.look(now), counts, "{now:?}");
        }
    }

    #[tokio::test]
    async fn a_replaced_file_has_another_stamp() {
        let dir = tempfile::tempdir().unwrap();
        let (file, other) = (dir.path().join("a"), dir.path().join("b"));
        assert_eq!(stamp(&file).await, None);
        std::fs::write(&file, "1").unwrap();
        std::fs::write(&other, "2").unwrap();
        let before = stamp(&file).await.unwrap();
        std::fs::rename(&other, &file).unwrap();
        assert_ne!(stamp(&file).await.unwrap(), before);
        assert_eq!(stamp(dir.path()).await, None);
    }
}
