//! The entities of the tracker, as answers show them, and the types of their fields. `row` is the entity's primary key
//! in the database, and `project` that of its project; clients see neither. An empty `description` for schemars keeps the doc
//! comment out of the schemas that clients see.

use std::{borrow::Cow, ops::Deref};

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize, Serializer};

use super::db::{Column, Value};
use countersign_provider::schema::{ArgumentError, Text};

/// The maximum number of characters of a title, and of a name or title in a sentence.
pub(super) const MAX_TITLE_CHARS: usize = 200;

pub(super) type Title = Text<1, MAX_TITLE_CHARS>;
pub(super) type ProjectName = Text<1, 100>;
pub(super) type ProjectDescription = Text<0, 10_000>;
pub(super) type Description = Text<0, 65_536>;
pub(super) type CommentText = Text<1, 65_536>;

/// Defines an enum whose variants have the same names on the wire and in the database.
macro_rules! named_values {
    ($(#[$doc:meta])* $name:ident { $($variant:ident),* $(,)? }) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
        $(#[$doc])*
        #[schemars(description = "")]
        pub(super) enum $name { $($variant),* }
        impl $name {
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];
            /// Returns the name on the wire and in the database.
            #[must_use]
            pub const fn as_str(self) -> &'static str { match self { $(Self::$variant => stringify!($variant)),* } }
            /// Returns the value of this name, if there is one. Case is significant.
            pub fn parse(text: &str) -> Option<Self> { Self::ALL.iter().copied().find(|value| value.as_str() == text) }
        }
        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result { f.write_str(self.as_str()) }
        }
        impl Column<'_> for $name {
            fn read(value: &Value<'_>) -> Option<Self> { <&str>::read(value).and_then(Self::parse) }
        }
        impl From<$name> for Value<'_> {
            fn from(value: $name) -> Self { value.as_str().into() }
        }
    };
}

named_values! {
    /// The kind of work of an issue.
    IssueType { Epic, Story, Task, Bug }
}
named_values! {
    /// The place of an issue in the workflow.
    Status { Backlog, Todo, InProgress, Review, Done, Cancelled }
}
named_values! {
    /// The urgency of an issue.
    Priority { Low, Medium, High, Critical }
}

impl IssueType {
    /// Returns the types that the parent of an issue of this type may have.
    #[must_use]
    pub const fn allowed_parent_types(self) -> &'static [Self] {
        match self {
            Self::Epic => &[Self::Epic],
            Self::Story => &[Self::Epic, Self::Story],
            Self::Task => &[Self::Story, Self::Epic],
            Self::Bug => Self::ALL,
        }
    }
}

impl Status {
    /// Returns `true` if no more work is expected.
    #[must_use]
    pub const fn is_closed(self) -> bool {
        matches!(self, Self::Done | Self::Cancelled)
    }
}

#[expect(clippy::derivable_impls, reason = "the macro accepts no attribute on a variant")]
impl Default for Priority {
    fn default() -> Self {
        Self::Medium
    }
}

/// Defines a type for a text that was checked, with its conversions from and to columns of the database.
macro_rules! text_type {
    ($(#[$meta:meta])* $name:ident) => {
        #[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, JsonSchema)]
        $(#[$meta])*
        pub(super) struct $name(pub String);
        impl Deref for $name {
            type Target = String;
            fn deref(&self) -> &String { &self.0 }
        }
        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result { f.write_str(self) }
        }
        impl Column<'_> for $name {
            fn read(value: &Value<'_>) -> Option<Self> { String::read(value).map(Self) }
        }
        impl<'a> From<&'a $name> for Value<'a> {
            fn from(text: &'a $name) -> Self { Self::Text(Cow::Borrowed(text)) }
        }
    };
}

text_type! {
    /// A UUID in its usual form with hyphens, in lower case.
    #[derive(Deserialize)]
    #[serde(try_from = "String")]
    #[schemars(description = "", extend("format" = "uuid"))]
    Uuid
}
text_type! {
    /// The key of a project: 2 to 10 capital letters, such as `CORE`.
    #[derive(Deserialize)]
    #[serde(try_from = "String")]
    #[schemars(description = "", extend("pattern" = "^[A-Z]{2,10}$"))]
    ProjectKey
}
text_type! {
    /// The key of an issue, such as `CORE-12`.
    #[schemars(description = "", extend("pattern" = "^[A-Z]{2,10}-[1-9][0-9]*$"))]
    IssueKey
}
text_type! {
    /// A time in UTC with milliseconds.
    #[schemars(description = "", extend("format" = "date-time"))]
    Time
}

impl From<Timestamp> for Time {
    fn from(at: Timestamp) -> Self {
        Self(format!("{at:.3}"))
    }
}

impl Uuid {
    pub fn new() -> Self {
        Self(uuid::Uuid::new_v4().to_string())
    }

    /// Parses a UUID with hyphens, in any case. Other notations are refused.
    pub fn parse(text: &str) -> Option<Self> {
        let id = (text.len() == 36).then(|| uuid::Uuid::try_parse(text).ok()).flatten()?;
        Some(Self(id.hyphenated().to_string()))
    }
}

impl TryFrom<String> for Uuid {
    type Error = ArgumentError;

    fn try_from(text: String) -> Result<Self, ArgumentError> {
        Self::parse(&text).ok_or_else(|| ArgumentError::new("format", "must be a UUID."))
    }
}

impl TryFrom<String> for ProjectKey {
    type Error = ArgumentError;

    fn try_from(text: String) -> Result<Self, ArgumentError> {
        let is_key = (2..=10).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_uppercase());
        is_key
            .then_some(Self(text))
            .ok_or_else(|| ArgumentError::new("pattern", "must be 2 to 10 capital letters, such as CORE."))
    }
}

/// Hours of estimated work.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(try_from = "f64")]
#[schemars(description = "", extend("minimum" = 0, "maximum" = Hours::MAX))]
pub(super) struct Hours(pub f64);

impl Hours {
    pub const MAX: f64 = 100_000.0;
}

impl TryFrom<f64> for Hours {
    type Error = ArgumentError;

    fn try_from(hours: f64) -> Result<Self, ArgumentError> {
        match hours {
            h if !h.is_finite() || h < 0.0 => Err(ArgumentError::new("minimum", "must be 0 or more.")),
            h if h > Self::MAX => Err(ArgumentError::new("maximum", format_args!("must be at most {}.", Self::MAX))),
            // Adding zero turns negative zero into zero.
            h => Ok(Self(h + 0.0)),
        }
    }
}

impl Serialize for Hours {
    /// Serializes a whole number as a JSON integer.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[allow(clippy::cast_possible_truncation, reason = "the number is whole and far below 2^53")]
        if self.0.fract() == 0.0 && self.0.abs() < 1e15 {
            serializer.serialize_i64(self.0 as i64)
        } else {
            serializer.serialize_f64(self.0)
        }
    }
}

impl std::fmt::Display for Hours {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl Column<'_> for Hours {
    fn read(value: &Value<'_>) -> Option<Self> {
        f64::read(value).map(Self)
    }
}

impl From<Hours> for Value<'_> {
    fn from(hours: Hours) -> Self {
        Self::Real(hours.0)
    }
}

#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct Project {
    #[serde(skip)]
    pub row: i64,
    pub id: Uuid,
    pub key: ProjectKey,
    pub name: String,
    pub description: String,
    pub issue_count: u64,
    pub open_issue_count: u64,
    pub created_at: Time,
    pub created_by: String,
}

/// A person or an agent to whom issues can be assigned.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(description = "")]
pub(super) struct Person {
    #[serde(skip)]
    pub row: i64,
    pub id: Uuid,
    pub name: String,
}

/// The parent of an issue, as the issue shows it.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[schemars(description = "")]
pub(super) struct Parent {
    #[serde(skip)]
    pub row: i64,
    #[serde(skip)]
    pub project: i64,
    pub id: Uuid,
    pub key: IssueKey,
    pub title: String,
    #[serde(rename = "type")]
    pub kind: IssueType,
}

/// An issue with all its fields.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(description = "")]
pub(super) struct Issue {
    #[serde(skip)]
    pub row: i64,
    #[serde(skip)]
    pub project: i64,
    pub id: Uuid,
    pub key: IssueKey,
    pub project_id: Uuid,
    pub project_key: ProjectKey,
    pub title: String,
    #[serde(rename = "type")]
    pub kind: IssueType,
    pub status: Status,
    pub priority: Priority,
    pub description: String,
    pub assignee: Option<Person>,
    pub parent: Option<Parent>,
    pub estimated_hours: Option<Hours>,
    pub comment_count: u64,
    pub child_count: u64,
    pub allowed_transitions: Vec<Status>,
    #[schemars(range(min = 1))]
    pub version: u64,
    pub created_at: Time,
    pub created_by: String,
    pub updated_at: Time,
}

/// An issue in a list, with only the fields that fit on one line.
#[derive(Clone, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(description = "")]
pub(super) struct ListedIssue {
    #[serde(skip)]
    pub row: i64,
    pub id: Uuid,
    pub key: IssueKey,
    pub title: String,
    #[serde(rename = "type")]
    pub kind: IssueType,
    pub status: Status,
    pub priority: Priority,
    pub assignee: Option<Person>,
    pub parent_key: Option<IssueKey>,
    pub estimated_hours: Option<Hours>,
    pub created_at: Time,
    pub updated_at: Time,
}

#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct Comment {
    pub id: Uuid,
    pub author: String,
    pub author_id: Option<Uuid>,
    pub content: String,
    pub change_id: Option<String>,
    pub created_at: Time,
}

impl Issue {
    /// Returns the key and the title.
    pub fn label(&self) -> String {
        format!("{} {}", self.key, self.title)
    }

    /// Returns the label for use in a sentence, with the title as [`display_text`].
    pub fn display_label(&self) -> String {
        format!("{} {}", self.key, display_text(&self.title))
    }
}

impl Parent {
    /// Returns the key and the title.
    pub fn label(&self) -> String {
        format!("{} {}", self.key, self.title)
    }
}

/// Returns a title or name for use in a sentence: on one line, with hidden characters escaped. The diff shows the text
/// unchanged.
pub(super) fn display_text(text: &str) -> Cow<'_, str> {
    countersign_provider::text::one_line(text, MAX_TITLE_CHARS)
}

/// The name, the label and the value of a field.
pub(super) type Field = (&'static str, &'static str, String);

/// The text of one field before and after a write, for the diff and the history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FieldChange {
    pub field: &'static str,
    pub label: &'static str,
    pub before: Option<String>,
    pub after: Option<String>,
}

impl FieldChange {
    pub fn new(field: &'static str, label: &'static str, before: Option<String>, after: Option<String>) -> Self {
        Self { field, label, before, after }
    }

    /// Returns the change of a field that gets its first value.
    pub fn added((field, label, value): Field) -> Self {
        Self::new(field, label, None, Some(value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_hyphenated_uuids_are_accepted() {
        assert_eq!(
            Uuid::parse("67E55044-10B1-426F-9247-BB680E5FE0C8").unwrap().as_str(),
            "67e55044-10b1-426f-9247-bb680e5fe0c8"
        );
        for bad in [
            "67e5504410b1426f9247bb680e5fe0c8",
            "{67e55044-10b1-426f-9247-bb680e5fe0c8}",
            "",
            "CORE-1",
            "urn:uuid:67e55044-10b1-426f-9247-bb680e5fe0c8",
        ] {
            assert_eq!(Uuid::parse(bad), None, "{bad}");
        }
    }
}
