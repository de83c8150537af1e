//! What links read of messages to know whose they are, and the messages that they write themselves.

use std::collections::HashMap;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;

use countersign_protocol::{
    RequestId, encode,
    json::{one_line, quoted},
    rpc_error::RpcError,
};

/// The fields that tell whose a message is.
#[derive(Default, Deserialize)]
pub(super) struct Hints<'a> {
    #[serde(borrow, rename = "progressToken", default)]
    pub(super) progress_token: Option<&'a RawValue>,
    #[serde(borrow, rename = "requestId", default)]
    pub(super) request_id: Option<&'a RawValue>,
    #[serde(borrow, rename = "_meta", default)]
    meta: Option<MetaHints<'a>>,
}

#[derive(Deserialize)]
struct MetaHints<'a> {
    #[serde(borrow, rename = "io.modelcontextprotocol/subscriptionId", default)]
    subscription_id: Option<&'a RawValue>,
}

impl<'a> Hints<'a> {
    pub(super) fn of(params: Option<&'a RawValue>) -> Self {
        params.and_then(|params| serde_json::from_str(params.get()).ok()).unwrap_or_default()
    }

    /// The request whose subscription it belongs to.
    pub(super) fn subscription(&self) -> Option<&'a RawValue> {
        self.meta.as_ref().and_then(|meta| meta.subscription_id)
    }
}

/// Ids of ours are integers. Servers that give them back as strings are understood by the official SDKs, too.
pub(super) fn integer(raw: &RawValue) -> Option<u64> {
    RequestId::from_json(raw.get()).as_ref().and_then(own_id)
}

pub(super) fn own_id(id: &RequestId) -> Option<u64> {
    let text = id.as_json();
    text.strip_prefix('"').and_then(|text| text.strip_suffix('"')).unwrap_or(text).parse().ok()
}

/// Whose a notification is, by its method and what it says, on a link with one stream for everything.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Whose {
    /// It takes a request of the server's back, or ends a subscription.
    Cancelled,
    /// Of the request with that token, which is its id.
    Progress(Option<u64>),
    /// Of that subscription.
    Subscription(Option<u64>),
    /// About the server as a whole, and so never about one request.
    Server,
    /// Of the one request in flight, if it is exactly one.
    OnlyOne,
}

impl Whose {
    pub(super) fn of(method: &str, params: Option<&RawValue>) -> Self {
        let hints = Hints::of(params);
        match method {
            "notifications/cancelled" => Self::Cancelled,
            "notifications/progress" => Self::Progress(hints.progress_token.and_then(integer)),
            _ => match hints.subscription() {
                Some(id) => Self::Subscription(integer(id)),
                None if is_about_server(method) => Self::Server,
                None => Self::OnlyOne,
            },
        }
    }
}

/// Whether a notification is about the server as a whole and so never about one request, however it came.
pub(super) fn is_about_server(method: &str) -> bool {
    method.ends_with("/list_changed") || method == "notifications/resources/updated"
}

/// The one request in flight, if it is exactly one. A `subscriptions/listen` does not count: it always is, and its messages
/// say that they are its own (2026-07-28/basic/patterns/subscriptions).
pub(super) fn only_one<T>(flights: &HashMap<u64, T>, listens: impl Fn(&T) -> bool) -> Option<(u64, &T)> {
    let mut calls = flights.iter().filter(|(_, flight)| !listens(flight));
    let (id, flight) = calls.next()?;
    calls.next().is_none().then_some((*id, flight))
}

/// Whose cancellation a `notifications/cancelled` is.
pub(super) fn cancelled_id(params: Option<&RawValue>) -> Option<RequestId> {
    Hints::of(params).request_id.and_then(|id| RequestId::from_json(id.get()))
}

/// `notifications/cancelled` for a request of ours.
pub(super) fn cancelled(id: u64) -> Line {
    let params = format!(r#"{{"requestId":{id},"reason":"the client does not wait any longer"}}"#);
    notification("notifications/cancelled", Some(&params))
}

/// A JSON-RPC notification.
pub(super) fn notification(method: &str, params: Option<&str>) -> Line {
    Line(encode::notification(method, params))
}

/// A JSON-RPC response.
pub(super) fn response(id: &RequestId, outcome: Result<&str, &RpcError>) -> Line {
    match outcome {
        Ok(result) => Line(encode::result(id, result)),
        Err(error) => {
            let message = quoted(&error.message);
            let data = error.data.as_ref().map_or_else(String::new, |data| format!(r#","data":{data}"#));
            let error = format!(r#"{{"code":{},"message":{message}{data}}}"#, error.code);
            Line::of(format!(r#"{{"jsonrpc":"2.0","id":{},"error":{error}}}"#, id.as_json()).into())
        }
    }
}

/// A message on one line, which on stdio is a frame: what a client wrote may stand on several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line(Bytes);

impl Line {
    /// Of JSON text, copied only where it has line breaks.
    #[must_use]
    pub fn of(text: Bytes) -> Self {
        if memchr::memchr2(b'\n', b'\r', &text).is_none() {
            return Self(text);
        }
        let mut text = text.to_vec();
        one_line(&mut text);
        Self(text.into())
    }
}

impl From<Line> for Bytes {
    fn from(line: Line) -> Self {
        line.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_written_as_they_are() {
        let error = RpcError {
            code: -1,
            message: "no \"way\"".into(),
            data: serde_json::from_str("[1.0]").unwrap(),
            status: None,
        };
        let text = response(&RequestId::from_json("5").unwrap(), Err(&error));
        assert_eq!(&text.0[..], br#"{"jsonrpc":"2.0","id":5,"error":{"code":-1,"message":"no \"way\"","data":[1.0]}}"#);
    }
}
