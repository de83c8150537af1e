//! Checks that a server survives malformed input.

use serde_json::{Value, json};

use super::{Check, Outcome, Verdict, check, truncate};
use crate::{
    Target,
    probe::{Probe, QUIET_PERIOD},
    wire::{ProbeError, Wire},
};

const PAGE: (&str, &str) = ("basic/index#messages", "basic/index#messages");

pub(super) const CHECKS: &[Check] = &[
    check!(
        "robustness/broken-json",
        Robustness,
        Must,
        Both,
        All,
        PAGE,
        "Texts that are no JSON do not end the server.",
        "Catch the parser's errors where messages are read.",
        broken_json
    ),
    check!(
        "robustness/invalid-utf-8",
        Robustness,
        Must,
        Both,
        All,
        PAGE,
        "Bytes that are no UTF-8 do not end the server.",
        "Decode with replacement, or answer with an error.",
        invalid_utf8
    ),
    check!(
        "robustness/wrong-types",
        Robustness,
        Must,
        Both,
        All,
        PAGE,
        "Members of wrong types do not end the server.",
        "Check types before you use members.",
        wrong_types
    ),
    check!(
        "robustness/depth",
        Robustness,
        Must,
        Both,
        All,
        PAGE,
        "Deep nesting does not end the server.",
        "Bound the depth of what you parse.",
        depth
    ),
    check!(
        "robustness/numbers",
        Robustness,
        Must,
        Both,
        All,
        PAGE,
        "Numbers beyond all types do not end the server.",
        "Refuse numbers that you cannot hold.",
        numbers
    ),
    check!(
        "robustness/surrogates",
        Robustness,
        Must,
        Both,
        All,
        PAGE,
        "Escaped halves of surrogate pairs do not end the server.",
        "Refuse such texts, or replace the halves.",
        surrogates
    ),
    check!(
        "robustness/duplicate-keys",
        Robustness,
        Must,
        Both,
        All,
        PAGE,
        "A key that stands there twice does not end the server.",
        "Take one of them, or refuse the message.",
        duplicate_keys
    ),
    check!(
        "robustness/arrays",
        Robustness,
        Must,
        Both,
        All,
        PAGE,
        "Arrays, empty ones among them, do not end the server.",
        "Answer with an error where you take no batches.",
        arrays
    ),
    check!(
        "robustness/responses",
        Robustness,
        Must,
        Both,
        All,
        PAGE,
        "Responses to nothing do not end the server.",
        "Ignore responses that nobody waits for.",
        responses
    ),
    check!(
        "robustness/names",
        Robustness,
        Must,
        Both,
        All,
        PAGE,
        "Names with odd characters do not end the server.",
        "Treat names as opaque texts.",
        names
    ),
    check!(
        "robustness/half-open",
        Robustness,
        Must,
        Both,
        All,
        PAGE,
        "A client that goes in the middle of a request does not end the server.",
        "Expect connections to end at any time.",
        half_open
    ),
];

/// Sends each text, reads the answers, and checks that the server still responds.
async fn check_survival(probe: Probe, texts: &[&[u8]]) -> Outcome {
    let mut conn = probe.open().await?;
    for text in texts {
        match conn.send_bytes(text).await {
            // A server that refuses by disconnecting may be asked on a new connection.
            Err(ProbeError::Closed) if !matches!(probe.target, Target::Command { .. }) => conn = probe.open().await?,
            sent => sent?,
        }
        loop {
            match conn.receive(QUIET_PERIOD / 6).await {
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(ProbeError::Closed) if !matches!(probe.target, Target::Command { .. }) => {
                    conn = probe.open().await?;
                    break;
                }
                Err(trouble) => {
                    return Ok(Verdict::Fails(format!(
                        "{trouble}, after {}",
                        truncate(&String::from_utf8_lossy(text))
                    )));
                }
            }
        }
    }
    match conn.ensure_responsive().await {
        Err(ProbeError::Closed) if !matches!(probe.target, Target::Command { .. }) => {
            probe.open().await?.ensure_alive().await?;
        }
        answers => answers?,
    }
    Ok(Verdict::Holds)
}

async fn broken_json(probe: Probe) -> Outcome {
    let texts: [&[u8]; 7] =
        [b"{", b"}", b"nonsense", b"{\"jsonrpc\":", b"\"", b"{'a':1}", b"{\"jsonrpc\":\"2.0\",\"id\":1,}"];
    check_survival(probe, &texts).await
}

async fn invalid_utf8(probe: Probe) -> Outcome {
    check_survival(probe, &[b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"\xff\xfe\"}", b"\xc3\x28", b"\xed\xa0\x80"])
        .await
}

async fn wrong_types(probe: Probe) -> Outcome {
    let texts: [&[u8]; 7] = [
        br#"{"jsonrpc":2,"id":1,"method":"ping"}"#,
        br#"{"jsonrpc":"2.0","id":{},"method":"ping"}"#,
        br#"{"jsonrpc":"2.0","id":null,"method":"ping"}"#,
        br#"{"jsonrpc":"2.0","id":1.5,"method":"ping"}"#,
        br#"{"jsonrpc":"2.0","id":1,"method":null}"#,
        br#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":"text"}"#,
        br#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":7,"arguments":[]}}"#,
    ];
    check_survival(probe, &texts).await
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

async fn surrogates(probe: Probe) -> Outcome {
    let texts: [&[u8]; 2] = [
        br#"{"jsonrpc":"2.0","id":"\ud800","method":"ping"}"#,
        br#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"\udfff\ud800","arguments":{}}}"#,
    ];
    check_survival(probe, &texts).await
}

async fn duplicate_keys(probe: Probe) -> Outcome {
    check_survival(probe, &[br#"{"jsonrpc":"2.0","id":1,"id":2,"method":"ping","method":"tools/list"}"#]).await
}

async fn arrays(probe: Probe) -> Outcome {
    check_survival(probe, &[b"[]", b"[[]]", br#"[{"jsonrpc":"2.0","id":1,"method":"ping"},7]"#, b"7", b"null", b"true"])
        .await
}

async fn responses(probe: Probe) -> Outcome {
    let texts: [&[u8]; 2] = [
        br#"{"jsonrpc":"2.0","id":"check-nobody","result":{}}"#,
        br#"{"jsonrpc":"2.0","id":null,"error":{"code":0,"message":""}}"#,
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
    if matches!(probe.target, Target::Command { .. }) {
        return Ok(Verdict::Skipped("the server ends with its client".to_owned()));
    }
    let message = probe.message(Some(&1.into()), "tools/list", json!({})).to_string();
    for _ in 0..5 {
        match probe.connect().await?.wire {
            Wire::Http(wire) => wire.abort_midway(message.as_bytes()).await?,
            Wire::WebSocket(wire) => wire.abort_midway().await?,
            Wire::Stdio(_) => {}
        }
    }
    probe.open().await?.ensure_alive().await?;
    Ok(Verdict::Holds)
}
