//! What people are told of reloads: in `GET /api/reload` and on the feed.

use jiff::Timestamp;
use serde::Serialize;

use super::{diff::Diff, waiting::Waiting};
use countersign_config::{ConfigError, error};

/// What made the gateway look at its configuration again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Why {
    /// SIGHUP
    Signal,
    /// The file changed.
    File,
    /// A reviewer consented to what waited.
    Consent,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Effect {
    /// Whatever does not wait is in force.
    Applied,
    /// There was nothing to do.
    Unchanged,
    /// The file is bad as a whole, and all is as it was; or a reviewer refused what waited.
    Refused,
}

/// What came of looking at the configuration again.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ReloadOutcome {
    pub at: Timestamp,
    pub why: Why,
    pub result: Effect,
    /// What is wrong with a refused file.
    pub problems: Vec<Problem>,
    /// What changed at once; without what waits.
    pub changes: Diff,
    /// The reviewer who decided on what waited.
    pub by: Option<String>,
}

/// One thing that is wrong with a configuration. Tells no secrets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// File, line and column, or the variable or flag.
    pub place: String,
    pub key: Option<String>,
    pub message: String,
    pub remedy: String,
}

/// `GET /api/reload`
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// The file that is watched, if any.
    pub file: Option<String>,
    /// How often the configuration in force has changed since the start.
    pub generation: u64,
    pub waiting: Option<Waiting>,
    /// Keys that were changed since the start and are read only then.
    pub needs_restart: Vec<String>,
    pub last: Option<ReloadOutcome>,
}

impl From<&error::Problem> for Problem {
    fn from(problem: &error::Problem) -> Self {
        Self {
            place: problem.origin.to_string(),
            key: problem.key.clone(),
            message: problem.message.clone(),
            remedy: problem.remedy.clone(),
        }
    }
}

impl Problem {
    /// Of a configuration that is well-formed and cannot be put into force.
    pub(super) fn in_force(message: String) -> Self {
        let remedy = "Correct the configuration; until then the old one stays in force.".to_owned();
        Self { place: "the configuration".to_owned(), key: None, message, remedy }
    }

    pub(super) fn all(error: &ConfigError) -> Vec<Self> {
        error.problems.iter().map(Self::from).collect()
    }
}
