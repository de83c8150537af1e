//! Deserializers of single members that serde's derive cannot express.

use serde::{Deserialize, Deserializer, de::Error};
use serde_json::{Map, Value, value::RawValue};

use crate::RequestId;

/// Reads a JSON object as raw text.
pub(super) fn object<'de: 'a, 'a, D: Deserializer<'de>>(deserializer: D) -> Result<&'a RawValue, D::Error> {
    let raw = <&'de RawValue>::deserialize(deserializer)?;
    if raw.get().starts_with('{') { Ok(raw) } else { Err(Error::custom("expected an object")) }
}

/// Reads a JSON object as raw text. Null is refused, because the schema does not allow it.
pub(super) fn optional_object<'de: 'a, 'a, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<&'a RawValue>, D::Error> {
    object(deserializer).map(Some)
}

/// Reads a map whose values are all strings.
pub(super) fn strings<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Map<String, Value>, D::Error> {
    let map = Map::deserialize(deserializer)?;
    if map.values().all(Value::is_string) { Ok(map) } else { Err(Error::custom("expected a map of strings")) }
}

/// Reads a string or an integer as raw text.
pub(super) fn request_id<'de, D: Deserializer<'de>>(deserializer: D) -> Result<RequestId, D::Error> {
    let raw = <&'de RawValue>::deserialize(deserializer)?;
    RequestId::from_json(raw.get()).ok_or_else(|| Error::custom("expected a string or an integer"))
}
