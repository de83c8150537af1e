//! What attribution reads of messages, and the messages that a link writes itself.

use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::super::queue::Refused;
use crate::link::LinkError;
use countersign_protocol::{RequestId, rpc_error::RpcError};

/// What attribution goes by.
#[derive(Default, Deserialize)]
pub(super) struct Hints<'a> {
    #[serde(borrow, rename = "progressToken", default)]
    pub(super) progress_token: Option<&'a RawValue>,
    #[serde(borrow, rename = "requestId", default)]
    pub(super) request_id: Option<&'a RawValue>,
    #[serde(borrow, rename = "_meta", default)]
    pub(super) meta: Option<MetaHints<'a>>,
}

#[derive(Deserialize)]
pub(super) struct MetaHints<'a> {
    #[serde(borrow, rename = "io.modelcontextprotocol/subscriptionId", default)]
    pub(super) subscription_id: Option<&'a RawValue>,
}

/// Ids of ours are integers. Servers that give them back as strings are understood by the official SDKs, too.
pub(super) fn integer(raw: &RawValue) -> Option<u64> {
    RequestId::from_json(raw.get()).as_ref().and_then(own_id)
}

pub(super) fn own_id(id: &RequestId) -> Option<u64> {
    let text = id.as_json();
    text.strip_prefix('"').and_then(|text| text.strip_suffix('"')).unwrap_or(text).parse().ok()
}

pub(super) fn error_of(raw: &RawValue) -> Result<RpcError, LinkError> {
    #[derive(Deserialize)]
    struct Error {
        code: i64,
        #[serde(default)]
        message: String,
        data: Option<Box<RawValue>>,
    }
    let Error { code, message, data } = serde_json::from_str(raw.get())
        .map_err(|error| LinkError::Protocol(format!("its error is none of JSON-RPC's: {error}")))?;
    Ok(RpcError { code, message, data, status: None })
}

pub(super) fn unsent(end: &LinkError) -> LinkError {
    LinkError::Unreachable(match end {
        LinkError::Unreachable(why) | LinkError::Lost(why) => why.clone(),
        other => other.to_string(),
    })
}

pub(super) fn refused(refused: Refused) -> LinkError {
    LinkError::Unreachable(match refused {
        Refused::Full => "it reads nothing of what is sent to it".to_owned(),
        Refused::Closed => "it is being ended".to_owned(),
    })
}

pub(super) fn notification(method: &str, params: Option<&str>) -> Bytes {
    let method = serde_json::Value::from(method);
    match params {
        Some(params) => format!(r#"{{"jsonrpc":"2.0","method":{method},"params":{params}}}"#),
        None => format!(r#"{{"jsonrpc":"2.0","method":{method}}}"#),
    }
    .into()
}

pub(super) fn reply(id: &RequestId, answer: Result<&str, &RpcError>) -> Bytes {
    match answer {
        Ok(result) => format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#),
        Err(RpcError { code, message, data, .. }) => {
            let message = serde_json::Value::from(message.as_str());
            let data = data.as_ref().map(|data| format!(r#","data":{data}"#)).unwrap_or_default();
            format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{{"code":{code},"message":{message}{data}}}}}"#)
        }
    }
    .into()
}
