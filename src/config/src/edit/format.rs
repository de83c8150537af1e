//! Formats values as YAML. Texts are quoted unless they are certainly plain, and hidden characters are escaped.

use std::fmt::Write as _;

use crate::{tree::Node, values::yaml_text};
use countersign_domain::changes::visible::has_hidden;

/// Returns the line break of the text: that of its first line, or `\n`.
pub(super) fn line_break(text: &str) -> &'static str {
    let has_crlf = text.find('\n').is_some_and(|at| text.get(..at).is_some_and(|line| line.ends_with('\r')));
    if has_crlf { "\r\n" } else { "\n" }
}

/// Appends a key with its value: a map on indented lines, and any other value on the line of the key.
pub(super) fn format_entry(out: &mut String, indent: usize, key: &str, node: &Node, line_break: &str) {
    let _ = write!(out, "{:indent$}{}:", "", format_text(key));
    match node {
        Node::Map(entries) if !entries.is_empty() => {
            out.push_str(line_break);
            for entry in entries {
                format_entry(out, indent + 2, &entry.key, &entry.value.node, line_break);
            }
        }
        other => {
            let _ = write!(out, " {}{line_break}", format_inline(other));
        }
    }
}

/// Formats a value on one line, with lists and maps in flow style.
pub(super) fn format_inline(node: &Node) -> String {
    match node {
        Node::Null => "null".to_owned(),
        Node::Bool(value) => value.to_string(),
        Node::Int(number) => number.to_string(),
        Node::Float(number) => format!("{number:?}"),
        Node::Text(text) => format_text(text),
        Node::List(items) => {
            format!("[{}]", items.iter().map(|item| format_inline(&item.node)).collect::<Vec<_>>().join(", "))
        }
        Node::Map(entries) if entries.is_empty() => "{}".to_owned(),
        Node::Map(entries) => {
            let entry = |entry: &crate::tree::KeyValue| {
                format!("{}: {}", format_text(&entry.key), format_inline(&entry.value.node))
            };
            format!("{{ {} }}", entries.iter().map(entry).collect::<Vec<_>>().join(", "))
        }
    }
}

/// Formats a text as one scalar on one line.
pub(super) fn format_text(text: &str) -> String {
    if yaml_text(text) == text {
        return text.to_owned();
    }
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            '\r' => out.push_str("\\r"),
            c if c.is_control() || has_hidden(c.encode_utf8(&mut [0; 4])) => {
                let _ = write!(out, "\\U{:08X}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}
