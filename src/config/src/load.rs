//! Merges flags, environment, file and defaults into one validated [`Config`].

mod layers;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::LazyLock,
};

use self::layers::Layers;
use super::{
    Config, StoreServer, auth, check,
    environment::Environment,
    error::{ConfigError, Origin, Problem, invalid},
    own_files, read,
    reader::{Reader, Setting},
    secrets, show,
    tree::{self, Node},
    upstreams::Secret,
    values,
};
use countersign_domain::policy::{GroupMember, PolicyConfig};
use countersign_protocol::{redact::register_secrets, suggest};
use countersign_telemetry::logs::LogConfig;

/// The commented default file, which is also the source of the defaults.
pub const DEFAULT_YAML: &str = include_str!("../../../config/countersign.yaml");
/// The prefix of all environment variables.
pub const VARIABLE_PREFIX: &str = "COUNTERSIGN_";
/// The variable that names the configuration file.
const FILE_VARIABLE: &str = "COUNTERSIGN_CONFIG";
/// Variables with our prefix that set no key: they name the configuration file, and the gateway and the keys of commands.
pub const NON_KEY_VARIABLES: [&str; 4] = [FILE_VARIABLE, "COUNTERSIGN_KEY", "COUNTERSIGN_AGENT_KEY", "COUNTERSIGN_URL"];
/// The largest configuration file in bytes.
pub const MAX_FILE_BYTES: u64 = 1 << 20;

/// The configuration flags of the command line.
#[derive(Clone, Debug, Default)]
pub struct Flags {
    /// `--config`
    pub config: Option<PathBuf>,
    /// `--listen`
    pub listen: Option<String>,
    /// `--data`
    pub data: Option<PathBuf>,
}

/// A configuration with its sources.
#[derive(Clone, Debug)]
pub struct LoadedConfig {
    pub config: Config,
    /// The file that was read, if any.
    pub file: Option<PathBuf>,
    /// The path at which a file is looked up: the file that was read, or the default path if it does not exist yet.
    pub lookup_path: Option<PathBuf>,
    /// `true` if the file sets a key.
    pub file_has_keys: bool,
    /// Every key in the order of the default file, for `config show`.
    pub settings: Vec<Setting>,
    /// Settings that are allowed but probably unintended.
    pub warnings: Vec<String>,
    /// Values that errors and logs must not contain. [`load`] registers them for redaction; [`load_text`] does not.
    pub secrets: Vec<Secret>,
}

impl LoadedConfig {
    /// Returns the file that set the key, or `None` if it was set elsewhere.
    pub fn source_file(&self, key: &str) -> Option<&Path> {
        match &self.settings.iter().find(|setting| setting.key == key)?.origin {
            Origin::File { path, .. } => Some(path),
            _ => None,
        }
    }

    /// Masks the secrets from now on in everything that quotes other parties ([`countersign_protocol::redact`]).
    pub fn register_secrets(&self) {
        register_secrets(self.secrets.iter().map(|Secret(value)| value.clone()));
    }
}

/// Every key with its default, in the order of the default file, which names all of them.
static DEFAULTS: LazyLock<Vec<(String, Node)>> = LazyLock::new(|| {
    fn add_keys(path: &str, node: &Node, defaults: &mut Vec<(String, Node)>) {
        match node {
            Node::Map(entries) if !entries.is_empty() => {
                entries.iter().for_each(|entry| add_keys(&join_key(path, &entry.key), &entry.value.node, defaults));
            }
            _ => defaults.push((path.to_owned(), node.clone())),
        }
    }
    let mut defaults = Vec::new();
    if let Ok(root) = tree::parse(DEFAULT_YAML) {
        add_keys("", &root.node, &mut defaults);
    }
    defaults
});

/// Returns every key in the order of the default file.
pub fn list_keys() -> impl ExactSizeIterator<Item = &'static str> {
    DEFAULTS.iter().map(|(key, _)| key.as_str())
}

fn join_key(section: &str, name: &str) -> String {
    if section.is_empty() { name.to_owned() } else { format!("{section}.{name}") }
}

/// Returns the environment variable of a key: `COUNTERSIGN_TRANSPORTS__HTTP__MAX_BODY` sets
/// `transports.http.max_body`.
pub fn variable_name(key: &str) -> String {
    format!("{VARIABLE_PREFIX}{}", key.replace('.', "__").to_ascii_uppercase())
}

/// Returns the built-in defaults.
pub(super) fn default_config(env: &Environment) -> Config {
    read::config(&mut Layers::new().into_reader(env.clone()))
}

/// The settings of the data directory and the store.
#[derive(Clone, Debug)]
pub struct StoreSettings {
    pub data: PathBuf,
    /// The database server, or `None` if the store is in the data directory.
    pub server: Option<StoreServer>,
    /// The file that was read, if any.
    pub file: Option<PathBuf>,
}

/// Returns the data directory without reading the rest of the configuration. No file is read if a flag or a variable
/// names the directory.
///
/// # Errors
/// The problems of the key `data`, or of the file that has to be read for it.
pub fn data_dir(flags: &Flags, env: &Environment) -> Result<PathBuf, ConfigError> {
    let is_given = flags.data.is_some() || !matches!(env.var(&variable_name("data")), Ok(None));
    let file = if is_given { None } else { find_file(flags, env)? };
    read_sections(file.as_ref(), flags, env, &["data"], |reader| reader.read("data", values::path()))
}

/// Returns the data directory and the server of the store without reading the rest of the configuration.
///
/// # Errors
/// The problems of `data` and of the keys below `store`, or of the file.
pub fn store_settings(flags: &Flags, env: &Environment) -> Result<StoreSettings, ConfigError> {
    let file = find_file(flags, env)?;
    let (data, server) = read_sections(file.as_ref(), flags, env, &["data", "store"], |reader| {
        (reader.read("data", values::path()), read::store(reader))
    })?;
    Ok(StoreSettings { data, server, file: file.map(|(path, _)| path) })
}

/// Returns `true` if a flag or a variable names the configuration file or the server of the store.
pub fn is_store_named(flags: &Flags, env: &Environment) -> bool {
    let is_set = |name: &str| !matches!(env.var(name), Ok(None));
    flags.config.is_some() || is_set(FILE_VARIABLE) || is_set(&variable_name("store.url"))
}

/// Returns the members that groups of the policy list by name, without reading the rest of the configuration.
///
/// # Errors
/// The problems of `policy.groups`, or of the file.
pub fn group_members(flags: &Flags, env: &Environment) -> Result<Vec<String>, ConfigError> {
    let groups = read_sections(find_file(flags, env)?.as_ref(), flags, env, &["policy.groups"], read::groups)?;
    let names = groups.into_values().flatten().filter_map(|member| match member {
        GroupMember::Name(name) => Some(name),
        GroupMember::Subject { .. } | GroupMember::ClaimGroup { .. } => None,
    });
    Ok(names.collect())
}

/// Returns the issuers of people and of access tokens, without reading the rest of the configuration.
///
/// # Errors
/// The problems of the issuers, or of the file.
pub fn issuers(flags: &Flags, env: &Environment) -> Result<Vec<String>, ConfigError> {
    read_sections(find_file(flags, env)?.as_ref(), flags, env, &["auth.oidc", "auth.tokens"], auth::read_issuers)
}

/// Returns the log settings, or the default settings if they cannot be read.
pub fn log_config(flags: &Flags, env: &Environment) -> LogConfig {
    let file = find_file(flags, env).ok().flatten();
    read_sections(file.as_ref(), flags, env, &["log"], read::log).unwrap_or_else(|_| default_config(env).log)
}

/// Returns the file that [`load`] would read, if it can be determined.
pub fn find_config_file(flags: &Flags, env: &Environment) -> Option<PathBuf> {
    find_file(flags, env).ok().flatten().map(|(path, _)| path)
}

/// Reads only the keys of these sections. Problems elsewhere are ignored unless they may be misspellings of a wanted
/// section.
fn read_sections<T>(
    file: Option<&(PathBuf, Origin)>,
    flags: &Flags,
    env: &Environment,
    sections: &[&'static str],
    read: impl FnOnce(&mut Reader) -> T,
) -> Result<T, ConfigError> {
    let mut layers = Layers::new();
    if let Some((path, named_by)) = file {
        let text = read_file(path, named_by)?;
        let text = if tree::parse(&text).is_err() { extract_sections(&text, sections).unwrap_or(text) } else { text };
        layers.add_config_file(path, &text);
    }
    layers.add_overrides(flags, env);
    layers.problems.retain(|problem| sections.iter().any(|section| may_concern(problem, section)));
    let mut reader = layers.into_reader(env.clone());
    let value = read(&mut reader);
    ConfigError::check(reader.problems).map(|()| value)
}

/// Returns `true` if the problem may concern the section: it names a key there, a possible misspelling of the section,
/// or the whole file.
fn may_concern(problem: &Problem, section: &'static str) -> bool {
    let name = match (&problem.key, &problem.origin) {
        (Some(key), _) => key.to_ascii_lowercase(),
        (None, Origin::Env(variable)) => {
            variable.strip_prefix(VARIABLE_PREFIX).unwrap_or(variable).to_ascii_lowercase().replace('_', ".")
        }
        (None, _) => return true,
    };
    let depth = name.split('.').count().min(section.split('.').count());
    let start = |path: &str| path.split('.').take(depth).collect::<Vec<_>>().join(".");
    let (name, section) = (start(&name), start(section));
    suggest::nearest(&name, [section.as_str()]).is_some()
}

/// Returns the lines of these top-level sections from a file that is not valid YAML, with all other lines emptied.
/// Returns `None` if indentation does not separate the sections.
fn extract_sections(text: &str, sections: &[&str]) -> Option<String> {
    let is_wanted = |line: &str| {
        let key = line.split(':').next().unwrap_or_default();
        let key = key.trim().trim_matches(['"', '\'']);
        sections.iter().any(|section| section.split('.').next() == Some(key))
    };
    let mut is_in_section = false;
    let mut lines = Vec::new();
    for line in text.lines() {
        if line.starts_with('{') {
            return None;
        }
        if !line.starts_with([' ', '\t', '#']) && !line.is_empty() {
            is_in_section = is_wanted(line);
        }
        lines.push(if is_in_section { line } else { "" });
    }
    Some(lines.join("\n"))
}

/// Builds a policy from values by key (`policy.default`) in the format of a listing ([`show`]), and returns it with its
/// settings. Missing keys have their defaults.
///
/// # Errors
/// The same problems that a file with these values would have.
pub fn policy_from_values(values: &BTreeMap<String, String>) -> Result<(PolicyConfig, Vec<Setting>), ConfigError> {
    let line = |(key, value): (&String, &String)| show::ListedSetting {
        key: key.clone(),
        value: value.clone(),
        remark: String::new(),
        notes: Vec::new(),
    };
    let text = show::listing(&values.iter().map(line).collect::<Vec<_>>());
    let mut layers = Layers::new();
    layers.add_file(&text, &|_, _| Origin::PreviousRun, Path::new("/"));
    let mut reader = layers.into_reader(Environment::new(Path::new("/"), &[]));
    let policy = read::policy(&mut reader);
    ConfigError::check(reader.problems).map(|()| (policy, reader.settings))
}

/// Loads and validates the whole configuration. Reads only the configuration file, and the certificates and credentials that it
/// names.
///
/// # Errors
/// All problems, each with its origin, key and remedy.
pub fn load(flags: &Flags, env: &Environment) -> Result<LoadedConfig, ConfigError> {
    let file = find_file(flags, env)?;
    let text = file.as_ref().map(|(path, named_by)| read_file(path, named_by)).transpose()?;
    let loaded = load_file(file.map(|(path, _)| path).zip(text), flags, env)?;
    // Registered here so that no caller can forget it.
    loaded.register_secrets();
    Ok(loaded)
}

/// Loads and validates the configuration as if the file at `path` had this text. Its secrets are not registered,
/// because a registered value is masked everywhere, and the text may be from anybody. A caller that uses the
/// configuration registers them.
///
/// # Errors
/// As [`load`].
pub fn load_text(path: &Path, text: &str, flags: &Flags, env: &Environment) -> Result<LoadedConfig, ConfigError> {
    if text.len() as u64 > MAX_FILE_BYTES {
        let message = "the configuration file would be larger than 1 MiB";
        return Err(Problem::new(Origin::whole_file(path), None, invalid(message, "Take something out.")).into());
    }
    load_file(Some((path.to_owned(), strip_byte_order_mark(text).to_owned())), flags, &env.with_own_record())
}

fn load_file(file: Option<(PathBuf, String)>, flags: &Flags, env: &Environment) -> Result<LoadedConfig, ConfigError> {
    let lookup_path = file.as_ref().map(|(path, _)| path.clone()).or_else(|| default_config_path(env));
    let mut layers = Layers::new();
    if let Some((path, text)) = &file {
        layers.add_config_file(path, text);
    }
    let file_has_keys = layers.values.values().any(|value| matches!(value.origin, Origin::File { .. }));
    layers.add_overrides(flags, env);
    let mut reader = layers.into_reader(env.clone());
    let config = read::config(&mut reader);
    // Defaults replace values that cannot be read, so a conflict with such a default would be reported as well.
    if reader.problems.is_empty() {
        check::report_conflicts(&config, &mut reader);
    }
    // Without the data directory, the gateway's own files are not known.
    if reader.problems.iter().all(|problem| problem.key.as_deref() != Some("data")) {
        own_files::report_access(&config, lookup_path.as_deref(), &mut reader);
    }
    ConfigError::check(std::mem::take(&mut reader.problems))?;
    let mut warnings = check::find_warnings(&config, &reader);
    warnings.append(&mut reader.warnings);
    let secrets = secrets::collect_secrets(&config, &reader.env);
    Ok(LoadedConfig {
        config,
        file: file.map(|(path, _)| path),
        lookup_path,
        file_has_keys,
        settings: reader.settings,
        warnings,
        secrets,
    })
}

/// Returns the file to read, and the flag or variable that named it.
fn find_file(flags: &Flags, env: &Environment) -> Result<Option<(PathBuf, Origin)>, ConfigError> {
    if let Some(path) = &flags.config {
        return Ok(Some((env.cwd.join(path), Origin::Flag("--config"))));
    }
    if let Some(text) = env.var(FILE_VARIABLE).map_err(|_| not_unicode(FILE_VARIABLE, None))? {
        let origin = Origin::Env(FILE_VARIABLE.to_owned());
        let path = env.expand_path(text, &env.cwd).map_err(|error| Problem::new(origin.clone(), None, error))?;
        return Ok(Some((path, origin)));
    }
    // If the file or a folder above it is a dangling link, for example to an unmounted volume, the gateway must not
    // start with the defaults.
    let is_dangling = |path: &Path| path.is_symlink() && !path.exists();
    let file = default_config_path(env).filter(|path| path.exists() || path.ancestors().any(is_dangling));
    Ok(file.map(|path| (path, Origin::Default)))
}

/// Returns the path of the configuration file: the named one, or the default one, whether it exists or not.
///
/// # Errors
/// The path cannot be determined.
pub fn config_path(flags: &Flags, env: &Environment) -> Result<Option<PathBuf>, ConfigError> {
    Ok(find_file(flags, env)?.map(|(path, _)| path).or_else(|| default_config_path(env)))
}

/// Returns the default path of the configuration file.
fn default_config_path(env: &Environment) -> Option<PathBuf> {
    env.config_home().map(|home| home.join("countersign/countersign.yaml"))
}

fn read_file(path: &Path, named_by: &Origin) -> Result<String, ConfigError> {
    let named_by_note = if *named_by == Origin::Default { String::new() } else { format!(" (named by {named_by})") };
    let problem = |message: String, remedy: &str| {
        ConfigError::from(Problem::new(Origin::whole_file(path), None, invalid(message, remedy)))
    };
    let to_read_error = |error: std::io::Error| {
        problem(
            format!("the configuration file cannot be read: {error}{named_by_note}"),
            "Name a file that exists and may be read.",
        )
    };
    let meta = std::fs::metadata(path).map_err(to_read_error)?;
    if meta.is_dir() {
        return Err(problem(format!("this is a folder{named_by_note}"), "Name the file in it."));
    }
    if meta.len() > MAX_FILE_BYTES {
        return Err(problem(
            format!("the configuration file is larger than 1 MiB{named_by_note}"),
            "Is it the right file?",
        ));
    }
    let bytes = std::fs::read(path).map_err(to_read_error)?;
    let text = String::from_utf8(bytes)
        .map_err(|_| problem(format!("the configuration file is not UTF-8{named_by_note}"), "Save it as UTF-8."))?;
    Ok(strip_byte_order_mark(&text).to_owned())
}

/// Returns the text without the byte order mark with which some editors begin files.
pub(crate) fn strip_byte_order_mark(text: &str) -> &str {
    text.strip_prefix('\u{feff}').unwrap_or(text)
}

fn not_unicode(name: &str, key: Option<&str>) -> Problem {
    let error = invalid("the value is not Unicode", "Set it again, or unset it.");
    Problem::new(Origin::Env(name.to_owned()), key, error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_to_a_missing_file_or_folder_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("countersign");
        let env = Environment::new(dir.path(), &[("XDG_CONFIG_HOME", dir.path().to_str().unwrap())]);
        let assert_unreadable = || {
            let error = load(&Flags::default(), &env).unwrap_err().to_string();
            assert!(error.contains("countersign.yaml") && error.contains("cannot be read"), "{error}");
        };
        std::os::unix::fs::symlink("missing", &folder).unwrap();
        assert_unreadable();
        std::fs::remove_file(&folder).unwrap();
        std::fs::create_dir(&folder).unwrap();
        std::os::unix::fs::symlink("missing.yaml", folder.join("countersign.yaml")).unwrap();
        assert_unreadable();
    }
}
