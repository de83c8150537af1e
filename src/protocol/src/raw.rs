//! Reads JSON text in one pass without taking it apart: what is looked for is found by its place, and edits leave
//! every other byte as it was.
//!
//! The text must be valid JSON (a `RawValue` is). Text that is not gives wrong places, never a panic.

use std::{borrow::Cow, ops::Range};

use serde::{
    Deserialize, Deserializer,
    de::{self, DeserializeSeed, MapAccess, Visitor, value::BorrowedStrDeserializer},
    forward_to_deserialize_any,
};
use serde_json::value::RawValue;

/// A position in JSON text. The caller names what it wants to look into; the rest is skipped.
pub struct Scan<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Scan<'a> {
    /// At the start of a value.
    #[must_use]
    pub fn new(text: &'a str) -> Self {
        let mut scan = Self { text, at: 0 };
        scan.space();
        scan
    }

    /// The first byte of the value that stands here: `{`, `[`, `"` or that of a scalar; 0 at the end.
    #[must_use]
    pub fn peek(&self) -> u8 {
        self.text.as_bytes().get(self.at).copied().unwrap_or(0)
    }

    /// Calls `f` at the value of each member with its key, unescaped. `f` must pass the value. What is no object is
    /// skipped.
    pub fn object(&mut self, mut f: impl FnMut(&mut Self, &str)) {
        if self.peek() != b'{' {
            self.skip();
            return;
        }
        self.at += 1;
        loop {
            self.space();
            if self.peek() != b'"' {
                break;
            }
            let key = self.skip();
            self.space();
            if self.peek() != b':' {
                break;
            }
            self.at += 1;
            self.space();
            let (text, value) = (self.text, self.at);
            f(self, &unquoted(text.get(key).unwrap_or_default()));
            if self.at <= value || !self.comma() {
                break;
            }
        }
        self.close(b'}');
    }

    /// Calls `f` at each element. `f` must pass it. What is no array is skipped.
    pub fn array(&mut self, mut f: impl FnMut(&mut Self)) {
        if self.peek() != b'[' {
            self.skip();
            return;
        }
        self.at += 1;
        loop {
            self.space();
            if matches!(self.peek(), b']' | 0) {
                break;
            }
            let value = self.at;
            f(self);
            if self.at <= value || !self.comma() {
                break;
            }
        }
        self.close(b']');
    }

    /// Passes the value that stands here and says where it was.
    pub fn skip(&mut self) -> Range<usize> {
        let bytes = self.text.as_bytes();
        let start = self.at;
        let mut depth = 0_usize;
        while let Some(&byte) = bytes.get(self.at) {
            match byte {
                b'"' => {
                    self.at = string_end(bytes, self.at + 1);
                    if depth == 0 {
                        break;
                    }
                    continue;
                }
                b'{' | b'[' => depth += 1,
                b'}' | b']' => {
                    if depth == 0 {
                        break;
                    }
                    depth -= 1;
                    if depth == 0 {
                        self.at += 1;
                        break;
                    }
                }
                b',' | b':' | b' ' | b'\t' | b'\n' | b'\r' if depth == 0 => break,
                _ => {}
            }
            self.at += 1;
        }
        start..self.at.min(bytes.len())
    }

    /// Passes the value and gives it back, if it is a string.
    pub fn string(&mut self) -> Option<(Range<usize>, Cow<'a, str>)> {
        let is_string = self.peek() == b'"';
        let place = self.skip();
        let text = self.text;
        is_string.then(|| (place.clone(), unquoted(text.get(place).unwrap_or_default())))
    }

    fn space(&mut self) {
        while matches!(self.peek(), b' ' | b'\t' | b'\n' | b'\r') {
            self.at += 1;
        }
    }

    fn comma(&mut self) -> bool {
        self.space();
        let comma = self.peek() == b',';
        self.at += usize::from(comma);
        comma
    }

    fn close(&mut self, brace: u8) {
        self.space();
        self.at += usize::from(self.peek() == brace);
    }
}

/// The index behind the quote that ends a string.
fn string_end(bytes: &[u8], from: usize) -> usize {
    let mut i = from;
    while let Some(found) = bytes.get(i..).and_then(|rest| memchr::memchr2(b'"', b'\\', rest)) {
        i += found;
        if bytes[i] == b'"' {
            return i + 1;
        }
        i += 2;
    }
    bytes.len()
}

/// The text of a JSON string; empty for what is none.
fn unquoted(json: &str) -> Cow<'_, str> {
    let inner = json.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).unwrap_or_default();
    if inner.contains('\\') {
        serde_json::from_str(json).map_or(Cow::Borrowed(""), Cow::Owned)
    } else {
        Cow::Borrowed(inner)
    }
}

/// A JSON string.
#[must_use]
pub fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// Text that is known to be JSON, as such, without reading it again: a part of text that was checked before.
#[must_use]
pub fn known(text: &str) -> Option<&RawValue> {
    <&RawValue>::deserialize(Known(text)).ok()
}

/// Gives a [`RawValue`] its text in the form in which it asks for it: the only value of a map, whose key is the name of
/// the type that is asked for.
struct Known<'de>(&'de str);

impl<'de> Deserializer<'de> for Known<'de> {
    type Error = de::value::Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
        visitor.visit_borrowed_str(self.0)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Self::Error> {
        visitor.visit_map(Sole { name: Some(name), text: self.0 })
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct seq
        tuple tuple_struct map struct enum identifier ignored_any
    }
}

struct Sole<'de> {
    name: Option<&'static str>,
    text: &'de str,
}

impl<'de> MapAccess<'de> for Sole<'de> {
    type Error = de::value::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Self::Error> {
        self.name.take().map(|name| seed.deserialize(BorrowedStrDeserializer::new(name))).transpose()
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Self::Error> {
        seed.deserialize(BorrowedStrDeserializer::new(self.text))
    }
}

/// Replacements in one text.
#[derive(Default)]
pub struct Edits(Vec<(Range<usize>, String)>);

impl Edits {
    /// Puts `with` in the place of `range`. Ranges must not overlap.
    pub fn replace(&mut self, range: Range<usize>, with: String) {
        self.0.push((range, with));
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The text with its replacements.
    #[must_use]
    pub fn apply(mut self, text: &str) -> String {
        self.0.sort_by_key(|(range, _)| range.start);
        let mut out = String::with_capacity(text.len() + self.0.iter().map(|(_, with)| with.len()).sum::<usize>());
        let mut from = 0;
        for (range, with) in &self.0 {
            out.push_str(text.get(from..range.start).unwrap_or_default());
            out.push_str(with);
            from = range.end;
        }
        out.push_str(text.get(from..).unwrap_or_default());
        out
    }
}

/// What becomes of a member.
pub enum Fate {
    Keep,
    Drop,
    /// JSON text that takes the value's place.
    Set(String),
}

/// Decides on each member of an object by its key and its value, both as they stand there; `None` if nothing changes.
///
/// A dropped member goes with the comma and the space that join it to its neighbour.
#[must_use]
pub fn edit_members(object: &str, mut fate: impl FnMut(&str, &str) -> Fate) -> Option<String> {
    let mut edits = Edits::default();
    // The end of the last member that stays, and the start of dropped ones that nothing that stays precedes.
    let (mut kept, mut pending) = (None::<usize>, None::<usize>);
    let mut last = None;
    let mut scan = Scan::new(object);
    if scan.peek() != b'{' {
        return None;
    }
    let mut open = scan.at + 1;
    while matches!(object.as_bytes().get(open), Some(b' ' | b'\t' | b'\n' | b'\r')) {
        open += 1;
    }
    // The start of the member that is looked at: that of its key.
    let mut start = open;
    scan.object(|scan, key| {
        let value = scan.skip();
        let end = value.end;
        match fate(key, object.get(value.clone()).unwrap_or_default()) {
            Fate::Drop => {
                match kept {
                    Some(kept) => edits.replace(last.unwrap_or(kept)..end, String::new()),
                    None => pending = Some(pending.unwrap_or(start)),
                }
                last = Some(end);
            }
            stays => {
                if let Some(from) = pending.take() {
                    edits.replace(from..start, String::new());
                }
                if let Fate::Set(with) = stays {
                    edits.replace(value, with);
                }
                (kept, last) = (Some(end), Some(end));
            }
        }
        // Where the next key will stand, if there is one.
        let bytes = object.as_bytes();
        start = end;
        while matches!(bytes.get(start), Some(b' ' | b'\t' | b'\n' | b'\r' | b',')) {
            start += 1;
        }
    });
    if let (Some(from), Some(end)) = (pending, last) {
        edits.replace(from..end, String::new());
    }
    (!edits.is_empty()).then(|| edits.apply(object))
}

/// Gives the top-level string members of those names another value, where `map` has one; `None` if nothing changes.
#[must_use]
pub fn replace_strings(object: &str, keys: &[&str], map: impl Fn(&str, &str) -> Option<String>) -> Option<String> {
    let mut edits = Edits::default();
    Scan::new(object).object(|scan, key| {
        if keys.contains(&key) {
            if let Some((place, text)) = scan.string()
                && let Some(with) = map(key, &text)
            {
                edits.replace(place, quoted(&with));
            }
        } else {
            scan.skip();
        }
    });
    (!edits.is_empty()).then(|| edits.apply(object))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    fn without(object: &str, gone: &[&str]) -> String {
        edit_members(object, |key, _| if gone.contains(&key) { Fate::Drop } else { Fate::Keep })
            .unwrap_or_else(|| object.to_owned())
    }

    #[test]
    fn text_is_taken_as_it_is() {
        for text in ["1", r#"{"a":[1]}"#, "\"é\""] {
            assert_eq!(known(text).map(RawValue::get), Some(text));
        }
    }

    #[test]
    fn members_go_with_their_commas_and_nothing_else_moves() {
        let object = r#"{ "a" : 1e2 ,  "b":[{"a":"}"}], "c" :"x,\"" }"#;
        for (gone, left) in [
            (&["a"][..], r#"{ "b":[{"a":"}"}], "c" :"x,\"" }"#),
            (&["b"], r#"{ "a" : 1e2, "c" :"x,\"" }"#),
            (&["c"], r#"{ "a" : 1e2 ,  "b":[{"a":"}"}] }"#),
            (&["a", "b"], r#"{ "c" :"x,\"" }"#),
            (&["b", "c"], r#"{ "a" : 1e2 }"#),
            (&["a", "c"], r#"{ "b":[{"a":"}"}] }"#),
            (&["a", "b", "c"], r"{  }"),
            (&["d"], object),
        ] {
            assert_eq!(without(object, gone), left, "{gone:?}");
        }
        assert_eq!(without(r#"{"\u0061":1,"b":2,"a":3}"#, &["a"]), r#"{"b":2}"#, "escaped and repeated names");
        assert_eq!(without("{}", &["a"]), "{}");
        assert_eq!(without("[1]", &["a"]), "[1]");
    }

    #[test]
    fn strings_are_replaced_at_the_top_only() {
        let text = r#"{"x":{"name":"a"},"name" : "a\n","n":12345678901234567890123,"name":1}"#;
        let out = replace_strings(text, &["name"], |_, old| Some(format!("p__{old}"))).unwrap();
        assert_eq!(out, r#"{"x":{"name":"a"},"name" : "p__a\n","n":12345678901234567890123,"name":1}"#);
    }

    #[test]
    fn text_that_is_no_json_is_survived() {
        for text in
            ["", "{", "{\"", "{\"a", "{\"a\"", "{\"a\":", "{\"a\":1,", "[", "[1,", "\"\\", "}", "{,}", "{\"a\":}"]
        {
            let _ = without(text, &["a"]);
            let _ = replace_strings(text, &["a"], |_, _| Some(String::new()));
        }
    }

    fn tree() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(json!(null)),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            "[a-c\\\\\"{}\\[\\],: \u{e9}]{0,6}".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 32, 5, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::hash_map("[a-d\\\\\"]{1,2}", inner, 0..4)
                    .prop_map(|m| Value::Object(m.into_iter().collect())),
            ]
        })
    }

    proptest! {
        /// Against the plain way: parse, change the tree, compare trees.
        #[test]
        fn edits_do_what_editing_the_tree_does(members in prop::collection::vec(("[a-d\\\\\"]{1,2}", tree()), 0..6), pretty: bool) {
            let tree: serde_json::Map<String, Value> = members.into_iter().collect();
            let text = if pretty { serde_json::to_string_pretty(&tree) } else { serde_json::to_string(&tree) }.unwrap();
            let dropped: Value = serde_json::from_str(&without(&text, &["a", "b"])).unwrap();
            let mut expected = tree.clone();
            expected.remove("a");
            expected.remove("b");
            prop_assert_eq!(dropped, Value::Object(expected));
            let set = edit_members(&text, |key, _| if key == "c" { Fate::Set("[0]".into()) } else { Fate::Keep });
            let set: Value = serde_json::from_str(set.as_deref().unwrap_or(&text)).unwrap();
            let mut expected = tree;
            if let Some(c) = expected.get_mut("c") {
                *c = json!([0]);
            }
            prop_assert_eq!(set, Value::Object(expected));
        }
    }
}
