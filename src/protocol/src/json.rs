//! JSON text that stays text: read by structure, changed member by member, every other byte as it was.
//!
//! One walker, [`scanner`], has two manners. Text that may be anything is checked against the grammar while it is passed
//! (`Scanner::value`, for the envelope). Everything here is for text that is known to be JSON, a `RawValue` or what was
//! parsed before, and follows its structure alone; whatever else comes in, nothing panics and nothing recurses.

use std::{borrow::Cow, fmt::Write};

mod edits;
mod known;
pub(crate) mod scanner;
pub use edits::{
    MemberAction, MemberEdit, add_members, edit, edit_into, edit_members, map_elements, merge_meta, replace_strings,
};
pub(crate) use edits::{edit_object_into, max_growth};
pub use known::trusted_raw_value;
pub use scanner::{Token, tokens};
pub(crate) use scanner::{deeper_than, lone_surrogate};

use scanner::Scanner;

/// A member of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member<'a> {
    pub key: Cow<'a, str>,
    /// Its value as it is written.
    pub value: &'a str,
    /// Where its key begins in the object's text, in bytes.
    pub start: usize,
    /// Where its value ends.
    pub end: usize,
}

/// The members of an object, in order, repeated ones too; none of what is no object.
#[must_use]
pub fn members(object: &str) -> Members<'_> {
    Members(Scanner::inside_container(object, b'{'))
}

/// The value of a member; of the last one, where there are several, as most readers see it.
#[must_use]
pub fn member<'a>(object: &'a str, key: &str) -> Option<&'a str> {
    members(object).filter(|member| member.key == key).last().map(|member| member.value)
}

/// The elements of an array with where each begins; none of what is no array.
#[must_use]
pub fn elements(array: &str) -> Elements<'_> {
    Elements(Scanner::inside_container(array, b'['))
}

/// See [`members`].
pub struct Members<'a>(Scanner<'a>);

impl<'a> Iterator for Members<'a> {
    type Item = Member<'a>;

    fn next(&mut self) -> Option<Member<'a>> {
        let (start, key) = self.0.next_value()?;
        // One that is no Unicode text (`"\ud800"`) hides none of those behind it.
        let key = string(key).or_else(|| Some(inside_quotes(key)?.into()))?;
        self.0.skip_space();
        self.0.consume(b':')?;
        let (at, value) = self.0.next_value()?;
        self.0.skip_comma();
        Some(Member { key, value, start, end: at + value.len() })
    }
}

/// See [`elements`].
pub struct Elements<'a>(Scanner<'a>);

impl<'a> Iterator for Elements<'a> {
    type Item = (usize, &'a str);

    fn next(&mut self) -> Option<(usize, &'a str)> {
        let element = self.0.next_value()?;
        self.0.skip_comma();
        Some(element)
    }
}

/// The string that JSON text is, borrowed where nothing in it is escaped.
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

/// A JSON string.
#[must_use]
pub fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    push_quoted(&mut out, text);
    out
}

/// Writes a JSON string to a text.
pub fn push_quoted(out: &mut impl Write, text: &str) {
    // Writing to a text does not fail.
    let _ = if scanner::is_plain(text) {
        out.write_char('"').and_then(|()| out.write_str(text)).and_then(|()| out.write_char('"'))
    } else {
        write!(out, "{}", serde_json::Value::from(text))
    };
}

/// Makes JSON text one line: line breaks stand only between its tokens, since strings want them escaped, and there a space
/// means the same. Many readers take a carriage return for a line end too.
pub fn one_line(text: &mut [u8]) {
    let mut from = 0;
    while let Some(at) = text.get(from..).and_then(|rest| memchr::memchr2(b'\n', b'\r', rest)) {
        from += at;
        text[from] = b' ';
    }
}

#[cfg(test)]
mod tests;
