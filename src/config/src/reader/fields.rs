//! Reads the keys of one map below a key of the configuration, such as one server, webhook or rule.

use std::path::{Path, PathBuf};

use super::{Reader, SourcedNode};
use crate::{
    environment::Environment,
    error::{Origin, ValueError, invalid, quoted_key},
    tree::{KeyValue, LocatedNode, Node},
    values::{Kind, KindInput, describe, read_text},
    variables,
};
use countersign_protocol::suggest;

/// A text of the file before and after its variables were expanded.
pub(crate) struct ExpandedText {
    /// The text in the file, which messages may quote unless it is itself a secret.
    pub source: String,
    /// The text with the values of its variables.
    pub value: String,
}

/// A reader of the keys of one map, which reports problems with their positions.
pub(crate) struct Fields<'a> {
    reader: &'a mut Reader,
    sourced: &'a SourcedNode,
    /// The key of the map as messages name it.
    key: String,
    origin: Origin,
    pub entries: &'a [KeyValue],
    /// Set if `null` is a value. Otherwise `null` means the same as leaving the key out.
    pub keeps_null: bool,
    /// The number of problems before this map was read.
    earlier_problems: usize,
}

impl<'a> Fields<'a> {
    pub(crate) fn new(
        reader: &'a mut Reader,
        sourced: &'a SourcedNode,
        key: String,
        origin: Origin,
        entries: &'a [KeyValue],
    ) -> Self {
        for entry in entries {
            let origin = sourced.origin_at(entry.line, entry.column);
            reader.key_origins.insert(format!("{key}.{}", quoted_key(&entry.key)), origin);
        }
        let earlier_problems = reader.problems.len();
        Self { reader, sourced, key, origin, entries, keeps_null: false, earlier_problems }
    }

    /// Returns `true` if a problem was found in this map.
    pub(crate) fn has_problems(&self) -> bool {
        self.reader.problems.len() > self.earlier_problems
    }

    /// Returns the directory that relative paths are resolved against.
    pub(crate) fn base(&self) -> &'a Path {
        &self.sourced.base
    }

    pub(crate) fn env(&self) -> &Environment {
        &self.reader.env
    }

    /// Returns the input from which a kind reads this part of the map.
    pub(crate) fn input<'n>(&'n self, node: &'n Node) -> KindInput<'n> {
        KindInput { node, is_textual: false, env: &self.reader.env, base: self.base() }
    }

    /// Returns the unparsed value of a key.
    pub(crate) fn value_of(&self, name: &str) -> Option<&'a LocatedNode> {
        // Clients that write null mean the same as leaving the key out.
        let is_given = |entry: &&KeyValue| entry.key == name && (self.keeps_null || entry.value.node != Node::Null);
        self.entries.iter().find(is_given).map(|entry| &entry.value)
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.value_of(name).is_some()
    }

    /// Returns the keys among these that the map has.
    pub(crate) fn present_keys<const N: usize>(&self, names: [&'static str; N]) -> Vec<&'static str> {
        names.into_iter().filter(|name| self.has(name)).collect()
    }

    fn push_problem(&mut self, origin: Origin, name: &str, error: ValueError) {
        // The path to an empty key would end in a dot, so the map is named instead.
        let key = if name.is_empty() { self.key.clone() } else { format!("{}.{name}", self.key) };
        self.reader.report(&key, origin, error);
    }

    /// Reports a problem with a part of a value, to which `name` is the path.
    pub(crate) fn report_at(&mut self, located: &LocatedNode, name: &str, error: ValueError) {
        self.push_problem(self.sourced.origin_of_node(located), name, error);
    }

    /// Reports a problem with the whole map, such as a missing key.
    pub(crate) fn report_map(&mut self, message: impl Into<String>, remedy: impl Into<String>) {
        self.reader.report(&self.key, self.origin.clone(), invalid(message, remedy));
    }

    /// Reports a problem with the value of a key.
    pub(crate) fn report(&mut self, name: &str, message: impl Into<String>, remedy: impl Into<String>) {
        let error = invalid(message, remedy);
        match self.value_of(name) {
            Some(value) => self.report_at(value, name, error),
            None => self.push_problem(self.origin.clone(), name, error),
        }
    }

    /// Reports the error of a value. Returns the value if there is none.
    pub(crate) fn accept<T>(&mut self, name: &str, result: Result<T, ValueError>) -> Option<T> {
        result.map_err(|ValueError { message, remedy }| self.report(name, message, remedy)).ok()
    }

    pub(crate) fn warn(&mut self, warning: &str) {
        self.reader.warnings.push(format!("{} ({}): {warning}", self.key, self.origin));
    }

    /// Reports all keys except these as unknown.
    pub(crate) fn reject_unknown_keys(&mut self, keys: &[&str]) {
        for entry in self.entries.iter().filter(|entry| !keys.contains(&entry.key.as_str())) {
            let remedy = match (entry.key.as_str(), suggest::nearest(&entry.key, keys.iter().copied())) {
                ("disabledTools" | "excludeTools", _) => "Write tools: { deny: [name, …] }.".to_owned(),
                ("includeTools" | "enabledTools", _) => "Write tools: { allow: [name, …] }.".to_owned(),
                ("envFile", _) => "Name each variable in env.".to_owned(),
                (_, Some(near)) => format!("Did you mean `{near}`?"),
                (_, None) => format!("Keys here: {}. All are in config/countersign.yaml.", keys.join(", ")),
            };
            let (origin, name) = (self.sourced.origin_at(entry.line, entry.column), quoted_key(&entry.key));
            self.push_problem(origin, &name, invalid("unknown key", remedy));
        }
    }

    /// Reads a value with a function.
    pub(crate) fn parse<T>(&mut self, name: &str, parse: impl FnOnce(&'a Node) -> Result<T, ValueError>) -> Option<T> {
        let result = parse(&self.value_of(name)?.node);
        self.accept(name, result)
    }

    /// Reads a value of this kind.
    pub(crate) fn read<T: 'static>(&mut self, name: &str, kind: Kind<T>) -> Option<T> {
        let result = kind.read(&self.input(&self.value_of(name)?.node));
        self.accept(name, result)
    }

    /// Reads a value of this kind into a field that has its default.
    pub(crate) fn read_into<T: 'static>(&mut self, name: &str, kind: Kind<T>, field: &mut T) {
        if let Some(value) = self.read(name, kind) {
            *field = value;
        }
    }

    /// Parses each entry of a map, and reports those that fail. Returns none if the key is missing.
    pub(crate) fn map_entries<T>(
        &mut self,
        name: &str,
        mut parse: impl FnMut(&Self, &KeyValue) -> Result<T, ValueError>,
    ) -> Vec<T> {
        let mut all = Vec::new();
        let entries = self.parse(name, |node| match node {
            Node::Map(entries) => Ok(entries.as_slice()),
            other => Err(invalid(format!("expected a map, found {}", other.describe_kind()), "Write {name: value}.")),
        });
        for entry in entries.unwrap_or_default() {
            match parse(self, entry) {
                Ok(value) => all.push(value),
                Err(error) => self.report_at(&entry.value, &format!("{name}.{}", quoted_key(&entry.key)), error),
            }
        }
        all
    }

    /// Parses each item of a list, and reports the items that fail.
    pub(crate) fn parse_items<T>(
        &mut self,
        name: &str,
        parse: impl Fn(&Self, &Node) -> Result<T, ValueError>,
    ) -> Vec<T> {
        let items = self.parse(name, |node| match node {
            Node::List(items) => Ok(items.as_slice()),
            other => Err(invalid(format!("expected a list, found {}", describe(other)), "Write [first, second].")),
        });
        self.parse_each(name, items.unwrap_or_default(), parse)
    }

    /// Parses one text, or each text of a list that is not empty.
    pub(crate) fn parse_texts<T>(&mut self, name: &str, parse: impl Fn(&str) -> Result<T, ValueError>) -> Vec<T> {
        let Some(value) = self.value_of(name) else { return Vec::new() };
        let items = match &value.node {
            Node::Text(_) => std::slice::from_ref(value),
            Node::List(items) if !items.is_empty() => items.as_slice(),
            other => {
                let found = if matches!(other, Node::List(_)) { "an empty list" } else { other.describe_kind() };
                let message = format!("expected a text or a list of texts, found {found}");
                self.report(name, message, "Write one, or leave the key out.");
                return Vec::new();
            }
        };
        self.parse_each(name, items, |_, node| parse(&read_text(node)?))
    }

    fn parse_each<T>(
        &mut self,
        name: &str,
        items: &[LocatedNode],
        parse: impl Fn(&Self, &Node) -> Result<T, ValueError>,
    ) -> Vec<T> {
        let mut all = Vec::new();
        for item in items {
            match parse(self, &item.node) {
                Ok(value) => all.push(value),
                Err(error) => self.report_at(item, name, error),
            }
        }
        all
    }

    /// Returns a reader of a nested map with these keys.
    pub(crate) fn section(&mut self, name: &str, keys: &[&str]) -> Option<Fields<'_>> {
        let value = self.value_of(name)?;
        self.nested(name, value, keys)
    }

    /// Returns a reader of a map with these keys inside a value, to which `name` is the path.
    pub(crate) fn nested(&mut self, name: &str, value: &'a LocatedNode, keys: &[&str]) -> Option<Fields<'_>> {
        let Node::Map(entries) = &value.node else {
            let message = format!("expected a map, found {}", value.node.describe_kind());
            self.report_at(value, name, invalid(message, format!("Keys here: {}.", keys.join(", "))));
            return None;
        };
        let (key, origin) = (format!("{}.{name}", self.key), self.sourced.origin_of_node(value));
        let keeps_null = self.keeps_null;
        let mut fields = Fields { keeps_null, ..Fields::new(self.reader, self.sourced, key, origin, entries) };
        fields.reject_unknown_keys(keys);
        Some(fields)
    }

    /// Resolves a path against `base`. `~` and `$HOME` are expanded where they are written, not in values of variables.
    pub(crate) fn resolve_path(&self, text: &ExpandedText, base: &Path) -> Result<PathBuf, ValueError> {
        let ExpandedText { source, value } = text;
        if value.is_empty() {
            return Err(invalid("the path is empty", "Name a file or a folder, or take the line out."));
        }
        let symbolic = source.starts_with('~') || (source.starts_with('$') && !source.starts_with("${"));
        if symbolic { self.env().expand_path(value, base) } else { Ok(base.join(value)) }
    }

    /// Reads a path, and resolves it against the folder of the configuration file.
    pub(crate) fn path(&mut self, name: &str) -> Option<PathBuf> {
        let text = self.expanded_text(name)?;
        let path = self.resolve_path(&text, self.base());
        self.accept(name, path)
    }

    /// Reads a text and expands its variables.
    pub(crate) fn expanded_text(&mut self, name: &str) -> Option<ExpandedText> {
        let result = expand_text(&self.value_of(name)?.node, self.env());
        self.accept(name, result)
    }
}

/// Expands the variables of a text. Rejects NUL characters, which no program or protocol could take.
pub(crate) fn expand_text(node: &Node, env: &Environment) -> Result<ExpandedText, ValueError> {
    let Node::Text(written) = node else {
        let remedy = "Put it in quotes if it is meant so.";
        return Err(invalid(format!("expected a text, found {}", node.describe_kind()), remedy));
    };
    let value = variables::expand(written, env)?;
    if value.contains('\0') {
        return Err(invalid("the text contains a NUL character", "Take it out."));
    }
    Ok(ExpandedText { source: written.clone(), value })
}
