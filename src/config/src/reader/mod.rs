//! Reads typed values from the merged layers, and records every key with its value and origin.
//!
//! A `Node` (`tree.rs`) is a value as it was parsed, and a [`SourcedNode`] also knows the layer that it comes from. A `Kind`
//! (`values.rs`) reads a node as a typed value, and formats that value again. [`Reader`] has one node for each key of the
//! configuration; `Fields` reads the keys of a map inside such a node, such as one server.

pub(super) mod fields;

use std::{collections::BTreeMap, path::Path, sync::Arc};

use serde_json::{Map, Value};

use self::fields::Fields;
use super::{
    environment::Environment,
    error::{Origin, Problem, ValueError, invalid, quoted, quoted_key},
    tree::{KeyValue, LocatedNode, Node, to_json_map},
    values::{Kind, KindInput, describe, ensure},
};

/// A value with the layer that it comes from.
#[derive(Clone, Debug)]
pub struct SourcedNode {
    pub node: Node,
    pub origin: Origin,
    /// The directory that relative paths are resolved against.
    pub base: Arc<Path>,
}

impl SourcedNode {
    /// Returns the origin of a position inside the value.
    pub(super) fn origin_at(&self, line: u64, column: u64) -> Origin {
        match &self.origin {
            Origin::File { path, .. } if line > 0 => Origin::File { path: Arc::clone(path), line, column },
            other => other.clone(),
        }
    }

    pub(super) fn origin_of_node(&self, located: &LocatedNode) -> Origin {
        self.origin_at(located.line, located.column)
    }

    fn input<'a>(&'a self, env: &'a Environment) -> KindInput<'a> {
        let is_textual = matches!(self.origin, Origin::Env(_) | Origin::Flag(_));
        KindInput { node: &self.node, is_textual, env, base: &self.base }
    }
}

/// A key with its effective value and origin.
#[derive(Clone, Debug)]
pub struct Setting {
    pub key: &'static str,
    /// The value as YAML.
    pub value: String,
    pub origin: Origin,
}

/// Reads keys, and collects all problems instead of stopping at the first.
#[derive(Debug, Default)]
pub struct Reader {
    values: BTreeMap<String, SourcedNode>,
    pub(super) env: Environment,
    pub settings: Vec<Setting>,
    pub problems: Vec<Problem>,
    /// One sentence for each setting that was ignored.
    pub warnings: Vec<String>,
    /// Origins of keys below a map with user-defined names, such as `mcpServers.files.args`.
    pub(super) key_origins: BTreeMap<String, Origin>,
    /// The prefixes that disabled servers give their tools, which rules may still name.
    pub(super) disabled_prefixes: Vec<String>,
}

/// A map with user-defined names, such as `mcpServers`.
pub(super) struct NamedMap {
    pub key: &'static str,
    /// The noun for one entry.
    pub noun: &'static str,
    /// An example of an entry.
    pub example: &'static str,
    pub max_entries: usize,
    pub check_name: fn(&str) -> Result<(), ValueError>,
    /// Formats the map for `config show`.
    pub show: fn(&Map<String, Value>) -> String,
}

/// A list of maps, such as `policy.rules`.
pub(super) struct MapList {
    pub key: &'static str,
    /// The noun for one entry.
    pub noun: &'static str,
    /// An example of an entry.
    pub example: &'static str,
    /// The keys of an entry.
    pub keys: &'static [&'static str],
    pub max_entries: usize,
    /// The value of [`Fields::keeps_null`] for each entry.
    pub keeps_null: bool,
}

impl Reader {
    pub(super) fn new(values: BTreeMap<String, SourcedNode>, problems: Vec<Problem>, env: Environment) -> Self {
        Self { values, problems, env, ..Self::default() }
    }

    /// Reads the value of a key. Returns the default of its type after reporting a problem.
    pub(super) fn read<T: Default + 'static>(&mut self, key: &'static str, kind: Kind<T>) -> T {
        self.read_or(key, kind, T::default())
    }

    /// Reads the value of a key. Returns `filler` after reporting a problem.
    pub(super) fn read_or<T: 'static>(&mut self, key: &'static str, kind: Kind<T>, filler: T) -> T {
        let Some(found) = self.find(key) else { return filler };
        match kind.read(&found.input(&self.env)) {
            Ok(value) => {
                self.add_setting(key, kind.show(&value));
                value
            }
            Err(error) => {
                self.report(key, found.origin, error);
                filler
            }
        }
    }

    /// Returns the value of a key with its origin, for a caller that reads its parts. Reports a problem and returns `None`
    /// if the value is missing or not YAML.
    pub(super) fn sourced_node(&mut self, key: &'static str) -> Option<SourcedNode> {
        let sourced = self.find(key)?;
        match sourced.input(&self.env).structured() {
            Ok(node) => Some(SourcedNode { node: node.into_owned(), ..sourced }),
            Err(error) => {
                self.report(key, sourced.origin, error);
                None
            }
        }
    }

    fn find(&mut self, key: &'static str) -> Option<SourcedNode> {
        let sourced = self.values.get(key).cloned();
        if sourced.is_none() {
            let message = "the built-in defaults do not name this key";
            self.report(key, Origin::Default, invalid(message, "This is a mistake in the program; please report it."));
        }
        sourced
    }

    /// Reads a map that may be `null`. `mismatch` returns the error of any other value. The caller records the setting of a map.
    pub(super) fn read_optional_map<T>(
        &mut self,
        key: &'static str,
        mismatch: impl FnOnce(&Node) -> ValueError,
        read: impl FnOnce(&mut Fields<'_>) -> Option<T>,
    ) -> Option<T> {
        let sourced = self.sourced_node(key)?;
        let origin = sourced.origin.clone();
        match &sourced.node {
            Node::Map(entries) => {
                return read(&mut Fields::new(self, &sourced, key.to_owned(), origin, entries));
            }
            Node::Null => self.add_setting(key, "null".to_owned()),
            other => self.report(key, origin, mismatch(other)),
        }
        None
    }

    /// Reads every entry of a map.
    pub(super) fn read_map<T>(
        &mut self,
        map: &NamedMap,
        mut read_entry: impl FnMut(&str, &mut Fields<'_>) -> Option<T>,
    ) -> Vec<T> {
        let NamedMap { key, noun, example, max_entries, check_name, show } = map;
        let Some(sourced) = self.sourced_node(key) else { return Vec::new() };
        let entries: &[KeyValue] = match &sourced.node {
            Node::Map(entries) if entries.len() > *max_entries => {
                let error = invalid(format!("{} {noun}s", entries.len()), format!("Keep at most {max_entries}."));
                self.report(key, sourced.origin.clone(), error);
                return Vec::new();
            }
            Node::Map(entries) => entries,
            Node::Null => &[],
            other => {
                let message = format!("expected a map of {noun}s, found {}", describe(other));
                self.report(key, sourced.origin.clone(), invalid(message, format!("Write {{name: {example}}}.")));
                return Vec::new();
            }
        };
        self.add_setting(key, show(&to_json_map(entries)));
        let mut all = Vec::new();
        for entry in entries {
            let key = format!("{key}.{}", quoted_key(&entry.key));
            let origin = sourced.origin_at(entry.line, entry.column);
            self.key_origins.insert(key.clone(), origin.clone());
            if let Err(error) = check_name(&entry.key) {
                self.report(&key, origin, error);
            } else if let Node::Map(values) = &entry.value.node {
                all.extend(read_entry(&entry.key, &mut Fields::new(self, &sourced, key, origin, values)));
            } else {
                let message = format!("expected a {noun}, found {}", entry.value.node.describe_kind());
                self.report(&key, origin, invalid(message, format!("Write {example}.")));
            }
        }
        all
    }

    /// Reads every entry of a list of maps, each with its number from 1. Returns `None` after reporting a value that is
    /// not a list.
    pub(super) fn read_list<T>(
        &mut self,
        list: &MapList,
        mut read_entry: impl FnMut(usize, &mut Fields<'_>) -> T,
    ) -> Option<Vec<T>> {
        let MapList { key, noun, example, keys, max_entries, keeps_null } = list;
        let sourced = self.sourced_node(key)?;
        let items: &[LocatedNode] = match &sourced.node {
            Node::Null => &[],
            Node::List(items) if items.len() <= *max_entries => items,
            other => {
                let error = match other {
                    Node::List(_) => invalid(format!("more than {max_entries} {noun}s"), "Remove some."),
                    _ => invalid(
                        format!("expected a list of {noun}s, found {}", other.describe_kind()),
                        format!("Write - {example}."),
                    ),
                };
                self.report(key, sourced.origin.clone(), error);
                return None;
            }
        };
        let mut all = Vec::new();
        for (item, number) in items.iter().zip(1..) {
            let origin = sourced.origin_of_node(item);
            if let Node::Map(entries) = &item.node {
                let mut fields = Fields::new(self, &sourced, (*key).to_owned(), origin, entries);
                fields.keeps_null = *keeps_null;
                all.push(read_entry(number, &mut fields));
            } else {
                let message = format!("{noun} {number} is {}, not a map", item.node.describe_kind());
                self.report(key, origin, invalid(message, format!("Keys of a {noun}: {}.", keys.join(", "))));
            }
        }
        Some(all)
    }

    /// Records the value of a key for `config show`.
    pub(super) fn add_setting(&mut self, key: &'static str, value: String) {
        self.settings.push(Setting { key, value, origin: self.origin(key) });
    }

    pub(super) fn report(&mut self, key: &str, origin: Origin, error: ValueError) {
        self.problems.push(Problem::new(origin, Some(key), error));
    }

    /// Reports a problem of a key at the place that set it.
    pub(super) fn report_at_origin(&mut self, key: &str, message: impl Into<String>, remedy: impl Into<String>) {
        self.report(key, self.origin(key), invalid(message, remedy));
    }

    /// Returns the origin of a key's value. Keys are written as in problems.
    pub fn origin(&self, key: &str) -> Origin {
        let found = self.key_origins.get(key).or_else(|| self.values.get(key).map(|value| &value.origin));
        found.cloned().unwrap_or(Origin::Default)
    }
}

/// Checks a name of 1 to 64 letters, digits and `extra_chars` that begins with a letter or a digit.
pub(super) fn check_plain_name(name: &str, noun: &str, extra_chars: &[char]) -> Result<(), ValueError> {
    let fits = (1..=64).contains(&name.len())
        && name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || extra_chars.contains(&c));
    ensure(fits, || {
        let extra_chars = extra_chars.iter().map(char::to_string).collect::<Vec<_>>().join(" ");
        let remedy = format!("Use 1 to 64 letters, digits and {extra_chars}, beginning with a letter or a digit.");
        invalid(format!("{} cannot be a {noun}'s name", quoted(name)), remedy)
    })
}
