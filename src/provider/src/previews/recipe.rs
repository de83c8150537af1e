//! How to preview calls of one tool of an upstream, as the configuration says it (`mcpServers.<name>.previews`).

use std::{collections::BTreeMap, sync::Arc};

use regex::Regex;
use serde_json::Value;

use countersign_domain::{
    changes::Operation,
    policy::{Condition, condition::Variables},
};

/// What most expressions of a recipe look at.
pub const OF_ARGUMENTS: &Variables = &[("arguments", &[])];
/// What [`Pick::keep`] looks at: what the pointer found, too.
pub const OF_FOUND: &Variables = &[("arguments", &[]), ("found", &[])];
/// What [`Recipe::after`] looks at: the present state, too; null where there is nothing yet.
pub const OF_BEFORE: &Variables = &[("arguments", &[]), ("before", &[])];

/// Where the text of a tool's result lies unless a recipe says otherwise.
pub const FIRST_TEXT: &str = "/content/0/text";

/// See the module's page.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Recipe {
    /// What kind of thing is altered, such as `file`.
    pub entity: Option<String>,
    /// What it does to that; without it, an update, or a creation where [`Recipe::before`] finds nothing.
    pub operation: Option<Operation>,
    /// The thing's name: for people, and changes of one thing run one after another.
    pub target: Option<Condition>,
    pub summary: Option<Condition>,
    /// What the text of [`Recipe::after`] is called.
    pub label: Option<String>,
    pub dry_run: Option<DryRun>,
    /// The present state of what `after` says the state to come of.
    pub before: Option<Read>,
    pub after: Option<Condition>,
    /// More live state that a reviewer should see.
    pub reads: Vec<Read>,
}

/// The tool itself with these arguments added, which must stand in its input schema.
#[derive(Clone, Debug, PartialEq)]
pub struct DryRun {
    pub arguments: Vec<(String, Value)>,
    pub label: Option<String>,
    pub pick: Pick,
    pub shown: Shown,
}

/// A call of a tool of the same server that reads.
#[derive(Clone, Debug, PartialEq)]
pub struct Read {
    pub label: String,
    /// By the server's own name.
    pub tool: String,
    /// Expressions over the proposed arguments; one that comes to null is left out.
    pub arguments: Vec<(String, Condition)>,
    pub pick: Pick,
    pub shown: Shown,
    /// Where this fits the error that the tool answers with, there is nothing yet.
    pub missing: Option<Pattern>,
}

/// What of a result counts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Pick {
    /// A JSON pointer into the result; empty: [`FIRST_TEXT`].
    pub pointer: String,
    /// Of what the pointer found.
    pub keep: Option<Condition>,
    /// Of the text, the lines that this fits.
    pub lines: Option<Pattern>,
    /// Of a diff or git's status, what speaks of these paths ([`super::named`]).
    pub paths: Option<Condition>,
}

/// How a text is shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Shown {
    #[default]
    Text,
    /// It is a unified diff.
    Diff,
}

/// A regular expression, searched for.
#[derive(Clone, Debug)]
pub struct Pattern(pub Regex);

impl PartialEq for Pattern {
    fn eq(&self, other: &Self) -> bool {
        self.0.as_str() == other.0.as_str()
    }
}

/// The recipes of one server.
#[derive(Clone, Debug, Default)]
pub struct Recipes {
    /// The shipped sets that they come from.
    pub sets: Vec<&'static str>,
    /// By the server's own names of its tools.
    pub by_tool: Arc<BTreeMap<String, Recipe>>,
    /// The tools whose recipe the operator wrote.
    pub written: Vec<String>,
}

impl PartialEq for Recipes {
    fn eq(&self, other: &Self) -> bool {
        self.sets == other.sets && self.by_tool == other.by_tool && self.written == other.written
    }
}

impl Eq for Recipes {}

impl Recipes {
    #[must_use]
    pub fn get(&self, own: &str) -> Option<&Recipe> {
        self.by_tool.get(own)
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_tool.is_empty()
    }

    /// Whether calls are made by these that `old` does not make: recipes that the operator wrote since, or others.
    #[must_use]
    pub fn calls_more_than(&self, old: &Self) -> bool {
        self.written.iter().any(|tool| self.get(tool) != old.get(tool))
    }
}
