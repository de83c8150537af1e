//! A project's own thread: it alone writes to the indexes of the branch that is checked out. It is told by the operating
//! system what has changed, and looks for itself where that does not work.

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
    paths::is_document,
    project::{Project, State},
    synchronize::{Changed, Pair, SyncError},
};
use crate::model::Collection;

/// What may be looked at before anything else happens.
const DEBOUNCE: Duration = Duration::from_millis(100);
/// How often the branch, the folders and, where nothing watches them, their files are looked at.
const TICK: Duration = Duration::from_millis(700);
/// How often all is looked at, whatever was told: some file systems do not tell everything.
const ANYWAY: Duration = Duration::from_secs(300);
/// Where nothing watches, looking takes no more than this share of the time.
const POLLING_SHARE: u32 = 10;
/// Paths that are kept apart; with more, all is looked at.
const MAX_TOUCHED: usize = 5000;

/// What the thread is asked for.
pub(super) enum Task {
    /// These files are to be in the index.
    Refresh {
        collection: Collection,
        paths: Vec<String>,
        done: oneshot::Sender<Result<(), String>>,
    },
    /// Something was touched.
    Look,
    Stop,
}

/// What the operating system told of since it was looked at.
#[derive(Default)]
struct Touched {
    paths: HashSet<PathBuf>,
    everything: bool,
}

/// One watched folder.
struct Watched {
    collection: Collection,
    folder: PathBuf,
    touched: Arc<Mutex<Touched>>,
    watcher: Option<RecommendedWatcher>,
    /// Which folder it is that is watched.
    identity: Option<(u64, u64)>,
    looked: Instant,
    took: Duration,
}

pub(super) struct Worker {
    project: Arc<Project>,
    tasks: Receiver<Task>,
    watched: Vec<Watched>,
}

impl Worker {
    pub fn new(project: Arc<Project>, tasks: Receiver<Task>, own: &Sender<Task>) -> Self {
        let watch = |collection, files: &Files| Watched::new(collection, files.location(), own);
        let mut watched = vec![watch(Collection::Docs, project.files())];
        watched.extend(project.external().map(|files| watch(Collection::External, files)));
        Self { project, tasks, watched }
    }

    /// Until it is told to stop.
    pub fn run(mut self) {
        self.everything();
        loop {
            match self.tasks.recv_timeout(TICK) {
                Ok(Task::Stop) | Err(RecvTimeoutError::Disconnected) => return,
                Ok(Task::Refresh { collection, paths, done }) => {
                    let _ = done.send(refresh(&self.project, collection, &paths));
                }
                Ok(Task::Look) => std::thread::sleep(DEBOUNCE),
                Err(RecvTimeoutError::Timeout) => {}
            }
            if self.project.is_stopped() {
                return;
            }
            if self.project.follow_branch() {
                self.everything();
            } else {
                self.look();
            }
        }
    }

    fn everything(&mut self) {
        for at in 0..self.watched.len() {
            self.synchronize(at);
        }
        self.project.finished();
    }

    /// Looks at what was touched.
    fn look(&mut self) {
        for at in 0..self.watched.len() {
            let Some(watched) = self.watched.get_mut(at) else { continue };
            if watched.is_another() || watched.is_due() {
                self.synchronize(at);
                continue;
            }
            let Touched { paths, everything } = std::mem::take(&mut *watched.touched.lock());
            let (collection, folder) = (watched.collection, watched.folder.clone());
            match relevant(&folder, &paths) {
                _ if everything => self.synchronize(at),
                None => self.synchronize(at),
                Some(paths) if !paths.is_empty() => {
                    let _ = refresh(&self.project, collection, &paths);
                }
                Some(_) => {}
            }
        }
    }

    fn synchronize(&mut self, at: usize) {
        let Some(watched) = self.watched.get_mut(at) else { return };
        // Before the walk, so that nothing is missed that changes while it is under way.
        watched.watch();
        *watched.touched.lock() = Touched::default();
        let began = Instant::now();
        let collection = watched.collection;
        if collection == Collection::Docs {
            self.project.read_types();
        }
        let outcome = self.all(collection);
        if let Some(watched) = self.watched.get_mut(at) {
            (watched.looked, watched.took) = (Instant::now(), began.elapsed());
        }
        match outcome {
            Ok(changed) => self.project.changed(collection, changed),
            Err(error) => {
                tracing::warn!(project = %self.project.name, %error, "documents could not be synchronized");
            }
        }
    }

    fn all(&self, collection: Collection) -> Result<Changed, SyncError> {
        let (project, tasks) = (&self.project, &self.tasks);
        project.with_pair(collection, |pair: &Pair<'_>| {
            pair.all(&mut |done, total| {
                project.tell(State { finished: false, done, total });
                // Who asks for a file meanwhile does not wait for all of them.
                while let Ok(task) = tasks.try_recv() {
                    match task {
                        Task::Refresh { collection, paths, done } => {
                            let _ = done.send(refresh(project, collection, &paths));
                        }
                        Task::Look => {}
                        Task::Stop => return false,
                    }
                }
                !project.is_stopped()
            })
        })
    }
}

fn refresh(project: &Project, collection: Collection, paths: &[String]) -> Result<(), String> {
    let changed = project.with_pair(collection, |pair: &Pair<'_>| pair.some(paths));
    match changed {
        Ok(changed) => {
            project.changed(collection, changed);
            Ok(())
        }
        Err(error) => {
            tracing::warn!(project = %project.name, %error, "documents could not be indexed");
            Err(error.to_string())
        }
    }
}

/// The documents among what was touched; `None` where it takes a walk to find out.
fn relevant(folder: &Path, touched: &HashSet<PathBuf>) -> Option<Vec<String>> {
    let mut paths = Vec::new();
    for path in touched {
        let Some(path) = path.strip_prefix(folder).ok().and_then(Path::to_str) else { continue };
        if path.starts_with("schemas/") {
            return None;
        }
        if path.split('/').any(|part| part.starts_with('.')) {
            continue;
        }
        match is_document(path) {
            true => paths.push(path.to_owned()),
            // What is gone may have been a folder.
            false if fs::symlink_metadata(folder.join(path)).is_ok_and(|metadata| !metadata.is_dir()) => {}
            false => return None,
        }
    }
    Some(paths)
}

impl Watched {
    fn new(collection: Collection, folder: PathBuf, own: &Sender<Task>) -> Self {
        let touched = Arc::new(Mutex::new(Touched::default()));
        let (noted, wake) = (Arc::clone(&touched), own.clone());
        let note = move |event: notify::Result<Event>| {
            let is_first = {
                let mut touched = noted.lock();
                let is_first = touched.paths.is_empty() && !touched.everything;
                match event {
                    Ok(event) if event.kind.is_access() => return,
                    Ok(event) if !event.need_rescan() && touched.paths.len() < MAX_TOUCHED => {
                        touched.paths.extend(event.paths);
                    }
                    _ => touched.everything = true,
                }
                is_first
            };
            // Once for all that comes before it is looked at.
            if is_first {
                let _ = wake.send(Task::Look);
            }
        };
        let config = Config::default().with_follow_symlinks(false);
        let watcher = RecommendedWatcher::new(note, config).inspect_err(
            |error| tracing::warn!(%error, "documents are looked at from time to time, since they cannot be watched"),
        );
        Self {
            collection,
            folder,
            touched,
            watcher: watcher.ok(),
            identity: None,
            looked: Instant::now(),
            took: Duration::ZERO,
        }
    }

    fn present(&self) -> Option<(u64, u64)> {
        fs::metadata(&self.folder).ok().map(|metadata| (metadata.dev(), metadata.ino()))
    }

    /// Whether the folder is another one than that which is watched.
    fn is_another(&self) -> bool {
        self.watcher.is_some() && self.present() != self.identity
    }

    /// Whether it is time to look, since nobody tells, or somebody may have missed something.
    fn is_due(&self) -> bool {
        let every = if self.watcher.is_some() { ANYWAY } else { TICK.max(self.took.saturating_mul(POLLING_SHARE)) };
        self.looked.elapsed() >= every
    }

    fn watch(&mut self) {
        let present = self.present();
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
                tracing::warn!(%error, "documents are looked at from time to time, since they cannot be watched");
                self.watcher = None;
            }
        }
    }
}
