//! Projects and their folders: files that nothing leads out of, what is synchronized and watched.
//!
//! `files.rs` is the only way to a project's files, `paths.rs` says what a document may be called, `git.rs` which branch is
//! checked out. `shelves.rs` names the indexes that are stored. `synchronize.rs` brings an index up to date with a folder,
//! `worker.rs` does that on a thread of the project's own when something has changed, `embedding.rs` on another one what
//! takes a model. `project.rs` is what the tools see.

mod embedding;
mod files;
mod git;
mod paths;
mod project;
mod shelves;
mod synchronize;
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

pub(crate) use project::{Project, Shelf};
use shelves::Shelves;

/// Why the documents cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum DocsError {
    #[error("the project {project}: {path} is no folder that can be read: {source}")]
    Root { project: String, path: PathBuf, source: std::io::Error },
    #[error("{path}: {source}")]
    Io { path: PathBuf, source: std::io::Error },
    #[error("{0}")]
    Index(String),
    #[error("the cache of embeddings: {0}")]
    Cache(String),
}

/// All projects of the configuration. Dropped, it stops what runs for them.
pub(crate) struct Library {
    projects: Vec<Arc<Project>>,
}

impl Drop for Library {
    fn drop(&mut self) {
        self.projects.iter().for_each(|project| project.stop());
    }
}

impl Library {
    /// Opens every project, and begins to synchronize and to watch it.
    ///
    /// # Errors
    /// A root that is no folder; indexes that can be neither read nor made.
    pub fn open(
        data: &Path,
        config: &DocsConfig,
        embedder: Option<&Arc<Embedder>>,
        events: &broadcast::Sender<ProviderEvent>,
    ) -> Result<Arc<Self>, DocsError> {
        let folder = folder(data)?;
        let shelves = Arc::new(Shelves::open(&folder).map_err(|error| DocsError::Index(error.to_string()))?);
        let mut library = Self { projects: Vec::new() };
        for project in &config.projects {
            library.projects.push(Project::open(project, &shelves, embedder.cloned(), events.clone())?);
        }
        Ok(Arc::new(library))
    }

    pub fn project(&self, name: &str) -> Option<&Arc<Project>> {
        self.projects.iter().find(|project| project.name == name)
    }

    pub fn projects(&self) -> &[Arc<Project>] {
        &self.projects
    }
}

/// Where indexes lie; made with mode 0700.
///
/// # Errors
/// It cannot be made.
pub(crate) fn folder(data: &Path) -> Result<PathBuf, DocsError> {
    let folder = data.join("docs");
    match fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder) {
        Ok(()) => Ok(folder),
        Err(source) => Err(DocsError::Io { path: folder, source }),
    }
}
