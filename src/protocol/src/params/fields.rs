//! Readers of single members that the derive cannot express.

use serde::{Deserialize, Deserializer, de::Error};
use serde_json::{Map, Value, value::RawValue};

use crate::RequestId;

/// A JSON object, left as it is.
pub(super) fn object<'de: 'a, 'a, D: Deserializer<'de>>(deserializer: D) -> Result<&'a RawValue, D::Error> {
    let raw = <&'de RawValue>::deserialize(deserializer)?;
    if raw.get().starts_with('{') { Ok(raw) } else { Err(Error::custom("expected an object")) }
}

/// A JSON object, left as it is. Null is not an object, and is refused where the schema has no null.
pub(super) fn optional_object<'de: 'a, 'a, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<&'a RawValue>, D::Error> {
    object(deserializer).map(Some)
}

/// A map whose values are all strings.
pub(super) fn strings<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Map<String, Value>, D::Error> {
    let map = Map::deserialize(deserializer)?;
    if map.values().all(Value::is_string) { Ok(map) } else { Err(Error::custom("expected a map of strings")) }
}

/// A string or an integer, kept byte for byte.
pub(super) fn request_id<'de, D: Deserializer<'de>>(deserializer: D) -> Result<RequestId, D::Error> {
    let raw = <&'de RawValue>::deserialize(deserializer)?;
    RequestId::from_json(raw.get()).ok_or_else(|| Error::custom("expected a string or an integer"))
}
