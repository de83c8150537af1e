//! Checks on the arguments of a reviewed call, beyond their schema.

use std::{collections::HashSet, fmt};

use serde::de::{DeserializeSeed, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::{Value, value::RawValue};

/// Why arguments cannot be put before a person.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ArgumentsError {
    #[error("the arguments are not a JSON object")]
    NotAnObject,
    /// The one who reads and the one who runs might take different ones.
    #[error("{0}")]
    Unclear(String),
}

/// Refuses duplicate keys at any depth, nesting beyond 128 levels, and what is not an object.
///
/// # Errors
/// [`ArgumentsError`]
pub fn check(arguments: &RawValue) -> Result<(), ArgumentsError> {
    if !arguments.get().trim_start().starts_with('{') {
        return Err(ArgumentsError::NotAnObject);
    }
    let mut deserializer = serde_json::Deserializer::from_str(arguments.get());
    UniqueKeys.deserialize(&mut deserializer).map_err(|e| ArgumentsError::Unclear(e.to_string()))
}

/// Whether two argument objects say the same, whatever their spacing and order of keys.
#[must_use]
pub fn same(a: &RawValue, b: &RawValue) -> bool {
    if a.get() == b.get() {
        return true;
    }
    match (serde_json::from_str::<Value>(a.get()), serde_json::from_str::<Value>(b.get())) {
        (Ok(a), Ok(b)) => a == b,
        _ => false,
    }
}

/// Walks a value and keeps nothing but the keys of the objects that are open.
#[derive(Clone, Copy)]
struct UniqueKeys;

impl<'de> DeserializeSeed<'de> for UniqueKeys {
    type Value = ();
    fn deserialize<D: serde::Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for UniqueKeys {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }
    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }
    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }
    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }
    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }
    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }
    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        while seq.next_element_seed(Self)?.is_some() {}
        Ok(())
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let mut keys = Keys::default();
        while let Some(key) = map.next_key::<String>()? {
            if let Some(key) = keys.repeated(key) {
                let shown: String = key.chars().take(64).collect();
                return Err(A::Error::custom(format_args!("the key {shown:?} stands twice in one object")));
            }
            map.next_value_seed(Self)?;
        }
        Ok(())
    }
}

/// The keys of one object: compared one by one while they are few, hashed when they are many.
#[derive(Default)]
struct Keys {
    few: Vec<String>,
    many: HashSet<String>,
}

impl Keys {
    /// Notes the key, or gives it back if it was there.
    fn repeated(&mut self, key: String) -> Option<String> {
        const FEW: usize = 16;
        if self.few.contains(&key) || self.many.contains(&key) {
            return Some(key);
        }
        if self.few.len() < FEW {
            self.few.push(key);
        } else {
            self.many.insert(key);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(json: &str) -> Box<RawValue> {
        RawValue::from_string(json.to_owned()).unwrap()
    }

    #[test]
    fn duplicate_keys_are_found_at_any_depth_and_in_any_spelling() {
        for bad in [r#"{"a":1,"a":1}"#, r#"{"x":[{"b":{"a":1,"\u0061":2}}]}"#, r#"{"":1,"":2}"#] {
            assert!(matches!(check(&raw(bad)), Err(ArgumentsError::Unclear(_))), "{bad}");
        }
        for good in [r"{}", r#"{"a":{"a":1},"b":[{"a":1},{"a":2}],"c":-1.5e3,"d":"é","e":null,"f":true}"#] {
            assert_eq!(check(&raw(good)), Ok(()), "{good}");
        }
        let many: Vec<String> = (0..100).map(|n| format!(r#""k{n}":{n}"#)).collect();
        assert_eq!(check(&raw(&format!("{{{}}}", many.join(",")))), Ok(()));
        for again in [3, 15, 16, 99] {
            assert!(check(&raw(&format!("{{{},\"k{again}\":0}}", many.join(",")))).is_err(), "{again}");
        }
        assert_eq!(check(&raw("[]")), Err(ArgumentsError::NotAnObject));
        let deep = format!("{}1{}", r#"{"a":"#.repeat(1000), "}".repeat(1000));
        // `from_string` itself may refuse it; what passes it is refused here, without a stack overflow.
        if let Ok(deep) = RawValue::from_string(deep) {
            assert!(check(&deep).is_err());
        }
    }

    #[test]
    fn sameness_ignores_spacing_and_order_only() {
        assert!(same(&raw(r#"{"a":1,"b":[2]}"#), &raw(r#"{ "b": [2], "a": 1 }"#)));
        assert!(!same(&raw(r#"{"a":1}"#), &raw(r#"{"a":1.0}"#)));
        assert!(!same(&raw(r#"{"a":[1,2]}"#), &raw(r#"{"a":[2,1]}"#)));
    }
}
