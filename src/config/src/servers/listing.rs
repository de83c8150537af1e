//! Formats servers for `config show` as written in the file, with variable names and redacted secrets.

use super::{
    oauth,
    redaction::{redact_arguments, redact_url},
};
use crate::{
    tree::{KeyValue, Node},
    values::{yaml_list, yaml_map, yaml_secret, yaml_text},
};

/// Formats the lines below `mcpServers:`.
pub(super) fn format_servers(servers: &[KeyValue]) -> String {
    format_block(servers, format_value)
}

/// Formats the lines of a map of maps, each after a line break, or `{}` if it is empty.
pub(crate) fn format_block(map: &[KeyValue], format_value: fn(&str, &Node) -> String) -> String {
    if map.is_empty() {
        return "{}".to_owned();
    }
    let mut out = String::new();
    for KeyValue { key, value, .. } in map {
        out.push_str(&format!("\n  {}:", yaml_text(key)));
        match &value.node {
            Node::Map(entries) if !entries.is_empty() => {
                for KeyValue { key, value, .. } in entries {
                    out.push_str(&format!("\n    {}: {}", yaml_text(key), format_value(key, &value.node)));
                }
            }
            other => out.push_str(&format!(" {}", format_flow(other, &yaml_text))),
        }
    }
    out
}

fn format_value(key: &str, node: &Node) -> String {
    match (key, node) {
        ("args", Node::List(items)) => {
            let texts: Option<Vec<&str>> = items.iter().map(|item| as_text(&item.node)).collect();
            texts.map_or_else(|| format_flow(node, &yaml_text), |texts| yaml_list(&redact_arguments(&texts)))
        }
        ("env" | "headers", _) => format_flow(node, &yaml_secret),
        (oauth::KEY, Node::Map(entries)) => yaml_map(entries.iter().map(|entry| {
            let is_secret = oauth::SECRET_KEYS.contains(&entry.key.as_str());
            let format_text: &dyn Fn(&str) -> String = if is_secret { &yaml_secret } else { &yaml_text };
            (entry.key.as_str(), format_flow(&entry.value.node, format_text))
        })),
        ("url" | "serverUrl" | "httpUrl" | "replicas", _) => format_flow(node, &|text| yaml_text(&redact_url(text))),
        _ => format_flow(node, &yaml_text),
    }
}

fn as_text(node: &Node) -> Option<&str> {
    match node {
        Node::Text(text) => Some(text),
        _ => None,
    }
}

pub(crate) fn format_flow(node: &Node, text: &dyn Fn(&str) -> String) -> String {
    match node {
        Node::Null => "null".to_owned(),
        Node::Bool(value) => value.to_string(),
        Node::Int(number) => number.to_string(),
        Node::Float(number) => number.to_string(),
        Node::Text(value) => text(value),
        Node::List(items) => {
            format!("[{}]", items.iter().map(|item| format_flow(&item.node, text)).collect::<Vec<_>>().join(", "))
        }
        Node::Map(entries) => {
            yaml_map(entries.iter().map(|entry| (entry.key.as_str(), format_flow(&entry.value.node, text))))
        }
    }
}
