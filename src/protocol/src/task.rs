//! Tasks as both eras describe them: the experimental tasks of 2025-11-25 (basic/utilities/tasks) and those of the extension
//! `io.modelcontextprotocol/tasks` (ext-tasks). The members below have the same meaning in both.

use std::{borrow::Cow, time::Duration};

use strum::{EnumString, IntoStaticStr};

use crate::{
    ErrorKind, McpError,
    json::{member, string},
};

/// The name of the extension in capabilities.
pub const TASKS_EXTENSION: &str = "io.modelcontextprotocol/tasks";

/// The polling interval if the server suggests none.
const DEFAULT_POLL_INTERVAL: Duration = Duration::from_secs(1);

/// The bounds of the polling interval, whatever the server suggests.
const MIN_POLL_INTERVAL: Duration = Duration::from_millis(50);
const MAX_POLL_INTERVAL: Duration = Duration::from_secs(15);

/// Returns `true` if capabilities, as JSON text, declare the extension.
pub fn is_extension_declared(capabilities: &str) -> bool {
    member(capabilities, "extensions").is_some_and(|extensions| member(extensions, TASKS_EXTENSION).is_some())
}

/// Returns `execution.taskSupport` of a tool's definition.
pub fn task_support(definition: &str) -> Option<Cow<'_, str>> {
    member(definition, "execution").and_then(|execution| member(execution, "taskSupport")).and_then(string)
}

/// The status of a task. Both eras have the same values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, EnumString, IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum Status {
    Working,
    InputRequired,
    Completed,
    Failed,
    Cancelled,
}

impl Status {
    /// Returns the `status` of a task, or `None` if it is missing or unknown.
    pub fn parse(task: &str) -> Option<Self> {
        member(task, "status").and_then(string)?.parse().ok()
    }

    /// Returns the `status` of a task as its upstream described it.
    ///
    /// # Errors
    /// [`ErrorKind::NotBridgeable`] if the status is missing or unknown.
    pub fn parse_known(task: &str) -> Result<Self, McpError> {
        Self::parse(task)
            .ok_or_else(|| McpError::new(ErrorKind::NotBridgeable, "the upstream's task has no known `status`"))
    }

    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.into()
    }

    #[must_use]
    pub const fn is_terminal(self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::Cancelled)
    }
}

/// Returns the id of a task, which must be a string.
pub fn task_id(task: &str) -> Option<String> {
    member(task, "taskId").and_then(string).map(Cow::into_owned)
}

/// Parses a member that is a time in milliseconds. Returns `None` if it is unlimited or missing.
pub fn duration_ms(task: &str, key: &str) -> Option<Duration> {
    let value = member(task, key)?.parse::<f64>().ok().filter(|ms| ms.is_finite() && *ms >= 0.0)?;
    // A value that no duration can hold is treated as unlimited.
    Some(Duration::try_from_secs_f64(value / 1000.0).unwrap_or(Duration::MAX))
}

/// Returns the time to wait before a task is requested again.
pub fn poll_interval(task: &str) -> Duration {
    duration_ms(task, "pollIntervalMs")
        .or_else(|| duration_ms(task, "pollInterval"))
        .unwrap_or(DEFAULT_POLL_INTERVAL)
        .clamp(MIN_POLL_INTERVAL, MAX_POLL_INTERVAL)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn poll_interval_of_hostile_server_is_bounded() {
        for (text, expected) in [
            (r#"{"pollIntervalMs":0}"#, MIN_POLL_INTERVAL),
            (r#"{"pollIntervalMs":1e300}"#, MAX_POLL_INTERVAL),
            (r#"{"pollIntervalMs":"soon"}"#, DEFAULT_POLL_INTERVAL),
            (r#"{"pollIntervalMs":-5}"#, DEFAULT_POLL_INTERVAL),
            (r#"{"pollInterval":2000}"#, Duration::from_secs(2)),
            ("{}", DEFAULT_POLL_INTERVAL),
        ] {
            assert_eq!(poll_interval(text), expected, "{text}");
        }
    }
}
