//! Reads and edits JSON as text: members are replaced one by one, and every other byte stays unchanged, separators included.
//!
//! `scanner` walks the text in two ways. Untrusted text is checked against the grammar (`Scanner::check_value`, for
//! the envelope). The functions in this module are for text that is known to be JSON, such as a `RawValue`, and follow
//! only its structure; on other text they neither panic nor recurse.

use std::{borrow::Cow, fmt::Write};

use serde::{
    Deserialize, Deserializer,
    de::{
        self, Visitor,
        value::{BorrowedStrDeserializer, MapDeserializer},
    },
    forward_to_deserialize_any,
};
use serde_json::value::RawValue;

pub(crate) mod scanner;
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
pub fn members(object: &str) -> impl Iterator<Item = Member<'_>> {
    let mut scanner = Scanner::inside_container(object, b'{');
    std::iter::from_fn(move || {
        let (start, key) = scanner.next_value()?;
        // A key that is not valid Unicode (`"\ud800"`) must not hide the members after it.
        let key = string(key).or_else(|| Some(inside_quotes(key)?.into()))?;
        scanner.skip_space();
        scanner.consume(b':')?;
        let (offset, value) = scanner.next_value()?;
        scanner.skip_comma();
        Some(Member { key, value, start, end: offset + value.len() })
    })
}

/// Returns the value of a member. The last of several duplicates counts, as in most parsers.
pub fn member<'a>(object: &'a str, key: &str) -> Option<&'a str> {
    members(object).filter(|member| member.key == key).last().map(|member| member.value)
}

/// Iterates over the elements of an array, each with its byte offset. Yields nothing for other values.
pub fn elements(array: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut scanner = Scanner::inside_container(array, b'[');
    std::iter::from_fn(move || scanner.next_value().inspect(|_| scanner.skip_comma()))
}

/// Decodes a JSON string. The result is borrowed if the string has no escapes.
pub fn string(value: &str) -> Option<Cow<'_, str>> {
    let inner = inside_quotes(value)?;
    if !scanner::has_escapes(inner) {
        return Some(Cow::Borrowed(inner));
    }
    serde_json::from_str(value).ok().map(Cow::Owned)
}

/// Returns the text between the quotes of a JSON string, with its escapes.
pub(crate) fn inside_quotes(value: &str) -> Option<&str> {
    value.strip_prefix('"')?.strip_suffix('"')
}

/// Encodes text as a JSON string.
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
pub fn replace_line_breaks(text: &mut [u8]) {
    let mut position = 0;
    while let Some(line_break) = text.get(position..).and_then(|rest| memchr::memchr2(b'\n', b'\r', rest)) {
        position += line_break;
        text[position] = b' ';
    }
}

/// The action for one member of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberAction<T = String> {
    Keep,
    /// Removes the member, together with the comma and space that separate it from its neighbor.
    Drop,
    /// Replaces the value by this JSON text.
    Set(T),
}

/// Replaces the value if there is a new one.
impl<T> From<Option<T>> for MemberAction<T> {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Keep, Self::Set)
    }
}

/// The progress of writing an object up to its last change.
struct WriteProgress {
    /// The part of the object before this offset was written; 0 if nothing changed.
    copied_to: usize,
    /// End offset of the last member; 0 if there is none.
    last_member_end: usize,
    /// `true` if at least one member was kept.
    has_members: bool,
}

/// Writes an object up to its last changed member.
#[inline]
fn write_edited_members<'a, T: AsRef<str>>(
    out: &mut String,
    object: &str,
    members: impl Iterator<Item = Member<'a>>,
    mut decide: impl FnMut(&Member<'a>) -> MemberAction<T>,
) -> WriteProgress {
    let (mut has_members, mut last_member_end, mut copied_to) = (false, 0, 0);
    for member in members {
        if !has_members && last_member_end > 0 {
            // The separator after dropped members is dropped with them.
            copied_to = member.start;
        }
        let drop_from = if has_members { last_member_end } else { member.start };
        last_member_end = member.end;
        match decide(&member) {
            MemberAction::Drop => {
                out.push_str(&object[copied_to..drop_from]);
                copied_to = last_member_end;
                continue;
            }
            MemberAction::Set(value) if value.as_ref() != member.value => {
                out.push_str(&object[copied_to..last_member_end - member.value.len()]);
                out.push_str(value.as_ref());
                copied_to = last_member_end;
            }
            MemberAction::Set(_) | MemberAction::Keep => {}
        }
        has_members = true;
    }
    WriteProgress { copied_to, last_member_end, has_members }
}

/// Edits each member of an object with the action that `decide` returns for its key and raw value. Returns `None` if nothing
/// changes.
pub fn edit_members(object: &str, mut decide: impl FnMut(&str, &str) -> MemberAction) -> Option<String> {
    let mut out = String::new();
    let WriteProgress { copied_to, .. } =
        write_edited_members(&mut out, object, members(object), |member| decide(&member.key, member.value));
    append_remainder(out, object, copied_to)
}

/// Replaces the values of the string members named in `keys` where `map` returns a new one. Returns `None` if nothing
/// changes.
pub fn replace_strings(
    object: &str,
    keys: &[&str],
    mut map: impl FnMut(&str, &str) -> Option<String>,
) -> Option<String> {
    edit_members(object, |key, value| {
        let text = if keys.contains(&key) { string(value) } else { None };
        text.and_then(|text| map(key, &text)).map(|replacement| quoted(&replacement)).into()
    })
}

/// Replaces the elements of an array for which `change` returns a new text. Returns `None` if nothing changes.
pub fn map_elements<'a>(array: &'a str, mut change: impl FnMut(&'a str) -> Option<String>) -> Option<String> {
    let (mut out, mut copied_to) = (String::new(), 0);
    for (start, element) in elements(array) {
        if let Some(changed) = change(element) {
            out.push_str(&array[copied_to..start]);
            out.push_str(&changed);
            copied_to = start + element.len();
        }
    }
    append_remainder(out, array, copied_to)
}

/// Appends the rest of the text after `copied_to`. Returns `None` if nothing was copied, because nothing has changed.
fn append_remainder(mut out: String, text: &str, copied_to: usize) -> Option<String> {
    out.push_str(text.get(copied_to..).filter(|_| copied_to > 0)?);
    Some(out)
}

/// An edit of all members with one name. The values are JSON text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberEdit<'a> {
    /// Sets the value of existing members, or appends one if there is none.
    Set(&'a str),
    /// Sets the value of existing members.
    Replace(&'a str),
    /// Appends a member with this value if there is none.
    SetIfMissing(&'a str),
    Drop,
}

/// Returns edits that set each of these members that has a new value.
pub fn set_members<'a, const N: usize>(values: [(&'a str, &'a Option<String>); N]) -> Vec<(&'a str, MemberEdit<'a>)> {
    values.into_iter().filter_map(|(key, value)| Some((key, MemberEdit::Set(value.as_deref()?)))).collect()
}

/// Writes an object, and applies each edit to the members with its name. At most 64 edits are allowed. Text that is not an
/// object is written unchanged.
pub fn edit_into(out: &mut String, object: &str, edits: &[(&str, MemberEdit<'_>)]) {
    edit_object_into(out, object, members(object), edits);
}

/// Like [`edit_into`], for an object whose members are already known.
pub(crate) fn edit_object_into<'a>(
    out: &mut String,
    object: &str,
    members: impl Iterator<Item = Member<'a>>,
    edits: &[(&str, MemberEdit<'_>)],
) {
    // One bit for each edit whose member was found.
    let mut found_edits = 0_u64;
    let WriteProgress { copied_to, last_member_end: mut end, mut has_members } =
        write_edited_members(out, object, members, |member| {
            let Some(index) = edits.iter().position(|(key, _)| *key == member.key) else { return MemberAction::Keep };
            found_edits |= 1 << index.min(63);
            match edits[index].1 {
                MemberEdit::Set(value) | MemberEdit::Replace(value) => MemberAction::Set(value),
                MemberEdit::SetIfMissing(_) => MemberAction::Keep,
                MemberEdit::Drop => MemberAction::Drop,
            }
        });
    if end == 0 {
        if !object.trim_start().starts_with('{') {
            out.push_str(object);
            return;
        }
        // New members follow the brace of an empty object.
        end = object.find('{').map_or(0, |brace| brace + 1);
    }
    out.push_str(&object[copied_to..end]);
    for (index, (key, edit)) in edits.iter().enumerate() {
        let (MemberEdit::Set(value) | MemberEdit::SetIfMissing(value)) = edit else { continue };
        if found_edits & (1 << index.min(63)) != 0 {
            continue;
        }
        push_member(out, !has_members, key, value);
        has_members = true;
    }
    out.push_str(&object[end..]);
}

/// Like [`edit_into`], but returns a new string.
pub fn edit(object: &str, edits: &[(&str, MemberEdit<'_>)]) -> String {
    let mut out = String::with_capacity(object.len() + max_growth(edits));
    edit_into(&mut out, object, edits);
    out
}

/// Returns the maximum number of bytes that the edits add to an object, if the new keys need no escapes.
pub fn max_growth(edits: &[(&str, MemberEdit<'_>)]) -> usize {
    let added_len = |(key, edit): &(&str, MemberEdit<'_>)| match edit {
        MemberEdit::Set(value) | MemberEdit::Replace(value) | MemberEdit::SetIfMissing(value) => {
            key.len() + value.len() + 4
        }
        MemberEdit::Drop => 0,
    };
    edits.iter().map(added_len).sum()
}

/// Writes an object with these members, whose values are JSON text.
pub fn object<'a>(members: impl IntoIterator<Item = (&'a str, &'a str)>) -> String {
    let mut out = String::from("{");
    for (index, (key, value)) in members.into_iter().enumerate() {
        push_member(&mut out, index == 0, key, value);
    }
    out.push('}');
    out
}

fn push_member(out: &mut String, is_first: bool, key: &str, value: &str) {
    if !is_first {
        out.push(',');
    }
    push_quoted(out, key);
    out.push(':');
    out.push_str(value);
}

/// Edits entries of the top-level `_meta` of an object. A `_meta` that is missing or not an object is created.
pub fn merge_meta(object: &str, entries: &[(&str, MemberEdit<'_>)]) -> String {
    // Most parsers use the last of several duplicates, and all duplicates get the new value.
    let meta = member(object, "_meta").filter(|meta| meta.starts_with('{')).unwrap_or("{}");
    edit(object, &[("_meta", MemberEdit::Set(&edit(meta, entries)))])
}

/// Drops an entry of the top-level `_meta` of an object, and `_meta` itself if no entry remains. Returns `None` if there is
/// no such entry.
pub fn drop_meta_entry(object: &str, key: &str) -> Option<String> {
    let meta = member(object, "_meta").filter(|meta| member(meta, key).is_some())?;
    let meta = edit(meta, &[(key, MemberEdit::Drop)]);
    let meta_edit = if members(&meta).next().is_none() { MemberEdit::Drop } else { MemberEdit::Set(&meta) };
    Some(edit(object, &[("_meta", meta_edit)]))
}

/// Appends members to an object without checking for duplicates, in one copy of the text. Values are JSON text. Text
/// that is not an object is returned unchanged.
pub fn add_members(object: &str, members: &[(&str, &str)]) -> String {
    const SPACE: [char; 4] = [' ', '\t', '\n', '\r'];
    let body = object.trim_end_matches(SPACE).strip_suffix('}');
    let Some(body) = body.filter(|body| body.trim_start_matches(SPACE).starts_with('{')) else {
        return object.to_owned();
    };
    let extra: usize = members.iter().map(|(key, value)| key.len() + value.len() + 4).sum();
    let mut out = String::with_capacity(object.len() + extra);
    out.push_str(body);
    let mut is_first = body.trim_matches(SPACE) == "{";
    for (key, value) in members {
        push_member(&mut out, is_first, key, value);
        is_first = false;
    }
    out.push_str(&object[body.len()..]);
    out
}

/// Returns a `RawValue` for text that is part of validated JSON, without parsing it.
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
        let entry = (BorrowedStrDeserializer::new(name), BorrowedStrDeserializer::new(self.0));
        visitor.visit_map(MapDeserializer::new(std::iter::once(entry)))
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct seq
        tuple tuple_struct map struct enum identifier ignored_any
    }
}

#[cfg(test)]
mod tests;
