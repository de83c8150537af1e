//! The arguments of each tool, parsed and checked as far as that goes without a project.
//!
//! The input schema has been checked before; everything is checked here again, so that the module does not lean on its
//! callers.

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

/// Whose documents a call is about.
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

/// Which documents are deleted.
#[derive(Clone, Debug)]
pub(crate) struct Delete {
    pub project: String,
    pub branch: Option<String>,
    pub path_hash: Option<String>,
    pub paths: Option<Vec<String>>,
}

/// A call of a tool that can write.
#[derive(Clone, Debug)]
pub(crate) enum WriteCall {
    Put { tenant: TenantSelector, path: String, content: String },
    Promote { tenant: TenantSelector, path: String, level: Level },
    Delete(Delete),
}

impl WriteCall {
    /// The project that it is about, if it names one.
    pub fn project(&self) -> Option<&str> {
        match self {
            Self::Put { tenant: whose, .. } | Self::Promote { tenant: whose, .. } => whose.project_name.as_deref(),
            Self::Delete(delete) => Some(&delete.project),
        }
    }
}

/// The same tools' calls that only read.
#[derive(Clone, Debug)]
pub(crate) enum ReadCall {
    Refresh { tenant: TenantSelector, path: String },
    DryRun(Delete),
}

/// A call of a tool that can write: what it does, or only looks at.
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
    /// `None` for a tool that never writes.
    pub fn parse(tool: &str, arguments: &RawValue) -> Option<Result<Self, McpError>> {
        match tool {
            "index_document" => Some(parse::<IndexArgs>(arguments).and_then(|args| {
                let IndexArgs { path, content, tenant: whose } = args;
                check_length(&path, PATH_MAX, "/path")?;
                let Some(content) = content else { return Ok(Self::Read(ReadCall::Refresh { tenant: whose, path })) };
                check_length(&content, CONTENT_MAX, "/content")?;
                Ok(Self::Write(WriteCall::Put { tenant: whose, path, content }))
            })),
            "update_promotion_level" => Some(parse::<PromoteArgs>(arguments).and_then(|args| {
                let PromoteArgs { document_path: path, promotion_level: level, tenant: whose } = args;
                check_length(&path, PATH_MAX, "/document_path")?;
                Ok(Self::Write(WriteCall::Promote { tenant: whose, path, level }))
            })),
            "delete_documents" => Some(parse::<DeleteArgs>(arguments).and_then(|args| {
                let DeleteArgs { path_hash, paths, dry_run, tenant: whose } = args;
                let project = whose.project_name.ok_or_else(|| {
                    McpError::new(ErrorKind::ProjectNotActive, "delete_documents needs project_name.")
                })?;
                if paths.as_ref().is_some_and(|paths| paths.is_empty() || paths.len() > PATHS_MAX) {
                    let message = format!("`paths` has 1 to {PATHS_MAX} paths.");
                    return Err(invalid_argument("/paths", "maxItems", message));
                }
                for path in paths.iter().flatten() {
                    check_length(path, PATH_MAX, "/paths")?;
                }
                let delete = Delete { project, branch: whose.branch_name, path_hash, paths };
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

/// What a query asks for, within its bounds.
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

/// A count within its bounds.
pub(crate) fn count(value: Option<usize>, default: usize, max: usize, pointer: &str) -> Result<usize, McpError> {
    match value.unwrap_or(default) {
        value if (1..=max).contains(&value) => Ok(value),
        _ => Err(invalid_argument(pointer, "maximum", format!("Write a number from 1 to {max}."))),
    }
}

/// A relevance from 0 to 1.
pub(crate) fn score(value: Option<f64>, default: f64) -> Result<f64, McpError> {
    match value.unwrap_or(default) {
        value if (0.0..=1.0).contains(&value) => Ok(value),
        _ => Err(invalid_argument("/min_relevance_score", "maximum", "Write a number from 0 to 1.")),
    }
}
