//! Request ids, stored as the JSON text that was received.

use std::{
    borrow::Cow,
    fmt,
    hash::{Hash, Hasher},
};

use compact_str::{CompactString, ToCompactString};

/// A JSON-RPC request id: the raw JSON text of a string or of an integer of any length, echoed byte for byte.
///
/// Two ids are equal if they are the same string or the same integer, whatever escapes a string uses: `"a"` and
/// `"\u0061"` are one id. `1` and `"1"` differ (2026-07-28/basic/index, "Requests").
#[derive(Clone)]
pub struct RequestId {
    raw: CompactString,
    /// `true` if the text has an escape, so that comparing bytes is not enough.
    has_escapes: bool,
}

impl RequestId {
    /// Wraps raw JSON text that the envelope parser has accepted as an id.
    pub fn from_raw(raw: &str) -> Self {
        Self { raw: raw.into(), has_escapes: raw.contains('\\') }
    }

    /// Parses an id from JSON text, which must be one value without surrounding whitespace.
    ///
    /// Returns `None` for null, fractions, exponents, booleans, objects and arrays.
    #[must_use]
    pub fn from_json(raw: &str) -> Option<Self> {
        is_string_or_integer(raw).then(|| Self::from_raw(raw))
    }

    /// Returns the JSON text of the id, as the client wrote it.
    #[must_use]
    pub fn as_json(&self) -> &str {
        &self.raw
    }

    /// Returns the raw text with the escapes of a string decoded. Equality, order and hash use it.
    fn canonical(&self) -> Cow<'_, str> {
        if !self.has_escapes {
            return Cow::Borrowed(&self.raw);
        }
        match serde_json::from_str::<String>(&self.raw) {
            Ok(text) => Cow::Owned(format!("\"{text}\"")),
            Err(_) => Cow::Borrowed(&self.raw),
        }
    }
}

/// Returns `true` if valid JSON text is a string or an integer (no fraction, no exponent).
pub(super) fn is_string_or_integer(raw: &str) -> bool {
    match raw.as_bytes() {
        [b'"', ..] => true,
        [b'-' | b'0'..=b'9', rest @ ..] => rest.iter().all(u8::is_ascii_digit),
        _ => false,
    }
}

impl PartialEq for RequestId {
    fn eq(&self, other: &Self) -> bool {
        if self.has_escapes || other.has_escapes {
            self.canonical() == other.canonical()
        } else {
            self.raw == other.raw
        }
    }
}

impl Eq for RequestId {}

impl Hash for RequestId {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.canonical().hash(state);
    }
}

impl From<i64> for RequestId {
    fn from(n: i64) -> Self {
        Self { raw: n.to_compact_string(), has_escapes: false }
    }
}

impl fmt::Debug for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.raw)
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.raw)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn id(raw: &str) -> RequestId {
        RequestId::from_json(raw).unwrap_or_else(|| panic!("{raw} is an id"))
    }

    #[test]
    fn strings_and_integers_of_any_length_are_ids() {
        for raw in ["0", "-1", "123456789012345678901234567890", "\"\"", "\"a b\"", r#""\u0061""#] {
            assert_eq!(id(raw).as_json(), raw);
        }
        for raw in ["null", "true", "1.0", "1e3", "-1E2", "{}", "[1]", ""] {
            assert!(RequestId::from_json(raw).is_none(), "{raw}");
        }
    }

    #[test]
    fn ids_are_equal_regardless_of_escapes() {
        assert_eq!(id(r#""a""#), id(r#""\u0061""#));
        assert_eq!(id(r#""\u0061""#), id("\"a\""));
        assert_eq!(id(r#""\/""#), id(r#""/""#));
        assert_eq!(id(r#""😀""#), id(r#""\ud83d\uDE00""#));
        assert_ne!(id(r#""\\u0061""#), id(r#""a""#));
        assert_ne!(id("1"), id("\"1\""));
        assert_ne!(id(r#""a\"b""#), id(r#""a""#));
    }

    #[test]
    fn hash_agrees_with_equality() {
        let set: HashSet<_> = [id(r#""a""#), id(r#""\u0061""#), id("1"), id("\"1\"")].into_iter().collect();
        assert_eq!(set.len(), 3);
    }
}
