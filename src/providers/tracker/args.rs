//! The arguments of each tool, parsed and checked as far as that goes without the database.
//!
//! The input schema has been checked before; everything is checked here again, so that the tracker does not lean
//! on its callers.

use serde::{Deserialize, Deserializer, de::DeserializeOwned};
use serde_json::value::RawValue;

use super::{
    model::{IssueType, Priority, Status},
    refs::{EntityRef, bounded, invalid, issue_argument, project_argument, uuid_argument},
};
use crate::protocol::McpError;

/// Characters.
pub(super) const TITLE_MAX: usize = 200;
pub(super) const NAME_MAX: usize = 100;
pub(super) const TEXT_MAX: usize = 65_536;
pub(super) const PROJECT_TEXT_MAX: usize = 10_000;
pub(super) const QUERY_MAX: usize = 500;
pub(super) const CURSOR_MAX: usize = 128;
pub(super) const HOURS_MAX: f64 = 100_000.0;
/// Entities on a page.
pub(super) const PAGE_DEFAULT: usize = 20;
pub(super) const PAGE_MAX: usize = 100;
pub(super) const SEARCH_MAX: usize = 50;

pub(super) fn parse<T: DeserializeOwned>(arguments: &RawValue) -> Result<T, McpError> {
    serde_json::from_str(arguments.get())
        .map_err(|error| invalid("", "type", format!("The arguments do not fit the tool's input schema: {error}.")))
}

/// Tells an absent member (`None`) from a null one (`Some(None)`).
fn present<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Option<Option<T>>, D::Error> {
    Option::deserialize(deserializer).map(Some)
}

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

fn hours(value: Option<f64>) -> Result<Option<f64>, McpError> {
    match value {
        Some(h) if !h.is_finite() || h < 0.0 => {
            Err(invalid("/estimatedHours", "minimum", "estimatedHours must be 0 or more."))
        }
        Some(h) if h > HOURS_MAX => {
            Err(invalid("/estimatedHours", "maximum", format!("estimatedHours must be at most {HOURS_MAX}.")))
        }
        // No negative zero in the database.
        other => Ok(other.map(|h| h + 0.0)),
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

/// A write that is well formed.
#[derive(Clone, Debug)]
pub(super) enum Write {
    CreateProject { name: String, key: Option<String>, description: String },
    CreateIssue(Box<NewIssue>),
    UpdateIssue { issue: EntityRef, patch: Box<Patch> },
    UpdateStatus { issue: EntityRef, to: Status },
    Assign { issue: EntityRef, assignee: Option<String> },
    Comment { issue: EntityRef, content: String },
    Delete { issue: EntityRef },
}

#[derive(Clone, Debug)]
pub(super) struct NewIssue {
    pub project: String,
    pub title: String,
    pub kind: IssueType,
    pub description: String,
    pub priority: Priority,
    pub assignee: Option<String>,
    pub hours: Option<f64>,
    pub parent: Option<String>,
}

/// What to set; `None` leaves a field, an inner `None` clears it.
#[derive(Clone, Debug, Default)]
pub(super) struct Patch {
    pub title: Option<String>,
    pub description: Option<String>,
    pub kind: Option<IssueType>,
    pub priority: Option<Priority>,
    pub hours: Option<Option<f64>>,
    pub parent: Option<Option<String>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct CreateProjectArgs {
    name: String,
    key: Option<String>,
    description: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct CreateIssueArgs {
    project_id: String,
    title: String,
    #[serde(rename = "type")]
    kind: IssueType,
    description: Option<String>,
    priority: Option<Priority>,
    assignee_id: Option<String>,
    estimated_hours: Option<f64>,
    parent_id: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct UpdateIssueArgs {
    issue_id: String,
    title: Option<String>,
    description: Option<String>,
    #[serde(rename = "type")]
    kind: Option<IssueType>,
    priority: Option<Priority>,
    #[serde(default, deserialize_with = "present")]
    estimated_hours: Option<Option<f64>>,
    #[serde(default, deserialize_with = "present")]
    parent_id: Option<Option<String>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct UpdateStatusArgs {
    issue_id: String,
    new_status: Status,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct AssignArgs {
    issue_id: String,
    #[serde(default, deserialize_with = "present")]
    assignee_id: Option<Option<String>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct CommentArgs {
    issue_id: String,
    content: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct DeleteArgs {
    issue_id: String,
}

impl Write {
    /// `None` if the tracker has no write of that name.
    pub fn parse(tool: &str, arguments: &RawValue) -> Option<Result<Self, McpError>> {
        Some(match tool {
            "create_project" => create_project(arguments),
            "create_issue" => create_issue(arguments),
            "update_issue" => update_issue(arguments),
            "update_status" => parse::<UpdateStatusArgs>(arguments)
                .and_then(|a| Ok(Self::UpdateStatus { issue: issue(&a.issue_id)?, to: a.new_status })),
            "assign_issue" => assign(arguments),
            "add_comment" => parse::<CommentArgs>(arguments).and_then(|a| {
                bounded("/content", &a.content, 1, TEXT_MAX)?;
                Ok(Self::Comment { issue: issue(&a.issue_id)?, content: a.content })
            }),
            "delete_issue" => {
                parse::<DeleteArgs>(arguments).and_then(|a| Ok(Self::Delete { issue: issue(&a.issue_id)? }))
            }
            _ => return None,
        })
    }
}

fn issue(text: &str) -> Result<EntityRef, McpError> {
    issue_argument("/issueId", text)
}

fn optional_uuid(pointer: &str, text: Option<String>) -> Result<Option<String>, McpError> {
    text.map(|text| uuid_argument(pointer, &text)).transpose()
}

fn create_project(arguments: &RawValue) -> Result<Write, McpError> {
    let a: CreateProjectArgs = parse(arguments)?;
    bounded("/name", &a.name, 1, NAME_MAX)?;
    let description = a.description.unwrap_or_default();
    bounded("/description", &description, 0, PROJECT_TEXT_MAX)?;
    if let Some(key) = &a.key
        && !((2..=10).contains(&key.len()) && key.bytes().all(|b| b.is_ascii_uppercase()))
    {
        return Err(invalid("/key", "pattern", "key must be 2 to 10 capital letters, such as CORE."));
    }
    Ok(Write::CreateProject { name: a.name, key: a.key, description })
}

fn create_issue(arguments: &RawValue) -> Result<Write, McpError> {
    let a: CreateIssueArgs = parse(arguments)?;
    bounded("/title", &a.title, 1, TITLE_MAX)?;
    let description = a.description.unwrap_or_default();
    bounded("/description", &description, 0, TEXT_MAX)?;
    Ok(Write::CreateIssue(Box::new(NewIssue {
        project: uuid_argument("/projectId", &a.project_id)?,
        title: a.title,
        kind: a.kind,
        description,
        priority: a.priority.unwrap_or(Priority::Medium),
        assignee: optional_uuid("/assigneeId", a.assignee_id)?,
        hours: hours(a.estimated_hours)?,
        parent: optional_uuid("/parentId", a.parent_id)?,
    })))
}

fn update_issue(arguments: &RawValue) -> Result<Write, McpError> {
    let a: UpdateIssueArgs = parse(arguments)?;
    if let Some(title) = &a.title {
        bounded("/title", title, 1, TITLE_MAX)?;
    }
    if let Some(description) = &a.description {
        bounded("/description", description, 0, TEXT_MAX)?;
    }
    let patch = Patch {
        title: a.title,
        description: a.description,
        kind: a.kind,
        priority: a.priority,
        hours: a.estimated_hours.map(hours).transpose()?,
        parent: a.parent_id.map(|id| optional_uuid("/parentId", id)).transpose()?,
    };
    let empty = patch.title.is_none()
        && patch.description.is_none()
        && patch.kind.is_none()
        && patch.priority.is_none()
        && patch.hours.is_none()
        && patch.parent.is_none();
    if empty {
        return Err(invalid(
            "",
            "minProperties",
            "Give at least one of title, description, type, priority, estimatedHours and parentId.",
        ));
    }
    Ok(Write::UpdateIssue { issue: issue(&a.issue_id)?, patch: Box::new(patch) })
}

fn assign(arguments: &RawValue) -> Result<Write, McpError> {
    let a: AssignArgs = parse(arguments)?;
    let Some(assignee) = a.assignee_id else {
        return Err(invalid("/assigneeId", "required", "Give assigneeId; null leaves the issue without an assignee."));
    };
    Ok(Write::Assign { issue: issue(&a.issue_id)?, assignee: optional_uuid("/assigneeId", assignee)? })
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
        Ok(Self { issue: issue(&a.issue_id)?, include: a.include })
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
