//! Hides the secrets in the settings of a server, and puts them back into settings that came from a form.

use super::{EditError, ServerChange, apply_changes, servers_of};
use crate::{
    load::strip_byte_order_mark,
    servers::{
        oauth,
        redaction::{SECRET_PLACEHOLDER, redact_address, redact_arguments},
    },
    tree::{self, KeyValue, Node, find_value},
    variables,
};

/// Returns the settings with a placeholder for each value that could be a secret.
pub fn hide_secrets(settings: &[KeyValue]) -> Vec<KeyValue> {
    let hide = |setting: &KeyValue| KeyValue::new(&setting.key, hide_value(&setting.key, &setting.value.node));
    settings.iter().map(hide).collect()
}

/// Returns the text of a file with a placeholder for each value of its servers that could be a secret.
///
/// # Errors
/// The text is not YAML, or is written in a way that this module does not edit.
pub fn hide_secrets_in_file(text: &str) -> Result<String, EditError> {
    let tree = tree::parse(strip_byte_order_mark(text))?;
    let hide = |server: &KeyValue| {
        let settings = server.value.node.entries();
        let hidden = hide_secrets(settings);
        let is_same = Node::Map(hidden.clone()).has_same_value(&Node::Map(settings.to_vec()));
        (!is_same).then(|| ServerChange::Replace { name: server.key.clone(), settings: hidden })
    };
    apply_changes(text, &servers_of(&tree.node).iter().filter_map(hide).collect::<Vec<_>>())
}

/// Returns the value of a key with placeholders for what could be a secret.
fn hide_value(key: &str, node: &Node) -> Node {
    match (key, node) {
        ("command", Node::Text(text)) => Node::Text(redact_arguments(&[text]).concat()),
        ("args", Node::List(items)) => {
            // Numbers are not valid arguments, but a file may have them.
            let texts: Vec<String> = items.iter().map(|item| item.node.to_scalar_text()).collect();
            let hidden = redact_arguments(&texts.iter().map(String::as_str).collect::<Vec<_>>());
            let hidden = hidden.into_iter().zip(texts).zip(items).map(|((hidden, text), item)| {
                if hidden == text { item.clone() } else { Node::Text(hidden).without_location() }
            });
            Node::List(hidden.collect())
        }
        ("env" | "headers", Node::Map(entries)) => hide_texts(entries, |_| true),
        ("oauth", Node::Map(entries)) => hide_texts(entries, |key| oauth::SECRET_KEYS.contains(&key)),
        ("url" | "serverUrl" | "httpUrl", Node::Text(text)) => Node::Text(redact_address(text)),
        ("replicas", Node::List(items)) => {
            let hidden = items.iter().map(|item| match &item.node {
                Node::Text(text) => Node::Text(redact_address(text)).without_location(),
                _ => item.clone(),
            });
            Node::List(hidden.collect())
        }
        _ => node.clone(),
    }
}

/// Hides the values of the keys that `is_secret` names, unless they only refer to variables.
fn hide_texts(entries: &[KeyValue], is_secret: impl Fn(&str) -> bool) -> Node {
    let hide = |entry: &KeyValue| match &entry.value.node {
        Node::Text(text) if variables::is_safe_to_show(text) => entry.clone(),
        Node::Null | Node::Bool(_) => entry.clone(),
        _ if is_secret(&entry.key) => KeyValue::new(&entry.key, Node::Text(SECRET_PLACEHOLDER.to_owned())),
        _ => entry.clone(),
    };
    Node::Map(entries.iter().map(hide).collect())
}

/// Puts the values of the old settings in place of the placeholders that [`hide_secrets`] made of them.
///
/// # Errors
/// Returns the key at which a placeholder stands for nothing.
pub fn restore_secrets(new: &mut [KeyValue], old: &[KeyValue]) -> Result<(), String> {
    for setting in new {
        if let Some(before) = find_value(old, &setting.key) {
            restore(&mut setting.value.node, &hide_value(&setting.key, before), before);
        }
        if has_placeholder(&setting.value.node) {
            return Err(setting.key.clone());
        }
    }
    Ok(())
}

/// Puts the old value in place of each part of the new one that equals its hidden form.
fn restore(new: &mut Node, hidden: &Node, old: &Node) {
    if let (Node::Text(text), Node::Text(shown)) = (&*new, hidden) {
        if text == shown {
            new.clone_from(old);
        }
        return;
    }
    match (new, hidden, old) {
        (Node::Map(new), Node::Map(hidden), Node::Map(old)) => {
            for entry in new {
                if let Some((hidden, old)) = find_value(hidden, &entry.key).zip(find_value(old, &entry.key)) {
                    restore(&mut entry.value.node, hidden, old);
                }
            }
        }
        (Node::List(new), Node::List(hidden), Node::List(old)) => {
            for (index, item) in new.iter_mut().enumerate() {
                // An item that moved is restored only if no other one has the same hidden form.
                let is_same = |at: &usize| hidden.get(*at).is_some_and(|hidden| hidden.node == item.node);
                let mut matches = (0..hidden.len()).filter(is_same);
                let only_match = matches.next().filter(|_| matches.next().is_none());
                let position = Some(index).filter(is_same).or(only_match);
                if let Some((hidden, old)) = position.and_then(|at| hidden.get(at).zip(old.get(at))) {
                    restore(&mut item.node, &hidden.node, &old.node);
                }
            }
        }
        _ => {}
    }
}

fn has_placeholder(node: &Node) -> bool {
    match node {
        Node::Text(text) => text.contains(SECRET_PLACEHOLDER),
        Node::List(items) => items.iter().any(|item| has_placeholder(&item.node)),
        Node::Map(entries) => entries.iter().any(|entry| has_placeholder(&entry.value.node)),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::edit::paste::parse_servers;

    fn settings(text: &str) -> Vec<KeyValue> {
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
        assert_eq!(
            shown,
            hide_secrets(&old)
                .iter()
                .map(|s| KeyValue::new(&s.key, old.iter().find(|o| o.key == s.key).unwrap().value.node.clone()))
                .collect::<Vec<_>>()
        );
        let mut moved =
            settings(r#"{"command": "x", "args": ["-v", "--token", "[secret]"], "env": {"A": "[secret]"}}"#);
        restore_secrets(&mut moved, &old).unwrap();
        assert!(format!("{moved:?}").contains("t0p") && format!("{moved:?}").contains("s3cret"));
    }

    #[test]
    fn numbers_and_mixed_arguments_hide_secrets_too() {
        let old =
            tree::parse("command: x\nargs: [--token, s3cret, 8080]\nenv: { PIN: 12345678, DEBUG: true }\n").unwrap();
        let old = old.node.entries();
        let mut shown = hide_secrets(old);
        assert!(!format!("{shown:?}").contains("s3cret") && !format!("{shown:?}").contains("12345678"), "{shown:?}");
        assert!(format!("{shown:?}").contains("8080"), "{shown:?}");
        restore_secrets(&mut shown, old).unwrap();
        assert!(Node::Map(shown).has_same_value(&Node::Map(old.to_vec())));
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
