//! Changes members of objects and elements of arrays: every byte that is not meant stays as it was, separators included.

use super::{Member, elements, member, members, push_quoted, quoted, string};

/// What becomes of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberAction<T = String> {
    Keep,
    /// It goes, with the comma and the space that join it to its neighbour.
    Drop,
    /// JSON text that takes the value's place.
    Set(T),
}

/// Another value, where there is one.
impl<T> From<Option<T>> for MemberAction<T> {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Keep, Self::Set)
    }
}

/// How far an object is written.
struct WriteProgress {
    /// What lies before is written, as far as it stays; 0 if nothing changed.
    copied_to: usize,
    /// Where the last member ends; 0 if there is none.
    last_member_end: usize,
    /// A member stayed.
    has_members: bool,
}

/// Writes an object up to the last member that changes.
#[inline]
fn write_edited_members<'a, T: AsRef<str>>(
    out: &mut String,
    object: &str,
    members: impl Iterator<Item = Member<'a>>,
    mut fate: impl FnMut(&Member<'a>) -> MemberAction<T>,
) -> WriteProgress {
    let (mut kept, mut end, mut copied) = (false, 0, 0);
    for member in members {
        if !kept && end > 0 {
            // What separates it from those that are dropped goes with them.
            copied = member.start;
        }
        let goes_from = if kept { end } else { member.start };
        end = member.end;
        match fate(&member) {
            MemberAction::Drop => {
                out.push_str(&object[copied..goes_from]);
                copied = end;
                continue;
            }
            MemberAction::Set(value) if value.as_ref() != member.value => {
                out.push_str(&object[copied..end - member.value.len()]);
                out.push_str(value.as_ref());
                copied = end;
            }
            MemberAction::Set(_) | MemberAction::Keep => {}
        }
        kept = true;
    }
    WriteProgress { copied_to: copied, last_member_end: end, has_members: kept }
}

/// Decides on each member of an object by its key and its value as it is written; `None` if nothing changes.
#[must_use]
pub fn edit_members(object: &str, mut fate: impl FnMut(&str, &str) -> MemberAction) -> Option<String> {
    let mut out = String::new();
    let WriteProgress { copied_to: copied, .. } =
        write_edited_members(&mut out, object, members(object), |member| fate(&member.key, member.value));
    append_remainder(out, object, copied)
}

/// Gives the string members of those names another value, where `map` has one; `None` if nothing changes.
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

/// Writes an array with those of its elements in another form that `change` gives one for; `None` if it gives none.
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

/// What becomes of the members of a name. Values are JSON text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberEdit<'a> {
    /// They get this value; one is added at the end of the object, if there is none.
    Set(&'a str),
    /// They get this value.
    Replace(&'a str),
    /// One is added with this value, if there is none.
    Default(&'a str),
    Drop,
}

/// Writes an object with the members of those names changed; there may be 64 names. What is no object is written as it
/// is.
pub fn edit_into(out: &mut String, object: &str, edits: &[(&str, MemberEdit<'_>)]) {
    edit_object_into(out, object, members(object), edits);
}

/// As [`edit_into`], for an object whose members were found before.
pub(crate) fn edit_object_into<'a>(
    out: &mut String,
    object: &str,
    members: impl Iterator<Item = Member<'a>>,
    edits: &[(&str, MemberEdit<'_>)],
) {
    let mut seen = 0_u64;
    let WriteProgress { copied_to: copied, last_member_end: mut end, has_members: mut kept } =
        write_edited_members(out, object, members, |member| {
            let Some(at) = edits.iter().position(|(key, _)| *key == member.key) else { return MemberAction::Keep };
            seen |= 1 << at.min(63);
            match edits[at].1 {
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
        // Behind the brace of an empty object.
        end = object.find('{').map_or(0, |brace| brace + 1);
    }
    out.push_str(&object[copied..end]);
    for (at, (key, op)) in edits.iter().enumerate() {
        let (MemberEdit::Set(value) | MemberEdit::Default(value)) = op else { continue };
        if seen & (1 << at.min(63)) != 0 {
            continue;
        }
        push_member(out, !kept, key, value);
        kept = true;
    }
    out.push_str(&object[end..]);
}

/// As [`edit_into`], into a text of its own.
#[must_use]
pub fn edit(object: &str, edits: &[(&str, MemberEdit<'_>)]) -> String {
    let mut out = String::with_capacity(object.len() + max_growth(edits));
    edit_into(&mut out, object, edits);
    out
}

/// How many bytes longer the edits can make an object whose new keys need no escapes.
pub(crate) fn max_growth(edits: &[(&str, MemberEdit<'_>)]) -> usize {
    let of = |(key, op): &(&str, MemberEdit<'_>)| match op {
        MemberEdit::Set(value) | MemberEdit::Replace(value) | MemberEdit::Default(value) => key.len() + value.len() + 4,
        MemberEdit::Drop => 0,
    };
    edits.iter().map(of).sum()
}

fn push_member(out: &mut String, is_first: bool, key: &str, value: &str) {
    if !is_first {
        out.push(',');
    }
    push_quoted(out, key);
    out.push(':');
    out.push_str(value);
}

/// Changes entries of the top-level `_meta` of an object, which is made if it is not there, and where it is no object.
#[must_use]
pub fn merge_meta(object: &str, entries: &[(&str, MemberEdit<'_>)]) -> String {
    // The last one is what most readers see if there are several; all of them get its new value.
    let meta = member(object, "_meta").filter(|meta| meta.starts_with('{')).unwrap_or("{}");
    edit(object, &[("_meta", MemberEdit::Set(&edit(meta, entries)))])
}

/// Inserts members at the end of an object, without looking whether they are there already: one copy of the text, which
/// is not read. Values are JSON text. What is no object comes back unchanged.
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
