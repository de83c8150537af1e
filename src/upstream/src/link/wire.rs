//! Attribution of messages to requests, and the messages that links send themselves.

use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;

use countersign_protocol::{
    RequestId, encode,
    json::{quoted, replace_line_breaks},
    rpc_error::RpcError,
};

/// The members of `params` that attribute a message to a request.
#[derive(Default, Deserialize)]
#[serde(default)]
struct AttributionHints<'a> {
    #[serde(borrow, rename = "progressToken")]
    progress_token: Option<&'a RawValue>,
    #[serde(borrow, rename = "requestId")]
    request_id: Option<&'a RawValue>,
    #[serde(borrow, rename = "_meta")]
    meta: Option<MetaHints<'a>>,
}

#[derive(Deserialize)]
struct MetaHints<'a> {
    #[serde(borrow, default, rename = "io.modelcontextprotocol/subscriptionId")]
    subscription_id: Option<&'a RawValue>,
}

impl<'a> AttributionHints<'a> {
    fn from_params(params: Option<&'a RawValue>) -> Self {
        params.and_then(|params| serde_json::from_str(params.get()).ok()).unwrap_or_default()
    }
}

/// Parses an id of the gateway, which is an integer. A string is accepted too, because the official SDKs accept one.
pub(super) fn parse_gateway_id(raw: &RawValue) -> Option<u64> {
    RequestId::from_json(raw.get()).as_ref().and_then(gateway_id)
}

/// Returns an id of the gateway as an integer, or `None` for any other id.
pub(super) fn gateway_id(id: &RequestId) -> Option<u64> {
    let text = id.as_json();
    text.strip_prefix('"').and_then(|text| text.strip_suffix('"')).unwrap_or(text).parse().ok()
}

/// The request or other subject of a notification on a link with one stream for everything.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Attribution {
    /// The server cancels a request of its own, or ends a subscription.
    Cancelled,
    /// The progress of the request with this id, which is its progress token.
    Progress(Option<u64>),
    /// The subscription with this id.
    Subscription(Option<u64>),
    /// The server as a whole.
    Server,
    /// The only request in flight, if there is exactly one.
    OnlyRequest,
}

impl Attribution {
    pub(super) fn from_notification(method: &str, params: Option<&RawValue>) -> Self {
        let hints = AttributionHints::from_params(params);
        match method {
            "notifications/cancelled" => Self::Cancelled,
            "notifications/progress" => Self::Progress(hints.progress_token.and_then(parse_gateway_id)),
            _ => match hints.meta.and_then(|meta| meta.subscription_id) {
                Some(id) => Self::Subscription(parse_gateway_id(id)),
                None if is_about_server(method) => Self::Server,
                None => Self::OnlyRequest,
            },
        }
    }
}

/// Returns `true` if a notification is about the server as a whole, and so never about one request.
pub(super) fn is_about_server(method: &str) -> bool {
    method.ends_with("/list_changed") || method == "notifications/resources/updated"
}

/// Returns the request that a `notifications/cancelled` cancels.
pub(super) fn cancelled_id(params: Option<&RawValue>) -> Option<RequestId> {
    AttributionHints::from_params(params).request_id.and_then(|id| RequestId::from_json(id.get()))
}

/// Returns `notifications/cancelled` for a request of the gateway.
pub(super) fn encode_cancellation(id: u64) -> Bytes {
    let params = format!(r#"{{"requestId":{id},"reason":"the client no longer waits"}}"#);
    encode::notification("notifications/cancelled", Some(&params))
}

/// Returns a response on one line.
pub(super) fn encode_response(id: &RequestId, outcome: Result<&str, &RpcError>) -> Bytes {
    match outcome {
        Ok(result) => encode::result(id, result),
        Err(error) => {
            let message = quoted(&error.message);
            let data = error.data.as_ref().map_or_else(String::new, |data| format!(r#","data":{data}"#));
            let error = format!(r#"{{"code":{},"message":{message}{data}}}"#, error.code);
            let mut text = format!(r#"{{"jsonrpc":"2.0","id":{},"error":{error}}}"#, id.as_json()).into_bytes();
            replace_line_breaks(&mut text);
            text.into()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_response_has_code_message_and_data() {
        let error = RpcError {
            code: -1,
            message: "no \"way\"".into(),
            data: serde_json::from_str("[\n1.0]").unwrap(),
            status: None,
        };
        let text = encode_response(&RequestId::from_json("5").unwrap(), Err(&error));
        assert_eq!(&text[..], br#"{"jsonrpc":"2.0","id":5,"error":{"code":-1,"message":"no \"way\"","data":[ 1.0]}}"#);
    }
}
