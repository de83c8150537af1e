//! An upstream's error as its client gets it: code, message and data as they came, but for codes that mean something
//! else, or nothing, in the client's era (2026-07-28/basic/index#error-codes).

use serde_json::Value;

use super::request::Verb;
use countersign_protocol::{
    Era, ErrorKind, McpError, Revision,
    json::{MemberEdit, edit, member, string},
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
    let foreign = |kind, code| McpError::from_upstream(kind, code, error.message.clone(), data);
    let missing = verb == Verb::Resource;
    match (upstream.era(), client.era(), error.code) {
        (Era::Legacy, Era::Modern, RESOURCE_NOT_FOUND) if missing => {
            let uri = Value::from(uri.unwrap_or_default()).to_string();
            let data =
                edit(data.filter(|data| data.starts_with('{')).unwrap_or("{}"), &[("uri", MemberEdit::Default(&uri))]);
            McpError::from_upstream(ErrorKind::ResourceNotFound, INVALID_PARAMS, error.message.clone(), Some(&data))
        }
        // Nobody can be sent there who did not say that they can be.
        (Era::Legacy, Era::Modern, URL_ELICITATION_REQUIRED) => {
            let data = r#"{"requiredCapabilities":{"elicitation":{"url":{}}}}"#;
            let message = error.message.clone();
            McpError::from_upstream(ErrorKind::MissingCapability, MISSING_CAPABILITY, message, Some(data))
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
            edit(data, &[("uri", MemberEdit::Replace(&uri))])
        }
        _ => data.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{json, value::RawValue};

    use super::*;

    const OLD: Revision = Revision::V2025_11_25;
    const NEW: Revision = Revision::MODERN;

    fn error(code: i64, data: Option<Value>) -> RpcError {
        let data = data.map(|data| RawValue::from_string(data.to_string()).unwrap());
        RpcError { code, message: "theirs".into(), data, status: None }
    }

    #[test]
    fn a_code_that_means_something_else_in_the_clients_era_is_translated_and_every_other_passes() {
        use ErrorKind as K;
        for (verb, client, upstream, code, kind, number) in [
            (Verb::Resource, NEW, OLD, -32002, K::ResourceNotFound, -32602),
            (Verb::Tool, NEW, OLD, -32002, K::UpstreamError, -32603),
            (Verb::Resource, OLD, NEW, -32602, K::ResourceNotFound, -32002),
            (Verb::Tool, OLD, NEW, -32602, K::UpstreamError, -32602),
            (Verb::Tool, OLD, NEW, -32021, K::NotBridgeable, -32603),
            (Verb::Tool, NEW, NEW, -32021, K::MissingCapability, -32021),
            (Verb::Tool, NEW, OLD, -32042, K::MissingCapability, -32021),
            (Verb::Tool, OLD, OLD, -32042, K::UpstreamError, -32042),
            (Verb::Resource, OLD, OLD, -32002, K::UpstreamError, -32002),
            (Verb::Tool, NEW, NEW, 4711, K::UpstreamError, 4711),
        ] {
            let told = for_client(&error(code, None), verb, (client, upstream), Some("s+a:b"), "");
            let said = (told.kind, told.number(client), &*told.message);
            assert_eq!(said, (kind, number, "theirs"), "{verb:?} {code} {client:?}");
        }
    }

    #[test]
    fn what_only_gateway_and_upstream_have_to_settle_is_no_foreign_error() {
        for code in [-32020, -32022] {
            let told = for_client(&error(code, Some(json!({ "supported": [] }))), Verb::Tool, (NEW, NEW), None, "");
            assert_eq!((told.kind, &told.data["upstreamCode"]), (ErrorKind::Internal, &json!(code)));
            assert!(told.passthrough.is_none());
        }
        let legacy = for_client(&error(-32020, None), Verb::Tool, (NEW, OLD), None, "");
        assert_eq!(legacy.number(NEW), -32020, "that era has no such code, so it is the server's own");
    }

    #[test]
    fn uris_in_errors_are_those_of_clients() {
        let data = |told: &McpError| -> Value {
            serde_json::from_str(told.passthrough.as_ref().unwrap().data.as_ref().unwrap()).unwrap()
        };
        let own = error(1, Some(json!({ "uri": "a:b", "more": 1 })));
        let told = for_client(&own, Verb::Resource, (NEW, NEW), Some("s+a:b"), "s+");
        assert_eq!(data(&told), json!({ "uri": "s+a:b", "more": 1 }));
        assert_eq!(data(&for_client(&own, Verb::Resource, (NEW, NEW), None, ""))["uri"], "a:b");
        // A missing resource is named, whether or not its server did.
        for said in [None, Some(json!("text")), Some(json!({ "more": 1 }))] {
            let told = for_client(&error(-32002, said), Verb::Resource, (NEW, OLD), Some("s+a:b"), "s+");
            assert_eq!(data(&told)["uri"], "s+a:b");
        }
    }
}
