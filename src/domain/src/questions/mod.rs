//! Requests from servers to clients: elicitation, sampling and roots. Checks which client supports which request, and
//! adapts them to the client's revision (2025-11-25/client/*, 2026-07-28/client/*).

pub mod elicitation;

use serde_json::{Value, json};

use crate::text::truncate;
use countersign_protocol::{
    Era, Revision,
    json::{MemberEdit, drop_meta_entry, edit, member, string},
    negotiate::ClientCapabilities,
    rpc_error::RpcError,
};

pub const ELICITATION: &str = "elicitation/create";
pub const SAMPLING: &str = "sampling/createMessage";
pub const ROOTS: &str = "roots/list";

const METHOD_NOT_FOUND: i64 = -32601;
const INVALID_PARAMS: i64 = -32602;

/// Returns `true` if the request asks a person to open a URL.
pub fn is_url_elicitation(method: &str, params: Option<&str>) -> bool {
    method == ELICITATION && params.and_then(|p| member(p, "mode")).and_then(string).is_some_and(|mode| mode == "url")
}

/// Checks that the client supports a request.
///
/// # Errors
/// The error for the upstream if the client does not support the request.
pub fn check_capabilities(
    capabilities: &ClientCapabilities,
    method: &str,
    params: Option<&str>,
) -> Result<(), RpcError> {
    let is_url = is_url_elicitation(method, params);
    let (feature, is_offered, required_feature) = match method {
        ELICITATION => {
            let is_offered = capabilities.elicitation_form || capabilities.elicitation_url;
            let mode = if is_url { "elicitation in url mode" } else { "elicitation in form mode" };
            ("elicitation", is_offered, mode)
        }
        SAMPLING => ("sampling", capabilities.sampling, "sampling with tools"),
        ROOTS => ("roots", capabilities.roots, "roots"),
        other => {
            let shortened = truncate(other, 128);
            return Err(RpcError::new(METHOD_NOT_FOUND, format!("no client can be asked {shortened}")));
        }
    };
    if !is_offered {
        return Err(RpcError::new(METHOD_NOT_FOUND, format!("the client does not offer {feature}")));
    }
    if missing_capability(capabilities, method, params).is_some() {
        return Err(RpcError::new(INVALID_PARAMS, format!("the client does not offer {required_feature}")));
    }
    if is_url {
        // Only web pages may be opened.
        elicitation::checked_url(params.unwrap_or("{}")).map_err(|problem| {
            RpcError::new(INVALID_PARAMS, format!("the request was not sent to the client: {problem}"))
        })?;
    }
    Ok(())
}

/// Returns the capability that the client lacks for a request, in the form of `requiredCapabilities`. Returns `None` if
/// it lacks none, or if no client can receive the request.
pub fn missing_capability(declared: &ClientCapabilities, method: &str, params: Option<&str>) -> Option<Value> {
    let has = |key: &str| params.is_some_and(|params| member(params, key).is_some());
    match method {
        ELICITATION if is_url_elicitation(method, params) => {
            (!declared.elicitation_url).then(|| json!({ "elicitation": { "url": {} } }))
        }
        ELICITATION => (!declared.elicitation_form).then(|| json!({ "elicitation": { "form": {} } })),
        SAMPLING if has("tools") || has("toolChoice") => {
            (!declared.sampling_tools).then(|| json!({ "sampling": { "tools": {} } }))
        }
        SAMPLING => (!declared.sampling).then(|| json!({ "sampling": {} })),
        ROOTS => (!declared.roots).then(|| json!({ "roots": {} })),
        _ => None,
    }
}

/// Adapts the `params` of a request to the client's revision. `elicitation_id` is the id for a URL request without one, if
/// the client requires it. The server's progress token is dropped, because the client's progress does not reach the server
/// and two servers may use the same token.
pub fn adapt_params(
    method: &str,
    params: Option<&str>,
    client: Revision,
    elicitation_id: Option<&str>,
) -> Option<String> {
    let params = params?;
    let id = elicitation_id.map(|id| Value::from(id).to_string());
    let without_token = drop_meta_entry(params, "progressToken");
    let mut edits: Vec<(&str, MemberEdit<'_>)> = Vec::new();
    if client.era() == Era::Modern {
        // Tasks and URL ids exist only in the handshake era.
        edits.push(("task", MemberEdit::Drop));
        if method == ELICITATION {
            edits.push(("elicitationId", MemberEdit::Drop));
        }
    } else if method == ELICITATION {
        // Modes are newer than elicitation (2025-11-25/changelog).
        if client < Revision::V2025_11_25 {
            edits.push(("mode", MemberEdit::Drop));
        }
        if let Some(id) = id.as_deref() {
            edits.push(("elicitationId", MemberEdit::SetIfMissing(id)));
        }
    }
    Some(edit(without_token.as_deref().unwrap_or(params), &edits))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_token_of_server_is_dropped() {
        for client in [Revision::MODERN, Revision::V2025_11_25, Revision::V2024_11_05] {
            for (params, expected) in [
                (r#"{"n":1.0,"_meta":{"progressToken":4}}"#, r#"{"n":1.0}"#),
                (r#"{"_meta":{"a.b/c":1.0,"progressToken":"t"},"n":1}"#, r#"{"_meta":{"a.b/c":1.0},"n":1}"#),
                (r#"{"_meta":{},"progressToken":4}"#, r#"{"_meta":{},"progressToken":4}"#),
            ] {
                assert_eq!(adapt_params(SAMPLING, Some(params), client, None).as_deref(), Some(expected), "{client:?}");
            }
        }
    }
}
