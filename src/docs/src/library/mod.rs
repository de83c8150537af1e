//! Projects and their folders: access to files, synchronization and watching.
//!
//! `files.rs` is the only way to read or write a project's documents, `paths.rs` has the rules for paths, and `git.rs`
//! reads the branch. `tenant_registry.rs` registers the stored indexes. `synchronize.rs` updates an index from a
//! folder; `worker.rs` does so on the project's own thread when something has changed, and `embedding.rs` calls the
//! model on another thread. `project.rs` is the interface for the tools.

mod embedding;
mod files;
mod git;
mod paths;
mod project;
mod report;
mod synchronize;
mod tenant_registry;
#[cfg(test)]
mod tests;
mod worker;

use std::{
    fs,
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
    sync::Arc,
};

use tokio::sync::broadcast;

use crate::remote::Embedder;
use countersign_config::DocsConfig;
use countersign_provider::ProviderEvent;

pub(crate) use project::{IndexedTenant, Project};
use tenant_registry::TenantRegistry;

/// The reason why the documents cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum DocsError {
    #[error("the project {project}: {path} is not a readable folder: {source}")]
    Root { project: String, path: PathBuf, source: std::io::Error },
    #[error("{path}: {source}")]
    Io { path: PathBuf, source: std::io::Error },
    #[error("a thread cannot be started: {0}")]
    Thread(std::io::Error),
    #[error("{0}")]
    Index(String),
    #[error("the cache of embeddings: {0}")]
    Cache(String),
}

/// All configured projects. Dropping it stops their threads.
pub(crate) struct Library {
    pub projects: Vec<Arc<Project>>,
}

impl Drop for Library {
    fn drop(&mut self) {
        self.projects.iter().for_each(|project| project.stop());
    }
}

impl Library {
    /// Opens every project, and starts to synchronize and watch it.
    ///
    /// # Errors
    /// Fails if a root is not a folder, or an index can neither be read nor created.
    pub fn open(
        data: &Path,
        config: &DocsConfig,
        embedder: Option<&Arc<Embedder>>,
        events: &broadcast::Sender<ProviderEvent>,
    ) -> Result<Arc<Self>, DocsError> {
        let folder = index_folder(data)?;
        let registry = Arc::new(TenantRegistry::open(&folder).map_err(|error| DocsError::Index(error.to_string()))?);
        let mut library = Self { projects: Vec::new() };
        for project in &config.projects {
            library.projects.push(Project::open(project, &registry, embedder.cloned(), events.clone())?);
        }
        Ok(Arc::new(library))
    }

    pub fn project(&self, name: &str) -> Option<&Arc<Project>> {
        self.projects.iter().find(|project| project.name == name)
    }
}

/// Returns the folder of the indexes, created with mode 0700.
///
/// # Errors
/// Fails if it cannot be created.
pub(crate) fn index_folder(data: &Path) -> Result<PathBuf, DocsError> {
    let folder = data.join("docs");
    match fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder) {
        Ok(()) => Ok(folder),
        Err(source) => Err(DocsError::Io { path: folder, source }),
    }
}
