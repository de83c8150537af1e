//! Hides the secrets in the settings of a server, and puts them back into settings that came from a form.

use serde_json::Value;

use super::{EditError, ServerChange, Settings, apply_changes, servers_of, texts_in, to_scalar_text};
use crate::{
    load::strip_byte_order_mark,
    servers::{
        URL_KEYS, oauth,
        redaction::{SECRET_PLACEHOLDER, redact_address, redact_arguments},
    },
    tree::{self, KeyValue, to_json_map},
    variables,
};

/// Returns the settings with a placeholder for each value that could be a secret.
pub fn hide_secrets(settings: &Settings) -> Settings {
    settings.iter().map(|(key, value)| (key.clone(), hide_value(key, value))).collect()
}

/// Returns the text of a file with a placeholder for each value of its servers that could be a secret.
///
/// # Errors
/// The text is not YAML, or is written in a way that this module does not edit.
pub fn hide_secrets_in_file(text: &str) -> Result<String, EditError> {
    let tree = tree::parse(strip_byte_order_mark(text))?;
    let hide = |server: &KeyValue| {
        let settings = to_json_map(server.value.node.entries());
        let hidden = hide_secrets(&settings);
        (hidden != settings).then(|| ServerChange::Replace { name: server.key.clone(), settings: hidden })
    };
    apply_changes(text, &servers_of(&tree.node).iter().filter_map(hide).collect::<Vec<_>>())
}

/// Returns the value of a key with placeholders for what could be a secret.
fn hide_value(key: &str, value: &Value) -> Value {
    match (key, value) {
        ("command", Value::String(text)) => redact_arguments(&[text]).concat().into(),
        ("args", Value::Array(items)) => {
            // Numbers are not valid arguments, but a file may have them.
            let texts: Vec<String> = items.iter().map(to_scalar_text).collect();
            let hidden = redact_arguments(&texts.iter().map(String::as_str).collect::<Vec<_>>());
            let hidden = hidden.into_iter().zip(texts).zip(items);
            hidden.map(|((hidden, text), item)| if hidden == text { item.clone() } else { hidden.into() }).collect()
        }
        ("env" | "headers", Value::Object(entries)) => hide_texts(entries, |_| true),
        ("oauth", Value::Object(entries)) => hide_texts(entries, |key| oauth::SECRET_KEYS.contains(&key)),
        (key, Value::String(text)) if URL_KEYS.contains(&key) => redact_address(text).into(),
        ("replicas", Value::Array(items)) => {
            let hide = |item: &Value| item.as_str().map_or_else(|| item.clone(), |text| redact_address(text).into());
            items.iter().map(hide).collect()
        }
        _ => value.clone(),
    }
}

/// Hides the values of the keys that `is_secret` names, unless they only refer to variables.
fn hide_texts(entries: &Settings, is_secret: impl Fn(&str) -> bool) -> Value {
    let hide = |(key, value): (&String, &Value)| {
        let is_harmless = match value {
            Value::String(text) => variables::is_safe_to_show(text),
            Value::Null | Value::Bool(_) => true,
            _ => false,
        };
        let value = if is_harmless || !is_secret(key) { value.clone() } else { SECRET_PLACEHOLDER.into() };
        (key.clone(), value)
    };
    Value::Object(entries.iter().map(hide).collect())
}

/// Puts the values of the old settings in place of the placeholders that [`hide_secrets`] made of them.
///
/// # Errors
/// Returns the key at which a placeholder stands for nothing.
pub fn restore_secrets(new: &mut Settings, old: &Settings) -> Result<(), String> {
    for (key, value) in new {
        if let Some(before) = old.get(key) {
            restore(value, &hide_value(key, before), before);
        }
        if texts_in(value).iter().any(|text| text.contains(SECRET_PLACEHOLDER)) {
            return Err(key.clone());
        }
    }
    Ok(())
}

/// Puts the old value in place of each part of the new one that equals its hidden form.
fn restore(new: &mut Value, hidden: &Value, old: &Value) {
    if new.is_string() && new == hidden {
        new.clone_from(old);
        return;
    }
    match (new, hidden, old) {
        (Value::Object(new), Value::Object(hidden), Value::Object(old)) => {
            for (key, value) in new {
                if let Some((hidden, old)) = hidden.get(key).zip(old.get(key)) {
                    restore(value, hidden, old);
                }
            }
        }
        (Value::Array(new), Value::Array(hidden), Value::Array(old)) => {
            for (index, item) in new.iter_mut().enumerate() {
                // An item that moved is restored only if no other one has the same hidden form.
                let is_same = |at: &usize| hidden.get(*at) == Some(&*item);
                let mut matches = (0..hidden.len()).filter(is_same);
                let only_match = matches.next().filter(|_| matches.next().is_none());
                let position = Some(index).filter(is_same).or(only_match);
                if let Some((hidden, old)) = position.and_then(|at| hidden.get(at).zip(old.get(at))) {
                    restore(item, hidden, old);
                }
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::edit::paste::parse_servers;

    fn settings(text: &str) -> Settings {
        parse_servers(text, Some("x")).unwrap().remove(0).settings
    }

    const OLD: &str = r#"{"command": "x", "args": ["--token", "t0p", "b"], "env": {"A": "s3cret", "B": "${B}"}}"#;

    #[test]
    fn hidden_secrets_come_back_where_they_stood() {
        let old = settings(OLD);
        let mut shown = hide_secrets(&old);
        assert!(!format!("{shown:?}").contains("s3cret") && !format!("{shown:?}").contains("t0p"));
        assert!(format!("{shown:?}").contains("${B}"));
        restore_secrets(&mut shown, &old).unwrap();
        assert_eq!(shown, old);
        let mut moved =
            settings(r#"{"command": "x", "args": ["-v", "--token", "[secret]"], "env": {"A": "[secret]"}}"#);
        restore_secrets(&mut moved, &old).unwrap();
        assert!(format!("{moved:?}").contains("t0p") && format!("{moved:?}").contains("s3cret"));
    }

    #[test]
    fn numbers_and_mixed_arguments_hide_secrets_too() {
        let old =
            tree::parse("command: x\nargs: [--token, s3cret, 8080]\nenv: { PIN: 12345678, DEBUG: true }\n").unwrap();
        let old = to_json_map(old.node.entries());
        let mut shown = hide_secrets(&old);
        assert!(!format!("{shown:?}").contains("s3cret") && !format!("{shown:?}").contains("12345678"), "{shown:?}");
        assert!(format!("{shown:?}").contains("8080"), "{shown:?}");
        restore_secrets(&mut shown, &old).unwrap();
        assert_eq!(shown, old);
    }

    #[test]
    fn file_is_shown_without_secrets() {
        let text = "# mine\nmcpServers:\n  a: # first\n    command: x\n    args: [--token, s3cret]\n  b:\n    url: https://b.example/mcp\n";
        let shown = hide_secrets_in_file(text).unwrap();
        assert_eq!(shown, text.replace("[--token, s3cret]", "[\"--token\", \"[secret]\"]"));
        assert!(hide_secrets_in_file("mcpServers: { a: { command: x, env: { A: b } } }").is_err());
    }

    #[test]
    fn placeholder_that_stands_for_nothing_is_refused() {
        let old = settings(OLD);
        let mut new = settings(r#"{"command": "x", "env": {"C": "[secret]"}}"#);
        assert_eq!(restore_secrets(&mut new, &old), Err("env".to_owned()));
    }
}
