//! ClientAsker handshake-era clients what an upstream wants to know, while it works.

use std::future::Future;

use futures_util::{StreamExt, future::LocalBoxFuture, stream::FuturesUnordered};
use serde_json::value::RawValue;
use tokio::sync::mpsc;

use crate::translation::task_shape;
use countersign_exchange::{ask::ask, context::Exchange};
use countersign_protocol::{McpError, capabilities::ClientCapabilities};
use countersign_provider::request::UpstreamRequest;
use countersign_upstream::Response;

/// Asks the client of an exchange for an upstream.
pub struct ClientAsker<'a> {
    pub exchange: &'a Exchange,
    /// The name of the upstream that asks.
    pub server: &'a str,
    pub capabilities: &'a ClientCapabilities,
    /// The task that the questions belong to, as the client knows it.
    pub task: Option<&'a str>,
}

impl ClientAsker<'_> {
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
        if let Err(refused) = super::check_capabilities(self.capabilities, &method, params) {
            return reply.answer(Err(refused));
        }
        let exchange = self.exchange;
        let mut params = super::params_for_client(self.server, &method, params, exchange.revision(), None);
        if let Some(task) = self.task {
            params = Some(task_shape::with_related_task(params.as_deref().unwrap_or("{}"), task));
        }
        tokio::select! {
            answer = ask(&exchange.session, &exchange.related, &method, params.as_deref()) => {
                reply.answer(answer.map_err(|error| super::refusal(&error)));
            }
            () = cancelled.cancelled() => {}
        }
    }
}
