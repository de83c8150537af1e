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

use serde_json::{Map, Value};
use url::Url;

use self::blocks::{Block, Lines, NotEditableError, format_entry};
use crate::{
    Environment, Flags, Secret, UpstreamConfig,
    error::{ConfigError, Origin, Problem, invalid, quoted},
    load::{load_text, strip_byte_order_mark},
    servers::{KEY, URL_KEYS},
    tree::{self, KeyValue, Node, SyntaxError, find_value, to_json_map},
};
use countersign_domain::changes::visible::has_hidden;
use countersign_protocol::redact::register_secrets;

/// The keys of a server or of a rule with their values, as they are written in the file.
pub type Settings = Map<String, Value>;

/// A change of one server in the file.
#[derive(Clone, Debug, PartialEq)]
pub enum ServerChange {
    /// Adds a server after all others.
    Add {
        name: String,
        settings: Settings,
    },
    /// Gives a server these keys in place of its present ones. The lines of unchanged keys stay as they are.
    Replace {
        name: String,
        settings: Settings,
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

    /// Returns the keys that the server is to have, unless it is removed.
    pub fn settings(&self) -> Option<&Settings> {
        match self {
            Self::Add { settings, .. } | Self::Replace { settings, .. } => Some(settings),
            Self::Remove { .. } => None,
        }
    }

    /// Returns the lines to write into the file by hand; none for a removal.
    pub fn to_yaml(&self) -> String {
        self.settings().map(|settings| to_yaml(self.name(), settings)).unwrap_or_default()
    }

    /// Refuses an address with a user name or password. The file is valid with it while the server is disabled.
    ///
    /// # Errors
    /// [`EditError::UserInAddress`]
    pub fn check_addresses(&self) -> Result<(), EditError> {
        let has_user_in = |address: &Value| address.as_str().is_some_and(has_user);
        let has_user_in_setting = |(key, value): (&String, &Value)| match (key.as_str(), value) {
            (key, address) if URL_KEYS.contains(&key) => has_user_in(address),
            ("replicas", Value::Array(addresses)) => addresses.iter().any(has_user_in),
            _ => false,
        };
        let has_user = self.settings().into_iter().flatten().any(has_user_in_setting);
        if has_user { Err(EditError::UserInAddress(self.name().to_owned())) } else { Ok(()) }
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
pub fn to_yaml(name: &str, settings: &Settings) -> String {
    format!("{KEY}:\n{}", server_lines(2, name, settings, "\n"))
}

/// Returns a server as lines with this indentation.
fn server_lines(indent: usize, name: &str, settings: &Settings, line_break: &str) -> String {
    let mut lines = String::new();
    format_entry(&mut lines, indent, name, &Value::Object(settings.clone()), line_break);
    lines
}

/// Sets a key. A key that is there already keeps its position.
pub fn set_key(settings: &mut Settings, key: &str, value: impl Into<Value>) {
    settings.insert(key.to_owned(), value.into());
}

/// Sets a key in a section of a server, such as `env`. The section is added if it is missing or empty.
pub fn set_in_section(settings: &mut Settings, section: &str, key: &str, value: impl Into<Value>) {
    let section = settings.entry(section).or_insert(Value::Null);
    if section.is_null() {
        *section = Settings::new().into();
    }
    if let Value::Object(entries) = section {
        entries.shift_remove(key);
        set_key(entries, key, value);
    }
}

/// Returns `true` if both values are equal, including the order of their keys, which counts in a map of patterns.
pub fn is_same_value(one: &Value, two: &Value) -> bool {
    let [one, two] = [one, two].map(Value::to_string);
    one == two
}

/// Returns a text, or the texts of a list, but not those of other lists and maps in it.
pub fn words_of(value: &Value) -> Vec<&str> {
    match value {
        Value::String(text) => vec![text],
        Value::Array(items) => items.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    }
}

/// Returns all texts in the value.
fn texts_in(value: &Value) -> Vec<&str> {
    match value {
        Value::String(text) => vec![text],
        Value::Array(items) => items.iter().flat_map(texts_in).collect(),
        Value::Object(entries) => entries.values().flat_map(texts_in).collect(),
        _ => Vec::new(),
    }
}

/// Returns a text as it is, and any other value as JSON.
fn to_scalar_text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
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
pub fn connection_settings(settings: &Settings) -> Settings {
    let mut settings = settings.clone();
    settings.retain(|key, _| CONNECTION_KEYS.contains(&key.as_str()));
    settings
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
    settings: &Settings,
    flags: &Flags,
    env: &Environment,
) -> Result<TrialServer, ConfigError> {
    let loaded = load_text(path, &to_yaml(name, &connection_settings(settings)), flags, env)?;
    let found = loaded.config.upstreams.into_iter().find(|server| server.name == name);
    let config = found.ok_or_else(|| {
        let error = invalid(format!("{KEY} is set elsewhere"), "Unset the variable that sets it.");
        ConfigError::from(Problem::new(Origin::Default, Some(KEY), error))
    })?;
    Ok(TrialServer { config: Arc::new(config), secrets: loaded.secrets })
}

/// Returns the settings of a server as they are written in the text of a file.
///
/// # Errors
/// The text is not YAML, or has no such server.
pub fn find_server(text: &str, name: &str) -> Result<Settings, EditError> {
    let tree = tree::parse(strip_byte_order_mark(text))?;
    let server = find_value(servers_of(&tree.node), name).ok_or_else(|| EditError::NoSuchServer(name.to_owned()))?;
    Ok(to_json_map(server.entries()))
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
    if let Some(settings) = change.settings() {
        check_visible(change.name(), &Value::Null)?;
        settings.iter().try_for_each(|(key, value)| check_visible(key, value))?;
    }
    let file = EditedFile::parse(text)?;
    let servers = change_servers(to_json_map(servers_of(&file.root)), change)?;
    let edit = |lines: &mut Lines, sections: &Block| edit_servers(lines, sections, &file.root, change);
    let edited = file.set_value(KEY, Value::Object(servers), "servers", edit);
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
        value: Value,
        noun: &str,
        edit: impl FnOnce(&mut Lines, &Block) -> Result<(), NotEditableError>,
    ) -> Result<String, NotEditableError> {
        if !matches!(self.root, Node::Map(_) | Node::Null) {
            return Err(NotEditableError::new("it does not consist of keys and values"));
        }
        let mut intended = to_json_map(self.root.entries());
        set_key(&mut intended, key, value);
        let mut lines = Lines::new(self.text)?;
        let sections = Block::find(&lines, self.root.entries(), 0, lines.len())?;
        if sections.indent != 0 {
            return Err(NotEditableError::new("its keys are indented"));
        }
        edit(&mut lines, &sections)?;
        let edited = lines.join();
        let intended = Value::Object(intended);
        if !tree::parse(&edited).is_ok_and(|tree| is_same_value(&tree.node.to_json(), &intended)) {
            return Err(NotEditableError(format!("the {noun} are written in a form that the program does not edit")));
        }
        Ok(format!("{}{edited}", self.byte_order_mark))
    }
}

/// Refuses a value with hidden characters, which a person does not see. Line breaks and tabs are visible.
fn check_visible(key: &str, value: &Value) -> Result<(), EditError> {
    let hidden = || EditError::HiddenCharacter(key.to_owned());
    if has_hidden(key) {
        return Err(hidden());
    }
    match value {
        Value::String(text) if has_hidden(text) => Err(hidden()),
        Value::Array(items) => items.iter().try_for_each(|item| check_visible(key, item)),
        Value::Object(entries) => entries.iter().try_for_each(|(key, value)| check_visible(key, value)),
        _ => Ok(()),
    }
}

/// Returns the servers of a file.
fn servers_of(root: &Node) -> &[KeyValue] {
    find_value(root.entries(), KEY).map_or(&[], Node::entries)
}

/// Returns the servers that the file is to have after the change.
fn change_servers(mut servers: Settings, change: &ServerChange) -> Result<Settings, EditError> {
    let name = change.name();
    match (change, servers.get_mut(name)) {
        (ServerChange::Add { .. }, Some(_)) => return Err(EditError::NameTaken(name.to_owned())),
        (ServerChange::Add { settings, .. }, None) => set_key(&mut servers, name, settings.clone()),
        (ServerChange::Replace { settings, .. }, Some(server)) => {
            *server = Value::Object(reorder(server.as_object(), settings));
        }
        (ServerChange::Remove { .. }, Some(_)) => {
            servers.shift_remove(name);
        }
        (_, None) => return Err(EditError::NoSuchServer(name.to_owned())),
    }
    Ok(servers)
}

/// Returns the new settings in the order of the old ones, with new keys after them.
fn reorder(old: Option<&Settings>, new: &Settings) -> Settings {
    let kept_keys = old.into_iter().flat_map(Settings::keys).filter(|key| new.contains_key(*key));
    let mut settings: Settings = kept_keys.map(|key| (key.clone(), Value::Null)).collect();
    settings.extend(new.clone());
    settings
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
        lines.replace_empty_value(section.start, KEY, "")?;
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
                lines.replace_empty_value(section.start, KEY, " {}")?;
            }
        }
        (_, None) => return Err(NotEditableError::new("it has no such server")),
    }
    Ok(())
}

/// Replaces the lines of keys that have another value, removes those of keys that are gone, and adds new keys.
fn replace_keys(lines: &mut Lines, keys: &Block, old: &[KeyValue], new: &Settings) {
    let line_break = lines.line_break;
    let mut added_lines = String::new();
    for (key, value) in new.iter().filter(|(key, _)| find_value(old, key).is_none()) {
        format_entry(&mut added_lines, keys.indent, key, value, line_break);
    }
    lines.insert(keys.end(), &added_lines);
    // The last lines come first, so that the positions of the others stay valid.
    for (range, before) in keys.entries.iter().zip(old).rev() {
        let mut text = String::new();
        match new.get(&before.key) {
            Some(now) if is_same_value(now, &before.value.node.to_json()) => continue,
            Some(now) => format_entry(&mut text, keys.indent, &before.key, now, line_break),
            None => {}
        }
        lines.replace(range.start, range.end, &text);
    }
}
