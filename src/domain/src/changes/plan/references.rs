//! References in the arguments of a step to results of earlier steps: `{"$from": 0, "pointer": "/id"}` stands for a string or
//! a number. All other bytes of the arguments stay as they are.

use std::ops::Range;

use serde_json::value::RawValue;

use countersign_protocol::json;

/// The maximum number of references in the arguments of a step. It bounds the size of the filled arguments.
pub const MAX_REFERENCES: usize = 100;
/// The longest value that a reference can stand for, in bytes of JSON.
const MAX_VALUE_BYTES: usize = 64 << 10;
/// The maximum depth of arguments that are searched. Reviewable arguments are less deep.
const MAX_DEPTH: usize = 128;
/// The maximum size of a pointer, in bytes.
const MAX_POINTER_BYTES: usize = 1024;

/// The member that makes an object a reference: the position of the earlier step.
const STEP_MEMBER: &str = "$from";
/// The JSON pointer into the result of the earlier step.
const POINTER_MEMBER: &str = "pointer";

/// The reason why a reference cannot be used or filled.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReferenceError {
    #[error("a reference has the form {{\"$from\": 0, \"pointer\": \"/id\"}}, without other members")]
    Malformed,
    #[error(
        "step {step} can only refer to the result of an earlier step, not to that of step {from} (steps count from 0)"
    )]
    NotEarlier { step: usize, from: usize },
    #[error("the arguments have more than {MAX_REFERENCES} references")]
    TooMany,
    #[error("the result of step {from} has no value at `{pointer}`")]
    NoValue { from: usize, pointer: String },
    #[error(
        "the value at `{pointer}` of the result of step {from} is not a string or a number of at most {MAX_VALUE_BYTES} bytes"
    )]
    NotScalar { from: usize, pointer: String },
}

/// A reference in the text of the arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reference {
    /// The position of the earlier step.
    pub from: usize,
    pub pointer: String,
    /// The bytes of the text that the value replaces.
    span: Range<usize>,
}

/// Returns `true` if the arguments contain a reference, valid or not.
pub fn has_references(arguments: &RawValue) -> bool {
    // The visit fails at the first reference, and if the arguments are nested too deeply to be searched.
    visit(arguments.get(), 0, 0, &mut |_, _| Err(ReferenceError::Malformed)).is_err()
}

/// Returns the references in the arguments of the step at this position.
///
/// # Errors
/// [`ReferenceError`] if a reference is malformed or refers to no earlier step, or if there are too many.
pub fn find_references(arguments: &RawValue, step: usize) -> Result<Vec<Reference>, ReferenceError> {
    let mut references = Vec::new();
    visit(arguments.get(), 0, 0, &mut |object, offset| {
        if references.len() == MAX_REFERENCES {
            return Err(ReferenceError::TooMany);
        }
        let (from, pointer) = parse_reference(object).ok_or(ReferenceError::Malformed)?;
        if from >= step {
            return Err(ReferenceError::NotEarlier { step, from });
        }
        references.push(Reference { from, pointer, span: offset..offset + object.len() });
        Ok(())
    })?;
    Ok(references)
}

/// Replaces each reference with the value that it stands for. `result_of` returns the result of an earlier step as JSON.
///
/// # Errors
/// [`ReferenceError`] if a value is missing or is not a string or a number.
pub fn fill_references<'a>(
    arguments: &RawValue,
    step: usize,
    result_of: impl Fn(usize) -> Option<&'a str>,
) -> Result<String, ReferenceError> {
    let text = arguments.get();
    let mut filled = String::with_capacity(text.len());
    let mut copied = 0;
    for Reference { from, pointer, span } in find_references(arguments, step)? {
        let value = result_of(from).and_then(|result| value_at(result, &pointer));
        let Some(value) = value else { return Err(ReferenceError::NoValue { from, pointer }) };
        if value.len() > MAX_VALUE_BYTES || !value.starts_with(|c: char| matches!(c, '"' | '-' | '0'..='9')) {
            return Err(ReferenceError::NotScalar { from, pointer });
        }
        filled.push_str(&text[copied..span.start]);
        filled.push_str(value);
        copied = span.end;
    }
    filled.push_str(&text[copied..]);
    Ok(filled)
}

/// Calls `handle` with the text and the offset of each object that has the member `$from`, in the order of the text.
fn visit(
    value: &str,
    offset: usize,
    depth: usize,
    handle: &mut impl FnMut(&str, usize) -> Result<(), ReferenceError>,
) -> Result<(), ReferenceError> {
    if depth > MAX_DEPTH {
        return Err(ReferenceError::Malformed);
    }
    if value.starts_with('{') {
        if json::members(value).any(|member| member.key == STEP_MEMBER) {
            return handle(value, offset);
        }
        for member in json::members(value) {
            let start = offset + member.end - member.value.len();
            visit(member.value, start, depth + 1, handle)?;
        }
    } else if value.starts_with('[') {
        for (start, element) in json::elements(value) {
            visit(element, offset + start, depth + 1, handle)?;
        }
    }
    Ok(())
}

/// Returns the position of the step and the pointer, if the object is a valid reference.
fn parse_reference(object: &str) -> Option<(usize, String)> {
    let members: Vec<_> = json::members(object).collect();
    let [first, second] = members.as_slice() else { return None };
    let (from, pointer) = if first.key == STEP_MEMBER { (first, second) } else { (second, first) };
    if from.key != STEP_MEMBER || pointer.key != POINTER_MEMBER {
        return None;
    }
    let pointer = json::string(pointer.value)?;
    // `~` only begins the escapes `~0` and `~1`.
    let has_valid_escapes = pointer.split('~').skip(1).all(|rest| rest.starts_with(['0', '1']));
    let is_pointer = pointer.is_empty() || pointer.starts_with('/') && has_valid_escapes;
    (is_pointer && pointer.len() <= MAX_POINTER_BYTES).then_some((from.value.parse().ok()?, pointer.into_owned()))
}

/// Returns the text of the value at a JSON pointer (RFC 6901).
fn value_at<'a>(json: &'a str, pointer: &str) -> Option<&'a str> {
    let mut value = json.trim();
    for token in pointer.split('/').skip(1) {
        let token = token.replace("~1", "/").replace("~0", "~");
        value = if value.starts_with('[') {
            // An index has no sign and no leading zeros.
            let position: usize = token.parse().ok().filter(|position: &usize| position.to_string() == token)?;
            json::elements(value).nth(position)?.1
        } else {
            json::member(value, &token)?
        };
    }
    Some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(text: &str) -> Box<RawValue> {
        RawValue::from_string(text.to_owned()).unwrap()
    }

    fn fill(arguments: &str, results: &[&str]) -> Result<String, ReferenceError> {
        fill_references(&raw(arguments), results.len(), |step| results.get(step).copied())
    }

    #[test]
    fn values_replace_references_and_other_bytes_stay() {
        let results = [r#"{"id": 12345678901234567890123, "a/b": ["x", "é\n"]}"#, r#"[ 1.50 ]"#];
        let arguments = r#"{ "n" : 1.10,"id":{"$from":0,"pointer":"/id"}, "deep":[{"x":{ "pointer" : "/a~1b/1", "$from" : 0 }}],"p":{"$from":1,"pointer":"/0"}}"#;
        assert_eq!(
            fill(arguments, &results).unwrap(),
            r#"{ "n" : 1.10,"id":12345678901234567890123, "deep":[{"x":"é\n"}],"p":1.50}"#
        );
        assert_eq!(fill(r#"{"a":1}"#, &results).unwrap(), r#"{"a":1}"#);
        assert!(has_references(&raw(arguments)) && !has_references(&raw(r#"{"from":{"pointer":"/a"},"t":"$from"}"#)));
    }

    #[test]
    fn escaped_member_name_is_a_reference_too() {
        let arguments = r#"{"a":{"\u0024from":0,"pointer":"/id"}}"#;
        assert!(has_references(&raw(arguments)));
        assert_eq!(fill(arguments, &[r#"{"id":"x"}"#]).unwrap(), r#"{"a":"x"}"#);
    }

    #[test]
    fn unusable_references_are_refused() {
        for malformed in [
            r#"{"a":{"$from":0}}"#,
            r#"{"a":{"$from":"0","pointer":"/a"}}"#,
            r#"{"a":{"$from":-1,"pointer":"/a"}}"#,
            r#"{"a":{"$from":0,"pointer":"a"}}"#,
            r#"{"a":{"$from":0,"pointer":"/a~2"}}"#,
            r#"{"a":{"$from":0,"pointer":"/a~"}}"#,
            r#"{"a":{"$from":0,"pointer":1}}"#,
            r#"{"a":{"$from":0,"pointer":"/a","b":1}}"#,
            r#"{"$from":0,"x":"/a"}"#,
        ] {
            assert_eq!(find_references(&raw(malformed), 1), Err(ReferenceError::Malformed), "{malformed}");
            assert!(has_references(&raw(malformed)), "{malformed}");
        }
        let self_reference = raw(r#"{"a":{"$from":1,"pointer":"/a"}}"#);
        assert_eq!(find_references(&self_reference, 1), Err(ReferenceError::NotEarlier { step: 1, from: 1 }));
        let many = vec![r#"{"$from":0,"pointer":"/a"}"#; MAX_REFERENCES + 1].join(",");
        assert_eq!(find_references(&raw(&format!(r#"{{"a":[{many}]}}"#)), 1), Err(ReferenceError::TooMany));
        let one = r#"{"a":{"$from":0,"pointer":"/a"}}"#;
        for result in [r#"{"b":1}"#, "[1]", "1"] {
            assert!(matches!(fill(one, &[result]), Err(ReferenceError::NoValue { .. })), "{result}");
        }
        let long = format!(r#"{{"a":"{}"}}"#, "x".repeat(MAX_VALUE_BYTES));
        for result in [r#"{"a":true}"#, r#"{"a":null}"#, r#"{"a":{}}"#, r#"{"a":[1]}"#, long.as_str()] {
            assert!(matches!(fill(one, &[result]), Err(ReferenceError::NotScalar { .. })), "{result}");
        }
        for index in ["00", "+0", "-"] {
            let reference = format!(r#"{{"a":{{"$from":0,"pointer":"/{index}"}}}}"#);
            assert!(matches!(fill(&reference, &[r#"["x"]"#]), Err(ReferenceError::NoValue { .. })), "{index}");
        }
    }
}
