//! Why a recipe gave no preview.

use countersign_domain::{changes::visible::visible, policy::ConditionFault};
use countersign_protocol::{ErrorKind, McpError, redact::redacted};

/// Characters of what a server says.
const MAX_SAID: usize = 300;

/// See the module's page.
#[derive(Debug)]
pub struct Fault {
    /// Part of the fingerprint: that it fails in another way is another state.
    pub kind: &'static str,
    /// For people.
    pub reason: String,
    /// It says nothing about the target, which may be looked at again later.
    pub passing: Option<McpError>,
}

impl Fault {
    pub fn new(kind: &'static str, reason: impl Into<String>) -> Self {
        Self { kind, reason: reason.into(), passing: None }
    }

    /// The call of a tool failed.
    pub fn of_call(tool: &str, error: McpError) -> Self {
        let reason = format!("{tool} could not be called: {}", said(&error.message));
        if error.kind.passes() {
            return Self { kind: "passing", reason, passing: Some(error) };
        }
        Self::new("call", reason)
    }

    pub fn too_slow(seconds: u64) -> Self {
        let error = McpError::new(ErrorKind::Timeout, "The preview took too long");
        Self { kind: "passing", reason: format!("it took longer than {seconds} s"), passing: Some(error) }
    }

    /// The tool answered with an error.
    pub fn of_answer(tool: &str, text: &str) -> Self {
        Self::new("answer", format!("{tool} answered: {}", said(text)))
    }

    /// An expression of the recipe has no value.
    pub fn of_expression(what: &str, fault: &ConditionFault) -> Self {
        let reason = match fault {
            ConditionFault::Missing(key) => format!("`{what}` looks at `{key}`, which is not there"),
            ConditionFault::Types => format!("`{what}` combines values whose types do not fit"),
            ConditionFault::Budget => format!("`{what}` would take too long"),
            ConditionFault::Arguments(_) => {
                format!("`{what}` cannot look at this: too large, or with numbers or keys that are not exact")
            }
            ConditionFault::Path => format!("`{what}` is given a path that is not absolute, or has `..` in it"),
            ConditionFault::NotBoolean(_) | ConditionFault::Other => format!("`{what}` cannot be evaluated"),
        };
        Self::new("expression", reason)
    }
}

/// What somebody else wrote, for one line.
pub fn said(text: &str) -> String {
    // Before the cut, which could leave the beginning of a secret.
    let text = redacted(text);
    let mut line: String = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if let Some((end, _)) = line.char_indices().nth(MAX_SAID) {
        line.truncate(end);
        line.push('…');
    }
    visible(&line).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_ends_within_no_secret() {
        const SECRET: &str = "fault-secret-0123456789";
        countersign_protocol::redact::keep_secret([SECRET.to_owned()]);
        for before in MAX_SAID - SECRET.len()..=MAX_SAID {
            let said = said(&format!("{}{SECRET} and more", "x".repeat(before)));
            assert!(!said.contains("fau") && said.chars().count() <= MAX_SAID + 1, "{before}: {said}");
        }
    }
}
