//! Checks that a server survives malformed input.

use std::time::Duration;

use serde_json::{Value, json};

use super::{Check, CheckFunction, Group, Outcome, SpecPages, fail, skip, truncate};
use crate::{
    probe::{Probe, ProbeConnection},
    wire::{ProbeError, Wire},
};

const PAGE: SpecPages = ("basic/index#messages", "basic/index#messages");

const fn survival_check(id: &'static str, run: CheckFunction) -> Check {
    Check::new(id, Group::Robustness, run).spec(PAGE)
}

pub(super) const CHECKS: &[Check] = &[
    survival_check("robustness/broken-json", |probe| Box::pin(check_survival(probe, BROKEN_JSON)))
        .must("The server survives invalid JSON.")
        .advice("Catch the parser's errors where messages are read."),
    survival_check("robustness/invalid-utf-8", |probe| Box::pin(check_survival(probe, INVALID_UTF8)))
        .must("The server survives bytes that are not UTF-8.")
        .advice("Decode with replacement characters, or answer with an error."),
    survival_check("robustness/wrong-types", |probe| Box::pin(check_survival(probe, WRONG_TYPES)))
        .must("The server survives members of wrong types.")
        .advice("Check the types of members before you use them."),
    survival_check("robustness/depth", |probe| Box::pin(check_depth(probe)))
        .must("The server survives deep nesting.")
        .advice("Limit the depth of the JSON that you parse."),
    survival_check("robustness/numbers", |probe| Box::pin(check_numbers(probe)))
        .must("The server survives numbers beyond the range of any type.")
        .advice("Refuse numbers that you cannot represent."),
    survival_check("robustness/surrogates", |probe| Box::pin(check_survival(probe, SURROGATES)))
        .must("The server survives unpaired surrogate escapes.")
        .advice("Refuse such strings, or replace the surrogates."),
    survival_check("robustness/duplicate-keys", |probe| Box::pin(check_survival(probe, DUPLICATE_KEYS)))
        .must("The server survives duplicate keys.")
        .advice("Use one of them, or refuse the message."),
    survival_check("robustness/arrays", |probe| Box::pin(check_survival(probe, ARRAYS)))
        .must("The server survives arrays, including empty ones.")
        .advice("Answer with an error if you do not accept batches."),
    survival_check("robustness/responses", |probe| Box::pin(check_survival(probe, RESPONSES)))
        .must("The server survives responses to no request.")
        .advice("Ignore responses that you do not wait for."),
    survival_check("robustness/names", |probe| Box::pin(check_names(probe)))
        .must("The server survives names with unusual characters.")
        .advice("Treat names as opaque strings."),
    survival_check("robustness/half-open", |probe| Box::pin(check_half_open(probe)))
        .must("The server survives a client that disconnects in the middle of a request.")
        .advice("Expect connections to end at any time."),
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

/// The time after which no more answers to a malformed text are awaited. It is short, because there are many texts.
const DRAIN_PERIOD: Duration = Duration::from_millis(50);

/// Sends each text, reads the answers, and checks that the server still responds.
async fn check_survival(probe: Probe, texts: &[&[u8]]) -> Outcome {
    let mut conn = probe.connect_ready().await?;
    for text in texts {
        match send_and_drain(&mut conn, text).await {
            Ok(()) => {}
            // A server may refuse a text by disconnecting, so the check continues on a new connection.
            Err(ProbeError::Closed) if !probe.is_child() => conn = probe.connect_ready().await?,
            Err(error) => return fail(format!("{error}, after {}", truncate(&String::from_utf8_lossy(text)))),
        }
    }
    match conn.ensure_answers().await {
        Err(ProbeError::Closed) if !probe.is_child() => {
            Ok(probe.connect_ready().await?.ensure_answers_with_result().await?)
        }
        answered => Ok(answered?),
    }
}

async fn send_and_drain(conn: &mut ProbeConnection, text: &[u8]) -> Result<(), ProbeError> {
    conn.send_bytes(text).await?;
    while conn.receive(DRAIN_PERIOD).await?.is_some() {}
    Ok(())
}

async fn check_depth(probe: Probe) -> Outcome {
    let deep = format!("{}{}", "[".repeat(20_000), "]".repeat(20_000));
    let text = format!(
        r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"x","arguments":{{"a":{deep}}}}}}}"#
    );
    check_survival(probe, &[text.as_bytes()]).await
}

async fn check_numbers(probe: Probe) -> Outcome {
    let long = format!(r#"{{"jsonrpc":"2.0","id":{},"method":"ping"}}"#, "9".repeat(400));
    let texts: [&[u8]; 3] = [
        long.as_bytes(),
        br#"{"jsonrpc":"2.0","id":1e999,"method":"ping"}"#,
        br#"{"jsonrpc":"2.0","id":-0,"method":"ping"}"#,
    ];
    check_survival(probe, &texts).await
}

async fn check_names(probe: Probe) -> Outcome {
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

async fn check_half_open(probe: Probe) -> Outcome {
    if probe.is_child() {
        return skip("the server ends with its client");
    }
    let message = probe.message(Some(&1.into()), "tools/list", json!({})).to_string();
    for _ in 0..5 {
        match probe.connect_without_handshake().await?.wire {
            Wire::Http(wire) => wire.abort_midway(message.as_bytes()).await?,
            Wire::WebSocket(wire) => wire.abort_midway().await?,
            Wire::Stdio(_) => {}
        }
    }
    Ok(probe.connect_ready().await?.ensure_answers_with_result().await?)
}
