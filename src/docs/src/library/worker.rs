//! Runs the thread of a project, the only one that adds and removes documents in the indexes of the checked-out branch
//! (`embedding.rs` adds their vectors). The thread watches the folders for changes, or polls folders that cannot be
//! watched.

use std::{
    collections::HashSet,
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::{
        Arc,
        mpsc::{Receiver, RecvTimeoutError, Sender},
    },
    time::{Duration, Instant},
};

use notify::{Config, Event, RecommendedWatcher, RecursiveMode, Watcher as _};
use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::{
    files::Files,
    git,
    project::{Project, SyncProgress},
    synchronize::FolderIndex,
};
use crate::{index::IndexError, model::Collection, text::has_markdown_extension};

/// The pause before changes are scanned, so that several are scanned together, and git has written `HEAD`.
const DEBOUNCE: Duration = Duration::from_millis(100);
/// The interval at which the branch, the folders and, without a watcher, their files are checked.
const POLL_INTERVAL: Duration = Duration::from_millis(700);
/// The interval of full scans even with a watcher: some file systems do not report everything.
const FULL_SCAN_INTERVAL: Duration = Duration::from_secs(300);
/// Without a watcher, the pause between two scans is at least this many times the duration of a scan.
const POLLING_PAUSE_FACTOR: u32 = 10;
/// The maximum number of touched paths that are remembered. If there are more, everything is scanned.
const MAX_TOUCHED_PATHS: usize = 5000;

/// A request to the thread.
pub(super) enum Task {
    /// Updates the index with these files.
    Refresh {
        collection: Collection,
        paths: Vec<String>,
        reply: oneshot::Sender<Result<(), IndexError>>,
    },
    /// Scans the paths that were touched.
    Scan,
    Stop,
}

/// Paths that the operating system has reported since the last scan.
#[derive(Default)]
struct TouchedPaths {
    paths: HashSet<PathBuf>,
    needs_full_scan: bool,
}

/// One watched folder.
struct WatchedFolder {
    collection: Collection,
    folder: PathBuf,
    touched: Arc<Mutex<TouchedPaths>>,
    watcher: Option<RecommendedWatcher>,
    /// Device and inode of the watched folder.
    identity: Option<(u64, u64)>,
    scanned_at: Instant,
    scan_duration: Duration,
}

/// The thread of a project.
pub(super) struct Worker {
    project: Arc<Project>,
    tasks: Receiver<Task>,
    watched: Vec<WatchedFolder>,
}

impl Worker {
    pub fn new(project: Arc<Project>, tasks: Receiver<Task>, task_sender: &Sender<Task>) -> Self {
        let watch = |collection, files: &Files| WatchedFolder::new(collection, files.folder_path(), task_sender);
        let mut watched = vec![watch(Collection::Docs, &project.files)];
        watched.extend(project.external_files.as_ref().map(|files| watch(Collection::External, files)));
        Self { project, tasks, watched }
    }

    /// Runs until a stop is requested.
    pub fn run(mut self) {
        self.scan_everything();
        let mut is_checkout_running = false;
        loop {
            let pause = if is_checkout_running { DEBOUNCE } else { POLL_INTERVAL };
            match self.tasks.recv_timeout(pause) {
                Ok(Task::Stop) | Err(RecvTimeoutError::Disconnected) => return,
                Ok(Task::Refresh { collection, paths, reply }) => {
                    let _ = reply.send(refresh(&self.project, collection, &paths));
                }
                Ok(Task::Scan) => is_checkout_running |= self.debounce(),
                Err(RecvTimeoutError::Timeout) => {}
            }
            if self.project.stopped.is_cancelled() {
                return;
            }
            if is_checkout_running || self.is_locked() {
                // The files may already be those of a branch that `HEAD` does not name yet.
                is_checkout_running = self.debounce();
                if is_checkout_running {
                    continue;
                }
            }
            if self.project.follow_branch() {
                self.scan_everything();
            } else {
                self.scan_touched();
            }
        }
    }

    /// Waits for further changes. Returns `true` if git held its lock before or after the wait. It releases the lock shortly
    /// before it writes `HEAD`.
    fn debounce(&self) -> bool {
        let was_locked = self.is_locked();
        std::thread::sleep(DEBOUNCE);
        was_locked || self.is_locked()
    }

    /// Returns `true` if git may be checking out another branch.
    fn is_locked(&self) -> bool {
        self.project.tracks_branches() && git::is_locked(&self.project.root)
    }

    fn scan_everything(&mut self) {
        for watched in &mut self.watched {
            watched.synchronize(&self.project, &self.tasks);
        }
        self.project.finish_first_sync();
    }

    /// Scans the touched paths.
    fn scan_touched(&mut self) {
        for watched in &mut self.watched {
            let documents =
                if watched.is_replaced() || watched.is_due() { None } else { watched.take_touched_documents() };
            match documents {
                None => watched.synchronize(&self.project, &self.tasks),
                Some(documents) if documents.is_empty() => {}
                Some(documents) => {
                    let _ = refresh(&self.project, watched.collection, &documents);
                }
            }
        }
    }
}

/// Updates the index with these files, and logs a failure.
fn refresh(project: &Project, collection: Collection, paths: &[String]) -> Result<(), IndexError> {
    let changes =
        project.with_folder_index(collection, |folder_index: &FolderIndex<'_>| folder_index.synchronize_files(paths));
    changes
        .map(|changes| project.publish_changes(collection, changes))
        .inspect_err(|error| tracing::warn!(project = %project.name, %error, "documents could not be indexed"))
}

impl WatchedFolder {
    fn new(collection: Collection, folder: PathBuf, task_sender: &Sender<Task>) -> Self {
        let touched = Arc::new(Mutex::new(TouchedPaths::default()));
        let (recorded, wake) = (Arc::clone(&touched), task_sender.clone());
        let on_event = move |event: notify::Result<Event>| {
            let is_first = {
                let mut touched = recorded.lock();
                let is_first = touched.paths.is_empty() && !touched.needs_full_scan;
                match event {
                    Ok(event) if event.kind.is_access() => return,
                    Ok(event) if !event.need_rescan() && touched.paths.len() < MAX_TOUCHED_PATHS => {
                        touched.paths.extend(event.paths);
                    }
                    _ => touched.needs_full_scan = true,
                }
                is_first
            };
            // The thread is woken once for all paths that are touched before the next scan.
            if is_first {
                let _ = wake.send(Task::Scan);
            }
        };
        let config = Config::default().with_follow_symlinks(false);
        let watcher = RecommendedWatcher::new(on_event, config)
            .inspect_err(|error| tracing::warn!(%error, "a folder of documents cannot be watched and is polled"));
        Self {
            collection,
            folder,
            touched,
            watcher: watcher.ok(),
            identity: None,
            scanned_at: Instant::now(),
            scan_duration: Duration::ZERO,
        }
    }

    /// Synchronizes the whole folder. Tasks that arrive meanwhile are done in between.
    fn synchronize(&mut self, project: &Project, tasks: &Receiver<Task>) {
        // The watch starts before the scan, so that changes during the scan are not missed.
        self.watch();
        *self.touched.lock() = TouchedPaths::default();
        let started_at = Instant::now();
        if self.collection == Collection::Docs {
            project.reload_types();
        }
        let mut progress = |indexed_documents, total| {
            project.report_progress(SyncProgress { is_finished: false, indexed_documents, total });
            // A refresh of single files does not wait for the whole scan.
            while let Ok(task) = tasks.try_recv() {
                match task {
                    Task::Refresh { collection, paths, reply } => {
                        let _ = reply.send(refresh(project, collection, &paths));
                    }
                    Task::Scan => {}
                    Task::Stop => return false,
                }
            }
            !project.stopped.is_cancelled()
        };
        let outcome = project.with_folder_index(self.collection, |folder_index: &FolderIndex<'_>| {
            folder_index.synchronize_all(&mut progress)
        });
        (self.scanned_at, self.scan_duration) = (Instant::now(), started_at.elapsed());
        match outcome {
            Ok(changes) => project.publish_changes(self.collection, changes),
            Err(error) => tracing::warn!(project = %project.name, %error, "documents could not be synchronized"),
        }
    }

    /// Takes the touched paths, and returns the documents among them, or `None` if a full scan is needed.
    fn take_touched_documents(&self) -> Option<Vec<String>> {
        let TouchedPaths { paths: touched, needs_full_scan } = std::mem::take(&mut *self.touched.lock());
        if needs_full_scan {
            return None;
        }
        let mut paths = Vec::new();
        for path in touched {
            let Some(path) = path.strip_prefix(&self.folder).ok().and_then(Path::to_str) else { continue };
            if path.starts_with("schemas/") {
                return None;
            }
            if path.split('/').any(|part| part.starts_with('.')) {
                continue;
            }
            match has_markdown_extension(path) {
                true => paths.push(path.to_owned()),
                // A missing path may have been a folder.
                false if fs::symlink_metadata(self.folder.join(path)).is_ok_and(|metadata| !metadata.is_dir()) => {}
                false => return None,
            }
        }
        Some(paths)
    }

    fn current_identity(&self) -> Option<(u64, u64)> {
        fs::metadata(&self.folder).ok().map(|metadata| (metadata.dev(), metadata.ino()))
    }

    /// Returns `true` if the path leads to another folder than the watched one.
    fn is_replaced(&self) -> bool {
        self.watcher.is_some() && self.current_identity() != self.identity
    }

    /// Returns `true` if a scan is due, because there is no watcher or it may have missed something.
    fn is_due(&self) -> bool {
        let interval = if self.watcher.is_some() {
            FULL_SCAN_INTERVAL
        } else {
            POLL_INTERVAL.max(self.scan_duration.saturating_mul(POLLING_PAUSE_FACTOR))
        };
        self.scanned_at.elapsed() >= interval
    }

    /// Watches the folder, if it is not watched yet or was replaced by another one.
    fn watch(&mut self) {
        let present = self.current_identity();
        let Some(watcher) = &mut self.watcher else { return };
        if present == self.identity {
            return;
        }
        if self.identity.take().is_some() {
            let _ = watcher.unwatch(&self.folder);
        }
        if present.is_none() {
            return;
        }
        match watcher.watch(&self.folder, RecursiveMode::Recursive) {
            Ok(()) => self.identity = present,
            Err(error) => {
                tracing::warn!(%error, "a folder of documents cannot be watched and is polled");
                self.watcher = None;
            }
        }
    }
}
