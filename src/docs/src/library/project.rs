//! One project: its folders, the indexes of its tenants, and its background work.

use std::{
    collections::HashMap,
    path::PathBuf,
    sync::{Arc, mpsc},
};

use parking_lot::{Mutex, RwLock};
use percent_encoding::utf8_percent_encode;
use sha2::{Digest as _, Sha256};
use tokio::sync::{Mutex as AsyncMutex, Notify, OwnedMutexGuard, broadcast, oneshot, watch};
use tokio_util::sync::CancellationToken;

use super::{
    DocsError, embedding,
    files::Files,
    git, paths, report,
    synchronize::{FolderIndex, IndexChanges},
    tenant_registry::TenantRegistry,
    worker::{Task, Worker},
};
use crate::{
    index::{Index, IndexError},
    model::{Collection, NO_BRANCH, Tenant},
    remote::Embedder,
    text::{DocTypes, MAX_SCHEMA_BYTES},
};
use countersign_config::DocsProject;
use countersign_domain::changes::digest::hex;
use countersign_protocol::{ErrorKind, McpError};
use countersign_provider::{List, ProgressSink, ProviderEvent, Report, text::one_line};

/// The maximum number of faulty documents that are named in a report.
const MAX_NAMED_FAULTS: usize = 20;
/// The number of digits of the hash of a root.
const PATH_HASH_DIGITS: usize = 16;

/// The open indexes of one tenant.
#[derive(Clone)]
struct OpenIndexes {
    docs: Arc<Index>,
    external: Option<Arc<Index>>,
}

/// A tenant with its project and its indexes.
pub(crate) struct IndexedTenant {
    pub project: Arc<Project>,
    pub tenant: Tenant,
    pub docs: Arc<Index>,
    pub external: Option<Arc<Index>>,
    /// `true` if the folder has the files of this tenant now.
    pub is_current: bool,
}

/// The progress of the synchronization.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct SyncProgress {
    pub is_finished: bool,
    pub indexed_documents: usize,
    pub total: usize,
}

/// A project of the configuration.
pub(crate) struct Project {
    pub name: String,
    /// The canonical path.
    pub root: PathBuf,
    pub path_hash: String,
    config: DocsProject,
    /// The folder of the documents.
    pub files: Files,
    /// The folder of the reference documentation.
    pub external_files: Option<Files>,
    registry: Arc<TenantRegistry>,
    open_indexes: Mutex<HashMap<Tenant, OpenIndexes>>,
    types: RwLock<Arc<DocTypes>>,
    branch: RwLock<String>,
    progress: watch::Sender<SyncProgress>,
    /// The state of the folders when they were last scanned.
    report: RwLock<Report>,
    tasks: mpsc::Sender<Task>,
    /// Held while a write is planned or carried out.
    write_lock: Arc<AsyncMutex<()>>,
    embedder: Option<Arc<Embedder>>,
    pub(super) wake_embedding: Notify,
    /// Cancelled when the project is stopped.
    pub(super) stopped: CancellationToken,
    events: broadcast::Sender<ProviderEvent>,
}

impl Project {
    /// Opens the project, and starts to synchronize and watch it.
    pub(super) fn open(
        config: &DocsProject,
        registry: &Arc<TenantRegistry>,
        embedder: Option<Arc<Embedder>>,
        events: broadcast::Sender<ProviderEvent>,
    ) -> Result<Arc<Self>, DocsError> {
        let failed = |source| DocsError::Root { project: config.name.clone(), path: config.root.clone(), source };
        let root = config.canonical_root().map_err(failed)?;
        let digest = hex(&Sha256::digest(root.as_os_str().as_encoded_bytes()));
        let branch = if config.by_branch { git::checked_out_branch(&root, NO_BRANCH) } else { NO_BRANCH.to_owned() };
        let external_folder = config.external_docs.as_deref();
        let (tasks, task_receiver) = mpsc::channel();
        let project = Arc::new(Self {
            name: config.name.clone(),
            path_hash: digest.chars().take(PATH_HASH_DIGITS).collect(),
            files: Files::new(&root, &config.folder, external_folder),
            external_files: external_folder.map(|folder| Files::new(&root, folder, Some(&config.folder))),
            root,
            config: config.clone(),
            registry: Arc::clone(registry),
            open_indexes: Mutex::default(),
            types: RwLock::new(Arc::new(DocTypes::built_in())),
            branch: RwLock::new(branch),
            progress: watch::Sender::new(SyncProgress::default()),
            report: RwLock::default(),
            tasks: tasks.clone(),
            write_lock: Arc::default(),
            embedder: embedder.clone(),
            wake_embedding: Notify::new(),
            stopped: CancellationToken::new(),
            events,
        });
        project.reload_types();
        let to_index_error = |error: &dyn std::fmt::Display| DocsError::Index(error.to_string());
        let tenant = project.current_tenant();
        registry.record(&tenant).map_err(|error| to_index_error(&error))?;
        project.indexes_of(&tenant).map_err(|error| to_index_error(&error))?;
        let worker = Worker::new(Arc::clone(&project), task_receiver, &tasks);
        let thread_builder = |name: &str| std::thread::Builder::new().name(format!("docs-{name}"));
        thread_builder("sync").spawn(move || worker.run()).map_err(DocsError::Thread)?;
        if let Some(embedder) = embedder {
            let embedded_project = Arc::clone(&project);
            let work = move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
                match runtime {
                    Ok(runtime) => runtime.block_on(embedding::run(embedded_project, embedder)),
                    Err(error) => {
                        tracing::error!(%error, "the thread for embeddings cannot start, so documents are not embedded")
                    }
                }
            };
            thread_builder("embed").spawn(work).map_err(DocsError::Thread)?;
        }
        Ok(project)
    }

    pub(super) fn stop(&self) {
        self.stopped.cancel();
        let _ = self.tasks.send(Task::Stop);
    }

    /// Returns the path of the reference documentation below the root.
    pub fn external_folder(&self) -> Option<&str> {
        self.config.external_docs.as_deref()
    }

    /// Returns `true` if each branch has its own documents.
    pub fn tracks_branches(&self) -> bool {
        self.config.by_branch
    }

    /// Returns the checked-out branch; `-` if branches are not distinguished.
    pub fn branch(&self) -> String {
        self.branch.read().clone()
    }

    /// Reads the checked-out branch from the repository. If it differs from [`Project::branch`], the worker is woken to
    /// follow it.
    pub fn read_branch(&self) -> String {
        let last_branch = self.branch();
        if !self.config.by_branch {
            return last_branch;
        }
        let checked_out = git::checked_out_branch(&self.root, &last_branch);
        if checked_out != last_branch {
            let _ = self.tasks.send(Task::Scan);
        }
        checked_out
    }

    /// Returns the types of the project's documents.
    pub fn types(&self) -> Arc<DocTypes> {
        Arc::clone(&self.types.read())
    }

    fn current_tenant(&self) -> Tenant {
        self.tenant_of(&self.branch.read())
    }

    fn tenant_of(&self, branch: &str) -> Tenant {
        Tenant { project: self.name.clone(), branch: branch.to_owned(), path_hash: self.path_hash.clone() }
    }

    fn indexes_of(&self, tenant: &Tenant) -> Result<OpenIndexes, IndexError> {
        let mut open = self.open_indexes.lock();
        if let Some(indexes) = open.get(tenant) {
            return Ok(indexes.clone());
        }
        let (docs, external) = self.registry.paths(tenant);
        let external = self.external_files.as_ref().map(|_| Index::open(&external)).transpose()?;
        let indexes = OpenIndexes { docs: Arc::new(Index::open(&docs)?), external: external.map(Arc::new) };
        open.insert(tenant.clone(), indexes.clone());
        Ok(indexes)
    }

    fn open_tenant(self: &Arc<Self>, tenant: Tenant) -> Result<Arc<IndexedTenant>, McpError> {
        let OpenIndexes { docs, external } = self.indexes_of(&tenant)?;
        let is_current = tenant == self.current_tenant();
        Ok(Arc::new(IndexedTenant { project: Arc::clone(self), tenant, docs, external, is_current }))
    }

    /// Returns the tenant of a branch, or of the checked-out branch if `branch` is `None`.
    ///
    /// # Errors
    /// `TENANT_MISMATCH` if the branch was never indexed.
    pub fn tenant(self: &Arc<Self>, branch: Option<&str>) -> Result<Arc<IndexedTenant>, McpError> {
        let tenant = branch.map_or_else(|| self.current_tenant(), |branch| self.tenant_of(branch));
        if tenant == self.current_tenant() || self.stored_tenants()?.contains(&tenant) {
            return self.open_tenant(tenant);
        }
        let shown_branch = one_line(&tenant.branch, 80);
        let message = if self.lacks_repository() {
            format!(
                "{} has no branch {shown_branch}: `branches: git` is configured for it, and its root lies in no git repository, or \
                 in one with the reftable format. Leave branch_name out, or have the operator correct the configuration.",
                self.name
            )
        } else if self.config.by_branch {
            format!("{} has no documents of the branch {shown_branch}: it was never checked out here.", self.name)
        } else {
            format!(
                "{} does not tell branches apart, so there is no branch {shown_branch}; leave branch_name out.",
                self.name
            )
        };
        Err(McpError::new(ErrorKind::ProjectMismatch, message)
            .with("project_name", self.name.as_str())
            .with("branch_name", tenant.branch.as_str())
            .with("checked_out", self.branch()))
    }

    fn stored_tenants(&self) -> Result<Vec<Tenant>, McpError> {
        self.registry.tenants_of(&self.name).map_err(|error| index_error(&error))
    }

    /// Returns all tenants stored under this project's name, including those of earlier roots.
    pub fn indexed_tenants(self: &Arc<Self>) -> Result<Vec<Arc<IndexedTenant>>, McpError> {
        self.stored_tenants()?.into_iter().map(|tenant| self.open_tenant(tenant)).collect()
    }

    /// Waits until no other call plans or carries out a write in this project.
    pub async fn lock_files(&self) -> OwnedMutexGuard<()> {
        Arc::clone(&self.write_lock).lock_owned().await
    }

    /// Waits until the files were scanned for the first time, and reports progress.
    ///
    /// # Errors
    /// `CANCELLED`; `SHUTTING_DOWN`
    pub async fn wait_until_synchronized(
        &self,
        progress: &dyn ProgressSink,
        cancel: &CancellationToken,
    ) -> Result<(), McpError> {
        let mut current = self.progress.subscribe();
        loop {
            let SyncProgress { is_finished, indexed_documents, total } = current.borrow_and_update().clone();
            // The last step is not reported, because the answer follows at once and some clients reject late progress.
            if progress.has_listener() && indexed_documents < total {
                progress.progress(indexed_documents as f64, Some(total as f64), Some("documents are indexed"));
            }
            if is_finished {
                return Ok(());
            }
            tokio::select! {
                changed = current.changed() => changed.map_err(|_| McpError::shutting_down())?,
                () = cancel.cancelled() => return Err(McpError::new(ErrorKind::Cancelled, "The call was cancelled.")),
                () = self.stopped.cancelled() => return Err(McpError::shutting_down()),
            }
        }
    }

    /// Updates the index with these files before it returns; their vectors follow later.
    ///
    /// # Errors
    /// `STORE_UNAVAILABLE`; `SHUTTING_DOWN`
    pub async fn refresh(&self, collection: Collection, paths: Vec<String>) -> Result<(), McpError> {
        let (reply, answer) = oneshot::channel();
        let sent = self.tasks.send(Task::Refresh { collection, paths, reply });
        sent.map_err(|_| McpError::shutting_down())?;
        match answer.await {
            Ok(outcome) => Ok(outcome?),
            Err(_) => Err(McpError::shutting_down()),
        }
    }

    /// Embeds a document at once, and returns the dimensions of the index's vectors.
    ///
    /// # Errors
    /// `EMBEDDING_FAILED`; `STORE_UNAVAILABLE`
    pub async fn embed_now(&self, path: &str) -> Result<usize, McpError> {
        let failed = |reason: String| {
            McpError::new(ErrorKind::EmbeddingFailed, format!("The model for embeddings failed: {reason}."))
                .with("path", path)
        };
        let Some(embedder) = &self.embedder else { return Err(failed("none is configured".to_owned())) };
        let index = self.indexes_of(&self.current_tenant())?.docs;
        let pending = index.unembedded_passages_of(path, embedder.model())?;
        if !pending.is_empty() {
            let all = embedding::embed_passages(embedder, pending).await.map_err(|error| {
                tracing::warn!(project = %self.name, path, %error, "a document is not embedded");
                failed(error.agent_message())
            })?;
            index.set_vectors(embedder.model(), &all)?;
        }
        Ok(index.dimensions()?)
    }

    /// Removes documents, or all of them, from the index of a tenant whose files are not in the folder now.
    ///
    /// # Errors
    /// `STORE_UNAVAILABLE`
    pub fn forget(&self, indexed: &IndexedTenant, paths: Option<&[String]>) -> Result<(), McpError> {
        match paths {
            Some(paths) => indexed.docs.remove(paths)?,
            None => {
                self.open_indexes.lock().remove(&indexed.tenant);
                self.registry.forget(&indexed.tenant).map_err(|error| index_error(&error))?;
            }
        }
        Ok(())
    }

    /// Returns the URI of a document.
    pub fn uri(&self, path: &str) -> String {
        format!("docs://{}/{}", self.name, utf8_percent_encode(path, paths::URI_ESCAPES))
    }

    /// Returns the indexes of the checked-out branch; empty if they cannot be opened.
    pub(super) fn current_indexes(&self) -> Vec<Arc<Index>> {
        let indexes = self.indexes_of(&self.current_tenant());
        indexes.map(|indexes| std::iter::once(indexes.docs).chain(indexes.external).collect()).unwrap_or_default()
    }

    /// Makes the checked-out branch the current one. Returns `true` if it was not.
    pub(super) fn follow_branch(&self) -> bool {
        if !self.config.by_branch {
            return false;
        }
        let branch = git::checked_out_branch(&self.root, &self.branch());
        if branch == *self.branch.read() {
            return false;
        }
        tracing::info!(project = %self.name, %branch, "another branch is checked out");
        if let Err(error) = self.registry.record(&self.tenant_of(&branch)) {
            tracing::warn!(%error, "the index of a branch cannot be registered");
        }
        *self.branch.write() = branch;
        // Calls wait again until the files of this branch were scanned.
        self.progress.send_replace(SyncProgress::default());
        true
    }

    /// Reads the project's own types of documents again.
    pub(super) fn reload_types(&self) {
        let (types, skipped) = DocTypes::with_custom(self.files.schemas(MAX_SCHEMA_BYTES));
        for (path, reason) in skipped {
            tracing::warn!(project = %self.name, path, reason, "a type of documents is skipped");
        }
        *self.types.write() = Arc::new(types);
    }

    /// Runs `work` with a folder and its index of the current tenant.
    pub(super) fn with_folder_index(
        &self,
        collection: Collection,
        work: impl FnOnce(&FolderIndex<'_>) -> Result<IndexChanges, IndexError>,
    ) -> Result<IndexChanges, IndexError> {
        let indexes = self.indexes_of(&self.current_tenant())?;
        let types = self.types();
        let (files, index) = match (collection, &self.external_files, &indexes.external) {
            (Collection::External, Some(files), Some(index)) => (files, index),
            (Collection::External, ..) => return Ok(IndexChanges::default()),
            (Collection::Docs, ..) => (&self.files, &indexes.docs),
        };
        work(&FolderIndex { files, index, types: &types })
    }

    /// Reports the progress of the first synchronization of a branch. Later scans are not reported.
    pub(super) fn report_progress(&self, progress: SyncProgress) {
        self.progress.send_if_modified(|before| {
            let is_news = *before != progress && !before.is_finished;
            if is_news {
                *before = progress;
            }
            is_news
        });
    }

    /// Ends the first synchronization of a branch, for which calls wait.
    pub(super) fn finish_first_sync(&self) {
        let SyncProgress { indexed_documents, total, .. } = self.progress.borrow().clone();
        self.update_report();
        self.report_progress(SyncProgress { is_finished: true, indexed_documents, total });
    }

    /// Returns the number of indexed documents and their problems.
    pub fn report(&self) -> Report {
        self.report.read().clone()
    }

    /// Updates the report, and logs it if it has changed.
    fn update_report(&self) {
        let tenant = self.current_tenant();
        let indexes = match self.indexes_of(&tenant).map_err(McpError::from) {
            Ok(indexes) => indexes,
            Err(error) => return tracing::warn!(project = %self.name, %error, "the state of the index cannot be read"),
        };
        let external = indexes.external.as_ref().map(|index| index.front_matter_stats(0)).transpose();
        let (docs, external) = match (indexes.docs.front_matter_stats(MAX_NAMED_FAULTS), external) {
            (Ok(docs), Ok(external)) => (docs, external),
            (Err(error), _) | (_, Err(error)) => {
                return tracing::warn!(project = %self.name, %error, "the state of the index cannot be read");
            }
        };
        let report = report::describe(&tenant, &docs, external.as_ref(), self.lacks_repository());
        let before = std::mem::replace(&mut *self.report.write(), report.clone());
        if before.details != report.details {
            tracing::info!(
                project = %self.name, branch = %tenant.branch, documents = docs.documents,
                without_front_matter = docs.without_front_matter, faulty = docs.faulty,
                external = external.as_ref().map(|external| external.documents), "documents are indexed"
            );
        }
        for warning in report.warnings.iter().filter(|warning| !before.warnings.contains(warning)) {
            tracing::warn!("{warning}");
        }
    }

    /// Returns `true` if branches should be distinguished but no repository names one.
    pub fn lacks_repository(&self) -> bool {
        self.config.by_branch && *self.branch.read() == NO_BRANCH
    }

    /// Publishes changes of documents, once the first synchronization is over.
    pub(super) fn publish_changes(&self, collection: Collection, changes: IndexChanges) {
        if changes == IndexChanges::default() {
            return;
        }
        self.wake_embedding.notify_one();
        if !self.progress.borrow().is_finished {
            return;
        }
        self.update_report();
        if collection == Collection::External {
            return;
        }
        let IndexChanges { updated, added, removed } = changes;
        let uris: Vec<String> = updated.iter().chain(&added).chain(&removed).map(|path| self.uri(path)).collect();
        // Sending fails only if there is no receiver.
        let _ = self.events.send(ProviderEvent::ResourcesUpdated(uris));
        if !(added.is_empty() && removed.is_empty()) {
            let _ = self.events.send(ProviderEvent::ListChanged(List::Resources));
        }
    }
}

impl From<IndexError> for McpError {
    fn from(error: IndexError) -> Self {
        index_error(&error)
    }
}

/// Logs the failure of an index or of the registry, and returns the error for the client.
fn index_error(error: &dyn std::fmt::Display) -> McpError {
    tracing::error!(%error, "an index of documents failed");
    McpError::new(ErrorKind::StoreUnavailable, "The index of the documents cannot be used.")
}
