//! Embeds passages without vectors on a thread of its own, since the model is slow.

use std::{sync::Arc, time::Duration};

use super::project::Project;
use crate::{
    index::{Index, PassageId},
    remote::{Embedder, RemoteError},
};

/// The number of passages that are embedded between two checks for a stop.
const BATCH_SIZE: usize = 64;
/// The delay before a failed model is called again.
const RETRY_DELAY: Duration = Duration::from_secs(15);

/// Embeds until the project is stopped.
pub(super) async fn run(project: Arc<Project>, embedder: Arc<Embedder>) {
    loop {
        for index in project.current_indexes() {
            if let Err(why) = embed(&project, &index, &embedder).await {
                tracing::warn!(project = %project.name, error = %why, "documents are not embedded yet");
                tokio::select! {
                    () = tokio::time::sleep(RETRY_DELAY) => {}
                    () = project.stopped() => return,
                }
                project.wake_embedding.notify_one();
                break;
            }
        }
        tokio::select! {
            () = project.wake_embedding.notified() => {}
            () = project.stopped() => return,
        }
    }
}

/// Returns the vectors of passages.
pub(super) async fn embed_passages(
    embedder: &Arc<Embedder>,
    passages: Vec<(PassageId, String)>,
) -> Result<Vec<(PassageId, Vec<f32>)>, RemoteError> {
    let (ids, texts): (Vec<_>, Vec<String>) = passages.into_iter().unzip();
    Ok(ids.into_iter().zip(embedder.embed_passages(&texts).await?).collect())
}

async fn embed(project: &Project, index: &Arc<Index>, embedder: &Arc<Embedder>) -> Result<(), String> {
    let mut previous_first = None;
    while !project.is_stopped() {
        let pending = index.unembedded_passages(embedder.model(), BATCH_SIZE).map_err(|error| error.to_string())?;
        let first = pending.first().map(|(id, _)| *id);
        // Passages for which the model returns no usable vector are not retried.
        if first.is_none() || first == previous_first {
            return Ok(());
        }
        previous_first = first;
        let all = tokio::select! {
            all = embed_passages(embedder, pending) => all.map_err(|error| error.to_string())?,
            () = project.stopped() => return Ok(()),
        };
        index.set_vectors(embedder.model(), &all).map_err(|error| error.to_string())?;
    }
    Ok(())
}
