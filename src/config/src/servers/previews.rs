//! Compiles `previews` of a server into recipes, and reports each problem at its line.

use std::{collections::BTreeMap, path::Path, sync::Arc};

use regex::Regex;
use serde_json::Value;

use super::shipped_recipes::{self, RecipeSet, SHIPPED_RECIPE_SETS};
use crate::{
    UpstreamTarget,
    error::{Origin, quoted, quoted_key},
    reader::fields::Fields,
    reader::{LayerValue, Reader},
    tree::{self, KeyValue, LocatedNode, Node},
    values::{ValueError, choice, describe, read_visible_text, variant},
};
use countersign_domain::{
    changes::Operation,
    policy::{Condition, condition::Variables},
    recipes::{
        AFTER_VARIABLES, ARGUMENT_VARIABLES, DisplayFormat, DryRun, Pattern, PreviewRead, Recipe, Recipes,
        ResultSelector, SELECTOR_VARIABLES,
    },
};

pub(super) const KEY: &str = "previews";

const RECIPE_KEYS: [&str; 9] =
    ["entity", "operation", "target", "summary", "label", "dry_run", "before", "after", "reads"];
const DRY_RUN_KEYS: [&str; 5] = ["arguments", "label", "text", "lines", "as"];
const BEFORE_KEYS: [&str; 6] = ["tool", "arguments", "text", "keep", "lines", "missing"];
const READ_KEYS: [&str; 9] = ["label", "tool", "arguments", "text", "keep", "lines", "paths", "missing", "as"];

const MAX_RECIPES: usize = 500;
const MAX_READS: usize = 8;
const MAX_DRY_RUN_ARGUMENTS: usize = 16;
const MAX_TEXT: usize = 200;

const OPERATIONS: [(&str, Operation); 3] =
    [("create", Operation::Create), ("update", Operation::Update), ("delete", Operation::Delete)];

/// Reads the recipes of a server with this target.
pub(super) fn read(f: &mut Fields<'_>, target: Option<&UpstreamTarget>) -> Recipes {
    let mut layers = RecipeLayers::default();
    match f.value_of(KEY) {
        None => layers.add_recognised_set(target),
        Some(LocatedNode { node: Node::List(items), .. }) => {
            items.iter().for_each(|item| read_layer(f, item, target, &mut layers));
        }
        Some(single_layer) => read_layer(f, single_layer, target, &mut layers),
    }
    layers.finish()
}

#[derive(Default)]
struct RecipeLayers {
    sets: Vec<&'static str>,
    by_tool: BTreeMap<String, Recipe>,
    written: Vec<String>,
}

impl RecipeLayers {
    fn add_recognised_set(&mut self, target: Option<&UpstreamTarget>) {
        if let Some(set) = target.and_then(shipped_recipes::find_by_target) {
            self.add_set(set, false);
        }
    }

    /// Adds a shipped set. `named` tells whether the operator chose it explicitly.
    fn add_set(&mut self, set: &'static RecipeSet, named: bool) {
        let trusted = named || self.sets.contains(&set.name);
        let mut recipes = recipes_of_set(set);
        recipes.values_mut().filter_map(|recipe| recipe.dry_run.as_mut()).for_each(|dry| dry.is_trusted = trusted);
        self.by_tool.extend(recipes);
        self.sets.push(set.name);
    }

    fn finish(mut self) -> Recipes {
        self.written.sort();
        self.written.dedup();
        Recipes { sets: self.sets, by_tool: Arc::new(self.by_tool), written: self.written }
    }
}

/// Returns the recipes of a shipped set. Recipes that do not compile are skipped, and a test ensures that there are
/// none.
fn recipes_of_set(set: &RecipeSet) -> BTreeMap<String, Recipe> {
    let Ok(LocatedNode { node, .. }) = tree::parse(set.yaml) else { return BTreeMap::new() };
    let section = LayerValue { node, origin: Origin::Default, base: Path::new("/").into() };
    let Node::Map(entries) = &section.node else { return BTreeMap::new() };
    let mut reader = Reader::default();
    let mut fields = Fields::new(&mut reader, &section, set.name.to_owned(), Origin::Default, entries);
    let all = entries.iter().filter_map(|entry| {
        let mut fields = fields.section(&entry.key, &RECIPE_KEYS)?;
        Some((entry.key.clone(), read_recipe(&mut fields)?))
    });
    all.collect()
}

fn read_layer<'a>(
    f: &mut Fields<'a>,
    located: &'a LocatedNode,
    target: Option<&UpstreamTarget>,
    layers: &mut RecipeLayers,
) {
    let names = || {
        let sets: Vec<&str> = SHIPPED_RECIPE_SETS.iter().map(|set| set.name).collect();
        format!("auto, none, {}", sets.join(", "))
    };
    match &located.node {
        Node::Text(word) => match (word.as_str(), shipped_recipes::find_by_name(word)) {
            ("auto", _) => layers.add_recognised_set(target),
            ("none", _) => {}
            (_, Some(set)) => layers.add_set(set, true),
            (other, None) => {
                let message = format!("there is no set of previews {}", quoted(other));
                let remedy = format!("Write one of {}, or recipes by tool.", names());
                f.report_at(located, KEY, (message, remedy));
            }
        },
        Node::Map(entries) if entries.len() > MAX_RECIPES => {
            f.report_at(located, KEY, (format!("more than {MAX_RECIPES} recipes"), "Take some out.".to_owned()));
        }
        Node::Map(entries) => {
            for KeyValue { key, value, .. } in entries {
                if matches!(&value.node, Node::Text(word) if word == "none") {
                    layers.by_tool.remove(key);
                    continue;
                }
                let fields = f.nested(&format!("{KEY}.{}", quoted_key(key)), value, &RECIPE_KEYS);
                if let Some(recipe) = fields.and_then(|mut fields| read_recipe(&mut fields)) {
                    layers.by_tool.insert(key.clone(), recipe);
                    layers.written.push(key.clone());
                }
            }
        }
        other => {
            let message = format!("expected previews, found {}", describe(other));
            f.report_at(located, KEY, (message, format!("Write one of {}, or {{tool: recipe}}.", names())));
        }
    }
}

/// Reads a recipe. Returns `None` after reporting a problem.
fn read_recipe(f: &mut Fields<'_>) -> Option<Recipe> {
    let recipe = Recipe {
        entity: read_text(f, "entity"),
        label: read_text(f, "label"),
        operation: f.read("operation", choice(OPERATIONS)),
        target: read_expression(f, "target", ARGUMENT_VARIABLES),
        summary: read_expression(f, "summary", ARGUMENT_VARIABLES),
        after: read_expression(f, "after", AFTER_VARIABLES),
        before: f.section("before", &BEFORE_KEYS).and_then(|mut before| read_preview_read(&mut before)),
        dry_run: f.section("dry_run", &DRY_RUN_KEYS).and_then(|mut dry_run| read_dry_run(&mut dry_run)),
        reads: read_preview_reads(f),
    };
    if !f.has_problems() && recipe.before.is_some() != recipe.after.is_some() {
        let remedy = "Give both, or show the present state alone with reads.";
        f.report("", "`before` and `after` belong together", remedy);
    } else if !f.has_problems() && recipe.dry_run.is_none() && recipe.before.is_none() && recipe.reads.is_empty() {
        let remedy = "Give dry_run, before and after, or reads; or write none.";
        f.report("", "the recipe shows nothing", remedy);
    }
    (!f.has_problems()).then_some(recipe)
}

fn read_dry_run(f: &mut Fields<'_>) -> Option<DryRun> {
    let arguments = f.map_entries("arguments", |_, KeyValue { key, value, .. }| {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '$');
        if key.is_empty() || !key.chars().all(is_plain) {
            let remedy = "Use letters, digits, _ - . and $.".to_owned();
            return Err(("this cannot be the name of an argument".to_owned(), remedy));
        }
        Ok((key.clone(), to_json(&value.node)))
    });
    if arguments.len() > MAX_DRY_RUN_ARGUMENTS {
        f.report("arguments", format!("more than {MAX_DRY_RUN_ARGUMENTS} arguments"), "Take some out.");
    }
    if !f.has_problems() && arguments.is_empty() {
        let message = "a dry run without arguments would be the call itself";
        f.report("", message, "Write arguments: { dryRun: true }.");
    }
    let (label, pick, shown) = (read_text(f, "label"), read_selector(f), read_display_format(f));
    Some(DryRun { arguments, label, pick, shown, is_trusted: true })
}

fn read_preview_reads(f: &mut Fields<'_>) -> Vec<PreviewRead> {
    let items = f.parse("reads", |node| match node {
        Node::List(items) if (1..=MAX_READS).contains(&items.len()) => Ok(items.as_slice()),
        other => {
            let message = format!("expected a list of 1 to {MAX_READS} reads, found {}", describe(other));
            Err((message, "Write - { label: …, tool: …, arguments: {…} }.".to_owned()))
        }
    });
    let items = items.unwrap_or_default().iter();
    items.filter_map(|item| read_preview_read(&mut f.nested("reads", item, &READ_KEYS)?)).collect()
}

fn read_preview_read(f: &mut Fields<'_>) -> Option<PreviewRead> {
    let arguments: Vec<(String, Condition)> = f.map_entries("arguments", |_, KeyValue { key, value, .. }| {
        compile(&value.node, ARGUMENT_VARIABLES).map(|expression| (key.clone(), expression))
    });
    let missing = f.parse("missing", parse_pattern);
    let (label, pick, shown) = (read_text(f, "label"), read_selector(f), read_display_format(f));
    if !f.has("tool") {
        let remedy = "Write tool: and the name that the server gives it.";
        f.report("", "the read does not say which `tool` it calls", remedy);
    }
    let tool = read_text(f, "tool")?;
    Some(PreviewRead { label: label.unwrap_or_else(|| tool.clone()), tool, arguments, pick, shown, missing })
}

fn read_selector(f: &mut Fields<'_>) -> ResultSelector {
    let pointer = f.parse("text", |node| match node {
        Node::Text(pointer) if pointer.starts_with('/') => Ok(pointer.clone()),
        other => {
            let message = format!("expected a JSON pointer, found {}", describe(other));
            Err((message, "Write /content/0/text or /structuredContent/….".to_owned()))
        }
    });
    ResultSelector {
        pointer: pointer.unwrap_or_default(),
        keep: read_expression(f, "keep", SELECTOR_VARIABLES),
        lines: f.parse("lines", parse_pattern),
        paths: read_expression(f, "paths", ARGUMENT_VARIABLES),
    }
}

fn read_display_format(f: &mut Fields<'_>) -> DisplayFormat {
    f.read("as", variant()).unwrap_or_default()
}

fn read_text(f: &mut Fields<'_>, name: &str) -> Option<String> {
    f.parse(name, |node| read_visible_text(node, MAX_TEXT))
}

fn parse_pattern(node: &Node) -> Result<Pattern, ValueError> {
    let regex = match node {
        Node::Text(text) if text.len() <= 1000 => Regex::new(text).ok(),
        _ => None,
    };
    let remedy = || "Correct it; ^ and $ stand for the beginning and the end.".to_owned();
    regex.map(Pattern).ok_or_else(|| (format!("{} is not a regular expression", describe(node)), remedy()))
}

fn read_expression(f: &mut Fields<'_>, name: &str, variables: &'static Variables) -> Option<Condition> {
    f.parse(name, |node| compile(node, variables))
}

fn compile(node: &Node, variables: &'static Variables) -> Result<Condition, ValueError> {
    let source = match node {
        Node::Text(source) => source.clone(),
        Node::Bool(value) => value.to_string(),
        Node::Int(number) => number.to_string(),
        other => {
            let message = format!("expected an expression, found {}", describe(other));
            return Err((message, "Put it in quotes: 'arguments.path'.".to_owned()));
        }
    };
    Condition::compile_for(&source, variables).map_err(|error| {
        let message = format!("the expression cannot be used: {}{}", error.message, error.position_suffix());
        (message, "Correct it; it is written in CEL (https://cel.dev).".to_owned())
    })
}

fn to_json(node: &Node) -> Value {
    match node {
        Node::Null => Value::Null,
        Node::Bool(value) => (*value).into(),
        Node::Int(number) => i64::try_from(*number).map_or(Value::Null, Value::from),
        Node::Float(number) => (*number).into(),
        Node::Text(text) => text.as_str().into(),
        Node::List(items) => items.iter().map(|item| to_json(&item.node)).collect(),
        Node::Map(entries) => entries.iter().map(|entry| (entry.key.clone(), to_json(&entry.value.node))).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(yaml: &str) -> (Recipes, Vec<String>) {
        let target = UpstreamTarget::Command {
            command: "npx".into(),
            args: vec!["@modelcontextprotocol/server-memory".into()],
            env: Default::default(),
            cwd: None,
        };
        let value = tree::parse(yaml).unwrap();
        let entries = [KeyValue { key: KEY.into(), line: 1, column: 1, value }];
        let origin = Origin::File { path: Default::default(), line: 0, column: 0 };
        let section = LayerValue { node: Node::Null, origin: origin.clone(), base: Path::new("/").into() };
        let mut reader = Reader::default();
        let mut fields = Fields::new(&mut reader, &section, "s".into(), origin, &entries);
        let recipes = read(&mut fields, Some(&target));
        (recipes, reader.problems.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn every_shipped_recipe_can_be_read() {
        for set in &shipped_recipes::SHIPPED_RECIPE_SETS {
            let (recipes, faults) = parsed(set.yaml);
            assert_eq!(faults, Vec::<String>::new(), "{}", set.name);
            assert_eq!(recipes_of_set(set), *recipes.by_tool);
            assert!(recipes.by_tool.len() >= 4, "{}", set.name);
        }
    }

    #[test]
    fn every_shipped_recipe_is_tried_with_its_server() {
        let tests = include_str!("../../../../tests/clients/previews.test.mjs");
        for set in &shipped_recipes::SHIPPED_RECIPE_SETS {
            assert!(tests.contains(&format!("startBehind(t, ['{}']", set.name)), "{}", set.name);
            for tool in recipes_of_set(set).keys() {
                assert!(tests.contains(&format!("('{tool}',")), "{tool}");
            }
        }
    }

    #[test]
    fn later_preview_layers_override_earlier_ones() {
        let (recipes, faults) = parsed("auto");
        assert!(faults.is_empty());
        assert_eq!(recipes.sets, ["memory"]);
        assert!(recipes.get("delete_entities").is_some() && recipes.written.is_empty());
        let (recipes, faults) = parsed(
            "[auto, git, {delete_entities: none, mine: {reads: [{tool: look, arguments: {a: 1, b: arguments.x}}]}}]",
        );
        assert!(faults.is_empty(), "{faults:?}");
        assert_eq!(
            (recipes.sets.as_slice(), recipes.written.as_slice()),
            (&["memory", "git"][..], &["mine".to_owned()][..])
        );
        assert!(recipes.get("delete_entities").is_none() && recipes.get("git_add").is_some());
        let mine = recipes.get("mine").unwrap();
        assert_eq!((mine.reads[0].label.as_str(), mine.reads[0].arguments.len()), ("look", 2));
        assert!(parsed("none").0.is_empty());
    }

    #[test]
    fn only_written_recipes_count_as_more_calls() {
        let (automatic, _) = parsed("auto");
        let (mine, _) = parsed("{mine: {reads: [{tool: look}]}}");
        let (other, _) = parsed("{mine: {reads: [{tool: touch}]}}");
        let none = Recipes::default();
        assert!(!automatic.calls_more_than(&none) && !none.calls_more_than(&mine));
        assert!(mine.calls_more_than(&automatic) && other.calls_more_than(&mine) && !mine.calls_more_than(&mine));
        // If the operator names a set for the server, its dry runs are trusted.
        let (named, _) = parsed("filesystem");
        let (both, _) = parsed("[filesystem, auto]");
        assert!(named.calls_more_than(&none) && !both.calls_more_than(&named) && !automatic.calls_more_than(&named));
    }

    #[test]
    fn preview_problem_is_reported_with_position() {
        for (yaml, expected) in [
            ("7", ":1:1: s.previews: expected previews"),
            ("nothing", ":1:1: s.previews: there is no set of previews `nothing`"),
            ("a: {}", ":1:4: s.previews.a: the recipe shows nothing"),
            ("a: {befor: {}}", ":1:5: s.previews.a.befor: unknown key"),
            ("a: {before: {tool: x}}", ":1:4: s.previews.a: `before` and `after` belong together"),
            ("a: {before: {}, after: 'before'}", ":1:13: s.previews.a.before: the read does not say which `tool`"),
            ("a: {dry_run: {arguments: {}}}", ":1:14: s.previews.a.dry_run: a dry run without arguments"),
            (
                "a: {dry_run: {arguments: {'a\"b': 1}}}",
                "previews.a.dry_run.arguments.`a\\\"b`: this cannot be the name",
            ),
            ("a: {reads: [{tool: x, text: content}]}", "previews.a.reads.text: expected a JSON pointer"),
            ("a: {reads: [{tool: x, lines: '('}]}", "previews.a.reads.lines: `(` is not a regular"),
            ("a: {reads: [{tool: x, as: html}]}", "previews.a.reads.as: `html` is not one of"),
            ("a: {reads: []}", "previews.a.reads: expected a list"),
            (
                "a: {target: before, reads: [{tool: x}]}",
                "previews.a.target: the expression cannot be used: there is no `before`",
            ),
            ("a: {operation: move, reads: [{tool: x}]}", "previews.a.operation: `move` is not one of"),
        ] {
            let (_, faults) = parsed(yaml);
            assert_eq!(faults.len(), 1, "{yaml}: {faults:?}");
            assert!(faults[0].contains(expected), "{yaml}: {faults:?}");
        }
    }
}
