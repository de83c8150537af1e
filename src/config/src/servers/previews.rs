//! Compiles `previews` of a server into recipes, and reports each problem at its line.

use std::{collections::BTreeMap, sync::Arc};

use regex::Regex;
use serde_json::Value;

use super::shipped_recipes::{self, RecipeSet};
use crate::fields::Fields;
use crate::{
    UpstreamTarget,
    error::{quoted, quoted_key},
    tree::{self, KeyValue, LocatedNode, Node},
    values::{ValueError, describe},
};
use countersign_domain::{
    changes::{Operation, visible::has_hidden},
    policy::{Condition, condition::Variables},
    recipes::{
        AFTER_VARIABLES, ARGUMENT_VARIABLES, DisplayFormat, DryRun, Pattern, PreviewRead, Recipe, Recipes,
        ResultSelector, SELECTOR_VARIABLES,
    },
};
use countersign_protocol::suggest;

pub(super) const KEY: &str = "previews";

const RECIPE_KEYS: [&str; 9] =
    ["entity", "operation", "target", "summary", "label", "dry_run", "before", "after", "reads"];
const DRY_RUN_KEYS: [&str; 5] = ["arguments", "label", "text", "lines", "as"];
const BEFORE_KEYS: [&str; 6] = ["tool", "arguments", "text", "keep", "lines", "missing"];
const READ_KEYS: [&str; 9] = ["label", "tool", "arguments", "text", "keep", "lines", "paths", "missing", "as"];

const MAX_RECIPES: usize = 500;
const MAX_READS: usize = 8;
const MAX_TEXT: usize = 200;

/// A problem with its position and key path.
struct Fault {
    spot: LocatedNode,
    path: String,
    wrong: ValueError,
}

#[derive(Default)]
struct Parser {
    faults: Vec<Fault>,
}

/// Reads the recipes of a server with this target.
pub(super) fn read(f: &mut Fields<'_>, target: Option<&UpstreamTarget>) -> Recipes {
    let mut parser = Parser::default();
    let mut layers = Layers::default();
    match f.value_of(KEY) {
        None => layers.add_recognised_set(target),
        Some(LocatedNode { node: Node::List(items), .. }) => {
            items.iter().for_each(|item| parser.read_layer(item, target, &mut layers));
        }
        Some(one) => parser.read_layer(one, target, &mut layers),
    }
    for Fault { spot, path, wrong } in parser.faults {
        f.report_at(&spot, &path, wrong);
    }
    layers.finish()
}

#[derive(Default)]
struct Layers {
    sets: Vec<&'static str>,
    by_tool: BTreeMap<String, Recipe>,
    written: Vec<String>,
}

impl Layers {
    fn add_recognised_set(&mut self, target: Option<&UpstreamTarget>) {
        if let Some(UpstreamTarget::Command { command, args, .. }) = target
            && let Some(set) = shipped_recipes::find_by_command(command, args)
        {
            self.add_set(set, false);
        }
    }

    /// Adds a shipped set. `named` tells whether the operator chose it explicitly.
    fn add_set(&mut self, set: &'static RecipeSet, named: bool) {
        let vouched = named || self.sets.contains(&set.name);
        let mut recipes = recipes_of_set(set);
        recipes.values_mut().filter_map(|recipe| recipe.dry_run.as_mut()).for_each(|dry| dry.vouched = vouched);
        self.by_tool.extend(recipes);
        self.sets.push(set.name);
    }

    fn finish(mut self) -> Recipes {
        self.written.sort();
        self.written.dedup();
        Recipes { sets: self.sets, by_tool: Arc::new(self.by_tool), written: self.written }
    }
}

/// Returns the recipes of a shipped set. A test ensures that all of them compile; others would be skipped.
fn recipes_of_set(set: &RecipeSet) -> BTreeMap<String, Recipe> {
    let mut parser = Parser::default();
    let Ok(LocatedNode { node: Node::Map(entries), .. }) = tree::parse(set.yaml) else { return BTreeMap::new() };
    let all = entries.iter().filter_map(|entry| Some((entry.key.clone(), parser.recipe(entry, "")?)));
    all.collect()
}

impl Parser {
    fn report(&mut self, spot: &LocatedNode, path: &str, message: impl Into<String>, remedy: impl Into<String>) {
        self.faults.push(Fault { spot: spot.clone(), path: path.to_owned(), wrong: (message.into(), remedy.into()) });
    }

    fn read_layer(&mut self, spot: &LocatedNode, target: Option<&UpstreamTarget>, layers: &mut Layers) {
        let names = || {
            let sets: Vec<&str> = shipped_recipes::SHIPPED_RECIPE_SETS.iter().map(|set| set.name).collect();
            format!("auto, none, {}", sets.join(", "))
        };
        match &spot.node {
            Node::Text(word) => match (word.as_str(), shipped_recipes::find_by_name(word)) {
                ("auto", _) => layers.add_recognised_set(target),
                ("none", _) => {}
                (_, Some(set)) => layers.add_set(set, true),
                (other, None) => {
                    let remedy = format!("Write one of {}, or recipes by tool.", names());
                    self.report(spot, KEY, format!("there is no set of previews {}", quoted(other)), remedy);
                }
            },
            Node::Map(entries) => {
                if entries.len() > MAX_RECIPES {
                    self.report(spot, KEY, format!("more than {MAX_RECIPES} recipes"), "Take some out.");
                    return;
                }
                for entry in entries {
                    if matches!(&entry.value.node, Node::Text(word) if word == "none") {
                        layers.by_tool.remove(&entry.key);
                        continue;
                    }
                    if let Some(recipe) = self.recipe(entry, KEY) {
                        layers.by_tool.insert(entry.key.clone(), recipe);
                        layers.written.push(entry.key.clone());
                    }
                }
            }
            other => {
                let message = format!("expected previews, found {}", describe(other));
                self.report(spot, KEY, message, format!("Write one of {}, or {{tool: recipe}}.", names()));
            }
        }
    }

    /// Returns the entries of a map, and reports keys other than these.
    fn map<'a>(&mut self, spot: &'a LocatedNode, path: &str, keys: &[&str]) -> Option<&'a [KeyValue]> {
        let Node::Map(entries) = &spot.node else {
            let message = format!("expected a map, found {}", describe(&spot.node));
            self.report(spot, path, message, format!("Keys here: {}.", keys.join(", ")));
            return None;
        };
        for entry in entries {
            if !keys.contains(&entry.key.as_str()) {
                let at = LocatedNode { node: Node::Null, line: entry.line, column: entry.column };
                let remedy = match suggest::nearest(&entry.key, keys.iter().copied()) {
                    Some(near) => format!("Did you mean `{near}`?"),
                    None => format!("Keys here: {}.", keys.join(", ")),
                };
                self.report(&at, &join_path(path, &entry.key), "unknown key", remedy);
            }
        }
        Some(entries)
    }

    fn recipe(&mut self, entry: &KeyValue, path: &str) -> Option<Recipe> {
        let before = self.faults.len();
        let path = join_path(path, &entry.key);
        let entries = self.map(&entry.value, &path, &RECIPE_KEYS)?;
        let mut recipe = Recipe::default();
        for KeyValue { key, value, .. } in entries {
            let path = join_path(&path, key);
            match key.as_str() {
                "entity" => recipe.entity = self.text(value, &path),
                "label" => recipe.label = self.text(value, &path),
                "operation" => recipe.operation = self.operation(value, &path),
                "target" => recipe.target = self.expression(value, &path, ARGUMENT_VARIABLES),
                "summary" => recipe.summary = self.expression(value, &path, ARGUMENT_VARIABLES),
                "after" => recipe.after = self.expression(value, &path, AFTER_VARIABLES),
                "before" => recipe.before = self.read(value, &path, &BEFORE_KEYS),
                "dry_run" => recipe.dry_run = self.dry_run(value, &path),
                "reads" => recipe.reads = self.reads(value, &path),
                _ => {}
            }
        }
        let sound = self.faults.len() == before;
        let whole = &entry.value;
        if sound && recipe.before.is_some() != recipe.after.is_some() {
            let remedy = "Give both, or show the present state alone with reads.";
            self.report(whole, &path, "`before` and `after` belong together", remedy);
        } else if sound && recipe.dry_run.is_none() && recipe.before.is_none() && recipe.reads.is_empty() {
            self.report(
                whole,
                &path,
                "the recipe shows nothing",
                "Give dry_run, before and after, or reads; or write none.",
            );
        }
        (self.faults.len() == before).then_some(recipe)
    }

    fn dry_run(&mut self, spot: &LocatedNode, path: &str) -> Option<DryRun> {
        let faults = self.faults.len();
        let (label, pick, shown) = (None, ResultSelector::default(), DisplayFormat::Text);
        let mut dry = DryRun { arguments: Vec::new(), label, pick, shown, vouched: true };
        for KeyValue { key, value, .. } in self.map(spot, path, &DRY_RUN_KEYS)? {
            let path = join_path(path, key);
            match key.as_str() {
                "arguments" => {
                    let Node::Map(entries) = &value.node else {
                        let message = format!("expected a map, found {}", describe(&value.node));
                        self.report(value, &path, message, "Write { dryRun: true }.");
                        continue;
                    };
                    for entry in entries {
                        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '$');
                        if entry.key.is_empty() || !entry.key.chars().all(plain) || entries.len() > 16 {
                            let remedy = "Use letters, digits, _ - . and $, and at most 16 arguments.";
                            self.report(&entry.value, &path, "this cannot be the name of an argument", remedy);
                            continue;
                        }
                        dry.arguments.push((entry.key.clone(), to_json(&entry.value.node)));
                    }
                }
                "label" => dry.label = self.text(value, &path),
                "as" => dry.shown = self.display_mode(value, &path).unwrap_or_default(),
                _ => self.pick(key, value, &path, &mut dry.pick),
            }
        }
        if self.faults.len() == faults && dry.arguments.is_empty() {
            self.report(
                spot,
                path,
                "a dry run without arguments would be the call itself",
                "Write arguments: { dryRun: true }.",
            );
            return None;
        }
        Some(dry)
    }

    fn reads(&mut self, spot: &LocatedNode, path: &str) -> Vec<PreviewRead> {
        match &spot.node {
            Node::List(items) if (1..=MAX_READS).contains(&items.len()) => {
                items.iter().filter_map(|item| self.read(item, path, &READ_KEYS)).collect()
            }
            other => {
                let message = format!("expected a list of 1 to {MAX_READS} reads, found {}", describe(other));
                self.report(spot, path, message, "Write - { label: …, tool: …, arguments: {…} }.");
                Vec::new()
            }
        }
    }

    fn read(&mut self, spot: &LocatedNode, path: &str, keys: &[&str]) -> Option<PreviewRead> {
        let (mut label, mut tool) = (None, None);
        let (mut arguments, mut pick, mut shown, mut missing) =
            (Vec::new(), ResultSelector::default(), DisplayFormat::Text, None);
        let before = self.faults.len();
        for KeyValue { key, value, .. } in self.map(spot, path, keys)? {
            let path = join_path(path, key);
            match key.as_str() {
                "label" => label = self.text(value, &path),
                "tool" => tool = self.text(value, &path),
                "as" => shown = self.display_mode(value, &path).unwrap_or_default(),
                "missing" => missing = self.pattern(value, &path),
                "arguments" => arguments = self.arguments(value, &path),
                _ => self.pick(key, value, &path, &mut pick),
            }
        }
        if self.faults.len() != before {
            return None;
        }
        let Some(tool) = tool else {
            self.report(
                spot,
                path,
                "the read does not say which `tool` it calls",
                "Write tool: and the name that the server gives it.",
            );
            return None;
        };
        Some(PreviewRead { label: label.unwrap_or_else(|| tool.clone()), tool, arguments, pick, shown, missing })
    }

    fn arguments(&mut self, spot: &LocatedNode, path: &str) -> Vec<(String, Condition)> {
        let Node::Map(entries) = &spot.node else {
            let message = format!("expected a map, found {}", describe(&spot.node));
            self.report(spot, path, message, "Write { path: arguments.path }.");
            return Vec::new();
        };
        let each = entries.iter().filter_map(|entry| {
            let expression = self.expression(&entry.value, &join_path(path, &entry.key), ARGUMENT_VARIABLES)?;
            Some((entry.key.clone(), expression))
        });
        each.collect()
    }

    fn pick(&mut self, key: &str, value: &LocatedNode, path: &str, pick: &mut ResultSelector) {
        match key {
            "text" => match &value.node {
                Node::Text(pointer) if pointer.starts_with('/') => pick.pointer.clone_from(pointer),
                other => {
                    let message = format!("expected a JSON pointer, found {}", describe(other));
                    self.report(value, path, message, "Write /content/0/text or /structuredContent/….");
                }
            },
            "keep" => pick.keep = self.expression(value, path, SELECTOR_VARIABLES),
            "lines" => pick.lines = self.pattern(value, path),
            "paths" => pick.paths = self.expression(value, path, ARGUMENT_VARIABLES),
            _ => {}
        }
    }

    fn text(&mut self, spot: &LocatedNode, path: &str) -> Option<String> {
        match &spot.node {
            Node::Text(text) if !text.trim().is_empty() && text.chars().count() <= MAX_TEXT && !has_hidden(text) => {
                Some(text.clone())
            }
            other => {
                let message = format!("expected a text, found {}", describe(other));
                self.report(spot, path, message, format!("Write 1 to {MAX_TEXT} visible characters."));
                None
            }
        }
    }

    fn operation(&mut self, spot: &LocatedNode, path: &str) -> Option<Operation> {
        match &spot.node {
            Node::Text(word) if word == "create" => Some(Operation::Create),
            Node::Text(word) if word == "update" => Some(Operation::Update),
            Node::Text(word) if word == "delete" => Some(Operation::Delete),
            other => {
                let message = format!("{} is not one of create, update, delete", describe(other));
                self.report(spot, path, message, "Write one of them.");
                None
            }
        }
    }

    fn display_mode(&mut self, spot: &LocatedNode, path: &str) -> Option<DisplayFormat> {
        match &spot.node {
            Node::Text(word) if word == "text" => Some(DisplayFormat::Text),
            Node::Text(word) if word == "diff" => Some(DisplayFormat::Diff),
            other => {
                let message = format!("{} is not one of text, diff", describe(other));
                self.report(spot, path, message, "Write one of them.");
                None
            }
        }
    }

    fn pattern(&mut self, spot: &LocatedNode, path: &str) -> Option<Pattern> {
        let regex = match &spot.node {
            Node::Text(text) if text.len() <= 1000 => Regex::new(text).ok(),
            _ => None,
        };
        if regex.is_none() {
            let message = format!("{} is not a regular expression", describe(&spot.node));
            self.report(spot, path, message, "Correct it; ^ and $ stand for the beginning and the end.");
        }
        regex.map(Pattern)
    }

    fn expression(&mut self, spot: &LocatedNode, path: &str, variables: &'static Variables) -> Option<Condition> {
        let source = match &spot.node {
            Node::Text(source) => source.clone(),
            Node::Bool(value) => value.to_string(),
            Node::Int(number) => number.to_string(),
            other => {
                let message = format!("expected an expression, found {}", describe(other));
                self.report(spot, path, message, "Put it in quotes: 'arguments.path'.");
                return None;
            }
        };
        match Condition::compile_for(&source, variables) {
            Ok(condition) => Some(condition),
            Err(error) => {
                let message = format!("the expression cannot be used: {}{}", error.message, error.position_suffix());
                self.report(spot, path, message, "Correct it; it is written in CEL (https://cel.dev).");
                None
            }
        }
    }
}

fn join_path(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{}", quoted_key(key)) }
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
        let (mut parser, mut layers) = (Parser::default(), Layers::default());
        let spot = tree::parse(yaml).unwrap();
        let target = UpstreamTarget::Command {
            command: "npx".into(),
            args: vec!["@modelcontextprotocol/server-memory".into()],
            env: Default::default(),
            cwd: None,
        };
        match &spot.node {
            Node::List(items) => items.iter().for_each(|item| parser.read_layer(item, Some(&target), &mut layers)),
            _ => parser.read_layer(&spot, Some(&target), &mut layers),
        }
        let faults = parser
            .faults
            .iter()
            .map(|fault| format!("{}:{} {}: {}", fault.spot.line, fault.spot.column, fault.path, fault.wrong.0));
        (layers.finish(), faults.collect())
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
            assert!(tests.contains(&format!("behind(t, ['{}']", set.name)), "{}", set.name);
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
    fn only_what_the_operator_wrote_makes_more_calls() {
        let (automatic, _) = parsed("auto");
        let (mine, _) = parsed("{mine: {reads: [{tool: look}]}}");
        let (other, _) = parsed("{mine: {reads: [{tool: touch}]}}");
        let none = Recipes::default();
        assert!(!automatic.calls_more_than(&none) && !none.calls_more_than(&mine));
        assert!(mine.calls_more_than(&automatic) && other.calls_more_than(&mine) && !mine.calls_more_than(&mine));
        // A set that is named for the server vouches for its dry runs.
        let (named, _) = parsed("filesystem");
        let (both, _) = parsed("[filesystem, auto]");
        assert!(named.calls_more_than(&none) && !both.calls_more_than(&named) && !automatic.calls_more_than(&named));
    }

    #[test]
    fn preview_problem_is_reported_with_position() {
        for (yaml, expected) in [
            ("7", "1:1 previews: expected previews"),
            ("nothing", "1:1 previews: there is no set of previews `nothing`"),
            ("a: {}", "1:4 previews.a: the recipe shows nothing"),
            ("a: {befor: {}}", "1:5 previews.a.befor: unknown key"),
            ("a: {before: {tool: x}}", "1:4 previews.a: `before` and `after` belong together"),
            ("a: {before: {}, after: 'before'}", "1:13 previews.a.before: the read does not say which `tool`"),
            ("a: {dry_run: {arguments: {}}}", "1:14 previews.a.dry_run: a dry run without arguments"),
            ("a: {dry_run: {arguments: {'a\"b': 1}}}", "previews.a.dry_run.arguments: this cannot be the name"),
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
