//! What servers ask clients: elicitation, sampling, roots. Which client may be asked what, and in which words
//! (2025-11-25/client/*, 2026-07-28/client/*).

use countersign_config::UpstreamConfig;
use countersign_exchange::{ask::AskError, context::Exchange};
use countersign_protocol::{
    ErrorKind, McpError, Revision,
    capabilities::ClientCapabilities,
    edit::{member, string},
    rpc_error::RpcError,
};

pub use countersign_upstream::{
    elicitation::{asked_by, attributed, attributed_requests},
    questions::{ELICITATION, ROOTS, SAMPLING, for_client, is_url, lacking, may_ask},
};

const INTERNAL: i64 = -32603;

/// What a client can be asked for by this upstream: what it declared, its revision has and the configuration allows; and
/// whether that is less than it declared.
#[must_use]
pub fn capabilities(exchange: &Exchange, config: &UpstreamConfig) -> (ClientCapabilities, bool) {
    let declared = ClientCapabilities::declared(&exchange.facts.capabilities);
    let mut can = declared.clone();
    let revision = exchange.revision();
    if revision < Revision::V2025_11_25 {
        can.elicitation_url = false;
        can.sampling_tools = false;
        can.sampling_context = false;
    }
    if revision < Revision::V2025_06_18 || !config.elicitation {
        can.elicitation_form = false;
    }
    if !config.elicitation {
        can.elicitation_url = false;
    }
    if !config.sampling {
        can.sampling = false;
        can.sampling_tools = false;
        can.sampling_context = false;
    }
    let less = can != declared;
    (can, less)
}

/// What an upstream is told when its question was not answered with a result.
#[must_use]
pub fn refusal(error: &AskError) -> RpcError {
    match error {
        AskError::Refused(object) => rpc_error(object.get()),
        AskError::Unreachable(why) => RpcError::new(INTERNAL, format!("the client cannot be asked: {why}")),
        AskError::Silent => RpcError::new(INTERNAL, "the client did not answer in time"),
        AskError::Gone => RpcError::new(INTERNAL, "the client has gone"),
    }
}

/// An `error` object as it came from a client.
fn rpc_error(object: &str) -> RpcError {
    let code = member(object, "code").and_then(|code| code.parse().ok()).unwrap_or(INTERNAL);
    let message = member(object, "message").and_then(string).unwrap_or_default().into_owned();
    let data = member(object, "data").and_then(|data| serde_json::value::RawValue::from_string(data.to_owned()).ok());
    RpcError { code, message, data, status: None }
}

/// The same for a client whose call cannot go on without the answer.
#[must_use]
pub fn unanswered(method: &str, error: &AskError) -> McpError {
    let refusal = refusal(error);
    McpError::new(ErrorKind::NotBridgeable, format!("the upstream needs an answer to {method}: {}", refusal.message))
        .with("method", method)
        .with("answerCode", refusal.code)
}
