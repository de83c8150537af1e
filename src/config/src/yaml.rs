//! Formats values as YAML on one line.

use super::{tree::Node, variables};
use countersign_domain::changes::visible::chars_with_hidden;

/// Formats a text as a YAML scalar: plain if that is safe, otherwise in double quotes as JSON, with hidden characters escaped.
pub(super) fn yaml_text(text: &str) -> String {
    let plain = !text.is_empty()
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "/._-+:@=".contains(c))
        && text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '/')
        && !text.ends_with(':')
        && !matches!(text.to_ascii_lowercase().as_str(), "null" | "true" | "false" | "yes" | "no" | "on" | "off");
    if plain {
        return text.to_owned();
    }
    let escape = |(c, is_hidden): (char, bool)| {
        if is_hidden { format!("\\U{:08X}", u32::from(c)) } else { String::from(c) }
    };
    chars_with_hidden(&serde_json::Value::from(text).to_string()).map(escape).collect()
}

/// Formats a text as YAML if it names variables only, otherwise a placeholder.
pub(super) fn yaml_secret(text: &str) -> String {
    yaml_text(if variables::is_safe_to_show(text) { text } else { "[secret]" })
}

pub(super) fn yaml_list(items: &[String]) -> String {
    yaml_items(items.iter().map(|item| yaml_text(item)))
}

/// Formats a list on one line from its formatted items.
pub(super) fn yaml_items(items: impl Iterator<Item = String>) -> String {
    format!("[{}]", items.collect::<Vec<_>>().join(", "))
}

/// Formats a map on one line from its keys and formatted values.
pub(super) fn yaml_map<'a>(entries: impl IntoIterator<Item = (&'a str, String)>) -> String {
    let entries: Vec<String> = entries.into_iter().map(|(key, value)| format!("{}: {value}", yaml_text(key))).collect();
    if entries.is_empty() { "{}".to_owned() } else { format!("{{ {} }}", entries.join(", ")) }
}

/// Formats a value on one line, and its texts with `format_text`.
pub(super) fn yaml_node(node: &Node, format_text: &dyn Fn(&str) -> String) -> String {
    match node {
        Node::Null => "null".to_owned(),
        Node::Bool(value) => value.to_string(),
        Node::Int(number) => number.to_string(),
        // A whole number keeps its point, so that it is read as the same type again.
        Node::Float(number) => format!("{number:?}"),
        Node::Text(text) => format_text(text),
        Node::List(items) => yaml_items(items.iter().map(|item| yaml_node(&item.node, format_text))),
        Node::Map(entries) => {
            yaml_map(entries.iter().map(|entry| (entry.key.as_str(), yaml_node(&entry.value.node, format_text))))
        }
    }
}
