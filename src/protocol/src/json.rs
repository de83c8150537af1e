//! Reads and edits JSON as text: members are replaced one by one, and every other byte stays unchanged.
//!
//! [`scanner`] walks the text in two ways. Untrusted text is checked against the grammar (`Scanner::check_value`, for
//! the envelope). The functions in this module are for text that is known to be JSON, such as a `RawValue`, and follow
//! only its structure; on other text they neither panic nor recurse.

use std::{borrow::Cow, fmt::Write};

mod edits;
mod raw_value;
pub(crate) mod scanner;
pub use edits::{
    MemberAction, MemberEdit, add_members, edit, edit_into, edit_members, map_elements, merge_meta, replace_strings,
};
pub(crate) use edits::{edit_object_into, max_growth};
pub use raw_value::trusted_raw_value;
pub use scanner::{Token, tokens};
pub(crate) use scanner::{has_lone_surrogate, is_deeper_than};

use scanner::Scanner;

/// A member of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member<'a> {
    pub key: Cow<'a, str>,
    /// The value as it is written.
    pub value: &'a str,
    /// Byte offset of the key in the object's text.
    pub start: usize,
    /// Byte offset of the end of the value.
    pub end: usize,
}

/// Iterates over the members of an object in order, including duplicates. Yields nothing for other values.
#[must_use]
pub fn members(object: &str) -> Members<'_> {
    Members(Scanner::inside_container(object, b'{'))
}

/// Returns the value of a member. The last of several duplicates counts, as in most parsers.
#[must_use]
pub fn member<'a>(object: &'a str, key: &str) -> Option<&'a str> {
    members(object).filter(|member| member.key == key).last().map(|member| member.value)
}

/// Iterates over the elements of an array, each with its byte offset. Yields nothing for other values.
#[must_use]
pub fn elements(array: &str) -> Elements<'_> {
    Elements(Scanner::inside_container(array, b'['))
}

/// The iterator of [`members`].
pub struct Members<'a>(Scanner<'a>);

impl<'a> Iterator for Members<'a> {
    type Item = Member<'a>;

    fn next(&mut self) -> Option<Member<'a>> {
        let (start, key) = self.0.next_value()?;
        // A key that is not valid Unicode (`"\ud800"`) must not hide the members after it.
        let key = string(key).or_else(|| Some(inside_quotes(key)?.into()))?;
        self.0.skip_space();
        self.0.consume(b':')?;
        let (offset, value) = self.0.next_value()?;
        self.0.skip_comma();
        Some(Member { key, value, start, end: offset + value.len() })
    }
}

/// The iterator of [`elements`].
pub struct Elements<'a>(Scanner<'a>);

impl<'a> Iterator for Elements<'a> {
    type Item = (usize, &'a str);

    fn next(&mut self) -> Option<(usize, &'a str)> {
        let element = self.0.next_value()?;
        self.0.skip_comma();
        Some(element)
    }
}

/// Decodes a JSON string. The result is borrowed if the string has no escapes.
#[must_use]
pub fn string(value: &str) -> Option<Cow<'_, str>> {
    let inner = inside_quotes(value)?;
    if !scanner::has_escapes(inner) {
        return Some(Cow::Borrowed(inner));
    }
    serde_json::from_str(value).ok().map(Cow::Owned)
}

fn inside_quotes(value: &str) -> Option<&str> {
    value.strip_prefix('"')?.strip_suffix('"')
}

/// Encodes text as a JSON string.
#[must_use]
pub fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    push_quoted(&mut out, text);
    out
}

/// Appends text as a JSON string.
pub fn push_quoted(out: &mut impl Write, text: &str) {
    // Writing to a string does not fail.
    let _ = if scanner::is_plain(text) {
        out.write_char('"').and_then(|()| out.write_str(text)).and_then(|()| out.write_char('"'))
    } else {
        write!(out, "{}", serde_json::Value::from(text))
    };
}

/// Replaces line breaks in JSON text by spaces. They occur only between tokens, since strings must escape them. A
/// carriage return is replaced too, because many readers take it for a line end.
pub fn one_line(text: &mut [u8]) {
    let mut position = 0;
    while let Some(line_break) = text.get(position..).and_then(|rest| memchr::memchr2(b'\n', b'\r', rest)) {
        position += line_break;
        text[position] = b' ';
    }
}

#[cfg(test)]
mod tests;
