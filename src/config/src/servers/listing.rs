//! Formats servers for `config show` as written in the file, with variable names and redacted secrets.

use super::redaction::{SECRET_PLACEHOLDER, redact_arguments, redact_url};
use crate::{
    tree::{KeyValue, Node},
    values::yaml_text,
    variables,
};

/// Formats the lines below `mcpServers:`, each after a line break, or `{}` without servers.
pub(super) fn yaml(servers: &[KeyValue]) -> String {
    if servers.is_empty() {
        return "{}".to_owned();
    }
    let mut out = String::new();
    for server in servers {
        out.push_str(&format!("\n  {}:", yaml_text(&server.key)));
        match &server.value.node {
            Node::Map(entries) if !entries.is_empty() => {
                for entry in entries {
                    out.push_str(&format!(
                        "\n    {}: {}",
                        yaml_text(&entry.key),
                        format_value(&entry.key, &entry.value.node)
                    ));
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
            let texts: Vec<&str> = items.iter().filter_map(|item| as_text(&item.node)).collect();
            if texts.len() < items.len() {
                return format_flow(node, &yaml_text);
            }
            let texts: Vec<String> = redact_arguments(&texts).iter().map(|text| yaml_text(text)).collect();
            format!("[{}]", texts.join(", "))
        }
        ("env" | "headers", _) => format_flow(node, &|text| {
            if variables::is_safe_to_show(text) { yaml_text(text) } else { yaml_text(SECRET_PLACEHOLDER) }
        }),
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
        Node::Map(entries) if entries.is_empty() => "{}".to_owned(),
        Node::Map(entries) => {
            let entries: Vec<String> = entries
                .iter()
                .map(|entry| format!("{}: {}", yaml_text(&entry.key), format_flow(&entry.value.node, text)))
                .collect();
            format!("{{ {} }}", entries.join(", "))
        }
    }
}
