//! Reads typed values from the merged layers, and records every key with its value and origin.
//!
//! The calls in `read.rs` are therefore the only list of keys: the check for unknown keys, the environment variables
//! and `config show` are derived from them.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    ops::RangeInclusive,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use super::{
    environment::Environment,
    error::{Origin, Problem, quoted},
    rules, terms,
    tree::{self, LocatedNode, Node},
    units,
    upstreams::Secret,
    values::{
        ValueError, check_range, describe, range_remedy, read_duration, read_size, read_text, yaml_list, yaml_map,
        yaml_text,
    },
    variables,
};
use countersign_domain::{
    changes::Terms,
    policy::{Groups, Rule},
};

/// A value from one layer.
#[derive(Clone, Debug)]
pub struct LayerValue {
    pub node: Node,
    pub origin: Origin,
    /// The directory that relative paths are resolved against.
    pub base: Arc<Path>,
}

impl LayerValue {
    /// Returns the origin of a position inside the value.
    pub(super) fn origin_at(&self, line: u64, column: u64) -> Origin {
        match &self.origin {
            Origin::File { path, .. } if line > 0 => Origin::File { path: Arc::clone(path), line, column },
            other => other.clone(),
        }
    }

    pub(super) fn origin_of_node(&self, spot: &LocatedNode) -> Origin {
        self.origin_at(spot.line, spot.column)
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
    values: BTreeMap<String, LayerValue>,
    pub(super) env: Environment,
    /// Only the keys are wanted; no value is read.
    lists_keys_only: bool,
    pub settings: Vec<Setting>,
    pub problems: Vec<Problem>,
    /// One sentence for each setting that was ignored.
    pub warnings: Vec<String>,
    /// Origins of keys below a map with user-defined names, such as `mcpServers.files.args`.
    pub(super) key_origins: BTreeMap<String, Origin>,
}

impl Reader {
    #[must_use]
    pub fn new(values: BTreeMap<String, LayerValue>, env: Environment) -> Self {
        Self { values, env, ..Self::default() }
    }

    /// Returns a reader that answers every key with a placeholder and reports no problem. It collects the list of keys.
    #[must_use]
    pub fn for_key_list() -> Self {
        Self { lists_keys_only: true, ..Self::default() }
    }

    fn parse_value<T>(
        &mut self,
        key: &'static str,
        parse: impl FnOnce(&LayerValue, &Environment) -> Result<T, ValueError>,
        show: impl FnOnce(&T) -> String,
    ) -> Option<T> {
        if self.lists_keys_only {
            self.settings.push(Setting { key, value: String::new(), origin: Origin::Default });
            return None;
        }
        let Some(placed) = self.values.get(key) else {
            self.problems.push(Problem {
                origin: Origin::Default,
                key: Some(key.to_owned()),
                message: "the built-in defaults do not name this key".to_owned(),
                remedy: "This is a mistake in the program; please report it.".to_owned(),
            });
            return None;
        };
        match parse(placed, &self.env) {
            Ok(value) => {
                self.settings.push(Setting { key, value: show(&value), origin: placed.origin.clone() });
                Some(value)
            }
            Err((message, remedy)) => {
                let (origin, key) = (placed.origin.clone(), Some(key.to_owned()));
                self.problems.push(Problem { origin, key, message, remedy });
                None
            }
        }
    }

    /// Reads an address to listen on: `IP:PORT`, `localhost:PORT`, or `PORT` on loopback.
    pub fn address(&mut self, key: &'static str) -> SocketAddr {
        let text = |node: &Node| match node {
            Node::Int(port @ 0..=65_535) => Ok(port.to_string()),
            other => read_text(other),
        };
        self.parse_value(key, |placed, _| parse_address(&text(&placed.node)?), ToString::to_string)
            .unwrap_or(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0))
    }

    pub fn path(&mut self, key: &'static str) -> PathBuf {
        self.parse_value(
            key,
            |placed, env| env.expand(&read_text(&placed.node)?, &placed.base),
            |p| yaml_text(&p.to_string_lossy()),
        )
        .unwrap_or_default()
    }

    pub fn optional_path(&mut self, key: &'static str) -> Option<PathBuf> {
        self.parse_value(
            key,
            |placed, env| read_optional_text(placed)?.map(|text| env.expand(&text, &placed.base)).transpose(),
            |p| p.as_ref().map_or("null".to_owned(), |p| yaml_text(&p.to_string_lossy())),
        )
        .flatten()
    }

    pub fn boolean(&mut self, key: &'static str) -> bool {
        let parse = |placed: &LayerValue, _: &Environment| match &placed.node {
            Node::Bool(value) => Ok(*value),
            Node::Text(text) if is_textual(placed) && matches!(text.as_str(), "true" | "1") => Ok(true),
            Node::Text(text) if is_textual(placed) && matches!(text.as_str(), "false" | "0") => Ok(false),
            other => {
                Err((format!("expected true or false, found {}", describe(other)), "Write true or false.".to_owned()))
            }
        };
        self.parse_value(key, parse, ToString::to_string).unwrap_or_default()
    }

    /// Reads a whole number within `range`.
    pub fn count<T: TryFrom<u64> + Default + ToString>(&mut self, key: &'static str, range: RangeInclusive<u64>) -> T {
        let parse = |placed: &LayerValue, _: &Environment| {
            let number = match &placed.node {
                Node::Int(number) => Some(*number),
                Node::Text(text) if is_textual(placed) => text.trim().parse().ok(),
                _ => None,
            };
            let number = number.and_then(|n| u64::try_from(n).ok()).ok_or_else(|| {
                (
                    format!("expected a whole number, found {}", describe(&placed.node)),
                    range_remedy(&range, ToString::to_string),
                )
            })?;
            check_range(number, &range, ToString::to_string)?;
            T::try_from(number)
                .map_err(|_| (format!("{number} is too large"), range_remedy(&range, ToString::to_string)))
        };
        self.parse_value(key, parse, ToString::to_string).unwrap_or_default()
    }

    /// Reads a size in bytes within `range`.
    pub fn size(&mut self, key: &'static str, range: RangeInclusive<u64>) -> usize {
        let parse = |placed: &LayerValue, _: &Environment| read_size(&placed.node, &range);
        self.parse_value(key, parse, |bytes| units::show_size(*bytes as u64)).unwrap_or_default()
    }

    pub fn duration(&mut self, key: &'static str, range: RangeInclusive<Duration>) -> Duration {
        let parse = |placed: &LayerValue, _: &Environment| read_duration(&placed.node, &range);
        self.parse_value(key, parse, |d| units::show_duration(*d)).unwrap_or_default()
    }

    /// Reads a duration of whole seconds.
    pub fn seconds(&mut self, key: &'static str, range: RangeInclusive<Duration>) -> u64 {
        let parse = |placed: &LayerValue, _: &Environment| terms::parse_seconds(&placed.node, &range);
        self.parse_value(key, parse, |s| units::show_duration(Duration::from_secs(*s))).unwrap_or_default()
    }

    /// Reads a duration of whole seconds, or `null`.
    pub fn optional_seconds(&mut self, key: &'static str, range: RangeInclusive<Duration>) -> Option<u64> {
        let parse = |placed: &LayerValue, _: &Environment| match &placed.node {
            Node::Null => Ok(None),
            Node::Text(text) if is_textual(placed) && text == "null" => Ok(None),
            node => terms::parse_seconds(node, &range).map(Some),
        };
        let show = |s: &Option<u64>| s.map_or("null".to_owned(), |s| units::show_duration(Duration::from_secs(s)));
        self.parse_value(key, parse, show).flatten()
    }

    /// Reads a duration or the word `never`.
    pub fn duration_or_never(&mut self, key: &'static str, range: RangeInclusive<Duration>) -> Option<Duration> {
        let parse = |placed: &LayerValue, _: &Environment| {
            let show = |d: &Duration| units::show_duration(*d);
            let remedy = || format!("{} Or `never`.", range_remedy(&range, show));
            let duration = match &placed.node {
                Node::Text(text) if text == "never" => return Ok(None),
                Node::Text(text) => units::parse_duration(text).map_err(|why| format!("{}: {why}", quoted(text))),
                Node::Int(number) => Err(format!("{number} has no unit: {number}s or {number}ms?")),
                other => Err(format!("expected a duration, found {}", describe(other))),
            };
            let duration = duration.map_err(|why| (why, remedy()))?;
            check_range(duration, &range, show).map(|()| Some(duration)).map_err(|(why, _)| (why, remedy()))
        };
        self.parse_value(key, parse, |d| d.map_or_else(|| "never".to_owned(), units::show_duration)).flatten()
    }

    /// Reads one of several words. `choices` must not be empty.
    pub fn choice<T: Copy>(&mut self, key: &'static str, choices: &[(&'static str, T)], filler: T) -> T {
        let words = || choices.iter().map(|(word, _)| *word).collect::<Vec<_>>().join(", ");
        let parse = |placed: &LayerValue, _: &Environment| {
            let wrong =
                |found: String| (format!("{found} is not one of {}", words()), format!("Write one of: {}.", words()));
            let Node::Text(text) = &placed.node else { return Err(wrong(describe(&placed.node))) };
            choices.iter().find(|(word, _)| word == text).copied().ok_or_else(|| wrong(quoted(text)))
        };
        self.parse_value(key, parse, |(word, _)| (*word).to_owned()).map_or(filler, |(_, value)| value)
    }

    /// Reads a text that passes `check`.
    pub fn text(&mut self, key: &'static str, check: fn(&str) -> Result<(), ValueError>) -> String {
        let parse = |placed: &LayerValue, _: &Environment| {
            let text = read_text(&placed.node)?;
            check(&text).map(|()| text)
        };
        self.parse_value(key, parse, |text| yaml_text(text)).unwrap_or_default()
    }

    pub fn optional_text(&mut self, key: &'static str, check: fn(&str) -> Result<(), ValueError>) -> Option<String> {
        let parse = |placed: &LayerValue, _: &Environment| {
            let text = read_optional_text(placed)?;
            text.as_deref().map_or(Ok(()), check).map(|()| text)
        };
        self.parse_value(key, parse, |text| text.as_deref().map_or("null".to_owned(), yaml_text)).flatten()
    }

    /// Reads a text with variables (`${NAME}`) that passes `check` after expansion. Its value is never shown.
    pub fn optional_secret(&mut self, key: &'static str, check: fn(&str) -> Result<(), ValueError>) -> Option<Secret> {
        let parse = |placed: &LayerValue, env: &Environment| {
            let Some(text) = read_optional_text(placed)? else { return Ok(None) };
            let secret = variables::expand(&text, env)?;
            check(&secret).map(|()| Some((text, Secret(secret))))
        };
        let show = |found: &Option<(String, Secret)>| match found {
            None => "null".to_owned(),
            Some((text, _)) if variables::is_safe_to_show(text) => yaml_text(text),
            Some(_) => yaml_text("[secret]"),
        };
        Some(self.parse_value(key, parse, show)??.1)
    }

    /// Reads a list of texts that each pass `check`.
    pub fn list(&mut self, key: &'static str, check: fn(&str) -> Result<(), ValueError>) -> Vec<String> {
        let parse = |placed: &LayerValue, _: &Environment| {
            let items = match parse_structured(placed)? {
                Node::List(items) => items.iter().map(|item| read_text(&item.node)).collect::<Result<Vec<_>, _>>()?,
                Node::Null => Vec::new(),
                Node::Text(text) if is_textual(placed) => text.split(',').map(|t| t.trim().to_owned()).collect(),
                other => {
                    let remedy = "Write a list: [first, second].".to_owned();
                    return Err((format!("expected a list, found {}", describe(&other)), remedy));
                }
            };
            items.iter().try_for_each(|item| check(item)).map(|()| items)
        };
        self.parse_value(key, parse, |items| yaml_list(items)).unwrap_or_default()
    }

    /// Reads a map of lists of texts. `check` is applied to every key and every text.
    pub fn lists(
        &mut self,
        key: &'static str,
        check: fn(&str) -> Result<(), ValueError>,
    ) -> BTreeMap<String, Vec<String>> {
        let parse = |placed: &LayerValue, _: &Environment| {
            let wrong = |found: String| {
                (format!("expected a map of lists, found {found}"), "Write {name: [first, second]}.".to_owned())
            };
            let entries = match parse_structured(placed)? {
                Node::Map(entries) => entries,
                Node::Null => Vec::new(),
                other => return Err(wrong(describe(&other))),
            };
            let mut map = BTreeMap::new();
            for entry in entries {
                check(&entry.key)?;
                let Node::List(items) = &entry.value.node else { return Err(wrong(describe(&entry.value.node))) };
                let items = items.iter().map(|item| read_text(&item.node)).collect::<Result<Vec<_>, _>>()?;
                items.iter().try_for_each(|item| check(item))?;
                map.insert(entry.key, items);
            }
            Ok(map)
        };
        let show = |map: &BTreeMap<String, Vec<String>>| {
            yaml_map(map.iter().map(|(k, v)| format!("{}: {}", yaml_text(k), yaml_list(v))))
        };
        self.parse_value(key, parse, show).unwrap_or_default()
    }

    /// Reads a map of texts in its written order. `check` is applied to every key.
    pub fn pairs(&mut self, key: &'static str, check: fn(&str) -> Result<(), ValueError>) -> Vec<(String, String)> {
        let parse = |placed: &LayerValue, _: &Environment| {
            let entries = match parse_structured(placed)? {
                Node::Map(entries) => entries,
                Node::Null => Vec::new(),
                other => {
                    let wrong = format!("expected a map, found {}", describe(&other));
                    return Err((wrong, "Write {name: value}.".to_owned()));
                }
            };
            entries
                .into_iter()
                .map(|entry| {
                    check(&entry.key)?;
                    read_text(&entry.value.node).map(|value| (entry.key, value))
                })
                .collect()
        };
        let show = |pairs: &Vec<(String, String)>| {
            yaml_map(pairs.iter().map(|(k, v)| format!("{}: {}", yaml_text(k), yaml_text(v))))
        };
        self.parse_value(key, parse, show).unwrap_or_default()
    }

    /// Reads and compiles the rules of the policy, and reports each problem at its own position.
    /// `review` holds the default terms of rules that review.
    pub fn rules(&mut self, key: &'static str, review: &Arc<Terms>, groups: &Groups) -> Vec<Rule> {
        let mut found = Vec::new();
        let parse = |placed: &LayerValue, _: &Environment| {
            let list = parse_structured(placed)?;
            let at = |spot: &LocatedNode| match &placed.origin {
                Origin::File { path, .. } => {
                    Origin::File { path: Arc::clone(path), line: spot.line, column: spot.column }
                }
                other => other.clone(),
            };
            Ok(rules::read(&list, &at, &placed.origin, review, groups).unwrap_or_else(|problems| {
                found = problems;
                Vec::new()
            }))
        };
        let rules = self.parse_value(key, parse, |rules| rules::show(rules, review)).unwrap_or_default();
        self.problems.append(&mut found);
        rules
    }

    /// Returns the unparsed value of a key, or `None` if only the keys are listed.
    fn raw_value(&mut self, key: &'static str) -> Option<Result<LayerValue, ValueError>> {
        if self.lists_keys_only {
            self.settings.push(Setting { key, value: String::new(), origin: Origin::Default });
            return None;
        }
        let placed = self.values.get(key)?;
        Some(parse_structured(placed).map(|node| LayerValue { node, ..placed.clone() }))
    }

    /// Returns the unparsed value of a key. Reports a problem and returns `None` if it cannot be read.
    pub(super) fn section(&mut self, key: &'static str) -> Option<LayerValue> {
        let (message, remedy) = match self.raw_value(key)? {
            Ok(placed) => return Some(placed),
            Err(wrong) => wrong,
        };
        self.problems.push(Problem { origin: self.origin(key), key: Some(key.to_owned()), message, remedy });
        None
    }

    /// Returns the origin of a key's value.
    #[must_use]
    pub fn origin(&self, key: &str) -> Origin {
        if let Some(origin) = self.key_origins.get(key) {
            return origin.clone();
        }
        self.values.get(key).map_or(Origin::Default, |placed| placed.origin.clone())
    }
}

/// Returns `true` if the value is from a flag or a variable, and therefore a text whatever its type.
const fn is_textual(placed: &LayerValue) -> bool {
    matches!(placed.origin, Origin::Env(_) | Origin::Flag(_))
}

/// Returns the value, after parsing the YAML of a list or map that a variable holds.
fn parse_structured(placed: &LayerValue) -> Result<Node, ValueError> {
    match &placed.node {
        Node::Text(text) if is_textual(placed) && text.trim_start().starts_with(['[', '{']) => {
            tree::parse(text).map(|LocatedNode { node, .. }| node).map_err(|error| {
                (format!("{} is not YAML: {}", quoted(text), error.message), "Write [a, b] or {a: [b]}.".to_owned())
            })
        }
        other => Ok(other.clone()),
    }
}

fn read_optional_text(placed: &LayerValue) -> Result<Option<String>, ValueError> {
    match &placed.node {
        Node::Null => Ok(None),
        Node::Text(text) if is_textual(placed) && text == "null" => Ok(None),
        other => read_text(other).map(Some),
    }
}

fn parse_address(text: &str) -> Result<SocketAddr, ValueError> {
    // A bare port means a port on loopback.
    let bare = Some(text).filter(|text| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()));
    let local = text.strip_prefix("localhost:").or(bare).map(|port| format!("127.0.0.1:{port}"));
    local.as_deref().unwrap_or(text).parse().map_err(|_| {
        let remedy = if text.parse::<IpAddr>().is_ok() {
            format!(
                "Add a port: {}.",
                if text.contains(':') { format!("[{text}]:8080") } else { format!("{text}:8080") }
            )
        } else if let Some(port) = text.strip_prefix(':') {
            format!("Name the address too: 127.0.0.1:{port} for this machine, 0.0.0.0:{port} for all.")
        } else {
            "Write PORT or IP:PORT, such as 8080, 127.0.0.1:8080 or [::1]:8080; host names other than localhost are not \
             looked up."
                .to_owned()
        };
        (format!("{} is not an address to listen on", quoted(text)), remedy)
    })
}
