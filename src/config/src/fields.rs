//! Reads the keys of one entry of a map with user-defined names, such as one server or one webhook.

use std::{ops::RangeInclusive, time::Duration};

use super::{
    environment::Environment,
    error::{Origin, Problem, quoted, quoted_key},
    reader::{LayerValue, Reader},
    tree::{KeyValue, LocatedNode, Node},
    units,
    values::{ValueError, check_range, describe, range_remedy, read_size, read_text},
    variables,
};
use countersign_protocol::suggest;

/// A text of the file before and after its variables were expanded.
pub(super) struct ExpandedText {
    /// The text in the file, which messages may quote unless it is itself a secret.
    pub source: String,
    /// The text with the values of its variables.
    pub value: String,
}

/// A reader of the keys of one entry, which reports problems with their positions.
pub(super) struct Fields<'a> {
    reader: &'a mut Reader,
    layer_value: &'a LayerValue,
    /// The key of the entry as messages name it.
    key: String,
    /// The same key in the form that [`Reader::origin`] takes.
    path: String,
    entries: &'a [KeyValue],
    origin: Origin,
}

impl<'a> Fields<'a> {
    pub(super) fn new(
        r: &'a mut Reader,
        placed: &'a LayerValue,
        key: String,
        path: String,
        entries: &'a [KeyValue],
        at: &KeyValue,
    ) -> Self {
        let origin = placed.origin_at(at.line, at.column);
        for entry in entries {
            r.key_origins.insert(format!("{path}.{}", entry.key), placed.origin_at(entry.line, entry.column));
        }
        Self { reader: r, layer_value: placed, key, path, entries, origin }
    }

    /// Returns the number of problems found so far in the whole configuration.
    pub(super) fn problem_count(&self) -> usize {
        self.reader.problems.len()
    }

    pub(super) fn layer_value(&self) -> &'a LayerValue {
        self.layer_value
    }

    pub(super) fn env(&self) -> &Environment {
        &self.reader.env
    }

    fn entry(&self, name: &str) -> Option<&'a KeyValue> {
        // Clients that write null mean the same as leaving the key out.
        self.entries.iter().find(|entry| entry.key == name && entry.value.node != Node::Null)
    }

    /// Returns the unparsed value of a key.
    pub(super) fn value_of(&self, name: &str) -> Option<&'a LocatedNode> {
        self.entry(name).map(|entry| &entry.value)
    }

    /// Reports a problem with a part of a value, to which `name` is the path.
    pub(super) fn report_at(&mut self, spot: &LocatedNode, name: &str, wrong: ValueError) {
        self.push_problem(self.layer_value.origin_of_node(spot), name, wrong);
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.entry(name).is_some()
    }

    pub(super) fn is_list(&self, name: &str) -> bool {
        self.entry(name).is_some_and(|entry| matches!(entry.value.node, Node::List(_)))
    }

    fn push_problem(&mut self, origin: Origin, name: &str, (message, remedy): ValueError) {
        let key = if name.is_empty() { self.key.clone() } else { format!("{}.{name}", self.key) };
        self.reader.problems.push(Problem { origin, key: Some(key), message, remedy });
    }

    /// Reports a problem with the value of a key, or with the whole entry if `name` is empty.
    pub(super) fn report(&mut self, name: &str, message: String, remedy: &str) {
        let origin =
            self.entry(name).map_or_else(|| self.origin.clone(), |entry| self.layer_value.origin_of_node(&entry.value));
        self.push_problem(origin, name, (message, remedy.to_owned()));
    }

    pub(super) fn warn(&mut self, warning: &str) {
        self.reader.warnings.push(format!("{} ({}): {warning}", self.key, self.origin));
    }

    /// Reports all keys except these as unknown.
    pub(super) fn reject_unknown_keys(&mut self, keys: &[&str]) {
        for entry in self.entries {
            if keys.contains(&entry.key.as_str()) {
                continue;
            }
            let remedy = match (entry.key.as_str(), suggest::nearest(&entry.key, keys.iter().copied())) {
                ("disabledTools" | "excludeTools", _) => "Write tools: { deny: [name, …] }.".to_owned(),
                ("includeTools" | "enabledTools", _) => "Write tools: { allow: [name, …] }.".to_owned(),
                ("envFile", _) => "Name each variable in env.".to_owned(),
                (_, Some(near)) => format!("Did you mean `{near}`?"),
                (_, None) => format!("Keys here: {}. All are in config/countersign.yaml.", keys.join(", ")),
            };
            let (origin, name) = (self.layer_value.origin_at(entry.line, entry.column), quoted_key(&entry.key));
            self.push_problem(origin, &name, ("unknown key".to_owned(), remedy));
        }
    }

    /// Warns of keys that other clients support and this gateway ignores.
    pub(super) fn warn_ignored(&mut self, keys: &[&str], why: &str) {
        for key in keys {
            if self.has(key) {
                self.warn(&format!("{key} is ignored: {why}"));
            }
        }
    }

    fn parse_value<T>(&mut self, name: &str, parse: impl FnOnce(&'a Node) -> Result<T, ValueError>) -> Option<T> {
        let entry = self.entry(name)?;
        match parse(&entry.value.node) {
            Ok(value) => Some(value),
            Err(wrong) => {
                self.push_problem(self.layer_value.origin_of_node(&entry.value), name, wrong);
                None
            }
        }
    }

    pub(super) fn boolean(&mut self, name: &str) -> Option<bool> {
        self.parse_value(name, |node| match node {
            Node::Bool(value) => Ok(*value),
            other => {
                Err((format!("expected true or false, found {}", describe(other)), "Write true or false.".to_owned()))
            }
        })
    }

    pub(super) fn flag(&mut self, name: &str, into: &mut bool) {
        *into = self.boolean(name).unwrap_or(*into);
    }

    /// Reads a text without expanding variables.
    pub(super) fn text(&mut self, name: &str) -> Option<String> {
        self.parse_value(name, read_text)
    }

    pub(super) fn choice<T: Copy>(&mut self, name: &str, choices: &[(&str, T)]) -> Option<T> {
        self.parse_value(name, |node| {
            let words = choices.iter().map(|(word, _)| *word).collect::<Vec<_>>().join(", ");
            let fits = |text: &String| choices.iter().find(|(word, _)| word == text).map(|(_, value)| *value);
            let value = if let Node::Text(text) = node { fits(text) } else { None };
            value
                .ok_or_else(|| (format!("{} is not one of {words}", describe(node)), format!("Write one of: {words}.")))
        })
    }

    pub(super) fn count<T: TryFrom<u64>>(&mut self, name: &str, range: RangeInclusive<u64>, into: &mut T) {
        let value = self.parse_value(name, |node| {
            let wrong =
                || (format!("expected a whole number, found {}", describe(node)), range_remedy(&range, u64::to_string));
            let Node::Int(number) = node else { return Err(wrong()) };
            let number = u64::try_from(*number).map_err(|_| wrong())?;
            check_range(number, &range, u64::to_string)?;
            T::try_from(number).map_err(|_| wrong())
        });
        if let Some(value) = value {
            *into = value;
        }
    }

    pub(super) fn duration(&mut self, name: &str, range: RangeInclusive<Duration>, into: &mut Duration) {
        if let Some(value) = self.parse_value(name, |node| read_duration(node, &range)) {
            *into = value;
        }
    }

    pub(super) fn size(&mut self, name: &str, range: RangeInclusive<u64>, into: &mut usize) {
        if let Some(value) = self.parse_value(name, |node| read_size(node, &range)) {
            *into = value;
        }
    }

    /// Reads a map of durations by glob in its written order.
    pub(super) fn durations(&mut self, name: &str, range: RangeInclusive<Duration>) -> Vec<(String, Duration)> {
        let mut all = Vec::new();
        for entry in self.map(name) {
            let value = check_glob(&entry.key).and_then(|()| read_duration(&entry.value.node, &range));
            match value {
                Ok(value) => all.push((entry.key.clone(), value)),
                Err(wrong) => self.report_entry(name, entry, wrong),
            }
        }
        all
    }

    /// Returns the entries of a map, or none if the key is missing.
    pub(super) fn map(&mut self, name: &str) -> &'a [KeyValue] {
        self.parse_value(name, |node| match node {
            Node::Map(entries) => Ok(entries.as_slice()),
            other => {
                Err((format!("expected a map, found {}", other.describe_kind()), "Write {name: value}.".to_owned()))
            }
        })
        .unwrap_or_default()
    }

    /// Reports a problem with one entry of a map.
    pub(super) fn report_entry(&mut self, name: &str, entry: &KeyValue, wrong: ValueError) {
        let origin = self.layer_value.origin_of_node(&entry.value);
        self.push_problem(origin, &format!("{name}.{}", quoted_key(&entry.key)), wrong);
    }

    /// Returns the items of a list, or none if the key is missing.
    pub(super) fn list(&mut self, name: &str) -> &'a [LocatedNode] {
        self.parse_value(name, |node| match node {
            Node::List(items) => Ok(items.as_slice()),
            other => Err((format!("expected a list, found {}", describe(other)), "Write [first, second].".to_owned())),
        })
        .unwrap_or_default()
    }

    /// Parses each item of a list, and reports the items that fail.
    pub(super) fn parse_items<T>(
        &mut self,
        name: &str,
        parse: impl Fn(&Self, &Node) -> Result<T, ValueError>,
    ) -> Vec<T> {
        let mut all = Vec::new();
        for item in self.list(name) {
            match parse(self, &item.node) {
                Ok(value) => all.push(value),
                Err(wrong) => self.push_problem(self.layer_value.origin_of_node(item), name, wrong),
            }
        }
        all
    }

    pub(super) fn globs(&mut self, name: &str) -> Vec<String> {
        self.parse_items(name, |_, node| {
            let text = read_text(node)?;
            check_glob(&text).map(|()| text)
        })
    }

    /// Returns a reader for a nested map.
    pub(super) fn section(&mut self, name: &str) -> Option<Fields<'_>> {
        let entry = self.entry(name)?;
        let entries = self.map(name);
        let (key, path) = (format!("{}.{name}", self.key), format!("{}.{name}", self.path));
        Some(Fields::new(self.reader, self.layer_value, key, path, entries, entry))
    }

    /// Reads a text and expands its variables.
    pub(super) fn expanded_text(&mut self, name: &str) -> Option<ExpandedText> {
        let env = self.reader.env.clone();
        self.parse_value(name, |node| expand_text(node, &env))
    }
}

/// Expands the variables of a text. Rejects NUL characters, which no program or protocol could take.
pub(super) fn expand_text(node: &Node, env: &Environment) -> Result<ExpandedText, ValueError> {
    let Node::Text(written) = node else {
        let remedy = "Put it in quotes if it is meant so.".to_owned();
        return Err((format!("expected a text, found {}", node.describe_kind()), remedy));
    };
    let value = variables::expand(written, env)?;
    if value.contains('\0') {
        return Err(("the text contains a NUL character".to_owned(), "Take it out.".to_owned()));
    }
    Ok(ExpandedText { source: written.clone(), value })
}

fn read_duration(node: &Node, range: &RangeInclusive<Duration>) -> Result<Duration, ValueError> {
    let show = |d: &Duration| units::show_duration(*d);
    let duration = match node {
        Node::Int(number) => Err(format!("{number} has no unit: {number}s or {number}ms?")),
        Node::Text(text) => units::parse_duration(text).map_err(|why| format!("{}: {why}", quoted(text))),
        other => Err(format!("expected a duration, found {}", describe(other))),
    };
    let duration = duration.map_err(|why| (why, range_remedy(range, show)))?;
    check_range(duration, range, show).map(|()| duration)
}

fn check_glob(text: &str) -> Result<(), ValueError> {
    let remedy = || "Write a tool's own name; * stands for any characters.".to_owned();
    if text.is_empty() {
        return Err(("the pattern is empty".to_owned(), remedy()));
    }
    globset::Glob::new(text)
        .map(drop)
        .map_err(|error| (format!("{} is not a pattern: {}", quoted(text), error.kind()), remedy()))
}
