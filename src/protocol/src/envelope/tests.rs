use serde_json::json;

use super::*;
use crate::Revision;

const LIMITS: Limits = Limits { max_depth: 16, max_batch: 4 };

fn parse_single(text: &str) -> Result<Message<'_>, EnvelopeError> {
    match parse(text.as_bytes(), &LIMITS)? {
        Incoming::Single(message) => Ok(message),
        Incoming::Batch(_) => panic!("{text} was parsed as a batch"),
    }
}

#[track_caller]
fn request(text: &str) -> Request<'_> {
    match parse_single(text) {
        Ok(Message::Request(request)) => request,
        other => panic!("{text} gave {other:?}"),
    }
}

#[track_caller]
fn fault(text: &[u8]) -> EnvelopeError {
    match parse(text, &LIMITS) {
        Err(fault) => fault,
        other => panic!("{} gave {other:?}", String::from_utf8_lossy(text)),
    }
}

#[track_caller]
fn assert_refused(text: &str, number: i64, id: Option<&str>) {
    let fault = fault(text.as_bytes());
    assert_eq!(fault.error.number(Revision::MODERN), number, "{text}: {}", fault.error);
    assert_eq!(fault.id.as_ref().map(RequestId::as_json), id, "{text}");
    assert!(!fault.is_notification, "{text}");
}

#[test]
fn request_has_method_and_id() {
    let r = request(r#" {"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x", "arguments":{"a":[1]}}} "#);
    assert_eq!(r.id.as_json(), "1");
    assert!(matches!(r.method, Cow::Borrowed("tools/call")));
    assert_eq!(r.params.map(RawValue::get), Some(r#"{"name":"x", "arguments":{"a":[1]}}"#));
    let r = request("{\"method\":\"ping\",\n\t\"jsonrpc\":\"2.0\",\r\"id\":\"a\"}");
    assert_eq!((r.id.as_json(), r.params.is_none()), ("\"a\"", true));
}

#[test]
fn ids_are_kept_byte_for_byte() {
    for id in [
        "0",
        "-1",
        "-0",
        "9007199254740993",
        "123456789012345678901234567890123456789012345678901234567890",
        "\"\"",
        "\"a b\"",
        r#""\u0061\/\"\\""#,
        r#""\ud83d\ude00""#,
        "\"😀\"",
        "\"null\"",
    ] {
        assert_eq!(request(&format!(r#"{{"jsonrpc":"2.0","id": {id} ,"method":"ping"}}"#)).id.as_json(), id);
    }
}

#[test]
fn invalid_ids_are_refused() {
    for id in ["null", "1.0", "1.5", "1e3", "1E3", "-2.0e1", "true", "false", "{}", "[]", "[1]", r#"{"a":1}"#] {
        assert_refused(&format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"ping"}}"#), -32600, None);
        assert_refused(&format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{}}}}"#), -32600, None);
    }
}

#[test]
fn message_without_id_is_notification() {
    let text = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
    assert!(matches!(parse_single(text), Ok(Message::Notification(n)) if n.method == "notifications/initialized"));
}

#[test]
fn names_and_values_may_be_escaped() {
    let r = request(r#"{"\u006asonrpc":"\u0032.0","i\u0064":7,"meth\u006fd":"to\u006fls\/list"}"#);
    assert_eq!((r.id.as_json(), r.method.as_ref()), ("7", "tools/list"));
    assert_refused(r#"{"jsonrpc":"2.0","id":7,"\u0069d":8,"method":"ping"}"#, -32600, None);
}

#[test]
fn responses_carry_a_result_or_an_error() {
    for (text, id, result) in [
        (r#"{"jsonrpc":"2.0","id":1,"result":{"a":1}}"#, Some("1"), true),
        (r#"{"jsonrpc":"2.0","id":"x","error":{"code":-1,"message":"no"}}"#, Some("\"x\""), false),
        (r#"{"jsonrpc":"2.0","id":null,"error":{"code":-1,"message":"no"}}"#, None, false),
        (r#"{"jsonrpc":"2.0","error":{"code":-1,"message":"no"}}"#, None, false),
    ] {
        match parse_single(text) {
            Ok(Message::Response(response)) => {
                assert_eq!(response.id.as_ref().map(RequestId::as_json), id, "{text}");
                assert_eq!(response.outcome.is_ok(), result, "{text}");
            }
            other => panic!("{text} gave {other:?}"),
        }
    }
}

#[test]
fn fault_of_response_has_no_id() {
    for text in [
        r#"{"jsonrpc":"2.0","id":1,"result":{},"error":{"code":1,"message":""}}"#,
        r#"{"jsonrpc":"2.0","id":1,"error":"no"}"#,
        r#"{"jsonrpc":"2.0","id":1,"error":null}"#,
        r#"{"jsonrpc":"1.0","id":1,"result":{}}"#,
        r#"{"id":1,"result":{}}"#,
        r#"{"jsonrpc":"2.0","result":{}}"#,
        r#"{"jsonrpc":"2.0","id":1,"result":{},"result":{}}"#,
    ] {
        assert_refused(text, -32600, None);
    }
}

#[test]
fn non_messages_are_invalid_requests() {
    for (text, id) in [
        ("1", None),
        ("\"ping\"", None),
        ("null", None),
        ("1e999", None),
        ("{}", None),
        (r#"{"jsonrpc":"2.0"}"#, None),
        (r#"{"jsonrpc":"2.0","id":1}"#, Some("1")),
        (r#"{"id":1,"method":"ping"}"#, Some("1")),
        (r#"{"jsonrpc":"1.0","id":1,"method":"ping"}"#, Some("1")),
        (r#"{"jsonrpc":2.0,"id":1,"method":"ping"}"#, Some("1")),
        (r#"{"jsonrpc":"2.0 ","id":1,"method":"ping"}"#, Some("1")),
        (r#"{"jsonrpc":"2.0","id":1,"method":1}"#, Some("1")),
        (r#"{"jsonrpc":"2.0","id":1,"method":null}"#, Some("1")),
        (r#"{"jsonrpc":"2.0","method":1,"params":"bar"}"#, None),
        (r#"{"jsonrpc":"2.0","method":"ping","params":"bar"}"#, None),
        (r#"{"jsonrpc":"1.0","method":"ping"}"#, None),
        (r#"{"jsonrpc":"2.0","id":1,"method":"ping","params":null}"#, Some("1")),
        (r#"{"jsonrpc":"2.0","id":1,"method":"ping","params":"bar"}"#, Some("1")),
        (r#"{"jsonrpc":"2.0","id":1,"method":"ping","params":3}"#, Some("1")),
        (r#"{"jsonrpc":"2.0","id":1,"method":"ping","result":{}}"#, Some("1")),
        (r#"{"jsonrpc":"2.0","id":1,"method":"ping","error":{}}"#, Some("1")),
        (r#"{"jsonrpc":"2.0","method":"ping","result":{}}"#, None),
        (r#"{"JSONRPC":"2.0","ID":1,"METHOD":"ping"}"#, None),
    ] {
        assert_refused(text, -32600, id);
    }
}

#[test]
fn positional_params_are_invalid_params() {
    assert_refused(r#"{"jsonrpc":"2.0","id":1,"method":"ping","params":[]}"#, -32602, Some("1"));
    let fault = fault(br#"{"jsonrpc":"2.0","method":"notifications/progress","params":[1]}"#);
    assert_eq!((fault.error.kind, fault.id, fault.is_notification), (ErrorKind::InvalidParams, None, true));
}

#[test]
fn repeated_members_are_refused() {
    for (text, id) in [
        (r#"{"jsonrpc":"2.0","id":1,"id":2,"method":"ping"}"#, None),
        (r#"{"jsonrpc":"2.0","id":1,"id":1,"method":"ping"}"#, None),
        (r#"{"jsonrpc":"2.0","id":1,"method":"ping","method":"tools/call"}"#, Some("1")),
        (r#"{"jsonrpc":"2.0","jsonrpc":"2.0","id":1,"method":"ping"}"#, Some("1")),
        (r#"{"jsonrpc":"2.0","id":1,"method":"ping","params":{},"params":{}}"#, Some("1")),
        (r#"{"jsonrpc":"2.0","id":1,"method":"a","id":2,"method":"b"}"#, None),
        (r#"{"jsonrpc":"2.0","method":"a","id":1,"method":"b","id":2}"#, None),
    ] {
        assert_refused(text, -32600, id);
    }
}

#[test]
fn unknown_envelope_members_are_ignored() {
    let r =
        request(r#"{"jsonrpc":"2.0","extra":{"id":5,"method":"x"},"id":1,"method":"ping","extra":[],"trace":null}"#);
    assert_eq!(r.id.as_json(), "1");
}

#[test]
fn invalid_json_is_parse_error() {
    let ping = r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#;
    for text in [
        "".to_owned(),
        " \r\n\t".to_owned(),
        "{".to_owned(),
        "[".to_owned(),
        "ping".to_owned(),
        "tru".to_owned(),
        format!("\u{feff}{ping}"),
        format!("{ping}x"),
        format!("{ping}{ping}"),
        format!("{ping},"),
        format!("[{ping}]]"),
        format!("[{ping},]"),
        format!("{ping}\0"),
        format!("\u{a0}{ping}"),
        ping.replace('1', "NaN"),
        ping.replace('1', "Infinity"),
        ping.replace('1', "-Infinity"),
        ping.replace('1', "01"),
        ping.replace('1', "+1"),
        ping.replace('1', "0x1"),
        ping.replace('1', ".5"),
        ping.replace('1', "1."),
        ping.replace('1', "'a'"),
        ping.replace('1', "\"a\nb\""),
        ping.replace('1', "\"\\x\""),
        ping.replace('1', "\"\\u12\""),
        ping.replace("1,", "1,,"),
        ping.replace("1,", "1"),
        ping.replace("}", ",}"),
        ping.replace("}", ",\"x\":NaN}"),
        ping.replace("}", ",\"params\":{\"a\":[1,2}}"),
        ping.replace("}", "/* c */}"),
    ] {
        assert_refused(&text, -32700, None);
    }
}

#[test]
fn lone_surrogates_are_refused_anywhere() {
    for text in [
        r#"{"jsonrpc":"2.0","id":"\ud800","method":"ping"}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"\udc00"}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"ping","params":{"a":["\ud83dx"]}}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"ping","params":{"\ude00":1}}"#,
        r#"[{"jsonrpc":"2.0","id":1,"method":"ping","x":"\ud800"}]"#,
    ] {
        assert_refused(text, -32700, None);
    }
    let r = request(r#"{"jsonrpc":"2.0","id":1,"method":"ping","params":{"a":"\ud83d\ude00","b":"\\ud800"}}"#);
    assert_eq!(r.params.map(RawValue::get), Some(r#"{"a":"\ud83d\ude00","b":"\\ud800"}"#));
}

#[test]
fn bytes_that_are_not_utf8_are_refused() {
    for bytes in
        [&b"\xff"[..], b"{\"jsonrpc\":\"2.0\",\"id\":\"\xc3\x28\",\"method\":\"ping\"}", b"\xef\xbb", b"\xed\xa0\x80"]
    {
        assert_eq!(fault(bytes).error.kind, ErrorKind::Parse);
    }
}

#[test]
fn fault_of_deep_message_keeps_id() {
    let nested = |levels: usize| {
        format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"ping","params":{{"a":{}{}}}}}"#,
            "[".repeat(levels),
            "]".repeat(levels)
        )
    };
    assert_eq!(request(&nested(14)).id.as_json(), "1");
    assert_refused(&nested(15), -32600, Some("1"));
    let text = nested(15).replace("\"id\":1,", "");
    let fault = fault(text.as_bytes());
    assert_eq!((fault.error.kind, fault.is_notification), (ErrorKind::InvalidRequest, true));
    assert_eq!(fault.error.data["maxDepth"], 16);
}

#[test]
fn depth_bombs_do_not_overflow_the_stack() {
    let mib = 1 << 20;
    // The smallest stack that the gateway's threads may have is far larger than this.
    let run = std::thread::Builder::new().stack_size(128 * 1024).spawn(move || {
        for bomb in ["[", "{\"a\":", "[[{\"a\":[", "[{"] {
            let text = bomb.repeat(mib / bomb.len());
            assert_refused(&text, -32700, None);
            assert_refused(&format!(r#"{{"jsonrpc":"2.0","id":1,"method":"ping","params":{text}"#), -32700, None);
        }
        let (open, close) = ("[".repeat(mib / 2), "]".repeat(mib / 2));
        let mut member = fault_of_only_member(&format!("{open}{close}"));
        assert_eq!(member.error.kind, ErrorKind::InvalidRequest);
        assert_refused(
            &format!(r#"{{"jsonrpc":"2.0","id":1,"method":"ping","params":{{"a":{open}{close}}}}}"#),
            -32600,
            Some("1"),
        );
        member = fault_of_only_member(&format!(
            r#"[{{"jsonrpc":"2.0","id":2,"method":"ping","params":{{"a":{open}{close}}}}}]"#
        ));
        assert_eq!(member.id.map(|id| id.to_string()).as_deref(), Some("2"));
    });
    assert!(run.map(|thread| thread.join().is_ok()).unwrap_or(false));
}

#[track_caller]
fn fault_of_only_member(text: &str) -> EnvelopeError {
    match parse(text.as_bytes(), &LIMITS) {
        Ok(Incoming::Batch(mut members)) if members.len() == 1 => members.remove(0).expect_err("a fault"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn array_is_batch_of_messages_and_faults() {
    let text = r#" [ {"jsonrpc":"2.0","id":1,"method":"ping"} , 1, {"jsonrpc":"2.0","method":"n"},
        {"jsonrpc":"2.0","id":"z","method":1} ] "#;
    let Ok(Incoming::Batch(members)) = parse(text.as_bytes(), &LIMITS) else { panic!("a batch") };
    assert_eq!(members.len(), 4);
    assert!(matches!(&members[0], Ok(Message::Request(r)) if r.id.as_json() == "1"));
    assert!(matches!(&members[1], Err(f) if f.id.is_none() && f.error.kind == ErrorKind::InvalidRequest));
    assert!(matches!(&members[2], Ok(Message::Notification(_))));
    assert!(matches!(&members[3], Err(f) if f.id.as_ref().is_some_and(|id| id.as_json() == "\"z\"")));
    let nested = r#"[[{"jsonrpc":"2.0","id":1,"method":"ping"}]]"#;
    assert_eq!(fault_of_only_member(nested).error.kind, ErrorKind::InvalidRequest);
}

#[test]
fn empty_and_long_batches_are_refused() {
    assert_refused("[]", -32600, None);
    assert_refused(" [ ] ", -32600, None);
    let ping = r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#;
    assert!(
        matches!(parse(format!("[{}]", [ping; 4].join(",")).as_bytes(), &LIMITS), Ok(Incoming::Batch(m)) if m.len() == 4)
    );
    assert_refused(&format!("[{}]", [ping; 5].join(",")), -32600, None);
    let fault = fault(format!("[{}]", [ping; 9].join(",")).as_bytes());
    assert_eq!(fault.error.data["maxBatch"], json!(4));
    assert_refused(&format!("[{},x]", [ping; 5].join(",")), -32700, None);
}

#[test]
fn single_pass_accepts_plain_messages() {
    for text in [
        r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a","arguments":{"b":[{},[],-0.5e+7]}}}"#,
        " {\n\t\"id\" : \"\\ud83d\\ude00\" , \"result\" : { } } ",
        r#"{"error":{"code":-1,"message":"\n\u00e9\/"},"id":null,"x":[true,false,null]}"#,
        "{}",
    ] {
        assert!(EnvelopeMembers::scan(text, 128).is_some(), "{text}");
    }
}

#[test]
fn single_pass_counts_depth_like_parser() {
    for (text, depth) in [
        ("{}", 1),
        (r#"{"id":[]}"#, 2),
        (r#"{"params":{"a":{"b":[]}}}"#, 4),
        (r#"{"params":{"_meta":{"b":[1]}},"id":1}"#, 4),
        (r#"{"a":[[],[],[]],"result":{"a":[1]}}"#, 3),
    ] {
        assert!(EnvelopeMembers::scan(text, depth).is_some(), "{text}");
        assert!(EnvelopeMembers::scan(text, depth - 1).is_none(), "{text}");
    }
    let deep = |levels: usize| format!(r#"{{"result":{}{}}}"#, "[".repeat(levels), "]".repeat(levels));
    assert!(EnvelopeMembers::scan(&deep(63), 128).is_some());
    assert!(EnvelopeMembers::scan(&deep(64), 128).is_none(), "deeper than the scanner follows");
}
