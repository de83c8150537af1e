//! Handshake-era clients before handshake-era upstreams: what the upstream asks during a call is asked of that very
//! client on that very request.

use futures_util::{StreamExt, future::LocalBoxFuture, stream::FuturesUnordered};

use super::{Ready, questions, relay::Relay};
use crate::{
    protocol::McpError,
    session::ask::ask,
    upstream::{Response, UpstreamRequest},
};

/// Runs the call to its end, answering questions meanwhile. When it ends, or is dropped, open questions are taken back.
pub async fn call(ready: &Ready<'_>) -> Result<Response, McpError> {
    let outgoing = ready.outgoing(&[]);
    let upstream = ready.call.upstream;
    if ready.caller.capabilities.asks_nothing() {
        return upstream.call(&ready.caller, outgoing, Relay::new(ready.hearer(), true)).await;
    }
    let (relay, mut requests) = Relay::asking(ready.hearer(), true);
    let mut work = std::pin::pin!(upstream.call(&ready.caller, outgoing, relay));
    let mut asked: FuturesUnordered<LocalBoxFuture<'_, ()>> = FuturesUnordered::new();
    loop {
        tokio::select! {
            biased;
            response = &mut work => return response,
            Some(request) = requests.recv() => asked.push(Box::pin(pass_on(ready, request))),
            Some(()) = asked.next(), if !asked.is_empty() => {}
        }
    }
}

async fn pass_on(ready: &Ready<'_>, request: UpstreamRequest) {
    let UpstreamRequest { method, params, reply, cancelled, .. } = request;
    let params = params.as_deref().map(serde_json::value::RawValue::get);
    if let Err(refused) = questions::may_ask(&ready.caller.capabilities, &method, params) {
        return reply.answer(Err(refused));
    }
    let exchange = ready.call.exchange;
    let params = questions::for_client(&method, params, exchange.revision(), None);
    tokio::select! {
        answer = ask(&exchange.session, &exchange.related, &method, params.as_deref()) => {
            reply.answer(answer.map_err(|error| questions::refusal(&error)));
        }
        () = cancelled.cancelled() => {}
    }
}
