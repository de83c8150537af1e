//! Converts the arguments of a call to CEL values: bounded, and rejected if they are ambiguous.

use std::{collections::HashMap, sync::Arc};

use cel::{Value, objects::Key};
use serde_json::{Value as Json, value::RawValue};

use super::condition::ConditionFault;
use countersign_protocol::{
    json::{Token, tokens},
    outline::are_keys_distinct,
};

/// The maximum size of arguments that conditions read, in bytes.
pub const MAX_BYTES: usize = 1 << 20;
/// The maximum number of values in arguments that conditions read.
pub const MAX_VALUES: usize = 20_000;
/// The deepest nesting of arguments that conditions read, which is that of `serde_json`.
const MAX_DEPTH: usize = 128;
/// The number of decimal digits that a double can distinguish.
const MAX_DIGITS: usize = 17;

/// Parses the arguments of a call.
///
/// # Errors
/// Arguments that a condition could misread: integers beyond 64 bits, numbers with more digits than a double holds,
/// duplicate keys (ignoring case), or too large arguments.
pub fn arguments(raw: &RawValue) -> Result<Value, ConditionFault> {
    arguments_within(raw.get(), MAX_BYTES, MAX_VALUES)
}

/// Parses the claims of a principal, which were bounded when its token was verified.
///
/// # Errors
/// The errors of [`arguments`].
pub fn claims(text: &str) -> Result<Value, ConditionFault> {
    to_cel(text.parse::<Json>().map_err(|_| AMBIGUOUS)?)
}

/// Parses arguments like [`arguments`], with other limits for the bytes of the JSON text and the number of values.
///
/// # Errors
/// The errors of [`arguments`].
pub fn arguments_within(text: &str, max_bytes: usize, max_values: usize) -> Result<Value, ConditionFault> {
    check_size(text, max_bytes)?;
    let json = serde_json::from_str::<&RawValue>(text).map_err(|_| AMBIGUOUS)?;
    check_json(json, max_values)?;
    to_cel(text.parse::<Json>().map_err(|_| AMBIGUOUS)?)
}

pub(super) fn check_size(text: &str, max_bytes: usize) -> Result<(), ConditionFault> {
    let fault = ConditionFault::Arguments("the arguments are too large for its condition");
    if text.len() > max_bytes { Err(fault) } else { Ok(()) }
}

/// Checks a JSON text before any of its values is built.
///
/// # Errors
/// [`ConditionFault::Arguments`] for a text that is too deeply nested, or has too many values, numbers that are not exact, or
/// duplicate or reserved keys.
pub(super) fn check_json(json: &RawValue, max_values: usize) -> Result<(), ConditionFault> {
    let text = json.get();
    if !numbers_are_exact(text) {
        return Err(INEXACT_NUMBER);
    }
    let mut values = tokens(text).filter(|token| matches!(token, Token::Open(_) | Token::String(_) | Token::Scalar(_)));
    if values.nth(max_values).is_some() {
        return Err(ConditionFault::Arguments("the arguments hold too many values for its condition"));
    }
    countersign_protocol::arguments::check(json, MAX_DEPTH).map_err(|_| AMBIGUOUS)
}

pub(super) const AMBIGUOUS: ConditionFault = ConditionFault::Arguments("the arguments are ambiguous");
/// The fault for a number that a condition would round.
pub(super) const INEXACT_NUMBER: ConditionFault =
    ConditionFault::Arguments("the arguments contain a number that its condition cannot represent exactly");

pub(super) fn to_cel(json: Json) -> Result<Value, ConditionFault> {
    Ok(match json {
        Json::Null => Value::Null,
        Json::Bool(value) => Value::Bool(value),
        Json::Number(number) => match (number.as_i64(), number.as_u64(), number.as_f64()) {
            (Some(integer), ..) => Value::Int(integer),
            (None, Some(integer), _) => Value::UInt(integer),
            (None, None, float) => Value::Float(float.ok_or(AMBIGUOUS)?),
        },
        Json::String(text) => Value::String(Arc::new(text)),
        Json::Array(items) => {
            let items: Result<_, _> = items.into_iter().map(to_cel).collect();
            Value::List(Arc::new(items?))
        }
        Json::Object(members) => {
            if !are_keys_distinct(members.keys()) {
                return Err(AMBIGUOUS);
            }
            let mut entries: HashMap<Key, Value> = HashMap::new();
            for (key, value) in members {
                entries.insert(Key::String(Arc::new(key)), to_cel(value)?);
            }
            Value::Map(cel::objects::Map { map: Arc::new(entries) })
        }
    })
}

/// Checks the numbers of a text that is known to be JSON.
fn numbers_are_exact(text: &str) -> bool {
    tokens(text).all(|token| match token {
        Token::Scalar(scalar) => matches!(scalar, "true" | "false" | "null") || is_exact(scalar),
        _ => true,
    })
}

/// Returns `true` if a decimal number is represented exactly, as far as its digits tell.
pub(super) fn is_exact(number: &str) -> bool {
    if number.parse::<i64>().is_ok() || number.parse::<u64>().is_ok() {
        return true;
    }
    if !number.contains(['.', 'e', 'E']) {
        return false;
    }
    let mantissa = number.split(['e', 'E']).next().unwrap_or_default();
    let digits: String = mantissa.chars().filter(char::is_ascii_digit).collect();
    digits.trim_start_matches('0').trim_end_matches('0').len() <= MAX_DIGITS
        && number.parse::<f64>().is_ok_and(f64::is_finite)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Result<Value, ConditionFault> {
        arguments(&RawValue::from_string(json.to_owned()).unwrap())
    }

    #[test]
    fn inexact_numbers_are_refused() {
        for good in [
            "0",
            "-1",
            "9223372036854775807",
            "18446744073709551615",
            "-9223372036854775808",
            "1.5",
            "0.1",
            "-0.0",
            "1e10",
            "1.50e-3",
            "100000000000000000000.0",
            r#""12345678901234567890123""#,
            r#""\"-12345678901234567890123""#,
        ] {
            assert!(read(&format!(r#"{{"a":[{good}]}}"#)).is_ok(), "{good}");
        }
        for bad in [
            "18446744073709551616",
            "-9223372036854775809",
            "12345678901234567890123",
            "9007199254740993.00000001",
            "0.1234567890123456789",
        ] {
            assert!(read(&format!(r#"{{"a":[{bad}]}}"#)).is_err(), "{bad}");
        }
        let Ok(Value::Map(map)) = read(r#"{"a":18446744073709551615}"#) else { panic!("no map") };
        assert_eq!(map.map.get(&Key::from("a")), Some(&Value::UInt(u64::MAX)));
    }

    #[test]
    fn ambiguous_keys_are_refused() {
        assert!(read(r#"{"a":1,"a":2}"#).is_err());
        assert!(read(r#"{"x":[{"b":1,"\u0062":2}]}"#).is_err());
        assert!(read(r#"{"path":"/ok","Path":"/etc"}"#).is_err());
        assert!(read(r#"{"path":"/ok","other":{"Path":"/etc"}}"#).is_ok());
    }

    #[test]
    fn arguments_over_a_maximum_are_refused() {
        // The array counts, too.
        let array = |items: usize| format!("[{}]", vec!["1"; items].join(","));
        assert!(read(&array(MAX_VALUES - 1)).is_ok());
        let fault = ConditionFault::Arguments("the arguments hold too many values for its condition");
        assert_eq!(read(&array(MAX_VALUES)), Err(fault));
        assert!(read(&format!("\"{}\"", "x".repeat(MAX_BYTES))).is_err());
    }
}
