//! Parts of text that was checked before, as [`RawValue`]s.

use serde::{
    Deserialize, Deserializer,
    de::{self, DeserializeSeed, MapAccess, Visitor, value::BorrowedStrDeserializer},
    forward_to_deserialize_any,
};
use serde_json::value::RawValue;

/// Text that is known to be JSON, as such, without reading it again: a part of text that was checked before.
#[must_use]
pub fn trusted_raw_value(text: &str) -> Option<&RawValue> {
    <&RawValue>::deserialize(TrustedText(text)).ok()
}

/// Gives a [`RawValue`] its text in the form in which it asks for it: the only value of a map, whose key is the name of
/// the type that is asked for.
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
