//! Edits members of objects and elements of arrays, and keeps every other byte, separators included.

use super::{Member, elements, member, members, push_quoted, quoted, string};

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
#[must_use]
pub fn edit_members(object: &str, mut decide: impl FnMut(&str, &str) -> MemberAction) -> Option<String> {
    let mut out = String::new();
    let WriteProgress { copied_to: copied, .. } =
        write_edited_members(&mut out, object, members(object), |member| decide(&member.key, member.value));
    append_remainder(out, object, copied)
}

/// Replaces the values of the string members named in `keys` where `map` returns a new one. Returns `None` if nothing
/// changes.
#[must_use]
pub fn replace_strings(
    object: &str,
    keys: &[&str],
    mut map: impl FnMut(&str, &str) -> Option<String>,
) -> Option<String> {
    edit_members(object, |key, value| {
        let text = if keys.contains(&key) { string(value) } else { None };
        text.and_then(|text| map(key, &text)).map(|with| quoted(&with)).into()
    })
}

/// Replaces the elements of an array for which `change` returns a new text. Returns `None` if nothing changes.
#[must_use]
pub fn map_elements<'a>(array: &'a str, mut change: impl FnMut(&'a str) -> Option<String>) -> Option<String> {
    let (mut out, mut copied) = (String::new(), 0);
    for (start, element) in elements(array) {
        if let Some(changed) = change(element) {
            out.push_str(&array[copied..start]);
            out.push_str(&changed);
            copied = start + element.len();
        }
    }
    append_remainder(out, array, copied)
}

fn append_remainder(mut out: String, text: &str, copied: usize) -> Option<String> {
    out.push_str(text.get(copied..).filter(|_| copied > 0)?);
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
    Default(&'a str),
    Drop,
}

/// Writes an object, and applies each edit to the members with its name. At most 64 edits are allowed. Text that is not an
/// object is written unchanged.
pub fn edit_into(out: &mut String, object: &str, edits: &[(&str, MemberEdit<'_>)]) {
    edit_object_into(out, object, members(object), edits);
}

/// Like [`edit_into`], for an object whose members were found before.
pub(crate) fn edit_object_into<'a>(
    out: &mut String,
    object: &str,
    members: impl Iterator<Item = Member<'a>>,
    edits: &[(&str, MemberEdit<'_>)],
) {
    let mut seen = 0_u64;
    let WriteProgress { copied_to: copied, last_member_end: mut end, mut has_members } =
        write_edited_members(out, object, members, |member| {
            let Some(index) = edits.iter().position(|(key, _)| *key == member.key) else { return MemberAction::Keep };
            seen |= 1 << index.min(63);
            match edits[index].1 {
                MemberEdit::Set(value) | MemberEdit::Replace(value) => MemberAction::Set(value),
                MemberEdit::Default(_) => MemberAction::Keep,
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
    out.push_str(&object[copied..end]);
    for (index, (key, edit)) in edits.iter().enumerate() {
        let (MemberEdit::Set(value) | MemberEdit::Default(value)) = edit else { continue };
        if seen & (1 << index.min(63)) != 0 {
            continue;
        }
        push_member(out, !has_members, key, value);
        has_members = true;
    }
    out.push_str(&object[end..]);
}

/// Like [`edit_into`], but returns a new string.
#[must_use]
pub fn edit(object: &str, edits: &[(&str, MemberEdit<'_>)]) -> String {
    let mut out = String::with_capacity(object.len() + max_growth(edits));
    edit_into(&mut out, object, edits);
    out
}

/// Returns the maximum number of bytes that the edits add to an object, if the new keys need no escapes.
pub(crate) fn max_growth(edits: &[(&str, MemberEdit<'_>)]) -> usize {
    let added_len = |(key, edit): &(&str, MemberEdit<'_>)| match edit {
        MemberEdit::Set(value) | MemberEdit::Replace(value) | MemberEdit::Default(value) => key.len() + value.len() + 4,
        MemberEdit::Drop => 0,
    };
    edits.iter().map(added_len).sum()
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
#[must_use]
pub fn merge_meta(object: &str, entries: &[(&str, MemberEdit<'_>)]) -> String {
    // Most parsers use the last of several duplicates, and all duplicates get the new value.
    let meta = member(object, "_meta").filter(|meta| meta.starts_with('{')).unwrap_or("{}");
    edit(object, &[("_meta", MemberEdit::Set(&edit(meta, entries)))])
}

/// Appends members to an object without checking for duplicates, in one copy of the text. Values are JSON text. Text
/// that is not an object is returned unchanged.
#[must_use]
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
