//! Asks handshake-era clients the questions of an upstream during its call.

use std::future::Future;

use futures_util::{StreamExt, future::LocalBoxFuture, stream::FuturesUnordered};
use serde_json::value::RawValue;
use tokio::sync::mpsc;

use crate::translation::task_shape;
use countersign_exchange::{ask::ask, context::Exchange};
use countersign_protocol::{McpError, negotiate::ClientCapabilities};
use countersign_provider::request::UpstreamRequest;
use countersign_upstream::Response;

/// Puts the questions of an upstream to the client of an exchange.
pub struct ClientAsker<'a> {
    pub exchange: &'a Exchange,
    /// The name of the upstream.
    pub server: &'a str,
    pub capabilities: &'a ClientCapabilities,
    /// The task that the questions belong to, under the client's id.
    pub task: Option<&'a str>,
}

impl ClientAsker<'_> {
    /// Runs a call to its end and has the client answer its questions meanwhile.
    ///
    /// # Errors
    /// The errors of the call.
    pub async fn run(
        &self,
        work: impl Future<Output = Result<Response, McpError>>,
        mut requests: mpsc::Receiver<UpstreamRequest>,
    ) -> Result<Response, McpError> {
        let mut work = std::pin::pin!(work);
        let mut open_questions: FuturesUnordered<LocalBoxFuture<'_, ()>> = FuturesUnordered::new();
        loop {
            tokio::select! {
                biased;
                response = &mut work => return response,
                Some(request) = requests.recv() => open_questions.push(Box::pin(self.ask_client(request))),
                Some(()) = open_questions.next(), if !open_questions.is_empty() => {}
            }
        }
    }

    async fn ask_client(&self, request: UpstreamRequest) {
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
