//! One project: its folders, the tenants that were indexed of it, and what is going on.

use std::{
    collections::HashMap,
    path::PathBuf,
    sync::{Arc, mpsc},
};

use parking_lot::{Mutex, RwLock};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use sha2::{Digest as _, Sha256};
use tokio::sync::{Mutex as AsyncMutex, Notify, OwnedMutexGuard, broadcast, oneshot, watch};
use tokio_util::sync::CancellationToken;

use super::{
    DocsError, embedding,
    files::Files,
    git,
    shelves::Shelves,
    synchronize::{Changed, Pair, SyncError},
    worker::{Task, Worker},
};
use crate::{
    index::{Health, Index, IndexError},
    model::{Collection, Tenant},
    remote::Embedder,
    text::{DocTypes, MAX_SCHEMA},
};
use countersign_config::DocsProject;
use countersign_domain::{changes::digest::hex, text::plural};
use countersign_protocol::{ErrorKind, McpError};
use countersign_provider::{ProgressSink, ProviderEvent, Report, text::one_line};

/// Documents that do not fit their type and are named.
const FAULTS: usize = 20;
/// Digits of the hash of a root.
const HASH: usize = 16;
/// What is encoded in a segment of a URI (RFC 3986, section 3.3).
const SEGMENT: &AsciiSet = &CONTROLS
    .add(b' ')
    .add(b'"')
    .add(b'#')
    .add(b'%')
    .add(b'<')
    .add(b'>')
    .add(b'?')
    .add(b'[')
    .add(b'\\')
    .add(b']')
    .add(b'^')
    .add(b'`')
    .add(b'{')
    .add(b'|')
    .add(b'}')
    .add(b'/');

/// The indexes of one tenant.
#[derive(Clone)]
struct Books {
    docs: Arc<Index>,
    external: Option<Arc<Index>>,
}

/// A tenant and its indexes.
pub(crate) struct Shelf {
    pub tenant: Tenant,
    pub docs: Arc<Index>,
    pub external: Option<Arc<Index>>,
    /// Whether its files are those that are there now.
    pub current: bool,
}

/// How far the synchronization is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct State {
    pub finished: bool,
    pub done: usize,
    pub total: usize,
}

/// What a forgotten tenant had.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Gone {
    pub documents: usize,
}

/// See the module's page.
pub(crate) struct Project {
    pub name: String,
    /// The canonical path.
    pub root: PathBuf,
    pub path_hash: String,
    config: DocsProject,
    files: Files,
    external: Option<Files>,
    shelves: Arc<Shelves>,
    open: Mutex<HashMap<Tenant, Books>>,
    types: RwLock<Arc<DocTypes>>,
    branch: RwLock<String>,
    state: watch::Sender<State>,
    /// What was found when its folders were looked at last.
    report: RwLock<Report>,
    tasks: Mutex<mpsc::Sender<Task>>,
    /// Who writes to the files has it.
    turn: Arc<AsyncMutex<()>>,
    embedder: Option<Arc<Embedder>>,
    pub(super) wake_embedding: Notify,
    stop: CancellationToken,
    events: broadcast::Sender<ProviderEvent>,
}

impl Project {
    /// Opens it, and begins to synchronize and to watch it.
    pub(super) fn open(
        config: &DocsProject,
        shelves: &Arc<Shelves>,
        embedder: Option<Arc<Embedder>>,
        events: broadcast::Sender<ProviderEvent>,
    ) -> Result<Arc<Self>, DocsError> {
        let failed = |source| DocsError::Root { project: config.name.clone(), path: config.root.clone(), source };
        let root = config.root.canonicalize().map_err(failed)?;
        std::fs::read_dir(&root).map_err(failed)?;
        let digest = hex(&Sha256::digest(root.as_os_str().as_encoded_bytes()));
        let branch = if config.by_branch { git::branch(&root) } else { git::NONE.to_owned() };
        let other = config.external_docs.as_deref();
        let (tasks, waiting) = mpsc::channel();
        let project = Arc::new(Self {
            name: config.name.clone(),
            path_hash: digest.chars().take(HASH).collect(),
            files: Files::new(&root, &config.folder, other),
            external: other.map(|folder| Files::new(&root, folder, Some(&config.folder))),
            root,
            config: config.clone(),
            shelves: Arc::clone(shelves),
            open: Mutex::default(),
            types: RwLock::new(Arc::new(DocTypes::built_in())),
            branch: RwLock::new(branch),
            state: watch::Sender::new(State::default()),
            report: RwLock::default(),
            tasks: Mutex::new(tasks.clone()),
            turn: Arc::default(),
            embedder: embedder.clone(),
            wake_embedding: Notify::new(),
            stop: CancellationToken::new(),
            events,
        });
        project.read_types();
        let index = |error: &dyn std::fmt::Display| DocsError::Index(error.to_string());
        let tenant = project.present();
        shelves.note(&tenant).map_err(|error| index(&error))?;
        project.books(&tenant).map_err(|error| index(&error))?;
        let thread = |source| DocsError::Io { path: PathBuf::from("a thread"), source };
        let worker = Worker::new(Arc::clone(&project), waiting, &tasks);
        let named = |what: &str| std::thread::Builder::new().name(format!("docs-{what}"));
        named("sync").spawn(move || worker.run()).map_err(thread)?;
        if let Some(embedder) = embedder {
            let embedded = Arc::clone(&project);
            let work = move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
                match runtime {
                    Ok(runtime) => runtime.block_on(embedding::run(embedded, embedder)),
                    Err(error) => tracing::error!(%error, "nothing is embedded"),
                }
            };
            named("embed").spawn(work).map_err(thread)?;
        }
        Ok(project)
    }

    pub(super) fn stop(&self) {
        self.stop.cancel();
        let _ = self.tasks.lock().send(Task::Stop);
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.stop.is_cancelled()
    }

    pub(super) async fn stopped(&self) {
        self.stop.cancelled().await;
    }

    /// The documents' folder.
    pub fn files(&self) -> &Files {
        &self.files
    }

    /// The folder of the reference documentation.
    pub fn external(&self) -> Option<&Files> {
        self.external.as_ref()
    }

    /// Its path below the root.
    pub fn external_folder(&self) -> Option<&str> {
        self.config.external_docs.as_deref()
    }

    /// Returns `true` if each branch has documents of its own.
    pub fn is_by_branch(&self) -> bool {
        self.config.by_branch
    }

    /// The branch that is checked out; `-` where branches are not told apart.
    pub fn branch(&self) -> String {
        self.branch.read().clone()
    }

    /// As [`Project::branch`], read from the repository now. Where that is another one than was noted, it is followed soon.
    pub fn checked_out(&self) -> String {
        let noted = self.branch();
        if !self.config.by_branch {
            return noted;
        }
        let now = git::branch(&self.root);
        if now != noted {
            let _ = self.tasks.lock().send(Task::Look);
        }
        now
    }

    pub fn types(&self) -> Arc<DocTypes> {
        Arc::clone(&self.types.read())
    }

    fn present(&self) -> Tenant {
        self.tenant_of(&self.branch.read())
    }

    fn tenant_of(&self, branch: &str) -> Tenant {
        Tenant { project: self.name.clone(), branch: branch.to_owned(), path_hash: self.path_hash.clone() }
    }

    fn books(&self, tenant: &Tenant) -> Result<Books, IndexError> {
        let mut open = self.open.lock();
        if let Some(books) = open.get(tenant) {
            return Ok(books.clone());
        }
        let (docs, external) = self.shelves.paths(tenant);
        let external = self.external.as_ref().map(|_| Index::open(&external)).transpose()?;
        let books = Books { docs: Arc::new(Index::open(&docs)?), external: external.map(Arc::new) };
        open.insert(tenant.clone(), books.clone());
        Ok(books)
    }

    fn shelf(&self, tenant: Tenant) -> Result<Arc<Shelf>, McpError> {
        let books = self.books(&tenant).map_err(|error| unavailable(&error))?;
        let current = tenant == self.present();
        Ok(Arc::new(Shelf { tenant, docs: books.docs, external: books.external, current }))
    }

    /// The tenant of a branch: the one that is checked out where none is named.
    ///
    /// # Errors
    /// `TENANT_MISMATCH` for one that was never indexed.
    pub fn tenant(&self, branch: Option<&str>) -> Result<Arc<Shelf>, McpError> {
        let tenant = branch.map_or_else(|| self.present(), |branch| self.tenant_of(branch));
        if tenant == self.present() || self.stored()?.contains(&tenant) {
            return self.shelf(tenant);
        }
        let asked = one_line(&tenant.branch, 80);
        let message = if self.lacks_repository() {
            format!(
                "{} has no branch {asked}: `branches: git` is configured for it, and its root lies in no git repository. Leave \
                 branch_name out, or have the operator correct the configuration.",
                self.name
            )
        } else if self.config.by_branch {
            format!("{} has no documents of the branch {asked}: it was never checked out here.", self.name)
        } else {
            format!("{} does not tell branches apart, so there is no branch {asked}; leave branch_name out.", self.name)
        };
        Err(McpError::new(ErrorKind::TenantMismatch, message)
            .with("project_name", self.name.as_str())
            .with("branch_name", tenant.branch.as_str())
            .with("checked_out", self.branch()))
    }

    fn stored(&self) -> Result<Vec<Tenant>, McpError> {
        self.shelves.of(&self.name).map_err(|error| unavailable(&error))
    }

    /// All tenants that are stored under this project's name, those of earlier roots too.
    pub fn shelves(&self) -> Result<Vec<Arc<Shelf>>, McpError> {
        self.stored()?.into_iter().map(|tenant| self.shelf(tenant)).collect()
    }

    /// Only one writes to the project's files at a time.
    pub async fn writing(&self) -> OwnedMutexGuard<()> {
        Arc::clone(&self.turn).lock_owned().await
    }

    /// Waits until the files were looked at for the first time, and tells how far that is.
    ///
    /// # Errors
    /// `CANCELLED`; `SHUTTING_DOWN`
    pub async fn synchronized(&self, progress: &dyn ProgressSink, cancel: &CancellationToken) -> Result<(), McpError> {
        let mut state = self.state.subscribe();
        loop {
            let State { finished, done, total } = state.borrow_and_update().clone();
            // The last step is told by the answer: a client may take what comes just before it for too late.
            if progress.wanted() && done < total {
                progress.progress(done as f64, Some(total as f64), Some("documents are indexed"));
            }
            if finished {
                return Ok(());
            }
            tokio::select! {
                changed = state.changed() => changed.map_err(|_| stopping())?,
                () = cancel.cancelled() => return Err(McpError::new(ErrorKind::Cancelled, "The call was taken back.")),
                () = self.stop.cancelled() => return Err(stopping()),
            }
        }
    }

    /// Has these files in the index when it returns, but for their vectors.
    ///
    /// # Errors
    /// `STORE_UNAVAILABLE`
    pub async fn refresh(&self, collection: Collection, paths: Vec<String>) -> Result<(), McpError> {
        let (done, answer) = oneshot::channel();
        let sent = self.tasks.lock().send(Task::Refresh { collection, paths, done });
        sent.map_err(|_| stopping())?;
        match answer.await {
            Ok(outcome) => outcome.map_err(|error| unavailable(&error)),
            Err(_) => Err(stopping()),
        }
    }

    /// Embeds a document now; the dimensions of its vectors.
    ///
    /// # Errors
    /// `EMBEDDING_FAILED`
    pub async fn embed_now(&self, path: &str) -> Result<usize, McpError> {
        let failed = |why: String| {
            McpError::new(ErrorKind::EmbeddingFailed, format!("The model for embeddings failed: {why}."))
                .with("path", path)
        };
        let Some(embedder) = &self.embedder else { return Err(failed("none is configured".to_owned())) };
        let index = self.tenant(None)?.docs.clone();
        let pending = index.without_vectors_of(path, embedder.model()).map_err(|error| unavailable(&error))?;
        let (ids, texts): (Vec<_>, Vec<String>) = pending.into_iter().unzip();
        if !texts.is_empty() {
            let vectors = embedder.passages(&texts).await.map_err(|error| {
                tracing::warn!(project = %self.name, path, %error, "a document is not embedded");
                failed(error.for_agents())
            })?;
            let all: Vec<_> = ids.into_iter().zip(vectors).collect();
            index.set_vectors(embedder.model(), &all).map_err(|error| unavailable(&error))?;
        }
        index.dimensions().map_err(|error| unavailable(&error))
    }

    /// Forgets documents of a tenant whose files are not those that are there now: these, or all.
    ///
    /// # Errors
    /// `STORE_UNAVAILABLE`
    pub fn forget(&self, shelf: &Shelf, paths: Option<&[String]>) -> Result<Gone, McpError> {
        let documents = match paths {
            Some(paths) => shelf.docs.remove(paths).map_err(|error| unavailable(&error))?,
            None => {
                let counts = shelf.docs.counts().map_err(|error| unavailable(&error))?;
                self.open.lock().remove(&shelf.tenant);
                self.shelves.forget(&shelf.tenant).map_err(|error| unavailable(&error))?;
                counts.documents
            }
        };
        Ok(Gone { documents })
    }

    /// The URI of a document.
    pub fn uri(&self, path: &str) -> String {
        let encoded: Vec<String> = path.split('/').map(|part| utf8_percent_encode(part, SEGMENT).to_string()).collect();
        format!("docs://{}/{}", self.name, encoded.join("/"))
    }

    pub(super) fn current_indexes(&self) -> Vec<Arc<Index>> {
        let books = self.books(&self.present());
        books.map(|books| std::iter::once(books.docs).chain(books.external).collect()).unwrap_or_default()
    }

    /// Whether another branch is checked out than before; from now on it is the current one.
    pub(super) fn follow_branch(&self) -> bool {
        if !self.config.by_branch {
            return false;
        }
        let branch = git::branch(&self.root);
        if branch == *self.branch.read() {
            return false;
        }
        tracing::info!(project = %self.name, %branch, "another branch is checked out");
        if let Err(error) = self.shelves.note(&self.tenant_of(&branch)) {
            tracing::warn!(%error, "a branch cannot be noted");
        }
        *self.branch.write() = branch;
        self.tell(State::default());
        true
    }

    pub(super) fn read_types(&self) {
        let (types, left_out) = DocTypes::with_custom(self.files.schemas(MAX_SCHEMA));
        for (path, why) in left_out {
            tracing::warn!(project = %self.name, path, why, "a type of documents is left out");
        }
        *self.types.write() = Arc::new(types);
    }

    /// Does something with a folder and the index of what is there now.
    pub(super) fn with_pair(
        &self,
        collection: Collection,
        work: impl FnOnce(&Pair<'_>) -> Result<Changed, SyncError>,
    ) -> Result<Changed, SyncError> {
        let books = self.books(&self.present())?;
        let types = self.types();
        let (files, index) = match (collection, &self.external, &books.external) {
            (Collection::External, Some(files), Some(index)) => (files, index),
            (Collection::External, ..) => return Ok(Changed::default()),
            (Collection::Docs, ..) => (&self.files, &books.docs),
        };
        work(&Pair { files, index, types: &types })
    }

    pub(super) fn tell(&self, state: State) {
        self.state.send_if_modified(|before| {
            // Once it was finished, what changes later is no news to who waits for the first time.
            let is_news = *before != state && (!before.finished || state == State::default());
            if is_news {
                *before = state;
            }
            is_news
        });
    }

    pub(super) fn finished(&self) {
        let State { done, total, .. } = self.state.borrow().clone();
        self.take_stock();
        self.tell(State { finished: true, done, total });
    }

    /// What is indexed, and what of it is not as it should be.
    pub fn report(&self) -> Report {
        self.report.read().clone()
    }

    /// Notes what is indexed, and logs it where that is news.
    fn take_stock(&self) {
        let shelf = match self.tenant(None) {
            Ok(shelf) => shelf,
            Err(error) => return tracing::warn!(project = %self.name, %error, "what is indexed cannot be told"),
        };
        let external = shelf.external.as_ref().map(|index| index.health(0)).transpose();
        let (docs, external) = match (shelf.docs.health(FAULTS), external) {
            (Ok(docs), Ok(external)) => (docs, external),
            (Err(error), _) | (_, Err(error)) => {
                return tracing::warn!(project = %self.name, %error, "what is indexed cannot be told");
            }
        };
        let mut report =
            Report { details: vec![self.detail(&shelf.tenant, &docs, external.as_ref())], ..Report::default() };
        if self.lacks_repository() {
            report.warnings.push(format!(
                "{}: `branches: git` is configured, and its root lies in no git repository, so branches are not told apart",
                self.name
            ));
        }
        let faults = docs.faults.iter().map(|(path, why)| format!("{}: {path}: {why}", self.name));
        report.warnings.extend(faults);
        if let Some(more) = docs.faulty.checked_sub(docs.faults.len()).filter(|more| *more > 0) {
            report.warnings.push(format!("{}: the front matter of {more} more does not fit", self.name));
        }
        let before = std::mem::replace(&mut *self.report.write(), report.clone());
        if before.details != report.details {
            tracing::info!(
                project = %self.name, branch = %shelf.tenant.branch, documents = docs.documents,
                without_front_matter = docs.without_front_matter, not_fitting = docs.faulty,
                external = external.as_ref().map(|external| external.documents), "documents are indexed"
            );
        }
        for warning in report.warnings.iter().filter(|warning| !before.warnings.contains(warning)) {
            tracing::warn!("{warning}");
        }
    }

    fn detail(&self, tenant: &Tenant, docs: &Health, external: Option<&Health>) -> String {
        let branch = if tenant.branch == git::NONE { String::new() } else { format!(" on {}", tenant.branch) };
        let mut detail = format!("{}{branch}: {}", self.name, plural(docs.documents, "document"));
        if docs.without_front_matter > 0 {
            detail.push_str(&format!(", {} without front matter", docs.without_front_matter));
        }
        if docs.faulty > 0 {
            detail.push_str(&format!(", {} whose front matter does not fit", docs.faulty));
        }
        if let Some(external) = external {
            detail.push_str(&format!(", and {} of reference documentation", plural(external.documents, "file")));
        }
        detail
    }

    /// Returns `true` if branches are to be told apart and there is no repository to tell them by.
    pub fn lacks_repository(&self) -> bool {
        self.config.by_branch && *self.branch.read() == git::NONE
    }

    /// Tells whoever listens, once the first synchronization is over.
    pub(super) fn changed(&self, collection: Collection, changed: Changed) {
        if changed == Changed::default() {
            return;
        }
        self.wake_embedding.notify_one();
        if !self.state.borrow().finished {
            return;
        }
        self.take_stock();
        if collection == Collection::External {
            return;
        }
        let Changed { updated, added, removed } = changed;
        let uris: Vec<String> = updated.iter().chain(&added).chain(&removed).map(|path| self.uri(path)).collect();
        // Nobody listening is no failure.
        let _ = self.events.send(ProviderEvent::ResourcesUpdated(uris));
        if !(added.is_empty() && removed.is_empty()) {
            let _ = self.events.send(ProviderEvent::ResourceListChanged);
        }
    }
}

fn stopping() -> McpError {
    McpError::new(ErrorKind::ShuttingDown, "The gateway is stopping.")
}

fn unavailable(error: &dyn std::fmt::Display) -> McpError {
    tracing::error!(%error, "an index of documents failed");
    McpError::new(ErrorKind::StoreUnavailable, "The index of the documents cannot be used.")
}
