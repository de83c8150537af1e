//! Takes typed values out of the merged layers, and notes every key, its value and its origin on the way.
//!
//! The calls in `read.rs` are thereby the one list of keys: unknown-key checks, environment variables and
//! `config show` all come from it.

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
    tree::{self, Node, Spot},
    units,
    upstreams::Secret,
    values::{Wrong, between, duration_of, found, size_of, text_of, within, yaml_list, yaml_map, yaml_text},
    variables,
};
use countersign_domain::{
    changes::Terms,
    policy::{Groups, Rule},
};

/// A value of one layer.
#[derive(Clone, Debug)]
pub struct Placed {
    pub node: Node,
    pub origin: Origin,
    /// What a relative path counts from.
    pub base: Arc<Path>,
}

impl Placed {
    /// Where something inside the value stands.
    pub(super) fn at(&self, line: u64, column: u64) -> Origin {
        match &self.origin {
            Origin::File { path, .. } if line > 0 => Origin::File { path: Arc::clone(path), line, column },
            other => other.clone(),
        }
    }

    pub(super) fn at_spot(&self, spot: &Spot) -> Origin {
        self.at(spot.line, spot.column)
    }
}

/// A key as it is in force.
#[derive(Clone, Debug)]
pub struct Setting {
    pub key: &'static str,
    /// As YAML.
    pub value: String,
    pub origin: Origin,
}

/// Reads keys; collects problems instead of stopping at the first.
#[derive(Debug, Default)]
pub struct Reader {
    values: BTreeMap<String, Placed>,
    pub(super) env: Environment,
    /// Only lists the keys.
    schema: bool,
    pub settings: Vec<Setting>,
    pub problems: Vec<Problem>,
    /// What was ignored, one sentence each.
    pub warnings: Vec<String>,
    /// Where keys below a free map stand, such as `mcpServers.files.args`.
    pub(super) places: BTreeMap<String, Origin>,
}

impl Reader {
    #[must_use]
    pub fn new(values: BTreeMap<String, Placed>, env: Environment) -> Self {
        Self { values, env, ..Self::default() }
    }

    /// One that answers every key with a filler and finds no problem: for the list of keys.
    #[must_use]
    pub fn schema() -> Self {
        Self { schema: true, ..Self::default() }
    }

    fn take<T>(
        &mut self,
        key: &'static str,
        parse: impl FnOnce(&Placed, &Environment) -> Result<T, Wrong>,
        show: impl FnOnce(&T) -> String,
    ) -> Option<T> {
        if self.schema {
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

    /// An address to listen on: `IP:PORT`, `localhost:PORT`, or `PORT` on loopback.
    pub fn address(&mut self, key: &'static str) -> SocketAddr {
        let text = |node: &Node| match node {
            Node::Int(port @ 0..=65_535) => Ok(port.to_string()),
            other => text_of(other),
        };
        self.take(key, |placed, _| parse_address(&text(&placed.node)?), ToString::to_string)
            .unwrap_or(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0))
    }

    pub fn path(&mut self, key: &'static str) -> PathBuf {
        self.take(
            key,
            |placed, env| env.expand(&text_of(&placed.node)?, &placed.base),
            |p| yaml_text(&p.to_string_lossy()),
        )
        .unwrap_or_default()
    }

    pub fn optional_path(&mut self, key: &'static str) -> Option<PathBuf> {
        self.take(
            key,
            |placed, env| optional_text(placed)?.map(|text| env.expand(&text, &placed.base)).transpose(),
            |p| p.as_ref().map_or("null".to_owned(), |p| yaml_text(&p.to_string_lossy())),
        )
        .flatten()
    }

    pub fn boolean(&mut self, key: &'static str) -> bool {
        let parse = |placed: &Placed, _: &Environment| match &placed.node {
            Node::Bool(value) => Ok(*value),
            Node::Text(text) if textual(placed) && matches!(text.as_str(), "true" | "1") => Ok(true),
            Node::Text(text) if textual(placed) && matches!(text.as_str(), "false" | "0") => Ok(false),
            other => {
                Err((format!("expected true or false, found {}", found(other)), "Write true or false.".to_owned()))
            }
        };
        self.take(key, parse, ToString::to_string).unwrap_or_default()
    }

    /// A whole number within `range`.
    pub fn count<T: TryFrom<u64> + Default + ToString>(&mut self, key: &'static str, range: RangeInclusive<u64>) -> T {
        let parse = |placed: &Placed, _: &Environment| {
            let number = match &placed.node {
                Node::Int(number) => Some(*number),
                Node::Text(text) if textual(placed) => text.trim().parse().ok(),
                _ => None,
            };
            let number = number.and_then(|n| u64::try_from(n).ok()).ok_or_else(|| {
                (
                    format!("expected a whole number, found {}", found(&placed.node)),
                    between(&range, ToString::to_string),
                )
            })?;
            within(number, &range, ToString::to_string)?;
            T::try_from(number).map_err(|_| (format!("{number} is too large"), between(&range, ToString::to_string)))
        };
        self.take(key, parse, ToString::to_string).unwrap_or_default()
    }

    /// Bytes within `range`.
    pub fn size(&mut self, key: &'static str, range: RangeInclusive<u64>) -> usize {
        let parse = |placed: &Placed, _: &Environment| size_of(&placed.node, &range);
        self.take(key, parse, |bytes| units::show_size(*bytes as u64)).unwrap_or_default()
    }

    pub fn duration(&mut self, key: &'static str, range: RangeInclusive<Duration>) -> Duration {
        let parse = |placed: &Placed, _: &Environment| duration_of(&placed.node, &range);
        self.take(key, parse, |d| units::show_duration(*d)).unwrap_or_default()
    }

    /// A duration of whole seconds.
    pub fn seconds(&mut self, key: &'static str, range: RangeInclusive<Duration>) -> u64 {
        let parse = |placed: &Placed, _: &Environment| terms::seconds(&placed.node, &range);
        self.take(key, parse, |s| units::show_duration(Duration::from_secs(*s))).unwrap_or_default()
    }

    /// A duration of whole seconds, or none.
    pub fn optional_seconds(&mut self, key: &'static str, range: RangeInclusive<Duration>) -> Option<u64> {
        let parse = |placed: &Placed, _: &Environment| match &placed.node {
            Node::Null => Ok(None),
            Node::Text(text) if textual(placed) && text == "null" => Ok(None),
            node => terms::seconds(node, &range).map(Some),
        };
        let show = |s: &Option<u64>| s.map_or("null".to_owned(), |s| units::show_duration(Duration::from_secs(s)));
        self.take(key, parse, show).flatten()
    }

    /// A duration, or the word `never`.
    pub fn duration_or_never(&mut self, key: &'static str, range: RangeInclusive<Duration>) -> Option<Duration> {
        let parse = |placed: &Placed, _: &Environment| {
            let show = |d: &Duration| units::show_duration(*d);
            let remedy = || format!("{} Or `never`.", between(&range, show));
            let duration = match &placed.node {
                Node::Text(text) if text == "never" => return Ok(None),
                Node::Text(text) => units::parse_duration(text).map_err(|why| format!("{}: {why}", quoted(text))),
                Node::Int(number) => Err(format!("{number} has no unit: {number}s or {number}ms?")),
                other => Err(format!("expected a duration, found {}", found(other))),
            };
            let duration = duration.map_err(|why| (why, remedy()))?;
            within(duration, &range, show).map(|()| Some(duration)).map_err(|(why, _)| (why, remedy()))
        };
        self.take(key, parse, |d| d.map_or_else(|| "never".to_owned(), units::show_duration)).flatten()
    }

    /// One of a few words; `choices` is not empty.
    pub fn choice<T: Copy>(&mut self, key: &'static str, choices: &[(&'static str, T)], filler: T) -> T {
        let words = || choices.iter().map(|(word, _)| *word).collect::<Vec<_>>().join(", ");
        let parse = |placed: &Placed, _: &Environment| {
            let wrong =
                |found: String| (format!("{found} is not one of {}", words()), format!("Write one of: {}.", words()));
            let Node::Text(text) = &placed.node else { return Err(wrong(found(&placed.node))) };
            choices.iter().find(|(word, _)| word == text).copied().ok_or_else(|| wrong(quoted(text)))
        };
        self.take(key, parse, |(word, _)| (*word).to_owned()).map_or(filler, |(_, value)| value)
    }

    /// A text that passes `check`.
    pub fn text(&mut self, key: &'static str, check: fn(&str) -> Result<(), Wrong>) -> String {
        let parse = |placed: &Placed, _: &Environment| {
            let text = text_of(&placed.node)?;
            check(&text).map(|()| text)
        };
        self.take(key, parse, |text| yaml_text(text)).unwrap_or_default()
    }

    pub fn optional_text(&mut self, key: &'static str, check: fn(&str) -> Result<(), Wrong>) -> Option<String> {
        let parse = |placed: &Placed, _: &Environment| {
            let text = optional_text(placed)?;
            text.as_deref().map_or(Ok(()), check).map(|()| text)
        };
        self.take(key, parse, |text| text.as_deref().map_or("null".to_owned(), yaml_text)).flatten()
    }

    /// A text with variables (`${NAME}`) that passes `check` once they are expanded, and that is not shown.
    pub fn optional_secret(&mut self, key: &'static str, check: fn(&str) -> Result<(), Wrong>) -> Option<Secret> {
        let parse = |placed: &Placed, env: &Environment| {
            let Some(text) = optional_text(placed)? else { return Ok(None) };
            let secret = variables::expand(&text, env)?;
            check(&secret).map(|()| Some((text, Secret(secret))))
        };
        let show = |found: &Option<(String, Secret)>| match found {
            None => "null".to_owned(),
            Some((text, _)) if variables::tells_nothing(text) => yaml_text(text),
            Some(_) => yaml_text("[secret]"),
        };
        Some(self.take(key, parse, show)??.1)
    }

    /// A list of texts that each pass `check`.
    pub fn list(&mut self, key: &'static str, check: fn(&str) -> Result<(), Wrong>) -> Vec<String> {
        let parse = |placed: &Placed, _: &Environment| {
            let items = match structured(placed)? {
                Node::List(items) => items.iter().map(|item| text_of(&item.node)).collect::<Result<Vec<_>, _>>()?,
                Node::Null => Vec::new(),
                Node::Text(text) if textual(placed) => text.split(',').map(|t| t.trim().to_owned()).collect(),
                other => {
                    let remedy = "Write a list: [first, second].".to_owned();
                    return Err((format!("expected a list, found {}", found(&other)), remedy));
                }
            };
            items.iter().try_for_each(|item| check(item)).map(|()| items)
        };
        self.take(key, parse, |items| yaml_list(items)).unwrap_or_default()
    }

    /// A map of lists of texts; `check` sees every name in it.
    pub fn lists(&mut self, key: &'static str, check: fn(&str) -> Result<(), Wrong>) -> BTreeMap<String, Vec<String>> {
        let parse = |placed: &Placed, _: &Environment| {
            let wrong = |found: String| {
                (format!("expected a map of lists, found {found}"), "Write {name: [first, second]}.".to_owned())
            };
            let entries = match structured(placed)? {
                Node::Map(entries) => entries,
                Node::Null => Vec::new(),
                other => return Err(wrong(found(&other))),
            };
            let mut map = BTreeMap::new();
            for entry in entries {
                check(&entry.key)?;
                let Node::List(items) = &entry.value.node else { return Err(wrong(found(&entry.value.node))) };
                let items = items.iter().map(|item| text_of(&item.node)).collect::<Result<Vec<_>, _>>()?;
                items.iter().try_for_each(|item| check(item))?;
                map.insert(entry.key, items);
            }
            Ok(map)
        };
        let show = |map: &BTreeMap<String, Vec<String>>| {
            yaml_map(map.iter().map(|(k, v)| format!("{}: {}", yaml_text(k), yaml_list(v))))
        };
        self.take(key, parse, show).unwrap_or_default()
    }

    /// A map of texts, in the order it is written; `check` sees every key of it.
    pub fn pairs(&mut self, key: &'static str, check: fn(&str) -> Result<(), Wrong>) -> Vec<(String, String)> {
        let parse = |placed: &Placed, _: &Environment| {
            let entries = match structured(placed)? {
                Node::Map(entries) => entries,
                Node::Null => Vec::new(),
                other => {
                    let wrong = format!("expected a map, found {}", found(&other));
                    return Err((wrong, "Write {name: value}.".to_owned()));
                }
            };
            entries
                .into_iter()
                .map(|entry| {
                    check(&entry.key)?;
                    text_of(&entry.value.node).map(|value| (entry.key, value))
                })
                .collect()
        };
        let show = |pairs: &Vec<(String, String)>| {
            yaml_map(pairs.iter().map(|(k, v)| format!("{}: {}", yaml_text(k), yaml_text(v))))
        };
        self.take(key, parse, show).unwrap_or_default()
    }

    /// Rules of the policy, compiled. Each problem is told at its own place.
    /// `review` is what a rule for review asks for where it does not say.
    pub fn rules(&mut self, key: &'static str, review: &Arc<Terms>, groups: &Groups) -> Vec<Rule> {
        let mut found = Vec::new();
        let parse = |placed: &Placed, _: &Environment| {
            let list = structured(placed)?;
            let at = |spot: &Spot| match &placed.origin {
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
        let rules = self.take(key, parse, |rules| rules::show(rules, review)).unwrap_or_default();
        self.problems.append(&mut found);
        rules
    }

    /// A value as it was written, from whatever layer; `None` where only the keys are listed.
    fn raw(&mut self, key: &'static str) -> Option<Result<Placed, Wrong>> {
        if self.schema {
            self.settings.push(Setting { key, value: String::new(), origin: Origin::Default });
            return None;
        }
        let placed = self.values.get(key)?;
        Some(structured(placed).map(|node| Placed { node, ..placed.clone() }))
    }

    /// The same; what cannot be read is a problem, and nothing is there.
    pub(super) fn section(&mut self, key: &'static str) -> Option<Placed> {
        let (message, remedy) = match self.raw(key)? {
            Ok(placed) => return Some(placed),
            Err(wrong) => wrong,
        };
        self.problems.push(Problem { origin: self.origin(key), key: Some(key.to_owned()), message, remedy });
        None
    }

    /// Where the value of a key came from.
    #[must_use]
    pub fn origin(&self, key: &str) -> Origin {
        if let Some(origin) = self.places.get(key) {
            return origin.clone();
        }
        self.values.get(key).map_or(Origin::Default, |placed| placed.origin.clone())
    }
}

/// Flags and variables are texts whatever they mean.
const fn textual(placed: &Placed) -> bool {
    matches!(placed.origin, Origin::Env(_) | Origin::Flag(_))
}

/// A list or map; from a variable it is written as YAML.
fn structured(placed: &Placed) -> Result<Node, Wrong> {
    match &placed.node {
        Node::Text(text) if textual(placed) && text.trim_start().starts_with(['[', '{']) => {
            tree::parse(text).map(|Spot { node, .. }| node).map_err(|error| {
                (format!("{} is not YAML: {}", quoted(text), error.message), "Write [a, b] or {a: [b]}.".to_owned())
            })
        }
        other => Ok(other.clone()),
    }
}

fn optional_text(placed: &Placed) -> Result<Option<String>, Wrong> {
    match &placed.node {
        Node::Null => Ok(None),
        Node::Text(text) if textual(placed) && text == "null" => Ok(None),
        other => text_of(other).map(Some),
    }
}

fn parse_address(text: &str) -> Result<SocketAddr, Wrong> {
    // A bare port is one of this machine's own.
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
