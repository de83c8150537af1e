//! Writes messages: an envelope around payloads that stay text.
//!
//! Each message is one line. Line breaks between the tokens of a payload become spaces, because a line is a frame on stdio
//! and a field on SSE (2026-07-28/basic/transports/stdio).

use std::borrow::Cow;

use bytes::Bytes;

use super::{
    McpError, Method, RequestId, Revision,
    json::{quoted, replace_line_breaks},
};

/// The beginning of a notification, up to its method.
const NOTIFICATION_HEAD: &str = r#"{"jsonrpc":"2.0","method":"#;

/// Returns the response to a request that succeeded. `result` is JSON text. Only its line breaks are changed.
#[must_use]
pub fn result(id: &RequestId, result: &str) -> Bytes {
    concat(&[r#"{"jsonrpc":"2.0","id":"#, id.as_json(), r#","result":"#, result, "}"])
}

/// Returns the response to a request that failed. Without an id, the revision decides whether the member is `null` or
/// absent.
#[must_use]
pub fn error(id: Option<&RequestId>, error: &McpError, revision: Revision) -> Bytes {
    let id = match id {
        Some(id) => Some(id.as_json()),
        None if revision.rules().null_id_on_unreadable => Some("null"),
        None => None,
    };
    let id = id.map_or_else(String::new, |id| format!(r#","id":{id}"#));
    let data = match &error.passthrough {
        Some(foreign) => foreign.data.as_deref().map(Cow::Borrowed),
        None => Some(Cow::Owned(error.data().to_string())),
    };
    let data = data.map_or_else(String::new, |data| format!(r#","data":{data}"#));
    let (code, message) = (error.number(revision), quoted(&error.message));
    Bytes::from(format!(r#"{{"jsonrpc":"2.0"{id},"error":{{"code":{code},"message":{message}{data}}}}}"#))
}

/// Returns a notification, which is never answered. `params` is the JSON text of an object.
#[must_use]
pub fn notification(method: &str, params: Option<&str>) -> Bytes {
    message(&[NOTIFICATION_HEAD], method, params)
}

/// Returns the method of a notification that was written by [`notification`], or `None` for other messages.
#[must_use]
pub fn notified_method(message: &[u8]) -> Option<Method> {
    let method = message.strip_prefix(NOTIFICATION_HEAD.as_bytes())?.strip_prefix(b"\"")?;
    let end = method.iter().position(|byte| *byte == b'"')?;
    Method::parse(std::str::from_utf8(method.get(..end)?).ok()?)
}

/// Returns a request, which must be answered. `params` is the JSON text of an object.
#[must_use]
pub fn request(id: &RequestId, method: &str, params: Option<&str>) -> Bytes {
    message(&[r#"{"jsonrpc":"2.0","id":"#, id.as_json(), r#","method":"#], method, params)
}

fn message(head: &[&str], method: &str, params: Option<&str>) -> Bytes {
    let method = quoted(method);
    let tail: [&str; 3] = params.map_or(["}", "", ""], |params| [r#","params":"#, params, "}"]);
    concat(&[head, &[method.as_str()], &tail].concat())
}

/// Joins the responses to a batch (2025-03-26/basic/index, "Batching"). Without parts the result is an empty array,
/// which must not be sent.
#[must_use]
pub fn batch(parts: &[Bytes]) -> Bytes {
    [b"[".as_slice(), &parts.join(b",".as_slice()), b"]"].concat().into()
}

/// Concatenates the parts in one allocation of the exact size, and replaces line breaks by spaces.
fn concat(parts: &[&str]) -> Bytes {
    let mut out = parts.concat().into_bytes();
    replace_line_breaks(&mut out);
    Bytes::from(out)
}

#[cfg(test)]
mod tests;
