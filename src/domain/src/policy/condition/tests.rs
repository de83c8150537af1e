//! Evaluates conditions for the tests of the submodules.

use serde_json::value::RawValue;

use super::{Condition, ConditionFault};
use crate::policy::values;

/// Evaluates the condition for these arguments.
pub(super) fn holds(condition: &str, arguments: &str) -> Result<bool, ConditionFault> {
    let raw = RawValue::from_string(arguments.to_owned()).unwrap();
    let arguments = values::arguments(&raw).unwrap();
    let compiled = Condition::compile(condition).unwrap_or_else(|error| panic!("{condition}: {error}"));
    compiled.holds(&[("arguments", &arguments)])
}

/// Returns the error of the evaluation.
pub(super) fn fault(condition: &str, arguments: &str) -> ConditionFault {
    holds(condition, arguments).expect_err(condition)
}

pub(super) fn is_unknown(condition: &str, arguments: &str) -> bool {
    holds(condition, arguments).is_err()
}
