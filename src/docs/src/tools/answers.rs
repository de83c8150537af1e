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
    /// `-` where branches are not told apart.
    pub branch_name: String,
    /// Whether each git branch has documents of its own, or none is told apart from another.
    #[schemars(extend("enum" = ["git", "none"]))]
    pub branches: &'static str,
    /// Of the project's root.
    pub path_hash: String,
    pub doc_types: Vec<CountedType>,
    pub total_docs: usize,
    /// What of the documents is not as it should be.
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
    /// Where documents of this type lie.
    pub folder: String,
    /// `built-in`, or the path of its schema.
    pub schema: String,
    pub doc_count: usize,
    pub custom: bool,
    /// JSON Schema of the front matter.
    #[schemars(with = "Map<String, Value>")]
    pub front_matter: Value,
}

#[derive(Serialize, JsonSchema)]
pub(crate) struct SearchResults {
    pub results: Vec<FoundDocument>,
    /// Documents that are relevant enough, shown or not.
    pub total_matches: usize,
    /// What ranked them: words alone, or words and meaning.
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
    /// Relative to the folder of the documents.
    path: String,
    title: String,
    /// Characters of the whole document.
    char_count: usize,
    /// From 0 to 1.
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
            relevance_score: (hit.score * 10_000.0).round() / 10_000.0,
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
    /// The lines of the document that fit best.
    passage: String,
    // Reference documentation has neither.
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
    /// Cites its sources as [1], [2], in their order.
    pub answer: String,
    /// Who wrote the answer: the gateway's model, the client's own model, or the documents themselves, which are quoted.
    /// `none`: nothing relevant was found.
    pub answer_mode: AnswerMode,
    pub sources: Vec<Location>,
    /// What ranked them: words alone, or words and meaning.
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
    /// Whether the file was written, or the index brought up to date with it.
    #[schemars(extend("enum" = ["written", "indexed"]))]
    pub status: &'static str,
    pub path: String,
    pub chunks: usize,
    /// null where documents are found by words alone, or are not embedded yet.
    pub embedding_dimensions: Option<usize>,
    /// Where the front matter of the file breaks the schema of its type.
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
    /// Documents.
    pub deleted_count: usize,
    pub deleted_chunks: usize,
    /// Their paths, the first of them where there are many.
    pub documents: Vec<String>,
    pub project_name: String,
    pub branch_name: Option<String>,
    pub path_hash: Option<String>,
    pub dry_run: bool,
}
