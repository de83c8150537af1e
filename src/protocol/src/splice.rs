//! Adds members to JSON objects that stay text: every other byte is kept as it was.
//!
//! Keys are plain strings and are escaped here; values are JSON text, put in as they are. The object must
//! be valid JSON. Text that is no object comes back unchanged: splicing never makes invalid JSON of valid.

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, Visitor},
};
use serde_json::value::RawValue;

/// Inserts members at the end of an object, without looking whether they are there already.
///
/// One copy of the text, no parse. Use [`set_members`] where the object is somebody else's.
#[must_use]
pub fn add_members(object: &str, members: &[(&str, &str)]) -> String {
    let Some((body, tail)) = split_end(object) else { return object.to_owned() };
    if members.is_empty() {
        return object.to_owned();
    }
    let extra: usize = members.iter().map(|(key, value)| key.len() + value.len() + 4).sum();
    let mut out = String::with_capacity(object.len() + extra);
    out.push_str(body);
    let mut first = body.trim_end_matches(WHITESPACE).ends_with('{') && is_empty(body);
    for (key, value) in members {
        if !first {
            out.push(',');
        }
        first = false;
        push_key(&mut out, key);
        out.push_str(value);
    }
    out.push_str(tail);
    out
}

/// Inserts members at the end of an object, or in the place of members of the same name.
///
/// Where a name is there more than once, all of them get the new value.
#[must_use]
pub fn set_members(object: &str, members: &[(&str, &str)]) -> String {
    let Some(found) = find(object, members) else { return object.to_owned() };
    if found.is_empty() {
        return add_members(object, members);
    }
    let mut out =
        String::with_capacity(object.len() + members.iter().map(|(k, v)| k.len() + v.len() + 4).sum::<usize>());
    let mut from = 0;
    for (index, start, end) in &found {
        out.push_str(&object[from..*start]);
        out.push_str(members[*index].1);
        from = *end;
    }
    out.push_str(&object[from..]);
    let missing: Vec<_> = members
        .iter()
        .enumerate()
        .filter(|(index, _)| !found.iter().any(|(i, ..)| i == index))
        .map(|(_, member)| *member)
        .collect();
    if missing.is_empty() { out } else { add_members(&out, &missing) }
}

/// Puts entries into the top-level `_meta` of an object, which is made if it is not there.
///
/// An entry that is there already gets the new value. A `_meta` that is no object is replaced by one.
#[must_use]
pub fn merge_meta(object: &str, entries: &[(&str, &str)]) -> String {
    if entries.is_empty() {
        return object.to_owned();
    }
    // The last one is what most readers see if there are several; `set_members` gives all of them its value.
    let current =
        find(object, &[("_meta", "")]).and_then(|found| found.last().map(|(_, start, end)| &object[*start..*end]));
    let meta = match current {
        Some(meta) if meta.starts_with('{') => set_members(meta, entries),
        _ => add_members("{}", entries),
    };
    match current {
        Some(_) => set_members(object, &[("_meta", &meta)]),
        None => add_members(object, &[("_meta", &meta)]),
    }
}

const WHITESPACE: [char; 4] = [' ', '\t', '\n', '\r'];

/// The text before the brace that ends an object, and the rest.
fn split_end(object: &str) -> Option<(&str, &str)> {
    if !object.trim_start_matches(WHITESPACE).starts_with('{') {
        return None;
    }
    let end = object.trim_end_matches(WHITESPACE);
    end.ends_with('}').then(|| object.split_at(end.len() - 1))
}

/// Whether there is nothing but the opening brace.
fn is_empty(body: &str) -> bool {
    body.trim_matches(WHITESPACE) == "{"
}

fn push_key(out: &mut String, key: &str) {
    if key.bytes().all(|b| matches!(b, b' '..=b'~') && b != b'"' && b != b'\\') {
        out.push('"');
        out.push_str(key);
        out.push('"');
    } else {
        out.push_str(&serde_json::Value::from(key).to_string());
    }
    out.push(':');
}

/// Where the values of those members stand, in order: index into `members`, start and end in bytes.
fn find(object: &str, members: &[(&str, &str)]) -> Option<Vec<(usize, usize, usize)>> {
    split_end(object)?;
    let all: Members<'_> = serde_json::from_str(object).ok()?;
    let base = object.as_ptr() as usize;
    let mut found = Vec::new();
    for (key, value) in all.0 {
        if let Some(index) = members.iter().position(|(name, _)| *name == key) {
            // The value is borrowed from `object`, so the distance of the two addresses is its offset.
            let start = (value.get().as_ptr() as usize).checked_sub(base)?;
            found.push((index, start, start + value.get().len()));
        }
    }
    Some(found)
}

/// All members in order, repeated ones too.
struct Members<'a>(Vec<(std::borrow::Cow<'a, str>, &'a RawValue)>);

#[derive(Deserialize)]
struct Key<'a>(#[serde(borrow)] std::borrow::Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for Members<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct MembersVisitor;
        impl<'de> Visitor<'de> for MembersVisitor {
            type Value = Members<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members<'de>, A::Error> {
                let mut members = Vec::new();
                while let Some((Key(key), value)) = map.next_entry::<Key<'de>, &'de RawValue>()? {
                    members.push((key, value));
                }
                Ok(Members(members))
            }
        }
        deserializer.deserialize_map(MembersVisitor)
    }
}

#[cfg(test)]
mod tests;
