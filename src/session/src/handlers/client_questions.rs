//! What a module asks the client of the very call that it is running: a completion of the client's own model
//! (2025-11-25/client/sampling, 2026-07-28/client/sampling). A reviewed write asks nobody here: the Executor runs it.

use std::sync::Arc;

use futures_util::{FutureExt as _, StreamExt as _, future::LocalBoxFuture, stream::FuturesUnordered};
use serde_json::value::RawValue;
use tokio::sync::mpsc;

use crate::Handling;
use countersign_bridge::result::input_result;
use countersign_domain::{
    changes::digest::PartHasher,
    questions::{adapt_params, check_capabilities},
};
use countersign_exchange::{
    ask::{AskError, ask},
    reply::SERVER_META,
};
use countersign_protocol::{capabilities::ClientCapabilities, json::member, rpc_error::RpcError};
use countersign_provider::{Inquirer, request::UpstreamRequest};

/// Questions of one call.
const QUEUE: usize = 4;

/// The module's side.
struct Asker {
    capabilities: ClientCapabilities,
    questions: mpsc::Sender<UpstreamRequest>,
}

impl Inquirer for Asker {
    fn capabilities(&self) -> &ClientCapabilities {
        &self.capabilities
    }

    fn ask(&self, question: UpstreamRequest) {
        let params = question.params.as_deref().map(RawValue::get);
        if let Err(refused) = check_capabilities(&self.capabilities, &question.method, params) {
            return question.reply.answer(Err(refused));
        }
        // Dropped, it declines.
        let _ = self.questions.try_send(question);
    }
}

/// The questions of one call, and what its client answered to them.
pub struct ClientQuestions<'a> {
    exchange: &'a Handling,
    /// `inputResponses` of a stateless call that is made again.
    responses: Option<&'a str>,
    questions: mpsc::Receiver<UpstreamRequest>,
    open: FuturesUnordered<LocalBoxFuture<'a, ()>>,
}

impl<'a> ClientQuestions<'a> {
    /// `None` where the client can be asked nothing.
    #[must_use]
    pub fn for_call(exchange: &'a Handling, responses: Option<&'a str>) -> Option<(Arc<dyn Inquirer>, Self)> {
        let capabilities = ClientCapabilities::from_declaration(&exchange.facts.capabilities);
        if !capabilities.sampling {
            return None;
        }
        let (asker, questions) = mpsc::channel(QUEUE);
        let asking = Self { exchange, responses, questions, open: FuturesUnordered::new() };
        Some((Arc::new(Asker { capabilities, questions: asker }), asking))
    }

    /// Carries questions to the client and answers back, for as long as the call runs. A stateless client is asked by the
    /// result of the call, which this returns; it makes the call again with the answer.
    pub async fn serve(&mut self) -> String {
        loop {
            let question = tokio::select! {
                Some(question) = self.questions.recv() => question,
                Some(()) = self.open.next() => continue,
                else => std::future::pending().await,
            };
            if self.exchange.is_modern() {
                if let Some(asks) = self.ask_by_result(question) {
                    return asks;
                }
            } else {
                self.open.push(ask_by_request(self.exchange, question).boxed_local());
            }
        }
    }

    /// The result that asks, unless the client has answered this very question.
    fn ask_by_result(&self, question: UpstreamRequest) -> Option<String> {
        let params = question.params.as_deref().map(RawValue::get);
        let params = adapt_params(&question.method, params, self.exchange.revision(), None);
        let key = key(&question.method, params.as_deref());
        match self.responses.and_then(|responses| member(responses, &key)) {
            Some(answer) => {
                let answer = RawValue::from_string(answer.to_owned());
                question.reply.answer(answer.map_err(|_| RpcError::new(-32602, "the answer is not JSON")));
                None
            }
            None => {
                let requests = [(key.as_str(), question.method.as_str(), params.as_deref())];
                Some(input_result(requests.into_iter(), None, SERVER_META))
            }
        }
    }
}

/// What a question is known by: what it says, so that an answer is one to this question and to no other, although nothing is
/// kept from one request to the next.
fn key(method: &str, params: Option<&str>) -> String {
    let mut hasher = PartHasher::new("countersign.question.1");
    hasher.add_part(method.as_bytes());
    hasher.add_part(params.unwrap_or_default().as_bytes());
    hasher.finish()
}

/// Asks a client of the handshake era.
async fn ask_by_request(exchange: &Handling, question: UpstreamRequest) {
    let params = question.params.as_deref().map(RawValue::get);
    let params = adapt_params(&question.method, params, exchange.revision(), None);
    let answer = tokio::select! {
        answer = ask(&exchange.session, &exchange.related, &question.method, params.as_deref()) => answer,
        () = question.cancelled.cancelled() => return,
    };
    let declined = |why: &str| RpcError::new(-32603, why.to_owned());
    question.reply.answer(answer.map_err(|error| match error {
        AskError::Refused(_) => declined("the client has refused"),
        AskError::Unreachable(why) => declined(why),
        AskError::Silent => declined("the client took too long"),
        AskError::Gone => declined("the client has gone"),
    }));
}
