//! Compiles one recipe.

use std::sync::Arc;

use strum::VariantArray as _;

use super::operations::{read_dispatcher, read_methods};
use crate::{
    error::{ValueError, invalid, quoted},
    reader::fields::Fields,
    tree::{KeyValue, LocatedNode, Node},
    values::{choice, describe, read_visible_text, variant},
};
use countersign_domain::{
    policy::{Condition, condition::Variables},
    recipes::{
        AFTER_VARIABLES, ARGUMENT_VARIABLES, Confirmation, Dialect, DryRun, ELEMENT_AFTER_VARIABLES,
        ELEMENT_SELECTOR_VARIABLES, ELEMENT_VARIABLES, FieldFilter, FieldPath, Pattern, PreviewRead,
        RESULT_SELECTOR_VARIABLES, RESULT_VARIABLES, Recipe, RecipeVerification, RecordField, ResultSelector,
        SELECTOR_VARIABLES, SqlDialect, SqlQuery, SqlRecipe, StateAfter, TextTemplate,
    },
};

pub(super) const RECIPE_KEYS: [&str; 15] = [
    "entity",
    "operation",
    "target",
    "summary",
    "label",
    "dry_run",
    "before",
    "after",
    "reads",
    "verify",
    "sql",
    "confirm",
    "tried",
    "variants",
    "operations",
];
const BEFORE_KEYS: [&str; 10] =
    ["tool", "for_each", "arguments", "text", "as", "keep", "ignore", "lines", "missing", "must_fail"];
const READ_KEYS: [&str; 12] = [
    "label",
    "tool",
    "for_each",
    "arguments",
    "text",
    "as",
    "keep",
    "ignore",
    "lines",
    "paths",
    "missing",
    "must_fail",
];

/// The rows of a statement that a preview shows, unless the recipe says otherwise.
const DEFAULT_SQL_ROWS: usize = 50;
const MAX_SQL_ROWS: usize = 500;
const MAX_READS: usize = 8;
const MAX_DRY_RUN_ARGUMENTS: usize = 16;
const MAX_RECORD_FIELDS: usize = 100;
const MAX_TRIED_TEXTS: usize = 20;
const MAX_TEXT_CHARS: usize = 200;
const MAX_TEMPLATE_BYTES: usize = 4000;
const MAX_PATTERN_BYTES: usize = 1000;

const OPERATIONS: [&str; 4] = ["create", "update", "delete", "call"];

/// Reads a recipe. `tried` names the packages and versions that all recipes of its map were tried with. Returns `None`
/// after reporting a problem.
pub(super) fn read_recipe(f: &mut Fields<'_>, tried: &[String]) -> Option<Recipe> {
    let mut recipe = read_keys(f, false);
    recipe.tried = f.parse("tried", parse_tried_texts).unwrap_or_else(|| tried.to_vec());
    recipe.sql = read_sql(f).map(Arc::new);
    if f.has("sql") {
        check_sql(f, &recipe);
    } else if f.has("operations") {
        recipe.dispatcher = read_dispatcher(f, &recipe);
    } else {
        read_methods(f, &mut recipe);
    }
    (!f.has_problems()).then_some(recipe)
}

/// Reads the packages and versions that a recipe was tried with: a text or a list of texts.
pub(super) fn parse_tried_texts(node: &Node) -> Result<Vec<String>, ValueError> {
    match node {
        Node::List(items) if (1..=MAX_TRIED_TEXTS).contains(&items.len()) => {
            items.iter().map(|item| read_visible_text(&item.node, MAX_TEXT_CHARS)).collect()
        }
        Node::List(_) => Err(invalid(format!("expected 1 to {MAX_TRIED_TEXTS} texts"), "Name packages and versions.")),
        single => read_visible_text(single, MAX_TEXT_CHARS).map(|text| vec![text]),
    }
}

/// Reads the keys that recipes and variants share. `is_per_element` tells whether an inherited `before` reads for each element.
pub(super) fn read_keys(f: &mut Fields<'_>, is_per_element: bool) -> Recipe {
    let before =
        f.section("before", &BEFORE_KEYS).and_then(|mut before| read_preview_read(&mut before, ReadPhase::Review));
    let is_per_element = before.as_ref().map_or(is_per_element, |before| before.for_each.is_some());
    let (label_variables, after_variables) = if is_per_element {
        (ELEMENT_VARIABLES, ELEMENT_AFTER_VARIABLES)
    } else {
        (ARGUMENT_VARIABLES, AFTER_VARIABLES)
    };
    Recipe {
        entity: read_text(f, "entity"),
        label: read_template(f, "label", label_variables),
        operation: read_operation(f),
        target: read_template(f, "target", ARGUMENT_VARIABLES),
        summary: read_template(f, "summary", ARGUMENT_VARIABLES),
        after: read_state_after(f, after_variables),
        before,
        dry_run: read_dry_run(f),
        reads: read_preview_reads(f),
        verify: read_verification(f),
        confirm: read_confirmation(f),
        ..Recipe::default()
    }
}

/// Reads how the statements of a tool that runs SQL are shown.
fn read_sql(f: &mut Fields<'_>) -> Option<SqlRecipe> {
    let f = &mut f.section("sql", &["dialect", "statement", "query", "rows"])?;
    let dialect = f.parse("dialect", |node| {
        let names = Dialect::VARIANTS.iter().map(|dialect| (<&str>::from(dialect), SqlDialect::Fixed(*dialect)));
        let names: Vec<_> = names.chain([("title", SqlDialect::InTitle)]).collect();
        let named_dialect = node.as_text().and_then(|text| names.iter().find(|(name, _)| *name == text));
        let remedy = "Write postgres, sqlite, mysql, or title if the title of the tool names it in parentheses.";
        let error = || invalid(format!("{} is not a dialect", describe(node)), remedy);
        named_dialect.map(|(_, dialect)| *dialect).ok_or_else(error)
    });
    let statement = read_expression(f, "statement", ARGUMENT_VARIABLES);
    let query = f.section("query", &["tool", "argument", "arguments"]).and_then(|mut query| {
        let arguments = read_record(&mut query, "arguments", ARGUMENT_VARIABLES);
        let (tool, argument) = (read_text(&mut query, "tool"), read_text(&mut query, "argument"));
        Some(SqlQuery { tool: tool?, argument: argument?, arguments })
    });
    let rows = f.parse("rows", |node| {
        let rows = if let Node::Int(rows) = node { usize::try_from(*rows).ok() } else { None };
        let error =
            || invalid(format!("expected 1 to {MAX_SQL_ROWS} rows"), format!("Write rows: {DEFAULT_SQL_ROWS}."));
        rows.filter(|rows| (1..=MAX_SQL_ROWS).contains(rows)).ok_or_else(error)
    });
    let rows = rows.unwrap_or(DEFAULT_SQL_ROWS);
    if (dialect.is_none() || statement.is_none() || query.is_none()) && !f.has_problems() {
        let remedy =
            "Write { dialect: postgres, statement: arguments.sql, query: { tool: execute_sql, argument: sql } }.";
        f.report_map("`sql` needs `dialect`, `statement`, and `query` with its `tool` and `argument`", remedy);
    }
    Some(SqlRecipe { dialect: dialect?, statement: statement?, query: query?, rows, is_trusted: true })
}

/// Checks that a recipe for SQL has no other methods.
fn check_sql(f: &mut Fields<'_>, recipe: &Recipe) {
    let Recipe { dry_run, before, after, reads, .. } = recipe;
    let has_others = dry_run.is_some()
        || before.is_some()
        || after.is_some()
        || !reads.is_empty()
        || f.has("variants")
        || f.has("operations");
    if !f.has_problems() && has_others {
        f.report_map(
            "`sql` cannot be combined with other methods",
            "Leave out dry_run, before, after, reads, variants and operations.",
        );
    }
}

/// Checks that the methods of a recipe fit together.
pub(super) fn check_methods(f: &mut Fields<'_>, recipe: &Recipe) {
    if f.has_problems() {
        return;
    }
    let does = |operation: &str| recipe.operation == Some(TextTemplate::Literal(operation.into()));
    let (creates, deletes) = (does("create"), does("delete"));
    if recipe.after.is_some() && recipe.before.is_none() && !creates
        || recipe.before.is_some() && recipe.after.is_none() && !deletes
    {
        let remedy = "Give both, leave out `before` with operation: create or `after` with operation: delete, or show the \
                      present state alone with reads.";
        f.report_map("`before` and `after` belong together", remedy);
    } else if recipe.dry_run.is_none() && recipe.before.is_none() && recipe.reads.is_empty() {
        f.report_map("the recipe shows nothing", "Give dry_run, before and after, or reads; or write none.");
    } else if recipe.after.is_none() && !deletes && recipe.verify.as_ref().is_some_and(|verify| verify.after.is_none())
    {
        let remedy = "Give it an after with the value that is there if the call did what it should.";
        f.report("verify", "nothing says what is expected after the run", remedy);
    }
}

/// The phase in which a read is made, which decides on the variables of its expressions.
#[derive(Clone, Copy)]
enum ReadPhase {
    /// Before the run, once or for each element of a list.
    Review,
    /// After the run, when the tool's result is known.
    Verification,
}

fn read_verification(f: &mut Fields<'_>) -> Option<RecipeVerification> {
    let keys = ["tool", "arguments", "text", "as", "keep", "ignore", "lines", "missing", "after"];
    let f = &mut f.section("verify", &keys)?;
    let after = read_state_after(f, RESULT_VARIABLES);
    let read = read_preview_read(f, ReadPhase::Verification)?;
    Some(RecipeVerification { read, after })
}

fn read_operation(f: &mut Fields<'_>) -> Option<TextTemplate> {
    let operation = read_template(f, "operation", ARGUMENT_VARIABLES)?;
    if matches!(operation, TextTemplate::Literal(_)) {
        f.read("operation", choice(OPERATIONS.map(|name| (name, ()))))?;
    }
    Some(operation)
}

/// Reads `after`: an expression, or a map of the fields that change.
fn read_state_after(f: &mut Fields<'_>, variables: &'static Variables) -> Option<StateAfter> {
    if matches!(f.value_of("after")?.node, Node::Map(_)) {
        return Some(StateAfter::Fields(read_record(f, "after", variables)));
    }
    read_expression(f, "after", variables).map(StateAfter::Expression)
}

fn read_dry_run(f: &mut Fields<'_>) -> Option<DryRun> {
    let f = &mut f.section("dry_run", &["arguments", "label", "text", "lines", "as", "must_fail", "reads_as"])?;
    let arguments = f.map_entries("arguments", |_, KeyValue { key, value, .. }| {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '$');
        if key.is_empty() || !key.chars().all(is_plain) {
            return Err(invalid("this cannot be the name of an argument", "Use letters, digits, _ - . and $."));
        }
        Ok((key.clone(), value.node.to_json()))
    });
    if arguments.len() > MAX_DRY_RUN_ARGUMENTS {
        f.report("arguments", format!("more than {MAX_DRY_RUN_ARGUMENTS} arguments"), "Take some out.");
    }
    if !f.has_problems() && arguments.is_empty() {
        f.report_map("a dry run without arguments would be the call itself", "Write arguments: { dryRun: true }.");
    }
    let label = read_text(f, "label");
    let pick = read_selector(f, ARGUMENT_VARIABLES, SELECTOR_VARIABLES);
    let display_format = f.read("as", variant()).unwrap_or_default();
    let must_fail = f.parse("must_fail", parse_pattern);
    let reads_as = f.section("reads_as", &["tool", "arguments"]);
    let reads_as = reads_as.and_then(|mut read| read_preview_read(&mut read, ReadPhase::Review));
    Some(DryRun { arguments, label, pick, display_format, must_fail, reads_as, is_trusted: true })
}

fn read_confirmation(f: &mut Fields<'_>) -> Option<Confirmation> {
    let f = &mut f.section("confirm", &["question", "answer"])?;
    let answer = read_record(f, "answer", ARGUMENT_VARIABLES);
    if !f.has("question") {
        f.report_map("it does not say which `question` it answers", "Write question: and a regular expression.");
    }
    let question = f.parse("question", parse_pattern)?;
    Some(Confirmation { question, answer, is_trusted: true })
}

/// Returns the items of a list of 1 to `max` items.
pub(super) fn parse_list<'a>(
    node: &'a Node,
    max: usize,
    noun: &str,
    remedy: &str,
) -> Result<&'a [LocatedNode], ValueError> {
    match node {
        Node::List(items) if (1..=max).contains(&items.len()) => Ok(items),
        other => Err(invalid(format!("expected a list of 1 to {max} {noun}, found {}", describe(other)), remedy)),
    }
}

fn read_preview_reads(f: &mut Fields<'_>) -> Vec<PreviewRead> {
    let items =
        f.parse("reads", |node| parse_list(node, MAX_READS, "reads", "Write - { label: …, tool: …, arguments: {…} }."));
    let items = items.unwrap_or_default().iter();
    items.filter_map(|item| read_preview_read(&mut f.nested("reads", item, &READ_KEYS)?, ReadPhase::Review)).collect()
}

fn read_preview_read(f: &mut Fields<'_>, phase: ReadPhase) -> Option<PreviewRead> {
    let for_each = read_expression(f, "for_each", ARGUMENT_VARIABLES);
    let (variables, keep_variables) = match phase {
        ReadPhase::Review if f.has("for_each") => (ELEMENT_VARIABLES, ELEMENT_SELECTOR_VARIABLES),
        ReadPhase::Review => (ARGUMENT_VARIABLES, SELECTOR_VARIABLES),
        ReadPhase::Verification => (RESULT_VARIABLES, RESULT_SELECTOR_VARIABLES),
    };
    let arguments = read_record(f, "arguments", variables);
    let (missing, must_fail) = (f.parse("missing", parse_pattern), f.parse("must_fail", parse_pattern));
    let pick = read_selector(f, variables, keep_variables);
    let label = read_template(f, "label", variables);
    let display_format = f.read("as", variant()).unwrap_or_default();
    if !f.has("tool") {
        let remedy = "Write tool: and the name that the server gives it.";
        f.report_map("the read does not say which `tool` it calls", remedy);
    }
    let tool = read_text(f, "tool")?;
    let label = label.unwrap_or_else(|| TextTemplate::Literal(tool.as_str().into()));
    Some(PreviewRead { label, tool, for_each, arguments, pick, display_format, missing, must_fail })
}

fn read_selector(
    f: &mut Fields<'_>,
    variables: &'static Variables,
    keep_variables: &'static Variables,
) -> ResultSelector {
    let pointer = f.parse("text", |node| match node {
        Node::Text(pointer) if pointer.starts_with('/') => Ok(pointer.clone()),
        other => {
            let message = format!("expected a JSON pointer, found {}", describe(other));
            Err(invalid(message, "Write /content/0/text or /structuredContent/…."))
        }
    });
    let keeps_fields = f.value_of("keep").is_some_and(|keep| matches!(keep.node, Node::List(_)));
    let keep = if keeps_fields { None } else { read_expression(f, "keep", keep_variables) };
    let fields = FieldFilter {
        keep: if keeps_fields { f.parse_texts("keep", parse_field_path) } else { Vec::new() },
        ignore: f.parse_texts("ignore", parse_field_path),
    };
    ResultSelector {
        pointer: pointer.unwrap_or_default(),
        keep,
        fields,
        lines: f.parse("lines", parse_pattern),
        paths: read_expression(f, "paths", variables),
    }
}

fn parse_field_path(text: &str) -> Result<FieldPath, ValueError> {
    FieldPath::parse(text).ok_or_else(|| {
        let remedy = r#"Write updated_at, metadata.managedFields, *.id, **.id or labels["a.b"]."#;
        invalid(format!("{} is not a path of fields", quoted(text)), remedy)
    })
}

fn read_text(f: &mut Fields<'_>, name: &str) -> Option<String> {
    f.parse(name, |node| read_visible_text(node, MAX_TEXT_CHARS))
}

fn parse_pattern(node: &Node) -> Result<Pattern, ValueError> {
    let remedy = "Correct it; ^ and $ stand for the beginning and the end.";
    let error = || invalid(format!("{} is not a regular expression", describe(node)), remedy);
    node.as_text().filter(|text| text.len() <= MAX_PATTERN_BYTES).and_then(Pattern::new).ok_or_else(error)
}

pub(super) fn read_expression(f: &mut Fields<'_>, name: &str, variables: &'static Variables) -> Option<Condition> {
    f.parse(name, |node| compile_expression(node, variables))
}

fn compile_expression(node: &Node, variables: &'static Variables) -> Result<Condition, ValueError> {
    let source = match node {
        Node::Text(source) => source.clone(),
        Node::Bool(value) => value.to_string(),
        Node::Int(number) => number.to_string(),
        other => {
            let message = format!("expected an expression, found {}", describe(other));
            return Err(invalid(message, "Put it in quotes: 'arguments.path'."));
        }
    };
    Condition::compile_for(&source, variables).map_err(|error| {
        let message = format!("the expression cannot be used: {}{}", error.message, error.position_suffix());
        invalid(message, "Correct it; it is written in CEL (https://cel.dev).")
    })
}

/// Reads a text with expressions in braces.
fn read_template(f: &mut Fields<'_>, name: &str, variables: &'static Variables) -> Option<TextTemplate> {
    f.parse(name, |node| match node {
        Node::Text(_) => compile_template(node, variables),
        other => {
            let remedy = "Write a text; expressions stand in braces: \"Write {arguments.path}\".";
            Err(invalid(format!("expected a text, found {}", describe(other)), remedy))
        }
    })
}

/// Reads a map of texts. A key that ends with `?` is left out if its value depends on something that is not there.
fn read_record(f: &mut Fields<'_>, name: &str, variables: &'static Variables) -> Vec<RecordField> {
    let fields = f.map_entries(name, |_, entry| compile_field(entry, variables));
    if fields.len() > MAX_RECORD_FIELDS {
        f.report(name, format!("more than {MAX_RECORD_FIELDS} keys"), "Take some out.");
    }
    fields
}

fn compile_field(entry: &KeyValue, variables: &'static Variables) -> Result<RecordField, ValueError> {
    let optional_name = entry.key.strip_suffix('?');
    let name = optional_name.unwrap_or(&entry.key).to_owned();
    let value = compile_template(&entry.value.node, variables)?;
    Ok(RecordField { name, is_optional: optional_name.is_some(), value })
}

fn compile_template(node: &Node, variables: &'static Variables) -> Result<TextTemplate, ValueError> {
    match node {
        Node::Text(source) if source.len() > MAX_TEMPLATE_BYTES => {
            Err(invalid(format!("the text is longer than {MAX_TEMPLATE_BYTES} bytes"), "Shorten it."))
        }
        Node::Text(source) => TextTemplate::compile(source, variables)
            .map_err(|error| invalid(error.to_string(), error.remedy().to_owned())),
        Node::List(items) => {
            let items: Result<_, _> = items.iter().map(|item| compile_template(&item.node, variables)).collect();
            items.map(TextTemplate::List)
        }
        Node::Map(entries) => {
            let fields: Result<_, _> = entries.iter().map(|entry| compile_field(entry, variables)).collect();
            fields.map(TextTemplate::Record)
        }
        scalar => Ok(TextTemplate::Literal(scalar.to_json())),
    }
}
