//! The arguments of the tools. Their types check all that can be checked without the database.

use std::{collections::BTreeSet, hash::Hash};

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::model::{
    CommentText, Description, Hours, IssueType, Priority, ProjectDescription, ProjectKey, ProjectName, Status, Title,
    Uuid,
};
use countersign_protocol::McpError;
use countersign_provider::{
    schema::{ArgumentError, Limit, Nullable, Text, parse_arguments},
    text::invalid_argument,
};

pub(super) type PageSize = Limit<20, 100>;
/// The maximum number of characters of a query.
const MAX_QUERY_CHARS: usize = 500;

/// A well-formed UUID or key of an entity, which may not exist.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum EntityRef {
    Id(Uuid),
    Key(String),
}

impl EntityRef {
    pub fn parse_issue(text: &str) -> Option<Self> {
        Uuid::parse(text).map(Self::Id).or_else(|| parse_issue_key(text).map(Self::Key))
    }

    pub fn parse_project(text: &str) -> Option<Self> {
        Uuid::parse(text).map(Self::Id).or_else(|| parse_project_key(text).map(Self::Key))
    }

    pub fn as_str(&self) -> &str {
        match self {
            Self::Id(Uuid(text)) | Self::Key(text) => text,
        }
    }
}

/// Parses the key of a project in any case, and returns it in capital letters.
fn parse_project_key(text: &str) -> Option<String> {
    let is_key = (2..=10).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_alphabetic());
    is_key.then(|| text.to_ascii_uppercase())
}

/// Parses the key of an issue in any case, such as `core-12`, and returns it in capital letters.
fn parse_issue_key(text: &str) -> Option<String> {
    let (project, number) = text.split_once('-')?;
    let project = parse_project_key(project)?;
    let is_number =
        (1..=9).contains(&number.len()) && number.bytes().all(|b| b.is_ascii_digit()) && !number.starts_with('0');
    is_number.then(|| format!("{project}-{number}"))
}

#[derive(Clone, Debug, Hash, Deserialize, JsonSchema)]
#[serde(try_from = "String")]
#[schemars(extend("anyOf" = [
    { "format": "uuid", "minLength": 36, "maxLength": 36 }, { "pattern": "^[A-Za-z]{2,10}-[1-9][0-9]{0,8}$" }
]))]
pub(super) struct IssueRef(#[schemars(with = "String")] pub EntityRef);

impl TryFrom<String> for IssueRef {
    type Error = ArgumentError;

    fn try_from(text: String) -> Result<Self, ArgumentError> {
        let invalid = || ArgumentError::new("anyOf", "must be an issue's UUID or its key, such as CORE-12.");
        EntityRef::parse_issue(&text).map(Self).ok_or_else(invalid)
    }
}

#[derive(Clone, Debug, Hash, Deserialize, JsonSchema)]
#[serde(try_from = "String")]
#[schemars(extend("anyOf" = [
    { "format": "uuid", "minLength": 36, "maxLength": 36 }, { "pattern": "^[A-Za-z]{2,10}$" }
]))]
pub(super) struct ProjectRef(#[schemars(with = "String")] pub EntityRef);

impl TryFrom<String> for ProjectRef {
    type Error = ArgumentError;

    fn try_from(text: String) -> Result<Self, ArgumentError> {
        let invalid = || ArgumentError::new("anyOf", "must be a project's UUID or its key, such as CORE.");
        EntityRef::parse_project(&text).map(Self).ok_or_else(invalid)
    }
}

/// Allowed values, each once; empty if all are allowed.
#[derive(Clone, Debug, Deserialize, Hash, JsonSchema)]
#[serde(from = "OneOrMany<T>", bound(deserialize = "T: Ord + Deserialize<'de>"))]
pub(super) struct Choices<T>(pub BTreeSet<T>);

#[derive(Deserialize, JsonSchema)]
#[serde(untagged, bound(deserialize = "T: Ord + Deserialize<'de>"))]
enum OneOrMany<T> {
    One(T),
    Many(#[schemars(length(min = 1, max = 10))] BTreeSet<T>),
}

impl<T: Ord> From<OneOrMany<T>> for Choices<T> {
    fn from(values: OneOrMany<T>) -> Self {
        match values {
            OneOrMany::One(value) => Self(BTreeSet::from([value])),
            OneOrMany::Many(values) => Self(values),
        }
    }
}

impl<T> Default for Choices<T> {
    fn default() -> Self {
        Self(BTreeSet::new())
    }
}

#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct ListProjects {
    /// # Include people
    /// If true, the answer also lists the people to whom issues can be assigned, with their ids.
    #[serde(default)]
    pub include_people: bool,
    /// # Limit
    /// The maximum number of projects in the answer.
    #[serde(default)]
    pub limit: PageSize,
    /// # Cursor
    /// The `nextCursor` of the previous page.
    pub cursor: Option<Text<0, 128>>,
}

#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct ListIssues {
    /// # Project
    /// Limits the answer to issues of this project, given by its UUID or its key, such as CORE.
    pub project_id: Option<ProjectRef>,
    /// # Status
    /// Limits the answer to issues with this status, or with one of these.
    #[serde(default)]
    pub status: Choices<Status>,
    /// # Type
    /// Limits the answer to issues of this type, or of one of these.
    #[serde(default, rename = "type")]
    pub kind: Choices<IssueType>,
    /// # Priority
    /// Limits the answer to issues with this priority, or with one of these.
    #[serde(default)]
    pub priority: Choices<Priority>,
    /// # Assignee
    /// Limits the answer to issues of the person with this UUID, or to issues without an assignee if it is null.
    #[serde(default)]
    pub assignee_id: Nullable<Uuid>,
    /// # Parent
    /// Limits the answer to children of this issue, given by its UUID or its key, or to issues without a parent if it
    /// is null.
    #[serde(default)]
    pub parent_id: Nullable<IssueRef>,
    /// # Text
    /// Limits the answer to issues that have all these words in their key, title or description.
    pub text: Option<Text<0, MAX_QUERY_CHARS>>,
    /// # Limit
    /// The maximum number of issues in the answer.
    #[serde(default)]
    pub limit: PageSize,
    /// # Cursor
    /// The `nextCursor` of the previous page, which had the same filters.
    pub cursor: Option<Text<0, 128>>,
}

impl ListIssues {
    /// Returns the text whose words issues must have, if there is one.
    pub fn search_text(&self) -> Option<&str> {
        self.text.as_deref().map(|text| text.trim()).filter(|text| !text.is_empty())
    }

    /// Returns the filters, without the page. A cursor is valid only for the same filters.
    pub fn filters(&self) -> impl Hash {
        let Self { project_id, status, kind, priority, assignee_id, parent_id, .. } = self;
        (project_id, status, kind, priority, &assignee_id.0, &parent_id.0, self.search_text())
    }

    /// Returns `true` if an index of the database covers exactly these filters, so that only the rows of the page are read.
    pub fn has_index(&self) -> bool {
        let has_unindexed_filter =
            !self.kind.0.is_empty() || !self.priority.0.is_empty() || self.search_text().is_some();
        let (has_project, status_count) = (self.project_id.is_some(), self.status.0.len());
        let (has_assignee, has_parent) = (self.assignee_id.0.is_some(), self.parent_id.0.is_some());
        let is_combination_indexed = match (has_project, status_count, has_assignee, has_parent) {
            (_, 0, false, false) | (true, 1, false, false) => true,
            (false, 0, has_assignee, has_parent) => has_assignee != has_parent,
            _ => false,
        };
        !has_unindexed_filter && is_combination_indexed
    }
}

/// A part that `get_issue` adds to the issue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(description = "")]
pub(super) enum Include {
    Comments,
    Children,
    History,
}

#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct GetIssue {
    /// # Issue
    /// The UUID or the key of the issue, such as CORE-12.
    pub issue_id: IssueRef,
    /// # Include
    /// The parts to add to the answer.
    #[serde(default)]
    #[schemars(length(max = 3))]
    pub include: BTreeSet<Include>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct SearchIssues {
    /// # Query
    /// The words to search for.
    pub query: Text<1, MAX_QUERY_CHARS>,
    /// # Project
    /// Limits the answer to issues of this project, given by its UUID or its key, such as CORE.
    pub project_id: Option<ProjectRef>,
    /// # Limit
    /// The maximum number of issues in the answer.
    #[serde(default)]
    pub limit: Limit<20, 50>,
}

#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct CreateProject {
    /// # Name
    /// The name of the project.
    pub name: ProjectName,
    /// # Key
    /// The key of the project: 2 to 10 capital letters that no other project uses.
    pub key: Option<ProjectKey>,
    /// # Description
    /// The purpose of the project, in Markdown.
    #[serde(default)]
    pub description: ProjectDescription,
}

#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct CreateIssue {
    /// # Project
    /// The UUID of the project, which list_projects returns.
    pub project_id: Uuid,
    /// # Title
    /// The title of the issue, in one line.
    pub title: Title,
    /// # Type
    /// The type of the issue. A Task needs a parent that is a Story or an Epic.
    #[serde(rename = "type")]
    pub kind: IssueType,
    /// # Description
    /// The details of the issue, in Markdown.
    #[serde(default)]
    pub description: Description,
    /// # Priority
    /// The urgency of the issue.
    #[serde(default)]
    pub priority: Priority,
    /// # Assignee
    /// The UUID of the person who does the work, which list_projects returns with includePeople.
    pub assignee_id: Option<Uuid>,
    /// # Estimated hours
    /// The estimated work in hours.
    pub estimated_hours: Option<Hours>,
    /// # Parent
    /// The UUID of the parent, an issue of the same project. A Task needs a parent.
    pub parent_id: Option<Uuid>,
}

#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(extend("minProperties" = 2))]
pub(super) struct UpdateIssue {
    /// # Issue
    /// The UUID or the key of the issue, such as CORE-12.
    pub issue_id: IssueRef,
    /// # Title
    /// The new title, in one line.
    pub title: Option<Title>,
    /// # Description
    /// The complete new description, in Markdown. An empty text removes it.
    pub description: Option<Description>,
    /// # Type
    /// The new type. It must fit the parent and the children of the issue.
    #[serde(rename = "type")]
    pub kind: Option<IssueType>,
    /// # Priority
    /// The new priority.
    pub priority: Option<Priority>,
    /// # Estimated hours
    /// The new estimate in hours. The value null removes it.
    #[serde(default)]
    pub estimated_hours: Nullable<Hours>,
    /// # Parent
    /// The UUID of the new parent. The value null removes the parent.
    #[serde(default)]
    pub parent_id: Nullable<Uuid>,
}

impl UpdateIssue {
    fn is_empty(&self) -> bool {
        self.title.is_none()
            && self.description.is_none()
            && self.kind.is_none()
            && self.priority.is_none()
            && self.estimated_hours.0.is_none()
            && self.parent_id.0.is_none()
    }
}

#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct UpdateStatus {
    /// # Issue
    /// The UUID or the key of the issue, such as CORE-12.
    pub issue_id: IssueRef,
    /// # New status
    /// The new status of the issue.
    pub new_status: Status,
}

#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct AssignIssue {
    /// # Issue
    /// The UUID or the key of the issue, such as CORE-12.
    pub issue_id: IssueRef,
    /// # Assignee
    /// The UUID of the new assignee. The value null removes the assignee.
    #[serde(deserialize_with = "Option::deserialize")]
    #[schemars(with = "Nullable<Uuid>")]
    pub assignee_id: Option<Uuid>,
}

#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct AddComment {
    /// # Issue
    /// The UUID or the key of the issue, such as CORE-12.
    pub issue_id: IssueRef,
    /// # Content
    /// The text of the comment, in Markdown.
    pub content: CommentText,
}

#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct DeleteIssue {
    /// # Issue
    /// The UUID or the key of the issue, such as CORE-12.
    pub issue_id: IssueRef,
}

/// The arguments of a tool that writes.
#[derive(Clone, Debug)]
pub(super) enum Write {
    CreateProject(CreateProject),
    CreateIssue(Box<CreateIssue>),
    UpdateIssue(Box<UpdateIssue>),
    UpdateStatus(UpdateStatus),
    Assign(AssignIssue),
    Comment(AddComment),
    Delete(DeleteIssue),
}

impl Write {
    /// Parses the arguments of a write. Returns `None` if the tracker has no writing tool of this name.
    pub fn parse(tool: &str, arguments: &RawValue) -> Option<Result<Self, McpError>> {
        Some(match tool {
            "create_project" => parse_arguments(arguments).map(Self::CreateProject),
            "create_issue" => parse_arguments(arguments).map(Self::CreateIssue),
            "update_issue" => parse_arguments(arguments).and_then(|update: Box<UpdateIssue>| {
                if update.is_empty() {
                    let message =
                        "Give at least one of title, description, type, priority, estimatedHours and parentId.";
                    return Err(invalid_argument("", "minProperties", message));
                }
                Ok(Self::UpdateIssue(update))
            }),
            "update_status" => parse_arguments(arguments).map(Self::UpdateStatus),
            "assign_issue" => parse_arguments(arguments).map(Self::Assign),
            "add_comment" => parse_arguments(arguments).map(Self::Comment),
            "delete_issue" => parse_arguments(arguments).map(Self::Delete),
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn only_well_formed_issue_keys_are_accepted() {
        assert_eq!(parse_issue_key("core-12").as_deref(), Some("CORE-12"));
        for bad in [
            "",
            "CORE",
            "CORE-",
            "CORE-0",
            "CORE-01",
            "C-1",
            "CORE-1 ",
            "COREXXXXXXX-1",
            "CORE-1234567890",
            "CÖRE-1",
            "CORE--1",
            "CORE-1-2",
            "CORE-٣",
            "CO1E-1",
        ] {
            assert_eq!(parse_issue_key(bad), None, "{bad}");
        }
    }

    proptest! {
        #[test]
        fn accepted_keys_are_canonical(text in "\\PC{0,40}|[a-zA-Z]{1,11}-[0-9]{0,10}") {
            if let Some(key) = parse_issue_key(&text) {
                prop_assert_eq!(parse_issue_key(&key), Some(key.clone()));
                prop_assert_eq!(key, text.to_ascii_uppercase());
            }
            if let Some(id) = Uuid::parse(&text) {
                prop_assert_eq!(id.len(), 36);
            }
        }
    }
}
