//! Questions of a running module to the client of the call: sampling by the client's own model
//! (2025-11-25/client/sampling, 2026-07-28/client/sampling). The Executor runs reviewed writes, so they ask no
//! questions here.

use std::sync::Arc;

use futures_util::{FutureExt as _, StreamExt as _, future::LocalBoxFuture, stream::FuturesUnordered};
use serde_json::value::RawValue;
use tokio::sync::mpsc;

use countersign_bridge::result::{InputRequest, input_required_result};
use countersign_domain::{changes::digest::PartHasher, questions::adapt_params};
use countersign_exchange::{
    ask::{AskError, ask},
    context::Exchange,
    reply::SERVER_META,
};
use countersign_protocol::{ErrorKind, json::member, negotiate::ClientCapabilities, rpc_error::RpcError};
use countersign_provider::{Inquirer, question_channel, request::UpstreamRequest};

/// The maximum number of questions of one call that wait to be sent.
const MAX_QUEUED_QUESTIONS: usize = 4;

/// The questions of one call and the client's answers to them.
pub struct ClientQuestions<'a> {
    exchange: &'a Exchange,
    /// `inputResponses` of a stateless client's retry.
    responses: Option<&'a str>,
    questions: mpsc::Receiver<UpstreamRequest>,
    open_questions: FuturesUnordered<LocalBoxFuture<'a, ()>>,
}

impl<'a> ClientQuestions<'a> {
    /// Creates both ends of the channel for the questions of a call. Returns `None` if the client does not support
    /// sampling.
    pub fn for_call(exchange: &'a Exchange, responses: Option<&'a str>) -> Option<(Arc<dyn Inquirer>, Self)> {
        let capabilities = ClientCapabilities::from_declaration(&exchange.facts.capabilities);
        if !capabilities.sampling {
            return None;
        }
        let (inquirer, questions) = question_channel(capabilities, MAX_QUEUED_QUESTIONS);
        let client_questions = Self { exchange, responses, questions, open_questions: FuturesUnordered::new() };
        Some((inquirer, client_questions))
    }

    /// Carries questions to the client and its answers back, for as long as the call runs. For a stateless client,
    /// returns the result that asks it; the client then retries the call with its answer.
    pub async fn serve(&mut self) -> String {
        loop {
            let question = tokio::select! {
                Some(question) = self.questions.recv() => question,
                Some(()) = self.open_questions.next() => continue,
                else => std::future::pending().await,
            };
            if self.exchange.is_modern() {
                if let Some(result) = self.ask_by_result(question) {
                    return result;
                }
            } else {
                self.open_questions.push(ask_by_request(self.exchange, question).boxed_local());
            }
        }
    }

    /// Returns the result that asks the client, unless the client has already answered this question.
    fn ask_by_result(&self, question: UpstreamRequest) -> Option<String> {
        let params = question.params.as_deref().map(RawValue::get);
        let params = adapt_params(&question.method, params, self.exchange.revision(), None);
        let key = question_key(&question.method, params.as_deref());
        match self.responses.and_then(|responses| member(responses, &key)) {
            Some(answer) => {
                let answer = RawValue::from_string(answer.to_owned());
                question.reply.answer(
                    answer.map_err(|_| RpcError::new(ErrorKind::InvalidParams.number(), "the answer is not JSON")),
                );
                None
            }
            None => {
                let request = InputRequest { key: &key, method: &question.method, params: params.as_deref() };
                Some(input_required_result([request], None, SERVER_META))
            }
        }
    }
}

/// Returns the key of a question, which is a hash of its content. No state survives from one request to the next, so
/// the content alone ties an answer to its question.
fn question_key(method: &str, params: Option<&str>) -> String {
    let mut hasher = PartHasher::new("countersign.question.1");
    hasher.add_part(method.as_bytes());
    hasher.add_part(params.unwrap_or_default().as_bytes());
    hasher.finish()
}

/// Sends the question to a client of the handshake era as a request of the gateway.
async fn ask_by_request(exchange: &Exchange, question: UpstreamRequest) {
    let params = question.params.as_deref().map(RawValue::get);
    let params = adapt_params(&question.method, params, exchange.revision(), None);
    let answer = tokio::select! {
        answer = ask(&exchange.session, &exchange.related, &question.method, params.as_deref()) => answer,
        () = question.cancelled.cancelled() => return,
    };
    let declined = |reason: &str| RpcError::new(ErrorKind::Internal.number(), reason.to_owned());
    question.reply.answer(answer.map_err(|error| match error {
        AskError::Refused(_) => declined("the client has refused"),
        AskError::CannotAsk(reason) => declined(reason),
        AskError::TimedOut => declined("the client took too long"),
        AskError::SessionEnded => declined("the client has gone"),
    }));
}
