//! Carries a plan out: one file is replaced as a whole, or files are removed one by one. The plan was made anew just
//! before, under the project's lock.

use std::{sync::Arc, time::Duration};

use serde_json::json;

use super::{
    args::Write,
    blocking,
    plan::{self, Action, Deletion},
    reads::deleted,
    whose::project,
};
use crate::{
    library::{Library, Project},
    model::Collection,
};
use countersign_protocol::{ErrorKind, McpError};
use countersign_provider::{
    Permit, ToolResult,
    text::{one_line, plural, tool_result},
};

/// How long the answer to a write waits for the model: the file is written by then, and is embedded later otherwise.
const EMBEDDING: Duration = Duration::from_secs(5);
/// Characters of a path on a line.
const LINE: usize = 200;

/// Checks a write against the live files once more and does it.
pub(crate) async fn run(
    library: &Arc<Library>,
    write: Write,
    permit: Option<Permit>,
    embeds: bool,
) -> Result<ToolResult, McpError> {
    let name = match &write {
        Write::Put { whose, .. } | Write::Promote { whose, .. } => whose.project_name.clone(),
        Write::Delete(delete) => Some(delete.project.clone()),
    };
    let project = project(library, name.as_deref())?;
    let turn = project.writing().await;
    let planned = Arc::clone(library);
    // On the blocking pool from the check to the last file: whoever gives up waiting does not stop half-way.
    let action = blocking(move || {
        let _turn = turn;
        let action = plan::plan(&planned, &write)?.action;
        Permit::check(permit.as_ref())?;
        carry_out(&action, &project)?;
        Ok((action, project))
    });
    let (action, project) = action.await?;
    match action {
        Action::Put { path, .. } => written(&project, &path, embeds).await,
        Action::Promote { path, from, to, .. } => {
            told(&project, vec![path.clone()]).await;
            let answer = json!({ "status": "updated", "document_path": path, "previous_level": from, "new_level": to });
            result(&format!("The level of {} is {to} now, and was {from}.", one_line(&path, LINE)), &answer)
        }
        Action::Delete(deletion) => {
            let gone = deletion.shelves.iter().filter(|from| from.shelf.current).flat_map(|from| from.paths.clone());
            told(&project, gone.collect()).await;
            deleted(&deletion, false)
        }
    }
}

fn carry_out(action: &Action, project: &Project) -> Result<(), McpError> {
    match action {
        Action::Put { path, content } => project.files().write(path, content.as_bytes()),
        Action::Promote { path, text, .. } => project.files().write(path, text.as_bytes()),
        Action::Delete(Deletion { project, shelves, asked }) => {
            for from in shelves {
                if from.shelf.current {
                    from.paths.iter().try_for_each(|path| project.files().remove(path))?;
                } else {
                    let only = asked.paths.is_some().then_some(from.paths.as_slice());
                    project.forget(&from.shelf, only)?;
                }
            }
            Ok(())
        }
    }
}

/// The index hears of it at once. Where that fails the files are as they should be all the same, and what watches them finds
/// out.
async fn told(project: &Project, paths: Vec<String>) {
    if let Err(error) = project.refresh(Collection::Docs, paths).await {
        tracing::warn!(project = %project.name, %error, "what was written is not in the index yet");
    }
}

async fn written(project: &Arc<Project>, path: &str, embeds: bool) -> Result<ToolResult, McpError> {
    told(project, vec![path.to_owned()]).await;
    let dimensions = match embeds {
        true => match tokio::time::timeout(EMBEDDING, project.embed_now(path)).await {
            Ok(dimensions) => dimensions,
            Err(_) => Err(McpError::new(ErrorKind::EmbeddingFailed, "the model takes its time.")),
        },
        false => Err(McpError::new(ErrorKind::EmbeddingFailed, "")),
    };
    let shelf = project.tenant(None)?;
    let at = path.to_owned();
    let entry = blocking(move || shelf.docs.document(&at).map_err(|error| plan::unindexed(&error))).await;
    let chunks = entry.ok().flatten().map_or(0, |entry| entry.chunks);
    let mut answer = json!({
        "status": "written", "path": path, "chunks": chunks, "embedding_dimensions": dimensions.as_ref().ok(),
    });
    let mut line = format!("{} is written and indexed: {}.", one_line(path, LINE), plural(chunks, "chunk"));
    // The file is written whatever the model says: it is embedded later.
    if let Some(error) = dimensions.err().filter(|_| embeds) {
        let note = format!("It is not embedded yet: {}", error.message);
        line = format!("{line} {note}");
        answer["note"] = note.into();
    }
    result(&line, &answer)
}

fn result(text: &str, structured: &serde_json::Value) -> Result<ToolResult, McpError> {
    tool_result(text, structured).map_err(|_| McpError::new(ErrorKind::Internal, "The answer could not be written."))
}
