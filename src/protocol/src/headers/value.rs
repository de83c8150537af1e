//! Header values: their characters, surrounding whitespace, and the Base64 form for what ASCII cannot hold.
//! (2026-07-28/basic/transports/streamable-http, "Value Encoding")

use std::borrow::Cow;

use base64::{Engine, engine::general_purpose::STANDARD};

use super::{invalid_characters, mismatch};
use crate::McpError;

/// The value without surrounding whitespace, if it has only visible ASCII, spaces and tabs.
pub(crate) fn visible_ascii(value: &[u8]) -> Option<&str> {
    std::str::from_utf8(visible_bytes(value)?).ok()
}

/// As [`visible_ascii`], for whoever only compares it.
pub(super) fn visible_bytes(value: &[u8]) -> Option<&[u8]> {
    let value = value.trim_ascii();
    value.iter().all(|b| matches!(b, b'\t' | b' '..=b'~')).then_some(value)
}

/// The value as a header can hold it: as it is, or in the Base64 form.
#[must_use]
pub fn encode_value(value: &str) -> Cow<'_, str> {
    let bytes = value.as_bytes();
    let edge = |byte: Option<&u8>| matches!(byte, Some(b' ' | b'\t'));
    let plain = bytes.iter().all(|b| matches!(b, b'\t' | b' '..=b'~'));
    let marked = value.starts_with("=?base64?") && value.ends_with("?=");
    let safe = plain && !marked && !edge(bytes.first()) && !edge(bytes.last());
    if safe { Cow::Borrowed(value) } else { Cow::Owned(format!("=?base64?{}?=", STANDARD.encode(bytes))) }
}

/// The value with the Base64 form undone. The markers are case-sensitive; anything else is taken as it is.
///
/// # Errors
/// `-32020` for characters that a header must not have, and for what is marked as Base64 and is not, or is
/// not UTF-8.
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
