//! Checks on tool arguments that go to review, and the hashes that pin what was reviewed.
//!
//! Two readers of `{"a":1,"a":2}` may see two different values: the reviewer one, the provider the other.
//! So duplicate keys are refused at any depth, in one pass over the text that never recurses.

use std::{borrow::Cow, collections::HashSet, io};

use serde_json::{Value, value::RawValue};
use sha2::{Digest, Sha256};

use super::{ErrorKind, McpError};

mod text_hash;
pub use text_hash::canonical_text_hash;

/// Refuses duplicate keys at any depth (compared after unescaping) and too deep nesting.
///
/// # Errors
/// `InvalidParams` that says what is wrong, with `data.key` or `data.maxDepth`.
pub fn check(raw: &RawValue, max_depth: usize) -> Result<(), McpError> {
    let text = raw.get();
    let bytes = text.as_bytes();
    let mut open: Vec<Frame<'_>> = Vec::new();
    let mut i = 0;
    // The text is valid JSON, which `RawValue` guarantees: only the structure is followed here.
    while let Some(&byte) = bytes.get(i) {
        match byte {
            b'{' | b'[' => {
                if open.len() >= max_depth {
                    return Err(McpError::new(
                        ErrorKind::InvalidParams,
                        format!("`params.arguments` are nested deeper than {max_depth} levels"),
                    )
                    .with("member", "arguments")
                    .with("maxDepth", max_depth));
                }
                open.push(if byte == b'{' {
                    Frame::Object { keys: Keys::default(), key_next: true }
                } else {
                    Frame::Array
                });
            }
            b'}' | b']' => {
                open.pop();
            }
            b',' => {
                if let Some(Frame::Object { key_next, .. }) = open.last_mut() {
                    *key_next = true;
                }
            }
            b'"' => {
                let (end, escaped) = string_end(bytes, i + 1);
                if let Some(Frame::Object { keys, key_next }) = open.last_mut()
                    && std::mem::take(key_next)
                {
                    let key = unescape(text.get(i..=end).unwrap_or_default(), escaped)?;
                    if let Some(key) = keys.insert(key) {
                        let shown: String = key.chars().take(128).collect();
                        return Err(McpError::new(
                            ErrorKind::InvalidParams,
                            "`params.arguments` have a key more than once in one object",
                        )
                        .with("member", "arguments")
                        .with("key", shown));
                    }
                }
                i = end;
            }
            _ => {}
        }
        i += 1;
    }
    Ok(())
}

enum Frame<'a> {
    Array,
    Object { keys: Keys<'a>, key_next: bool },
}

/// The keys of one object so far. Most objects have few, and comparing those beats hashing them.
enum Keys<'a> {
    Few(Vec<Cow<'a, str>>),
    Many(HashSet<Cow<'a, str>>),
}

impl Default for Keys<'_> {
    fn default() -> Self {
        Self::Few(Vec::new())
    }
}

impl<'a> Keys<'a> {
    const FEW: usize = 12;

    /// Gives the key back if it is there already.
    fn insert(&mut self, key: Cow<'a, str>) -> Option<Cow<'a, str>> {
        match self {
            Self::Few(keys) if keys.contains(&key) => Some(key),
            Self::Few(keys) if keys.len() < Self::FEW => {
                keys.push(key);
                None
            }
            Self::Few(keys) => {
                let mut many: HashSet<_> = std::mem::take(keys).into_iter().collect();
                many.insert(key);
                *self = Self::Many(many);
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

/// The index of the quote that ends a string, and whether it has escapes.
fn string_end(bytes: &[u8], from: usize) -> (usize, bool) {
    let (mut i, mut escaped) = (from, false);
    while let Some(found) = bytes.get(i..).and_then(|rest| memchr::memchr2(b'"', b'\\', rest)) {
        i += found;
        if bytes[i] == b'"' {
            return (i, escaped);
        }
        escaped = true;
        i += 2;
    }
    (bytes.len(), escaped)
}

fn unescape(quoted: &str, escaped: bool) -> Result<Cow<'_, str>, McpError> {
    if !escaped {
        return Ok(Cow::Borrowed(quoted.get(1..quoted.len().saturating_sub(1)).unwrap_or_default()));
    }
    serde_json::from_str(quoted).map(Cow::Owned).map_err(|_| {
        McpError::new(ErrorKind::InvalidParams, "`params.arguments` have a key that is no Unicode text")
            .with("member", "arguments")
    })
}

/// `sha256:<hex>` of a JSON value with the keys of its objects in order: equal for equal values, however they
/// were written. Numbers count as they are written (`1` and `1.0` differ).
#[must_use]
pub fn canonical_hash(value: &Value) -> String {
    let mut sink = Sink(Sha256::new());
    write_canonical(&mut sink, value);
    finish(sink.0)
}

/// `sha256:<hex>` of bytes as they are.
#[must_use]
pub fn text_hash(bytes: &[u8]) -> String {
    finish(Sha256::new().chain_update(bytes))
}

fn finish(hash: Sha256) -> String {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    let mut text = String::with_capacity(71);
    text.push_str("sha256:");
    for byte in hash.finalize() {
        text.push(char::from(HEX[usize::from(byte >> 4)]));
        text.push(char::from(HEX[usize::from(byte & 15)]));
    }
    text
}

/// Hashes what is written to it.
struct Sink(Sha256);

impl io::Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes a value with sorted keys. A stack of its own instead of recursion: values may come from anywhere.
fn write_canonical(sink: &mut Sink, value: &Value) {
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

fn write_scalar<T: serde::Serialize + ?Sized>(sink: &mut Sink, value: &T) {
    // Neither strings, numbers, booleans and null nor a hash can refuse to be written.
    let _ = serde_json::to_writer(sink, value);
}

#[cfg(test)]
mod tests;
