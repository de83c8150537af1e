//! What servers ask clients: elicitation, sampling, roots. Which client may be asked what, and in which words
//! (2025-11-25/client/*, 2026-07-28/client/*). [`relay`] brings it to the client of a call, [`client_asker`] asks it there.

pub mod client_asker;
pub mod relay;

use serde_json::value::RawValue;

use countersign_config::UpstreamConfig;
use countersign_exchange::{ask::AskError, context::Exchange};
use countersign_protocol::{
    ErrorKind, McpError, Revision,
    capabilities::ClientCapabilities,
    json::{member, string},
    rpc_error::RpcError,
};

pub use countersign_domain::questions::{
    ELICITATION, ROOTS, SAMPLING, adapt_params, check_capabilities,
    elicitation::{attribute_params, attribute_requests, params_for_client},
    is_url_elicitation, missing_capability,
};

const INTERNAL: i64 = -32603;

/// What a client can be asked for by this upstream: what it declared, its revision has and the configuration allows; and
/// whether that is less than it declared.
#[must_use]
pub fn capabilities(exchange: &Exchange, config: &UpstreamConfig) -> (ClientCapabilities, bool) {
    let declared = ClientCapabilities::from_declaration(&exchange.facts.capabilities);
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

/// An `error` object as it came from a client.
fn rpc_error(object: &str) -> RpcError {
    let code = member(object, "code").and_then(|code| code.parse().ok()).unwrap_or(INTERNAL);
    let message = member(object, "message").and_then(string).unwrap_or_default().into_owned();
    let data = member(object, "data").and_then(|data| RawValue::from_string(data.to_owned()).ok());
    RpcError { code, message, data, status: None }
}

/// What an upstream is told that a client answered. A dialogue that failed was not answered, which is an answer; a model's
/// text cannot be made up.
///
/// # Errors
/// `NOT_BRIDGEABLE` for any other failure to answer.
pub fn answer(method: &str, outcome: Result<Box<RawValue>, AskError>) -> Result<Box<RawValue>, McpError> {
    match outcome {
        Ok(answer) => Ok(answer),
        Err(AskError::Refused(_) | AskError::Silent) if method == ELICITATION => {
            Ok(RawValue::from_string(r#"{"action":"cancel"}"#.to_owned()).unwrap_or_default())
        }
        Err(error) => Err(unanswered(method, &error)),
    }
}

/// The same for a client whose call cannot go on without the answer.
fn unanswered(method: &str, error: &AskError) -> McpError {
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

    const ALL: &str = r#"{"elicitation":{"form":{},"url":{}},"sampling":{"tools":{},"context":{}},"roots":{}}"#;

    #[actix::test]
    async fn a_client_can_be_asked_what_it_declared_its_revision_has_and_the_configuration_allows() {
        let bench = Bench::default();
        let target = UpstreamTarget::Command { command: "x".into(), args: vec![], env: Default::default(), cwd: None };
        let open = UpstreamConfig::new("s", target);
        let no_people = UpstreamConfig { elicitation: false, ..open.clone() };
        let no_models = UpstreamConfig { sampling: false, ..open.clone() };
        for (revision, config, declared, form, url, sampling, tools, less) in [
            (Revision::MODERN, &open, ALL, true, true, true, true, false),
            (Revision::V2025_11_25, &open, ALL, true, true, true, true, false),
            (Revision::V2025_06_18, &open, ALL, true, false, true, false, true),
            (Revision::V2025_03_26, &open, ALL, false, false, true, false, true),
            (Revision::MODERN, &no_people, ALL, false, false, true, true, true),
            (Revision::MODERN, &no_models, ALL, true, true, false, false, true),
            (Revision::MODERN, &no_models, "{}", false, false, false, false, false),
        ] {
            let (can, kept_back) = capabilities(&bench.exchange(revision, declared), config);
            let has = (can.elicitation_form, can.elicitation_url, can.sampling, can.sampling_tools);
            assert_eq!((has, kept_back), ((form, url, sampling, tools), less), "{revision:?}");
        }
    }

    #[test]
    fn a_refusal_reaches_its_upstream_as_the_client_said_it() {
        let refused = |text: &str| refusal(&AskError::Refused(RawValue::from_string(text.to_owned()).unwrap()));
        let told = refused(r#"{"code":-1,"message":"no","data":{"n":1.0}}"#);
        assert_eq!((told.code, told.message.as_str()), (-1, "no"));
        assert_eq!(told.data.unwrap().get(), r#"{"n":1.0}"#);
        assert_eq!(refused(r#"{"code":"x"}"#).code, INTERNAL, "what is no code is none");
        let error = unanswered(SAMPLING, &AskError::Gone);
        assert_eq!((error.kind, &error.data["method"]), (ErrorKind::NotBridgeable, &SAMPLING.into()));
    }
}
