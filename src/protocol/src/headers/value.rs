//! Decodes and encodes header values: allowed characters, surrounding whitespace, and the Base64 form
//! (2026-07-28/basic/transports/streamable-http, "Value Encoding").

use std::borrow::Cow;

use base64::{Engine, engine::general_purpose::STANDARD};

use super::{invalid_characters, mismatch};
use crate::McpError;

/// Returns the value without surrounding whitespace, or `None` if it has other characters than visible ASCII, spaces
/// and tabs.
pub(crate) fn visible_ascii(value: &[u8]) -> Option<&str> {
    std::str::from_utf8(visible_bytes(value)?).ok()
}

/// Like [`visible_ascii`], but returns bytes, which skips the UTF-8 check.
pub(super) fn visible_bytes(value: &[u8]) -> Option<&[u8]> {
    let value = value.trim_ascii();
    value.iter().all(|b| matches!(b, b'\t' | b' '..=b'~')).then_some(value)
}

/// Encodes a value for a header: unchanged if possible, else in the Base64 form.
#[must_use]
pub fn encode_value(value: &str) -> Cow<'_, str> {
    let bytes = value.as_bytes();
    let edge = |byte: Option<&u8>| matches!(byte, Some(b' ' | b'\t'));
    let plain = bytes.iter().all(|b| matches!(b, b'\t' | b' '..=b'~'));
    let marked = value.starts_with("=?base64?") && value.ends_with("?=");
    let safe = plain && !marked && !edge(bytes.first()) && !edge(bytes.last());
    if safe { Cow::Borrowed(value) } else { Cow::Owned(format!("=?base64?{}?=", STANDARD.encode(bytes))) }
}

/// Decodes the Base64 form of a value. The markers are case-sensitive; other values are returned unchanged.
///
/// # Errors
/// `-32020` for characters that a header must not have, and for a marked value that is not Base64 of UTF-8 text.
pub(crate) fn decode_value<'a>(name: &str, value: &'a [u8]) -> Result<Cow<'a, str>, McpError> {
    let text = visible_ascii(value).ok_or_else(|| invalid_characters(name))?;
    let Some(inner) = text.strip_prefix("=?base64?").and_then(|rest| rest.strip_suffix("?=")) else {
        return Ok(Cow::Borrowed(text));
    };
    STANDARD
        .decode(inner)
        .ok()
        .and_then(|bytes| String::from_utf8(bytes).ok())
        .map(Cow::Owned)
        .ok_or_else(|| mismatch(name, "is marked as Base64 and cannot be decoded"))
}
