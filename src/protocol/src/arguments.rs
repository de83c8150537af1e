//! Checks tool arguments that go to review, and hashes texts that were reviewed.
//!
//! Two parsers of `{"a":1,"a":2}` may see two different values: the reviewer could approve one value and the provider use the
//! other. Duplicate keys are therefore refused at any depth, in one pass over the text without recursion.

use std::{borrow::Cow, collections::HashSet};

use bytes::Bytes;
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};

use super::{
    ErrorKind, McpError,
    json::{Token, push_quoted, string, tokens},
};

/// A reserved key of `serde_json`, which parses an object that begins with this key as the JSON in its text. A
/// condition would see the parsed value, while a server sees the object.
pub const RAW_VALUE_KEY: &str = "$serde_json::private::RawValue";

/// Rejects duplicate keys at any depth (compared after unescaping), the key that `serde_json` reserves, and nesting deeper than
/// `max_depth`.
///
/// # Errors
/// `InvalidParams` with the reason, and with `data.key` for a key or `data.maxDepth` for deep nesting.
pub fn check(raw: &RawValue, max_depth: usize) -> Result<(), McpError> {
    let invalid = |message| McpError::new(ErrorKind::InvalidParams, message).with("member", "arguments");
    // The keys of each open object or array; an array has none.
    let mut open: Vec<HashSet<Cow<'_, str>>> = Vec::new();
    for token in tokens(raw.get()) {
        match token {
            Token::Open(_) if open.len() >= max_depth => {
                let message = format!("`params.arguments` is nested deeper than {max_depth} levels");
                return Err(invalid(Cow::Owned(message)).with("maxDepth", max_depth));
            }
            Token::Open(_) => open.push(HashSet::new()),
            Token::Close(_) => _ = open.pop(),
            Token::Key(key) => {
                let Some(key) = string(key) else {
                    return Err(invalid("`params.arguments` has a key that is not valid Unicode".into()));
                };
                if key == RAW_VALUE_KEY {
                    return Err(invalid("`params.arguments` has a reserved key".into()).with("key", RAW_VALUE_KEY));
                }
                if let Some(key) = open.last_mut().and_then(|keys| keys.replace(key)) {
                    let shortened: String = key.chars().take(128).collect();
                    let message = "`params.arguments` has a key more than once in one object";
                    return Err(invalid(message.into()).with("key", shortened));
                }
            }
            Token::String(_) | Token::Scalar(_) | Token::Comma => {}
        }
    }
    Ok(())
}

/// Returns `sha256:<hex>` of JSON text whose object members are sorted by key. Texts that differ only in spacing,
/// escapes and member order have equal hashes. Duplicate members count twice, and numbers count as written. Text that
/// is not JSON is hashed unchanged.
pub fn canonical_text_hash(text: &str) -> String {
    let canonical = serde_json::from_str::<&RawValue>(text).ok().and_then(|_| canonicalize(text));
    text_hash(canonical.as_deref().unwrap_or(text))
}

/// Returns `sha256:<hex>` of a text with plain SHA-256, so that standard tools can verify it.
pub fn text_hash(text: &str) -> String {
    // `Bytes` formats itself as hexadecimal, unlike the digest.
    format!("sha256:{:x}", Bytes::copy_from_slice(&Sha256::digest(text)))
}

/// Returns the text without whitespace, and with sorted members and uniform escapes. Returns `None` if a string is not valid
/// Unicode.
fn canonicalize(text: &str) -> Option<String> {
    let mut out = String::with_capacity(text.len());
    // The members of each open object or array, as key and start offset in `out`. An array has none.
    let mut open: Vec<Vec<(Cow<'_, str>, usize)>> = Vec::new();
    for token in tokens(text) {
        match token {
            Token::Open(brace) => {
                out.push(brace);
                open.push(Vec::new());
            }
            Token::Key(key) => {
                let key = string(key)?;
                let start = out.len();
                push_quoted(&mut out, &key);
                out.push(':');
                open.last_mut()?.push((key, start));
            }
            Token::String(text) => push_quoted(&mut out, &string(text)?),
            Token::Scalar(text) => out.push_str(text),
            Token::Comma => out.push(','),
            Token::Close(brace) => {
                sort_trailing_members(&mut out, &open.pop()?);
                out.push(brace);
            }
        }
    }
    Some(out)
}

/// Sorts the members that were written last to `out`.
fn sort_trailing_members(out: &mut String, members: &[(Cow<'_, str>, usize)]) {
    let Some((_, first)) = members.first().filter(|_| !members.is_sorted_by_key(|(key, _)| key)) else { return };
    let first = *first;
    let unsorted = out.split_off(first);
    // One comma separates each member from the next.
    let ends = members.iter().skip(1).map(|(_, start)| start - 1 - first).chain([unsorted.len()]);
    let mut sorted: Vec<_> = members.iter().zip(ends).map(|((key, start), stop)| (key, start - first..stop)).collect();
    // The sort is stable, so that duplicate members keep their order.
    sorted.sort_by_key(|(key, _)| *key);
    for (index, (_, range)) in sorted.into_iter().enumerate() {
        if index > 0 {
            out.push(',');
        }
        out.push_str(&unsorted[range]);
    }
}

#[cfg(test)]
mod tests;
