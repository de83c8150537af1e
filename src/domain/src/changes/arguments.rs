//! Checks the arguments of a reviewed call, beyond their schema.

use serde_json::{Value, value::RawValue};

/// The reason why arguments cannot be shown to a reviewer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ArgumentsError {
    #[error("the arguments are not a JSON object")]
    NotAnObject,
    /// The reviewer and the provider could read different values.
    #[error("{0}")]
    Ambiguous(String),
}

/// Rejects arguments that are not an object, duplicate keys at any depth, nesting beyond 127 levels, numbers beyond the
/// range of a double, and lone surrogates. Many parsers reject or misread these.
///
/// # Errors
/// [`ArgumentsError`]
pub fn check(arguments: &RawValue) -> Result<(), ArgumentsError> {
    if !arguments.get().trim_start().starts_with('{') {
        return Err(ArgumentsError::NotAnObject);
    }
    arguments.get().parse::<Value>().map_err(|e| ArgumentsError::Ambiguous(e.to_string()))?;
    countersign_protocol::arguments::check(arguments, usize::MAX).map_err(|error| {
        ArgumentsError::Ambiguous(match error.data.get("key") {
            Some(key) => format!("the key {key} occurs twice in one object"),
            None => error.message.to_string(),
        })
    })
}

/// Returns `true` if two argument objects are equal, regardless of spacing and key order.
pub fn are_equal(a: &RawValue, b: &RawValue) -> bool {
    let parse = |raw: &RawValue| raw.get().parse::<Value>().ok();
    a.get() == b.get() || parse(a).zip(parse(b)).is_some_and(|(a, b)| a == b)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(json: &str) -> Box<RawValue> {
        RawValue::from_string(json.to_owned()).unwrap()
    }

    #[test]
    fn duplicate_keys_are_found_at_any_depth() {
        for bad in [r#"{"a":1,"a":1}"#, r#"{"x":[{"b":{"a":1,"\u0061":2}}]}"#, r#"{"":1,"":2}"#] {
            assert!(matches!(check(&raw(bad)), Err(ArgumentsError::Ambiguous(_))), "{bad}");
        }
        for good in [r"{}", r#"{"a":{"a":1},"b":[{"a":1},{"a":2}],"c":-1.5e3,"d":"é","e":null,"f":true}"#] {
            assert_eq!(check(&raw(good)), Ok(()), "{good}");
        }
        let many: Vec<String> = (0..100).map(|n| format!(r#""k{n}":{n}"#)).collect();
        assert_eq!(check(&raw(&format!("{{{}}}", many.join(",")))), Ok(()));
        for repeated in [3, 15, 16, 99] {
            assert!(check(&raw(&format!("{{{},\"k{repeated}\":0}}", many.join(",")))).is_err(), "{repeated}");
        }
        assert_eq!(check(&raw("[]")), Err(ArgumentsError::NotAnObject));
        let deep = format!("{}1{}", r#"{"a":"#.repeat(1000), "}".repeat(1000));
        // `from_string` may refuse the text itself; otherwise it is refused here without a stack overflow.
        if let Ok(deep) = RawValue::from_string(deep) {
            assert!(check(&deep).is_err());
        }
    }

    #[test]
    fn equality_ignores_only_spacing_and_order() {
        assert!(are_equal(&raw(r#"{"a":1,"b":[2]}"#), &raw(r#"{ "b": [2], "a": 1 }"#)));
        assert!(!are_equal(&raw(r#"{"a":1}"#), &raw(r#"{"a":1.0}"#)));
        assert!(!are_equal(&raw(r#"{"a":[1,2]}"#), &raw(r#"{"a":[2,1]}"#)));
    }
}
