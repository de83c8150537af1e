//! Checks of the error codes.

use std::time::Duration;

use serde_json::{Value, json};

use super::{
    Check, Group, Outcome, SpecPages, ensure_code, ensure_method_answer, ensure_response, error_code, fail,
    offered_lists, skip_unless_offered,
};
use crate::{probe::Probe, wire::ProbeError};

const CODES: SpecPages = ("basic/index#responses", "basic/index#error-codes");

pub(super) const CHECKS: &[Check] = &[
    Check::new("codes/parse-error", Group::Codes, |probe| {
        Box::pin(check_refusal(probe, r#"{"jsonrpc":"2.0","id":1,"method":"#, -32700))
    })
    .should("Invalid JSON is answered with -32700, or refused.")
    .advice("Answer with an error of that code, with the id null or without an id.")
    .spec(CODES),
    Check::new("codes/invalid-request", Group::Codes, |probe| {
        Box::pin(check_refusal(probe, r#"{"jsonrpc":"2.0","id":1,"method":7}"#, -32600))
    })
    .should("JSON that is not a request is answered with -32600, or refused.")
    .advice("Check `jsonrpc`, `method` and `id` before anything else.")
    .spec(CODES),
    Check::new("codes/method-not-found", Group::Codes, |probe| Box::pin(check_method_not_found(probe)))
        .must("An unknown method is answered with -32601.")
        .advice("Answer unknown methods with this code and no other.")
        .spec(CODES),
    Check::new("codes/invalid-params", Group::Codes, |probe| Box::pin(check_invalid_params(probe)))
        .should("A tool call without a name is answered with -32602.")
        .advice("Check parameters before you use them, and answer with this code.")
        .spec(("server/tools#error-handling", "server/tools#error-handling")),
    Check::new("codes/unknown-tool", Group::Codes, |probe| Box::pin(check_unknown_tool(probe)))
        .should("A call of an unknown tool is answered with an error, which is -32602 in the specification's example.")
        .advice("Answer with -32602 and the name of the tool, not with a result.")
        .spec(("server/tools#error-handling", "server/tools#error-handling")),
    Check::new("codes/internal-error", Group::Codes, |probe| Box::pin(check_internal_error(probe)))
        .should("Ordinary requests do not cause an internal error (-32603).")
        .advice("An internal error is a bug in the server: look at its log.")
        .spec(CODES),
    Check::new("codes/reserved", Group::Codes, |probe| Box::pin(check_reserved(probe)))
        .must("No error has a code that the specification reserves: -32023 to -32099, and -32002.")
        .advice("Choose your own codes outside of -32768 to -32000.")
        .stateless_spec(CODES.1),
];

/// The time limit for the answer to a text that is not a message. Some servers never answer it.
const REFUSAL_LIMIT: Duration = Duration::from_secs(2);

/// Sends a text that is not a message. Fails unless the answer has the error code `expected` or only refuses the text.
async fn check_refusal(probe: Probe, text: &str, expected: i64) -> Outcome {
    let mut conn = probe.connect_ready().await?;
    conn.send(text).await?;
    let reply = match conn.next_response(probe.options.timeout.min(REFUSAL_LIMIT)).await {
        Err(ProbeError::Closed) if !probe.is_child() => return Ok(()),
        reply => reply?,
    };
    let Some(reply) = reply else { return fail("it does not answer".to_owned()) };
    let response = reply.json().unwrap_or_default();
    let is_refusal = reply.status.is_some_and(|status| (400..500).contains(&status));
    let is_bare_refusal = is_refusal && response.get("error").is_none();
    ensure_response(error_code(&response) == Some(expected) || is_bare_refusal, &response)
}

async fn check_method_not_found(probe: Probe) -> Outcome {
    ensure_code(&probe.ask("check/no-such-method", json!({})).await?, -32601)
}

async fn check_invalid_params(probe: Probe) -> Outcome {
    skip_unless_offered(&probe, "tools")?;
    let response = probe.ask("tools/call", json!({ "arguments": {} })).await?;
    // Over HTTP, the header that mirrors the name is missing too.
    let is_header_error = probe.is_modern() && error_code(&response) == Some(-32020);
    ensure_response(error_code(&response) == Some(-32602) || is_header_error, &response)
}

async fn check_unknown_tool(probe: Probe) -> Outcome {
    skip_unless_offered(&probe, "tools")?;
    let params = json!({ "name": "check_no_such_tool", "arguments": {} });
    let response = probe.ask("tools/call", params).await?;
    ensure_response(response.get("error").is_some(), &response)
}

/// Returns the responses to requests that a server must be able to answer without an internal error, with their methods.
async fn collect_responses(probe: &Probe) -> Outcome<Vec<(&'static str, Value)>> {
    let mut conn = probe.connect_ready().await?;
    let mut all = Vec::new();
    for method in offered_lists(probe) {
        all.push((method, conn.ask(method, json!({})).await?));
        all.push((method, conn.ask(method, json!({ "cursor": "check-no-such-cursor" })).await?));
    }
    all.push(("check/no-such-method", conn.ask("check/no-such-method", json!({})).await?));
    Ok(all)
}

async fn check_internal_error(probe: Probe) -> Outcome {
    for (method, response) in collect_responses(&probe).await? {
        ensure_method_answer(error_code(&response) != Some(-32603), method, &response["error"])?;
    }
    Ok(())
}

async fn check_reserved(probe: Probe) -> Outcome {
    // -32000 to -32019 are left to older implementations. Only -32002 among them is reserved: older revisions define it.
    let is_reserved = |code: &i64| *code == -32002 || (-32099..=-32023).contains(code);
    for (method, response) in collect_responses(&probe).await? {
        if let Some(code) = error_code(&response).filter(is_reserved) {
            return fail(format!("{method} is answered with {code}"));
        }
    }
    Ok(())
}
