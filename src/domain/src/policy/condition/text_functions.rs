//! Functions with which recipes build and compare texts, lists and patches: `sort`, `join`, `split`, `replace_in`,
//! `atx_headings`, `merge_patch` and `includes`.

use std::{cmp::Ordering, collections::HashMap, sync::Arc};

use cel::{
    ExecutionError, Value,
    common::value::Val,
    objects::{Key, Map},
};

use super::{
    Answer, Arguments, budget,
    compare::type_mismatch,
    functions::{to_answer, two_values},
    one_argument,
};

pub(super) const REPLACE_IN: &str = "replace_in";
pub(super) const MERGE_PATCH: &str = "merge_patch";

/// The nesting below which values are replaced or compared as a whole.
const MAX_DEPTH: usize = 64;
/// The steps for an element that is sorted, or compared by [`includes`].
const ELEMENT_STEPS: u64 = 4;
/// The steps for a part of a split text, which takes about as much memory as 128 bytes of text.
const PART_STEPS: u64 = 2;

/// Sorts a list of texts or of numbers.
pub(super) fn sort<'b, 'v>(args: Arguments<'b, 'v>) -> Answer<'b, 'v> {
    let Value::List(list) = one_value(args)? else { return Err(type_mismatch()) };
    budget::spend(1 + ELEMENT_STEPS * list.len() as u64)?;
    let mut sorted = Arc::unwrap_or_clone(list);
    if sorted.iter().any(|value| compare(&sorted[0], value).is_none()) {
        return Err(type_mismatch());
    }
    sorted.sort_by(|a, b| compare(a, b).unwrap_or(Ordering::Equal));
    to_answer(Value::List(Arc::new(sorted)))
}

fn compare(a: &Value, b: &Value) -> Option<Ordering> {
    match (a, b) {
        (Value::String(a), Value::String(b)) => Some(a.cmp(b)),
        (Value::Int(a), Value::Int(b)) => Some(a.cmp(b)),
        (Value::UInt(a), Value::UInt(b)) => Some(a.cmp(b)),
        (Value::Float(a), Value::Float(b)) => a.partial_cmp(b),
        _ => None,
    }
}

/// Joins a list of texts with a text between them.
pub(super) fn join<'b, 'v>(args: Arguments<'b, 'v>) -> Answer<'b, 'v> {
    let (Value::List(list), Value::String(separator)) = two_values(args)? else { return Err(type_mismatch()) };
    let texts: Option<Vec<&str>> = list.iter().map(text_of).collect();
    let texts = texts.ok_or_else(type_mismatch)?;
    let separators = texts.len().saturating_sub(1).saturating_mul(separator.len());
    budget::spend_for_text(texts.iter().fold(separators, |bytes, text| bytes.saturating_add(text.len())))?;
    to_answer(Value::String(Arc::new(texts.join(&separator))))
}

/// Splits a text at a separator, and leaves out the spaces around the parts and parts without content.
pub(super) fn split<'b, 'v>(args: Arguments<'b, 'v>) -> Answer<'b, 'v> {
    let (Value::String(text), Value::String(separator)) = two_values(args)? else { return Err(type_mismatch()) };
    if separator.is_empty() {
        return Err(type_mismatch());
    }
    budget::spend_for_text(text.len())?;
    budget::spend(PART_STEPS * text.matches(separator.as_str()).count() as u64)?;
    let parts = text.split(separator.as_str()).map(str::trim).filter(|part| !part.is_empty());
    to_answer(Value::List(Arc::new(parts.map(Value::from).collect())))
}

/// Replaces texts in a text, one after another. Each edit is a map with `old`, `new` and `all`. Without `all`, the old text must
/// occur exactly once; with it, at least once.
pub(super) fn replace_in<'b, 'v>(args: Arguments<'b, 'v>) -> Answer<'b, 'v> {
    let (Value::String(text), Value::List(edits)) = two_values(args)? else { return Err(type_mismatch()) };
    let mut edited = Arc::unwrap_or_clone(text);
    for edit in edits.iter() {
        let Value::Map(edit) = edit else { return Err(type_mismatch()) };
        let part = |name: &str| edit.map.get(&Key::String(Arc::new(name.to_owned())));
        let (Some(old), Some(new)) = (part("old").and_then(text_of), part("new").and_then(text_of)) else {
            return Err(type_mismatch());
        };
        budget::spend_for_text(edited.len())?;
        let count = if old.is_empty() { 0 } else { edited.matches(old).count() };
        let replaces_all = matches!(part("all"), Some(Value::Bool(true)));
        if count == 0 || count > 1 && !replaces_all {
            return Err(ExecutionError::function_error(REPLACE_IN, ""));
        }
        // The new text may be many times as long.
        budget::spend_for_text(count.saturating_mul(new.len()))?;
        edited = edited.replace(old, new);
    }
    to_answer(Value::String(Arc::new(edited)))
}

/// Replaces the setext headings of a Markdown text, which are underlined, by ATX headings, which begin with number signs.
pub(super) fn atx_headings<'b, 'v>(args: Arguments<'b, 'v>) -> Answer<'b, 'v> {
    let Value::String(text) = one_value(args)? else { return Err(type_mismatch()) };
    budget::spend_for_text(text.len())?;
    let mut lines: Vec<String> = Vec::new();
    for line in text.split('\n') {
        let underline = line.trim_end();
        let level = match underline.chars().next() {
            Some('=') if underline.chars().all(|c| c == '=') => "# ",
            Some('-') if underline.len() > 1 && underline.chars().all(|c| c == '-') => "## ",
            _ => "",
        };
        match lines.last_mut() {
            Some(heading) if !level.is_empty() && !heading.trim().is_empty() && !heading.starts_with('#') => {
                heading.insert_str(0, level);
            }
            _ => lines.push(line.to_owned()),
        }
    }
    to_answer(Value::String(Arc::new(lines.join("\n"))))
}

/// Applies a merge patch (RFC 7386): a null removes a field, and lists are replaced.
pub(super) fn merge_patch<'b, 'v>(args: Arguments<'b, 'v>) -> Answer<'b, 'v> {
    let (base, patch) = two_values(args)?;
    to_answer(apply_patch(base, patch, MAX_DEPTH))
}

fn apply_patch(base: Value, patch: Value, depth: usize) -> Value {
    let Value::Map(patch) = patch else { return patch };
    let mut merged: HashMap<Key, Value> = match base {
        Value::Map(base) if depth > 0 => Arc::unwrap_or_clone(base.map),
        _ => HashMap::new(),
    };
    for (key, change) in Arc::unwrap_or_clone(patch.map) {
        let old = merged.remove(&key).unwrap_or(Value::Null);
        if change != Value::Null {
            merged.insert(key, apply_patch(old, change, depth.saturating_sub(1)));
        }
    }
    Value::Map(Map { map: Arc::new(merged) })
}

/// Returns `true` if the first value has everything that the second has: the fields of maps at any depth, and the elements of
/// lists in their order. A list may have more elements at its end.
pub(super) fn includes<'b, 'v>(args: Arguments<'b, 'v>) -> Answer<'b, 'v> {
    let (found, expected) = two_values(args)?;
    to_answer(Value::Bool(has_all(&found, &expected, MAX_DEPTH)?))
}

fn has_all(found: &Value, expected: &Value, depth: usize) -> Result<bool, ExecutionError> {
    budget::spend(1 + ELEMENT_STEPS)?;
    match (found, expected) {
        (Value::Map(found), Value::Map(expected)) if depth > 0 => {
            for (key, value) in expected.map.iter() {
                let is_there = match found.map.get(key) {
                    Some(present) => has_all(present, value, depth - 1)?,
                    // A field without a value may be left out.
                    None => *value == Value::Null,
                };
                if !is_there {
                    return Ok(false);
                }
            }
            Ok(true)
        }
        (Value::List(found), Value::List(expected)) if depth > 0 => {
            if found.len() < expected.len() {
                return Ok(false);
            }
            for (present, value) in found.iter().zip(expected.iter()) {
                if !has_all(present, value, depth - 1)? {
                    return Ok(false);
                }
            }
            Ok(true)
        }
        (found, expected) => Ok(found == expected),
    }
}

fn text_of(value: &Value) -> Option<&str> {
    match value {
        Value::String(text) => Some(text),
        _ => None,
    }
}

fn one_value(args: Arguments<'_, '_>) -> Result<Value, ExecutionError> {
    let value = one_argument(args)?;
    let value: &dyn Val = &*value;
    Value::try_from(value)
}

#[cfg(test)]
mod tests {
    use super::super::tests::{fault, holds};
    use crate::policy::ConditionFault;

    #[test]
    fn lists_are_sorted_joined_and_split_from_texts() {
        let arguments = r#"{"list":["b","a"],"numbers":[10,9],"text":" x, y,, z ","mixed":["a",1]}"#;
        for condition in [
            r#"sort(arguments.list) == ["a", "b"]"#,
            "sort(arguments.numbers) == [9, 10]",
            "sort([]) == []",
            r#"join(arguments.list, "-") == "b-a""#,
            r#"join([], ",") == """#,
            r#"split(arguments.text, ",") == ["x", "y", "z"]"#,
        ] {
            assert_eq!(holds(condition, arguments), Ok(true), "{condition}");
        }
        for condition in
            ["sort(arguments.mixed) == []", "join(arguments.mixed, \"\") == \"\"", "split(arguments.text, \"\") == []"]
        {
            assert_eq!(fault(condition, arguments), ConditionFault::Types, "{condition}");
        }
    }

    #[test]
    fn edits_of_a_text_must_fit() {
        let arguments = r#"{"text":"one two two"}"#;
        let edit = |edit: &str| format!(r#"replace_in(arguments.text, [{edit}]) == "one 2 2""#);
        assert_eq!(holds(&edit(r#"{"old": "two", "new": "2", "all": true}"#), arguments), Ok(true));
        assert_eq!(
            holds(&edit(r#"{"old": "e two", "new": "e 2", "all": false}, {"old": "two", "new": "2"}"#), arguments),
            Ok(true)
        );
        for misfit in [
            r#"{"old": "two", "new": "2"}"#,
            r#"{"old": "three", "new": "3", "all": true}"#,
            r#"{"old": "", "new": "3"}"#,
        ] {
            assert_eq!(fault(&edit(misfit), arguments), ConditionFault::Document("what the edits expect"), "{misfit}");
        }
    }

    #[test]
    fn texts_that_would_exceed_the_budget_are_not_built() {
        let text = "a".repeat(20_000);
        let arguments =
            format!(r#"{{"text":"{text}","list":{:?},"commas":"{}"}}"#, vec![""; 1000], ",".repeat(200_000));
        for condition in [
            r#"replace_in(arguments.text, [{"old": "a", "new": arguments.text, "all": true}]) == """#,
            r#"join(arguments.list, arguments.text) == """#,
            r#"split(arguments.commas, ",") == []"#,
        ] {
            assert!(matches!(fault(condition, &arguments), ConditionFault::Budget), "{condition}");
        }
    }

    #[test]
    fn underlined_headings_are_written_with_number_signs() {
        let arguments = r#"{"text":"Title\n=====\n\na\n\nPart\n----\n\n---\nb","same":"- a\n--x\n\n# b\n---"}"#;
        let expected = r##"atx_headings(arguments.text) == "# Title\n\na\n\n## Part\n\n---\nb""##;
        assert_eq!(holds(expected, arguments), Ok(true));
        assert_eq!(holds("atx_headings(arguments.same) == arguments.same", arguments), Ok(true));
    }

    #[test]
    fn patches_are_merged_and_inclusion_is_tested() {
        let arguments =
            r#"{"a":{"x":{"p":1,"q":2},"l":[{"n":1,"m":2},3]},"b":{"x":{"q":null,"r":3},"l":[{"n":1}],"z":null}}"#;
        let merged = r#"merge_patch(arguments.a, arguments.b) == {"x": {"p": 1, "r": 3}, "l": [{"n": 1}]}"#;
        assert_eq!(holds(merged, arguments), Ok(true));
        assert_eq!(holds("merge_patch(null, arguments.a) == arguments.a", arguments), Ok(true));
        for (condition, expected) in [
            ("includes(arguments.a, {\"x\": {\"p\": 1}, \"l\": [{\"n\": 1}], \"none\": null})", true),
            ("includes(arguments.a, {\"x\": {\"p\": 2}})", false),
            ("includes(arguments.a, {\"l\": [3]})", false),
            ("includes(arguments.a, {\"none\": 1})", false),
            ("includes([1], [1, 2])", false),
        ] {
            assert_eq!(holds(condition, arguments), Ok(expected), "{condition}");
        }
    }
}
