//! Checks tool arguments that go to review, and hashes what was reviewed.
//!
//! Two parsers of `{"a":1,"a":2}` may see two different values: the reviewer one and the provider the other. Duplicate
//! keys are therefore refused at any depth, in one pass over the text without recursion.

use std::{borrow::Cow, collections::HashSet, io};

use serde_json::{Value, value::RawValue};
use sha2::{Digest, Sha256};

use super::{
    ErrorKind, McpError,
    json::{Token, string, tokens},
};

mod text_hash;
pub use text_hash::canonical_text_hash;

/// Rejects duplicate keys at any depth (compared after unescaping) and nesting deeper than `max_depth`.
///
/// # Errors
/// `InvalidParams` with the reason, and with `data.key` or `data.maxDepth`.
pub fn check(raw: &RawValue, max_depth: usize) -> Result<(), McpError> {
    let invalid = |message| McpError::new(ErrorKind::InvalidParams, message).with("member", "arguments");
    // The keys of each open container; an array has none.
    let mut open: Vec<SeenKeys<'_>> = Vec::new();
    for token in tokens(raw.get()) {
        match token {
            Token::Open(_) if open.len() >= max_depth => {
                let message = format!("`params.arguments` are nested deeper than {max_depth} levels");
                return Err(invalid(Cow::Owned(message)).with("maxDepth", max_depth));
            }
            Token::Open(_) => open.push(SeenKeys::default()),
            Token::Close(_) => _ = open.pop(),
            Token::Key(key) => {
                let Some(key) = string(key) else {
                    return Err(invalid("`params.arguments` have a key that is not valid Unicode".into()));
                };
                if let Some(key) = open.last_mut().and_then(|keys| keys.insert(key)) {
                    let shortened: String = key.chars().take(128).collect();
                    let message = "`params.arguments` have a key more than once in one object";
                    return Err(invalid(message.into()).with("key", shortened));
                }
            }
            Token::String(_) | Token::Scalar(_) | Token::Comma => {}
        }
    }
    Ok(())
}

/// Keys seen so far in one object. Most objects have few keys, and comparing them is faster than hashing.
enum SeenKeys<'a> {
    Few(Vec<Cow<'a, str>>),
    Many(HashSet<Cow<'a, str>>),
}

impl Default for SeenKeys<'_> {
    fn default() -> Self {
        Self::Few(Vec::new())
    }
}

impl<'a> SeenKeys<'a> {
    const MAX_LINEAR_KEYS: usize = 12;

    /// Adds a key, or returns it if it was added before.
    fn insert(&mut self, key: Cow<'a, str>) -> Option<Cow<'a, str>> {
        match self {
            Self::Few(keys) if keys.contains(&key) => Some(key),
            Self::Few(keys) if keys.len() < Self::MAX_LINEAR_KEYS => {
                keys.push(key);
                None
            }
            Self::Few(keys) => {
                let mut set: HashSet<_> = std::mem::take(keys).into_iter().collect();
                set.insert(key);
                *self = Self::Many(set);
                None
            }
            Self::Many(keys) => match keys.contains(&key) {
                true => Some(key),
                false => {
                    keys.insert(key);
                    None
                }
            },
        }
    }
}

/// Returns `sha256:<hex>` of a JSON value with the keys of its objects sorted. Equal values have equal hashes, whatever
/// their formatting; numbers are compared as written (`1` and `1.0` differ).
#[must_use]
pub fn canonical_hash(value: &Value) -> String {
    let mut sink = HashWriter(Sha256::new());
    write_canonical(&mut sink, value);
    format_digest(sink.0)
}

/// Returns `sha256:<hex>` of the bytes, unchanged.
#[must_use]
pub fn text_hash(bytes: &[u8]) -> String {
    format_digest(Sha256::new().chain_update(bytes))
}

fn format_digest(hash: Sha256) -> String {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    let mut text = String::with_capacity(71);
    text.push_str("sha256:");
    for byte in hash.finalize() {
        text.push(char::from(HEX[usize::from(byte >> 4)]));
        text.push(char::from(HEX[usize::from(byte & 15)]));
    }
    text
}

/// Feeds everything that is written to it into a hash.
struct HashWriter(Sha256);

impl io::Write for HashWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes a value with sorted keys. It uses an explicit stack because deeply nested values would overflow the call
/// stack.
fn write_canonical(sink: &mut HashWriter, value: &Value) {
    enum Step<'a> {
        Text(&'static [u8]),
        Key(&'a str),
        Value(&'a Value),
    }
    let mut steps = vec![Step::Value(value)];
    while let Some(step) = steps.pop() {
        match step {
            Step::Text(text) => sink.0.update(text),
            Step::Key(key) => {
                write_scalar(sink, key);
                sink.0.update(b":");
            }
            Step::Value(Value::Array(items)) => {
                sink.0.update(b"[");
                steps.push(Step::Text(b"]"));
                for (i, item) in items.iter().enumerate().rev() {
                    steps.push(Step::Value(item));
                    if i > 0 {
                        steps.push(Step::Text(b","));
                    }
                }
            }
            Step::Value(Value::Object(members)) => {
                sink.0.update(b"{");
                steps.push(Step::Text(b"}"));
                let mut members: Vec<_> = members.iter().collect();
                members.sort_unstable_by_key(|(key, _)| *key);
                for (i, (key, value)) in members.into_iter().enumerate().rev() {
                    steps.push(Step::Value(value));
                    steps.push(Step::Key(key));
                    if i > 0 {
                        steps.push(Step::Text(b","));
                    }
                }
            }
            Step::Value(scalar) => write_scalar(sink, scalar),
        }
    }
}

fn write_scalar<T: serde::Serialize + ?Sized>(sink: &mut HashWriter, value: &T) {
    // Serializing strings, numbers, booleans and null cannot fail, and neither can writing to a hash.
    let _ = serde_json::to_writer(sink, value);
}

#[cfg(test)]
mod tests;
