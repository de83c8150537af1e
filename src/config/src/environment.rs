//! The environment variables and the working directory that the configuration uses. They are read once, so that tests
//! can supply their own.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use super::error::{ValueError, invalid};

/// Environment variables and the working directory.
#[derive(Clone, Debug, Default)]
pub struct Environment {
    vars: BTreeMap<String, OsString>,
    /// The directory that relative paths in flags and variables are resolved against.
    pub cwd: PathBuf,
    /// Variables that were expanded in texts, with their values.
    used_values: Arc<Mutex<BTreeMap<String, String>>>,
}

/// The value of a variable is not Unicode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotUnicode;

impl Environment {
    /// Reads the environment of this process.
    pub fn from_process() -> Self {
        Self {
            vars: std::env::vars_os().filter_map(|(k, v)| Some((k.into_string().ok()?, v))).collect(),
            cwd: std::env::current_dir().unwrap_or_else(|_| PathBuf::from("/")),
            used_values: Arc::default(),
        }
    }

    /// Creates an environment with these variables.
    pub fn new(cwd: &Path, vars: &[(&str, &str)]) -> Self {
        let vars = vars.iter().map(|(k, v)| ((*k).to_owned(), (*v).into())).collect();
        Self { vars, cwd: cwd.to_owned(), used_values: Arc::default() }
    }

    /// Returns the value of a variable. An empty value counts as unset.
    ///
    /// # Errors
    /// The value is not Unicode.
    pub fn var(&self, name: &str) -> Result<Option<&str>, NotUnicode> {
        Ok(self.var_or_empty(name)?.filter(|value| !value.is_empty()))
    }

    /// Returns the value of a variable even if it is empty.
    ///
    /// # Errors
    /// The value is not Unicode.
    pub fn var_or_empty(&self, name: &str) -> Result<Option<&str>, NotUnicode> {
        self.vars.get(name).map(|value| value.to_str().ok_or(NotUnicode)).transpose()
    }

    /// Records that the value was expanded in a text.
    pub(super) fn record_use(&self, name: &str, value: &str) {
        self.used_values.lock().unwrap_or_else(PoisonError::into_inner).insert(name.to_owned(), value.to_owned());
    }

    /// Returns the environment with its own record of used variables.
    pub(super) fn with_own_record(&self) -> Self {
        Self { used_values: Arc::default(), ..self.clone() }
    }

    /// Returns the variables that were expanded in texts, with their values.
    pub(super) fn used_variables(&self) -> BTreeMap<String, String> {
        self.used_values.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the names of all non-empty variables with this prefix.
    pub fn names_with_prefix<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = &'a str> {
        self.vars.iter().filter(move |(k, v)| k.starts_with(prefix) && !v.is_empty()).map(|(k, _)| k.as_str())
    }

    /// Returns `HOME` if it is an absolute path.
    pub fn home(&self) -> Option<PathBuf> {
        self.absolute_path("HOME")
    }

    /// Returns `XDG_STATE_HOME`, or `~/.local/state`. A relative value is ignored, as the XDG specification requires.
    pub fn state_home(&self) -> Option<PathBuf> {
        self.absolute_path("XDG_STATE_HOME").or_else(|| Some(self.home()?.join(".local/state")))
    }

    /// Returns `XDG_CONFIG_HOME`, or `~/.config`.
    pub fn config_home(&self) -> Option<PathBuf> {
        self.absolute_path("XDG_CONFIG_HOME").or_else(|| Some(self.home()?.join(".config")))
    }

    /// Returns the file with the tokens of `countersign login`.
    pub fn logins_file(&self) -> Option<PathBuf> {
        self.config_home().map(|home| home.join("countersign/credentials.json"))
    }

    /// Returns the folder of the credentials that systemd passes to the service.
    pub fn credentials_directory(&self) -> Option<PathBuf> {
        self.absolute_path("CREDENTIALS_DIRECTORY")
    }

    fn absolute_path(&self, name: &str) -> Option<PathBuf> {
        self.vars.get(name).map(PathBuf::from).filter(|path| path.is_absolute())
    }

    /// Expands a leading `~`, `$HOME`, `$XDG_STATE_HOME`, `$XDG_CONFIG_HOME` or `$CREDENTIALS_DIRECTORY`, and resolves a
    /// relative path against `base`.
    ///
    /// # Errors
    /// A message and a remedy.
    pub fn expand_path(&self, text: &str, base: &Path) -> Result<PathBuf, ValueError> {
        if text.is_empty() {
            return Err(invalid("the path is empty", "Name a file or folder."));
        }
        if text.contains('\0') {
            return Err(invalid("a path cannot contain a NUL character", "Take it out."));
        }
        let (head, rest) = text.split_once('/').unwrap_or((text, ""));
        let variable = head.strip_prefix("${").and_then(|h| h.strip_suffix('}')).or_else(|| head.strip_prefix('$'));
        let no_home = || {
            let remedy = "Set HOME, or give an absolute path (for the data directory: --data DIR).";
            invalid(format!("{head} is not known, because HOME is not set to an absolute path"), remedy)
        };
        let no_credentials = || {
            let remedy = "Let systemd start the gateway with LoadCredential=, or write the path out.";
            invalid("CREDENTIALS_DIRECTORY is not set to an absolute path", remedy)
        };
        let start = match (head, variable) {
            ("~", _) | (_, Some("HOME")) => self.home().ok_or_else(no_home)?,
            (_, Some("XDG_STATE_HOME")) => self.state_home().ok_or_else(no_home)?,
            (_, Some("XDG_CONFIG_HOME")) => self.config_home().ok_or_else(no_home)?,
            (_, Some("CREDENTIALS_DIRECTORY")) => self.credentials_directory().ok_or_else(no_credentials)?,
            (_, Some(other)) => {
                let remedy = "Known are ~, $HOME, $XDG_STATE_HOME, $XDG_CONFIG_HOME and $CREDENTIALS_DIRECTORY; or write \
                              the path out.";
                return Err(invalid(format!("${other} cannot be used in a path here"), remedy));
            }
            (head, None) if head.starts_with('~') => {
                return Err(invalid(format!("{head} (another user's home) is not looked up"), "Write the path out."));
            }
            _ => return Ok(base.join(text)),
        };
        Ok(if rest.is_empty() { start } else { start.join(rest) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_expand() {
        let env = Environment::new(Path::new("/w"), &[("HOME", "/home/a"), ("XDG_CONFIG_HOME", "relative")]);
        let cases = [
            ("~", "/home/a"),
            ("~/x/y", "/home/a/x/y"),
            ("$HOME/x", "/home/a/x"),
            ("${XDG_STATE_HOME}/c", "/home/a/.local/state/c"),
            ("$XDG_CONFIG_HOME/c", "/home/a/.config/c"),
            ("/abs", "/abs"),
            ("rel/x", "/base/rel/x"),
        ];
        for (text, path) in cases {
            assert_eq!(env.expand_path(text, Path::new("/base")), Ok(PathBuf::from(path)), "{text}");
        }
        for text in ["", "~bob/x", "$OTHER/x", "a\0b"] {
            assert!(env.expand_path(text, Path::new("/base")).is_err(), "{text}");
        }
        let service = Environment::new(Path::new("/w"), &[("CREDENTIALS_DIRECTORY", "/run/c")]);
        assert_eq!(
            service.expand_path("$CREDENTIALS_DIRECTORY/key.pem", Path::new("/")),
            Ok(PathBuf::from("/run/c/key.pem"))
        );
        assert!(
            env.expand_path("$CREDENTIALS_DIRECTORY/x", Path::new("/")).unwrap_err().remedy.contains("LoadCredential")
        );
        let bare = Environment::new(Path::new("/w"), &[("XDG_STATE_HOME", "/state")]);
        assert_eq!(bare.expand_path("$XDG_STATE_HOME/c", Path::new("/")), Ok(PathBuf::from("/state/c")));
        assert!(bare.expand_path("~/c", Path::new("/")).unwrap_err().remedy.contains("--data"));
    }

    #[test]
    fn empty_variable_counts_as_unset() {
        let env = Environment::new(Path::new("/"), &[("COUNTERSIGN_LISTEN", ""), ("COUNTERSIGN_DATA", "/d")]);
        assert_eq!(env.var("COUNTERSIGN_LISTEN"), Ok(None));
        assert_eq!(env.var("COUNTERSIGN_DATA"), Ok(Some("/d")));
        assert_eq!(env.names_with_prefix("COUNTERSIGN_").collect::<Vec<_>>(), ["COUNTERSIGN_DATA"]);
    }
}
