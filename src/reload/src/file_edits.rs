//! Edits the configuration file, or shows what an edit would change.
//!
//! The edited text is validated as a whole configuration before it is written. It takes effect like any other change of
//! the file: a change that loosens policy waits for consent.

use std::path::Path;

use serde::Serialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::{
    ConfigSource, ReloadCause, Reloader,
    config_file::{ConfigFile, FileError},
    diff::compare,
    pending::{ConfigLineOp, DiffLine, Loosening, diff_texts},
    status::Problem,
};
use countersign_config::{
    Config, Environment, Flags, LoadedConfig,
    edit::{
        EditError, ServerChange, apply_changes, hidden::hide_secrets_in_file, references::mask_likely_secrets, to_yaml,
    },
    load::load_text,
};
use countersign_protocol::redact::redact;
use countersign_runtime::background;

/// The number of unchanged lines that are shown around a change.
const CONTEXT_LINES: usize = 3;

/// The reason why the configuration file can or cannot be edited on the dashboard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum EditingState {
    On,
    /// `dashboard.edit` turns it off.
    Off,
    /// Several gateways may serve the store, each with a file of its own.
    SharedStore,
    /// The gateway reads no file, and none would be found at a default path.
    NoFile,
}

/// The reason why the file was not edited.
#[derive(Debug, thiserror::Error)]
pub enum FileEditError {
    #[error("{0}")]
    File(#[from] FileError),
    #[error("{0}")]
    Edit(#[from] EditError),
    #[error("the configuration would not be valid: {}", .0.iter().map(Problem::describe).collect::<Vec<_>>().join(" "))]
    Invalid(Vec<Problem>),
    #[error("{0}, so an edit of the file would have no effect")]
    Overridden(String),
    #[error("the gateway reads no configuration file")]
    NoFile,
    #[error("the edit could not be recorded: {0}")]
    NotRecorded(String),
}

/// An edit of the file that was validated, but not written.
#[derive(Debug)]
pub struct PreparedEdit {
    pub text: String,
    /// The configuration with the edit. `None` if the file could not be loaded here before either, for example because variables
    /// are set only for the gateway.
    pub loaded: Option<LoadedConfig>,
    /// The changed lines and the lines around them, without secrets.
    pub lines: Vec<DiffLine>,
}

/// Changes of servers.
#[derive(Clone, Debug, Default)]
pub struct ServerChanges {
    /// The changes to make.
    pub unmasked: Vec<ServerChange>,
    /// The same changes for people to see, with placeholders for the secrets of the file.
    pub masked: Vec<ServerChange>,
}

impl ServerChanges {
    /// Adds a change that contains no secrets of the file.
    pub fn push(&mut self, change: ServerChange) {
        self.masked.push(change.clone());
        self.unmasked.push(change);
    }

    /// Returns the lines to write into the file by hand.
    pub fn to_yaml(&self) -> String {
        join_lines(self.masked.iter().map(ServerChange::to_yaml))
    }

    /// Returns the lines that another person consents to: everything that would be executed, without what looks like a secret.
    pub fn to_consent_yaml(&self) -> String {
        let changes = self.unmasked.iter().filter_map(|change| Some((change.name(), change.settings()?)));
        join_lines(changes.map(|(name, settings)| to_yaml(name, &mask_likely_secrets(settings))))
    }
}

/// Joins the lines of several servers to one block.
fn join_lines(servers: impl Iterator<Item = String>) -> String {
    servers.collect::<String>().replace("\nmcpServers:\n", "\n")
}

/// An edit of one part of the file.
pub trait FileChange: Clone + Send + Sync + 'static {
    /// The key whose value the edit changes.
    const KEY: &'static str;

    /// Returns the edited text.
    ///
    /// # Errors
    /// The text cannot be edited.
    fn apply(&self, text: &str) -> Result<String, EditError>;

    /// Makes the same edit in a text whose secrets are hidden, for people to see.
    ///
    /// # Errors
    /// The text cannot be edited.
    fn apply_masked(&self, text: &str) -> Result<String, EditError>;

    /// Returns the lines to write into the file by hand.
    fn to_yaml(&self, text: &str) -> String;

    /// Returns the event of the audit trail with its details, without commands and values.
    fn audit_entry(&self) -> (&'static str, Value);
}

impl FileChange for ServerChanges {
    const KEY: &'static str = "mcpServers";

    fn apply(&self, text: &str) -> Result<String, EditError> {
        self.unmasked.iter().try_for_each(ServerChange::check_addresses)?;
        apply_changes(text, &self.unmasked)
    }

    fn apply_masked(&self, text: &str) -> Result<String, EditError> {
        apply_changes(text, &self.masked)
    }

    fn to_yaml(&self, _: &str) -> String {
        self.to_yaml()
    }

    fn audit_entry(&self) -> (&'static str, Value) {
        let describe = |change: &ServerChange| {
            let action = match change {
                ServerChange::Add { .. } => "added",
                ServerChange::Replace { .. } => "changed",
                ServerChange::Remove { .. } => "removed",
            };
            json!({ "server": change.name(), "action": action })
        };
        let servers: Vec<Value> = self.unmasked.iter().map(describe).collect();
        ("servers_edited", json!({ "servers": servers }))
    }
}

/// Makes the changes in the text of the file, and checks that they cause no new problem.
///
/// # Errors
/// Fails if the text cannot be edited, or if the edit would make the configuration invalid.
pub fn prepare_edit<C: FileChange>(
    file: &ConfigFile,
    changes: &C,
    flags: &Flags,
    env: &Environment,
) -> Result<PreparedEdit, FileEditError> {
    let text = changes.apply(file.text())?;
    let loaded = match validate::<C>(file.path(), &text, flags, env) {
        Ok(loaded) => Some(loaded),
        Err(FileEditError::Invalid(problems)) => {
            let old = load_text(file.path(), file.text(), flags, env).err();
            let old = old.map(Problem::from_config_error).unwrap_or_default();
            let is_new =
                |problem: &Problem| !old.iter().any(|old| (&old.key, &old.message) == (&problem.key, &problem.message));
            if problems.iter().any(is_new) {
                return Err(FileEditError::Invalid(problems.into_iter().filter(is_new).collect()));
            }
            None
        }
        Err(error) => return Err(error),
    };
    let lines = diff_lines(file.text(), changes);
    Ok(PreparedEdit { text, loaded, lines })
}

/// Validates the text by loading the configuration as if the file had it.
fn validate<C: FileChange>(
    path: &Path,
    text: &str,
    flags: &Flags,
    env: &Environment,
) -> Result<LoadedConfig, FileEditError> {
    let loaded =
        load_text(path, text, flags, env).map_err(|error| FileEditError::Invalid(Problem::from_config_error(error)))?;
    if loaded.source_file(C::KEY).is_none() {
        let setting = loaded.settings.iter().find(|setting| setting.key == C::KEY);
        let origin = setting.map_or(String::new(), |setting| setting.origin.to_string());
        return Err(FileEditError::Overridden(format!("{} is set by {origin}", C::KEY)));
    }
    Ok(loaded)
}

/// Returns the changed lines and the lines around them, with the secrets of the file masked.
fn diff_lines<C: FileChange>(text: &str, changes: &C) -> Vec<DiffLine> {
    let hidden = hide_secrets_in_file(text).and_then(|before| Ok((changes.apply_masked(&before)?, before)));
    // In a file whose secrets cannot be masked, only the new lines are shown.
    let (after, before) = hidden.unwrap_or_else(|_| (changes.to_yaml(text), String::new()));
    let lines = diff_texts(&section_lines(&before, C::KEY), &section_lines(&after, C::KEY));
    let is_changed: Vec<bool> = lines.iter().map(|line| line.op != ConfigLineOp::Same).collect();
    let is_near = |index: usize| {
        let end = (index + CONTEXT_LINES + 1).min(is_changed.len());
        is_changed.get(index.saturating_sub(CONTEXT_LINES)..end).is_some_and(|near| near.contains(&true))
    };
    let near_lines = lines.into_iter().enumerate().filter(|(index, _)| is_near(*index));
    near_lines.map(|(_, DiffLine { op, text })| DiffLine { op, text: redact(&text).into_owned() }).collect()
}

/// Returns the lines of the top-level section with this key. The lines of other sections may have secrets in plain text.
fn section_lines(text: &str, key: &str) -> String {
    let section = key.split('.').next();
    let mut is_inside = false;
    let is_shown = |line: &&str| {
        if !line.starts_with([' ', '\t', '\r', '\n', '#', '-']) {
            let name = line.trim_start_matches('\u{feff}').split(':').next();
            is_inside = name.map(|name| name.trim().trim_matches(['"', '\''])) == section;
        }
        is_inside
    };
    text.split_inclusive('\n').filter(is_shown).collect()
}

/// The effects of an edit, for people.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = ServerEdit)]
pub struct EditSummary {
    pub file: String,
    /// The version of the file after the edit, or before it if it was not made.
    pub version: String,
    /// The changed lines of the file and the lines around them.
    pub lines: Vec<DiffLine>,
    /// The changes that wait for a reviewer's consent.
    #[serde(rename = "loosens")]
    pub loosenings: Vec<Loosening>,
    /// `true` if the file was written.
    pub saved: bool,
}

impl Reloader {
    /// Returns the reason why the file can or cannot be edited on the dashboard.
    pub fn editing(&self) -> EditingState {
        let config = self.config();
        if self.file().is_none() {
            EditingState::NoFile
        } else if config.store.is_some() {
            EditingState::SharedStore
        } else if config.may_edit_on_dashboard() {
            EditingState::On
        } else {
            EditingState::Off
        }
    }

    /// Reads the configuration file.
    ///
    /// # Errors
    /// [`FileEditError::NoFile`], [`FileEditError::File`]
    pub async fn read_file(&self) -> Result<ConfigFile, FileEditError> {
        let path = self.file().cloned().ok_or(FileEditError::NoFile)?;
        let file = path.clone();
        let read_result = background::spawn_blocking(move || ConfigFile::read(&file)).await;
        Ok(read_result.map_err(|error| FileError::Unreadable { path, source: std::io::Error::other(error) })??)
    }

    /// Returns the flags and the environment with which the file is read.
    pub const fn source(&self) -> &ConfigSource {
        &self.source
    }

    /// Writes an entry about the file or a trial to the audit trail; `details` is a JSON object.
    ///
    /// # Errors
    /// [`FileEditError::NotRecorded`]
    pub async fn record(&self, event: &'static str, by: &str, details: &Value) -> Result<(), FileEditError> {
        self.gateway.record(event, by, details.to_string()).await.map_err(FileEditError::NotRecorded)
    }

    /// Returns what an edit of the file would change, with the resulting configuration.
    ///
    /// # Errors
    /// As [`prepare_edit`].
    pub fn preview_edit(
        &self,
        file: &ConfigFile,
        changes: &impl FileChange,
    ) -> Result<(EditSummary, Config), FileEditError> {
        let (_, loaded, summary) = self.validate_edit(file, changes)?;
        Ok((summary, loaded.config))
    }

    /// Returns the edited text, its configuration and the summary of the edit.
    fn validate_edit<C: FileChange>(
        &self,
        file: &ConfigFile,
        changes: &C,
    ) -> Result<(String, LoadedConfig, EditSummary), FileEditError> {
        let ConfigSource { flags, env } = &self.source;
        let PreparedEdit { text, loaded, lines } = prepare_edit(file, changes, flags, env)?;
        let loaded = match loaded {
            Some(loaded) => loaded,
            // The gateway itself needs a valid configuration, so that old problems refuse the edit too.
            None => validate::<C>(file.path(), &text, flags, env)?,
        };
        let loosenings = compare(&self.config(), &loaded.config).0.policy_loosened;
        let path = self.file().map_or(String::new(), |path| path.display().to_string());
        Ok((text, loaded, EditSummary { file: path, version: file.version(), lines, loosenings, saved: false }))
    }

    /// Edits the file if it still has this version, and applies the result like a reload. The caller has checked that `by` may
    /// edit it.
    ///
    /// # Errors
    /// As [`prepare_edit`]; [`FileError::Changed`] if the file has another version; [`FileEditError::NotRecorded`], or another
    /// [`FileError`] if it cannot be written.
    pub async fn edit_file(
        &self,
        changes: &impl FileChange,
        version: &str,
        by: &str,
    ) -> Result<EditSummary, FileEditError> {
        let _guard = self.reload_lock.lock().await;
        let file = self.read_file().await?;
        if file.version() != version {
            return Err(FileError::Changed(file.path().to_owned()).into());
        }
        let (text, loaded, summary) = self.validate_edit(&file, changes)?;
        // The entry precedes the edit, which may start a program.
        let (event, details) = changes.audit_entry();
        self.record(event, by, &details).await?;
        tracing::warn!(target: "countersign::audit", by, event, %details, "the configuration file is edited on the dashboard");
        let path = file.path().to_owned();
        let saved = background::spawn_blocking(move || file.save(&text)).await;
        saved.map_err(|error| FileError::ReadOnly { path, reason: error.to_string() })??;
        loaded.register_secrets();
        self.apply_loaded(ReloadCause::File, loaded).await;
        Ok(EditSummary { version: self.read_file().await?.version(), saved: true, ..summary })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use countersign_config::edit::Settings;

    #[test]
    fn lines_of_an_edit_are_those_of_its_section() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("c.yaml");
        let flags = Flags { data: Some("d".into()), ..Flags::default() };
        let env = Environment::new(dir.path(), &[]);
        let secret = format!("{}=", "A".repeat(43));
        let mut changes = ServerChanges::default();
        let settings = Settings::from_iter([("command".to_owned(), "y".into())]);
        changes.push(ServerChange::Add { name: "b".to_owned(), settings });
        // Without servers, the new section follows the last line, which has no line break.
        for servers in ["mcpServers:\n  a: { command: x }\n", ""] {
            let webhooks = format!("webhooks:\n  h: {{ disabled: true, secret: {secret} }}\n");
            std::fs::write(&path, format!("{webhooks}{servers}secrets:\n  key: {secret}")).unwrap();
            let edit = prepare_edit(&ConfigFile::read(&path).unwrap(), &changes, &flags, &env).unwrap();
            let lines: Vec<&str> = edit.lines.iter().map(|line| line.text.as_str()).collect();
            assert!(lines.contains(&"  b:") && lines.contains(&"mcpServers:"), "{lines:?}");
            assert!(!lines.iter().any(|line| line.contains(&secret)), "{lines:?}");
        }
    }

    #[test]
    fn edit_of_unloadable_file_brings_in_no_access_to_own_files() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("c.yaml");
        std::fs::write(&path, "mcpServers:\n  a: { command: x, env: { TOKEN: '${UNSET}' } }\n").unwrap();
        let flags = Flags { data: Some("d".into()), ..Flags::default() };
        let env = Environment::new(dir.path(), &[]);
        let prepare = |argument: &str| {
            let mut changes = ServerChanges::default();
            let settings =
                Settings::from_iter([("command".to_owned(), "y".into()), ("args".to_owned(), json!([argument]))]);
            changes.push(ServerChange::Add { name: "b".to_owned(), settings });
            prepare_edit(&ConfigFile::read(&path).unwrap(), &changes, &flags, &env)
        };
        let error = prepare("/").unwrap_err().to_string();
        assert!(
            error.contains("mcpServers.b.args[0]: the server b would get at") && !error.contains("UNSET"),
            "{error}"
        );
        assert!(prepare("/srv").unwrap().loaded.is_none());
    }
}
