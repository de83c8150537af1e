//! An upstream's error as its client gets it: code, message and data as they came, but for codes that mean something
//! else, or nothing, in the client's era (2026-07-28/basic/index#error-codes).

use serde_json::Value;

use super::Verb;
use countersign_protocol::{
    Era, ErrorKind, McpError, Revision,
    edit::{Op, edit, member, string},
    rpc_error::RpcError,
};

const INVALID_PARAMS: i64 = -32602;
const INTERNAL: i64 = -32603;
const RESOURCE_NOT_FOUND: i64 = -32002;
const HEADER_MISMATCH: i64 = -32020;
pub const MISSING_CAPABILITY: i64 = -32021;
const UNSUPPORTED_VERSION: i64 = -32022;
pub const URL_ELICITATION_REQUIRED: i64 = -32042;

/// `uri` is the exposed one of a resource that was read; exposed URIs begin with `scheme`.
#[must_use]
pub fn for_client(
    error: &RpcError,
    verb: Verb,
    (client, upstream): (Revision, Revision),
    uri: Option<&str>,
    scheme: &str,
) -> McpError {
    let data = error.data.as_deref().map(|data| exposed(data.get(), scheme));
    let data = data.as_deref();
    let foreign = |kind, code| McpError::foreign(kind, code, error.message.clone(), data);
    let missing = verb == Verb::Resource;
    match (upstream.era(), client.era(), error.code) {
        (Era::Legacy, Era::Modern, RESOURCE_NOT_FOUND) if missing => {
            let uri = Value::from(uri.unwrap_or_default()).to_string();
            let data = edit(data.filter(|data| data.starts_with('{')).unwrap_or("{}"), &[("uri", Op::Default(&uri))]);
            McpError::foreign(ErrorKind::ResourceNotFound, INVALID_PARAMS, error.message.clone(), Some(&data))
        }
        // Nobody can be sent there who did not say that they can be.
        (Era::Legacy, Era::Modern, URL_ELICITATION_REQUIRED) => {
            let data = r#"{"requiredCapabilities":{"elicitation":{"url":{}}}}"#;
            let message = error.message.clone();
            McpError::foreign(ErrorKind::MissingCapability, MISSING_CAPABILITY, message, Some(data))
        }
        // Must not be sent in this era, and meant something else than a missing resource.
        (Era::Legacy, Era::Modern, RESOURCE_NOT_FOUND) => foreign(ErrorKind::UpstreamError, INTERNAL),
        (Era::Modern, Era::Legacy, INVALID_PARAMS) if missing => {
            foreign(ErrorKind::ResourceNotFound, RESOURCE_NOT_FOUND)
        }
        // What the gateway and the upstream have to settle between them is nothing to a client.
        (Era::Modern, _, HEADER_MISMATCH | UNSUPPORTED_VERSION) => {
            tracing::warn!(code = error.code, "the upstream refuses how the gateway speaks to it");
            McpError::new(ErrorKind::Internal, format!("the upstream refuses the gateway's request: {}", error.message))
                .with("upstreamCode", error.code)
        }
        (_, Era::Modern, MISSING_CAPABILITY) => foreign(ErrorKind::MissingCapability, MISSING_CAPABILITY),
        (Era::Modern, Era::Legacy, MISSING_CAPABILITY) => foreign(ErrorKind::NotBridgeable, INTERNAL),
        (_, _, code) => foreign(ErrorKind::UpstreamError, code),
    }
}

/// `data` with its `uri` as clients know it.
fn exposed(data: &str, scheme: &str) -> String {
    match member(data, "uri").and_then(string) {
        Some(own) if !scheme.is_empty() => {
            let uri = Value::from(format!("{scheme}{own}")).to_string();
            edit(data, &[("uri", Op::Replace(&uri))])
        }
        _ => data.to_owned(),
    }
}
