//! Formats servers for `config show` as written in the file, with variable names and redacted secrets.

use super::{
    oauth,
    redaction::{redact_arguments, redact_url},
};
use crate::{
    tree::{KeyValue, Node},
    yaml::{yaml_list, yaml_map, yaml_node, yaml_secret, yaml_text},
};

/// Maximum bytes of a value on one line. A longer value takes a line for each element, so that a diff shows which of them
/// changed.
const MAX_FLOW_BYTES: usize = 100;

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
                    let value = format_value(key, &value.node);
                    let space = if value.starts_with('\n') { "" } else { " " };
                    out.push_str(&format!("\n    {}:{space}{value}", yaml_text(key)));
                }
            }
            other => out.push_str(&format!(" {}", yaml_node(other, &yaml_text))),
        }
    }
    out
}

fn format_value(key: &str, node: &Node) -> String {
    match (key, node) {
        ("args", Node::List(items)) => {
            let texts: Option<Vec<&str>> = items.iter().map(|item| item.node.as_text()).collect();
            texts.map_or_else(|| yaml_node(node, &yaml_text), |texts| yaml_list(&redact_arguments(&texts)))
        }
        ("env" | "headers", _) => yaml_node(node, &yaml_secret),
        (oauth::KEY, Node::Map(entries)) => yaml_map(entries.iter().map(|entry| {
            let is_secret = oauth::SECRET_KEYS.contains(&entry.key.as_str());
            let format_text: &dyn Fn(&str) -> String = if is_secret { &yaml_secret } else { &yaml_text };
            (entry.key.as_str(), yaml_node(&entry.value.node, format_text))
        })),
        ("url" | "serverUrl" | "httpUrl" | "replicas", _) => yaml_node(node, &|text| yaml_text(&redact_url(text))),
        _ => format_nested(node, 6),
    }
}

/// Formats a value on one line if it is short, and otherwise as lines of this indentation, each after a line break.
fn format_nested(node: &Node, indentation: usize) -> String {
    let flow = yaml_node(node, &yaml_text);
    let format_line = |name: &str, value: &Node| {
        let value = format_nested(value, indentation + 2);
        let space = if value.starts_with('\n') { "" } else { " " };
        format!("\n{:indentation$}{name}{space}{value}", "")
    };
    match node {
        Node::Map(entries) if flow.len() > MAX_FLOW_BYTES => {
            entries.iter().map(|entry| format_line(&format!("{}:", yaml_text(&entry.key)), &entry.value.node)).collect()
        }
        Node::List(items) if flow.len() > MAX_FLOW_BYTES => {
            items.iter().map(|item| format_line("-", &item.node)).collect()
        }
        _ => flow,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::{LocatedNode, parse};

    fn format(text: &str) -> String {
        match parse(text) {
            Ok(LocatedNode { node: Node::Map(servers), .. }) => format_servers(&servers),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn long_value_takes_a_line_for_each_element() {
        let text = "a: { command: x, tools: { deny: [z] }, previews: { run: { entity: page, reads: [\
                    { tool: get_page, arguments: { id: arguments.id, space: arguments.space } },\
                    { tool: get_history_and_comments_of_page, arguments: { id: arguments.id, space: arguments.space }, as: json }] } } }";
        let expected = "\n  a:\n    command: x\n    tools: { deny: [z] }\n    previews:\n      run:\n        entity: page\n        reads:\
                        \n          - { tool: get_page, arguments: { id: arguments.id, space: arguments.space } }\
                        \n          -\n            tool: get_history_and_comments_of_page\
                        \n            arguments: { id: arguments.id, space: arguments.space }\n            as: json";
        assert_eq!(format(text), expected);
        assert_eq!(format(expected), expected);
    }
}
