//! The layers of the configuration: defaults, file, variables and flags, with the problems of each.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    sync::Arc,
};

use super::{DEFAULTS, Flags, NON_KEY_VARIABLES, VARIABLE_PREFIX, join_key, not_unicode, variable_name};
use crate::{
    environment::Environment,
    error::{Origin, Problem, invalid, quoted, quoted_key},
    reader::{Reader, SourcedNode},
    tree::{self, LocatedNode, Node},
};
use countersign_protocol::suggest;

/// The layers of the configuration. Later layers override earlier ones, and none adds a key.
pub(super) struct Layers {
    pub values: BTreeMap<String, SourcedNode>,
    pub problems: Vec<Problem>,
}

impl Layers {
    /// Starts with the built-in defaults.
    pub fn new() -> Self {
        let base: Arc<Path> = Arc::from(Path::new("/"));
        let to_value = |(key, node): &(String, Node)| {
            (key.clone(), SourcedNode { node: node.clone(), origin: Origin::Default, base: Arc::clone(&base) })
        };
        Self { values: DEFAULTS.iter().map(to_value).collect(), problems: Vec::new() }
    }

    /// Returns a reader of the values that has the problems of the layers.
    pub fn into_reader(self, env: Environment) -> Reader {
        Reader::new(self.values, self.problems, env)
    }

    pub fn add_config_file(&mut self, path: &Path, text: &str) {
        let shared = Arc::new(path.to_owned());
        let locate = |line, column| Origin::File { path: Arc::clone(&shared), line, column };
        self.add_file(text, &locate, path.parent().unwrap_or(Path::new("/")));
    }

    /// Adds variables and flags, which override the file.
    pub fn add_overrides(&mut self, flags: &Flags, env: &Environment) {
        self.add_environment(env);
        self.add_flag("listen", "--listen", flags.listen.clone(), env);
        match flags.data.as_ref().map(|path| path.to_str().ok_or(path)).transpose() {
            // The shell has expanded paths already; a remaining `~` or `$` is part of the name.
            Ok(data) => self.add_flag("data", "--data", data.map(escape_literal_path), env),
            Err(path) => {
                let message = format!("{} is not Unicode", quoted(&path.to_string_lossy()));
                self.report(Origin::Flag("--data"), Some("data"), message, "Choose a folder whose name is.");
            }
        }
    }

    pub fn add_file(&mut self, text: &str, locate: &dyn Fn(u64, u64) -> Origin, base: &Path) {
        match tree::parse(text) {
            Ok(value) => self.add_section("", value, locate, &Arc::from(base)),
            Err(error) => {
                let remedy = "Look at this line and the one above: indentation, quotes, brackets, keys given twice.";
                self.report(locate(error.line, error.column), None, format!("not YAML: {}", error.message), remedy);
            }
        }
    }

    fn add_section(&mut self, path: &str, value: LocatedNode, locate: &dyn Fn(u64, u64) -> Origin, base: &Arc<Path>) {
        let entries = match value.node {
            Node::Map(entries) => entries,
            // All lines of the section are comments.
            Node::Null => return,
            other => {
                let message = format!("expected keys below it, found {}", other.describe_kind());
                let remedy = format!("Keys here: {}.", self.child_keys(path).join(", "));
                let key = Some(path).filter(|path| !path.is_empty());
                return self.report(locate(value.line, value.column), key, message, remedy);
            }
        };
        for entry in entries {
            let key = join_key(path, &entry.key);
            let dotted = entry.key.contains('.');
            if !dotted && self.values.contains_key(&key) {
                let origin = locate(entry.line, entry.column);
                self.values.insert(key, SourcedNode { node: entry.value.node, origin, base: Arc::clone(base) });
            } else if !dotted && self.is_section(&key) {
                self.add_section(&key, entry.value, locate, base);
            } else {
                let remedy = self.suggest_key(path, &entry.key);
                self.report(locate(entry.line, entry.column), Some(&quoted_key(&key)), "unknown key", remedy);
            }
        }
    }

    fn is_section(&self, path: &str) -> bool {
        self.values.keys().any(|key| key.strip_prefix(path).is_some_and(|rest| rest.starts_with('.')))
    }

    /// Returns the names that are allowed directly below a section.
    fn child_keys(&self, path: &str) -> Vec<&str> {
        let names = self.values.keys().filter_map(|key| {
            let rest = if path.is_empty() { key.as_str() } else { key.strip_prefix(path)?.strip_prefix('.')? };
            rest.split('.').next()
        });
        names.collect::<BTreeSet<_>>().into_iter().collect()
    }

    fn suggest_key(&self, section: &str, name: &str) -> String {
        if let Some(near) = suggest::nearest(name, self.child_keys(section)) {
            return format!("Did you mean `{near}`?");
        }
        // The name is right, but in the wrong section.
        let last = name.rsplit('.').next().unwrap_or(name);
        if let Some(key) = self.values.keys().find(|key| key.rsplit('.').next() == Some(last)) {
            return format!("Did you mean `{key}`, nested as `{}`?", key.replace('.', ": { "));
        }
        format!("Keys here: {}. All keys are in config/countersign.yaml.", self.child_keys(section).join(", "))
    }

    fn add_environment(&mut self, env: &Environment) {
        let base: Arc<Path> = Arc::from(env.cwd.as_path());
        let variables: BTreeMap<String, String> =
            self.values.keys().map(|key| (variable_name(key), key.clone())).collect();
        for (name, key) in &variables {
            match env.var(name) {
                Ok(Some(text)) => {
                    let (node, origin) = (Node::Text(text.to_owned()), Origin::Env(name.clone()));
                    self.values.insert(key.clone(), SourcedNode { node, origin, base: Arc::clone(&base) });
                }
                Ok(None) => {}
                Err(_) => self.problems.push(not_unicode(name, Some(key))),
            }
        }
        for name in env.names_with_prefix(VARIABLE_PREFIX) {
            if variables.contains_key(name) || NON_KEY_VARIABLES.contains(&name) {
                continue;
            }
            let section = variables.keys().find(|known| known.starts_with(&format!("{name}__")));
            // Compared without the common prefix, which would make all names similar.
            let short_name = name.get(VARIABLE_PREFIX.len()..).unwrap_or_default();
            let near =
                suggest::nearest(short_name, variables.keys().filter_map(|known| known.get(VARIABLE_PREFIX.len()..)));
            let suggestion = section.cloned().or_else(|| near.map(|near| format!("{VARIABLE_PREFIX}{near}")));
            // Other names are ignored: container platforms set such variables themselves (COUNTERSIGN_PORT=tcp://…).
            let remedy = match suggestion {
                Some(suggestion) => format!("Did you mean {suggestion}?"),
                None if name.contains("__") => "Unset it; `countersign config show` lists all keys.".to_owned(),
                None => continue,
            };
            self.report(Origin::Env(name.to_owned()), None, "no configuration key has this variable", remedy);
        }
    }

    fn report(&mut self, origin: Origin, key: Option<&str>, message: impl Into<String>, remedy: impl Into<String>) {
        self.problems.push(Problem::new(origin, key, invalid(message, remedy)));
    }

    fn add_flag(&mut self, key: &str, flag: &'static str, value: Option<String>, env: &Environment) {
        if let Some(text) = value {
            let (node, base) = (Node::Text(text), Arc::from(env.cwd.as_path()));
            self.values.insert(key.to_owned(), SourcedNode { node, origin: Origin::Flag(flag), base });
        }
    }
}

fn escape_literal_path(path: &str) -> String {
    if path.starts_with(['~', '$']) { format!("./{path}") } else { path.to_owned() }
}
