//! The structured answers of the tools, from which their output schemas are derived.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::{
    answer::AnswerMode,
    model::{Collection, Hit, Level, Ranking},
    text::Fault,
};

#[derive(Serialize, JsonSchema)]
pub(crate) struct ActivatedProject {
    #[schemars(extend("const" = "activated"))]
    pub status: &'static str,
    pub project_name: String,
    /// The git branch, or `-` if the project does not distinguish branches.
    pub branch_name: String,
    /// `git`: each git branch has its own documents. `none`: all branches share their documents.
    #[schemars(extend("enum" = ["git", "none"]))]
    pub branches: &'static str,
    /// The hash of the path of the project's root.
    pub path_hash: String,
    pub doc_types: Vec<CountedType>,
    pub total_docs: usize,
    /// Problems of the documents.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

#[derive(Serialize, JsonSchema)]
pub(crate) struct CountedType {
    pub name: String,
    pub doc_count: usize,
    pub custom: bool,
}

#[derive(Serialize, JsonSchema)]
pub(crate) struct ListedTypes {
    pub doc_types: Vec<ListedType>,
}

#[derive(Serialize, JsonSchema)]
pub(crate) struct ListedType {
    pub name: String,
    pub description: String,
    /// The folder that holds documents of this type.
    pub folder: String,
    /// `built-in`, or the path of the schema file of this type.
    pub schema: String,
    pub doc_count: usize,
    pub custom: bool,
    /// The JSON Schema of the front matter.
    #[schemars(with = "Map<String, Value>")]
    pub front_matter: Value,
}

#[derive(Serialize, JsonSchema)]
pub(crate) struct SearchResults {
    pub results: Vec<FoundDocument>,
    /// The number of sufficiently relevant documents, including those not listed.
    pub total_matches: usize,
    /// `lexical`: ranked by words. `fused`: ranked by words and meaning.
    pub ranking: Ranking,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub external_docs_path: Option<String>,
}

/// The location of a passage.
#[derive(Serialize, JsonSchema)]
#[schemars(description = "")]
pub(crate) struct Location {
    /// The path, relative to the folder of the documents.
    path: String,
    title: String,
    /// The number of characters of the whole document.
    char_count: usize,
    /// The relevance, from 0 to 1.
    relevance_score: f64,
    promotion_level: Level,
    header_path: String,
    first_line: u32,
    last_line: u32,
}

impl Location {
    pub fn new(hit: &Hit) -> Self {
        Self {
            path: hit.path.clone(),
            title: hit.title.clone(),
            char_count: hit.char_count,
            relevance_score: (hit.relevance * 10_000.0).round() / 10_000.0,
            promotion_level: hit.level,
            header_path: hit.header_path.clone(),
            first_line: hit.passage.first_line,
            last_line: hit.passage.last_line,
        }
    }
}

#[derive(Serialize, JsonSchema)]
pub(crate) struct FoundDocument {
    #[serde(flatten)]
    location: Location,
    summary: String,
    /// The lines of the document that match best.
    passage: String,
    // Both are absent for reference documentation.
    #[serde(skip_serializing_if = "Option::is_none")]
    doc_type: Option<Option<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    date: Option<Option<String>>,
}

impl FoundDocument {
    pub fn new(hit: &Hit, collection: Collection) -> Self {
        let is_docs = collection == Collection::Docs;
        Self {
            location: Location::new(hit),
            summary: hit.summary.clone(),
            passage: hit.passage.text.clone(),
            doc_type: is_docs.then(|| hit.doc_type.clone()),
            date: is_docs.then(|| hit.date.clone()),
        }
    }
}

#[derive(Serialize, JsonSchema)]
pub(crate) struct AnsweredQuestion {
    /// The answer. It cites the sources by position: [1], [2].
    pub answer: String,
    /// `generated`: written by the gateway's model. `sampled`: written by the client's model. `extractive`: quoted from
    /// the documents. `none`: no relevant document was found.
    pub answer_mode: AnswerMode,
    pub sources: Vec<Location>,
    /// `lexical`: ranked by words. `fused`: ranked by words and meaning.
    pub ranking: Ranking,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub linked_docs: Option<Vec<LinkedDocument>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub external_docs_path: Option<String>,
}

#[derive(Serialize, JsonSchema)]
pub(crate) struct LinkedDocument {
    pub path: String,
    pub title: String,
    pub char_count: usize,
    pub linked_from: String,
}

#[derive(Serialize, JsonSchema)]
pub(crate) struct IndexedDocument {
    /// `written`: the file was written. `indexed`: the index was updated from the existing file.
    #[schemars(extend("enum" = ["written", "indexed"]))]
    pub status: &'static str,
    pub path: String,
    pub chunks: usize,
    /// The length of the embedding vectors; null if embeddings are disabled or not computed yet.
    pub embedding_dimensions: Option<usize>,
    /// Violations of the schema of its type by the front matter.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub faults: Vec<Fault>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

#[derive(Serialize, JsonSchema)]
pub(crate) struct UpdatedLevel {
    #[schemars(extend("const" = "updated"))]
    pub status: &'static str,
    pub document_path: String,
    pub previous_level: Level,
    pub new_level: Level,
}

#[derive(Serialize, JsonSchema)]
pub(crate) struct DeletedDocuments {
    #[schemars(extend("enum" = ["deleted", "preview"]))]
    pub status: &'static str,
    /// The number of documents.
    pub deleted_count: usize,
    pub deleted_chunks: usize,
    /// The paths of the documents; only the first ones if there are many.
    pub documents: Vec<String>,
    pub project_name: String,
    pub branch_name: Option<String>,
    pub path_hash: Option<String>,
    pub dry_run: bool,
}
