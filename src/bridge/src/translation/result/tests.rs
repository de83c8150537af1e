//! Tests of the translation of results and of their content.

use std::sync::Arc;

use super::*;
use countersign_upstream::testing::negotiated;

const LEGACY: Revision = Revision::V2025_11_25;
const MODERN: Revision = Revision::MODERN;
const TOOL: RequestedItem<'_> = RequestedItem::Tool("a");
const RESOURCE: RequestedItem<'_> = RequestedItem::Resource { uri: "a:b", exposed_uri: "s+a:b" };

fn translate(item: RequestedItem<'_>, (client, upstream): (Revision, Revision), result: &str) -> String {
    let upstream = negotiated(upstream);
    let adapter = ResponseAdapter { item, client, upstream: &upstream, uri_prefix: "" };
    adapter.reply(RawValue::from_string(result.to_owned()).unwrap()).unwrap().json
}

#[test]
fn only_differences_between_eras_are_changed() {
    let meta = &SERVER_META[1..];
    for (item, revisions, result, expected) in [
        (TOOL, (LEGACY, LEGACY), r#"{ "content":[ ],"n":1e2 }"#, r#"{ "content":[ ],"n":1e2 }"#.to_owned()),
        (TOOL, (MODERN, MODERN), r#"{"resultType":"complete","x":1}"#, r#"{"resultType":"complete","x":1}"#.into()),
        (TOOL, (MODERN, MODERN), r#"{"x":1}"#, r#"{"x":1,"resultType":"complete"}"#.into()),
        (
            RESOURCE,
            (MODERN, MODERN),
            r#"{"resultType":"complete","contents":[],"ttlMs":7}"#,
            r#"{"resultType":"complete","contents":[],"ttlMs":7,"cacheScope":"private"}"#.into(),
        ),
        (RESOURCE, (MODERN, MODERN), r#"{"resultType":"input_required"}"#, r#"{"resultType":"input_required"}"#.into()),
        (TOOL, (LEGACY, MODERN), r#"{"resultType":"complete","x":1,"ttlMs":5}"#, r#"{"x":1}"#.into()),
        // A server of the client's own era may use the member for its own purpose.
        (TOOL, (LEGACY, LEGACY), r#"{"resultType":"mine"}"#, r#"{"resultType":"mine"}"#.into()),
        (TOOL, (MODERN, LEGACY), r#"{"x":1}"#, format!(r#"{{"x":1,"_meta":{{{meta},"resultType":"complete"}}"#)),
        (
            RESOURCE,
            (MODERN, LEGACY),
            r#"{"contents":[],"ttlMs":7}"#,
            format!(r#"{{"contents":[],"ttlMs":7,"_meta":{{{meta},"resultType":"complete","cacheScope":"private"}}"#),
        ),
    ] {
        assert_eq!(translate(item, revisions, result), expected, "{revisions:?}");
    }
}

#[test]
fn server_info_is_added_unless_result_has_one() {
    let info = RawValue::from_string(r#"{"name":"x"}"#.into()).unwrap();
    let upstream = NegotiatedSession { server_info: Some(Arc::from(info)), ..negotiated(LEGACY) };
    let adapter = ResponseAdapter { item: TOOL, client: MODERN, upstream: &upstream, uri_prefix: "" };
    let named = r#""io.modelcontextprotocol/serverInfo":{"name":"x"}"#;
    assert_eq!(adapter.adapt_nested("{}").unwrap(), format!(r#"{{"_meta":{{{named}}},"resultType":"complete"}}"#));
    let with_server_info = r#"{"_meta":{"io.modelcontextprotocol/serverInfo":{"name":"y"}}}"#;
    assert!(
        adapter.adapt_nested(with_server_info).unwrap().contains(r#"{"name":"y"}"#),
        "the result's own server info stays"
    );
}

#[test]
fn unsupported_structured_content_becomes_text_if_alone() {
    let without_blocks = r#"{"content":[],"structuredContent":[1,2]}"#;
    let with_blocks = r#"{"content":[{"type":"text","text":"x"}],"structuredContent":[1,2]}"#;
    for (client, result, expected) in [
        (Revision::V2025_03_26, without_blocks, r#"{"content":[{"type":"text","text":"[1,2]"}]}"#),
        (Revision::V2025_06_18, without_blocks, r#"{"content":[{"type":"text","text":"[1,2]"}]}"#),
        (Revision::V2024_11_05, r#"{"structuredContent":[1,2]}"#, r#"{"content":[{"type":"text","text":"[1,2]"}]}"#),
        (LEGACY, r#"{"structuredContent":{"a":1}}"#, r#"{"structuredContent":{"a":1}}"#),
        (LEGACY, with_blocks, r#"{"content":[{"type":"text","text":"x"}]}"#),
        (LEGACY, r#"{"content":[],"structuredContent":{"a":1}}"#, r#"{"content":[],"structuredContent":{"a":1}}"#),
        (MODERN, without_blocks, r#"{"content":[],"structuredContent":[1,2],"resultType":"complete"}"#),
    ] {
        assert_eq!(translate(TOOL, (client, MODERN), result), expected, "{client:?}");
    }
}

#[test]
fn only_tool_results_fail_and_results_are_objects() {
    let upstream = negotiated(MODERN);
    for (item, failure) in [(TOOL, Some(ErrorKind::ToolExecution)), (RequestedItem::Prompt("a"), None)] {
        let adapter = ResponseAdapter { item, client: MODERN, upstream: &upstream, uri_prefix: "" };
        let reply = |text: &str| adapter.reply(RawValue::from_string(text.to_owned()).unwrap());
        assert_eq!(reply(r#"{"isError":true}"#).unwrap().failure, failure);
        assert_eq!(reply(r#"{"isError":"true"}"#).unwrap().failure, None);
        assert_eq!(reply("[]").unwrap_err().kind, ErrorKind::NotBridgeable);
    }
}

#[test]
fn result_without_known_type_is_complete() {
    for (result, result_type) in [
        ("{}", ResultType::Complete),
        (r#"{"resultType":"complete"}"#, ResultType::Complete),
        (r#"{"resultType":7}"#, ResultType::Complete),
        (r#"{"resultType":"input\u005frequired"}"#, ResultType::InputRequired),
        (r#"{"resultType":"task"}"#, ResultType::Extension("task".into())),
    ] {
        assert_eq!(ResultMembers::parse(result).parse_type(), result_type, "{result}");
    }
}

fn adapter(uri_prefix: &str, older_revision: Option<Revision>) -> ContentAdapter<'_> {
    ContentAdapter { uri_prefix, older_revision }
}

#[test]
fn uris_get_exposed_form_in_all_content() {
    let adapter = adapter("fs+", None);
    let blocks = r#"[ {"type":"text","text":"file:///a","n":1.0}, {"uri" : "file:///\u0061","type":"resource_link"},{"type":"resource","resource":{"text":"", "uri":"file:///b"}} ]"#;
    let expected = r#"[ {"type":"text","text":"file:///a","n":1.0}, {"uri" : "fs+file:///a","type":"resource_link"},{"type":"resource","resource":{"text":"", "uri":"fs+file:///b"}} ]"#;
    assert_eq!(adapter.adapt_blocks(blocks).as_deref(), Some(expected));
    assert_eq!(adapter.adapt_blocks(r#"[{"type":"text","text":"x"}]"#), None);
    let contents = r#"[{"uri":"file:///a","text":"x","_meta":{"k":1}}]"#;
    assert_eq!(adapter.adapt_contents(contents).unwrap(), contents.replace("file", "fs+file"));
    let messages = r#"[{"role":"user","content":{"type":"resource","resource":{"uri":"a:b","text":""}}}]"#;
    assert_eq!(adapter.adapt_messages(messages).unwrap(), messages.replace("a:b", "fs+a:b"));
}

#[test]
fn content_unknown_to_older_client_is_replaced() {
    let audio = r#"{"type":"audio","data":"AA==","mimeType":"audio/wav"}"#;
    let link = r#"{"type":"resource_link","uri":"a:b","name":"n","title":"T","icons":[],"description":"d"}"#;
    let annotated = r#"{"type":"text","text":"x","annotations":{"priority":1,"lastModified":"y"},"_meta":{}}"#;
    use Revision as R;
    for (revision, block, expected) in [
        (R::V2024_11_05, audio, Some(r#"{"type":"text","text":"[audio, audio/wav]"}"#)),
        (R::V2025_03_26, audio, None),
        (R::V2025_03_26, link, Some(r#"{"type":"text","text":"[resource a:b T: d]"}"#)),
        (
            R::V2025_06_18,
            link,
            Some(r#"{"type":"resource_link","uri":"a:b","name":"n","title":"T","description":"d"}"#),
        ),
        (R::V2025_11_25, link, None),
        (R::V2025_03_26, annotated, Some(r#"{"type":"text","text":"x","annotations":{"priority":1}}"#)),
        (R::V2025_06_18, annotated, None),
    ] {
        assert_eq!(adapter("", Some(revision)).adapt_block(block).as_deref(), expected, "{revision:?} {block}");
    }
}
