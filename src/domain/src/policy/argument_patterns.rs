//! Conditions of standing rules on single arguments. They are simpler than [`super::Condition`], so that reviewers need no CEL.
//!
//! Ambiguous arguments match no pattern, so that no allow rule with patterns covers them.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, value::RawValue};
use utoipa::ToSchema;

use super::condition::path_components;
use countersign_protocol::{arguments, outline::are_keys_distinct};

/// The maximum number of patterns of a rule.
pub const MAX_PATTERNS: usize = 16;
/// The maximum size of an argument's name, a value or a folder, in bytes.
const MAX_TEXT_BYTES: usize = 512;
/// The deepest nesting of arguments that are compared.
pub(super) const MAX_DEPTH: usize = 128;

/// A condition on one argument of a call. It has either `equals` or `within`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ArgumentPattern {
    /// The name of the argument.
    pub argument: String,
    /// The value that the argument must have: a text, an integer or a boolean.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub equals: Option<Value>,
    /// The folder that the argument must name, or a path below it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub within: Option<String>,
}

impl ArgumentPattern {
    pub fn equal(argument: &str, value: &Value) -> Self {
        Self { argument: argument.to_owned(), equals: Some(value.clone()), within: None }
    }

    pub fn within(argument: &str, folder: String) -> Self {
        Self { argument: argument.to_owned(), equals: None, within: Some(folder) }
    }

    /// Returns `true` if a pattern can require this value.
    pub fn can_equal(value: &Value) -> bool {
        match value {
            Value::String(text) => text.len() <= MAX_TEXT_BYTES && !text.contains(char::is_control),
            Value::Number(number) => number.is_i64() || number.is_u64(),
            Value::Bool(_) => true,
            _ => false,
        }
    }

    /// Checks a pattern that a reviewer sent.
    ///
    /// # Errors
    /// A message for that reviewer, if the pattern is not valid.
    pub fn check(&self) -> Result<(), &'static str> {
        match (&self.equals, &self.within) {
            _ if self.argument.len() > MAX_TEXT_BYTES => Err("the name of an argument in `matching` is too long"),
            (Some(value), None) if Self::can_equal(value) => Ok(()),
            (Some(_), None) => Err("`equals` must be a short text, an integer or a boolean"),
            (None, Some(folder)) if folder.len() <= MAX_TEXT_BYTES && path_components(folder).is_some() => Ok(()),
            (None, Some(_)) => Err("`within` must be an absolute path without `..`, a NUL or a backslash"),
            _ => Err("each item of `matching` needs either `equals` or `within`"),
        }
    }

    pub fn matches(&self, arguments: &Map<String, Value>) -> bool {
        match (arguments.get(&self.argument), &self.equals, &self.within) {
            (Some(value), Some(expected), None) => value == expected,
            (Some(Value::String(path)), None, Some(folder)) => match (path_components(path), path_components(folder)) {
                (Some(path), Some(folder)) => path.starts_with(&folder),
                _ => false,
            },
            _ => false,
        }
    }
}

impl fmt::Display for ArgumentPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.equals, &self.within) {
            (Some(value), _) => write!(f, "{} = {value}", self.argument),
            (None, Some(folder)) => write!(f, "{} within {folder}", self.argument),
            (None, None) => f.write_str(&self.argument),
        }
    }
}

/// Reads the arguments of a call, or returns `None` if they are ambiguous.
pub fn read_arguments(raw: &RawValue) -> Option<Map<String, Value>> {
    arguments::check(raw, MAX_DEPTH).ok()?;
    let arguments: Map<String, Value> = raw.get().parse().ok()?;
    are_keys_distinct(arguments.keys()).then_some(arguments)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    #[test]
    fn pattern_compares_whole_values_and_components() {
        let matches = |pattern: &ArgumentPattern, arguments: Value| pattern.matches(arguments.as_object().unwrap());
        let folder = ArgumentPattern::within("path", "/notes".into());
        assert!(matches(&folder, json!({ "path": "/notes/a.md" })) && matches(&folder, json!({ "path": "/notes" })));
        for path in [json!("/notesx/a"), json!("/notes/../etc"), json!("notes/a"), json!(["/notes/a"]), json!(null)] {
            assert!(!matches(&folder, json!({ "path": path })), "{path}");
        }
        let number = ArgumentPattern::equal("id", &json!(7));
        assert!(matches(&number, json!({ "id": 7, "other": [] })));
        for id in [json!("7"), json!(7.0), json!(8)] {
            assert!(!matches(&number, json!({ "id": id })), "{id}");
        }
        assert!(!matches(&number, json!({})));
    }

    #[test]
    fn unclear_pattern_is_refused() {
        let check = |pattern: Value| serde_json::from_value::<ArgumentPattern>(pattern).unwrap().check();
        check(json!({ "argument": "id", "equals": "a" })).unwrap();
        check(json!({ "argument": "path", "within": "/notes" })).unwrap();
        for pattern in [
            json!({ "argument": "id" }),
            json!({ "argument": "id", "equals": 1.5 }),
            json!({ "argument": "id", "equals": {} }),
            json!({ "argument": "id", "equals": "a", "within": "/a" }),
            json!({ "argument": "path", "within": "notes" }),
            json!({ "argument": "path", "within": "/notes/.." }),
        ] {
            assert!(check(pattern.clone()).is_err(), "{pattern}");
        }
    }

    #[test]
    fn ambiguous_arguments_are_not_read() {
        let read = |text: &str| read_arguments(&RawValue::from_string(text.into()).unwrap());
        assert!(read(r#"{"a":1}"#).is_some());
        for ambiguous in [r#"{"a":1,"a":2}"#, r#"{"a":1,"A":2}"#, r#"{"path":"/a","\u017fum":1,"SUM":2}"#, "[1]"] {
            assert!(read(ambiguous).is_none(), "{ambiguous}");
        }
    }
}
