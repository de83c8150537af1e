//! What an upstream sent, taken apart: which message it is, and its payloads as they were written.
//!
//! Whatever the transport, bytes from an upstream come through here: bounded in depth, never a panic.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::{Response, UpstreamNotification};
use countersign_protocol::{
    RequestId,
    envelope::{self, Incoming, Limits, Message},
    redact::redact,
    rpc_error::RpcError,
};

/// Bytes of one message from an upstream.
pub const MAX_MESSAGE: usize = 16 << 20;

/// One message of an upstream.
#[derive(Debug)]
pub enum Received {
    Answer {
        /// `None` only with an error: the upstream could not read what it answers.
        id: Option<RequestId>,
        response: Response,
    },
    Notification(UpstreamNotification),
    Request {
        id: RequestId,
        method: String,
        params: Option<Box<RawValue>>,
    },
}

/// Why bytes are no message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreadable {
    /// For the log.
    pub why: String,
    /// It looks as if its end were missing.
    pub cut_off: bool,
}

/// Reads one message, or each one of a batch (2025-03-26/basic/index, "Batching"), in order.
///
/// # Errors
/// Where the bytes are no message at all. Members of a batch that are none are left out.
pub fn read(text: &[u8], mut each: impl FnMut(Received)) -> Result<(), Unreadable> {
    // A byte order mark is no JSON, but servers write it (RFC 8259, section 8.1, lets readers ignore it).
    let text = text.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(text);
    match envelope::parse(text, &Limits::default()) {
        Ok(Incoming::Single(message)) => each(owned(message)),
        Ok(Incoming::Batch(messages)) => {
            for message in messages {
                match message {
                    Ok(message) => each(owned(message)),
                    Err(fault) => tracing::debug!(error = %fault.error.message, "a member of a batch is no message"),
                }
            }
        }
        Err(fault) => return Err(Unreadable { why: fault.error.message.to_string(), cut_off: is_cut_off(text) }),
    }
    Ok(())
}

fn is_cut_off(text: &[u8]) -> bool {
    serde_json::from_slice::<serde::de::IgnoredAny>(text).is_err_and(|e| e.is_eof())
}

fn owned(message: Message<'_>) -> Received {
    match message {
        Message::Response(response) => Received::Answer { id: response.id, response: response_of(response.outcome) },
        Message::Notification(notification) => Received::Notification(UpstreamNotification {
            method: notification.method.into_owned(),
            params: notification.params.map(ToOwned::to_owned),
        }),
        Message::Request(request) => Received::Request {
            id: request.id,
            method: request.method.into_owned(),
            params: request.params.map(ToOwned::to_owned),
        },
    }
}

/// Copies what a response says.
pub fn response_of(outcome: Result<&RawValue, &RawValue>) -> Response {
    match outcome {
        Ok(result) => Response::Result(result.to_owned()),
        Err(error) => Response::Error(error_object(error)),
    }
}

#[derive(Deserialize)]
struct ErrorObject {
    code: i64,
    #[serde(default)]
    message: String,
    data: Option<Box<RawValue>>,
}

fn error_object(raw: &RawValue) -> RpcError {
    match serde_json::from_str::<ErrorObject>(raw.get()) {
        Ok(ErrorObject { code, message, data }) => RpcError { code, message, data, status: None },
        // It is an error all the same; what it says of itself is kept.
        Err(_) => RpcError {
            code: -32603,
            message: "the server answered with a malformed error".to_owned(),
            data: Some(raw.to_owned()),
            status: None,
        },
    }
}

/// Bytes of what an upstream wrote in which secrets are looked for. So much more than is shown that none is cut in two.
const READ: usize = 64 << 10;

/// The first kilobyte of what an upstream wrote, on one line and with nothing that a terminal would obey.
#[must_use]
pub fn shown(bytes: &[u8]) -> String {
    beginning(bytes, 1024)
}

/// As [`shown`], of fewer bytes. Secrets go before the cut, which could leave the beginning of one.
pub fn beginning(bytes: &[u8], max: usize) -> String {
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(READ)]);
    let text = redact(&text);
    let text = &text[..text.floor_char_boundary(max)];
    text.chars().map(|c| if c.is_control() { c.escape_default().to_string() } else { c.to_string() }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(text: &str) -> Vec<Received> {
        let mut found = Vec::new();
        read(text.as_bytes(), |received| found.push(received)).unwrap();
        found
    }

    #[test]
    fn payloads_stay_as_they_were_written() {
        let found = all(r#"{"jsonrpc":"2.0","id":7,"result":{"n":12345678901234567890123, "b" : 1e2}}"#);
        let [Received::Answer { id: Some(id), response: Response::Result(result) }] = &found[..] else {
            panic!("{found:?}")
        };
        assert_eq!(id.as_json(), "7");
        assert_eq!(result.get(), r#"{"n":12345678901234567890123, "b" : 1e2}"#);
    }

    #[test]
    fn errors_keep_code_message_and_data() {
        let found = all(r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32022,"message":"no","data":{"x":1.50}}}"#);
        let [Received::Answer { id: None, response: Response::Error(error) }] = &found[..] else { panic!("{found:?}") };
        assert_eq!((error.code, error.message.as_str()), (-32022, "no"));
        assert_eq!(error.data.as_ref().unwrap().get(), r#"{"x":1.50}"#);

        let found = all(r#"{"jsonrpc":"2.0","id":1,"error":{"code":"boom"}}"#);
        let [Received::Answer { response: Response::Error(error), .. }] = &found[..] else { panic!("{found:?}") };
        assert_eq!(error.code, -32603);
        assert_eq!(error.data.as_ref().unwrap().get(), r#"{"code":"boom"}"#);
    }

    #[test]
    fn batches_are_taken_apart_and_bad_members_left_out() {
        let found = all(r#"[{"jsonrpc":"2.0","method":"a"},7,{"jsonrpc":"2.0","id":"q","method":"b","params":{}}]"#);
        assert!(matches!(&found[..], [Received::Notification(a), Received::Request { method, .. }]
            if a.method == "a" && method == "b"));
    }

    #[test]
    fn what_is_cut_off_is_told_from_garbage() {
        let why = |text: &str| read(text.as_bytes(), |_| {}).unwrap_err().cut_off;
        assert!(why(r#"{"jsonrpc":"2.0","id":1,"resu"#));
        assert!(why(""));
        assert!(!why("<html>"));
        assert!(!why("{}"));
        assert!(!why(&format!(r#"{{"jsonrpc":"2.0","id":1,"result":{}{}}}"#, "[".repeat(500), "]".repeat(500))));
    }

    #[test]
    fn what_is_shown_is_short_and_harmless() {
        assert_eq!(shown(b"a\x1b[31m\nb\xff"), "a\\u{1b}[31m\\nb\u{fffd}");
        assert_eq!(shown(&[b'x'; 5000]).len(), 1024);
    }

    #[test]
    fn what_is_shown_ends_within_no_secret() {
        const SECRET: &str = "shown-secret-0123456789";
        countersign_protocol::redact::register_secrets([SECRET.to_owned()]);
        for before in 1024 - SECRET.len()..=1024 {
            let shown = shown(format!("{}{SECRET} and more", "x".repeat(before)).as_bytes());
            assert!(!shown.contains("xs") && shown.len() <= 1024, "{before}: {shown}");
        }
    }
}
