//! Stateless clients before handshake-era upstreams: when the upstream asks something, its call goes on in a task of its
//! own, and the client is answered that input is needed. Its retry brings the answers and takes up the call again
//! (2026-07-28/basic/patterns/mrtr; 2025-11-25/client/*).

use std::sync::Arc;

use tokio::sync::oneshot;

use super::ready::Ready;
use crate::{
    parked_calls::{Answers, Claim, ClientQuestion, Event, Input, Resume, RunningCall, ended, keep},
    questions::relay::Relay,
    request_state::Binding,
    translation::{request::Verb, result::input_result},
};
use countersign_domain::changes::digest::PartHasher;
use countersign_exchange::reply::Reply;
use countersign_protocol::{McpError, arguments::canonical_text_hash, json::MemberEdit};

/// Parked calls of one principal at an upstream where each of them holds a link. One more ends the oldest: there are 4 of
/// those links, and the next call needs one.
const MAX_ON_NARROW_LINKS: usize = 3;

/// Bytes that a parked call takes beside its parameters.
const PARKED_CALL_BYTES: usize = 4096;

/// Calls a stateless client's upstream.
///
/// # Errors
/// Those of [`super::call`]; `-32602` for a `requestState` that is none of this request; `OVERLOADED` for one parked call
/// too many.
pub async fn call(ready: &Ready<'_>) -> Result<Reply, McpError> {
    let input = Input::parse(ready.params())?;
    if let Some(state) = input.state {
        return resume(ready, &state, input.answers).await;
    }
    let outgoing = ready.outgoing(&[]);
    let upstream = Arc::clone(ready.call.upstream);
    if ready.caller.capabilities.accepts_no_requests() {
        let relay = Relay::new(ready.hearer(), false);
        let response = upstream.call(&ready.caller, &outgoing, Arc::clone(&relay) as _).await?;
        let declared = &ready.call.exchange.facts.capabilities;
        return match relay.declined().missing(&response, declared, &upstream.config.name) {
            Some(error) => Err(error),
            None => ready.reply(response),
        };
    }
    let (relay, requests) = Relay::asking(ready.hearer(), false);
    let (caller, listener) = (ready.caller.clone(), Arc::clone(&relay));
    let mut running_call = RunningCall::new(
        Box::pin(async move { upstream.call(&caller, &outgoing, listener).await }),
        requests,
        ready.caller.capabilities.clone(),
        Arc::clone(&ready.call.exchange.facts.capabilities),
        ready.call.upstream.config.name.clone(),
        input.answers,
    );
    match running_call.advance().await {
        Event::Done(response) => ready.reply(response?),
        Event::Input(asked) => {
            relay.turn_to(None);
            let parked_calls = &ready.call.bridge.parked;
            let upstream = ready.call.upstream;
            let most = if upstream.needs_exclusive_links() { MAX_ON_NARROW_LINKS } else { usize::MAX };
            let bytes = PARKED_CALL_BYTES + 2 * ready.call.request.params.map_or(0, |params| params.get().len());
            let share = ready.call.bridge.memory.take(&ready.caller.principal.name, bytes)?;
            let (place, resumes) = parked_calls.admit(&ready.caller.principal.name, &upstream.config.name, most)?;
            let answer = input_required(ready, place.claim, &asked)?;
            actix::spawn(async move {
                let _share = share;
                keep(running_call, relay, place, resumes).await;
            });
            Ok(answer)
        }
    }
}

/// Takes up a parked call with what its client answers.
async fn resume(ready: &Ready<'_>, state: &str, answers: Answers) -> Result<Reply, McpError> {
    let parked_calls = &ready.call.bridge.parked;
    let claim = parked_calls.open(state, &binding(ready))?;
    let resumes = parked_calls.redeem(&claim)?;
    let (reply, event) = oneshot::channel();
    let resume = Resume { answers, hearer: ready.hearer(), reply };
    // A call that ends just now takes its channel with it.
    resumes.send(resume).await.map_err(|_| ended())?;
    match event.await.map_err(|_| ended())? {
        (Event::Done(response), _) => ready.reply(response?),
        (Event::Input(asked), ticket) => input_required(ready, Claim { ticket, ..claim }, &asked),
    }
}

/// `InputRequiredResult` (2026-07-28/basic/patterns/mrtr).
fn input_required(ready: &Ready<'_>, claim: Claim, asked: &[ClientQuestion]) -> Result<Reply, McpError> {
    let state = ready.call.bridge.parked.state(claim, &binding(ready))?;
    let requests = asked.iter().map(|asked| (asked.key.as_str(), asked.method.as_str(), asked.params.as_deref()));
    Ok(Reply::passed_on(input_result(requests, Some(&state), &ready.server_meta())))
}

/// Returns the hash to which a state is bound: principal, upstream, method, name or URI, and arguments.
pub(super) fn binding(ready: &Ready<'_>) -> Binding {
    let call = &ready.call;
    // Arguments in another order are the same.
    let arguments = match call.verb {
        // The parameters of a method that is not known have no arguments that could be told from the rest.
        Verb::Extension => {
            let parts = ["_meta", "inputResponses", "requestState"].map(|key| (key, MemberEdit::Drop));
            canonical_text_hash(&ready.params.object.edit(&parts))
        }
        _ => canonical_text_hash(ready.params.object.member("arguments").unwrap_or("{}")),
    };
    let parts = [
        ready.caller.principal.name.as_str(),
        call.upstream.config.name.as_str(),
        call.verb.method().unwrap_or_default(),
        call.subject.text(),
        &arguments,
    ];
    let mut hash = PartHasher::new("binding of a call");
    for part in parts {
        hash.add_part(part.as_bytes());
    }
    hash.finish_bytes()
}
