//! Parses single values from YAML nodes, and formats values as YAML.

use std::{ops::RangeInclusive, time::Duration};

use super::{error::quoted, tree::Node, units};

/// The error of a value: a message and a remedy.
pub type ValueError = (String, String);

pub(super) fn read_text(node: &Node) -> Result<String, ValueError> {
    match node {
        Node::Text(text) => Ok(text.clone()),
        Node::Null => Err((
            "the key has no value".to_owned(),
            "Give one, or delete the line (a lone ~ means nothing in YAML; quote it).".to_owned(),
        )),
        other => Err((
            format!("expected a text, found {}", describe(other)),
            "Put it in quotes if it is meant so.".to_owned(),
        )),
    }
}

/// Reads a size in bytes within `range`.
pub(super) fn read_size(node: &Node, range: &RangeInclusive<u64>) -> Result<usize, ValueError> {
    let bytes = match node {
        Node::Int(number) => u64::try_from(*number).map_err(|_| "a size cannot be negative".to_owned()),
        Node::Text(text) => units::parse_size(text).map_err(|why| format!("{}: {why}", quoted(text))),
        other => Err(format!("expected a size, found {}", describe(other))),
    };
    let show = |bytes: &u64| units::show_size(*bytes);
    let bytes = bytes.map_err(|why| (why, range_remedy(range, show)))?;
    check_range(bytes, range, show)?;
    usize::try_from(bytes).map_err(|_| ("too large for this machine".to_owned(), range_remedy(range, show)))
}

/// Reads a duration within `range`.
pub(super) fn read_duration(node: &Node, range: &RangeInclusive<Duration>) -> Result<Duration, ValueError> {
    let duration = match node {
        Node::Int(number) => Err(format!("{number} has no unit: {number}s or {number}ms?")),
        Node::Text(text) => units::parse_duration(text).map_err(|why| format!("{}: {why}", quoted(text))),
        other => Err(format!("expected a duration, found {}", describe(other))),
    };
    let show = |d: &Duration| units::show_duration(*d);
    let duration = duration.map_err(|why| (why, range_remedy(range, show)))?;
    check_range(duration, range, show).map(|()| duration)
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

pub(super) fn range_remedy<T>(range: &RangeInclusive<T>, show: impl Fn(&T) -> String) -> String {
    format!("Write a value from {} to {}.", show(range.start()), show(range.end()))
}

pub(super) fn check_range<T: PartialOrd>(
    value: T,
    range: &RangeInclusive<T>,
    show: impl Fn(&T) -> String,
) -> Result<(), ValueError> {
    if range.contains(&value) {
        Ok(())
    } else {
        Err((format!("{} is out of range", show(&value)), range_remedy(range, show)))
    }
}

/// Formats a text as a YAML scalar: plain if that is safe, otherwise in double quotes as JSON.
#[must_use]
pub fn yaml_text(text: &str) -> String {
    let plain = !text.is_empty()
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "/._-+:@=".contains(c))
        && text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '/')
        && !text.ends_with(':')
        && !matches!(text.to_ascii_lowercase().as_str(), "null" | "true" | "false" | "yes" | "no" | "on" | "off");
    if plain { text.to_owned() } else { serde_json::Value::from(text).to_string() }
}

pub(super) fn yaml_list(items: &[String]) -> String {
    format!("[{}]", items.iter().map(|item| yaml_text(item)).collect::<Vec<_>>().join(", "))
}

/// Formats a map on one line from formatted entries.
pub(super) fn yaml_map(entries: impl Iterator<Item = String>) -> String {
    let entries: Vec<String> = entries.collect();
    if entries.is_empty() { "{}".to_owned() } else { format!("{{ {} }}", entries.join(", ")) }
}
