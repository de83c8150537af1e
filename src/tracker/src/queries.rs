//! The arguments of each read, parsed and checked as far as that goes without the database.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::{
    args::{optional_uuid, parse, present},
    model::{IssueType, Priority, Status},
    refs::{EntityRef, bounded, invalid, issue_argument, project_argument},
};
use countersign_protocol::McpError;

/// Characters.
pub(super) const QUERY_MAX: usize = 500;
pub(super) const CURSOR_MAX: usize = 128;
/// Entities on a page.
pub(super) const PAGE_DEFAULT: usize = 20;
pub(super) const PAGE_MAX: usize = 100;
pub(super) const SEARCH_MAX: usize = 50;

/// One value or several.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum OneOrMany<T> {
    One(T),
    Many(Vec<T>),
}

impl<T: Ord + Copy> OneOrMany<T> {
    /// Sorted, each once.
    fn into_vec(self) -> Vec<T> {
        let mut list = match self {
            Self::One(value) => vec![value],
            Self::Many(list) => list,
        };
        list.sort_unstable();
        list.dedup();
        list
    }
}

fn limit(value: Option<usize>, max: usize) -> Result<usize, McpError> {
    match value {
        None => Ok(PAGE_DEFAULT.min(max)),
        Some(n) if (1..=max).contains(&n) => Ok(n),
        Some(_) => Err(invalid("/limit", "maximum", format!("limit must be from 1 to {max}."))),
    }
}

fn cursor(value: Option<String>) -> Result<Option<String>, McpError> {
    if let Some(text) = &value {
        bounded("/cursor", text, 0, CURSOR_MAX)?;
    }
    Ok(value)
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ListProjectsArgs {
    limit: Option<usize>,
    cursor: Option<String>,
    #[serde(default)]
    include_people: bool,
}

pub(super) struct ListProjects {
    pub limit: usize,
    pub cursor: Option<String>,
    pub include_people: bool,
}

impl ListProjects {
    pub fn parse(arguments: &RawValue) -> Result<Self, McpError> {
        let a: ListProjectsArgs = parse(arguments)?;
        Ok(Self { limit: limit(a.limit, PAGE_MAX)?, cursor: cursor(a.cursor)?, include_people: a.include_people })
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ListIssuesArgs {
    project_id: Option<String>,
    status: Option<OneOrMany<Status>>,
    #[serde(rename = "type")]
    kind: Option<OneOrMany<IssueType>>,
    priority: Option<OneOrMany<Priority>>,
    #[serde(default, deserialize_with = "present")]
    assignee_id: Option<Option<String>>,
    #[serde(default, deserialize_with = "present")]
    parent_id: Option<Option<String>>,
    text: Option<String>,
    limit: Option<usize>,
    cursor: Option<String>,
}

/// Which issues to list. Empty lists and `None` mean any; an inner `None` means those without.
#[derive(Clone, Debug, Default, Hash)]
pub(super) struct IssueFilter {
    pub project: Option<EntityRef>,
    pub status: Vec<Status>,
    pub kind: Vec<IssueType>,
    pub priority: Vec<Priority>,
    pub assignee: Option<Option<String>>,
    pub parent: Option<Option<EntityRef>>,
    pub text: Option<String>,
}

pub(super) struct ListIssues {
    pub filter: IssueFilter,
    pub limit: usize,
    pub cursor: Option<String>,
}

impl ListIssues {
    pub fn parse(arguments: &RawValue) -> Result<Self, McpError> {
        let a: ListIssuesArgs = parse(arguments)?;
        if let Some(text) = &a.text {
            bounded("/text", text, 0, QUERY_MAX)?;
        }
        let filter = IssueFilter {
            project: a.project_id.map(|p| project_argument("/projectId", &p)).transpose()?,
            status: a.status.map(OneOrMany::into_vec).unwrap_or_default(),
            kind: a.kind.map(OneOrMany::into_vec).unwrap_or_default(),
            priority: a.priority.map(OneOrMany::into_vec).unwrap_or_default(),
            assignee: a.assignee_id.map(|id| optional_uuid("/assigneeId", id)).transpose()?,
            parent: a.parent_id.map(|id| id.map(|id| issue_argument("/parentId", &id)).transpose()).transpose()?,
            text: a.text.filter(|t| !t.trim().is_empty()),
        };
        Ok(Self { filter, limit: limit(a.limit, PAGE_MAX)?, cursor: cursor(a.cursor)? })
    }
}

/// What `get_issue` adds to the issue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Include {
    Comments,
    Children,
    History,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct GetIssueArgs {
    issue_id: String,
    #[serde(default)]
    include: Vec<Include>,
}

pub(super) struct GetIssue {
    pub issue: EntityRef,
    pub include: Vec<Include>,
}

impl GetIssue {
    pub fn parse(arguments: &RawValue) -> Result<Self, McpError> {
        let a: GetIssueArgs = parse(arguments)?;
        Ok(Self { issue: issue_argument("/issueId", &a.issue_id)?, include: a.include })
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct SearchArgs {
    query: String,
    project_id: Option<String>,
    limit: Option<usize>,
}

pub(super) struct Search {
    pub query: String,
    pub project: Option<EntityRef>,
    pub limit: usize,
}

impl Search {
    pub fn parse(arguments: &RawValue) -> Result<Self, McpError> {
        let a: SearchArgs = parse(arguments)?;
        bounded("/query", &a.query, 1, QUERY_MAX)?;
        Ok(Self {
            query: a.query,
            project: a.project_id.map(|p| project_argument("/projectId", &p)).transpose()?,
            limit: limit(a.limit, SEARCH_MAX)?,
        })
    }
}
