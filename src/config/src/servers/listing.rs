//! Formats servers for `config show` as written in the file, with variable names and redacted secrets.

use serde_json::{Map, Value};

use super::{
    URL_KEYS, oauth,
    redaction::{redact_arguments, redact_url},
};
use crate::yaml::{yaml_list, yaml_map, yaml_secret, yaml_text, yaml_value};

/// Maximum bytes of a value on one line. A longer value takes a line for each element, so that a diff shows which of them
/// changed.
const MAX_FLOW_BYTES: usize = 100;

/// Formats the lines below `mcpServers:`.
pub(super) fn format_servers(servers: &Map<String, Value>) -> String {
    format_block(servers, format_value)
}

/// Formats the lines of a map of maps, each after a line break, or `{}` if it is empty.
pub(crate) fn format_block(map: &Map<String, Value>, format_value: fn(&str, &Value) -> String) -> String {
    if map.is_empty() {
        return "{}".to_owned();
    }
    let mut out = String::new();
    for (name, value) in map {
        out.push_str(&format!("\n  {}:", yaml_text(name)));
        match value {
            Value::Object(entries) if !entries.is_empty() => {
                for (key, value) in entries {
                    let value = format_value(key, value);
                    let space = if value.starts_with('\n') { "" } else { " " };
                    out.push_str(&format!("\n    {}:{space}{value}", yaml_text(key)));
                }
            }
            other => out.push_str(&format!(" {}", yaml_value(other, &yaml_text))),
        }
    }
    out
}

fn format_value(key: &str, value: &Value) -> String {
    match (key, value) {
        ("args", Value::Array(items)) => {
            let texts: Option<Vec<&str>> = items.iter().map(Value::as_str).collect();
            texts.map_or_else(|| yaml_value(value, &yaml_text), |texts| yaml_list(&redact_arguments(&texts)))
        }
        ("env" | "headers", _) => yaml_value(value, &yaml_secret),
        (oauth::KEY, Value::Object(entries)) => yaml_map(entries.iter().map(|(key, value)| {
            let is_secret = oauth::SECRET_KEYS.contains(&key.as_str());
            let format_text: &dyn Fn(&str) -> String = if is_secret { &yaml_secret } else { &yaml_text };
            (key.as_str(), yaml_value(value, format_text))
        })),
        _ if key == "replicas" || URL_KEYS.contains(&key) => yaml_value(value, &|text| yaml_text(&redact_url(text))),
        _ => format_nested(value, 6),
    }
}

/// Formats a value on one line if it is short, and otherwise as lines of this indentation, each after a line break.
fn format_nested(value: &Value, indentation: usize) -> String {
    let flow = yaml_value(value, &yaml_text);
    let format_line = |name: &str, value: &Value| {
        let value = format_nested(value, indentation + 2);
        let space = if value.starts_with('\n') { "" } else { " " };
        format!("\n{:indentation$}{name}{space}{value}", "")
    };
    match value {
        Value::Object(entries) if flow.len() > MAX_FLOW_BYTES => {
            entries.iter().map(|(key, value)| format_line(&format!("{}:", yaml_text(key)), value)).collect()
        }
        Value::Array(items) if flow.len() > MAX_FLOW_BYTES => items.iter().map(|item| format_line("-", item)).collect(),
        _ => flow,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::parse;

    fn format(text: &str) -> String {
        match parse(text).unwrap().node.to_json() {
            Value::Object(servers) => format_servers(&servers),
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
