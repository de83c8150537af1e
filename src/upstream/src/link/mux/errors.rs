//! What requests fail with.

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::link::{LinkError, queue::Refused};
use countersign_protocol::rpc_error::RpcError;

pub(super) fn error_of(raw: &RawValue) -> Result<RpcError, LinkError> {
    #[derive(Deserialize)]
    struct Error {
        code: i64,
        #[serde(default)]
        message: String,
        data: Option<Box<RawValue>>,
    }
    let Error { code, message, data } = serde_json::from_str(raw.get())
        .map_err(|error| LinkError::Protocol(format!("its error is not a JSON-RPC error: {error}")))?;
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
        Refused::Closed => "the gateway is ending it".to_owned(),
    })
}
