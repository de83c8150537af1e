//! What servers ask clients: elicitation, sampling, roots. Which client may be asked what, and in which words
//! (2025-11-25/client/*, 2026-07-28/client/*).

pub mod elicitation;

use serde_json::{Value, json};

use countersign_protocol::{
    Era, Revision,
    capabilities::ClientCapabilities,
    json::{MemberEdit, edit, member, string},
    rpc_error::RpcError,
};

pub const ELICITATION: &str = "elicitation/create";
pub const SAMPLING: &str = "sampling/createMessage";
pub const ROOTS: &str = "roots/list";

const METHOD_NOT_FOUND: i64 = -32601;
const INVALID_PARAMS: i64 = -32602;

/// Whether the question asks a person to open a URL.
#[must_use]
pub fn is_url_elicitation(method: &str, params: Option<&str>) -> bool {
    method == ELICITATION && params.and_then(|p| member(p, "mode")).and_then(string).is_some_and(|mode| mode == "url")
}

/// # Errors
/// What the upstream is told of a question that this client cannot be asked.
pub fn check_capabilities(can: &ClientCapabilities, method: &str, params: Option<&str>) -> Result<(), RpcError> {
    let has = |key: &str| params.is_some_and(|params| member(params, key).is_some());
    let undeclared = |what: &str| Err(RpcError::new(METHOD_NOT_FOUND, format!("the client does not offer {what}")));
    match method {
        ELICITATION if !can.elicitation_form && !can.elicitation_url => undeclared("elicitation"),
        ELICITATION => {
            let url = is_url_elicitation(method, params);
            if if url { can.elicitation_url } else { can.elicitation_form } {
                // Nobody is sent anywhere but to a page of the web.
                return match url.then(|| elicitation::checked_url(params.unwrap_or("{}"))) {
                    Some(Err(why)) => {
                        Err(RpcError::new(INVALID_PARAMS, format!("the client is not asked this: {why}")))
                    }
                    _ => Ok(()),
                };
            }
            let mode = if url { "url" } else { "form" };
            Err(RpcError::new(INVALID_PARAMS, format!("the client does not offer elicitation in {mode} mode")))
        }
        SAMPLING if !can.sampling => undeclared("sampling"),
        SAMPLING if !can.sampling_tools && (has("tools") || has("toolChoice")) => {
            Err(RpcError::new(INVALID_PARAMS, "the client does not offer sampling with tools"))
        }
        ROOTS if !can.roots => undeclared("roots"),
        SAMPLING | ROOTS => Ok(()),
        other => {
            let shown: String = other.chars().take(128).collect();
            Err(RpcError::new(METHOD_NOT_FOUND, format!("no client can be asked {shown}")))
        }
    }
}

/// The capability, as `requiredCapabilities` has it, that a client lacks which declared these and is asked that; `None` for
/// what it lacks nothing for, or what no client can be asked.
#[must_use]
pub fn lacking(declared: &ClientCapabilities, method: &str, params: Option<&str>) -> Option<Value> {
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

/// A question's `params` as a client of that revision knows them. `elicitation` is the id that a question with a URL gets
/// where the client wants one and the upstream gave none.
#[must_use]
pub fn adapt_params(method: &str, params: Option<&str>, client: Revision, elicitation: Option<&str>) -> Option<String> {
    let params = params?;
    let id = elicitation.map(|id| Value::from(id).to_string());
    let mut edits: Vec<(&str, MemberEdit<'_>)> = Vec::new();
    if client.era() == Era::Modern {
        // Tasks of the handshake era, and the ids of its URLs.
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
            edits.push(("elicitationId", MemberEdit::Default(id)));
        }
    }
    Some(edit(params, &edits))
}
