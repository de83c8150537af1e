//! How to preview calls of one tool of an upstream, as the configuration says it (`mcpServers.<name>.previews`).

use std::{collections::BTreeMap, fmt, sync::Arc};

use regex::Regex;
use serde_json::Value;

use crate::{
    changes::Operation,
    policy::{Condition, condition::Variables},
};

/// What most expressions of a recipe look at.
pub const ARGUMENT_VARIABLES: &Variables = &[("arguments", &[])];
/// What [`ResultSelector::keep`] looks at: what the pointer found, too.
pub const SELECTOR_VARIABLES: &Variables = &[("arguments", &[]), ("found", &[])];
/// What [`Recipe::policy.with_sources_of`] looks at: the present state, too; null where there is nothing yet.
pub const AFTER_VARIABLES: &Variables = &[("arguments", &[]), ("before", &[])];

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
    /// What the text of [`Recipe::policy.with_sources_of`] is called.
    pub label: Option<String>,
    pub dry_run: Option<DryRun>,
    /// The present state of what `policy.with_sources_of` says the state to come of.
    pub before: Option<PreviewRead>,
    pub after: Option<Condition>,
    /// More live state that a reviewer should see.
    pub reads: Vec<PreviewRead>,
}

impl Recipe {
    fn is_vouched(&self) -> bool {
        self.dry_run.as_ref().is_some_and(|dry| dry.vouched)
    }
}

/// The tool itself with these arguments added, which must stand in its input schema. Its `Debug` tells how it is made, and
/// not who vouches for it.
#[derive(Clone, PartialEq)]
pub struct DryRun {
    pub arguments: Vec<(String, Value)>,
    pub label: Option<String>,
    pub pick: ResultSelector,
    pub shown: DisplayFormat,
    /// The operator wrote the recipe, or named its set, for this server. Else only a tool whose definition was accepted is
    /// called: that it does nothing in a dry run is the server's own word.
    pub vouched: bool,
}

impl fmt::Debug for DryRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { arguments, label, pick, shown, vouched: _ } = self;
        let mut all = f.debug_struct("DryRun");
        all.field("arguments", arguments).field("label", label).field("pick", pick).field("shown", shown).finish()
    }
}

/// A call of a tool of the same server that reads.
#[derive(Clone, Debug, PartialEq)]
pub struct PreviewRead {
    pub label: String,
    /// By the server's own name.
    pub tool: String,
    /// Expressions over the proposed arguments; one that comes to null is left out.
    pub arguments: Vec<(String, Condition)>,
    pub pick: ResultSelector,
    pub shown: DisplayFormat,
    /// Where this fits the error that the tool answers with, there is nothing yet.
    pub missing: Option<Pattern>,
}

/// What of a result counts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ResultSelector {
    /// A JSON pointer into the result; empty: [`FIRST_TEXT`].
    pub pointer: String,
    /// Of what the pointer found.
    pub keep: Option<Condition>,
    /// Of the text, the lines that this fits.
    pub lines: Option<Pattern>,
    /// Of a diff or git's status, what speaks of these paths.
    pub paths: Option<Condition>,
}

/// How a text is shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DisplayFormat {
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

    /// The tools whose dry run needs no acceptance of the tool.
    #[must_use]
    pub fn vouched_tools(&self) -> Vec<String> {
        let vouched = self.by_tool.iter().filter(|(_, recipe)| recipe.is_vouched());
        vouched.map(|(tool, _)| tool.clone()).collect()
    }

    /// Makes all other dry runs need it.
    pub fn vouch_only_for(&mut self, tools: &[String]) {
        for (tool, recipe) in Arc::make_mut(&mut self.by_tool) {
            if let Some(dry) = &mut recipe.dry_run {
                dry.vouched = tools.contains(tool);
            }
        }
    }

    /// Whether calls are made by these that `old` does not make: recipes that the operator wrote since, or others, and dry
    /// runs of tools that nobody has accepted.
    #[must_use]
    pub fn calls_more_than(&self, old: &Self) -> bool {
        let unasked = |(tool, recipe): &(&String, &Recipe)| self.written.contains(tool) || recipe.is_vouched();
        self.by_tool.iter().filter(unasked).any(|(tool, recipe)| old.get(tool) != Some(recipe))
    }
}
