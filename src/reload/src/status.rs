//! Reports about reloads, for `GET /api/reload`, the feed and the log.

use std::path::Path;

use jiff::Timestamp;
use serde::Serialize;
use utoipa::ToSchema;

use super::{diff::Diff, pending::PendingPolicy};
use countersign_config::{ConfigError, error};

/// The cause of a reload or a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum ReloadCause {
    /// The process received SIGHUP.
    Signal,
    /// The file changed.
    File,
    /// A reviewer decided on the pending changes.
    Consent,
}

/// The effect of a reload or a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum ReloadEffect {
    /// Everything that needs no consent is in force.
    Applied,
    /// There was nothing to do.
    Unchanged,
    /// The file is invalid and nothing changed, or a reviewer refused the pending changes.
    Refused,
}

/// The outcome of a reload or a decision.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReloadOutcome {
    pub at: Timestamp,
    #[serde(rename = "why")]
    pub cause: ReloadCause,
    pub result: ReloadEffect,
    /// The problems of a refused file.
    pub problems: Vec<Problem>,
    /// The changes that took effect at once, without pending ones.
    pub changes: Diff,
    /// The reviewer who decided on the pending changes.
    #[schema(required)]
    pub by: Option<String>,
}

/// A problem of a configuration. Contains no secrets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = ConfigProblem)]
pub struct Problem {
    /// File, line and column, or the variable or flag.
    pub place: String,
    #[schema(required)]
    pub key: Option<String>,
    pub message: String,
    pub remedy: String,
}

/// The body of `GET /api/reload`.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Reload)]
pub struct ReloadStatus {
    /// The watched file, if any.
    #[schema(required)]
    pub file: Option<String>,
    /// The number of times that the configuration in force has changed since the start.
    pub generation: u64,
    #[schema(required)]
    pub waiting: Option<PendingPolicy>,
    /// Changed keys that are read only at the start.
    pub needs_restart: Vec<String>,
    #[schema(required)]
    pub last: Option<ReloadOutcome>,
}

impl ReloadOutcome {
    /// Creates an outcome of this moment without problems and changes.
    pub(super) fn new(cause: ReloadCause, result: ReloadEffect) -> Self {
        Self { at: Timestamp::now(), cause, result, problems: Vec::new(), changes: Diff::default(), by: None }
    }
}

impl Problem {
    /// Describes the problem and its remedy in one line, without its place.
    pub(super) fn describe(&self) -> String {
        let Self { key, message, remedy, .. } = self;
        let key = key.as_ref().map_or(String::new(), |key| format!("{key}: "));
        format!("{key}{message}. {remedy}")
    }

    /// Describes a valid configuration that cannot take effect.
    pub(super) fn not_applicable(message: String) -> Self {
        let remedy = "Correct the configuration; until then the old one stays in force.".to_owned();
        Self { place: "the configuration".to_owned(), key: None, message, remedy }
    }

    /// Describes a file without keys that would replace one with keys.
    pub(super) fn emptied_file(file: Option<&Path>) -> Self {
        Self {
            place: file.map_or_else(|| "the configuration".to_owned(), |file| file.display().to_string()),
            key: None,
            message: "the configuration file sets no key any more".to_owned(),
            remedy: "Send SIGHUP to the gateway if that is meant; until then the old configuration stays in force."
                .to_owned(),
        }
    }

    pub(super) fn from_config_error(error: ConfigError) -> Vec<Self> {
        let convert = |error::Problem { origin, key, message, remedy }| {
            let place = origin.to_string();
            Self { place, key, message, remedy }
        };
        error.problems.into_iter().map(convert).collect()
    }
}

/// Writes the changes that took effect to the log.
pub(super) fn log_changes(cause: ReloadCause, changes: &Diff) {
    let Diff { upstreams_added, upstreams_removed, upstreams_changed, needs_restart, .. } = changes;
    let Diff { webhooks_added, webhooks_removed, webhooks_changed, .. } = changes;
    tracing::info!(
        why = ?cause,
        ?upstreams_added,
        ?upstreams_removed,
        ?upstreams_changed,
        ?webhooks_added,
        ?webhooks_removed,
        ?webhooks_changed,
        policy = changes.policy_changed,
        routes = changes.routes_changed,
        log = changes.log_changed,
        auth = changes.auth_changed,
        "the new configuration is in force"
    );
    for tightened in &changes.policy_tightened {
        tracing::info!("policy is stricter: {tightened}");
    }
    if !needs_restart.is_empty() {
        tracing::warn!(keys = ?needs_restart, "these keys take effect at the next start");
    }
}
