//! The questions of servers to clients: elicitation, sampling and roots. This module checks which questions a client
//! accepts and adapts them to it (2025-11-25/client/*, 2026-07-28/client/*). [`relay`] carries questions to the client
//! of a call, and [`client_asker`] asks them.

pub mod client_asker;
pub mod relay;

use serde_json::value::RawValue;

use countersign_config::UpstreamConfig;
use countersign_exchange::{ask::AskError, context::Exchange};
use countersign_protocol::{
    ErrorKind, McpError, Revision,
    json::{member, string},
    negotiate::ClientCapabilities,
    rpc_error::RpcError,
};

pub use countersign_domain::questions::{
    ELICITATION, ROOTS, SAMPLING, adapt_params, check_capabilities,
    elicitation::{attribute_params, attribute_requests, params_for_client},
    is_url_elicitation, missing_capability,
};

const INTERNAL: i64 = -32603;

/// Returns the capabilities that this upstream may use: those that the client declared, its revision has and the
/// configuration allows. The second value is `true` if that is less than the client declared.
#[must_use]
pub fn capabilities(exchange: &Exchange, config: &UpstreamConfig) -> (ClientCapabilities, bool) {
    let declared = ClientCapabilities::from_declaration(&exchange.facts.capabilities);
    let mut allowed = declared.clone();
    let revision = exchange.revision();
    if revision < Revision::V2025_11_25 {
        allowed.elicitation_url = false;
        allowed.sampling_tools = false;
        allowed.sampling_context = false;
    }
    if revision < Revision::V2025_06_18 || !config.elicitation {
        allowed.elicitation_form = false;
    }
    if !config.elicitation {
        allowed.elicitation_url = false;
    }
    if !config.sampling {
        allowed.sampling = false;
        allowed.sampling_tools = false;
        allowed.sampling_context = false;
    }
    let is_restricted = allowed != declared;
    (allowed, is_restricted)
}

/// Converts a client's failure to answer into the error for the upstream.
#[must_use]
pub fn refusal(error: &AskError) -> RpcError {
    match error {
        AskError::Refused(object) => rpc_error(object.get()),
        AskError::Unreachable(why) => RpcError::new(INTERNAL, format!("the client cannot be asked: {why}")),
        AskError::Silent => RpcError::new(INTERNAL, "the client did not answer in time"),
        AskError::Gone => RpcError::new(INTERNAL, "the client has gone"),
    }
}

/// Parses the `error` object of a client's response.
fn rpc_error(object: &str) -> RpcError {
    let code = member(object, "code").and_then(|code| code.parse().ok()).unwrap_or(INTERNAL);
    let message = member(object, "message").and_then(string).unwrap_or_default().into_owned();
    let data = member(object, "data").and_then(|data| RawValue::from_string(data.to_owned()).ok());
    RpcError { code, message, data, status: None }
}

/// Converts the outcome of a question into the answer for the upstream. A dialogue that failed counts as cancelled. Any
/// other missing answer is an error.
///
/// # Errors
/// `NOT_BRIDGEABLE` if a question other than an elicitation has no answer.
pub fn answer_or_error(method: &str, outcome: Result<Box<RawValue>, AskError>) -> Result<Box<RawValue>, McpError> {
    match outcome {
        Ok(answer) => Ok(answer),
        Err(AskError::Refused(_) | AskError::Silent) if method == ELICITATION => {
            Ok(RawValue::from_string(r#"{"action":"cancel"}"#.to_owned()).unwrap_or_default())
        }
        Err(error) => Err(no_answer_error(method, &error)),
    }
}

/// Returns the error for a call that cannot continue without the answer.
fn no_answer_error(method: &str, error: &AskError) -> McpError {
    let refusal = refusal(error);
    McpError::new(ErrorKind::NotBridgeable, format!("the upstream needs an answer to {method}: {}", refusal.message))
        .with("method", method)
        .with("answerCode", refusal.code)
}

#[cfg(test)]
mod tests {
    use super::*;
    use countersign_config::UpstreamTarget;
    use countersign_exchange::testing::Bench;

    const ALL_CAPABILITIES: &str =
        r#"{"elicitation":{"form":{},"url":{}},"sampling":{"tools":{},"context":{}},"roots":{}}"#;

    #[actix::test]
    async fn declaration_revision_and_config_limit_capabilities() {
        let bench = Bench::default();
        let target = UpstreamTarget::Command { command: "x".into(), args: vec![], env: Default::default(), cwd: None };
        let open = UpstreamConfig::new("s", target);
        let no_people = UpstreamConfig { elicitation: false, ..open.clone() };
        let no_models = UpstreamConfig { sampling: false, ..open.clone() };
        for (revision, config, declared, form, url, sampling, tools, less) in [
            (Revision::MODERN, &open, ALL_CAPABILITIES, true, true, true, true, false),
            (Revision::V2025_11_25, &open, ALL_CAPABILITIES, true, true, true, true, false),
            (Revision::V2025_06_18, &open, ALL_CAPABILITIES, true, false, true, false, true),
            (Revision::V2025_03_26, &open, ALL_CAPABILITIES, false, false, true, false, true),
            (Revision::MODERN, &no_people, ALL_CAPABILITIES, false, false, true, true, true),
            (Revision::MODERN, &no_models, ALL_CAPABILITIES, true, true, false, false, true),
            (Revision::MODERN, &no_models, "{}", false, false, false, false, false),
        ] {
            let (can, is_restricted) = capabilities(&bench.exchange(revision, declared), config);
            let has = (can.elicitation_form, can.elicitation_url, can.sampling, can.sampling_tools);
            assert_eq!((has, is_restricted), ((form, url, sampling, tools), less), "{revision:?}");
        }
    }

    #[test]
    fn clients_refusal_reaches_upstream_unchanged() {
        let refused = |text: &str| refusal(&AskError::Refused(RawValue::from_string(text.to_owned()).unwrap()));
        let error = refused(r#"{"code":-1,"message":"no","data":{"n":1.0}}"#);
        assert_eq!((error.code, error.message.as_str()), (-1, "no"));
        assert_eq!(error.data.unwrap().get(), r#"{"n":1.0}"#);
        assert_eq!(refused(r#"{"code":"x"}"#).code, INTERNAL, "an invalid code counts as an internal error");
        let error = no_answer_error(SAMPLING, &AskError::Gone);
        assert_eq!((error.kind, &error.data["method"]), (ErrorKind::NotBridgeable, &SAMPLING.into()));
    }
}
