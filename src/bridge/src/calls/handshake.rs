//! Handshake-era clients before handshake-era upstreams: what the upstream asks during a call is asked of that very
//! client on that very request.

use super::ready::Ready;
use crate::questions::{client_asker::ClientAsker, relay::Relay};
use countersign_protocol::McpError;
use countersign_upstream::Response;

/// Runs the call to its end, answering questions meanwhile. When it ends, or is dropped, open questions are taken back.
pub async fn call(ready: &Ready<'_>) -> Result<Response, McpError> {
    let outgoing = ready.outgoing(&[]);
    let upstream = ready.call.upstream;
    if ready.caller.capabilities.accepts_no_requests() {
        return upstream.call(&ready.caller, &outgoing, Relay::new(ready.hearer(), true)).await;
    }
    let (relay, requests) = Relay::asking(ready.hearer(), true);
    let (exchange, server) = (ready.call.exchange, ready.call.upstream.config.name.as_str());
    let asks = ClientAsker { exchange, server, capabilities: &ready.caller.capabilities, task: None };
    // Boxed: it would be there twice, as what is handed over and as what is pinned.
    asks.run(Box::pin(upstream.call(&ready.caller, &outgoing, relay)), requests).await
}
