//! Edits `mcpServers` and the rules of the policy ([`rules`]) in the text of a configuration file, so that everything else
//! stays as it is written: comments, order, quotes and line breaks.
//!
//! The lines that a server or one of its keys occupies are found by the positions that the parser reports. The result
//! is parsed again and must have exactly the intended values; otherwise the edit is refused, and the caller gets the
//! YAML to paste. So a form of YAML that this module does not understand can never be damaged by it.

mod blocks;
mod format;
pub mod hidden;
pub mod paste;
pub mod references;
mod registry_entry;
pub mod rules;
#[cfg(test)]
mod tests;

use std::path::Path;

use self::{
    blocks::{Block, Lines, NotEditable},
    format::{format_entry, line_break},
};
use crate::{
    Environment, Flags, UpstreamConfig,
    error::{ConfigError, Origin, Problem, quoted},
    load::load_text,
    servers::KEY,
    tree::{self, KeyValue, LocatedNode, Node, SyntaxError},
};
use countersign_domain::changes::visible::has_hidden;

/// A change of one server in the file.
#[derive(Clone, Debug, PartialEq)]
pub enum ServerChange {
    /// Adds a server after all others.
    Add {
        name: String,
        settings: Vec<KeyValue>,
    },
    /// Gives a server these keys in place of its present ones. The lines of unchanged keys stay as they are.
    Replace {
        name: String,
        settings: Vec<KeyValue>,
    },
    Remove {
        name: String,
    },
}

impl ServerChange {
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Add { name, .. } | Self::Replace { name, .. } | Self::Remove { name } => name,
        }
    }

    /// Returns the lines for a person who edits the file by hand; none for a removal.
    #[must_use]
    pub fn to_yaml(&self) -> String {
        match self {
            Self::Add { name, settings } | Self::Replace { name, settings } => to_yaml(name, settings),
            Self::Remove { .. } => String::new(),
        }
    }
}

/// The reason why a file was not edited.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EditError {
    #[error("the file is not valid YAML (line {line}): {message}")]
    Syntax { line: u64, message: String },
    #[error("there is a server {} already", quoted(.0))]
    NameTaken(String),
    #[error("there is no server {} in the file", quoted(.0))]
    NoSuchServer(String),
    #[error("the rules of the file are others than those of the edit")]
    NoSuchRule,
    #[error("{} contains a character that nobody sees", quoted(.0))]
    HiddenCharacter(String),
    #[error("the file has to be edited by hand: {reason}")]
    NotEditable {
        reason: String,
        /// The lines to paste; empty if there are none.
        yaml: String,
    },
}

impl From<SyntaxError> for EditError {
    fn from(SyntaxError { message, line, .. }: SyntaxError) -> Self {
        Self::Syntax { line, message }
    }
}

/// Returns a server as the lines of a file that has no others.
#[must_use]
pub fn to_yaml(name: &str, settings: &[KeyValue]) -> String {
    let mut text = format!("{KEY}:\n");
    format_entry(&mut text, 2, name, &Node::Map(settings.to_vec()), "\n");
    text
}

/// Sets a key of a map, which keeps its place if the map has it.
pub fn set_key(settings: &mut Vec<KeyValue>, key: &str, node: Node) {
    match settings.iter_mut().find(|setting| setting.key == key) {
        Some(setting) => setting.value.node = node,
        None => settings.push(KeyValue::new(key, node)),
    }
}

/// Sets a key in a section of a server, such as `env`.
pub fn set_below(settings: &mut Vec<KeyValue>, section: &str, key: &str, node: Node) {
    if !settings.iter().any(|setting| setting.key == section) {
        settings.push(KeyValue::new(section, Node::Map(Vec::new())));
    }
    let section = settings.iter_mut().find(|setting| setting.key == section);
    if let Some(Node::Map(entries)) = section.map(|section| &mut section.value.node) {
        entries.retain(|entry| entry.key != key);
        entries.push(KeyValue::new(key, node));
    }
}

/// The keys that matter for a connection to a server.
const CONNECTION_KEYS: [&str; 14] = [
    "command",
    "args",
    "env",
    "cwd",
    "url",
    "serverUrl",
    "httpUrl",
    "replicas",
    "headers",
    "type",
    "transport",
    "tls",
    "oauth",
    "tools",
];

/// Returns the settings that matter for a connection to a server.
#[must_use]
pub fn connection_settings(settings: &[KeyValue]) -> Vec<KeyValue> {
    settings.iter().filter(|setting| CONNECTION_KEYS.contains(&setting.key.as_str())).cloned().collect()
}

/// Returns a server with these settings as it would be configured, without what concerns other servers or the policy. It is
/// not disabled. Relative paths are resolved as in the file at `path`.
///
/// # Errors
/// The problems of its settings.
pub fn server_for_trial(
    path: &Path,
    name: &str,
    settings: &[KeyValue],
    flags: &Flags,
    env: &Environment,
) -> Result<UpstreamConfig, ConfigError> {
    let loaded = load_text(path, &to_yaml(name, &connection_settings(settings)), flags, env)?;
    loaded.register_secrets();
    let found = loaded.config.upstreams.into_iter().find(|server| server.name == name);
    found.ok_or_else(|| {
        let (message, remedy) = (format!("{KEY} is set elsewhere"), "Unset the variable that sets it.".to_owned());
        Problem { origin: Origin::Default, key: Some(KEY.to_owned()), message, remedy }.into()
    })
}

/// Returns the settings of a server as they are written in the text of a file.
///
/// # Errors
/// The text is not YAML, or has no such server.
pub fn find_server(text: &str, name: &str) -> Result<Vec<KeyValue>, EditError> {
    let tree = tree::parse(without_mark(text))?;
    let found = servers_of(&tree.node).iter().find(|entry| entry.key == name);
    match found.map(|entry| &entry.value.node) {
        Some(Node::Map(settings)) => Ok(settings.clone()),
        Some(_) => Ok(Vec::new()),
        None => Err(EditError::NoSuchServer(name.to_owned())),
    }
}

/// Returns the names of the servers in the text of a file, including disabled ones.
///
/// # Errors
/// The text is not YAML.
pub fn server_names(text: &str) -> Result<Vec<String>, EditError> {
    let tree = tree::parse(without_mark(text))?;
    Ok(servers_of(&tree.node).iter().map(|entry| entry.key.clone()).collect())
}

/// Returns the text with the changes made one after another.
///
/// # Errors
/// The text is not YAML, a name is taken or unknown, or the file is written in a way that this module does not edit.
pub fn apply_changes(text: &str, changes: &[ServerChange]) -> Result<String, EditError> {
    changes.iter().try_fold(text.to_owned(), |text, change| apply_change(&text, change))
}

fn apply_change(text: &str, change: &ServerChange) -> Result<String, EditError> {
    if let ServerChange::Add { name, settings } | ServerChange::Replace { name, settings } = change {
        check_visible(name, &Node::Text(name.clone()))?;
        settings.iter().try_for_each(|setting| check_visible(&setting.key, &setting.value.node))?;
    }
    let (mark, body) = text.split_at(text.len() - without_mark(text).len());
    let tree = tree::parse(body)?;
    let intended = apply_to_tree(&tree.node, change)?;
    let not_editable = |NotEditable(reason): NotEditable| EditError::NotEditable { reason, yaml: change.to_yaml() };
    let edited = edit_lines(body, &tree, change).map_err(not_editable)?;
    let has_intended_values = tree::parse(&edited).is_ok_and(|tree| tree.node.has_same_value(&intended));
    if !has_intended_values {
        let reason = "the servers are written in a form that the program does not edit";
        return Err(not_editable(NotEditable(reason.to_owned())));
    }
    Ok(format!("{mark}{edited}"))
}

/// Refuses a value that a person would not see as it is. Line breaks and tabs are visible.
fn check_visible(key: &str, node: &Node) -> Result<(), EditError> {
    let hidden = || EditError::HiddenCharacter(key.to_owned());
    if has_hidden(key) {
        return Err(hidden());
    }
    match node {
        Node::Text(text) if has_hidden(text) => Err(hidden()),
        Node::List(items) => items.iter().try_for_each(|item| check_visible(key, &item.node)),
        Node::Map(entries) => entries.iter().try_for_each(|entry| check_visible(&entry.key, &entry.value.node)),
        _ => Ok(()),
    }
}

/// Returns the text without the byte order mark with which some editors begin files.
fn without_mark(text: &str) -> &str {
    text.strip_prefix('\u{feff}').unwrap_or(text)
}

fn entries_of(node: &Node) -> &[KeyValue] {
    match node {
        Node::Map(entries) => entries,
        _ => &[],
    }
}

fn servers_of(root: &Node) -> &[KeyValue] {
    entries_of(root).iter().find(|entry| entry.key == KEY).map_or(&[], |entry| entries_of(&entry.value.node))
}

/// Returns the values that the file is to have after the change.
fn apply_to_tree(root: &Node, change: &ServerChange) -> Result<Node, EditError> {
    let mut servers = servers_of(root).to_vec();
    let position = servers.iter().position(|server| server.key == change.name());
    let missing = || EditError::NoSuchServer(change.name().to_owned());
    match change {
        ServerChange::Add { name, .. } if position.is_some() => return Err(EditError::NameTaken(name.clone())),
        ServerChange::Add { name, settings } => servers.push(KeyValue::new(name, Node::Map(settings.clone()))),
        ServerChange::Replace { settings, .. } => {
            let server = position.and_then(|index| servers.get_mut(index)).ok_or_else(missing)?;
            server.value.node = Node::Map(reorder(entries_of(&server.value.node), settings));
        }
        ServerChange::Remove { .. } => drop(servers.remove(position.ok_or_else(missing)?)),
    }
    let mut entries = match root {
        Node::Map(entries) => entries.clone(),
        Node::Null => Vec::new(),
        _ => {
            let reason = "it does not consist of keys and values".to_owned();
            return Err(EditError::NotEditable { reason, yaml: change.to_yaml() });
        }
    };
    match entries.iter_mut().find(|entry| entry.key == KEY) {
        Some(found) => found.value.node = Node::Map(servers),
        None => entries.push(KeyValue::new(KEY, Node::Map(servers))),
    }
    Ok(Node::Map(entries))
}

/// Returns the new settings with the keys that a server has already in their present order, and new keys after them.
fn reorder(old: &[KeyValue], new: &[KeyValue]) -> Vec<KeyValue> {
    let kept = old.iter().filter_map(|old| new.iter().find(|entry| entry.key == old.key));
    let added = new.iter().filter(|entry| !old.iter().any(|old| old.key == entry.key));
    kept.chain(added).cloned().collect()
}

fn edit_lines(text: &str, tree: &LocatedNode, change: &ServerChange) -> Result<String, NotEditable> {
    let mut lines = Lines::new(text)?;
    let root = entries_of(&tree.node);
    let sections = Block::find(&lines, root, 0, lines.len())?;
    if sections.indent != 0 {
        return Err(NotEditable::new("its keys are indented"));
    }
    let end_of_line = line_break(text);
    let Some(index) = root.iter().position(|entry| entry.key == KEY) else {
        let ServerChange::Add { name, settings } = change else { return Err(NotEditable::new("it has no servers")) };
        let mut added = if text.trim().is_empty() { String::new() } else { end_of_line.to_owned() };
        added.push_str(&format!("{KEY}:{end_of_line}"));
        format_entry(&mut added, 2, name, &Node::Map(settings.clone()), end_of_line);
        lines.insert(lines.len(), &added, end_of_line);
        return Ok(lines.join());
    };
    let section = sections.place(index)?;
    let servers = servers_of(&tree.node);
    if servers.is_empty() {
        let ServerChange::Add { name, settings } = change else { return Err(NotEditable::new("it has no servers")) };
        lines.open_empty_map(section.start, KEY)?;
        let mut added = String::new();
        format_entry(&mut added, 2, name, &Node::Map(settings.clone()), end_of_line);
        lines.insert(section.start + 1, &added, end_of_line);
        return Ok(lines.join());
    }
    lines.check_block_key(section.start, KEY)?;
    let block = Block::find(&lines, servers, section.start + 1, section.end)?;
    let position = servers.iter().position(|server| server.key == change.name());
    match (change, position) {
        (ServerChange::Add { name, settings }, _) => {
            let mut added = String::new();
            format_entry(&mut added, block.indent, name, &Node::Map(settings.clone()), end_of_line);
            lines.insert(block.end(), &added, end_of_line);
        }
        (ServerChange::Replace { name, settings }, Some(index)) => {
            let place = block.place(index)?;
            let old = servers.get(index).map_or(&[][..], |server| entries_of(&server.value.node));
            let keys = Block::find(&lines, old, place.start + 1, place.end);
            match keys.and_then(|keys| lines.check_block_key(place.start, name).map(|()| keys)) {
                Ok(keys) if !old.is_empty() => replace_keys(&mut lines, &keys, old, settings, end_of_line),
                // A server on one line, or one that the file takes from elsewhere, is written anew.
                _ => {
                    let mut added = String::new();
                    format_entry(&mut added, block.indent, name, &Node::Map(settings.clone()), end_of_line);
                    lines.replace(place.start, place.end, &added);
                }
            }
        }
        (ServerChange::Remove { .. }, Some(index)) => {
            let place = block.place(index)?;
            lines.replace(place.start, place.end, "");
            if servers.len() == 1 {
                lines.close_empty_map(section.start, KEY)?;
            }
        }
        (_, None) => return Err(NotEditable::new("it has no such server")),
    }
    Ok(lines.join())
}

/// Replaces the lines of keys that have another value, removes those of keys that are gone, and adds new keys.
fn replace_keys(lines: &mut Lines, keys: &Block, old: &[KeyValue], new: &[KeyValue], end_of_line: &str) {
    let mut added = String::new();
    for setting in new.iter().filter(|setting| !old.iter().any(|old| old.key == setting.key)) {
        format_entry(&mut added, keys.indent, &setting.key, &setting.value.node, end_of_line);
    }
    lines.insert(keys.end(), &added, end_of_line);
    // From the last line up, so that the positions of the others stay valid.
    for (place, before) in keys.entries.iter().zip(old).rev() {
        let mut text = String::new();
        match new.iter().find(|setting| setting.key == before.key) {
            Some(now) if now.value.node.has_same_value(&before.value.node) => continue,
            Some(now) => format_entry(&mut text, keys.indent, &now.key, &now.value.node, end_of_line),
            None => {}
        }
        lines.replace(place.start, place.end, &text);
    }
}
