use std::collections::HashMap;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::{
    ErrorKind,
    envelope::{Incoming, Limits, Message, parse},
    negotiate,
};

fn text(bytes: &Bytes) -> &str {
    std::str::from_utf8(bytes).unwrap_or_else(|e| panic!("{e}"))
}

/// Returns the `error` object of a response.
fn object(error: &McpError, revision: Revision) -> String {
    let response = super::error(Some(&id("1")), error, revision);
    let object = text(&response).strip_prefix(r#"{"jsonrpc":"2.0","id":1,"error":"#);
    object.and_then(|object| object.strip_suffix('}')).expect("an error response").to_owned()
}

fn id(raw: &str) -> RequestId {
    RequestId::from_json(raw).unwrap_or_else(|| panic!("{raw} is an id"))
}

#[test]
fn messages_have_exact_wire_text() {
    assert_eq!(text(&result(&id("1"), "{}")), r#"{"jsonrpc":"2.0","id":1,"result":{}}"#);
    assert_eq!(
        text(&result(&id(r#""\u0061""#), r#"{"n":1.0}"#)),
        r#"{"jsonrpc":"2.0","id":"\u0061","result":{"n":1.0}}"#
    );
    assert_eq!(text(&request(&id("7"), "ping", None)), r#"{"jsonrpc":"2.0","id":7,"method":"ping"}"#);
    assert_eq!(
        text(&request(&id("7"), "roots/list", Some("{\"a\":1}"))),
        r#"{"jsonrpc":"2.0","id":7,"method":"roots/list","params":{"a":1}}"#
    );
    assert_eq!(
        text(&notification("notifications/tools/list_changed", None)),
        r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#
    );
    assert_eq!(text(&notification("a\"\n", Some("{}"))), r#"{"jsonrpc":"2.0","method":"a\"\n","params":{}}"#);
}

#[test]
fn method_is_found_only_in_written_notification() {
    for method in Method::ALL {
        assert_eq!(notified_method(&notification(method.as_str(), Some("{}"))), Some(*method));
    }
    for other in [notification("a\"\n", None), request(&id("7"), "ping", None), result(&id("1"), "{}")] {
        assert_eq!(notified_method(&other), None);
    }
    assert_eq!(notified_method(b""), None);
}

#[test]
fn errors_have_exact_wire_text() {
    let error = McpError::new(ErrorKind::ResourceNotFound, "No \"x\"").with("uri", "a://b");
    assert_eq!(
        text(&super::error(Some(&id("3")), &error, Revision::V2025_11_25)),
        r#"{"jsonrpc":"2.0","id":3,"error":{"code":-32002,"message":"No \"x\"","data":{"code":"RESOURCE_NOT_FOUND","uri":"a://b"}}}"#
    );
    assert_eq!(
        object(&error, Revision::V2026_07_28),
        r#"{"code":-32602,"message":"No \"x\"","data":{"code":"RESOURCE_NOT_FOUND","uri":"a://b"}}"#
    );
}

#[test]
fn encoded_errors_match_error_table() {
    let own_numbers = -31999..=-31000;
    let mut kinds = HashMap::new();
    for &kind in ErrorKind::ALL {
        // Kinds share only numbers of JSON-RPC, such as `-32602` for an unknown tool.
        if own_numbers.contains(&kind.number()) {
            assert_eq!(kinds.insert(kind.number(), kind), None, "{kind:?}");
        }
        for revision in Revision::ALL {
            let error = McpError::new(kind, "m").with("a", json!([1]));
            let value: Value = serde_json::from_slice(&super::error(None, &error, revision)).expect("JSON");
            assert_eq!(value["error"]["code"], error.number(revision));
            assert_eq!(value["error"]["data"], error.data());
            // Codes that another party may define are never used: 2026-07-28/basic/index, "Error Codes".
            let number = error.number(revision);
            assert!(
                own_numbers.contains(&number)
                    || [-32700, -32600, -32601, -32602, -32603, -32020, -32021, -32022].contains(&number)
                    || (number == -32002 && revision != Revision::MODERN),
                "{number}"
            );
        }
    }
}

#[test]
fn unknown_id_depends_on_revision() {
    let error = McpError::new(ErrorKind::Parse, "Bad");
    for revision in Revision::ALL {
        let value: Value = serde_json::from_slice(&super::error(None, &error, revision)).expect("JSON");
        let expected = if revision <= Revision::V2025_06_18 { Some(&Value::Null) } else { None };
        assert_eq!(value.get("id"), expected, "{revision:?}");
    }
}

#[test]
fn data_code_cannot_be_overwritten() {
    let error = McpError::new(ErrorKind::Forbidden, "no").with("code", "OTHER");
    let text = object(&error, Revision::MODERN);
    assert_eq!(text, r#"{"code":-31002,"message":"no","data":{"code":"FORBIDDEN"}}"#);
}

#[test]
fn version_errors_match_schema() {
    let error = negotiate::stateless_revision("1900-01-01").expect_err("unsupported");
    let value: Value = serde_json::from_str(&object(&error, Revision::MODERN)).expect("JSON");
    assert_eq!(value["code"], -32022);
    assert_eq!(value["data"]["requested"], "1900-01-01");
    assert!(value["data"]["supported"].as_array().is_some_and(|s| s.contains(&json!("2026-07-28"))));
    let error =
        McpError::new(ErrorKind::MissingCapability, "").with("requiredCapabilities", json!({ "elicitation": {} }));
    let value: Value = serde_json::from_str(&object(&error, Revision::MODERN)).expect("JSON");
    assert_eq!(
        (&value["code"], &value["data"]["requiredCapabilities"]),
        (&json!(-32021), &json!({ "elicitation": {} }))
    );
}

#[test]
fn messages_are_single_lines() {
    let pretty = "{\r\n  \"a\": \"\\n\",\n  \"b\": [\r1]\n}\n";
    for message in [result(&id("1"), pretty), notification("n", Some(pretty)), request(&id("1"), "m", Some(pretty))] {
        assert!(!message.iter().any(|b| matches!(b, b'\n' | b'\r')));
        let value: Value = serde_json::from_slice(&message).expect("JSON");
        let payload = value.get("result").or(value.get("params")).expect("a payload");
        assert_eq!(payload, &json!({ "a": "\n", "b": [1] }));
    }
}

#[test]
fn batches_join_messages() {
    let parts = [
        result(&id("1"), "{}"),
        super::error(Some(&id("2")), &McpError::new(ErrorKind::Internal, "x"), Revision::V2025_03_26),
    ];
    let value: Value = serde_json::from_slice(&batch(&parts)).expect("JSON");
    assert_eq!(value.as_array().map(Vec::len), Some(2));
    assert_eq!(text(&batch(&[])), "[]");
    assert_eq!(text(&batch(&parts[..1])), format!("[{}]", text(&parts[0])));
}

proptest! {
    /// A written message parses back as the same message, with the same bytes in its id.
    #[test]
    fn written_messages_are_read_back(number: i64, name in ".{0,20}", method in ".{0,30}", key in ".{0,10}") {
        let payload = json!({ key: [number, "x"] }).to_string();
        for id in [RequestId::from(number), RequestId::from_raw(&Value::from(name).to_string())] {
            let bytes = request(&id, &method, Some(&payload));
            match parse(&bytes, &Limits::default()) {
                Ok(Incoming::Single(Message::Request(r))) => {
                    prop_assert_eq!(r.id.as_json(), id.as_json());
                    prop_assert_eq!(r.method.as_ref(), method.as_str());
                    prop_assert_eq!(r.params.map(|p| p.get()), Some(payload.as_str()));
                }
                other => prop_assert!(false, "{:?}", other),
            }
            let bytes = result(&id, &payload);
            match parse(&bytes, &Limits::default()) {
                Ok(Incoming::Single(Message::Response(r))) => {
                    prop_assert_eq!(r.id.as_ref(), Some(&id));
                    prop_assert_eq!(r.outcome.map(|p| p.get()).ok(), Some(payload.as_str()));
                }
                other => prop_assert!(false, "{:?}", other),
            }
        }
    }

    #[test]
    fn any_error_message_is_json(message in ".*", key in ".{0,8}") {
        let error = McpError::new(ErrorKind::Internal, message.clone()).with(&key, message.clone());
        let value: Value = serde_json::from_slice(&super::error(None, &error, Revision::MODERN)).expect("JSON");
        prop_assert_eq!(&value["error"]["message"], &Value::from(message));
    }
}
