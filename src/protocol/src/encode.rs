//! Writes messages: an envelope around payloads that stay text.
//!
//! Each message is one line, and each except an error is one allocation. Line breaks between the tokens of a payload
//! become spaces, because a line is a frame on stdio and a field on SSE (2026-07-28/basic/transports/stdio).

use std::borrow::Cow;

use bytes::Bytes;

use super::{
    McpError, Method, RequestId, Revision,
    json::{push_quoted, quoted, replace_line_breaks},
};

/// The beginning of a notification, up to its method.
const NOTIFICATION_HEAD: &str = r#"{"jsonrpc":"2.0","method":"#;

/// Returns the response to a request that succeeded. `result` is JSON text. Only its line breaks are changed.
pub fn result(id: &RequestId, result: &str) -> Bytes {
    without_line_breaks([r#"{"jsonrpc":"2.0","id":"#, id.as_json(), r#","result":"#, result, "}"].concat())
}

/// Returns the response to a request that failed. Without an id, the revision decides whether the member is `null` or
/// absent.
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
pub fn notification(method: &str, params: Option<&str>) -> Bytes {
    message(&[NOTIFICATION_HEAD], method, params)
}

/// Returns the method of a notification that was written by [`notification`], or `None` for other messages.
pub fn notified_method(message: &[u8]) -> Option<Method> {
    let method = message.strip_prefix(NOTIFICATION_HEAD.as_bytes())?.strip_prefix(b"\"")?;
    let end = method.iter().position(|byte| *byte == b'"')?;
    Method::parse(std::str::from_utf8(method.get(..end)?).ok()?)
}

/// Returns a request, which must be answered. `params` is the JSON text of an object.
pub fn request(id: &RequestId, method: &str, params: Option<&str>) -> Bytes {
    message(&[r#"{"jsonrpc":"2.0","id":"#, id.as_json(), r#","method":"#], method, params)
}

fn message(head: &[&str], method: &str, params: Option<&str>) -> Bytes {
    let head_len: usize = head.iter().map(|part| part.len()).sum();
    // The method gets quotes. The gateway's own names need no escapes, but those of a peer may need them.
    let tail_len = params.map_or(0, |params| r#","params":"#.len() + params.len()) + 1;
    let mut out = String::with_capacity(head_len + method.len() + 2 + tail_len);
    out.extend(head.iter().copied());
    push_quoted(&mut out, method);
    if let Some(params) = params {
        out.push_str(r#","params":"#);
        out.push_str(params);
    }
    out.push('}');
    without_line_breaks(out)
}

/// Joins the responses to a batch (2025-03-26/basic/index, "Batching"). Without parts the result is an empty array,
/// which must not be sent.
pub fn batch(parts: &[Bytes]) -> Bytes {
    // The responses may be large, so they are copied once.
    let mut out = Vec::with_capacity(parts.iter().map(|part| part.len() + 1).sum::<usize>() + 1);
    out.push(b'[');
    for (index, part) in parts.iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        out.extend_from_slice(part);
    }
    out.push(b']');
    Bytes::from(out)
}

/// Replaces the line breaks of a message by spaces.
fn without_line_breaks(message: String) -> Bytes {
    let mut out = message.into_bytes();
    replace_line_breaks(&mut out);
    Bytes::from(out)
}

#[cfg(test)]
mod tests;
