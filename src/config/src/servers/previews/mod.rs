//! Compiles `previews` of a server into recipes, and reports each problem at its line.

mod operations;
mod recipe;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    sync::Arc,
};

use self::recipe::{RECIPE_KEYS, parse_tried_texts, read_recipe};
use super::shipped_recipes::{self, RecipeSet, SHIPPED_RECIPE_SETS};
use crate::{
    UpstreamTarget,
    error::{Origin, invalid, quoted, quoted_key},
    reader::fields::Fields,
    reader::{Reader, SourcedNode},
    tree::{self, KeyValue, LocatedNode, Node},
    values::describe,
};
use countersign_domain::recipes::{Recipe, Recipes};

pub(super) const KEY: &str = "previews";

/// The key beside the tools that names the packages and versions that all recipes of the map were tried with.
const TRIED_KEY: &str = "tried";
const MAX_RECIPES: usize = 500;

/// Reads the recipes of a server with this target.
pub(super) fn read(f: &mut Fields<'_>, target: Option<&UpstreamTarget>) -> Recipes {
    let mut layers = RecipeLayers::default();
    match f.value_of(KEY) {
        None => layers.add_recognized_set(target),
        Some(LocatedNode { node: Node::List(items), .. }) => {
            items.iter().for_each(|item| read_layer(f, item, target, &mut layers));
        }
        Some(single_layer) => read_layer(f, single_layer, target, &mut layers),
    }
    layers.finish()
}

/// The recipes of the layers that were read so far, of which a later one overrides the earlier ones.
#[derive(Default)]
struct RecipeLayers {
    sets: Vec<&'static str>,
    by_tool: BTreeMap<String, Recipe>,
    /// The tools whose recipe the operator wrote.
    tools_with_own_recipe: BTreeSet<String>,
}

impl RecipeLayers {
    fn add_recognized_set(&mut self, target: Option<&UpstreamTarget>) {
        if let Some(set) = target.and_then(shipped_recipes::find_by_target) {
            self.add_set(set, false);
        }
    }

    /// Adds a shipped set. `is_named` tells whether the operator chose it explicitly.
    fn add_set(&mut self, set: &'static RecipeSet, is_named: bool) {
        let is_trusted = is_named || self.sets.contains(&set.name);
        let mut recipes = recipes_of_set(set);
        recipes.values_mut().for_each(|recipe| recipe.set_trust(is_trusted));
        self.by_tool.extend(recipes);
        self.sets.push(set.name);
    }

    fn finish(self) -> Recipes {
        let tools_with_own_recipe = self.tools_with_own_recipe.into_iter().collect();
        Recipes { sets: self.sets, by_tool: Arc::new(self.by_tool), tools_with_own_recipe }
    }
}

/// Returns the recipes of a shipped set. Recipes that do not compile are skipped, and a test ensures that there are
/// none.
fn recipes_of_set(set: &RecipeSet) -> BTreeMap<String, Recipe> {
    let Ok(LocatedNode { node, .. }) = tree::parse(&set.yaml.inflate()) else { return BTreeMap::new() };
    let sourced = SourcedNode { node, origin: Origin::Default, base: Path::new("/").into() };
    let Node::Map(entries) = &sourced.node else { return BTreeMap::new() };
    let mut reader = Reader::default();
    let mut fields = Fields::new(&mut reader, &sourced, set.name.to_owned(), Origin::Default, entries);
    let tried = read_shared_tried_texts(&mut fields, TRIED_KEY, entries);
    let recipes = entries.iter().filter(|entry| !is_tried_key(entry)).filter_map(|entry| {
        let mut fields = fields.section(&entry.key, &RECIPE_KEYS)?;
        Some((entry.key.clone(), read_recipe(&mut fields, &tried)?))
    });
    recipes.collect()
}

/// Returns `true` for the key [`TRIED_KEY`], unless a tool has that name.
fn is_tried_key(entry: &KeyValue) -> bool {
    entry.key == TRIED_KEY && matches!(entry.value.node, Node::Text(_) | Node::List(_))
}

/// Reads the packages and versions that all recipes of a map were tried with. `name` is the path to them.
fn read_shared_tried_texts(f: &mut Fields<'_>, name: &str, entries: &[KeyValue]) -> Vec<String> {
    let Some(entry) = entries.iter().find(|entry| is_tried_key(entry)) else { return Vec::new() };
    let result = parse_tried_texts(&entry.value.node);
    result.map_err(|error| f.report_at(&entry.value, name, error)).unwrap_or_default()
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
            ("auto", _) => layers.add_recognized_set(target),
            ("none", _) => {}
            (_, Some(set)) => layers.add_set(set, true),
            (other, None) => {
                let remedy = format!("Write one of {}, or recipes by tool.", names());
                f.report_at(located, KEY, invalid(format!("there is no set of previews {}", quoted(other)), remedy));
            }
        },
        Node::Map(entries) if entries.len() > MAX_RECIPES => {
            f.report_at(located, KEY, invalid(format!("more than {MAX_RECIPES} recipes"), "Take some out."));
        }
        Node::Map(entries) => {
            let tried = read_shared_tried_texts(f, &format!("{KEY}.{TRIED_KEY}"), entries);
            for KeyValue { key, value, .. } in entries.iter().filter(|entry| !is_tried_key(entry)) {
                if matches!(&value.node, Node::Text(word) if word == "none") {
                    layers.by_tool.remove(key);
                    continue;
                }
                let fields = f.nested(&format!("{KEY}.{}", quoted_key(key)), value, &RECIPE_KEYS);
                if let Some(recipe) = fields.and_then(|mut fields| read_recipe(&mut fields, &tried)) {
                    layers.by_tool.insert(key.clone(), recipe);
                    layers.tools_with_own_recipe.insert(key.clone());
                }
            }
        }
        other => {
            let message = format!("expected previews, found {}", describe(other));
            f.report_at(located, KEY, invalid(message, format!("Write one of {}, or {{tool: recipe}}.", names())));
        }
    }
}
