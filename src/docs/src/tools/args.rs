//! Parses the arguments of each tool, and checks them as far as that is possible without a project.
//!
//! The input schema has been checked before; everything is checked again here, so that the module does not depend on
//! its callers.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::model::Level;
use countersign_protocol::McpError;
use countersign_provider::{
    schema::{ArgumentError, Limit, Text, parse_arguments},
    text::invalid_argument,
};

/// The maximum number of bytes of a path.
const MAX_PATH_BYTES: usize = 1000;
/// The maximum number of paths in one call.
const MAX_PATHS: usize = 500;
/// The maximum number of bytes of a document that is written.
const MAX_CONTENT_BYTES: usize = 1 << 20;

type Query = Text<1, 2000>;
pub(crate) type TypeName = Text<1, 64>;

/// A relevance from 0 to 1, or `DEFAULT_PERCENT` if it is left out.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(try_from = "f64")]
#[schemars(description = "", extend("minimum" = 0, "maximum" = 1))]
pub(crate) struct Relevance<const DEFAULT_PERCENT: u8>(pub f64);

impl<const DEFAULT_PERCENT: u8> Default for Relevance<DEFAULT_PERCENT> {
    fn default() -> Self {
        Self(f64::from(DEFAULT_PERCENT) / 100.0)
    }
}

impl<const DEFAULT_PERCENT: u8> TryFrom<f64> for Relevance<DEFAULT_PERCENT> {
    type Error = ArgumentError;

    fn try_from(number: f64) -> Result<Self, ArgumentError> {
        let refused = || ArgumentError::new("maximum", "must be from 0 to 1.");
        (0.0..=1.0).contains(&number).then_some(Self(number)).ok_or_else(refused)
    }
}

/// The project and branch that a call names.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
pub(crate) struct TenantSelector {
    /// # Project
    /// The name of the project. Optional after activate_project in the same session; required in each call of a stateless
    /// client.
    #[schemars(length(min = 1, max = 64))]
    pub project_name: Option<String>,
    /// # Branch
    /// A git branch, if the project distinguishes branches. Default: the checked-out branch.
    #[schemars(length(min = 1, max = 250))]
    pub branch_name: Option<String>,
}

#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct ActivateArgs {
    /// # Path
    /// The path of a file below the project's root on the gateway's machine, as an alternative to project_name.
    #[schemars(length(min = 1, max = MAX_PATH_BYTES))]
    pub config_path: Option<String>,
    #[serde(flatten)]
    pub selector: TenantSelector,
}

#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct SearchArgs {
    /// # Query
    /// A question, keywords, an identifier or an error message.
    pub query: Query,
    /// # Types
    /// Restricts the search to these document types (see list_doc_types). Default: all.
    #[schemars(length(max = 64))]
    pub doc_types: Option<Vec<TypeName>>,
    /// # Limit
    /// The maximum number of results.
    #[serde(default)]
    pub limit: Limit<10, 50>,
    /// # Minimum relevance
    /// Omits documents of lower relevance, from 0 to 1.
    #[serde(default)]
    pub min_relevance_score: Relevance<50>,
    /// # Levels
    /// Restricts the search to these promotion levels. Default: all.
    #[schemars(length(max = 3))]
    pub promotion_levels: Option<Vec<Level>>,
    #[serde(flatten)]
    pub selector: TenantSelector,
}

#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct AskArgs {
    /// # Query
    /// The question.
    pub query: Query,
    /// # Types
    /// Restricts the search to these document types (see list_doc_types). Default: all.
    #[schemars(length(max = 64))]
    pub doc_types: Option<Vec<TypeName>>,
    /// # Sources
    /// The maximum number of sources.
    #[serde(default)]
    pub max_sources: Limit<3, 10>,
    /// # Minimum relevance
    /// Omits documents of lower relevance, from 0 to 1.
    #[serde(default)]
    pub min_relevance_score: Relevance<70>,
    /// # Minimum level
    /// Restricts the search to this promotion level and higher ones.
    pub min_promotion_level: Option<Level>,
    /// # Include critical documents
    /// Lists critical documents first, regardless of their relevance.
    #[serde(default = "include_critical")]
    pub include_critical: bool,
    #[serde(flatten)]
    pub selector: TenantSelector,
}

const fn include_critical() -> bool {
    true
}

#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct IndexDocumentArgs {
    /// # Path
    /// The path of the document, relative to the folder of the documents and inside the folder of its type, such as
    /// problems/pool-exhaustion.md.
    #[schemars(length(min = 1, max = MAX_PATH_BYTES))]
    path: String,
    /// # Content
    /// The whole document: YAML front matter between two lines of ---, then Markdown.
    #[schemars(length(max = MAX_CONTENT_BYTES))]
    content: Option<String>,
    #[serde(flatten)]
    selector: TenantSelector,
}

#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct UpdateLevelArgs {
    /// # Path
    /// The path of the document, relative to the folder of the documents.
    #[schemars(length(min = 1, max = MAX_PATH_BYTES))]
    document_path: String,
    /// # Level
    /// The new promotion level.
    promotion_level: Level,
    #[serde(flatten)]
    selector: TenantSelector,
}

#[derive(Clone, Debug, Deserialize, JsonSchema)]
pub(crate) struct DeleteDocumentsArgs {
    /// # Project
    /// The name of the project.
    #[schemars(length(min = 1, max = 64))]
    pub project_name: String,
    /// # Branch
    /// Restricts the deletion to this git branch. Default: all branches.
    #[schemars(length(min = 1, max = 250))]
    pub branch_name: Option<String>,
    /// # Root
    /// Restricts the deletion to the project root with this hash (see activate_project). Default: all roots.
    #[schemars(extend("pattern" = "^[0-9a-f]{16}$"))]
    pub path_hash: Option<String>,
    /// # Paths
    /// Restricts the deletion to documents with these paths. Default: all documents.
    #[schemars(length(min = 1, max = MAX_PATHS), inner(length(min = 1, max = MAX_PATH_BYTES)))]
    pub paths: Option<Vec<String>>,
    /// # Dry run
    /// Returns the documents that would be deleted, without deleting them. Needs no approval.
    #[serde(default)]
    pub dry_run: bool,
}

/// A call that writes.
#[derive(Clone, Debug)]
pub(crate) enum WriteCall {
    Put { selector: TenantSelector, path: String, content: String },
    Promote { selector: TenantSelector, path: String, level: Level },
    Delete(DeleteDocumentsArgs),
}

impl WriteCall {
    /// Returns the project that the call names, if any.
    pub fn project(&self) -> Option<&str> {
        match self {
            Self::Put { selector, .. } | Self::Promote { selector, .. } => selector.project_name.as_deref(),
            Self::Delete(request) => Some(&request.project_name),
        }
    }
}

/// A call of a writing tool that only reads, because of its arguments.
#[derive(Clone, Debug)]
pub(crate) enum ReadOnlyCall {
    Refresh { selector: TenantSelector, path: String },
    DryRun(DeleteDocumentsArgs),
}

/// A call of a writing tool, by whether it writes or only reads.
pub(crate) enum WritingToolCall {
    Write(WriteCall),
    Read(ReadOnlyCall),
}

impl WritingToolCall {
    /// Parses a call; `None` for a tool that never writes.
    pub fn parse(tool: &str, arguments: &RawValue) -> Option<Result<Self, McpError>> {
        match tool {
            "index_document" => Some(parse_arguments(arguments).and_then(|args| {
                let IndexDocumentArgs { path, content, selector } = args;
                check_length(&path, MAX_PATH_BYTES, "/path")?;
                let Some(content) = content else { return Ok(Self::Read(ReadOnlyCall::Refresh { selector, path })) };
                check_length(&content, MAX_CONTENT_BYTES, "/content")?;
                Ok(Self::Write(WriteCall::Put { selector, path, content }))
            })),
            "update_promotion_level" => Some(parse_arguments(arguments).and_then(|args| {
                let UpdateLevelArgs { document_path: path, promotion_level: level, selector } = args;
                check_length(&path, MAX_PATH_BYTES, "/document_path")?;
                Ok(Self::Write(WriteCall::Promote { selector, path, level }))
            })),
            "delete_documents" => Some(parse_arguments(arguments).and_then(|request: DeleteDocumentsArgs| {
                if request.paths.as_ref().is_some_and(|paths| paths.is_empty() || paths.len() > MAX_PATHS) {
                    let message = format!("`paths` must have 1 to {MAX_PATHS} paths.");
                    return Err(invalid_argument("/paths", "maxItems", message));
                }
                for path in request.paths.iter().flatten() {
                    check_length(path, MAX_PATH_BYTES, "/paths")?;
                }
                Ok(if request.dry_run {
                    Self::Read(ReadOnlyCall::DryRun(request))
                } else {
                    Self::Write(WriteCall::Delete(request))
                })
            })),
            _ => None,
        }
    }
}

fn check_length(text: &str, max: usize, pointer: &str) -> Result<(), McpError> {
    match text.len() {
        0 if pointer != "/content" => Err(invalid_argument(pointer, "minLength", "It is empty.")),
        len if len > max => {
            Err(invalid_argument(pointer, "maxLength", format!("It has {len} bytes, and {max} are allowed.")))
        }
        _ => Ok(()),
    }
}
