//! The arguments of each write, parsed and checked as far as that goes without the database.
//!
//! The input schema has been checked before; everything is checked here again, so that the tracker does not lean
//! on its callers.

use serde::{Deserialize, Deserializer, de::DeserializeOwned};
use serde_json::value::RawValue;

use super::{
    model::{HOURS_MAX, IssueType, NAME_MAX, PROJECT_TEXT_MAX, Priority, Status, TEXT_MAX, TITLE_MAX},
    refs::{EntityRef, bounded, invalid, issue_argument, uuid_argument},
};
use countersign_protocol::McpError;

/// The arguments as their type; whatever does not fit is `VALIDATION_FAILED`.
pub(super) fn parse<T: DeserializeOwned>(arguments: &RawValue) -> Result<T, McpError> {
    serde_json::from_str(arguments.get())
        .map_err(|error| invalid("", "type", format!("The arguments do not fit the tool's input schema: {error}.")))
}

/// Tells an absent member (`None`) from a null one (`Some(None)`).
pub(super) fn present<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Option<Option<T>>, D::Error> {
    Option::deserialize(deserializer).map(Some)
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

pub(super) fn optional_uuid(pointer: &str, text: Option<String>) -> Result<Option<String>, McpError> {
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
