//! Parses the arguments of each tool, and checks them as far as that is possible without a project.
//!
//! The input schema has been checked before; everything is checked again here, so that the module does not depend on
//! its callers.

use serde::{Deserialize, de::DeserializeOwned};
use serde_json::value::RawValue;

use crate::model::Level;
use countersign_protocol::{ErrorKind, McpError};
use countersign_provider::text::invalid_argument;

/// Characters of a query.
pub(crate) const QUERY_MAX: usize = 2000;
/// Bytes of a path.
pub(crate) const PATH_MAX: usize = 1000;
/// Paths in one call.
pub(crate) const PATHS_MAX: usize = 500;
/// Documents in one answer.
pub(crate) const LIMIT_MAX: usize = 50;
pub(crate) const SOURCES_MAX: usize = 10;
/// Bytes of a document that is written.
pub(crate) const CONTENT_MAX: usize = 1 << 20;

/// The project and branch that a call names.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct TenantSelector {
    pub project_name: Option<String>,
    pub branch_name: Option<String>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Activate {
    pub config_path: Option<String>,
    #[serde(flatten)]
    pub tenant: TenantSelector,
}

#[derive(Debug, Deserialize)]
pub(crate) struct ListTypes {
    #[serde(flatten)]
    pub tenant: TenantSelector,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Search {
    pub query: String,
    pub doc_types: Option<Vec<String>>,
    pub limit: Option<usize>,
    pub min_relevance_score: Option<f64>,
    pub promotion_levels: Option<Vec<Level>>,
    #[serde(flatten)]
    pub tenant: TenantSelector,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Ask {
    pub query: String,
    pub doc_types: Option<Vec<String>>,
    pub max_sources: Option<usize>,
    pub min_relevance_score: Option<f64>,
    pub min_promotion_level: Option<Level>,
    pub include_critical: Option<bool>,
    #[serde(flatten)]
    pub tenant: TenantSelector,
}

#[derive(Debug, Deserialize)]
struct IndexArgs {
    path: String,
    content: Option<String>,
    #[serde(flatten)]
    tenant: TenantSelector,
}

#[derive(Debug, Deserialize)]
struct PromoteArgs {
    document_path: String,
    promotion_level: Level,
    #[serde(flatten)]
    tenant: TenantSelector,
}

#[derive(Debug, Deserialize)]
struct DeleteArgs {
    path_hash: Option<String>,
    paths: Option<Vec<String>>,
    #[serde(default)]
    dry_run: bool,
    #[serde(flatten)]
    tenant: TenantSelector,
}

/// The documents to delete.
#[derive(Clone, Debug)]
pub(crate) struct Delete {
    pub project: String,
    pub branch: Option<String>,
    pub path_hash: Option<String>,
    pub paths: Option<Vec<String>>,
}

/// A call that writes.
#[derive(Clone, Debug)]
pub(crate) enum WriteCall {
    Put { tenant: TenantSelector, path: String, content: String },
    Promote { tenant: TenantSelector, path: String, level: Level },
    Delete(Delete),
}

impl WriteCall {
    /// Returns the project that the call names, if any.
    pub fn project(&self) -> Option<&str> {
        match self {
            Self::Put { tenant: selector, .. } | Self::Promote { tenant: selector, .. } => {
                selector.project_name.as_deref()
            }
            Self::Delete(delete) => Some(&delete.project),
        }
    }
}

/// A call of a writing tool that only reads.
#[derive(Clone, Debug)]
pub(crate) enum ReadCall {
    Refresh { tenant: TenantSelector, path: String },
    DryRun(Delete),
}

/// A call of a writing tool, by whether it writes or only reads.
pub(crate) enum ToolCall {
    Write(WriteCall),
    Read(ReadCall),
}

pub(crate) fn parse<T: DeserializeOwned>(arguments: &RawValue) -> Result<T, McpError> {
    serde_json::from_str(arguments.get()).map_err(|error| {
        invalid_argument("", "type", format!("The arguments do not fit the tool's input schema: {error}."))
    })
}

impl ToolCall {
    /// Parses a call; `None` for a tool that never writes.
    pub fn parse(tool: &str, arguments: &RawValue) -> Option<Result<Self, McpError>> {
        match tool {
            "index_document" => Some(parse::<IndexArgs>(arguments).and_then(|args| {
                let IndexArgs { path, content, tenant: selector } = args;
                check_length(&path, PATH_MAX, "/path")?;
                let Some(content) = content else {
                    return Ok(Self::Read(ReadCall::Refresh { tenant: selector, path }));
                };
                check_length(&content, CONTENT_MAX, "/content")?;
                Ok(Self::Write(WriteCall::Put { tenant: selector, path, content }))
            })),
            "update_promotion_level" => Some(parse::<PromoteArgs>(arguments).and_then(|args| {
                let PromoteArgs { document_path: path, promotion_level: level, tenant: selector } = args;
                check_length(&path, PATH_MAX, "/document_path")?;
                Ok(Self::Write(WriteCall::Promote { tenant: selector, path, level }))
            })),
            "delete_documents" => Some(parse::<DeleteArgs>(arguments).and_then(|args| {
                let DeleteArgs { path_hash, paths, dry_run, tenant: selector } = args;
                let project = selector.project_name.ok_or_else(|| {
                    McpError::new(ErrorKind::ProjectNotActive, "delete_documents needs project_name.")
                })?;
                if paths.as_ref().is_some_and(|paths| paths.is_empty() || paths.len() > PATHS_MAX) {
                    let message = format!("`paths` has 1 to {PATHS_MAX} paths.");
                    return Err(invalid_argument("/paths", "maxItems", message));
                }
                for path in paths.iter().flatten() {
                    check_length(path, PATH_MAX, "/paths")?;
                }
                let delete = Delete { project, branch: selector.branch_name, path_hash, paths };
                Ok(if dry_run { Self::Read(ReadCall::DryRun(delete)) } else { Self::Write(WriteCall::Delete(delete)) })
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

/// Checks the length of a query, and trims it.
pub(crate) fn check_query(text: &str) -> Result<&str, McpError> {
    let trimmed = text.trim();
    if trimmed.is_empty() {
        return Err(invalid_argument("/query", "minLength", "The query is empty."));
    }
    if trimmed.chars().nth(QUERY_MAX).is_some() {
        return Err(invalid_argument("/query", "maxLength", format!("A query has at most {QUERY_MAX} characters.")));
    }
    Ok(trimmed)
}

/// Checks that a count is within its bounds.
pub(crate) fn check_count(value: Option<usize>, default: usize, max: usize, pointer: &str) -> Result<usize, McpError> {
    match value.unwrap_or(default) {
        value if (1..=max).contains(&value) => Ok(value),
        _ => Err(invalid_argument(pointer, "maximum", format!("Write a number from 1 to {max}."))),
    }
}

/// Checks that a relevance is between 0 and 1.
pub(crate) fn check_score(value: Option<f64>, default: f64) -> Result<f64, McpError> {
    match value.unwrap_or(default) {
        value if (0.0..=1.0).contains(&value) => Ok(value),
        _ => Err(invalid_argument("/min_relevance_score", "maximum", "Write a number from 0 to 1.")),
    }
}
