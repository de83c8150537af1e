//! Checks that provoke each standard error code.

use serde_json::{Value, json};

use super::{Check, Outcome, Verdict, check, compact_json, error_code};
use crate::{
    Target,
    probe::{Conn, Probe},
    wire::ProbeError,
};

const CODES: (&str, &str) = ("basic/index#responses", "basic/index#error-codes");

pub(super) const CHECKS: &[Check] = &[
    check!(
        "codes/parse-error",
        Codes,
        Should,
        Both,
        All,
        CODES,
        "What is no JSON is answered with -32700, or refused.",
        "Answer with an error of that code and without an id, or with null for one.",
        parse_error
    ),
    check!(
        "codes/invalid-request",
        Codes,
        Should,
        Both,
        All,
        CODES,
        "JSON that is no request is answered with -32600, or refused.",
        "Check `jsonrpc`, `method` and `id` before anything else.",
        invalid_request
    ),
    check!(
        "codes/method-not-found",
        Codes,
        Must,
        Both,
        All,
        CODES,
        "A method that does not exist is answered with -32601.",
        "Answer unknown methods with this code, and with no other.",
        method_not_found
    ),
    check!(
        "codes/invalid-params",
        Codes,
        Should,
        Both,
        All,
        ("server/tools#error-handling", "server/tools#error-handling"),
        "A call of a tool without its name is answered with -32602.",
        "Check parameters before you use them, and answer with this code.",
        invalid_params
    ),
    check!(
        "codes/unknown-tool",
        Codes,
        Should,
        Both,
        All,
        ("server/tools#error-handling", "server/tools#error-handling"),
        "A call of a tool that does not exist is answered with an error, -32602 by the specification's example.",
        "Answer with -32602 and the name of the tool; not with a result.",
        unknown_tool
    ),
    check!(
        "codes/internal-error",
        Codes,
        Should,
        Both,
        All,
        CODES,
        "None of what was asked so far is an error of the server's own (-32603).",
        "An error of the server's own is a mistake in the server: look into its log.",
        internal_error
    ),
    check!(
        "codes/reserved",
        Codes,
        Must,
        Modern,
        All,
        CODES,
        "No error has a code that the specification keeps for itself: -32023 to -32099, -32002 and -32042.",
        "Take codes of your own from outside of -32768 to -32000.",
        reserved
    ),
];

/// Sends a text that is not a message, and expects that error code or another kind of refusal.
async fn check_refusal(probe: &Probe, text: &str, expected: i64) -> Outcome {
    let mut conn = probe.open().await?;
    conn.send(text).await?;
    match conn.next_answer(probe.limit().min(std::time::Duration::from_secs(2))).await {
        Err(ProbeError::Closed) if !matches!(probe.target, Target::Command { .. }) => Ok(Verdict::Holds),
        Err(trouble) => Err(trouble),
        Ok(None) => Ok(Verdict::Fails("it says nothing, so nobody learns of it".to_owned())),
        Ok(Some(received)) => {
            let response = received.json().unwrap_or_default();
            let is_refusal = received.status.is_some_and(|status| (400..500).contains(&status));
            Ok(Verdict::holds_if(
                error_code(&response) == Some(expected) || (is_refusal && response.get("error").is_none()),
                || format!("it answers {}", compact_json(&response)),
            ))
        }
    }
}

async fn parse_error(probe: Probe) -> Outcome {
    check_refusal(&probe, r#"{"jsonrpc":"2.0","id":1,"method":"#, -32700).await
}

async fn invalid_request(probe: Probe) -> Outcome {
    check_refusal(&probe, r#"{"jsonrpc":"2.0","id":1,"method":7}"#, -32600).await
}

async fn method_not_found(probe: Probe) -> Outcome {
    let response = probe.open().await?.ask("check/no-such-method", json!({})).await?;
    Ok(Verdict::holds_if(error_code(&response) == Some(-32601), || format!("it answers {}", compact_json(&response))))
}

async fn invalid_params(probe: Probe) -> Outcome {
    if !probe.facts.offers("tools") {
        return Ok(Verdict::Skipped("it offers no tools".to_owned()));
    }
    let response = probe.open().await?.ask("tools/call", json!({ "arguments": {} })).await?;
    // Over HTTP, the header that mirrors the name is missing too.
    let mirrored = probe.is_modern() && error_code(&response) == Some(-32020);
    Ok(Verdict::holds_if(error_code(&response) == Some(-32602) || mirrored, || {
        format!("it answers {}", compact_json(&response))
    }))
}

async fn unknown_tool(probe: Probe) -> Outcome {
    if !probe.facts.offers("tools") {
        return Ok(Verdict::Skipped("it offers no tools".to_owned()));
    }
    let params = json!({ "name": "check_no_such_tool", "arguments": {} });
    let response = probe.open().await?.ask("tools/call", params).await?;
    Ok(Verdict::holds_if(response.get("error").is_some(), || format!("it answers {}", compact_json(&response))))
}

/// Sends requests that a server must be able to answer without an internal error.
async fn collect_responses(conn: &mut Conn, probe: &Probe) -> Result<Vec<(&'static str, Value)>, ProbeError> {
    let mut all = Vec::new();
    for (capability, method) in [("tools", "tools/list"), ("resources", "resources/list"), ("prompts", "prompts/list")]
    {
        if probe.facts.offers(capability) {
            all.push((method, conn.ask(method, json!({})).await?));
            all.push((method, conn.ask(method, json!({ "cursor": "check-no-such-cursor" })).await?));
        }
    }
    all.push(("check/no-such-method", conn.ask("check/no-such-method", json!({})).await?));
    Ok(all)
}

async fn internal_error(probe: Probe) -> Outcome {
    for (method, response) in collect_responses(&mut probe.open().await?, &probe).await? {
        if error_code(&response) == Some(-32603) {
            return Ok(Verdict::Fails(format!("{method} is answered with {}", compact_json(&response["error"]))));
        }
    }
    Ok(Verdict::Holds)
}

async fn reserved(probe: Probe) -> Outcome {
    // -32000 to -32019 are left to older implementations; two codes of older revisions are not reused.
    let taken = |code: i64| matches!(code, -32002 | -32042) || (-32099..=-32023).contains(&code);
    for (method, response) in collect_responses(&mut probe.open().await?, &probe).await? {
        if let Some(code) = error_code(&response).filter(|code| taken(*code)) {
            return Ok(Verdict::Fails(format!("{method} is answered with {code}")));
        }
    }
    Ok(Verdict::Holds)
}
