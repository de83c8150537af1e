//! Turns parts of validated JSON text into [`RawValue`]s without parsing them again.

use serde::{
    Deserialize, Deserializer,
    de::{self, DeserializeSeed, MapAccess, Visitor, value::BorrowedStrDeserializer},
    forward_to_deserialize_any,
};
use serde_json::value::RawValue;

/// Returns a `RawValue` for text that is part of validated JSON, without parsing it.
#[must_use]
pub fn trusted_raw_value(text: &str) -> Option<&RawValue> {
    <&RawValue>::deserialize(TrustedText(text)).ok()
}

/// A deserializer that gives `RawValue` its text in the form that it expects: a map with a single entry, whose key is
/// the name of the requested type.
struct TrustedText<'de>(&'de str);

impl<'de> Deserializer<'de> for TrustedText<'de> {
    type Error = de::value::Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
        visitor.visit_borrowed_str(self.0)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Self::Error> {
        visitor.visit_map(SingleEntry { name: Some(name), text: self.0 })
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct seq
        tuple tuple_struct map struct enum identifier ignored_any
    }
}

struct SingleEntry<'de> {
    name: Option<&'static str>,
    text: &'de str,
}

impl<'de> MapAccess<'de> for SingleEntry<'de> {
    type Error = de::value::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Self::Error> {
        self.name.take().map(|name| seed.deserialize(BorrowedStrDeserializer::new(name))).transpose()
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Self::Error> {
        seed.deserialize(BorrowedStrDeserializer::new(self.text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn raw_value_keeps_text_unchanged() {
        for text in ["1", r#"{"a":[1]}"#, "\"é\""] {
            assert_eq!(trusted_raw_value(text).map(RawValue::get), Some(text));
        }
    }
}
