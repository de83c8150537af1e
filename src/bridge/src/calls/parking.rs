//! Calls of stateless clients to handshake-era upstreams. When the upstream asks a question, the call continues in the
//! background, and the client is told that input is needed. Its retry brings the answers and resumes the call
//! (2026-07-28/basic/patterns/mrtr; 2025-11-25/client/*).

use std::sync::Arc;

use tokio::sync::oneshot;

use super::prepared_call::PreparedCall;
use crate::{
    parked_calls::{Answers, CallEvent, ParkedCallRef, Retry, RetryParams, RunningCall, ended_call_error, run_parked},
    questions::{ClientQuestion, Relay, missing_capabilities},
    request_state::Binding,
    translation::{request::RequestedItem, result::input_required_result},
};
use countersign_domain::changes::digest::PartHasher;
use countersign_exchange::reply::Reply;
use countersign_protocol::{
    ErrorKind, McpError, arguments::canonical_text_hash, json::MemberEdit, negotiate::ClientCapabilities,
};
use countersign_runtime::background;

/// The maximum number of parked calls of one principal at an upstream where each of them holds a link. A further call
/// evicts the oldest one whose client is away. Such an upstream opens at most 4 links for a principal, and the next call
/// needs one of them.
const MAX_PARKED_ON_EXCLUSIVE_LINKS: usize = 3;

/// The bytes that a parked call takes in addition to its parameters.
const PARKED_CALL_BYTES: usize = 4096;

/// Calls a handshake-era upstream for a stateless client, or resumes the parked call that its `requestState` names.
///
/// # Errors
/// The errors of [`super::call`]; `-32602` for a `requestState` of another request; `-32021` for a retry that does not
/// declare what a question needs; `OVERLOADED` if the principal has too many parked calls.
pub async fn call_or_resume(prepared: &PreparedCall<'_>) -> Result<Reply, McpError> {
    let retry_params = RetryParams::parse(prepared.params())?;
    if let Some(state) = retry_params.state {
        return resume(prepared, &state, retry_params.answers).await;
    }
    let outgoing = prepared.build_request(&[]);
    let upstream = Arc::clone(prepared.call.upstream);
    if prepared.caller.capabilities.accepts_no_requests() {
        let relay = Relay::new(prepared.recipient());
        let response = upstream.call(&prepared.caller, &outgoing, Arc::clone(&relay) as _).await?;
        let declared = &prepared.call.exchange.facts.capabilities;
        return prepared.reply(relay.declined.check_response(response, declared, &upstream.config.name)?);
    }
    let (relay, requests) = Relay::with_questions(prepared.recipient());
    let (caller, listener) = (prepared.caller.clone(), Arc::clone(&relay));
    let mut running_call = RunningCall::new(
        Box::pin(async move { upstream.call(&caller, &outgoing, listener).await }),
        requests,
        prepared.stateless_client(),
        retry_params.answers,
    );
    match running_call.advance().await {
        CallEvent::Done(response) => prepared.reply(response?),
        CallEvent::InputRequired(questions) => {
            relay.redirect_to(None);
            let parked_calls = &prepared.call.bridge.parked_calls;
            let upstream = prepared.call.upstream;
            let limit = if upstream.needs_exclusive_links() { MAX_PARKED_ON_EXCLUSIVE_LINKS } else { usize::MAX };
            let bytes = PARKED_CALL_BYTES + 2 * prepared.call.request.params.map_or(0, |params| params.get().len());
            let share = prepared.call.bridge.memory.take(&prepared.caller.principal.name, bytes)?;
            let (slot, retries) =
                parked_calls.reserve_slot(&prepared.caller.principal.name, &upstream.config.name, limit)?;
            let reply = input_required_reply(prepared, slot.reference, &questions)?;
            background::spawn(async move {
                let _share = share;
                run_parked(running_call, relay, slot, retries).await;
            });
            Ok(reply)
        }
    }
}

/// Resumes a parked call with the answers of its client.
async fn resume(prepared: &PreparedCall<'_>, state: &str, answers: Answers) -> Result<Reply, McpError> {
    let parked_calls = &prepared.call.bridge.parked_calls;
    let call_ref = parked_calls.unseal_reference(state, &binding(prepared))?;
    let retries = parked_calls.redeem(&call_ref)?;
    let (reply, event) = oneshot::channel();
    let retry = Retry { answers, recipient: prepared.recipient(), reply };
    // A call that is ending closes its channel.
    retries.send(retry).await.map_err(|_| ended_call_error())?;
    match event.await.map_err(|_| ended_call_error())? {
        (CallEvent::Done(response), _) => prepared.reply(response?),
        (CallEvent::InputRequired(questions), ticket) => {
            // Earlier requests do not count (2026-07-28/basic/index, "Capabilities").
            let declared = ClientCapabilities::from_declaration(&prepared.call.exchange.facts.capabilities);
            let asked_questions = questions.iter().map(|question| (&*question.method, question.params.as_deref()));
            if let Some(missing) = missing_capabilities(&declared, asked_questions) {
                // The client may send the retry again, with the capability.
                parked_calls.restore_ticket(&call_ref);
                let message = "the call is waiting for answers that need a capability; send the same retry with it";
                let error = McpError::new(ErrorKind::MissingCapability, message);
                return Err(error.with("requiredCapabilities", missing).with("outcome", "unknown"));
            }
            input_required_reply(prepared, ParkedCallRef { ticket, ..call_ref }, &questions)
        }
    }
}

/// Returns the `InputRequiredResult` (2026-07-28/basic/patterns/mrtr).
fn input_required_reply(
    prepared: &PreparedCall<'_>,
    call_ref: ParkedCallRef,
    questions: &[ClientQuestion],
) -> Result<Reply, McpError> {
    let state = prepared.call.bridge.parked_calls.seal_reference(call_ref, &binding(prepared))?;
    let requests = questions.iter().map(ClientQuestion::as_input_request);
    Ok(Reply::verbatim(input_required_result(requests, Some(&state), &prepared.server_meta())))
}

/// Returns the hash that binds a state to principal, upstream, method, name or URI, and arguments.
pub(super) fn binding(prepared: &PreparedCall<'_>) -> Binding {
    let call = &prepared.call;
    // The hash does not depend on the order of the arguments.
    let (method, arguments) = match call.item {
        // An unknown method has no known arguments, so all of its parameters count.
        RequestedItem::Extension(_) => {
            let parts = ["_meta", "inputResponses", "requestState"].map(|key| (key, MemberEdit::Drop));
            ("", canonical_text_hash(&prepared.params.object.edit(&parts)))
        }
        item => {
            let arguments = prepared.params.object.member("arguments").unwrap_or("{}");
            (item.method().unwrap_or_default(), canonical_text_hash(arguments))
        }
    };
    let parts = [
        prepared.caller.principal.name.as_str(),
        call.upstream.config.name.as_str(),
        method,
        call.item.text(),
        &arguments,
    ];
    let mut hash = PartHasher::new("binding of a call");
    for part in parts {
        hash.add_part(part.as_bytes());
    }
    hash.finish_bytes()
}
