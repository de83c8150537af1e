//! The function `apply_update`, which returns a document as an update of MongoDB leaves it.

use cel::ExecutionError;
use jiff::Timestamp;
use serde_json::{Map, Number, Value as Json};

use super::{
    Answer, Arguments, budget,
    compare::type_mismatch,
    functions::{to_answer, two_values},
};
use crate::policy::values;

pub(super) const APPLY_UPDATE: &str = "apply_update";

/// The largest whole number that a double holds exactly.
const MAX_EXACT: i64 = 9_007_199_254_740_991;
/// The maximum number of parts of a path. MongoDB nests no deeper, and dropping a deeply nested value would exhaust the stack.
const MAX_PATH_PARTS: usize = 100;

/// Applies the operators of an update to a document, which is in the relaxed form of Extended JSON.
pub(super) fn apply_update<'b, 'v>(args: Arguments<'b, 'v>) -> Answer<'b, 'v> {
    let (document, update) = two_values(args)?;
    let (Ok(mut document), Ok(update)) = (document.json(), update.json()) else {
        return Err(type_mismatch());
    };
    budget::spend_for_text(document.to_string().len() + update.to_string().len())?;
    let Json::Object(update) = update else { return Err(type_mismatch()) };
    let unsupported = || ExecutionError::function_error(APPLY_UPDATE, "");
    for (operator, changes) in update {
        let Json::Object(changes) = changes else { return Err(unsupported()) };
        for (path, value) in changes {
            apply_operator(&mut document, &operator, &path, relaxed(value)).ok_or_else(unsupported)?;
        }
    }
    to_answer(values::to_cel(document).map_err(|_| unsupported())?)
}

/// Applies one operator to the field at the path. Returns `None` if the outcome is not known.
fn apply_operator(document: &mut Json, operator: &str, path: &str, value: Json) -> Option<()> {
    if operator == "$setOnInsert" {
        return Some(());
    }
    let (parent, name) = match path.rsplit_once('.') {
        Some((parent, name)) => (parent.split('.').collect(), name),
        None => (Vec::new(), path),
    };
    if parent.len() >= MAX_PATH_PARTS {
        return None;
    }
    if operator == "$unset" {
        return match parent.iter().try_fold(&mut *document, |value, part| member(value, part)) {
            Some(Json::Object(fields)) => {
                fields.remove(name);
                Some(())
            }
            Some(Json::Array(_)) => None,
            Some(_) | None => Some(()),
        };
    }
    if operator == "$rename" {
        let new_path = value.as_str()?;
        let renamed_value = document.as_object_mut()?.remove(path).filter(|_| parent.is_empty());
        return match renamed_value {
            // A chain of these could nest without limit.
            Some(Json::Object(_) | Json::Array(_)) if new_path.contains('.') => None,
            Some(renamed_value) => apply_operator(document, "$set", new_path, renamed_value),
            None => parent.is_empty().then_some(()),
        };
    }
    let parent = parent.iter().try_fold(document, |value, part| member_or_new(value, part, || Map::new().into()))?;
    // A field with the value null exists, and MongoDB refuses most operators for it.
    let present = member(parent, name).map(Json::take);
    let new_value = match (operator, present) {
        ("$set", _) | ("$min" | "$max", None) => value,
        ("$inc", None) if value.is_number() => value,
        ("$mul", None) if value.is_number() => 0.into(),
        ("$inc", Some(present)) => calculate(&present, &value, i64::checked_add, |a, b| a + b)?,
        ("$mul", Some(present)) => calculate(&present, &value, i64::checked_mul, |a, b| a * b)?,
        ("$min" | "$max", Some(present)) => {
            let is_less = value.as_f64()? < present.as_f64()?;
            if is_less == (operator == "$min") { value } else { present }
        }
        ("$push" | "$addToSet", None) => with_elements(Vec::new(), value, operator == "$addToSet")?,
        ("$push" | "$addToSet", Some(Json::Array(elements))) => {
            with_elements(elements, value, operator == "$addToSet")?
        }
        ("$pull", Some(Json::Array(mut elements))) if !value.is_object() && !value.is_array() => {
            elements.retain(|element| *element != value);
            elements.into()
        }
        ("$pop", Some(Json::Array(mut elements))) => {
            match value.as_i64()? {
                1 => drop(elements.pop()),
                -1 if !elements.is_empty() => drop(elements.remove(0)),
                -1 => {}
                _ => return None,
            }
            elements.into()
        }
        _ => return None,
    };
    *member_or_new(parent, name, || Json::Null)? = new_value;
    Some(())
}

fn member<'v>(value: &'v mut Json, name: &str) -> Option<&'v mut Json> {
    match value {
        Json::Object(fields) => fields.get_mut(name),
        Json::Array(elements) => elements.get_mut(name.parse::<usize>().ok()?),
        _ => None,
    }
}

/// Returns the member, and adds it to an object that does not have it. Names with `$`, which are placeholders for positions in
/// lists, are not supported.
fn member_or_new<'v>(value: &'v mut Json, name: &str, new: impl FnOnce() -> Json) -> Option<&'v mut Json> {
    match value {
        Json::Object(fields) => {
            (!name.is_empty() && !name.starts_with('$')).then(|| fields.entry(name).or_insert_with(new))
        }
        Json::Array(elements) => elements.get_mut(name.parse::<usize>().ok()?),
        _ => None,
    }
}

/// Returns the list with the added elements. `skips_present` leaves out those that the list already has.
fn with_elements(mut elements: Vec<Json>, value: Json, skips_present: bool) -> Option<Json> {
    let new_elements = match value {
        Json::Object(mut modifiers) if modifiers.contains_key("$each") => {
            match (modifiers.len(), modifiers.remove("$each")) {
                (1, Some(Json::Array(new_elements))) => new_elements,
                _ => return None,
            }
        }
        value => vec![value],
    };
    for element in new_elements {
        if skips_present {
            let steps = 1 + element.to_string().len() / 256;
            // The evaluation fails with an exhausted budget, whatever this returns.
            budget::spend(1 + (steps * elements.len()) as u64).ok()?;
            if elements.contains(&element) {
                continue;
            }
        }
        elements.push(element);
    }
    Some(elements.into())
}

fn calculate(
    a: &Json,
    b: &Json,
    whole: impl Fn(i64, i64) -> Option<i64>,
    fraction: impl Fn(f64, f64) -> f64,
) -> Option<Json> {
    match (a.as_i64(), b.as_i64()) {
        (Some(a), Some(b)) => whole(a, b).map(Json::from),
        _ => number(fraction(a.as_f64()?, b.as_f64()?)),
    }
}

/// Returns the number as JavaScript writes it: without a fraction if it is whole.
fn number(value: f64) -> Option<Json> {
    let whole = value.to_string().parse().ok().filter(|whole: &i64| whole.abs() <= MAX_EXACT);
    whole.map(Json::from).or_else(|| Number::from_f64(value).map(Json::Number))
}

/// Returns the value in the relaxed form of Extended JSON, in which servers return it.
fn relaxed(value: Json) -> Json {
    match value {
        Json::Array(elements) => elements.into_iter().map(relaxed).collect(),
        Json::Object(fields) => match relaxed_scalar(&fields) {
            Some(scalar) => scalar,
            None => Json::Object(fields.into_iter().map(|(name, value)| (name, relaxed(value))).collect()),
        },
        other => other,
    }
}

fn relaxed_scalar(fields: &Map<String, Json>) -> Option<Json> {
    let (name, value) = fields.iter().next().filter(|_| fields.len() == 1)?;
    match (name.as_str(), value) {
        ("$numberInt" | "$numberLong", Json::String(text)) => {
            let whole: i64 = text.parse().ok()?;
            (-MAX_EXACT..=MAX_EXACT).contains(&whole).then(|| whole.into())
        }
        ("$numberDouble", Json::String(text)) => number(text.parse().ok()?),
        ("$date", value) => {
            let time = match value {
                Json::String(text) => text.parse().ok()?,
                Json::Object(milliseconds) => {
                    Timestamp::from_millisecond(milliseconds.get("$numberLong")?.as_str()?.parse().ok()?).ok()?
                }
                _ => return None,
            };
            let text = format!("{time:.3}");
            Some(Json::Object([("$date".to_owned(), text.into())].into_iter().collect()))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{fault, holds};
    use crate::policy::ConditionFault;

    #[track_caller]
    fn assert_updated(document: &str, update: &str, expected: &str) {
        let arguments = format!(r#"{{"document": {document}, "update": {update}, "expected": {expected}}}"#);
        let condition = "apply_update(arguments.document, arguments.update) == arguments.expected";
        assert_eq!(holds(condition, &arguments), Ok(true), "{document} {update}");
    }

    #[test]
    fn operators_change_fields_at_any_depth() {
        let document = r#"{"a": 1, "b": {"c": [1, {"d": 2}]}, "f": 1.5, "t": ["x", "y"]}"#;
        for (update, expected) in [
            (
                r#"{"$set": {"b.c.1.d": 3, "n.m": "new", "b.e": null}}"#,
                r#"{"a": 1, "b": {"c": [1, {"d": 3}], "e": null}, "f": 1.5, "n": {"m": "new"}, "t": ["x", "y"]}"#,
            ),
            (
                r#"{"$unset": {"b.c": "", "x.y": ""}, "$inc": {"a": 2, "new": 5}, "$mul": {"f": 2}}"#,
                r#"{"a": 3, "b": {}, "f": 3, "new": 5, "t": ["x", "y"]}"#,
            ),
            (
                r#"{"$rename": {"a": "z"}, "$min": {"f": 1}, "$push": {"t": "x"}, "$setOnInsert": {"q": 1}}"#,
                r#"{"z": 1, "b": {"c": [1, {"d": 2}]}, "f": 1, "t": ["x", "y", "x"]}"#,
            ),
            (
                r#"{"$addToSet": {"t": {"$each": ["y", "z"]}}, "$max": {"a": 0}, "$pop": {"b.c": -1}}"#,
                r#"{"a": 1, "b": {"c": [{"d": 2}]}, "f": 1.5, "t": ["x", "y", "z"]}"#,
            ),
            (r#"{"$pull": {"t": "x"}}"#, r#"{"a": 1, "b": {"c": [1, {"d": 2}]}, "f": 1.5, "t": ["y"]}"#),
        ] {
            assert_updated(document, update, expected);
        }
    }

    #[test]
    fn values_are_written_as_servers_return_them() {
        assert_updated(
            "{}",
            r#"{"$set": {"at": {"$date": "2026-01-01T01:00:00+01:00"}, "then": {"$date": {"$numberLong": "1500"}}, "n": [{"$numberLong": "7"}], "d": {"$numberDouble": "2.50"}, "id": {"$oid": "0"}}}"#,
            r#"{"at": {"$date": "2026-01-01T00:00:00.000Z"}, "then": {"$date": "1970-01-01T00:00:01.500Z"}, "n": [7], "d": 2.5, "id": {"$oid": "0"}}"#,
        );
    }

    #[test]
    fn null_fields_exist() {
        let document = r#"{"n": null}"#;
        assert_updated(document, r#"{"$set": {"n": 1}, "$unset": {"n.x": ""}}"#, r#"{"n": 1}"#);
        assert_updated(document, r#"{"$unset": {"n.x": ""}, "$inc": {"m": 1}}"#, r#"{"n": null, "m": 1}"#);
    }

    #[test]
    fn comparing_elements_is_charged() {
        let numbers = |from: usize, to: usize| (from..to).map(|n| n.to_string()).collect::<Vec<_>>().join(",");
        let update = format!(r#"{{"$addToSet": {{"t": {{"$each": [{}]}}}}}}"#, numbers(0, 100));
        assert_updated("{}", &update, &format!(r#"{{"t": [{}]}}"#, numbers(0, 100)));
        for (held, added) in [(numbers(0, 600), numbers(600, 700)), (String::new(), numbers(0, 400))] {
            let update = format!(r#"{{"$addToSet": {{"t": {{"$each": [{added}]}}}}}}"#);
            let arguments = format!(r#"{{"document": {{"t": [{held}]}}, "update": {update}}}"#);
            let found = fault("apply_update(arguments.document, arguments.update) == {}", &arguments);
            assert_eq!(found, ConditionFault::Budget);
        }
    }

    #[test]
    fn updates_of_unknown_effect_are_refused() {
        let document = r#"{"a": "text", "t": [1, 2], "n": 9223372036854775807, "z": null, "o": {}}"#;
        let deep = format!(r#"{{"$set": {{"{}": 1}}}}"#, "x.".repeat(200_000) + "x");
        for update in [
            r#"{"$inc": {"a": 1}}"#,
            r#"{"$inc": {"n": 1}}"#,
            r#"{"$currentDate": {"at": true}}"#,
            r#"{"$set": {"t.$[]": 1}}"#,
            r#"{"$set": {"a.b": 1}}"#,
            r#"{"$push": {"t": {"$each": [3], "$slice": 1}}}"#,
            r#"{"$pull": {"t": {"$gt": 1}}}"#,
            r#"{"$inc": {"z": 1}}"#,
            r#"{"$mul": {"z": 1}}"#,
            r#"{"$min": {"z": 1}}"#,
            r#"{"$push": {"z": 1}}"#,
            r#"{"$addToSet": {"z": 1}}"#,
            r#"{"$set": {"z.x": 1}}"#,
            r#"{"$rename": {"a": "z.x"}}"#,
            r#"{"$rename": {"o": "p.q"}}"#,
            r#"{"$inc": {"new": "x"}}"#,
            r#"{"a": 1}"#,
            &deep,
        ] {
            let arguments = format!(r#"{{"document": {document}, "update": {update}}}"#);
            let found = fault("apply_update(arguments.document, arguments.update) == {}", &arguments);
            assert_eq!(found, ConditionFault::Document("what the update expects"), "{update}");
        }
    }
}
