//! What the tracker holds: the closed sets of values, and the entities as a write needs them.

use serde::{Deserialize, Serialize, Serializer};

use super::db::{Column, Value};

/// Characters.
pub(super) const TITLE_MAX: usize = 200;
pub(super) const NAME_MAX: usize = 100;
pub(super) const TEXT_MAX: usize = 65_536;
pub(super) const PROJECT_TEXT_MAX: usize = 10_000;
pub(super) const HOURS_MAX: f64 = 100_000.0;

macro_rules! closed_set {
    ($(#[$doc:meta])* $name:ident { $($variant:ident),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        pub enum $name { $($variant),* }
        impl $name {
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];
            /// The name on the wire and in the database.
            #[must_use]
            pub const fn as_str(self) -> &'static str { match self { $(Self::$variant => stringify!($variant)),* } }
            /// The value of that name, if there is one. Case counts.
            #[must_use]
            pub fn parse(text: &str) -> Option<Self> { Self::ALL.iter().copied().find(|v| v.as_str() == text) }
            /// All names, for schemas and messages.
            #[must_use]
            pub fn names() -> Vec<&'static str> { Self::ALL.iter().map(|v| v.as_str()).collect() }
        }
        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result { f.write_str(self.as_str()) }
        }
        impl Column<'_> for $name {
            fn read(value: Value<'_>) -> Option<Self> { <&str>::read(value).and_then(Self::parse) }
        }
        impl From<$name> for Value<'_> {
            fn from(one: $name) -> Self { Self::Text(one.as_str()) }
        }
    };
}

closed_set! {
    /// What kind of work an issue is.
    IssueType { Epic, Story, Task, Bug }
}
closed_set! {
    /// Where an issue stands in the workflow.
    Status { Backlog, Todo, InProgress, Review, Done, Cancelled }
}
closed_set! {
    Priority { Low, Medium, High, Critical }
}

impl IssueType {
    /// The types that a parent of this type may have.
    #[must_use]
    pub const fn parents(self) -> &'static [Self] {
        match self {
            Self::Epic => &[Self::Epic],
            Self::Story => &[Self::Epic, Self::Story],
            Self::Task => &[Self::Story, Self::Epic],
            Self::Bug => Self::ALL,
        }
    }

    /// A Task belongs to a Story or an Epic; the others may stand alone.
    #[must_use]
    pub const fn needs_parent(self) -> bool {
        matches!(self, Self::Task)
    }
}

impl Status {
    /// No more work is expected.
    #[must_use]
    pub const fn is_closed(self) -> bool {
        matches!(self, Self::Done | Self::Cancelled)
    }
}

/// Hours of estimated work: written as an integer where it is one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hours(pub f64);

impl Serialize for Hours {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        // Estimates are bounded far below 2^53, so the conversion is exact.
        #[allow(clippy::cast_possible_truncation)]
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

/// A project as a write sees it.
#[derive(Clone, Debug)]
pub(super) struct Project {
    pub rowid: i64,
    pub id: String,
    pub key: String,
    pub name: String,
}

/// Somebody who can be assigned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Person {
    pub rowid: i64,
    pub id: String,
    pub name: String,
}

/// An issue as another one refers to it.
#[derive(Clone, Debug)]
pub(super) struct Parent {
    pub rowid: i64,
    pub id: String,
    pub key: String,
    pub title: String,
    pub kind: IssueType,
    pub project: i64,
}

/// An issue as a write sees it.
#[derive(Clone, Debug)]
pub(super) struct Issue {
    pub rowid: i64,
    pub id: String,
    pub key: String,
    pub project: Project,
    pub title: String,
    pub kind: IssueType,
    pub status: Status,
    pub priority: Priority,
    pub description: String,
    pub assignee: Option<Person>,
    pub parent: Option<Parent>,
    pub hours: Option<f64>,
    pub version: i64,
}

impl Issue {
    /// What people call it.
    pub fn label(&self) -> String {
        format!("{} {}", self.key, self.title)
    }

    /// The same as it stands in a sentence.
    pub fn shown_label(&self) -> String {
        format!("{} {}", self.key, shown(&self.title))
    }
}

/// A title or name as it stands in a sentence: on one line, nothing in it hidden. The diff has it as it is.
pub(super) fn shown(text: &str) -> std::borrow::Cow<'_, str> {
    countersign_provider::text::one_line(text, TITLE_MAX)
}

/// One field that a write sets, as text before and after: what the diff shows and the history keeps.
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
}
