use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::{
    Method,
    envelope::{Incoming, Limits, parse},
    params::parse_meta,
};

const VERSION: &str = "2026-07-28";

fn body(method: &str, params: &str, version: &str) -> String {
    let comma = if params.is_empty() { "" } else { "," };
    format!(
        r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{{{params}{comma}"_meta":{{"io.modelcontextprotocol/protocolVersion":"{version}","io.modelcontextprotocol/clientCapabilities":{{}}}}}}}}"#
    )
}

/// Runs the checks in the order of the endpoint.
fn run_checks(headers: &[(&str, &[u8])], body: &str) -> Result<Method, McpError> {
    let Ok(Incoming::Single(message)) = parse(body.as_bytes(), &Limits::default()) else { panic!("{body}") };
    let meta = parse_meta(message.params())?;
    assert!(is_modern(headers, &meta), "the request is recognized as stateless");
    let revision = check(headers, &message, &meta)?;
    assert_eq!(revision, Revision::MODERN);
    match &message {
        Message::Request(request) => Method::parse_request(&request.method, revision),
        _ => Ok(Method::Cancelled),
    }
}

#[track_caller]
fn assert_refused(headers: &[(&str, &[u8])], body: &str, number: i64, status: u16) {
    match run_checks(headers, body) {
        Err(error) => {
            assert_eq!((error.number(Revision::MODERN), http_status(&error)), (number, status), "{error}");
        }
        Ok(method) => panic!("{method:?} accepted with {headers:?}: {body}"),
    }
}

const BODY_WITHOUT_META: &str = r#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#;

#[test]
fn conforming_request_passes_all_checks() {
    let call = body("tools/call", r#""name":"get_weather","arguments":{}"#, VERSION);
    let headers: [(&str, &[u8]); 3] =
        [("MCP-Protocol-Version", VERSION.as_bytes()), ("Mcp-Method", b"tools/call"), ("Mcp-Name", b"get_weather")];
    assert_eq!(run_checks(&headers, &call), Ok(Method::ToolsCall));
    let mixed_case: [(&str, &[u8]); 3] =
        [("MCP-PROTOCOL-VERSION", b" 2026-07-28\t"), ("mcp-method", b" tools/call "), ("mCP-nAME", b"\tget_weather")];
    assert_eq!(run_checks(&mixed_case, &call), Ok(Method::ToolsCall));
    let list = body("tools/list", "", VERSION);
    assert_eq!(
        run_checks(&[("mcp-protocol-version", VERSION.as_bytes()), ("mcp-method", b"tools/list")], &list),
        Ok(Method::ToolsList)
    );
}

#[test]
fn for_request_builds_required_headers() {
    let long = r#""uri":"file:///\u00e4 \u2028","x":1"#;
    let cases = [
        ("tools/call", r#""name":" get_weather","arguments":{}"#),
        ("resources/read", long),
        ("tasks/get", r#""taskId":"=?base64?x?=""#),
        ("tools/list", r#""name":"of nothing""#),
        ("tasks/update", ""),
    ];
    for (method, params) in cases {
        let body = body(method, params, VERSION);
        let Ok(Incoming::Single(Message::Request(request))) = parse(body.as_bytes(), &Limits::default()) else {
            panic!("{body}")
        };
        let meta = request.meta().unwrap();
        let headers = for_request(&request, &meta);
        let headers: Vec<(&str, &[u8])> = headers.iter().map(|(name, value)| (*name, value.as_bytes())).collect();
        assert_eq!(run_checks(&headers, &body).unwrap(), Method::parse(method).unwrap(), "{headers:?}");
    }
}

#[test]
fn modern_request_is_recognized() {
    let none = Meta::default();
    let some = Meta { protocol_version: Some("1900-01-01".into()), ..Meta::default() };
    let plain: [(&str, &str); 0] = [];
    assert!(is_modern(&plain[..], &some));
    assert!(!is_modern(&plain[..], &none));
    for (name, value, modern) in [
        ("MCP-Protocol-Version", "2026-07-28", true),
        ("MCP-Protocol-Version", " 2026-07-28 ", true),
        ("MCP-Protocol-Version", "2027-01-01", true),
        ("MCP-Protocol-Version", "2025-11-25", false),
        ("MCP-Protocol-Version", "1900-01-01", false),
        ("MCP-Protocol-Version", "zzzz", false),
        ("MCP-Protocol-Version", "", false),
        ("Mcp-Method", "ping", true),
        ("Mcp-Method", "", true),
        ("Mcp-Session-Id", "x", false),
    ] {
        assert_eq!(is_modern(&[(name, value)][..], &none), modern, "{name}: {value}");
    }
}

#[test]
fn step_3_envelope_is_checked_first() {
    let headers: [(&str, &[u8]); 2] = [("mcp-protocol-version", VERSION.as_bytes()), ("mcp-method", b"wrong")];
    assert_refused(&headers, BODY_WITHOUT_META, -32602, 400);
    let version = keys::PROTOCOL_VERSION;
    let capabilities = keys::CLIENT_CAPABILITIES;
    for meta in [
        "{}".to_owned(),
        "null".into(),
        "[]".into(),
        format!(r#"{{"{version}":"{VERSION}"}}"#),
        format!(r#"{{"{capabilities}":{{}}}}"#),
        format!(r#"{{"{version}":5,"{capabilities}":{{}}}}"#),
        format!(r#"{{"{version}":"{VERSION}","{capabilities}":[]}}"#),
        format!(r#"{{"{version}":"1900-01-01"}}"#),
    ] {
        let body = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{{"_meta":{meta}}}}}"#);
        assert_refused(&headers, &body, -32602, 400);
    }
}

#[test]
fn step_4_headers_must_match_body() {
    let call = body("tools/call", r#""name":"get_weather""#, VERSION);
    let version = ("mcp-protocol-version", VERSION.as_bytes());
    let method = ("mcp-method", &b"tools/call"[..]);
    let name = ("mcp-name", &b"get_weather"[..]);
    for headers in [
        vec![],
        vec![method, name],
        vec![version, name],
        vec![version, method],
        vec![version, method, ("mcp-name", b"get_Weather")],
        vec![version, method, ("mcp-name", b"")],
        vec![version, method, ("mcp-name", b"get_weather\x01")],
        vec![version, method, ("mcp-name", b"get_weather\xc3\xa9")],
        vec![version, method, name, name],
        vec![version, method, method, name],
        vec![version, version, method, name],
        vec![version, ("mcp-method", b"Tools/Call"), name],
        vec![version, ("mcp-method", b"tools/list"), name],
        vec![("mcp-protocol-version", b"2025-11-25"), method, name],
        vec![("mcp-protocol-version", b""), method, name],
        vec![("mcp-protocol-version", b"2026-07-28, 2026-07-28"), method, name],
    ] {
        assert_refused(&headers, &call, -32020, 400);
    }
    // A header mismatch is reported before an unserved version or an unknown method.
    assert_refused(&[version, method, name], &body("tools/call", r#""name":"get_weather""#, "1900-01-01"), -32020, 400);
    assert_refused(&[version, ("mcp-method", b"nope")], &body("ping", "", VERSION), -32020, 400);
}

#[test]
fn step_4_name_header_mirrors_member_of_method() {
    for (method, params, name) in [
        ("tools/call", r#""name":"a b""#, "a b"),
        ("prompts/get", r#""name":"triage""#, "triage"),
        ("resources/read", r#""uri":"file:///x?y=1""#, "file:///x?y=1"),
        ("tools/call", r#""na\u006de":"\u0061""#, "a"),
        ("tools/call", r#""arguments":{"name":"inner"},"name":"outer""#, "outer"),
    ] {
        let body = body(method, params, VERSION);
        let with = |name: &[u8]| {
            run_checks(
                &[("mcp-protocol-version", VERSION.as_bytes()), ("mcp-method", method.as_bytes()), ("mcp-name", name)],
                &body,
            )
        };
        assert!(with(name.as_bytes()).is_ok(), "{params}");
        assert!(with(b"other").is_err(), "{params}");
    }
    let headers: [(&str, &[u8]); 3] =
        [("mcp-protocol-version", VERSION.as_bytes()), ("mcp-method", b"tasks/get"), ("mcp-name", b"t1")];
    // The tasks extension.
    assert!(run_checks(&headers, &body("tasks/get", r#""taskId":"t1""#, VERSION)).is_ok());
    assert_refused(&headers, &body("tasks/get", r#""taskId":"t2""#, VERSION), -32020, 400);
}

#[test]
fn step_4_missing_body_name_is_left_to_handler() {
    let version = ("mcp-protocol-version", VERSION.as_bytes());
    let call = body("tools/call", "", VERSION);
    // The handler reports that `name` is missing, and a header alone must not name a tool.
    assert!(run_checks(&[version, ("mcp-method", b"tools/call")], &call).is_ok());
    assert_refused(&[version, ("mcp-method", b"tools/call"), ("mcp-name", b"x")], &call, -32020, 400);
    assert_refused(
        &[version, ("mcp-method", b"tools/call"), ("mcp-name", b"5")],
        &body("tools/call", r#""name":5"#, VERSION),
        -32020,
        400,
    );
    let twice = body("tools/call", r#""name":"a","name":"b""#, VERSION);
    assert!(run_checks(&[version, ("mcp-method", b"tools/call"), ("mcp-name", b"a")], &twice).is_err());
    // Methods without a name ignore the header.
    let list = body("tools/list", r#""name":"x""#, VERSION);
    assert!(run_checks(&[version, ("mcp-method", b"tools/list"), ("mcp-name", b"whatever")], &list).is_ok());
}

#[test]
fn encoded_names_are_decoded_before_they_are_compared() {
    let name = |value: &str, header: &[u8]| {
        let body = body("tools/call", &format!(r#""name":{}"#, json!(value)), VERSION);
        run_checks(
            &[("mcp-protocol-version", VERSION.as_bytes()), ("mcp-method", b"tools/call"), ("mcp-name", header)],
            &body,
        )
        .is_ok()
    };
    // Examples from the specification.
    assert!(name("us-west1", b"us-west1"));
    assert!(name("Hello, 世界", "=?base64?SGVsbG8sIOS4lueVjA==?=".as_bytes()));
    assert!(name(" padded ", b"=?base64?IHBhZGRlZCA=?="));
    assert!(name("line1\nline2", b"=?base64?bGluZTEKbGluZTI=?="));
    assert!(name("=?base64?literal?=", b"=?base64?PT9iYXNlNjQ/bGl0ZXJhbD89?="));
    // The markers must match exactly.
    assert!(name("=?BASE64?YQ==?=", b"=?BASE64?YQ==?="));
    assert!(!name("a", b"=?BASE64?YQ==?="));
    assert!(name("a", b" =?base64?YQ==?= "));
    assert!(name("", b"=?base64??="));
    // Not Base64, not UTF-8, not padded, or Base64 of another value.
    for header in [
        &b"=?base64?!!?="[..],
        b"=?base64?/w==?=",
        b"=?base64?YQ?=",
        b"=?base64?Yg==?=",
        b"=?base64?YQ==",
        b"=?base64?=",
    ] {
        assert!(!name("a", header), "{}", String::from_utf8_lossy(header));
    }
}

#[test]
fn step_5_unserved_versions_are_refused() {
    for version in ["2025-11-25", "2024-11-05", "2027-01-01", "draft", ""] {
        let headers: [(&str, &[u8]); 2] = [("mcp-protocol-version", version.as_bytes()), ("mcp-method", b"tools/list")];
        assert_refused(&headers, &body("tools/list", "", version), -32022, 400);
        // The version is reported before the method is checked.
        let headers: [(&str, &[u8]); 2] = [("mcp-protocol-version", version.as_bytes()), ("mcp-method", b"nope")];
        assert_refused(&headers, &body("nope", "", version), -32022, 400);
    }
}

#[test]
fn step_6_handshake_methods_are_unknown() {
    for method in [
        "initialize",
        "ping",
        "logging/setLevel",
        "resources/subscribe",
        "resources/unsubscribe",
        "nope",
        "tools/Call",
        "notifications/cancelled",
    ] {
        assert_refused(
            &[("mcp-protocol-version", VERSION.as_bytes()), ("mcp-method", method.as_bytes())],
            &body(method, "", VERSION),
            -32601,
            404,
        );
    }
}

#[test]
fn check_envelope_needs_no_headers() {
    let meta = |version: Option<&'static str>| Meta { protocol_version: version.map(Into::into), ..Meta::default() };
    assert_eq!(check_envelope(&meta(None)).map_err(|e| e.kind), Err(ErrorKind::InvalidParams));
    assert_eq!(check_envelope(&meta(Some(VERSION))).map_err(|e| e.kind), Err(ErrorKind::InvalidParams));
    for (version, expected) in [(VERSION, Ok(Revision::MODERN)), ("2025-11-25", Err(ErrorKind::UnsupportedVersion))] {
        let meta = Meta { client_capabilities: Some("{}"), ..meta(Some(version)) };
        assert_eq!(check_envelope(&meta).map_err(|e| e.kind), expected);
    }
}

#[test]
fn notification_headers_are_optional_but_must_match() {
    let plain = r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}"#;
    assert!(run_checks(&[("mcp-method", b"notifications/cancelled")], plain).is_ok());
    assert!(run_checks(&[("mcp-protocol-version", VERSION.as_bytes())], plain).is_ok());
    assert_refused(&[("mcp-method", b"notifications/progress")], plain, -32020, 400);
    assert_refused(&[("mcp-protocol-version", b"2027-01-01")], plain, -32022, 400);
    let with_meta = body("notifications/cancelled", "", VERSION).replace("\"id\":1,", "");
    assert!(run_checks(&[], &with_meta).is_ok());
    assert_refused(&[("mcp-protocol-version", b"2025-11-25")], &with_meta, -32020, 400);
    let old = body("notifications/cancelled", "", "2025-11-25").replace("\"id\":1,", "");
    assert_refused(&[], &old, -32022, 400);
}

#[test]
fn responses_from_clients_are_refused() {
    assert_refused(&[("mcp-method", b"x")], r#"{"jsonrpc":"2.0","id":1,"result":{}}"#, -32600, 400);
}

#[test]
fn errors_have_expected_http_status() {
    for (kind, status) in [
        (ErrorKind::Parse, 400),
        (ErrorKind::InvalidRequest, 400),
        (ErrorKind::MissingCapability, 400),
        (ErrorKind::MethodNotFound, 404),
        // Errors of handlers are sent in the body.
        (ErrorKind::InvalidParams, 200),
        (ErrorKind::ToolNotFound, 200),
        (ErrorKind::ResourceNotFound, 200),
        (ErrorKind::Internal, 200),
        (ErrorKind::PolicyDenied, 200),
    ] {
        assert_eq!(http_status(&McpError::new(kind, "x")), status, "{kind:?}");
    }
    for (member, status) in
        [("params", 400), ("_meta", 400), ("_meta.progressToken", 400), ("_metal", 200), ("name", 200)]
    {
        assert_eq!(http_status(&McpError::invalid_param(member, "x")), status, "{member}");
    }
}

proptest! {
    #[test]
    fn arbitrary_headers_do_not_panic(version in prop::collection::vec(any::<u8>(), 0..20), method in prop::collection::vec(any::<u8>(), 0..20), name in prop::collection::vec(any::<u8>(), 0..40)) {
        let headers: [(&str, &[u8]); 3] = [("mcp-protocol-version", &version), ("mcp-method", &method), ("mcp-name", &name)];
        let _ = run_checks(&headers, &body("tools/call", r#""name":"x""#, VERSION));
    }

    /// The Base64 form of any name passes and decodes to the name.
    #[test]
    fn any_name_passes_in_base64_form(name in ".{0,30}") {
        use base64::{Engine, engine::general_purpose::STANDARD};
        let header = format!("=?base64?{}?=", STANDARD.encode(&name));
        prop_assert_eq!(decode_value(NAME, header.as_bytes()), Ok(name.clone().into()));
        let body = body("tools/call", &format!(r#""name":{}"#, json!(name)), VERSION);
        let headers: [(&str, &[u8]); 3] = [("mcp-protocol-version", VERSION.as_bytes()), ("mcp-method", b"tools/call"), ("mcp-name", header.as_bytes())];
        prop_assert_eq!(run_checks(&headers, &body), Ok(Method::ToolsCall));
    }
}

#[test]
fn values_are_encoded_like_specification_examples() {
    for (value, header) in [
        ("us-west1", "us-west1"),
        ("Hello, 世界", "=?base64?SGVsbG8sIOS4lueVjA==?="),
        (" padded ", "=?base64?IHBhZGRlZCA=?="),
        ("line1\nline2", "=?base64?bGluZTEKbGluZTI=?="),
        ("=?base64?literal?=", "=?base64?PT9iYXNlNjQ/bGl0ZXJhbD89?="),
        ("=?base64?literal", "=?base64?literal"),
        ("a b\tc", "a b\tc"),
        ("\tx", "=?base64?CXg=?="),
        ("", ""),
    ] {
        assert_eq!(encode_value(value), header);
        assert_eq!(decode_value(NAME, header.as_bytes()).unwrap(), value);
    }
}
