//! Tests of JSON-RPC over raw HTTP in the handshake revisions: ids, errors, batches, negotiation.

use serde_json::{Value, json};
use support::{Gateway, Options, mcp};

/// Returns the raw text of the answer's `id`.
fn raw_id(body: &str) -> Option<String> {
    #[derive(serde::Deserialize)]
    struct Answer {
        id: Option<Box<serde_json::value::RawValue>>,
    }
    serde_json::from_str::<Answer>(body).unwrap().id.map(|raw| raw.get().to_owned())
}

#[test]
fn ids_are_echoed_byte_for_byte() {
    let gateway = Gateway::start();
    let session = gateway.session("2025-11-25");
    let long_string = format!("\"{}\"", "x".repeat(70_000));
    let long_number = "9".repeat(5_000);
    for id in [
        "1",
        "0",
        "-7",
        "-0",
        "9007199254740993",
        "123456789012345678901234567890",
        long_number.as_str(),
        "\"a\"",
        "\"\"",
        "\"1\"",
        r#""\u00e9\n\"\\\/""#,
        "\"é 漢 🦀\"",
        r#""\ud83e\udd80""#,
        long_string.as_str(),
    ] {
        let answer = session.post(&format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"ping"}}"#));
        assert_eq!(answer.status, 200, "{id}: {}", answer.text());
        assert_eq!(raw_id(&answer.text()).as_deref(), Some(id));
        assert!(answer.text().ends_with(r#","result":{}}"#), "{}", answer.text());
        let error = session.post(&format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"no/such"}}"#));
        assert_eq!(raw_id(&error.text()).as_deref(), Some(id), "also in an error");
        assert!(error.text().contains("-32601"), "{}", error.text());
    }
}

#[test]
fn ids_of_other_types_are_refused() {
    let gateway = Gateway::start();
    for version in mcp::LEGACY {
        let session = gateway.session(version);
        for id in ["null", "1.5", "1.0", "1e3", "true", "[]", "{}", r#"{"a":1}"#] {
            let answer = session.post(&format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"ping"}}"#));
            let body = answer.json();
            assert_eq!(answer.code(), Some(-32600), "{version} {id}: {body}");
            assert_eq!(body["error"]["data"]["code"], "INVALID_REQUEST");
            // An unreadable id is null up to 2025-06-18 and absent later.
            let expected = if version < "2025-11-25" { Some(&Value::Null) } else { None };
            assert_eq!(body.get("id"), expected, "{version} {id}");
        }
    }
}

#[test]
fn invalid_json_is_a_parse_error() {
    let gateway = Gateway::start();
    let session = gateway.session("2025-11-25");
    let deep = "[".repeat(100_000);
    let bodies: &[&[u8]] = &[
        b"",
        b" ",
        b"{",
        b"nul",
        b"{}x",
        b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"} trailing",
        b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}{}",
        b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\",\"params\":{\"n\":NaN}}",
        b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\",\"params\":{\"n\":Infinity}}",
        b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\",\"params\":{\"n\":01}}",
        b"{'jsonrpc':'2.0'}",
        b"\xff\xfe{}",
        b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"pi\xffng\"}",
        deep.as_bytes(),
    ];
    for body in bodies {
        let mut headers = vec![mcp::JSON, mcp::ACCEPT];
        headers.extend(session.headers());
        let answer = gateway.request("POST", "/mcp", &headers, body);
        let shown = String::from_utf8_lossy(&body[..body.len().min(60)]).into_owned();
        assert_eq!((answer.status, answer.code()), (400, Some(-32700)), "{shown}: {}", answer.text());
        assert!(answer.json().get("id").is_none(), "{shown}");
    }
    assert_eq!(session.call(1, "ping", json!({}))["result"], json!({}), "the session continues");
}

#[test]
fn non_request_is_invalid() {
    let gateway = Gateway::start();
    let session = gateway.session("2025-11-25");
    for body in [
        "5",
        "\"ping\"",
        "null",
        "true",
        "{}",
        r#"{"jsonrpc":"2.0","id":1}"#,
        r#"{"jsonrpc":"1.0","id":1,"method":"ping"}"#,
        r#"{"id":1,"method":"ping"}"#,
        r#"{"jsonrpc":2.0,"id":1,"method":"ping"}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":5}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":null}"#,
        r#"{"jsonrpc":"2.0","id":1,"id":2,"method":"ping"}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"ping","method":"tools/list"}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"ping","result":{}}"#,
    ] {
        let answer = session.post(body);
        assert_eq!((answer.status, answer.code()), (400, Some(-32600)), "{body}: {}", answer.text());
    }
    // An array is well-formed JSON-RPC; the others are not.
    for (params, code) in [("5", -32600), ("\"x\"", -32600), ("[1]", -32602)] {
        let answer = session.post(&format!(r#"{{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{params}}}"#));
        assert_eq!((answer.status, answer.code()), (400, Some(code)), "{params}: {}", answer.text());
        assert_eq!(answer.json()["id"], 1);
    }
    // A byte order mark and lone surrogates anywhere cause a clear error, never a broken connection.
    for body in [
        "\u{feff}{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}",
        r#"{"jsonrpc":"2.0","id":"\ud800","method":"ping"}"#,
        r#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"search_issues","arguments":{"query":"\udfff"}}}"#,
    ] {
        let answer = session.post(body);
        assert_eq!((answer.status, answer.code()), (400, Some(-32700)), "{body}: {}", answer.text());
    }
}

#[test]
fn method_and_param_errors_have_codes() {
    let gateway = Gateway::start();
    let session = gateway.session("2025-11-25");
    for (method, params, code, stable) in [
        ("no/such/method", json!({}), -32601, "METHOD_NOT_FOUND"),
        ("tools/call", json!({}), -32602, "INVALID_PARAMS"),
        ("tools/call", json!({"name": "no_such_tool", "arguments": {}}), -32602, "TOOL_NOT_FOUND"),
        ("tools/list", json!({"cursor": "not one of ours"}), -32602, "INVALID_PARAMS"),
        ("tools/list", json!({"cursor": ""}), -32602, "INVALID_PARAMS"),
        ("resources/read", json!({"uri": "nowhere://x"}), -32002, "RESOURCE_NOT_FOUND"),
        ("resources/read", json!({}), -32602, "INVALID_PARAMS"),
        ("prompts/get", json!({"name": "no_such_prompt"}), -32602, "PROMPT_NOT_FOUND"),
        ("logging/setLevel", json!({"level": "shout"}), -32602, "INVALID_PARAMS"),
        ("completion/complete", json!({"ref": {"type": "ref/nothing"}}), -32602, "INVALID_PARAMS"),
    ] {
        let answer = session.post(&mcp::request(3, method, params).to_string());
        let body = answer.json();
        assert_eq!(answer.status, 200, "a 404 means that the session is gone: {method} {body}");
        assert_eq!(body["error"]["code"], code, "{method}: {body}");
        assert_eq!(body["error"]["data"]["code"], stable, "{method}: {body}");
        assert_eq!(body["id"], 3);
    }
}

#[test]
fn bad_arguments_follow_the_revision() {
    let gateway = Gateway::start();
    for version in mcp::LEGACY {
        let session = gateway.session(version);
        let arguments = json!({"projectId": "no uuid", "title": "", "type": "Story"});
        let body = session.call(5, "tools/call", json!({"name": "create_issue", "arguments": arguments}));
        if version == "2025-11-25" {
            assert_eq!(body["result"]["isError"], true, "{body}");
            let text = body["result"]["content"][0]["text"].as_str().unwrap();
            let error: Value = serde_json::from_str(text).unwrap();
            assert_eq!(error["code"], "VALIDATION_FAILED");
            assert!(error["details"].to_string().contains("/title"), "{error}");
        } else {
            assert_eq!(body["error"]["code"], -32602, "{version}: {body}");
            assert!(body["error"]["data"].to_string().contains("/title"), "{version}: {body}");
        }
    }
}

#[test]
fn notification_is_never_answered() {
    let gateway = Gateway::start();
    let session = gateway.session("2025-11-25");
    for body in [
        r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#,
        r#"{"jsonrpc":"2.0","method":"no/such/notification"}"#,
        r#"{"jsonrpc":"2.0","method":"tools/list"}"#,
        r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"nothing"}}"#,
        r#"{"jsonrpc":"2.0","id":99,"result":{}}"#,
    ] {
        let answer = session.post(body);
        assert_eq!((answer.status, answer.body.len()), (202, 0), "{body}: {}", answer.text());
    }
}

#[test]
fn batches_work_in_revisions_that_have_them() {
    let gateway = Gateway::start();
    for version in ["2025-06-18", "2025-11-25"] {
        let session = gateway.session(version);
        for body in ["[]", r#"[{"jsonrpc":"2.0","id":1,"method":"ping"}]"#] {
            let answer = session.post(body);
            assert_eq!((answer.status, answer.code()), (400, Some(-32600)), "{version}: {}", answer.text());
        }
    }
    for version in ["2024-11-05", "2025-03-26"] {
        let session = gateway.session(version);
        let batch = json!([
            mcp::request(1, "ping", json!({})),
            mcp::notification("notifications/whatever"),
            mcp::request(2, "tools/list", json!({})),
            {"jsonrpc": "2.0", "id": "three", "method": "no/such"},
            5,
            {"jsonrpc": "2.0", "id": null, "method": "ping"},
            mcp::request(6, "tools/call", json!({"name": "list_projects", "arguments": {}})),
            mcp::request(7, "tools/call", json!({"name": "list_projects", "arguments": {}})),
        ]);
        let answer = session.post(&batch.to_string());
        assert_eq!(answer.status, 200, "{}", answer.text());
        let answers = answer.json();
        let answers = answers.as_array().expect("an array");
        assert_eq!(answers.len(), 7, "all but the notification: {answers:?}");
        let of = |id: Value| answers.iter().find(|a| a["id"] == id).unwrap_or_else(|| panic!("{id}: {answers:?}"));
        assert_eq!(of(json!(1))["result"], json!({}));
        assert!(of(json!(2))["result"]["tools"].is_array());
        assert_eq!(of(json!("three"))["error"]["code"], -32601);
        assert_eq!(answers.iter().filter(|a| a["id"].is_null() && a["error"]["code"] == -32600).count(), 2);
        assert_eq!(of(json!(6))["result"], of(json!(7))["result"], "identical reads share one call");

        let silent = session
            .post(r#"[{"jsonrpc":"2.0","method":"notifications/a"},{"jsonrpc":"2.0","method":"notifications/b"}]"#);
        assert_eq!((silent.status, silent.body.len()), (202, 0), "{}", silent.text());
        assert_eq!(session.post("[]").code(), Some(-32600), "an empty batch");
        let opening = json!([mcp::request(1, "initialize", mcp::initialize_params(version))]);
        let refused = session.post(&opening.to_string()).json();
        let first = refused.get(0).unwrap_or(&refused);
        assert_eq!(first["error"]["code"], -32600, "no initialize inside a batch: {refused}");
        let many = Value::Array((0..101).map(|id| mcp::request(id, "ping", json!({}))).collect());
        let refused = session.post(&many.to_string());
        assert!(refused.code().is_some(), "more than max_batch members: {}", refused.text());
    }
}

#[test]
fn writes_in_one_batch_are_not_shared() {
    let gateway = Gateway::start();
    let session = gateway.session("2025-03-26");
    let arguments = json!({"projectId": gateway.project(), "title": "Twice in a batch", "type": "Story"});
    let call = |id| mcp::request(id, "tools/call", json!({"name": "create_issue", "arguments": arguments}));
    let answers = session.post(&json!([call(1), call(2)]).to_string()).json();
    assert_eq!(answers.as_array().map(Vec::len), Some(2), "{answers}");
    let (_, listed) = gateway.api("GET", "/api/changes?status=pending", None);
    assert_eq!(listed["changes"].as_array().map(Vec::len), Some(2), "{listed}");
}

#[test]
fn unknown_revision_gets_the_newest_handshake_one() {
    let gateway = Gateway::start();
    for version in mcp::LEGACY {
        let session = gateway.session_without_initialized(version);
        assert!(session.id.bytes().all(|byte| byte.is_ascii_graphic()), "{}", session.id);
        assert_eq!(session.id.len(), 32);
    }
    for version in ["2026-07-28", "1999-01-01", "", "draft"] {
        let answer = gateway.post(&[], &mcp::request(0, "initialize", mcp::initialize_params(version)).to_string());
        assert_eq!(answer.json()["result"]["protocolVersion"], "2025-11-25", "{version}: {}", answer.text());
    }
    let strict =
        Gateway::with_options(&Options { env: vec![("COUNTERSIGN_STRICT_VERSIONS", "true")], ..Options::default() });
    let refused = strict.post(&[], &mcp::request(0, "initialize", mcp::initialize_params("1999-01-01")).to_string());
    let error = &refused.json()["error"];
    assert_eq!(error["code"], -32602, "{error}");
    assert_eq!(error["data"]["requested"], "1999-01-01");
    assert!(error["data"]["supported"].as_array().unwrap().contains(&json!("2025-11-25")));
}

#[test]
fn capabilities_are_those_of_the_revision_and_work() {
    let gateway = Gateway::start();
    for version in mcp::LEGACY {
        let answer = gateway.post(&[], &mcp::request(0, "initialize", mcp::initialize_params(version)).to_string());
        let result = &answer.json()["result"];
        assert_eq!(result["serverInfo"]["name"], "countersign", "{result}");
        let capabilities = result["capabilities"].as_object().unwrap();
        assert_eq!(capabilities.contains_key("completions"), version >= "2025-03-26", "{version}: {capabilities:?}");
        for name in ["tools", "resources", "prompts", "logging"] {
            assert!(capabilities.contains_key(name), "{version}: {capabilities:?}");
        }
        assert!(result.get("resultType").is_none() && result.get("ttlMs").is_none(), "{result}");
        let session = gateway.session(version);
        let tools = session.call(1, "tools/list", json!({}));
        let tool = &tools["result"]["tools"][0];
        assert_eq!(tool.get("outputSchema").is_some(), version >= "2025-06-18", "{version}: {tool}");
        assert_eq!(tool.get("title").is_some(), version >= "2025-06-18", "{version}: {tool}");
        assert_eq!(tool.get("annotations").is_some(), version >= "2025-03-26", "{version}: {tool}");
        let read = session.call(2, "tools/call", json!({"name": "list_projects", "arguments": {}}));
        assert_eq!(read["result"].get("structuredContent").is_some(), version >= "2025-06-18", "{version}: {read}");
    }
}

#[test]
fn gateways_own_methods_are_answered() {
    let gateway = Gateway::start();
    let session = gateway.session("2025-11-25");
    for method in ["health/check", "info/server", "metrics/get"] {
        let legacy = session.call(1, method, json!({}));
        assert!(legacy["result"].is_object(), "{method}: {legacy}");
        let modern = gateway.modern(2, method, json!({})).json();
        assert_eq!(modern["result"]["resultType"], "complete", "{method}: {modern}");
    }
}
