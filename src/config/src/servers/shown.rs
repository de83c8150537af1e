//! Servers for `config show`: as the file says it, with variables by their names and secrets hidden.

use crate::{
    tree::{KeyValue, Node},
    values::yaml_text,
    variables,
};

const HIDDEN: &str = "[secret]";

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
    match key {
        "env" | "headers" => flow(node, &|text| {
            if variables::tells_nothing(text) { yaml_text(text) } else { yaml_text(HIDDEN) }
        }),
        "url" | "serverUrl" | "httpUrl" | "replicas" => flow(node, &|text| yaml_text(&url(text))),
        _ => flow(node, &yaml_text),
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

/// An address without a user's name and password, and without what its query says, unless variables say it.
pub(super) fn url(text: &str) -> String {
    let (address, query) = text.split_once('?').map_or((text, None), |(address, query)| (address, Some(query)));
    let address = match address.split_once("://") {
        Some((scheme, rest)) => {
            let end = rest.find('/').unwrap_or(rest.len());
            match rest.get(..end).and_then(|authority| authority.rfind('@')) {
                Some(at) => format!("{scheme}://{HIDDEN}{}", rest.get(at..).unwrap_or_default()),
                None => address.to_owned(),
            }
        }
        None => address.to_owned(),
    };
    match query {
        None => address,
        Some(query) => {
            let harmless = |pair: &str| {
                pair.split_once('=').is_some_and(|(_, value)| variables::tells_nothing(value) || value.is_empty())
            };
            let query = if query.split('&').all(harmless) { query } else { HIDDEN };
            format!("{address}?{query}")
        }
    }
}
