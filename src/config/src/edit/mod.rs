//! Edits `mcpServers` and the rules of the policy ([`rules`]) in the text of a configuration file. Everything else stays as it
//! is written: comments, order, quotes and line breaks.
//!
//! The positions that the parser reports give the lines of a server or of one of its keys. The result is parsed again and must
//! have exactly the intended values. Otherwise the edit is refused, and the caller gets the YAML to paste, so that no form of
//! YAML that this module does not understand is damaged.

mod blocks;
pub mod hidden;
pub mod paste;
pub mod references;
mod registry_entry;
pub mod rules;
#[cfg(test)]
mod tests;

pub use registry_entry::PackageRunner;

use std::{path::Path, sync::Arc};

use url::Url;

use self::blocks::{Block, Lines, NotEditableError, format_entry};
use crate::{
    Environment, Flags, Secret, UpstreamConfig,
    error::{ConfigError, Origin, Problem, quoted},
    load::{load_text, strip_byte_order_mark},
    servers::KEY,
    tree::{self, KeyValue, Node, SyntaxError, find_value},
};
use countersign_domain::changes::visible::has_hidden;
use countersign_protocol::redact::register_secrets;

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
    pub fn name(&self) -> &str {
        match self {
            Self::Add { name, .. } | Self::Replace { name, .. } | Self::Remove { name } => name,
        }
    }

    /// Returns the lines to write into the file by hand; none for a removal.
    pub fn to_yaml(&self) -> String {
        match self {
            Self::Add { name, settings } | Self::Replace { name, settings } => to_yaml(name, settings),
            Self::Remove { .. } => String::new(),
        }
    }

    /// Refuses an address with a user name or password. The file is valid with it while the server is disabled.
    ///
    /// # Errors
    /// [`EditError::UserInAddress`]
    pub fn check_addresses(&self) -> Result<(), EditError> {
        let (Self::Add { name, settings } | Self::Replace { name, settings }) = self else { return Ok(()) };
        let has_user_in = |node: &Node| matches!(node, Node::Text(address) if has_user(address));
        let has_user_in_setting = |KeyValue { key, value, .. }: &KeyValue| match (key.as_str(), &value.node) {
            ("url" | "serverUrl" | "httpUrl", address) => has_user_in(address),
            ("replicas", Node::List(items)) => items.iter().any(|item| has_user_in(&item.node)),
            _ => false,
        };
        if settings.iter().any(has_user_in_setting) { Err(EditError::UserInAddress(name.clone())) } else { Ok(()) }
    }
}

/// Returns `true` if an address contains a user name or password.
fn has_user(address: &str) -> bool {
    match Url::parse(address.trim()) {
        Ok(url) => !url.username().is_empty() || url.password().is_some(),
        // A variable may stand for its host.
        Err(_) => {
            let authority = address.split_once("://").and_then(|(_, rest)| rest.split(['/', '?', '#']).next());
            authority.is_some_and(|authority| authority.contains('@'))
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
    #[error("the rules in the file are not those that were edited")]
    NoSuchRule,
    #[error(
        "the URL of {} contains a user name or password; put the credential into headers: {{ Authorization: … }}",
        quoted(.0)
    )]
    UserInAddress(String),
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
pub fn to_yaml(name: &str, settings: &[KeyValue]) -> String {
    format!("{KEY}:\n{}", server_lines(2, name, settings, "\n"))
}

/// Returns a server as lines with this indentation.
fn server_lines(indent: usize, name: &str, settings: &[KeyValue], line_break: &str) -> String {
    let mut lines = String::new();
    format_entry(&mut lines, indent, name, &Node::Map(settings.to_vec()), line_break);
    lines
}

/// Sets a key of a map. A key that the map already has keeps its position.
pub fn set_key(settings: &mut Vec<KeyValue>, key: &str, node: Node) {
    match settings.iter_mut().find(|setting| setting.key == key) {
        Some(setting) => setting.value.node = node,
        None => settings.push(KeyValue::new(key, node)),
    }
}

/// Sets a key in a section of a server, such as `env`. The section is added if it is missing or empty.
pub fn set_in_section(settings: &mut Vec<KeyValue>, section: &str, key: &str, node: Node) {
    let is_section = |setting: &KeyValue| setting.key == section && setting.value.node != Node::Null;
    if !settings.iter().any(is_section) {
        set_key(settings, section, Node::Map(Vec::new()));
    }
    let section = settings.iter_mut().find(|setting| setting.key == section);
    if let Some(Node::Map(entries)) = section.map(|section| &mut section.value.node) {
        entries.retain(|entry| entry.key != key);
        entries.push(KeyValue::new(key, node));
    }
}

/// The keys that determine a connection to a server and its tools.
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

/// Returns the settings that determine a connection to a server and its tools.
pub fn connection_settings(settings: &[KeyValue]) -> Vec<KeyValue> {
    settings.iter().filter(|setting| CONNECTION_KEYS.contains(&setting.key.as_str())).cloned().collect()
}

/// A server that may be tried.
pub struct TrialServer {
    pub config: Arc<UpstreamConfig>,
    /// Values that errors and logs must not contain.
    secrets: Vec<Secret>,
}

impl TrialServer {
    /// Masks the secrets from now on, as [`crate::LoadedConfig::register_secrets`] does. Called only for a server that is about to
    /// be started, because the settings of one that is only compared may hold any words.
    pub fn register_secrets(&self) {
        register_secrets(self.secrets.iter().map(|Secret(value)| value.clone()));
    }
}

/// Returns the server that these settings describe, without other servers and the policy. It is enabled even if they
/// disable it. Relative paths are resolved as in the file at `path`.
///
/// # Errors
/// The problems of its settings.
pub fn server_for_trial(
    path: &Path,
    name: &str,
    settings: &[KeyValue],
    flags: &Flags,
    env: &Environment,
) -> Result<TrialServer, ConfigError> {
    let loaded = load_text(path, &to_yaml(name, &connection_settings(settings)), flags, env)?;
    let found = loaded.config.upstreams.into_iter().find(|server| server.name == name);
    let config = found.ok_or_else(|| {
        let error = (format!("{KEY} is set elsewhere"), "Unset the variable that sets it.".to_owned());
        ConfigError::from(Problem::new(Origin::Default, Some(KEY), error))
    })?;
    Ok(TrialServer { config: Arc::new(config), secrets: loaded.secrets })
}

/// Returns the settings of a server as they are written in the text of a file.
///
/// # Errors
/// The text is not YAML, or has no such server.
pub fn find_server(text: &str, name: &str) -> Result<Vec<KeyValue>, EditError> {
    let tree = tree::parse(strip_byte_order_mark(text))?;
    let server = find_value(servers_of(&tree.node), name).ok_or_else(|| EditError::NoSuchServer(name.to_owned()))?;
    Ok(server.entries().to_vec())
}

/// Returns the names of the servers in the text of a file, including disabled ones.
///
/// # Errors
/// The text is not YAML.
pub fn server_names(text: &str) -> Result<Vec<String>, EditError> {
    let tree = tree::parse(strip_byte_order_mark(text))?;
    Ok(servers_of(&tree.node).iter().map(|entry| entry.key.clone()).collect())
}

/// Returns the text with the changes made one after another.
///
/// # Errors
/// The text is not YAML, a name is taken or unknown, or the file is written in a way that this module does not edit.
pub fn apply_changes(text: &str, changes: &[ServerChange]) -> Result<String, EditError> {
    changes.iter().try_fold(text.to_owned(), |text, change| apply_change(&text, change))
}

/// Returns the text with one change, if it then has exactly the intended values.
fn apply_change(text: &str, change: &ServerChange) -> Result<String, EditError> {
    if let ServerChange::Add { name, settings } | ServerChange::Replace { name, settings } = change {
        check_visible(name, &Node::Text(name.clone()))?;
        settings.iter().try_for_each(|setting| check_visible(&setting.key, &setting.value.node))?;
    }
    let file = EditedFile::parse(text)?;
    let servers = change_servers(servers_of(&file.root), change)?;
    let edit = |lines: &mut Lines, sections: &Block| edit_servers(lines, sections, &file.root, change);
    let edited = file.set_value(KEY, Node::Map(servers), "servers", edit);
    edited.map_err(|NotEditableError(reason)| EditError::NotEditable { reason, yaml: change.to_yaml() })
}

/// The text of a file with its values.
struct EditedFile<'a> {
    byte_order_mark: &'a str,
    text: &'a str,
    root: Node,
}

impl<'a> EditedFile<'a> {
    fn parse(file: &'a str) -> Result<Self, SyntaxError> {
        let text = strip_byte_order_mark(file);
        let byte_order_mark = file.strip_suffix(text).unwrap_or_default();
        Ok(Self { byte_order_mark, text, root: tree::parse(text)?.node })
    }

    /// Returns the text in which a top-level key has this value. `edit` changes the lines; other values than the intended ones
    /// are refused. `noun` names the values in an error.
    fn set_value(
        &self,
        key: &str,
        value: Node,
        noun: &str,
        edit: impl FnOnce(&mut Lines, &Block) -> Result<(), NotEditableError>,
    ) -> Result<String, NotEditableError> {
        let mut intended = match &self.root {
            Node::Map(entries) => entries.clone(),
            Node::Null => Vec::new(),
            _ => return Err(NotEditableError::new("it does not consist of keys and values")),
        };
        set_key(&mut intended, key, value);
        let mut lines = Lines::new(self.text)?;
        let sections = Block::find(&lines, self.root.entries(), 0, lines.len())?;
        if sections.indent != 0 {
            return Err(NotEditableError::new("its keys are indented"));
        }
        edit(&mut lines, &sections)?;
        let edited = lines.join();
        if !tree::parse(&edited).is_ok_and(|tree| tree.node.has_same_value(&Node::Map(intended))) {
            return Err(NotEditableError(format!("the {noun} are written in a form that the program does not edit")));
        }
        Ok(format!("{}{edited}", self.byte_order_mark))
    }
}

/// Refuses a value with hidden characters, which a person does not see. Line breaks and tabs are visible.
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

/// Returns the servers of a file.
fn servers_of(root: &Node) -> &[KeyValue] {
    find_value(root.entries(), KEY).map_or(&[], Node::entries)
}

/// Returns the servers that the file is to have after the change.
fn change_servers(old: &[KeyValue], change: &ServerChange) -> Result<Vec<KeyValue>, EditError> {
    let mut servers = old.to_vec();
    let position = servers.iter().position(|server| server.key == change.name());
    let missing = || EditError::NoSuchServer(change.name().to_owned());
    match change {
        ServerChange::Add { name, .. } if position.is_some() => return Err(EditError::NameTaken(name.clone())),
        ServerChange::Add { name, settings } => servers.push(KeyValue::new(name, Node::Map(settings.clone()))),
        ServerChange::Replace { settings, .. } => {
            let server = position.and_then(|index| servers.get_mut(index)).ok_or_else(missing)?;
            server.value.node = Node::Map(reorder(server.value.node.entries(), settings));
        }
        ServerChange::Remove { .. } => drop(servers.remove(position.ok_or_else(missing)?)),
    }
    Ok(servers)
}

/// Returns the new settings in the order of the old ones, with new keys after them.
fn reorder(old: &[KeyValue], new: &[KeyValue]) -> Vec<KeyValue> {
    let kept_entries = old.iter().filter_map(|old| new.iter().find(|entry| entry.key == old.key));
    let new_entries = new.iter().filter(|entry| !old.iter().any(|old| old.key == entry.key));
    kept_entries.chain(new_entries).cloned().collect()
}

/// Makes the change in the lines of a file with these values.
fn edit_servers(
    lines: &mut Lines,
    sections: &Block,
    root: &Node,
    change: &ServerChange,
) -> Result<(), NotEditableError> {
    let line_break = lines.line_break;
    let first_server = || match change {
        ServerChange::Add { name, settings } => Ok(server_lines(2, name, settings, line_break)),
        _ => Err(NotEditableError::new("it has no servers")),
    };
    let Some(index) = root.entries().iter().position(|entry| entry.key == KEY) else {
        lines.append_section(&format!("{KEY}:{line_break}{}", first_server()?));
        return Ok(());
    };
    let section = sections.find_range(index)?;
    let servers = servers_of(root);
    if servers.is_empty() {
        let added_lines = first_server()?;
        lines.open_empty_map(section.start, KEY)?;
        lines.insert(section.start + 1, &added_lines);
        return Ok(());
    }
    lines.check_block_key(section.start, KEY)?;
    let block = Block::find(lines, servers, section.start + 1, section.end)?;
    let position = servers.iter().position(|server| server.key == change.name());
    match (change, position) {
        (ServerChange::Add { name, settings }, _) => {
            lines.insert(block.end(), &server_lines(block.indent, name, settings, line_break));
        }
        (ServerChange::Replace { name, settings }, Some(index)) => {
            let range = block.find_range(index)?;
            let old = servers.get(index).map_or(&[][..], |server| server.value.node.entries());
            let keys = Block::find(lines, old, range.start + 1, range.end);
            match keys.and_then(|keys| lines.check_block_key(range.start, name).map(|()| keys)) {
                Ok(keys) if !old.is_empty() => replace_keys(lines, &keys, old, settings),
                // A server on one line, or one that is a YAML alias, is written again.
                _ => {
                    let added_lines = server_lines(block.indent, name, settings, line_break);
                    lines.replace(range.start, range.end, &added_lines);
                }
            }
        }
        (ServerChange::Remove { .. }, Some(index)) => {
            let range = block.find_range(index)?;
            lines.replace(range.start, range.end, "");
            if servers.len() == 1 {
                lines.close_empty_map(section.start, KEY)?;
            }
        }
        (_, None) => return Err(NotEditableError::new("it has no such server")),
    }
    Ok(())
}

/// Replaces the lines of keys that have another value, removes those of keys that are gone, and adds new keys.
fn replace_keys(lines: &mut Lines, keys: &Block, old: &[KeyValue], new: &[KeyValue]) {
    let line_break = lines.line_break;
    let mut added_lines = String::new();
    for setting in new.iter().filter(|setting| !old.iter().any(|old| old.key == setting.key)) {
        format_entry(&mut added_lines, keys.indent, &setting.key, &setting.value.node, line_break);
    }
    lines.insert(keys.end(), &added_lines);
    // The last lines come first, so that the positions of the others stay valid.
    for (range, before) in keys.entries.iter().zip(old).rev() {
        let mut text = String::new();
        match new.iter().find(|setting| setting.key == before.key) {
            Some(now) if now.value.node.has_same_value(&before.value.node) => continue,
            Some(now) => format_entry(&mut text, keys.indent, &now.key, &now.value.node, line_break),
            None => {}
        }
        lines.replace(range.start, range.end, &text);
    }
}
