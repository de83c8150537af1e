use serde_json::json;

use super::*;
use crate::{ErrorKind, outline::Outline};

fn raw(text: &str) -> Box<RawValue> {
    RawValue::from_string(text.to_owned()).unwrap_or_else(|e| panic!("{text}: {e}"))
}

/// Returns the error of parsing `text` as a `T`.
#[track_caller]
fn refused<T: for<'a> Deserialize<'a>>(text: &str) -> McpError {
    let raw = raw(text);
    match parse::<T>(Some(&raw)) {
        Err(error) => {
            assert_eq!(error.kind, ErrorKind::InvalidParams);
            error
        }
        Ok(_) => panic!("{text} was accepted"),
    }
}

macro_rules! assert_error {
    ($type:ty, $text:expr, $member:expr, $message:expr) => {{
        let raw = raw($text);
        let error = parse::<$type>(Some(&raw)).expect_err($text);
        assert_eq!(error.kind, ErrorKind::InvalidParams, "{}", $text);
        assert_eq!(error.data["member"], $member, "{}", $text);
        assert_eq!(error.message, $message, "{}", $text);
    }};
}

#[test]
fn errors_name_member_without_client_input() {
    assert_error!(CallToolParams<'_>, "{}", "name", "`params.name` is missing");
    assert_error!(CallToolParams<'_>, r#"{"name":5}"#, "name", "`params.name` must be a string");
    let params = r#"{"name":"a","arguments":{},"task":{},"task":null}"#;
    let outline = Outline::new(params);
    let fault = CallToolParams::from_outline(Some(&raw(params)), outline.params(params).object).unwrap_err();
    assert_eq!(fault.data["member"], "task");
    assert_error!(CallToolParams<'_>, r#"{"name":"a","name":"b"}"#, "name", "`params.name` is given more than once");
    assert_error!(
        CallToolParams<'_>,
        r#"{"name":"a","arguments":[]}"#,
        "arguments",
        "`params.arguments` must be an object"
    );
    assert_error!(
        CallToolParams<'_>,
        r#"{"name":"a","arguments":null}"#,
        "arguments",
        "`params.arguments` must be an object"
    );
    assert_error!(ResourceUriParams<'_>, r#"{"uri":["x, expected y"]}"#, "uri", "`params.uri` must be a string");
    assert_error!(ResourceUriParams<'_>, r#"{"uri":{}}"#, "uri", "`params.uri` must be a string");
    assert_error!(
        GetPromptParams<'_>,
        r#"{"name":"a","arguments":{"x":1}}"#,
        "arguments",
        "`params.arguments` must be a map of strings"
    );
    assert_error!(
        CompleteParams<'_>,
        r#"{"ref":{"type":"ref/prompt","name":"p"},"argument":{"name":"a"}}"#,
        "argument.value",
        "`params.argument.value` is missing"
    );
    assert_error!(
        CompleteParams<'_>,
        r#"{"ref":{"name":"p"},"argument":{"name":"a","value":""}}"#,
        "ref.type",
        "`params.ref.type` is missing"
    );
    assert_error!(ListenParams<'_>, "{}", "notifications", "`params.notifications` is missing");
    assert_error!(
        ListenParams<'_>,
        r#"{"notifications":{"toolsListChanged":"yes, expected `no`"}}"#,
        "notifications.toolsListChanged",
        "`params.notifications.toolsListChanged` must be a boolean"
    );
    assert_error!(
        ListenParams<'_>,
        r#"{"notifications":{"resourceSubscriptions":["a",2]}}"#,
        "notifications.resourceSubscriptions[1]",
        "`params.notifications.resourceSubscriptions[1]` must be a string"
    );
    assert_error!(
        CancelledParams,
        r#"{"requestId":1.5}"#,
        "requestId",
        "`params.requestId` must be a string or an integer"
    );
    assert_error!(
        CancelledParams,
        r#"{"requestId":null}"#,
        "requestId",
        "`params.requestId` must be a string or an integer"
    );
    assert_error!(
        InitializeParams<'_>,
        r#"{"protocolVersion":"x","capabilities":1,"clientInfo":{"name":"a","version":"b"}}"#,
        "capabilities",
        "`params.capabilities` must be an object"
    );
    assert_error!(
        InitializeParams<'_>,
        r#"{"protocolVersion":"x","capabilities":{},"clientInfo":{"name":"a"}}"#,
        "clientInfo.version",
        "`params.clientInfo.version` is missing"
    );
}

#[test]
fn only_objects_are_accepted_for_objects() {
    for (value, member) in [(r#"[["id"],"x"]"#, "argument"), ("5", "argument"), ("null", "argument")] {
        let text = format!(r#"{{"ref":{{"type":"ref/prompt","name":"p"}},"argument":{value}}}"#);
        assert_error!(CompleteParams<'_>, &text, member, format!("`params.{member}` must be an object"));
    }
    for (reference, context, member) in
        [(r#"["ref/prompt","p"]"#, "{}", "ref"), (r#"{"type":"ref/prompt","name":"p"}"#, "[{}]", "context")]
    {
        let argument = r#""argument":{"name":"a","value":""}"#;
        let text = format!(r#"{{"ref":{reference},{argument},"context":{context}}}"#);
        assert_error!(CompleteParams<'_>, &text, member, format!("`params.{member}` must be an object"));
    }
    for filter in [r#"[true,false,false,["a://b"],[]]"#, "true", "null"] {
        let text = format!(r#"{{"notifications":{filter}}}"#);
        assert_error!(ListenParams<'_>, &text, "notifications", "`params.notifications` must be an object");
    }
    assert_error!(
        InitializeParams<'_>,
        r#"{"protocolVersion":"x","capabilities":{},"clientInfo":["a","b"]}"#,
        "clientInfo",
        "`params.clientInfo` must be an object"
    );
}

#[test]
fn long_client_input_is_not_echoed() {
    let long = "x".repeat(1 << 16);
    for error in [
        refused::<SetLevelParams>(&json!({ "level": long }).to_string()),
        refused::<SetLevelParams>(&json!({ "level": format!("{long}, expected {long}`") }).to_string()),
    ] {
        assert_eq!(error.data["member"], "level");
        assert!(error.message.len() < 200, "{}", error.message.len());
        assert!(error.message.contains("`debug`"), "{}", error.message);
    }
    let deep = format!(r#"{{"name":"p","arguments":{{"{long}":{}{}}}}}"#, "[".repeat(200), "]".repeat(200));
    let raw = raw(&deep);
    let error = parse::<GetPromptParams<'_>>(Some(&raw)).expect_err("too deep");
    assert!(error.message.len() < 400, "{}", error.message.len());
}

#[test]
fn absent_params_are_an_empty_object() {
    assert!(parse::<ListParams<'_>>(None).is_ok_and(|p| p.cursor.is_none()));
    assert!(parse::<CallToolParams<'_>>(None).is_err());
    let list = raw("[1]");
    assert_eq!(parse::<ListParams<'_>>(Some(&list)).expect_err("an array").data["member"], "params");
}

#[test]
fn payloads_are_borrowed_unchanged() {
    let text = raw(r#"{"_meta":{}, "arguments" : {"b": 1.0,"a":"\u0041"}, "name":"tracker", "unknown":[1]}"#);
    let call: CallToolParams<'_> = parse(Some(&text)).expect("a call");
    assert!(matches!(call.name, Cow::Borrowed("tracker")));
    assert_eq!(call.arguments.map(RawValue::get), Some(r#"{"b": 1.0,"a":"\u0041"}"#));
    let text = raw(r#"{"name":"a\u0041"}"#);
    assert_eq!(parse::<CallToolParams<'_>>(Some(&text)).expect("a call").name, "aA");
}

#[test]
fn completions_name_a_prompt_or_a_resource() {
    let text =
        raw(r#"{"ref":{"type":"ref/resource","uri":"tracker://issues/{id}"},"argument":{"name":"id","value":"C"},
            "context":{"arguments":{"project":"CORE"}}}"#);
    let complete: CompleteParams<'_> = parse(Some(&text)).expect("a completion");
    assert_eq!(complete.reference, Reference::Resource { uri: "tracker://issues/{id}".into() });
    assert_eq!((complete.argument.name.as_ref(), complete.argument.value.as_ref()), ("id", "C"));
    assert_eq!(complete.context.arguments["project"], "CORE");
    // 2025-06-18 gave prompt references a title.
    let text = raw(r#"{"argument":{"name":"id","value":""},"ref":{"name":"triage","title":"T","type":"ref/prompt"}}"#);
    let complete: CompleteParams<'_> = parse(Some(&text)).expect("a completion");
    assert_eq!(complete.reference, Reference::Prompt { name: "triage".into() });
    let text = raw(r#"{"ref":{"type":"ref/tool","name":"x"},"argument":{"name":"id","value":""}}"#);
    assert!(parse::<CompleteParams<'_>>(Some(&text)).is_err());
}

#[test]
fn listen_filter_contains_only_named_members() {
    let text =
        raw(r#"{"notifications":{"toolsListChanged":true,"resourceSubscriptions":["a://b"],"taskIds":["t"],"new":1}}"#);
    let filter = parse::<ListenParams<'_>>(Some(&text)).expect("a filter").notifications;
    assert!(filter.tools_list_changed && !filter.prompts_list_changed && !filter.resources_list_changed);
    assert_eq!(filter.resource_subscriptions, ["a://b"]);
    assert_eq!(filter.task_ids, ["t"]);
}

#[test]
fn remaining_params_are_parsed() {
    let text = raw(
        r#"{"protocolVersion":"2025-11-25","capabilities":{"roots":{}},"clientInfo":{"name":"c","version":"1","title":"C","icons":[]}}"#,
    );
    let init: InitializeParams<'_> = parse(Some(&text)).expect("initialize");
    assert_eq!((init.protocol_version.as_ref(), init.capabilities.get()), ("2025-11-25", r#"{"roots":{}}"#));
    assert_eq!(init.client_info, Implementation { name: "c".into(), version: "1".into(), title: Some("C".into()) });

    let text = raw(r#"{"requestId":"\u0061","reason":"user"}"#);
    let cancelled: CancelledParams = parse(Some(&text)).expect("cancelled");
    assert_eq!(cancelled.request_id, RequestId::from_raw("\"a\""));
    assert_eq!(cancelled.request_id.as_json(), r#""\u0061""#);

    let text = raw(r#"{"uri":"a://b"}"#);
    assert_eq!(parse::<ResourceUriParams<'_>>(Some(&text)).expect("subscribe").uri, "a://b");
    let text = raw(r#"{"cursor":""}"#);
    assert_eq!(parse::<ListParams<'_>>(Some(&text)).expect("a page").cursor.as_deref(), Some(""));
}

#[test]
fn levels_are_ordered_by_severity() {
    assert!(LoggingLevel::ALL.windows(2).all(|pair| pair[0] < pair[1]));
    for level in LoggingLevel::ALL {
        assert_eq!(LoggingLevel::parse(level.as_str()), Some(*level));
        assert_eq!(serde_json::from_value::<LoggingLevel>(level.as_str().into()).expect("a level"), *level);
    }
    for text in ["Debug", "warn", "", "trace"] {
        assert_eq!(LoggingLevel::parse(text), None);
    }
}

#[test]
fn meta_is_read_at_any_position() {
    let text = raw(r#"{"name":"x","arguments":{"_meta":{"progressToken":"inner"}},"_meta":{"progressToken":"\u0061",
            "io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"c","version":"1"},
            "io.modelcontextprotocol/clientCapabilities":{"elicitation":{}},"io.modelcontextprotocol/logLevel":"error",
            "dev.countersign/idempotencyKey":"k","traceparent":"00-a-b-01","com.example/other":[1,2]}}"#);
    let meta = parse_meta(Some(&text)).expect("meta");
    assert_eq!(meta.progress_token, Some(r#""\u0061""#));
    assert_eq!(meta.protocol_version.as_deref(), Some("2026-07-28"));
    assert_eq!(meta.client_info().expect("info").map(|info| info.name).as_deref(), Some("c"));
    assert_eq!(meta.client_capabilities, Some(r#"{"elicitation":{}}"#));
    assert_eq!(meta.log_level(), Ok(Some(LoggingLevel::Error)));
    assert_eq!(meta.idempotency_key.as_deref(), Some("k"));
    assert!(meta.names_revision());
}

#[test]
fn absent_meta_is_empty() {
    for params in [None, Some(raw("{}")), Some(raw(r#"{"_meta":{}}"#)), Some(raw(r#"{"Meta":1}"#))] {
        let meta = parse_meta(params.as_deref()).expect("meta");
        assert!(!meta.names_revision() && meta.progress_token.is_none() && meta.client_capabilities.is_none());
    }
    assert!(
        parse_meta(Some(&raw(r#"{"\u005fmeta":{"progressToken":1}}"#))).is_ok_and(|meta| meta.progress_token.is_some())
    );
}

#[test]
fn malformed_meta_error_names_the_member() {
    let version = "io.modelcontextprotocol/protocolVersion";
    for (text, member) in [
        (r#"{"_meta":null}"#.to_owned(), "_meta".to_owned()),
        (r#"{"_meta":[]}"#.into(), "_meta".into()),
        (r#"{"_meta":"x"}"#.into(), "_meta".into()),
        (r#"{"_meta":{},"_meta":{}}"#.into(), "_meta".into()),
        ("[]".into(), "params".into()),
        (format!(r#"{{"_meta":{{"{version}":20260728}}}}"#), format!("_meta.{version}")),
        (format!(r#"{{"_meta":{{"{version}":null}}}}"#), format!("_meta.{version}")),
        (format!(r#"{{"_meta":{{"{version}":"a","{version}":"b"}}}}"#), format!("_meta.{version}")),
        (r#"{"_meta":{"progressToken":1.5}}"#.into(), "_meta.progressToken".into()),
        (r#"{"_meta":{"progressToken":null}}"#.into(), "_meta.progressToken".into()),
        (r#"{"_meta":{"progressToken":{}}}"#.into(), "_meta.progressToken".into()),
        (
            r#"{"_meta":{"io.modelcontextprotocol/clientCapabilities":[]}}"#.into(),
            format!("_meta.{}", keys::CLIENT_CAPABILITIES),
        ),
        (r#"{"_meta":{"io.modelcontextprotocol/clientInfo":"x"}}"#.into(), format!("_meta.{}", keys::CLIENT_INFO)),
        (r#"{"_meta":{"dev.countersign/idempotencyKey":5}}"#.into(), format!("_meta.{}", keys::IDEMPOTENCY_KEY)),
    ] {
        let error = parse_meta(Some(&raw(&text))).expect_err(&text);
        assert_eq!((error.kind, &error.data["member"]), (ErrorKind::InvalidParams, &json!(member)), "{text}");
    }
    let text = raw(r#"{"_meta":{"io.modelcontextprotocol/logLevel":"loud","io.modelcontextprotocol/clientInfo":{}}}"#);
    let meta = parse_meta(Some(&text)).expect("meta");
    assert_eq!(meta.log_level().expect_err("no level").data["member"], format!("_meta.{}", keys::LOG_LEVEL));
    assert!(meta.client_info().is_err());
}
