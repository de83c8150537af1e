//! Failures of a recipe.

use countersign_domain::{
    changes::{CertainFailure, visible::escape_hidden},
    policy::{ConditionFault, condition::INVALID_PATH},
    text::shorten,
};
use countersign_protocol::{ErrorKind, McpError, redact::redact};

/// Maximum characters of a server's message.
const MAX_MESSAGE_CHARS: usize = 300;

/// The kind of all transient faults. The text is part of stored fingerprints, so it must not change.
const TRANSIENT_KIND: &str = "passing";

/// The reason why a recipe gave no preview.
#[derive(Clone, Debug)]
pub struct Fault {
    /// The kind of failure. It is part of the fingerprint, because another failure means another state.
    pub kind: &'static str,
    /// The reason in words for reviewers.
    pub reason: String,
    /// Set if the failure says nothing about the target, so that reading it may succeed later.
    pub transient_error: Option<McpError>,
    /// Set if the recipe declares that the previewed call must fail too.
    pub must_fail: Option<CertainFailure>,
}

impl Fault {
    /// Creates a fault of the target or the recipe, which counts as its state.
    pub fn new(kind: &'static str, reason: impl Into<String>) -> Self {
        Self { kind, reason: reason.into(), transient_error: None, must_fail: None }
    }

    /// Creates the fault for a call that failed.
    pub fn from_call_error(tool: &str, error: McpError) -> Self {
        let reason = format!("{tool} could not be called: {}", redacted_line(&error.message));
        if error.kind.is_transient() {
            return Self { transient_error: Some(error), ..Self::new(TRANSIENT_KIND, reason) };
        }
        Self::new("call", reason)
    }

    /// Creates the fault for calls that took longer than `seconds`.
    pub fn timed_out(seconds: u64) -> Self {
        let error = McpError::new(ErrorKind::Timeout, "The preview took too long");
        let reason = format!("it took longer than {seconds} s");
        Self { transient_error: Some(error), ..Self::new(TRANSIENT_KIND, reason) }
    }

    /// Creates the fault for a tool that answered with an error.
    pub fn from_error_result(tool: &str, text: &str) -> Self {
        Self::new("answer", format!("{tool} answered: {}", redacted_line(text)))
    }

    /// Creates the fault for an expression of the recipe that has no value.
    pub fn from_expression(expression: &str, fault: &ConditionFault) -> Self {
        let reason = match fault {
            ConditionFault::Missing(key) => format!("`{expression}` looks at `{key}`, which is not there"),
            ConditionFault::Types => format!("`{expression}` combines values whose types do not fit"),
            ConditionFault::Document(format) => format!("`{expression}` looks at a text that is not {format}"),
            ConditionFault::NotBoolean(_) => format!("`{expression}` gives neither true nor false"),
            ConditionFault::Budget => format!("`{expression}` would take too long"),
            ConditionFault::Arguments(_) => {
                format!("`{expression}` cannot look at this: too large, or with numbers or keys that are not exact")
            }
            ConditionFault::Path => format!("`{expression}` is given {INVALID_PATH}"),
            ConditionFault::Other => format!("`{expression}` cannot be evaluated"),
        };
        Self::new("expression", reason)
    }
}

/// Returns text from a server or tool as one bounded line, without secrets or hidden characters.
pub fn redacted_line(text: &str) -> String {
    // Redacted before truncation, which could leave the beginning of a secret.
    let text = redact(text);
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    escape_hidden(&shorten(&line, MAX_MESSAGE_CHARS)).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn truncated_message_reveals_no_secret_prefix() {
        const SECRET: &str = "fault-secret-0123456789";
        countersign_protocol::redact::register_secrets([SECRET.to_owned()]);
        for before in MAX_MESSAGE_CHARS - SECRET.len()..=MAX_MESSAGE_CHARS {
            let shown = redacted_line(&format!("{}{SECRET} and more", "x".repeat(before)));
            assert!(!shown.contains("fau") && shown.chars().count() <= MAX_MESSAGE_CHARS + 1, "{before}: {shown}");
        }
    }
}
