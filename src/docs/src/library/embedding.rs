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
        let mut has_failed = false;
        for index in project.current_indexes() {
            if let Err(error) = embed(&project, &index, &embedder).await {
                tracing::warn!(project = %project.name, %error, "documents are not embedded yet");
                has_failed = true;
            }
        }
        tokio::select! {
            () = project.wake_embedding.notified(), if !has_failed => {}
            () = tokio::time::sleep(RETRY_DELAY), if has_failed => {}
            () = project.stopped.cancelled() => return,
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

/// Embeds the passages of an index in the order of their ids. A passage without a usable vector is skipped and tried again
/// after the next change of documents.
async fn embed(project: &Project, index: &Arc<Index>, embedder: &Arc<Embedder>) -> Result<(), String> {
    let mut after = PassageId::MIN;
    while !project.stopped.is_cancelled() {
        let pending =
            index.unembedded_passages(embedder.model(), after, BATCH_SIZE).map_err(|error| error.to_string())?;
        let Some((last, _)) = pending.last() else { return Ok(()) };
        after = *last;
        let all = tokio::select! {
            all = embed_batch(project, embedder, pending) => all.map_err(|error| error.to_string())?,
            () = project.stopped.cancelled() => return Ok(()),
        };
        index.set_vectors(embedder.model(), &all).map_err(|error| error.to_string())?;
    }
    Ok(())
}

/// Returns the vectors of passages. If the model refuses the batch, each passage is sent alone, and those that it still
/// refuses are left out.
///
/// # Errors
/// The error of a model that cannot be used, or that refuses all of the passages.
async fn embed_batch(
    project: &Project,
    embedder: &Arc<Embedder>,
    passages: Vec<(PassageId, String)>,
) -> Result<Vec<(PassageId, Vec<f32>)>, RemoteError> {
    let refusal = match embed_passages(embedder, passages.clone()).await {
        Err(error) if passages.len() > 1 && error.may_concern_text() => error,
        outcome => return outcome,
    };
    let mut all = Vec::new();
    for passage in passages {
        match embed_passages(embedder, vec![passage]).await {
            Ok(vectors) => all.extend(vectors),
            Err(error) if error.may_concern_text() => {
                tracing::debug!(project = %project.name, %error, "the model refuses a passage");
            }
            Err(error) => return Err(error),
        }
    }
    if all.is_empty() { Err(refusal) } else { Ok(all) }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::{Value, json};
    use tokio::sync::broadcast;
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::{
        library::Library,
        remote::tests::{ModelServer, status},
    };
    use countersign_config::{DocsConfig, DocsProject};
    use countersign_provider::NoProgress;

    /// Answers as a model that refuses a text, and has only zeros for another one.
    fn vectors(body: &Value) -> String {
        let texts: Vec<&str> = body["input"].as_array().unwrap().iter().map(|text| text.as_str().unwrap()).collect();
        if texts.iter().any(|text| text.contains("refused")) {
            return status("400 Bad Request", "", "too long");
        }
        let vector = |text: &&str| if text.contains("meaningless") { [0.0, 0.0] } else { [1.0, 0.0] };
        let data: Vec<Value> = texts.iter().map(|text| json!({ "embedding": vector(text) })).collect();
        status("200 OK", "", &json!({ "data": data }).to_string())
    }

    #[actix::test]
    async fn passage_without_vector_delays_no_other_passage() {
        let server = ModelServer::new(|_, _, body| Some(vectors(body))).await;
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("root");
        fs::create_dir_all(root.join("know")).unwrap();
        let texts = ["meaningless", "refused"].into_iter().chain(std::iter::repeat_n("usual", 150));
        for (number, text) in texts.enumerate() {
            fs::write(root.join(format!("know/{number:03}.md")), format!("# {text} {number}\n\nText.\n")).unwrap();
        }
        let (name, folder) = ("handbook".to_owned(), "know".to_owned());
        let projects = vec![DocsProject { name, root, folder, external_docs: None, by_branch: false }];
        let config = DocsConfig { enabled: true, projects, embeddings: None, generation: None };
        let embedder = server.embedder("m");
        let events = broadcast::channel(1000).0;
        let library = Library::open(&dir.path().join("data"), &config, Some(&embedder), &events).unwrap();
        let project = &library.projects[0];
        project.wait_until_synchronized(&NoProgress, &CancellationToken::new()).await.unwrap();
        let docs = Arc::clone(&project.tenant(None).unwrap().docs);
        let waiting = async {
            while docs.unembedded_passages("m", 0, 200).unwrap().len() > 2 {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), waiting).await.unwrap();
        let left: Vec<String> =
            docs.unembedded_passages("m", 0, 200).unwrap().into_iter().map(|(_, text)| text).collect();
        assert!(left[0].contains("meaningless") && left[1].contains("refused"), "{left:?}");
    }
}
