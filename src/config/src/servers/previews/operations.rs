//! Compiles the variants of a recipe, and the operations of a tool that carries many.

use std::collections::BTreeMap;

use super::recipe::{RECIPE_KEYS, check_methods, parse_list, read_expression, read_keys};
use crate::{
    error::{invalid, quoted_key},
    reader::fields::Fields,
    tree::{KeyValue, Node},
    values::describe,
};
use countersign_domain::recipes::{
    ARGUMENT_VARIABLES, Dispatcher, MAX_OPERATION_CHARS, Recipe, RecipeVariant, TextTemplate,
};

/// The keys of a recipe that a variant does not have.
const WHOLE_RECIPE_KEYS: [&str; 4] = ["sql", "tried", "variants", "operations"];
const MAX_VARIANTS: usize = 30;
const MAX_OPERATIONS: usize = 500;

/// Returns the keys that a recipe shares with its variants and operations.
fn shared_keys() -> impl Iterator<Item = &'static str> {
    RECIPE_KEYS.into_iter().filter(|key| !WHOLE_RECIPE_KEYS.contains(key))
}

/// Reads the variants, or checks the methods of a recipe without any.
pub(super) fn read_methods(f: &mut Fields<'_>, recipe: &mut Recipe) {
    if f.has("variants") {
        recipe.variants = read_variants(f, recipe);
    } else {
        check_methods(f, recipe);
    }
}

/// Reads `operations`, each of which inherits the keys beside them. `operation` is the argument that names one.
pub(super) fn read_dispatcher(f: &mut Fields<'_>, defaults: &Recipe) -> Option<Dispatcher> {
    let argument = defaults.operation.as_ref().and_then(TextTemplate::argument_path).cloned();
    if argument.is_none() && !f.has_problems() {
        let remedy = "Write operation: and its path, such as arguments.name.";
        f.report("operation", "with `operations`, it must be the path of the argument that names one", remedy);
    }
    if f.has("variants") {
        f.report("variants", "a recipe has either variants or operations", "Move them into one of `operations`.");
    }
    let defaults = Recipe { operation: None, ..defaults.clone() };
    let entries = f.parse("operations", |node| match node {
        Node::Map(entries) if (1..=MAX_OPERATIONS).contains(&entries.len()) => Ok(entries.as_slice()),
        other => {
            let message = format!("expected a map of 1 to {MAX_OPERATIONS} operations, found {}", describe(other));
            Err(invalid(message, "Write { PostRefunds: { … } }."))
        }
    });
    let keys: Vec<&str> = shared_keys().chain(["variants"]).collect();
    let mut operations = BTreeMap::new();
    for KeyValue { key, value, .. } in entries.unwrap_or_default() {
        let name = format!("operations.{}", quoted_key(key));
        if !can_name_operation(key) {
            let remedy = format!("Write 1 to {MAX_OPERATION_CHARS} characters without / and patterns.");
            f.report_at(value, &name, invalid("this cannot be the name of an operation", remedy));
            continue;
        }
        let Some(mut fields) = f.nested(&name, value, &keys) else { continue };
        let mut recipe = with_defaults(read_keys(&mut fields, false), &defaults);
        // An operation without a method shows nothing: the recipe only makes it known to rules.
        if fields.has("variants") || !recipe.has_no_method() {
            read_methods(&mut fields, &mut recipe);
        }
        operations.insert(key.clone(), recipe);
    }
    Some(Dispatcher { argument: argument?, operations })
}

/// Returns `true` if rules can name the operation as `tool/operation`, in which `*` and other characters of patterns
/// cannot be escaped.
fn can_name_operation(name: &str) -> bool {
    (1..=MAX_OPERATION_CHARS).contains(&name.chars().count())
        && !name.contains(['/', '*', '?', '[', ']', '{', '}'])
        && !name.chars().any(char::is_control)
}

fn read_variants(f: &mut Fields<'_>, defaults: &Recipe) -> Vec<RecipeVariant> {
    let items = f.parse("variants", |node| {
        parse_list(node, MAX_VARIANTS, "variants", "Write - { when: 'arguments.method == \"update\"', … }.")
    });
    let keys: Vec<&str> = ["when"].into_iter().chain(shared_keys()).collect();
    let variants = items.unwrap_or_default().iter().filter_map(|item| {
        let mut fields = f.nested("variants", item, &keys)?;
        let when = read_expression(&mut fields, "when", ARGUMENT_VARIABLES);
        if !fields.has("when") {
            fields.report_map("the variant has no condition", "Write when: 'arguments.method == \"update\"'.");
        }
        let is_per_element = defaults.before.as_ref().is_some_and(|before| before.for_each.is_some());
        let recipe = with_defaults(read_keys(&mut fields, is_per_element), defaults);
        check_methods(&mut fields, &recipe);
        Some(RecipeVariant { when: when?, recipe })
    });
    variants.collect()
}

/// Returns the recipe of a variant, which inherits what it does not say itself.
fn with_defaults(recipe: Recipe, defaults: &Recipe) -> Recipe {
    let defaults = defaults.clone();
    Recipe {
        entity: recipe.entity.or(defaults.entity),
        operation: recipe.operation.or(defaults.operation),
        target: recipe.target.or(defaults.target),
        summary: recipe.summary.or(defaults.summary),
        label: recipe.label.or(defaults.label),
        dry_run: recipe.dry_run.or(defaults.dry_run),
        before: recipe.before.or(defaults.before),
        after: recipe.after.or(defaults.after),
        reads: if recipe.reads.is_empty() { defaults.reads } else { recipe.reads },
        verify: recipe.verify.or(defaults.verify),
        sql: defaults.sql,
        confirm: recipe.confirm.or(defaults.confirm),
        tried: defaults.tried,
        variants: Vec::new(),
        dispatcher: None,
    }
}
