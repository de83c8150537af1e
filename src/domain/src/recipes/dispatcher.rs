//! Tools that carry many operations, one of which an argument names. Policy treats `tool/operation` like a tool.

use std::collections::BTreeMap;

use cel::Value;
use serde_json::value::RawValue;

use super::Recipe;
use crate::policy::{Condition, values};

/// The maximum number of characters of an operation's name.
pub const MAX_OPERATION_CHARS: usize = 128;
/// The maximum number of steps for reading the name.
const MAX_STEPS: u64 = 10_000;

/// The operations of a tool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dispatcher {
    /// The path of the argument that names the operation.
    pub argument: Condition,
    /// The recipes of the known operations. A recipe that reads nothing only makes its operation known.
    pub operations: BTreeMap<String, Recipe>,
}

impl Dispatcher {
    /// Returns the operation that a call names, or `None` if it names none. Ambiguous arguments name none, because the
    /// server could read another name.
    pub fn operation_of(&self, arguments: &RawValue) -> Option<String> {
        self.operation_in(&values::arguments(arguments).ok()?)
    }

    /// Returns the operation that parsed arguments name.
    pub fn operation_in(&self, arguments: &Value) -> Option<String> {
        match self.argument.evaluate(&[("arguments", arguments)], MAX_STEPS).ok()? {
            Value::String(name) if !name.is_empty() && name.chars().count() <= MAX_OPERATION_CHARS => {
                Some((*name).clone())
            }
            _ => None,
        }
    }

    /// Returns `true` if this knows operations that `old` did not know, or finds the name elsewhere.
    pub(super) fn knows_more_than(&self, old: &Self) -> bool {
        self.argument != old.argument || self.operations.keys().any(|name| !old.operations.contains_key(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operation_is_read_only_from_clear_arguments() {
        let argument = Condition::compile_for("arguments.call.name", &[("arguments", &[])]).unwrap();
        let dispatcher = Dispatcher { argument, operations: BTreeMap::new() };
        let operation = |text: &str| dispatcher.operation_of(&RawValue::from_string(text.to_owned()).unwrap());
        assert_eq!(operation(r#"{"call":{"name":"Get"}}"#), Some("Get".to_owned()));
        assert_eq!(operation(r#"{"call":{"name":"G\u0065t"}}"#), Some("Get".to_owned()));
        for text in [
            "{}",
            r#"{"call":{"name":""}}"#,
            r#"{"call":{"name":["Get"]}}"#,
            r#"{"call":{"name":"Get","name":"Delete"}}"#,
            r#"{"call":{"name":"Get","Name":"Delete"}}"#,
            r#"{"call":{"name":"Get"},"Call":{"name":"Delete"}}"#,
        ] {
            assert_eq!(operation(text), None, "{text}");
        }
        assert_eq!(operation(&format!(r#"{{"call":{{"name":"{}"}}}}"#, "x".repeat(MAX_OPERATION_CHARS + 1))), None);
    }
}
