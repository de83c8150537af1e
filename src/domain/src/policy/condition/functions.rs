//! Functions that parse documents and combine records: `json`, `yaml`, `yaml_documents`, `merge` and `merge_deep`.

use std::{collections::HashMap, sync::Arc};

use cel::{
    ExecutionError, Value,
    common::{
        types::CelString,
        value::{CowVal, Val},
    },
    objects::{Key, Map},
};

use super::{Answer, Arguments, ConditionFault, compare::type_mismatch, one_argument, two_arguments};
use crate::policy::{documents, values};

pub(super) const JSON: &str = "json";
pub(super) const YAML: &str = "yaml";
pub(super) const YAML_DOCUMENTS: &str = "yaml_documents";
pub(super) const MERGE: &str = "merge";
pub(super) const MERGE_DEEP: &str = "merge_deep";

/// The nesting below which `merge_deep` replaces values.
const MAX_MERGE_DEPTH: usize = 64;

/// Parses a JSON text. Anything but a text is returned as it is, because some arguments may be either.
pub(super) fn json<'b, 'v>(args: Arguments<'b, 'v>) -> Answer<'b, 'v> {
    parse(args, JSON, documents::parse_json)
}

/// Parses a YAML text like [`json`].
pub(super) fn yaml<'b, 'v>(args: Arguments<'b, 'v>) -> Answer<'b, 'v> {
    parse(args, YAML, documents::parse_yaml)
}

/// Parses a YAML text into the list of its documents.
pub(super) fn yaml_documents<'b, 'v>(args: Arguments<'b, 'v>) -> Answer<'b, 'v> {
    parse(args, YAML_DOCUMENTS, |text| documents::parse_yaml_documents(text).map(serde_json::Value::Array))
}

fn parse<'b, 'v>(
    args: Arguments<'b, 'v>,
    function: &str,
    parse: impl Fn(&str) -> Result<serde_json::Value, ConditionFault>,
) -> Answer<'b, 'v> {
    let value = one_argument(args)?;
    let Some(text) = value.downcast_ref::<CelString<'_>>() else { return Ok(value) };
    super::budget::spend_for_text(text.inner().len())?;
    let parsed = parse(text.inner()).and_then(values::to_cel);
    to_answer(parsed.map_err(|fault| {
        let is_ambiguous = matches!(fault, ConditionFault::Arguments(_));
        ExecutionError::function_error(function, if is_ambiguous { AMBIGUOUS_MARK } else { "" })
    })?)
}

/// The message of the error for a document whose numbers or keys are ambiguous.
pub(super) const AMBIGUOUS_MARK: &str = "ambiguous";

/// Returns the first map with the fields of the second, which take precedence.
pub(super) fn merge<'b, 'v>(args: Arguments<'b, 'v>) -> Answer<'b, 'v> {
    merge_with(args, 1)
}

/// Merges maps at any depth, and lists of maps by the `name` of their elements, as Kubernetes does. Other lists are
/// replaced.
pub(super) fn merge_deep<'b, 'v>(args: Arguments<'b, 'v>) -> Answer<'b, 'v> {
    merge_with(args, MAX_MERGE_DEPTH)
}

fn merge_with<'b, 'v>(args: Arguments<'b, 'v>, depth: usize) -> Answer<'b, 'v> {
    match two_values(args)? {
        // Nothing exists yet.
        (Value::Null, changes @ Value::Map(_)) => to_answer(changes),
        (base @ Value::Map(_), changes @ Value::Map(_)) => to_answer(merge_values(base, changes, depth)),
        _ => Err(type_mismatch()),
    }
}

fn merge_values(base: Value, changes: Value, depth: usize) -> Value {
    match (base, changes) {
        (Value::Map(base), Value::Map(changes)) if depth > 0 => {
            let mut merged: HashMap<Key, Value> = Arc::unwrap_or_clone(base.map);
            for (key, change) in Arc::unwrap_or_clone(changes.map) {
                let value = match merged.remove(&key) {
                    Some(old) => merge_values(old, change, depth - 1),
                    None => change,
                };
                merged.insert(key, value);
            }
            Value::Map(Map { map: Arc::new(merged) })
        }
        (Value::List(base), Value::List(changes)) if depth > 0 && have_names(&base) && have_names(&changes) => {
            let mut merged = Arc::unwrap_or_clone(base);
            for change in Arc::unwrap_or_clone(changes) {
                match merged.iter_mut().find(|old| name_of(old) == name_of(&change)) {
                    Some(old) => *old = merge_values(std::mem::replace(old, Value::Null), change, depth - 1),
                    None => merged.push(change),
                }
            }
            Value::List(Arc::new(merged))
        }
        (_, changes) => changes,
    }
}

/// The maximum number of elements of lists that are merged by name.
const MAX_NAMED_ELEMENTS: usize = 1000;

fn have_names(list: &[Value]) -> bool {
    (1..=MAX_NAMED_ELEMENTS).contains(&list.len()) && list.iter().all(|element| name_of(element).is_some())
}

fn name_of(value: &Value) -> Option<&str> {
    let Value::Map(map) = value else { return None };
    match map.map.get(&Key::String(Arc::new("name".to_owned()))) {
        Some(Value::String(name)) => Some(name),
        _ => None,
    }
}

/// Converts the two arguments of a function.
pub(super) fn two_values(args: Arguments<'_, '_>) -> Result<(Value, Value), ExecutionError> {
    let (first, second) = two_arguments(args)?;
    let (first, second): (&dyn Val, &dyn Val) = (&*first, &*second);
    Ok((Value::try_from(first)?, Value::try_from(second)?))
}

/// Converts the result of a function.
pub(super) fn to_answer<'b, 'v>(value: Value) -> Answer<'b, 'v> {
    let value: Box<dyn Val> = value.try_into()?;
    Ok(CowVal::from(value))
}

#[cfg(test)]
mod tests {
    use super::super::tests::{fault, holds};
    use crate::policy::ConditionFault;

    #[test]
    fn documents_in_texts_are_parsed() {
        for (condition, arguments) in [
            (r#"json(arguments.fields).summary == "x""#, r#"{"fields":"{\"summary\":\"x\"}"}"#),
            (r#"json(arguments.fields).summary == "x""#, r#"{"fields":{"summary":"x"}}"#),
            (r#"yaml(arguments.r).metadata.name == "a""#, r#"{"r":"kind: Pod\nmetadata:\n  name: a"}"#),
            ("yaml_documents(arguments.r).map(d, d.n) == [1, 2]", r#"{"r":"n: 1\n---\nn: 2"}"#),
        ] {
            assert_eq!(holds(condition, arguments), Ok(true), "{condition}");
        }
        assert_eq!(fault("json(arguments.a).b == 1", r#"{"a":"{"}"#), ConditionFault::Document("JSON"));
        assert_eq!(
            fault("yaml(arguments.a).b == 1", r#"{"a":"b: [1"}"#),
            ConditionFault::Document("one YAML document")
        );
        for ambiguous in [r#"{"a":"{\"b\":1,\"B\":2}"}"#, r#"{"a":"{\"b\":1000,\"b\":1}"}"#] {
            let found = fault("json(arguments.a).b == 1", ambiguous);
            assert!(matches!(found, ConditionFault::Arguments(_)), "{ambiguous}");
        }
        let long = format!("[0, {}0]", " ".repeat(800_000));
        let many = "[1, 2, 3, 4, 5, 6, 7].all(i, json(arguments.a) == [0, 0])";
        assert_eq!(fault(many, &format!("{{\"a\":\"{long}\"}}")), ConditionFault::Budget);
    }

    #[test]
    fn records_are_merged() {
        let arguments = r#"{"a":{"x":{"p":1,"q":2},"y":1,"c":[{"name":"m","v":1},{"name":"n","v":1}]},
            "b":{"x":{"q":3},"z":4,"c":[{"name":"n","v":2},{"name":"o"}]}}"#;
        let merged = r#"merge(arguments.a, arguments.b) == {"x": {"q": 3}, "y": 1, "z": 4, "c": arguments.b.c}"#;
        assert_eq!(holds(merged, arguments), Ok(true));
        let deep = r#"merge_deep(arguments.a, arguments.b) == {"x": {"p": 1, "q": 3}, "y": 1, "z": 4,
            "c": [{"name": "m", "v": 1}, {"name": "n", "v": 2}, {"name": "o"}]}"#;
        assert_eq!(holds(deep, arguments), Ok(true));
        assert_eq!(holds("merge(null, arguments.b) == arguments.b", arguments), Ok(true));
        assert_eq!(fault("merge(arguments.a, 1) == 1", arguments), ConditionFault::Types);
    }
}
