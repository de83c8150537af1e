//! Handshake-era clients before handshake-era upstreams: what the upstream asks during a call is asked of that very
//! client on that very request.

use std::future::Future;

use futures_util::{StreamExt, future::LocalBoxFuture, stream::FuturesUnordered};
use serde_json::value::RawValue;
use tokio::sync::mpsc;

use super::{Ready, questions, relay::Relay, tasks::shape};
use countersign_exchange::{ask::ask, context::Exchange};
use countersign_protocol::{McpError, capabilities::ClientCapabilities};
use countersign_provider::request::UpstreamRequest;
use countersign_upstream::Response;

/// Runs the call to its end, answering questions meanwhile. When it ends, or is dropped, open questions are taken back.
pub async fn call(ready: &Ready<'_>) -> Result<Response, McpError> {
    let outgoing = ready.outgoing(&[]);
    let upstream = ready.call.upstream;
    if ready.caller.capabilities.asks_nothing() {
        return upstream.call(&ready.caller, &outgoing, Relay::new(ready.hearer(), true)).await;
    }
    let (relay, requests) = Relay::asking(ready.hearer(), true);
    let (exchange, server) = (ready.call.exchange, ready.call.upstream.config.name.as_str());
    let asks = Asks { exchange, server, capabilities: &ready.caller.capabilities, task: None };
    // Boxed: it would be there twice, as what is handed over and as what is pinned.
    asks.run(Box::pin(upstream.call(&ready.caller, &outgoing, relay)), requests).await
}

/// Who is asked what an upstream wants to know.
pub struct Asks<'a> {
    pub exchange: &'a Exchange,
    /// Who asks.
    pub server: &'a str,
    pub capabilities: &'a ClientCapabilities,
    /// The task that the questions belong to, as the client knows it.
    pub task: Option<&'a str>,
}

impl Asks<'_> {
    /// Runs a call to its end, answering questions meanwhile.
    ///
    /// # Errors
    /// Those of the call.
    pub async fn run(
        &self,
        work: impl Future<Output = Result<Response, McpError>>,
        mut requests: mpsc::Receiver<UpstreamRequest>,
    ) -> Result<Response, McpError> {
        let mut work = std::pin::pin!(work);
        let mut asked: FuturesUnordered<LocalBoxFuture<'_, ()>> = FuturesUnordered::new();
        loop {
            tokio::select! {
                biased;
                response = &mut work => return response,
                Some(request) = requests.recv() => asked.push(Box::pin(self.pass_on(request))),
                Some(()) = asked.next(), if !asked.is_empty() => {}
            }
        }
    }

    async fn pass_on(&self, request: UpstreamRequest) {
        let UpstreamRequest { method, params, reply, cancelled, .. } = request;
        let params = params.as_deref().map(RawValue::get);
        if let Err(refused) = questions::may_ask(self.capabilities, &method, params) {
            return reply.answer(Err(refused));
        }
        let exchange = self.exchange;
        let mut params = questions::asked_by(self.server, &method, params, exchange.revision(), None);
        if let Some(task) = self.task {
            params = Some(shape::related(params.as_deref().unwrap_or("{}"), task));
        }
        tokio::select! {
            answer = ask(&exchange.session, &exchange.related, &method, params.as_deref()) => {
                reply.answer(answer.map_err(|error| questions::refusal(&error)));
            }
            () = cancelled.cancelled() => {}
        }
    }
}
