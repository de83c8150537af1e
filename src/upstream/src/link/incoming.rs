//! Parses the messages of upstreams over all transports. The depth of messages is limited, and no input causes a panic.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::{LinkError, Response, UpstreamNotification};
use countersign_protocol::{
    envelope::{self, Incoming, Limits, Message, Notification},
    redact::redact,
    rpc_error::RpcError,
};

/// Maximum bytes of one message from an upstream.
pub const MAX_MESSAGE_BYTES: usize = 16 << 20;
/// Maximum number of messages in a batch, which servers of 2025-03-26 and before may send.
const MAX_BATCH: usize = 1000;

/// Text that is not a message.
#[derive(Debug)]
pub struct MalformedMessage<'a> {
    pub text: &'a [u8],
    pub why: Cow<'static, str>,
}

impl MalformedMessage<'_> {
    /// Returns [`LinkError::Lost`] if the end of the text seems to be missing, and [`LinkError::Protocol`] otherwise.
    #[must_use]
    pub fn to_error(&self) -> LinkError {
        if serde_json::from_slice::<serde::de::IgnoredAny>(self.text).is_err_and(|error| error.is_eof()) {
            LinkError::Lost("its answer broke off".to_owned())
        } else {
            LinkError::Protocol(self.why.to_string())
        }
    }
}

/// Parses one message, or all messages of a batch in order (2025-03-26/basic/index, "Batching").
pub fn read<'a>(text: &'a [u8], mut handle: impl FnMut(Result<Message<'a>, MalformedMessage<'a>>)) {
    // Some servers write a byte order mark, which readers may ignore (RFC 8259, section 8.1).
    let text = text.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(text);
    match envelope::parse(text, &Limits { max_batch: MAX_BATCH, ..Limits::default() }) {
        Ok(Incoming::Single(message)) => handle(Ok(message)),
        Ok(Incoming::Batch(messages)) => {
            let has_faults = messages.iter().any(Result::is_err);
            let texts: Vec<&RawValue> =
                if has_faults { serde_json::from_slice(text).unwrap_or_default() } else { Vec::new() };
            for (index, message) in messages.into_iter().enumerate() {
                let text = texts.get(index).map_or("", |text| text.get()).as_bytes();
                handle(message.map_err(|fault| MalformedMessage { text, why: fault.error.message.clone() }));
            }
        }
        Err(fault) => handle(Err(MalformedMessage { text, why: fault.error.message.clone() })),
    }
}

impl From<Notification<'_>> for UpstreamNotification {
    fn from(notification: Notification<'_>) -> Self {
        Self { method: notification.method.into_owned(), params: notification.params.map(ToOwned::to_owned) }
    }
}

/// Copies the payload of a response.
pub fn response_from(outcome: Result<&RawValue, &RawValue>) -> Response {
    #[derive(Deserialize)]
    struct ErrorObject {
        code: i64,
        #[serde(default)]
        message: String,
        data: Option<Box<RawValue>>,
    }
    let error = match outcome {
        Ok(result) => return Response::Result(result.to_owned()),
        Err(error) => error,
    };
    Response::Error(match serde_json::from_str::<ErrorObject>(error.get()) {
        Ok(ErrorObject { code, message, data }) => RpcError { code, message, data, status: None },
        // A malformed error is still an error, and its text is kept.
        Err(_) => RpcError {
            code: -32603,
            message: "the server answered with a malformed error".to_owned(),
            data: Some(error.to_owned()),
            status: None,
        },
    })
}

/// Maximum bytes in which secrets are redacted. Excerpts are much shorter, so that this limit cuts no visible secret.
const MAX_REDACTED_BYTES: usize = 64 << 10;

/// Returns the first kilobyte of an upstream's text on one line, without secrets and control characters.
#[must_use]
pub fn escape_excerpt(bytes: &[u8]) -> String {
    escape_beginning(bytes, 1024)
}

/// Does the same as [`escape_excerpt`] for the first `max` bytes. Secrets are redacted before the text is cut, because a cut
/// could leave the beginning of a secret.
pub fn escape_beginning(bytes: &[u8], max: usize) -> String {
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(MAX_REDACTED_BYTES)]);
    let text = redact(&text);
    let text = &text[..text.floor_char_boundary(max)];
    text.chars().map(|c| if c.is_control() { c.escape_default().to_string() } else { c.to_string() }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn response(text: &str) -> Response {
        let mut found = None;
        read(text.as_bytes(), |message| match message {
            Ok(Message::Response(response)) => found = Some(response_from(response.outcome)),
            other => panic!("{other:?}"),
        });
        found.unwrap()
    }

    #[test]
    fn result_keeps_its_text() {
        let text = r#"{"jsonrpc":"2.0","id":7,"result":{"n":12345678901234567890123, "b" : 1e2}}"#;
        let Response::Result(result) = response(text) else { panic!() };
        assert_eq!(result.get(), r#"{"n":12345678901234567890123, "b" : 1e2}"#);
    }

    #[test]
    fn error_keeps_code_message_and_data() {
        let text = r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32022,"message":"no","data":{"x":1.50}}}"#;
        let Response::Error(error) = response(text) else { panic!() };
        assert_eq!((error.code, error.message.as_str()), (-32022, "no"));
        assert_eq!(error.data.as_ref().unwrap().get(), r#"{"x":1.50}"#);

        let text = r#"{"jsonrpc":"2.0","id":1,"error":{"code":"boom"}}"#;
        let Response::Error(error) = response(text) else { panic!() };
        assert_eq!(error.code, -32603);
        assert_eq!(error.data.as_ref().unwrap().get(), r#"{"code":"boom"}"#);
    }

    #[test]
    fn batch_is_read_in_order_with_malformed_members() {
        let text = r#"[{"jsonrpc":"2.0","method":"a"},7,{"jsonrpc":"2.0","id":"q","method":"b","params":{}}]"#;
        let mut found = Vec::new();
        read(text.as_bytes(), |message| {
            found.push(match &message {
                Ok(Message::Request(request)) => request.method.to_string(),
                Ok(Message::Notification(notification)) => notification.method.to_string(),
                Ok(Message::Response(_)) => "response".to_owned(),
                Err(malformed) => String::from_utf8(malformed.text.to_vec()).unwrap(),
            });
        });
        assert_eq!(found, ["a", "7", "b"]);
    }

    #[test]
    fn truncated_text_is_lost_and_garbage_a_protocol_error() {
        let is_lost = |text: &str| {
            let mut error = None;
            read(text.as_bytes(), |message| error = Some(message.unwrap_err().to_error()));
            matches!(error.unwrap(), LinkError::Lost(_))
        };
        assert!(is_lost(r#"{"jsonrpc":"2.0","id":1,"resu"#));
        assert!(is_lost(""));
        assert!(!is_lost("<html>"));
        assert!(!is_lost("{}"));
        assert!(!is_lost(&format!(r#"{{"jsonrpc":"2.0","id":1,"result":{}{}}}"#, "[".repeat(500), "]".repeat(500))));
    }

    #[test]
    fn excerpt_is_short_and_without_control_characters() {
        assert_eq!(escape_excerpt(b"a\x1b[31m\nb\xff"), "a\\u{1b}[31m\\nb\u{fffd}");
        assert_eq!(escape_excerpt(&[b'x'; 5000]).len(), 1024);
    }

    #[test]
    fn excerpt_cuts_no_secret_in_two() {
        const SECRET: &str = "shown-secret-0123456789";
        countersign_protocol::redact::register_secrets([SECRET.to_owned()]);
        for before in 1024 - SECRET.len()..=1024 {
            let shown = escape_excerpt(format!("{}{SECRET} and more", "x".repeat(before)).as_bytes());
            assert!(!shown.contains("xs") && shown.len() <= 1024, "{before}: {shown}");
        }
    }
}
