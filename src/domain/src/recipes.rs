//! Recipes for previews of an upstream tool's calls, as configured in `mcpServers.<name>.previews`.

use std::{collections::BTreeMap, fmt, sync::Arc};

use regex::Regex;
use serde_json::Value;
use strum::{IntoStaticStr, VariantArray};

use crate::{
    changes::Operation,
    policy::{Condition, condition::Variables},
};

/// Variables of most expressions in a recipe.
pub const ARGUMENT_VARIABLES: &Variables = &[("arguments", &[])];
/// Variables of [`ResultSelector::keep`], including the value that the pointer found.
pub const SELECTOR_VARIABLES: &Variables = &[("arguments", &[]), ("found", &[])];
/// Variables of [`Recipe::after`], including the present state, which is null if there is none yet.
pub const AFTER_VARIABLES: &Variables = &[("arguments", &[]), ("before", &[])];

/// JSON pointer to the text of a tool result, used if a recipe names no other.
pub const FIRST_TEXT: &str = "/content/0/text";

/// The preview of one tool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recipe {
    /// The kind of the target, such as `file`.
    pub entity: Option<String>,
    /// The operation on the target. Without it, it is an update, or a creation if [`Recipe::before`] finds nothing.
    pub operation: Option<Operation>,
    /// The name of the target, shown to people. Changes of one target run one after another.
    pub target: Option<Condition>,
    pub summary: Option<Condition>,
    /// The label for the text of [`Recipe::after`].
    pub label: Option<String>,
    pub dry_run: Option<DryRun>,
    /// Reads the present state, to compare it with that of `after`.
    pub before: Option<PreviewRead>,
    pub after: Option<Condition>,
    /// Reads more live state for the reviewer.
    pub reads: Vec<PreviewRead>,
}

impl Recipe {
    fn has_trusted_dry_run(&self) -> bool {
        self.dry_run.as_ref().is_some_and(|dry| dry.is_trusted)
    }
}

/// A call of the tool itself with additional arguments, which must be part of its input schema. Its `Debug` text leaves
/// out `is_trusted`, so that comparisons of the text ignore it.
#[derive(Clone, PartialEq, Eq)]
pub struct DryRun {
    pub arguments: Vec<(String, Value)>,
    pub label: Option<String>,
    pub pick: ResultSelector,
    pub shown: DisplayFormat,
    /// The operator wrote the recipe, or named its set, for this server. Otherwise only a tool with an accepted
    /// definition is called, because the server alone claims that a dry run changes nothing.
    pub is_trusted: bool,
}

impl fmt::Debug for DryRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { arguments, label, pick, shown, is_trusted: _ } = self;
        let mut fields = f.debug_struct("DryRun");
        fields.field("arguments", arguments).field("label", label).field("pick", pick).field("shown", shown).finish()
    }
}

/// A read-only call of another tool of the same server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PreviewRead {
    pub label: String,
    /// The tool's name on the server.
    pub tool: String,
    /// Expressions over the proposed arguments; those that evaluate to null are left out.
    pub arguments: Vec<(String, Condition)>,
    pub pick: ResultSelector,
    pub shown: DisplayFormat,
    /// A pattern for the tool's error that means that there is no present state.
    pub missing: Option<Pattern>,
}

/// Selects the relevant part of a result.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResultSelector {
    /// A JSON pointer into the result; empty means [`FIRST_TEXT`].
    pub pointer: String,
    /// Filters the value that the pointer found.
    pub keep: Option<Condition>,
    /// Keeps the matching lines of the text.
    pub lines: Option<Pattern>,
    /// Keeps the parts of a diff or of git's status that concern these paths.
    pub paths: Option<Condition>,
}

/// The display format of a text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "lowercase")]
pub enum DisplayFormat {
    #[default]
    Text,
    /// The text is a unified diff.
    Diff,
}

/// A regular expression, which may match anywhere.
#[derive(Clone, Debug)]
pub struct Pattern(pub Regex);

impl PartialEq for Pattern {
    fn eq(&self, other: &Self) -> bool {
        self.0.as_str() == other.0.as_str()
    }
}

impl Eq for Pattern {}

/// The recipes of one server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recipes {
    /// The built-in sets that the recipes come from.
    pub sets: Vec<&'static str>,
    /// Recipes by the server's own names of its tools.
    pub by_tool: Arc<BTreeMap<String, Recipe>>,
    /// The tools whose recipe the operator wrote.
    pub written: Vec<String>,
}

impl Recipes {
    #[must_use]
    pub fn get(&self, tool: &str) -> Option<&Recipe> {
        self.by_tool.get(tool)
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_tool.is_empty()
    }

    /// Returns the tools whose dry run does not require an accepted definition.
    #[must_use]
    pub fn tools_with_trusted_dry_run(&self) -> Vec<String> {
        let trusted = self.by_tool.iter().filter(|(_, recipe)| recipe.has_trusted_dry_run());
        trusted.map(|(tool, _)| tool.clone()).collect()
    }

    /// Requires an accepted definition for the dry runs of all other tools.
    pub fn trust_only_dry_runs_of(&mut self, tools: &[String]) {
        for (tool, recipe) in Arc::make_mut(&mut self.by_tool) {
            if let Some(dry) = &mut recipe.dry_run {
                dry.is_trusted = tools.contains(tool);
            }
        }
    }

    /// Returns `true` if these recipes make calls that `old` does not make: recipes that the operator added or changed,
    /// or dry runs of unaccepted tools.
    #[must_use]
    pub fn calls_more_than(&self, old: &Self) -> bool {
        let is_unconditional =
            |(tool, recipe): &(&String, &Recipe)| self.written.contains(tool) || recipe.has_trusted_dry_run();
        self.by_tool.iter().filter(is_unconditional).any(|(tool, recipe)| old.get(tool) != Some(recipe))
    }
}
