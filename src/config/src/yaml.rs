//! Formats values as YAML on one line.

use std::fmt::Write as _;

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
    let json = serde_json::Value::from(text).to_string();
    let mut out = String::with_capacity(json.len());
    for (c, is_hidden) in chars_with_hidden(&json) {
        if is_hidden {
            let _ = write!(out, "\\U{:08X}", u32::from(c));
        } else {
            out.push(c);
        }
    }
    out
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::{self, KeyValue};
    use countersign_domain::changes::visible::{HIDDEN_RANGES, has_hidden};

    #[test]
    fn every_text_is_visible_and_read_back() {
        let hidden = HIDDEN_RANGES.iter().flat_map(|range| [*range.start(), *range.end()]);
        let texts = ('\0'..='\u{17f}')
            .chain(hidden)
            .flat_map(|c| [c.to_string(), format!("a{c}"), format!(" {c}\\{c}\"#{c}: ")]);
        for text in texts.chain(["1\u{fe0f}\u{20e3}", "\u{1f469}\u{200d}\u{1f4bb}", "true", "~"].map(str::to_owned)) {
            let entry = yaml_map([(text.as_str(), "1".to_owned())]);
            let yaml = yaml_items([yaml_text(&text), entry].into_iter());
            let expected = [Node::Text(text.clone()), Node::Map(vec![KeyValue::new(&text, Node::Int(1))])];
            let expected = Node::List(expected.map(Node::without_location).to_vec());
            assert!(tree::parse(&yaml).unwrap().node.has_same_value(&expected), "{yaml}");
            assert!(!has_hidden(&yaml), "{yaml}");
        }
    }

    #[test]
    fn number_keeps_its_type() {
        for number in [0.5, 3.0, -0.0, 1e300, 1e-7].map(Node::Float).into_iter().chain([Node::Int(3)]) {
            let yaml = yaml_node(&number, &yaml_text);
            assert!(tree::parse(&yaml).unwrap().node.has_same_value(&number), "{yaml}");
        }
    }
}
