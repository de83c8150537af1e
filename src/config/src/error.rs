//! Problems of a configuration. Each names the origin of the value, the key and the remedy.

use std::{
    fmt,
    path::{Path, PathBuf},
    sync::Arc,
};

/// The error of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValueError {
    pub message: String,
    /// Tells the user how to fix it.
    pub remedy: String,
}

/// Creates the error of a value.
pub(super) fn invalid(message: impl Into<String>, remedy: impl Into<String>) -> ValueError {
    ValueError { message: message.into(), remedy: remedy.into() }
}

/// The source of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The built-in `config/countersign.yaml`.
    Default,
    /// A line and column of a file, counted from 1; 0 if unknown.
    File { path: Arc<PathBuf>, line: u64, column: u64 },
    /// An environment variable.
    Env(String),
    /// A flag of the command line, such as `--listen`.
    Flag(&'static str),
    /// The configuration that was in force when the last gateway ended.
    PreviousRun,
}

impl Origin {
    /// Returns the origin of a problem with a whole file.
    pub(super) fn whole_file(path: &Path) -> Self {
        Self::File { path: Arc::new(path.to_owned()), line: 0, column: 0 }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File { path, line: 0, .. } => write!(f, "{}", path.display()),
            Self::File { path, line, column } => write!(f, "{}:{line}:{column}", path.display()),
            Self::Env(name) => write!(f, "environment variable {name}"),
            Self::Flag(flag) => write!(f, "flag {flag}"),
            Self::PreviousRun => f.write_str("what was in force before"),
        }
    }
}

/// One problem of a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    pub origin: Origin,
    /// The dotted key, such as `transports.http.max_body`; `None` if the whole file is unusable.
    pub key: Option<String>,
    /// Describes the problem.
    pub message: String,
    /// Tells the user how to fix it.
    pub remedy: String,
}

impl Problem {
    pub(super) fn new(origin: Origin, key: Option<&str>, ValueError { message, remedy }: ValueError) -> Self {
        Self { origin, key: key.map(str::to_owned), message, remedy }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.origin)?;
        if let Some(key) = &self.key {
            write!(f, "{key}: ")?;
        }
        write!(f, "{}. {}", self.message, self.remedy)
    }
}

/// All problems of a configuration that cannot be used. The process exits with code 78.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the configuration cannot be used{}",
    .problems.iter().map(|problem| format!("\n  {problem}")).collect::<String>()
)]
pub struct ConfigError {
    /// The problems; never empty.
    pub problems: Vec<Problem>,
}

impl ConfigError {
    /// Fails if there is a problem.
    pub(super) fn check(problems: Vec<Problem>) -> Result<(), Self> {
        if problems.is_empty() { Ok(()) } else { Err(Self { problems }) }
    }
}

impl From<Problem> for ConfigError {
    fn from(problem: Problem) -> Self {
        Self { problems: vec![problem] }
    }
}

pub use countersign_domain::changes::visible::quoted;

pub(super) fn quoted_key(key: &str) -> String {
    let plain = key.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c)) && key.len() <= 80;
    if plain { key.to_owned() } else { quoted(key) }
}
