//! What the process was started with, as far as the configuration looks at it. Taken once, so that tests bring their own.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

/// Environment variables and the working directory.
#[derive(Clone, Debug, Default)]
pub struct Environment {
    vars: BTreeMap<String, OsString>,
    /// What relative paths in flags and variables count from.
    pub cwd: PathBuf,
    /// Variables that were put into texts, with their values.
    used: Arc<Mutex<BTreeMap<String, String>>>,
}

/// A variable that is set to something that is not Unicode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotUnicode;

impl Environment {
    /// That of this process.
    #[must_use]
    pub fn of_process() -> Self {
        Self {
            vars: std::env::vars_os().filter_map(|(k, v)| Some((k.into_string().ok()?, v))).collect(),
            cwd: std::env::current_dir().unwrap_or_else(|_| PathBuf::from("/")),
            used: Arc::default(),
        }
    }

    /// That of a test.
    #[must_use]
    pub fn of(cwd: &Path, vars: &[(&str, &str)]) -> Self {
        let vars = vars.iter().map(|(k, v)| ((*k).to_owned(), (*v).into())).collect();
        Self { vars, cwd: cwd.to_owned(), used: Arc::default() }
    }

    /// The value of a variable; an empty one counts as not set.
    ///
    /// # Errors
    /// It is not Unicode.
    pub fn var(&self, name: &str) -> Result<Option<&str>, NotUnicode> {
        match self.vars.get(name) {
            None => Ok(None),
            Some(value) if value.is_empty() => Ok(None),
            Some(value) => value.to_str().map(Some).ok_or(NotUnicode),
        }
    }

    /// The value of a variable, be it empty.
    ///
    /// # Errors
    /// It is not Unicode.
    pub fn given(&self, name: &str) -> Result<Option<&str>, NotUnicode> {
        self.vars.get(name).map(|value| value.to_str().ok_or(NotUnicode)).transpose()
    }

    /// Notes that the value was put into a text.
    pub(super) fn note_used(&self, name: &str, value: &str) {
        self.used.lock().unwrap_or_else(PoisonError::into_inner).insert(name.to_owned(), value.to_owned());
    }

    /// The variables that were put into texts, with their values.
    pub(super) fn used(&self) -> BTreeMap<String, String> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The names of all variables with that prefix that are set to something.
    pub fn names<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = &'a str> {
        self.vars.iter().filter(move |(k, v)| k.starts_with(prefix) && !v.is_empty()).map(|(k, _)| k.as_str())
    }

    /// `HOME`, if it is an absolute path.
    #[must_use]
    pub fn home(&self) -> Option<PathBuf> {
        self.absolute("HOME")
    }

    /// `XDG_STATE_HOME`, or `~/.local/state`. A relative value is ignored, as the XDG specification says.
    #[must_use]
    pub fn state_home(&self) -> Option<PathBuf> {
        self.absolute("XDG_STATE_HOME").or_else(|| Some(self.home()?.join(".local/state")))
    }

    /// `XDG_CONFIG_HOME`, or `~/.config`.
    #[must_use]
    pub fn config_home(&self) -> Option<PathBuf> {
        self.absolute("XDG_CONFIG_HOME").or_else(|| Some(self.home()?.join(".config")))
    }

    fn absolute(&self, name: &str) -> Option<PathBuf> {
        self.vars.get(name).map(PathBuf::from).filter(|path| path.is_absolute())
    }

    /// Expands a leading `~`, `$HOME`, `$XDG_STATE_HOME` or `$XDG_CONFIG_HOME`; what is still relative counts from `base`.
    ///
    /// # Errors
    /// What is wrong, and the remedy.
    pub fn expand(&self, text: &str, base: &Path) -> Result<PathBuf, (String, String)> {
        if text.is_empty() {
            return Err(("the path is empty".to_owned(), "Name a file or folder.".to_owned()));
        }
        if text.contains('\0') {
            return Err(("a path cannot contain a NUL character".to_owned(), "Take it out.".to_owned()));
        }
        let (head, rest) = text.split_once('/').unwrap_or((text, ""));
        let variable = head.strip_prefix("${").and_then(|h| h.strip_suffix('}')).or_else(|| head.strip_prefix('$'));
        let start = match (head, variable) {
            ("~", _) | (_, Some("HOME")) => self.home(),
            (_, Some("XDG_STATE_HOME")) => self.state_home(),
            (_, Some("XDG_CONFIG_HOME")) => self.config_home(),
            (_, Some(other)) => {
                return Err((
                    format!("${other} cannot stand in a path here"),
                    "Known are ~, $HOME, $XDG_STATE_HOME and $XDG_CONFIG_HOME; or write the path out.".to_owned(),
                ));
            }
            (head, None) if head.starts_with('~') => {
                return Err((
                    format!("{head} (another user's home) is not looked up"),
                    "Write the path out.".to_owned(),
                ));
            }
            _ => return Ok(base.join(text)),
        };
        start.map(|start| if rest.is_empty() { start } else { start.join(rest) }).ok_or_else(|| {
            (
                format!("{head} is not known, because HOME is not set to an absolute path"),
                "Set HOME, or give an absolute path (for the data directory: --data DIR).".to_owned(),
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_expand() {
        let env = Environment::of(Path::new("/w"), &[("HOME", "/home/a"), ("XDG_CONFIG_HOME", "relative")]);
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
            assert_eq!(env.expand(text, Path::new("/base")), Ok(PathBuf::from(path)), "{text}");
        }
        for text in ["", "~bob/x", "$OTHER/x", "a\0b"] {
            assert!(env.expand(text, Path::new("/base")).is_err(), "{text}");
        }
        let bare = Environment::of(Path::new("/w"), &[("XDG_STATE_HOME", "/state")]);
        assert_eq!(bare.expand("$XDG_STATE_HOME/c", Path::new("/")), Ok(PathBuf::from("/state/c")));
        assert!(bare.expand("~/c", Path::new("/")).unwrap_err().1.contains("--data"));
    }

    #[test]
    fn empty_variables_are_not_set() {
        let env = Environment::of(Path::new("/"), &[("COUNTERSIGN_LISTEN", ""), ("COUNTERSIGN_DATA", "/d")]);
        assert_eq!(env.var("COUNTERSIGN_LISTEN"), Ok(None));
        assert_eq!(env.var("COUNTERSIGN_DATA"), Ok(Some("/d")));
        assert_eq!(env.names("COUNTERSIGN_").collect::<Vec<_>>(), ["COUNTERSIGN_DATA"]);
    }
}
