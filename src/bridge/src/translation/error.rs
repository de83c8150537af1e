//! Translates an upstream's error for its client. Code, message and data pass unchanged, except for codes that have
//! another meaning, or none, in the client's era (2026-07-28/basic/index#error-codes).

use serde_json::Value;

use super::{request::RequestedItem, result::ResponseAdapter};
use countersign_protocol::{
    Era, ErrorKind, McpError,
    json::{MemberEdit, edit, member, string},
    rpc_error::RpcError,
};

const INVALID_PARAMS: i64 = ErrorKind::InvalidParams.number();
const INTERNAL: i64 = ErrorKind::Internal.number();
const RESOURCE_NOT_FOUND: i64 = ErrorKind::ResourceNotFound.number();
const HEADER_MISMATCH: i64 = ErrorKind::HeaderMismatch.number();
const MISSING_CAPABILITY: i64 = ErrorKind::MissingCapability.number();
const UNSUPPORTED_VERSION: i64 = ErrorKind::UnsupportedVersion.number();
/// The code of an error with pages to open first (2025-11-25/client/elicitation, "URL Elicitation Required Error").
pub const URL_ELICITATION_REQUIRED: i64 = -32042;

impl ResponseAdapter<'_> {
    /// Translates an error.
    pub fn adapt_error(&self, error: &RpcError) -> McpError {
        let data = error.data.as_deref().map(|data| with_exposed_uri(data.get(), self.uri_prefix));
        let data = data.as_deref();
        let passthrough = |kind, code| McpError::from_upstream(kind, code, error.message.clone(), data);
        match (self.upstream.revision.era(), self.client.era(), error.code, self.item) {
            (Era::Legacy, Era::Modern, RESOURCE_NOT_FOUND, RequestedItem::Resource { exposed_uri, .. }) => {
                let uri = Value::from(exposed_uri).to_string();
                let data = edit(
                    data.filter(|data| data.starts_with('{')).unwrap_or("{}"),
                    &[("uri", MemberEdit::SetIfMissing(&uri))],
                );
                McpError::from_upstream(ErrorKind::ResourceNotFound, INVALID_PARAMS, error.message.clone(), Some(&data))
            }
            // The client did not declare that it can open URLs.
            (Era::Legacy, Era::Modern, URL_ELICITATION_REQUIRED, _) => {
                let data = r#"{"requiredCapabilities":{"elicitation":{"url":{}}}}"#;
                let message = error.message.clone();
                McpError::from_upstream(ErrorKind::MissingCapability, MISSING_CAPABILITY, message, Some(data))
            }
            (Era::Modern, Era::Legacy, INVALID_PARAMS, RequestedItem::Resource { .. }) => {
                passthrough(ErrorKind::ResourceNotFound, RESOURCE_NOT_FOUND)
            }
            // The client has no part in the negotiation between gateway and upstream.
            (Era::Modern, _, HEADER_MISMATCH | UNSUPPORTED_VERSION, _) => {
                tracing::warn!(
                    code = error.code,
                    "the upstream refuses the headers or the protocol version of the gateway's request"
                );
                let message = format!("the upstream refuses the gateway's request: {}", error.message);
                McpError::new(ErrorKind::Internal, message).with("upstreamCode", error.code)
            }
            (Era::Modern, Era::Modern, MISSING_CAPABILITY, _) => {
                passthrough(ErrorKind::MissingCapability, MISSING_CAPABILITY)
            }
            (Era::Modern, Era::Legacy, MISSING_CAPABILITY, _) => passthrough(ErrorKind::NotBridgeable, INTERNAL),
            (_, _, code, _) => passthrough(ErrorKind::UpstreamError, code),
        }
    }
}

/// Returns `data` with its `uri` in the exposed form.
fn with_exposed_uri(data: &str, uri_prefix: &str) -> String {
    match member(data, "uri").and_then(string) {
        Some(own) if !uri_prefix.is_empty() => {
            let uri = Value::from(format!("{uri_prefix}{own}")).to_string();
            edit(data, &[("uri", MemberEdit::Replace(&uri))])
        }
        _ => data.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{json, value::RawValue};

    use super::*;
    use countersign_protocol::Revision;
    use countersign_upstream::testing::negotiated;

    const TOOL: RequestedItem<'_> = RequestedItem::Tool("a");
    const RESOURCE: RequestedItem<'_> = RequestedItem::Resource { uri: "a:b", exposed_uri: "s+a:b" };
    const LEGACY: Revision = Revision::V2025_11_25;
    const MODERN: Revision = Revision::MODERN;

    fn error(code: i64, data: Option<Value>) -> RpcError {
        let data = data.map(|data| RawValue::from_string(data.to_string()).unwrap());
        RpcError { code, message: "theirs".into(), data, status: None }
    }

    fn adapt(
        error: &RpcError,
        item: RequestedItem<'_>,
        (client, upstream): (Revision, Revision),
        uri_prefix: &str,
    ) -> McpError {
        ResponseAdapter { item, client, upstream: &negotiated(upstream), uri_prefix }.adapt_error(error)
    }

    #[test]
    fn only_codes_with_another_meaning_are_translated() {
        use ErrorKind as K;
        for (item, client, upstream, code, kind, number) in [
            (RESOURCE, MODERN, LEGACY, -32002, K::ResourceNotFound, -32602),
            (TOOL, MODERN, LEGACY, -32002, K::UpstreamError, -32603),
            (RESOURCE, LEGACY, MODERN, -32602, K::ResourceNotFound, -32002),
            (TOOL, LEGACY, MODERN, -32602, K::UpstreamError, -32602),
            (TOOL, LEGACY, MODERN, -32021, K::NotBridgeable, -32603),
            (TOOL, MODERN, MODERN, -32021, K::MissingCapability, -32021),
            (TOOL, MODERN, LEGACY, -32042, K::MissingCapability, -32021),
            (TOOL, LEGACY, LEGACY, -32042, K::UpstreamError, -32042),
            (RESOURCE, LEGACY, LEGACY, -32002, K::UpstreamError, -32002),
            (TOOL, MODERN, MODERN, 4711, K::UpstreamError, 4711),
        ] {
            let translated = adapt(&error(code, None), item, (client, upstream), "");
            let shown = (translated.kind, translated.number(client), &*translated.message);
            assert_eq!(shown, (kind, number, "theirs"), "{item:?} {code} {client:?}");
        }
    }

    #[test]
    fn negotiation_errors_become_internal_errors() {
        for code in [-32020, -32022] {
            let translated = adapt(&error(code, Some(json!({ "supported": [] }))), TOOL, (MODERN, MODERN), "");
            assert_eq!((translated.kind, &translated.data["upstreamCode"]), (ErrorKind::Internal, &json!(code)));
            assert!(translated.passthrough.is_none());
        }
        let legacy = adapt(&error(-32020, None), TOOL, (MODERN, LEGACY), "");
        assert_eq!((legacy.kind, legacy.number(MODERN)), (ErrorKind::UpstreamError, -32603));
    }

    #[test]
    fn uris_in_errors_get_exposed_form() {
        let data = |error: &McpError| -> Value {
            serde_json::from_str(error.passthrough.as_ref().unwrap().data.as_ref().unwrap()).unwrap()
        };
        let error_with_uri = error(1, Some(json!({ "uri": "a:b", "more": 1 })));
        let translated = adapt(&error_with_uri, RESOURCE, (MODERN, MODERN), "s+");
        assert_eq!(data(&translated), json!({ "uri": "s+a:b", "more": 1 }));
        assert_eq!(data(&adapt(&error_with_uri, RESOURCE, (MODERN, MODERN), ""))["uri"], "a:b");
        // A missing resource is named even if the server did not name it.
        for data_of_server in [None, Some(json!("text")), Some(json!({ "more": 1 }))] {
            let translated = adapt(&error(-32002, data_of_server), RESOURCE, (MODERN, LEGACY), "s+");
            assert_eq!(data(&translated)["uri"], "s+a:b");
        }
    }
}
