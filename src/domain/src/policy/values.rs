//! Converts the arguments of a call to CEL values: bounded, and rejected if they are ambiguous.

use std::{
    cell::Cell,
    collections::{HashMap, HashSet},
    fmt,
    sync::Arc,
};

use cel::{Value, objects::Key};
use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::condition::ConditionFault;
use countersign_protocol::{
    ambiguous_keys::fold_case,
    json::{Token, tokens},
};

/// The most bytes of arguments that conditions read.
pub const MAX_BYTES: usize = 1 << 20;
/// The most values in them.
pub const MAX_VALUES: usize = 20_000;
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

/// Like [`arguments`], with other limits: bytes of the JSON text, and number of values.
///
/// # Errors
/// The errors of [`arguments`].
pub fn arguments_within(text: &str, bytes: usize, values: usize) -> Result<Value, ConditionFault> {
    if text.len() > bytes {
        return Err(ConditionFault::Arguments("the arguments are too large for its condition"));
    }
    if !numbers_are_exact(text) {
        return Err(ConditionFault::Arguments("the arguments hold a number that its condition could not tell exactly"));
    }
    let remaining = Cell::new(values);
    let mut deserializer = serde_json::Deserializer::from_str(text);
    ValueSeed { remaining: &remaining }.deserialize(&mut deserializer).map_err(|_| {
        ConditionFault::Arguments(if remaining.get() == 0 {
            "the arguments hold too many values for its condition"
        } else {
            "the arguments cannot be read in one way only"
        })
    })
}

/// Checks the numbers of a text that is known to be JSON.
fn numbers_are_exact(text: &str) -> bool {
    tokens(text).all(|token| match token {
        Token::Scalar(scalar) => matches!(scalar, "true" | "false" | "null") || is_exact(scalar),
        _ => true,
    })
}

fn is_exact(number: &str) -> bool {
    if number.parse::<i64>().is_ok() || number.parse::<u64>().is_ok() {
        return true;
    }
    let Some(end) = number.find(['.', 'e', 'E']) else { return false };
    let mantissa_end = number.find(['e', 'E']).unwrap_or(number.len());
    debug_assert!(end <= mantissa_end);
    let digits: String = number.get(..mantissa_end).unwrap_or_default().chars().filter(char::is_ascii_digit).collect();
    digits.trim_start_matches('0').trim_end_matches('0').len() <= MAX_DIGITS
        && number.parse::<f64>().is_ok_and(f64::is_finite)
}

struct ValueSeed<'a> {
    remaining: &'a Cell<usize>,
}

impl ValueSeed<'_> {
    fn reborrow(&self) -> Self {
        Self { remaining: self.remaining }
    }

    fn count<E: serde::de::Error>(&self) -> Result<(), E> {
        match self.remaining.get().checked_sub(1) {
            Some(remaining) if remaining > 0 => {
                self.remaining.set(remaining);
                Ok(())
            }
            _ => {
                self.remaining.set(0);
                Err(E::custom("too many values"))
            }
        }
    }
}

impl<'de> DeserializeSeed<'de> for ValueSeed<'_> {
    type Value = Value;
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        self.count()?;
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for ValueSeed<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }
    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }
    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }
    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Int(value))
    }
    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(i64::try_from(value).map_or(Value::UInt(value), Value::Int))
    }
    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Value::Float(value))
    }
    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(Arc::new(value.to_owned())))
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element_seed(self.reborrow())? {
            items.push(item);
        }
        Ok(Value::List(Arc::new(items)))
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut entries: HashMap<Key, Value> = HashMap::new();
        let mut seen: HashSet<String> = HashSet::new();
        while let Some(key) = map.next_key::<String>()? {
            let value = map.next_value_seed(self.reborrow())?;
            // The condition and the provider could read different values; some parsers ignore case.
            if !seen.insert(key.chars().map(fold_case).collect()) {
                return Err(A::Error::custom("two keys differ in case only"));
            }
            if entries.insert(Key::String(Arc::new(key)), value).is_some() {
                return Err(A::Error::custom("a key is duplicated"));
            }
        }
        Ok(Value::Map(cel::objects::Map { map: Arc::new(entries) }))
    }
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
        let many = format!("[{}]", vec!["1"; MAX_VALUES].join(","));
        assert_eq!(read(&many), Err(ConditionFault::Arguments("the arguments hold too many values for its condition")));
        assert!(read(&format!("\"{}\"", "x".repeat(MAX_BYTES))).is_err());
    }
}
