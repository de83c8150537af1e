//! Errors that upstreams return.

use serde_json::value::RawValue;

/// An error object returned by an upstream.
#[derive(Clone, Debug)]
pub struct RpcError {
    pub code: i64,
    pub message: String,
    pub data: Option<Box<RawValue>>,
    /// The HTTP status of the response, if it came over HTTP.
    pub status: Option<u16>,
}

impl RpcError {
    pub fn new(code: i64, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), data: None, status: None }
    }
}
