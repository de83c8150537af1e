//! Servers for `config show`: as the file says it, with variables by their names and secrets hidden.

use super::redaction::{HIDDEN, arguments, url};
use crate::{
    tree::{KeyValue, Node},
    values::yaml_text,
    variables,
};

/// The lines below `mcpServers:`, each after a line break; `{}` for none.
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
                    out.push_str(&format!("\n    {}: {}", yaml_text(&entry.key), value(&entry.key, &entry.value.node)));
                }
            }
            other => out.push_str(&format!(" {}", flow(other, &yaml_text))),
        }
    }
    out
}

fn value(key: &str, node: &Node) -> String {
    match (key, node) {
        ("args", Node::List(items)) => {
            let texts: Vec<&str> = items.iter().filter_map(|item| text_of(&item.node)).collect();
            if texts.len() < items.len() {
                return flow(node, &yaml_text);
            }
            let texts: Vec<String> = arguments(&texts).iter().map(|text| yaml_text(text)).collect();
            format!("[{}]", texts.join(", "))
        }
        ("env" | "headers", _) => flow(node, &|text| {
            if variables::tells_nothing(text) { yaml_text(text) } else { yaml_text(HIDDEN) }
        }),
        ("url" | "serverUrl" | "httpUrl" | "replicas", _) => flow(node, &|text| yaml_text(&url(text))),
        _ => flow(node, &yaml_text),
    }
}

fn text_of(node: &Node) -> Option<&str> {
    match node {
        Node::Text(text) => Some(text),
        _ => None,
    }
}

pub(crate) fn flow(node: &Node, text: &dyn Fn(&str) -> String) -> String {
    match node {
        Node::Null => "null".to_owned(),
        Node::Bool(value) => value.to_string(),
        Node::Int(number) => number.to_string(),
        Node::Float(number) => number.to_string(),
        Node::Text(value) => text(value),
        Node::List(items) => {
            format!("[{}]", items.iter().map(|item| flow(&item.node, text)).collect::<Vec<_>>().join(", "))
        }
        Node::Map(entries) if entries.is_empty() => "{}".to_owned(),
        Node::Map(entries) => {
            let entries: Vec<String> = entries
                .iter()
                .map(|entry| format!("{}: {}", yaml_text(&entry.key), flow(&entry.value.node, text)))
                .collect();
            format!("{{ {} }}", entries.join(", "))
        }
    }
}
