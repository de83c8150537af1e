//! Defines kinds of values. A kind reads a value from a YAML node, and formats the value as YAML.

use std::{
    borrow::Cow,
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    ops::RangeInclusive,
    path::{Path, PathBuf},
    rc::Rc,
    time::Duration,
};

use strum::VariantArray;

use super::{
    environment::Environment,
    error::{ValueError, invalid, quoted},
    tree::{self, KeyValue, Node},
    units::{self, show_duration},
    upstreams::Secret,
    variables,
    yaml::{yaml_items, yaml_list, yaml_map, yaml_secret, yaml_text},
};
use countersign_domain::{changes::visible::has_hidden, principal::Role};

pub(super) const MAX_NAME_CHARS: usize = 100;

/// A check of a text beyond its type.
pub(super) type TextCheck = fn(&str) -> Result<(), ValueError>;

/// Returns the error unless the value fits.
pub(super) fn ensure(fits: bool, error: impl FnOnce() -> ValueError) -> Result<(), ValueError> {
    if fits { Ok(()) } else { Err(error()) }
}

/// The input of a [`Kind`]: a node with the context for reading it.
pub(super) struct KindInput<'a> {
    pub node: &'a Node,
    /// Set if the value comes from a flag or a variable, and is therefore a text even if the key has another type.
    pub is_textual: bool,
    pub env: &'a Environment,
    /// The directory that relative paths are resolved against.
    pub base: &'a Path,
}

impl KindInput<'_> {
    /// Returns the value, after parsing the YAML of a list or map that a variable holds.
    pub(super) fn structured(&self) -> Result<Cow<'_, Node>, ValueError> {
        match self.node {
            Node::Text(text) if self.is_textual && text.trim_start().starts_with(['[', '{']) => {
                tree::parse(text).map(|located| Cow::Owned(located.node)).map_err(|error| {
                    invalid(format!("{} is not YAML: {}", quoted(text), error.message), "Write [a, b] or {a: [b]}.")
                })
            }
            other => Ok(Cow::Borrowed(other)),
        }
    }

    pub(super) fn map_entries(&self, expected: &str, example: &str) -> Result<Vec<KeyValue>, ValueError> {
        match self.structured()?.into_owned() {
            Node::Map(entries) => Ok(entries),
            Node::Null => Ok(Vec::new()),
            other => {
                Err(invalid(format!("expected {expected}, found {}", describe(&other)), format!("Write {example}.")))
            }
        }
    }
}

type ReadValue<T> = Box<dyn Fn(&KindInput<'_>) -> Result<T, ValueError>>;

/// A kind of values, with functions that read a value and format it as YAML.
pub(super) struct Kind<T> {
    read: ReadValue<T>,
    show: Box<dyn Fn(&T) -> String>,
}

impl<T: 'static> Kind<T> {
    pub(super) fn new(
        read: impl Fn(&KindInput<'_>) -> Result<T, ValueError> + 'static,
        show: impl Fn(&T) -> String + 'static,
    ) -> Self {
        Self { read: Box::new(read), show: Box::new(show) }
    }

    pub(super) fn read(&self, input: &KindInput<'_>) -> Result<T, ValueError> {
        (self.read)(input)
    }

    /// Formats the value as YAML.
    pub(super) fn show(&self, value: &T) -> String {
        (self.show)(value)
    }

    /// Returns the kind that also allows `null`.
    pub(super) fn or_null(self) -> Kind<Option<T>> {
        let Self { read, show } = self;
        let read = move |input: &KindInput<'_>| match input.node {
            Node::Null => Ok(None),
            Node::Text(text) if input.is_textual && text == "null" => Ok(None),
            _ => read(input).map(Some),
        };
        Kind::new(read, move |value| value.as_ref().map_or_else(|| "null".to_owned(), &show))
    }

    /// Returns the kind that also allows the word `never`.
    pub(super) fn or_never(self) -> Kind<Option<T>> {
        let Self { read, show } = self;
        let read = move |input: &KindInput<'_>| match input.node {
            Node::Text(text) if text == "never" => Ok(None),
            _ => read(input)
                .map(Some)
                .map_err(|ValueError { message, remedy }| invalid(message, format!("{remedy} Or `never`."))),
        };
        Kind::new(read, move |value| value.as_ref().map_or_else(|| "never".to_owned(), &show))
    }
}

pub(super) fn boolean() -> Kind<bool> {
    let read = |input: &KindInput<'_>| match input.node {
        Node::Bool(value) => Ok(*value),
        Node::Text(text) if input.is_textual && matches!(text.as_str(), "true" | "1") => Ok(true),
        Node::Text(text) if input.is_textual && matches!(text.as_str(), "false" | "0") => Ok(false),
        other => Err(invalid(format!("expected true or false, found {}", describe(other)), "Write true or false.")),
    };
    Kind::new(read, ToString::to_string)
}

/// Returns the kind of whole numbers within `range`.
pub(super) fn count<T: TryFrom<u64> + ToString + 'static>(range: RangeInclusive<u64>) -> Kind<T> {
    let read = move |input: &KindInput<'_>| {
        let number = match input.node {
            Node::Int(number) => Some(*number),
            Node::Text(text) if input.is_textual => text.trim().parse().ok(),
            _ => None,
        };
        let number = number.and_then(|number| u64::try_from(number).ok()).ok_or_else(|| {
            let message = format!("expected a whole number, found {}", describe(input.node));
            invalid(message, range_remedy(&range, u64::to_string))
        })?;
        check_range(&number, &range, u64::to_string)?;
        T::try_from(number).map_err(|_| invalid(format!("{number} is too large"), range_remedy(&range, u64::to_string)))
    };
    Kind::new(read, ToString::to_string)
}

/// Returns the kind of sizes in bytes within `range`.
pub(super) fn size(range: RangeInclusive<u64>) -> Kind<usize> {
    let show = |bytes: &u64| units::show_size(*bytes);
    let read = move |input: &KindInput<'_>| {
        let bytes = match input.node {
            Node::Int(number) => u64::try_from(*number).map_err(|_| "a size cannot be negative".to_owned()),
            Node::Text(text) => units::parse_size(text).map_err(|reason| format!("{}: {reason}", quoted(text))),
            other => Err(format!("expected a size, found {}", describe(other))),
        };
        let bytes = bytes.map_err(|reason| invalid(reason, range_remedy(&range, show)))?;
        check_range(&bytes, &range, show)?;
        usize::try_from(bytes).map_err(|_| invalid("too large for this machine", range_remedy(&range, show)))
    };
    Kind::new(read, |bytes| units::show_size(*bytes as u64))
}

/// Returns the kind of durations within `range`.
pub(super) fn duration(range: RangeInclusive<Duration>) -> Kind<Duration> {
    let show = |duration: &Duration| show_duration(*duration);
    let read = move |input: &KindInput<'_>| {
        let duration = match input.node {
            Node::Int(number) => Err(format!("{number} has no unit: {number}s or {number}ms?")),
            Node::Text(text) => units::parse_duration(text).map_err(|reason| format!("{}: {reason}", quoted(text))),
            other => Err(format!("expected a duration, found {}", describe(other))),
        };
        let duration = duration.map_err(|reason| invalid(reason, range_remedy(&range, show)))?;
        check_range(&duration, &range, show).map(|()| duration)
    };
    Kind::new(read, show)
}

/// Returns the kind of durations of whole seconds within `range`.
pub(super) fn seconds(range: RangeInclusive<Duration>) -> Kind<u64> {
    let kind = duration(range);
    let read = move |input: &KindInput<'_>| {
        let duration = kind.read(input)?;
        if duration.subsec_nanos() != 0 {
            let message = format!("{} is not a whole number of seconds", show_duration(duration));
            return Err(invalid(message, "Write whole seconds."));
        }
        Ok(duration.as_secs())
    };
    Kind::new(read, |seconds| show_duration(Duration::from_secs(*seconds)))
}

/// Returns the kind of values that are the name of a variant.
pub(super) fn variant<T: Copy + PartialEq + VariantArray + Into<&'static str>>() -> Kind<T> {
    choice(T::VARIANTS.iter().map(|variant| ((*variant).into(), *variant)))
}

/// Returns the kind of values that are one of several words.
pub(super) fn choice<T: Copy + PartialEq + 'static>(choices: impl IntoIterator<Item = (&'static str, T)>) -> Kind<T> {
    let choices: Rc<[(&str, T)]> = choices.into_iter().collect();
    let shown_choices = Rc::clone(&choices);
    let read = move |input: &KindInput<'_>| {
        let choice = choices.iter().find(|(word, _)| matches!(input.node, Node::Text(text) if text == word));
        choice.map(|(_, value)| *value).ok_or_else(|| {
            let words = choices.iter().map(|(word, _)| *word).collect::<Vec<_>>().join(", ");
            invalid(format!("{} is not one of {words}", describe(input.node)), format!("Write one of: {words}."))
        })
    };
    let show =
        move |value: &T| shown_choices.iter().find(|(_, known)| known == value).map_or("", |(word, _)| word).to_owned();
    Kind::new(read, show)
}

/// Returns the kind of texts that pass `check`.
pub(super) fn text(check: TextCheck) -> Kind<String> {
    Kind::new(move |input| checked_text(input.node, check), |text| yaml_text(text))
}

/// Returns the kind of texts with variables (`${NAME}`) that pass `check` after expansion. A value is the text as
/// written and the secret, which is never shown.
pub(super) fn secret(check: TextCheck) -> Kind<(String, Secret)> {
    let read = move |input: &KindInput<'_>| {
        let text = read_text(input.node)?;
        let secret = variables::expand(&text, input.env)?;
        check(&secret).map(|()| (text, Secret(secret)))
    };
    Kind::new(read, |(text, _)| yaml_secret(text))
}

/// Returns the kind of addresses to listen on: `IP:PORT`, `localhost:PORT`, or `PORT` on loopback.
pub(super) fn address() -> Kind<SocketAddr> {
    let read = |input: &KindInput<'_>| match input.node {
        Node::Int(port @ 0..=65_535) => parse_address(&port.to_string()),
        other => parse_address(&read_text(other)?),
    };
    Kind::new(read, ToString::to_string)
}

pub(super) fn path() -> Kind<PathBuf> {
    let read = |input: &KindInput<'_>| input.env.expand_path(&read_text(input.node)?, input.base);
    Kind::new(read, |path| yaml_text(&path.to_string_lossy()))
}

/// Returns the kind of lists of texts that each pass `check`.
pub(super) fn list(check: TextCheck) -> Kind<Vec<String>> {
    let read = move |input: &KindInput<'_>| match &*input.structured()? {
        Node::List(items) => items.iter().map(|item| checked_text(&item.node, check)).collect(),
        Node::Null => Ok(Vec::new()),
        Node::Text(text) if input.is_textual => {
            text.split(',').map(|item| check(item.trim()).map(|()| item.trim().to_owned())).collect()
        }
        other => Err(invalid(format!("expected a list, found {}", describe(other)), "Write a list: [first, second].")),
    };
    Kind::new(read, |items| yaml_list(items))
}

/// Returns the kind of maps of lists of texts. `check` is applied to every key and every text.
pub(super) fn text_lists_by_name(check: TextCheck) -> Kind<BTreeMap<String, Vec<String>>> {
    lists_by_name(check, move |node| checked_text(node, check), |text| yaml_text(text))
}

/// Returns the kind of maps of lists. `check` is applied to every key.
pub(super) fn lists_by_name<T: 'static>(
    check: TextCheck,
    read_item: impl Fn(&Node) -> Result<T, ValueError> + 'static,
    show_item: impl Fn(&T) -> String + 'static,
) -> Kind<BTreeMap<String, Vec<T>>> {
    let read = move |input: &KindInput<'_>| {
        let (expected, example) = ("a map of lists", "{name: [first, second]}");
        let mut map = BTreeMap::new();
        for entry in input.map_entries(expected, example)? {
            check(&entry.key)?;
            let Node::List(items) = &entry.value.node else {
                let message = format!("expected {expected}, found {}", describe(&entry.value.node));
                return Err(invalid(message, format!("Write {example}.")));
            };
            let items = items.iter().map(|item| read_item(&item.node)).collect::<Result<Vec<_>, _>>()?;
            map.insert(entry.key, items);
        }
        Ok(map)
    };
    let show_items = move |items: &Vec<T>| yaml_items(items.iter().map(&show_item));
    Kind::new(read, move |map| yaml_map(map.iter().map(|(key, items)| (key.as_str(), show_items(items)))))
}

/// Returns the kind of maps of texts in their written order. `check` is applied to every key.
pub(super) fn pairs(check: TextCheck) -> Kind<Vec<(String, String)>> {
    let read = move |input: &KindInput<'_>| {
        let entries = input.map_entries("a map", "{name: value}")?.into_iter();
        entries.map(|entry| Ok((entry.key.clone(), check(&entry.key).and(read_text(&entry.value.node))?))).collect()
    };
    Kind::new(read, |pairs: &Vec<(String, String)>| {
        yaml_map(pairs.iter().map(|(key, value)| (key.as_str(), yaml_text(value))))
    })
}

fn checked_text(node: &Node, check: TextCheck) -> Result<String, ValueError> {
    let text = read_text(node)?;
    check(&text).map(|()| text)
}

pub(super) fn read_text(node: &Node) -> Result<String, ValueError> {
    match node {
        Node::Text(text) => Ok(text.clone()),
        Node::Null => Err(invalid(
            "the key has no value",
            "Give one, or delete the line (a lone ~ means nothing in YAML; quote it).",
        )),
        other => {
            Err(invalid(format!("expected a text, found {}", describe(other)), "Put it in quotes if it is meant so."))
        }
    }
}

/// Reads a text of 1 to `max_chars` visible characters.
pub(super) fn read_visible_text(node: &Node, max_chars: usize) -> Result<String, ValueError> {
    let text = read_text(node)?;
    let error = || {
        invalid(format!("{} does not fit here", quoted(&text)), format!("Write 1 to {max_chars} visible characters."))
    };
    ensure(is_visible_text(&text, max_chars), error).map(|()| text)
}

/// Reads a scope (RFC 6749, section 3.3).
pub(super) fn read_scope(node: &Node) -> Result<String, ValueError> {
    let text = read_visible_text(node, 100)?;
    let fits = text.bytes().all(|byte| matches!(byte, b'!'..=b'~') && !matches!(byte, b'"' | b'\\'));
    ensure(fits, || invalid(format!("{} is not a scope", quoted(&text)), "Write one scope.")).map(|()| text)
}

/// Parses the name of a role.
pub(super) fn parse_role(text: &str) -> Result<Role, ValueError> {
    let error = || invalid(format!("{} is not a role", quoted(text)), "Write agent, reviewer, viewer or admin.");
    Role::parse(text).ok_or_else(error)
}

/// Checks the name of a person or a group; `noun` says what it names.
pub(super) fn check_visible_name(name: &str, noun: &str) -> Result<(), ValueError> {
    ensure(is_visible_text(name, MAX_NAME_CHARS), || {
        invalid(format!("{} is not {noun}", quoted(name)), format!("Write 1 to {MAX_NAME_CHARS} visible characters."))
    })
}

pub(super) fn is_visible_text(text: &str, max_chars: usize) -> bool {
    !text.trim().is_empty() && text.chars().count() <= max_chars && !has_hidden(text)
}

fn parse_address(text: &str) -> Result<SocketAddr, ValueError> {
    // A bare port means a port on loopback.
    let bare = Some(text).filter(|text| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()));
    let local = text.strip_prefix("localhost:").or(bare).map(|port| format!("127.0.0.1:{port}"));
    local.as_deref().unwrap_or(text).parse().map_err(|_| {
        let remedy = if let Ok(ip) = text.parse::<IpAddr>() {
            format!("Add a port: {}.", SocketAddr::new(ip, 8080))
        } else if let Some(port) = text.strip_prefix(':') {
            format!("Name the address too: 127.0.0.1:{port} for this machine, 0.0.0.0:{port} for all.")
        } else {
            "Write PORT or IP:PORT, such as 8080, 127.0.0.1:8080 or [::1]:8080; host names other than localhost are not \
             looked up."
                .to_owned()
        };
        invalid(format!("{} is not an address to listen on", quoted(text)), remedy)
    })
}

pub(super) fn describe(node: &Node) -> String {
    match node {
        Node::Bool(value) => value.to_string(),
        Node::Int(number) => number.to_string(),
        Node::Float(number) => number.to_string(),
        Node::Text(text) => quoted(text),
        other => other.describe_kind().to_owned(),
    }
}

fn range_remedy<T>(range: &RangeInclusive<T>, show: impl Fn(&T) -> String) -> String {
    format!("Write a value from {} to {}.", show(range.start()), show(range.end()))
}

fn check_range<T: PartialOrd>(
    value: &T,
    range: &RangeInclusive<T>,
    show: impl Fn(&T) -> String,
) -> Result<(), ValueError> {
    ensure(range.contains(value), || invalid(format!("{} is out of range", show(value)), range_remedy(range, &show)))
}
