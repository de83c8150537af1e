//! Carries out a plan: replaces one file as a whole, or removes files one by one. The plan was made again just before,
//! under the project's lock, and compared with the approved one; each file is checked once more just before it is
//! replaced or removed.

use std::{sync::Arc, time::Duration};

use super::{
    MAX_SHOWN_CHARS,
    answers::{IndexedDocument, UpdatedLevel},
    args::WriteCall,
    plan::{self, Action, Deletion, MAX_NAMED_PATHS, TenantDeletion, hash},
    reads::deletion_result,
    result, run_blocking,
    tenant::require_project,
};
use crate::{
    library::{Library, Project},
    model::Collection,
};
use countersign_domain::text::plural;
use countersign_protocol::{ErrorKind, McpError};
use countersign_provider::{CallContext, Permit, ToolResult, text::one_line};

/// The time that the answer to a write waits for the embedding, which then continues in the background.
const EMBEDDING_TIMEOUT: Duration = Duration::from_secs(5);

/// Checks a write against the live files again, and carries it out.
pub(crate) async fn run_write(
    library: &Arc<Library>,
    write: WriteCall,
    ctx: &CallContext,
    has_embedder: bool,
) -> Result<ToolResult, McpError> {
    let project = require_project(library, write.project())?;
    let files_guard = project.lock_files().await;
    let (planning_library, ctx) = (Arc::clone(library), ctx.clone());
    // The write is one job on the blocking pool, so that a caller who stops waiting does not interrupt it half-way.
    let work = run_blocking(move || {
        let _files_guard = files_guard;
        let plan = ctx.run_charged(|| plan::plan_write(&planning_library, &write, &ctx.cancel))?;
        ctx.check_state(&plan.fingerprint())?;
        let action = plan.action;
        Permit::check(ctx.permit.as_ref())?;
        carry_out(&action, &project)?;
        Ok((action, project))
    });
    let (action, project) = work.await?;
    match action {
        Action::Put { path, .. } => write_result(&project, &path, has_embedder).await,
        Action::Promote { path, from, to, .. } => {
            refresh_index(&project, vec![path.clone()]).await;
            let line = format!("The level of {} is {to} now, and was {from}.", one_line(&path, MAX_SHOWN_CHARS));
            result(&line, &UpdatedLevel { status: "updated", document_path: path, previous_level: from, new_level: to })
        }
        Action::Delete(deletion) => {
            let removed_paths = deletion
                .tenants
                .iter()
                .filter(|tenant_deletion| tenant_deletion.indexed.is_current)
                .flat_map(TenantDeletion::paths);
            refresh_index(&project, removed_paths.cloned().collect()).await;
            deletion_result(&deletion)
        }
    }
}

/// Writes or removes the files.
fn carry_out(action: &Action, project: &Project) -> Result<(), McpError> {
    match action {
        Action::Put { path, text, before } | Action::Promote { path, text, before, .. } => {
            let is_expected = |present: Option<&[u8]>| present.map(hash) == *before;
            project.files.write(path, text.as_bytes(), &is_expected)
        }
        Action::Delete(deletion) => {
            let mut removed_paths = Vec::new();
            remove_documents(project, deletion, &mut removed_paths)
                .map_err(|error| partial_deletion_error(error, &removed_paths, deletion.document_count()))
        }
    }
}

/// Removes documents, and adds their paths to `removed_paths`.
fn remove_documents(project: &Project, deletion: &Deletion, removed_paths: &mut Vec<String>) -> Result<(), McpError> {
    for tenant_deletion in &deletion.tenants {
        if tenant_deletion.indexed.is_current {
            for (path, before) in &tenant_deletion.documents {
                let is_expected = |present: Option<&[u8]>| present.is_some_and(|present| hash(present) == *before);
                project.files.remove(path, &is_expected)?;
                removed_paths.push(path.clone());
            }
        } else {
            let paths: Vec<String> = tenant_deletion.paths().cloned().collect();
            let has_named_paths = deletion.request.paths.is_some();
            project.forget(&tenant_deletion.indexed, has_named_paths.then_some(paths.as_slice()))?;
            removed_paths.extend(paths);
        }
    }
    Ok(())
}

/// Returns the error of a deletion that failed half-way. Its outcome is unknown, so that a reviewer settles it.
fn partial_deletion_error(error: McpError, removed_paths: &[String], document_count: usize) -> McpError {
    if removed_paths.is_empty() {
        return error;
    }
    let message =
        format!("{} of {document_count} documents were deleted, and then: {}", removed_paths.len(), error.message);
    let named_paths: Vec<String> = removed_paths.iter().take(MAX_NAMED_PATHS).cloned().collect();
    McpError::new(error.kind, message).with("deleted", named_paths).with("outcome", "unknown")
}

/// Updates the index at once. If that fails, the files are still correct, and the watcher updates it later.
async fn refresh_index(project: &Project, paths: Vec<String>) {
    if let Err(error) = project.refresh(Collection::Docs, paths).await {
        tracing::warn!(project = %project.name, %error, "a written document is not in the index yet");
    }
}

/// Updates the index with a written document, and returns the result.
async fn write_result(project: &Arc<Project>, path: &str, has_embedder: bool) -> Result<ToolResult, McpError> {
    refresh_index(project, vec![path.to_owned()]).await;
    let dimensions = match has_embedder {
        true => tokio::time::timeout(EMBEDDING_TIMEOUT, project.embed_now(path))
            .await
            .unwrap_or_else(|_| Err(McpError::new(ErrorKind::EmbeddingFailed, "the model has not answered yet.")))
            .map(Some),
        false => Ok(None),
    };
    let (project, document_path) = (Arc::clone(project), path.to_owned());
    // The file is written even if another branch was checked out meanwhile and its index cannot be opened.
    let entry = run_blocking(move || Ok(project.tenant(None)?.docs.document(&document_path)?)).await;
    let chunks = entry.ok().flatten().map_or(0, |entry| entry.chunks);
    let mut line = format!("{} is written and indexed: {}.", one_line(path, MAX_SHOWN_CHARS), plural(chunks, "chunk"));
    let (embedding_dimensions, note) = match dimensions {
        Ok(dimensions) => (dimensions, None),
        // The file is written even if the model fails, and is embedded later.
        Err(error) => (None, Some(format!("It is not embedded yet: {}", error.message))),
    };
    if let Some(note) = &note {
        line = format!("{line} {note}");
    }
    let (path, faults) = (path.to_owned(), Vec::new());
    result(&line, &IndexedDocument { status: "written", path, chunks, embedding_dimensions, faults, note })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::{Value, json};
    use tokio::sync::broadcast;
    use tokio_util::sync::CancellationToken;

    use super::*;
    use countersign_config::{DocsConfig, DocsProject};
    use countersign_provider::NoProgress;

    #[tokio::test]
    async fn written_document_is_reported_without_its_index() {
        let dir = tempfile::tempdir().unwrap();
        let (root, data) = (dir.path().join("root"), dir.path().join("data"));
        let head = root.join(".git/HEAD");
        fs::create_dir_all(root.join(".git")).unwrap();
        fs::write(&head, "ref: refs/heads/main\n").unwrap();
        let (name, folder) = ("handbook".to_owned(), "know".to_owned());
        let projects = vec![DocsProject { name, root, folder, external_docs: None, by_branch: true }];
        let config = DocsConfig { enabled: true, projects, embeddings: None, generation: None };
        let library = Library::open(&data, &config, None, &broadcast::channel(1000).0).unwrap();
        let project = &library.projects[0];
        project.wait_until_synchronized(&NoProgress, &CancellationToken::new()).await.unwrap();
        // The index of the next branch cannot be created.
        fs::rename(&data, dir.path().join("moved")).unwrap();
        fs::write(&head, "ref: refs/heads/dev\n").unwrap();
        let following = async {
            while project.branch() != "dev" {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), following).await.unwrap();
        assert!(project.tenant(None).is_err());
        let result = write_result(project, "a.md", false).await.unwrap();
        let answer: Value = serde_json::from_str(result.structured_content.unwrap().get()).unwrap();
        assert_eq!((&answer["status"], &answer["chunks"]), (&json!("written"), &json!(0)));
    }
}
