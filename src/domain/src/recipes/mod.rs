//! Recipes for previews of an upstream tool's calls, as configured in `mcpServers.<name>.previews`.

mod dispatcher;
mod fields;
mod named_arguments;
mod sql;
mod template;

use std::{collections::BTreeMap, fmt, sync::Arc};

use regex::Regex;
use serde_json::Value;
use strum::{IntoStaticStr, VariantArray};

use crate::{
    changes::StateEffect,
    policy::{Condition, condition::Variables},
};

pub use countersign_sql::Dialect;
pub use dispatcher::{Dispatcher, MAX_OPERATION_CHARS};
pub use fields::{FieldFilter, FieldPath};
pub use named_arguments::{NamedArguments, UnnamedArgument};
pub use sql::{SqlDialect, SqlQuery, SqlRecipe};
pub use template::{RecordField, TextPart, TextTemplate, TextTemplateError};

/// Variables of most expressions in a recipe.
pub const ARGUMENT_VARIABLES: &Variables = &[("arguments", &[])];
/// Variables of expressions in a read for each element of a list.
pub const ELEMENT_VARIABLES: &Variables = &[("arguments", &[]), ("element", &[])];
/// Variables of [`ResultSelector::keep`], including the value that the pointer found.
pub const SELECTOR_VARIABLES: &Variables = &[("arguments", &[]), ("found", &[])];
/// Variables of [`ResultSelector::keep`] in a read for each element of a list.
pub const ELEMENT_SELECTOR_VARIABLES: &Variables = &[("arguments", &[]), ("element", &[]), ("found", &[])];
/// Variables of [`Recipe::after`], including the present state, which is null if there is none yet.
pub const AFTER_VARIABLES: &Variables = &[("arguments", &[]), ("before", &[])];
/// Variables of [`Recipe::after`] if the present state is read for each element of a list.
pub const ELEMENT_AFTER_VARIABLES: &Variables = &[("arguments", &[]), ("before", &[]), ("element", &[])];

/// Variables of the read of [`Recipe::verify`] and of [`RecipeVerification::after`], including the tool's result: `content`, and
/// `structuredContent` if there is one.
pub const RESULT_VARIABLES: &Variables = &[("arguments", &[]), ("before", &[]), ("result", &[])];
/// Variables of a [`ResultSelector::keep`] of [`Recipe::verify`].
pub const RESULT_SELECTOR_VARIABLES: &Variables =
    &[("arguments", &[]), ("before", &[]), ("found", &[]), ("result", &[])];

/// JSON pointer to the text of a tool result, used if a recipe names no other.
pub const FIRST_TEXT: &str = "/content/0/text";
/// The maximum number of elements of a list for each of which a recipe reads.
pub const MAX_ELEMENTS: usize = 50;

/// The preview of one tool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recipe {
    /// The kind of the target, such as `file`.
    pub entity: Option<String>,
    /// The operation on the target. `None` means an update, or a creation if [`Recipe::before`] finds nothing.
    pub operation: Option<TextTemplate>,
    /// The name of the target, shown to people. Changes of one target run one after another.
    pub target: Option<TextTemplate>,
    pub summary: Option<TextTemplate>,
    /// The label for the text of [`Recipe::after`].
    pub label: Option<TextTemplate>,
    pub dry_run: Option<DryRun>,
    /// Reads the present state, to compare it with that of `after`.
    pub before: Option<PreviewRead>,
    /// The state after the call. Without it, nothing remains of what `before` reads.
    pub after: Option<StateAfter>,
    /// Reads more live state for the reviewer.
    pub reads: Vec<PreviewRead>,
    /// Verifies the change after the run, instead of by `before` and `after`.
    pub verify: Option<RecipeVerification>,
    /// Shows what the SQL statements of the call change, in place of the methods above.
    pub sql: Option<Arc<SqlRecipe>>,
    /// Answers the question by which the server asks to confirm the call.
    pub confirm: Option<Confirmation>,
    /// The packages with their versions, or other servers, that the recipe was tried with.
    pub tried: Vec<String>,
    /// Complete recipes for different arguments. If there are any, the first whose condition holds makes the preview.
    pub variants: Vec<RecipeVariant>,
    /// The operations of the tool, each with its own recipe.
    pub dispatcher: Option<Dispatcher>,
}

/// A recipe for the arguments that meet a condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecipeVariant {
    pub when: Condition,
    pub recipe: Recipe,
}

/// Reads the state after the run, such as that of an object that gets its id only then.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecipeVerification {
    pub read: PreviewRead,
    /// The expected state, if it is not that of [`Recipe::after`].
    pub after: Option<StateAfter>,
}

/// The state after a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StateAfter {
    Expression(Condition),
    /// The present state with these fields.
    Fields(Vec<RecordField>),
}

impl StateAfter {
    /// Returns `true` if the state depends on the variable.
    pub fn uses(&self, variable: &str) -> bool {
        match self {
            Self::Expression(expression) => expression.uses(variable),
            Self::Fields(fields) => variable == "before" || fields.iter().any(|field| field.value.uses(variable)),
        }
    }
}

impl Recipe {
    /// Returns the recipes that can make a preview: those of the operations or variants, or else this one.
    pub fn alternatives(&self) -> Vec<&Self> {
        let operation_recipes = self.dispatcher.iter().flat_map(|dispatcher| dispatcher.operations.values());
        let variant_recipes = self.variants.iter().map(|variant| &variant.recipe);
        if self.dispatcher.is_some() || !self.variants.is_empty() {
            return operation_recipes.chain(variant_recipes).flat_map(Self::alternatives).collect();
        }
        vec![self]
    }

    /// Returns `true` if the recipe says nothing about the state, so that reviewers see the arguments.
    pub fn has_no_method(&self) -> bool {
        self.method_keys().is_empty()
    }

    /// Returns the keys of the recipe that say what it reads, compares or confirms.
    pub fn method_keys(&self) -> Vec<&'static str> {
        let Self { dry_run, before, after, reads, verify, sql, confirm, .. } = self;
        let methods = [
            ("dry_run", dry_run.is_some()),
            ("before", before.is_some()),
            ("after", after.is_some()),
            ("reads", !reads.is_empty()),
            ("verify", verify.is_some()),
            ("sql", sql.is_some()),
            ("confirm", confirm.is_some()),
        ];
        methods.into_iter().filter(|(_, is_set)| *is_set).map(|(key, _)| key).collect()
    }

    /// Returns how the state after a call depends on the state that `before` reads.
    pub fn state_effect(&self) -> StateEffect {
        let Self { dry_run: None, sql: None, before: Some(PreviewRead { for_each: None, display_format, .. }), .. } =
            self
        else {
            return StateEffect::Dependent;
        };
        match &self.after {
            None => StateEffect::Whole,
            Some(StateAfter::Expression(after)) if !after.uses("before") => StateEffect::Whole,
            // YAML is compared as one text, which includes the fields that the call does not set.
            Some(StateAfter::Fields(fields))
                if *display_format != DisplayFormat::Yaml && !fields.iter().any(|field| field.value.uses("before")) =>
            {
                StateEffect::Fields
            }
            Some(_) => StateEffect::Dependent,
        }
    }

    /// Returns what the recipe was tried with, or `none`.
    pub fn tried_text(&self) -> String {
        if self.tried.is_empty() { "none".to_owned() } else { self.tried.join(", ") }
    }

    /// Sets whether the operator vouches for the dry runs, the queries for SQL and the confirmations.
    pub fn set_trust(&mut self, is_trusted: bool) {
        if let Some(dry_run) = &mut self.dry_run {
            dry_run.is_trusted = is_trusted;
        }
        if let Some(sql) = &mut self.sql {
            Arc::make_mut(sql).is_trusted = is_trusted;
        }
        if let Some(confirmation) = &mut self.confirm {
            confirmation.is_trusted = is_trusted;
        }
        self.variants.iter_mut().for_each(|variant| variant.recipe.set_trust(is_trusted));
        let operations = self.dispatcher.iter_mut().flat_map(|dispatcher| dispatcher.operations.values_mut());
        operations.for_each(|recipe| recipe.set_trust(is_trusted));
    }

    /// Returns `true` if the operator vouches for an SQL query, a dry run or an answer of the recipe.
    fn has_trusted_calls(&self) -> bool {
        self.alternatives().iter().any(|recipe| {
            recipe.sql.as_ref().is_some_and(|sql| sql.is_trusted)
                || recipe.dry_run.as_ref().is_some_and(|dry| dry.is_trusted)
                || recipe.confirm.as_ref().is_some_and(|confirmation| confirmation.is_trusted)
        })
    }
}

/// A call of the tool itself with additional arguments, which must be part of its input schema. Its `Debug` text leaves
/// out `is_trusted`, so that comparisons of the text ignore it.
#[derive(Clone, PartialEq, Eq)]
pub struct DryRun {
    pub arguments: Vec<(String, Value)>,
    pub label: Option<String>,
    pub pick: ResultSelector,
    pub display_format: DisplayFormat,
    /// A pattern for the error of the dry run that means that the call itself must fail.
    pub must_fail: Option<Pattern>,
    /// A read that shows the same state as that error. It is never made: whoever may make it may also see the error.
    pub reads_as: Option<PreviewRead>,
    /// The operator wrote the recipe, or named its set, for this server. Otherwise only a tool with an accepted
    /// definition is called, because the server alone claims that a dry run changes nothing.
    pub is_trusted: bool,
}

impl fmt::Debug for DryRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { arguments, label, pick, display_format, must_fail, reads_as, is_trusted: _ } = self;
        let mut fields = f.debug_struct("DryRun");
        fields.field("arguments", arguments).field("label", label).field("pick", pick);
        fields
            .field("display_format", display_format)
            .field("must_fail", must_fail)
            .field("reads_as", reads_as)
            .finish()
    }
}

/// The answer to the question by which a server asks to confirm a call. Its `Debug` text leaves out `is_trusted` too.
#[derive(Clone, PartialEq, Eq)]
pub struct Confirmation {
    /// Matches the message of the question.
    pub question: Pattern,
    /// The content of the answer, over the proposed arguments.
    pub answer: Vec<RecordField>,
    /// The operator wrote the recipe, or named its set, for this server. Otherwise a question is answered only for a tool with
    /// an accepted definition.
    pub is_trusted: bool,
}

impl fmt::Debug for Confirmation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { question, answer, is_trusted: _ } = self;
        f.debug_struct("Confirmation").field("question", question).field("answer", answer).finish()
    }
}

/// A read-only call of another tool of the same server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PreviewRead {
    pub label: TextTemplate,
    /// The tool's name on the server.
    pub tool: String,
    /// A list, for each element of which the tool is called.
    pub for_each: Option<Condition>,
    /// The arguments of the call; those that are null are left out.
    pub arguments: Vec<RecordField>,
    pub pick: ResultSelector,
    pub display_format: DisplayFormat,
    /// A pattern for the tool's error that means that there is no present state.
    pub missing: Option<Pattern>,
    /// A pattern for the tool's error that means that the previewed call must fail.
    pub must_fail: Option<Pattern>,
}

impl PreviewRead {
    /// Returns `true` if one of its expressions uses the variable.
    pub fn uses(&self, variable: &str) -> bool {
        let mut selectors = self.pick.keep.iter().chain(&self.pick.paths);
        self.arguments.iter().any(|argument| argument.value.uses(variable))
            || selectors.any(|expression| expression.uses(variable))
    }
}

/// Selects the relevant part of a result.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResultSelector {
    /// A JSON pointer into the result; empty means [`FIRST_TEXT`].
    pub pointer: String,
    /// Filters the value that the pointer found, which was parsed if its format is JSON or YAML.
    pub keep: Option<Condition>,
    /// Selects fields of the value.
    pub fields: FieldFilter,
    /// Keeps the matching lines of the text.
    pub lines: Option<Pattern>,
    /// Keeps the parts of a diff or of git's status that concern these paths.
    pub paths: Option<Condition>,
}

/// The format of a text in an answer, in which it is also shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "lowercase")]
pub enum DisplayFormat {
    #[default]
    Text,
    /// The text is a unified diff.
    Diff,
    /// The text is parsed as JSON.
    Json,
    /// The text is parsed as YAML.
    Yaml,
}

/// A regular expression, which may match anywhere.
#[derive(Clone, Debug)]
pub struct Pattern(pub Regex);

impl Pattern {
    /// Compiles a pattern, or returns `None` if it is not a regular expression.
    pub fn new(text: &str) -> Option<Self> {
        Regex::new(text).ok().map(Self)
    }
}

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
    pub tools_with_own_recipe: Vec<String>,
}

impl Recipes {
    pub fn get(&self, tool: &str) -> Option<&Recipe> {
        self.by_tool.get(tool)
    }

    pub fn is_empty(&self) -> bool {
        self.by_tool.is_empty()
    }

    /// Returns the tools for whose SQL queries, dry run or confirmation the operator vouches.
    pub fn trusted_tools(&self) -> Vec<String> {
        let trusted = self.by_tool.iter().filter(|(_, recipe)| recipe.has_trusted_calls());
        trusted.map(|(tool, _)| tool.clone()).collect()
    }

    /// Trusts the SQL queries, dry runs and confirmations of these tools, and of no others.
    pub fn trust_only(&mut self, tools: &[String]) {
        for (tool, recipe) in Arc::make_mut(&mut self.by_tool) {
            recipe.set_trust(tools.contains(tool));
        }
    }

    /// Returns `true` if these recipes permit something that `old` does not: recipes that the operator added or changed, SQL
    /// queries or dry runs that need no accepted tool, answers to questions of the server, or operations that are no longer
    /// unknown.
    pub fn permits_more_than(&self, old: &Self) -> bool {
        let is_unconditional = |(tool, recipe): &(&String, &Recipe)| {
            self.tools_with_own_recipe.contains(tool) || recipe.has_trusted_calls()
        };
        let knows_more = |(tool, recipe): (&String, &Recipe)| {
            let new = self.get(tool).and_then(|recipe| recipe.dispatcher.as_ref());
            let old = recipe.dispatcher.as_ref();
            old.is_some_and(|old| new.is_none_or(|new| new.knows_more_than(old)))
        };
        self.by_tool.iter().filter(is_unconditional).any(|(tool, recipe)| old.get(tool) != Some(recipe))
            || old.by_tool.iter().any(knows_more)
    }

    /// Returns the recipes that are in force until a reviewer consents to these: the recipes of `old`, with the
    /// dispatchers of both, because a rule that denies an operation matches none of its calls without the dispatcher.
    /// Only the operations that both name count as known.
    pub fn hold_back(&self, old: &Self) -> Self {
        let mut result = old.clone();
        let dispatchers = self.by_tool.iter().filter_map(|(tool, recipe)| Some((tool, recipe.dispatcher.as_ref()?)));
        for (tool, new) in dispatchers {
            let recipe = Arc::make_mut(&mut result.by_tool).entry(tool.clone()).or_default();
            let new_dispatcher = || Dispatcher { argument: new.argument.clone(), operations: BTreeMap::new() };
            let dispatcher = recipe.dispatcher.get_or_insert_with(new_dispatcher);
            dispatcher.operations.retain(|operation, _| new.operations.contains_key(operation));
        }
        result
    }
}
