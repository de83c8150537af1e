//! The values below one name of a free map, by key, with their places.

use std::{ops::RangeInclusive, time::Duration};

use super::{
    environment::Environment,
    error::{Origin, Problem, quoted, quoted_key},
    reader::{Placed, Reader},
    tree::{KeyValue, Node, Spot},
    units,
    values::{Wrong, between, found, size_of, text_of, within},
    variables,
};
use countersign_protocol::suggest;

/// A text of the file, and what came out of it.
pub(super) struct Expanded {
    /// As it stands in the file; for messages, unless it is a secret itself.
    pub written: String,
    /// With the values of its variables.
    pub value: String,
}

/// See the module's page.
pub(super) struct Fields<'a> {
    r: &'a mut Reader,
    placed: &'a Placed,
    /// The key of the whole, as messages name it.
    key: String,
    /// The same, as [`Reader::origin`] takes it.
    path: String,
    entries: &'a [KeyValue],
    origin: Origin,
}

impl<'a> Fields<'a> {
    pub(super) fn new(
        r: &'a mut Reader,
        placed: &'a Placed,
        key: String,
        path: String,
        entries: &'a [KeyValue],
        at: &KeyValue,
    ) -> Self {
        let origin = placed.at(at.line, at.column);
        for entry in entries {
            r.places.insert(format!("{path}.{}", entry.key), placed.at(entry.line, entry.column));
        }
        Self { r, placed, key, path, entries, origin }
    }

    /// How many problems were found so far, anywhere.
    pub(super) fn problems(&self) -> usize {
        self.r.problems.len()
    }

    pub(super) fn placed(&self) -> &'a Placed {
        self.placed
    }

    pub(super) fn env(&self) -> &Environment {
        &self.r.env
    }

    fn entry(&self, name: &str) -> Option<&'a KeyValue> {
        // A client that writes null means the same as one that leaves it out.
        self.entries.iter().find(|entry| entry.key == name && entry.value.node != Node::Null)
    }

    /// A value as it stands in the file.
    pub(super) fn spot(&self, name: &str) -> Option<&'a Spot> {
        self.entry(name).map(|entry| &entry.value)
    }

    /// Something is wrong with a part of a value; `name` leads there.
    pub(super) fn wrong_at(&mut self, spot: &Spot, name: &str, wrong: Wrong) {
        self.problem(self.placed.at_spot(spot), name, wrong);
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.entry(name).is_some()
    }

    pub(super) fn is_list(&self, name: &str) -> bool {
        self.entry(name).is_some_and(|entry| matches!(entry.value.node, Node::List(_)))
    }

    fn problem(&mut self, origin: Origin, name: &str, (message, remedy): Wrong) {
        let key = if name.is_empty() { self.key.clone() } else { format!("{}.{name}", self.key) };
        self.r.problems.push(Problem { origin, key: Some(key), message, remedy });
    }

    /// Something is wrong with the value of a key, or with the whole where `name` is empty.
    pub(super) fn wrong(&mut self, name: &str, message: String, remedy: &str) {
        let origin = self.entry(name).map_or_else(|| self.origin.clone(), |entry| self.placed.at_spot(&entry.value));
        self.problem(origin, name, (message, remedy.to_owned()));
    }

    pub(super) fn warn(&mut self, warning: &str) {
        self.r.warnings.push(format!("{} ({}): {warning}", self.key, self.origin));
    }

    /// Keys beside these are problems.
    pub(super) fn only(&mut self, keys: &[&str]) {
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
            let (origin, name) = (self.placed.at(entry.line, entry.column), quoted_key(&entry.key));
            self.problem(origin, &name, ("unknown key".to_owned(), remedy));
        }
    }

    /// Keys that other clients know and that mean nothing here.
    pub(super) fn ignored(&mut self, keys: &[&str], why: &str) {
        for key in keys {
            if self.has(key) {
                self.warn(&format!("{key} is ignored: {why}"));
            }
        }
    }

    fn take<T>(&mut self, name: &str, parse: impl FnOnce(&'a Node) -> Result<T, Wrong>) -> Option<T> {
        let entry = self.entry(name)?;
        match parse(&entry.value.node) {
            Ok(value) => Some(value),
            Err(wrong) => {
                self.problem(self.placed.at_spot(&entry.value), name, wrong);
                None
            }
        }
    }

    pub(super) fn boolean(&mut self, name: &str) -> Option<bool> {
        self.take(name, |node| match node {
            Node::Bool(value) => Ok(*value),
            other => {
                Err((format!("expected true or false, found {}", found(other)), "Write true or false.".to_owned()))
            }
        })
    }

    pub(super) fn flag(&mut self, name: &str, into: &mut bool) {
        *into = self.boolean(name).unwrap_or(*into);
    }

    /// A text as it is written, without variables.
    pub(super) fn text(&mut self, name: &str) -> Option<String> {
        self.take(name, text_of)
    }

    pub(super) fn choice<T: Copy>(&mut self, name: &str, choices: &[(&str, T)]) -> Option<T> {
        self.take(name, |node| {
            let words = choices.iter().map(|(word, _)| *word).collect::<Vec<_>>().join(", ");
            let fits = |text: &String| choices.iter().find(|(word, _)| word == text).map(|(_, value)| *value);
            let value = if let Node::Text(text) = node { fits(text) } else { None };
            value.ok_or_else(|| (format!("{} is not one of {words}", found(node)), format!("Write one of: {words}.")))
        })
    }

    pub(super) fn count<T: TryFrom<u64>>(&mut self, name: &str, range: RangeInclusive<u64>, into: &mut T) {
        let value = self.take(name, |node| {
            let wrong = || (format!("expected a whole number, found {}", found(node)), between(&range, u64::to_string));
            let Node::Int(number) = node else { return Err(wrong()) };
            let number = u64::try_from(*number).map_err(|_| wrong())?;
            within(number, &range, u64::to_string)?;
            T::try_from(number).map_err(|_| wrong())
        });
        if let Some(value) = value {
            *into = value;
        }
    }

    pub(super) fn duration(&mut self, name: &str, range: RangeInclusive<Duration>, into: &mut Duration) {
        if let Some(value) = self.take(name, |node| duration(node, &range)) {
            *into = value;
        }
    }

    pub(super) fn size(&mut self, name: &str, range: RangeInclusive<u64>, into: &mut usize) {
        if let Some(value) = self.take(name, |node| size_of(node, &range)) {
            *into = value;
        }
    }

    /// A map of times by glob, in the order it is written.
    pub(super) fn durations(&mut self, name: &str, range: RangeInclusive<Duration>) -> Vec<(String, Duration)> {
        let mut all = Vec::new();
        for entry in self.map(name) {
            let value = glob(&entry.key).and_then(|()| duration(&entry.value.node, &range));
            match value {
                Ok(value) => all.push((entry.key.clone(), value)),
                Err(wrong) => self.below(name, entry, wrong),
            }
        }
        all
    }

    /// The entries of a map; none where there is none.
    pub(super) fn map(&mut self, name: &str) -> &'a [KeyValue] {
        self.take(name, |node| match node {
            Node::Map(entries) => Ok(entries.as_slice()),
            other => Err((format!("expected a map, found {}", other.kind()), "Write {name: value}.".to_owned())),
        })
        .unwrap_or_default()
    }

    /// Something is wrong with one entry of a map.
    pub(super) fn below(&mut self, name: &str, entry: &KeyValue, wrong: Wrong) {
        let origin = self.placed.at_spot(&entry.value);
        self.problem(origin, &format!("{name}.{}", quoted_key(&entry.key)), wrong);
    }

    /// The items of a list; none where there is none.
    pub(super) fn list(&mut self, name: &str) -> &'a [Spot] {
        self.take(name, |node| match node {
            Node::List(items) => Ok(items.as_slice()),
            other => Err((format!("expected a list, found {}", found(other)), "Write [first, second].".to_owned())),
        })
        .unwrap_or_default()
    }

    /// What each item of a list becomes.
    pub(super) fn each<T>(&mut self, name: &str, parse: impl Fn(&Self, &Node) -> Result<T, Wrong>) -> Vec<T> {
        let mut all = Vec::new();
        for item in self.list(name) {
            match parse(self, &item.node) {
                Ok(value) => all.push(value),
                Err(wrong) => self.problem(self.placed.at_spot(item), name, wrong),
            }
        }
        all
    }

    pub(super) fn globs(&mut self, name: &str) -> Vec<String> {
        self.each(name, |_, node| {
            let text = text_of(node)?;
            glob(&text).map(|()| text)
        })
    }

    /// A map below, with keys of its own.
    pub(super) fn section(&mut self, name: &str) -> Option<Fields<'_>> {
        let entry = self.entry(name)?;
        let entries = self.map(name);
        let (key, path) = (format!("{}.{name}", self.key), format!("{}.{name}", self.path));
        Some(Fields::new(self.r, self.placed, key, path, entries, entry))
    }

    /// A text with its variables put in.
    pub(super) fn expanded(&mut self, name: &str) -> Option<Expanded> {
        let env = self.r.env.clone();
        self.take(name, |node| expanded(node, &env))
    }
}

/// A text with its variables put in, and without a NUL, which cannot be passed on to anything.
pub(super) fn expanded(node: &Node, env: &Environment) -> Result<Expanded, Wrong> {
    let Node::Text(written) = node else {
        let remedy = "Put it in quotes if it is meant so.".to_owned();
        return Err((format!("expected a text, found {}", node.kind()), remedy));
    };
    let value = variables::expand(written, env)?;
    if value.contains('\0') {
        return Err(("the text contains a NUL character".to_owned(), "Take it out.".to_owned()));
    }
    Ok(Expanded { written: written.clone(), value })
}

fn duration(node: &Node, range: &RangeInclusive<Duration>) -> Result<Duration, Wrong> {
    let show = |d: &Duration| units::show_duration(*d);
    let duration = match node {
        Node::Int(number) => Err(format!("{number} has no unit: {number}s or {number}ms?")),
        Node::Text(text) => units::parse_duration(text).map_err(|why| format!("{}: {why}", quoted(text))),
        other => Err(format!("expected a duration, found {}", found(other))),
    };
    let duration = duration.map_err(|why| (why, between(range, show)))?;
    within(duration, range, show).map(|()| duration)
}

fn glob(text: &str) -> Result<(), Wrong> {
    let remedy = || "Write a tool's own name; * stands for any characters.".to_owned();
    if text.is_empty() {
        return Err(("the pattern is empty".to_owned(), remedy()));
    }
    globset::Glob::new(text)
        .map(drop)
        .map_err(|error| (format!("{} is not a pattern: {}", quoted(text), error.kind()), remedy()))
}
