//! Checks that a server survives malformed input.

use serde_json::{Value, json};

use super::{Check, Group, Outcome, fail, skip, truncate};
use crate::{
    probe::{Conn, Probe, QUIET_PERIOD},
    wire::{ProbeError, Wire},
};

const PAGE: (&str, &str) = ("basic/index#messages", "basic/index#messages");

pub(super) const CHECKS: &[Check] = &[
    Check::new("robustness/broken-json", Group::Robustness, |probe| Box::pin(check_survival(probe, BROKEN_JSON)))
        .must("Texts that are no JSON do not end the server.")
        .advice("Catch the parser's errors where messages are read.")
        .spec(PAGE),
    Check::new("robustness/invalid-utf-8", Group::Robustness, |probe| Box::pin(check_survival(probe, INVALID_UTF8)))
        .must("Bytes that are no UTF-8 do not end the server.")
        .advice("Decode with replacement, or answer with an error.")
        .spec(PAGE),
    Check::new("robustness/wrong-types", Group::Robustness, |probe| Box::pin(check_survival(probe, WRONG_TYPES)))
        .must("Members of wrong types do not end the server.")
        .advice("Check types before you use members.")
        .spec(PAGE),
    Check::new("robustness/depth", Group::Robustness, |probe| Box::pin(depth(probe)))
        .must("Deep nesting does not end the server.")
        .advice("Bound the depth of what you parse.")
        .spec(PAGE),
    Check::new("robustness/numbers", Group::Robustness, |probe| Box::pin(numbers(probe)))
        .must("Numbers beyond all types do not end the server.")
        .advice("Refuse numbers that you cannot hold.")
        .spec(PAGE),
    Check::new("robustness/surrogates", Group::Robustness, |probe| Box::pin(check_survival(probe, SURROGATES)))
        .must("Escaped halves of surrogate pairs do not end the server.")
        .advice("Refuse such texts, or replace the halves.")
        .spec(PAGE),
    Check::new("robustness/duplicate-keys", Group::Robustness, |probe| Box::pin(check_survival(probe, DUPLICATE_KEYS)))
        .must("A key that stands there twice does not end the server.")
        .advice("Take one of them, or refuse the message.")
        .spec(PAGE),
    Check::new("robustness/arrays", Group::Robustness, |probe| Box::pin(check_survival(probe, ARRAYS)))
        .must("Arrays, empty ones among them, do not end the server.")
        .advice("Answer with an error where you take no batches.")
        .spec(PAGE),
    Check::new("robustness/responses", Group::Robustness, |probe| Box::pin(check_survival(probe, RESPONSES)))
        .must("Responses to nothing do not end the server.")
        .advice("Ignore responses that nobody waits for.")
        .spec(PAGE),
    Check::new("robustness/names", Group::Robustness, |probe| Box::pin(names(probe)))
        .must("Names with odd characters do not end the server.")
        .advice("Treat names as opaque texts.")
        .spec(PAGE),
    Check::new("robustness/half-open", Group::Robustness, |probe| Box::pin(half_open(probe)))
        .must("A client that goes in the middle of a request does not end the server.")
        .advice("Expect connections to end at any time.")
        .spec(PAGE),
];

const BROKEN_JSON: &[&[u8]] =
    &[b"{", b"}", b"nonsense", b"{\"jsonrpc\":", b"\"", b"{'a':1}", b"{\"jsonrpc\":\"2.0\",\"id\":1,}"];
const INVALID_UTF8: &[&[u8]] =
    &[b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"\xff\xfe\"}", b"\xc3\x28", b"\xed\xa0\x80"];
const WRONG_TYPES: &[&[u8]] = &[
    br#"{"jsonrpc":2,"id":1,"method":"ping"}"#,
    br#"{"jsonrpc":"2.0","id":{},"method":"ping"}"#,
    br#"{"jsonrpc":"2.0","id":null,"method":"ping"}"#,
    br#"{"jsonrpc":"2.0","id":1.5,"method":"ping"}"#,
    br#"{"jsonrpc":"2.0","id":1,"method":null}"#,
    br#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":"text"}"#,
    br#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":7,"arguments":[]}}"#,
];
const SURROGATES: &[&[u8]] = &[
    br#"{"jsonrpc":"2.0","id":"\ud800","method":"ping"}"#,
    br#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"\udfff\ud800","arguments":{}}}"#,
];
const DUPLICATE_KEYS: &[&[u8]] = &[br#"{"jsonrpc":"2.0","id":1,"id":2,"method":"ping","method":"tools/list"}"#];
const ARRAYS: &[&[u8]] = &[b"[]", b"[[]]", br#"[{"jsonrpc":"2.0","id":1,"method":"ping"},7]"#, b"7", b"null", b"true"];
const RESPONSES: &[&[u8]] = &[
    br#"{"jsonrpc":"2.0","id":"check-nobody","result":{}}"#,
    br#"{"jsonrpc":"2.0","id":null,"error":{"code":0,"message":""}}"#,
];

/// Sends each text, reads the answers, and checks that the server still responds.
async fn check_survival(probe: Probe, texts: &[&[u8]]) -> Outcome {
    let mut conn = probe.open().await?;
    for text in texts {
        match send_and_drain(&mut conn, text).await {
            Ok(()) => {}
            // A server that refuses by disconnecting may be asked on a new connection.
            Err(ProbeError::Closed) if !probe.is_child() => conn = probe.open().await?,
            Err(error) => return fail(format!("{error}, after {}", truncate(&String::from_utf8_lossy(text)))),
        }
    }
    match conn.ensure_responsive().await {
        Err(ProbeError::Closed) if !probe.is_child() => Ok(probe.open().await?.ensure_alive().await?),
        answered => Ok(answered?),
    }
}

async fn send_and_drain(conn: &mut Conn, text: &[u8]) -> Result<(), ProbeError> {
    conn.send_bytes(text).await?;
    while conn.receive(QUIET_PERIOD / 6).await?.is_some() {}
    Ok(())
}

async fn depth(probe: Probe) -> Outcome {
    let deep = format!("{}{}", "[".repeat(20_000), "]".repeat(20_000));
    let text = format!(
        r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"x","arguments":{{"a":{deep}}}}}}}"#
    );
    check_survival(probe, &[text.as_bytes()]).await
}

async fn numbers(probe: Probe) -> Outcome {
    let long = format!(r#"{{"jsonrpc":"2.0","id":{},"method":"ping"}}"#, "9".repeat(400));
    let texts: [&[u8]; 3] = [
        long.as_bytes(),
        br#"{"jsonrpc":"2.0","id":1e999,"method":"ping"}"#,
        br#"{"jsonrpc":"2.0","id":-0,"method":"ping"}"#,
    ];
    check_survival(probe, &texts).await
}

async fn names(probe: Probe) -> Outcome {
    let names = ["", "../../etc/passwd", "__proto__", "constructor", "\u{0}", "\u{202e}", &"x".repeat(10_000)];
    let texts: Vec<String> = names
        .iter()
        .flat_map(|name| {
            let call = probe.message(Some(&1.into()), "tools/call", json!({ "name": name, "arguments": {} }));
            let method = probe.message(Some(&1.into()), name, Value::Null);
            [call.to_string(), method.to_string()]
        })
        .collect();
    let texts: Vec<&[u8]> = texts.iter().map(String::as_bytes).collect();
    check_survival(probe, &texts).await
}

async fn half_open(probe: Probe) -> Outcome {
    if probe.is_child() {
        return skip("the server ends with its client");
    }
    let message = probe.message(Some(&1.into()), "tools/list", json!({})).to_string();
    for _ in 0..5 {
        match probe.connect().await?.wire {
            Wire::Http(wire) => wire.abort_midway(message.as_bytes()).await?,
            Wire::WebSocket(wire) => wire.abort_midway().await?,
            Wire::Stdio(_) => {}
        }
    }
    Ok(probe.open().await?.ensure_alive().await?)
}
