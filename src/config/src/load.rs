//! From flags, environment, file and defaults to one proved [`Config`].

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    sync::Arc,
};

use super::{
    Config, StoreServer, check,
    environment::Environment,
    error::{ConfigError, Origin, Problem, quoted, quoted_key},
    own_files, read,
    reader::{Placed, Reader, Setting},
    secrets, show,
    tree::{self, Node, Spot},
    upstreams::Secret,
};
use countersign_domain::policy::PolicyConfig;
use countersign_protocol::{redact::keep_secret, suggest};
use countersign_telemetry::logs::LogConfig;

/// The commented default file, which is also the source of the defaults.
pub const DEFAULTS: &str = include_str!("../../../config/countersign.yaml");
/// What names of environment variables begin with.
pub const PREFIX: &str = "COUNTERSIGN_";
/// Variables with our prefix that are no keys: the configuration's file, and what `countersign changes` talks to.
pub const OTHER_VARIABLES: [&str; 4] =
    ["COUNTERSIGN_CONFIG", "COUNTERSIGN_KEY", "COUNTERSIGN_AGENT_KEY", "COUNTERSIGN_URL"];
/// Bytes of a configuration file.
const MAX_FILE: u64 = 1 << 20;

/// What the command line said.
#[derive(Clone, Debug, Default)]
pub struct Flags {
    /// `--config`
    pub config: Option<PathBuf>,
    /// `--listen`
    pub listen: Option<String>,
    /// `--data`
    pub data: Option<PathBuf>,
}

/// A configuration with where it came from.
#[derive(Clone, Debug)]
pub struct Loaded {
    pub config: Config,
    /// The file that was read, if any.
    pub file: Option<PathBuf>,
    /// Where a file is looked for: that one, or the default place where there is none yet.
    pub place: Option<PathBuf>,
    /// Every key in the order of the default file, for `config show`.
    pub settings: Vec<Setting>,
    /// What is allowed and probably not meant.
    pub warnings: Vec<String>,
    /// Values that no text may repeat. They are kept out of errors and logs since it was loaded.
    pub secrets: Vec<Secret>,
}

impl Loaded {
    /// Returns the file that the value of a key is from; `None` where it is from elsewhere.
    #[must_use]
    pub fn file_of(&self, key: &str) -> Option<&Path> {
        match &self.settings.iter().find(|setting| setting.key == key)?.origin {
            Origin::File { path, .. } => Some(path),
            _ => None,
        }
    }
}

/// Every key, in the order in which it is read.
#[must_use]
pub fn keys() -> Vec<&'static str> {
    let mut reader = Reader::schema();
    let _ = read::config(&mut reader);
    reader.settings.into_iter().map(|setting| setting.key).collect()
}

/// The environment variable of a key: `transports.http.max_body` is `COUNTERSIGN_TRANSPORTS__HTTP__MAX_BODY`.
#[must_use]
pub fn variable(key: &str) -> String {
    format!("{PREFIX}{}", key.replace('.', "__").to_ascii_uppercase())
}

/// The defaults alone.
pub(super) fn defaults(env: &Environment) -> Config {
    let layers = Layers::new();
    read::config(&mut Reader::new(layers.values, env.clone()))
}

/// Where a gateway keeps what it has.
#[derive(Clone, Debug)]
pub struct StoreLocation {
    pub data: PathBuf,
    /// `None` is in the data directory.
    pub server: Option<StoreServer>,
    /// The file that was read, if any.
    pub file: Option<PathBuf>,
}

/// Returns the data directory, which is all that a client of its gateway needs. Nothing else of the configuration is
/// looked at, and no file where a flag or a variable names the directory.
///
/// # Errors
/// What is wrong with the key `data`, or with a file that has to be read for it.
pub fn data_dir(flags: &Flags, env: &Environment) -> Result<PathBuf, ConfigError> {
    let is_given = flags.data.is_some() || !matches!(env.var(&variable("data")), Ok(None));
    let file = if is_given { None } else { find_file(flags, env)? };
    read_sections(file.as_ref(), flags, env, &["data"], |reader| reader.path("data"))
}

/// Returns the data directory and the server of its store. Nothing else of the configuration is looked at.
///
/// # Errors
/// What is wrong with `data` and the keys below `store`, or with the file.
pub fn store_location(flags: &Flags, env: &Environment) -> Result<StoreLocation, ConfigError> {
    let file = find_file(flags, env)?;
    let (data, server) = read_sections(file.as_ref(), flags, env, &["data", "store"], |reader| {
        (reader.path("data"), read::store(reader))
    })?;
    Ok(StoreLocation { data, server, file: file.map(|(path, _)| path) })
}

/// Returns `true` if a flag or a variable names the configuration file or the server of the store.
#[must_use]
pub fn is_store_named(flags: &Flags, env: &Environment) -> bool {
    let is_set = |name: &str| !matches!(env.var(name), Ok(None));
    flags.config.is_some() || is_set("COUNTERSIGN_CONFIG") || is_set(&variable("store.url"))
}

/// Returns the members of all groups of the policy. Nothing else of the configuration is looked at.
///
/// # Errors
/// What is wrong with `policy.groups`, or with the file.
pub fn group_members(flags: &Flags, env: &Environment) -> Result<Vec<String>, ConfigError> {
    let groups = read_sections(find_file(flags, env)?.as_ref(), flags, env, &["policy.groups"], read::groups)?;
    Ok(groups.into_values().flatten().collect())
}

/// Returns how to log; the default where that cannot be read.
#[must_use]
pub fn log_config(flags: &Flags, env: &Environment) -> LogConfig {
    let file = find_file(flags, env).ok().flatten();
    read_sections(file.as_ref(), flags, env, &["log"], read::log).unwrap_or_else(|_| defaults(env).log)
}

/// Returns the file that [`load`] would read, if it is known which one that is.
#[must_use]
pub fn config_file(flags: &Flags, env: &Environment) -> Option<PathBuf> {
    find_file(flags, env).ok().flatten().map(|(path, _)| path)
}

/// Reads keys of these top-level sections alone. What is wrong elsewhere is of no interest, unless it may be a misspelt
/// one of them.
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
        let text = if tree::parse(&text).is_err() { sections_of(&text, sections).unwrap_or(text) } else { text };
        layers.config_file(path, &text);
    }
    layers.overrides(flags, env);
    let mut reader = Reader::new(layers.values, env.clone());
    let found = read(&mut reader);
    let mut problems = layers.problems;
    problems.retain(|problem| sections.iter().any(|section| may_concern(problem, section)));
    problems.append(&mut reader.problems);
    if problems.is_empty() { Ok(found) } else { Err(ConfigError { problems }) }
}

/// Returns `true` unless the problem is certainly about something else than this section: it is about a key there, about a
/// name that may be a misspelt one, or about the whole file.
fn may_concern(problem: &Problem, section: &'static str) -> bool {
    let name = match (&problem.key, &problem.origin) {
        (Some(key), _) => key.to_ascii_lowercase(),
        (None, Origin::Env(variable)) => {
            variable.strip_prefix(PREFIX).unwrap_or(variable).to_ascii_lowercase().replace('_', ".")
        }
        (None, _) => return true,
    };
    let depth = name.split('.').count().min(section.split('.').count());
    let start = |path: &str| path.split('.').take(depth).collect::<Vec<_>>().join(".");
    let (name, section) = (start(&name), start(section));
    suggest::nearest(&name, [section.as_str()]).is_some()
}

/// Of a text that is no YAML as a whole, the lines of these top-level sections, with empty lines in place of the others.
/// `None` where sections cannot be told apart by their indentation.
fn sections_of(text: &str, sections: &[&str]) -> Option<String> {
    let is_wanted = |line: &str| {
        let key = line.split(':').next().unwrap_or_default();
        let key = key.trim().trim_matches(['"', '\'']);
        sections.iter().any(|section| section.split('.').next() == Some(key))
    };
    let mut wanted = false;
    let mut lines = Vec::new();
    for line in text.lines() {
        if line.starts_with('{') {
            return None;
        }
        if !line.starts_with([' ', '\t', '#']) && !line.is_empty() {
            wanted = is_wanted(line);
        }
        lines.push(if wanted { line } else { "" });
    }
    Some(lines.join("\n"))
}

/// The policy that these values of its keys (`policy.default`) make, as they stand in a listing ([`show`]), with its
/// settings. Keys that are not among them have their defaults.
///
/// # Errors
/// As of a file.
pub fn policy_of(values: &BTreeMap<String, String>) -> Result<(PolicyConfig, Vec<Setting>), ConfigError> {
    let line = |(key, value): (&String, &String)| show::Shown {
        key: key.clone(),
        value: value.clone(),
        remark: String::new(),
        notes: Vec::new(),
    };
    let text = show::listing(&values.iter().map(line).collect::<Vec<_>>());
    let mut layers = Layers::new();
    layers.file(&text, &|_, _| Origin::Before, Path::new("/"));
    let mut reader = Reader::new(layers.values, Environment::of(Path::new("/"), &[]));
    let policy = read::policy(&mut reader);
    let mut problems = layers.problems;
    problems.append(&mut reader.problems);
    if problems.is_empty() { Ok((policy, reader.settings)) } else { Err(ConfigError { problems }) }
}

/// Loads and proves everything; opens nothing but the configuration file.
///
/// # Errors
/// Everything that is wrong, each with its place, key and remedy.
pub fn load(flags: &Flags, env: &Environment) -> Result<Loaded, ConfigError> {
    let file = find_file(flags, env)?;
    let place = file.as_ref().map(|(path, _)| path.clone()).or_else(|| default_place(env));
    let mut layers = Layers::new();
    if let Some((path, named_by)) = &file {
        layers.config_file(path, &read_file(path, named_by)?);
    }
    layers.overrides(flags, env);
    let mut reader = Reader::new(layers.values, env.clone());
    let config = read::config(&mut reader);
    let mut problems = layers.problems;
    problems.append(&mut reader.problems);
    if problems.is_empty() {
        problems = check::cross(&config, &reader);
        problems.extend(own_files::problems(&config, place.as_deref(), &reader));
    }
    if !problems.is_empty() {
        return Err(ConfigError { problems });
    }
    let mut warnings = check::warnings(&config, &reader);
    warnings.append(&mut reader.warnings);
    let secrets = secrets::of(&config, &reader.env);
    // Here, so that nobody who uses them can forget it.
    keep_secret(secrets.iter().map(|Secret(value)| value.clone()));
    Ok(Loaded { config, file: file.map(|(path, _)| path), place, settings: reader.settings, warnings, secrets })
}

fn literal(path: &str) -> String {
    if path.starts_with(['~', '$']) { format!("./{path}") } else { path.to_owned() }
}

/// Which file to read, and who named it.
fn find_file(flags: &Flags, env: &Environment) -> Result<Option<(PathBuf, Origin)>, ConfigError> {
    if let Some(path) = &flags.config {
        return Ok(Some((env.cwd.join(path), Origin::Flag("--config"))));
    }
    let origin = Origin::Env("COUNTERSIGN_CONFIG".to_owned());
    match env.var("COUNTERSIGN_CONFIG") {
        Ok(Some(text)) => {
            let path = env.expand(text, &env.cwd).map_err(|(message, remedy)| {
                ConfigError::from(Problem { origin: origin.clone(), key: None, message, remedy })
            })?;
            return Ok(Some((path, origin)));
        }
        Ok(None) => {}
        Err(_) => return Err(not_unicode("COUNTERSIGN_CONFIG", None).into()),
    }
    Ok(default_place(env).filter(|path| path.exists()).map(|path| (path, Origin::Default)))
}

/// Where a file is looked for that nobody named.
fn default_place(env: &Environment) -> Option<PathBuf> {
    env.config_home().map(|home| home.join("countersign/countersign.yaml"))
}

fn read_file(path: &Path, named_by: &Origin) -> Result<String, ConfigError> {
    let place = Origin::File { path: Arc::new(path.to_owned()), line: 0, column: 0 };
    let told = if *named_by == Origin::Default { String::new() } else { format!(" (named by {named_by})") };
    let wrong = |message: String, remedy: &str| {
        ConfigError::from(Problem { origin: place.clone(), key: None, message, remedy: remedy.to_owned() })
    };
    let failed = |error: std::io::Error| {
        wrong(
            format!("the configuration file cannot be read: {error}{told}"),
            "Name a file that exists and may be read.",
        )
    };
    let meta = std::fs::metadata(path).map_err(failed)?;
    if meta.is_dir() {
        return Err(wrong(format!("this is a folder{told}"), "Name the file in it."));
    }
    if meta.len() > MAX_FILE {
        return Err(wrong(format!("the configuration file is larger than 1 MiB{told}"), "Is it the right file?"));
    }
    let bytes = std::fs::read(path).map_err(failed)?;
    let text = String::from_utf8(bytes)
        .map_err(|_| wrong(format!("the configuration file is not UTF-8{told}"), "Save it as UTF-8."))?;
    // Some editors begin files with a byte order mark.
    Ok(text.strip_prefix('\u{feff}').map_or(text.clone(), str::to_owned))
}

fn not_unicode(name: &str, key: Option<&str>) -> Problem {
    Problem {
        origin: Origin::Env(name.to_owned()),
        key: key.map(str::to_owned),
        message: "the value is not Unicode".to_owned(),
        remedy: "Set it again, or unset it.".to_owned(),
    }
}

/// The layers, merged as they come: later ones win.
struct Layers {
    keys: BTreeSet<&'static str>,
    values: BTreeMap<String, Placed>,
    problems: Vec<Problem>,
}

impl Layers {
    /// With the defaults.
    fn new() -> Self {
        let mut layers = Self { keys: keys().into_iter().collect(), values: BTreeMap::new(), problems: Vec::new() };
        layers.file(DEFAULTS, &|_, _| Origin::Default, Path::new("/"));
        layers
    }

    fn config_file(&mut self, path: &Path, text: &str) {
        let shared = Arc::new(path.to_owned());
        let place = |line, column| Origin::File { path: Arc::clone(&shared), line, column };
        self.file(text, &place, path.parent().unwrap_or(Path::new("/")));
    }

    /// What variables and flags say, which counts more than a file.
    fn overrides(&mut self, flags: &Flags, env: &Environment) {
        self.environment(env);
        self.flag("listen", "--listen", flags.listen.clone(), env);
        let data = flags.data.as_ref().map(|path| path.to_str().map(str::to_owned).ok_or(path));
        match data.transpose() {
            // The shell has expanded what was meant to be expanded; a literal `~` or `$` folder stays literal.
            Ok(data) => self.flag("data", "--data", data.map(|d| literal(&d)), env),
            Err(path) => self.problems.push(Problem {
                origin: Origin::Flag("--data"),
                key: Some("data".to_owned()),
                message: format!("{} is not Unicode", quoted(&path.to_string_lossy())),
                remedy: "Choose a folder whose name is.".to_owned(),
            }),
        }
    }

    fn file(&mut self, text: &str, place: &dyn Fn(u64, u64) -> Origin, base: &Path) {
        match tree::parse(text) {
            Ok(spot) => self.section("", spot, place, &Arc::from(base)),
            Err(error) => self.problems.push(Problem {
                origin: place(error.line, error.column),
                key: None,
                message: format!("not YAML: {}", error.message),
                remedy: "Look at this line and the one above: indentation, quotes, brackets, keys given twice."
                    .to_owned(),
            }),
        }
    }

    fn section(&mut self, path: &str, spot: Spot, place: &dyn Fn(u64, u64) -> Origin, base: &Arc<Path>) {
        let entries = match spot.node {
            Node::Map(entries) => entries,
            // A section whose lines are all comments.
            Node::Null => return,
            other => {
                self.problems.push(Problem {
                    origin: place(spot.line, spot.column),
                    key: (!path.is_empty()).then(|| path.to_owned()),
                    message: format!("expected keys below it, found {}", other.kind()),
                    remedy: format!("Keys here: {}.", self.children(path).join(", ")),
                });
                return;
            }
        };
        for entry in entries {
            let key = if path.is_empty() { entry.key.clone() } else { format!("{path}.{}", entry.key) };
            let dotted = entry.key.contains('.');
            if !dotted && self.keys.contains(key.as_str()) {
                let origin = place(entry.line, entry.column);
                self.values.insert(key, Placed { node: entry.value.node, origin, base: Arc::clone(base) });
            } else if !dotted && self.is_section(&key) {
                self.section(&key, entry.value, place, base);
            } else {
                let remedy = self.suggest(path, &entry.key);
                let (origin, key) = (place(entry.line, entry.column), quoted_key(&key));
                self.problems.push(Problem { origin, key: Some(key), message: "unknown key".to_owned(), remedy });
            }
        }
    }

    fn is_section(&self, path: &str) -> bool {
        self.keys.iter().any(|key| key.strip_prefix(path).is_some_and(|rest| rest.starts_with('.')))
    }

    /// What may stand directly below a section.
    fn children(&self, path: &str) -> Vec<&'static str> {
        let below = |key: &&'static str| -> Option<&'static str> {
            let rest = if path.is_empty() { key } else { key.strip_prefix(path)?.strip_prefix('.')? };
            rest.split('.').next()
        };
        let names: BTreeSet<&str> = self.keys.iter().filter_map(below).collect();
        names.into_iter().collect()
    }

    fn suggest(&self, section: &str, name: &str) -> String {
        if let Some(near) = suggest::nearest(name, self.children(section)) {
            return format!("Did you mean `{near}`?");
        }
        // The right name in the wrong place.
        let last = name.rsplit('.').next().unwrap_or(name);
        if let Some(key) = self.keys.iter().find(|key| key.rsplit('.').next() == Some(last)) {
            return format!("Did you mean `{key}`, nested as `{}`?", key.replace('.', ": { "));
        }
        format!("Keys here: {}. All keys are in config/countersign.yaml.", self.children(section).join(", "))
    }

    fn environment(&mut self, env: &Environment) {
        let base: Arc<Path> = Arc::from(env.cwd.as_path());
        let variables: BTreeMap<String, &'static str> = self.keys.iter().map(|key| (variable(key), *key)).collect();
        for (name, key) in &variables {
            match env.var(name) {
                Ok(Some(text)) => {
                    let (node, origin) = (Node::Text(text.to_owned()), Origin::Env(name.clone()));
                    self.values.insert((*key).to_owned(), Placed { node, origin, base: Arc::clone(&base) });
                }
                Ok(None) => {}
                Err(_) => self.problems.push(not_unicode(name, Some(key))),
            }
        }
        for name in env.names(PREFIX) {
            if variables.contains_key(name) || OTHER_VARIABLES.contains(&name) {
                continue;
            }
            let section = variables.keys().find(|known| known.starts_with(&format!("{name}__")));
            // Without the prefix that they all share, which would make everything look alike.
            let own = name.get(PREFIX.len()..).unwrap_or_default();
            let near = suggest::nearest(own, variables.keys().filter_map(|known| known.get(PREFIX.len()..)));
            let meant = section.cloned().or_else(|| near.map(|near| format!("{PREFIX}{near}")));
            // Others are let be: container platforms set such names on their own (COUNTERSIGN_PORT=tcp://…).
            if let Some(meant) = meant {
                self.unknown_variable(name, format!("Did you mean {meant}?"));
            } else if name.contains("__") {
                self.unknown_variable(name, "Unset it; `countersign config show` lists all keys.".to_owned());
            }
        }
    }

    fn unknown_variable(&mut self, name: &str, remedy: String) {
        let origin = Origin::Env(name.to_owned());
        self.problems.push(Problem {
            origin,
            key: None,
            message: "no configuration key has this variable".to_owned(),
            remedy,
        });
    }

    fn flag(&mut self, key: &str, flag: &'static str, value: Option<String>, env: &Environment) {
        if let Some(text) = value {
            let (node, base) = (Node::Text(text), Arc::from(env.cwd.as_path()));
            self.values.insert(key.to_owned(), Placed { node, origin: Origin::Flag(flag), base });
        }
    }
}
